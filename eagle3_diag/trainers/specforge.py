"""SpecForge's training log: true tokens fed, labels over the whole vocabulary, every unmasked row counts at every step."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from eagle3_diag.acceptance import StepCounts
from eagle3_diag.drafter import Drafter
from eagle3_diag.rollout import target_labels
from eagle3_diag.trainers.counting import teacher_forced
from eagle3_diag.trainers.interface import Definition


class SpecForge:
    """``acc_k``."""

    definition = Definition(
        name="specforge",
        metric="acc_k",
        feed="true",
        labels="full",
        requires_prefix=False,
        mask_offset=0,
        position_base=0,
        averaged="sums",
        source="SpecForge 0.2.0 algorithms/eagle3/{model,data}.py, modeling/target/target_head.py, training/controller.py",
        notes=(
            "the target's states and tokens are shifted by one, the loss mask is not, and its last position never counts",
            "a target token outside the draft vocabulary can never be right",
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
        mask_N = mask_N.clone()
        mask_N[-1] = False  # normalize_offline_sample: no label follows the last token
        wanted_N = torch.roll(mask_N, 1)  # the label of mask position p is the target's choice at p+1
        return teacher_forced(drafter, tokens_N, aux, target_labels(drafter, state_NH, wanted_N, None), mask_N, offset=0, steps=steps)


TRAINER = SpecForge()
