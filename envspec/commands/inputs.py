"""What the commands read before they let anything decide: the spec, the host names, the locks, the hosts."""

from __future__ import annotations

import argparse
import queue
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, TypeVar

from rich.console import Console
from rich.status import Status

from envspec.capture import AT_ONCE, Captured, at_the_same_time, capture_each
from envspec.errors import CaptureError, EnvspecError, UsageError
from envspec.files import is_dir, real, within
from envspec.findings import FailOn, Report
from envspec.hosts import CaptureOptions, Host, HostName, open_host, parse_host
from envspec.hosts.file import FileHost
from envspec.hosts.interface import expand_user
from envspec.locks import RoleLock, load_role_locks, named_lock, no_such_role
from envspec.output import Output, Sink, parse_output
from envspec.policy import Baseline, accepting, apply, audit, load_baseline
from envspec.report.escape import plain
from envspec.spec import Spec, find_spec, load_spec

__all__ = [
    "NamedHost",
    "check_apart",
    "check_timeout",
    "concurrently",
    "files_of",
    "finish",
    "host_names",
    "named_hosts",
    "options",
    "outputs",
    "read_baseline",
    "read_hosts",
    "read_locks",
    "read_spec",
]

T = TypeVar("T")

LONGEST_TIMEOUT: Final = 7 * 24 * 3600
"""Seconds. What waits for a host counts milliseconds in 32 bits."""


@dataclass(frozen=True, kw_only=True)
class NamedHost:
    """A host that can be read, with the role it was given."""

    name: HostName
    host: Host

    @property
    def label(self) -> str:
        return self.name.label

    @property
    def role(self) -> str | None:
        return self.name.role


def read_spec(arguments: argparse.Namespace) -> Spec | None:
    """The spec named with ``--spec``, else the one found here, unless ``--no-spec``.

    Raises:
        UsageError: it cannot be read or holds a mistake.
    """
    if arguments.no_spec:
        if arguments.spec:
            raise UsageError("--spec and --no-spec exclude each other")
        return None
    # Relative where it can be: reports name this file, and a CI system knows files by their path in the checkout.
    path = Path(arguments.spec) if arguments.spec else find_spec(Path())
    return load_spec(path) if path else None


def host_names(texts: Sequence[str], spec: Spec | None) -> list[HostName]:
    """Parse host names; those of the spec where none is given. Labels are made unique.

    Raises:
        UsageError: a name is none of the forms, is given twice, or there is none at all.
    """
    known = spec.hosts if spec else {}
    targets = {name: host.target for name, host in known.items()}
    if not texts:
        texts = list(known)
        if not texts:
            where = f"{spec.path} has no hosts" if spec else "there is no envspec.yaml here"
            raise UsageError(f"no host was named and {where}; name hosts, such as `local`, or write a spec with `envspec init`")
    names = [_in_spec(parse_host(text, targets), spec) for text in texts]
    labels = Counter(name.label for name in names)
    unique = [replace(name, label=f"{name.role}={name.label}") if labels[name.label] > 1 and name.role else name for name in names]
    for label, number in Counter(name.label for name in unique).items():
        if number > 1:
            raise UsageError(f"the host {label!r} is named {number} times; give each a role of its own, such as train={label}")
    return unique


def _in_spec(name: HostName, spec: Spec | None) -> HostName:
    """What the spec knows of a host: its role, and where its relative paths begin."""
    if spec is None or name.label not in spec.hosts:
        return name
    role = name.role or spec.hosts[name.label].role
    path = name.path
    if path and not path.startswith("~") and (name.kind in ("file", "lock") or (name.kind == "local" and "/" in path)):
        path = str(spec.root / path)
    return replace(name, role=role, path=path)


def named_hosts(names: Sequence[HostName]) -> list[NamedHost]:
    """The hosts of the names that are no locks. Files are read at once: a bad one is found before any host is asked.

    Raises:
        UsageError: a part of a name is not allowed, or a file is none of a host.
    """
    hosts = [NamedHost(name=name, host=open_host(name)) for name in names if name.kind != "lock"]
    for host in hosts:
        if isinstance(host.host, FileHost):
            host.host.load()
    return hosts


def read_locks(texts: Sequence[str], names: Sequence[HostName], spec: Spec | None) -> list[RoleLock]:
    """The locks of ``--lock [ROLE=]FILE``, of ``lock:PATH`` hosts, and, where neither is given, of the spec.

    Raises:
        UsageError: a lock cannot be read, or is for a role that no host has.
    """
    roles = [name.role for name in names if name.kind != "lock"]
    given: list[tuple[str | None, str]] = [named_lock(text, roles) for text in texts]
    for name in names:
        if name.kind == "lock":
            if name.role is not None and name.role not in roles:
                raise no_such_role(name.role, f"{name.role}={name.text}", roles)
            given.append((name.role, name.path or ""))
    if not given and spec:
        named = {role: str(spec.root / rule.lock) for role, rule in spec.roles.items() if rule.lock and role in roles}
        given += list(named.items())
        if spec.lock and any(role not in named for role in roles):
            locks = load_role_locks(spec.root / spec.lock, [role for role in roles if role not in named])
            return [*(lock for role, path in named.items() for lock in _locks_of(path, role)), *locks]
    locks_found: list[RoleLock] = []
    for role, path in given:
        locks_found += _locks_of(path, role) if role else load_role_locks(path, roles)
    return locks_found


def _locks_of(path: str, role: str) -> list[RoleLock]:
    """The lock of one role, for that role even where the file does not know its name."""
    return [replace(lock, role=role) for lock in load_role_locks(path, [role])]


def options(arguments: argparse.Namespace) -> CaptureOptions:
    """How to capture, from the arguments.

    Raises:
        UsageError: a time or number that makes no sense.
    """
    check_timeout(arguments.timeout)
    if arguments.jobs is not None and arguments.jobs < 1:
        raise UsageError(f"--jobs {arguments.jobs}: give a number of at least 1")
    deep = tuple(dict.fromkeys(getattr(arguments, "deep", [])))
    variables = tuple(dict.fromkeys(getattr(arguments, "recorded", [])))
    return CaptureOptions(timeout=arguments.timeout, deep=("*",) if "*" in deep else deep, variables=variables)


def check_timeout(seconds: float, least: float = 0.0) -> None:
    """Check a ``--timeout``.

    Raises:
        UsageError: it is not above 0 (or at least ``least``), or longer than a system can wait.
    """
    if not (seconds > 0 and least <= seconds <= LONGEST_TIMEOUT):
        from_ = f"of at least {least:g}" if least else "above 0"
        raise UsageError(f"--timeout {seconds:g}: give a number of seconds {from_} and at most {LONGEST_TIMEOUT:,} (a week)")


def outputs(arguments: argparse.Namespace) -> list[Output]:
    """The files of ``--output``, which are checked, with that of ``--write-baseline``, before anything is read.

    Raises:
        UsageError: a bad format, a directory that does not exist, or one file for two things.
    """
    found = [parse_output(text) for text in arguments.outputs]
    written = [(output.path, output.format) for output in found]
    if arguments.write_baseline:
        written.append((Path(arguments.write_baseline), "the baseline"))
    taken: dict[Path, str] = {}
    for path, what in written:
        if not is_dir(path.parent):
            raise UsageError(f"cannot write {path}: there is no directory {path.parent}")
        if is_dir(path):
            raise UsageError(f"cannot write {path}: it is a directory; name a file")
        other = taken.setdefault(real(path), what)
        if other != what:
            raise UsageError(f"{path} is named for {other} and for {what}; give each a file of its own")
    return found


def check_apart(
    arguments: argparse.Namespace,
    outputs: Sequence[Output],
    *,
    spec: Spec | None = None,
    names: Iterable[HostName] = (),
    locks: Iterable[RoleLock] = (),
    others: Iterable[str] = (),
) -> None:
    """Check that no file that will be written is one that was read: the spec, the baseline, files and interpreters of
    hosts, locks and ``others``.

    Raises:
        UsageError: one is; it is still as it was.
    """
    read: list[str | Path] = [*others, *files_of(names), *(lock.lock.path for lock in locks)]
    read += [path for path in (spec.path if spec else None, arguments.baseline) if path]
    written = {f"--output {output.format}={output.path}": output.path for output in outputs}
    if arguments.write_baseline:
        written[f"--write-baseline {arguments.write_baseline}"] = Path(arguments.write_baseline)
    lost = within(written, read)
    if lost is not None:
        raise UsageError(f"{lost} would overwrite a file that this run reads; name another")


def files_of(names: Iterable[HostName]) -> list[Path]:
    """The files of this machine that host names stand for."""
    return [expand_user(name.path) for name in names if name.path and name.kind in ("file", "lock", "local")]


def read_hosts(hosts: Sequence[NamedHost], how: CaptureOptions, at_once: int | None, sink: Sink) -> list[Captured]:
    """Capture all hosts, showing on a terminal which are still awaited. Outcomes are in the order of ``hosts``."""
    done: dict[int, Captured] = {}
    with _progress(sink) as status:
        waiting: Mapping[int, str] = {number: host.label for number, host in enumerate(hosts)}
        if status:
            status.update(_awaited(waiting.values()))
        for index, captured in capture_each([host.host for host in hosts], how, at_once=at_once or AT_ONCE):
            done[index] = captured
            waiting = {number: label for number, label in waiting.items() if number != index}
            if status:
                status.update(_awaited(waiting.values()))
    return [done[index] for index in range(len(hosts))]


def _awaited(waiting: Iterable[str]) -> str:
    labels = [plain(label) for label in waiting]
    more = f" and {len(labels) - 3} more" if len(labels) > 3 else ""
    return f"waiting for {', '.join(labels[:3])}{more}" if labels else "comparing"


@contextmanager
def _progress(sink: Sink) -> Iterator[Status | None]:
    if not sink.stderr.isatty() or sink.environment.get("TERM") == "dumb":
        yield None
        return
    console = Console(file=sink.stderr, no_color="NO_COLOR" in sink.environment, markup=False, highlight=False)
    with console.status("", spinner="line") as status:
        yield status


def concurrently(works: Mapping[str, Callable[[], T]], at_once: int | None, sink: Sink) -> dict[str, T | EnvspecError]:
    """Do the work of each host at the same time; a host that fails leaves its error. Each work must end by itself."""
    waiting = queue.SimpleQueue[str]()
    done = queue.SimpleQueue[tuple[str, T | EnvspecError]]()
    for label in works:
        waiting.put(label)

    def worker() -> None:
        while True:
            try:
                label = waiting.get_nowait()
            except queue.Empty:
                return
            try:
                done.put((label, works[label]()))
            except EnvspecError as error:
                done.put((label, error))
            except Exception as error:  # one host's surprise must not lose the others' answers
                done.put((label, CaptureError(f"{label}: {type(error).__name__}: {error}")))

    at_the_same_time(worker, min(at_once or AT_ONCE, len(works)))
    answers: dict[str, T | EnvspecError] = {}
    with _progress(sink) as status:
        while len(answers) < len(works):
            if status:
                status.update(_awaited([label for label in works if label not in answers]))
            label, answer = done.get()
            answers[label] = answer
    return answers


def read_baseline(arguments: argparse.Namespace) -> Baseline | None:
    """The baseline of ``--baseline``.

    Raises:
        UsageError: it cannot be read, or one is to be written as well.
    """
    if arguments.baseline and arguments.write_baseline:
        raise UsageError("--baseline and --write-baseline exclude each other: a new baseline holds today's findings only")
    return load_baseline(arguments.baseline) if arguments.baseline else None


def finish(
    report: Report,
    arguments: argparse.Namespace,
    sink: Sink,
    *,
    spec: Spec | None,
    baseline: Baseline | None,
    locks: Sequence[RoleLock],
    outputs: Sequence[Output],
    preflighted: bool,
) -> int:
    """Apply the spec's ignores and the baseline, show the report, and return the exit code.

    Comparison has audited the spec's and the baseline's entries for its own families of codes; those for the preflight's
    are audited here, if scripts were judged.
    """
    roles = {host.label: host.role for host in report.hosts}
    findings = apply(report.findings, spec, baseline, roles=roles)
    if preflighted:
        findings += apply(audit(findings, spec, baseline, roles=roles, looked=lambda code, _: code.startswith("EP1")), spec, baseline, roles=roles)
    besides = []
    if arguments.write_baseline:
        new = accepting(findings, arguments.write_baseline)
        besides.append((Path(new.path), new.to_text()))
        findings = apply(findings, spec, new, roles=roles)
    failed = sum(host.status == "failed" for host in report.hosts)
    report = replace(report, findings=(), counts=replace(report.counts, failed=failed)).with_findings(findings)
    fail_on: FailOn = arguments.fail_on or (spec.fail_on if spec else "breaks")
    anchor = next((lock.lock.path for lock in locks), None) or (spec.path if spec else None)
    view = sink.view(verbose=arguments.verbose, fail_on=fail_on, anchor=anchor)
    sink.report(report, view, format=arguments.format, outputs=outputs, besides=besides)
    return report.exit_code(fail_on)
