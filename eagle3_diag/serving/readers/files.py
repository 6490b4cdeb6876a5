"""JSON files that hold acceptance: vLLM's counters, ``speculation_profile.json``, SGLang's answers with ``meta_info``."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from eagle3_diag.errors import InputError
from eagle3_diag.observed import Observed, observed
from eagle3_diag.serving.readers import sglang

#: Each figure's names: vLLM's own in its metrics and in the reports people make of them.
_NAMES = {
    "drafts": ("num_drafts", "spec_decode_num_drafts", "vllm:spec_decode_num_drafts", "drafts"),
    "draft_tokens": ("num_draft_tokens", "spec_decode_num_draft_tokens", "vllm:spec_decode_num_draft_tokens", "draft_tokens"),
    "accepted": ("num_accepted_tokens", "spec_decode_num_accepted_tokens", "vllm:spec_decode_num_accepted_tokens", "accepted"),
    "per_position": (
        "num_accepted_tokens_per_pos",
        "spec_decode_num_accepted_tokens_per_pos",
        "vllm:spec_decode_num_accepted_tokens_per_pos",
        "accepted_per_position",
    ),
}


def loads(text: str) -> Any | None:
    """The JSON value of a text, or a list of those on its lines; None where it is neither."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        pass
    try:
        return [json.loads(line) for line in text.splitlines() if line.strip()] or None
    except (ValueError, RecursionError):
        return None


def read(data: Any, steps: int | None, per_request: bool, source: str) -> Observed:
    """Raises InputError where the JSON is of no known kind, or its figures contradict each other."""
    metas = _meta_infos(data)
    if metas:
        return sglang.from_meta_info(metas, steps, source)
    if isinstance(data, Mapping):
        if "marginal_accept_rates" in data or "conditional_accept_rates" in data:
            return _profile(data, steps, per_request, source)
        if _find(data, "per_position") is not None:
            return _counters(data, steps, source)
    raise InputError(
        f"{source}: is JSON of no kind known here; it can be vLLM's counters (num_drafts, num_accepted_tokens_per_pos), a speculation_profile.json, or "
        "SGLang's answers with meta_info"
    )


def _meta_infos(data: Any) -> list[Mapping[str, Any]]:
    """The ``meta_info`` of one answer or a list of them; of chat answers the ``sglext`` that holds the same figures."""
    each = data if isinstance(data, Sequence) and not isinstance(data, str) else [data]
    found = []
    for one in each:
        if isinstance(one, Mapping):
            meta = one.get("meta_info", one if any(name in one for name in sglang.HISTOGRAMS) else None)
            if isinstance(meta, Mapping):
                found.append(meta)
    return found


def _find(data: Mapping[str, Any], what: str) -> Any:
    return next((data[name] for name in _NAMES[what] if data.get(name) is not None), None)


def _count(value: Any, what: str, source: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int | float) or value != value or value < 0 or int(value) != value:
        raise InputError(f"{source}: {what} is {value!r}, expected a count of 0 or more; counters that fall mean that the server was restarted")
    return int(value)


def _counters(data: Mapping[str, Any], steps: int | None, source: str) -> Observed:
    per_position = _find(data, "per_position")
    if isinstance(per_position, Mapping):
        per_position = [per_position[k] for k in sorted(per_position, key=lambda k: (len(str(k)), str(k)))]
    if not isinstance(per_position, Sequence) or isinstance(per_position, str) or not per_position:
        raise InputError(f"{source}: num_accepted_tokens_per_pos is {per_position!r}, expected a list of counts, one per draft position")
    accepted = tuple(float(_count(each, f"num_accepted_tokens_per_pos[{k}]", source)) for k, each in enumerate(per_position))
    if steps is not None and steps != len(accepted):
        raise InputError(f"{source}: counts {len(accepted)} positions, but --steps says {steps}; leave --steps out, or give the counters of that run")
    count = len(accepted)
    drafts, tokens = _find(data, "drafts"), _find(data, "draft_tokens")
    if drafts is None and tokens is None:
        raise InputError(f"{source}: holds no num_drafts (nor num_draft_tokens), so its counts have nothing to be measured against; add it")
    number = _count(drafts, "num_drafts", source) if drafts is not None else round(_count(tokens, "num_draft_tokens", source) / count)
    total = _find(data, "accepted")
    if isinstance(total, int | float) and round(total) != sum(accepted):
        raise InputError(f"{source}: num_accepted_tokens is {total}, but the positions add up to {sum(accepted):g}; they are of different readings")
    return observed(steps=count, drafts=number, accepted_per_position=accepted, source=source)


def _rates(data: Mapping[str, Any], name: str, source: str) -> list[float] | None:
    values = data.get(name)
    if values is None:
        return None
    if not isinstance(values, Sequence) or isinstance(values, str) or not all(isinstance(v, int | float) and not isinstance(v, bool) for v in values):
        raise InputError(f"{source}: {name} is {values!r}, expected a list of rates")
    return [float(v) for v in values]


def _profile(data: Mapping[str, Any], steps: int | None, per_request: bool, source: str) -> Observed:
    """A ``speculation_profile.json``: marginal rates where they are given, else the products of the conditional ones."""
    if data.get("measured") is False:
        raise InputError(f"{source}: says that it was not measured; give the profile of a run")
    marginal, conditional = _rates(data, "marginal_accept_rates", source), _rates(data, "conditional_accept_rates", source)
    if marginal is None:
        assert conditional is not None or "conditional_accept_rates" in data
        if conditional is None:
            raise InputError(f"{source}: holds no accept rates; give the profile of a run")
        marginal, chance = [], 1.0
        for rate in conditional:
            chance *= rate
            marginal.append(chance)
    count = data.get("num_speculative_tokens")
    if isinstance(count, int) and count != len(marginal):
        raise InputError(f"{source}: num_speculative_tokens is {count}, but it holds {len(marginal)} rates; it is damaged")
    if steps is not None and steps != len(marginal):
        raise InputError(f"{source}: holds {len(marginal)} rates, but --steps says {steps}; leave --steps out, or give the profile of that run")
    conditions = data.get("measurement_conditions")
    drafts = conditions.get("drafts") if isinstance(conditions, Mapping) else None
    histogram = data.get("acceptance_length_histogram")
    if drafts is None and isinstance(histogram, Mapping) and all(isinstance(n, int | float) for n in histogram.values()):
        drafts = round(sum(histogram.values())) if sum(histogram.values()) > 1.5 else None  # shares add up to 1
    length = data.get("mean_accept_length_per_request" if per_request else "mean_accept_length")
    number = _count(drafts, "measurement_conditions.drafts", source) if drafts is not None else None
    accepted = tuple(rate * number for rate in marginal) if number else tuple(marginal)
    return observed(
        steps=len(marginal), drafts=number or None, accepted_per_position=accepted, per="request" if per_request else "step",
        acceptance_length=float(length) if isinstance(length, int | float) else None, source=source,
    )  # fmt: skip
