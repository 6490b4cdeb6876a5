"""Shapes and numbers of a drafter and its target: what is fixed by the weights.

What can be *chosen* for one and the same weights (which states feed ``fc``, where the residual is taken, ...) is in
:mod:`eagle3_diag.wiring`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

RopeType = Literal["default", "linear", "dynamic", "yarn", "llama3", "longrope"]


@dataclass(frozen=True, kw_only=True)
class RopeConfig:
    """Rotary position embedding, as Transformers' ``rope_parameters`` names it.

    ``parameters`` holds what the type needs beyond ``theta`` (``factor``, ``beta_fast``, ``low_freq_factor``,
    ``short_factor``, ``original_max_position_embeddings``, ...), exactly as found in the checkpoint.
    """

    type: RopeType = "default"
    theta: float = 10000.0
    max_position_embeddings: int = 2048
    partial_rotary_factor: float = 1.0
    parameters: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class MlaConfig:
    """Multi-head latent attention (DeepSeek V2/V3, Kimi): ranks and the split of a head into its two parts."""

    q_lora_rank: int | None
    kv_lora_rank: int
    qk_nope_head_dim: int
    qk_rope_head_dim: int
    v_head_dim: int
    rope_interleave: bool = True


@dataclass(frozen=True, kw_only=True)
class DrafterConfig:
    """An EAGLE-3 drafter's architecture in the project's own terms, whatever the file called it.

    ``hidden_size`` is the drafter's width H, ``target_hidden_size`` the width of one aux hidden state,
    ``num_aux`` how many of them ``fc`` takes: fc is [H, num_aux * target_hidden_size].
    ``vocab_size`` is the target's vocabulary V, ``draft_vocab_size`` the drafter's D (equal when it has no map).
    ``aux_layer_ids`` are the ids as written in the file, in that file's own convention (facts: one number means the
    input of a layer to some and its output to others); None when the file gives none.
    """

    format: str
    architecture: str
    hidden_size: int
    target_hidden_size: int
    num_aux: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    intermediate_size: int
    vocab_size: int
    draft_vocab_size: int
    rms_norm_eps: float
    rope: RopeConfig
    attention_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False
    hidden_act: str = "silu"
    logit_scale: float = 1.0
    mla: MlaConfig | None = None
    aux_layer_ids: tuple[int, ...] | None = None


@dataclass(frozen=True, kw_only=True)
class TargetConfig:
    """The parts of a target that judge a draft: embedding, final norm, LM head.

    ``norm_offset`` is 1.0 where the norm multiplies by (1 + weight) (Gemma), else 0.0. ``embedding_scale`` multiplies
    embedding rows (Gemma: sqrt(hidden_size)). ``logit_scale`` multiplies and ``logit_softcap`` squashes logits; neither
    moves an argmax, both matter for probabilities.
    """

    architecture: str
    hidden_size: int
    vocab_size: int
    num_layers: int
    rms_norm_eps: float
    tied_head: bool
    norm_offset: float = 0.0
    embedding_scale: float = 1.0
    logit_scale: float = 1.0
    logit_softcap: float | None = None
