"""speculators' validation: labels over the draft vocabulary, a row right only while it was right before.

Up to 0.6 validation fed the drafter's own tokens; since 0.7 training and validation both feed the true ones. The two part where a stored
token is not the target's choice (text that was sampled): a row may be right so far and yet be fed another token than it drafted.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import replace

import torch

from eagle3_diag.acceptance import StepCounts, step_counts
from eagle3_diag.checkpoint.interface import DrafterCheckpoint
from eagle3_diag.drafter import Drafter
from eagle3_diag.rollout import reach, rollout, target_labels
from eagle3_diag.trainers.interface import Definition

_FILES = "models/eagle3/{core,metrics,data}.py, models/metrics.py, train/{data,trainer}.py"
_OWN = Definition(
    name="speculators",
    metric="full_acc_k (and cond_acc_k among rows right so far)",
    feed="own",
    labels="draft-vocab",
    requires_prefix=True,
    mask_offset=1,
    position_base=1,
    averaged="sums",
    source=f"speculators 0.6.0.2 {_FILES}",
    notes=(
        "validation figures of versions up to 0.6 (since 0.7 the true tokens are fed: told by speculators_version in config.json)",
        "every sample is taken as padded; the trainer packs samples, where a sample's last k rows meet the labels of the next one",
    ),
)
_TRUE = replace(_OWN, feed="true", source=f"speculators 0.9.0 {_FILES}", notes=("as of 0.7: training and validation feed the true tokens", _OWN.notes[1]))


class Speculators:
    """``full_acc_k`` = correct/total, ``cond_acc_k`` = correct/at_risk."""

    def __init__(self, definition: Definition = _OWN) -> None:
        self.definition = definition

    def count(
        self,
        drafter: Drafter,
        tokens_N: torch.Tensor,
        aux: Sequence[torch.Tensor],
        state_NH: torch.Tensor,
        mask_N: torch.Tensor,
        steps: int,
    ) -> StepCounts:
        n, feed = int(tokens_N.shape[0]), self.definition.feed
        rows_R = torch.nonzero(mask_N[1:], as_tuple=True)[0]
        # labels are wanted wherever a counted row looks, in a response or not: a match there keeps the row in the conditional total
        wanted_N = reach(mask_N, steps)
        wanted_N[0] = False
        labels_N = target_labels(drafter, state_NH, wanted_N, drafter.ids_D)
        drafts_RK = rollout(drafter, tokens_N, aux, steps=steps, rows_R=rows_R, labels_LN=labels_N[None], feed=feed).drafts_RK
        late_R = rows_R > n - 2 - steps  # their later labels lie in the padding: no label here, but one there
        if bool(late_R.any()):
            drafts_RK[late_R] = rollout(drafter, tokens_N, aux, steps=steps, rows_R=rows_R[late_R], feed=feed).drafts_RK
        return step_counts(drafts_RK, rows_R, labels_N, mask_N, padded_label=0 if drafter.ids_D is None else int(drafter.ids_D[0]))


def of(checkpoint: DrafterCheckpoint) -> Speculators:
    """The definition of the version that wrote a checkpoint; that of 0.6 where none is written down."""
    try:
        config = json.loads((checkpoint.path / "config.json").read_text())
        found = re.match(r"(\d+)\.(\d+)", str(config.get("speculators_version", "")))
    except (OSError, ValueError, AttributeError):
        found = None
    return Speculators(_TRUE) if found is not None and (int(found[1]), int(found[2])) >= (0, 7) else TRAINER


TRAINER = Speculators()
