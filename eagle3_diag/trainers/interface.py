"""How a trainer defines its accuracy, as data, and the protocol of the modules that count by it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

import torch

from eagle3_diag.acceptance import StepCounts
from eagle3_diag.drafter import Drafter


@dataclass(frozen=True, kw_only=True)
class Definition:
    """One trainer's per-step accuracy.

    ``metric``: what the log calls step k's figure. ``feed``: tokens fed at steps 1, 2, ...: the drafter's ``own`` or the ``true`` ones.
    ``labels``: vocabulary that the target's argmax is taken over. ``requires_prefix``: a row counts as right at step k only if it was
    right at all steps before (its total still counts every row). ``mask_offset``: row t at step k counts where ``mask[t + mask_offset + k]``;
    its label is always the target's choice at position t+1+k. ``position_base``: rotary position of row 0. ``averaged``: ``sums`` adds
    counts over batches before dividing, ``batches`` is the mean of each batch's ratio (a figure from counts equals it only where batches
    have equally many rows). ``source``: package, version and files it was read in. ``notes``: what else a reader must know.
    """

    name: str
    metric: str
    feed: Literal["own", "true"]
    labels: Literal["full", "draft-vocab"]
    requires_prefix: bool
    mask_offset: int
    position_base: int
    averaged: Literal["sums", "batches"]
    source: str
    notes: tuple[str, ...] = ()

    def text(self) -> str:
        """The definition in words."""
        fed = "its own drafts" if self.feed == "own" else "the sequence's true tokens"
        among = "the draft vocabulary" if self.labels == "draft-vocab" else "the whole vocabulary"
        chain = "and was right at every step before" if self.requires_prefix else "whether or not it was right before"
        at = {0: "one position before its label", 1: "at its label"}[self.mask_offset]
        over = "counts summed over batches" if self.averaged == "sums" else "the log shows the mean over batches of each batch's ratio"
        parts = [
            f"{self.metric} of {self.source}: fed {fed}; label = the target's argmax over {among}; a row counts as right when it matches {chain}",
            f"rows counted by the loss mask {at}; {over}",
            *self.notes,
        ]
        return "; ".join(parts)


class Trainer(Protocol):
    """Counts by a trainer's definition."""

    definition: Definition

    def count(
        self,
        drafter: Drafter,
        tokens_N: torch.Tensor,
        aux: Sequence[torch.Tensor],
        state_NH: torch.Tensor,
        mask_N: torch.Tensor,
        steps: int,
    ) -> StepCounts:
        """Counts of one sample.

        Args:
            tokens_N: int64 [n]. aux: the aux states, each [n, H_target], stored order. mask_N: the loss mask as stored, bool [n].
            state_NH: what the target's head is applied to (after its final norm), [n, H_target], in the compute dtype.

        Returns ``correct[k]`` of ``total[k]``; ``at_risk[k]`` is the conditional figure's total where the trainer logs one, else ``total``.
        """
