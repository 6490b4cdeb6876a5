"""Shadowing and search path, and damaged metadata: what is imported may not be what is listed."""

from __future__ import annotations

import dataclasses
import re
import shlex
import sys
from collections.abc import Sequence
from typing import Final

from envspec import mend
from envspec.compare.model import Collector, Host, joined, some
from envspec.compare.packages import row_of
from envspec.findings import Json, Location, Severity
from envspec.snapshot import Distribution, Problem, StartupHook

__all__ = ["between_hosts", "each", "metadata"]

_KNOWN_HOOKS: Final = re.compile(
    r"(^|/)(distutils-precedence\.pth|_virtualenv\.(pth|py)|.*-nspkg\.pth|a1_coverage\.pth|__editable__.*|_editable_impl_.*)$"
)
"""Start-up code that installers and coverage tools bring; it changes nothing that a script sees."""


def _same(one: str, other: str) -> bool:
    return one.rstrip("/") == other.rstrip("/")


def each(out: Collector, host: Host) -> None:
    """Copies, loose modules, shared files and system packages of one host."""
    _copies(out, host)
    _loose(out, host)
    _shared(out, host)
    _system(out, host)
    for entry in host.snapshot.path:
        if entry.kind == "missing" and entry.origin in ("pythonpath", "pth"):
            by = f", put there by {entry.by}" if entry.by else ""
            what = f"the search path entry {entry.path} does not exist{by}"
            out.add("EP509", entry.path, [host.label], what, evidence={"found": entry.origin})


def _copies(out: Collector, host: Host) -> None:
    origins = {entry.path.rstrip("/"): entry.origin for entry in host.snapshot.path}
    for dist in host.snapshot.distributions:
        if dist.shadowed_by is None:
            continue
        winner = next(
            (
                item
                for item in host.snapshot.distributions
                if item.name == dist.name and _same(item.location, dist.shadowed_by)
            ),
            None,
        )
        if winner is None or winner.shadowed_by is not None:
            continue
        origin = origins.get(winner.location.rstrip("/"))
        code = {"user": "EP502", "pythonpath": "EP503"}.get(origin or "", "EP501")
        what = f"{dist.name} {winner.version} in {winner.location} hides {dist.version} in {dist.location}"
        if winner.version == dist.version and winner.content == dist.content and code == "EP501":
            continue  # the same files twice change nothing
        fix = None
        if code == "EP502":
            python = host.snapshot.interpreter.executable if host.snapshot.interpreter else "python3"
            fix = f"Set PYTHONNOUSERSITE=1, or: {shlex.quote(python)} -m pip uninstall {shlex.quote(dist.name)}"
        elif code == "EP501":
            fix = mend.uninstall(host.snapshot, [dist.name], dist=winner)
        evidence = {"expected": dist.version, "found": winner.version, "location": winner.location}
        row = row_of(dist.name)
        location = Location(file=winner.metadata_path)
        out.add(code, dist.name, [host.label], what, fix=fix, evidence=evidence, row=row, location=location)


def _loose(out: Collector, host: Host) -> None:
    order = [entry.path.rstrip("/") for entry in host.snapshot.path]
    standard = next((i for i, entry in enumerate(host.snapshot.path) if entry.origin == "stdlib"), len(order))
    owners: dict[str, list[Distribution]] = {}
    for dist in host.installed.values():
        for module in dist.modules:
            if "." not in module:
                owners.setdefault(module, []).append(dist)
    for index, entry in enumerate(host.snapshot.path):
        for name in entry.loose:
            if index < standard and name in sys.stdlib_module_names:
                what = f"{name} in {entry.path} hides the standard library's {name}"
                out.add("EP504", name, [host.label], what, evidence={"found": entry.path})
                continue
            hidden = owners.get(name, [])
            if len(hidden) != 1 or name in hidden[0].import_namespaces:
                continue  # several owners make a namespace package, which does not hide
            dist = hidden[0]
            place = dist.location.rstrip("/")
            if place in order and order.index(place) > index:
                what = f"{name} in {entry.path} hides the one of {dist.name} {dist.version} in {dist.location}"
                evidence = {"expected": dist.location, "found": entry.path}
                out.add("EP504", name, [host.label], what, evidence=evidence, row=row_of(dist.name))


def _shared(out: Collector, host: Host) -> None:
    for shared in host.snapshot.shared_files:
        if len(set(shared.owners)) < 2:
            continue  # two versions of one package in one place, which its metadata's finding names
        owners = [host.installed[name] for name in shared.owners if name in host.installed]
        named = [f"{dist.name} {dist.version}" for dist in owners] or list(shared.owners)
        brought = "brings" if len(named) == 1 else "both bring" if len(named) == 2 else "all bring"
        what = f"{' and '.join(named) if len(named) < 3 else some(named)} {brought} {shared.paths[0] if shared.paths else 'the same files'}"
        if shared.count > 1:
            what += f" and {shared.count - 1} more"
        files = {path.rsplit("/", 1)[-1] for path in shared.paths}
        on_disk = [library.version for library in host.snapshot.libraries if library.version and library.path.rsplit("/", 1)[-1] in files]
        if on_disk:
            what += f"; on disk is {on_disk[0]}"
        fix = mend.uninstall(host.snapshot, list(shared.owners))
        if shared.same:
            what += ", which are the same" if shared.count > 1 else ", each the same one"
            fix = "Nothing needs to be done while they are the same."
        again = [f"{dist.name}=={dist.version}" for dist in owners[:1]]
        if again and not shared.same:
            fix = f"{fix} && {mend.install(host.snapshot, again, options=['--no-deps'])} (keep the one that is needed)"
        evidence: dict[str, Json] = {"found": sorted(shared.owners), "on_disk": on_disk, "files": shared.count}
        first = sorted(shared.owners)[0]
        severity: Severity | None = "noise" if shared.same else None
        out.add(
            "EP505",
            first,
            [host.label],
            what,
            fix=fix,
            severity=severity,
            evidence=evidence,
            row=row_of(first),
            cover=False,
        )


def _system(out: Collector, host: Host) -> None:
    interpreter = host.snapshot.interpreter
    if interpreter is None or not (interpreter.venv and interpreter.system_site):
        return
    inside = interpreter.prefix.rstrip("/") + "/"
    origins = {entry.path.rstrip("/"): entry.origin for entry in host.snapshot.path}
    below = sorted(
        dist.name
        for dist in host.installed.values()
        if not dist.location.startswith(inside) and origins.get(dist.location.rstrip("/"), "site") == "site"
    )
    if below:
        subject = "torch" if "torch" in below else below[0]
        what = f"the environment takes {some(below)} from the system below it"
        row = row_of(subject)
        out.add("EP508", subject, [host.label], what, evidence={"found": below[:50]}, row=row, cover=False)


# Metadata.

_CODES: Final = {
    "no-metadata": "EP601",
    "no-name": "EP601",
    "no-version": "EP601",
    "unreadable": "EP601",
    "not-utf8": "EP602",
    "name-mismatch": "EP603",
    "version-mismatch": "EP603",
    "no-record": "EP604",
    "record-damaged": "EP604",
    "duplicate": "EP605",
    "direct-url-damaged": "EP607",
    "wheel-damaged": "EP607",
}


def metadata(out: Collector, host: Host) -> None:
    """Damaged metadata, two copies of it in one place, leftovers of interrupted uninstalls."""
    twice: dict[tuple[str, str], list[Distribution]] = {}
    for dist in host.snapshot.distributions:
        for problem in _apart(dist.problems):
            code = _CODES.get(problem.kind)
            if code is None:
                continue
            if code == "EP604" and (dist.origin.kind in ("system", "conda") or dist.conda is not None):
                continue  # these are owned by another database
            if code == "EP605":
                twice.setdefault((dist.name, dist.location), []).append(dist)
                continue
            what = f"{dist.raw_name or dist.name}: {problem.detail}"
            fix = None
            if code == "EP601":
                wanted = f"{dist.name}=={dist.version}" if dist.version else dist.name
                again = mend.install(host.snapshot, [wanted], options=["--force-reinstall", "--no-deps"])
                fix = f"rm -r {shlex.quote(dist.metadata_path)} && {again}"
            elif code in ("EP602", "EP603", "EP604", "EP607") and dist.version:
                fix = mend.reinstall(host.snapshot, f"{dist.name}=={dist.version}", dist=dist)
            location = Location(file=problem.path or dist.metadata_path)
            evidence = {"found": problem.kind}
            row = row_of(dist.name)
            out.add(code, dist.name, [host.label], what, fix=fix, location=location, evidence=evidence, row=row)
    for (name, place), copies in sorted(twice.items()):
        beside = [item for item in host.snapshot.distributions if item.name == name and _same(item.location, place)]
        versions = sorted({str(dist.version) for dist in (beside or copies)})
        matching = [dist for dist in (beside or copies) if dist.current]
        current = matching[0] if len(matching) == 1 else None  # both may match where their files have equal sizes
        what = f"{name} has metadata of {' and '.join(versions)} in one place"
        what += f"; the files are those of {current.version}" if current is not None else ""
        wanted = f"{name}=={current.version}" if current is not None else name
        remove = mend.uninstall(host.snapshot, [name])
        fix = f"{remove} && {remove} && {mend.install(host.snapshot, [wanted], options=['--no-deps'])}"
        out.add("EP605", name, [host.label], what, fix=fix, evidence={"found": versions}, row=row_of(name))
    for leftover in host.snapshot.leftovers:
        what = f"an interrupted uninstall left {leftover.path}"
        fix = f"rm -r {shlex.quote(leftover.path)}"
        out.add("EP606", leftover.name, [host.label], what, fix=fix, location=Location(file=leftover.path))


def _apart(problems: Sequence[Problem]) -> list[Problem]:
    """The problems with one for each file: METADATA that is overwritten has neither name nor version, nor need it be UTF-8."""
    lost = [problem for problem in problems if _CODES.get(problem.kind) == "EP601"]
    rest = [problem for problem in problems if problem not in lost]
    if len(lost) < 2 and not (lost and any(problem.kind == "not-utf8" for problem in rest)):
        return list(problems)
    told = [problem for problem in problems if problem in lost or problem.kind == "not-utf8"]
    merged = dataclasses.replace(lost[0], detail="; ".join(problem.detail for problem in told))
    return [merged, *(problem for problem in rest if problem.kind != "not-utf8")]


def between_hosts(out: Collector, hosts: Sequence[Host]) -> None:
    """Start-up code on some hosts only, and a user site that only some look into."""
    read = [host for host in hosts if host.snapshot.known("path")]
    tables = {host.label: dict(_hooks(host.snapshot.hooks)) for host in read}
    for name in sorted({name for table in tables.values() for name in table}):
        values = {label: table.get(name, "absent") for label, table in tables.items()}
        for split in out.splits(("host", f"start-up {name}"), values):
            holders = sorted(label for label, value in values.items() if value != "absent")
            what = f"the start-up code {name} is on {some(holders)} or differs between hosts"
            evidence = {"found": sorted({str(value) for value in values.values()})}
            out.add("EP506", name, split.hosts, what, evidence=evidence, declared=split.declared)
    users = {host.label: any(entry.origin == "user" for entry in host.snapshot.path) for host in read}
    for split in out.splits(("host", "search path"), users):
        what = f"the user's own package directory is searched on some hosts only: {joined(split, _yes)}"
        row = ("host", "search path")
        out.add("EP507", "user site", split.hosts, what, declared=split.declared, row=row)


def _hooks(hooks: Sequence[StartupHook]) -> list[tuple[str, str]]:
    out = []
    for hook in hooks:
        name = hook.path.rsplit("/", 1)[-1]
        if hook.kind != "editable" and not _KNOWN_HOOKS.search(hook.path):
            out.append((name, f"{hook.kind} {hook.line or ''}".strip()))
    return sorted(out)


def _yes(value: object) -> str:
    return "searched" if value else "not searched"
