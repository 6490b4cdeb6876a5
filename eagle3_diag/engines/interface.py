"""What an engine module is given and what it answers, and the words for a choice that differs.

A preset is a function of (checkpoint, version, target) that says which :class:`~eagle3_diag.wiring.Wiring` an engine would give the
checkpoint, with the place in that engine's source for every rule. It compares nothing: :mod:`eagle3_diag.check` does.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from eagle3_diag.checkpoint.interface import DrafterCheckpoint
from eagle3_diag.engines.versions import Version
from eagle3_diag.target import TargetOutline
from eagle3_diag.wiring import Wiring

Severity = Literal["error", "warning"]
STATIC_ROPE = ("default", "linear", "yarn", "llama3")


@dataclass(frozen=True, kw_only=True)
class Subject:
    """One checkpoint and its target, as every preset sees them.

    ``raw`` is the drafter's config.json; ``stored`` the tensors' names as stored; ``trained`` the wiring that counts as right, with RoPE,
    eps and layer inputs filled in, the latter in the order in which fc's blocks were trained.
    """

    checkpoint: DrafterCheckpoint
    raw: Mapping[str, Any]
    stored: frozenset[str]
    target: TargetOutline
    trained: Wiring

    @property
    def nested(self) -> Mapping[str, Any]:
        """``eagle_config``; empty where it is absent or no object."""
        value = self.raw.get("eagle_config")
        return value if isinstance(value, dict) else {}

    @property
    def is_speculators(self) -> bool:
        return self.checkpoint.config.format == "speculators"

    @property
    def is_mla(self) -> bool:
        return self.checkpoint.config.mla is not None

    def inputs_text(self, inputs: Sequence[int] | None) -> str:
        return "none" if not inputs else ", ".join(map(str, inputs))


@dataclass(frozen=True, kw_only=True)
class Reason:
    """Why an engine makes a choice of its own: a finding's code, its words, the edit that mends it, where it was read."""

    code: str
    text: str
    mend: str
    source: str


@dataclass(frozen=True, kw_only=True)
class Remark(Reason):
    """A finding that is not a difference between two wirings: the engine refuses, or agrees by chance."""

    severity: Severity = "error"


@dataclass(frozen=True, kw_only=True)
class Wired:
    """One engine's (one runner's) answer. ``wiring`` None: it does not start with this checkpoint; a remark says why.

    ``reasons`` are by Wiring field: what to say where the field differs from training. ``preset`` names the versions whose source the
    rules were read from. ``notes`` say what was assumed.
    """

    engine: str
    version: str
    runner: str | None
    wiring: Wiring | None
    preset: str
    reasons: Mapping[str, Reason] = field(default_factory=dict)
    remarks: tuple[Remark, ...] = ()
    notes: tuple[str, ...] = ()


class Engine(Protocol):
    """One serving engine."""

    @property
    def name(self) -> str: ...

    @property
    def title(self) -> str:
        """The name for people."""

    @property
    def oldest(self) -> str:
        """Oldest version whose source was read."""

    @property
    def newest(self) -> str:
        """Newest version whose source was read; what is taken when none is given."""

    @property
    def packages(self) -> tuple[str, ...]:
        """Distributions that hold the engine, as a snapshot of an environment lists them."""

    def wire(self, subject: Subject, version: Version | None) -> list[Wired]:
        """How that version (None: the newest read) would wire the checkpoint; one entry per runner."""


def truthy(value: object) -> bool:
    """What Python's ``if`` makes of a configuration's value."""
    return bool(value)


def ids_list(value: object) -> tuple[int, ...] | None:
    """A list of layer ids; None for anything else, an empty list too."""
    if isinstance(value, (list, tuple)) and value and all(type(v) is int for v in value):
        return tuple(value)
    return None


def same_for_attention(mine: Wiring, theirs: Wiring) -> bool:
    """Whether only the position of row 0 differs and does not matter: attention sees differences of positions, unless the RoPE's
    frequencies depend on the position itself (dynamic, longrope)."""
    rope = mine.rope
    return rope is None or rope.type in STATIC_ROPE


def rope_reason(subject: Subject, source: str) -> Reason:
    """Why an engine that reads the config's RoPE turns otherwise than training did."""
    trained = subject.trained.rope
    assert trained is not None
    return Reason(
        code="rope-differs",
        text=f"training turned with RoPE {trained.type}, base {trained.theta:g}; config.json says otherwise, and the engine does what it says.",
        mend=f'config.json: remove rope_scaling, "rope_theta": {trained.theta:g}' if trained.type == "default" else "config.json: write the RoPE of training",
        source=source,
    )
