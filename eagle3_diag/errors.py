"""The one error a user sees: a sentence that says what is wrong, where, and what to do."""

from __future__ import annotations


class InputError(Exception):
    """Bad input or wrong use. Its text is one complete sentence; the command line prints it and exits with 2."""


class OutOfMemory(InputError):
    """The machine has not enough memory; the text says which option to lower."""
