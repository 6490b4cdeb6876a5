"""Where first drafts are right: by how far into the response they are, and by what kind of token was to be drafted. Pure counting."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

#: First tokens of a response behind which the next range begins.
RANGES = (16, 64, 256, 1024)
#: What the drafted-for token is, in this order of precedence: not in the draft vocabulary; following the same token as it did before in the
#: sequence; somewhere before in the sequence; nowhere before.
CLASSES = ("outside", "phrase", "seen", "new")


@dataclass
class Breakdown:
    """``right`` of ``total`` first drafts per range of positions in the response, and per class of token."""

    range_right: list[int] = field(default_factory=lambda: [0] * (len(RANGES) + 1))
    range_total: list[int] = field(default_factory=lambda: [0] * (len(RANGES) + 1))
    class_right: list[int] = field(default_factory=lambda: [0] * len(CLASSES))
    class_total: list[int] = field(default_factory=lambda: [0] * len(CLASSES))

    def add(self, other: Breakdown) -> None:
        for mine, theirs in (
            (self.range_right, other.range_right), (self.range_total, other.range_total),
            (self.class_right, other.class_right), (self.class_total, other.class_total),
        ):  # fmt: skip
            mine[:] = [a + b for a, b in zip(mine, theirs, strict=True)]


def break_down(
    tokens_N: Sequence[int], labels_N: Sequence[int], rows_R: Sequence[int], right_R: Sequence[bool], responses: Sequence[tuple[int, int]], known_V: Sequence[bool]
) -> Breakdown:
    """Count first drafts of rows t (ascending), each right or not.

    The draft of row t is for position t+2, whose token is ``labels_N[t+1]`` (-1: no label, left out); ``responses`` are half-open ranges.
    """
    out = Breakdown()
    seen: set[int] = set(tokens_N[:1])
    pairs: set[tuple[int, int]] = set()
    at, response = 1, 0
    for row, right in zip(rows_R, right_R, strict=True):
        while at <= row + 1:  # what the row has read
            seen.add(tokens_N[at])
            pairs.add((tokens_N[at - 1], tokens_N[at]))
            at += 1
        label = labels_N[row + 1] if row + 1 < len(labels_N) else -1
        if label < 0:
            continue
        while response + 1 < len(responses) and row + 1 >= responses[response + 1][0]:
            response += 1
        start = responses[response][0] if responses else 0
        where = sum(row + 1 - start >= edge for edge in RANGES)
        if not known_V[label]:
            kind = 0
        elif (tokens_N[row + 1], label) in pairs:
            kind = 1
        else:
            kind = 2 if label in seen else 3
        out.range_total[where] += 1
        out.class_total[kind] += 1
        out.range_right[where] += right
        out.class_right[kind] += right
    return out


def range_names() -> tuple[str, ...]:
    """``0-15``, ``16-63``, ..., ``1024+``."""
    edges = (0, *RANGES)
    return (*(f"{a}-{b - 1}" for a, b in zip(edges, RANGES, strict=False)), f"{RANGES[-1]}+")


CLASS_MEANINGS = {
    "outside": "not in the draft vocabulary",
    "phrase": "follows the token before it as it did earlier in the text",
    "seen": "stands earlier in the text",
    "new": "stands nowhere earlier in the text",
}
