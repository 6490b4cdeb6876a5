"""Decides whether images hold one environment: images as read go in, findings come out. Nothing here reads the world.

Packages, files against RECORD and the lock are :func:`envspec.compare.compare`'s; this module adds what only images have: layers and
base, configuration, every file on disk, and the build's own records and labels.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from envspec import policy
from envspec.compare import LabelledSnapshot, compare
from envspec.compare.model import some
from envspec.findings import Finding, Report, sort_findings
from envspec.images import labels
from envspec.images.digest import Entry, below, environment_digest
from envspec.images.inspect import ImageContent, ImageFacts
from envspec.images.unread import unread
from envspec.locks import Lock, RoleLock
from envspec.rules import finding
from envspec.snapshot import Snapshot, identity
from envspec.spec import Spec

__all__ = ["SeenImage", "verify"]

_OF_THE_MACHINE: Final = frozenset(
    {"EP301", "EP302", "EP303", "EP304", "EP305", "EP308", "EP309", "EP310", "EP409", "EP806", "EP807", "EP808", "EP902", "EP903"}
)
"""Findings on the machine that the images were looked at on: its driver, GPUs, processor and limits."""
_LAYERS_SAY: Final = frozenset({"EP809", "EP703", "EP704", "EP708"})
"""What image identity, files and settings say better here."""
_EXACT: Final = frozenset({"EP212", "EP213"})
"""Noise between hosts; an image holds what its lock says, from the same wheels, and nothing else."""
_OF_ONE: Final = re.compile(r"EP2\d\d|EP50[1-4]|EP82\d")
"""Findings that count even where they hold in all images alike; another fault that all share is no difference between them."""

_USER_SITE: Final = re.compile(r"((?:.*/)?\.local/lib/python3[^/]*/site-packages)/(.+)")
_TEMPORARY: Final = re.compile(r"(tmp|var/(tmp|log|cache)|run|root/\.cache|home/[^/]+/\.cache)/")
_SNAPSHOT_FILE: Final = labels.SNAPSHOT.lstrip("/")
_MACHINE_PARTS: Final = frozenset({"schema", "sections", "cpu", "driver", "gpus", "environment", "markers"})
_SHOWN: Final = 50


@dataclass(frozen=True, kw_only=True)
class SeenImage:
    """An image as it was read. ``now`` is a snapshot taken of it now, with every file checked against RECORD; ``baked`` the one its build
    left in it, ``lock`` the lock in it; None where there is none. Images that hold the same lock share one object.

    ``roles`` are the differences between roles that the stack in it declares, each with its reason. ``asked`` is the lock that the
    image is to be held against, None for its own. ``accepted`` holds the findings that its stack accepts, as its build applied them.
    """

    label: str
    role: str | None
    facts: ImageFacts
    content: ImageContent
    now: Snapshot
    baked: Snapshot | None = None
    lock: Lock | None = None
    asked: Lock | None = None
    roles: Mapping[str, str] | None = None
    accepted: Spec | None = None

    @property
    def environment(self) -> tuple[Entry, ...]:
        """Everything below ``/opt/env``."""
        return tuple(below(self.content.files.values(), labels.ENVIRONMENT))


def verify(images: Sequence[SeenImage]) -> Report:
    """Hold each image against its own records and its lock, and all against the first.

    The report's first note says ``identical: N distributions, M files, digest sha256:…`` when nothing differs, also with one image, which
    is then what its build recorded.
    """
    digests = {image.label: environment_digest(image.environment) for image in images}
    used = [(image.role, lock) for image in images if (lock := image.asked or image.lock) is not None]
    same = len({id(lock) for _, lock in used}) == 1
    locks = [RoleLock(role=None if same else role, lock=lock) for role, lock in (used[:1] if same else used)]
    compared = compare(
        [LabelledSnapshot(label=image.label, snapshot=image.now, role=image.role, target=f"image:{image.facts.name}") for image in images],
        locks,
    )
    everywhere = {image.label for image in images}
    own: list[Finding] = []
    for image in images:
        own += unread(image.now, image.label)
        own += _records(image, digests[image.label])
        own += _lock(image)
        own += _user_site(image)
    for other in images[1:]:
        own += _between(images[0], other)
    spoken = {item.subject for item in own if item.code == "EP823"}
    kept, alike = [], 0
    for item in compared.findings:
        if item.code in _OF_THE_MACHINE or (item.code in _LAYERS_SAY and len(images) > 1) or (item.code == "EP701" and item.subject in spoken):
            continue
        if set(item.hosts) == everywhere and not _OF_ONE.match(item.code):
            alike += item.severity != "noise" and not all(image.accepted and policy.apply([item], image.accepted)[0].ignored for image in images)
            continue
        kept.append(item.replace(severity="results") if item.code in _EXACT and item.severity == "noise" else item)
    # Only what every image's build accepted, and never what this module finds: an exchanged file of accepted findings hides nothing.
    for image in images:
        kept = list(policy.apply(kept, image.accepted)) if all(other.accepted for other in images) else kept
    findings = sort_findings([*kept, *own])
    notes = list(_notes(images, findings, digests, alike))
    statuses = tuple(replace(host, status="ok", reason=None, digest=digests[host.label]) for host in compared.hosts)
    concerned = {item.subject for item in kept if item.counts}
    rows = tuple(row for row in compared.rows if {row.key, *row.names} & concerned)
    differed = sum(row.kind in ("package", "component") for row in rows)
    counts = replace(compared.counts, differed=differed, matched=compared.counts.packages - differed - compared.counts.unread)
    report = replace(compared, command="images verify", findings=(), hosts=statuses, rows=rows, counts=counts, notes=tuple(notes))
    return report.with_findings(findings)


def _notes(images: Sequence[SeenImage], findings: Sequence[Finding], digests: Mapping[str, str], alike: int) -> Iterator[str]:
    first = images[0]
    differing = [item for item in findings if item.severity != "noise" and not item.ignored]
    if not differing:
        files = sum(entry.kind == "file" for entry in first.environment)
        yield f"identical: {len(first.now.distributions):,} distributions, {files:,} files, digest {digests[first.label]}"
    elif all(item.declared for item in differing):
        reasons = sorted({reason for image in images for reason in (image.roles or {}).values()})
        yield f"different as declared: {'; '.join(reasons)}"
    layers = {image.facts.layers for image in images}
    if len(layers) > 1 and not any(item.code in ("EP821", "EP822") for item in findings):
        yield "the layers differ, the files in them do not: the images were built apart, and times or owners differ"
    if alike:
        yield (
            f"{alike} finding{'s hold' if alike > 1 else ' holds'} in all of these images alike, which is no difference between them; "
            f"`envspec diff image:{first.facts.name} --lock FILE` lists {'them' if alike > 1 else 'it'}"
        )


# One image against what it says of itself.


def _records(image: SeenImage, digest: str) -> Iterator[Finding]:
    said, records = image.facts.labels, image.content.records
    absent = [path for path in (labels.LOCK, labels.SNAPSHOT) if path not in records]
    absent += [name for name in labels.DIGESTS if not said.get(name)]
    if absent:
        yield finding("EP829", image.label, [image.label], f"{image.label} has no {some(absent, 6)}", evidence={"expected": absent, "found": None})
    held = {name: labels.sha256_of(records[path]) for name, path in ((labels.LOCK_DIGEST, labels.LOCK), (labels.SNAPSHOT_DIGEST, labels.SNAPSHOT)) if path in records}
    held[labels.ENVIRONMENT_DIGEST] = digest
    for name, found in held.items():
        if said.get(name) and said[name] != found:
            what = f"{image.label}: the label {name} says {_short(said[name])}, the image holds {_short(found)}"
            yield finding("EP825", name, [image.label], what, evidence={"expected": said[name], "found": found})
    if image.baked is not None:
        changes = list(_changes(identity(image.baked), identity(image.now)))
        if changes:
            what = f"{image.label} is not what its build recorded: {some(changes, 6)}"
            yield finding("EP824", image.label, [image.label], what, evidence={"found": changes[:_SHOWN]})


def _short(digest: str) -> str:
    return digest[:19] + "…" if len(digest) > 20 else digest


def _changes(before: Mapping[str, object], now: Mapping[str, object]) -> Iterator[str]:
    """What of a snapshot is other than recorded, in words. Distributions are lists that begin with name and version."""
    was, has = _by_name(before["distributions"]), _by_name(now["distributions"])
    for name in sorted(was.keys() | has.keys()):
        old, new = was.get(name), has.get(name)
        if old == new:
            continue
        if new is None:
            yield f"{name} {_versions(old)} is gone"
        elif old is None:
            yield f"{name} {_versions(new)} was added"
        elif _versions(old) != _versions(new):
            yield f"{name} {_versions(new)} was {_versions(old)}"
        else:
            yield f"{name} {_versions(new)} has other files"
    for part in sorted(before.keys() | now.keys()):
        if part not in _MACHINE_PARTS and part != "distributions" and before.get(part) != now.get(part):
            yield f"{part.replace('_', ' ')} changed"


def _by_name(distributions: object) -> dict[str, list[list[object]]]:
    out: dict[str, list[list[object]]] = {}
    assert isinstance(distributions, list)
    for each in distributions:
        out.setdefault(str(each[0]), []).append(each)
    return out


def _versions(found: Sequence[Sequence[object]] | None) -> str:
    return " and ".join(str(each[1]) for each in found or ())


def _user_site(image: SeenImage) -> Iterator[Finding]:
    closed = bool(image.facts.environment.get("PYTHONNOUSERSITE"))
    found: dict[str, set[str]] = {}
    for path in image.content.files:
        match = _USER_SITE.fullmatch(path)
        if match:
            found.setdefault("/" + match[1], set()).add(match[2].split("/", 1)[0])
    for place, names in sorted(found.items()):
        shown = some(sorted(name for name in names if not name.endswith((".dist-info", "__pycache__"))) or sorted(names))
        so = "; PYTHONNOUSERSITE keeps them out" if closed else ", which comes before the environment for its user"
        yield finding("EP827", place, [image.label], f"{image.label} has {shown} in {place}{so}", severity="noise" if closed else None, evidence={"found": sorted(names)[:_SHOWN]})
    if not closed and image.facts.labels.get(labels.STACK):
        what = f"{image.label} does not set PYTHONNOUSERSITE, so a mounted home directory's packages are imported"
        yield finding("EP827", "PYTHONNOUSERSITE", [image.label], what, evidence={"expected": "1", "found": None})


def _lock(image: SeenImage) -> Iterator[Finding]:
    """The lock that was asked for against the one that the image was built from."""
    if image.asked is None or image.lock is None:
        return
    changes = _lock_changes(image.lock, image.asked)
    if changes:
        what = f"{image.label} was built from another lock than {image.asked.path}, which differs in {some(changes)}"
        yield finding("EP826", image.label, [image.label], what, evidence={"found": changes[:_SHOWN]})


def _lock_changes(old: Lock, new: Lock) -> list[str]:
    """How a lock's entries differ, in words: ``numpy 2.1.0 → 2.1.1``."""
    out = []
    for name in sorted(old.names | new.names):
        was, now = _entries(old, name), _entries(new, name)
        if was == now:
            continue
        before, after = ("|".join(sorted({str(version) for version, *_ in entries})) for entries in (was, now))
        out.append(f"{name} {before or 'absent'} → {after or 'absent'}" if before != after else f"{name} {after} (other hashes or markers)")
    return out


def _entries(lock: Lock, name: str) -> set[tuple[str | None, str, frozenset[str]]]:
    return {(item.version, str(item.marker or ""), item.hashes) for item in lock.packages if item.name == name}


# Two images.


def _between(first: SeenImage, other: SeenImage) -> Iterator[Finding]:
    hosts = [first.label, other.label]
    declared = _declared(first, other)
    if first.lock is not None and other.lock is not None and (changes := _lock_changes(first.lock, other.lock)):
        what = f"{first.label} and {other.label} were built from different locks: {some(changes)}"
        yield _as_declared(finding("EP826", "requirements.lock", hosts, what, evidence={"found": changes[:_SHOWN]}), declared)
    yield from _base(first, other)
    yield from _settings(first, other)
    if first.facts.layers != other.facts.layers:
        yield from _files(first, other, declared if first.lock is not None and other.lock is not None else None)


def _declared(first: SeenImage, other: SeenImage) -> str | None:
    """The reason that the stack gives for its roles to differ. Only where both images hold the same declaration."""
    if not first.roles or first.roles != other.roles or first.role == other.role or not {first.role, other.role} & first.roles.keys():
        return None
    return "; ".join(reason for _, reason in sorted(first.roles.items()))


def _as_declared(item: Finding, reason: str | None) -> Finding:
    return item.replace(declared=True, why=f"{item.why} It is declared: {reason}.") if reason else item


def _base(first: SeenImage, other: SeenImage) -> Iterator[Finding]:
    said = [image.facts.labels.get(labels.BASE_DIGEST) or "" for image in (first, other)]
    bottom = [image.facts.layers[0] if image.facts.layers else "" for image in (first, other)]
    told = all(said) and said[0] != said[1]
    if not told and bottom[0] == bottom[1]:
        return
    values, of = (said, "base") if told else (bottom, "lowest layer")
    what = f"the {of} of {first.label} is {_short(values[0])}, that of {other.label} {_short(values[1])}"
    yield finding("EP821", "base image", [first.label, other.label], what, evidence={"expected": values[0], "found": values[1]})


def _settings(first: SeenImage, other: SeenImage) -> Iterator[Finding]:
    a, b = first.facts, other.facts
    pairs = [(name, a.environment.get(name), b.environment.get(name), a.shown(name), b.shown(name)) for name in sorted(a.environment.keys() | b.environment.keys())]
    pairs += [(name, a.settings.get(name), b.settings.get(name), a.settings.get(name), b.settings.get(name)) for name in sorted(a.settings.keys() | b.settings.keys())]
    for name, left, right, shown_left, shown_right in pairs:
        if left == right:
            continue
        what = f"{name} is {_set(shown_left)} in {first.label}, {_set(shown_right)} in {other.label}"
        yield finding("EP823", name, [first.label, other.label], what, evidence={"expected": shown_left, "found": shown_right})


def _set(value: str | None) -> str:
    return "not set" if value is None else value or "empty"


_AREAS: Final = (
    ("the environment", labels.ENVIRONMENT),
    ("the tools", labels.TOOLS),
    ("the build's records", labels.RECORDS),
    ("temporary files", None),
    ("the system", ""),
)


def _area(path: str) -> int:
    for number, (_, place) in enumerate(_AREAS):
        if place is None:
            if _TEMPORARY.match(path):
                return number
        elif f"/{path}/".startswith(f"{place}/"):
            return number
    raise AssertionError(path)


def _files(first: SeenImage, other: SeenImage, declared: str | None) -> Iterator[Finding]:
    """Every path that is not the same thing in both, one finding for each part of the file system."""
    a, b = first.content.files, other.content.files
    found: dict[int, list[tuple[str, str]]] = {}
    for path in sorted(a.keys() | b.keys()):
        left, right = a.get(path), b.get(path)
        if path == _SNAPSHOT_FILE or (left and right and left.essence == right.essence):
            continue
        found.setdefault(_area(path), []).append((path, _how(left, right, first.label, other.label)))
    for number, paths in sorted(found.items()):
        words, place = _AREAS[number]
        told = some([f"/{path} ({how})" for path, how in _telling(paths)], 3)
        what = f"{len(paths):,} {'path' if len(paths) == 1 else 'paths'} of {words} differ{'s' if len(paths) == 1 else ''} between {first.label} and {other.label}: {told}"
        item = finding(
            "EP822",
            place or ("/" if place == "" else words),
            [first.label, other.label],
            what,
            severity="noise" if place is None else None,
            evidence={"found": [f"/{path}: {how}" for path, how in paths[:_SHOWN]], "paths": len(paths)},
        )
        yield _as_declared(item, declared if place in (labels.ENVIRONMENT, labels.RECORDS) else None)


def _how(left: Entry | None, right: Entry | None, first: str, other: str) -> str:
    if left is None:
        return f"only in {other}"
    if right is None:
        return f"only in {first}"
    if left.kind != right.kind:
        return f"{left.kind} and {right.kind}"
    if left.content == right.content:
        return f"mode {left.mode:o} and {right.mode:o}"
    return f"link to {left.content} and {right.content}" if left.kind == "link" else "other content"


def _telling(paths: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
    """Sources before what is made of them: a changed module says more than its bytecode or its package's RECORD."""
    return sorted(paths, key=lambda item: ("__pycache__" in item[0], ".dist-info/" in item[0], item[0]))
