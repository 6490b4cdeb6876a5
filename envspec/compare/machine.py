"""Interpreter, C library, processor, limits, container, installer settings; and how the capture itself went."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Hashable, Mapping, Sequence
from typing import Final

from packaging.utils import canonicalize_name

from envspec.compare.model import Collector, Fact, Host, Key, LabelledSnapshot, joined, some
from envspec.findings import Severity
from envspec.snapshot import Interpreter, Section, Snapshot

__all__ = ["between_hosts", "collection", "each", "facts", "gaps", "uncaptured"]

_SMALL_SHM: Final = 64 * 1024 * 1024
"""What a container gets when nothing is asked for."""
_LIMITS: Final = ("nofile_soft", "memlock_soft", "stack_soft", "shm_bytes", "cgroup_memory_bytes", "cgroup_cpus")


def _abi(interpreter: Interpreter) -> str:
    parts = [interpreter.implementation, f"{interpreter.pointer_bits} bit"]
    if interpreter.free_threaded:
        parts.append("free-threaded")
    if interpreter.debug:
        parts.append("debug")
    return ", ".join(parts)


def _minor(version: str) -> str:
    return ".".join(version.split(".")[:2])


def facts(host: Host) -> dict[Key, Fact]:
    """Rows that are no packages and no variables."""
    snapshot = host.snapshot
    out: dict[Key, Fact] = {}

    def put(kind: str, key: str, text: object) -> None:
        if text is not None and text != "":
            out[kind, key] = Fact(text if isinstance(text, Hashable) else str(text), str(text))

    if snapshot.interpreter is not None:
        put("interpreter", "python", snapshot.interpreter.version)
        put("interpreter", "abi", _abi(snapshot.interpreter))
    if snapshot.libc is not None:
        put("host", "libc", f"{snapshot.libc.family} {snapshot.libc.version or '?'}")
    if snapshot.os is not None:
        put("host", "os", " ".join(part for part in (snapshot.os.id, snapshot.os.version) if part))
    if snapshot.cpu is not None:
        put("host", "cpu", _cpu(snapshot.cpu.architecture, snapshot.cpu.flags))
    if snapshot.driver is not None and snapshot.driver.version:
        put("host", "driver", snapshot.driver.version)
    if snapshot.gpus:
        names = sorted(gpu.name for gpu in snapshot.gpus)
        put("host", "gpu", ", ".join(f"{names.count(name)}× {name}" for name in sorted(set(names))))
    if snapshot.container is not None:
        image = snapshot.container.image
        put("host", "container", (image.id if image and image.id else None) or snapshot.container.kind)
    if snapshot.limits is not None:
        for name in _LIMITS:
            put("limit", name, getattr(snapshot.limits, name))
    for held in sorted({library.component for library in snapshot.libraries}):
        versions = sorted({lib.version for lib in snapshot.libraries if lib.component == held and lib.version})
        put("library", held, " and ".join(versions))
    for value in snapshot.configuration:
        put("setting", f"{value.tool} {value.key}", value.value)
    return out


def _cpu(architecture: str | None, flags: Sequence[str]) -> str:
    return f"{architecture or '?'} [{' '.join(sorted(flags))}]"


def each(out: Collector, host: Host) -> None:
    """Limits that stop a run wherever they are found."""
    snapshot = host.snapshot
    limits, container = snapshot.limits, snapshot.container
    if limits is None or limits.shm_bytes is None or container is None or container.kind is None or not snapshot.gpus:
        return
    if limits.shm_bytes <= _SMALL_SHM:
        what = f"/dev/shm has {limits.shm_bytes // 1024 // 1024} MiB"
        out.add(
            "EP807", "/dev/shm", [host.label], what, evidence={"found": limits.shm_bytes}, row=("limit", "shm_bytes")
        )


def between_hosts(out: Collector, hosts: Sequence[Host]) -> None:
    """Interpreter, C library, system, processor, limits, containers and settings that differ."""
    tables = {host.label: facts(host) for host in hosts}
    interpreters = {host.label: host.snapshot.interpreter for host in hosts if host.snapshot.interpreter is not None}
    minors = {label: _minor(interpreter.version) for label, interpreter in interpreters.items()}
    _differs(out, "EP801", ("interpreter", "python"), minors, "Python")
    if len(set(minors.values())) == 1:
        patches = {label: interpreter.version for label, interpreter in interpreters.items()}
        _differs(out, "EP802", ("interpreter", "python"), patches, "Python")
    abis = {label: _abi(interpreter) for label, interpreter in interpreters.items()}
    _differs(out, "EP803", ("interpreter", "abi"), abis, "the interpreter's binary interface")
    for code, name, title in (
        ("EP804", "libc", "the C library"),
        ("EP805", "os", "the operating system"),
        ("EP806", "cpu", "the processor"),
        ("EP809", "container", "the container"),
    ):
        _differs(out, code, ("host", name), _texts(tables, ("host", name)), title)
    for name in _LIMITS:
        values = {
            host.label: getattr(host.snapshot.limits, name)
            for host in hosts
            if host.snapshot.limits is not None and host.snapshot.known("limits")
        }
        _differs(out, "EP808", ("limit", name), values, name, unit="unlimited")
    configured = {host.label for host in hosts if host.snapshot.known("configuration")}
    keys = {key for label in configured for key in tables[label] if key[0] == "setting"}
    for key in sorted(keys):
        settings = {
            label: table[key].text if key in table else None for label, table in tables.items() if label in configured
        }
        _differs(out, "EP222", key, settings, f"the setting {key[1]}", unit="not set")


def _texts(tables: Mapping[str, Mapping[Key, Fact]], key: Key) -> dict[str, str]:
    return {label: table[key].text for label, table in tables.items() if key in table}


def _differs(
    out: Collector, code: str, key: Key, values: Mapping[str, Hashable], title: str, unit: str = "none"
) -> None:
    def text(value: object) -> str:
        return unit if value is None else str(value)

    for split in out.splits(key, {label: value for label, value in values.items() if (label, key) not in out.covered}):
        what = f"{title} differs: {joined(split, text)}"
        evidence = {
            "expected": text(split.reference) if split.holders else None,
            "found": sorted(text(value) for value, _ in split.every),
        }
        out.add(code, key[1], split.hosts, what, row=key, declared=split.declared, evidence=evidence, cover=False)


# How the capture went.


def uncaptured(out: Collector, host: LabelledSnapshot) -> None:
    """A host of which nothing is known."""
    reason = host.error or "it could not be captured"
    out.add(
        "EP901", host.label, [host.label], f"{host.label} could not be captured: {reason}", evidence={"found": None}
    )


def gaps(snapshot: Snapshot, deep: Sequence[str] = ()) -> dict[str, Section]:
    """Sections that could not be read to their end, sorted by name.

    ``deep`` among them only where files were to be verified: by the capture, or by the distributions given (``*`` is all).
    """
    out = {name: section for name, section in snapshot.sections.items() if section.status != "ok" and name != "deep"}
    verified = _unverified(snapshot, deep)
    if verified is not None:
        out["deep"] = verified
    return dict(sorted(out.items()))


def _unverified(snapshot: Snapshot, deep: Sequence[str]) -> Section | None:
    """The section ``deep`` where it is not all that was asked for, with what a capture without it leaves unknown."""
    captured = {canonicalize_name(name) for name in snapshot.capture.deep}
    if not captured:
        return Section(status="unknown", reason="it was captured without --deep") if deep else None
    section = snapshot.section("deep")
    late = [] if "*" in captured else sorted({canonicalize_name(name) for name in deep} - captured)
    if not late:
        return section if section.status != "ok" else None
    what = "all but what --deep named" if "*" in late else some(late)
    reasons = [f"{what} was left out when it was captured", *([section.reason] if section.reason else [])]
    return Section(status="partial" if section.status == "ok" else section.status, reason="; ".join(reasons))


_UNREAD_PACKAGES: Final[Mapping[str, Severity]] = {"unknown": "breaks", "partial": "results"}
"""A host whose packages are not known cannot be called right, as it would be by a gate that passes on noise."""


def collection(out: Collector, host: Host, deep: Sequence[str] = ()) -> None:
    """Sections that could not be read, noise of the login, another interpreter than the named one.

    ``deep`` names the distributions whose files were to be verified, ``*`` for all.
    """
    snapshot = host.snapshot
    imported = next((note for note in snapshot.capture.notes if note.startswith("from pip ")), None)
    if imported:
        what = f"{host.label} is known by the output of {imported.removeprefix('from ')} only"
        out.add("EP908", host.label, [host.label], what)
    for name, section in gaps(snapshot, deep).items():
        if imported and name != "deep":
            continue  # a list of packages has no sections; files are those that a user asked for
        reason = f": {section.reason}" if section.reason else ""
        partly = section.status == "partial"
        if name == "deep":
            what = f"{'not all that --deep asks for' if partly else 'nothing'} was verified{reason}"
        else:
            what = f"{name} could be read in part{reason}" if partly else f"{name} could not be read{reason}"
        severity = _UNREAD_PACKAGES.get(section.status) if name == "distributions" else None
        out.add("EP902", name, [host.label], what, severity=severity, evidence={"found": section.status})
    if snapshot.capture.noise:
        sample = " ".join(snapshot.capture.noise.split())[:60]
        out.add(
            "EP903",
            host.label,
            [host.label],
            f"the login of {host.label} printed: {sample}",
            evidence={"found": sample},
        )
    interpreter, asked = snapshot.interpreter, snapshot.capture.python
    if interpreter is None or not asked or not asked.startswith("/"):
        return
    answered = {interpreter.executable, interpreter.real_executable}
    asked = posixpath.normpath(asked)  # a target of the spec may be written as ../env
    inside = re.sub(r"/bin/[^/]+$", "", asked)
    if asked not in answered and inside not in (interpreter.prefix, interpreter.base_prefix):
        what = f"{asked} was named, {interpreter.executable} answered"
        out.add("EP904", asked, [host.label], what, evidence={"expected": asked, "found": interpreter.executable})


def summary(host: Host) -> str:
    """A host in one line: ``Python 3.12.1, torch 2.10.0+cu128, driver 570.124.06, 2 GPUs``."""
    snapshot = host.snapshot
    parts = []
    if snapshot.interpreter is not None:
        parts.append(f"Python {snapshot.interpreter.version}")
    torch = host.installed.get("torch")
    if torch is not None:
        parts.append(f"torch {snapshot.torch.version if snapshot.torch and snapshot.torch.version else torch.version}")
    parts.append(f"{len(host.installed)} packages")
    if snapshot.driver is not None and snapshot.driver.version:
        parts.append(f"driver {snapshot.driver.version}")
    if snapshot.gpus:
        names = sorted({gpu.name for gpu in snapshot.gpus})
        parts.append(f"{len(snapshot.gpus)}× {some(names, 2)}")
    return ", ".join(parts)
