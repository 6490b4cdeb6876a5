"""A stack's lock in memory: entries with their wheels and what they require."""

from __future__ import annotations

from dataclasses import dataclass

from packaging.markers import Marker
from packaging.version import Version

__all__ = ["Entry", "StackLock", "Wheel"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Wheel:
    """One file: ``sha256`` in hex, ``size`` in bytes where the index tells it."""

    name: str
    sha256: str
    size: int | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Entry:
    """One distribution: for each Python the wheel that fits best, once where several share it.

    ``marker`` is None where it is installed on the whole platform. ``requires`` are its ``Requires-Dist``.
    """

    name: str
    version: str
    marker: str | None = None
    wheels: tuple[Wheel, ...]
    requires: tuple[str, ...] = ()
    requires_python: str | None = None

    @property
    def parsed(self) -> Version:
        """The version."""
        return Version(self.version)

    @property
    def condition(self) -> Marker | None:
        """The marker."""
        return Marker(self.marker) if self.marker else None

    @property
    def requirement(self) -> str:
        """``name==version ; marker``."""
        return f"{self.name}=={self.version}" + (f" ; {self.marker}" if self.marker else "")

    def __str__(self) -> str:
        return f"{self.name} {self.version}"


@dataclass(frozen=True, kw_only=True, slots=True)
class StackLock:
    """A stack's lock for one role (None: the common one). ``inputs`` are the lines it was made for, with their digest."""

    stack: str
    role: str | None = None
    inputs: tuple[str, ...]
    inputs_digest: str
    entries: tuple[Entry, ...]
