"""A stream of byte chunks, as engines send archives, read like a file."""

from __future__ import annotations

from collections.abc import Iterable

__all__ = ["ChunkFile"]


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
