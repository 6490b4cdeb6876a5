"""Reading what the three lock formats share: text, TOML with line numbers, file names."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from packaging.utils import InvalidWheelFilename, parse_wheel_filename

from envspec.errors import UsageError
from envspec.locks.model import LockedFile

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

__all__ = ["header_lines", "locked_file", "parse_toml", "read_text"]


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


def parse_toml(text: str, path: Path) -> dict[str, Any]:
    """The TOML document.

    Raises:
        UsageError: it is not TOML; the message has the line and column.
    """
    try:
        document: dict[str, Any] = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise UsageError(f"the lock {path} is not valid TOML: {error}") from error
    return document


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
