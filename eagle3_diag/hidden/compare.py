"""Two dumps compared: matches, what differs, and the verdict."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import torch

from eagle3_diag.hidden.matching import Dump, Match, State, guess_of, match, measured
from eagle3_diag.hidden.measures import DTYPES, LIMITS, precision_of, shape, window
from eagle3_diag.hidden.relations import Norm, Relation, fits
from eagle3_diag.hidden.words import listed, sentence

Verdict = Literal["identical", "rounding", "differs"]


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One thing that differs: a code, a sentence, and the names of B's states that it concerns."""

    code: str
    text: str
    states: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """``findings`` is empty unless the verdict is ``differs``; ``precision`` is that of the coarser dump, ``tokens`` how many were compared."""

    verdict: Verdict
    precision: str
    limit: float
    tokens: int
    matches: tuple[Match, ...]
    findings: tuple[Finding, ...]


def compare(a: Dump, b: Dump, *, norms: Sequence[Norm] = (), expected: Sequence[int] | None = None, limit: float | None = None) -> Comparison:
    """What B's states are to A's.

    ``norms`` that may have been applied, by name. ``expected`` are the layer inputs that B's unnamed states should be, in order (a drafter's). ``limit``
    replaces the precision's.
    """
    b = _named(b, expected)
    findings, a, b = _align(a, b)
    length = min(_length(a), _length(b))
    precision = _coarser([s.x_NH for s in (*a.states, *b.states)])
    limit = LIMITS[precision] if limit is None else limit
    if length < 2:
        return Comparison(verdict="differs", precision=precision, limit=limit, tokens=length, matches=(), findings=tuple(findings))
    a, b = _cut_to(a, length), _cut_to(b, length)
    shapes_A = [shape(window(s.x_NH.to(torch.float32))) for s in a.states]
    many = len(_inner(a)) == len(_inner(b)) or expected is not None
    matches = [match(s, i, a, shapes_A, norms, precision, limit, many) for i, s in enumerate(b.states)]
    matches = _unsummed(a, b, matches, limit)
    findings += _findings(a, b, matches, many)
    verdict: Verdict = "differs" if findings else "identical" if all(m.relation == "identical" for m in matches) else "rounding"
    return Comparison(verdict=verdict, precision=precision, limit=limit, tokens=length, matches=tuple(matches), findings=tuple(findings))


def _inner(dump: Dump) -> list[State]:
    return [s for s in dump.states if not s.final]


def _length(dump: Dump) -> int:
    return min((int(s.x_NH.shape[0]) for s in dump.states), default=0)


def _cut_to(dump: Dump, length: int) -> Dump:
    return replace(dump, states=tuple(replace(s, x_NH=s.x_NH[:length]) for s in dump.states))


def _coarser(tensors: Sequence[torch.Tensor]) -> str:
    order = list(DTYPES)
    return order[min(order.index(precision_of(window(x))) for x in tensors)] if tensors else "float32"


def _named(dump: Dump, expected: Sequence[int] | None) -> Dump:
    """B with its unnamed states named by what a drafter takes."""
    inner = _inner(dump)
    if expected is None or len(expected) != len(inner) or any(s.layer is not None for s in inner):
        return dump
    layers = iter(expected)
    return replace(dump, states=tuple(s if s.final else replace(s, layer=next(layers)) for s in dump.states))


def _align(a: Dump, b: Dump) -> tuple[list[Finding], Dump, Dump]:
    """Cut both dumps to the tokens that they share, where both say which tokens they hold."""
    if a.tokens_N is None or b.tokens_N is None:
        return [], a, b
    x, y = a.tokens_N.tolist(), b.tokens_N.tolist()
    n = min(len(x), len(y))
    same = next((i for i in range(n) if x[i] != y[i] and x[i] >= 0 and y[i] >= 0), n)  # -1: a token that a capture does not know
    if same == n:
        return [], a, b
    for cut in range(1, min(16, n // 2) + 1):  # a begin-of-text token more or less, a template that begins otherwise
        for more, other, front_a, front_b in (("A", "B", cut, 0), ("B", "A", 0, cut)):
            m = min(len(x) - front_a, len(y) - front_b)
            if m >= 8 and x[front_a : front_a + m] == y[front_b : front_b + m]:
                text = f"{more} has {cut} token{'s' if cut > 1 else ''} more in front than {other}; every position differs by that, so the states may too"
                return [Finding(code="tokens-shifted", text=text)], _drop(a, front_a), _drop(b, front_b)
    text = f"the tokens differ from position {same} on ({x[same]} in A, {y[same]} in B); only what stands before was compared"
    return [Finding(code="tokens-differ", text=text)], _cut_to(a, same), _cut_to(b, same)


def _drop(dump: Dump, front: int) -> Dump:
    return replace(dump, states=tuple(replace(s, x_NH=s.x_NH[front:]) for s in dump.states))


def _unsummed(a: Dump, b: Dump, matches: list[Match], limit: float) -> list[Match]:
    """B's states that are nothing by themselves, but add up to a state of A: what tensor-parallel ranks hold before they are summed."""
    loose = [i for i, m in enumerate(matches) if m.relation in ("unexplained", "drift", "diverges", "scaled")]
    if len(loose) < 2 or len({tuple(b.states[i].x_NH.shape) for i in loose}) > 1:
        return matches
    total_NH = torch.stack([b.states[i].x_NH.to(torch.float32) for i in loose]).sum(0)
    for i, state in enumerate(a.states):
        if state.x_NH.shape == total_NH.shape:
            relation = Relation(code="unsummed", predicted_NH=state.x_NH.to(torch.float32), detail={"parts": len(loose)})
            if fits(relation, total_NH, limit):
                parts = {j: measured(b.states[j], a, i, 0, relation, total_NH, limit) for j in loose}
                return [parts.get(j, m) for j, m in enumerate(matches)]
    return matches


_HARMLESS = ("identical", "rounded", "same")


def _findings(a: Dump, b: Dump, matches: Sequence[Match], many: bool) -> list[Finding]:
    """What differs, one finding per kind."""
    found = _arrangement(a, b, matches, many)
    by_kind: dict[str, list[Match]] = {}
    for m in matches:
        if m.shift and m.relation not in ("unexplained", "drift"):
            by_kind.setdefault(f"shift {m.shift}", []).append(m)
        if m.relation not in _HARMLESS and not _as_said(a, b, m):
            detail = ", ".join(f"{k} {v}" for k, v in m.detail.items() if k not in ("likeness", "gram_error", "tokens", "of", "other", "by"))
            by_kind.setdefault(f"{m.relation} {detail}", []).append(m)
        elif m.relation in _HARMLESS and m.a_index is not None and _state(b, m.b).normed != a.states[m.a_index].normed:
            by_kind.setdefault("said-normed", []).append(m)
    for kind, group in by_kind.items():
        names = tuple(m.b for m in group)
        found.append(Finding(code="shifted" if kind.startswith("shift ") else kind.split()[0], text=sentence(kind, group), states=names))
    return found


def _state(dump: Dump, name: str) -> State:
    return next(s for s in dump.states if s.name == name)


def _as_said(a: Dump, b: Dump, m: Match) -> bool:
    """A state that its format says is after the final norm, where the other's is before it, is no finding."""
    if m.a_index is None or m.relation not in ("normed", "un-normed"):
        return False
    mine, theirs = _state(b, m.b).normed, a.states[m.a_index].normed
    return mine != theirs and m.relation == ("normed" if mine else "un-normed")


def _arrangement(a: Dump, b: Dump, matches: Sequence[Match], many: bool) -> list[Finding]:
    """Which state stands where: another order, layers off by one number, one state several times."""
    pairs = [(_state(b, m.b), m) for m in matches if m.a_index is not None and m.relation not in ("unexplained", "unsummed")]
    wrong = [(s, m) for s, m in pairs if (guess := guess_of(s, b.states.index(s), a, many)) != m.a_index and (guess is not None or _expects(s, a))]
    if not wrong:
        return []
    names = tuple(s.name for s, _ in wrong)
    given = [a.states[m.a_index].name for _, m in pairs if m.a_index is not None]
    said = [s.name for s, _ in pairs]
    twice = sorted({name for name in given if given.count(name) > 1})
    if twice:
        return [Finding(code="repeated", text=f"{listed(said)} in B are A's {listed(given)}: {listed(twice)} stands there more than once", states=names)]
    layers = [(s.layer, a.states[m.a_index].layer) for s, m in pairs if m.a_index is not None and not s.final]
    steps = {theirs - mine for mine, theirs in layers if mine is not None and theirs is not None}
    if len(steps) == 1 and all(mine is not None and theirs is not None for mine, theirs in layers) and 0 not in steps:
        step = steps.pop()
        text = f"{listed(_below_final(pairs))} in B are A's {listed([a.states[m.a_index].name for s, m in pairs if m.a_index is not None and not s.final])}: "
        text += f"{abs(step)} layer{'s' if abs(step) > 1 else ''} {'late' if step > 0 else 'early'}"
        return [Finding(code="layer-off", text=text, states=names)]
    code = "order" if sorted(given) == sorted(_guessed(pairs, a, b, many)) else "other-layers"
    what = "the same states in another order" if code == "order" else "other layers than they are called"
    return [Finding(code=code, text=f"{listed(said)} in B are A's {listed(given)}: {what}", states=names)]


def _below_final(pairs: Sequence[tuple[State, Match]]) -> list[str]:
    """Names of the states below the final one."""
    return [s.name for s, _ in pairs if not s.final]


def _guessed(pairs: Sequence[tuple[State, Match]], a: Dump, b: Dump, many: bool) -> list[str]:
    guesses = [guess_of(s, b.states.index(s), a, many) for s, _ in pairs]
    return [a.states[g].name if g is not None else "" for g in guesses]


def _expects(state: State, a: Dump) -> bool:
    """Whether b's name says which layer it is and A names its own, though A lacks that one."""
    return state.layer is not None and any(s.layer is not None for s in a.states)
