from __future__ import annotations

import random

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from eagle3_diag.acceptance import (
    AcceptanceTable,
    SampleResult,
    Walk,
    WalkCounts,
    conditional_rates,
    length_of,
    segments,
    step_counts,
    walk_drafts,
)


@pytest.mark.parametrize(
    ("mask", "expected"),
    [
        ([], []),
        ([0, 0, 0], []),
        ([0, 0, 1, 1, 1], [(2, 5)]),
        ([1, 1, 1], [(1, 3)]),  # token 0 is nobody's prediction
        ([0, 1, 1, 0, 0, 1, 1, 1, 0], [(1, 3), (5, 8)]),
        ([0, 1, 0, 1, 1], [(3, 5)]),  # one token: the prefill alone makes it, nothing is drafted
    ],
)
def test_segments(mask: list[int], expected: list[tuple[int, int]]) -> None:
    assert segments([bool(m) for m in mask]) == expected


def serve(tokens: list[int], start: int, draft: dict[int, list[int]], steps: int) -> WalkCounts:
    """A server that decodes ``tokens`` greedily, written as a server: it knows a text, extends it, and counts what it accepted."""
    counts = WalkCounts.zero(steps)
    known = start + 1  # the prefill gave the first token of the response
    while known < len(tokens):
        counts.drafts += 1
        row = known - 2
        truth = tokens[known : known + steps]
        run = 0
        for k in range(steps):
            if k >= len(truth):
                counts.ended += 1
                break
            counts.at_risk[k] += 1
            if draft[row][k] != truth[k]:
                break
            counts.accepted[k] += 1
            run += 1
        known += run + 1
    return counts


@given(st.data())
def test_walk_equals_a_server_that_decodes_the_stored_text(data: st.DataObject) -> None:
    n = data.draw(st.integers(3, 30))
    start = data.draw(st.integers(1, n - 2))
    steps = data.draw(st.integers(1, 6))
    tokens = data.draw(st.lists(st.integers(0, 2), min_size=n, max_size=n))
    row = st.lists(st.integers(0, 2), min_size=steps, max_size=steps)
    draft = {t: data.draw(row) for t in range(n)}
    # without a label behind the last token the walk knows exactly what the server knows
    labels = [*tokens[1:], -1]
    walk = Walk(tokens, labels, [(start, n)], steps)
    assert walk_drafts(walk, draft) == serve(tokens, start, draft, steps)


def test_a_label_behind_the_last_token_judges_one_more_draft() -> None:
    tokens = [5, 5, 1, 2]
    walk = Walk(tokens, [5, 1, 2, 9], [(1, 4)], 3)
    # the server knows x[1]; row 0 drafts 1, 2 and then 9, which the target would have said next
    counts = walk_drafts(walk, {0: [1, 2, 9]})
    assert (counts.drafts, counts.accepted, counts.at_risk, counts.ended) == (1, [1, 1, 1], [1, 1, 1], 0)


def test_a_run_is_censored_where_the_text_leaves_the_targets_path() -> None:
    tokens = [0, 1, 2, 3, 4, 5]
    labels = [1, 2, 7, 4, 5, 6]  # at position 2 the target would have said 7, the text says 3
    draft = {0: [2, 7, 8], 2: [4, 5, 6]}
    counts = walk_drafts(Walk(tokens, labels, [(1, 6)], 3), draft)
    # first run: 2 right, 7 right (and off the text: what follows is unknown); the walk resumes behind the stored 3
    assert counts == WalkCounts(accepted=[2, 2, 1], at_risk=[2, 2, 1], drafts=2, censored=1, ended=0)
    wrong = walk_drafts(Walk(tokens, labels, [(1, 6)], 3), {0: [2, 3, 4], 2: [4, 5, 6]})
    assert wrong == WalkCounts(accepted=[2, 1, 1], at_risk=[2, 2, 1], drafts=2, censored=0, ended=0)


def test_walk_visits_every_response_and_skips_positions_without_a_label() -> None:
    tokens = list(range(12))
    labels = [*range(1, 12), -1]
    labels[2] = -1
    walk = Walk(tokens, labels, [(2, 5), (7, 10)], 2)
    rows = []
    while not walk.done:
        rows.append(walk.row)
        walk.offer(-2)
    assert rows == [2, 6, 7]


def test_step_counts_by_hand() -> None:
    # n = 6, response from position 2 on; rows 1..4; labels at positions 0..5
    mask = torch.tensor([0, 0, 1, 1, 1, 1], dtype=torch.bool)
    labels = torch.tensor([0, 0, 2, 3, 4, 5])
    rows = torch.tensor([1, 2, 3, 4])
    drafts = torch.tensor([[2, 3], [9, 4], [4, 9], [5, 5]])
    counts = step_counts(drafts, rows, labels, mask)
    assert counts.correct == [3, 1]
    assert counts.total == [4, 4]
    assert counts.at_risk == [4, 3]


def test_length_is_one_plus_the_chances_of_whole_prefixes() -> None:
    assert length_of([0.5, 0.5, 0.5]) == pytest.approx(1 + 0.5 + 0.25 + 0.125)
    assert length_of([]) == 1.0
    assert length_of([0.5, None, None]) == 1.5
    assert conditional_rates([1, 0], [2, 0]) == [0.5, None]


def _result(name: str, accepted: list[int], at_risk: list[int], drafts: int) -> SampleResult:
    return SampleResult(name=name, tokens=9, rows=8, accuracy=None, walk=WalkCounts(accepted, at_risk, drafts))


@given(st.lists(st.tuples(st.integers(1, 50), st.integers(0, 50), st.integers(0, 50)), min_size=2, max_size=12), st.randoms())
def test_order_of_samples_changes_nothing_to_the_last_bit(counts: list[tuple[int, int, int]], rnd: random.Random) -> None:
    results = []
    for i, (drafts, first, second) in enumerate(counts):
        first = min(first, drafts)
        results.append(_result(f"s{i}", [first, min(second, first)], [drafts, first], drafts))
    shuffled = list(results)
    rnd.shuffle(shuffled)
    assert AcceptanceTable(2, samples=results).serving(replicates=50) == AcceptanceTable(2, samples=shuffled).serving(replicates=50)


def test_uncensored_length_equals_the_servers_formula() -> None:
    serving = AcceptanceTable(3, samples=[_result("a", [6, 3, 1], [10, 6, 3], 10), _result("b", [4, 4, 2], [5, 4, 4], 5)]).serving()
    assert serving.drafts == 15
    assert serving.acceptance_length == pytest.approx(1 + (10 + 7 + 3) / 15)
    assert serving.acceptance_length == pytest.approx(serving.counted_length)
    # the mean over requests is another number, as in the benchmarks that report it
    assert serving.per_request == pytest.approx(((1 + 10 / 10) + (1 + 10 / 5)) / 2)


def test_interval_covers_the_truth_about_as_often_as_it_says() -> None:
    generator = torch.Generator().manual_seed(3)
    truth, hits, trials = 1 + 0.6, 0, 120
    for _ in range(trials):
        samples = []
        for i in range(40):
            accepted = int((torch.rand(25, generator=generator) < 0.6).sum())
            samples.append(_result(f"s{i:02}", [accepted], [25], 25))
        ci = AcceptanceTable(1, samples=samples).serving(replicates=200).ci95
        assert ci is not None
        hits += ci[0] <= truth <= ci[1]
    assert 0.88 <= hits / trials <= 1.0


def test_one_sample_has_no_interval() -> None:
    assert AcceptanceTable(1, samples=[_result("a", [1], [2], 2)]).serving().ci95 is None


def test_sampled_mode_is_the_mean_over_rows() -> None:
    def chances(name: str, sums: tuple[float, float], rows: tuple[int, int]) -> SampleResult:
        return SampleResult(name=name, tokens=9, rows=8, accuracy=None, walk=None, chances=sums, chance_rows=rows)

    serving = AcceptanceTable(2, "sampled", [chances("a", (3.0, 1.0), (6, 5)), chances("b", (1.0, 0.5), (2, 1))]).serving()
    assert serving.acceptance_length == pytest.approx(1 + 4 / 8 + 1.5 / 6)
    assert serving.rates == pytest.approx((0.5, 0.25 / 0.5))
    assert serving.per_request == pytest.approx(((1 + 0.5 + 0.2) + (1 + 0.5 + 0.5)) / 2)
