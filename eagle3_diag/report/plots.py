"""Small SVG plots, drawn with text and rectangles; colours come from the page's CSS variables, so they follow light and dark.

Plots are laid out for a narrow screen (360 units wide) and scale up; every mark carries its figure as a ``<title>``, which
browsers show on hovering and screen readers read.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from eagle3_diag.report.escape import html

WIDTH, HEIGHT = 360, 236
_LEFT, _RIGHT, _TOP, _BOTTOM = 52, 8, 12, 38
_INNER_W, _INNER_H = WIDTH - _LEFT - _RIGHT, HEIGHT - _TOP - _BOTTOM
#: More samples than this are drawn as a histogram.
MOST_DOTS = 80


@dataclass(frozen=True, kw_only=True)
class Series:
    """A named line or set of bars: one value per step, None where unknown; ``colour`` is a CSS class."""

    name: str
    values: Sequence[float | None]
    colour: str


def bars(series: Series, *, y_label: str, x_label: str, labels: Sequence[str], description: str, names: Sequence[str] | None = None) -> str:
    """Bars over steps (or over what ``names`` are) on a scale from 0 to 100 %; ``labels`` are the counts behind them."""
    slot = _INNER_W / max(1, len(series.values))
    parts = [_share_axis(y_label), *(_step_labels(len(series.values), slot, x_label) if names is None else _name_labels(names, slot, x_label))]
    for k, value in enumerate(series.values):
        if value is None:
            continue
        height = value * _INNER_H
        x, y = _LEFT + k * slot + slot * 0.15, _TOP + _INNER_H - height
        title = f"step {k}: {labels[k]} accepted, {value:.1%}" if names is None else f"{names[k]}: {labels[k]}, {value:.1%}"
        parts.append(f'<rect class="{series.colour}" x="{x:.1f}" y="{y:.1f}" width="{slot * 0.7:.1f}" height="{height:.1f}" rx="2">{_title(title)}</rect>')
        parts.append(f'<text class="figure" x="{x + slot * 0.35:.1f}" y="{max(y - 4, _TOP + 8):.1f}" text-anchor="middle">{value:.0%}</text>')
    return _svg(parts, description)


def lines(all_series: Sequence[Series], *, y_label: str, x_label: str, description: str) -> str:
    """Lines over steps on a scale from 0 to 100 %."""
    steps = max(len(s.values) for s in all_series)
    slot = _INNER_W / max(1, steps)
    parts = [_share_axis(y_label), *_step_labels(steps, slot, x_label)]
    for series in all_series:
        points = [(_LEFT + (k + 0.5) * slot, _TOP + _INNER_H * (1 - v), v, k) for k, v in enumerate(series.values) if v is not None]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y, _, _ in points)
        parts.append(f'<polyline class="line {series.colour}" points="{path}"/>')
        parts += [
            f'<circle class="{series.colour}" cx="{x:.1f}" cy="{y:.1f}" r="4">{_title(f"{series.name}, step {k}: {v:.1%}")}</circle>'
            for x, y, v, k in points
        ]
    return _svg(parts, description)


def spread(
    values: Sequence[tuple[str, float]], *, mean: float, interval: Sequence[float] | None, top: float, y_label: str, description: str
) -> str:
    """One dot per sample in ascending order (a histogram of many), the mean as a line and its interval as a band."""
    low = 1.0
    span = max(top - low, 1e-9)
    if len(values) > MOST_DOTS:
        return _histogram([v for _, v in values], mean=mean, interval=interval, low=low, top=top, description=description)

    def height(value: float) -> float:
        return _TOP + _INNER_H * (1 - (min(max(value, low), top) - low) / span)

    parts = [_value_axis(low, top, y_label)]
    if interval is not None:
        upper, lower = height(interval[1]), height(interval[0])
        band = f'<rect class="band" x="{_LEFT}" y="{upper:.1f}" width="{_INNER_W}" height="{max(lower - upper, 1):.1f}">'
        parts.append(f"{band}{_title(f'95 % interval {interval[0]:.2f} to {interval[1]:.2f}')}</rect>")
    parts.append(f'<line class="mean" x1="{_LEFT}" x2="{WIDTH - _RIGHT}" y1="{height(mean):.1f}" y2="{height(mean):.1f}">{_title(f"mean {mean:.2f}")}</line>')
    ordered = sorted(values, key=lambda each: (each[1], each[0]))
    slot = _INNER_W / max(1, len(ordered))
    for i, (name, value) in enumerate(ordered):
        x = _LEFT + (i + 0.5) * slot
        parts.append(f'<circle class="c1" cx="{x:.1f}" cy="{height(value):.1f}" r="{3.5 if len(ordered) > 30 else 5}">{_title(f"{name}: {value:.2f}")}</circle>')
    parts.append(_x_label("samples, least accepted first"))
    return _svg(parts, description)


def _histogram(values: Sequence[float], *, mean: float, interval: Sequence[float] | None, low: float, top: float, description: str) -> str:
    bins = 24
    counts = [0] * bins
    for value in values:
        counts[min(bins - 1, max(0, int((value - low) / max(top - low, 1e-9) * bins)))] += 1
    most = max(counts)
    slot = _INNER_W / bins

    def across(value: float) -> float:
        return _LEFT + _INNER_W * (min(max(value, low), top) - low) / max(top - low, 1e-9)

    parts = [_frame("samples")]
    parts += [_tick(_TOP, f"{most:,}"), _tick(_TOP + _INNER_H, "0")]
    if interval is not None:
        left, right = across(interval[0]), across(interval[1])
        band = f'<rect class="band" x="{left:.1f}" y="{_TOP}" width="{max(right - left, 1):.1f}" height="{_INNER_H}">'
        parts.append(f"{band}{_title(f'95 % interval {interval[0]:.2f} to {interval[1]:.2f}')}</rect>")
    for i, n in enumerate(counts):
        height = n / most * _INNER_H
        start, end = low + (top - low) * i / bins, low + (top - low) * (i + 1) / bins
        parts.append(
            f'<rect class="c1" x="{_LEFT + i * slot + 0.5:.1f}" y="{_TOP + _INNER_H - height:.1f}" width="{slot - 1:.1f}" height="{height:.1f}">'
            f"{_title(f'{start:.2f} to {end:.2f}: {n:,} samples')}</rect>"
        )
    parts.append(f'<line class="mean" x1="{across(mean):.1f}" x2="{across(mean):.1f}" y1="{_TOP}" y2="{_TOP + _INNER_H}">{_title(f"mean {mean:.2f}")}</line>')
    for value in _nice_ticks(low, top):
        parts.append(f'<text class="tick" x="{across(value):.1f}" y="{_TOP + _INNER_H + 15}" text-anchor="middle">{value:g}</text>')
    parts.append(_x_label("acceptance length of a sample"))
    return _svg(parts, description)


def _svg(parts: Sequence[str], description: str) -> str:
    return f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{html(description)}">{"".join(parts)}</svg>'


def _title(text: str) -> str:
    return f"<title>{html(text)}</title>"


def _frame(y_label: str) -> str:
    middle = _TOP + _INNER_H / 2
    return (
        f'<line class="axis" x1="{_LEFT}" x2="{WIDTH - _RIGHT}" y1="{_TOP + _INNER_H}" y2="{_TOP + _INNER_H}"/>'
        f'<text class="label" x="9" y="{middle}" text-anchor="middle" transform="rotate(-90 9 {middle})">{html(y_label)}</text>'
    )


def _tick(y: float, label: str) -> str:
    return (
        f'<line class="grid" x1="{_LEFT}" x2="{WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>'
        f'<text class="tick" x="{_LEFT - 4}" y="{y + 3.5:.1f}" text-anchor="end">{html(label)}</text>'
    )


def _share_axis(y_label: str) -> str:
    return _frame(y_label) + "".join(_tick(_TOP + _INNER_H * (1 - share), f"{share:.0%}") for share in (0.0, 0.25, 0.5, 0.75, 1.0))


def _value_axis(low: float, top: float, y_label: str) -> str:
    ticks = "".join(_tick(_TOP + _INNER_H * (1 - (value - low) / max(top - low, 1e-9)), f"{value:g}") for value in _nice_ticks(low, top))
    return _frame(y_label) + ticks


def _nice_ticks(low: float, top: float) -> list[float]:
    """Four to eight round values from ``low`` to ``top``."""
    raw = (top - low) / 6
    power = 10.0 ** math.floor(math.log10(raw)) if raw > 0 else 1.0
    step = next((m * power for m in (1, 2, 5) if m * power >= raw), 10 * power)
    first = math.ceil(low / step - 1e-9)
    return [i * step for i in range(first, math.floor(top / step + 1e-9) + 1)]


def _step_labels(steps: int, slot: float, x_label: str) -> list[str]:
    every = max(1, math.ceil(steps / 12))
    ticks = [
        f'<text class="tick" x="{_LEFT + (k + 0.5) * slot:.1f}" y="{_TOP + _INNER_H + 15}" text-anchor="middle">{k}</text>' for k in range(0, steps, every)
    ]
    return [*ticks, _x_label(x_label)]


def _name_labels(names: Sequence[str], slot: float, x_label: str) -> list[str]:
    y = _TOP + _INNER_H + 15
    ticks = [f'<text class="tick" x="{_LEFT + (k + 0.5) * slot:.1f}" y="{y}" text-anchor="middle">{html(name)}</text>' for k, name in enumerate(names)]
    return [*ticks, _x_label(x_label)]


def _x_label(text: str) -> str:
    return f'<text class="label" x="{_LEFT + _INNER_W / 2}" y="{HEIGHT - 6}" text-anchor="middle">{html(text)}</text>'
