"""Which file holds a role's lock, and which reader reads it.

A role looks, as PEP 751 lays down for services, first for ``pylock.<role>.toml``, then for a group of its name in
``pylock.toml``, then for the default install of ``pylock.toml``. A stack's ``requirements.<role>.lock`` counts as the first.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from packaging.pylock import is_valid_pylock_path

from envspec.errors import UsageError
from envspec.files import exists, is_dir, is_file
from envspec.locks import pylock, uvlock
from envspec.locks.model import Lock, RoleLock
from envspec.locks.requirements import read_requirements

__all__ = ["load_lock", "load_role_locks", "named_lock", "no_such_role"]


def named_lock(text: str, roles: Iterable[str | None]) -> tuple[str | None, str]:
    """The role and the path of ``--lock [ROLE=]FILE``; ``roles`` are those of the hosts, None for a host without one.

    A file may have a ``=`` in its name: where there is one, and no host has such a role, it is the file.

    Raises:
        UsageError: no host has the role, so that the lock would go unused.
    """
    role, equals, path = text.partition("=")
    known = set(roles)
    if not (equals and path) or (role not in known and exists(text)):
        return None, text
    if role not in known:
        raise no_such_role(role, text, known)
    return role, path


def no_such_role(role: str, lock: str, known: Iterable[str | None]) -> UsageError:
    """That a lock is for a role that no host has."""
    there = ", ".join(sorted(name for name in known if name is not None))
    return UsageError(
        f"the lock {lock}: no host has the role {role!r}; "
        + (f"the roles here are {there}" if there else "no host here has a role, which is given as ROLE=HOST")
    )


def load_lock(path: str | Path, role: str | None = None) -> Lock:
    """Read a lock file, or the lock that a directory holds for a role.

    Raises:
        UsageError: there is none, or it cannot be read; one sentence with the place.
    """
    place = Path(path)
    if is_dir(place):
        place = _in_directory(place, role)
    if place.name == "uv.lock" or (place.suffix == ".lock" and _looks_like_uv(place)):
        return uvlock.read_uv_lock(place, role)
    if is_valid_pylock_path(place):
        return pylock.read_pylock(place, role)
    if place.suffix == ".toml":
        if place.name == "pyproject.toml":
            raise UsageError(f"{place} is a project, not a lock; name its uv.lock or pylock.toml")
        return pylock.read_pylock(place, role)
    return read_requirements(place)


def _looks_like_uv(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            return b"[[package]]" in file.read(65536)
    except (OSError, ValueError):  # the reader says what is the matter
        return False


def _own(directory: Path, role: str) -> Path | None:
    """The file that a directory holds for this role alone."""
    names = (f"pylock.{role}.toml", f"requirements.{role}.lock")
    return next((directory / name for name in names if is_file(directory / name)), None)


def _in_directory(directory: Path, role: str | None) -> Path:
    own = _own(directory, role) if role is not None else None
    if own is not None:
        return own
    for name in ("pylock.toml", "uv.lock", "requirements.lock", "requirements.txt"):
        if is_file(directory / name):
            return directory / name
    raise UsageError(f"there is no pylock.toml, uv.lock or requirements.lock in {directory}; name the lock file")


def load_role_locks(path: str | Path, roles: Iterable[str | None]) -> tuple[RoleLock, ...]:
    """One lock for each role, from one file or directory.

    A file that does not know a role's name serves it by its default install, and is then read once for all such roles.
    """
    place = Path(path)
    wanted = sorted({role for role in roles if role is not None})
    known = [role for role in wanted if _knows(place, role)]
    locks = [RoleLock(role=role, lock=load_lock(place, role)) for role in known]
    if len(known) < len(wanted) or None in set(roles) or not locks:
        locks.append(RoleLock(role=None, lock=load_lock(place)))
    return tuple(locks)


def _knows(place: Path, role: str) -> bool:
    if is_dir(place):
        if _own(place, role) is not None:
            return True
        place = _in_directory(place, role)
    if place.name == "uv.lock":
        return uvlock.declares(place, role)
    return place.suffix == ".toml" and pylock.declares(place, role)
