"""A diagnosis as plain JSON data: schema ``eagle3-diag/diagnosis/1`` (``../schema/diagnosis.json``)."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources
from typing import Any

from eagle3_diag.breakdown import Breakdown
from eagle3_diag.catalogue import Catalogue
from eagle3_diag.checkpoint.interface import DrafterCheckpoint
from eagle3_diag.diagnose import Diagnosis, Ranked
from eagle3_diag.report.document import Document, breakdown, drafter_facts, encodable, environment, target_facts, unique
from eagle3_diag.target import Target

SCHEMA = "eagle3-diag/diagnosis/1"


@dataclass(frozen=True, kw_only=True)
class Inputs:
    """What a diagnosis says about its samples and its run.

    ``samples`` read, ``tokens`` in them, ``skipped`` left out; ``notes`` and ``warnings`` are sentences; ``seconds`` of the work;
    ``breakdown`` of first drafts under right wiring.
    """

    samples: int
    tokens: int
    skipped: int = 0
    notes: Sequence[str] = ()
    warnings: Sequence[str] = ()
    device: str = "cpu"
    dtype: str = "float32"
    seconds: float = 0.0
    breakdown: Breakdown | None = None


def document(diagnosis: Diagnosis, listed: Catalogue, checkpoint: DrafterCheckpoint, target: Target, inputs: Inputs) -> Document:
    """The whole report. Reads the weights once, for their digests."""
    observed = diagnosis.observed
    report: Document = {
        "schema": SCHEMA,
        "verdict": diagnosis.verdict,
        "headline": diagnosis.headline,
        "text": list(diagnosis.text),
        "tell": diagnosis.tell,
        "explanations": [_explanation(each) for each in diagnosis.explanations],
        "untestable": [
            {"id": each.explanation.id, "title": each.explanation.title, "reason": each.reason, "command": each.command} for each in listed.untestable
        ],
        "served": {
            "source": observed.source,
            "steps": observed.steps,
            "drafts": observed.drafts,
            "accepted_per_position": None if observed.accepted_per_position is None else list(observed.accepted_per_position),
            "rates": None if observed.rates is None else list(observed.rates),
            "acceptance_length": observed.length,
            "per": observed.per,
            "same_requests": diagnosis.same_requests,
        },
        "right": {
            "acceptance_length": diagnosis.right_length,
            "ci95": list(diagnosis.right_ci95),
            "accepted_per_position": list(diagnosis.right_marginal),
            "conditional_rates": list(diagnosis.limits.rates),
            "coverage": diagnosis.limits.covered / diagnosis.limits.labelled if diagnosis.limits.labelled else None,
        },
        "breakdown": breakdown(inputs.breakdown),
        "speed": None if diagnosis.speed is None else {
            "baseline_tps": diagnosis.speed.baseline,
            "served_tps": diagnosis.speed.served,
            "step_cost": diagnosis.speed.step_cost,
            "break_even_length": diagnosis.speed.step_cost,
            "right_tps": diagnosis.speed.right,
        },
        "claim": _claim(diagnosis),
        "rows": None,
        "drafter": drafter_facts(checkpoint),
        "target": target_facts(target),
        "samples": {"count": inputs.samples, "tokens": inputs.tokens, "skipped": inputs.skipped},
        "wiring": listed.right.to_dict(),
        "warnings": list(inputs.warnings),
        "notes": unique([*checkpoint.notes, *target.notes, *inputs.notes]),
        "environment": environment(inputs.device) | {"dtype": inputs.dtype},
        "timing": {"seconds": inputs.seconds},
    }  # fmt: skip
    cleaned: Document = encodable(report)
    return cleaned


def schema() -> dict[str, Any]:
    """The JSON Schema (2020-12) that every diagnosis fulfils."""
    loaded: dict[str, Any] = json.loads((resources.files("eagle3_diag.report") / "schema" / "diagnosis.json").read_text("utf-8"))
    return loaded


def _explanation(each: Ranked) -> dict[str, Any]:
    predicted: dict[str, Any] | None = None
    if each.length is not None and each.marginal is not None:
        predicted = {"acceptance_length": each.length, "accepted_per_position": list(each.marginal)}
        predicted |= {"drafts": each.drafts, "counted": None if each.counted is None else list(each.counted)}
    return {
        "id": each.id,
        "title": each.title,
        "family": each.family,
        "probability": min(1.0, each.probability),
        "log_evidence": each.log_ratio,
        "indistinguishable": list(each.indistinguishable),
        "predicted": predicted,
        "samples": each.samples,
        "mend": each.mend,
        "check": each.check,
        "incidents": list(each.incidents),
    }


def _claim(diagnosis: Diagnosis) -> dict[str, Any] | None:
    claim = diagnosis.claim
    if claim is None:
        return None
    return {
        "accuracy": claim.claimed,
        "trainer": claim.trainer,
        "definition": claim.definition,
        "holds": claim.holds,
        "right": claim.right.accuracy,
        "reached_by": [{"id": each.explanation.id, "accuracy": each.accuracy} for each in claim.others],
    }
