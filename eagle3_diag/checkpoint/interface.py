"""What every drafter format turns into, and the protocol a format adapter fulfils."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import torch

from eagle3_diag.checkpoint.tensors import tensors_sha256
from eagle3_diag.config import DrafterConfig
from eagle3_diag.wiring import Wiring

if TYPE_CHECKING:
    from eagle3_diag.checkpoint.fields import Fields


class TensorSource(Protocol):
    """Named tensors of a checkpoint directory, read when asked for.

    Safetensors tensors come memory-mapped: a row slice touches only the pages of those rows.
    """

    def names(self) -> tuple[str, ...]: ...

    def shape(self, name: str) -> tuple[int, ...]: ...

    def dtype(self, name: str) -> torch.dtype: ...

    def get(self, name: str) -> torch.Tensor:
        """The whole tensor, on CPU, in its stored dtype, without a copy where the file allows it."""


@dataclass(frozen=True, kw_only=True)
class DrafterCheckpoint:
    """A drafter directory in the project's own terms.

    ``wiring`` is how its trainer's format says the weights were trained. ``tensors`` maps *internal* names to the
    source's names. Internal names (i = layer):

    ``fc.weight`` [H, n_aux*H_target], ``input_norm.weight`` [n_aux*H_target], ``fc_norm.{a}.weight`` [H_target],
    ``layers.{i}.input_layernorm.weight`` [H] (of the embedding in layer 0), ``layers.0.hidden_norm.weight`` [H],
    ``layers.{i}.self_attn.{q,k,v,o}_proj.{weight,bias}``, ``layers.{i}.self_attn.{q,k}_norm.weight`` [head_dim],
    MLA:
    ``layers.{i}.self_attn.{q_proj,q_a_proj,q_a_layernorm,q_b_proj,kv_a_proj_with_mqa,kv_a_layernorm,kv_b_proj}.weight``,
    ``layers.{i}.post_attention_layernorm.weight``, ``layers.{i}.mlp.{gate,up,down}_proj.{weight,bias}``,
    ``norm.weight`` [H], ``lm_head.weight`` [D, H] (absent when the target's head serves; the embedding when tied to
    it), ``embed_tokens.weight`` [V, H] (absent when the target's serves), ``d2t`` int [D] offsets (absent when draft
    vocabulary = target vocabulary).

    ``notes`` are sentences for the user: what the file overrides, what was assumed.
    """

    path: Path
    config: DrafterConfig
    wiring: Wiring
    source: TensorSource
    tensors: Mapping[str, str]
    config_sha256: str
    notes: tuple[str, ...] = ()

    def has(self, name: str) -> bool:
        return name in self.tensors

    def get(self, name: str) -> torch.Tensor:
        """The tensor of an internal name, on CPU, in its stored dtype."""
        return self.source.get(self.tensors[name])

    def d2t_offsets(self) -> torch.Tensor | None:
        """int64 [D] offsets, validated when the checkpoint was read; None when the vocabularies are the same."""
        return self.get("d2t").long() if self.has("d2t") else None

    def weights_sha256(self) -> str:
        """SHA-256 over name, dtype, shape and bytes of every tensor, sorted by internal name; reads all weights."""
        return tensors_sha256((name, partial(self.get, name)) for name in self.tensors)


class DrafterFormat(Protocol):
    """One checkpoint format. Modules of :mod:`eagle3_diag.checkpoint` each provide one."""

    @property
    def name(self) -> str: ...

    def matches(self, config: Fields, names: tuple[str, ...]) -> bool:
        """Whether this directory's ``config.json`` and tensor names are of this format."""

    def read(self, path: Path, config: Fields, config_bytes: bytes, source: TensorSource) -> DrafterCheckpoint:
        """Turn it into the internal form. Raises InputError with one sentence."""
