"""Findings and the Report: what comparison, preflight and image verification conclude, as plain frozen data.

The JSON form is the fixed contract ``envspec/findings/1`` (``envspec/schema/findings.json``): ``findings``, ``hosts``,
``groups`` and ``counts``, with ``rows`` for the table that a person reads. Every class has ``to_dict`` and a validating
``from_dict``; what one writes the other reads back equal.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import resources
from typing import Any, Final, Literal, TypeAlias, TypeVar, cast

from envspec.errors import UsageError

__all__ = [
    "SCHEMA",
    "SEVERITIES",
    "Cell",
    "Counts",
    "FailOn",
    "Finding",
    "Group",
    "HostStatus",
    "Json",
    "Location",
    "Report",
    "Row",
    "Severity",
    "count",
    "json_schema",
    "sort_findings",
]

SCHEMA: Final = "envspec/findings/1"

Severity: TypeAlias = Literal["breaks", "results", "noise"]
"""By consequence: something fails to run; the numbers may change; neither."""

FailOn: TypeAlias = Literal["breaks", "results", "any", "never"]

Json: TypeAlias = "bool | int | float | str | Sequence[Json] | Mapping[str, Json] | None"

SEVERITIES: Final[tuple[Severity, ...]] = ("breaks", "results", "noise")
_RANK: Final[dict[str, int]] = {name: rank for rank, name in enumerate(SEVERITIES)}
_FAILING: Final[dict[str, tuple[str, ...]]] = {
    "breaks": ("breaks",),
    "results": ("breaks", "results"),
    "any": SEVERITIES,
    "never": (),
}

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True, slots=True)
class Location:
    """A place in a file. ``line`` and ``column`` are 1-based; None when the whole file is meant."""

    file: str
    line: int | None = None
    column: int | None = None

    def __str__(self) -> str:
        return ":".join(str(part) for part in (self.file, self.line, self.column) if part is not None)

    def to_dict(self) -> dict[str, Json]:
        return {"file": self.file, "line": self.line, "column": self.column}

    @classmethod
    def from_dict(cls, data: object, where: str = "location") -> Location:
        table = _table(data, where)
        return cls(
            file=_get(table, "file", str, where),
            line=_optional(table, "line", int, where),
            column=_optional(table, "column", int, where),
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Finding:
    """One thing that is wrong or differs.

    ``code`` is a key of :data:`envspec.rules.RULES`. ``subject`` is the distribution, module, file, variable or
    library concerned. ``hosts`` are labels of the hosts it holds on. ``what`` states the fact with its values, ``why``
    the consequence, ``fix`` the mend, as a command where there is one. ``declared`` is True for a difference that the
    spec declares between roles, ``ignored`` for one that an ignore or the baseline accepts; neither fails a run.
    ``evidence`` holds the facts behind it; its keys ``expected`` and ``found`` are part of the fingerprint.
    """

    code: str
    severity: Severity
    subject: str
    hosts: tuple[str, ...]
    what: str
    why: str
    fix: str
    declared: bool = False
    ignored: bool = False
    location: Location | None = None
    evidence: Mapping[str, Json] = field(default_factory=dict)

    @property
    def fingerprint(self) -> str:
        """16 hex digits that name this finding in a baseline.

        From code, subject, hosts (in any order), file and the ``expected`` and ``found`` evidence: a line that moves
        or a sentence that is reworded keeps it, a host that drifts further gets a new one.
        """
        identity = [
            self.code,
            self.subject,
            sorted(set(self.hosts)),
            self.location.file if self.location else None,
            self.evidence.get("expected"),
            self.evidence.get("found"),
        ]
        text = json.dumps(identity, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode("ascii")).hexdigest()[:16]

    @property
    def counts(self) -> bool:
        """Whether it can fail a run: neither declared nor ignored."""
        return not (self.declared or self.ignored)

    def replace(self, **changes: Any) -> Finding:
        """A copy with some fields changed."""
        return dataclasses.replace(self, **changes)

    def to_dict(self) -> dict[str, Json]:
        """The JSON form; every key is always present."""
        return {
            "code": self.code,
            "severity": self.severity,
            "subject": self.subject,
            "hosts": list(self.hosts),
            "what": self.what,
            "why": self.why,
            "fix": self.fix,
            "declared": self.declared,
            "ignored": self.ignored,
            "location": self.location.to_dict() if self.location else None,
            "evidence": {key: self.evidence[key] for key in sorted(self.evidence)},
            "fingerprint": self.fingerprint,
        }

    @classmethod
    def from_dict(cls, data: object, where: str = "finding") -> Finding:
        """Read the JSON form.

        Raises:
            UsageError: a key is missing or a value is of the wrong kind; the message begins with its path.
        """
        table = _table(data, where)
        location = table.get("location")
        return cls(
            code=_get(table, "code", str, where),
            severity=_severity(table, where),
            subject=_get(table, "subject", str, where),
            hosts=_strings(table, "hosts", where),
            what=_get(table, "what", str, where),
            why=_get(table, "why", str, where),
            fix=_get(table, "fix", str, where),
            declared=_get(table, "declared", bool, where),
            ignored=_get(table, "ignored", bool, where),
            location=None if location is None else Location.from_dict(location, f"{where}.location"),
            evidence=cast("Mapping[str, Json]", _table(table.get("evidence", {}), f"{where}.evidence")),
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class HostStatus:
    """One host of the comparison: captured in whole, in part, or not at all (``reason`` then says why)."""

    label: str
    role: str | None = None
    target: str = ""
    status: Literal["ok", "partial", "failed"] = "ok"
    reason: str | None = None
    digest: str | None = None
    group: str | None = None
    summary: str | None = None

    def to_dict(self) -> dict[str, Json]:
        return {
            "label": self.label,
            "role": self.role,
            "target": self.target,
            "status": self.status,
            "reason": self.reason,
            "digest": self.digest,
            "group": self.group,
            "summary": self.summary,
        }

    @classmethod
    def from_dict(cls, data: object, where: str = "host") -> HostStatus:
        table = _table(data, where)
        status = _get(table, "status", str, where)
        if status not in ("ok", "partial", "failed"):
            raise UsageError(f"{where}.status: expected 'ok', 'partial' or 'failed', found {status!r}")
        return cls(
            label=_get(table, "label", str, where),
            role=_optional(table, "role", str, where),
            target=_get(table, "target", str, where),
            status=cast("Literal['ok', 'partial', 'failed']", status),
            reason=_optional(table, "reason", str, where),
            digest=_optional(table, "digest", str, where),
            group=_optional(table, "group", str, where),
            summary=_optional(table, "summary", str, where),
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Group:
    """Hosts whose compared content is identical: one column. ``kind`` tells locks from hosts."""

    name: str
    hosts: tuple[str, ...]
    kind: Literal["lock", "hosts"] = "hosts"
    role: str | None = None
    reference: bool = False

    def to_dict(self) -> dict[str, Json]:
        return {
            "name": self.name,
            "hosts": list(self.hosts),
            "kind": self.kind,
            "role": self.role,
            "reference": self.reference,
        }

    @classmethod
    def from_dict(cls, data: object, where: str = "group") -> Group:
        table = _table(data, where)
        kind = _get(table, "kind", str, where)
        if kind not in ("lock", "hosts"):
            raise UsageError(f"{where}.kind: expected 'lock' or 'hosts', found {kind!r}")
        return cls(
            name=_get(table, "name", str, where),
            hosts=_strings(table, "hosts", where),
            kind=cast("Literal['lock', 'hosts']", kind),
            role=_optional(table, "role", str, where),
            reference=_get(table, "reference", bool, where),
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Cell:
    """One value of a row. ``text`` is None when absent or unknown.

    ``state``: ``same`` as the reference, ``different``, ``absent`` (looked for and not there), ``unknown`` (could not
    be read), ``unlisted`` (a lock that says nothing about it).
    """

    state: Literal["same", "different", "absent", "unknown", "unlisted"]
    text: str | None = None

    def to_dict(self) -> dict[str, Json]:
        return {"state": self.state, "text": self.text}

    @classmethod
    def from_dict(cls, data: object, where: str = "cell") -> Cell:
        table = _table(data, where)
        state = _get(table, "state", str, where)
        if state not in ("same", "different", "absent", "unknown", "unlisted"):
            raise UsageError(f"{where}.state: unknown state {state!r}")
        return cls(state=cast("Any", state), text=_optional(table, "text", str, where))


@dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    """One thing that differs: ``cells`` are in the order of the report's groups.

    ``kind`` is ``host``, ``interpreter``, ``component``, ``package``, ``library``, ``variable``, ``limit`` or
    ``setting``. ``names`` are the distributions behind a component row.
    """

    kind: str
    key: str
    severity: Severity
    cells: tuple[Cell, ...]
    names: tuple[str, ...] = ()
    declared: bool = False
    ignored: bool = False

    def to_dict(self) -> dict[str, Json]:
        return {
            "kind": self.kind,
            "key": self.key,
            "severity": self.severity,
            "cells": [cell.to_dict() for cell in self.cells],
            "names": list(self.names),
            "declared": self.declared,
            "ignored": self.ignored,
        }

    @classmethod
    def from_dict(cls, data: object, where: str = "row") -> Row:
        table = _table(data, where)
        return cls(
            kind=_get(table, "kind", str, where),
            key=_get(table, "key", str, where),
            severity=_severity(table, where),
            cells=_each(table, "cells", Cell.from_dict, where),
            names=_strings(table, "names", where),
            declared=_get(table, "declared", bool, where),
            ignored=_get(table, "ignored", bool, where),
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Counts:
    """The footer. Findings by severity leave out declared and ignored ones, which have counts of their own.

    ``packages`` are the distribution and component keys seen anywhere; each ``matched`` everywhere, ``differed``, or is
    ``unread`` (unknown on at least one host and equal on the others).
    """

    breaks: int = 0
    results: int = 0
    noise: int = 0
    declared: int = 0
    ignored: int = 0
    packages: int = 0
    matched: int = 0
    differed: int = 0
    unread: int = 0
    hosts: int = 0
    failed: int = 0

    def to_dict(self) -> dict[str, Json]:
        return {item.name: getattr(self, item.name) for item in dataclasses.fields(self)}

    @classmethod
    def from_dict(cls, data: object, where: str = "counts") -> Counts:
        table = _table(data, where)
        return cls(**{item.name: _get(table, item.name, int, where) for item in dataclasses.fields(cls)})


@dataclass(frozen=True, kw_only=True, slots=True)
class Report:
    """The outcome of one command.

    ``reference`` says in words what the others were compared with (``lock requirements.lock``, ``majority: A``).
    ``notes`` are remarks on the run itself that are no findings.
    """

    findings: tuple[Finding, ...] = ()
    hosts: tuple[HostStatus, ...] = ()
    groups: tuple[Group, ...] = ()
    rows: tuple[Row, ...] = ()
    counts: Counts = field(default_factory=Counts)
    reference: str | None = None
    command: str = "diff"
    notes: tuple[str, ...] = ()

    def with_findings(self, extra: Iterable[Finding]) -> Report:
        """This report with more findings, sorted and counted again."""
        findings = sort_findings([*self.findings, *extra])
        return dataclasses.replace(self, findings=findings, counts=count(findings, self.counts))

    def failing(self, fail_on: FailOn = "breaks") -> tuple[Finding, ...]:
        """The findings that fail a run under this policy."""
        severities = _FAILING[fail_on]
        return tuple(finding for finding in self.findings if finding.counts and finding.severity in severities)

    def exit_code(self, fail_on: FailOn = "breaks") -> int:
        """0 parity; 1 findings at or above the failing severity; 3 a host could not be captured.

        An uncaptured host outranks findings, also with ``never``: what was not read may hide more.
        """
        if any(host.status == "failed" for host in self.hosts):
            return 3
        return 1 if self.failing(fail_on) else 0

    def to_dict(self) -> dict[str, Json]:
        return {
            "schema": SCHEMA,
            "command": self.command,
            "reference": self.reference,
            "findings": [finding.to_dict() for finding in self.findings],
            "hosts": [host.to_dict() for host in self.hosts],
            "groups": [group.to_dict() for group in self.groups],
            "rows": [row.to_dict() for row in self.rows],
            "counts": self.counts.to_dict(),
            "notes": list(self.notes),
        }

    @classmethod
    def from_dict(cls, data: object, where: str = "report") -> Report:
        """Read the JSON form.

        Raises:
            UsageError: another schema, a missing key, or a value of the wrong kind; the message begins with its path.
        """
        table = _table(data, where)
        if table.get("schema") != SCHEMA:
            raise UsageError(f"{where}.schema: expected {SCHEMA!r}, found {table.get('schema')!r}")
        return cls(
            findings=_each(table, "findings", Finding.from_dict, where),
            hosts=_each(table, "hosts", HostStatus.from_dict, where),
            groups=_each(table, "groups", Group.from_dict, where),
            rows=_each(table, "rows", Row.from_dict, where),
            counts=Counts.from_dict(table.get("counts"), f"{where}.counts"),
            reference=_optional(table, "reference", str, where),
            command=_get(table, "command", str, where),
            notes=_strings(table, "notes", where),
        )


def sort_findings(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """Worst first, then by code, subject and hosts; an order that does not depend on the order of the input."""
    return tuple(sorted(findings, key=_order))


def _order(finding: Finding) -> tuple[object, ...]:
    place = finding.location
    where = (place.file, place.line or 0, place.column or 0) if place else ("", 0, 0)
    accepted = not finding.counts
    return (_RANK[finding.severity], accepted, finding.code, finding.subject, where, finding.hosts, finding.what)


def count(findings: Sequence[Finding], base: Counts) -> Counts:
    """``base`` with the findings' counts replaced."""
    numbers = {name: sum(item.counts and item.severity == name for item in findings) for name in SEVERITIES}
    return dataclasses.replace(
        base,
        **numbers,
        declared=sum(item.declared and not item.ignored for item in findings),
        ignored=sum(item.ignored for item in findings),
    )


def json_schema() -> dict[str, Any]:
    """The JSON Schema (draft 2020-12) of a findings document."""
    text = resources.files("envspec").joinpath("schema").joinpath("findings.json").read_text(encoding="utf-8")
    return cast("dict[str, Any]", json.loads(text))


# Typed getters: each error carries the path to the bad value.


def _table(value: object, where: str) -> Mapping[str, object]:
    if not isinstance(value, Mapping):
        raise UsageError(f"{where}: expected an object, found {_name(value)}")
    return value


def _name(value: object) -> str:
    return "null" if value is None else type(value).__name__


def _get(table: Mapping[str, object], key: str, kind: type[T], where: str) -> T:
    if key not in table:
        raise UsageError(f"{where}.{key}: the key is missing")
    value = table[key]
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        raise UsageError(f"{where}.{key}: expected {kind.__name__}, found {_name(value)}")
    return value


def _optional(table: Mapping[str, object], key: str, kind: type[T], where: str) -> T | None:
    return None if table.get(key) is None else _get(table, key, kind, where)


def _strings(table: Mapping[str, object], key: str, where: str) -> tuple[str, ...]:
    values = _get(table, key, list, where)
    for index, value in enumerate(values):
        if not isinstance(value, str):
            raise UsageError(f"{where}.{key}[{index}]: expected str, found {_name(value)}")
    return tuple(values)


def _each(table: Mapping[str, object], key: str, read: Callable[[object, str], T], where: str) -> tuple[T, ...]:
    values = _get(table, key, list, where)
    return tuple(read(value, f"{where}.{key}[{index}]") for index, value in enumerate(values))


def _severity(table: Mapping[str, object], where: str) -> Severity:
    value = _get(table, "severity", str, where)
    if value not in _RANK:
        raise UsageError(f"{where}.severity: expected one of {', '.join(SEVERITIES)}, found {value!r}")
    return cast("Severity", value)
