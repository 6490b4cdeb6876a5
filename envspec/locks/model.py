"""The one form that every lock is read into, and its evaluation for a host.

Evaluation never stops at the first fault: what can be decided is decided, and each fault is listed beside it. The rules are
those of PEP 751's section on installation, without its "an error MUST be raised".
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from packaging.markers import Marker, UndefinedComparison, UndefinedEnvironmentName
from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.tags import Tag
from packaging.version import Version

from envspec.locks.target import Target

__all__ = ["Direct", "Lock", "LockFault", "LockedFile", "LockedPackage", "ResolvedLock", "RoleLock", "parse_specifier", "parse_version"]


@functools.lru_cache(maxsize=65536)
def parse_version(text: str | None) -> Version | None:
    """The PEP 440 version, None when there is none or it is not valid."""
    try:
        return Version(text) if text else None
    except ValueError:  # InvalidVersion, and a number of more digits than Python reads
        return None


def parse_specifier(text: str) -> SpecifierSet:
    """The version specifier.

    Raises:
        InvalidSpecifier: it is none, or holds a number of more digits than Python reads (it is compared only later).
    """
    if re.search(r"\d{1000}", text):
        raise InvalidSpecifier("Invalid specifier: a number in it is too long")
    return SpecifierSet(text)


@dataclass(frozen=True, kw_only=True, slots=True)
class LockedFile:
    """One file of a locked package. ``tags`` is empty for a source archive; ``build`` is the wheel's build number.

    ``hashes`` are ``algorithm:hex``. ``opaque`` marks a wheel whose name this version cannot read (PEP 825 variants).
    """

    name: str
    url: str | None = None
    hashes: frozenset[str] = frozenset()
    tags: frozenset[Tag] = frozenset()
    build: str | None = None
    opaque: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Direct:
    """A package locked to a place and not to an index: PEP 751's vcs, directory and archive."""

    kind: Literal["vcs", "directory", "archive"]
    url: str | None = None
    path: str | None = None
    commit: str | None = None
    editable: bool = False
    subdirectory: str | None = None
    hashes: frozenset[str] = frozenset()


@dataclass(frozen=True, kw_only=True, slots=True)
class LockedPackage:
    """One entry of a lock. ``version`` is None for source trees. ``line`` is where the entry begins in the file.

    ``hashes`` are all accepted hashes, of the files or, where a requirements file does not say of what, as listed.
    ``requires`` are canonical names where the lock holds a graph.
    """

    name: str
    version: str | None = None
    marker: Marker | None = None
    requires_python: SpecifierSet | None = None
    files: tuple[LockedFile, ...] = ()
    hashes: frozenset[str] = frozenset()
    index: str | None = None
    direct: Direct | None = None
    requires: tuple[str, ...] = ()
    line: int | None = None

    @property
    def parsed(self) -> Version | None:
        """The version, None when there is none or it is not a PEP 440 version."""
        return parse_version(self.version)


@dataclass(frozen=True, kw_only=True, slots=True)
class LockFault:
    """Why a lock, or one package of it, does not fit a host."""

    kind: Literal["python", "environment", "no-wheel", "ambiguous", "package-python", "group"]
    message: str
    name: str | None = None
    line: int | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class ResolvedLock:
    """What a lock says for one host. ``undecided`` are packages whose condition could not be evaluated there.

    ``chosen`` is the wheel or archive that an installer takes, by package name.
    """

    lock: Lock
    packages: Mapping[str, LockedPackage]
    chosen: Mapping[str, LockedFile] = field(default_factory=dict)
    faults: tuple[LockFault, ...] = ()
    undecided: frozenset[str] = frozenset()


@dataclass(frozen=True, kw_only=True)
class Lock:
    """A lock as read, for one role. ``extras`` and ``groups`` are what the role selects, ``offered`` what others could."""

    path: str
    kind: Literal["requirements", "pylock", "uv"]
    packages: tuple[LockedPackage, ...]
    environments: tuple[Marker, ...] = ()
    requires_python: SpecifierSet | None = None
    extras: frozenset[str] = frozenset()
    groups: frozenset[str] = frozenset()
    offered: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def names(self) -> frozenset[str]:
        """Every canonical name in the lock, whether or not a host selects it."""
        return frozenset(package.name for package in self.packages)

    def versions(self, name: str) -> tuple[str, ...]:
        """The versions that the lock holds of a package, in file order; for messages about other hosts."""
        return tuple(dict.fromkeys(item.version for item in self.packages if item.name == name and item.version))

    def resolve(self, target: Target) -> ResolvedLock:
        """Decide package by package what this host should have.

        Conditions that name a marker the host did not tell are left undecided, never assumed.
        """
        faults: list[LockFault] = []
        python = target.python
        if _outside(self.requires_python, python):
            message = f"the lock is for Python {self.requires_python}, the host has {python}"
            faults.append(LockFault(kind="python", message=message))
        if self.environments and target.markers:
            results = [holds(marker, target.markers, "requirement") for marker in self.environments]
            if not any(result is not False for result in results):
                faults.append(LockFault(kind="environment", message="none of the lock's environments is this host"))
        selected, undecided = self.select(target)
        if self.packages and not (selected or undecided or self.groups or self.extras):
            # Held against nothing, a host would seem to match.
            why = "each of its entries is for another environment"
            if self.offered:
                why = f"it installs nothing without a group or extra; give the host one as its role: {', '.join(self.offered)}"
            faults.append(LockFault(kind="group", message=f"the lock selects no package for this host: {why}"))
        packages: dict[str, LockedPackage] = {}
        chosen: dict[str, LockedFile] = {}
        for package in selected:
            name = package.name
            earlier = packages.get(name)
            if earlier is not None:
                if (earlier.version, earlier.direct) != (package.version, package.direct):
                    versions = f"{earlier.version or 'a source tree'} and {package.version or 'a source tree'}"
                    message = f"the lock selects {name} {versions} at once"
                    faults.append(LockFault(kind="ambiguous", name=name, message=message, line=package.line))
                continue
            packages[name] = package
            if _outside(package.requires_python, python):
                message = f"{name} is locked for Python {package.requires_python}, the host has {python}"
                faults.append(LockFault(kind="package-python", name=name, message=message, line=package.line))
            if package.files:
                file = _choose(package.files, target)
                if file is None:
                    message = (
                        f"none of the {len(package.files)} locked wheels of {name} {package.version} fits the host"
                    )
                    faults.append(LockFault(kind="no-wheel", name=name, message=message, line=package.line))
                else:
                    chosen[name] = file
        return ResolvedLock(
            lock=self,
            packages=packages,
            chosen=chosen,
            faults=tuple(faults),
            undecided=frozenset(undecided - packages.keys()),
        )

    def select(self, target: Target) -> tuple[list[LockedPackage], set[str]]:
        """The entries that apply to the host, and the names whose condition could not be evaluated."""
        selected, undecided = [], set()
        for package in self.packages:
            result = self.applies(package.marker, target)
            if result:
                selected.append(package)
            elif result is None:
                undecided.add(package.name)
        return selected, undecided

    def applies(self, marker: Marker | None, target: Target) -> bool | None:
        """Whether a condition holds on the host; None when it cannot be told."""
        if marker is None:
            return True
        environment: dict[str, str | frozenset[str]] = {
            **target.markers,
            "extras": self.extras,
            "dependency_groups": self.groups,
        }
        return holds(marker, environment, "lock_file")


def _outside(specifier: SpecifierSet | None, python: Version | None) -> bool:
    return specifier is not None and python is not None and not specifier.contains(python, prereleases=True)


def holds(
    marker: Marker,
    environment: Mapping[str, str | frozenset[str]],
    context: Literal["lock_file", "metadata", "requirement"],
) -> bool | None:
    """Evaluate a marker with these values and no others; None when it needs one that is not among them.

    ``Marker.evaluate`` fills what is not given from the running interpreter, which is not the host: a marker that
    reads such a key gives None here.
    """
    if any(key not in environment for key in _keys(marker)):
        return None
    try:
        return marker.evaluate({**environment}, context=context)
    except (UndefinedComparison, UndefinedEnvironmentName, ValueError):
        return None


_MARKER_KEYS = (
    "os_name",
    "sys_platform",
    "platform_machine",
    "platform_python_implementation",
    "platform_release",
    "platform_system",
    "platform_version",
    "python_version",
    "python_full_version",
    "implementation_name",
    "implementation_version",
)


def _keys(marker: Marker) -> tuple[str, ...]:
    # The values are quoted in the text, so a bare word is a variable.
    text = str(marker)
    outside = "".join(part for index, part in enumerate(text.split('"')) if index % 2 == 0)
    words = set(outside.replace("(", " ").replace(")", " ").split())
    return tuple(key for key in _MARKER_KEYS if key in words)


def _choose(files: tuple[LockedFile, ...], target: Target) -> LockedFile | None:
    """The best wheel for the host, else a source archive, else a wheel that cannot be judged, else None."""
    best: tuple[int, LockedFile] | None = None
    fallback: LockedFile | None = None
    for file in files:
        if file.opaque or not file.tags:
            if fallback is None or (fallback.opaque and not file.opaque):
                fallback = file
            continue
        rank = target.rank(file.tags)
        if rank is not None and (best is None or rank < best[0]):
            best = (rank, file)
    return best[1] if best else fallback


@dataclass(frozen=True, kw_only=True, slots=True)
class RoleLock:
    """A lock and the role it is for; None is for every host that has no lock of its own role."""

    role: str | None
    lock: Lock
