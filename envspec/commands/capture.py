"""``envspec capture HOST … [-o FILE|DIR]``."""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Sequence
from pathlib import Path

from envspec.commands.inputs import NamedHost, host_names, named_hosts, options, read_hosts, read_spec
from envspec.errors import UsageError
from envspec.output import Sink
from envspec.report.escape import plain
from envspec.snapshot import save

__all__ = ["run"]


def run(arguments: argparse.Namespace, sink: Sink) -> int:
    """Write a snapshot of each host; 3 when one could not be captured."""
    names = host_names(arguments.hosts, read_spec(arguments))
    for name in names:
        if name.kind == "lock":
            raise UsageError(f"{name.text!r} is a lock, which is no host to capture")
    hosts = named_hosts(names)
    paths = _paths(hosts, arguments.save)
    how = options(arguments)
    failed = False
    for host, path, captured in zip(hosts, paths, read_hosts(hosts, how, arguments.jobs, sink), strict=True):
        snapshot = captured.snapshot
        if snapshot is None:
            failed = True
            sink.say(f"envspec: {captured.error}")
            continue
        if path is None:
            sink.print(json.dumps(snapshot.to_dict(), sort_keys=True, indent=1, ensure_ascii=True) + "\n")
        else:
            save(snapshot, path)
            sink.print(plain(f"{path}: {host.label}, {len(snapshot.distributions)} distributions, {snapshot.digest}") + "\n")
        for section, status in snapshot.sections.items():
            if status.status == "partial":
                sink.say(f"envspec: {host.label}: {section} was read in part: {status.reason}")
    return 3 if failed else 0


def _paths(hosts: Sequence[NamedHost], save_to: str | None) -> list[Path | None]:
    """Where each snapshot goes: standard output, a file, or a file of the host's name in a directory (which is made)."""
    if save_to is None:
        if len(hosts) > 1:
            raise UsageError(f"{len(hosts)} hosts were named; give a directory for their snapshots with -o DIR")
        return [None]
    place = Path(save_to)
    if len(hosts) == 1 and not place.is_dir() and not save_to.endswith("/"):
        return [place]
    try:
        place.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"cannot make the directory {place}: {error.strerror or error}") from error
    paths: list[Path] = []
    for host in hosts:
        label = re.sub(r"\.(json|txt)$", "", host.label) if host.name.kind == "file" else host.label
        stem = re.sub(r"[^A-Za-z0-9._@+-]+", "_", label).strip("_.") or "host"
        candidates = (place / f"{stem}{suffix}.json" for suffix in ("", *(f"-{number}" for number in range(2, len(hosts) + 2))))
        paths.append(next(path for path in candidates if path not in paths))
    return list(paths)
