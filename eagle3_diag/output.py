"""Report files: checked before the work, written whole or not at all."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from eagle3_diag.errors import InputError


@dataclass(frozen=True)
class Output:
    """Text for a file (UTF-8)."""

    path: Path
    content: str


def check_writable(paths: Mapping[str, Path]) -> None:
    """Raise InputError where a file could not be written later: folder missing or closed, a directory in its place, two for one file.

    ``paths`` are by option. Nothing is created.
    """
    taken: dict[Path, str] = {}
    for option, path in paths.items():
        where = path.resolve()
        if where in taken:
            raise InputError(f"{taken[where]} and {option} both name {path}; give each report a file of its own")
        taken[where] = option
        if path.is_dir():
            raise InputError(f"{option} {path}: is a directory; name a file in it")
        if path.exists() and not path.is_file():  # /dev/stdout, a pipe: written to as it is
            needed, what = path, "it"
        else:
            needed, what = where.parent, f"its folder {where.parent}"
            if not needed.is_dir():
                raise InputError(f"{option} {path}: there is no folder {where.parent}; make it, or name another")
        if not os.access(needed, os.W_OK):
            raise InputError(f"{option} {path}: {what} cannot be written to; name a file elsewhere")


def check_apart(paths: Mapping[str, Path], inputs: Sequence[Path]) -> None:
    """Raise InputError where a report would replace a file that the evaluation reads: a slip of the shell's completion costs weights."""
    places = [each.resolve() for each in inputs] if paths else []
    for option, path in paths.items():
        where = path.resolve()
        read = where.name == "config.json" or where.suffix in (".safetensors", ".bin", ".pt", ".ckpt", ".gz", ".arrow")
        if where.is_file() and (where in places or (read and any(where.is_relative_to(place) for place in places))):
            raise InputError(f"{option} {path}: is one of the inputs and would be overwritten; name another file")


def write_all(outputs: Sequence[Output]) -> None:
    """Write every file beside its place first, then move all into place: an error or an interruption leaves none half written.

    Raises InputError when a file cannot be written (disk full, folder gone).
    """
    staged: list[tuple[Path, Path]] = []
    try:
        for output in outputs:
            place = output.path.resolve()
            try:
                if output.path.exists() and not output.path.is_file():
                    output.path.write_text(output.content, "utf-8")
                else:
                    staged.append((_stage(place, output.content), place))
            except OSError as error:
                raise InputError(f"{output.path}: could not be written ({error.strerror}); free space or name another file") from None
        while staged:
            temporary, place = staged[0]
            try:
                temporary.replace(place)
            except OSError as error:
                raise InputError(f"{place}: could not be written ({error.strerror}); name another file") from None
            staged.pop(0)
    finally:
        for temporary, _ in staged:
            with suppress(OSError):
                temporary.unlink()


def _stage(place: Path, content: str) -> Path:
    """A temporary file beside ``place`` with its content on disk and the permissions a new file would get."""
    handle, name = tempfile.mkstemp(prefix=f".{place.name[:100]}.", suffix=".part", dir=place.parent)
    try:
        with os.fdopen(handle, "w", encoding="utf-8", newline="\n") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        mask = os.umask(0)
        os.umask(mask)
        Path(name).chmod(0o666 & ~mask)
    except BaseException:
        with suppress(OSError):
            Path(name).unlink()
        raise
    return Path(name)
