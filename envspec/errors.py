"""Errors that end a command with one sentence and a documented exit code."""

from __future__ import annotations

__all__ = ["CaptureError", "EnvspecError", "UsageError"]


class EnvspecError(Exception):
    """Base of the package's errors; the message is one sentence for the user."""

    exit_code = 2


class UsageError(EnvspecError):
    """Wrong use or a bad file: exit code 2."""

    exit_code = 2


class CaptureError(EnvspecError):
    """A host could not be captured: exit code 3."""

    exit_code = 3
