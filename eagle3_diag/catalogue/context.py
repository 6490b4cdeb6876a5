"""What the catalogue knows of the case at hand when it lists explanations."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property

import torch

from eagle3_diag.checkpoint import default_aux_layer_inputs
from eagle3_diag.checkpoint.fields import Fields, read_config
from eagle3_diag.checkpoint.interface import DrafterCheckpoint
from eagle3_diag.checkpoint.rotary import read_rope
from eagle3_diag.config import RopeConfig
from eagle3_diag.errors import InputError
from eagle3_diag.target import NESTED_CONFIGS, Target
from eagle3_diag.wiring import Wiring

_ROWS_COMPARED = 1024


def right_wiring(checkpoint: DrafterCheckpoint, target: Target) -> Wiring:
    """How the drafter was trained, its layers written out: those of its format's trainer where the checkpoint names none."""
    wiring = checkpoint.wiring
    if wiring.aux_layer_inputs is not None:
        return wiring
    inputs = default_aux_layer_inputs(checkpoint.config.format, target.config.num_layers)
    if len(inputs) != checkpoint.config.num_aux:  # nobody says which: ids below zero are states as stored, known by place only
        inputs = tuple(-1 - i for i in range(checkpoint.config.num_aux))
    return replace(wiring, aux_layer_inputs=inputs)


@dataclass(frozen=True)
class Context:
    """A drafter and its target, opened."""

    checkpoint: DrafterCheckpoint
    target: Target

    @cached_property
    def right(self) -> Wiring:
        return right_wiring(self.checkpoint, self.target)

    @property
    def inputs(self) -> tuple[int, ...]:
        """Layer inputs of fc's blocks under right wiring."""
        assert self.right.aux_layer_inputs is not None
        return self.right.aux_layer_inputs

    @property
    def same_width(self) -> bool:
        return self.checkpoint.config.hidden_size == self.checkpoint.config.target_hidden_size

    @cached_property
    def target_rope(self) -> RopeConfig | None:
        """The target's own rotary embedding; None where its config does not say one that is known."""
        try:
            config, _ = read_config(self.target.path, "target")
            nested = next((config.table(key) for key in NESTED_CONFIGS if isinstance(config.data.get(key), Mapping)), config)
            flat: Fields = nested
            return read_rope(flat, self.checkpoint.config.head_dim)
        except InputError:
            return None

    @cached_property
    def own_embedding_differs(self) -> bool:
        """Whether the drafter's stored embedding is another than the target's (compared on some rows)."""
        if not self.checkpoint.has("embed_tokens.weight") or not self.same_width:
            return False
        own, theirs = self.checkpoint.get("embed_tokens.weight"), self.target.embedding()
        if own.shape != theirs.shape:
            return False
        at = torch.linspace(0, own.shape[0] - 1, min(_ROWS_COMPARED, own.shape[0])).long()
        scale = self.target.config.embedding_scale
        return not torch.allclose(own[at].float(), theirs[at].float() * scale, rtol=1e-2, atol=1e-6)

    @cached_property
    def own_head_differs(self) -> bool:
        """Whether the drafter has a head of its own that the target's could be put in the place of, and is another."""
        if not self.checkpoint.has("lm_head.weight") or not self.same_width:
            return False
        if self.checkpoint.has("d2t"):
            return True
        own, theirs = self.checkpoint.get("lm_head.weight"), self.target.head()
        return own.shape != theirs.shape or not torch.equal(own[:_ROWS_COMPARED].float(), theirs[:_ROWS_COMPARED].float())

