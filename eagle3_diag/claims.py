"""An accuracy claimed from training, held against what each wiring reaches on the samples by that trainer's own definition."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from eagle3_diag import trainers
from eagle3_diag.acceptance import StepCounts
from eagle3_diag.catalogue import AS_TRAINED, Catalogue, Explanation
from eagle3_diag.predict import Loaded, Predictor

#: Validation data and samples differ; an accuracy is a figure with two or three digits.
_TOLERANCE = 0.03
#: How much more than right wiring reaches another must reach to be worth a word.
_GAIN = 0.05


@dataclass(frozen=True, kw_only=True)
class Reached:
    """Accuracy of draft step 0 under one wiring, by the trainer's definition; ``error`` is two standard errors between samples."""

    explanation: Explanation
    accuracy: float
    error: float

    def meets(self, claimed: float) -> bool:
        """Whether the claim may be this figure on other data."""
        return abs(claimed - self.accuracy) <= max(_TOLERANCE, self.error)


@dataclass(frozen=True, kw_only=True)
class Claim:
    """``claimed`` accuracy of draft step 0 by ``trainer``; ``right`` under right wiring; ``others`` the wirings that reach it, best prior first."""

    claimed: float
    trainer: str
    definition: str
    right: Reached
    others: tuple[Reached, ...]

    @property
    def holds(self) -> bool:
        """Whether right wiring reaches it."""
        return self.right.meets(self.claimed)

    @property
    def explained(self) -> bool:
        """Whether only other wirings reach it: the data were made differently from what the config says."""
        return not self.holds and self.claimed > self.right.accuracy and bool(self.others)


def examine(predictor: Predictor, loaded: Sequence[Loaded], listed: Catalogue, claimed: float, trainer_name: str) -> Claim:
    """Measure step 0 under right wiring; where it falls short of the claim, under every other that a trainer can have used."""
    trainer = trainers.get(trainer_name, predictor.checkpoint)

    def reached(explanation: Explanation) -> Reached:
        wiring = explanation.wiring(predictor.right)
        drafter = predictor.rewired(wiring)
        each = []
        with torch.inference_mode():
            for one in loaded:
                state_NH = one.final_NH
                if wiring.target_norm == "missing" and one.unnormed_NH is not None:
                    state_NH = one.unnormed_NH.to(state_NH.device, state_NH.dtype)
                each.append(trainer.count(drafter, one.tokens_N, predictor.features(one, wiring), state_NH, one.mask_N, 1))
        return _reached(explanation, each)

    right = reached(listed.explanations[0])
    others = []
    if not right.meets(claimed) and claimed > right.accuracy:
        for explanation in listed:
            if explanation.id != AS_TRAINED and explanation.exact and not explanation.path_dependent:
                found = reached(explanation)
                if found.meets(claimed) and found.accuracy > right.accuracy + _GAIN:
                    others.append(found)
    others.sort(key=lambda r: (-r.explanation.prior, abs(r.accuracy - claimed), r.explanation.id))
    return Claim(claimed=claimed, trainer=trainer_name, definition=trainer.definition.text(), right=right, others=tuple(others))


def _reached(explanation: Explanation, each: Sequence[StepCounts]) -> Reached:
    total = sum(c.total[0] for c in each)
    accuracy = sum(c.correct[0] for c in each) / total if total else 0.0
    between = math.fsum((c.correct[0] - accuracy * c.total[0]) ** 2 for c in each)
    return Reached(explanation=explanation, accuracy=accuracy, error=2 * math.sqrt(between) / total if total else 1.0)
