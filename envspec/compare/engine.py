"""The comparison itself: hosts meet their locks, every check runs, rows and groups are made, the policy is applied."""

from __future__ import annotations

import dataclasses
import fnmatch
import functools
import hashlib
from collections.abc import Collection, Hashable, Mapping, Sequence
from datetime import date
from typing import Final

from envspec import policy
from envspec.compare import gpu, locked, machine, native, packages, paths, variables
from envspec.compare.model import Collector, Fact, Host, Key, LabelledSnapshot
from envspec.errors import UsageError
from envspec.findings import (
    SEVERITIES,
    Cell,
    Counts,
    Finding,
    Group,
    HostStatus,
    Report,
    Row,
    Severity,
    count,
    sort_findings,
)
from envspec.locks import ResolvedLock, RoleLock, Target
from envspec.policy import Baseline
from envspec.snapshot import Section
from envspec.spec import Spec

__all__ = ["compare"]

_SECTIONS: Final = {
    "package": "distributions",
    "component": "distributions",
    "library": "libraries",
    "variable": "environment",
    "limit": "limits",
    "setting": "configuration",
    "interpreter": "interpreter",
}
_HOST_SECTIONS: Final = {"driver": "driver", "gpu": "gpus", "container": "container"}
_ORDER: Final = ("interpreter", "component", "package", "library", "variable", "host", "limit", "setting")


def compare(
    hosts: Sequence[LabelledSnapshot],
    locks: Sequence[RoleLock] = (),
    spec: Spec | None = None,
    *,
    reference: str | None = None,
    baseline: Baseline | None = None,
    deep: Sequence[str] = (),
    today: date | None = None,
) -> Report:
    """Compare hosts with their locks and with each other.

    Args:
        hosts: in any order; labels are unique. One without a snapshot is reported as not captured.
        locks: a host takes the lock of its role, else the one without a role.
        spec: declared differences, required packages, version policies, severities and ignores.
        reference: label of the host that the others are compared with where no lock speaks; without one the role's
            baseline of the spec, else the value that most hosts have.
        baseline: accepted findings.
        deep: distributions whose files were to be verified, ``*`` for all; a host where they were not is told.
        today: the day that end dates of ignores are compared with.

    Raises:
        UsageError: two hosts have one label, or ``reference`` is not among the hosts.
    """
    ordered = sorted(hosts, key=lambda host: host.label)
    labels = [host.label for host in ordered]
    twice = sorted({label for label in labels if labels.count(label) > 1})
    if twice:
        raise UsageError(f"two hosts have the label {twice[0]!r}; give one of them a role or a name of its own")
    if reference is not None and reference not in labels:
        raise UsageError(f"the reference {reference!r} is none of the hosts: {', '.join(labels)}")
    roles = {host.label: host.role for host in ordered}
    captured = _hosts(ordered, locks)
    out = Collector(spec, roles, reference)
    for missing in ordered:
        if missing.snapshot is None:
            machine.uncaptured(out, missing)
    for host in captured:
        machine.collection(out, host, deep)
        locked.against_lock(out, host)
        packages.declared_requirements(out, host)
        packages.against_spec(out, host, spec, captured)
        packages.installed_files(out, host)
        paths.metadata(out, host)
        paths.each(out, host)
        gpu.each(out, host)
        native.each(out, host)
        variables.each(out, host)
        machine.each(out, host)
    gpu.image_requirements(out, captured)
    tables = {host.label: packages.facts(host) for host in captured}
    packages.between_hosts(out, captured, tables)
    gpu.between_hosts(out, captured)
    native.between_hosts(out, captured)
    paths.between_hosts(out, captured)
    variables.between_hosts(out, captured)
    machine.between_hosts(out, captured)

    found = [(policy.apply([item], spec, baseline, roles=roles, today=today)[0], row) for item, row in out.items()]
    about = policy.audit(
        [item for item, _ in found],
        spec,
        baseline,
        roles=roles,
        today=today,
        looked=functools.partial(_looked, packages.verified(captured)),
        differences=out.used_declarations,
    )
    about = policy.apply(about, spec, baseline, roles=roles, today=today)
    findings = sort_findings([*(item for item, _ in found), *about])
    tables = {host.label: {**tables[host.label], **machine.facts(host), **variables.facts(host)} for host in captured}
    groups = _groups(captured, tables, _leaders(captured, spec, reference))
    columns = _lock_columns(captured, locks)
    rows, counts = _rows(captured, tables, groups, columns, found)
    letters = {label: group.name for group in groups for label in group.hosts}
    statuses = tuple(_status(host, captured, letters, deep) for host in ordered)
    counts = dataclasses.replace(counts, hosts=len(ordered), failed=len(ordered) - len(captured))
    return Report(
        findings=findings,
        hosts=statuses,
        groups=(*columns, *groups),
        rows=rows,
        counts=count(findings, counts),
        reference=_reference(captured, locks, reference, _leaders(captured, spec, reference), groups),
        notes=tuple(dict.fromkeys(note for lock in locks for note in lock.lock.notes)),
    )


def _hosts(ordered: Sequence[LabelledSnapshot], locks: Sequence[RoleLock]) -> list[Host]:
    resolved: dict[tuple[int, Hashable], ResolvedLock] = {}
    out = []
    for host in ordered:
        if host.snapshot is None:
            continue
        chosen = _lock_of(host.role, locks)
        result: ResolvedLock | None = None
        if chosen is not None:
            target = Target.of(host.snapshot)
            key = (id(chosen), target.key)
            if key not in resolved:
                resolved[key] = chosen.lock.resolve(target)
            result = resolved[key]
        out.append(
            Host(
                label=host.label,
                role=host.role,
                snapshot=host.snapshot,
                installed=host.snapshot.installed(),
                faults=host.snapshot.file_faults(),
                resolved=result,
            )
        )
    return out


def _lock_of(role: str | None, locks: Sequence[RoleLock]) -> RoleLock | None:
    own = next((lock for lock in locks if lock.role is not None and lock.role == role), None)
    return own or next((lock for lock in locks if lock.role is None), None)


# Columns.


def _leaders(hosts: Sequence[Host], spec: Spec | None, reference: str | None) -> tuple[str, ...]:
    """Labels of the captured hosts that others are held against: the one named, else the roles' baselines."""
    labels = {host.label for host in hosts}
    if reference is not None and reference in labels:
        return (reference,)
    bases = {spec.baseline_of(host.role) for host in hosts} if spec is not None else set()
    return tuple(sorted(base for base in bases if base is not None and base in labels))


def _groups(
    hosts: Sequence[Host], tables: Mapping[str, Mapping[Key, Fact]], leaders: Sequence[str]
) -> tuple[Group, ...]:
    """Hosts with equal rows are one group; the largest is A, of equal ones that with the first label.

    The reference is the group of each leader, without one the group that is larger than all others, if there is one.
    """
    same: dict[Hashable, list[Host]] = {}
    for host in hosts:
        # Verified hosts and others are one as long as no fault was found.
        sections = host.snapshot.sections.items()
        status = tuple(sorted((name, section.status) for name, section in sections if name != "deep"))
        content = frozenset((key, fact.identity) for key, fact in tables[host.label].items())
        same.setdefault((host.role, status, content), []).append(host)
    ordered = sorted(same.values(), key=lambda members: (-len(members), members[0].label))
    majority = len(ordered) > 1 and len(ordered[0]) > len(ordered[1])
    out = []
    for index, members in enumerate(ordered):
        labels = tuple(host.label for host in members)
        leads = not set(leaders).isdisjoint(labels) if leaders else index == 0 and majority
        out.append(Group(name=_letter(index), hosts=labels, role=members[0].role, reference=leads))
    if any(host.resolved is not None for host in hosts):
        out = [dataclasses.replace(group, reference=False) for group in out]
    return tuple(out)


def _letter(index: int) -> str:
    """A … Z, AA, AB, …"""
    name = ""
    index += 1
    while index:
        index, rest = divmod(index - 1, 26)
        name = chr(ord("A") + rest) + name
    return name


def _lock_columns(hosts: Sequence[Host], locks: Sequence[RoleLock]) -> tuple[Group, ...]:
    out = []
    for lock in sorted(locks, key=lambda item: (item.role or "", item.lock.path)):
        users = [host.label for host in hosts if host.resolved is not None and host.resolved.lock is lock.lock]
        if users:
            name = f"lock:{lock.role}" if lock.role else "lock"
            out.append(Group(name=name, hosts=tuple(users), kind="lock", role=lock.role, reference=True))
    return tuple(out)


def _rows(
    hosts: Sequence[Host],
    tables: Mapping[str, Mapping[Key, Fact]],
    groups: Sequence[Group],
    columns: Sequence[Group],
    found: Sequence[tuple[Finding, Key | None]],
) -> tuple[tuple[Row, ...], Counts]:
    by_label = {host.label: host for host in hosts}
    pins = {host.label: locked.locked_facts(host) for host in hosts}
    about: dict[Key, list[Finding]] = {}
    for item, row in found:
        if row is not None:
            about.setdefault(row, []).append(item)
    keys = {key for table in tables.values() for key in table}
    keys |= {key for table in pins.values() for key in table} | about.keys()
    rows: list[Row] = []
    total = matched = differed = unread = 0
    samples = [by_label[group.hosts[0]] for group in groups]
    led = _led(groups)
    for key in sorted(keys, key=lambda item: (_ORDER.index(item[0]), item[1])):
        unknown = any(key not in tables[host.label] and not _known(host, key) for host in samples)
        different = key in about  # the checks decide; a value that one host does not tell is no difference
        if key[0] in ("package", "component"):
            # A fault that every host has (a module that cannot be loaded anywhere) is none in which they differ.
            apart = any(item.code.startswith("EP2") or len(item.hosts) < len(hosts) for item in about.get(key, ()))
            # One that lost files is not what the lock has, whichever finding tells it.
            apart = apart or (key in about and bool(columns) and any(table[key].faults for table in tables.values() if key in table))
            total += 1
            differed += apart
            unread += unknown and not apart
            matched += not apart and not unknown
        if not different:
            continue
        cells = _cells(key, columns, samples, tables, pins, led)
        findings = about.get(key, [])
        counting = [item for item in findings if item.counts] or findings
        rows.append(
            Row(
                kind=key[0],
                key=key[1],
                severity=_worst(counting),
                cells=cells,
                names=_names(key, hosts),
                declared=bool(findings) and all(item.declared for item in findings),
                ignored=bool(findings) and all(item.ignored for item in findings),
            )
        )
    rows.sort(key=lambda row: (SEVERITIES.index(row.severity), _ORDER.index(row.kind), row.key))
    return tuple(rows), Counts(packages=total, matched=matched, differed=differed, unread=unread)


def _led(groups: Sequence[Group]) -> list[int | None]:
    """For each group the index of the one that it is held against: its role's reference, else the first."""
    leading = [index for index, group in enumerate(groups) if group.reference]
    first = leading[0] if leading else None
    return [next((index for index in leading if groups[index].role == group.role), first) for group in groups]


def _worst(findings: Sequence[Finding]) -> Severity:
    return min((item.severity for item in findings), key=SEVERITIES.index, default="noise")


def _looked(verified: Collection[str], code: str, subject: str) -> bool:
    """Whether a comparison looks for findings of a code about a subject: imports are preflight's, and files only read with --deep."""
    if code in packages.OF_FILES:
        return any(fnmatch.fnmatchcase(name, subject.lower()) for name in verified)
    return not code.startswith("EP1")


def _names(key: Key, hosts: Sequence[Host]) -> tuple[str, ...]:
    if key[0] != "component":
        return ()
    return tuple(sorted({name for host in hosts for name in host.installed if packages.row_of(name) == key}))


def _known(host: Host, key: Key) -> bool:
    if key[0] == "variable" and not variables.recorded(host, key[1]):
        return False
    section = _HOST_SECTIONS.get(key[1]) if key[0] == "host" else _SECTIONS.get(key[0])
    return host.snapshot.known(section) if section is not None else True


def _cells(
    key: Key,
    columns: Sequence[Group],
    samples: Sequence[Host],
    tables: Mapping[str, Mapping[Key, Fact]],
    pins: Mapping[str, Mapping[Key, str]],
    led: Sequence[int | None],
) -> tuple[Cell, ...]:
    """A row's cells; without a lock, ``led`` gives for each sample the index of the one that it is held against."""
    facts = [tables[host.label].get(key) for host in samples]
    texts = [fact.whole if fact else None for fact in facts]
    # Equal texts of different things are told apart by their content.
    if len({fact.identity for fact in facts if fact}) > len({fact.whole for fact in facts if fact}):
        texts = [_with_content(text, host, key) for text, host in zip(texts, samples, strict=True)]
    cells: list[Cell] = []
    expected: str | None = None
    for column in columns:
        values = sorted({pins[label][key] for label in column.hosts if key in pins[label]})
        text = " | ".join(values) if values else None
        expected = expected or text
        cells.append(Cell(state="same" if text else "unlisted", text=text))
    alike = len({fact.identity for fact in facts if fact}) == 1
    for host, text, fact, leader in zip(samples, texts, facts, led, strict=True):
        if fact is None:
            cells.append(Cell(state="absent" if _known(host, key) else "unknown"))
            continue
        if columns:
            own = pins[host.label].get(key)
            same = own is not None and not fact.faults and packages.release(own) == packages.release(fact.text)
        elif leader is None:
            same = alike
        else:
            reference = facts[leader]
            same = reference is not None and fact.identity == reference.identity
        cells.append(Cell(state="same" if same else "different", text=text))
    return tuple(cells)


def _with_content(text: str | None, host: Host, key: Key) -> str | None:
    dist = host.installed.get(key[1])
    if text is None or dist is None:
        return text
    found = "".join(fault.found or fault.path for fault in host.faults.get(key[1], ()))
    changes = hashlib.sha256(found.encode("utf-8", "surrogatepass")).hexdigest() if found else None
    mark = changes or dist.origin.commit or (dist.content or "").split(":")[-1] or dist.build
    return f"{text} [{mark[:8]}]" if mark else text


def _status(host: LabelledSnapshot, captured: Sequence[Host], letters: Mapping[str, str], deep: Sequence[str]) -> HostStatus:
    target = host.target or host.label
    if host.snapshot is None:
        return HostStatus(label=host.label, role=host.role, target=target, status="failed", reason=host.error)
    gaps = machine.gaps(host.snapshot, deep)
    own = next(item for item in captured if item.label == host.label)
    return HostStatus(
        label=host.label,
        role=host.role,
        target=target,
        status="partial" if gaps else "ok",
        reason=_gaps(gaps) if gaps else None,
        digest=host.snapshot.digest,
        group=letters.get(host.label),
        summary=machine.summary(own),
    )


def _gaps(sections: Mapping[str, Section]) -> str:
    """What a host did not tell, with why: sections that have one reason share it."""
    told: dict[str, list[str]] = {}
    for name, section in sections.items():
        told.setdefault(section.reason or f"it is {section.status}", []).append(name)
    return "; ".join(f"{', '.join(names)}: {reason if len(reason) <= 160 else reason[:159] + '…'}" for reason, names in told.items())


def _reference(
    hosts: Sequence[Host],
    locks: Sequence[RoleLock],
    reference: str | None,
    leaders: Sequence[str],
    groups: Sequence[Group],
) -> str | None:
    used = [lock for lock in locks if any(host.resolved and host.resolved.lock is lock.lock for host in hosts)]
    if used:
        return "lock " + ", ".join(dict.fromkeys(lock.lock.path for lock in used))
    if reference is not None and reference in leaders:
        return f"host {reference}"
    if leaders:
        return "baseline " + ", ".join(leaders)
    largest = next((group.name for group in groups if group.reference), None)
    return f"majority {largest}" if largest else None
