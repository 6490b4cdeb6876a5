"""One way a drafter may be wired, with what a person needs to act on it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from eagle3_diag.wiring import Wiring

Family = Literal["features", "tokens", "norms", "steps", "positions", "vocabulary", "weights"]

AS_TRAINED = "as-trained"
#: "None of these": no wiring of its own, so it is in no catalogue; every ranking has it.
UNKNOWN = "unknown"

#: Wiring fields that a single asked row does not show: they act on what earlier drafts of the same request left behind.
_PATH_DEPENDENT = ("accepted_keys", "decode_offset")
#: Fields that act on draft steps 1, 2, ... only (or on reading the draft off the state): step 0 is computed alike whatever they are.
LATER = ("output_norm", "feedback", "fc_on_feedback", "prefix_visible", "steps_visible", "accepted_keys", "position_step", "decode_offset", "vocabulary", "head")  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Explanation:
    """Why a server (or a trainer) drafts as it does.

    Attributes:
        id: kebab-case, says what is wrong; ``as-trained`` for right wiring; two joined are ``a+b``.
        title: one line for people.
        family: which part of the wiring it is about.
        changes: fields of the right :class:`Wiring` to replace; {} for right wiring.
        prior: relative weight before any evidence, by how usual the fault is.
        mend: the config line or server flag to change.
        check: how to look at it directly, without statistics.
        exact: False where the content is unknown (another embedding, a rotation): predicted from simulated instances.
        served: False where only a trainer can do it (a server has not the data to), so that it explains claims but no server.
        incidents: public threads in which exactly this happened.
    """

    id: str
    title: str
    family: Family
    changes: Mapping[str, Any] = field(default_factory=dict)
    prior: float = 1.0
    mend: str = ""
    check: str = ""
    exact: bool = True
    served: bool = True
    incidents: tuple[str, ...] = ()

    def wiring(self, right: Wiring) -> Wiring:
        """The wiring that this explanation says is in use."""
        return replace(right, **self.changes)

    @property
    def is_right(self) -> bool:
        return not self.changes

    @property
    def path_dependent(self) -> bool:
        """Whether its acceptance depends on the drafts made before in the same request, so that single rows do not show it."""
        return any(name in self.changes for name in _PATH_DEPENDENT)

    def instance(self, number: int) -> Explanation:
        """The same fault with other unknown content. Only for explanations that are not exact."""
        return replace(self, changes={**self.changes, "instance": number})


def combine(a: Explanation, b: Explanation) -> Explanation | None:
    """Both at once, or None where one is right wiring or both change one knob.

    The order does not matter. The prior is that of two independent faults, relative to ``a``'s and ``b``'s own scale (right wiring's is
    near the sum of all faults', see ``eagle3_diag.catalogue``).
    """
    if a.is_right or b.is_right or a.changes.keys() & b.changes.keys():
        return None
    first, second = sorted((a, b), key=lambda each: each.id)
    return Explanation(
        id=f"{first.id}+{second.id}",
        title=f"{first.title}, and {second.title[:1].lower()}{second.title[1:]}",
        family=first.family,
        changes={**first.changes, **second.changes},
        prior=first.prior * second.prior * BOTH,
        mend=f"{first.mend} {second.mend}".strip(),
        check=f"{first.check} {second.check}".strip(),
        exact=first.exact and second.exact,
        served=first.served and second.served,
        incidents=(),
    )


#: Turns the product of two priors into that of both at once: a few per cent of faulty servers have two faults.
BOTH = 0.002
