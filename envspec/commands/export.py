"""``envspec export [STACK]``."""

from __future__ import annotations

import argparse
from pathlib import Path

from envspec.errors import UsageError
from envspec.files import exists, is_dir
from envspec.locking.check import load_stack_lock
from envspec.locking.environments import Platform
from envspec.locking.export import to_pylock, to_requirements, to_uv
from envspec.output import Sink, write_atomically
from envspec.stacks import ROLES, find_stack

__all__ = ["run"]


def run(arguments: argparse.Namespace, sink: Sink) -> int:
    """Write a stack's lock in another tool's format, after checking it."""
    stack = find_stack(arguments.name, Path(arguments.stacks))
    if arguments.role is not None and arguments.role not in ROLES:
        raise UsageError(f"there is no role {arguments.role!r}; roles are {' and '.join(ROLES)}")
    lock, platform = load_stack_lock(stack, arguments.role), Platform.of(stack)
    target = Path(arguments.write) if arguments.write else None
    if arguments.format == "uv":
        if target is None:
            raise UsageError("--format uv writes pyproject.toml and uv.lock; name their folder with -o DIR")
        if exists(target) and not is_dir(target):
            raise UsageError(f"{target} is a file; --format uv writes a folder")
        existing = [name for name in ("pyproject.toml", "uv.lock") if exists(target / name)]
        if existing and not arguments.force:
            raise UsageError(f"{target / existing[0]} exists already; --force overwrites it")
        texts = to_uv(lock, platform)
        try:
            target.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UsageError(f"cannot make {target}: {error.strerror or error}") from error
        for name, text in texts.items():
            write_atomically(target / name, text)
        return 0
    if arguments.format == "pylock":
        wheelhouse = Path(arguments.wheelhouse) if arguments.wheelhouse else None
        text = to_pylock(lock, platform, wheelhouse=wheelhouse, relative_to=target.parent if target else None)
    else:
        text = to_requirements(lock, platform)
    if target is None:
        sink.print(text)
    else:
        write_atomically(target, text)
    return 0
