"""The errors of making a lock."""

from __future__ import annotations

from envspec.errors import EnvspecError

__all__ = ["LockRefused", "ResolutionError"]


class ResolutionError(EnvspecError):
    """uv is absent, found no solution, or could not read its index: exit code 2."""


class LockRefused(EnvspecError):
    """A lock could be made, but not one that may be used: exit code 1."""

    exit_code = 1
