"""``envspec preflight SCRIPT … --on HOST …``."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from envspec.commands.inputs import (
    NamedHost,
    check_apart,
    concurrently,
    finish,
    host_names,
    named_hosts,
    options,
    outputs,
    read_baseline,
    read_hosts,
    read_locks,
    read_spec,
)
from envspec.errors import EnvspecError, UsageError
from envspec.files import exists, is_dir, is_file
from envspec.findings import Counts, Finding, HostStatus, Report
from envspec.hosts import CaptureOptions
from envspec.hosts.file import FileHost
from envspec.imports import ScriptImports, parse_directory, parse_module, parse_script
from envspec.locks import RoleLock
from envspec.output import Sink
from envspec.preflight import HostImports, ImportFacts, facts_from_snapshot, judge, resolve
from envspec.rules import finding
from envspec.snapshot import Snapshot
from envspec.spec import Spec

__all__ = ["Task", "files_read", "parse", "resolve_all", "run", "tasks_of_spec", "verdicts"]


@dataclass(frozen=True, kw_only=True)
class Task:
    """Scripts that the hosts of a role will run; a role of None is every host."""

    scripts: tuple[ScriptImports, ...]
    role: str | None = None

    def concerns(self, role: str | None) -> bool:
        return self.role is None or self.role == role


def run(arguments: argparse.Namespace, sink: Sink) -> int:
    """Judge the scripts named, or those of the spec on the hosts of their roles."""
    wanted = outputs(arguments)
    how = options(arguments)
    spec, baseline = read_spec(arguments), read_baseline(arguments)
    names = host_names(arguments.on, spec)
    if arguments.scripts or arguments.modules:
        tasks = [Task(scripts=parse(arguments.scripts, arguments.modules))]
    else:
        tasks = tasks_of_spec(spec, {name.role for name in names})
        if not tasks:
            raise UsageError("no script was named and the spec names none for these hosts; write `envspec preflight SCRIPT --on HOST`")
    locks = read_locks(arguments.locks, names, spec)
    check_apart(arguments, wanted, spec=spec, names=names, locks=locks, others=files_read(tasks))
    hosts = named_hosts(names)
    if not hosts:
        raise UsageError("only locks were named; name a host on which the scripts are to run")
    facts = resolve_all(hosts, tasks, how, arguments.jobs, sink)
    findings, statuses = verdicts(hosts, tasks, facts, locks, {})
    if findings:
        # The mends name the tool that owns each environment, which only a snapshot tells; parity takes one round trip.
        concerned = {label for each in findings for label in each.hosts}
        again = [host for host in hosts if host.label in concerned and isinstance(facts[host.label], ImportFacts)]
        captured = zip(again, read_hosts(again, how, arguments.jobs, sink), strict=True)
        findings, statuses = verdicts(hosts, tasks, facts, locks, {host.label: each.snapshot for host, each in captured})
    failed = sum(status.status == "failed" for status in statuses)
    report = Report(
        hosts=statuses,
        counts=Counts(hosts=len(statuses), failed=failed),
        command="preflight",
        reference=", ".join(dict.fromkeys(f"lock {lock.lock.path}" for lock in locks)) or None,
        notes=(f"scripts: {', '.join(dict.fromkeys(script.script for task in tasks for script in task.scripts))}",),
    ).with_findings(findings)
    return finish(report, arguments, sink, spec=spec, locks=locks, baseline=baseline, outputs=wanted, preflighted=True)


def parse(scripts: Sequence[str], modules: Sequence[str], base: Path | None = None) -> tuple[ScriptImports, ...]:
    """Parse scripts, notebooks, directories and modules.

    Raises:
        UsageError: one is not there, or the working directory, which files are named relative to, is gone.
    """
    try:
        Path.cwd()
    except FileNotFoundError as error:
        raise UsageError("the working directory does not exist any more; change into one that does") from error
    parsed: list[ScriptImports] = []
    for text in scripts:
        path = (base / text) if base else Path(text)
        if not exists(path):
            raise UsageError(f"There is no script {path}: check the path.")
        if is_dir(path) and not is_file(path / "__main__.py"):
            inside = parse_directory(path)
            if not inside:
                raise UsageError(f"the directory {path} holds no Python file")
            parsed += inside
        else:
            parsed.append(parse_script(path))
    parsed += [parse_module(name, base=base) for name in modules]
    return tuple(parsed)


def files_read(tasks: Sequence[Task]) -> list[str]:
    """The files that were parsed for the tasks, relative to the working directory where they are below it."""
    scripts = [script for task in tasks for script in task.scripts]
    return [*(script.script for script in scripts), *(source.file for script in scripts for source in script.sources)]


def tasks_of_spec(spec: Spec | None, roles: set[str | None]) -> list[Task]:
    """The scripts that the spec names for these roles. ``-m PKG`` in the spec means what ``python -m PKG`` runs.

    Raises:
        UsageError: a script is not there.
    """
    tasks = []
    for name, role in (spec.roles if spec else {}).items():
        if spec and role.scripts and name in roles:
            files = [text for text in role.scripts if not text.startswith("-m ")]
            modules = [text.removeprefix("-m ").strip() for text in role.scripts if text.startswith("-m ")]
            tasks.append(Task(role=name, scripts=parse(files, modules, spec.root)))
    return tasks


def resolve_all(
    hosts: Sequence[NamedHost],
    tasks: Sequence[Task],
    how: CaptureOptions,
    at_once: int | None,
    sink: Sink,
    snapshots: Mapping[str, Snapshot] | None = None,
) -> dict[str, ImportFacts | EnvspecError]:
    """Every host's answer for all scripts, or why there is none. A saved snapshot answers as far as it can.

    All hosts are asked about all scripts, since the verdict on one names another that has what is missing.
    """
    scripts = [script for task in tasks for script in task.scripts]

    def ask(host: NamedHost) -> Callable[[], ImportFacts]:
        if isinstance(host.host, FileHost):
            known = (snapshots or {}).get(host.label)
            return lambda: facts_from_snapshot(known or host.host.snapshot(how), scripts)
        return lambda: resolve(host.host, scripts, timeout=how.timeout)

    answers = concurrently({host.label: ask(host) for host in hosts}, at_once, sink)
    return {host.label: answers[host.label] for host in hosts}


def verdicts(
    hosts: Sequence[NamedHost],
    tasks: Sequence[Task],
    facts: Mapping[str, ImportFacts | EnvspecError],
    locks: Sequence[RoleLock],
    snapshots: Mapping[str, Snapshot | None],
) -> tuple[list[Finding], tuple[HostStatus, ...]]:
    """The findings of all tasks, and how each host answered."""
    findings: list[Finding] = []
    statuses: list[HostStatus] = []
    answered: list[tuple[NamedHost, ImportFacts]] = []
    for host in hosts:
        answer = facts[host.label]
        status = HostStatus(label=host.label, role=host.role, target=host.name.text)
        if isinstance(answer, EnvspecError):
            reason = str(answer).removeprefix(f"{host.label}: ")
            statuses.append(replace(status, status="failed", reason=reason))
            findings.append(finding("EP901", host.label, [host.label], f"{host.label} could not be asked: {reason}"))
            continue
        answered.append((host, answer))
        told = (f"Python {answer.python}" if answer.python else "", answer.executable)
        status = replace(status, summary=" ".join(filter(None, told)) or None)
        if not answer.complete:
            status = replace(status, status="partial", reason="not everything that the packages import could be followed in time")
        statuses.append(status)
    start = 0
    for task in tasks:
        end = start + len(task.scripts)
        here = [
            HostImports(
                label=host.label, role=host.role, facts=replace(answer, scripts=answer.scripts[start:end]), snapshot=snapshots.get(host.label)
            )
            for host, answer in answered
        ]
        start = end
        concerned = [host for host in here if task.concerns(host.role)]
        findings += judge(task.scripts, concerned, locks, [host for host in here if host not in concerned])
    return findings, tuple(statuses)
