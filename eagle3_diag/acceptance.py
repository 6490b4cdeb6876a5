"""From drafts and labels to figures: per-step accuracies, the decoding walk, acceptance length and its confidence interval.

Plain integers and floats; nothing here touches a model. Every total is a sum over samples taken in the order of their names
with exact summation, so that the order in which samples were read cannot change a bit of it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

import torch

from eagle3_diag.breakdown import Breakdown


def segments(mask_N: Sequence[bool]) -> list[tuple[int, int]]:
    """Responses of a sequence as half-open ranges [a, b) of positions where the loss mask is set.

    A response cannot start at position 0: its first token needs a prediction made at the position before.
    """
    found, start = [], None
    for i, on in enumerate([*mask_N, False]):
        if on and start is None:
            start = i
        elif not on and start is not None:
            found.append((max(start, 1), i))
            start = None
    return [(a, b) for a, b in found if b - a >= 2]


@dataclass
class WalkCounts:
    """What one walk (or many, added) saw.

    ``drafts`` verifications; ``accepted[k]`` drafts accepted at step k; ``at_risk[k]`` runs that reached step k with a known
    outcome; ``censored`` runs cut because the stored text leaves the target's greedy path; ``ended`` runs cut by a response's end.
    """

    accepted: list[int]
    at_risk: list[int]
    drafts: int = 0
    censored: int = 0
    ended: int = 0

    @classmethod
    def zero(cls, steps: int) -> WalkCounts:
        return cls([0] * steps, [0] * steps)

    def add(self, other: WalkCounts) -> None:
        self.accepted = [a + b for a, b in zip(self.accepted, other.accepted, strict=True)]
        self.at_risk = [a + b for a, b in zip(self.at_risk, other.at_risk, strict=True)]
        self.drafts += other.drafts
        self.censored += other.censored
        self.ended += other.ended


class Walk:
    """The rows that a server decoding greedily would draft from, one response after another.

    With p the last known position the server drafts from row p-1; step k's draft is verified by the target's prediction at position
    q = p+k, which is the token of position q+1. After a run of r accepted drafts and one bonus token, p grows by r+1.

    ``labels_N[q]`` is the token that verifies a draft for position q+1, or -1 where none is known. Where the stored token at q+1
    is another than the label, the run is *censored*: the server's text goes on differently from there, so later steps are
    unknown, and the walk resumes behind the stored token, as if the server had been given it.

    Drive it with :meth:`offer`: ``row`` says which row drafts now, ``step`` which draft step is wanted.
    """

    def __init__(self, tokens_N: Sequence[int], labels_N: Sequence[int], responses: Iterable[tuple[int, int]], steps: int) -> None:
        self._tokens, self._labels, self._steps = tokens_N, labels_N, steps
        self._todo = list(responses)[::-1]
        self.counts = WalkCounts.zero(steps)
        self.done = False
        self.step = 0
        self._p = self._end = 0
        self._next_response()

    @property
    def row(self) -> int:
        """The row t the present run drafts from."""
        return self._p - 1

    @property
    def label(self) -> int:
        """The token that verifies the draft wanted now."""
        return int(self._labels[self._p + self.step])

    def token(self, position: int) -> int:
        """The stored token at a position (0 past either end)."""
        return int(self._tokens[position]) if 0 <= position < len(self._tokens) else 0

    def _next_response(self) -> None:
        if not self._todo:
            self.done = True
            return
        start, self._end = self._todo.pop()
        self._begin(start)

    def _begin(self, p: int) -> None:
        while p < self._end - 1 and self._labels[p] < 0:  # no verdict on the very first draft: nothing to count here
            p += 1
        # The server stops once the response's last token (position end-1) is known.
        if p >= self._end - 1:
            self._next_response()
            return
        self._p, self.step = p, 0
        self.counts.drafts += 1

    def offer(self, token: int) -> bool:
        """Judge the draft for the present row and step. True: the run goes on and wants the next step's draft."""
        q = self._p + self.step
        label = int(self._labels[q])
        self.counts.at_risk[self.step] += 1
        accepted = token == label
        self.counts.accepted[self.step] += accepted
        diverges = q + 1 < len(self._tokens) and int(self._tokens[q + 1]) != label
        if not accepted:
            self._begin(q + 1)
            return False
        self.step += 1
        if self.step == self._steps:
            self._begin(q + 1 if diverges else q + 2)
            return False
        if q + 1 >= self._end or self._labels[q + 1] < 0:
            self.counts.ended += 1
        elif diverges:
            self.counts.censored += 1
        else:
            return True
        self._begin(q + 1)
        return False


def walk_drafts(walk: Walk, drafts: dict[int, Sequence[int]]) -> WalkCounts:
    """Run a walk over drafts known for every row: ``drafts[t][k]``."""
    while not walk.done:
        walk.offer(int(drafts[walk.row][walk.step]))
    return walk.counts


@dataclass
class StepCounts:
    """Accuracy counts of one sample or many: ``correct[k]`` of ``total[k]`` rows, ``at_risk[k]`` of them right at all steps before."""

    correct: list[int]
    total: list[int]
    at_risk: list[int]

    @classmethod
    def zero(cls, steps: int) -> StepCounts:
        return cls([0] * steps, [0] * steps, [0] * steps)

    def add(self, other: StepCounts) -> None:
        self.correct = [a + b for a, b in zip(self.correct, other.correct, strict=True)]
        self.total = [a + b for a, b in zip(self.total, other.total, strict=True)]
        self.at_risk = [a + b for a, b in zip(self.at_risk, other.at_risk, strict=True)]


#: A label that no draft equals.
NO_TOKEN = -2


def step_counts(
    drafts_RK: torch.Tensor, rows_R: torch.Tensor, labels_N: torch.Tensor, mask_N: torch.Tensor, *, padded_label: int | None = NO_TOKEN
) -> StepCounts:
    """Counts behind ``full_acc_k`` and ``cond_acc_k`` as speculators logs them (``models/metrics.py``, 0.6.0.2).

    Rows are those whose next token is of a response (``mask[t+1]``). A row counts as correct at step k when it is right at steps
    0..k and its label's position t+1+k is of a response too; the total of step k is the number of such label positions, whatever row
    they belong to; the conditional total is the number of rows right at all steps before. Only step k's own label position is
    masked: a match outside every response keeps a row among those right so far.

    ``padded_label``: what a row is compared with past the end (a trainer that pads with states of zero meets the first draft token there);
    None for a batch that is full to the brim, where such rows leave the conditional total.
    """
    n, steps = int(labels_N.shape[0]), int(drafts_RK.shape[1])
    counts, right_R = StepCounts.zero(steps), mask_N[rows_R + 1]
    for k in range(steps):
        at_R = rows_R + 1 + k
        inside_R, at_R = at_R < n, at_R.clamp(max=n - 1)
        if padded_label is None:
            right_R = right_R & inside_R
        counts.at_risk[k] = int(right_R.sum())
        counts.total[k] = int(mask_N[1 + k :].sum())
        label_R = torch.where(inside_R, labels_N[at_R], NO_TOKEN if padded_label is None else padded_label)
        right_R = right_R & (drafts_RK[:, k] == label_R)
        counts.correct[k] = int((right_R & inside_R & mask_N[at_R]).sum())
    return counts


@dataclass(frozen=True, kw_only=True)
class SampleResult:
    """Everything that one sample contributes to a table.

    ``walk`` is None in ``sampled`` mode, where ``chances[k]`` is the sum over rows of the chance that steps 0..k are all accepted and
    ``chance_rows[k]`` the number of rows that have such a chance. ``trainer`` is by the definition asked for.
    """

    name: str
    tokens: int
    rows: int
    accuracy: StepCounts | None
    walk: WalkCounts | None
    ceiling: WalkCounts | None = None
    covered: int = 0
    labelled: int = 0
    chances: tuple[float, ...] | None = None
    chance_rows: tuple[int, ...] | None = None
    trainer: StepCounts | None = None
    breakdown: Breakdown | None = None


@dataclass(frozen=True, kw_only=True)
class Serving:
    """The acceptance a right server would reach.

    ``accepted_per_position`` and ``at_risk`` are counts (in ``sampled`` mode expected counts and rows). ``rates[k]`` is the chance that
    step k is accepted given that all before were; ``acceptance_length`` = 1 + sum over k of prod(rates[:k+1]), the bonus token
    included, per verification step; ``per_request`` the mean over samples of each one's own. ``counted_length`` is what a server's
    counters would say of the very same runs: 1 + accepted/drafts, with runs cut short counted as they are.
    """

    mode: str
    steps: int
    drafts: int
    accepted_per_position: tuple[float, ...]
    at_risk: tuple[int, ...]
    rates: tuple[float | None, ...]
    acceptance_length: float | None
    counted_length: float | None
    per_request: float | None
    ci95: tuple[float, float] | None
    censored: int
    ended: int
    ceiling: float | None = None


@dataclass
class AcceptanceTable:
    """Totals over samples, and the samples they came from."""

    steps: int
    mode: str = "greedy"
    samples: list[SampleResult] = field(default_factory=list)

    def add(self, result: SampleResult) -> None:
        self.samples.append(result)

    def ordered(self) -> list[SampleResult]:
        return sorted(self.samples, key=lambda s: s.name)

    def accuracy(self) -> StepCounts:
        return self._total(s.accuracy for s in self.samples)

    def trainer(self) -> StepCounts:
        return self._total(s.trainer for s in self.samples)

    def breakdown(self) -> Breakdown | None:
        """Totals of the samples that have one; None where none has."""
        found = [s.breakdown for s in self.samples if s.breakdown is not None]
        total = Breakdown()
        for each in found:
            total.add(each)
        return total if found else None

    def _total(self, each: Iterable[StepCounts | None]) -> StepCounts:
        total = StepCounts.zero(self.steps)
        for counts in each:
            if counts is not None:
                total.add(counts)
        return total

    def serving(self, *, seed: int = 0, replicates: int = 2000) -> Serving:
        """Totals, rates and a bootstrap over samples (percentile interval; None with fewer than two samples)."""
        return _sampled(self, seed, replicates) if self.mode == "sampled" else _walked(self, seed, replicates)


def conditional_rates(accepted: Sequence[float], at_risk: Sequence[float]) -> list[float | None]:
    """accepted/at_risk per step, None where no run reached the step."""
    return [a / r if r else None for a, r in zip(accepted, at_risk, strict=True)]


def length_of(rates: Iterable[float | None]) -> float:
    """Expected tokens per verification: 1 (the bonus) + the chances that steps 0..k are all accepted.

    A step that no run reached ends the product: its rate is unknown, and the chance of getting there was nil as far as seen.
    """
    length, chance = 1.0, 1.0
    for rate in rates:
        if rate is None:
            break
        chance *= rate
        length += chance
    return length


def _walked(table: AcceptanceTable, seed: int, replicates: int) -> Serving:
    total, ceiling, own = WalkCounts.zero(table.steps), WalkCounts.zero(table.steps), []
    rows: list[list[int]] = []
    for s in table.ordered():
        if s.walk is None:
            continue
        total.add(s.walk)
        if s.ceiling is not None:
            ceiling.add(s.ceiling)
        if s.walk.drafts:
            own.append(length_of(conditional_rates(s.walk.accepted, s.walk.at_risk)))
            rows.append([*s.walk.accepted, *s.walk.at_risk])
    rates = conditional_rates(total.accepted, total.at_risk)
    known = total.drafts > 0
    return Serving(
        mode=table.mode,
        steps=table.steps,
        drafts=total.drafts,
        accepted_per_position=tuple(total.accepted),
        at_risk=tuple(total.at_risk),
        rates=tuple(rates),
        acceptance_length=length_of(rates) if known else None,
        counted_length=1 + sum(total.accepted) / total.drafts if known else None,
        per_request=math.fsum(own) / len(own) if own else None,
        ci95=_interval(rows, table.steps, seed, replicates, _lengths_from_counts),
        censored=total.censored,
        ended=total.ended,
        ceiling=length_of(conditional_rates(ceiling.accepted, ceiling.at_risk)) if ceiling.drafts else None,
    )


def _sampled(table: AcceptanceTable, seed: int, replicates: int) -> Serving:
    chosen = [s for s in table.ordered() if s.chances is not None and s.chance_rows is not None and s.chance_rows[0] > 0]
    steps = table.steps
    chances = [math.fsum(s.chances[k] for s in chosen if s.chances is not None) for k in range(steps)]
    counts = [sum(s.chance_rows[k] for s in chosen if s.chance_rows is not None) for k in range(steps)]
    marginal = [c / n if n else None for c, n in zip(chances, counts, strict=True)]
    rates: list[float | None] = []
    before: float | None = 1.0
    for m in marginal:
        rates.append(m / before if m is not None and before else None)
        before = m
    own = [1 + math.fsum(c / n for c, n in zip(s.chances or (), s.chance_rows or (), strict=True) if n) for s in chosen]
    rows = [[*(s.chances or ()), *(s.chance_rows or ())] for s in chosen]
    length = 1 + math.fsum(m for m in marginal if m is not None) if chosen else None
    return Serving(
        mode="sampled",
        steps=steps,
        drafts=counts[0] if counts else 0,
        accepted_per_position=tuple(chances),
        at_risk=tuple(counts),
        rates=tuple(rates),
        acceptance_length=length,
        counted_length=length,
        per_request=math.fsum(own) / len(own) if own else None,
        ci95=_interval(rows, steps, seed, replicates, _lengths_from_chances),
        censored=0,
        ended=0,
    )


def _lengths_from_counts(sums_BX: torch.Tensor, steps: int) -> torch.Tensor:
    rates_BK = sums_BX[:, :steps] / sums_BX[:, steps:].clamp(min=1)
    return 1 + rates_BK.cumprod(dim=1).sum(dim=1)


def _lengths_from_chances(sums_BX: torch.Tensor, steps: int) -> torch.Tensor:
    return 1 + (sums_BX[:, :steps] / sums_BX[:, steps:].clamp(min=1)).sum(dim=1)


def _interval(
    rows: Sequence[Sequence[float]], steps: int, seed: int, replicates: int, lengths: Callable[[torch.Tensor, int], torch.Tensor]
) -> tuple[float, float] | None:
    """95 % percentile interval over resampled samples; rows [S][2·steps] in the order of sample names."""
    if len(rows) < 2:
        return None
    data_SX = torch.tensor(rows, dtype=torch.float64)
    generator = torch.Generator().manual_seed(seed)
    found = []
    for _ in range(replicates):
        pick_S = torch.randint(len(rows), (len(rows),), generator=generator)
        weight_S = torch.bincount(pick_S, minlength=len(rows)).to(torch.float64)
        found.append((weight_S[:, None] * data_SX).sum(dim=0))
    length_B = lengths(torch.stack(found), steps).sort().values
    low = length_B[int(0.025 * (replicates - 1))]
    high = length_B[math.ceil(0.975 * (replicates - 1))]
    return float(low), float(high)
