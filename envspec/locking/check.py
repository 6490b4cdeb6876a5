"""Whether a lock, its metadata and the inputs belong together, and whether the lock is closed. Reads files only; no network."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from envspec.errors import UsageError
from envspec.locking.closed import close
from envspec.locking.cuda import cuda_faults
from envspec.locking.environments import Platform, applies, best, marker_environments
from envspec.locking.files import LockText, read_lock_text, read_metadata
from envspec.locking.inputs import read_inputs
from envspec.locking.model import Entry, StackLock
from envspec.locks.files import locked_file
from envspec.locks.model import LockedPackage
from envspec.locks.requirements import read_requirements
from envspec.stacks import Stack

__all__ = ["Problem", "check", "check_wheel", "load_stack_lock"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Problem:
    """What is wrong, and where."""

    path: Path
    message: str
    line: int | None = None

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.message}" if self.line else f"{self.path}: {self.message}"


def load_stack_lock(stack: Stack, role: str | None = None) -> StackLock:
    """A lock that was checked: what its metadata file says, with the digest of the inputs.

    Raises:
        UsageError: a file is missing or damaged, or the lock does not stand up to :func:`check`; the first problem is the message.
    """
    problems = check(stack, role)
    if problems:
        more = f" (and {len(problems) - 1} more; `nox -s lock -- {stack.name} --check` lists them)" if len(problems) > 1 else ""
        raise UsageError(f"{problems[0]}{more}")
    lock, _ = read_metadata(stack.metadata(role))
    return lock


def check(stack: Stack, role: str | None = None) -> list[Problem]:
    """Every problem of a stack's lock for a role; none is a lock that its inputs describe, that nobody edited and that is closed.

    Raises:
        UsageError: a file is missing or cannot be read at all.
    """
    platform = Platform.of(stack)
    path, metadata_path = stack.lock(role), stack.metadata(role)
    inputs = read_inputs(stack.inputs(role), platform)
    text, lock = read_lock_text(path), read_requirements(path)
    recorded, metadata_digest = read_metadata(metadata_path)
    relock = f"run `nox -s lock -- {stack.name}`"
    problems: list[Problem] = []
    if text.header.inputs is None or text.header.entries is None or text.header.metadata is None:
        problems.append(Problem(path=path, line=1, message=f"the header of digests is missing or cut; {relock}"))
    elif text.header.inputs != inputs.digest:
        problems.append(Problem(path=path, message=f"made for other inputs than {stack.inputs(role)[-1].name} holds now{_moved(recorded.inputs, inputs.lines)}; {relock}"))
    edited = _edits(path, lock.packages, recorded.entries)
    if text.header.entries is not None and text.header.entries != text.entries:
        if edited:
            problems += [Problem(path=item.path, line=item.line, message=f"edited by hand: {item.message}; {relock}") for item in edited]
        else:
            problems.append(Problem(path=path, message=f"edited by hand: its lines are not those that were written; {relock}"))
    elif text.header.metadata is not None and text.header.metadata != metadata_digest:
        problems.append(Problem(path=metadata_path, message=f"is not the file that was written with {path.name}; {relock}"))
        problems += edited
    entries = recorded.entries
    requirements = [line for line in recorded.inputs if not line.startswith(("#", "-c "))]
    closure = close(entries, requirements, platform)
    where = _Lines(path, text)
    problems += [where.problem(f"{gap.message}{_on(gap.python, platform)}", gap.entry) for gap in closure.gaps]
    problems += [where.problem(f"{entry} is required by nobody; {relock}", entry) for entry in closure.unreached]
    problems += [where.problem(message, entry) for message, entry in cuda_faults(entries, stack.cuda, closure)]
    problems += [where.problem(message, entry) for entry, message in _without_wheel(entries, platform)]
    return problems


@dataclass(frozen=True)
class _Lines:
    path: Path
    text: LockText

    def problem(self, message: str, entry: Entry | None) -> Problem:
        return Problem(path=self.path, line=self.text.lines.get(entry.requirement) if entry else None, message=message)


def _moved(before: Sequence[str], now: Sequence[str]) -> str:
    said = [*(f"{line} is new" for line in now if line not in before), *(f"{line} is gone" for line in before if line not in now)]
    return f" ({', '.join(said[:4])}{', …' if len(said) > 4 else ''})" if said else ""


def _on(python: tuple[str, ...], platform: Platform) -> str:
    return "" if python == platform.python else f" (on Python {', '.join(python)})"


def _edits(path: Path, packages: Sequence[LockedPackage], entries: Sequence[Entry]) -> list[Problem]:
    """Where the lock's entries are not those of its metadata."""
    wanted: dict[str, list[Entry]] = {}
    for entry in entries:
        wanted.setdefault(entry.name, []).append(entry)
    problems: list[Problem] = []
    seen: set[str] = set()
    for package in packages:
        seen.add(package.name)
        ours = wanted.get(package.name)
        if ours is None:
            problems.append(Problem(path=path, line=package.line, message=f"{package.name} {package.version or ''} was not there".replace("  ", " ")))
            continue
        same = next((entry for entry in ours if entry.version == package.version), None)
        if same is None:
            problems.append(Problem(path=path, line=package.line, message=f"{package.name} is {package.version} here and {' or '.join(e.version for e in ours)} in {path.stem}.metadata.json"))
            continue
        hashes = {f"sha256:{wheel.sha256}" for wheel in same.wheels}
        if hashes != package.hashes:
            words = [f"{item} was not there" for item in sorted(package.hashes - hashes)]
            words += [f"{item} of {_file(same, item)} is gone" for item in sorted(hashes - package.hashes)]
            problems.append(Problem(path=path, line=package.line, message=f"the hashes of {same} changed: {', '.join(words)}"))
        elif str(package.marker or "") != str(same.condition or ""):
            problems.append(Problem(path=path, line=package.line, message=f"the condition of {same} changed"))
    problems += [Problem(path=path, message=f"{entry} is gone") for name, ours in wanted.items() if name not in seen for entry in ours]
    return problems


def _file(entry: Entry, digest: str) -> str:
    return next((wheel.name for wheel in entry.wheels if digest == f"sha256:{wheel.sha256}"), entry.name)


def _without_wheel(entries: Sequence[Entry], platform: Platform) -> list[tuple[Entry, str]]:
    environments = marker_environments(platform, [entry.marker for entry in entries if entry.marker])
    out = []
    for entry in entries:
        files = [locked_file(wheel.name, None, None, frozenset()) for wheel in entry.wheels]
        for python, each in environments.items():
            if any(applies(entry.condition, environment) for environment in each) and best(files, python, platform.glibc) is None:
                held = ", ".join(file.name for file in files) or "none"
                out.append((entry, f"{entry} has no wheel for CPython {python} on Linux x86_64 with glibc {platform.glibc}; the lock holds {held}"))
    return out


def check_wheel(name: str, sha256: str, lock: StackLock) -> str | None:
    """What is wrong with a wheel that is to be installed from a lock: one sentence with the file and the hashes, None where nothing is.

    Args:
        name: the file's name.
        sha256: of the file as it is, in hex.
        lock: the lock.
    """
    held: Mapping[str, str] = {wheel.name: wheel.sha256 for entry in lock.entries for wheel in entry.wheels}
    base = re.split(r"[/\\]", name)[-1]
    if base not in held:
        return f"{base} is no file of the lock of {lock.stack}"
    if held[base] != sha256.lower():
        return f"hash mismatch: {base} has sha256 {sha256.lower()}, the lock of {lock.stack} holds {held[base]}"
    return None
