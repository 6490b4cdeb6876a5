"""What of an image's environment could not be read. A part that is unknown is neither right nor identical: nothing is proved."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from envspec.findings import Finding
from envspec.rules import finding
from envspec.snapshot import Snapshot

__all__ = ["unread"]

_PROVED: Final = ("interpreter", "path", "distributions", "torch", "libraries", "extensions", "deep")
"""The sections that a build's check and a verification rest on; the others tell of the machine."""


def unread(snapshot: Snapshot, label: str) -> Iterator[Finding]:
    """A finding that breaks for each of them that could not be read to its end."""
    for name in _PROVED:
        section = snapshot.section(name)
        if section.status == "ok":
            continue
        what = f"{name} of {label} could {'be read in part only' if section.status == 'partial' else 'not be read'}{f': {section.reason}' if section.reason else ''}"
        yield finding("EP902", name, [label], what, severity="breaks", evidence={"found": section.status})
