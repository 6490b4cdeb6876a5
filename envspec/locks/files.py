"""Reading what the three lock formats share: text, TOML with line numbers, file names."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote, urlsplit

from packaging.utils import InvalidWheelFilename, parse_wheel_filename

from envspec.errors import UsageError
from envspec.locks.model import LockedFile
from envspec.toml import read_toml

__all__ = ["HASH_EXPECTED", "HASH_LENGTHS", "digest", "header_lines", "locked_file", "parse_toml", "read_text"]

HASH_LENGTHS: Final[Mapping[str, int]] = {
    "md5": 32,
    "sha1": 40,
    "sha224": 56,
    "sha256": 64,
    "sha384": 96,
    "sha512": 128,
    "blake2b": 128,
    "blake2s": 64,
    "sha3_224": 56,
    "sha3_256": 64,
    "sha3_384": 96,
    "sha3_512": 128,
}
"""The hash algorithms of every Python to the number of hex digits of their digests."""

HASH_EXPECTED: Final = "an algorithm and all of its hex digits, such as sha256: and 64 of them"


def read_text(path: Path) -> str:
    """The file's text.

    Raises:
        UsageError: it cannot be read or is not UTF-8.
    """
    try:
        return path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise UsageError(f"cannot read the lock {path}: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise UsageError(f"the lock {path} is not UTF-8 text (byte {error.start})") from error
    except ValueError as error:  # no path of this system: a NUL in it, or what its encoding lacks
        raise UsageError(f"cannot read the lock {str(path)!r}: {error}") from error


def digest(text: str) -> str | None:
    """A hash as ``algorithm:hex`` in lower case; None for what no file can be checked against."""
    algorithm, _, value = text.partition(":")
    if re.fullmatch(r"[0-9A-Fa-f]+", value) and len(value) == HASH_LENGTHS.get(algorithm):
        return f"{algorithm}:{value.lower()}"
    return None


def parse_toml(text: str, path: Path) -> dict[str, Any]:
    """The TOML document.

    Raises:
        UsageError: it is not TOML; the message has the line and column.
    """
    try:
        return read_toml(text)
    except ValueError as error:
        raise UsageError(f"the lock {path} is not valid TOML: {error}") from error


def header_lines(text: str, table: str) -> list[int]:
    """The 1-based lines of the ``[[table]]`` headers, in order: where each element of the array begins."""
    pattern = re.compile(r"^\s*\[\[\s*" + re.escape(table) + r"\s*\]\]", re.MULTILINE)
    lines: list[int] = []
    line, last = 1, 0
    for match in pattern.finditer(text):
        start = text.index("[", match.start())
        line += text.count("\n", last, start)
        last = start
        lines.append(line)
    return lines


def _url_path(url: str) -> str:
    try:
        return unquote(urlsplit(url).path)
    except ValueError:  # a bracket in the host's place is not an IPv6 address
        return url


def locked_file(name: str | None, url: str | None, path: str | None, hashes: frozenset[str]) -> LockedFile:
    """A file of a package by PEP 751's order: ``name`` when there is one, else the last part of path or url."""
    place = _url_path(url) if url and not path else (path or "")
    base = name or place.replace("\\", "/").rsplit("/", 1)[-1]
    if not base.endswith(".whl"):
        return LockedFile(name=base, url=url, hashes=hashes)
    try:
        _, _, build, tags = parse_wheel_filename(base)
    except (InvalidWheelFilename, ValueError):
        return LockedFile(name=base, url=url, hashes=hashes, opaque=True)
    number = f"{build[0]}{build[1]}" if build else None
    return LockedFile(name=base, url=url, hashes=hashes, tags=tags, build=number)
