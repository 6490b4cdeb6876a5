"""Typed values out of a ``config.json``; every error names the file, the key, what stands there and what should."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar, overload

from eagle3_diag.errors import InputError

LFS_POINTER = b"version https://git-lfs.github.com/spec/"
MAX_JSON_BYTES = 256 << 20

_Default = TypeVar("_Default")


def require_directory(path: Path, what: str) -> Path:
    """``path`` itself when it is a directory that holds something.

    Raises:
        InputError: it does not exist, is a file, cannot be read, or is empty.
    """
    try:
        if not path.exists():
            raise InputError(f"{path}: there is no such directory; give the directory that holds the {what}'s config.json.")
        if not path.is_dir():
            raise InputError(f"{path} is a file, expected the {what}'s directory; give the directory that holds its config.json.")
        if next(path.iterdir(), None) is None:
            raise InputError(f"{path} is empty, expected the {what}'s config.json and weights; check the path or download the files again.")
    except (OSError, ValueError) as error:
        raise InputError(f"{path} cannot be read ({_reason(error)}); check the path and its permissions.") from error
    return path


def read_bytes(path: Path) -> bytes:
    """The file's bytes.

    Raises:
        InputError: it cannot be read, is larger than any configuration, or is a Git LFS pointer.
    """
    try:
        if path.stat().st_size > MAX_JSON_BYTES:
            raise InputError(f"{path} has more than {MAX_JSON_BYTES >> 20} MiB, expected a JSON text; check the file.")
        content = path.read_bytes()
    except (OSError, ValueError) as error:
        raise InputError(f"{path} cannot be read ({_reason(error)}); check the path and its permissions.") from error
    if content.startswith(LFS_POINTER):
        raise lfs_error(path)
    return content


def lfs_error(path: Path) -> InputError:
    """What to say about a file that Git LFS left as a pointer."""
    return InputError(f"{path} is a Git LFS pointer of a few lines, expected the file itself; run `git lfs pull` there or download it.")


def parse_json(path: Path, content: bytes) -> dict[str, Any]:
    """``content`` as a JSON object.

    Raises:
        InputError: it is not JSON, or not an object.
    """
    try:
        data = json.loads(content.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path} is not valid JSON ({_reason(error)}); it is damaged or cut short, so download or write it again.") from error
    if not isinstance(data, dict):
        raise InputError(f"{path} holds a JSON {_kind(data)}, expected an object; download or write it again.")
    return data


def read_config(directory: Path, what: str) -> tuple[Fields, bytes]:
    """``config.json`` of a checkpoint directory, and its bytes (for a checksum).

    Raises:
        InputError: the directory or the file is missing, empty, unreadable or not a JSON object.
    """
    path = require_directory(directory, what) / "config.json"
    if not path.exists():
        below = sorted(p.parent.name for p in directory.glob("*/config.json"))[:3]
        hint = f"; did you mean its folder {' or '.join(below)}?" if below else "; give the directory that holds it."
        raise InputError(f"{directory} has no config.json, expected one that describes the {what}{hint}")
    content = read_bytes(path)
    return Fields(parse_json(path, content), path), content


def _reason(error: BaseException) -> str:
    if isinstance(error, OSError) and error.strerror:
        return error.strerror.lower()
    return " ".join(str(error).split())[:200] or type(error).__name__


def _kind(value: object) -> str:
    names = {bool: "true/false", int: "number", float: "number", str: "text", list: "list", dict: "object"}
    return "null" if value is None else names.get(type(value), type(value).__name__)


class Fields:
    """A JSON object of a configuration; null counts as absent, as every loader of these files treats it.

    Each getter raises InputError for a value of the wrong kind, and for an absent one unless a default is given.
    """

    def __init__(self, data: Mapping[str, Any], path: Path, prefix: str = "") -> None:
        self.data = data
        self.path = path
        self.prefix = prefix

    def has(self, key: str) -> bool:
        """Whether ``key`` is there and not null."""
        return self.data.get(key) is not None

    def error(self, key: str, expected: str) -> InputError:
        """The sentence about a bad or absent value."""
        if not self.has(key):
            return InputError(f"{self.path} lacks {self.prefix}{key}, expected {expected}; add it or take the original file.")
        shown = " ".join(json.dumps(self.data[key], default=str).split())
        shown = shown if len(shown) <= 80 else shown[:77] + "..."
        return InputError(f"{self.path}: {self.prefix}{key} is {shown}, expected {expected}; correct the file.")

    def table(self, key: str) -> Fields:
        """A nested object; an empty one when absent."""
        value = self.data.get(key)
        if value is None:
            value = {}
        if not isinstance(value, dict):
            raise self.error(key, "an object")
        return Fields(value, self.path, f"{self.prefix}{key}.")

    @overload
    def integer(self, key: str, *, minimum: int = ...) -> int: ...

    @overload
    def integer(self, key: str, default: _Default, *, minimum: int = ...) -> int | _Default: ...

    def integer(self, key: str, default: Any = ..., *, minimum: int = 1) -> Any:
        """A whole number of at least ``minimum`` (and below 2**53, what JSON carries exactly)."""
        value = self.data.get(key)
        if value is None and default is not ...:
            return default
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int) or not minimum <= value < 1 << 53:
            raise self.error(key, f"a whole number of at least {minimum}")
        return value

    @overload
    def number(self, key: str, *, positive: bool = ...) -> float: ...

    @overload
    def number(self, key: str, default: _Default, *, positive: bool = ...) -> float | _Default: ...

    def number(self, key: str, default: Any = ..., *, positive: bool = False) -> Any:
        """A finite number."""
        value = self.data.get(key)
        if value is None and default is not ...:
            return default
        kind = "a positive number" if positive else "a number"
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise self.error(key, kind)
        try:
            number = float(value)
        except OverflowError:
            raise self.error(key, kind) from None
        if not math.isfinite(number) or (positive and number <= 0):
            raise self.error(key, kind)
        return number

    @overload
    def boolean(self, key: str) -> bool: ...

    @overload
    def boolean(self, key: str, default: _Default) -> bool | _Default: ...

    def boolean(self, key: str, default: Any = ...) -> Any:
        """true or false."""
        value = self.data.get(key)
        if value is None and default is not ...:
            return default
        if not isinstance(value, bool):
            raise self.error(key, "true or false")
        return value

    @overload
    def text(self, key: str) -> str: ...

    @overload
    def text(self, key: str, default: _Default) -> str | _Default: ...

    def text(self, key: str, default: Any = ...) -> Any:
        """A text."""
        value = self.data.get(key)
        if value is None and default is not ...:
            return default
        if not isinstance(value, str):
            raise self.error(key, "a text")
        return value

    def texts(self, key: str) -> tuple[str, ...]:
        """A list of texts; empty when absent."""
        value = self.data.get(key)
        if value is None:
            return ()
        if not isinstance(value, list) or not all(isinstance(v, str) for v in value):
            raise self.error(key, "a list of texts")
        return tuple(value)

    def integers(self, key: str) -> tuple[int, ...] | None:
        """A list of whole numbers of at least 0; None when absent or empty."""
        value = self.data.get(key)
        if value is None or value == []:
            return None
        if not isinstance(value, list) or not all(type(v) is int and 0 <= v < 1 << 31 for v in value):
            raise self.error(key, "a list of whole numbers of at least 0")
        return tuple(value)
