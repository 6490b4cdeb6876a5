"""Packages: against the lock, against each other, against what they declare and what the spec asks for."""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final
from urllib.parse import urlsplit

from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.tags import Tag, parse_tag

from envspec import mend
from envspec.compare.model import Collector, Fact, Host, Key, Split, joined, some
from envspec.compare.requirements import Unsatisfied, together, unsatisfied
from envspec.findings import Location, Severity
from envspec.locks import LockedPackage, Target
from envspec.snapshot import Distribution, FileFault
from envspec.spec import Declared, Spec
from envspec.variants import (
    TORCH_FAMILY,
    component,
    is_cpu,
    parse_version,
    pypi_torch_variant,
)

__all__ = [
    "OF_FILES",
    "against_spec",
    "between_hosts",
    "declared_requirements",
    "facts",
    "installed_files",
    "verified",
]

INSTALLERS: Final = frozenset({"pip", "setuptools", "uv", "virtualenv", "wheel"})
"""Tools that make environments: differing versions of them are noise, and no lock lists them."""

TWINS: Final = (("flashinfer-python", "flashinfer-cubin", "flashinfer-jit-cache"),)
"""Distributions of one library that refuse to work together in different versions."""


def row_of(name: str) -> Key:
    """The row of a distribution: its component's where it holds a CUDA library, else its own."""
    held = component(name)
    return ("component", held) if held else ("package", name)


@functools.lru_cache(maxsize=65536)
def release(text: str | None) -> Hashable:
    """What makes two versions one release: PEP 440 equality without the local label; other texts as they are."""
    parsed = parse_version(text)
    return parsed.__replace__(local=None) if parsed is not None else text


def variant_of(dist: Distribution, host: Host) -> str | None:
    """The build variant of an installed distribution: as captured, else its local label, else PyPI's for torch."""
    if dist.build_variant is not None:
        return dist.build_variant
    parsed = parse_version(dist.version)
    if parsed is not None and parsed.local is not None:
        return parsed.local
    return pypi_torch_variant(dist.version, host.snapshot.markers) if dist.name == "torch" else None


def shown(dist: Distribution, variant: str | None) -> str:
    """Version and build as one text: ``2.9.1+cu128``."""
    version = dist.version or "no version"
    return f"{version}+{variant}" if variant and "+" not in version else version


def of_component(text: str, name: str, held: str) -> str:
    """A component's version with the distribution that brings it, where their names differ."""
    return text if name == held else f"{text} ({name})"


def by_name(items: Sequence[Unsatisfied]) -> dict[str, list[Unsatisfied]]:
    grouped: dict[str, list[Unsatisfied]] = {}
    for item in items:
        grouped.setdefault(item.name, []).append(item)
    return grouped


def wanted_requirement(package: LockedPackage) -> str:
    """The requirement that installs what the lock says."""
    direct = package.direct
    if direct is not None and direct.kind == "vcs" and direct.url and direct.commit:
        return f"{package.name} @ git+{direct.url}@{direct.commit}"
    if direct is not None and (direct.url or direct.path):
        return f"{package.name} @ {direct.url or direct.path}"
    return f"{package.name}=={package.version}" if package.version else package.name


# What a host has, as rows.


def facts(host: Host) -> dict[Key, Fact]:
    """Every package row of a host; CUDA libraries under their component.

    A distribution that was verified and found whole is one with a distribution that was not verified.
    """
    out: dict[Key, Fact] = {}
    parts: dict[str, list[tuple[str, Fact]]] = {}
    for name, dist in host.installed.items():
        variant = variant_of(dist, host)
        source = dist.verification.source_digest if dist.verification is not None else None
        faults = host.faults.get(name, ())
        identity = (
            release(dist.version),
            variant,
            (dist.origin.kind == "editable", dist.origin.commit, source),
            (dist.content, dist.build, dist.tags),
            tuple((fault.path, fault.fault, fault.found) for fault in faults),
        )
        fact = Fact(identity, shown(dist, variant), _counted(faults))
        held = component(name)
        if held:
            parts.setdefault(held, []).append((name, fact))
        else:
            out["package", name] = fact
    for held, members in parts.items():
        members.sort(key=lambda member: member[0])
        text = " + ".join(of_component(fact.text, name, held) for name, fact in members)
        faults = tuple(fault for name, _ in members for fault in host.faults.get(name, ()))
        out["component", held] = Fact(tuple((name, fact.identity) for name, fact in members), text, _counted(faults))
    return out


def _counted(faults: Sequence[FileFault]) -> str:
    """``1 file modified, 2 files missing``."""
    kinds = [fault.fault for fault in faults]
    return ", ".join(f"{_files(kinds.count(kind))} {kind}" for kind in dict.fromkeys(kinds))


def _files(count: int) -> str:
    return "1 file" if count == 1 else f"{count} files"


# What packages declare, and what the spec asks for.


def declared_requirements(out: Collector, host: Host) -> None:
    """Unsatisfied requirements, twins that disagree, wheels for another platform."""
    for name, items in sorted(by_name(unsatisfied(host.snapshot, host.installed)).items()):
        row = row_of(name)
        found = items[0].found
        if found is None and (host.label, row) in out.covered:
            continue  # the lock has said that it is missing
        users = [f"{item.dist} requires {item.requirement}" for item in sorted(items, key=lambda item: item.dist)]
        locked = host.resolved.packages.get(name) if host.resolved is not None else None
        wanted = (
            wanted_requirement(locked)
            if locked
            else f"{name}{together(item.specifier for item in items)}"
        )
        if found is None:
            what = f"{some(users)}; it is not installed"
            if name.startswith(("sgl-kernel", "sglang-kernel")):
                what += " (it is imported as sgl_kernel)"
        else:
            what = f"{some(users)}; {found} is installed"
        if locked is not None and locked.version:
            what += f"; the lock has {locked.version}"
        out.add(
            "EP210" if found is None else "EP211",
            name,
            [host.label],
            what,
            row=row,
            fix=mend.install(host.snapshot, [wanted], dist=host.installed.get(name)),
            evidence={"expected": sorted({item.specifier for item in items}), "found": found},
        )
    for twins in TWINS:
        present = [host.installed[name] for name in twins if name in host.installed]
        if len({release(dist.version) for dist in present}) > 1:
            named = [f"{dist.name} {dist.version}" for dist in present]
            first = present[0]
            out.add(
                "EP223",
                first.name,
                [host.label],
                f"{' and '.join(named)} are installed together; they must have one version",
                row=row_of(first.name),
                fix=mend.install(host.snapshot, [f"{dist.name}=={first.version}" for dist in present]),
                evidence={"found": named},
            )
    target = Target.of(host.snapshot)
    if target.tags is not None:
        for name, dist in sorted(host.installed.items()):
            if not dist.tags or dist.origin.kind in ("system", "conda"):
                continue
            tags = _tags(dist.tags)
            if tags and target.rank(tags) is None:
                what = (
                    f"{name} {dist.version} was built for {some(dist.tags, 2)}, which this interpreter does not accept"
                )
                fix = mend.reinstall(host.snapshot, f"{name}=={dist.version}", dist=dist)
                out.add(
                    "EP214", name, [host.label], what, row=row_of(name), fix=fix, evidence={"found": list(dist.tags)}
                )


@functools.lru_cache(maxsize=8192)
def _tags(texts: tuple[str, ...]) -> frozenset[Tag]:
    return frozenset(tag for text in texts if text.count("-") == 2 for tag in parse_tag(text))


def against_spec(out: Collector, host: Host, spec: Spec | None, hosts: Sequence[Host]) -> None:
    """Packages that the role must have, and version policies."""
    if spec is None:
        return
    for name in spec.required(host.role):
        if (
            name in host.installed
            or not host.snapshot.known("distributions")
            or (host.label, row_of(name)) in out.covered
        ):
            continue
        locked = host.resolved.packages.get(name) if host.resolved is not None else None
        others = sorted((other.label, str(other.installed[name].version)) for other in hosts if name in other.installed)
        version = locked.version if locked is not None else (others[0][1] if others else None)
        what = f"{name} is required for {'the role ' + host.role if host.role else 'every host'}, and is not installed"
        if others:
            what += f"; {others[0][0]} has {others[0][1]}"
        wanted = f"{name}=={version}" if version else name
        fix = mend.install(host.snapshot, [wanted])
        out.add(
            "EP219", name, [host.label], what, row=row_of(name), fix=fix, evidence={"expected": version, "found": None}
        )
    for name, policy in spec.policies(host.role).items():
        dist = host.installed.get(name)
        parsed = parse_version(dist.version) if dist is not None else None
        if dist is None or parsed is None or policy.contains(parsed, prereleases=True):
            continue
        what = f"{name} is {dist.version}, the policy is {policy}"
        fix = mend.install(host.snapshot, [f"{name}{policy}"], dist=dist)
        evidence = {"expected": str(policy), "found": dist.version}
        out.add("EP218", name, [host.label], what, row=row_of(name), fix=fix, evidence=evidence)


OF_FILES: Final = frozenset({"EP208", "EP209"})
"""Codes that only a verification of the installed files gives."""


def verified(hosts: Iterable[Host]) -> frozenset[str]:
    """The distributions whose files were held against their RECORD on some host."""
    return frozenset(name for host in hosts for name, dist in host.installed.items() if dist.verification is not None)


def installed_files(out: Collector, host: Host) -> None:
    """Files that are not what was installed (``--deep``), and source trees with changes."""
    for name, dist in sorted(host.installed.items()):
        faults = dist.verification.faults if dist.verification is not None else ()
        if not faults and not dist.origin.dirty:
            continue
        row, version = row_of(name), dist.version
        again = mend.reinstall(host.snapshot, f"{name}=={version}", dist=dist)
        changed = sorted(fault.path for fault in faults if fault.fault in ("modified", "added"))
        gone = sorted(fault.path for fault in faults if fault.fault == "missing")
        if changed:
            digests = {fault.path: fault.found for fault in faults if fault.fault in ("modified", "added")}
            what = f"{name} {version}: {_files(len(changed))} changed after installation: {some(changed)}"
            found: dict[str, str | None] = dict(sorted(digests.items())[:50])
            location = Location(file=changed[0])
            out.add("EP208", name, [host.label], what, row=row, fix=again, location=location, evidence={"found": found}, cover=False)
        if gone:
            what = f"{name} {version}: {_files(len(gone))} missing: {some(gone)}"
            out.add("EP209", name, [host.label], what, row=row, fix=again, evidence={"found": list(gone[:50])}, cover=False)
        if dist.origin.dirty:
            files = some(sorted(dist.origin.changed)) or "see `git status`"
            at = f" at {dist.origin.commit[:12]}" if dist.origin.commit else ""
            what = f"{name} {version or ''} is installed from a source tree{at} with uncommitted changes: {files}"
            out.add("EP216", name, [host.label], what, row=row, evidence={"found": sorted(dist.origin.changed)[:50]})


# Against each other.


@dataclass(frozen=True, slots=True)
class _Level:
    """One way in which two copies of a package can differ; None is a value that is not known."""

    code: str
    value: Callable[[Distribution, Host], Hashable | None]
    text: Callable[[Hashable], str]
    phrase: str


def _release_level(dist: Distribution, host: Host) -> Hashable | None:
    return release(dist.version) if dist.version is not None else None


def _variant_level(dist: Distribution, host: Host) -> Hashable | None:
    variant = variant_of(dist, host)
    return variant if variant is not None or dist.name in TORCH_FAMILY else "the default build"


def _source_level(dist: Distribution, host: Host) -> Hashable | None:
    if dist.origin.kind == "unknown":
        return None
    if dist.origin.commit is not None:
        return f"commit {dist.origin.commit[:12]}"
    if dist.verification is not None and dist.verification.source_digest is not None:
        return f"source tree {dist.verification.source_digest[-12:]}"
    return None if dist.origin.kind in ("directory", "editable", "vcs") else "a released file"


def _editable_level(dist: Distribution, host: Host) -> Hashable | None:
    if dist.origin.kind == "unknown":
        return None
    return "an editable install" if dist.origin.kind == "editable" else "an installed copy"


def _wheel_level(dist: Distribution, host: Host) -> Hashable | None:
    if not dist.tags:
        return None
    tags = " ".join(sorted(dist.tags)[:3])
    return f"{tags} build {dist.build}" if dist.build else tags


def _content_level(dist: Distribution, host: Host) -> Hashable | None:
    if dist.origin.kind in ("editable", "system", "conda"):
        return None
    return dist.content


def _plain(value: Hashable) -> str:
    return str(value)


def _short(value: Hashable) -> str:
    return f"content {str(value).split(':')[-1][:12]}"


_LEVELS: Final = (
    _Level("EP203", _release_level, _plain, "differs"),
    _Level("EP205", _variant_level, _plain, "has one version and different builds"),
    _Level("EP217", _editable_level, _plain, "is installed in different ways"),
    _Level("EP215", _source_level, _plain, "comes from different sources"),
    _Level("EP213", _wheel_level, _plain, "comes from different wheels"),
    _Level("EP207", _content_level, _short, "has one version and build, and different files"),
)


def between_hosts(out: Collector, hosts: Sequence[Host], tables: Mapping[str, Mapping[Key, Fact]]) -> None:
    """Each package and component over all hosts whose own lock has not already said it.

    ``tables`` are the hosts' :func:`facts` by label.
    """
    if len(hosts) < 2:
        return
    by_label = {host.label: host for host in hosts}
    for key in sorted({key for table in tables.values() for key in table}):
        seen = {table[key].identity if key in table else None for table in tables.values()}
        if len(seen) == 1:
            continue
        concerned = [host for host in hosts if (host.label, key) not in out.covered]
        present = [host for host in concerned if key in tables[host.label]]
        absent = [host for host in concerned if key not in tables[host.label] and host.snapshot.known("distributions")]
        if key[1] not in INSTALLERS and present and absent:
            _presence(out, key, present, absent, tables)
        if key[0] == "component":
            values = {host.label: tables[host.label][key] for host in present}
            _component(out, key, values, by_label)
        else:
            _levels(out, key, present, by_label)


_LOCKED: Final = frozenset({"EP203", "EP204", "EP205", "EP206", "EP225"})
"""What a lock decides; the content of a wheel it does not name is not among it."""


def _by_locks(key: Key, split: Split, hosts: Mapping[str, Host]) -> Declared | None:
    """A declaration made by locks: every host has what its own says, and it is the locks that differ.

    Hosts that are not what their lock says have been reported and are no longer among those compared.
    """
    values: dict[Hashable, Hashable] = {}
    for value, labels in split.every:
        for label in labels:
            resolved = hosts[label].resolved
            if resolved is None:
                return None
            # One file may hold several locks, told apart by what the role selects of it.
            lock = (resolved.lock.path, resolved.lock.groups, resolved.lock.extras)
            if values.setdefault(lock, value) != value:
                return None
    roles = frozenset(role for _, labels in split.every for label in labels if (role := hosts[label].role) is not None)
    return Declared(kind=key[0], pattern=key[1], roles=roles, reason="the locks of the roles say so")


def _presence(
    out: Collector, key: Key, present: Sequence[Host], absent: Sequence[Host], tables: Mapping[str, Mapping[Key, Fact]]
) -> None:
    values: dict[str, bool] = {host.label: True for host in present}
    values.update({host.label: False for host in absent})
    by_label = {host.label: host for host in (*present, *absent)}
    for split in out.splits(key, values):
        concerned = {host for _, hosts in split.every for host in hosts}
        have = [host for host in present if host.label in concerned]
        lack = [host for host in absent if host.label in concerned]
        text = tables[have[0].label][key].text
        what = (
            f"{key[1]} {text} is on {some([host.label for host in have])}, not on {some([host.label for host in lack])}"
        )
        name = key[1] if key[0] == "package" else next(n for n in sorted(have[0].installed) if component(n) == key[1])
        version = have[0].installed[name].version
        wanted = have[0].installed[name]
        fix = _for_another_python(wanted, lack[0])
        same = _same(wanted, version)
        if fix is None and same is not None:
            fix = mend.install(lack[0].snapshot, [same])
        out.add(
            "EP204",
            key[1],
            [host.label for host in lack],
            what,
            row=key,
            fix=fix,
            declared=split.declared or _by_locks(key, split, by_label),
            evidence={"expected": text, "found": None},
            cover=False,
        )


def _same(wanted: Distribution, version: str | None) -> str | None:
    """The requirement that installs on another host what is on this one; None for what lies in a directory or file there.

    An index may have a stranger's package of that name, so a version alone does not stand for what came from elsewhere.
    """
    origin = wanted.origin
    if origin.kind in ("directory", "editable"):
        return None
    if origin.kind in ("vcs", "archive"):
        url = origin.url or ""
        if not url or urlsplit(url).scheme.rpartition("+")[2] == "file":
            return None
        if origin.kind == "vcs" and "+" not in urlsplit(url).scheme:  # `pip freeze` writes it whole, with the commit
            url = f"{origin.vcs or 'git'}+{url}@{origin.commit}" if origin.commit else ""
            url += f"#subdirectory={origin.subdirectory}" if url and origin.subdirectory else ""
        return f"{wanted.name} @ {url}" if url else None
    return f"{wanted.name}=={version}" if version else wanted.name


def _for_another_python(wanted: Distribution, target: Host) -> str | None:
    """What to do where a package is not for the host's Python, so that no command can install it; None where it is."""
    interpreter = target.snapshot.interpreter
    python = parse_version(interpreter.version) if interpreter is not None else None
    if python is None or not wanted.requires_python:
        return None
    try:
        allowed = SpecifierSet(wanted.requires_python).contains(python, prereleases=True)
    except InvalidSpecifier:
        return None
    if allowed:
        return None
    what = f"{wanted.name} {wanted.version} is for Python {wanted.requires_python}, and {target.label} has {python}"
    return f"{what}: use the same Python first, or declare the difference between the roles in envspec.yaml."


def _component(out: Collector, key: Key, values: Mapping[str, Fact], hosts: Mapping[str, Host]) -> None:
    versions = {label: fact.text for label, fact in values.items()}
    for split in out.splits(key, versions):
        _report(out, "EP225", key, split, _plain, "differs", hosts)


def _levels(out: Collector, key: Key, present: Sequence[Host], hosts: Mapping[str, Host]) -> None:
    """Level by level; hosts that already differ leave before the next one."""
    name = key[1]
    left = {host.label: host for host in present}
    for level in _LEVELS:
        values = {
            label: value
            for label, host in left.items()
            if (value := level.value(host.installed[name], host)) is not None
        }
        for split in out.splits(key, values):
            code = level.code
            if (
                code == "EP205"
                and any(is_cpu(str(v)) for v, _ in split.every)
                and not all(is_cpu(str(v)) for v, _ in split.every)
            ):
                code = "EP206"
            text = level.text
            if level.code == "EP203":
                texts = {values[label]: hosts[label].installed[name].version for label in values}
                text = functools.partial(_looked_up, texts)
            _report(out, code, key, split, text, level.phrase, hosts)
            for label in split.hosts:
                left.pop(label, None)


def _looked_up(texts: Mapping[Hashable, str | None], value: Hashable) -> str:
    return texts.get(value) or str(value)


def _report(
    out: Collector,
    code: str,
    key: Key,
    split: Split,
    text: Callable[[Hashable], str],
    phrase: str,
    hosts: Mapping[str, Host],
) -> None:
    name = key[1]
    fix = None
    if split.holders and key[0] == "package":
        target, source = hosts[split.hosts[0]], hosts[split.holders[0]]
        dist = target.installed.get(name)
        wanted = source.installed[name]
        variant = variant_of(wanted, source)
        exact = wanted.version or ""
        if code in ("EP205", "EP206") and variant and "+" not in exact and name in TORCH_FAMILY:
            exact = f"{exact}+{variant}"
        fix = _for_another_python(wanted, target)
        same = _same(wanted, exact)
        told = exact if code in ("EP203", "EP205", "EP206", "EP207") else code == "EP215" and wanted.origin.kind == "vcs"
        if fix is None and same is not None and told:
            fix = mend.reinstall(target.snapshot, same, dist=dist)
    severity: Severity | None = "noise" if name in INSTALLERS else None
    found = {text(value): list(labels) for value, labels in split.every}
    out.add(
        code,
        name,
        split.hosts,
        f"{name} {phrase}: {joined(split, text)}",
        row=key,
        fix=fix,
        severity=severity,
        declared=split.declared or (_by_locks(key, split, hosts) if code in _LOCKED else None),
        evidence={
            "expected": text(split.reference) if split.holders else None,
            "found": sorted(found),
            "hosts": found,
        },
        cover=False,
    )
