"""Argument types shared by the commands: each turns text into a value or says in one sentence what it wanted."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable


def integer(least: int, most: int | None = None) -> Callable[[str], int]:
    """An integer within bounds."""
    bounds = f"an integer of {least} or more" if most is None else f"an integer from {least} to {most}"

    def convert(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"{text!r} is not {bounds}") from None
        if value < least or (most is not None and value > most):
            raise argparse.ArgumentTypeError(f"{value} is not {bounds}")
        return value

    return convert


def positive(text: str) -> float:
    """A finite number above zero."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not (math.isfinite(value) and value > 0):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number above 0")
    return value
