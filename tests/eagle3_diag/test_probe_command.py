"""``eagle3-diag probe`` from the command line, at stand-in servers and through files."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import torch

from eagle3_diag.catalogue import catalogue
from eagle3_diag.checkpoint import read_drafter
from eagle3_diag.cli import main
from eagle3_diag.demo import paths
from eagle3_diag.predict import Predictor
from eagle3_diag.report.diagnosis.document import schema
from eagle3_diag.samples import iter_samples
from eagle3_diag.target import read_target
from tests.eagle3_diag.serving.stand_in import Draft, StandIn, serving

STEPS = 5
INPUTS = ["--drafter", str(paths().drafter), "--target", str(paths().target), "--samples", *(str(paths().samples / f"hs_{i}.safetensors") for i in (0, 5, 9))]


def drafts(name: str) -> Draft:
    """How a server with this fault drafts from any stored prefix of the samples above."""
    checkpoint, target = read_drafter(paths().drafter), read_target(paths().target)
    predictor = Predictor(checkpoint, target, steps=STEPS, device=torch.device("cpu"), dtype=torch.float32)
    truth = catalogue(checkpoint, target, range(1, 8)).get(name)
    found: dict[tuple[int, ...], tuple[list[int], int]] = {}
    for sample in iter_samples([Path(each) for each in INPUTS[5:]], check=predictor.check):
        runs = predictor.runs(predictor.load(sample), truth)
        tokens = sample.tokens_N.tolist()
        for t, run in zip(runs.rows_R.tolist(), runs.accepted_R.tolist(), strict=True):
            found[tuple(tokens[: t + 1])] = ([*tokens[t + 1 :], *[0] * (STEPS + 2)], run)
    return lambda prefix: found.get(tuple(prefix), ([0] * (STEPS + 3), 0))


@pytest.fixture(scope="module")
def late() -> Draft:
    return drafts("layers-plus-1")


@pytest.fixture
def server(late: Draft) -> Iterator[StandIn]:
    with serving(StandIn(late, STEPS, kind="sglang", version="0.5.23")) as state:
        yield state


def run(words: Sequence[str], capsys: pytest.CaptureFixture[str]) -> tuple[int, str, str]:
    code = main(["probe", *words])
    out, err = capsys.readouterr()
    return code, out, err


def test_a_server_is_probed_and_all_reports_say_the_same(server: StandIn, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = ["--json", str(tmp_path / "probe.json"), "--html", str(tmp_path / "probe.html"), "--save-answers", str(tmp_path / "answers.json")]
    code, out, _ = run([*INPUTS, "--server", f"sglang:{server.url}", "--requests", "20", *files], capsys)
    report: dict[str, Any] = json.loads((tmp_path / "probe.json").read_text())
    jsonschema.validate(report, schema())
    assert code == 1
    assert (report["verdict"], report["explanations"][0]["id"]) == ("wiring", "layers-plus-1")
    assert report["explanations"][0]["probability"] > 0.99
    assert (report["rows"]["asked"], report["rows"]["answered"], report["rows"]["agreeing"]["layers-plus-1"]) == (20, 20, 20)
    assert report["rows"]["departures"]
    assert len(server.served) == 20
    assert "Not served as trained: features are captured one layer too late" in out
    assert "layers-plus-1" in (tmp_path / "probe.html").read_text()
    # The answers kept are enough to say it again, without the server.
    code, out, _ = run([*INPUTS, "--steps", "5", "--answers", str(tmp_path / "answers.json"), "--json", "-"], capsys)
    again = json.loads(out)
    assert code == 1
    assert [each["id"] for each in again["explanations"]] == [each["id"] for each in report["explanations"]]
    assert again["rows"] == report["rows"]


def test_a_plan_is_written_answered_elsewhere_and_read(late: Draft, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plan, answers = tmp_path / "plan.json", tmp_path / "answers.json"
    code, out, _ = run([*INPUTS, "--steps", "5", "--requests", "40", "--plan", str(plan)], capsys)
    assert (code, out) == (0, "")
    requests = json.loads(plan.read_text())
    assert len({each["id"] for each in requests}) == len(requests) == 40
    for each in requests:
        assert set(each) == {"id", "sample", "row", "prompt_token_ids", "max_tokens"}
        assert each["id"] == f"{each['sample']}:{each['row']}"
        assert (len(each["prompt_token_ids"]), each["max_tokens"]) == (each["row"] + 1, 2)
    known = drafts("as-trained")
    for draft, name, expected in ((late, "layers-plus-1", 1), (known, "as-trained", 0)):
        said = [{"id": each["id"], "first_token": draft(each["prompt_token_ids"])[0][0], "accepted": draft(each["prompt_token_ids"])[1]} for each in requests]
        answers.write_text("\n".join(map(json.dumps, said)))
        code, out, _ = run([*INPUTS, "--steps", "5", "--answers", str(answers), "--json", "-"], capsys)
        assert code == expected
        assert json.loads(out)["explanations"][0]["id"] == name
    # A part of the answers, without first tokens, still names it.
    answers.write_text(json.dumps([{"id": each["id"], "first_token": None, "accepted": late(each["prompt_token_ids"])[1]} for each in requests[:25]]))
    code, out, _ = run([*INPUTS, "--steps", "5", "--answers", str(answers), "--json", "-"], capsys)
    assert json.loads(out)["explanations"][0]["id"] == "layers-plus-1"


def test_a_dry_run_shows_every_request_and_sends_none(server: StandIn, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run([*INPUTS, "--steps", "5", "--requests", "4", "--dry-run", "--server", f"sglang:{server.url}"], capsys)
    lines = out.splitlines()
    assert (code, len(lines), server.served) == (0, 4, [])
    assert all(line.startswith(f"POST {server.url}/generate " + '{"input_ids": [') for line in lines)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "--server is missing"),
        (["--server", "http://localhost:1"], "write vllm:URL, sglang:URL, or openai:URL"),
        (["--server", "vllm:http://127.0.0.1:9"], "cannot be reached"),
        (["--plan", "plan.json"], "give --steps K"),
        (["--answers", "a.json", "--plan", "p.json"], "give one of them"),
        (["--answers", "absent.json", "--steps", "5"], "cannot be read"),
        (["--plan", "p.json", "--save-answers", "s.json"], "none is asked here"),
        (["--server", "vllm:http://127.0.0.1:9", "--html", "-"], "only --json and --plan can print"),
    ],
)
def test_wrong_use_in_one_sentence(
    words: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    code, out, err = run([*INPUTS, "--max-rows", "20", "--quiet", *words], capsys)
    assert (code, out) == (2, "")
    assert message in err
    assert len(err.splitlines()) == 1
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("[{", "is not valid JSON"),
        ('"x"', "expected a list"),
        ("[3]", "entry 1 is 3"),
        ("[]", "holds no answer"),
        ('[{"id": "hs_0:30", "first_token": 1, "accepted": 9}]', "expected 0 to 5"),
        ('[{"id": "hs_0:30", "first_token": "a", "accepted": 1}]', "expected a token id"),
        ('[{"id": "other:1", "first_token": 1, "accepted": 1}]', "not among the usable ones"),
        ('[{"id": "hs_0:30", "accepted": 1}, {"id": "hs_0:30", "accepted": 2}]', "answered twice"),
    ],
)
def test_answers_that_cannot_be_read(content: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from eagle3_diag.errors import InputError
    from eagle3_diag.plan import read_answers
    from eagle3_diag.probe import Row, Table

    path = tmp_path / "answers.json"
    path.write_text(content)
    with pytest.raises(InputError, match=message):
        read_answers(path, Table(STEPS, [Row(sample="hs_0", row=30, label=1, known=5)]))


def test_one_answer_is_not_enough(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run([*INPUTS, "--steps", "5", "--plan", "-", "--requests", "1"], capsys)
    one = json.loads(out)[0]
    path = tmp_path / "answers.json"
    path.write_text(json.dumps([{"id": one["id"], "first_token": None, "accepted": 0}]))
    code, out, _ = run([*INPUTS, "--steps", "5", "--answers", str(path)], capsys)
    assert code == 1
    assert "Not enough evidence: 1 usable answers" in out
