"""A small fixed part of the simulation: the right one is never accused, what is stated surely is right, foreign faults have no name."""

from __future__ import annotations

import random

import pytest

from eagle3_diag import demo
from eagle3_diag.acceptance import length_of
from eagle3_diag.catalogue import AS_TRAINED
from tests.eagle3_diag import simulate
from tests.eagle3_diag.simulate import Outcome, Pair, calibration, outside, serve, table


@pytest.fixture(scope="module")
def outcomes() -> list[Outcome]:
    paths = demo.paths()
    pair = Pair(paths.drafter, paths.target, paths.samples, 16)
    chosen = {"as-trained", "aux-capture-off", "prefix-unseen", "features-late", "noise-50", "other-layer"}
    before = pair.faults
    pair.faults = lambda: ((name, walks) for name, walks in before() if name in chosen)  # type: ignore[method-assign]
    return list(simulate.simulate(pair, (50, 1000), 1, 0))


def test_the_right_one_is_not_accused(outcomes: list[Outcome]) -> None:
    mine = [o for o in outcomes if o.truth == AS_TRAINED]
    assert len(mine) == 2
    assert all(o.verdict in ("quality", "insufficient") for o in mine)


def test_what_is_stated_surely_is_right(outcomes: list[Outcome]) -> None:
    assert [o for o in outcomes if o.probability >= 0.95 and not (o.right or o.grouped)] == []


def test_faults_of_the_catalogue_are_named_or_in_the_group(outcomes: list[Outcome]) -> None:
    many = [o for o in outcomes if o.drafts == 1000 and o.truth not in simulate.OUTSIDE]
    assert sum(o.grouped for o in many) >= 0.75 * len(many)


def test_tables_name_every_amount(outcomes: list[Outcome]) -> None:
    assert [line.split("|")[1].strip() for line in table(outcomes).splitlines()[2:]] == ["50", "1000", "all"]
    assert calibration(outcomes).count("\n") >= 2
    assert "noise-50" in outside(outcomes)


def test_served_counts_are_whole_requests(outcomes: list[Outcome]) -> None:
    paths = demo.paths()
    pair = Pair(paths.drafter, paths.target, paths.samples, 4)
    requests = [pair.predictor.walk(one, pair.listed.explanations[0]) for one in pair.traffic]
    seen = serve(requests, 100, random.Random(1))
    assert seen.drafts is not None
    assert 100 <= seen.drafts < 100 + max(r.drafts for r in requests)
    assert abs(seen.length - length_of([a / r for a, r in zip(requests[0].low, requests[0].at_risk, strict=True)])) < 1.5
