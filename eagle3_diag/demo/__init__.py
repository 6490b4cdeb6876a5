"""A small trained pair with stored samples: what `evaluate` shows when it is given nothing, and what tests and docs run on.

Made by ``train.py`` in this directory (``nox -s train-demo``); ``README.md`` says what it is and what it measures.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple


class DemoPaths(NamedTuple):
    """Directories of the demo."""

    target: Path
    drafter: Path
    samples: Path


def paths() -> DemoPaths:
    """Where the demo's target, drafter and samples lie in this installation."""
    here = Path(__file__).parent
    return DemoPaths(target=here / "target", drafter=here / "drafter", samples=here / "samples")
