"""Likelihoods: what fits is likelier, the more so the more there is of it; what does not fit is none of these."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eagle3_diag.catalogue import UNKNOWN
from eagle3_diag.evidence import (
    Prediction,
    chain_likelihood,
    differing_rows,
    discrimination,
    drafts_to_tell,
    exact_fit,
    same_likelihood,
    served_counts,
    unknown_chain_likelihood,
    unknown_same_likelihood,
    weigh,
)
from eagle3_diag.observed import observed
from eagle3_diag.predict import Walked
from tests.eagle3_diag.diagnosis.cases import ALIKE, BAD, MILD, RIGHT, listed, prediction, profile

ENTRIES = listed()


def made() -> list[Prediction]:
    chosen = {"as-trained": RIGHT, "layers-plus-1": BAD, "layers-minus-1": ALIKE, "drafter-quantised-fp8": MILD}
    return [prediction(ENTRIES.get(name), rates) for name, rates in chosen.items()]


def test_a_prediction_knows_its_own_figures() -> None:
    one = prediction(ENTRIES.explanations[0], [0.5, 0.5], samples=2, drafts=10)
    assert one.totals[0].drafts == 20
    assert one.rates == (11 / 20, pytest.approx(6 / 11, abs=0.1))
    assert one.length == pytest.approx(1 + sum(one.marginal))
    assert one.per_request == pytest.approx(one.length, abs=1e-9)
    # Verdicts 0 or 1: of a single draft the variance is p (1 - p).
    assert prediction(ENTRIES.explanations[0], [0.5], samples=4, drafts=100).run_variance == pytest.approx(0.25, abs=1e-3)


def test_equal_samples_are_not_dispersed_and_unequal_ones_are() -> None:
    even = prediction(ENTRIES.explanations[0], RIGHT)
    assert even.dispersion == 1.0
    walks = tuple(Walked(low=[n, 0], high=[n, 0], at_risk=[40, n], drafts=40) for n in (4, 36) * 10)
    assert Prediction(explanation=ENTRIES.explanations[0], walks=(walks,)).dispersion > 8


@pytest.mark.parametrize(("rates", "expected"), [(RIGHT, "as-trained"), ([0.6, 0.2, 0.9, 0.9], UNKNOWN)])
def test_the_more_evidence_the_surer(rates: list[float], expected: str) -> None:
    chances = [weigh(profile(rates, drafts), made()).probability[expected] for drafts in (20, 200, 2000)]
    assert chances[0] - 0.01 < chances[-1]
    assert chances[-1] > 0.8


@given(
    drafts=st.integers(1, 100000),
    rates=st.lists(st.floats(0, 1), min_size=4, max_size=4),
    mean=st.booleans(),
)
def test_probabilities_are_probabilities(drafts: int, rates: list[float], mean: bool) -> None:
    seen = profile(rates, drafts)
    if mean:
        seen = observed(steps=4, acceptance_length=seen.length)
    weighing = weigh(seen, PREDICTIONS)
    assert math.isclose(sum(weighing.probability.values()), 1.0)
    assert all(0 <= p <= 1 for p in weighing.probability.values())
    assert set(weighing.probability) == {UNKNOWN, *(p.explanation.id for p in PREDICTIONS)}
    assert [weighing.probability[n] for n in weighing.ranked()] == sorted(weighing.probability.values(), reverse=True)


PREDICTIONS = made()


def test_what_only_a_trainer_can_do_explains_no_server() -> None:
    early = prediction(ENTRIES.get("features-early"), RIGHT)
    assert "features-early" not in weigh(profile(RIGHT, 100), [*made(), early]).probability


def test_a_mean_alone_says_less_than_a_profile() -> None:
    counted = profile(BAD, 500)
    mean = observed(steps=4, drafts=500, acceptance_length=counted.length)
    by_profile, by_mean = (weigh(seen, made()).log_likelihood for seen in (counted, mean))
    assert by_profile["layers-plus-1"] - by_profile["as-trained"] > by_mean["layers-plus-1"] - by_mean["as-trained"] > 3


def test_unseen_steps_neither_help_nor_harm() -> None:
    """A server that never accepts says nothing of later steps."""
    served = served_counts([0.0, 0.0, 0.0, 0.0], 500, 1.0)
    assert served.at_risk[1:] == (0.0, 0.0, 0.0)
    assert chain_likelihood(served, made()[0]) < chain_likelihood(served, made()[1]) < unknown_chain_likelihood(served)


def test_the_same_requests_are_exact_but_for_drafts_past_their_ends() -> None:
    one = made()[0]
    total = one.totals[0]
    middle = [(low + high) // 2 for low, high in zip(total.low, total.high, strict=True)]
    assert exact_fit(observed(steps=4, drafts=total.drafts, accepted_per_position=middle), total)
    assert not exact_fit(observed(steps=4, drafts=total.drafts + 1, accepted_per_position=middle), total)
    assert not exact_fit(observed(steps=4, drafts=total.drafts, accepted_per_position=[middle[0] + 1, *middle[1:]]), total)
    weighing = weigh(observed(steps=4, drafts=total.drafts, accepted_per_position=middle), made(), same_requests=True)
    assert weighing.probability["as-trained"] > 0.99
    # One draft off, as a server in bfloat16 may be: still by far the likeliest.
    off = [middle[0] - 1, *middle[1:]]
    assert weigh(observed(steps=4, drafts=total.drafts, accepted_per_position=off), made(), same_requests=True).probability["as-trained"] > 0.9


def test_what_is_past_a_request_goes_on_only_from_what_reached_it() -> None:
    """Two drafts past ends began at step 1; what the counters may hold there is a chain of its own, whose chances add up to one."""
    total = Walked(low=[6, 3, 2], high=[6, 5, 4], at_risk=[10, 6, 3], drafts=10)
    walk = Prediction(explanation=ENTRIES.explanations[0], walks=((total,),))
    whole, fitting = 0.0, set()
    for second in range(3, 7):
        for third in range(2, 8):
            seen = observed(steps=3, drafts=10, accepted_per_position=[6, second, third]) if third <= second else None
            if seen is not None and exact_fit(seen, total):
                fitting.add((second, third))
                whole += math.exp(same_likelihood(seen, walk, 1e-12))
    assert fitting == {(3, 2), (4, 2), (4, 3), (5, 2), (5, 3), (5, 4)}
    assert whole == pytest.approx(1)


def test_a_near_fit_is_a_fault_in_another_precision_but_not_in_float32() -> None:
    """A foreign embedding, of which only instances are known, gives counts that come near a known fault's by chance."""
    foreign = prediction(ENTRIES.get("embedding-foreign"), [0.42, 0.25, 0.2, 0.1], samples=10)
    near = prediction(ENTRIES.get("layers-plus-1"), [0.36, 0.2, 0.1, 0.1], samples=10)
    total = near.totals[0]
    off = [total.low[0] + 2, total.low[1] - 1, *total.low[2:]]
    seen = observed(steps=4, drafts=total.drafts, accepted_per_position=off)
    believed = [weigh(seen, [made()[0], near, foreign], same_requests=True, float32=exact).probability for exact in (False, True)]
    assert believed[0]["layers-plus-1"] > 0.9
    assert believed[1]["layers-plus-1"] < 0.6
    assert believed[1]["embedding-foreign"] > 10 * believed[0]["embedding-foreign"]
    assert discrimination(near, foreign, seen, 1.0, same_requests=True) == 0.0
    # An exact fit needs no such leave: it wins either way.
    exact = weigh(observed(steps=4, drafts=total.drafts, accepted_per_position=total.low), [made()[0], near, foreign], same_requests=True, float32=True)
    assert exact.probability["layers-plus-1"] > 0.999


@pytest.mark.parametrize("drafts", [3, 7])
def test_chances_of_the_very_counts_add_up_to_one(drafts: int) -> None:
    """Both densities over counts are over all the counts that so many drafts can have."""
    foreign, near = (prediction(ENTRIES.get(name), [0.5, 0.4], samples=4) for name in ("embedding-foreign", "layers-plus-1"))
    unknown, instances = 0.0, 0.0
    for first in range(drafts + 1):
        for second in range(first + 1):
            seen = observed(steps=2, drafts=drafts, accepted_per_position=[first, second])
            unknown += math.exp(unknown_same_likelihood(seen, [foreign, near]))
            instances += math.exp(same_likelihood(seen, foreign))
    assert unknown == pytest.approx(1)
    assert instances == pytest.approx(1)


def test_weights_that_nobody_knows_are_not_surely_another_embedding() -> None:
    """Both give any profile in between; neither is named with certainty from counts."""
    foreign = prediction(ENTRIES.get("embedding-foreign"), [0.5, 0.4, 0.3, 0.2], samples=10)
    seen = profile([0.52, 0.43, 0.28, 0.2], 500)
    found = weigh(seen, [*made(), foreign], same_requests=True, float32=True).probability
    assert 0.02 < found["unknown"] < 0.9
    assert found["unknown"] + found["embedding-foreign"] > 0.95


def test_faults_that_look_alike_are_told_apart_by_more() -> None:
    right, bad, alike, mild = made()
    few, many = profile(RIGHT, 50), profile(RIGHT, 5000)
    assert discrimination(right, mild, few, 1.0) < 3 < discrimination(right, bad, few, 1.0)
    assert discrimination(right, mild, few, 1.0) < discrimination(right, mild, many, 1.0)
    needed = drafts_to_tell(right, bad, 1.0)
    assert needed is not None
    assert needed <= 50
    assert drafts_to_tell(bad, alike, 1.0) is None  # these samples do not know the two well enough themselves
    assert discrimination(right, bad, few, 1.0, same_requests=True) == math.inf
    assert discrimination(right, right, few, 1.0, same_requests=True) == 0
    assert differing_rows(right, bad) == (40, 80)
    assert differing_rows(right, right) == (0, 80)
    part = Prediction(explanation=bad.explanation, walks=(bad.walks[0][5:7],), runs=bad.runs[5:7], at=(5, 6))
    assert differing_rows(right, part) == differing_rows(part, right) == (4, 8)
