"""``envspec images wheelhouse [STACK]``."""

from __future__ import annotations

import argparse
from pathlib import Path

from envspec.commands.images_build import recipe_of
from envspec.images.context import load_tools
from envspec.images.wheelhouse import fetch
from envspec.locking.check import load_stack_lock
from envspec.locking.environments import Platform
from envspec.output import Sink
from envspec.stacks import ROLES, find_stack

__all__ = ["run"]


def run(arguments: argparse.Namespace, sink: Sink) -> int:
    """Fetch the wheels of the stack's locks and of the tools' into one folder."""
    root = Path(arguments.stacks)
    stack, tools = find_stack(arguments.name, root), load_tools(recipe_of(root))
    folder = Path(arguments.wheels or f"build/wheelhouse/{stack.name}")
    roles = ROLES if arguments.role == "both" else (arguments.role,)
    locks = [(load_stack_lock(stack, role), stack) for role in {stack.lock(role): role for role in roles}.values()]
    for lock, owner in [*locks, (load_stack_lock(tools), tools)]:
        new, number = fetch(folder, lock, Platform.of(owner), sink.say)
        sink.print_line(f"{folder}: {number} wheels of {lock.stack}, {new} of them new")
    return 0
