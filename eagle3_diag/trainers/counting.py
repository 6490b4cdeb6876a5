"""Steps that the trainers' counts share.

Dimension suffixes: N tokens of the sequence, R rows, K draft steps, M positions that have a label (N, or N plus a padded one).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from eagle3_diag.acceptance import StepCounts
from eagle3_diag.drafter import Drafter
from eagle3_diag.rollout import rollout


def spread(mask_N: torch.Tensor, offset: int, steps: int) -> torch.Tensor:
    """Rows t with ``mask[t + offset + k]`` at some step k, bool [n]."""
    n = int(mask_N.shape[0])
    rows_N = torch.zeros_like(mask_N)
    for shift in range(offset, offset + steps):
        if shift < n:
            rows_N[: n - shift] |= mask_N[shift:]
    return rows_N


def teacher_forced(
    drafter: Drafter, tokens_N: torch.Tensor, aux: Sequence[torch.Tensor], labels_M: torch.Tensor, mask_N: torch.Tensor, *, offset: int, steps: int
) -> StepCounts:
    """Unconditional counts with true tokens fed: a row is right at step k when it matches there, whatever it did before.

    Row t at step k counts where ``mask[t + offset + k]``; its label is ``labels_M[t + 1 + k]``. The total of step k is the number of such
    mask positions, whichever row they belong to.
    """
    n = int(tokens_N.shape[0])
    rows_R = torch.nonzero(spread(mask_N, offset, steps)[: n - 1], as_tuple=True)[0]
    drafts_RK = rollout(drafter, tokens_N, aux, steps=steps, rows_R=rows_R, feed="true").drafts_RK
    size, counts = int(mask_N.shape[0]), StepCounts.zero(steps)
    for k in range(steps):
        at_R, label_R = rows_R + offset + k, rows_R + 1 + k
        counted_R = (at_R < size) & (label_R < labels_M.shape[0])
        counted_R &= mask_N[at_R.clamp(max=size - 1)]
        right_R = drafts_RK[:, k] == labels_M[label_R.clamp(max=labels_M.shape[0] - 1)]
        counts.correct[k] = int((right_R & counted_R).sum())
        counts.total[k] = counts.at_risk[k] = int(mask_N[offset + k :].sum())
    return counts
