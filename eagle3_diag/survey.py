"""Predicting a whole catalogue without paying for it: all explanations on a part of the samples, those that still stand on as many as tell.

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
from eagle3_diag.evidence import CEILING, Prediction, Weighing, exact_fit, weigh
from eagle3_diag.observed import Observed
from eagle3_diag.predict import Loaded, Predictor, Runs, Walked

#: Simulated contents per explanation whose content nobody knows.
INSTANCES = 4
#: Log-ratio of likelihoods behind the best, on a part of the samples, from which on an explanation is dropped.
_BEHIND = 12.0
#: The part of the samples that every explanation is tried on, in samples at least and as a share; and how many verifications under right wiring
#: are enough for those that still stand: half as many again as counts of a rate are ever worth.
_FIRST, _FIRST_SHARE, _ENOUGH = 4, 0.1, 1.5 * CEILING
#: Explanations carried on at most, of single ones and of pairs each; the same where exact counters tell them apart; pairs tried at most.
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


def spread(items: Sequence[int], count: int) -> list[int]:
    """So many of the items, evenly over their order; all where there are no more."""
    count = max(0, min(count, len(items)))
    return [items[i * len(items) // count] for i in range(count)]


class _Made:
    """Predictions in the making: per explanation and instance, the samples done so far."""

    def __init__(self, predictor: Predictor, loaded: Sequence[Loaded], progress: Callable[[int], None] | None) -> None:
        self.predictor, self.loaded, self.progress = predictor, loaded, progress
        count = len(loaded)
        self.all = list(range(count))
        self.first = spread(self.all, max(_FIRST, math.ceil(count * _FIRST_SHARE)))
        self.by_id: dict[str, Prediction] = {}
        self._done: dict[str, dict[int, tuple[tuple[Walked, ...], Runs]]] = {}
        self._count = 0

    def prediction(self, explanation: Explanation) -> Prediction:
        return self.by_id[explanation.id]

    def extend(self, explanation: Explanation, samples: Iterable[int]) -> None:
        """Predict on those of ``samples`` that are still to do."""
        done = self._done.setdefault(explanation.id, {})
        instances = [explanation] if explanation.exact else [explanation.instance(i) for i in range(INSTANCES)]
        wanted = [i for i in samples if i not in done]
        made: dict[int, list[tuple[Walked, Runs]]] = {i: [] for i in wanted}
        for instance in instances:
            for i, found in zip(wanted, self.predictor.predict_each([self.loaded[i] for i in wanted], instance), strict=True):
                made[i].append(found)
                if len(made[i]) == len(instances) and self.progress is not None:
                    self._count += 1
                    self.progress(self._count)
        done.update((i, (tuple(walked for walked, _ in each), each[0][1])) for i, each in made.items())
        at = sorted(done)
        walks = tuple(tuple(done[i][0][n] for i in at) for n in range(len(instances)))
        self.by_id[explanation.id] = Prediction(explanation=explanation, walks=walks, runs=tuple(done[i][1] for i in at), at=tuple(at))

    def carry(self, observed: Observed, explanations: list[Explanation], same_requests: bool) -> Weighing:
        """Predict those that still stand on as many samples as tell, and weigh."""
        part = [self._on(self.prediction(e), self.first) for e in explanations]
        found = weigh(observed, part)  # by shares: a part of the requests has a part of the counts
        best = max(found.log_likelihood.values())
        standing = [e for e in explanations if e.served and found.log_likelihood[e.id] > best - _BEHIND]
        # Exact counters single out the one that fits, however unlikely it was before or by the part: there are to be many to choose from.
        samples, most, by = (self.all, _MANY, found.log_likelihood) if same_requests else (self.enough(), _CARRIED, found.probability)
        single = sorted((e for e in standing if "+" not in e.id), key=lambda e: (-by[e.id], e.id))[:most]
        pairs = sorted((e for e in standing if "+" in e.id), key=lambda e: (-found.log_likelihood[e.id], e.id))[:most]
        for explanation in (*single, *pairs):
            self.extend(explanation, samples)
        everything = [self._on(self.prediction(e), samples) for e in explanations]
        if same_requests:
            everything = [p for p in everything if p.samples == len(self.loaded)]
        float32 = observed.dtype == "float32" and self.predictor.drafter.weights.dtype == torch.float32
        return weigh(observed, everything, same_requests=same_requests, float32=float32)

    def enough(self) -> list[int]:
        """Samples, evenly spread and the first part among them, whose verifications under right wiring are as many as tell; all where there are fewer."""
        drafts = {i: sum(w.drafts for w in self._done[AS_TRAINED][i][0]) for i in self.all}
        others = [i for i in self.all if i not in self.first]
        for count in range(len(others)):
            chosen = self.first + spread(others, count)
            if sum(drafts[i] for i in chosen) >= _ENOUGH:
                return sorted(chosen)
        return self.all

    def _on(self, prediction: Prediction, samples: Sequence[int]) -> Prediction:
        """The prediction from these samples alone, so that all are weighed by the same; as it is where it was not made on all of them."""
        at = {sample: i for i, sample in enumerate(prediction.at)}
        if prediction.at == tuple(samples) or not at.keys() >= set(samples):
            return prediction
        walks = tuple(tuple(each[at[i]] for i in samples) for each in prediction.walks)
        return Prediction(explanation=prediction.explanation, walks=walks, runs=tuple(prediction.runs[at[i]] for i in samples), at=tuple(samples))
