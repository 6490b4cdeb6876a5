"""What a replay says: text, JSON, bad input."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from eagle3_diag.commands.captured import run
from eagle3_diag.errors import InputError
from eagle3_diag.report.replay import schema
from tests.eagle3_diag.capture.standin import DEMO
from tests.eagle3_diag.capture.test_replay import captured


def diagnose(folder: Path, **options: Any) -> int:
    given = {"drafter": DEMO.drafter, "target": DEMO.target, "samples": [DEMO.samples], "captured": folder, "json": None, "quiet": False}
    return run(argparse.Namespace(**given | {"device": "cpu", "dtype": "float32"} | options))


def test_a_right_server_is_cleared(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert diagnose(captured(tmp_path / "c"), json=str(tmp_path / "r.json")) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "Verdict The server does what these weights do when wired as trained: no departure in" in out
    report = json.loads((tmp_path / "r.json").read_text())
    jsonschema.Draft202012Validator(schema()).validate(report)
    assert (report["verdict"], report["first_departure"], report["explanations"]) == ("quality", None, [])


def test_a_wrong_server_is_named_with_its_first_departure(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = captured(tmp_path / "c", residual="after-norm")
    assert diagnose(folder, json="-") == 0
    report = json.loads(capsys.readouterr().out)
    jsonschema.Draft202012Validator(schema()).validate(report)
    assert report["verdict"] == "wiring"
    assert (report["first_departure"]["step"], report["first_departure"]["tensor"]) == (0, "output")
    assert [each["id"] for each in report["explanations"]] == ["residual-flipped"]
    assert diagnose(folder) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "residual-flipped (first departure: draft step 0, the normed output of its layers)" in out
    assert "Step 0, the normed output of its layers:" in out


def test_layers_are_named_from_the_samples(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert diagnose(captured(tmp_path / "c", layers=(3, 5, 7))) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "layers-plus-1 (first departure: draft step 0, the target's states that it was given)" in out
    assert "set to capture the inputs of layers 3, 5, 7" in out
    assert diagnose(tmp_path / "c", samples=None) == 0
    assert "could not be checked" in " ".join(capsys.readouterr().out.split())


def test_bad_input(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="holds no capture_"):
        diagnose(tmp_path)
    with pytest.raises(InputError, match="there is no folder"):
        diagnose(tmp_path, json=str(tmp_path / "no" / "r.json"))
