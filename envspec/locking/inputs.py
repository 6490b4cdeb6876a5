"""What a stack asks for: ``requirements.in`` and the files it includes."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from envspec.errors import UsageError
from envspec.files import real
from envspec.locking.environments import PLATFORM, Platform
from envspec.locks.requirements import logical_lines

__all__ = ["Input", "Inputs", "canonical", "read_inputs"]

_INCLUDE: Final = re.compile(r"(-r|--requirement|-c|--constraint)[ =]?\s*(\S+)")


@dataclass(frozen=True, kw_only=True, slots=True)
class Input:
    """One requirement as written, and where."""

    requirement: Requirement
    file: Path
    line: int

    @property
    def name(self) -> str:
        """The canonical name."""
        return canonicalize_name(self.requirement.name)

    @property
    def pinned(self) -> bool:
        """Whether it allows one version only."""
        return any(item.operator in ("==", "===") and not item.version.endswith(".*") for item in self.requirement.specifier)

    def __str__(self) -> str:
        return canonical(self.requirement)


@dataclass(frozen=True, kw_only=True, slots=True)
class Inputs:
    """The requirements and constraints of one lock, and the platform they are resolved for."""

    requirements: tuple[Input, ...]
    constraints: tuple[Input, ...] = ()
    platform: Platform

    @property
    def lines(self) -> list[str]:
        """Everything that decides a resolution, in one order: what the digest is of and the metadata file records."""
        return [
            *sorted({str(item) for item in self.requirements}),
            *sorted({f"-c {item}" for item in self.constraints}),
            f"# CPython {' '.join(self.platform.python)}; {PLATFORM}; glibc {self.platform.glibc}",
        ]

    @property
    def digest(self) -> str:
        """``sha256:…`` over the lines; comments, order and spelling do not change it."""
        return "sha256:" + hashlib.sha256(json.dumps(self.lines).encode()).hexdigest()


def canonical(requirement: Requirement) -> str:
    """One spelling for a requirement: canonical names, sorted extras and specifiers."""
    extras = f"[{','.join(sorted(canonicalize_name(extra) for extra in requirement.extras))}]" if requirement.extras else ""
    specifier = ",".join(sorted(str(item) for item in requirement.specifier))
    marker = f" ; {requirement.marker}" if requirement.marker else ""
    return f"{canonicalize_name(requirement.name)}{extras}{specifier}{marker}"


def read_inputs(files: Sequence[Path], platform: Platform) -> Inputs:
    """Read the input files, following ``-r`` and ``-c``.

    Raises:
        UsageError: a file cannot be read, asks for nothing, or has a line that a lock without addresses cannot hold.
    """
    requirements: list[Input] = []
    constraints: list[Input] = []
    read: set[tuple[Path, bool]] = set()
    for file in files:
        _read(file, requirements, constraints, (), read)
    if not requirements:
        raise UsageError(f"{files[0]} asks for no package; write what the stack needs, one requirement a line")
    return Inputs(requirements=tuple(requirements), constraints=tuple(constraints), platform=platform)


def _read(file: Path, into: list[Input], constraints: list[Input], above: tuple[Path, ...], read: set[tuple[Path, bool]]) -> None:
    place = real(file)
    if place in above:
        raise UsageError(f"{file} includes itself")
    if (place, into is constraints) in read:
        return
    read.add((place, into is constraints))
    try:
        text = file.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise UsageError(f"cannot read {file}: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise UsageError(f"{file} is not UTF-8 text (byte {error.start})") from error
    for number, line in logical_lines(text):
        include = _INCLUDE.fullmatch(line)
        if include:
            included = constraints if include[1] in ("-c", "--constraint") else into
            _read(file.parent / include[2], included, constraints, (*above, place), read)
            continue
        if line.startswith("-"):
            option = re.split(r"[ =]", line, maxsplit=1)[0]
            raise UsageError(f"{file}:{number}: {option} does not belong here: a stack names packages, and uv's own configuration the place to get them from")
        into.append(Input(requirement=_requirement(line, f"{file}:{number}"), file=file, line=number))


def _requirement(line: str, where: str) -> Requirement:
    try:
        requirement = Requirement(line)
    except InvalidRequirement as error:
        raise UsageError(f"{where}: {line[:80]!r} is not a requirement ({str(error).splitlines()[0]})") from error
    if requirement.url:
        raise UsageError(f"{where}: {requirement.name} is asked for by address; a lock holds no addresses, so build it and serve it from an index or a folder")
    return requirement
