"""How well each explanation's prediction fits what a server showed. Pure arithmetic on counts; decides nothing.

A run's length is a chain of conditional verdicts: given that k drafts were right, is the next one? Predicted and served counts of step
k are two samples of one unknown rate, so the served counts, given the predicted ones, have a beta-binomial likelihood (the rate integrated
out), and a chain's likelihood is the product over its steps. That handles few counts, zero counts and runs cut short. "None of these" has the
same form with nothing known of the rates. Three things make real counts vary more than independent verdicts would:

- requests differ, and one request's verdicts depend on each other: both sides' counts are divided by the dispersion measured between samples;
- traffic is never quite the population of the samples, nor a server's arithmetic quite ours: no count is worth more than ``CEILING``;
- where nobody knows a fault's content, simulated instances stand for it, each worth no more than ``INSTANCE_WORTH``.

With the very requests of the samples there is no sampling at all: predicted counts hold exactly, up to drafts past a request's end, or (on
a server that computes in other precision) but for rare flips. What simulated instances stand for is known as a rate only, there as anywhere.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from eagle3_diag.acceptance import conditional_rates, length_of
from eagle3_diag.catalogue.explanation import AS_TRAINED, UNKNOWN, Explanation
from eagle3_diag.observed import Observed
from eagle3_diag.predict import Runs, Walked

#: The most verdicts that counts of a rate are worth, whatever their number (a rate near one half is then known to 1.8 points).
CEILING = 800.0
INSTANCE_WORTH = 60.0
#: The same of what is only near a known fault: a rate near one half is then known to 10 points.
NEAR_WORTH = 25.0
#: Counted for an observation that does not say how many verifications it rests on.
ASSUMED_DRAFTS = 300
#: Standard deviation of accepted drafts between traffic of different kinds, as a share of their mean. A profile's shape shows a fault through
#: that; a mean is all that it moves. And how much further, as such a share, a fault in no catalogue is from a known one.
TRAFFIC, UNKNOWN_TRAFFIC = 0.15, 0.3
#: Of one and the same request: share of verdicts that another precision may flip, how likely a server computes otherwise at all, and how likely
#: one does that says it computes in float32, as these predictions were (sums in another order flip a near tie now and then).
FLIPS, OTHERWISE, OTHERWISE_FLOAT32 = 0.01, 0.5, 0.01
#: Weight of "none of these" relative to all explanations together.
UNKNOWN_SHARE = 0.12
#: A ratio of likelihoods (e to this power) below which evidence does not tell two explanations apart.
TELLING = 3.0
#: Jeffreys' prior of a rate, for steps that few predicted runs reach.
_PRIOR = 0.5
_DISPERSION_PRIOR = (1.3, 4.0)


@dataclass(frozen=True, kw_only=True)
class Prediction:
    """One explanation on some samples.

    ``walks``: per instance (one for exact explanations), per sample. ``runs`` of the first instance, per sample. ``at``: which of all samples
    these are (empty: the first ones).
    """

    explanation: Explanation
    walks: tuple[tuple[Walked, ...], ...]
    runs: tuple[Runs, ...] = ()
    at: tuple[int, ...] = ()

    @property
    def samples(self) -> int:
        return len(self.walks[0])

    @cached_property
    def totals(self) -> tuple[Walked, ...]:
        """Per instance, the sum over samples."""
        found = []
        for walks in self.walks:
            total = Walked.zero(len(walks[0].low))
            for walk in walks:
                total.add(walk)
            found.append(total)
        return tuple(found)

    @cached_property
    def rates(self) -> tuple[float | None, ...]:
        """Chance of step k given all before; over instances together."""
        steps = range(len(self.totals[0].low))
        return tuple(conditional_rates([sum(t.low[k] for t in self.totals) for k in steps], [sum(t.at_risk[k] for t in self.totals) for k in steps]))

    @cached_property
    def marginal(self) -> tuple[float, ...]:
        """Chance that steps 0..k are all accepted."""
        chances, chance = [], 1.0
        for rate in self.rates:
            chance *= rate or 0.0
            chances.append(chance)
        return tuple(chances)

    @cached_property
    def length(self) -> float:
        return length_of(self.rates)

    @cached_property
    def per_request(self) -> float:
        """Mean over samples of each one's own acceptance length."""
        own = [1 + sum(w.low) / w.drafts for walks in self.walks for w in walks if w.drafts]
        return math.fsum(own) / len(own) if own else 1.0

    @cached_property
    def dispersion(self) -> float:
        """How much more counts vary between samples than independent verdicts would (1 = as those); shrunk towards a usual value."""
        guess, weight = _DISPERSION_PRIOR
        chi, freedom = guess * weight, weight
        for walks, total in zip(self.walks, self.totals, strict=True):
            for k, (accepted, risk) in enumerate(zip(total.low, total.at_risk, strict=True)):
                reached = [w for w in walks if w.at_risk[k]]
                rate = accepted / risk if risk else 0.0
                if rate * (1 - rate) * risk < 2 or len(reached) < 2:
                    continue
                # The variance of a ratio over clusters, against that of independent verdicts; times and over its degrees of freedom.
                between = sum((w.low[k] - rate * w.at_risk[k]) ** 2 for w in reached) / (rate * (1 - rate) * risk)
                chi += between * len(reached)
                freedom += len(reached) - 1
        return max(1.0, chi / freedom)

    def spread(self, per: str) -> tuple[float, float]:
        """(standard error of the predicted mean length, standard deviation of one request's): between samples, at least as verdicts alone give."""
        walks = [w for w in self.walks[0] if w.drafts]
        if per == "request":
            values, weights = [1 + sum(w.low) / w.drafts for w in walks], [1.0] * len(walks)
        else:
            values, weights = [1 + sum(w.low) / w.drafts for w in walks], [float(w.drafts) for w in walks]
        total = sum(weights)
        mean = sum(v * w for v, w in zip(values, weights, strict=True)) / total if total else 1.0
        count = max(1, len(walks))
        between = sum((w / total * (v - mean)) ** 2 for v, w in zip(values, weights, strict=True)) * count / max(1, count - 1) if total else 0.25
        alone = self.run_variance * self.dispersion / max(1.0, sum(w.drafts for w in walks))
        error = math.sqrt(max(between, alone))
        return error, error * math.sqrt(count)

    @cached_property
    def run_variance(self) -> float:
        """Variance of one verification's accepted drafts."""
        mean = math.fsum(self.marginal)
        square = math.fsum((2 * k + 1) * m for k, m in enumerate(self.marginal))
        return max(square - mean * mean, 1e-4)


@dataclass(frozen=True, kw_only=True)
class Served:
    """Served counts as chains of verdicts, in units of independent ones: ``at_risk[k]`` runs reached step k, ``accepted[k]`` went on."""

    accepted: tuple[float, ...]
    at_risk: tuple[float, ...]


def worth(count: float, dispersion: float, ceiling: float = CEILING) -> float:
    """How many independent verdicts a number of counted ones is worth."""
    return 0.0 if count <= 0 else 1.0 / (dispersion / count + 1.0 / ceiling)


def served_counts(rates: Sequence[float], drafts: float, dispersion: float) -> Served:
    """Effective counts of a profile (share of verifications whose drafts 0..k were all accepted)."""
    accepted, at_risk, before = [], [], 1.0
    for rate in rates:
        reached = worth(drafts * before, dispersion)
        share = min(1.0, rate / before) if before > 0 else 0.0
        at_risk.append(reached)
        accepted.append(reached * share)
        before = rate
    return Served(accepted=tuple(accepted), at_risk=tuple(at_risk))


def _beta_binomial(accepted: float, at_risk: float, a: float, b: float) -> float:
    """Log-likelihood of counts under a rate known as Beta(a, b), less the binomial coefficient, which all explanations share."""
    return _log_beta(a + accepted, b + at_risk - accepted) - _log_beta(a, b)


def _log_beta(a: float, b: float) -> float:
    return math.lgamma(a) + math.lgamma(b) - math.lgamma(a + b)


def chain_likelihood(served: Served, prediction: Prediction) -> float:
    """Log-likelihood of served chains: the mean over instances of the product over steps."""
    ceiling = CEILING if prediction.explanation.exact else INSTANCE_WORTH
    return _log_mean([_chain(served, total, prediction.dispersion, ceiling) for total in prediction.totals])


def _chain(served: Served, total: Walked, dispersion: float, ceiling: float) -> float:
    """The product over steps, under rates known as well as one instance's counts tell them, but no better than ``ceiling`` verdicts do."""
    log = 0.0
    for k, (accepted, at_risk) in enumerate(zip(served.accepted, served.at_risk, strict=True)):
        if at_risk <= 0:
            break
        mine = worth(total.at_risk[k], dispersion, ceiling)
        right = mine * total.low[k] / total.at_risk[k] if total.at_risk[k] else 0.0
        log += _beta_binomial(accepted, at_risk, right + _PRIOR, mine - right + _PRIOR)
    return log


def unknown_chain_likelihood(served: Served) -> float:
    """The same when nothing is known of the rates."""
    return sum(_beta_binomial(s, n, 1.0, 1.0) for s, n in zip(served.accepted, served.at_risk, strict=True) if n > 0)


def mean_likelihood(observed: Observed, prediction: Prediction, traffic: float = TRAFFIC) -> float:
    """Log-density of a reported mean: normal, with the errors of both sides, of rounding and of other ``traffic`` than the samples."""
    error, single = prediction.spread(observed.per)
    drafts = observed.drafts or ASSUMED_DRAFTS
    each = max(1.0, sum(t.drafts for t in prediction.totals) / max(1, prediction.samples * len(prediction.totals)))
    requests = observed.requests or max(1.0, drafts / each)
    theirs = max(prediction.run_variance * prediction.dispersion / drafts, single**2 / requests)
    extra = 0.0 if prediction.explanation.exact else prediction.run_variance / INSTANCE_WORTH
    variance = error**2 + theirs + prediction.run_variance / CEILING + extra + observed.rounding**2 / 3 + 1e-4
    variance += (traffic * (prediction.length - 1)) ** 2
    lengths = [prediction.per_request] if observed.per == "request" else [length_of(conditional_rates(t.low, t.at_risk)) for t in prediction.totals]
    return _log_mean([-((observed.length - m) ** 2) / (2 * variance) - 0.5 * math.log(2 * math.pi * variance) for m in lengths])


def unknown_mean_likelihood(observed: Observed, predictions: Sequence[Prediction]) -> float:
    """Log-density of a reported mean under a fault that nobody knows: about as costly as the known ones, so one number hardly tells it from them."""
    faults = [p for p in predictions if p.explanation.id != AS_TRAINED]
    if not faults:
        return -math.log(observed.steps)
    total = math.fsum(p.explanation.prior for p in faults)
    return _log_sum([math.log(p.explanation.prior / total) + mean_likelihood(observed, p, UNKNOWN_TRAFFIC) for p in faults])


def exact_fit(observed: Observed, total: Walked) -> bool:
    """Whether counters made by exactly these requests can be these: drafts equal, accepted as far as known, and of what is past requests' ends no
    more at a step than reached it."""
    past = _past_ends(observed, total)
    return observed.drafts == total.drafts and all(0 <= accepted <= reached for accepted, reached in zip(past.accepted, past.at_risk, strict=True))


def _past_ends(observed: Observed, total: Walked) -> Served:
    """The drafts past requests' ends, which nobody can predict but by rates: of those that reached each step (its own and the last one's accepted),
    how many the counters hold, if the rest of them is as predicted."""
    assert observed.accepted_per_position is not None
    accepted = tuple(seen - low for low, seen in zip(total.low, observed.accepted_per_position, strict=True))
    return Served(accepted=accepted, at_risk=tuple(new + on for new, on in zip(_began(total), (0.0, *accepted[:-1]), strict=True)))


def _began(total: Walked) -> list[int]:
    """At each step, the drafts whose request ended there, so that nothing is known of them from it on."""
    open_ = [high - low for low, high in zip(total.low, total.high, strict=True)]
    return [now - before for before, now in zip([0, *open_[:-1]], open_, strict=True)]


def same_likelihood(observed: Observed, prediction: Prediction, otherwise: float = OTHERWISE) -> float:
    """Log-likelihood of counters made by exactly these requests: exact, or (chance ``otherwise``) but for flips of a server that computes otherwise.

    The tokens are given, and with them drafts + accepted drafts, so that the number of drafts tells nothing of its own. Drafts past requests' ends
    go on by the prediction's rates, either way.
    """
    assert observed.accepted_per_position is not None
    assert observed.drafts is not None
    if not prediction.explanation.exact:
        counts = _counts(observed)
        return _ways(counts) + chain_likelihood(counts, prediction)
    total, past = prediction.totals[0], _past_ends(observed, prediction.totals[0])
    known = [(right + _PRIOR, risk - right + _PRIOR) for right, risk in zip(total.low, total.at_risk, strict=True)]
    flips = max(1.0, FLIPS * total.drafts)
    log, mean, variance = math.log(otherwise), 0.0, 0.0
    for accepted, began, (a, b) in zip(past.accepted, _began(total), known, strict=True):
        rate, reached = a / (a + b), mean + began
        mean, variance = rate * reached, rate * (1 - rate) * reached + rate**2 * variance
        log -= (accepted - mean) ** 2 / (2 * (flips + variance)) + 0.5 * math.log(2 * math.pi * (flips + variance))
    if exact_fit(observed, total):
        rates = sum(_beta_binomial(x, n, a, b) for x, n, (a, b) in zip(past.accepted, past.at_risk, known, strict=True))
        log = _log_sum([log, math.log(1 - otherwise) + _ways(past) + rates])
    return log


def _counts(observed: Observed) -> Served:
    """The very counts as chains of verdicts, each worth one."""
    assert observed.accepted_per_position is not None
    assert observed.drafts is not None
    return Served(accepted=observed.accepted_per_position, at_risk=(float(observed.drafts), *observed.accepted_per_position[:-1]))


def _ways(counts: Served) -> float:
    """Log of the binomial coefficients, which a likelihood of chains leaves out and an exact fit does not have."""
    return sum(-_log_beta(a + 1, n - a + 1) - math.log(n + 1) for a, n in zip(counts.accepted, counts.at_risk, strict=True) if n > 0)


def unknown_same_likelihood(observed: Observed, predictions: Sequence[Prediction]) -> float:
    """The same of a fault that nobody knows, which has two forms as in a probe: somewhere near one that is known (each by its prior), or any profile
    that the drafts seen can have, each as likely."""
    counts, drafts, steps = _counts(observed), observed.drafts or 0, observed.steps
    like_none = -(math.lgamma(drafts + steps + 1) - math.lgamma(drafts + 1) - math.lgamma(steps + 1))
    whole = math.fsum(p.explanation.prior for p in predictions)
    near = [
        math.log(p.explanation.prior / whole / len(p.totals)) + _ways(counts) + _chain(counts, total, p.dispersion, NEAR_WORTH)
        for p in predictions
        for total in p.totals
    ]
    return _log_sum([like_none, *near]) - math.log(2)


def _log_sum(values: Sequence[float]) -> float:
    top = max(values)
    return top + math.log(math.fsum(math.exp(v - top) for v in values))


def _log_mean(values: Sequence[float]) -> float:
    return _log_sum(values) - math.log(len(values))


@dataclass(frozen=True, kw_only=True)
class Weighing:
    """Explanations weighed by evidence: ``log_likelihood`` and ``probability`` by id, ``unknown`` among them."""

    log_likelihood: Mapping[str, float]
    probability: Mapping[str, float]
    dispersion: float

    def ranked(self) -> list[str]:
        """Ids, most probable first; ties by id."""
        return sorted(self.probability, key=lambda name: (-self.probability[name], name))


def usual_dispersion(predictions: Sequence[Prediction]) -> float:
    """One dispersion for the served side: it must be common to all, so the median over explanations."""
    found = sorted(p.dispersion for p in predictions)
    return found[len(found) // 2]


def weigh(observed: Observed, predictions: Sequence[Prediction], *, same_requests: bool = False, float32: bool = False) -> Weighing:
    """Posterior over explanations that can be a server's, and "none of these". ``float32``: predictions and server were computed in it."""
    served_by = [p for p in predictions if p.explanation.served]
    dispersion = usual_dispersion(served_by)
    logs: dict[str, float] = {}
    if same_requests:
        otherwise = OTHERWISE_FLOAT32 if float32 else OTHERWISE
        logs = {p.explanation.id: same_likelihood(observed, p, otherwise) for p in served_by}
        logs[UNKNOWN] = unknown_same_likelihood(observed, served_by)
    elif (rates := observed.rates) is not None:
        served = served_counts(rates, observed.drafts or ASSUMED_DRAFTS, dispersion)
        logs = {p.explanation.id: chain_likelihood(served, p) for p in served_by}
        logs[UNKNOWN] = unknown_chain_likelihood(served)
    else:
        logs = {p.explanation.id: mean_likelihood(observed, p) for p in served_by}
        logs[UNKNOWN] = unknown_mean_likelihood(observed, served_by)
    total = math.fsum(p.explanation.prior for p in served_by)
    weights = {p.explanation.id: math.log(p.explanation.prior) + logs[p.explanation.id] for p in served_by}
    weights[UNKNOWN] = math.log(UNKNOWN_SHARE * total) + logs[UNKNOWN]
    norm = _log_sum(list(weights.values()))
    return Weighing(log_likelihood=logs, probability={name: math.exp(w - norm) for name, w in weights.items()}, dispersion=dispersion)


def discrimination(a: Prediction, b: Prediction, observed: Observed, dispersion: float, *, same_requests: bool = False) -> float:
    """Expected log-ratio of likelihoods, for a over b, of evidence like this when a is the case."""
    if same_requests:
        if not (a.explanation.exact and b.explanation.exact):
            return 0.0  # nothing is exact about simulated instances: what was seen tells, or nothing does
        mine, theirs = a.totals[0], b.totals[0]
        apart = mine.drafts != theirs.drafts or any(
            low > other_high or high < other_low
            for low, high, other_low, other_high in zip(mine.low, mine.high, theirs.low, theirs.high, strict=True)
        )
        return math.inf if apart else 0.0
    drafts = float(observed.drafts or ASSUMED_DRAFTS)
    if observed.rates is not None:
        served = served_counts(a.marginal, drafts, dispersion)
        return chain_likelihood(served, a) - chain_likelihood(served, b)
    error, _ = b.spread(observed.per)
    variance = error**2 + max(a.run_variance, b.run_variance) * (dispersion / drafts + 1 / CEILING) + observed.rounding**2 / 3 + 1e-4
    variance += (TRAFFIC * (max(a.length, b.length) - 1)) ** 2
    return (a.length - b.length) ** 2 / (2 * variance)


def drafts_to_tell(a: Prediction, b: Prediction, dispersion: float) -> int | None:
    """Roughly how many counted drafts would tell a from b; None where no number would, from these samples."""
    for drafts in (50, 100, 200, 500, 1000, 2000, 5000, 10000, 20000, 50000):
        served = served_counts(a.marginal, float(drafts), dispersion)
        if chain_likelihood(served, a) - chain_likelihood(served, b) >= TELLING:
            return drafts
    return None


def differing_rows(a: Prediction, b: Prediction) -> tuple[int, int]:
    """(rows on which the two predict another run as far as both are known, rows compared)."""
    differ = rows = 0
    theirs = dict(zip(b.at or range(b.samples), b.runs, strict=False))
    for sample, mine in zip(a.at or range(a.samples), a.runs, strict=False):
        if sample in theirs:
            differ += int((mine.accepted_R != theirs[sample].accepted_R).sum())
            rows += int((mine.known_R > 0).sum())
    return differ, rows
