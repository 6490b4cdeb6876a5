"""Acceptance from a server's log.

vLLM (``v1/spec_decode/metrics.py``) logs every few seconds what happened since the line before: drafted and accepted tokens, and
rates per position with three digits, from which the counts come back exactly for up to 500 drafts a line.

SGLang logs "accept len" (bonus token included) and "accept rate" every so many decode steps. The rate divides the length by the
number of draft tokens, the root counted, up to 0.5.9 (``scheduler_metrics_mixin.py``), and in newer versions the accepted drafts by
the drafted ones (``metrics_reporter.py``): either way length and rate together tell how many tokens are drafted.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from eagle3_diag.errors import InputError
from eagle3_diag.observed import Observed, observed

_VLLM = re.compile(r"SpecDecoding metrics: (.*)")
_SGLANG = re.compile(r"Decode batch.*?accept len: ([\d.]+), accept rate: ([\d.]+)")
_RUNNING = re.compile(r"#running-req: (\d+)")
_VLLM_STEPS = re.compile(r"num_spec(?:ulative)?_tokens['\"]?[=:]\s*(\d+)")
_SGLANG_STEPS = re.compile(r"speculative_num_steps=(\d+)")
_SGLANG_TOPK = re.compile(r"speculative_eagle_topk=(\d+)")
#: Half a unit of the last printed digit.
_HALF_MILLI, _HALF_CENT = 0.0005, 0.005
_MOST_STEPS = 64


def is_log(text: str) -> bool:
    """Whether a text has lines of either server that tell acceptance."""
    return _VLLM.search(text) is not None or _SGLANG.search(text) is not None


@dataclass
class _Line:
    drafts: int
    accepted: list[int]
    exact: bool


def read(text: str, steps: int | None, source: str) -> Observed:
    """All lines of a log added up. Raises InputError where a log has none, or lines of two settings."""
    if found := _VLLM.findall(text):
        return _vllm(found, text, steps, source)
    if lines := [line for line in text.splitlines() if _SGLANG.search(line)]:
        return _sglang(lines, text, steps, source)
    raise InputError(
        f"{source}: has no line about acceptance (vLLM: 'SpecDecoding metrics: ...', SGLang: 'accept len: ...'); take the log of the server with speculation on "
        "that has just served requests"
    )


def _vllm(found: list[str], text: str, steps: int | None, source: str) -> Observed:
    lines = [line for each in found if (line := _vllm_line(each, source)) is not None]
    if not lines:
        raise InputError(f"{source}: its lines of 'SpecDecoding metrics' have no counts (Accepted, Drafted, Per-position); the log is cut or of another version")
    widths = {len(line.accepted) for line in lines}
    if len(widths) > 1:
        raise InputError(f"{source}: holds lines of {sorted(widths)} positions: runs of different settings; keep the lines of one run")
    count = widths.pop()
    _agree(count, steps, source)
    configured = {int(n) for n in _VLLM_STEPS.findall(text)}
    if configured and count not in configured:
        raise InputError(f"{source}: the server says it drafts {sorted(configured)} tokens, its lines have {count} positions; keep the lines of one run")
    accepted = tuple(float(sum(line.accepted[k] for line in lines)) for k in range(count))
    rounded = "" if all(line.exact for line in lines) else " (counts per position rounded: it prints rates with three digits)"
    return observed(steps=count, drafts=sum(line.drafts for line in lines), accepted_per_position=accepted, source=source + rounded)


def _vllm_line(text: str, source: str) -> _Line | None:
    drafted, accepted = re.search(r"Drafted: (\d+) tokens", text), re.search(r"Accepted: (\d+) tokens", text)
    rates = re.search(r"Per-position acceptance rate: ([\d., ]*\d)", text)
    if not (drafted and accepted and rates):
        return None
    values = [float(each) for each in rates.group(1).split(",") if each.strip()]
    total, summed = int(drafted.group(1)), int(accepted.group(1))
    mean = re.search(r"Mean acceptance length: ([\d.]+)", text)
    drafts = _drafts(total, len(values), summed, None if mean is None else float(mean.group(1)))
    counts = [round(rate * drafts) for rate in values]
    for k in range(1, len(counts)):  # rounding alone may let a flat profile rise by one
        counts[k] = min(counts[k], counts[k - 1])
    slack = len(values) * (1 + drafts * _HALF_MILLI)
    if abs(sum(counts) - summed) > slack:
        raise InputError(f"{source}: a line says {summed} accepted tokens, but its rates make {sum(counts)}; the line is damaged: {text[:120]!r}")
    return _Line(drafts, counts, drafts * _HALF_MILLI < 0.5 and sum(counts) == summed)


def _drafts(drafted: int, positions: int, accepted: int, mean: float | None) -> int:
    """Verifications behind a line: drafted tokens over positions, unless drafts near a request's end were shorter (the mean tells)."""
    drafts = math.ceil(drafted / positions)
    if drafted % positions and mean is not None and mean > 1 + _HALF_CENT:
        drafts = max(drafts, round(accepted / (mean - 1)))
    return drafts


def _sglang(lines: list[str], text: str, steps: int | None, source: str) -> Observed:
    if any(int(k) > 1 for k in _SGLANG_TOPK.findall(text)):
        raise InputError(f"{source}: the server drafts a tree (speculative_eagle_topk above 1), whose acceptance says nothing about a chain's; serve with 1")
    pairs, weights = [], []
    for line in lines:
        match, running = _SGLANG.search(line), _RUNNING.search(line)
        assert match is not None
        pairs.append((float(match.group(1)), float(match.group(2))))
        weights.append(max(1, int(running.group(1))) if running else 1)
    configured = {int(n) for n in _SGLANG_STEPS.findall(text)}
    if len(configured) > 1:
        raise InputError(f"{source}: holds runs with {sorted(configured)} draft steps; keep the lines of one run")
    count = next(iter(configured), None)
    if count is not None:
        _agree(count, steps, source)
    fitting = _fitting_steps(pairs)
    if count is None:
        count = steps if steps is not None else (fitting[0] if len(fitting) == 1 else None)
    if count is None:
        raise InputError(f"{source}: its lines fit {fitting or 'no number of'} draft tokens per step; give --steps K (speculative_num_steps)")
    if fitting and count not in fitting:
        raise InputError(f"{source}: its lines fit {' or '.join(map(str, fitting))} drafted tokens per step, not {count}; check --steps")
    length = math.fsum(w * each for w, (each, _) in zip(weights, pairs, strict=True)) / sum(weights)
    where = f"{source} (mean of {len(pairs)} lines, weighted by running requests)"
    return observed(steps=count, acceptance_length=max(1.0, length), rounding=_HALF_CENT, source=where)


def _fitting_steps(pairs: list[tuple[float, float]]) -> list[int]:
    """Numbers of drafted tokens under which every line's length and rate agree, by one of the two definitions for all lines."""

    def fits(length: float, rate: float, divisor: int, offset: float) -> bool:
        return abs((length - offset) - rate * divisor) <= _HALF_CENT * (1 + divisor) + 1e-9

    found = set()
    for k in range(1, _MOST_STEPS + 1):
        if all(fits(length, rate, k + 1, 0.0) for length, rate in pairs) or all(fits(length, rate, k, 1.0) for length, rate in pairs):
            found.add(k)
    return sorted(found)


def _agree(found: int, steps: int | None, source: str) -> None:
    if steps is not None and steps != found:
        raise InputError(f"{source}: is of {found} drafted tokens per step, but --steps says {steps}; leave --steps out, or give the log of that run")
