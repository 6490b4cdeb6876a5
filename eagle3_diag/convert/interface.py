"""What every format's writer starts from, and the parts of a config.json that formats share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from eagle3_diag.checkpoint.interface import DrafterCheckpoint
from eagle3_diag.config import RopeConfig
from eagle3_diag.engines.interface import STATIC_ROPE
from eagle3_diag.engines.trained import Trained

Config = dict[str, Any]
# Where the former config.json is kept, so that converting back loses nothing.
ORIGIN = "eagle3_diag_origin"

# Keys of a Llama-like configuration that are this project's to write, or another format's own.
_OWN = frozenset(
    {"architectures", "model_type", "rope_theta", "rope_scaling", "rope_parameters", "partial_rotary_factor", "draft_vocab_size", "target_hidden_size"}
    | {"eagle_config", "eagle_aux_hidden_state_layer_ids", "num_aux_hidden_states", "norm_before_residual", "norm_before_fc", "fc_norm", "use_aux_norm"}
    | {"norm_output", "target_model_type", ORIGIN, "dtype", "torch_dtype", "head_dim", "rms_norm_eps", "num_hidden_layers", "auto_map"}
)


@dataclass(frozen=True, kw_only=True)
class Source:
    """The drafter to convert; ``num_layers`` of its target, None where it is not known."""

    checkpoint: DrafterCheckpoint
    raw: Mapping[str, Any]
    trained: Trained
    num_layers: int | None

    @property
    def layer(self) -> Mapping[str, Any]:
        """The table that holds the layer's numbers."""
        nested = self.raw.get("transformer_layer_config")
        return nested if isinstance(nested, dict) else self.raw

    @property
    def is_mla(self) -> bool:
        return self.checkpoint.config.mla is not None

    @property
    def inputs(self) -> tuple[int, ...] | None:
        """Layer inputs as the config writes them; None where it writes none."""
        return self.trained.wiring.aux_layer_inputs if self.trained.ids is not None else None

    @property
    def own_embedding(self) -> bool:
        """Whether the stored embedding is, or may be, another than the target's."""
        return self.checkpoint.has("embed_tokens.weight") and not self.trained.frozen_embedding

    @property
    def rope(self) -> RopeConfig:
        return self.trained.wiring.rope or self.checkpoint.config.rope


def layer_keys(source: Source, model_type: str) -> Config:
    """The layer's numbers, whatever the source called the rest of its file."""
    config, mla = source.checkpoint.config, source.checkpoint.config.mla
    keys: Config = {"model_type": model_type}
    keys |= {k: v for k, v in source.layer.items() if k not in _OWN and not k.startswith("speculators") and k != "transformer_layer_config"}
    dtype = source.layer.get("dtype", source.layer.get("torch_dtype"))
    if isinstance(dtype, str):
        keys["torch_dtype"] = dtype
    keys |= {
        "hidden_size": config.hidden_size,
        "num_attention_heads": config.num_heads,
        "num_key_value_heads": config.num_kv_heads,
        "num_hidden_layers": config.num_layers,
        "intermediate_size": config.intermediate_size,
        "vocab_size": config.vocab_size,
        "rms_norm_eps": config.rms_norm_eps,
        "max_position_embeddings": source.rope.max_position_embeddings,
        "attention_bias": config.attention_bias,
        "mlp_bias": config.mlp_bias,
        "hidden_act": config.hidden_act,
    }
    if config.logit_scale != 1.0:
        keys["logit_scale"] = config.logit_scale
    if mla is None:
        keys["head_dim"] = config.head_dim
    else:
        keys |= {name: getattr(mla, name) for name in ("q_lora_rank", "kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim", "rope_interleave")}
    return keys


def legacy_rope(rope: RopeConfig, *, theta_inside: bool = False) -> Config:
    """``rope_theta`` and ``rope_scaling``, which Transformers 4 and 5 both read."""
    keys: Config = {"rope_theta": rope.theta, "rope_scaling": None}
    if rope.partial_rotary_factor != 1.0:
        keys["partial_rotary_factor"] = rope.partial_rotary_factor
    if rope.type != "default":
        keys["rope_scaling"] = {"rope_type": rope.type, **rope.parameters} | ({"rope_theta": rope.theta} if theta_inside else {})
    return keys


def outputs(inputs: tuple[int, ...]) -> list[int]:
    """Ids of layer outputs."""
    return [i - 1 for i in inputs]


def input_refusals(source: Source) -> list[str]:
    """For formats whose ids are outputs."""
    return ["the embedding as an aux state (its ids are outputs of layers)"] if 0 in (source.inputs or ()) else []


def choice_refusals(source: Source, *allowed: str) -> list[str]:
    """The choices that a format has no key for, but for those ``allowed`` (Wiring's fields, and ``layers``, ``mla``, ``qk``, ``width``)."""
    w, config = source.trained.wiring, source.checkpoint.config
    found = {
        "residual": w.residual != "before-norm" and "that the residual is taken after the norm (norm_before_residual)",
        "norm_before_fc": w.norm_before_fc and "a norm before fc (norm_before_fc)",
        "fc_norm": w.fc_norm and "a norm per aux state (fc_norm)",
        "feedback": w.feedback != "pre-norm" and "that the state after the final norm is fed back (norm_output)",
        "output_norm": w.output_norm != "own" and "that no final norm stands before lm_head",
        "hidden_norm": w.hidden_norm != "own" and "that the state goes through two norms, hidden_norm(input_layernorm(state))",
        "layers": config.num_layers != 1 and f"{config.num_layers} layers",
        "mla": source.is_mla and "latent attention",
        "qk": config.qk_norm and "norms of q and k",
        "bias": config.attention_bias and "q, k, v bias",
        "num_aux": config.num_aux != 3 and f"{config.num_aux} aux states",
        "width": config.hidden_size != config.target_hidden_size and "a target of another width",
        "logit_scale": config.logit_scale != 1.0 and "a factor on logits (logit_scale)",
        "head": not source.checkpoint.has("lm_head.weight") and "that the target's LM head serves",
        "embedding": source.own_embedding
        and config.hidden_size == config.target_hidden_size
        and "an embedding of the drafter's own (if it is a copy of the target's, say --trained-by specforge)",
    }
    return [words for key, words in found.items() if words and key not in allowed]


def position_refusals(source: Source, offset: int) -> list[str]:
    """Where positions count from, for a RoPE that notices."""
    w = source.trained.wiring
    if source.rope.type in STATIC_ROPE or w.position_offset == offset:
        return []
    return [f"that positions count from {w.position_offset}, which matters to {source.rope.type} RoPE"]
