"""Making a stack's lock: uv resolves, the wheels of the platform are chosen, their metadata is read, and the whole is judged."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from packaging.markers import Marker
from packaging.utils import canonicalize_name

from envspec.locking.closed import Closure, close
from envspec.locking.cuda import cuda_faults
from envspec.locking.environments import Platform, applies, best, marker_environments, narrow
from envspec.locking.errors import LockRefused, ResolutionError
from envspec.locking.inputs import Inputs, read_inputs
from envspec.locking.metadata import CoreMetadata, file_digest, local_path, read_many
from envspec.locking.model import Entry, StackLock, Wheel
from envspec.locking.uv import compile_pylock
from envspec.locks.files import locked_file
from envspec.locks.model import LockedFile
from envspec.stacks import Stack

__all__ = ["Located", "Resolved", "located", "resolve"]

_SHOWN: Final = 4


@dataclass(frozen=True, kw_only=True, slots=True)
class Resolved:
    """A lock that may be used, and why each entry is in it."""

    lock: StackLock
    closure: Closure
    inputs: Inputs


@dataclass(frozen=True, kw_only=True, slots=True)
class Located:
    """A package as uv found it: the chosen wheel for each Python it applies to, sizes by file name."""

    name: str
    version: str
    marker: str | None
    chosen: Mapping[str, LockedFile]
    sizes: Mapping[str, int]

    @property
    def files(self) -> list[LockedFile]:
        """The chosen wheels, each once."""
        return list({file.name: file for file in self.chosen.values()}.values())

    def wheel(self, file: LockedFile) -> Wheel:
        """A file with its hash and size."""
        hashes = [item.partition(":")[2] for item in sorted(file.hashes) if item.startswith("sha256:")]
        path = local_path(file.url or "")
        if path is not None:
            # A folder of wheels has no index that could say.
            return Wheel(name=file.name, sha256=file_digest(path), size=path.stat().st_size)
        if not hashes:
            raise LockRefused(f"the index gives no sha256 for {file.name}; a lock needs one")
        return Wheel(name=file.name, sha256=hashes[0], size=self.sizes.get(file.name))


def located(packages: Sequence[Mapping[str, Any]], platform: Platform) -> list[Located]:
    """Choose for each package of uv's answer the wheels that the platform takes.

    Raises:
        LockRefused: a package has no wheel for one of the Pythons.
    """
    markers = [str(package["marker"]) for package in packages if package.get("marker")]
    environments = marker_environments(platform, markers)
    out = []
    for package in packages:
        name, version = canonicalize_name(str(package.get("name"))), package.get("version")
        if not isinstance(version, str):
            raise ResolutionError(f"uv resolved {name} to a place without a version, which a lock cannot hold")
        marker = Marker(str(package["marker"])) if package.get("marker") else None
        tables = [item for item in package.get("wheels", []) if isinstance(item, dict)]
        files = [locked_file(item.get("name"), item.get("url"), item.get("path"), _hashes(item)) for item in tables]
        chosen: dict[str, LockedFile] = {}
        for python, each in environments.items():
            if not any(applies(marker, environment) for environment in each):
                continue
            wheel = best(files, python, platform.glibc)
            if wheel is None:
                there = ", ".join(sorted(file.name for file in files)[:4]) + (f" and {len(files) - 4} more" if len(files) > 4 else "")
                raise LockRefused(
                    f"{name} {version} has no wheel for CPython {python} on Linux x86_64 with glibc {platform.glibc}"
                    + (f"; the index has {there}" if files else ", only its source")
                    + "; take another version, or build the wheel and serve it"
                )
            chosen[python] = wheel
        sizes = {file.name: item["size"] for file, item in zip(files, tables, strict=True) if isinstance(item.get("size"), int)}
        if chosen:
            out.append(Located(name=name, version=version, marker=narrow(marker, environments), chosen=chosen, sizes=sizes))
    return sorted(out, key=lambda item: (item.name, item.version))


def _hashes(table: Mapping[str, Any]) -> frozenset[str]:
    hashes = table.get("hashes")
    return frozenset(f"{algorithm}:{str(value).lower()}" for algorithm, value in hashes.items()) if isinstance(hashes, dict) else frozenset()


def resolve(stack: Stack, role: str | None, *, old: StackLock | None = None, keep: Iterable[Entry] = (), upgrade: bool = False) -> Resolved:
    """Resolve a stack's inputs for a role.

    Args:
        stack: the stack.
        role: None for the common lock, or a role with inputs of its own.
        old: the lock as it is; its versions are kept where the inputs allow them, and its files must not have changed, unless ``upgrade``.
        keep: entries whose versions are preferred even before those of ``old``: the common lock's, for a role.
        upgrade: take the newest of everything.

    Raises:
        UsageError: the inputs hold a mistake.
        ResolutionError: uv is absent, cannot reach its index, or finds no solution.
        LockRefused: the result must not be used; the message names the culprit.
    """
    platform = Platform.of(stack)
    inputs = read_inputs(stack.inputs(role), platform)
    first = tuple(keep)
    named = {entry.name for entry in first}
    prefer = [*first, *(entry for entry in (old.entries if old and not upgrade else ()) if entry.name not in named)]
    try:
        packages = compile_pylock(platform, map(str, inputs.requirements), constraints=map(str, inputs.constraints), prefer=prefer)
    except ResolutionError as error:
        raise ResolutionError(f"{stack.name}: {error}") from error
    found = located(packages, platform)
    metadata = read_many(file.url or "" for item in found for file in item.files)
    entries = tuple(_entry(item, metadata) for item in found)
    if old is not None and not upgrade:
        _same_files(old, entries)
    lock = StackLock(stack=stack.name, role=role, inputs=tuple(inputs.lines), inputs_digest=inputs.digest, entries=entries)
    closure = close(entries, [str(item) for item in inputs.requirements], platform)
    faults = [message for message, _ in cuda_faults(entries, stack.cuda, closure)] + [gap.message for gap in closure.gaps]
    if faults:
        more = f"; and {len(faults) - _SHOWN} more" if len(faults) > _SHOWN else ""
        raise LockRefused(f"{stack.name}: this lock is refused: {'; '.join(faults[:_SHOWN])}{more}")
    return Resolved(lock=lock, closure=closure, inputs=inputs)


def _entry(item: Located, metadata: Mapping[str, CoreMetadata]) -> Entry:
    found = [metadata[file.url or ""] for file in item.files]
    for one, file in zip(found, item.files, strict=True):
        if one.name != item.name:
            raise LockRefused(f"{file.name} says in its metadata that it is {one.name or 'nothing'} {one.version}; it is damaged or wrongly built")
        if (one.requires, one.requires_python) != (found[0].requires, found[0].requires_python):
            # An installer resolves from one wheel's metadata and takes it for all.
            differs = ", ".join(sorted(set(one.requires) ^ set(found[0].requires))) or "Requires-Python"
            raise LockRefused(f"the wheels of {item.name} {item.version} disagree in what they require ({differs}): {item.files[0].name}, {file.name}")
    return Entry(
        name=item.name,
        version=item.version,
        marker=item.marker,
        wheels=tuple(item.wheel(file) for file in item.files),
        requires=found[0].requires,
        requires_python=found[0].requires_python,
    )


def _same_files(old: StackLock, entries: Iterable[Entry]) -> None:
    before = {wheel.name: wheel for entry in old.entries for wheel in entry.wheels}
    for entry in entries:
        for wheel in entry.wheels:
            held = before.get(wheel.name)
            if held is not None and held.sha256 != wheel.sha256:
                raise LockRefused(
                    f"hash mismatch: the index now serves another {wheel.name}, sha256 {wheel.sha256}, the lock holds {held.sha256}; "
                    "find out why it was replaced, or take it with --upgrade"
                )
