"""Which state of A a state of B is: assigned by likeness, explained by a relation."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from eagle3_diag.hidden.measures import (
    ALIKE,
    EXPLAINS,
    FEW,
    LIKE,
    SHIFTS,
    apart,
    inner_products,
    likeness,
    overlap,
    shape,
    short,
    token_errors,
    window,
)
from eagle3_diag.hidden.relations import Norm, Relation, find_swapped, fits, relate


@dataclass(frozen=True, kw_only=True)
class State:
    """One state over a sequence, [N, H]. ``layer`` is an index of layer inputs where the dump says it; ``final`` marks the last layer's output, ``normed``
    one that is said to be after the target's final norm."""

    name: str
    x_NH: torch.Tensor
    layer: int | None = None
    final: bool = False
    normed: bool = False


@dataclass(frozen=True, kw_only=True)
class Dump:
    """States over the same tokens; ``tokens_N`` int64 where known (-1: this one is not)."""

    name: str
    states: tuple[State, ...]
    tokens_N: torch.Tensor | None = None


@dataclass(frozen=True, kw_only=True)
class Match:
    """What a state of B is. ``relation`` is a code of :data:`RELATIONS`, ``detail`` its numbers; ``shift`` n: B's token t holds A's of t - n.

    ``error`` is the median relative error of a token under the relation, ``worst`` the largest, ``first`` the first token (of B) above the limit.
    """

    b: str
    a: str | None
    a_index: int | None
    relation: str
    detail: Mapping[str, Any] = field(default_factory=dict)
    shift: int = 0
    error: float | None = None
    worst: float | None = None
    first: int | None = None


def guess_of(b: State, index: int, dump: Dump, many: bool) -> int | None:
    """The state of A that b is by its name: the same layer, the final one, or the same place in the row."""
    if b.final:
        return next((i for i, a in enumerate(dump.states) if a.final), None)
    if b.layer is not None and any(a.layer is not None for a in dump.states):
        return next((i for i, a in enumerate(dump.states) if a.layer == b.layer), None)
    return index if many else None


def _candidates(shapes_A: Sequence[torch.Tensor], shape_NH: torch.Tensor, guess: int | None) -> list[tuple[float, int, int]]:
    """(likeness, state of A, shift), best first; what the name says goes first among equals."""
    fitting = [(i, a, min(a.shape[0], shape_NH.shape[0])) for i, a in enumerate(shapes_A) if a.shape[1] == shape_NH.shape[1]]
    found = [(likeness(*overlap(a, shape_NH, 0)), i, 0) for i, a, _ in fitting]
    if max((each[0] for each in found), default=1.0) < ALIKE:  # nothing fits as it stands: look before and behind
        for i, a, n in fitting:
            for shift in range(1, min(SHIFTS, n // 2) + 1):
                found += [(likeness(*overlap(a, shape_NH, s)), i, s) for s in (shift, -shift)]
    return sorted(found, key=lambda each: (-round(each[0], 4), each[1] != guess, abs(each[2]), each[1]))


def match(b: State, b_index: int, a_dump: Dump, shapes_A: Sequence[torch.Tensor], norms: Sequence[Norm], precision: str, limit: float, many: bool) -> Match:
    guess = guess_of(b, b_index, a_dump, many)
    b_NH = b.x_NH.to(torch.float32)
    ranked = _candidates(shapes_A, shape(window(b_NH)), guess)
    tried = [each for each in ranked[:3] if each[0] > LIKE]
    if guess is not None and (tried == [] or tried[0][1:] != (guess, 0)) and a_dump.states[guess].x_NH.shape[1] == b_NH.shape[1]:
        tried.append((0.0, guess, 0))
    for _, i, shift in tried:
        a_NH, part_NH = overlap(a_dump.states[i].x_NH.to(torch.float32), b_NH, shift)
        relation = relate(a_NH, part_NH, norms, precision, limit)
        if relation is not None:
            return measured(b, a_dump, i, shift, relation, part_NH, limit)
    for relation_i in (*_of_two(a_dump, b_NH, limit), *_of_blocks(a_dump, b_NH, limit), *_of_directions(a_dump, b_NH, limit)):
        i, shift, relation = relation_i
        return measured(b, a_dump, i, shift, relation, overlap(b_NH, b_NH, shift)[1], limit)
    return _fallback(b, b_NH, a_dump, guess, ranked, limit)


def measured(b: State, a_dump: Dump, i: int, shift: int, relation: Relation, b_NH: torch.Tensor, limit: float) -> Match:
    errors = token_errors(relation.predicted_NH, b_NH)
    above = torch.nonzero(errors > limit)
    first = int(above[0]) + max(shift, 0) if above.numel() and relation.code not in ("rotated", "unsummed") else None
    return Match(
        b=b.name, a=a_dump.states[i].name, a_index=i, relation=relation.code, detail=relation.detail, shift=shift,
        error=short(float(errors.median())), worst=short(float(errors.max())), first=first,
    )  # fmt: skip


def _of_two(dump: Dump, b_NH: torch.Tensor, limit: float) -> Iterator[tuple[int, int, Relation]]:
    """b is the difference or the sum of two states of A."""
    states = [(i, s.x_NH.to(torch.float32)) for i, s in enumerate(dump.states) if s.x_NH.shape == b_NH.shape and not s.normed]
    for i, a in states:
        for j, other in states:
            for code, predicted in (("without-residual", a - other), ("sum-of-states", a + other)):
                if i == j or (code == "sum-of-states" and j > i):
                    continue
                relation = Relation(code=code, predicted_NH=predicted, detail={"other": dump.states[j].name})
                if fits(_cut(relation), b_NH[:FEW], limit) and fits(relation, b_NH, limit):
                    yield i, 0, relation
                    return


def _cut(relation: Relation) -> Relation:
    return replace(relation, predicted_NH=relation.predicted_NH[:FEW])


def _of_blocks(dump: Dump, b_NH: torch.Tensor, limit: float) -> Iterator[tuple[int, int, Relation]]:
    """b is some state with its parts in another order (its likeness to that state as a whole may be small)."""
    for i, a in enumerate(dump.states):
        if a.x_NH.shape == b_NH.shape:
            for relation in find_swapped(a.x_NH.to(torch.float32), b_NH, limit):
                if fits(relation, b_NH, limit):
                    yield i, 0, relation


def _of_directions(dump: Dump, b_NH: torch.Tensor, limit: float) -> Iterator[tuple[int, int, Relation]]:
    """b is some state turned by an orthogonal matrix: its tokens' inner products, and with them its singular values, are that state's."""
    found = []
    b_NN = inner_products(window(b_NH))
    for i, a in enumerate(dump.states):
        if a.x_NH.shape[1] != b_NH.shape[1]:
            continue
        a_NN = inner_products(window(a.x_NH.to(torch.float32)))
        n = min(a_NN.shape[0], b_NN.shape[0])
        for shift in range(-min(SHIFTS, n // 2), min(SHIFTS, n // 2) + 1):
            if n - abs(shift) >= 8:
                a_part, b_part = overlap(a_NN, b_NN, shift)
                a_part, b_part = overlap(a_part.T, b_part.T, shift)
                found.append((apart(a_part, b_part), abs(shift), i, shift))
    if not found:
        return
    error, _, i, shift = min(found)
    others = [each[0] for each in found if each[2:] != (i, shift)]
    if error <= limit and (not others or error < EXPLAINS * min(others)):
        a_NH, _ = overlap(dump.states[i].x_NH.to(torch.float32), b_NH, shift)
        yield i, shift, Relation(code="rotated", predicted_NH=a_NH, detail={"gram_error": short(error)})


def _fallback(b: State, b_NH: torch.Tensor, a_dump: Dump, guess: int | None, ranked: Sequence[tuple[float, int, int]], limit: float) -> Match:
    """Nothing explains the whole of b: the same up to some token, close, or unlike anything."""
    order = [guess] if guess is not None else []
    order += [each[1] for each in ranked[:1] if each[1] not in order]
    for i in order:
        if a_dump.states[i].x_NH.shape[1] != b_NH.shape[1]:
            continue
        a_NH, part_NH = overlap(a_dump.states[i].x_NH.to(torch.float32), b_NH, 0)
        errors = token_errors(a_NH, part_NH)
        good = errors <= limit
        prefix = int(torch.cumprod(good.int(), dim=0).sum())
        if prefix >= 2 or float(good.float().mean()) > 0.2:
            count = int((~good).sum())
            return measured(
                b, a_dump, i, 0, Relation(code="diverges", predicted_NH=a_NH, detail={"tokens": count, "of": int(good.numel())}), part_NH, limit
            )
    best = ranked[0] if ranked else None
    if best is not None and best[0] > LIKE:
        _, i, shift = best
        a_NH, part_NH = overlap(a_dump.states[i].x_NH.to(torch.float32), b_NH, shift)
        close = bool(token_errors(a_NH, part_NH).median() < 0.3)
        relation = Relation(code="drift" if close else "unexplained", predicted_NH=a_NH, detail={"likeness": short(best[0])})
        return measured(b, a_dump, i, shift, relation, part_NH, limit)
    return Match(b=b.name, a=None, a_index=None, relation="unexplained", detail={"likeness": short(best[0]) if best else 0.0})
