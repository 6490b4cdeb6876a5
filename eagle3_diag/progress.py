"""A bar with rate and remaining time for long work, on stderr; silent when that is no terminal."""

from __future__ import annotations

import os
import shutil
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from types import TracebackType
from typing import TextIO

_INTERVAL_S = 0.1
_COUNT_LIMIT = 1_000_000


class Progress:
    """Use as a context manager; call :meth:`update` once per sample with the rows done so far.

    The line is rewritten in place at most ten times a second and wiped at the end, so that what follows starts clean.
    """

    def __init__(
        self, what: str, *, unit: str, quiet: bool = False, stream: TextIO | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._stream = sys.stderr if stream is None else stream
        self._what, self._unit, self._clock = what, unit, clock
        self.shown = not quiet and self._stream.isatty() and os.environ.get("TERM") != "dumb"
        self._samples = self._rows = 0
        self._total_samples: int | None = None
        self._total_rows: int | None = None
        self._started = self._clock()
        self._drawn = float("-inf")

    def expect(self, samples: int | None, rows: int | None = None) -> None:
        """How much there will be at most, where known."""
        self._total_samples, self._total_rows = samples, rows

    def __enter__(self) -> Progress:
        self._started = self._clock()
        self._draw()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self.shown:
            self._write("\r\x1b[K")

    def update(self, rows: int) -> None:
        """One more sample is done, ``rows`` in all."""
        self._samples += 1
        self._rows = rows
        if self._clock() - self._drawn >= _INTERVAL_S:
            self._draw()

    def _share(self) -> float | None:
        shares = [done / total for done, total in ((self._samples, self._total_samples), (self._rows, self._total_rows)) if total]
        return min(1.0, max(shares)) if shares else None

    def line(self, width: int) -> str:
        """What the bar says now, in at most ``width`` columns."""
        elapsed = self._clock() - self._started
        share = self._share()
        rate = f"{self._rows / elapsed:,.0f} {self._unit}/s" if elapsed > 0 and self._rows else f"- {self._unit}/s"
        of = "" if self._total_samples is None else f"/{self._total_samples:,}"
        done = f"{self._samples:,}{of} samples"
        if share is None:
            return f"{self._what}  {done}  {rate}  {duration(elapsed)} elapsed"[:width]
        left = duration(elapsed / share * (1 - share)) if share > 0 else "?"
        head, tail = f"{self._what} {share:4.0%} ", f" {done}  {rate}  {left} left"
        room = min(30, width - len(head) - len(tail) - 2)
        bar = f"[{'#' * round(share * room):<{room}}]" if room >= 5 else ""
        return (head + bar + tail)[:width]

    def _draw(self) -> None:
        if not self.shown:
            return
        self._drawn = self._clock()
        self._write("\r" + self.line(shutil.get_terminal_size((80, 24)).columns - 1) + "\x1b[K")

    def _write(self, text: str) -> None:
        try:
            self._stream.write(text)
            self._stream.flush()
        except OSError:  # the terminal went away; the work goes on
            self.shown = False


def duration(seconds: float) -> str:
    """``8 s``, ``3:20`` or ``2:05:00``."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    minutes, second = divmod(whole, 60)
    hours, minute = divmod(minutes, 60)
    return f"{hours}:{minute:02}:{second:02}" if hours else f"{minute}:{second:02}"


def count_files(paths: Iterable[Path], limit: int | None = None) -> int | None:
    """About how many sample files lie below ``paths``, counted without holding their names; None where it cannot be told soon.

    ``limit`` caps the answer (--max-samples).
    """
    from eagle3_diag.samples.discover import SUFFIXES  # its package imports torch, which --help must not wait for

    count = 0
    stack: list[str] = []
    for path in paths:
        if path.is_dir():
            stack.append(str(path))
        else:
            count += 1
    entries = 0
    while stack:
        if limit is not None and count >= limit:
            return limit
        try:
            with os.scandir(stack.pop()) as found:
                for entry in found:
                    entries += 1
                    if entries > _COUNT_LIMIT:
                        return limit
                    if entry.name.startswith("."):
                        continue
                    if entry.is_dir(follow_symlinks=False):
                        stack.append(entry.path)
                    else:
                        count += entry.name.endswith(SUFFIXES)
        except OSError:
            return limit
    return count if limit is None else min(count, limit)
