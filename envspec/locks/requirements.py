"""Requirements files with pins, as pip-compile, ``uv pip compile``, ``uv export`` and ``pip freeze`` write them.

The lines are joined and split from their options here, as pip's file format asks; each requirement is read by
``packaging``.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import (
    InvalidSdistFilename,
    InvalidWheelFilename,
    canonicalize_name,
    parse_sdist_filename,
    parse_wheel_filename,
)

from envspec.document import near
from envspec.errors import UsageError
from envspec.locks.files import HASH_EXPECTED, HASH_LENGTHS, digest, locked_file, read_text
from envspec.locks.model import Direct, Lock, LockedPackage, parse_version

__all__ = ["logical_lines", "read_requirements"]

_COMMENT: Final = re.compile(r"(^|\s)#.*$")
_OPTION: Final = re.compile(r"\s--([A-Za-z][A-Za-z-]*)(?:\s*=\s*|\s+|$)(\S*)")
_OPTIONS: Final = ("hash", "global-option", "config-setting", "config-settings", "install-option")
"""What pip lets stand behind a requirement."""
_VCS: Final = re.compile(r"^(git|hg|svn|bzr)\+")
_HEX: Final = re.compile(r"[0-9a-f]{40}([0-9a-f]{24})?")
_INCLUDE: Final = re.compile(r"^(?:-r|--requirement)[ =]?\s*(.+)$")
_EDITABLE: Final = re.compile(r"^(?:-e|--editable)[ =]\s*(.+)$")
_MAX_DEPTH: Final = 20


def read_requirements(path: Path) -> Lock:
    """Read a requirements file and those it includes with ``-r``.

    Raises:
        UsageError: it cannot be read, or a line is not a pinned requirement; the message names file and line.
    """
    packages: list[LockedPackage] = []
    index: list[str] = []
    _read(path, packages, index, (), set())
    if not packages:
        raise UsageError(f"the lock {path} lists no package; comparing with it would call every package superfluous")
    return Lock(path=str(path), kind="requirements", packages=tuple(packages))


def _read(path: Path, packages: list[LockedPackage], index: list[str], above: tuple[str, ...], done: set[str]) -> None:
    """Read a file into ``packages`` and ``index``. ``done`` are the files that were read: each is read once."""
    text = read_text(path)
    place = os.path.realpath(path)
    if place in above:
        raise UsageError(f"the lock {path} includes itself")
    if len(above) > _MAX_DEPTH:
        raise UsageError(f"the lock {path} is included through more than {_MAX_DEPTH} files")
    if place in done:
        return
    done.add(place)
    for number, line in logical_lines(text):
        where = f"{path}:{number}"
        include = _INCLUDE.match(line)
        if line.endswith("\\"):
            raise UsageError(f"{where}: nothing follows the backslash that ends this: the lock is cut short; lock again")
        if include:
            _read(path.parent / include[1].strip(), packages, index, (*above, place), done)
        elif line.startswith(("-i", "--index-url")):
            index[:] = [re.split(r"[ =]", line, maxsplit=1)[-1].strip()]
        elif line.startswith("-") and not _EDITABLE.match(line):
            continue
        else:
            packages.append(_package(line, number, where, index[0] if index else None))


def logical_lines(text: str) -> Iterator[tuple[int, str]]:
    """Join continued lines, drop comments; each with the number of its first line.

    A line that the end of the text cuts keeps its last backslash.
    """
    parts: list[str] = []
    first = 0
    continued = False
    for number, raw in enumerate(text.splitlines(), 1):
        line = raw.rstrip()
        if not parts:
            first = number
        comment = line.lstrip().startswith("#")
        continued = line.endswith("\\") and not comment
        body = "" if comment else _COMMENT.sub("", line.removesuffix("\\") if continued else line)
        parts.append(body.strip())
        if continued or (comment and len(parts) > 1 and parts[0]):
            continue
        joined = " ".join(part for part in parts if part)
        parts = []
        if joined:
            yield first, joined
    joined = " ".join(part for part in parts if part)
    if joined:
        yield first, f"{joined} \\" if continued else joined


def _package(line: str, number: int, where: str, index: str | None) -> LockedPackage:
    body, hashes = _split(line, where)
    editable = _EDITABLE.match(body)
    if editable:
        return _direct(_unquote(editable[1]), number, where, hashes, editable=True)
    if _VCS.match(body) or re.match(r"^(\.{0,2}/|file:|https?:)", body):
        return _direct(body, number, where, hashes)
    try:
        requirement = Requirement(body)
    except InvalidRequirement as error:
        reason = str(error).splitlines()[0]
        raise UsageError(f"{where}: {body[:80]!r} is not a requirement ({reason})") from error
    name = canonicalize_name(requirement.name)
    if requirement.url:
        return _located(name, requirement.url, requirement, number, where, hashes)
    pins = [
        item for item in requirement.specifier if item.operator in ("==", "===") and not item.version.endswith(".*")
    ]
    wanted = f"a lock needs {requirement.name}==VERSION"
    if not pins:
        raise UsageError(f"{where}: {body[:80]!r} is not pinned to one version; {wanted}")
    if any(parse_version(pin.version) is None for pin in pins):
        raise UsageError(f"{where}: {body[:80]!r} is not pinned to a version as PEP 440 writes them; {wanted}")
    try:
        consistent = requirement.specifier.contains(pins[0].version, prereleases=True)
    except ValueError:  # a number of more digits than Python reads
        consistent = False
    if not consistent:
        raise UsageError(f"{where}: {body[:80]!r} allows no version; {wanted}")
    return LockedPackage(
        name=name,
        version=pins[0].version,
        marker=requirement.marker,
        hashes=hashes,
        index=index,
        line=number,
    )


def _split(line: str, where: str) -> tuple[str, frozenset[str]]:
    """The requirement without its options, and its hashes. What is not known is refused: a hash must not get lost."""
    hashes = set()
    first = None
    for option in _OPTION.finditer(line):
        first = option.start() if first is None else first
        name, value = option.groups()
        if name not in _OPTIONS:
            raise UsageError(f"{where}: there is no option --{name[:40]} for a requirement{near(name, _OPTIONS)}")
        if name == "hash":
            found = digest(value)
            if found is None:
                raise UsageError(f"{where}: {f'--hash={value}'[:80]!r} is no hash; expected {HASH_EXPECTED}; lock again")
            hashes.add(found)
    return line[:first].strip(), frozenset(hashes)


def _unquote(text: str) -> str:
    try:
        parts = shlex.split(text)
    except ValueError:
        return text.strip()
    return parts[0] if len(parts) == 1 else text.strip()


def _direct(place: str, number: int, where: str, hashes: frozenset[str], *, editable: bool = False) -> LockedPackage:
    """A requirement that is only a place: the name is in the fragment or the file name."""
    egg = re.search(r"#(?:.*&)?egg=([A-Za-z0-9._-]+)", place)
    base = place.split("#")[0].split("?")[0].rstrip("/").rsplit("/", 1)[-1]
    version: str | None = None
    name = egg[1] if egg else None
    if name is None:
        try:
            if base.endswith(".whl"):
                name, parsed, _, _ = parse_wheel_filename(base)
                version = str(parsed)
            else:
                name, parsed = parse_sdist_filename(base)
                version = str(parsed)
        except (InvalidWheelFilename, InvalidSdistFilename):
            name = re.sub(r"(\.git)?(@.*)?$", "", base)
    if not re.fullmatch(r"[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?", name):
        raise UsageError(f"{where}: the package at {place[:80]!r} has no name; write it as `NAME @ {place[:60]}`")
    return LockedPackage(
        name=canonicalize_name(name),
        version=version,
        direct=_place(place, where, hashes, editable=editable),
        hashes=hashes,
        line=number,
    )


def _located(
    name: str, url: str, requirement: Requirement, number: int, where: str, hashes: frozenset[str]
) -> LockedPackage:
    direct = _place(url, where, hashes)
    version: str | None = None
    files = ()
    if direct.kind == "archive":
        file = locked_file(None, url.split("#")[0], None, hashes)
        files = (file,) if file.tags else ()  # type: ignore[assignment]
        try:
            if file.name.endswith(".whl"):
                version = str(parse_wheel_filename(file.name)[1])
            else:
                version = str(parse_sdist_filename(file.name)[1])
        except (InvalidWheelFilename, InvalidSdistFilename):
            version = None
    return LockedPackage(
        name=name, version=version, marker=requirement.marker, direct=direct, files=files, hashes=hashes, line=number
    )


def _place(place: str, where: str, hashes: frozenset[str], *, editable: bool = False) -> Direct:
    url, _, fragment = place.partition("#")
    for part in fragment.split("&"):
        algorithm, equals, value = part.partition("=")
        if not equals or algorithm.lower() not in HASH_LENGTHS:
            continue
        found = digest(f"{algorithm}:{value}")
        if found is None:
            raise UsageError(f"{where}: {part[:80]!r} is no hash; expected {HASH_EXPECTED}; lock again")
        hashes = hashes | {found}
    if _VCS.match(url):
        head, _, revision = url.rpartition("@")
        named = bool(head) and "/" not in revision  # else the "@" belongs to the login
        commit = revision if named and _HEX.fullmatch(revision) else None
        place = (head if named else url).split("+", 1)[1]
        return Direct(kind="vcs", url=place, commit=commit, editable=editable, hashes=hashes)
    archive = url.endswith((".whl", ".zip", ".tar.gz", ".tgz", ".tar.bz2", ".tar.xz"))
    if archive and not editable:
        return Direct(kind="archive", url=url, hashes=hashes)
    return Direct(kind="directory", url=url if ":" in url else None, path=url, editable=editable)
