"""Targets: the embedding, the final norm and the LM head under every family's names, and nothing else."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from eagle3_diag.errors import InputError
from eagle3_diag.target import Target, read_target
from tests.eagle3_diag.checkpoint.builders import Config, Files, Tensors


def llama_target(hidden: int = 16, vocab: int = 40, layers: int = 2, **keys: Any) -> Files:
    """A Llama target: names and keys of Transformers' ``LlamaForCausalLM``."""
    g = torch.Generator().manual_seed(1)
    tensors = {
        "model.embed_tokens.weight": torch.randn(vocab, hidden, generator=g),
        "model.norm.weight": torch.randn(hidden, generator=g),
        "lm_head.weight": torch.randn(vocab, hidden, generator=g),
    }
    for i in range(layers):
        tensors[f"model.layers.{i}.mlp.up_proj.weight"] = torch.randn(8, hidden, generator=g)
    config: Config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": hidden,
        "vocab_size": vocab,
        "num_hidden_layers": layers,
        "rms_norm_eps": 1e-5,
        "tie_word_embeddings": False,
    }
    return Files(config=config | keys, tensors=tensors)


def under(tensors: Tensors, prefix: str, head: str) -> Tensors:
    """The Llama names under another prefix and head."""
    return {head if n == "lm_head.weight" else prefix + n.removeprefix("model."): t for n, t in tensors.items()}


def read(files: Files, path: Path) -> Target:
    return read_target(files.write(path / "target"))


def assert_holds(target: Target, files: Files) -> None:
    original = llama_target().tensors
    assert torch.equal(target.embedding(), original["model.embed_tokens.weight"])
    assert torch.equal(target.norm_weight(), original["model.norm.weight"])
    tied = target.config.tied_head
    assert torch.equal(target.head(), original["model.embed_tokens.weight" if tied else "lm_head.weight"])


@pytest.mark.parametrize("model_type", ["llama", "qwen2", "qwen3", "qwen3_moe", "deepseek_v3", "mistral", "gpt_oss", "kimi_k2"])
def test_plain_families(model_type: str, tmp_path: Path) -> None:
    files = llama_target(model_type=model_type)
    target = read(files, tmp_path)
    assert_holds(target, files)
    config = target.config
    assert (config.hidden_size, config.vocab_size, config.num_layers, config.rms_norm_eps) == (16, 40, 2, 1e-5)
    assert (config.norm_offset, config.embedding_scale, config.logit_scale, config.logit_softcap) == (0.0, 1.0, 1.0, None)
    assert not config.tied_head
    assert target.notes == ()


@pytest.mark.parametrize(
    ("prefix", "head"),
    [
        ("language_model.model.", "language_model.lm_head.weight"),  # Kimi K2.5, older LLaVA-like layouts
        ("model.language_model.", "lm_head.weight"),  # newer multimodal layouts of Transformers
        ("thinker.model.", "thinker.lm_head.weight"),  # Qwen-Omni
        ("", "lm_head.weight"),
    ],
)
@pytest.mark.parametrize("key", ["text_config", "llm_config"])
def test_nested_configuration_and_prefixes(prefix: str, head: str, key: str, tmp_path: Path) -> None:
    plain = llama_target(model_type="kimi_k2")
    config = {"architectures": ["KimiK25ForConditionalGeneration"], "model_type": "kimi_k25", key: plain.config}
    files = Files(config=config, tensors=under(plain.tensors, prefix, head))
    target = read(files, tmp_path)
    assert_holds(target, files)
    assert target.config.architecture == "KimiK25ForConditionalGeneration"
    assert target.notes == ()


def test_configuration_nested_twice(tmp_path: Path) -> None:
    plain = llama_target()
    config = {"architectures": ["Qwen3OmniMoeForConditionalGeneration"], "thinker_config": {"text_config": plain.config}}
    assert read(Files(config=config, tensors=plain.tensors), tmp_path).config.hidden_size == 16


@pytest.mark.parametrize(("embedding", "head"), [("tok_embeddings", "output"), ("word_embeddings", "lm_head")])
def test_names_of_internlm2_and_ling(embedding: str, head: str, tmp_path: Path) -> None:
    files = llama_target(model_type="internlm2")
    tensors = {n.replace("embed_tokens", embedding).replace("lm_head", head): t for n, t in files.tensors.items()}
    assert_holds(read(Files(config=files.config, tensors=tensors), tmp_path), files)


def test_tied_head(tmp_path: Path) -> None:
    files = llama_target(tie_word_embeddings=True).without("lm_head.weight")
    target = read(files, tmp_path / "a")
    assert target.config.tied_head
    assert_holds(target, files)
    # A head stored beside a tied embedding is not what Transformers computes with.
    assert_holds(read(llama_target(tie_word_embeddings=True), tmp_path / "b"), files)


def test_tie_is_taken_from_the_outer_configuration_first(tmp_path: Path) -> None:
    plain = llama_target(tie_word_embeddings=False)
    config = {"architectures": ["X"], "tie_word_embeddings": True, "text_config": plain.config}
    assert read(Files(config=config, tensors=plain.tensors), tmp_path).config.tied_head


@pytest.mark.parametrize(
    ("model_type", "offset", "scale", "softcap"),
    [
        ("gemma", 1.0, 4.0, None),
        ("gemma2", 1.0, 4.0, 30.0),
        ("gemma3_text", 1.0, 4.0, None),
        ("gemma3n_text", 0.0, 4.0, 30.0),
        ("gemma4_text", 0.0, 4.0, None),
        ("qwen3_next", 1.0, 1.0, None),
        ("qwen3_5_text", 1.0, 1.0, None),
    ],
)
def test_norms_and_scales(model_type: str, offset: float, scale: float, softcap: float | None, tmp_path: Path) -> None:
    """Transformers 5.24: Gemma 1 to 3 and Qwen3-Next multiply by (1 + weight), Gemma 3n and 4 by the weight."""
    files = llama_target(model_type=model_type)
    del files.config["tie_word_embeddings"]
    config = read(files, tmp_path).config
    assert (config.norm_offset, config.embedding_scale, config.logit_softcap) == (offset, scale, softcap)
    assert config.tied_head == model_type.startswith("gemma")


def test_softcap_of_the_file_goes_first(tmp_path: Path) -> None:
    assert read(llama_target(model_type="gemma2", final_logit_softcapping=15.0), tmp_path / "a").config.logit_softcap == 15.0
    assert read(llama_target(model_type="gemma2", final_logit_softcapping=None), tmp_path / "b").config.logit_softcap is None


def test_scales_of_granite_and_minicpm(tmp_path: Path) -> None:
    granite = read(llama_target(model_type="granite", embedding_multiplier=12.0, logits_scaling=8.0), tmp_path / "a").config
    assert (granite.embedding_scale, granite.logit_scale) == (12.0, 0.125)
    minicpm = read(llama_target(model_type="minicpm", scale_emb=12, dim_model_base=4), tmp_path / "b").config
    assert (minicpm.embedding_scale, minicpm.logit_scale) == (12.0, 0.25)


def test_only_the_shards_that_are_needed(tmp_path: Path) -> None:
    """A target whose layers were never downloaded is enough."""
    files = llama_target(layers=6)
    path = files.write(tmp_path / "target", shards=4)
    needed = {"model.embed_tokens.weight", "model.norm.weight", "lm_head.weight"}
    weight_map = json.loads((path / "model.safetensors.index.json").read_text())["weight_map"]
    keep = {file for name, file in weight_map.items() if name in needed}
    gone = set(weight_map.values()) - keep
    assert gone
    for file in gone:
        (path / file).unlink()
    assert read_target(path).config.num_layers == 6
    assert read_target(path).head().shape == (40, 16)


def test_torch_files(tmp_path: Path) -> None:
    files = llama_target()
    assert_holds(read_target(files.write(tmp_path / "target", torch_files=True, shards=2)), files)


def test_checksums(tmp_path: Path) -> None:
    first = read(llama_target(), tmp_path / "a")
    again = read_target(llama_target().write(tmp_path / "b", shards=3))
    assert first.weights_sha256() == again.weights_sha256()
    assert first.config_sha256 == again.config_sha256
    other = llama_target().put("model.norm.weight", torch.ones(16))
    assert read(other, tmp_path / "c").weights_sha256() != first.weights_sha256()


def test_unknown_model_type_is_assumed_plain_and_said(tmp_path: Path) -> None:
    target = read(llama_target(model_type="brandnew"), tmp_path)
    assert any("model_type brandnew is not known here" in note for note in target.notes)


def refusal(files: Files, tmp_path: Path) -> str:
    with pytest.raises(InputError) as caught:
        read(files, tmp_path)
    text = str(caught.value)
    assert "\n" not in text
    assert str(tmp_path) in text
    return text


def test_unknown_layout_names_both_sides(tmp_path: Path) -> None:
    files = Files(config=llama_target().config, tensors={"transformer.wte.weight": torch.zeros(40, 16), "h.0.weight": torch.zeros(2)})
    text = refusal(files, tmp_path)
    assert "has no embedding: looked for model.embed_tokens.weight, language_model.model.embed_tokens.weight, " in text
    assert "it holds h.0.weight, transformer.wte.weight" in text


@pytest.mark.parametrize(
    ("name", "what"), [("model.embed_tokens.weight", "embedding"), ("model.norm.weight", "final norm"), ("lm_head.weight", "LM head")]
)
def test_missing_tensor(name: str, what: str, tmp_path: Path) -> None:
    text = refusal(llama_target().without(name), tmp_path)
    assert f"has no {what}: looked for" in text
    assert name in text
    assert "model.layers" not in text


@pytest.mark.parametrize("suffix", ["weight_packed", "qweight", "weight_scale_inv", "scales"])
def test_quantised_head(suffix: str, tmp_path: Path) -> None:
    files = llama_target().without("lm_head.weight").put(f"lm_head.{suffix}", torch.zeros(2, dtype=torch.int32))
    text = refusal(files, tmp_path)
    assert f"the LM head is quantised (it holds lm_head.{suffix}), expected lm_head.weight" in text


def test_fp8_head(tmp_path: Path) -> None:
    files = llama_target().put("lm_head.weight", torch.zeros(40, 16).to(torch.float8_e4m3fn))
    assert "lm_head.weight is stored as float8_e4m3fn, expected float32, bfloat16 or float16" in refusal(files, tmp_path)


def test_quantised_layers_beside_a_plain_head(tmp_path: Path) -> None:
    files = llama_target(quantization_config={"quant_method": "fp8"})
    files = files.put("model.layers.0.mlp.up_proj.weight_scale_inv", torch.zeros(1))
    assert_holds(read(files, tmp_path), files)


@pytest.mark.parametrize(
    ("name", "shape", "expected"),
    [
        ("model.embed_tokens.weight", (41, 16), "[40, 16]"),
        ("lm_head.weight", (40, 8), "[40, 16]"),
        ("model.norm.weight", (15,), "[16]"),
    ],
)
def test_wrong_shape(name: str, shape: tuple[int, ...], expected: str, tmp_path: Path) -> None:
    text = refusal(llama_target().put(name, torch.zeros(shape)), tmp_path)
    assert f"{name} has shape {list(shape)}, expected {expected}" in text


def test_norms_that_are_no_rms_norm(tmp_path: Path) -> None:
    assert "whose final norm is no RMSNorm" in refusal(llama_target(model_type="cohere2"), tmp_path / "a")
    files = llama_target(model_type="brandnew").put("model.norm.bias", torch.zeros(16))
    assert "so the final norm is no RMSNorm" in refusal(files, tmp_path / "b")


@pytest.mark.parametrize("key", [{"speculators_model_type": "eagle3"}, {"draft_vocab_size": 10}])
def test_a_drafter_given_as_the_target(key: Config, tmp_path: Path) -> None:
    assert "describes a drafter, expected a target" in refusal(llama_target(**key), tmp_path)


@pytest.mark.parametrize("key", ["hidden_size", "vocab_size", "num_hidden_layers"])
def test_missing_numbers(key: str, tmp_path: Path) -> None:
    assert f"lacks {key}, expected a whole number" in refusal(llama_target().silent(key), tmp_path)


def test_missing_directory(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="give the directory that holds the target's config"):
        read_target(tmp_path / "none")
