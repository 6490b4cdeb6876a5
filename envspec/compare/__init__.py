"""Comparison: N snapshots and locks in, one Report out. Nothing here reads the world."""

from __future__ import annotations

from envspec.compare.engine import compare
from envspec.compare.model import LabelledSnapshot
from envspec.compare.requirements import Unsatisfied, unsatisfied

__all__ = ["LabelledSnapshot", "Unsatisfied", "compare", "unsatisfied"]
