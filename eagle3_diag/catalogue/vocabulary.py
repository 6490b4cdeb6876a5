"""Where a draft index leads, and whose head is read."""

from __future__ import annotations

from collections.abc import Iterator

from eagle3_diag.catalogue.context import Context
from eagle3_diag.catalogue.explanation import Explanation


def explanations(context: Context) -> Iterator[Explanation]:
    offsets = context.checkpoint.d2t_offsets()
    look = "Draft tokens that the server logs or a capture shows: ids that the text never holds."
    if offsets is not None and bool((offsets != 0).any()):
        mend = "Let the server add d2t to the draft index (target id = i + d2t[i]); check that d2t is loaded and not all zero."
        yield Explanation(
            id="d2t-missing", title="Draft indices are taken for target ids: d2t is not applied", family="vocabulary", changes={"vocabulary": "missing"},
            prior=2.0, mend=mend, check=look,
        )  # fmt: skip
        yield Explanation(
            id="d2t-absolute", title="d2t's offsets are read as target ids", family="vocabulary", changes={"vocabulary": "absolute"}, prior=1.5,
            mend=mend, check=look,
        )  # fmt: skip
    if context.own_head_differs:
        yield Explanation(
            id="head-targets", title="The target's head is read in place of the drafter's", family="vocabulary", changes={"head": "target"}, prior=1.5,
            mend="Load the drafter's own lm_head.weight.", check="Whether the server logs that the head is shared.",
        )  # fmt: skip
