"""What the checks of a comparison share: a host with its lock, values that differ, and the list they report to."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias, TypeVar

from envspec.findings import Finding, Json, Location, Severity
from envspec.locks import ResolvedLock
from envspec.rules import finding
from envspec.snapshot import Distribution, FileFault, Snapshot
from envspec.spec import Declared, Spec

__all__ = ["Collector", "Fact", "Host", "Key", "LabelledSnapshot", "Split", "joined", "some"]

Key: TypeAlias = tuple[str, str]
"""A row: its kind and its key, such as ``("package", "numpy")``."""

V = TypeVar("V", bound=Hashable)


class _Majority:
    """Stands for "no reference is given"; None is a value like others (a variable that is not set)."""


_MAJORITY: Final = _Majority()


@dataclass(frozen=True, kw_only=True)
class LabelledSnapshot:
    """A host of the comparison. ``snapshot`` is None when it could not be captured; ``error`` then says why."""

    label: str
    snapshot: Snapshot | None
    role: str | None = None
    target: str = ""
    error: str | None = None

    @classmethod
    def of(cls, snapshot: Snapshot, *, role: str | None = None, label: str | None = None) -> LabelledSnapshot:
        """A captured host under its own label."""
        return cls(
            label=label or snapshot.label,
            snapshot=snapshot,
            role=role,
            target=snapshot.capture.target or snapshot.label,
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Host:
    """A captured host with what its lock says for it.

    ``installed`` is canonical name to the copy that is imported, ``faults`` what is known to be wrong with files of each.
    """

    label: str
    role: str | None
    snapshot: Snapshot
    installed: Mapping[str, Distribution]
    faults: Mapping[str, tuple[FileFault, ...]]
    resolved: ResolvedLock | None


@dataclass(frozen=True, slots=True)
class Fact:
    """One value of a host: equal identities are the same, ``text`` is what a person reads.

    ``faults`` says, beside the value, what a verification found of its files; it is empty where it found nothing.
    """

    identity: Hashable
    text: str
    faults: str = ""

    @property
    def whole(self) -> str:
        """Value and faults as one text: ``3.20, 1 file modified``."""
        return f"{self.text}, {self.faults}" if self.faults else self.text


@dataclass(frozen=True, kw_only=True, slots=True)
class Split:
    """Hosts that have different values of one thing.

    ``values`` are value and hosts, without the reference's. A tie has no ``holders``: every value is listed and none is
    the right one.
    """

    values: tuple[tuple[Hashable, tuple[str, ...]], ...]
    reference: Hashable | None
    holders: tuple[str, ...]
    declared: Declared | None = None

    @property
    def hosts(self) -> tuple[str, ...]:
        """The hosts concerned, sorted."""
        return tuple(sorted(host for _, hosts in self.values for host in hosts))

    @property
    def every(self) -> tuple[tuple[Hashable, tuple[str, ...]], ...]:
        """All values with their hosts, the reference first."""
        return (((self.reference, self.holders),) if self.holders else ()) + self.values


class Collector:
    """Findings as they are made, with the rows they belong to.

    The same fact on several hosts is one finding with several hosts. ``covered`` holds what has been said of a host's row,
    so that the comparison between hosts does not say it again.
    """

    def __init__(self, spec: Spec | None, roles: Mapping[str, str | None], reference: str | None) -> None:
        self.spec = spec
        self.roles = roles
        self.reference = reference
        self.covered: set[tuple[str, Key]] = set()
        self.used_declarations: set[int] = set()
        self._merged: dict[tuple[object, ...], tuple[Finding, Key | None]] = {}

    def add(
        self,
        code: str,
        subject: str,
        hosts: Iterable[str],
        what: str,
        *,
        row: Key | None = None,
        fix: str | None = None,
        severity: Severity | None = None,
        location: Location | None = None,
        evidence: Mapping[str, Json] | None = None,
        declared: Declared | None = None,
        cover: bool = True,
    ) -> None:
        """Add a finding; equal ones on other hosts become one."""
        named = tuple(hosts)
        item = finding(code, subject, named, what, fix=fix, severity=severity, location=location, evidence=evidence)
        if declared is not None:
            item = item.replace(declared=True, why=f"{item.why} It is declared: {declared.reason or declared}.")
        key = (
            code,
            subject,
            what,
            severity,
            declared,
            location,
            json.dumps(evidence or {}, sort_keys=True, default=str),
        )
        earlier = self._merged.get(key)
        if earlier is not None:
            item = dataclasses.replace(earlier[0], hosts=tuple(sorted({*earlier[0].hosts, *named})))
        self._merged[key] = (item, row)
        if row is not None and cover:
            self.covered.update((label, row) for label in named)

    def items(self) -> Iterator[tuple[Finding, Key | None]]:
        """Every finding with its row."""
        return iter(self._merged.values())

    def splits(self, key: Key, values: Mapping[str, V]) -> list[Split]:
        """How hosts differ in one thing. ``values`` holds only hosts whose value is known.

        The reference is the host named on the command line, else the baseline of each role for its hosts, else the
        value that most hosts have. A declared difference is looked for between roles, never inside one.
        """
        if len(set(values.values())) < 2:
            return []
        roles = {label: self.roles.get(label) for label in values}
        declared = self.spec.declaration(*key, set(roles.values())) if self.spec is not None else None
        if declared is not None and self.spec is not None and len(set(roles.values())) > 1:
            self.used_declarations.add(self.spec.declared.index(declared))
            out: list[Split] = []
            typical: dict[str, V] = {}
            for role in sorted({str(role) for role in roles.values()}):
                inside = {label: value for label, value in values.items() if roles[label] == role}
                out += self._within(inside)
                value = _most(inside)
                typical.update({label: value for label in inside if inside[label] == value})
            out += [dataclasses.replace(split, declared=declared) for split in _split(typical)]
            return out
        return self._within(values)

    def _within(self, values: Mapping[str, V]) -> list[Split]:
        if self.reference is not None and self.reference in values:
            return _split(values, values[self.reference])
        out: list[Split] = []
        rest = dict(values)
        for role in sorted({role for label in values if (role := self.roles.get(label)) is not None}):
            baseline = self.spec.baseline_of(role) if self.spec is not None else None
            if baseline is None or baseline not in values:
                continue
            inside = {label: value for label, value in values.items() if self.roles.get(label) == role}
            out += _split(inside, values[baseline])
            for label in inside:
                if label != baseline:
                    rest.pop(label, None)
        return out + _split(rest)


def _by_value(values: Mapping[str, V]) -> dict[V, list[str]]:
    grouped: dict[V, list[str]] = {}
    for label in sorted(values):
        grouped.setdefault(values[label], []).append(label)
    return grouped


def _most(values: Mapping[str, V]) -> V:
    """The value that most hosts have; of several, that of the first host by name."""
    grouped = _by_value(values)
    return min(grouped, key=lambda value: (-len(grouped[value]), grouped[value][0]))


def _split(values: Mapping[str, V], reference: V | _Majority = _MAJORITY) -> list[Split]:
    grouped = _by_value(values)
    if len(grouped) < 2:
        return []
    if isinstance(reference, _Majority):
        sizes = sorted((len(hosts) for hosts in grouped.values()), reverse=True)
        if sizes[0] > sizes[1]:
            reference = max(grouped, key=lambda item: len(grouped[item]))
    tied = isinstance(reference, _Majority)
    others = sorted(
        ((tuple(hosts), value) for value, hosts in grouped.items() if tied or value != reference),
        key=lambda pair: pair[0],
    )
    return [
        Split(
            values=tuple((value, hosts) for hosts, value in others),
            reference=None if isinstance(reference, _Majority) else reference,
            holders=() if isinstance(reference, _Majority) else tuple(grouped[reference]),
        )
    ]


def some(names: Sequence[str], limit: int = 4) -> str:
    """The first few names and how many more there are."""
    if len(names) <= limit:
        return ", ".join(names)
    return f"{', '.join(names[:limit])} and {len(names) - limit} more"


def joined(split: Split, text: Callable[[Hashable], str]) -> str:
    """``2.0 on a, b; 1.0 on c``: every value with its hosts, the reference first."""
    return "; ".join(f"{text(value)} on {some(hosts)}" for value, hosts in split.every)
