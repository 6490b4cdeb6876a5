"""Predicting a whole catalogue without paying for it: all explanations on a part of the samples, those that still stand on the rest.

An explanation that the part's evidence puts far behind the best one is dropped there (its prediction stays, from fewer samples). Where no
single explanation fits, pairs of the likelier ones go the same way.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import torch

from eagle3_diag.catalogue import AS_TRAINED, UNKNOWN, Catalogue, Explanation, combine
from eagle3_diag.evidence import Prediction, Weighing, exact_fit, weigh
from eagle3_diag.observed import Observed
from eagle3_diag.predict import Loaded, Predictor, Runs, Walked

#: Simulated contents per explanation whose content nobody knows.
INSTANCES = 4
#: Log-ratio of likelihoods behind the best, on a part of the samples, from which on an explanation is dropped.
_BEHIND = 12.0
#: The part of the samples that every explanation is tried on, in samples at least and as a share.
_FIRST, _FIRST_SHARE = 4, 0.1
#: Explanations carried on to all samples at most, of single ones and of pairs each; the same where exact counters tell them apart; pairs tried at most.
_CARRIED, _MANY, _PAIRS = 8, 40, 40
#: "None of these" with more than this probability calls for pairs.
_UNFITTING = 0.3


@dataclass(frozen=True, kw_only=True)
class Survey:
    """Predictions of every explanation tried (right wiring first, pairs last) and what weighing them gave."""

    predictions: tuple[Prediction, ...]
    weighing: Weighing

    def get(self, name: str) -> Prediction:
        """The prediction of an id; KeyError for one that was not tried."""
        return {p.explanation.id: p for p in self.predictions}[name]


def survey(
    predictor: Predictor,
    loaded: Sequence[Loaded],
    listed: Catalogue,
    observed: Observed,
    *,
    same_requests: bool = False,
    progress: Callable[[int], None] | None = None,
) -> Survey:
    """Predict and weigh. ``progress`` is called with the number of (explanation, sample) predictions made so far."""
    made = _Made(predictor, loaded, progress)
    for explanation in listed:
        made.extend(explanation, made.first)
    made.extend(listed.explanations[0], made.all)
    found = made.carry(observed, list(listed), same_requests)
    explanations = list(listed)
    unfitting = not _fits_exactly(made, found, observed) if same_requests else found.probability[UNKNOWN] > _UNFITTING
    if unfitting:
        pairs = _pairs(made, listed, observed)
        for pair in pairs:
            made.extend(pair, made.first)
        explanations += pairs
        found = made.carry(observed, explanations, same_requests)
    return Survey(predictions=tuple(made.prediction(e) for e in explanations), weighing=found)


def _fits_exactly(made: _Made, found: Weighing, observed: Observed) -> bool:
    return any(exact_fit(observed, total) for name in found.ranked() if name != UNKNOWN for total in made.by_id[name].totals)


def _pairs(made: _Made, listed: Catalogue, observed: Observed) -> list[Explanation]:
    """The likeliest pairs: of faults which by themselves leave at least the acceptance seen (two rarely mend each other)."""
    able = [
        e for e in listed if e.served and not e.is_right and e.exact and made.prediction(e).length >= observed.length - 2 * made.prediction(e).spread("step")[0] - 0.1
    ]
    able = sorted(able, key=lambda e: (-e.prior, e.id))[:12]
    pairs = [pair for a, b in itertools.combinations(able, 2) if (pair := combine(a, b)) is not None]
    return sorted(pairs, key=lambda e: (-e.prior, e.id))[:_PAIRS]


class _Made:
    """Predictions in the making: per explanation and instance, the samples done so far."""

    def __init__(self, predictor: Predictor, loaded: Sequence[Loaded], progress: Callable[[int], None] | None) -> None:
        self.predictor, self.loaded, self.progress = predictor, loaded, progress
        count = len(loaded)
        part = min(count, max(_FIRST, math.ceil(count * _FIRST_SHARE)))
        self.all = list(range(count))
        self.first = sorted({i * count // part for i in range(part)})
        self.by_id: dict[str, Prediction] = {}
        self._done: dict[str, dict[int, tuple[tuple[Walked, ...], Runs]]] = {}
        self._count = 0

    def prediction(self, explanation: Explanation) -> Prediction:
        return self.by_id[explanation.id]

    def extend(self, explanation: Explanation, samples: Iterable[int]) -> None:
        """Predict on those of ``samples`` that are still to do."""
        done = self._done.setdefault(explanation.id, {})
        instances = [explanation] if explanation.exact else [explanation.instance(i) for i in range(INSTANCES)]
        for i in samples:
            if i not in done:
                each = [self.predictor.predict(self.loaded[i], instance) for instance in instances]
                done[i] = (tuple(walked for walked, _ in each), each[0][1])
                self._count += 1
                if self.progress is not None:
                    self.progress(self._count)
        at = sorted(done)
        walks = tuple(tuple(done[i][0][n] for i in at) for n in range(len(instances)))
        self.by_id[explanation.id] = Prediction(explanation=explanation, walks=walks, runs=tuple(done[i][1] for i in at), at=tuple(at))

    def carry(self, observed: Observed, explanations: list[Explanation], same_requests: bool) -> Weighing:
        """Predict those that still stand on all samples, and weigh."""
        part = [self._on_first(self.prediction(e)) for e in explanations]
        found = weigh(observed, part)  # by shares: a part of the requests has a part of the counts
        best = max(found.log_likelihood.values())
        standing = [e for e in explanations if e.served and found.log_likelihood[e.id] > best - _BEHIND]
        # Exact counters single out the one that fits, however unlikely it was before or by the part: there are to be many to choose from.
        most, by = (_MANY, found.log_likelihood) if same_requests else (_CARRIED, found.probability)
        single = sorted((e for e in standing if "+" not in e.id), key=lambda e: (-by[e.id], e.id))[:most]
        pairs = sorted((e for e in standing if "+" in e.id), key=lambda e: (-found.log_likelihood[e.id], e.id))[:most]
        for explanation in (*single, *pairs):
            self.extend(explanation, self.all)
        everything = [self.prediction(e) for e in explanations]
        if same_requests:
            everything = [p for p in everything if p.samples == len(self.loaded) or p.explanation.id == AS_TRAINED]
        float32 = observed.dtype == "float32" and self.predictor.drafter.weights.dtype == torch.float32
        return weigh(observed, everything, same_requests=same_requests, float32=float32)

    def _on_first(self, prediction: Prediction) -> Prediction:
        """The prediction from the first part alone, so that all are weighed by the same samples."""
        if prediction.samples == len(self.first):
            return prediction
        done = self._done[prediction.explanation.id]
        walks = tuple(tuple(done[i][0][n] for i in self.first) for n in range(len(prediction.walks)))
        return Prediction(explanation=prediction.explanation, walks=walks, runs=tuple(done[i][1] for i in self.first), at=tuple(self.first))
