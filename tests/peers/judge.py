"""What `diagnose` says to the counters that a real server left, and whether that is what was done to it.

The same calls as the command's, with the forward passes shared between the servers of a pair: what an explanation predicts does not depend on what was served.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from eagle3_diag.catalogue import AS_TRAINED, UNKNOWN, Catalogue
from eagle3_diag.diagnose import diagnose
from eagle3_diag.observed import observed
from eagle3_diag.predict import Predictor
from eagle3_diag.samples.interface import Sample
from eagle3_diag.survey import survey
from tests.eagle3_diag.remembering import Remembering

#: Counts that differ from right wiring's less often than this by chance alone differ by more than sampling error.
SIGNIFICANCE = 0.05


class Judge:
    """One pair's predictions, and a diagnosis of any server's counters by them."""

    def __init__(self, predictor: Predictor, samples: Sequence[Sample], listed: Catalogue) -> None:
        self.predictor, self.listed = Remembering(predictor), listed
        # Samples said to be decoded greedily are read as such, as the command does.
        self.loaded = {same: [predictor.load(sample, greedy=same) for sample in samples] for same in (True, False)}

    def diagnosis(self, counted: Mapping[str, Any], *, dtype: str, same_requests: bool) -> dict[str, Any]:
        """Verdict, the ids ranked first with their probability, and what cannot be told from the first. ``dtype``: the server's."""
        seen = observed(
            steps=self.predictor.steps, drafts=counted["drafts"], accepted_per_position=counted["accepted_per_position"], source="vLLM's counters"
        )
        seen = replace(seen, dtype=dtype)
        loaded = self.loaded[same_requests]
        found = survey(self.predictor, loaded, self.listed, seen, same_requests=same_requests)
        limits = self.predictor.limits(loaded, found.predictions[0].rates)
        said = diagnose(seen, found, self.listed, limits, same_requests=same_requests)
        best = said.explanations[0]
        return {
            "verdict": said.verdict, "headline": said.headline, "named": best.id, "group": [best.id, *best.indistinguishable], "probability": best.probability,
            "length": round(seen.length, 3), "next": {each.id: each.probability for each in said.explanations[1:4]},
        }  # fmt: skip


def named(said: Mapping[str, Any], expected: Sequence[str]) -> bool:
    """Whether a probe or a diagnosis puts one of the true ids first, or the group that cannot be told from what it puts first."""
    return said["named"] in expected or (said["named"] != UNKNOWN and bool(set(expected) & set(said["group"])))


def accuses(said: Mapping[str, Any]) -> bool:
    """Whether a verdict on a server that is wired right says otherwise."""
    return said["verdict"] in ("wiring", "training-convention")


def cleared(said: Mapping[str, Any]) -> bool:
    return said["verdict"] == "quality" or said["named"] == AS_TRAINED


def chance_of_no_difference(a: Mapping[str, Any], b: Mapping[str, Any]) -> float:
    """p-value that two servers' counters are of one profile: chi-square over steps of two conditional rates, verdicts taken as independent."""
    square, freedom = 0.0, 0
    before = (float(a["drafts"]), float(b["drafts"]))
    for now in zip(a["accepted_per_position"], b["accepted_per_position"], strict=True):
        if min(before) < 1:
            break
        rate = sum(now) / sum(before)
        if 0 < rate < 1:
            square += (now[0] / before[0] - now[1] / before[1]) ** 2 / (rate * (1 - rate) * (1 / before[0] + 1 / before[1]))
            freedom += 1
        before = (float(now[0]), float(now[1]))
    if not freedom:
        return 1.0
    return float(torch.special.gammaincc(torch.tensor(freedom / 2, dtype=torch.float64), torch.tensor(square / 2, dtype=torch.float64)))


def differs(a: Mapping[str, Any], b: Mapping[str, Any]) -> bool:
    chance = chance_of_no_difference(a, b)
    assert not math.isnan(chance)
    return chance < SIGNIFICANCE
