"""The command: exit codes, the text, the JSON, which files are compared with which."""

from __future__ import annotations

import json
from pathlib import Path

import jsonschema
import pytest
import torch
from safetensors.torch import load_file, save_file

from eagle3_diag import demo
from eagle3_diag.cli import main
from eagle3_diag.report.comparison import schema

DEMO = demo.paths()


def compare(*arguments: object) -> int:
    return main(["compare-hidden", *map(str, arguments)])


def changed(path: Path, i: int, **tensors: torch.Tensor) -> Path:
    """The demo's sample i with some tensors replaced."""
    stored = load_file(DEMO.samples / f"hs_{i}.safetensors") | tensors
    save_file({name: tensor.contiguous() for name, tensor in stored.items()}, path)
    return path


def states(i: int) -> torch.Tensor:
    return load_file(DEMO.samples / f"hs_{i}.safetensors")["hidden_states"]


def test_identical_says_so_and_exits_0(capsys: pytest.CaptureFixture[str]) -> None:
    path = DEMO.samples / "hs_3.safetensors"
    assert compare(path, path) == 0
    out = capsys.readouterr().out
    assert out.rstrip().endswith("Verdict     Identical: 8 states of 73 tokens are equal to the bit.")


def test_bfloat16_rounding_exits_0(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    b = changed(tmp_path / "b.safetensors", 3, hidden_states=states(3).to(torch.bfloat16))
    assert compare(DEMO.samples / "hs_3.safetensors", b) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "rounded to bfloat16" in out
    assert "The same up to bfloat16 rounding: 8 states of 73 tokens, a token is off by at most 0.00" in out


def test_a_fault_exits_1_and_is_named_in_text_and_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    a = DEMO.samples / "hs_3.safetensors"
    b = changed(tmp_path / "b.safetensors", 3, hidden_states=states(3)[:, [2, 4, 6, 7]], layer_ids=torch.tensor([2, 4, 6, 8]))
    assert compare(a, b, "--json", tmp_path / "r.json") == 1
    out = " ".join(capsys.readouterr().out.split())
    assert "Verdict Different: 1 finding in 1 of 1 pairs of dumps. Layer 2, layer 4, layer 6 in B are A's layer 3, layer 5, layer 7: 1 layer late." in out
    report = json.loads((tmp_path / "r.json").read_text())
    jsonschema.Draft202012Validator(schema()).validate(report)
    assert [f["code"] for f in report["findings"]] == ["layer-off"]
    assert [s["a"] for s in report["pairs"][0]["states"]] == ["layer 3", "layer 5", "layer 7", "final state"]


def test_json_dash_prints_only_json_and_quiet_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    path = DEMO.samples / "hs_3.safetensors"
    assert compare(path, path, "--json", "-") == 0
    assert json.loads(capsys.readouterr().out)["verdict"] == "identical"
    assert compare(path, path, "--quiet") == 0
    assert capsys.readouterr().out == ""


def test_folders_are_paired_by_name_and_by_text(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "b").mkdir()
    changed(tmp_path / "b" / "hs_0.safetensors", 5)  # another text under this name
    changed(tmp_path / "b" / "other.safetensors", 0, hidden_states=torch.roll(states(0), 1, 0))
    changed(tmp_path / "b" / "hs_2.safetensors", 2)
    foreign = load_file(DEMO.samples / "hs_4.safetensors")["token_ids"].flip(0)
    changed(tmp_path / "b" / "alone.safetensors", 4, token_ids=foreign)
    assert compare(DEMO.samples, tmp_path / "b", "--json", tmp_path / "r.json") == 1
    report = json.loads((tmp_path / "r.json").read_text())
    jsonschema.Draft202012Validator(schema()).validate(report)
    found = {(Path(p["a"]).name, Path(p["b"]).name): p["verdict"] for p in report["pairs"]}
    assert found == {
        ("hs_2.safetensors", "hs_2.safetensors"): "identical",
        ("hs_0.safetensors", "other.safetensors"): "differs",
        ("hs_5.safetensors", "hs_0.safetensors"): "identical",
    }
    assert [(f["code"], len(f["pairs"])) for f in report["findings"]] == [("shifted", 1)]
    assert [Path(p).name for p in report["unpaired"]["b"]] == ["alone.safetensors"]
    assert len(report["unpaired"]["a"]) == 13
    out = capsys.readouterr().out
    assert "1 token late: its token t is A's token t - 1 (1 of 3 pairs)." in " ".join(out.split())
    assert "13 files of A found no partner" in out


def test_the_formats_meet(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """SpecForge's layout of the same states, its final state after the norm: no finding but with a drafter's order reversed."""
    from eagle3_diag.drafter import rms_norm
    from eagle3_diag.target import read_target

    target = read_target(DEMO.target)
    stored = load_file(DEMO.samples / "hs_1.safetensors")
    final = rms_norm(stored["hidden_states"][:, 7].float(), target.norm_weight().float(), target.config.rms_norm_eps)
    for name, order, code in (("right", [1, 3, 5], 0), ("reversed", [5, 3, 1], 1)):
        aux = torch.cat([stored["hidden_states"][:, i].float() for i in order], dim=1)
        path = tmp_path / f"{name}.ckpt"
        torch.save({"input_ids": stored["token_ids"], "loss_mask": stored["loss_mask"], "aux_hidden_state": aux[None], "hidden_state": final[None]}, path)
        assert compare(DEMO.samples / "hs_1.safetensors", path, "--target", DEMO.target, "--drafter", DEMO.drafter) == code
        assert ("the same states in another order" in " ".join(capsys.readouterr().out.split())) == bool(code)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda p: p / "absent", "no samples can be read here"),
        (lambda p: (p / "x.safetensors").write_bytes(b"junk") and p / "x.safetensors", "truncated or corrupt"),
        (lambda p: p, "holds no file with hidden states"),
    ],
)
def test_bad_input_is_one_sentence(make: object, words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert compare(DEMO.samples / "hs_0.safetensors", make(tmp_path)) == 2  # type: ignore[operator]
    err = capsys.readouterr().err
    assert words in err
    assert err.count("\n") == 1


def test_folders_of_other_texts_are_bad_input(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    changed(tmp_path / "x.safetensors", 0, token_ids=load_file(DEMO.samples / "hs_0.safetensors")["token_ids"].flip(0))
    assert compare(DEMO.samples, tmp_path) == 2
    assert "no file of one has the name or the tokens of one of the other" in capsys.readouterr().err


def test_the_inputs_are_not_overwritten(capsys: pytest.CaptureFixture[str]) -> None:
    path = DEMO.samples / "hs_0.safetensors"
    assert compare(path, path, "--json", path) == 2
    assert "would be overwritten" in capsys.readouterr().err
