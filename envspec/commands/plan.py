"""``envspec plan HOST --lock FILE [--for SCRIPT]``."""

from __future__ import annotations

import argparse

from envspec.commands.inputs import NamedHost, host_names, named_hosts, options, read_hosts, read_locks, read_spec
from envspec.commands.preflight import Task, parse, resolve_all
from envspec.errors import EnvspecError, UsageError
from envspec.hosts import CaptureOptions
from envspec.locks import Lock, RoleLock
from envspec.output import Sink
from envspec.plan import Plan, plan, script_needs
from envspec.preflight import ImportFacts
from envspec.report.escape import ascii_json, no_commands, plain
from envspec.snapshot import Snapshot

__all__ = ["run"]


def run(arguments: argparse.Namespace, sink: Sink) -> int:
    """Print the install that brings the host to the lock; nothing is run. 1 when the lock does not fit the host."""
    spec = read_spec(arguments)
    (name,) = host_names([arguments.host], spec)
    if name.kind == "lock":
        raise UsageError(f"{name.text!r} is a lock, which is no host to plan for")
    (host,) = named_hosts([name])
    lock = _lock(read_locks(arguments.locks, [name], spec), host)
    how = options(arguments)
    (captured,) = read_hosts([host], how, arguments.jobs, sink)
    if captured.snapshot is None:
        raise captured.error or UsageError(f"{host.label} could not be captured")
    made = _plan(arguments, sink, how, host, captured.snapshot, lock)
    if not made.python.isprintable():
        raise UsageError(f"the interpreter's path on {host.label} holds control characters; no command is written with it")
    if made.python.startswith("-"):
        raise UsageError(f"the interpreter's path on {host.label} is {made.python!r}, which a command would take for an option")
    for step in made.steps:
        if not all(text.isprintable() for text in (step.requirement, step.index or "", *step.hashes)):
            raise UsageError(f"{lock.path}: the entry of {step.name} holds control characters; no command is written from it")
    if arguments.format == "json":
        sink.print(ascii_json(made.to_dict(), indent=1) + "\n")
    else:
        sink.print(no_commands(plain(made.to_text(), multiline=True)))
    return 1 if made.faults else 0


def _lock(locks: list[RoleLock], host: NamedHost) -> Lock:
    own = [each.lock for each in locks if each.role == host.role] or [each.lock for each in locks if each.role is None]
    if not own:
        raise UsageError("no lock was named and the spec names none for this host; give one with --lock FILE")
    if len(own) > 1:
        raise UsageError(f"{len(own)} locks were named for {host.label}; give one with --lock FILE")
    return own[0]


def _plan(arguments: argparse.Namespace, sink: Sink, how: CaptureOptions, host: NamedHost, snapshot: Snapshot, lock: Lock) -> Plan:
    if not (arguments.scripts or arguments.modules):
        return plan(snapshot, lock, tool=arguments.tool)
    scripts = parse(arguments.scripts, arguments.modules)
    facts: ImportFacts | EnvspecError = resolve_all([host], [Task(scripts=scripts)], how, arguments.jobs, sink, {host.label: snapshot})[host.label]
    if isinstance(facts, EnvspecError):
        raise facts
    needs: dict[str, str] = {}
    notes: list[str] = []
    for index, script in enumerate(scripts):
        wanted, remarks = script_needs(script, facts, lock, index)
        needs = {**wanted, **needs}
        notes += remarks
    return plan(snapshot, lock, needs=needs, tool=arguments.tool, notes=notes)
