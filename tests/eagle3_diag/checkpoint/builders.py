"""Small drafters written as each trainer writes them: one set of weights, many file formats."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

Config = dict[str, Any]
Tensors = dict[str, torch.Tensor]


@dataclass(frozen=True, kw_only=True)
class Model:
    """A drafter's dimensions and switches, in this project's terms; ``family`` is llama, qwen3 or mla."""

    family: str = "llama"
    hidden: int = 32
    target_hidden: int = 32
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 8
    intermediate: int = 48
    vocab: int = 96
    draft_vocab: int = 40
    num_aux: int = 3
    layers: int = 1
    attention_bias: bool = False
    mlp_bias: bool = False
    norm_before_fc: bool = False
    fc_norm: bool = False
    last_norm: bool = True
    q_lora_rank: int | None = 12
    kv_lora_rank: int = 16
    nope: int = 6
    rope: int = 4
    v_head: int = 6
    seed: int = 0
    dtype: torch.dtype = torch.float32

    @property
    def family_heads(self) -> int:
        return self.heads if self.family == "mla" else self.kv_heads


def weights(m: Model) -> Tensors:
    """All tensors under this project's names, ``t2d`` too when there is a map."""
    g = torch.Generator().manual_seed(m.seed)
    shapes: dict[str, tuple[int, ...]] = {"fc.weight": (m.hidden, m.num_aux * m.target_hidden)}
    if m.last_norm:
        shapes["norm.weight"] = (m.hidden,)
    if m.norm_before_fc:
        shapes["input_norm.weight"] = (m.num_aux * m.target_hidden,)
    if m.fc_norm:
        shapes |= {f"fc_norm.{a}.weight": (m.target_hidden,) for a in range(m.num_aux)}
    for i in range(m.layers):
        width, at = (2 * m.hidden if i == 0 else m.hidden), f"layers.{i}.self_attn."
        if m.family == "mla":
            query = m.heads * (m.nope + m.rope)
            if m.q_lora_rank is None:
                shapes[f"{at}q_proj.weight"] = (query, width)
            else:
                shapes[f"{at}q_a_proj.weight"] = (m.q_lora_rank, width)
                shapes[f"{at}q_a_layernorm.weight"] = (m.q_lora_rank,)
                shapes[f"{at}q_b_proj.weight"] = (query, m.q_lora_rank)
            shapes[f"{at}kv_a_proj_with_mqa.weight"] = (m.kv_lora_rank + m.rope, width)
            shapes[f"{at}kv_a_layernorm.weight"] = (m.kv_lora_rank,)
            shapes[f"{at}kv_b_proj.weight"] = (m.heads * (m.nope + m.v_head), m.kv_lora_rank)
            shapes[f"{at}o_proj.weight"] = (m.hidden, m.heads * m.v_head)
        else:
            for name, count in (("q", m.heads), ("k", m.kv_heads), ("v", m.kv_heads)):
                shapes[f"{at}{name}_proj.weight"] = (count * m.head_dim, width)
                if m.attention_bias:
                    shapes[f"{at}{name}_proj.bias"] = (count * m.head_dim,)
            shapes[f"{at}o_proj.weight"] = (m.hidden, m.heads * m.head_dim)
        if m.family == "qwen3":
            shapes |= {f"{at}{name}_norm.weight": (m.head_dim,) for name in "qk"}
        for name, shape in (("gate", (m.intermediate, m.hidden)), ("up", (m.intermediate, m.hidden)), ("down", (m.hidden, m.intermediate))):
            shapes[f"layers.{i}.mlp.{name}_proj.weight"] = shape
            if m.mlp_bias:
                shapes[f"layers.{i}.mlp.{name}_proj.bias"] = shape[:1]
        for name in ("input_layernorm", "post_attention_layernorm", *(("hidden_norm",) if i == 0 else ())):
            shapes[f"layers.{i}.{name}.weight"] = (m.hidden,)
    shapes["embed_tokens.weight"] = (m.vocab, m.hidden)
    shapes["lm_head.weight"] = (m.draft_vocab, m.hidden)
    tensors = {name: torch.randn(shape, generator=g).to(m.dtype) for name, shape in shapes.items()}
    if m.draft_vocab != m.vocab:
        ids = torch.randperm(m.vocab, generator=g)[: m.draft_vocab].sort().values
        tensors["d2t"] = ids - torch.arange(m.draft_vocab)
        tensors["t2d"] = torch.zeros(m.vocab, dtype=torch.bool).index_fill_(0, ids, True)
    return tensors


def llama_keys(m: Model) -> Config:
    """The flat keys that every format takes from Transformers."""
    keys: Config = {
        "model_type": {"llama": "llama", "qwen3": "qwen3", "mla": "kimi_k2"}[m.family],
        "hidden_size": m.hidden,
        "num_attention_heads": m.heads,
        "num_key_value_heads": m.family_heads,
        "num_hidden_layers": m.layers,
        "intermediate_size": m.intermediate,
        "vocab_size": m.vocab,
        "rms_norm_eps": 1e-5,
        "hidden_act": "silu",
        "max_position_embeddings": 512,
        "tie_word_embeddings": False,
    }
    if m.family == "mla":
        keys |= {"q_lora_rank": m.q_lora_rank, "kv_lora_rank": m.kv_lora_rank, "v_head_dim": m.v_head}
        keys |= {"qk_nope_head_dim": m.nope, "qk_rope_head_dim": m.rope}
    else:
        keys["head_dim"] = m.head_dim
    if m.attention_bias:
        keys["attention_bias"] = True
    if m.mlp_bias:
        keys["mlp_bias"] = True
    return keys


@dataclass(frozen=True, kw_only=True)
class Files:
    """What goes into a directory, changed by tests before it is written."""

    config: Config
    tensors: Tensors = field(repr=False)

    def without(self, *names: str) -> Files:
        return Files(config=self.config, tensors={k: v for k, v in self.tensors.items() if k not in names})

    def having(self, **tensors: torch.Tensor) -> Files:
        return Files(config=self.config, tensors=self.tensors | tensors)

    def put(self, name: str, tensor: torch.Tensor) -> Files:
        return Files(config=self.config, tensors=self.tensors | {name: tensor})

    def saying(self, **keys: Any) -> Files:
        return Files(config=self.config | keys, tensors=self.tensors)

    def silent(self, *keys: str) -> Files:
        return Files(config={k: v for k, v in self.config.items() if k not in keys}, tensors=self.tensors)

    def write(self, path: Path, *, shards: int = 1, torch_files: bool = False) -> Path:
        path.mkdir(parents=True, exist_ok=True)
        (path / "config.json").write_text(json.dumps(self.config, indent=1))
        stem, suffix = ("pytorch_model", "bin") if torch_files else ("model", "safetensors")
        names = list(self.tensors)
        weight_map: dict[str, str] = {}
        for shard in range(shards):
            part = {n: self.tensors[n].contiguous() for n in names[shard::shards]}
            file = f"{stem}.{suffix}" if shards == 1 else f"{stem}-{shard + 1:05}-of-{shards:05}.{suffix}"
            if torch_files:
                torch.save(part, path / file)
            else:
                save_file(part, path / file)
            weight_map |= dict.fromkeys(part, file)
        if shards > 1:
            (path / f"{stem}.{suffix}.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
        return path


def rename(tensors: Mapping[str, torch.Tensor], old: str, new: str) -> Tensors:
    """Names that begin with ``old`` begin with ``new``."""
    return {new + n.removeprefix(old) if n.startswith(old) else n: t for n, t in tensors.items()}


def speculators(m: Model, **top: Any) -> Files:
    """speculators 0.6 to 0.9 (``Eagle3SpeculatorConfig``)."""
    layer = llama_keys(m) | {"rope_parameters": {"rope_type": "default", "rope_theta": 10000.0}}
    config: Config = {
        "architectures": ["Eagle3DraftModel"],
        "speculators_model_type": "eagle3",
        "speculators_version": "0.9.0",
        "draft_vocab_size": m.draft_vocab,
        "target_hidden_size": None,
        "eagle_aux_hidden_state_layer_ids": [2, 4, 5, 7][: m.num_aux],
        "norm_before_residual": False,
        "norm_before_fc": m.norm_before_fc,
        "fc_norm": m.fc_norm,
        "norm_output": False,
        "embed_requires_grad": False,
        "speculators_config": {"algorithm": "eagle3", "verifier": {"name_or_path": "../target", "architectures": []}},
        "transformer_layer_config": layer,
        "tie_word_embeddings": False,
    }
    return Files(config=config | top, tensors=weights(m))


def eagle(m: Model, **top: Any) -> Files:
    """SafeAILab/EAGLE: ``midlayer`` names, no embedding, architectures as in ``traineagle3/config.json``."""
    config = llama_keys(m) | {"architectures": ["LlamaForCausalLMEagle3"], "draft_vocab_size": m.draft_vocab}
    tensors = rename(weights(m), "layers.0.", "midlayer.")
    del tensors["embed_tokens.weight"]
    return Files(config=config | top, tensors=tensors)


def specforge(m: Model, **top: Any) -> Files:
    """SpecForge 0.2.0: EAGLE's names with ``eagle_config``; ``d2t`` and ``t2d`` are always written."""
    nested = {"eagle_aux_hidden_state_layer_ids": [1, 3, 4], "use_aux_hidden_state": True}
    files = eagle(m, eagle_config=nested, rope_theta=10000.0, rope_scaling=None)
    if m.fc_norm:
        files = files.saying(fc_norm=True)
    if m.target_hidden != m.hidden:
        files = files.saying(target_hidden_size=m.target_hidden).put("embed_tokens.weight", weights(m)["embed_tokens.weight"])
    if m.draft_vocab == m.vocab:
        files = files.having(d2t=torch.zeros(m.vocab, dtype=torch.int64), t2d=torch.ones(m.vocab, dtype=torch.bool))
    return files.saying(**top)


def model_optimizer(m: Model, **top: Any) -> Files:
    """Model-Optimizer 0.47 (``export/plugins/hf_spec_configs.py``): many nulls, ``layers.0``, no ``t2d``, no embedding."""
    nested: Config = {
        "eagle_aux_hidden_state_layer_ids": [1, 3, 4],
        "use_aux_hidden_state": True,
        "use_input_layernorm_in_first_layer": True,
        "use_last_layernorm": m.last_norm,
        "use_mtp_layernorm": False,
        "next_layer_regular": True,
        "parallel_draft_step": 1,
        "parallel_draft_heads_num_layers": 1,
    }
    nulls = ("bos_token_id", "eos_token_id", "pad_token_id", "transformers_version", "pretraining_tp", "num_beams", "rope_scaling")
    architecture = "Eagle3DeepseekV2ForCausalLM" if m.family == "mla" else "LlamaForCausalLMEagle3"
    config: Config = dict.fromkeys(nulls) | llama_keys(m)
    config |= {"architectures": [architecture], "draft_vocab_size": m.draft_vocab, "rope_theta": 10000, "eagle_config": nested}
    tensors = weights(m)
    del tensors["embed_tokens.weight"]
    tensors.pop("t2d", None)
    return Files(config=config | top, tensors=tensors)


def vllm(m: Model, **top: Any) -> Files:
    """A flat configuration in vLLM's naming, every switch at top level."""
    architecture = {"llama": "Eagle3LlamaForCausalLM", "qwen3": "Eagle3Qwen3ForCausalLM", "mla": "Eagle3DeepseekV2ForCausalLM"}[m.family]
    config = llama_keys(m) | {
        "architectures": [architecture],
        "draft_vocab_size": m.draft_vocab,
        "eagle_aux_hidden_state_layer_ids": [2, 4, 5],
        "norm_before_fc": m.norm_before_fc,
        "fc_norm": m.fc_norm,
        "rope_theta": 10000.0,
    }
    return Files(config=config | top, tensors=weights(m))
