"""Choosing rows and weighing answers, on tables of numbers: no model, no server."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from eagle3_diag import probe
from eagle3_diag.catalogue import Explanation
from eagle3_diag.probe import Reply, Row, Table

STEPS = 5


def explanation(name: str, *, exact: bool = True) -> Explanation:
    changes = {} if name == "as-trained" else {"position_offset": sum(map(ord, name))}
    return Explanation(id=name, title=name, family="features", changes=changes, exact=exact, prior=20.0 if name == "as-trained" else 1.0)


def table(runs: list[list[int]], known: list[int] | None = None) -> Table:
    """Explanations e0 (as trained), e1, ... with these runs of rows 0, 1, ..."""
    known = known or [STEPS] * len(runs[0])
    rows = [Row(sample="s", row=r, label=100 + r, known=k) for r, k in enumerate(known)]
    names = ["as-trained", *(f"e{e}" for e in range(1, len(runs)))]
    clipped = torch.minimum(torch.tensor(runs), torch.tensor(known))
    return Table(STEPS, rows, [explanation(name) for name in names], [probe.one_hot(each, STEPS)[None] for each in clipped])


def replies(of: Table, runs: list[int]) -> dict[str, Reply]:
    return {row.id: Reply(first_token=row.label, accepted=run) for row, run in zip(of.rows, runs, strict=True)}


tables = st.integers(2, 6).flatmap(
    lambda count: st.lists(st.lists(st.integers(0, STEPS), min_size=12, max_size=12), min_size=count, max_size=count)
)


@given(tables, st.lists(st.integers(1, STEPS), min_size=12, max_size=12), st.data())
def test_a_server_that_is_exactly_one_explanation_is_named(runs: list[list[int]], known: list[int], data: st.DataObject) -> None:
    of = table(runs, known)
    truth = data.draw(st.integers(0, len(runs) - 1))
    asked: dict[str, Reply] = {}
    answers = replies(of, runs[truth])
    now = probe.belief(of, probe.evidence(of, asked))
    for number in range(len(of.rows)):
        row = probe.choose(of, asked, now, number=number)
        assert row is not None
        assert row.id not in asked
        asked[row.id] = answers[row.id]
        now = probe.belief(of, probe.evidence(of, asked))
    assert probe.choose(of, asked, now, number=99) is None
    assert now.agreeing_E[truth] == len(of.rows)
    alike = next(group for group in probe.groups(of) if truth in group)
    best = max(float(now.probability_E[e]) for e in alike)
    for e in range(len(runs)):
        # A rival's prior can outweigh a single row that parts the two, not two of them.
        if e not in alike and len(of.rows) - now.agreeing_E[e] >= 2:
            assert best > float(now.probability_E[e])


@given(tables)
def test_information_is_where_explanations_part(runs: list[list[int]]) -> None:
    of = table(runs)
    even = torch.full((len(runs),), 1 / len(runs), dtype=torch.float64)
    bits_R = probe.information(of, even, 0.0, 1e-3)
    for r in range(len(of.rows)):
        parted = len({each[r] for each in runs}) > 1
        assert (float(bits_R[r]) > 1e-3) == parted


@given(tables, st.randoms())
def test_the_order_of_answers_does_not_matter(runs: list[list[int]], drawn: random.Random) -> None:
    of = table(runs)
    answers = list(replies(of, [drawn.randint(0, STEPS) for _ in of.rows]).items())
    first = probe.belief(of, probe.evidence(of, dict(answers)))
    drawn.shuffle(answers)
    second = probe.belief(of, probe.evidence(of, dict(answers)))
    assert torch.allclose(first.probability_E, second.probability_E)
    assert first.unknown == pytest.approx(second.unknown)


@given(tables)
@settings(max_examples=40)
def test_a_plan_parts_every_pair(runs: list[list[int]]) -> None:
    of = table(runs)
    members = [group[0] for group in probe.groups(of)]
    rows, left = probe.plan(of, 12)
    assert left == []
    at = [row.row for row in rows]
    assert len({tuple(runs[m][r] for r in at) for m in members}) == len(members)
    shorter, left = probe.plan(of, 1)
    together = {tuple(runs[m][r] for r in [row.row for row in shorter]) for m in members}
    assert (len(together) == len(members)) == (left == [])


def test_rows_where_the_target_itself_differs_are_put_aside() -> None:
    of = table([[1, 2, 3], [3, 2, 1]])
    found = probe.evidence(of, {"s:0": Reply(first_token=7, accepted=1), "s:1": Reply(first_token=None, accepted=2), "s:9": Reply(first_token=1, accepted=1)})
    assert (found.differing, found.at, found.runs, found.answered) == (["s:0"], [1], [2], 2)


def test_runs_count_only_as_far_as_the_text_tells() -> None:
    of = table([[2, 5], [2, 0]], known=[2, 5])
    found = probe.evidence(of, {"s:0": Reply(first_token=100, accepted=5)})
    assert found.runs == [2]
    assert probe.belief(of, found).agreeing_E == [1, 1]


def test_a_few_flips_do_not_turn_a_verdict_and_many_make_none_of_these() -> None:
    drawn = random.Random(3)
    runs = [[drawn.randint(0, STEPS) for _ in range(64)] for _ in range(6)]
    of = table(runs)

    def after(wrong: int) -> probe.Belief:
        seen = [(run + 1) % (STEPS + 1) if r < wrong else run for r, run in enumerate(runs[2])]
        return probe.belief(of, probe.evidence(of, replies(of, seen)))

    for wrong in range(3):
        assert float(after(wrong).probability_E[2]) > 0.95, wrong
    assert after(16).unknown > 0.95
    spread = [after(wrong).unknown for wrong in range(0, 20, 2)]
    assert spread == sorted(spread)
    assert after(0).flip < after(2).flip


def test_a_near_tie_that_falls_the_other_way_accuses_nobody() -> None:
    """Six of 64 answers are off: in rows that a rounding moves they are a bfloat16 server's, elsewhere they are a fault."""
    chance = random.Random(3)
    right = [chance.randint(0, STEPS) for _ in range(200)]
    far = [chance.randint(0, STEPS) for _ in range(200)]
    ties = set(range(0, 40, 3))
    rounded = [(run + 2) % (STEPS + 1) if r in ties else run for r, run in enumerate(right)]
    of = table([right, far, rounded])
    named = [of.explanations[0], of.explanations[1], replace(of.explanations[2], id="drafter-quantised-fp8")]
    of = Table(STEPS, of.rows, named, of.chances)
    assert set(torch.nonzero(of.flips_R > 1).flatten().tolist()) == ties
    off = {"near ties": sorted(ties)[:6], "any rows": [1, 2, 4, 5, 7, 8]}
    found = {}
    for kind, rows in off.items():
        answers = replies(of, [(run + 3) % (STEPS + 1) if r in rows else run for r, run in enumerate(right)])
        found[kind] = probe.belief(of, probe.evidence(of, {row.id: answers[row.id] for row in of.rows[:64]}))
        assert found[kind].agreeing_E[0] == 58
    assert float(found["near ties"].probability_E[0]) > 0.99
    assert found["any rows"].unknown > 10 * found["near ties"].unknown
    # A fault that is itself such a rounding stays one: it answers all near ties its own way, and no other row.
    quantised = replies(of, rounded)
    assert float(probe.belief(of, probe.evidence(of, {row.id: quantised[row.id] for row in of.rows[:64]})).probability_E[2]) > 0.99


@pytest.mark.parametrize(("off", "named"), [(2, "as-trained"), (4, "as-trained"), (5, "features-quantised-int8"), (12, "features-quantised-int8")])
def test_a_rounding_is_not_named_for_a_few_near_ties(off: int, named: str) -> None:
    """Of 64 answers those in near ties are a rounding's: another precision answers a few of them so, the rounding itself all that there are."""
    right = [r % (STEPS + 1) for r in range(64)]
    rounded = [(run + 1) % (STEPS + 1) if r < off else run for r, run in enumerate(right)]
    of = table([right, rounded])
    of = Table(STEPS, of.rows, [of.explanations[0], replace(of.explanations[1], id="features-quantised-int8")], of.chances)
    assert of.explanations[0].id == "as-trained"
    seen = probe.belief(of, probe.evidence(of, replies(of, rounded)))
    assert of.explanations[seen.best].id == named


def test_near_ties_are_asked_less_of_a_server_that_flips() -> None:
    right, rounded = [5] * 20, [5] * 10 + [2] * 10
    of = table([right, [4] * 20, rounded])
    of = Table(STEPS, of.rows, [of.explanations[0], of.explanations[1], replace(of.explanations[2], id="features-quantised-int8")], of.chances)
    even = torch.tensor([0.5, 0.5, 0.0], dtype=torch.float64)
    steady, flipping = (probe.information(of, even, 0.0, flip) for flip in (1e-4, 0.03))
    assert torch.allclose(steady[0], steady[15], atol=0.02)
    assert flipping[15] < flipping[0] - 0.2


def test_a_server_like_nothing_listed_is_none_of_these() -> None:
    drawn = random.Random(5)
    of = table([[drawn.randint(0, STEPS) for _ in range(32)] for _ in range(6)])
    seen = probe.belief(of, probe.evidence(of, replies(of, [drawn.randint(0, STEPS) for _ in range(32)])))
    assert seen.unknown > 0.99


def test_an_explanation_of_unknown_content_competes_with_its_shares() -> None:
    drawn = random.Random(1)
    of = table([[drawn.randint(0, STEPS) for _ in range(40)] for _ in range(4)])
    chance_RA = torch.full((40, STEPS + 1), 0.1 / (STEPS + 1))
    often = [drawn.randint(0, STEPS) for _ in range(40)]
    for r, run in enumerate(often):
        chance_RA[r, run] += 0.9
    wider = of.extended([explanation("foreign", exact=False)], [chance_RA[None]])
    mostly = [run if drawn.random() < 0.85 else drawn.randint(0, STEPS) for run in often]
    seen = probe.belief(wider, probe.evidence(wider, replies(wider, mostly)))
    assert wider.explanations[seen.best].id == "foreign"
    assert seen.unknown < 0.05


def test_what_instances_hardly_tell_is_no_name() -> None:
    """Shares that fit the answers a little better than chance: other content of that kind would not be so vague."""
    drawn = random.Random(1)
    of = table([[drawn.randint(0, STEPS) for _ in range(64)] for _ in range(4)])
    often = [drawn.randint(0, STEPS) for _ in range(64)]
    found = {}
    for told in (0.25, 0.9):
        chance_RA = torch.full((64, STEPS + 1), (1 - told) / (STEPS + 1))
        chance_RA[torch.arange(64), torch.tensor(often)] += told
        wider = of.extended([replace(explanation("foreign", exact=False), prior=0.04)], [chance_RA[None]])
        seen = [run if drawn.random() < told else drawn.randint(0, STEPS) for run in often]
        found[told] = probe.belief(wider, probe.evidence(wider, replies(wider, seen)))
    assert found[0.25].unknown > 0.5
    assert float(found[0.9].probability_E[4]) > 0.95


def test_now_and_then_a_row_is_asked_that_all_predict_alike() -> None:
    runs = [[4] * 4 + [e % 6] * 20 for e in range(6)]
    of = table(runs)
    now = probe.belief(of, probe.evidence(of, {}))
    row = probe.choose(of, [], now, number=probe.CONTROL_EVERY - 1)
    assert row is not None
    assert row.row < 4
    other = probe.choose(of, [], now, number=0)
    assert other is not None
    assert other.row >= 4
