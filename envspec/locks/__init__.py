"""Locks: hashed requirements, ``pylock.toml`` (PEP 751) and ``uv.lock`` in one form, evaluated for a host."""

from __future__ import annotations

from envspec.locks.find import load_lock, load_role_locks, named_lock, no_such_role
from envspec.locks.model import (
    Direct,
    Lock,
    LockedFile,
    LockedPackage,
    LockFault,
    ResolvedLock,
    RoleLock,
)
from envspec.locks.target import Target

__all__ = [
    "Direct",
    "Lock",
    "LockFault",
    "LockedFile",
    "LockedPackage",
    "ResolvedLock",
    "RoleLock",
    "Target",
    "load_lock",
    "load_role_locks",
    "named_lock",
    "no_such_role",
]
