"""``envspec lock [STACK …]``."""

from __future__ import annotations

import argparse
from pathlib import Path

from envspec.errors import UsageError
from envspec.locking.changes import changes
from envspec.locking.check import Problem, check
from envspec.locking.environments import Platform
from envspec.locking.files import read_metadata, write_lock
from envspec.locking.model import StackLock
from envspec.locking.newest import left_behind
from envspec.locking.registry import rebase
from envspec.locking.resolve import resolve
from envspec.locking.roles import declared_words
from envspec.output import Sink
from envspec.report.escape import no_commands, plain
from envspec.stacks import Stack, find_stack, find_stacks

__all__ = ["run"]


def run(arguments: argparse.Namespace, sink: Sink) -> int:
    """Write the locks of the stacks named, of all when none is, and say what changed; with ``--check`` prove that they stand."""
    root = Path(arguments.stacks)
    if arguments.check and (arguments.upgrade or arguments.base):
        raise UsageError("--check changes nothing, so --upgrade and --base do not go with it")
    names = arguments.names or [path.name for path in find_stacks(root)]
    if not names:
        raise UsageError(f"there is no stack in {root}; a stack is a folder with stack.yaml and requirements.in")
    stacks = [find_stack(name, root) for name in names]
    if arguments.check:
        return max(_check(stack, sink) for stack in stacks)
    for stack in stacks:
        if arguments.base:
            _print(sink, rebase(stack))
        else:
            _lock(stack, sink, upgrade=arguments.upgrade)
    return 0


def _print(sink: Sink, text: str) -> None:
    sink.print(no_commands(plain(text + "\n", multiline=True)))


def _check(stack: Stack, sink: Sink) -> int:
    problems: list[Problem] = []
    for role in stack.own:
        problems += check(stack, role)
    for problem in problems:
        _print(sink, str(problem))
        if sink.environment.get("GITHUB_ACTIONS") == "true":
            line = f",line={problem.line}" if problem.line else ""
            # The command's own syntax: % and line ends are escaped.
            text = plain(problem.message).replace("%", "%25")
            sink.remark(f"::error file={problem.path.as_posix()}{line},title=Lock of {stack.name}::{text}\n")
    if problems:
        return 1
    counts = [len(read_metadata(stack.metadata(role))[0].entries) for role in stack.own]
    _print(sink, f"{stack.name}: {' and '.join(map(str, counts))} distributions, closed for {Platform.of(stack)}, and locked for these inputs")
    for words in declared_words(stack):
        _print(sink, words)
    return 0


def _lock(stack: Stack, sink: Sink, *, upgrade: bool) -> None:
    platform = Platform.of(stack)
    common: StackLock | None = None
    for role in stack.own:
        old = _old(stack, role)
        resolved = resolve(stack, role, old=old, keep=common.entries if common else (), upgrade=upgrade)
        common = common or resolved.lock
        warnings = left_behind(resolved.inputs, resolved.lock, resolved.closure)
        write_lock(resolved.lock, str(platform), stack.lock(role), stack.metadata(role))
        first, *rest = changes(old, resolved.lock, resolved.closure)
        _print(sink, "\n".join([f"{stack.name}{f' ({role})' if role else ''}: {first}", *rest]))
        for warning in warnings:
            sink.say(f"warning: {warning}")
    for words in declared_words(stack):
        _print(sink, words)


def _old(stack: Stack, role: str | None) -> StackLock | None:
    """The lock as it is. One that cannot be read is made anew: that is what locking is for."""
    try:
        return read_metadata(stack.metadata(role))[0] if stack.lock(role).is_file() else None
    except UsageError:
        return None
