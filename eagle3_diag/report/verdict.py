"""What the figures mean, in words a person can act on. Takes a report's data, gives sentences; shows nothing.

The thresholds are judgements, not laws: they only choose which advice comes first. Every sentence names the figure it rests on.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

# Below this acceptance length speculation hardly pays on any server: a verification of K+1 tokens and K draft passes costs more.
_WEAK_LENGTH = 1.5
# A later step right less than half as often as the one before it, given that all before were right, is a break in the chain.
_COLLAPSE = 0.5
# Target tokens outside the draft vocabulary that are worth a sentence.
_COVERAGE = 0.95
# Half-width of the confidence interval, relative to the length, from which on more samples are advised.
_WIDE = 0.1
# Agreement of the target's argmax with the stored tokens that counts as chance, and a lead of the other reading that counts as proof
# (the same limits as eagle3_diag.final_state's, over all samples together).
_MIN_POSITIONS, _CHANCE, _MARGIN = 8, 0.1, 0.15
# Share of samples with such a finding from which on their part of the figures is no longer small.
_DOUBTFUL = 0.25
# Fewer verification steps than these bear no judgement, of a length (near 3 its standard error is then about half a token) or of a step:
# steps of one response depend on each other, so that an interval for independent trials promises too much where they are few.
_MIN_RUNS = 20
#: Step costs, in plain decoding steps, for which the speed-up is spelled out.
STEP_COSTS = (1.2, 1.5, 2.0, 3.0)

# Runs cut because the stored text leaves the greedy path, as a share of all, from which on the estimate's assumption is named.
_CENSORED = 0.25


def verdict(report: Mapping[str, Any]) -> dict[str, str]:
    """``code`` (``unusable``, ``unknown``, ``weak``, ``collapse``, ``vocabulary``, ``good``), ``headline`` and ``text``."""
    serving, steps = report["serving"], report["steps"]
    length = serving["acceptance_length"]
    if _doubtful(report["normalisation"]):
        reason = _sentence(report["warnings"][0] if report["warnings"] else _agreement(report["normalisation"])) + " "
        return {
            "code": "unusable",
            "headline": "Do not use these figures yet: the samples do not fit this target",
            "text": f"{reason}Until that is settled, the acceptance figures say nothing about the weights or any server.",
        }
    if length is None:
        return {
            "code": "unknown",
            "headline": "No draft could be judged",
            "text": "The responses are too short for a draft with a known outcome: a response needs at least two tokens after its prompt. "
            "Give longer samples, or check the loss mask (--prompt-length replaces it).",
        }
    code, headline, first = _judge(report, length)
    if serving["drafts"] < _MIN_RUNS:
        number = f"{serving['drafts']} draft{'' if serving['drafts'] == 1 else 's'}"
        return {
            "code": "unknown",
            "headline": f"Too little to judge: acceptance length {length:.2f}, from {number}",
            "text": f"{first} That is too little to say anything about weights or wiring: give more or longer samples.",
        }
    sentences = [first, *_advice(report, length), _comparison(length, steps, serving)]
    return {"code": code, "headline": headline, "text": " ".join(sentences)}


def _doubtful(normalisation: Mapping[str, int]) -> bool:
    """Whether the final states, as read, hardly agree with the stored tokens, or clearly less than read the other way."""
    positions = normalisation["positions"]
    if positions < _MIN_POSITIONS:
        return False
    as_read, other = _readings(normalisation)
    return (
        as_read < _CHANCE * positions
        or other - as_read > _MARGIN * positions
        or normalisation["doubtful"] > _DOUBTFUL * normalisation["samples"]
    )


def _readings(normalisation: Mapping[str, int]) -> tuple[int, int]:
    """Positions that agree with the final states as most are read, and read the other way."""
    pre, post = normalisation["agree_pre_norm"], normalisation["agree_post_norm"]
    return (post, pre) if 2 * normalisation["read_as_post_norm"] > normalisation["samples"] else (pre, post)


def _agreement(normalisation: Mapping[str, int]) -> str:
    as_read, other = _readings(normalisation)
    return (
        f"The target's choice agrees with {as_read} of {normalisation['positions']} stored tokens with the final states as they were read, with {other} "
        "when they are read the other way about the final norm"
    )


def speed(length: float) -> str:
    """What an acceptance length means for speed: speed-up = length / (cost of one speculative step in plain decoding steps)."""
    examples = ", ".join(f"{length / cost:.2f}x at {cost:g}" for cost in STEP_COSTS)
    return (
        f"A speculative step yields {length:.2f} tokens, so speculation pays as long as that step costs less than {length:.2f} plain decoding steps "
        f"(the break-even cost). Speed-up by step cost: {examples}."
    )


def lengths_by_k(marginal: Sequence[float | None]) -> list[float | None]:
    """Acceptance length if only the first k+1 steps were drafted: 1 + the sum of the first marginal rates.

    Rows visited differ a little with K, so this is exact for the last entry and close for the others.
    """
    lengths: list[float | None] = []
    total = 1.0
    for rate in marginal:
        lengths.append(None if rate is None else total + rate)
        total += rate or 0.0
    return lengths


def _judge(report: Mapping[str, Any], length: float) -> tuple[str, str, str]:
    """The code, its headline, and the first sentence: what a right server would do."""
    steps, serving, vocabulary = report["steps"], report["serving"], report["vocabulary"]
    interval = "no interval from one sample" if serving["ci95"] is None else "95 % interval {:.2f} to {:.2f}".format(*serving["ci95"])
    first = (
        f"A right server would accept about {length - 1:.2f} of {steps} drafted tokens per verification step: acceptance length {length:.2f} "
        f"({interval}), the bonus token included."
    )
    if length < _WEAK_LENGTH:
        return "weak", f"Weak weights: acceptance length {length:.2f} even when wired right", first
    if _broken_step(serving) is not None:
        return "collapse", f"Acceptance length {length:.2f}, held back by a break in the draft chain", first
    if vocabulary["coverage"] is not None and vocabulary["coverage"] < _COVERAGE:
        return "vocabulary", f"Acceptance length {length:.2f}, held back by the draft vocabulary", first
    return "good", f"The weights are good for an acceptance length of {length:.2f}", first


def _broken_step(serving: Mapping[str, Any]) -> int | None:
    """The first step that is right less than half as often as the step before it, beyond what few runs can feign.

    Both rates must rest on enough runs, and the upper end of its interval must lie below half the lower end of the other's.
    """
    rates = serving["conditional_rates"]
    for k in range(1, len(rates)):
        before, now = rates[k - 1], rates[k]
        if before is None or now is None or before <= 0.2 or min(_runs(serving, k - 1), _runs(serving, k)) < _MIN_RUNS:
            continue
        _, high = _wilson(now, _runs(serving, k))
        low, _ = _wilson(before, _runs(serving, k - 1))
        if high < _COLLAPSE * low:
            return k
    return None


def _runs(serving: Mapping[str, Any], k: int) -> float:
    """Runs that a rate of step k rests on: those known to have got there (in ``sampled`` mode rows that may, so their expected number)."""
    known: float = serving["at_risk"][k]
    return known if k == 0 else min(known, serving["accepted_per_position"][k - 1])


def _wilson(share: float, count: float) -> tuple[float, float]:
    """Wilson's 95 % score interval (1927) of a share seen in ``count`` trials; everything where there was none."""
    if count <= 0:
        return 0.0, 1.0
    z = 1.96
    centre = share + z * z / (2 * count)
    spread = z * math.sqrt(max(0.0, share * (1 - share)) / count + z * z / (4 * count * count))
    return (centre - spread) / (1 + z * z / count), (centre + spread) / (1 + z * z / count)


def _advice(report: Mapping[str, Any], length: float) -> list[str]:
    serving, vocabulary = report["serving"], report["vocabulary"]
    rates, advice = serving["conditional_rates"], []
    broken = _broken_step(serving)
    if length < _WEAK_LENGTH and serving["mode"] == "greedy":
        advice.append(
            f"Its first token is right {rates[0] or 0.0:.0%} of the time, so the fault is in the training, or these samples or this target are not "
            "those it was trained for."
        )
    elif length < _WEAK_LENGTH:
        advice.append("Text sampled at this temperature may simply be hard to foresee: --serving-mode greedy tells how well the drafter knows the target.")
    elif broken is not None:
        advice.append(
            f"Step {broken} is right only {rates[broken]:.0%} of the time after {rates[broken - 1]:.0%} at step {broken - 1}: the drafter was hardly "
            f"trained on its own states that far. Train with more draft steps, or serve K = {broken}."
        )
    coverage = vocabulary["coverage"]
    if coverage is not None and coverage < _COVERAGE:
        ceiling = "" if vocabulary["ceiling"] is None else f", which alone caps the length at {vocabulary['ceiling']:.2f}"
        advice.append(f"The draft vocabulary holds {coverage:.1%} of the target's tokens here{ceiling}; rebuild it from data like these.")
    if serving["censored"] > _CENSORED * serving["drafts"]:
        advice.append(
            f"The stored text leaves the target's greedy path in {serving['censored'] / serving['drafts']:.0%} of the runs, whose ends are estimated from the "
            "others: samples generated greedily, or --serving-mode sampled-argmax, assume less."
        )
    interval = serving["ci95"]
    if interval is None:
        advice.append("One sample gives no interval: more of them tell how far its figure can be trusted.")
    elif interval[1] - interval[0] > 2 * _WIDE * length:
        unit = "rows" if serving["mode"] == "sampled" else "drafts"
        advice.append(f"The interval is wide ({serving['drafts']} {unit} from {report['samples']['count']} samples): more samples would narrow it.")
    return advice


def _condition(serving: Mapping[str, Any]) -> str:
    if serving["mode"] == "greedy":
        return "decoding greedily (temperature 0)"
    if serving["mode"] == "sampled-argmax":
        return "sampling at the temperature that these samples were drawn at"
    return f"sampling at temperature {serving['temperature']:g} (at which these samples must have been drawn) with drafts drawn likewise"


def _comparison(length: float, steps: int, serving: Mapping[str, Any]) -> str:
    low = length if serving["ci95"] is None else serving["ci95"][0]
    if length < _WEAK_LENGTH:
        return f"With these weights no server {_condition(serving)} can do better on prompts like these; if yours shows about {length:.2f}, its wiring is right."
    return (
        f"If yours, with K = {steps} on prompts like these and {_condition(serving)}, shows clearly less than {low:.2f}, "
        "the wiring or the environment is at fault, not the weights."
    )


def _sentence(text: str) -> str:
    return text if text.endswith((".", "!", "?")) else text + "."
