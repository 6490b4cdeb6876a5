"""Which lock belongs to an interpreter of this machine, by the spec: that of the role of the host which it is."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

from envspec.errors import UsageError
from envspec.hosts import parse_host
from envspec.hosts.interface import expand_user, interpreter_in
from envspec.spec import Spec, find_spec, load_spec

__all__ = ["Belonging", "lock_here", "lock_of"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Belonging:
    """An interpreter, its lock (a path from where the spec's own path begins), and the role for which it is held against it."""

    python: str
    lock: str
    role: str | None = None

    @property
    def arguments(self) -> tuple[str, str]:
        """The lock and the host as on the command line: ``[ROLE=]FILE`` and ``[ROLE=]local:PYTHON``."""
        prefix = f"{self.role}=" if self.role is not None else ""
        return f"{prefix}{self.lock}", f"{prefix}local:{self.python}"


def lock_of(spec: Spec | None, python: str) -> Belonging | None:
    """The lock of an interpreter that is about to be used; None where the spec knows none.

    It is the spec's host ``local:PATH`` with its path, else the host ``local``, the interpreter in use. Without either it has no
    role, and the lock is that of every role without one of its own.
    """
    if spec is None:
        return None
    role = _role(spec, python)
    rules = spec.roles.get(role) if role is not None else None
    lock = (rules.lock if rules is not None else None) or spec.lock
    return Belonging(python=python, lock=str(spec.root / lock), role=role) if lock is not None else None


def lock_here(python: str) -> Belonging | None:
    """`lock_of` by the spec of the working directory.

    Raises:
        UsageError: the spec cannot be read or holds a mistake.
    """
    path = find_spec(Path())
    return lock_of(load_spec(path) if path else None, python)


def _role(spec: Spec, python: str) -> str | None:
    in_use = None
    for host in spec.hosts.values():
        try:
            name = parse_host(host.target)
        except UsageError:
            continue  # said where the host is asked
        if name.kind != "local":
            continue
        role = host.role or name.role
        if name.path is None:
            in_use = in_use or role
        elif _same(_interpreter(spec.root, name.path), Path(python)):
            return role
    return in_use


def _interpreter(root: Path, text: str) -> Path:
    """The interpreter that a target's path stands for: itself, one on the PATH, or that of a virtual environment."""
    path = expand_user(text)
    if "/" not in text:
        found = shutil.which(text)
        return Path(found) if found else root / path
    path = root / path
    return interpreter_in(path) or path


def _same(one: Path, other: Path) -> bool:
    """Whether two paths are one interpreter of one environment: a virtual environment's own is only a link to the one it was made from."""
    return one.parent.resolve() == other.parent.resolve() and one.resolve() == other.resolve()
