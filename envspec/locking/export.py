"""A stack's lock in other tools' formats: plain requirements, ``pylock.toml`` (PEP 751), and a project with ``uv.lock``.

The last two hold addresses, which a lock of ours does not: they are taken from the index that uv is configured for, or for
``pylock.toml`` from a folder of wheels. Every file is held against the lock's hashes.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from packaging.markers import Marker

from envspec.locking.environments import Platform, marker_environments, uv_environment
from envspec.locking.errors import LockRefused
from envspec.locking.files import entry_lines
from envspec.locking.metadata import file_digest
from envspec.locking.model import Entry, StackLock
from envspec.locking.uv import compile_pylock, run_uv, workspace
from envspec.locks.files import locked_file
from envspec.locks.model import Lock, LockedFile
from envspec.locks.target import Target
from envspec.locks.uvlock import read_uv_lock

__all__ = ["to_pylock", "to_requirements", "to_uv"]


def to_requirements(lock: StackLock, platform: Platform) -> str:
    """Requirements with hashes, for ``pip install --require-hashes -r``."""
    return f"# {lock.stack} for {platform}, from its requirements.lock\n{entry_lines(lock)}"


def to_pylock(lock: StackLock, platform: Platform, *, wheelhouse: Path | None = None, relative_to: Path | None = None) -> str:
    """``pylock.toml``.

    Args:
        lock: the lock.
        platform: of its stack.
        wheelhouse: a folder with the lock's wheels; paths are written in place of addresses and nothing is asked of an index.
        relative_to: the folder of the file that is written, for those paths.

    Raises:
        LockRefused: a file is missing, or has another hash than the lock's.
        ResolutionError: the index cannot be read.
    """
    places = _in_folder(lock, wheelhouse, relative_to) if wheelhouse is not None else _on_index(lock, platform)
    out = ['lock-version = "1.0"', 'created-by = "envspec"', f"requires-python = {_toml(platform.requires_python)}"]
    out.append(f"environments = [{_toml(str(Marker(uv_environment(platform))))}]")
    for entry in lock.entries:
        out += ["", "[[packages]]", f"name = {_toml(entry.name)}", f"version = {_toml(entry.version)}"]
        if entry.marker:
            out.append(f"marker = {_toml(entry.marker)}")
        if entry.requires_python:
            out.append(f"requires-python = {_toml(entry.requires_python)}")
        out.append("wheels = [")
        for wheel in entry.wheels:
            key, place = places[wheel.name]
            size = f", size = {wheel.size}" if wheel.size is not None else ""
            out.append(f'    {{ name = {_toml(wheel.name)}, {key} = {_toml(place)}{size}, hashes = {{ sha256 = "{wheel.sha256}" }} }},')
        out.append("]")
    return "\n".join(out) + "\n"


def to_uv(lock: StackLock, platform: Platform) -> Mapping[str, str]:
    """A project that uv syncs to the lock: the texts of ``pyproject.toml`` and ``uv.lock`` by file name.

    Raises:
        LockRefused: what uv locks is not what the lock holds.
        ResolutionError: the index cannot be read.
    """
    asked = [line for line in lock.inputs if not line.startswith(("#", "-c "))]
    with workspace(
        platform,
        # Not the stack's bare name: that may be one of its own packages'.
        name=_toml("-".join(["stack", lock.stack, *([lock.role] if lock.role else [])])),
        version='"0"',
        requires_python=_toml(platform.requires_python),
        dependencies=_array(asked),
        constraints=_array(entry.requirement for entry in lock.entries),
    ) as folder:
        run_uv(["lock", "--no-build", "--no-python-downloads"], folder)
        made = read_uv_lock(folder / "uv.lock")
        _same(lock, made, platform)
        return {name: (folder / name).read_text(encoding="utf-8") for name in ("pyproject.toml", "uv.lock")}


def _same(lock: StackLock, made: Lock, platform: Platform) -> None:
    markers = [entry.marker for entry in lock.entries if entry.marker]
    for python, environments in marker_environments(platform, markers).items():
        for environment in environments:
            wanted = {entry.name: entry for entry in lock.entries if entry.condition is None or entry.condition.evaluate({**environment})}
            found = {package.name: package for package in made.select(Target(markers=environment))[0] if package.direct is None}
            for name in sorted(wanted.keys() | found.keys()):
                ours, theirs = wanted.get(name), found.get(name)
                if ours is None or theirs is None or theirs.version != ours.version:
                    mine, its = (ours.version if ours else "none"), (theirs.version if theirs else "none")
                    raise LockRefused(f"uv locks {name} {its} for Python {python}, the lock of {lock.stack} holds {mine}; nothing was written")
                _hashes_hold(ours, {file.name: file for file in theirs.files})


def _hashes_hold(entry: Entry, files: Mapping[str, LockedFile]) -> None:
    for wheel in entry.wheels:
        file = files.get(wheel.name)
        if file is None:
            raise LockRefused(f"the index no longer serves {wheel.name}, which the lock holds; lock again, or use a mirror that kept it")
        if file.hashes and f"sha256:{wheel.sha256}" not in file.hashes:
            served = ", ".join(sorted(file.hashes))
            raise LockRefused(f"hash mismatch: the index serves {wheel.name} with {served}, the lock holds sha256:{wheel.sha256}")


def _on_index(lock: StackLock, platform: Platform) -> dict[str, tuple[str, str]]:
    """File name to ``("url", …)``."""
    packages = compile_pylock(platform, (entry.requirement for entry in lock.entries), dependencies=False)
    found: dict[tuple[str, str], dict[str, LockedFile]] = {}
    for package in packages:
        files = [_wheel(item) for item in package.get("wheels", []) if isinstance(item, dict)]
        found.setdefault((str(package.get("name")), str(package.get("version"))), {}).update({file.name: file for file in files})
    places: dict[str, tuple[str, str]] = {}
    for entry in lock.entries:
        files_of = found.get((entry.name, entry.version), {})
        _hashes_hold(entry, files_of)
        places.update({wheel.name: ("url", files_of[wheel.name].url or "") for wheel in entry.wheels})
    return places


def _wheel(table: Mapping[str, Any]) -> LockedFile:
    hashes = table.get("hashes")
    digests = frozenset(f"{key}:{str(value).lower()}" for key, value in hashes.items()) if isinstance(hashes, dict) else frozenset()
    return locked_file(table.get("name"), table.get("url"), table.get("path"), digests)


def _in_folder(lock: StackLock, wheelhouse: Path, relative_to: Path | None) -> dict[str, tuple[str, str]]:
    places: dict[str, tuple[str, str]] = {}
    base = (relative_to or Path()).resolve()
    for entry in lock.entries:
        for wheel in entry.wheels:
            path = wheelhouse / wheel.name
            if not path.is_file():
                raise LockRefused(f"{wheel.name} of {entry} is not in {wheelhouse}")
            found = file_digest(path)
            if found != wheel.sha256:
                raise LockRefused(f"hash mismatch: {path} has sha256 {found}, the lock holds {wheel.sha256}")
            whole = path.resolve()
            places[wheel.name] = ("path", whole.relative_to(base).as_posix() if whole.is_relative_to(base) else whole.as_posix())
    return places


def _toml(text: str) -> str:
    """A TOML basic string; JSON's escapes are among its own."""
    return json.dumps(text)


def _array(texts: Iterable[str]) -> str:
    return "[\n" + "".join(f"    {_toml(text)},\n" for text in texts) + "]"
