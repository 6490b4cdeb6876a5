"""speculators' validation: on-policy, labels over the draft vocabulary, a row right only while it was right before."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from eagle3_diag.acceptance import StepCounts
from eagle3_diag.drafter import Drafter
from eagle3_diag.rollout import rollout
from eagle3_diag.target import Target
from eagle3_diag.trainers.counting import labels
from eagle3_diag.trainers.interface import Definition


class Speculators:
    """``full_acc_k`` = correct/total, ``cond_acc_k`` = correct/at_risk."""

    definition = Definition(
        name="speculators",
        metric="full_acc_k (and cond_acc_k among rows right so far)",
        feed="own",
        labels="draft-vocab",
        requires_prefix=True,
        mask_offset=1,
        position_base=1,
        averaged="sums",
        source="speculators 0.6.0.2 models/eagle3/{core,metrics,data}.py, models/metrics.py, train/{data,trainer}.py",
        notes=(
            "validation figures; training logs of a run with off-policy tokens feed the true ones instead",
            "every sample is taken as padded; the trainer packs samples, where a sample's last k rows meet the labels of the next one",
        ),
    )

    def count(
        self,
        drafter: Drafter,
        target: Target,
        tokens_N: torch.Tensor,
        aux: Sequence[torch.Tensor],
        state_NH: torch.Tensor,
        mask_N: torch.Tensor,
        steps: int,
    ) -> StepCounts:
        n = int(tokens_N.shape[0])
        rows_R = torch.nonzero(mask_N[1:], as_tuple=True)[0]
        # labels are wanted wherever a counted row looks, in a response or not: a match there keeps the row in the conditional total
        wanted_N = mask_N.clone()
        for k in range(1, min(steps, n)):
            wanted_N[k:] |= mask_N[: n - k]
        wanted_N[0] = False
        labels_N = labels(target, state_NH, wanted_N, drafter.ids_D)
        drafts_RK = rollout(drafter, tokens_N, aux, steps=steps, rows_R=rows_R, labels_LN=labels_N[None]).drafts_RK
        late_R = rows_R > n - 2 - steps  # their later labels lie in the padding: no label here, but one there
        if bool(late_R.any()):
            drafts_RK[late_R] = rollout(drafter, tokens_N, aux, steps=steps, rows_R=rows_R[late_R]).drafts_RK
        return tally(drafts_RK, rows_R, labels_N, mask_N, padded_label=0 if drafter.ids_D is None else int(drafter.ids_D[0]))


def tally(drafts_RK: torch.Tensor, rows_R: torch.Tensor, labels_N: torch.Tensor, mask_N: torch.Tensor, *, padded_label: int | None) -> StepCounts:
    """``compute_accuracy_single_step`` over all steps, for rows with ``mask[t+1]``.

    ``padded_label``: what rows are compared with past the end (the trainer pads with states of zero, whose argmax is the first draft
    token); None for a batch that is full to the brim, where such rows leave the conditional total. Only step k's own label position is
    masked; a match outside every response keeps a row among those right so far.
    """
    n, steps = int(labels_N.shape[0]), int(drafts_RK.shape[1])
    counts, right_R = StepCounts.zero(steps), mask_N[rows_R + 1].clone()
    for k in range(steps):
        at_R = rows_R + 1 + k
        inside_R, at_R = at_R < n, at_R.clamp(max=n - 1)
        if padded_label is None:
            right_R = right_R & inside_R
        counts.at_risk[k] = int(right_R.sum())
        counts.total[k] = int(mask_N[1 + k :].sum())
        label_R = torch.where(inside_R, labels_N[at_R], -1 if padded_label is None else padded_label)
        right_R = right_R & (drafts_RK[:, k] == label_R)
        counts.correct[k] = int((right_R & inside_R & mask_N[at_R]).sum())
    return counts


TRAINER = Speculators()
