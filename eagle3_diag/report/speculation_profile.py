"""``speculation_profile.json`` 1.0: acceptance as a serving simulator reads it.

Fields and meanings: Model-Optimizer ``examples/specdec_bench/specdec_bench/speculation_profile.py``. Dynamo's simulator takes
``conditional_accept_rates`` (each step given all before), vLLM's synthetic acceptance ``marginal_accept_rates`` (non-increasing).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import PurePath
from typing import Any

SCHEMA_VERSION = "1.0"
_TOLERANCE = 0.02


def profile(report: Mapping[str, Any]) -> dict[str, Any]:
    """The profile of a report. ``measured`` is false, as in an unmeasured stub, where no draft could be judged.

    The histogram (key: tokens emitted per verification step) is made from the rates, so runs cut short by the stored text count as
    what the others say they would have become; its entries add up to the number of drafts.
    """
    serving, steps = report["serving"], report["steps"]
    length = serving["acceptance_length"]
    marginal = _non_increasing(serving["marginal_rates"])
    result: dict[str, Any] = {
        "schema_version": SCHEMA_VERSION,
        "measured": length is not None,
        "method": "eagle3",
        "draft_checkpoint": {"id": _checkpoint_id(report["drafter"]["path"]), "weights_sha256": report["drafter"]["weights_sha256"]},
        "target_model": {"id": _checkpoint_id(report["target"]["path"]), "weights_sha256": report["target"]["weights_sha256"]},
        "num_speculative_tokens": steps,
        "block_size": None,
        "max_supported_k": steps,
        "verification_method": "longest_prefix",
        "conditional_accept_rates": [_round(min(1.0, rate or 0.0)) for rate in serving["conditional_rates"]],
        "marginal_accept_rates": [_round(rate) for rate in marginal],
        "mean_accept_length": _round(length),
        "mean_accept_length_per_request": _round(serving["per_request"]),
        "accept_length_model": "chain_analytic",
        "accept_length_by_k": {} if length is None else {str(steps): _round(length)},
        "acceptance_length_histogram": _histogram(serving["drafts"], marginal) if length is not None else None,
        "per_category": None,
        "measurement_conditions": {
            "kind": "offline replay",
            "description": "computed from stored target hidden states by eagle3-diag evaluate; no server was run",
            "serving_mode": serving["mode"],
            "temperature": 0.0 if serving["mode"] == "greedy" else serving["temperature"],
            "samples": report["samples"]["count"],
            "drafts": serving["drafts"],
            "censored": serving["censored"],
            "ci95": serving["ci95"],
            "dtype": report["options"]["dtype"],
            "rates": "estimated over drafts with a known outcome (runs that leave the target's greedy path are censored)",
        },
        "validation": None,
    }
    if length is not None:
        implied = 1.0 + sum(marginal)
        result["validation"] = {
            "mean_consistency": {
                "implied_mean_accept_length": _round(implied),
                "reported_mean_accept_length": _round(length),
                "abs_delta": _round(abs(implied - length)),
                "tolerance": _TOLERANCE,
                "passed": abs(implied - length) <= _TOLERANCE,
            },
            "marginal_monotonicity": {"passed": True, "violations": []},
        }
    return result


def _non_increasing(rates: Sequence[float | None]) -> list[float]:
    """Marginal rates as a survival function: nobody got there = 0; in sampled mode each step has rows of its own, so noise is capped."""
    capped: list[float] = []
    for rate in rates:
        capped.append(min(capped[-1] if capped else 1.0, rate or 0.0))
    return capped


def _histogram(drafts: int, marginal: Sequence[float]) -> dict[str, float]:
    """Expected number of verification steps that emit 1, 2, ... K+1 tokens; lengths that never occur are left out."""
    survival = [1.0, *marginal, 0.0]
    counts = {str(k + 1): drafts * (survival[k] - survival[k + 1]) for k in range(len(marginal) + 1)}
    return {length: _round(n) or 0.0 for length, n in counts.items() if n > 1e-9}


def _checkpoint_id(path: str) -> str:
    """The last two parts of a path, ``organisation/model``: a profile is published beside a checkpoint and names no machine's folders."""
    parts = [part for part in PurePath(path).parts if part not in ("/", ".", "..")]
    return "/".join(parts[-2:])


def _round(value: float | None) -> float | None:
    return None if value is None else round(value, 6)
