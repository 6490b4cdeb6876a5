"""What a probe says at its end, in figures and in words. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from eagle3_diag.catalogue.explanation import AS_TRAINED, UNKNOWN, Explanation
from eagle3_diag.diagnose import Diagnosis
from eagle3_diag.diagnose import Ranked as Listed
from eagle3_diag.evidence import Prediction
from eagle3_diag.inquiry import Inquiry, departures
from eagle3_diag.observed import Observed
from eagle3_diag.solve import Rows

Code = Literal["quality", "wiring", "insufficient"]

#: A verdict is given from this probability on.
SURE = 0.95
#: Answers without which nothing is said.
FEWEST = 8
#: Explanations listed.
_LISTED = 5
#: Share of rows whose first token may be another than stored: a bfloat16 server differed in 8 of 2184.
_DIFFERING = 0.1


@dataclass(frozen=True, kw_only=True)
class Ranked:
    """One explanation, or several that no row parts, with its probability and the answers it predicted."""

    explanation: Explanation
    probability: float
    indistinguishable: tuple[Explanation, ...]
    agreeing: int

    @property
    def id(self) -> str:
        return self.explanation.id


@dataclass(frozen=True, kw_only=True)
class ProbeVerdict:
    """``headline`` is one line; ``sentences`` say why and what to do. ``rows``: asked, answered, agreeing, and what else was counted."""

    code: Code
    headline: str
    sentences: tuple[str, ...]
    ranked: tuple[Ranked, ...]
    unknown: float
    rows: Mapping[str, Any]

    @property
    def as_trained(self) -> bool:
        return self.code == "quality"


def verdict(state: Inquiry) -> ProbeVerdict:
    """The inquiry's outcome."""
    answered, differing = len(state.evidence.at), state.evidence.differing
    ranked = _ranked(state)
    first = ranked[0]
    rows = {
        "asked": len(state.asked),
        "answered": state.evidence.answered,
        "usable": len(state.table.rows),
        "unusable": state.table.unusable,
        "agreeing": {each.id: n for each, n in zip(state.table.explanations, state.belief.agreeing_E, strict=True)},
        "target_differs": differing,
        "flip_chance": round(state.belief.flip, 4),
        "combinations_searched": state.combinations,
        "departures": [{"id": row.id, "accepted": run, "as_trained": expected} for row, run, expected in departures(state, _right(state))],
    }
    notes = _notes(state, differing)
    if state.evidence.answered and len(differing) > max(1, _DIFFERING * state.evidence.answered):
        said = f"The target itself differs: in {len(differing)} of {state.evidence.answered} rows the server's first token is not the stored argmax"
        why = (
            "The samples were made by another target than the server runs: look for other weights, a quantised target, another chat template, or a prompt that is "
            "off by a token. Until that is mended nothing can be said of the drafter."
        )
        return ProbeVerdict(code="insufficient", headline=said, sentences=(why, *notes), ranked=ranked, unknown=state.belief.unknown, rows=rows)
    if answered < FEWEST:
        few = f"Ask at least {FEWEST} rows (there are {len(state.table.rows)} usable ones)."
        return ProbeVerdict(
            code="insufficient", headline=f"Not enough evidence: {answered} usable answers", sentences=(few, *notes), ranked=ranked, unknown=state.belief.unknown, rows=rows
        )
    if state.belief.unknown >= SURE:
        return _none(state, ranked, rows, notes)
    right = next((each for each in ranked if AS_TRAINED in _ids(each)), None)
    if right is first and first.probability >= SURE:
        said = f"Served as trained: {first.agreeing} of {answered} rows"
        return ProbeVerdict(code="quality", headline=said, sentences=(*_trained(first, answered), *notes), ranked=ranked, unknown=state.belief.unknown, rows=rows)
    if first.probability >= SURE and right is not first:
        said = f"Not served as trained: {_lower(first.explanation.title)} ({first.agreeing} of {answered} rows as predicted)"
        reasons = [f"Right wiring predicts {state.belief.agreeing_E[_right(state)]} of {answered} rows."]
        if first.indistinguishable:
            alike = " or ".join(each.id for each in first.indistinguishable)
            reasons.append(f"No row of these samples tells {first.id} from {alike}. {first.explanation.check}")
        reasons.append(f"To mend it: {first.explanation.mend}")
        return ProbeVerdict(code="wiring", headline=said, sentences=(*reasons, *notes), ranked=ranked, unknown=state.belief.unknown, rows=rows)
    open_ = " or ".join(each.id for each in ranked if each.probability >= 0.02) + (f" or {UNKNOWN}" if state.belief.unknown >= 0.02 else "")
    code: Code = "wiring" if (right is None or right.probability < 1 - SURE) else "insufficient"
    said = f"{'Not served as trained' if code == 'wiring' else 'Not decided'}: {open_}"
    more = "Ask more rows (--requests), or samples with longer responses or more layers."
    return ProbeVerdict(code=code, headline=said, sentences=(more, *notes), ranked=ranked, unknown=state.belief.unknown, rows=rows)


def _ids(each: Ranked) -> set[str]:
    return {each.id, *(other.id for other in each.indistinguishable)}


def _right(state: Inquiry) -> int:
    return next(i for i, each in enumerate(state.table.explanations) if each.is_right)


def _lower(title: str) -> str:
    return title[:1].lower() + title[1:] if title[1:2].islower() else title


def _ranked(state: Inquiry) -> tuple[Ranked, ...]:
    """Explanations by probability, those that no row parts put together; right wiring is named first among equals."""
    seen: set[int] = set()
    found = []
    for e in state.belief.probability_E.argsort(descending=True).tolist():
        if e in seen:
            continue
        alike = state.group(e)
        seen.update(alike)
        alike = sorted(alike, key=lambda i: (not state.table.explanations[i].is_right, alike.index(i)))
        names = [state.table.explanations[i] for i in alike]
        found.append(
            Ranked(explanation=names[0], probability=state.share(e), indistinguishable=tuple(names[1:]), agreeing=state.belief.agreeing_E[e])
        )
        if len(found) == _LISTED:
            break
    return tuple(sorted(found, key=lambda each: -each.probability))


def _trained(first: Ranked, answered: int) -> list[str]:
    sentences = ["The server wires the drafter as it was trained; what is missing in acceptance is up to the weights (eagle3-diag evaluate measures them)."]
    if first.agreeing < answered:
        sentences.append(f"{answered - first.agreeing} rows came out otherwise, as near ties do where the server computes in another precision.")
    if first.indistinguishable:
        alike = " or ".join(each.id for each in first.indistinguishable)
        sentences.append(f"Single rows do not show {alike}: compare counters of longer requests (eagle3-diag diagnose).")
    return sentences


def _none(state: Inquiry, ranked: tuple[Ranked, ...], rows: Mapping[str, Any], notes: list[str]) -> ProbeVerdict:
    first, answered = ranked[0], len(state.evidence.at)
    gone = departures(state, _right(state))
    shown = ", ".join(f"{row.id} ({run} accepted, {expected} predicted)" for row, run, expected in gone[:5])
    why = [
        f"Nearest is {first.id} with {first.agreeing} of {answered} rows; right wiring predicts {answered - len(gone)}."
        + (" Combinations of two faults were searched as well." if state.combinations else ""),
        "The server may run other drafter weights than these, or do something that is not listed.",
    ]
    if shown:
        why.append(f"First departures from right wiring: {shown}.")
    why.append("A capture of what the server feeds its drafter shows the step and the tensor (docs/eagle3_diag/capture.md).")
    said = f"Not served as trained, and none of {len(state.table.explanations) - 1} known faults explains it"
    return ProbeVerdict(code="wiring", headline=said, sentences=(*why, *notes), ranked=ranked, unknown=state.belief.unknown, rows=rows)


def _notes(state: Inquiry, differing: list[str]) -> list[str]:
    notes = []
    total = len(state.table.rows) + state.table.unusable
    if state.table.unusable:
        notes.append(f"{len(state.table.rows)} of {total} rows are usable: at the others the stored text leaves the target's own choice.")
    if differing and len(differing) <= max(1, _DIFFERING * state.evidence.answered):
        notes.append(f"In {len(differing)} rows the server's first token is not the stored argmax; they were left out.")
    if state.stopped:
        notes.append(f"Asking stopped early: {state.stopped}.")
    return notes


# ---- as a diagnosis --------------------------------------------------------------------------------------------------


def predicted(state: Inquiry, found: ProbeVerdict, rows: Rows) -> dict[str, Prediction]:
    """What right wiring and the explanations listed would give as counters, from the walks of these samples."""
    wanted = {each.explanation.id: each.explanation for each in found.ranked}
    right = state.table.explanations[_right(state)]
    wanted.setdefault(right.id, right)
    out = {}
    for name, explanation in wanted.items():
        shown = explanation if explanation.exact else explanation.instance(0)
        out[name] = Prediction(explanation=explanation, walks=(tuple(rows.predictor.walk(loaded, shown) for loaded in rows.loaded.values()),))
    return out


def as_diagnosis(state: Inquiry, found: ProbeVerdict, predictions: Mapping[str, Prediction], rows: Rows, source: str) -> Diagnosis:
    """The verdict in the form that reports show. ``source`` says what was asked of whom."""
    runs = [reply.accepted for reply in state.replies.values()]
    counts = tuple(float(sum(run > k for run in runs)) for k in range(state.table.steps))
    observed = Observed(
        steps=state.table.steps, drafts=len(runs) or None, accepted_per_position=counts, acceptance_length=1 + sum(runs) / max(1, len(runs)), source=source,
    )  # fmt: skip
    right = predictions[state.table.explanations[_right(state)].id]
    error, _ = right.spread("step")
    named = sorted([*_listed(state, found, predictions), _unknown(state, found)], key=lambda each: -each.probability)
    first = named[0]
    return Diagnosis(
        verdict=found.code, headline=found.headline, text=found.sentences, tell=first.check, explanations=tuple(named), observed=observed, same_requests=False,
        right_length=right.length, right_ci95=(max(1.0, right.length - 1.96 * error), right.length + 1.96 * error), right_marginal=right.marginal,
        limits=rows.predictor.limits(list(rows.loaded.values()), right.rates), speed=None, claim=None,
    )  # fmt: skip


def _listed(state: Inquiry, found: ProbeVerdict, predictions: Mapping[str, Prediction]) -> list[Listed]:
    best = max(each.probability for each in found.ranked)
    out = []
    for each in found.ranked:
        prediction, explanation = predictions[each.id], each.explanation
        out.append(
            Listed(
                id=each.id, title=explanation.title, family=explanation.family, probability=each.probability, log_ratio=_ratio(each.probability, best),
                indistinguishable=tuple(other.id for other in each.indistinguishable), length=prediction.length, marginal=prediction.marginal,
                counted=None, drafts=None, samples=prediction.samples, mend=explanation.mend, check=explanation.check, incidents=explanation.incidents,
            )
        )  # fmt: skip
    return out


def _unknown(state: Inquiry, found: ProbeVerdict) -> Listed:
    return Listed(
        id=UNKNOWN, title="None of these", family=None, probability=found.unknown, log_ratio=_ratio(found.unknown, max(e.probability for e in found.ranked)),
        indistinguishable=(), length=None, marginal=None, counted=None, drafts=None, samples=0, mend="Capture what the server feeds its drafter.",
        check="A capture of what the server feeds its drafter shows the step and the tensor (docs/eagle3_diag/capture.md).", incidents=(),
    )  # fmt: skip


def _ratio(probability: float, best: float) -> float:
    """Natural logarithm of the ratio of two probabilities, bounded where one of them vanishes."""
    return math.log(max(probability, 1e-300) / max(best, 1e-300))
