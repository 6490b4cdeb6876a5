"""What one state can be to another over the same tokens: candidates in order of simplicity, and the one that explains it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from eagle3_diag.drafter import rms_norm
from eagle3_diag.hidden.measures import DTYPES, EXPLAINS, ROUNDING, short, token_errors

_EPS = 1e-6

#: What a state of B can be to its state of A, in words.
RELATIONS: Mapping[str, str] = {
    "identical": "equal to the bit",
    "rounded": "rounded",
    "same": "the same up to rounding",
    "quantised": "quantised",
    "scaled": "multiplied by one number",
    "normed": "after an RMSNorm",
    "un-normed": "before an RMSNorm",
    "channel-scaled": "multiplied channel by channel",
    "shards-swapped": "parts of its channels in another order",
    "without-residual": "the layer's own output, without the residual stream",
    "sum-of-states": "the sum of two states",
    "unsummed": "one part of a sum",
    "rotated": "rotated: lengths and angles agree, directions do not",
    "diverges": "the same, then different",
    "drift": "close, but by more than rounding",
    "unexplained": "unlike every state",
}


@dataclass(frozen=True, kw_only=True)
class Relation:
    """A candidate: what b would be if it held."""

    code: str
    predicted_NH: torch.Tensor
    detail: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Norm:
    """An RMSNorm that a state may have gone through: a name for people, and its whole weight (offset added), or None for a weight of ones."""

    name: str
    weight_H: torch.Tensor | None


def _quantised(a_NH: torch.Tensor, to: str, per: str) -> torch.Tensor | None:
    """a rounded as a quantised engine rounds it, one scale per tensor, token, channel or group of 128 channels; None where that does not fit."""
    most = {"fp8": 448.0, "fp8-e5m2": 57344.0, "int8": 127.0, "int4": 7.0}[to]
    shape = a_NH.shape
    if per == "group" and shape[1] % 128:
        return None
    x = a_NH.reshape(shape[0], -1, 128) if per == "group" else a_NH
    if per == "none":
        scale = torch.ones(())
    elif per == "tensor":
        scale = x.abs().max() / most
    else:
        scale = x.abs().amax(dim=0 if per == "channel" else -1, keepdim=True) / most
    scaled = x / scale.clamp(min=1e-30)
    if to.startswith("fp8"):
        dtype = torch.float8_e4m3fn if to == "fp8" else torch.float8_e5m2
        rounded = scaled.clamp(-most, most).to(dtype).to(torch.float32)
    else:
        rounded = scaled.round().clamp(-most, most)
    return (rounded * scale).reshape(shape)


def share(left: torch.Tensor, whole: torch.Tensor) -> float:
    """How much of a difference is left, as a share of it."""
    return float(left.norm() / whole.norm().clamp(min=1e-30))


def _find_quantised(a_NH: torch.Tensor, b_NH: torch.Tensor, precision: str) -> Iterator[Relation]:
    difference = b_NH - a_NH
    if share(difference, a_NH) < 0.75 * ROUNDING[precision]:  # rounding alone is off by 0.3 of it
        return
    best: tuple[float, str, str] | None = None
    for to in ("int4", "int8", "fp8", "fp8-e5m2"):
        # Without a scale first: a scale that is a power of two gives the same numbers, and the simpler account of them stands.
        for per in ("none", "tensor", "token", "channel", "group"):
            if per == "none" and not to.startswith("fp8"):
                continue
            of_a, of_b = _quantised(a_NH, to, per), _quantised(b_NH, to, per)
            if of_a is None or of_b is None:
                continue
            # Either rounding A gives B (stored in its own precision since), or B lies on the grid that rounding it again would give, as A does not.
            left = [share(b_NH - each, difference) for each in (of_a, of_a.to(DTYPES[precision]).to(torch.float32))]
            if share(difference, of_a - a_NH) < 2:
                left.append(share(of_b - b_NH, of_a - a_NH))
            if min(left) < EXPLAINS and (best is None or min(left) < best[0]):
                best = (min(left), to, per)
    if best is not None:
        yield Relation(code="quantised", predicted_NH=a_NH, detail={"to": best[1], "per": best[2]})


def _find_scaled(a_NH: torch.Tensor, b_NH: torch.Tensor, precision: str) -> Iterator[Relation]:
    size_H = a_NH.abs().median(dim=0).values.clamp(min=1e-30)
    a, b = a_NH / size_H, b_NH / size_H
    by = float((a * b).sum() / a.square().sum().clamp(min=1e-30))
    if abs(by - 1) > 5 * ROUNDING[precision] and share(b - by * a, b - a) < EXPLAINS:
        yield Relation(code="scaled", predicted_NH=by * a_NH, detail={"by": short(by)})


def _unit(x_NH: torch.Tensor) -> torch.Tensor:
    return rms_norm(x_NH, torch.ones(x_NH.shape[1]), _EPS)


def _gain(x_NH: torch.Tensor, y_NH: torch.Tensor) -> torch.Tensor:
    """The gain per channel that turns x into y best."""
    return (x_NH * y_NH).sum(0) / x_NH.square().sum(0).clamp(min=1e-30)


def _find_normed(a_NH: torch.Tensor, b_NH: torch.Tensor, norms: Sequence[Norm]) -> Iterator[Relation]:
    """b after a norm that a lacks: a known one, one without weight, or one whose weight is found from the data."""
    unit = _unit(a_NH)
    for norm in (*norms, Norm(name="no weight", weight_H=None)):
        if norm.weight_H is None or norm.weight_H.shape[0] == a_NH.shape[1]:
            yield Relation(code="normed", predicted_NH=unit if norm.weight_H is None else unit * norm.weight_H, detail={"by": norm.name})
    if a_NH.shape[0] >= 16:
        normed, plain = unit * _gain(unit, b_NH), a_NH * _gain(a_NH, b_NH)
        better = "normed" if share(b_NH - normed, b_NH) <= share(b_NH - plain, b_NH) else "channel-scaled"
        yield Relation(code=better, predicted_NH=normed if better == "normed" else plain, detail={"by": "a weight that is not known"} if better == "normed" else {})


def _find_unnormed(a_NH: torch.Tensor, b_NH: torch.Tensor, norms: Sequence[Norm]) -> Iterator[Relation]:
    """a after a norm that b lacks: the prediction is a's, brought to b's length token by token."""
    unit_b = _unit(b_NH)
    length_N1 = b_NH.square().mean(-1, keepdim=True).sqrt()
    for norm in (*norms, Norm(name="no weight", weight_H=None)):
        weight_H = norm.weight_H
        if weight_H is not None and (weight_H.shape[0] != a_NH.shape[1] or bool((weight_H.abs() < 1e-3 * weight_H.abs().max()).any())):
            continue
        yield Relation(code="un-normed", predicted_NH=length_N1 * _unit(a_NH if weight_H is None else a_NH / weight_H), detail={"by": norm.name})
    if a_NH.shape[0] >= 16:
        gain_H = _gain(unit_b, a_NH)
        gain_H = torch.where(gain_H.abs() < 1e-3 * gain_H.abs().max(), gain_H.abs().max() * 1e-3, gain_H)
        yield Relation(code="un-normed", predicted_NH=length_N1 * _unit(a_NH / gain_H), detail={"by": "a weight that is not known"})


def find_swapped(a_NH: torch.Tensor, b_NH: torch.Tensor, limit: float) -> Iterator[Relation]:
    """Channels in W equal parts, as W tensor-parallel ranks hold them, put together in another order or one of them twice."""
    width = a_NH.shape[1]
    for parts in (2, 3, 4, 6, 8, 16, 32):
        if width % parts or width // parts < 2:
            continue
        a_parts, b_parts = a_NH.chunk(parts, dim=1), b_NH.chunk(parts, dim=1)
        order = []
        for b in b_parts:
            errors = [float(token_errors(a, b).median()) for a in a_parts]
            best = min(range(parts), key=errors.__getitem__)
            if errors[best] > limit:
                break
            order.append(best)
        if len(order) == parts and order != list(range(parts)):
            predicted = torch.cat([a_parts[i] for i in order], dim=1)
            yield Relation(code="shards-swapped", predicted_NH=predicted, detail={"parts": parts, "order": order})
            return


def fits(relation: Relation, b_NH: torch.Tensor, limit: float) -> bool:
    """Whether all but a stray token in twenty stay below twice the limit (the numbers of a relation are estimates)."""
    return bool((token_errors(relation.predicted_NH, b_NH) <= 2 * limit).float().mean() >= 0.95)


def relate(a_NH: torch.Tensor, b_NH: torch.Tensor, norms: Sequence[Norm], precision: str, limit: float) -> Relation | None:
    """The simplest relation of two aligned states that explains b, or None."""
    if torch.equal(a_NH, b_NH):
        return Relation(code="identical", predicted_NH=a_NH)
    for name in ("float16", "bfloat16"):
        dtype = DTYPES[name]
        for code_of, x, y in (("b", a_NH, b_NH), ("a", b_NH, a_NH)):
            if torch.equal(x.to(dtype).to(torch.float32), y):
                return Relation(code="rounded", predicted_NH=a_NH, detail={"to": name, "which": code_of})
    for relation in (*_find_quantised(a_NH, b_NH, precision), *_find_scaled(a_NH, b_NH, precision)):
        if relation.code == "quantised" or fits(relation, b_NH, limit):
            return relation
    good = (token_errors(a_NH, b_NH) <= limit).float().mean()
    if good == 1:
        return Relation(code="same", predicted_NH=a_NH)
    if good > 0.2:  # the same but for some tokens: no transformation leaves any as it was
        return None
    found = (*_find_normed(a_NH, b_NH, norms), *_find_unnormed(a_NH, b_NH, norms), *find_swapped(a_NH, b_NH, limit))
    return next((relation for relation in found if fits(relation, b_NH, limit)), None)
