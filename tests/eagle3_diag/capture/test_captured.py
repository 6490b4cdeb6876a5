"""What a replay says: text, JSON, bad input."""

from __future__ import annotations

import json
from pathlib import Path

import jsonschema
import pytest

from eagle3_diag.cli import main
from eagle3_diag.report.replay import schema
from tests.eagle3_diag.capture.standin import DEMO
from tests.eagle3_diag.capture.test_replay import captured


def diagnose(folder: Path, *more: object, samples: bool = True) -> int:
    given = ["--samples", DEMO.samples] if samples else []
    return main(["diagnose", *map(str, ["--drafter", DEMO.drafter, "--target", DEMO.target, "--captured", folder, "--device", "cpu", *given, *more])])


def test_a_right_server_is_cleared(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert diagnose(captured(tmp_path / "c"), "--json", tmp_path / "r.json") == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "Verdict The server does what these weights do when wired as trained: no departure in" in out
    report = json.loads((tmp_path / "r.json").read_text())
    jsonschema.Draft202012Validator(schema()).validate(report)
    assert (report["verdict"], report["first_departure"], report["explanations"]) == ("quality", None, [])


def test_a_wrong_server_is_named_with_its_first_departure(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = captured(tmp_path / "c", residual="after-norm")
    assert diagnose(folder, "--json", "-") == 0
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
    assert diagnose(tmp_path / "c", samples=False) == 0
    assert "could not be checked" in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ([], "holds no capture_"),
        (["--json", "no/r.json"], "there is no folder"),
        (["--html", "r.html"], "--html has no meaning with --captured"),
        (["--steps", "5"], "--steps has no meaning with --captured"),
        (["--served", "rates=0.5"], "not allowed with"),
    ],
)
def test_bad_input_is_one_sentence(options: list[str], words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert diagnose(tmp_path, *options) == 2
    err = capsys.readouterr().err
    assert words in err
    assert err.count("\n") == 1


def test_served_needs_samples(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["diagnose", "--drafter", str(DEMO.drafter), "--target", str(DEMO.target), "--served", "rates=0.5"]) == 2
    assert "--served needs --samples" in capsys.readouterr().err
