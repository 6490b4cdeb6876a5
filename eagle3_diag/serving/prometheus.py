"""Prometheus' text format, as far as counters and gauges go.

Source: the exposition format's own description: ``name{label="value",...} number [timestamp]``, comments begin with ``#``; label
values escape backslash, quote and line feed.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass

_LINE = re.compile(r"^([a-zA-Z_:][a-zA-Z0-9_:]*)\s*(?:\{(.*)\})?\s+(\S+)(?:\s+-?\d+)?\s*$")
_LABEL = re.compile(r'\s*([a-zA-Z_][a-zA-Z0-9_]*)\s*=\s*"((?:[^"\\]|\\.)*)"\s*,?')
_ESCAPES = {"\\\\": "\\", '\\"': '"', "\\n": "\n"}


@dataclass(frozen=True)
class Metric:
    """One sample of a metric."""

    name: str
    labels: Mapping[str, str]
    value: float


def is_metrics(text: str) -> bool:
    """Whether a text is of this format: it declares a metric's type."""
    return re.search(r"^# TYPE \S+ (counter|gauge|histogram|summary|untyped)\s*$", text, re.MULTILINE) is not None


def parse(text: str) -> list[Metric]:
    """Every sample with a finite value; lines of another form are left out."""
    found = []
    for line in text.splitlines():
        if line.startswith("#") or not (match := _LINE.match(line)):
            continue
        name, labels, number = match.groups()
        try:
            value = float(number)
        except ValueError:
            continue
        if math.isfinite(value):
            found.append(Metric(name, _labels(labels or ""), value))
    return found


def _labels(text: str) -> dict[str, str]:
    return {name: re.sub(r"\\[\\\"n]", lambda m: _ESCAPES[m.group()], value) for name, value in _LABEL.findall(text)}


def total(metrics: list[Metric], name: str) -> float | None:
    """The sum over all labels (a server may run several engines) of a counter, with or without its ``_total``; None where it is absent."""
    values = [m.value for m in metrics if m.name in (name, f"{name}_total")]
    return math.fsum(values) if values else None


def by_label(metrics: list[Metric], name: str, label: str) -> dict[str, float]:
    """Sums of a counter by one label's value."""
    found: dict[str, float] = {}
    for m in metrics:
        if m.name in (name, f"{name}_total") and label in m.labels:
            found[m.labels[label]] = found.get(m.labels[label], 0.0) + m.value
    return found


def average(metrics: list[Metric], name: str) -> float | None:
    """The mean over all labels of a gauge; None where it is absent."""
    values = [m.value for m in metrics if m.name == name]
    return math.fsum(values) / len(values) if values else None
