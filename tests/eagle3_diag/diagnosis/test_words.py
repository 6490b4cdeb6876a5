"""The verdicts, word for word."""

from __future__ import annotations

import pytest

from eagle3_diag.claims import Claim, Reached
from eagle3_diag.diagnose import Speeds, diagnose, speed_model
from eagle3_diag.evidence import weigh
from eagle3_diag.observed import observed
from eagle3_diag.predict import Limits
from eagle3_diag.survey import Survey
from tests.eagle3_diag.diagnosis.cases import ALIKE, BAD, RIGHT, diagnosed, listed, prediction, profile


def test_a_server_that_does_what_the_weights_allow() -> None:
    found = diagnosed(profile(RIGHT, 1000), covered=90)
    assert (found.verdict, found.headline) == ("quality", "Served as well as the weights allow: acceptance length 3.07")
    assert found.text == (
        "Served: 3.07 tokens per verification at K = 4 from 1,000 drafts, accepted per position 0.80, 0.60, 0.42, 0.25.",
        "Wired as trained, these weights give 3.12 (0.81, 0.61, 0.44, 0.26) on the samples, so the server does what they allow.",
        "Not excluded by this evidence, but hardly told from right wiring by it (predicted length 3.04 or more): drafter-quantised-fp8.",
        "The draft vocabulary holds 90.0% of the target's tokens in these samples; rebuild it from data like them.",
        ("A draft is right 80% of the time at step 0, but 60% at step 3 after right ones: train with more draft steps (on the drafter's own states), or serve "
        "fewer than 4."),
        "If real traffic is slower than these samples predict, it differs from them: take samples from the traffic itself.",
    )


def test_a_fault_and_what_looks_like_it() -> None:
    found = diagnosed(profile(BAD, 1000), speeds=Speeds(baseline=90.0, served=54.8))
    assert found.verdict == "wiring"
    assert found.explanations[0].id in ("layers-plus-1", "layers-minus-1")
    assert found.headline.startswith("Wiring, one of 2 that look alike: features are captured one layer too ")
    assert found.text[0] == "Served: 1.37 tokens per verification at K = 4 from 1,000 drafts, accepted per position 0.30, 0.06, 0.01, 0.001."
    assert "The evidence is more than a million to one against right wiring." in found.text[1]
    other = {"layers-plus-1": "layers-minus-1", "layers-minus-1": "layers-plus-1"}[found.explanations[0].id]
    assert found.text[2] == f"This evidence cannot tell {found.explanations[0].id} from {other}."
    assert found.explanations[0].indistinguishable == (other,)
    assert found.text[3] == (
        'Change: Set "eagle_aux_hidden_state_layer_ids": [2, 4, 6] at the top level of config.json for vLLM, and in "eagle_config" for SGLang ([1, 3, 5] there '
        "where it counts layer outputs); eagle3-diag check says which."
    )
    assert found.text[4] == "Expect after that about 3.12 tokens per verification instead of 1.37."
    assert found.text[5] == (
        "A speculative step costs 2.25 plain ones (54.8 tok/s at length 1.37), which is the break-even acceptance length: wired right, 3.12 would give about "
        "125.3 tok/s, 1.39x the 90 tok/s without speculation, so speculation pays."
    )


def test_two_that_no_row_tells_apart_point_to_the_config() -> None:
    found = diagnosed(profile(BAD, 1000))
    assert found.tell.endswith("Compare the ids in config.json with what the server logs as captured layers.")


def test_none_of_these_is_said_where_nothing_fits() -> None:
    found = diagnosed(profile([0.35, 0.9, 0.1, 0.9], 5000))
    assert (found.verdict, found.explanations[0].id) == ("wiring", "unknown")
    assert found.headline == "Wiring or environment at fault, but none of the known faults"
    assert "neither that nor any fault in the catalogue, nor two at once, gives what was served." in found.text[1]
    mild = diagnosed(profile([0.85, 0.95, 0.5, 0.9], 20000))
    assert (mild.verdict, mild.explanations[0].id) == ("insufficient", "unknown")
    assert "either its traffic differs from them, or the fault is not a known one." in mild.text[-1]


def test_too_little_says_what_to_collect() -> None:
    found = diagnosed(profile([0.67, 0.5, 0.5, 0.5], 6))
    assert found.verdict == "insufficient"
    assert found.headline == "Not enough evidence to tell weights from wiring"
    assert "Counters of about " in found.tell
    mean = diagnosed(observed(steps=4, acceptance_length=2.3, per="request", rounding=0.05))
    assert mean.text[0] == "Served: 2.30 tokens as a mean over requests at K = 4."


def test_a_mean_that_only_bad_faults_give_says_so_and_what_it_cannot() -> None:
    found = diagnosed(observed(steps=4, acceptance_length=1.37, rounding=0.005))
    assert found.verdict == "wiring"
    assert set(found.explanations[0].indistinguishable) | {found.explanations[0].id} == {"layers-plus-1", "layers-minus-1"}
    assert found.headline.startswith("Wiring, but a mean alone fits 2 faults (all together ")
    assert found.text[2].startswith("A mean alone cannot tell faults that cost equally much. It fits layers-")
    assert found.text[3].endswith("or ask the server for single rows: eagle3-diag probe.")
    assert found.text[4].startswith(f"Once it is known which: {found.explanations[0].id} is mended so: ")


def test_one_number_does_not_make_a_fault_an_unknown_one() -> None:
    """Near a known fault's length a mean is not held to that length so sharply that the unknown fault comes first."""
    for length in (1.35, 1.37, 1.4):
        found = diagnosed(observed(steps=4, acceptance_length=length, rounding=0.005))
        assert (found.verdict, found.explanations[0].id == "unknown") == ("wiring", False)


def test_many_faults_that_one_number_cannot_tell_apart_stand_before_none_of_these() -> None:
    """Each of them is less probable than "none of these", all together are more: the list begins as the headline does."""
    entries = listed()
    seen = observed(steps=4, acceptance_length=1.37, rounding=0.005)
    alike = [each for each in entries if each.served and each.exact and each.id != "as-trained"][:30]
    made = (prediction(entries.get("as-trained"), RIGHT), *(prediction(each, BAD) for each in alike))
    found = diagnose(seen, Survey(predictions=made, weighing=weigh(seen, made)), entries, Limits(covered=99, labelled=100, rates=tuple(RIGHT)))
    ids = [each.id for each in found.explanations]
    assert found.headline.startswith("Wiring, but a mean alone fits 30 faults")
    assert set(ids[:30]) == {each.id for each in alike}
    assert ids[30] == "unknown"
    assert found.explanations[30].probability > found.explanations[0].probability
    assert ids[31:] == ["as-trained"]


def test_the_same_requests_name_the_fault_exactly() -> None:
    entries = listed()
    total = prediction(entries.get("layers-minus-1"), [0.31, 0.2, 0.1, 0.1]).totals[0]
    found = diagnosed(observed(steps=4, drafts=total.drafts, accepted_per_position=total.low), same=True)
    assert found.verdict == "wiring"
    assert "layers-minus-1" in (found.explanations[0].id, *found.explanations[0].indistinguishable)
    assert "exactly the 800 that were counted." in found.text[1]


def test_what_the_very_counts_contradict_does_not_look_like_what_they_fit() -> None:
    """Of faults with equal or neighbouring counts only those that give the counted ones are alike, and of a fault known by instances only what comes near."""
    entries = listed()
    near = [0.33, 0.2, 0.1, 0.1]
    rates = {"as-trained": RIGHT, "layers-plus-1": BAD, "features-late": BAD, "layers-minus-1": ALIKE, "residual-flipped": near, "embedding-foreign": RIGHT}
    made = tuple(prediction(entries.get(name), each) for name, each in rates.items())
    total = made[1].totals[0]
    seen = observed(steps=4, drafts=total.drafts, accepted_per_position=total.low)
    survey = Survey(predictions=made, weighing=weigh(seen, made, same_requests=True))
    found = diagnose(seen, survey, entries, Limits(covered=99, labelled=100, rates=tuple(RIGHT)), same_requests=True)
    first = found.explanations[0]
    assert {first.id, *first.indistinguishable} == {"layers-plus-1", "features-late", "layers-minus-1"}


def test_a_claim_reached_only_under_another_wiring_is_a_training_convention() -> None:
    entries = listed()
    right = Reached(explanation=entries.explanations[0], accuracy=0.40, error=0.01)
    other = Reached(explanation=entries.get("layers-plus-1"), accuracy=0.74, error=0.01)
    claim = Claim(claimed=0.747, trainer="speculators", definition="...", right=right, others=(other,))
    found = diagnosed(profile(RIGHT, 1000), claim=claim)
    assert found.verdict == "training-convention"
    assert found.headline == "Training convention: the claimed accuracy is that of another wiring (layers-plus-1)"
    assert found.text[:2] == (
        "The claimed 74.7% (speculators, draft step 0) is not reached wired as the config says: 40.0% on these samples (two standard errors 1.0%).",
        ("It is reached under layers-plus-1 (74.0%): features are captured one layer too late. So the training data were made that way, while the config says "
        "otherwise."),
    )
    held = Claim(claimed=0.41, trainer="eagle", definition="...", right=right, others=())
    assert "The claimed 41.0% (eagle, draft step 0) holds on these samples: 40.0% wired as trained." in diagnosed(profile(BAD, 1000), claim=held).text
    never = Claim(claimed=0.9, trainer="eagle", definition="...", right=right, others=())
    assert "is reached under no known wiring" in " ".join(diagnosed(profile(RIGHT, 1000), claim=never).text)


def test_weights_that_do_better_otherwise_were_trained_otherwise() -> None:
    found = diagnosed(profile(RIGHT, 1000), longer=True)
    assert (found.verdict, found.headline) == ("training-convention", "Training convention: the weights do better under residual-flipped")


def test_the_speed_model_is_that_of_the_facts() -> None:
    """90 tok/s plain, 54.8 with speculation at 1.8: break-even at 2.96."""
    model = speed_model(1.8, 2.97, Speeds(baseline=90.0, served=54.8))
    assert model.step_cost == pytest.approx(2.956, abs=1e-3)
    assert model.right == pytest.approx(2.97 * 90 / 2.956, abs=0.1)
