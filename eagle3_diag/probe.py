"""Which rows to ask a running server so that the explanations part, and what its answers say. Pure: reads and sends nothing.

Each explanation predicts for each row how many drafts are accepted; of a row whose stored text leaves the target's path early only the
first ``known`` verdicts count, so runs are compared up to there. An explanation whose content nobody knows (another embedding) gives
no single run but shares over simulated instances.

A server computes in a precision of its own, so that now and then a near tie falls the other way. A row's answer is then any run: chance f,
unknown and small, and ``UNSTEADY`` times that in rows where a mere rounding (to int8 or fp8) already changes what right wiring predicts. Every
explanation is weighed with f integrated out over all answers, rows where all explanations agree among them; those tell f whatever the fault
is. "None of these" (``unknown``) has two forms: close to one of the explanations but contradicted more often than precision allows (weights
that are not quite these), and like nothing listed (each row's run as spread as the explanations' are).

Dimension suffixes: E explanations, R rows, A runs (0..K), G values of f.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import torch

from eagle3_diag.catalogue.explanation import AS_TRAINED, Explanation

#: Values of the flip chance and their weights: most servers flip next to nothing, a bfloat16 one about 0.5 % of rows, and chosen rows more.
_FLIPS = (1e-4, 1e-3, 3e-3, 0.01, 0.02, 0.04)
_FLIP_WEIGHTS = (0.2, 0.25, 0.25, 0.15, 0.1, 0.05)
#: Where one of these moves right wiring's run, two tokens nearly tie, and another precision may as well choose the other: all 9 rows that right
#: servers answered otherwise (vLLM, two pairs, 8 of them in bfloat16) are such rows, which are 3 % of all. How much more often they flip, at most how often.
_ROUNDINGS = ("drafter-quantised-int8", "drafter-quantised-fp8", "features-quantised-int8", "features-quantised-fp8")
UNSTEADY, _MOST_UNSTEADY = 10.0, 0.5
#: Where right wiring is contradicted in near ties alone, and by at most one answer in so many, a rounding that predicts those answers is no likelier than
#: right wiring: another precision does the same (bfloat16, three pairs: at most 2 of 64 answers; weights in fp8: 12 to 30).
_ANSWERS_PER_NEAR_TIE = 16
#: Nats an answer that an explanation known by instances alone must tell more than that anything may happen; less is likeness by chance. Foreign embeddings
#: tell about 1.3 (vLLM, three pairs), noise on the weights 0.1 or less.
_TOLD = 0.2
#: Beyond what precision does: the server is like an explanation, but is not it.
_FAR = (0.06, 0.1, 0.15, 0.2, 0.3, 0.4)
#: Weight of "none of these" relative to all explanations together.
UNKNOWN_PRIOR = 0.03
#: An explanation is done with when its probability is below this.
STANDING = 1e-4
#: Share of the belief that stays with the first guess, so that questions go on to test what seems settled.
_OPEN = 0.02
#: Every so many requests one goes to a row where all explanations agree.
CONTROL_EVERY = 8


@dataclass(frozen=True, kw_only=True)
class Row:
    """One row of one stored sample: ``id`` is ``SAMPLE:ROW``; ``label`` the target's choice there; ``known`` verdicts the text tells."""

    sample: str
    row: int
    label: int
    known: int

    @property
    def id(self) -> str:
        return f"{self.sample}:{self.row}"


@dataclass(frozen=True, kw_only=True)
class Reply:
    """What a server said of a row: see :class:`eagle3_diag.serving.ask.Answer`."""

    first_token: int | None
    accepted: int


@dataclass
class Table:
    """Predictions of every explanation for every usable row.

    ``chances`` [E] -> [I, R, A]: float32, the chance of each run (clipped to ``known``) of a row before any flip, under each of an
    explanation's I simulated instances; I = 1 and one-hot for exact explanations. ``chance_ERA``: their means over instances.
    ``unusable``: rows left out because the stored text leaves the target's path at once. ``flips_R``: how much more often than others a row
    flips, 1 or ``UNSTEADY``.
    """

    steps: int
    rows: list[Row] = field(default_factory=list)
    explanations: list[Explanation] = field(default_factory=list)
    chances: list[torch.Tensor] = field(default_factory=list)
    unusable: int = 0

    def __post_init__(self) -> None:
        self.index = {row.id: i for i, row in enumerate(self.rows)}
        self.known_R = torch.tensor([row.known for row in self.rows], dtype=torch.int64)
        self.length_R = torch.tensor([row.row + 1 for row in self.rows], dtype=torch.float32)
        self.chance_ERA = torch.stack([each.mean(dim=0) for each in self.chances]) if self.chances else torch.zeros(0, len(self.rows), self.steps + 1)
        self.flips_R = torch.where(self._unsteady_R(), UNSTEADY, 1.0)

    def _unsteady_R(self) -> torch.Tensor:
        """Rows where a rounding moves right wiring's run, bool [R]."""
        at = {each.id: e for e, each in enumerate(self.explanations)}
        moved_R = torch.zeros(len(self.rows), dtype=torch.bool)
        for name in _ROUNDINGS:
            if AS_TRAINED in at and name in at:
                moved_R |= (self.chance_ERA[at[name]] != self.chance_ERA[at[AS_TRAINED]]).any(dim=1)
        return moved_R

    def flip_chances(self, chance: torch.Tensor) -> torch.Tensor:
        """The chance [..., R] that each row flips, where one like most flips with ``chance`` [...]."""
        return (chance[..., None] * self.flips_R).clamp(max=_MOST_UNSTEADY)

    def extended(self, explanations: Sequence[Explanation], chances: Sequence[torch.Tensor]) -> Table:
        """The same rows with further explanations."""
        return Table(self.steps, self.rows, [*self.explanations, *explanations], [*self.chances, *chances], self.unusable)

    def ids(self) -> list[str]:
        return [each.id for each in self.explanations]


def one_hot(accepted_R: torch.Tensor, steps: int) -> torch.Tensor:
    """Chances [R, A] of an exact prediction."""
    return torch.nn.functional.one_hot(accepted_R.long(), steps + 1).float()


def like_instances(runs_IRA: torch.Tensor, known_R: torch.Tensor) -> torch.Tensor:
    """What simulated instances say of one like them, [I, R, A], from their one-hot runs.

    The real content is none of the instances, but of the kind of one of them: half the weight lies on that one's run, the other half
    on all of theirs, and one instance's worth on the runs that such content gives anywhere.
    """
    count = runs_IRA.shape[0]
    allowed_RA = (torch.arange(runs_IRA.shape[2])[None] <= known_R[:, None]).float()
    usual_RA = allowed_RA * (runs_IRA.mean(dim=(0, 1)) + 0.02)
    usual_RA = usual_RA / usual_RA.sum(dim=1, keepdim=True)
    return (count * runs_IRA + runs_IRA.sum(dim=0) + usual_RA) / (2 * count + 1)


def groups(table: Table) -> list[list[int]]:
    """Explanations that predict every usable row alike, as lists of indices in the table's order."""
    found: dict[bytes, list[int]] = {}
    for e in range(len(table.explanations)):
        found.setdefault(table.chance_ERA[e].contiguous().numpy().tobytes(), []).append(e)
    return list(found.values())


# ---- what the answers say -------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """Answers sorted out: ``at`` indices of rows and ``runs`` (clipped to what is known there) of those whose first token is the stored
    argmax; ``differing`` ids of rows where the target itself said something else."""

    at: list[int]
    runs: list[int]
    differing: list[str]

    @property
    def answered(self) -> int:
        return len(self.at) + len(self.differing)


def evidence(table: Table, replies: Mapping[str, Reply]) -> Evidence:
    """Sort answers by row; ids that are no usable row are left out."""
    at, runs, differing = [], [], []
    for name, reply in replies.items():
        i = table.index.get(name)
        if i is None:
            continue
        row = table.rows[i]
        if reply.first_token is not None and reply.first_token != row.label:
            differing.append(name)
            continue
        at.append(i)
        runs.append(min(reply.accepted, row.known))
    return Evidence(at=at, runs=runs, differing=differing)


@dataclass(frozen=True, kw_only=True)
class Belief:
    """``probability_E`` of each explanation, ``unknown`` of none of them; ``agreeing_E`` rows as predicted (for inexact explanations:
    whose run is the likeliest over instances); ``flip``: the chance of a flip under the best explanation."""

    probability_E: torch.Tensor
    unknown: float
    agreeing_E: list[int]
    flip: float

    @property
    def best(self) -> int:
        return int(self.probability_E.argmax())


def belief(table: Table, found: Evidence) -> Belief:
    """The explanations weighed by the answers."""
    prior_E = torch.tensor([each.prior for each in table.explanations], dtype=torch.float64)
    prior_E = prior_E / prior_E.sum()
    at, runs = torch.tensor(found.at, dtype=torch.int64), torch.tensor(found.runs, dtype=torch.int64)
    kinds_N = (table.known_R[at] + 1).double()  # runs that each row can have
    chance_EN = table.chance_ERA[:, at, runs].double()
    flips_GN = table.flip_chances(torch.tensor(_FLIPS, dtype=torch.float64))[:, at]
    far_GN = torch.tensor(_FAR, dtype=torch.float64)[:, None].expand(-1, at.shape[0])
    near_GE = _log_likelihood(chance_EN, kinds_N, flips_GN)
    for e, chance_IRA in enumerate(table.chances):
        if chance_IRA.shape[0] > 1:
            near_GI = _log_likelihood(chance_IRA[:, at, runs].double(), kinds_N, flips_GN)
            near_GE[:, e] = torch.logsumexp(near_GI, dim=1) - math.log(chance_IRA.shape[0])
    log_E = torch.logsumexp(near_GE + torch.tensor(_FLIP_WEIGHTS, dtype=torch.float64).log()[:, None], dim=0)
    exact = [e for e, each in enumerate(table.explanations) if each.exact]
    far_GE = _log_likelihood(chance_EN[exact], kinds_N, far_GN)
    like_one = torch.logsumexp(far_GE + prior_E[exact].log()[None] - math.log(len(_FAR)), dim=(0, 1))
    spread_N = 0.5 * chance_EN[exact].mean(dim=0) + 0.5 / kinds_N
    like_none = spread_N.log().sum()
    anything = torch.maximum(like_none, -kinds_N.log().sum())
    for e, each in enumerate(table.explanations):
        if not each.exact and log_E[e] < anything + _TOLD * len(found.at):
            log_E[e] = torch.minimum(log_E[e], like_none)
    _cap_roundings(table, found, log_E)
    log_unknown = torch.logaddexp(like_one, like_none) - math.log(2) + math.log(UNKNOWN_PRIOR)
    joint = torch.cat([log_E + prior_E.log(), log_unknown[None]])
    probability = torch.softmax(joint, dim=0)
    best = int(probability[:-1].argmax())
    likeliest_EN = table.chance_ERA[:, at].max(dim=2).values.double()
    flips = torch.softmax(near_GE[:, best] + torch.tensor(_FLIP_WEIGHTS, dtype=torch.float64).log(), dim=0)
    return Belief(
        probability_E=probability[:-1], unknown=float(probability[-1]), agreeing_E=(chance_EN >= likeliest_EN - 1e-6).sum(dim=1).tolist(),
        flip=float((flips * torch.tensor(_FLIPS, dtype=torch.float64)).sum()),
    )  # fmt: skip


def _cap_roundings(table: Table, found: Evidence, log_E: torch.Tensor) -> None:
    """No rounding likelier than right wiring, in place, where few answers contradict that, and near ties alone."""
    at = {each.id: e for e, each in enumerate(table.explanations)}
    if AS_TRAINED not in at:
        return
    right = at[AS_TRAINED]
    wrong = [i for i, run in zip(found.at, found.runs, strict=True) if table.chance_ERA[right, i, run] == 0]
    if len(wrong) <= max(1, len(found.at) // _ANSWERS_PER_NEAR_TIE) and all(table.flips_R[i] > 1 for i in wrong):
        for name in _ROUNDINGS:
            if name in at:
                log_E[at[name]] = torch.minimum(log_E[at[name]], log_E[right])


def _log_likelihood(chance_EN: torch.Tensor, kinds_N: torch.Tensor, flips_GN: torch.Tensor) -> torch.Tensor:
    """Log-likelihood of all answers, [G, E]."""
    return ((1 - flips_GN[:, None]) * chance_EN[None] + flips_GN[:, None] / kinds_N[None, None]).log().sum(dim=2)


# ---- which rows to ask ----------------------------------------------------------------------------------------------


def information(table: Table, probability_E: torch.Tensor, unknown: float, flip: float) -> torch.Tensor:
    """Bits that each row's answer is expected to tell about which explanation holds, float [R]."""
    kinds_R = (table.known_R + 1).float()
    allowed_RA = (torch.arange(table.chance_ERA.shape[2])[None] <= table.known_R[:, None]).float()
    spread_RA = 0.5 * table.chance_ERA.mean(dim=0) + 0.5 * allowed_RA / kinds_R[:, None]
    weight_E = probability_E.float()
    kept = weight_E > 1e-6
    flip_R1 = table.flip_chances(torch.tensor(flip))[:, None]
    chance_ERA = (1 - flip_R1) * table.chance_ERA[kept] + flip_R1 * allowed_RA / kinds_R[:, None]
    weight_E = weight_E[kept]
    mixture_RA = (weight_E[:, None, None] * chance_ERA).sum(dim=0) + unknown * spread_RA
    mixture_RA = mixture_RA / mixture_RA.sum(dim=1, keepdim=True)
    within_R = (weight_E[:, None] * _entropy(chance_ERA)).sum(dim=0) + unknown * _entropy(spread_RA)
    return (_entropy(mixture_RA) - within_R / (weight_E.sum() + unknown)).clamp(min=0)


def _entropy(chance: torch.Tensor) -> torch.Tensor:
    """Bits, over the last dimension."""
    return -torch.xlogy(chance, chance).sum(dim=-1) / math.log(2)


def control_rows(table: Table) -> torch.Tensor:
    """Rows that all exact explanations of more than nothing predict alike, bool [R]: they tell flips and foreign targets, whatever the fault."""
    exact = [e for e, each in enumerate(table.explanations) if each.exact]
    share_RA = table.chance_ERA[exact].mean(dim=0)
    return share_RA.max(dim=1).values >= 0.999


def choose(table: Table, asked: Iterable[str], now: Belief, *, number: int) -> Row | None:
    """The row to ask as request ``number`` (from 0); None when every usable row was asked.

    Belief is opened a little towards the first guess, so that a settled verdict goes on being tested where others would have differed.
    Among equals the shortest prefix is cheapest.
    """
    free_R = torch.ones(len(table.rows), dtype=torch.bool)
    for name in asked:
        if name in table.index:
            free_R[table.index[name]] = False
    if not bool(free_R.any()):
        return None
    if number % CONTROL_EVERY == CONTROL_EVERY - 1:
        among_R = free_R & control_rows(table)
        if bool(among_R.any()):  # the longest run that all agree on: a flip shows best where there is something to lose
            run_R = (table.chance_ERA.mean(dim=0) * torch.arange(table.chance_ERA.shape[2])).sum(dim=1)
            score_R = torch.where(among_R, run_R - table.length_R * 1e-5, -torch.inf)
            return table.rows[int(score_R.argmax())]
    first_E = torch.tensor([each.prior for each in table.explanations], dtype=torch.float64)
    open_E = (1 - _OPEN) * now.probability_E + _OPEN * first_E / first_E.sum()
    score_R = information(table, open_E, max(now.unknown, 1e-3), max(now.flip, 1e-3))
    score_R = torch.where(free_R, score_R - table.length_R * 1e-9, -torch.inf)
    return table.rows[int(score_R.argmax())]


def plan(table: Table, requests: int) -> tuple[list[Row], list[tuple[str, str]]]:
    """Rows that part every pair of exact explanations, in at most ``requests``; and the pairs that they leave together though some row parts them.

    Greedy: the row that parts most pairs, weighted by how often each was parted before and by the priors; when all are parted it goes on
    to part them again, against flips. Explanations of unknown content are parted by where their instances differ from the others'.
    """
    members = [each[0] for each in groups(table)]
    symbol_MR = table.chance_ERA[members].argmax(dim=2)
    sure_MR = table.chance_ERA[members].max(dim=2).values > 0.999
    count = len(members)
    weight_M = torch.tensor([table.explanations[m].prior for m in members]).sqrt()
    weight_MM = torch.triu(weight_M[:, None] * weight_M[None], diagonal=1)
    sure_RMM = sure_MR.T[:, :, None] & sure_MR.T[:, None]
    parted_RMM = ((symbol_MR.T[:, :, None] != symbol_MR.T[:, None]) & sure_RMM).float()
    times_MM = torch.zeros(count, count)
    chosen: list[Row] = []
    free_R = torch.ones(len(table.rows), dtype=torch.bool)
    while len(chosen) < min(requests, len(table.rows)):
        # A pair not parted yet outweighs any number of repetitions.
        value_MM = weight_MM * torch.where(times_MM == 0, 1e3, 0.3**times_MM)
        score_R = (parted_RMM * value_MM).sum(dim=(1, 2)) - table.length_R * 1e-6
        best = int(torch.where(free_R, score_R, -torch.inf).argmax())
        times_MM += parted_RMM[best]
        free_R[best] = False
        chosen.append(table.rows[best])
    left = []
    for i, j in torch.nonzero(torch.triu(times_MM == 0, diagonal=1)).tolist():
        if bool(parted_RMM[:, i, j].any()):
            left.append((table.explanations[members[i]].id, table.explanations[members[j]].id))
    return chosen, left
