"""The two files of a lock: hashed requirements with a header of digests, and beside them what each entry requires.

The lock itself is an ordinary requirements file, so that pip and uv install it as it is. Its header ties it to the inputs
(``inputs``), to its own lines (``entries``) and to the metadata file (``metadata``): a change of any of them by hand shows.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar

from packaging.markers import InvalidMarker, Marker
from packaging.requirements import InvalidRequirement, Requirement
from packaging.version import InvalidVersion, Version

from envspec.errors import UsageError
from envspec.locking.model import Entry, StackLock, Wheel
from envspec.output import write_atomically

__all__ = ["Header", "LockText", "lock_text", "metadata_text", "read_lock_text", "read_metadata", "write_lock"]

T = TypeVar("T")

_HEADER: Final = re.compile(r"# (stack|role|platform|inputs|entries|metadata): (.+)")
_RELOCK: Final = "run `nox -s lock`"


@dataclass(frozen=True, kw_only=True, slots=True)
class Header:
    """The digests of a lock's header, None where a line is missing."""

    inputs: str | None = None
    entries: str | None = None
    metadata: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class LockText:
    """A lock's text: its header, the digest of its lines as they stand now, and the 1-based line of each requirement."""

    header: Header
    entries: str
    lines: Mapping[str, int]


def metadata_text(lock: StackLock) -> str:
    """The metadata file's text: JSON with one requirement a line, so that a change reads well."""
    document: dict[str, object] = {"version": 1, "stack": lock.stack}
    if lock.role:
        document["role"] = lock.role
    document["inputs"] = list(lock.inputs)
    document["distributions"] = [_distribution(entry) for entry in lock.entries]
    return json.dumps(document, indent=1, ensure_ascii=True) + "\n"


def _distribution(entry: Entry) -> dict[str, object]:
    out: dict[str, object] = {"name": entry.name, "version": entry.version}
    if entry.marker:
        out["marker"] = entry.marker
    if entry.requires_python:
        out["requires-python"] = entry.requires_python
    out["requires"] = list(entry.requires)
    out["wheels"] = [
        {"name": wheel.name, "sha256": wheel.sha256, **({"size": wheel.size} if wheel.size is not None else {})} for wheel in entry.wheels
    ]
    return out


def entry_lines(lock: StackLock) -> str:
    """The lock without its header."""
    out = []
    for entry in lock.entries:
        hashes = dict.fromkeys(f"--hash=sha256:{wheel.sha256}" for wheel in entry.wheels)
        out.append(" \\\n    ".join([entry.requirement, *hashes]) + "\n")
    return "".join(out)


def lock_text(lock: StackLock, platform: str) -> str:
    """The lock's text."""
    body = entry_lines(lock)
    header = {
        "stack": lock.stack,
        **({"role": lock.role} if lock.role else {}),
        "platform": platform,
        "inputs": lock.inputs_digest,
        "entries": _digest(body),
        "metadata": _digest(metadata_text(lock)),
    }
    head = "# Written by `nox -s lock`. Change the inputs and run it again: a change made here by hand is refused.\n"
    return head + "".join(f"# {key}: {value}\n" for key, value in header.items()) + "\n" + body


def write_lock(lock: StackLock, platform: str, path: Path, metadata: Path) -> None:
    """Write both files. The lock comes last: while it is the old one, its header does not fit the new metadata and says so.

    Raises:
        UsageError: a file cannot be written.
    """
    write_atomically(metadata, metadata_text(lock))
    write_atomically(path, lock_text(lock, platform))


def _digest(text: str) -> str:
    return "sha256:" + hashlib.sha256(text.encode()).hexdigest()


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError as error:
        raise UsageError(f"there is no {path}; {_RELOCK} to make it") from error
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise UsageError(f"{path} is not UTF-8 text (byte {error.start})") from error


def read_lock_text(path: Path) -> LockText:
    """The header of a lock and the digest of its lines.

    Raises:
        UsageError: it cannot be read.
    """
    text = _text(path)
    found: dict[str, str] = {}
    lines: dict[str, int] = {}
    body: list[str] = []
    for number, line in enumerate(text.splitlines(keepends=True), 1):
        if not body and (line.startswith("#") or not line.strip()):
            match = _HEADER.fullmatch(line.strip())
            if match:
                found.setdefault(match[1], match[2])
            continue
        body.append(line)
        if not line[:1].isspace() and not line.startswith("#"):
            lines.setdefault(line.rstrip().removesuffix("\\").strip(), number)
    header = Header(inputs=found.get("inputs"), entries=found.get("entries"), metadata=found.get("metadata"))
    return LockText(header=header, entries=_digest("".join(body)), lines=lines)


def read_metadata(path: Path) -> tuple[StackLock, str]:
    """The lock as its metadata file has it, and the file's digest. The inputs' digest is left empty: the lock's header holds it.

    Raises:
        UsageError: it cannot be read or is not such a file; the message has the key path.
    """
    text = _text(path)
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{path} is not valid JSON: {error}; {_RELOCK} to make it anew") from error
    try:
        table: dict[str, Any] = _typed(data, dict, "")
        if table.get("version") != 1:
            raise _Wrong("version", f"expected 1, found {table.get('version')!r}")
        role = table.get("role")
        lock = StackLock(
            stack=_typed(table.get("stack"), str, "stack"),
            role=_typed(role, str, "role") if role is not None else None,
            inputs=tuple(_typed(item, str, f"inputs[{i}]") for i, item in enumerate(_typed(table.get("inputs"), list, "inputs"))),
            inputs_digest="",
            entries=tuple(_entry(item, f"distributions[{i}]") for i, item in enumerate(_typed(table.get("distributions"), list, "distributions"))),
        )
    except _Wrong as error:
        raise UsageError(f"{path}: {error.args[0]}: {error.args[1]}; {_RELOCK} to make it anew") from error
    return lock, _digest(text)


class _Wrong(Exception):
    """Key path and what is wrong there."""


def _typed(value: object, kind: type[T], where: str) -> T:
    if not isinstance(value, kind) or isinstance(value, bool):
        raise _Wrong(where or "the document", f"expected {kind.__name__}, found {type(value).__name__}")
    return value


def _entry(value: object, where: str) -> Entry:
    table: dict[str, Any] = _typed(value, dict, where)
    marker, python = table.get("marker"), table.get("requires-python")
    entry = Entry(
        name=_typed(table.get("name"), str, f"{where}.name"),
        version=_typed(table.get("version"), str, f"{where}.version"),
        marker=_typed(marker, str, f"{where}.marker") if marker is not None else None,
        requires_python=_typed(python, str, f"{where}.requires-python") if python is not None else None,
        requires=tuple(
            _typed(item, str, f"{where}.requires[{i}]") for i, item in enumerate(_typed(table.get("requires"), list, f"{where}.requires"))
        ),
        wheels=tuple(
            _wheel(item, f"{where}.wheels[{i}]") for i, item in enumerate(_typed(table.get("wheels"), list, f"{where}.wheels"))
        ),
    )
    try:
        Version(entry.version)
        if entry.marker:
            Marker(entry.marker)
        for item in entry.requires:
            Requirement(item)
    except (InvalidVersion, InvalidMarker, InvalidRequirement) as error:
        raise _Wrong(where, str(error).splitlines()[0]) from error
    return entry


def _wheel(value: object, where: str) -> Wheel:
    table: dict[str, Any] = _typed(value, dict, where)
    sha256, size = _typed(table.get("sha256"), str, f"{where}.sha256"), table.get("size")
    if not re.fullmatch(r"[0-9a-f]{64}", sha256):
        raise _Wrong(f"{where}.sha256", "expected 64 hex digits")
    return Wheel(
        name=_typed(table.get("name"), str, f"{where}.name"),
        sha256=sha256,
        size=_typed(size, int, f"{where}.size") if size is not None else None,
    )
