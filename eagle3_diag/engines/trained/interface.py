"""What a trainer's module says: how that trainer wired the weights of a checkpoint, by its version."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from eagle3_diag.checkpoint.interface import DrafterCheckpoint
from eagle3_diag.engines.versions import Version

Convention = Literal["inputs", "outputs"]


@dataclass(frozen=True, kw_only=True)
class Facts:
    """What a trainer's rules look at: ``raw`` is config.json, ``stored`` the tensors' names as stored; ``told`` whether the user named the
    trainer (else it is the one whose format this is)."""

    checkpoint: DrafterCheckpoint
    raw: Mapping[str, Any]
    stored: frozenset[str]
    told: bool


@dataclass(frozen=True, kw_only=True)
class Rules:
    """The choices beyond the checkpoint's own reading: Wiring fields to replace, and what was assumed for want of a version."""

    changes: Mapping[str, Any]
    assumptions: tuple[str, ...] = ()


class TrainerPreset(Protocol):
    """One trainer."""

    @property
    def name(self) -> str: ...

    @property
    def convention(self) -> Convention:
        """What its layer ids mean."""

    @property
    def source(self) -> str:
        """Package, versions and files that the rules were read from."""

    def defaults(self, num_layers: int) -> tuple[int, ...]:
        """Layer inputs that it captures when nobody says otherwise."""

    def frozen_embedding(self, raw: Mapping[str, Any]) -> bool | None:
        """Whether a stored embedding is a copy of the target's; None when that is not known."""

    def rules(self, facts: Facts, version: Version | None) -> Rules: ...
