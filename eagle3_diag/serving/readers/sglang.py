"""SGLang's acceptance figures.

Sources, versions 0.5.9 and 0.5.23. ``managers/tokenizer_manager.py``: per request in ``meta_info``, a histogram of how many drafts each
verification accepted (``spec_accept_histogram``, later ``spec_correct_drafts_histogram``), ``spec_verify_ct`` and
``spec_accept_length`` = completion tokens / verifications. ``/server_info`` (before: ``/get_server_info``): the mean since start as
``internal_states[].avg_spec_accept_length``, and the server's arguments. ``/metrics``: gauges of the last log interval, and from
0.5.2x ``sglang:spec_verify_calls_total``, with which the mean between two readings can be had.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from eagle3_diag.errors import InputError
from eagle3_diag.observed import Observed, observed
from eagle3_diag.serving import prometheus
from eagle3_diag.serving.http import HttpStatus, get_json
from eagle3_diag.serving.readers.vllm import metrics_text
from eagle3_diag.serving.waiting import Between

SWITCH_ON = (
    "start SGLang with --speculative-algorithm EAGLE3 --speculative-draft-model-path DRAFTER --speculative-num-steps K --speculative-eagle-topk 1 "
    "--speculative-num-draft-tokens K+1, and with --enable-metrics"
)
VERIFICATIONS = "sglang:spec_verify_calls"
GENERATED = "sglang:generation_tokens"
REQUESTS = "sglang:num_requests"
GAUGE = "sglang:spec_accept_length"
HISTOGRAMS = ("spec_correct_drafts_histogram", "spec_accept_histogram")


@dataclass(frozen=True)
class Server:
    """How a server speculates, by its own account. ``topk`` above 1 is a tree of drafts. ``mean``: acceptance length since it started."""

    algorithm: str | None
    steps: int | None
    topk: int | None
    draft_tokens: int | None
    mean: float | None
    version: str | None


def server(url: str, *, timeout: float = 30.0) -> Server:
    """What ``/server_info`` says. Raises InputError where the server does not speculate."""
    try:
        info = get_json(f"{url}/server_info", timeout=timeout)
    except HttpStatus as error:
        if error.status not in (404, 405):
            raise
        info = get_json(f"{url}/get_server_info", timeout=timeout)
    states = [each for each in info.get("internal_states") or () if isinstance(each, dict)]
    means = [float(each["avg_spec_accept_length"]) for each in states if isinstance(each.get("avg_spec_accept_length"), int | float)]

    def find(name: str) -> Any:
        return next((each[name] for each in (info, *states) if each.get(name) is not None), None)

    algorithm = find("speculative_algorithm")
    if algorithm is None:
        raise InputError(f"sglang:{url}: this server does not speculate (its speculative_algorithm is not set); {SWITCH_ON}")

    def number(name: str) -> int | None:
        value = find(name)
        return int(value) if isinstance(value, int | float) and not isinstance(value, bool) else None

    version = info.get("version")
    return Server(
        algorithm=str(algorithm),
        steps=number("speculative_num_steps"),
        topk=number("speculative_eagle_topk"),
        draft_tokens=number("speculative_num_draft_tokens"),
        mean=math.fsum(means) / len(means) if means else None,
        version=None if version is None else str(version),
    )


def agreed_steps(found: Server, steps: int | None, source: str) -> int:
    """Drafted tokens per verification. Raises InputError where the server and the caller disagree, or the drafts are a tree."""
    if found.topk is not None and found.topk > 1:
        raise InputError(
            f"{source}: drafts a tree (speculative_eagle_topk {found.topk}), and a tree's acceptance says nothing about a chain's; "
            "start the server with --speculative-eagle-topk 1 for this comparison"
        )
    if found.steps is None and steps is None:
        raise InputError(f"{source}: does not say how many tokens it drafts per step; give --steps K")
    if found.steps is not None and steps is not None and found.steps != steps:
        raise InputError(f"{source}: drafts {found.steps} tokens per step, but --steps says {steps}; leave --steps out, or start the server anew")
    return found.steps if found.steps is not None else steps or 0


def read(url: str, steps: int | None, between: Between) -> Observed:
    """The mean of a running server: between two readings where it counts verifications, else since it started.

    SGLang's endpoints keep no counts per position; ``meta_info`` of the requests does (:func:`from_meta_info`).
    """
    source = f"sglang:{url}"
    found = server(url)
    count = agreed_steps(found, steps, source)
    if between.from_start:
        if found.mean is None:
            raise InputError(f"{source}: has verified no draft since it started; send it requests first")
        return observed(steps=count, acceptance_length=found.mean, source=f"{source} (mean since it started)")
    saved = between.saved()
    earlier = prometheus.parse(metrics_text(url, SWITCH_ON) if saved is None else saved)
    if prometheus.total(earlier, VERIFICATIONS) is None and prometheus.average(earlier, GAUGE) is None:
        raise InputError(f"{source}: its /metrics has no figure of speculative decoding; {SWITCH_ON}")
    if prometheus.total(earlier, VERIFICATIONS) is None:
        raise InputError(
            f"{source}: this version counts no verifications ({VERIFICATIONS}_total), so two readings have no difference; give --since start for the mean since it "
            "started, or a file with the answers of /generate, whose meta_info holds a histogram"
        )
    if saved is None:
        between.wait(source)
    later = prometheus.parse(metrics_text(url, SWITCH_ON))
    verified, generated, requests = (_difference(earlier, later, name, source) for name in (VERIFICATIONS, GENERATED, REQUESTS))
    if verified == 0:
        raise InputError(f"{source}: no request was finished between the two readings; send some, and wait for their ends")
    # Each request's first token comes from its prefill, not from a verification; the last run of each is cut by the request's end.
    length = max(1.0, min(count + 1.0, (generated - requests) / verified))
    return observed(steps=count, drafts=verified, acceptance_length=length, rounding=requests / verified, source=source, requests=requests)


def _difference(earlier: list[prometheus.Metric], later: list[prometheus.Metric], name: str, source: str) -> int:
    before, after = prometheus.total(earlier, name), prometheus.total(later, name)
    if after is None:
        raise InputError(f"{source}: its /metrics has no {name}_total; {SWITCH_ON}")
    if after < (before or 0.0):
        raise InputError(
            f"{source}: the counters went backwards ({name}: {before:g}, then {after:g}): the server was restarted between the two readings; take both from one run"
        )
    return round(after - (before or 0.0))


def histogram(meta: Mapping[str, Any], source: str) -> list[int] | None:
    """How many verifications accepted 0, 1, 2, … drafts, from one request's ``meta_info``; None where it has no histogram."""
    for name in HISTOGRAMS:
        counts = meta.get(name)
        if isinstance(counts, Sequence) and not isinstance(counts, str):
            if not all(isinstance(n, int) and not isinstance(n, bool) and n >= 0 for n in counts):
                raise InputError(f"{source}: {name} holds something else than counts; it is damaged")
            return list(counts)
    return None


def from_meta_info(metas: Sequence[Mapping[str, Any]], steps: int | None, source: str) -> Observed:
    """Requests' ``meta_info`` added up."""
    summed: list[int] = []
    lengths = []
    for meta in metas:
        counts = histogram(meta, source)
        if counts is not None:
            summed = [a + b for a, b in zip(summed + [0] * (len(counts) - len(summed)), counts + [0] * (len(summed) - len(counts)), strict=True)]
        if isinstance(meta.get("spec_accept_length"), int | float) and isinstance(meta.get("spec_verify_ct"), int):
            lengths.append(float(meta["spec_accept_length"]))
    proposed = {round(n / v) for m in metas if (v := m.get("spec_verify_ct")) and (n := m.get("spec_num_proposed_drafts", m.get("spec_draft_token_num")))}
    if len(proposed) > 1:
        raise InputError(f"{source}: its requests drafted {sorted(proposed)} tokens per step; keep those of one setting")
    count = steps or next(iter(proposed), None)
    if count is None:
        raise InputError(f"{source}: does not say how many tokens were drafted per step; give --steps K")
    if proposed and count not in proposed:
        raise InputError(f"{source}: drafted {proposed.pop()} tokens per step, but --steps says {steps}; leave --steps out")
    if summed:
        if len(summed) > count + 1:
            raise InputError(f"{source}: counts runs of {len(summed) - 1} drafts, but {count} are drafted per step; give --steps {len(summed) - 1} or more")
        accepted = tuple(float(sum(summed[k + 1 :])) for k in range(count))
        return observed(steps=count, drafts=sum(summed), accepted_per_position=accepted, source=source, requests=len(metas))
    if lengths:
        return observed(steps=count, acceptance_length=math.fsum(lengths) / len(lengths), per="request", source=source, requests=len(lengths))
    raise InputError(f"{source}: its meta_info has no figures of speculative decoding; {SWITCH_ON}")
