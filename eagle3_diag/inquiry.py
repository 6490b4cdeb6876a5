"""A running server questioned row by row until its wiring is known: asks, weighs, and searches combinations where no single fault fits.

The asking itself is a function given from outside; nothing here knows of HTTP.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

import torch

from eagle3_diag import probe
from eagle3_diag.catalogue import Catalogue, Explanation
from eagle3_diag.probe import Belief, Evidence, Reply, Row, Table
from eagle3_diag.solve import Fit, Rows, extend, search

#: After so many answers combinations may be searched. Once: what that many answers contradict, more of them do not save.
_SEARCH_AFTER = 24
#: Of this many answers one may contradict an explanation that holds: near ties fall the other way in another precision.
_ANSWERS_PER_FLIP = 25
#: Contradictions that a combination may have when it is searched, at least; and how many are taken into the table, to be told apart by further rows.
_FORGIVEN, _KEPT = 2, 24


@dataclass
class Inquiry:
    """What was asked and what came of it. ``stopped``: why asking ended early, None where it did not."""

    table: Table
    belief: Belief
    evidence: Evidence
    replies: dict[str, Reply] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)
    searched: list[Fit] = field(default_factory=list)
    combinations: bool = False
    stopped: str | None = None

    @property
    def best(self) -> Explanation:
        return self.table.explanations[self.belief.best]

    def group(self, e: int) -> list[int]:
        """The explanations that predict every usable row as explanation ``e`` does, the likeliest first."""
        alike = next(each for each in probe.groups(self.table) if e in each)
        return sorted(alike, key=lambda i: (-float(self.belief.probability_E[i]), i))

    def share(self, e: int) -> float:
        """The probability of ``e`` and all that cannot be told from it."""
        return float(self.belief.probability_E[self.group(e)].sum())


def allowed(answers: int) -> int:
    """Contradictions that an explanation which holds may have."""
    return max(1, answers // _ANSWERS_PER_FLIP)


def inquire(
    rows: Rows,
    table: Table,
    catalogue: Catalogue,
    held: Iterable[int],
    ask: Callable[[Row], Reply] | None,
    *,
    requests: int,
    replies: Mapping[str, Reply] | None = None,
    combinations: bool = True,
    progress: Callable[[int], None] = lambda _: None,
    say: Callable[[str], None] = lambda _: None,
) -> Inquiry:
    """Ask up to ``requests`` rows, or weigh ``replies`` that are already there.

    Asking goes on to the last request although the verdict may stand early: later rows test it, and tell how often the server flips.
    """
    held = list(held)
    known = dict(replies or {})
    found = probe.evidence(table, known)
    state = Inquiry(table=table, belief=probe.belief(table, found), evidence=found, replies=known, asked=list(known))
    for number in range(requests if ask is not None else 0):
        row = probe.choose(state.table, state.asked, state.belief, number=number)
        if row is None:
            state.stopped = f"every one of the {len(table.rows)} usable rows was asked"
            break
        state.asked.append(row.id)
        assert ask is not None
        state.replies[row.id] = ask(row)
        _weigh(state)
        progress(number + 1)
        if combinations and not state.combinations and len(state.evidence.at) >= _SEARCH_AFTER and _unexplained(state):
            _search(state, rows, catalogue, held, say)
    if combinations and not state.combinations and state.evidence.at and _unexplained(state):
        _search(state, rows, catalogue, held, say)
    return state


def _weigh(state: Inquiry) -> None:
    state.evidence = probe.evidence(state.table, state.replies)
    state.belief = probe.belief(state.table, state.evidence)


def _unexplained(state: Inquiry) -> bool:
    """Whether more answers contradict the best explanation than flips can account for, though it predicts rows exactly."""
    answers = len(state.evidence.at)
    wrong = answers - state.belief.agreeing_E[state.belief.best]
    return state.belief.unknown > 0.5 or (state.best.exact and wrong > allowed(answers))


def _search(state: Inquiry, rows: Rows, catalogue: Catalogue, held: Iterable[int], say: Callable[[str], None]) -> None:
    say(f"No single fault explains the {len(state.evidence.at)} answers so far; searching combinations.")
    state.combinations = True
    fits = search(rows, catalogue, state.evidence, held, allowed=max(_FORGIVEN, allowed(len(state.evidence.at))))
    state.searched = fits
    present = set(state.table.ids())
    new = [fit.explanation for fit in fits if fit.explanation.id not in present][:_KEPT]
    if new:
        state.table = extend(rows, state.table, new)
        _weigh(state)


def departures(state: Inquiry, e: int) -> list[tuple[Row, int, int]]:
    """Rows where the server departs from what explanation ``e`` predicts: (row, run seen, run predicted), in the order asked."""
    found = []
    for at, run in zip(state.evidence.at, state.evidence.runs, strict=True):
        predicted = int(torch.argmax(state.table.chance_ERA[e, at]))
        if state.table.chance_ERA[e, at, run] == 0:
            found.append((state.table.rows[at], run, predicted))
    return found
