"""``envspec diff [[ROLE=]HOST …]``."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import replace

from envspec.capture import Captured
from envspec.commands.inputs import (
    NamedHost,
    check_apart,
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
from envspec.commands.preflight import Task, files_read, resolve_all, tasks_of_spec, verdicts
from envspec.compare import LabelledSnapshot, compare
from envspec.errors import UsageError
from envspec.findings import Report
from envspec.hosts import CaptureOptions, HostName, parse_host
from envspec.locks import RoleLock
from envspec.output import Sink
from envspec.spec import Spec

__all__ = ["run", "with_baselines"]


def run(arguments: argparse.Namespace, sink: Sink) -> int:
    """Compare hosts with each other and with their locks, and preflight the scripts of their roles."""
    wanted = outputs(arguments)
    how = options(arguments)
    spec, baseline = read_spec(arguments), read_baseline(arguments)
    names = with_baselines(host_names(arguments.hosts, spec), spec)
    locks = read_locks(arguments.locks, names, spec)
    hosts = named_hosts(names)
    if not hosts:
        raise UsageError("only locks were named; name a host to compare them with")
    reference = _reference(arguments.reference, names, spec)
    tasks = tasks_of_spec(spec, {host.role for host in hosts}) if arguments.preflight else []
    check_apart(arguments, wanted, spec=spec, names=names, locks=locks, others=files_read(tasks))
    if len(hosts) == 1 and not (locks or tasks or _has_rules(spec, hosts[0].role)):
        raise UsageError(f"only {hosts[0].label} was named; name another host, or a lock with --lock FILE")
    captured = read_hosts(hosts, how, arguments.jobs, sink)
    labelled = [_labelled(host, each) for host, each in zip(hosts, captured, strict=True)]
    report = compare(labelled, locks, spec, reference=reference, baseline=baseline, deep=how.deep)
    if tasks:
        report = _with_preflight(report, hosts, captured, tasks, locks, how, arguments.jobs, sink)
    return finish(report, arguments, sink, spec=spec, baseline=baseline, locks=locks, outputs=wanted, preflighted=bool(tasks))


def with_baselines(names: Sequence[HostName], spec: Spec | None) -> list[HostName]:
    """The hosts and, for each of their roles, the host or snapshot file that the spec says the role follows."""
    out = list(names)
    for role in dict.fromkeys(name.role for name in names if name.kind != "lock"):
        base = spec.baseline_of(role) if spec else None
        if spec is None or base is None or any(name.label == base for name in out):
            continue
        (name,) = host_names([base], spec)
        if name.kind == "file" and base not in spec.hosts:
            name = replace(name, path=str(spec.root / (name.path or "")))
        out.append(replace(name, role=name.role or role))
    return out


def _has_rules(spec: Spec | None, role: str | None) -> bool:
    """Whether a host can be held against the spec alone."""
    return spec is not None and bool(spec.required(role) or spec.policies(role))


def _labelled(host: NamedHost, captured: Captured) -> LabelledSnapshot:
    error = str(captured.error).removeprefix(f"{host.label}: ") if captured.error else None
    return LabelledSnapshot(label=host.label, snapshot=captured.snapshot, role=host.role, target=host.name.text, error=error)


def _reference(text: str | None, names: Sequence[HostName], spec: Spec | None) -> str | None:
    """The label of the reference host.

    Raises:
        UsageError: it is not one of the hosts compared.
    """
    if text is None:
        return None
    labels = [name.label for name in names if name.kind != "lock"]
    if text in labels:
        return text
    wanted = parse_host(text, {name: host.target for name, host in spec.hosts.items()} if spec else None)
    found = [name.label for name in names if name.text == wanted.text and wanted.role in (None, name.role)]
    if len(found) != 1:
        raise UsageError(f"--reference {text!r} is not one of the hosts compared: {', '.join(labels)}")
    return found[0]


def _with_preflight(
    report: Report,
    hosts: Sequence[NamedHost],
    captured: Sequence[Captured],
    tasks: Sequence[Task],
    locks: Sequence[RoleLock],
    how: CaptureOptions,
    at_once: int | None,
    sink: Sink,
) -> Report:
    """The report with the verdicts on the spec's scripts. A host that was not captured is not asked again."""
    there = {host.label: each.snapshot for host, each in zip(hosts, captured, strict=True) if each.snapshot}
    asked = [host for host in hosts if host.label in there]
    facts = resolve_all(asked, tasks, how, at_once, sink, there)
    findings, statuses = verdicts(asked, tasks, facts, locks, there)
    lost = {status.label: status.reason for status in statuses if status.status == "failed"}
    merged = tuple(replace(host, status="failed", reason=lost[host.label]) if host.label in lost else host for host in report.hosts)
    return replace(report, hosts=merged).with_findings(findings)
