"""Each format's files give the same internal form, and the wiring that its trainer used."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from eagle3_diag.checkpoint import DrafterCheckpoint, default_aux_layer_inputs, read_drafter
from eagle3_diag.config import MlaConfig, RopeConfig
from tests.eagle3_diag.checkpoint import builders
from tests.eagle3_diag.checkpoint.builders import Files, Model, rename, weights

WRITERS = {
    "speculators": builders.speculators,
    "eagle": builders.eagle,
    "specforge": builders.specforge,
    "model-optimizer": builders.model_optimizer,
    "vllm": builders.vllm,
}


def read(files: Files, path: Path) -> DrafterCheckpoint:
    return read_drafter(files.write(path / "drafter"))


def assert_holds(checkpoint: DrafterCheckpoint, model: Model, *, embedding: bool) -> None:
    """Every tensor of the model is there under its internal name, bit for bit, and no other."""
    expected = weights(model)
    expected.pop("t2d", None)
    if not embedding:
        del expected["embed_tokens.weight"]
    assert set(checkpoint.tensors) == set(expected)
    for name, tensor in expected.items():
        assert torch.equal(checkpoint.get(name), tensor), name


@pytest.mark.parametrize("name", WRITERS)
@pytest.mark.parametrize("draft_vocab", [40, 96])
def test_one_internal_form(name: str, draft_vocab: int, tmp_path: Path) -> None:
    model = Model(draft_vocab=draft_vocab)
    checkpoint = read(WRITERS[name](model), tmp_path)
    stored = name in ("speculators", "vllm")
    assert_holds(checkpoint, model, embedding=stored)
    config = checkpoint.config
    assert config.format == name
    assert (config.hidden_size, config.target_hidden_size, config.num_aux, config.num_layers) == (32, 32, 3, 1)
    assert (config.num_heads, config.num_kv_heads, config.head_dim, config.intermediate_size) == (4, 2, 8, 48)
    assert (config.vocab_size, config.draft_vocab_size, config.rms_norm_eps) == (96, draft_vocab, 1e-5)
    assert config.rope == RopeConfig(theta=10000.0, max_position_embeddings=512)
    assert config.mla is None
    assert not config.qk_norm
    assert checkpoint.wiring.embedding == ("drafter" if stored else "target")
    assert checkpoint.wiring.head == "drafter"
    assert (checkpoint.d2t_offsets() is None) == (draft_vocab == 96)


def test_what_each_trainer_did(tmp_path: Path) -> None:
    """Facts of the trainers: what the layer ids mean, where positions begin."""
    model = Model()
    seen = {name: read(write(model), tmp_path / name) for name, write in WRITERS.items()}
    inputs = {name: c.wiring.aux_layer_inputs for name, c in seen.items()}
    assert inputs == {
        "speculators": (2, 4, 5),  # ids are inputs
        "eagle": None,  # the file does not say
        "specforge": (2, 4, 5),  # ids 1, 3, 4 are outputs, captured through SGLang
        "model-optimizer": (2, 4, 5),  # ids 1, 3, 4 are outputs, captured by hooks
        "vllm": (2, 4, 5),
    }
    assert seen["model-optimizer"].config.aux_layer_ids == (1, 3, 4)
    assert {name: c.wiring.position_offset for name, c in seen.items()} == dict.fromkeys(WRITERS, 0) | {"speculators": 1}
    for checkpoint in seen.values():
        assert checkpoint.wiring.residual == "before-norm"
        assert checkpoint.wiring.feedback == "pre-norm"
        assert checkpoint.wiring.output_norm == "own"
        assert checkpoint.wiring.rope is None
    assert "does not say which target layers" in " ".join(seen["eagle"].notes)


@pytest.mark.parametrize(
    ("model", "name"),
    [
        (Model(family="qwen3"), "speculators"),
        (Model(family="qwen3"), "vllm"),
        (Model(layers=3), "speculators"),
        (Model(layers=2), "model-optimizer"),
        (Model(norm_before_fc=True), "speculators"),
        (Model(norm_before_fc=True), "vllm"),
        (Model(fc_norm=True), "speculators"),
        (Model(fc_norm=True), "specforge"),
        (Model(fc_norm=True, num_aux=3), "vllm"),
        (Model(attention_bias=True), "model-optimizer"),
        (Model(attention_bias=True, mlp_bias=True), "vllm"),
        (Model(num_aux=4), "speculators"),
        (Model(num_aux=1), "speculators"),
        (Model(target_hidden=48), "specforge"),
        (Model(family="mla"), "model-optimizer"),
        (Model(family="mla", q_lora_rank=None), "vllm"),
        (Model(family="mla", layers=2), "vllm"),
        (Model(dtype=torch.bfloat16), "eagle"),
    ],
)
def test_variants(model: Model, name: str, tmp_path: Path) -> None:
    checkpoint = read(WRITERS[name](model), tmp_path)
    stored = name in ("speculators", "vllm") or model.target_hidden != model.hidden
    assert_holds(checkpoint, model, embedding=stored)
    config, wiring = checkpoint.config, checkpoint.wiring
    assert config.num_layers == model.layers
    assert config.num_aux == model.num_aux
    assert config.target_hidden_size == model.target_hidden
    assert config.qk_norm == (model.family == "qwen3")
    assert config.attention_bias == model.attention_bias
    assert config.mlp_bias == model.mlp_bias
    assert wiring.norm_before_fc == model.norm_before_fc
    assert wiring.fc_norm == model.fc_norm
    if model.family == "mla":
        assert config.mla == MlaConfig(q_lora_rank=model.q_lora_rank, kv_lora_rank=16, qk_nope_head_dim=6, qk_rope_head_dim=4, v_head_dim=6)
        assert config.head_dim == 10


@pytest.mark.parametrize("name", WRITERS)
@pytest.mark.parametrize(("shards", "torch_files"), [(3, False), (1, True), (3, True)])
def test_files(name: str, shards: int, torch_files: bool, tmp_path: Path) -> None:
    model = Model(dtype=torch.bfloat16)
    files = WRITERS[name](model)
    whole = read_drafter(files.write(tmp_path / "whole"))
    split = read_drafter(files.write(tmp_path / "split", shards=shards, torch_files=torch_files))
    assert_holds(split, model, embedding=name in ("speculators", "vllm"))
    assert split.config == whole.config
    assert split.wiring == whole.wiring
    assert split.config_sha256 == whole.config_sha256
    assert split.weights_sha256() == whole.weights_sha256()


@pytest.mark.parametrize("prefix", ["model.", "draft_model.", "eagle_module."])
def test_prefixes(prefix: str, tmp_path: Path) -> None:
    files = builders.eagle(Model())
    outside = ("lm_head.weight", "d2t", "t2d")
    renamed = {n if n in outside else prefix + n: t for n, t in files.tensors.items()}
    assert_holds(read(Files(config=files.config, tensors=renamed), tmp_path), Model(), embedding=False)


def test_older_names_of_fc_norm(tmp_path: Path) -> None:
    files = builders.eagle(Model(fc_norm=True), use_aux_norm=True)
    tensors = files.tensors
    for a, name in enumerate(("low", "mid", "high")):
        tensors = rename(tensors, f"fc_norm.{a}.", f"aux_norm_{name}.")
    checkpoint = read(Files(config=files.config, tensors=tensors), tmp_path)
    assert checkpoint.wiring.fc_norm
    assert_holds(checkpoint, Model(fc_norm=True), embedding=False)


def test_norm_before_residual(tmp_path: Path) -> None:
    assert read(builders.speculators(Model(), norm_before_residual=True), tmp_path / "a").wiring.residual == "after-norm"
    assert read(builders.vllm(Model(), norm_before_residual=True), tmp_path / "b").wiring.residual == "after-norm"
    silent = read(builders.speculators(Model()).silent("norm_before_residual"), tmp_path / "c")
    assert silent.wiring.residual == "before-norm"
    assert any("vLLM reads it as true" in note for note in silent.notes)


def test_norm_output_of_speculators_and_vllm_feeds_back(tmp_path: Path) -> None:
    for name in ("speculators", "vllm"):
        wiring = read(WRITERS[name](Model(), norm_output=True), tmp_path / name).wiring
        assert (wiring.feedback, wiring.output_norm) == ("post-norm", "own")


def test_norm_output_of_specforge(tmp_path: Path) -> None:
    true = read(builders.specforge(Model(), norm_output=True), tmp_path / "true")
    assert (true.wiring.feedback, true.wiring.output_norm) == ("pre-norm", "own")
    assert any("norm_output is true" in note for note in true.notes)
    # SpecForge up to 0.2.0 trained without the norm, which then still holds the ones it began with.
    files = builders.specforge(Model(), norm_output=False)
    trained = read(files, tmp_path / "trained")
    assert (trained.wiring.feedback, trained.wiring.output_norm) == ("pre-norm", "own")
    untrained = read(files.put("norm.weight", torch.ones(32)), tmp_path / "untrained")
    assert untrained.wiring.output_norm == "none"
    assert any("without a final norm" in note for note in untrained.notes)
    # TorchSpec writes EAGLE's names and some of Model-Optimizer's keys; its norm_output feeds back.
    nested = files.config["eagle_config"] | {"use_last_layernorm": True}
    torchspec = read(builders.specforge(Model(), norm_output=True, eagle_config=nested), tmp_path / "torchspec")
    assert torchspec.config.format == "specforge"
    assert (torchspec.wiring.feedback, torchspec.wiring.output_norm) == ("post-norm", "own")


def test_specforge_ids_of_unsure_convention_are_noted(tmp_path: Path) -> None:
    nested = {"eagle_aux_hidden_state_layer_ids": [2, 30, 58]}
    checkpoint = read(builders.specforge(Model(), eagle_config=nested), tmp_path)
    assert checkpoint.wiring.aux_layer_inputs == (3, 31, 59)
    assert any("SGLang 0.5.13" in note for note in checkpoint.notes)


def test_model_optimizer_without_last_norm(tmp_path: Path) -> None:
    checkpoint = read(builders.model_optimizer(Model(last_norm=False)), tmp_path)
    assert checkpoint.wiring.output_norm == "none"
    assert not checkpoint.has("norm.weight")
    # null: what is there decides.
    for last in (True, False):
        files = builders.model_optimizer(Model(last_norm=last))
        files.config["eagle_config"]["use_last_layernorm"] = None
        assert read(files, tmp_path / str(last)).wiring.output_norm == ("own" if last else "none")


def test_model_optimizer_rope_overridden_at_export(tmp_path: Path) -> None:
    yarn = {"rope_type": "yarn", "factor": 32.0, "original_max_position_embeddings": 2048}
    override = read(builders.model_optimizer(Model(), rope_scaling=yarn, rope_theta=50000), tmp_path / "a")
    assert override.config.rope.type == "yarn"
    assert override.wiring.rope == RopeConfig(theta=50000.0, max_position_embeddings=512)
    assert any("training used plain RoPE with base 50000" in note for note in override.notes)
    trained = read(builders.model_optimizer(Model(), rope_scaling=yarn | {"rope_theta": 50000}), tmp_path / "b")
    assert trained.wiring.rope is None
    assert trained.config.rope.theta == 50000.0
    llama3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
    older = read(builders.model_optimizer(Model(), rope_scaling=llama3, transformers_version="4.57.1"), tmp_path / "c")
    assert (older.wiring.rope, older.config.rope.type) == (None, "llama3")
    newer = read(builders.model_optimizer(Model(), rope_scaling=llama3, transformers_version="5.10.4"), tmp_path / "d")
    assert newer.wiring.rope == RopeConfig(theta=10000.0, max_position_embeddings=512)
    mla = read(builders.model_optimizer(Model(family="mla"), rope_scaling=yarn), tmp_path / "e")
    assert (mla.wiring.rope, mla.config.rope.type) == (None, "yarn")


def test_model_optimizer_up_to_0_40(tmp_path: Path) -> None:
    """EAGLE's tensor names, fewer keys, RoPE as trained."""
    files = builders.model_optimizer(Model())
    nested = {k: v for k, v in files.config["eagle_config"].items() if k.startswith(("use_", "eagle_"))}
    llama3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
    config = files.config | {"eagle_config": nested, "rope_scaling": llama3, "rope_theta": 500000.0}
    checkpoint = read(Files(config=config, tensors=rename(files.tensors, "layers.0.", "midlayer.")), tmp_path)
    assert checkpoint.config.format == "model-optimizer"
    assert checkpoint.wiring.aux_layer_inputs == (2, 4, 5)
    assert checkpoint.wiring.rope is None
    assert checkpoint.config.rope.theta == 500000.0
    assert checkpoint.config.rope.parameters["original_max_position_embeddings"] == 512
    assert checkpoint.notes == ()


def test_eagle_ignores_theta_under_linear_scaling(tmp_path: Path) -> None:
    scaling = {"type": "linear", "factor": 2.0}
    checkpoint = read(builders.eagle(Model(), rope_scaling=scaling, rope_theta=500000.0), tmp_path)
    assert checkpoint.config.rope.theta == 500000.0
    assert checkpoint.wiring.rope is not None
    assert checkpoint.wiring.rope.theta == 10000.0
    assert checkpoint.wiring.rope.parameters == {"factor": 2.0}


def test_speculators_rope_of_transformers_4_and_5(tmp_path: Path) -> None:
    """``rope_theta`` and ``rope_scaling`` before Transformers 5, ``rope_parameters`` since."""
    llama3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 64}
    newer, older = builders.speculators(Model()), builders.speculators(Model())
    newer.config["transformer_layer_config"]["rope_parameters"] = llama3 | {"rope_theta": 500000.0}
    layer = older.config["transformer_layer_config"]
    del layer["rope_parameters"]
    layer |= {"rope_theta": 500000.0, "rope_scaling": llama3}
    ropes = [read(files, tmp_path / str(i)).config.rope for i, files in enumerate((newer, older))]
    assert ropes[0] == ropes[1]
    assert (ropes[0].type, ropes[0].theta, ropes[0].parameters["factor"]) == ("llama3", 500000.0, 8.0)


def test_speculators_layer_ids_with_the_final_state(tmp_path: Path) -> None:
    files = builders.speculators(Model(), eagle_aux_hidden_state_layer_ids=[2, 4, 5, 8])
    checkpoint = read(files, tmp_path)
    assert checkpoint.config.num_aux == 3
    assert checkpoint.wiring.aux_layer_inputs == (2, 4, 5)
    assert any("the last (8)" in note for note in checkpoint.notes)


@pytest.mark.parametrize(("name", "shift"), [("speculators", 0), ("vllm", 0), ("model-optimizer", 1)])
def test_layer_ids_out_of_depth_order(name: str, shift: int, tmp_path: Path) -> None:
    """Hooks and engines capture while the target runs, whatever the order in the file."""
    files = WRITERS[name](Model())
    files.config.get("eagle_config", files.config)["eagle_aux_hidden_state_layer_ids"] = [5, 2, 4]
    checkpoint = read(files, tmp_path)
    assert checkpoint.config.aux_layer_ids == (5, 2, 4)
    assert checkpoint.wiring.aux_layer_inputs == (2 + shift, 4 + shift, 5 + shift)
    assert any("not in depth order" in note for note in checkpoint.notes)


def test_target_width_from_fc_when_unsaid(tmp_path: Path) -> None:
    files = builders.specforge(Model(target_hidden=48)).silent("target_hidden_size")
    checkpoint = read(files, tmp_path)
    assert (checkpoint.config.target_hidden_size, checkpoint.config.num_aux) == (48, 3)
    assert any("no target_hidden_size" in note for note in checkpoint.notes)


def test_head_of_the_target_and_tied_head(tmp_path: Path) -> None:
    whole = Model(draft_vocab=96)
    absent = read(builders.vllm(whole).without("lm_head.weight"), tmp_path / "absent")
    assert absent.wiring.head == "target"
    assert not absent.has("lm_head.weight")
    tied = read(builders.vllm(whole, tie_word_embeddings=True).without("lm_head.weight"), tmp_path / "tied")
    assert tied.wiring.head == "drafter"
    assert torch.equal(tied.get("lm_head.weight"), weights(whole)["embed_tokens.weight"])


def test_dimensions_that_the_tensors_tell(tmp_path: Path) -> None:
    """Null or absent keys: the draft vocabulary, the head dimension, the vocabulary."""
    files = builders.model_optimizer(Model(head_dim=16), draft_vocab_size=None, head_dim=None)
    config = read(files, tmp_path / "a").config
    assert (config.draft_vocab_size, config.head_dim) == (40, 16)
    config = read(builders.vllm(Model()).silent("vocab_size", "draft_vocab_size"), tmp_path / "b").config
    assert (config.vocab_size, config.draft_vocab_size) == (96, 40)


def test_parts_of_other_methods_are_left_out(tmp_path: Path) -> None:
    files = builders.vllm(Model(layers=2))
    files = files.put("verifier_lm_head.weight", torch.zeros(40, 32)).put("verifier_norm.weight", torch.zeros(32))
    files = files.put("layers.1.hidden_norm.weight", torch.zeros(32)).put("mask_hidden", torch.zeros(96))
    files = files.put("parallel_draft_heads.0.medusa_layers.0.linear.weight", torch.zeros(2, 2))
    files = files.put("layers.0.self_attn.rotary_emb.inv_freq", torch.zeros(4))
    checkpoint = read(files, tmp_path)
    assert_holds(checkpoint, Model(layers=2), embedding=True)
    notes = " ".join(checkpoint.notes)
    assert "mask_hidden" in notes
    assert "parallel_draft_heads" in notes


def test_sliding_window_and_adapter_are_noted(tmp_path: Path) -> None:
    files = builders.speculators(Model())
    files.config["transformer_layer_config"] |= {"sliding_window": 128, "layer_types": ["sliding_attention"]}
    path = files.write(tmp_path / "drafter")
    (path / "adapter_model.safetensors").write_bytes(b"not read")
    notes = " ".join(read_drafter(path).notes)
    assert "sliding window of 128" in notes
    assert "LoRA" in notes


def test_bias_of_o_proj(tmp_path: Path) -> None:
    """Transformers' Llama has it under ``attention_bias``, vLLM's drafter does not."""
    files = builders.speculators(Model(attention_bias=True))
    assert not read(files, tmp_path / "a").has("layers.0.self_attn.o_proj.bias")
    assert read(files.put("layers.0.self_attn.o_proj.bias", torch.ones(32)), tmp_path / "b").has("layers.0.self_attn.o_proj.bias")


def test_things_worth_a_note(tmp_path: Path) -> None:
    def notes(files: Files, name: str) -> str:
        return " ".join(read(files, tmp_path / name).notes)

    assert "mla_use_nope" in notes(builders.vllm(Model(family="mla"), mla_use_nope=True), "nope")
    assert "no rms_norm_eps" in notes(builders.vllm(Model()).silent("rms_norm_eps"), "eps")
    # Without t2d, target ids in the place of offsets can only be guessed: they rise everywhere.
    files = builders.model_optimizer(Model(vocab=400, draft_vocab=70))
    assert "stored absolute" not in notes(files, "offsets")
    assert "stored absolute" in notes(files.put("d2t", torch.arange(70) * 2), "absolute")


def test_stored_order_of_d2t_is_kept(tmp_path: Path) -> None:
    """Trainers sort the draft vocabulary; nothing requires it."""
    ids = torch.tensor([5, 3, 90, 0])
    model = Model(draft_vocab=4)
    files = builders.vllm(model).having(d2t=ids - torch.arange(4), t2d=torch.zeros(96, dtype=torch.bool).index_fill_(0, ids, True))
    offsets = read(files, tmp_path).d2t_offsets()
    assert offsets is not None
    assert offsets.dtype == torch.int64
    assert (offsets + torch.arange(4)).tolist() == [5, 3, 90, 0]


def test_opening_reads_no_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from eagle3_diag.checkpoint import tensors

    read_names: list[str] = []
    get = tensors.SafetensorsSource.get

    def spy(self: tensors.SafetensorsSource, name: str) -> torch.Tensor:
        read_names.append(name)
        return get(self, name)

    monkeypatch.setattr(tensors.SafetensorsSource, "get", spy)
    for name, write in WRITERS.items():
        read(write(Model()), tmp_path / name)
    assert set(read_names) <= {"d2t", "t2d"}


def test_weights_are_mapped_not_copied(tmp_path: Path) -> None:
    checkpoint = read(builders.vllm(Model()), tmp_path)
    assert checkpoint.get("fc.weight").data_ptr() == checkpoint.get("fc.weight").data_ptr()


def test_checksum_sees_every_bit(tmp_path: Path) -> None:
    files = builders.vllm(Model())
    before = read(files, tmp_path / "a").weights_sha256()
    changed = files.tensors["fc.weight"].clone()
    changed[-1, -1] = torch.nextafter(changed[-1, -1], torch.tensor(9.0))
    assert read(files.put("fc.weight", changed), tmp_path / "b").weights_sha256() != before
    renamed = Files(config=files.config, tensors=rename(files.tensors, "layers.0.", "midlayer."))
    assert read(renamed, tmp_path / "c").weights_sha256() == before


@pytest.mark.parametrize("layers", [8, 28, 61, 80])
def test_default_layers_are_the_same_states(layers: int) -> None:
    expected = (2, layers // 2, layers - 3)
    for name in WRITERS:
        assert default_aux_layer_inputs(name, layers) == expected
