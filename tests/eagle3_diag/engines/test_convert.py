"""A drafter in every format and back: same wiring, same bytes; what a format cannot say is refused; nothing half written."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file

from eagle3_diag import demo
from eagle3_diag.checkpoint import read_drafter
from eagle3_diag.cli import main
from eagle3_diag.convert import FORMATS, differences
from eagle3_diag.convert import writing as writing_module
from eagle3_diag.engines.reading import read_trained
from tests.eagle3_diag.checkpoint.builders import Files, Model, eagle, model_optimizer, specforge, speculators, vllm
from tests.eagle3_diag.engines.subjects import target

BUILDERS = {"eagle": eagle, "specforge": specforge, "speculators": speculators, "model-optimizer": model_optimizer, "vllm": vllm}


def convert(drafter: Path, out: Path, to: str, *more: str) -> int:
    return main(["convert", str(drafter), str(out), "--to", to, "--quiet", *more])


def bytes_of(path: Path) -> dict[str, tuple[torch.dtype, tuple[int, ...], bytes]]:
    """Every tensor by its internal name, as stored, the vocabulary map with it."""
    checkpoint = read_drafter(path)
    found = {name: checkpoint.get(name) for name in checkpoint.tensors}
    return {name: (t.dtype, tuple(t.shape), t.contiguous().view(torch.uint8).numpy().tobytes()) for name, t in found.items()}


@st.composite
def drafters(draw: st.DrawFn) -> tuple[str, Files]:
    """A drafter as one of the trainers writes it, with the switches that its format has."""
    kind = draw(st.sampled_from(sorted(BUILDERS)))
    family = draw(st.sampled_from({"speculators": ["llama", "qwen3"], "vllm": ["llama", "qwen3", "mla"], "model-optimizer": ["llama", "mla"]}.get(kind, ["llama"])))
    flags: dict[str, Any] = {"family": family, "dtype": draw(st.sampled_from([torch.float32, torch.bfloat16, torch.float16]))}
    if kind in ("speculators", "vllm"):
        flags["layers"] = draw(st.integers(1, 2))
        if family != "mla":
            flags["norm_before_fc"] = draw(st.booleans())
    if kind in ("speculators", "specforge", "vllm"):
        flags["fc_norm"] = draw(st.booleans()) and not flags.get("norm_before_fc")
    if kind != "eagle" and family == "llama":
        flags["attention_bias"] = draw(st.booleans())
    if draw(st.booleans()):
        flags["draft_vocab"] = 96
    model = Model(seed=draw(st.integers(0, 9)), **flags)
    top: dict[str, Any] = {}
    if kind in ("speculators", "vllm"):
        top["norm_before_residual"] = draw(st.booleans())
        top["norm_output"] = draw(st.booleans())
    if kind == "vllm" and model.draft_vocab == model.vocab:
        return kind, vllm(model, **top).without("d2t", "t2d")
    if draw(st.booleans()) and kind in ("specforge", "model-optimizer", "vllm"):
        top["rope_theta"] = draw(st.sampled_from([10000.0, 500000.0]))
        if draw(st.booleans()):
            top["rope_scaling"] = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 256}
            if kind == "model-optimizer":
                top["rope_scaling"] |= {"rope_theta": top["rope_theta"]}
    return kind, BUILDERS[kind](model, **top)


@settings(max_examples=40)
@given(drafters(), st.sampled_from(sorted(FORMATS)))
def test_there_and_back_is_the_same(tmp_path_factory: pytest.TempPathFactory, drafter: tuple[str, Files], to: str) -> None:
    """Converted or refused; converted back, the wiring, config.json and every byte are those of the beginning."""
    kind, files = drafter
    folder = tmp_path_factory.mktemp("convert")
    first = files.write(folder / "first")
    where = ["--target", str(target(folder / "target", layers=8))]
    code = convert(first, folder / "there", to, *where)
    if code != 0:
        assert code == 2
        assert not (folder / "there").exists()
        return
    before, raw, trained = read_trained(first, None)
    there, _, after = read_trained(folder / "there", None)
    if trained.ids is not None and after.ids is not None:
        assert differences((before.config, trained.wiring), (there.config, after.wiring)) == {}
    assert there.config.format == to
    assert bytes_of(folder / "there") == bytes_of(first)
    assert convert(folder / "there", folder / "back", kind, *where) == 0
    back, back_raw, again = read_trained(folder / "back", None)
    assert differences((before.config, trained.wiring), (back.config, again.wiring)) == {}
    assert bytes_of(folder / "back") == bytes_of(first)
    if to != kind:
        assert back_raw == raw


def test_ids_keep_their_layers_in_every_convention(tmp_path: Path) -> None:
    drafter = speculators(Model(), eagle_aux_hidden_state_layer_ids=[2, 30, 58]).write(tmp_path / "d")
    for to, ids in (("specforge", [1, 29, 57]), ("model-optimizer", [1, 29, 57]), ("vllm", [2, 30, 58])):
        assert convert(drafter, tmp_path / to, to) == 0
        config = json.loads((tmp_path / to / "config.json").read_text())
        assert (config.get("eagle_config") or config)["eagle_aux_hidden_state_layer_ids"] == ids
        assert read_trained(tmp_path / to, None)[2].wiring.aux_layer_inputs == (2, 30, 58)


def test_what_the_user_says_about_ids_is_what_is_written(tmp_path: Path) -> None:
    nested = {"eagle_aux_hidden_state_layer_ids": [2, 30, 58], "use_aux_hidden_state": True}
    drafter = specforge(Model(), eagle_config=nested).write(tmp_path / "d")
    assert convert(drafter, tmp_path / "o", "specforge", "--ids", "inputs") == 0
    config = json.loads((tmp_path / "o" / "config.json").read_text())
    assert config["eagle_config"]["eagle_aux_hidden_state_layer_ids"] == [1, 29, 57]


def test_engines_that_did_not_read_it_do_after_conversion(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The demo for SGLang: refused as it is, wired as trained once converted."""
    paths = demo.paths()
    assert main(["check", str(paths.drafter), "--target", str(paths.target), "--engine", "sglang", "--quiet"]) == 1
    assert convert(paths.drafter, tmp_path / "o", "specforge") == 0
    assert main(["check", str(tmp_path / "o"), "--target", str(paths.target), "--engine", "sglang", "--quiet"]) == 0
    assert main(["check", str(tmp_path / "o"), "--target", str(paths.target), "--engine", "sglang", "--engine-version", "0.5.6", "--quiet"]) == 0
    assert convert(paths.drafter, tmp_path / "v", "vllm") == 0
    assert main(["check", str(tmp_path / "v"), "--target", str(paths.target), "--engine", "vllm", "--engine-version", "0.12.0", "--quiet"]) == 0
    capsys.readouterr()


@pytest.mark.parametrize(
    ("files", "to", "words"),
    [
        (speculators(Model(), norm_before_residual=True), "specforge", "norm_before_residual"),
        (speculators(Model(norm_before_fc=True)), "model-optimizer", "norm_before_fc"),
        (speculators(Model(layers=2)), "specforge", "2 layers"),
        (speculators(Model(family="qwen3")), "specforge", "norms of q and k"),
        (speculators(Model(), eagle_aux_hidden_state_layer_ids=[0, 4, 5]), "specforge", "the embedding as an aux state"),
        (speculators(Model(), eagle_aux_hidden_state_layer_ids=[4, 2, 5]), "vllm", "in this order"),
        (speculators(Model(), embed_requires_grad=True), "specforge", "an embedding of the drafter's own"),
        (vllm(Model()), "specforge", "--trained-by specforge"),
        (vllm(Model(family="mla")), "speculators", "latent attention"),
        (model_optimizer(Model()), "vllm", "two norms"),
        (model_optimizer(Model(last_norm=False)), "vllm", "no final norm"),
        (speculators(Model()), "eagle", "say --target"),
        (specforge(Model(fc_norm=True)), "eagle", "fc_norm"),
    ],
)
def test_what_a_format_cannot_say_is_refused(files: Files, to: str, words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    drafter = files.write(tmp_path / "d")
    assert convert(drafter, tmp_path / "o", to) == 2
    err = capsys.readouterr().err
    assert words in err
    assert err.count("\n") == 1
    assert sorted(p.name for p in tmp_path.iterdir()) == ["d"]


def test_the_input_is_never_touched_and_nothing_is_replaced(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    drafter = speculators(Model()).write(tmp_path / "d")
    before = {p.name: p.read_bytes() for p in drafter.iterdir()}
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "x").write_text("mine")
    (tmp_path / "file").write_text("mine")
    (tmp_path / "link").symlink_to(drafter)
    for out, words in (("d", "own directory"), ("d/o", "own directory"), ("link", "own directory"), (".", "own directory"), ("full", "is there already"),
                       ("file", "is there already"), ("no/where", "there is no folder")):  # fmt: skip
        assert convert(drafter, tmp_path / out, "vllm") == 2
        assert words in capsys.readouterr().err
    assert {p.name: p.read_bytes() for p in drafter.iterdir()} == before
    assert (tmp_path / "full" / "x").read_text() == "mine"
    (tmp_path / "empty").mkdir()
    assert convert(drafter, tmp_path / "empty", "vllm") == 0


def test_a_failure_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    drafter = speculators(Model()).write(tmp_path / "d")

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(writing_module, "save_file", full)
    assert convert(drafter, tmp_path / "o", "vllm") == 2
    assert "no space left on device" in capsys.readouterr().err
    assert sorted(p.name for p in tmp_path.iterdir()) == ["d"]


def test_what_lies_beside_the_weights_goes_along(tmp_path: Path) -> None:
    drafter = speculators(Model()).write(tmp_path / "d", shards=2)
    (drafter / "LICENSE").write_text("x")
    (drafter / "modeling.py").write_text("raise SystemExit")
    assert convert(drafter, tmp_path / "o", "vllm") == 0
    assert sorted(p.name for p in (tmp_path / "o").iterdir()) == ["LICENSE", "config.json", "model.safetensors"]


def test_pytorch_files_become_safetensors_with_the_same_bytes(tmp_path: Path) -> None:
    drafter = eagle(Model(dtype=torch.bfloat16)).write(tmp_path / "d", torch_files=True)
    assert convert(drafter, tmp_path / "o", "specforge") == 0
    assert bytes_of(tmp_path / "o") == bytes_of(drafter)


def test_a_map_that_changes_nothing_comes_and_goes(tmp_path: Path) -> None:
    drafter = specforge(Model(draft_vocab=96)).write(tmp_path / "d")
    assert convert(drafter, tmp_path / "v", "vllm") == 0
    assert "d2t" not in load_file(tmp_path / "v" / "model.safetensors")
    assert convert(tmp_path / "v", tmp_path / "s", "specforge") == 0
    written = load_file(tmp_path / "s" / "model.safetensors")
    assert not bool(written["d2t"].any())
    assert bool(written["t2d"].all())


def test_an_edited_file_is_not_restored_to_what_it_was(tmp_path: Path) -> None:
    """The former config.json is kept along; an edit made since then counts."""
    drafter = speculators(Model()).write(tmp_path / "d")
    assert convert(drafter, tmp_path / "v", "vllm") == 0
    path = tmp_path / "v" / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"norm_before_residual": True}))
    assert convert(tmp_path / "v", tmp_path / "s", "speculators") == 0
    assert json.loads((tmp_path / "s" / "config.json").read_text())["norm_before_residual"] is True


def test_builders_cover_every_format() -> None:
    assert set(BUILDERS) == set(FORMATS)
