"""A stream of byte chunks, as engines send archives, read like a file."""

from __future__ import annotations

from collections.abc import Iterable

__all__ = ["ChunkFile"]


class ChunkFile:
    """The file object that :mod:`tarfile` reads a stream from. Memory: what is asked for at once, and one chunk."""

    def __init__(self, chunks: Iterable[bytes]) -> None:
        self._chunks = iter(chunks)
        self._left = b""

    def read(self, size: int) -> bytes:
        """``size`` bytes; fewer only at the end of the stream."""
        parts, length = [self._left], len(self._left)
        while length < size:
            chunk = next(self._chunks, b"")
            if not chunk:
                break
            parts.append(chunk)
            length += len(chunk)
        whole = b"".join(parts)
        out, self._left = whole[:size], whole[size:]
        return out
