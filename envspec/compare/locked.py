"""Each host against its lock: what is missing, other than locked, or beyond it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import PurePath

from packaging.specifiers import SpecifierSet

from envspec import mend
from envspec.compare.model import Collector, Host, Key, some
from envspec.compare.packages import INSTALLERS, by_name, of_component, release, row_of, variant_of, wanted_requirement
from envspec.compare.requirements import Unsatisfied, unsatisfied
from envspec.findings import Location
from envspec.locks import LockedPackage
from envspec.snapshot import Distribution
from envspec.variants import TORCH_FAMILY, component, is_cpu, locked_variant, vendor_build

__all__ = ["against_lock", "locked_facts"]


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
            parts.setdefault(held, []).append(of_component(text, name, held))
        else:
            out["package", name] = text
    out.update({("component", held): " + ".join(texts) for held, texts in parts.items()})
    return out


def against_lock(out: Collector, host: Host) -> None:
    """Every package of the host's lock, then what is installed beyond it."""
    resolved = host.resolved
    if resolved is None:
        return
    lock = PurePath(resolved.lock.path).name
    for fault in resolved.faults:
        code = {"ambiguous": "EP226", "no-wheel": "EP221", "package-python": "EP221"}.get(fault.kind, "EP220")
        location = Location(file=resolved.lock.path, line=fault.line)
        offered = resolved.lock.offered if fault.kind == "group" else ()
        fix = f"Give the host a role that the lock knows, such as {offered[0]}={host.label}." if offered else None
        out.add(code, fault.name or lock, [host.label], f"{lock}: {fault.message}", location=location, fix=fix)
    missing = by_name(unsatisfied(host.snapshot, host.installed))
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
        fix=mend.install(host.snapshot, [wanted_requirement(package)], options=["--no-deps"]),
        location=_place(host, package),
        evidence={"expected": package.version, "found": None, "required_by": users},
    )


def _locked_pair(
    out: Collector, host: Host, package: LockedPackage, dist: Distribution, wanted_by: Sequence[Unsatisfied]
) -> None:
    """The first way in which an installed package is not the locked one."""
    assert host.resolved is not None
    name, row, place = package.name, row_of(package.name), _place(host, package)
    again = mend.reinstall(host.snapshot, wanted_requirement(package), dist=dist)

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
        fix=mend.install(
            host.snapshot, [wanted_requirement(item) for _, item in sorted(locked.items())], options=["--no-deps"]
        ),
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
