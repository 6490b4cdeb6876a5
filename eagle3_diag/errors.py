"""The one error a user sees: a sentence that says what is wrong, where, and what to do."""

from __future__ import annotations


class InputError(Exception):
    """Bad input or wrong use. Its text is one complete sentence; the command line prints it and exits with 2.

    Names out of foreign files may hold line breaks or terminal escapes; they are written as Python escapes.
    """

    def __init__(self, sentence: str) -> None:
        super().__init__("".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in sentence))


class OutOfMemory(InputError):
    """The machine has not enough memory; the text says which option to lower."""
