"""Diagnoses of predictions written by hand: right wiring, a bad fault, a mild one, and one that looks like the bad one."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from eagle3_diag import demo
from eagle3_diag.breakdown import Breakdown
from eagle3_diag.catalogue import Catalogue, Explanation, catalogue
from eagle3_diag.checkpoint import read_drafter
from eagle3_diag.claims import Claim
from eagle3_diag.diagnose import Diagnosis, Speeds, diagnose
from eagle3_diag.evidence import Prediction, weigh
from eagle3_diag.observed import Observed, observed
from eagle3_diag.predict import Limits, Runs, Walked
from eagle3_diag.report.diagnosis.document import Inputs, document
from eagle3_diag.report.document import Document
from eagle3_diag.survey import Survey
from eagle3_diag.target import read_target

RIGHT, BAD, ALIKE, MILD = [0.8, 0.75, 0.7, 0.6], [0.3, 0.2, 0.1, 0.1], [0.31, 0.2, 0.1, 0.1], [0.77, 0.75, 0.7, 0.6]


def listed(*, held: range | None = range(1, 8)) -> Catalogue:
    paths = demo.paths()
    return catalogue(read_drafter(paths.drafter), read_target(paths.target), held)


def prediction(explanation: Explanation, rates: list[float], *, samples: int = 20, drafts: int = 40) -> Prediction:
    """Equal samples whose verifications go on with these chances."""
    walks, runs = [], []
    for i in range(samples):
        risk, low, reached = [], [], drafts
        for k, rate in enumerate(rates):
            risk.append(reached)
            reached = round(reached * rate) + (1 if k == 0 and i % 2 else 0)
            low.append(reached)
        walks.append(Walked(low=low, high=[low[0], *(a + 1 for a in low[1:])], at_risk=risk, drafts=drafts, ended=1))
        accepted = torch.tensor([0, int(rates[0] * 4), 2, int(rates[0] > 0.5)]).char()
        runs.append(Runs(rows_R=torch.arange(4), accepted_R=accepted, known_R=torch.full((4,), 4).char(), steps=4))
    return Prediction(explanation=explanation, walks=(tuple(walks),), runs=tuple(runs))


def survey_of(seen: Observed, entries: Catalogue, *, same: bool = False, longer: bool = False) -> Survey:
    chosen = {"as-trained": RIGHT, "layers-plus-1": BAD, "layers-minus-1": ALIKE, "drafter-quantised-fp8": MILD, "residual-flipped": [0.5, 0.4, 0.4, 0.3]}
    if longer:
        chosen["residual-flipped"] = [0.95, 0.9, 0.9, 0.9]
    made = tuple(prediction(entries.get(name), rates) for name, rates in chosen.items())
    return Survey(predictions=made, weighing=weigh(seen, made, same_requests=same))


def diagnosed(
    seen: Observed, *, same: bool = False, longer: bool = False, claim: Claim | None = None, speeds: Speeds | None = None, covered: int = 99, held: range | None = range(1, 8)
) -> Diagnosis:
    entries = listed()
    limits = Limits(covered=covered, labelled=100, rates=tuple(RIGHT))
    found = survey_of(seen, entries, same=same, longer=longer)
    return diagnose(seen, found, listed(held=held), limits, same_requests=same, claim=claim, speeds=speeds)


def profile(rates: list[float], drafts: int, **more: Any) -> Observed:
    """Counts of a server whose verifications go on with these chances."""
    counts, chance = [], 1.0
    for rate in rates:
        chance *= rate
        counts.append(float(round(drafts * chance)))
    return observed(steps=None, drafts=drafts, accepted_per_position=counts, source="counters.json", **more)


def make_document(diagnosis: Diagnosis, *, path: str | None = None, held: range | None = range(1, 8), rows: dict[str, Any] | None = None) -> Document:
    paths = demo.paths()
    checkpoint, target = read_drafter(paths.drafter), read_target(paths.target)
    if path is not None:
        diagnosis = replace(diagnosis, observed=replace(diagnosis.observed, source=path))
    report = document(diagnosis, listed(held=held), checkpoint, target, Inputs(samples=20, tokens=4000, skipped=1, notes=["a note"], seconds=1.5, breakdown=Breakdown([3, 9, 0, 0, 0], [10, 30, 0, 0, 0], [0, 5, 4, 3], [2, 10, 18, 10])))
    report["drafter"]["path"], report["target"]["path"] = path or "models/drafter", "models/target"
    if rows is not None:
        report["rows"] = rows
    return report
