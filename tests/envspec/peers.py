"""What pip and uv say of an environment: the peers that a capture is held against."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import pytest
from packaging.utils import canonicalize_name

from envspec.snapshot import Snapshot

__all__ = ["of_pip", "of_uv", "ours", "uv"]

Listed = set[tuple[str, str | None]]
"""Canonical names and versions."""


def ours(snapshot: Snapshot) -> Listed:
    """The distributions of a snapshot that an import finds."""
    return {(dist.name, dist.version) for dist in snapshot.distributions if dist.shadowed_by is None}


def of_pip(text: str) -> tuple[Listed, dict[str, str]]:
    """The distributions and the markers in the output of ``pip inspect``."""
    report = json.loads(text)
    return {(canonicalize_name(item["metadata"]["name"]), item["metadata"]["version"]) for item in report["installed"]}, report["environment"]


def of_uv(text: str) -> Listed:
    """The distributions in the output of ``uv pip list --format json``."""
    return {(canonicalize_name(item["name"]), item["version"]) for item in json.loads(text)}


def uv() -> str:
    """The path of uv; skips the test where there is none."""
    found = shutil.which("uv") or str(Path(sys.executable).with_name("uv"))
    if not Path(found).exists():
        pytest.skip("uv is not installed")
    return found
