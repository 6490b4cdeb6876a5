"""Asking about paths that anything may stand in, and writing files whole or not at all."""

from __future__ import annotations

import os
import stat
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

__all__ = ["exists", "is_dir", "is_file", "real", "within", "write_all", "write_whole"]

_STANDARD_STREAMS: Final = (1, 2)


# pathlib's own raise for a name that is too long and, before Python 3.14, for one in a directory that may not be searched.


def exists(path: str | Path) -> bool:
    """Whether there is something at a path, links followed; False where that cannot be told."""
    return os.path.exists(path)  # noqa: PTH110


def is_file(path: str | Path) -> bool:
    """Whether a path is a regular file, links followed; False where that cannot be told."""
    return os.path.isfile(path)  # noqa: PTH113


def is_dir(path: str | Path) -> bool:
    """Whether a path is a directory, links followed; False where that cannot be told."""
    return os.path.isdir(path)  # noqa: PTH112


def real(path: str | Path) -> Path:
    """The path with links followed as far as they lead; a link to itself leads nowhere, which is no error here."""
    return Path(os.path.realpath(path))


def within(written: Mapping[str, str | Path], read: Iterable[str | Path]) -> str | None:
    """The first key of ``written`` whose path is one of ``read``, however either is spelt."""
    kept = {real(path) for path in read}
    return next((name for name, path in written.items() if real(path) in kept), None)


def write_whole(path: Path, text: str) -> None:
    """Write one UTF-8 file; see :func:`write_all`."""
    write_all([(path, text)])


def write_all(files: Iterable[tuple[Path, str]]) -> None:
    """Write UTF-8 files, all or none: each beside its place first, then all are moved there.

    A link stays, and what it leads to is written. A device, a pipe or this process's own standard output is written into
    as it is, when all other files are ready to be moved. The mode of a file is what the umask leaves, as for any new file.

    Raises:
        OSError: one cannot be written (``filename`` is the path as given); what was there before is untouched and nothing
            is left behind.
    """
    staged: list[tuple[str, Path, Path]] = []
    direct: list[tuple[Path, int | Path, str]] = []
    try:
        for path, text in files:
            try:
                into = _written_into(path)
                if into is None:
                    place = real(path)
                    staged.append((_stage(place, text), place, path))
                else:
                    direct.append((path, into, text))
            except OSError as error:
                raise _about(error, path) from error
        for path, into, text in direct:
            try:
                with open(into, "w", encoding="utf-8", closefd=not isinstance(into, int)) as file:
                    file.write(text)
            except OSError as error:
                raise _about(error, path) from error
        while staged:
            temporary, place, path = staged[0]
            try:
                Path(temporary).replace(place)
            except OSError as error:
                raise _about(error, path) from error
            staged.pop(0)
    finally:
        for temporary, _, _ in staged:
            Path(temporary).unlink(missing_ok=True)


def _about(error: OSError, path: Path) -> OSError:
    return OSError(error.errno, error.strerror or str(error), str(path))


def _written_into(path: Path) -> int | Path | None:
    """What is opened in place of a new file: the path of a device or pipe, the descriptor of a standard stream."""
    try:
        found = path.stat()
    except FileNotFoundError:
        return None
    if not stat.S_ISREG(found.st_mode):
        return path
    for number in _STANDARD_STREAMS:
        # `--output json=/dev/stdout > FILE`: a new file in FILE's place would take what is still to be printed with the old one.
        try:
            if os.path.samestat(os.fstat(number), found):
                return number
        except OSError:  # started with it closed
            continue
    return None


def _stage(place: Path, text: str) -> str:
    """A temporary file beside ``place`` that holds the text."""
    # Shortened: a name that just fits would not with more around it.
    handle, temporary = tempfile.mkstemp(prefix=f".{place.name[:40]}.", dir=place.parent)
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
        umask = os.umask(0)
        os.umask(umask)
        Path(temporary).chmod(0o666 & ~umask)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
    return temporary
