"""Which files to read, and in what order: each directory is listed once, level by level, and never all at once."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from eagle3_diag.errors import InputError

#: Endings of files that may hold a sample. Everything else in a directory is passed over in silence.
SUFFIXES = (".pt", ".pt.gz", ".ckpt", ".ckpt.gz", ".safetensors")


@dataclass(frozen=True, kw_only=True)
class Unlisted:
    """A directory below a given path that could not be listed."""

    path: Path
    reason: str


def natural_key(name: str) -> tuple[tuple[int, int, str], ...]:
    """Sort key under which ``data_2`` comes before ``data_10``."""
    parts = re.split(r"([0-9]+)", name)
    return tuple((0, int(part), part) if i % 2 else (1, 0, part) for i, part in enumerate(parts))


def printable(text: str) -> str:
    """``text`` with everything escaped that a terminal, a log or a JSON file could choke on (names are bytes on "
    "Linux)."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape", "surrogatepass").decode("ascii") for c in text)


def find_files(paths: Sequence[Path]) -> Iterator[Path | Unlisted]:
    """Sample files below ``paths``, lazily, the same whatever the order of ``paths``, each file once.

    In a directory come its own files in natural order, then its sub-directories. Hidden entries are passed over. Raises
    InputError for a path that does not exist (at once) or a given directory that cannot be listed (when its turn
    comes).
    """
    seen_directories: set[tuple[int, int]] = set()
    given_files: set[tuple[int, int]] = set()
    directories: list[Path] = []
    files: list[Path] = []
    for path in sorted(set(paths), key=lambda p: natural_key(str(p))):
        try:
            status = path.stat()
        except OSError as error:
            raise InputError(
                f"{path}: no samples can be read here ({error.strerror}); give an existing file or directory."
            ) from None
        if path.is_dir():
            directories.append(path)
        elif (status.st_dev, status.st_ino) not in given_files:
            given_files.add((status.st_dev, status.st_ino))
            files.append(path)

    def walk() -> Iterator[Path | Unlisted]:
        yield from files
        for directory in directories:
            yield from _walk(directory, seen_directories, given_files, root=True)

    return walk()


def _walk(
    directory: Path, seen: set[tuple[int, int]], given_files: set[tuple[int, int]], *, root: bool
) -> Iterator[Path | Unlisted]:
    names: list[str] = []
    subdirectories: list[str] = []
    try:
        status = directory.stat()
        if (status.st_dev, status.st_ino) in seen:  # a link back up, or a directory given twice
            return
        seen.add((status.st_dev, status.st_ino))
        with os.scandir(directory) as entries:
            for entry in entries:
                if entry.name.startswith("."):
                    continue
                if _is_directory(entry):
                    subdirectories.append(entry.name)
                elif entry.name.endswith(SUFFIXES):
                    names.append(entry.name)
    except OSError as error:
        if root:
            raise InputError(
                f"{directory}: the directory cannot be listed ({error.strerror}); check its permissions."
            ) from None
        yield Unlisted(path=directory, reason=f"{directory}: the directory cannot be listed ({error.strerror}).")
        return
    for name in sorted(names, key=natural_key):
        path = directory / name
        if given_files and _identity(path) in given_files:
            continue
        yield path
    for name in sorted(subdirectories, key=natural_key):
        yield from _walk(directory / name, seen, given_files, root=False)


def _is_directory(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:  # a link to itself: one bad entry, not a bad directory
        return False


def _identity(path: Path) -> tuple[int, int] | None:
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_dev, status.st_ino
