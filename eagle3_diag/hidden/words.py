"""Findings in words: one sentence for states that differ in the same way."""

from __future__ import annotations

from collections.abc import Sequence

from eagle3_diag.hidden.matching import Match


def listed(names: Sequence[str]) -> str:
    return ", ".join(names)


def sentence(kind: str, group: Sequence[Match]) -> str:
    """One sentence for states that differ in the same way."""
    first, names = group[0], listed([m.b for m in group])
    detail, verb = first.detail, "is" if len(group) == 1 else "are"
    worst = max(m.worst or 0.0 for m in group)
    if kind.startswith("shift "):
        n = abs(first.shift)
        return f"{names} in B {verb} {n} token{'s' if n > 1 else ''} {'late' if first.shift > 0 else 'early'}: its token t is A's token t {'-' if first.shift > 0 else '+'} {n}"
    of = f"A's {first.a}" if len(group) == 1 else "A's"
    if kind.startswith("quantised"):
        per = {"none": "without a scale", "tensor": "one scale for all", "token": "a scale per token", "channel": "a scale per channel", "group": "a scale per 128 channels"}
        return f"{names} in B {verb} {of} quantised to {detail['to']} ({per[detail['per']]}); a token is off by up to {worst:.2g}"
    if kind.startswith("scaled"):
        return f"{names} in B {verb} {of} multiplied by " + listed(list(dict.fromkeys(f"{m.detail['by']:g}" for m in group)))
    if kind.startswith(("normed", "un-normed")):
        order = "after" if kind.startswith("normed") else "before"
        with_ = {"no weight": "an RMSNorm without weight", "a weight that is not known": "an RMSNorm with a weight that is not known"}
        return f"{names} in B {verb} {of} {order} {with_.get(detail['by'], detail['by'])}"
    if kind.startswith("channel-scaled"):
        return f"{names} in B {verb} {of} with each channel multiplied by a number of its own"
    if kind.startswith("shards-swapped"):
        return f"{names} in B {verb} {of} with its {detail['parts']} parts of channels as {listed([str(i) for i in detail['order']])}: shards put together in the wrong order"
    if kind.startswith("without-residual"):
        return f"{names} in B {verb} {of} minus {detail['other']}: the layers' own output, the residual stream not added"
    if kind.startswith("sum-of-states"):
        return f"{names} in B {verb} {of} plus {detail['other']}: the residual stream added once too often"
    if kind.startswith("unsummed"):
        return f"{names} in B add up to A's {first.a}: partial results of {detail['parts']} ranks that nobody summed"
    if kind.startswith("rotated"):
        return f"{names} in B {verb} {of} rotated: inner products of tokens and singular values agree to {detail['gram_error']:.2g}, directions do not"
    if kind.startswith("diverges"):
        token = min(m.first for m in group if m.first is not None)
        where = next(m for m in group if m.first == token)
        return (
            f"{names} in B {verb} {of} up to token {token}, where {where.b} differs first; {where.detail['tokens']} of {where.detail['of']} tokens differ, "
            f"by up to {worst:.2g}"
        )
    if kind.startswith("drift"):
        shown = ", ".join(f"{m.error:.2g}" for m in group)
        return f"{names} in B {verb} close to {of}, but off by {shown} (median of tokens), which is more than rounding: another precision, quantised weights or other weights"
    if kind == "said-normed":
        return f"{names} in B and A's {first.a} are the same, yet only one of them is said to be after the target's final norm"
    near = "" if first.a is None else f"; the most alike is A's {first.a}, off by {first.error:.2g} (median of tokens)"
    return f"{names} in B {verb} no state of A, whatever is done to it{near}"
