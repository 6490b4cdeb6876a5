"""A stream of byte chunks, as engines send archives: read like a file, and with an end in time."""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from collections.abc import Callable, Iterable, Iterator

__all__ = ["ChunkFile", "until"]

_AHEAD = 4
"""Chunks that are held before they are read."""


def until(deadline: float, start: Callable[[], Iterable[bytes]]) -> Iterator[bytes]:
    """The chunks of ``start()``, which may block for any time in any of its steps.

    ``deadline`` is by :func:`time.monotonic`. The steps are taken in a thread of their own, which is left to itself when
    the time is over or the reader goes away: it ends with its next step.

    Raises:
        TimeoutError: it is past the deadline and the chunks are not at their end.
        Exception: whatever ``start()`` or one of its steps raises.
    """
    parts: queue.Queue[bytes | BaseException | None] = queue.Queue(_AHEAD)
    left = threading.Event()

    def put(part: bytes | BaseException | None) -> None:
        while not left.is_set():
            with contextlib.suppress(queue.Full):
                parts.put(part, timeout=0.2)
                return

    def pull() -> None:
        try:
            for chunk in start():
                put(chunk)
                if left.is_set():
                    return
            put(None)
        except Exception as error:  # raised again where the chunks are read
            put(error)

    threading.Thread(target=pull, daemon=True).start()
    try:
        while True:
            try:
                part = parts.get(timeout=max(0.0, deadline - time.monotonic()))
            except queue.Empty:
                raise TimeoutError from None
            if part is None:
                return
            if isinstance(part, BaseException):
                raise part
            if time.monotonic() > deadline:
                raise TimeoutError
            yield part
    finally:
        left.set()


class ChunkFile:
    """The file object that :mod:`tarfile` reads a stream from. Memory: what is asked for at once, and one chunk."""

    def __init__(self, chunks: Iterable[bytes]) -> None:
        self._chunks = iter(chunks)
        self._chunk = memoryview(b"")

    def read(self, size: int) -> bytes:
        """``size`` bytes; fewer only at the end of the stream."""
        parts: list[memoryview] = []
        wanted = size
        while wanted > 0:
            if not self._chunk:
                self._chunk = memoryview(next(self._chunks, b""))
                if not self._chunk:
                    break
            # Views: what is left of a chunk is not copied again for each small read.
            part, self._chunk = self._chunk[:wanted], self._chunk[wanted:]
            parts.append(part)
            wanted -= len(part)
        return b"".join(parts)
