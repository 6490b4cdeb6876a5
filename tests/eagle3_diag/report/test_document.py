"""The report as data: its schema, its arithmetic, its verdict."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import torch

from eagle3_diag.checkpoint import read_drafter
from eagle3_diag.evaluate import Options, evaluate, fits
from eagle3_diag.report.document import Inputs, document, dumps, marginal_rates, schema
from eagle3_diag.report.verdict import lengths_by_k, speed
from eagle3_diag.samples import iter_samples
from eagle3_diag.target import read_target
from tests.eagle3_diag.pairs import make_pair
from tests.eagle3_diag.report.documents import hostile, make_document

VALIDATOR = jsonschema.Draft202012Validator(schema())

VARIANTS: dict[str, dict[str, Any]] = {
    "greedy": {},
    "sampled": {"mode": "sampled"},
    "sampled-argmax": {"mode": "sampled-argmax"},
    "only serving": {"only_serving": True},
    "one sample": {"samples": 1},
    "no drafts": {"drafts": 0},
    "trainer": {"trainer": True},
    "warning": {"warnings": ("3 of 3 samples: chance level",), "agree": 1},
    "skipped": {"inputs": Inputs(skipped=[("x.pt", "x.pt: cut short.")], skipped_count=1, notes=["a", "a"], prompt_length=3, max_samples=9)},
}


def test_the_schema_is_one() -> None:
    jsonschema.Draft202012Validator.check_schema(schema())


@pytest.mark.parametrize("name", VARIANTS)
def test_every_report_fulfils_the_schema_and_survives_json(name: str) -> None:
    report = make_document(**VARIANTS[name])
    VALIDATOR.validate(report)
    assert json.loads(dumps(report)) == report
    assert dumps(report).isascii()
    VALIDATOR.validate(hostile())


def test_file_names_that_are_no_utf8_stay_readable() -> None:
    report = make_document(path="models/a\udcff", inputs=Inputs(skipped=[("b\udcfe.pt", "b\udcfe.pt: cut")], skipped_count=1))
    assert report["drafter"]["path"] == r"models/a\udcff"
    dumps(report).encode("utf-8")
    json.loads(dumps(report))["samples"]["skipped"]["files"][0]["name"].encode("utf-8")


@pytest.mark.parametrize(
    "damage",
    [
        lambda r: r.pop("vocabulary"),
        lambda r: r["accuracy"]["full"].append(1.5),
        lambda r: r["serving"].update(mode="other"),
        lambda r: r["serving"].update(ci95=[1.0]),
        lambda r: r["drafter"].update(weights_sha256="x"),
        lambda r: r.update(schema="eagle3-diag/report/2"),
        lambda r: r.update(extra=1),
    ],
)
def test_the_schema_refuses_what_is_no_report(damage: Any) -> None:
    report = make_document()
    damage(report)
    with pytest.raises(jsonschema.ValidationError):
        VALIDATOR.validate(report)


@pytest.mark.parametrize("options", [{}, {"serving_mode": "sampled"}, {"only_serving": True}, {"labels": "draft-vocab"}, {"trainer": "specforge"}, {"steps": 1}])
def test_real_evaluations_fulfil_the_schema(tmp_path: Path, options: dict[str, Any]) -> None:
    pair = make_pair(tmp_path / "p", samples=2, deviations=0.1)
    checkpoint, target = read_drafter(pair.drafter), read_target(pair.target)
    samples = iter_samples([pair.samples], check=fits(checkpoint, target))
    evaluation = evaluate(checkpoint, target, samples, Options(**options), device=torch.device("cpu"), dtype=torch.float32)
    report = document(evaluation, checkpoint, target)
    VALIDATOR.validate(report)
    assert report["drafter"]["weights_sha256"] == checkpoint.weights_sha256()
    assert report["target"]["config_sha256"] == target.config_sha256


def test_figures_by_hand() -> None:
    """Three samples of accepted [8, 6, 3, 3, 0] of at risk [10, 8, 6, 3, 3], one draft more accepted in the second."""
    report = make_document()
    serving, accuracy = report["serving"], report["accuracy"]
    assert serving["drafts"] == 30
    assert serving["accepted_per_position"] == [24, 18, 9, 9, 1]
    assert serving["conditional_rates"] == [0.8, 0.75, 0.5, 1.0, 1 / 9]
    assert serving["marginal_rates"] == pytest.approx([0.8, 0.6, 0.3, 0.3, 0.3 / 9])
    assert serving["acceptance_length"] == pytest.approx(1 + 0.8 + 0.6 + 0.3 + 0.3 + 0.3 / 9)
    assert serving["counted_length"] == pytest.approx(1 + 61 / 30)
    assert (serving["censored"], serving["ended"]) == (6, 3)
    assert accuracy["full"] == [90 / 120, 60 / 120, 30 / 120, 15 / 120, 3 / 120]
    assert accuracy["conditional"] == [90 / 120, 60 / 90, 30 / 60, 15 / 30, 3 / 15]
    assert report["vocabulary"]["coverage"] == 38 / 40
    assert [each["acceptance_length"] for each in report["samples"]["each"]] == pytest.approx([3.0, 3.0 + 0.1, 3.0])
    sampled = make_document(mode="sampled")["serving"]
    assert sampled["marginal_rates"] == pytest.approx([m / 30 for m in (4 + 2 + 4, 2 + 4 / 3 + 2, 4 / 3 + 1 + 4 / 3, 1 + 0.8 + 1, 0.8 + 4 / 6 + 0.8)])


def test_unknown_rates_end_the_chain() -> None:
    assert marginal_rates([0.5, None, 0.9]) == [0.5, None, None]
    assert lengths_by_k([0.5, None, None]) == [1.5, None, None]
    assert lengths_by_k([0.5, 0.25]) == [1.5, 1.75]


@pytest.mark.parametrize(
    ("options", "code", "words"),
    [
        ({"samples": 30}, "collapse", "Step 4 is right only 17% of the time after 100% at step 3"),
        ({"accepted": [8, 6, 3, 3, 0]}, "good", "shows clearly less than"),  # 0 of 9 after 9 of 9 is no proof
        ({"accepted": [9, 8, 1, 0, 0], "at_risk": [10, 9, 2, 1, 0], "samples": 3}, "good", "shows clearly less than"),
        ({"samples": 1}, "unknown", "too little to say anything about weights or wiring"),
        ({"accepted": [8, 6, 5, 4, 3], "at_risk": [10, 8, 6, 5, 4], "samples": 1}, "unknown", "give more or longer samples"),
        ({"accepted": [18, 16, 15, 14, 13], "at_risk": [20, 18, 16, 15, 14], "samples": 1, "drafts": 20}, "good", "One sample gives no interval"),
        ({"censored": 4, "samples": 30}, "collapse", "leaves the target's greedy path in 40% of the runs"),
        ({"mode": "sampled-argmax", "accepted": [3, 1, 0, 0, 0], "at_risk": [10, 3, 1, 0, 0]}, "weak", "--serving-mode greedy tells how well"),
        ({"mode": "sampled"}, "good", "sampling at temperature 1 (at which these samples must have been drawn)"),
        ({"accepted": [8, 6, 5, 4, 3], "at_risk": [10, 8, 6, 5, 4]}, "good", "shows clearly less than"),
        ({"accepted": [3, 1, 0, 0, 0], "at_risk": [10, 3, 1, 0, 0]}, "weak", "Its first token is right 30% of the time"),
        ({"drafts": 0}, "unknown", "at least two tokens after its prompt"),
        ({"warnings": ("the numbers",), "agree": 1}, "unusable", "the numbers. Until that is settled"),
        ({"agree": 3}, "unusable", "agrees with 3 of 40 stored tokens"),
        ({"warnings": ("1 of 4 samples",), "samples": 4, "doubtful": 2}, "unusable", "1 of 4 samples. Until"),
        ({"warnings": ("1 of 4 samples",), "samples": 4, "doubtful": 1}, "good", "A right server would accept"),
        ({"warnings": ("a small matter",), "samples": 30}, "collapse", "A right server would accept"),
    ],
)
def test_verdicts(options: dict[str, Any], code: str, words: str) -> None:
    verdict = make_document(**options)["verdict"]
    assert verdict["code"] == code
    assert words in verdict["text"]


def test_a_narrow_vocabulary_is_named_with_its_ceiling() -> None:
    report = make_document(accepted=[8, 6, 5, 4, 3], at_risk=[10, 8, 6, 5, 4])
    from eagle3_diag.report.verdict import verdict

    report["vocabulary"].update(coverage=0.9, ceiling=4.2)
    said = verdict(report)
    assert said["code"] == "vocabulary"
    assert "holds 90.0% of the target's tokens here, which alone caps the length at 4.20" in said["text"]


def test_speed_is_the_break_even_relation() -> None:
    """tok/s = length / step cost: 90 tok/s alone and 54.8 tok/s at length 1.8 is a step cost of 2.96, the break-even length."""
    step_cost = 90 * 1.8 / 54.8
    assert step_cost == pytest.approx(2.956, abs=1e-3)
    assert f"less than {step_cost:.2f} plain decoding steps" in speed(step_cost)
    assert "less than 3.00 plain decoding steps" in speed(3.0)
    assert "2.50x at 1.2, 2.00x at 1.5, 1.50x at 2, 1.00x at 3" in speed(3.0)


def test_a_rate_seen_in_few_expected_runs_is_no_break() -> None:
    """In sampled mode a thousand rows may still hold only a handful of runs that got to a step."""
    from eagle3_diag.report.verdict import verdict

    report = make_document(mode="sampled")
    report["serving"].update(
        drafts=1000, at_risk=[1000] * 5, conditional_rates=[0.9, 0.01, 0.9, 0.1, 0.5], accepted_per_position=[900, 9, 8.1, 0.81, 0.4], acceptance_length=1.92
    )
    assert "Step 1 is right only 1%" in verdict(report)["text"]
    report["serving"].update(conditional_rates=[0.9, 0.5, 0.016, 0.9, 0.1], accepted_per_position=[900, 450, 7.2, 6.48, 0.648], acceptance_length=2.36)
    assert "Step 2 is right only 2%" in verdict(report)["text"]
    report["serving"].update(conditional_rates=[0.5, 0.25, 0.2, 0.9, 0.1], accepted_per_position=[500, 125, 25, 22.5, 2.25], acceptance_length=1.68)
    assert verdict(report)["code"] == "collapse"  # 2 of 22 after 22 of 25
    report["serving"].update(drafts=100, at_risk=[100] * 5, accepted_per_position=[50, 12.5, 2.5, 2.25, 0.225])
    assert verdict(report)["code"] == "good"
