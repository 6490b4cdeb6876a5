"""EAGLE's training log: true tokens fed, a row right only where the target's choice is in the draft vocabulary, unconditional."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch

from eagle3_diag.acceptance import StepCounts
from eagle3_diag.drafter import Drafter
from eagle3_diag.rollout import target_labels
from eagle3_diag.trainers.counting import teacher_forced
from eagle3_diag.trainers.interface import Definition

_BASE = 10000.0


class Eagle:
    """``train/acc_k``, and ``position k, Acc`` of an epoch."""

    definition = Definition(
        name="eagle",
        metric="acc_k",
        feed="true",
        labels="full",
        requires_prefix=False,
        mask_offset=0,
        position_base=0,
        averaged="batches",
        source="SafeAILab/EAGLE cb7e084 traineagle3/{cnets,main}.py",
        notes=(
            "the target's logits and tokens are shifted by one, the loss mask is not",
            "a target token outside the draft vocabulary can never be right, but stays in the total",
            "its training code turns with RoPE base 10000 whatever rope_theta says (its inference code reads rope_theta); so does this figure",
        ),
    )

    def count(
        self,
        drafter: Drafter,
        tokens_N: torch.Tensor,
        aux: Sequence[torch.Tensor],
        state_NH: torch.Tensor,
        mask_N: torch.Tensor,
        steps: int,
    ) -> StepCounts:
        drafter = as_trained(drafter)
        labels_N = target_labels(drafter, state_NH, torch.roll(mask_N, 1) & (torch.arange(mask_N.shape[0], device=mask_N.device) > 0), None)
        if not bool(mask_N[-1]):
            return teacher_forced(drafter, tokens_N, aux, labels_N, mask_N, offset=0, steps=steps)
        # A mask that reaches the last token counts a row without a label: padded token 0, and target logits of zero, whose argmax is token
        # 0; right only when the draft vocabulary begins with token 0 and the drafter says so.
        first = 0 if drafter.ids_D is None or int(drafter.ids_D[0]) == 0 else -1
        longer_N = torch.cat((tokens_N, tokens_N.new_zeros(1)))
        longer = [torch.cat((state, state.new_zeros(1, state.shape[1]))) for state in aux]
        labels_M = torch.cat((labels_N, labels_N.new_full((1,), first)))
        return teacher_forced(drafter, longer_N, longer, labels_M, mask_N, offset=0, steps=steps)


def as_trained(drafter: Drafter) -> Drafter:
    """The drafter with the RoPE base that traineagle3's ``_init_rope`` leaves at its default, for the types it knows."""
    rope = drafter.wiring.rope or drafter.config.rope
    known = rope.type in ("default", "linear", "dynamic")
    return drafter.rewired(rope=replace(rope, theta=_BASE)) if known and rope.theta != _BASE else drafter


TRAINER = Eagle()
