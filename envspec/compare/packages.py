"""Packages: against the lock, against each other, against what they declare and what the spec asks for."""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePath
from typing import Final

from packaging.specifiers import SpecifierSet
from packaging.tags import Tag, parse_tag

from envspec import mend
from envspec.compare.model import Collector, Fact, Host, Key, Split, joined, some
from envspec.compare.requirements import Unsatisfied, unsatisfied
from envspec.findings import Location, Severity
from envspec.locks import LockedPackage, Target
from envspec.snapshot import Distribution
from envspec.spec import Spec
from envspec.variants import (
    TORCH_FAMILY,
    component,
    is_cpu,
    locked_variant,
    parse_version,
    pypi_torch_variant,
    vendor_build,
)

__all__ = [
    "against_lock",
    "against_spec",
    "between_hosts",
    "declared_requirements",
    "facts",
    "installed_files",
    "locked_facts",
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


# What a host has, as rows.


def facts(host: Host) -> dict[Key, Fact]:
    """Every package row of a host; CUDA libraries under their component."""
    out: dict[Key, Fact] = {}
    parts: dict[str, list[tuple[str, Fact]]] = {}
    for name, dist in host.installed.items():
        variant = variant_of(dist, host)
        source = dist.verification.source_digest if dist.verification is not None else None
        identity = (
            release(dist.version),
            variant,
            (dist.origin.kind == "editable", dist.origin.commit, source),
            (dist.content, dist.build, dist.tags),
        )
        fact = Fact(identity, shown(dist, variant))
        held = component(name)
        if held:
            parts.setdefault(held, []).append((name, fact))
        else:
            out["package", name] = fact
    for held, members in parts.items():
        members.sort(key=lambda member: member[0])
        text = " + ".join(f"{fact.text} ({name})" for name, fact in members)
        out["component", held] = Fact(tuple((name, fact.identity) for name, fact in members), text)
    return out


def locked_facts(host: Host) -> dict[Key, str]:
    """What the host's lock says, by row."""
    out: dict[Key, str] = {}
    parts: dict[str, list[str]] = {}
    if host.resolved is None:
        return out
    for name, package in sorted(host.resolved.packages.items()):
        text = package.version or (package.direct.commit[:12] if package.direct and package.direct.commit else "source")
        held = component(name)
        if held:
            parts.setdefault(held, []).append(f"{text} ({name})")
        else:
            out["package", name] = text
    out.update({("component", held): " + ".join(texts) for held, texts in parts.items()})
    return out


# Against the lock.


def against_lock(out: Collector, host: Host) -> None:
    """Every package of the host's lock, then what is installed beyond it."""
    resolved = host.resolved
    if resolved is None:
        return
    lock = PurePath(resolved.lock.path).name
    for fault in resolved.faults:
        code = {"ambiguous": "EP226", "no-wheel": "EP221", "package-python": "EP221"}.get(fault.kind, "EP220")
        location = Location(file=resolved.lock.path, line=fault.line)
        out.add(code, fault.name or lock, [host.label], f"{lock}: {fault.message}", location=location)
    missing = _by_name(unsatisfied(host.snapshot, host.installed))
    torn: set[str] = set()
    for name, package in sorted(resolved.packages.items()):
        dist = host.installed.get(name)
        if dist is not None:
            _locked_pair(out, host, package, dist, missing.get(name, ()))
        elif host.snapshot.known("distributions"):
            held = component(name)
            if held and any(component(other) == held for other in host.installed):
                torn.add(held)
            else:
                _locked_missing(out, host, package, missing.get(name, ()))
    for held in sorted(torn):
        _locked_component(out, host, held)
    _beyond(out, host)


def _place(host: Host, package: LockedPackage) -> Location | None:
    return Location(file=host.resolved.lock.path, line=package.line) if host.resolved is not None else None


def _wanted(package: LockedPackage) -> str:
    """The requirement that installs what the lock says."""
    direct = package.direct
    if direct is not None and direct.kind == "vcs" and direct.url and direct.commit:
        return f"{package.name} @ git+{direct.url}@{direct.commit}"
    if direct is not None and (direct.url or direct.path):
        return f"{package.name} @ {direct.url or direct.path}"
    return f"{package.name}=={package.version}" if package.version else package.name


def _locked_missing(out: Collector, host: Host, package: LockedPackage, wanted_by: Sequence[Unsatisfied]) -> None:
    users = sorted({item.dist for item in wanted_by})
    what = f"{package.name} {package.version or '(from source)'} is in the lock, not installed"
    if users:
        what += f"; {some(users)} {'requires' if len(users) == 1 else 'require'} it"
    out.add(
        "EP201",
        package.name,
        [host.label],
        what,
        row=row_of(package.name),
        fix=mend.install(host.snapshot, [_wanted(package)], options=["--no-deps"]),
        location=_place(host, package),
        evidence={"expected": package.version, "found": None, "required_by": users},
    )


def _locked_pair(
    out: Collector, host: Host, package: LockedPackage, dist: Distribution, wanted_by: Sequence[Unsatisfied]
) -> None:
    """The first way in which an installed package is not the locked one."""
    assert host.resolved is not None
    name, row, place = package.name, row_of(package.name), _place(host, package)
    again = mend.reinstall(host.snapshot, _wanted(package), dist=dist)

    def report(code: str, what: str, expected: str | None, found: str | None) -> None:
        evidence = {"expected": expected, "found": found}
        out.add(code, name, [host.label], what, row=row, fix=again, location=place, evidence=evidence)

    have = variant_of(dist, host)
    want = locked_variant(package, host.resolved.packages, host.snapshot.markers)
    if package.version is not None and release(package.version) != release(dist.version):
        parsed = package.parsed
        if any(parsed is not None and _satisfied_by(item, parsed) for item in wanted_by):
            return  # the unsatisfied requirement says it, with its worse consequence
        vendor = vendor_build(dist.version)
        text = f"{name} is {dist.version or 'without a version'}, the lock has {package.version}"
        if vendor:
            text += f" (a pre-release build of NVIDIA's container {vendor}, which sorts below the release)"
        report("EP225" if row[0] == "component" else "EP202", text, package.version, dist.version)
        return
    if not _same_variant(name, want, have, package.version is not None):
        cpu = is_cpu(have) and not is_cpu(want)
        expected, found = want or "the default build", have or "the default build"
        what = f"{name} {dist.version} is build {found}, the lock has build {expected}"
        report("EP206" if cpu else "EP205", what, want, have)
        return
    direct, origin = package.direct, dist.origin
    if direct is not None and direct.commit and origin.commit and direct.commit != origin.commit:
        what = f"{name} is from commit {origin.commit[:12]}, the lock has {direct.commit[:12]}"
        report("EP215", what, direct.commit, origin.commit)
        return
    if origin.kind == "editable" and direct is None:
        what = f"{name} {dist.version} is an editable install, the lock has a built package"
        report("EP217", what, package.version, "editable")
        return
    hashes = {f"{algorithm}:{value.lower()}" for algorithm, value in origin.hashes.items()}
    algorithms = {value.split(":")[0] for value in package.hashes}
    comparable = {value for value in hashes if value.split(":")[0] in algorithms}
    if comparable and not comparable & package.hashes:
        what = f"{name} {dist.version} was installed from a file whose hash the lock does not list"
        report("EP224", what, None, sorted(comparable)[0])
        return
    chosen = host.resolved.chosen.get(name)
    if chosen is not None and chosen.tags and dist.tags and (chosen.build or "0") != (dist.build or "0"):
        built = any((file.build or "0") == (dist.build or "0") for file in package.files if file.tags)
        what = f"{name} {dist.version} is wheel build {dist.build or 'none'}, the lock has {chosen.build or 'none'}"
        if not built:
            report("EP213", what, chosen.build, dist.build)


def _satisfied_by(item: Unsatisfied, version: object) -> bool:
    return SpecifierSet(item.specifier).contains(str(version), prereleases=True)


def _same_variant(name: str, want: str | None, have: str | None, versioned: bool) -> bool:
    if want == have or not versioned:
        return True
    if want is None:
        # The lock is silent. In torch's family every wheel has a variant and PyPI's is not known here; a CPU build
        # under a silent lock is judged by what PyPI serves, where that is known. Elsewhere a local label is a choice.
        return name in TORCH_FAMILY
    return have is None and name in TORCH_FAMILY


def _locked_component(out: Collector, host: Host, held: str) -> None:
    assert host.resolved is not None
    locked = {name: item for name, item in host.resolved.packages.items() if component(name) == held}
    found = {name: dist for name, dist in host.installed.items() if component(name) == held}
    wanted = " + ".join(f"{item.version} ({name})" for name, item in sorted(locked.items()))
    has = " + ".join(f"{dist.version} ({name})" for name, dist in sorted(found.items()))
    first = locked[min(locked)]
    out.add(
        "EP225",
        held,
        [host.label],
        f"{held} is {has}, the lock has {wanted}",
        row=("component", held),
        fix=mend.install(host.snapshot, [_wanted(item) for _, item in sorted(locked.items())], options=["--no-deps"]),
        location=_place(host, first),
        evidence={"expected": wanted, "found": has},
    )


def _beyond(out: Collector, host: Host) -> None:
    assert host.resolved is not None
    resolved = host.resolved
    held = {component(name) for name in resolved.packages} - {None}
    elsewhere = resolved.lock.names
    for name, dist in sorted(host.installed.items()):
        if name in resolved.packages or name in resolved.undecided or name in INSTALLERS:
            continue
        if component(name) in held or dist.origin.kind == "system":
            continue
        where = "only for other environments" if name in elsewhere else "not"
        out.add(
            "EP212",
            name,
            [host.label],
            f"{name} {dist.version or ''} is installed, and {where} in the lock".replace("  ", " "),
            row=row_of(name),
            fix=mend.uninstall(host.snapshot, [name], dist=dist),
            evidence={"expected": None, "found": dist.version},
        )


def _by_name(items: Sequence[Unsatisfied]) -> dict[str, list[Unsatisfied]]:
    grouped: dict[str, list[Unsatisfied]] = {}
    for item in items:
        grouped.setdefault(item.name, []).append(item)
    return grouped


# What packages declare, and what the spec asks for.


def declared_requirements(out: Collector, host: Host) -> None:
    """Unsatisfied requirements, twins that disagree, wheels for another platform."""
    for name, items in sorted(_by_name(unsatisfied(host.snapshot, host.installed)).items()):
        row = row_of(name)
        found = items[0].found
        if found is None and (host.label, row) in out.covered:
            continue  # the lock has said that it is missing
        users = [f"{item.dist} requires {item.requirement}" for item in sorted(items, key=lambda item: item.dist)]
        locked = host.resolved.packages.get(name) if host.resolved is not None else None
        wanted = _wanted(locked) if locked else f"{name}{','.join(sorted({i.specifier for i in items if i.specifier}))}"
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


def installed_files(out: Collector, host: Host) -> None:
    """Files that are not what was installed (``--deep``), missing files, and source trees with changes."""
    for name, dist in sorted(host.installed.items()):
        if dist.verification is None and not dist.problems and not dist.origin.dirty:
            continue
        row, version = row_of(name), dist.version
        again = mend.reinstall(host.snapshot, f"{name}=={version}", dist=dist)
        faults = dist.verification.faults if dist.verification is not None else ()
        changed = sorted(fault.path for fault in faults if fault.fault in ("modified", "added"))
        gone = sorted(fault.path for fault in faults if fault.fault == "missing")
        if changed:
            digests = {fault.path: fault.found for fault in faults if fault.fault in ("modified", "added")}
            what = f"{name} {version}: {_files(changed)} changed after installation: {some(changed)}"
            found: dict[str, str | None] = dict(sorted(digests.items())[:50])
            location = Location(file=changed[0])
            out.add("EP208", name, [host.label], what, row=row, fix=again, location=location, evidence={"found": found})
        absent = [problem for problem in dist.problems if problem.kind == "files-missing"]
        if gone or absent:
            detail = f"{_files(gone)} missing: {some(gone)}" if gone else absent[0].detail
            what = f"{name} {version}: {detail}"
            out.add("EP209", name, [host.label], what, row=row, fix=again, evidence={"found": list(gone[:50])})
        if dist.origin.dirty:
            files = some(sorted(dist.origin.changed)) or "see `git status`"
            at = f" at {dist.origin.commit[:12]}" if dist.origin.commit else ""
            what = f"{name} {version or ''} is installed from a source tree{at} with uncommitted changes: {files}"
            out.add("EP216", name, [host.label], what, row=row, evidence={"found": sorted(dist.origin.changed)[:50]})


def _files(paths: Sequence[str]) -> str:
    return "1 file" if len(paths) == 1 else f"{len(paths)} files"


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


def _presence(
    out: Collector, key: Key, present: Sequence[Host], absent: Sequence[Host], tables: Mapping[str, Mapping[Key, Fact]]
) -> None:
    values: dict[str, bool] = {host.label: True for host in present}
    values.update({host.label: False for host in absent})
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
        fix = mend.install(lack[0].snapshot, [f"{name}=={version}" if version else name])
        out.add(
            "EP204",
            key[1],
            [host.label for host in lack],
            what,
            row=key,
            fix=fix,
            declared=split.declared,
            evidence={"expected": text, "found": None},
            cover=False,
        )


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
        if code in ("EP203", "EP205", "EP206", "EP207") and exact:
            fix = mend.reinstall(target.snapshot, f"{name}=={exact}", dist=dist)
        elif code == "EP215" and wanted.origin.commit and wanted.origin.url:
            place = f"{name} @ git+{wanted.origin.url}@{wanted.origin.commit}"
            fix = mend.reinstall(target.snapshot, place, dist=dist)
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
        declared=split.declared,
        evidence={
            "expected": text(split.reference) if split.holders else None,
            "found": sorted(found),
            "hosts": found,
        },
        cover=False,
    )
