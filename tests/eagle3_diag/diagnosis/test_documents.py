"""The document fulfils its schema, the text fits 80 columns, the page holds what it should."""

from __future__ import annotations

import json
from typing import Any

import jsonschema
import pytest

from eagle3_diag.diagnose import Diagnosis, Speeds
from eagle3_diag.observed import observed
from eagle3_diag.report.diagnosis import html, text
from eagle3_diag.report.diagnosis.document import schema
from eagle3_diag.report.document import dumps
from tests.eagle3_diag.diagnosis.cases import BAD, RIGHT, diagnosed, make_document, profile

ROWS = {
    "asked": 64, "answered": 60, "agreeing": {"as-trained": 20, "layers-plus-1": 60}, "usable": 900, "unusable": 3, "target_differs": ["hs_0:17"],
    "flip_chance": 0.002, "combinations_searched": False, "departures": [{"id": "hs_0:20", "accepted": 0, "as_trained": 3}],
}  # fmt: skip


def cases() -> dict[str, Any]:
    return {
        "quality": make_document(diagnosed(profile(RIGHT, 1000))),
        "wiring": make_document(diagnosed(profile(BAD, 1000), speeds=Speeds(baseline=90.0, served=54.8)), rows=ROWS),
        "mean": make_document(diagnosed(observed(steps=4, acceptance_length=1.8))),
        "few layers": make_document(diagnosed(profile(BAD, 1000), held=None), held=None),
        "hostile": make_document(diagnosed(profile(RIGHT, 1000)), path="<script>window.hacked = 1</script>\x1b[31m" + "x" * 200),
    }


@pytest.fixture(scope="module")
def made() -> dict[str, Any]:
    return cases()


def test_the_schema_is_one_and_is_met(made: dict[str, Any]) -> None:
    jsonschema.Draft202012Validator.check_schema(schema())
    for report in made.values():
        jsonschema.validate(json.loads(dumps(report)), schema())
        assert sum(e["probability"] for e in report["explanations"]) == pytest.approx(1)


@pytest.mark.parametrize("spoil", [{"verdict": "fine"}, {"explanations": [{}]}, {"more": 1}, {"rows": {"asked": -1}}])
def test_what_is_not_a_diagnosis_does_not_pass(made: dict[str, Any], spoil: dict[str, Any]) -> None:
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({**made["wiring"], **spoil}, schema())


@pytest.mark.parametrize("width", [60, 80, 120])
def test_the_text_keeps_to_its_columns(made: dict[str, Any], width: int) -> None:
    for name, report in made.items():
        shown = text.render(report, width=width)
        if name != "hostile":
            assert max(map(len, shown.splitlines())) <= width
            assert shown.isascii()
        assert "\x1b" not in shown
    assert "\x1b[1m" in text.render(made["wiring"], colour=True)


def test_the_text_names_verdict_change_and_alternatives(made: dict[str, Any]) -> None:
    shown = text.render(made["wiring"], width=80)
    for part in ("Verdict     Wiring, one of 2", "To be sure", "Rows        64 asked, 60 answered; agreeing: layers-plus-1 60", "looks like layers-", "as-trained: Wired as trained"):
        assert part in shown, part
    untested = " ".join(text.render(made["few layers"], width=80).split())
    assert "Not tested layers-plus-1, layers-minus-1" in untested
    assert "eagle3-diag record --target" in untested


def test_pages_escape_what_others_wrote(made: dict[str, Any]) -> None:
    page = html.render(made["hostile"])
    assert "<script>" not in page
    assert "&lt;script&gt;" in page


def test_every_probability_is_shown_as_what_it_is() -> None:
    assert [text.probability(p) for p in (0.0, 0.004, 0.5, 0.994, 1.0)] == ["<1%", "<1%", "50%", ">99%", ">99%"]


def test_a_diagnosis_is_plain_data(made: dict[str, Any]) -> None:
    assert isinstance(diagnosed(profile(RIGHT, 10)), Diagnosis)
    assert json.loads(dumps(made["mean"])) == made["mean"]
