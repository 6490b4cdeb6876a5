"""``--served SOURCE``: which reader a source is for."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from eagle3_diag.errors import InputError
from eagle3_diag.observed import Observed
from eagle3_diag.serving import prometheus
from eagle3_diag.serving.http import base_url
from eagle3_diag.serving.readers import figures, files, log, sglang, vllm
from eagle3_diag.serving.waiting import Between

Mean = Literal["per-step", "per-request"]

KINDS = (
    "vllm:URL, sglang:URL, a server's log, a saved /metrics, a JSON file (vLLM's counters, a speculation_profile.json, SGLang's answers), or figures such as "
    "accept-length=1.8,steps=5 or rates=0.71,0.22"
)
_MOST_BYTES = 1 << 30


def read_served(source: str, *, steps: int | None = None, mean: Mean = "per-step", between: Between | None = None) -> Observed:
    """The acceptance that a source tells.

    Args:
        source: see ``KINDS``.
        steps: drafted tokens per verification, where the caller knows; must agree with what the source says.
        mean: what an acceptance length without a profile is a mean of.
        between: how the earlier of two readings of a running server is had.

    Raises:
        InputError: the source cannot be read, has no counters, or contradicts itself or ``steps``.
    """
    between = between or Between()
    kind, colon, rest = source.partition(":")
    if colon and kind in ("vllm", "sglang") and not Path(source).exists():
        url = base_url(rest)
        if kind == "sglang":
            return sglang.read(url, steps, between)
        return _agreed(vllm.read(url, between), steps)
    if figures.is_figures(source):
        return figures.read(source, steps, mean == "per-request")
    text = _text(source)
    if prometheus.is_metrics(text):
        return _agreed(vllm.read_file(text, source, between), steps)
    data = files.loads(text)
    if data is not None:
        return files.read(data, steps, mean == "per-request", source)
    if log.is_log(text):
        return log.read(text, steps, source)
    raise InputError(f"{source}: nothing in it tells acceptance (looked for vLLM's and SGLang's log lines, metrics and JSON); it can be {KINDS}")


def _agreed(observed: Observed, steps: int | None) -> Observed:
    if steps is not None and steps != observed.steps:
        raise InputError(f"{observed.source}: drafts {observed.steps} tokens per step, but --steps says {steps}; leave --steps out, or check which server it is")
    return observed


def _text(source: str) -> str:
    path = Path(source)
    try:
        if path.is_dir():
            raise InputError(f"{source}: is a directory; name a file in it")
        if not path.exists():
            raise InputError(f"--served {source}: there is no such file; it can be {KINDS}")
        if path.is_file() and path.stat().st_size > _MOST_BYTES:
            raise InputError(f"{source}: has more than {_MOST_BYTES >> 30} GiB; cut it to the run in question")
        return path.read_text("utf-8", "replace")
    except (OSError, ValueError) as error:
        raise InputError(f"--served {source}: cannot be read ({getattr(error, 'strerror', None) or error}); it can be {KINDS}") from None
