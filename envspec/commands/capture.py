"""``envspec capture HOST … [-o FILE|DIR]``."""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from pathlib import Path

from envspec.commands.inputs import NamedHost, files_of, host_names, named_hosts, options, read_hosts, read_spec
from envspec.errors import UsageError
from envspec.files import is_dir, within
from envspec.output import Sink
from envspec.report.escape import ascii_json
from envspec.snapshot import save

__all__ = ["run"]


def run(arguments: argparse.Namespace, sink: Sink) -> int:
    """Write a snapshot of each host; 2 when one could not be written, 3 when one could not be captured."""
    how, spec = options(arguments), read_spec(arguments)
    names = host_names(arguments.hosts, spec)
    for name in names:
        if name.kind == "lock":
            raise UsageError(f"{name.text!r} is a lock, which is no host to capture")
    hosts = named_hosts(names)
    paths = _paths(hosts, arguments.save)
    read = [*files_of(names), *([Path(spec.path)] if spec else [])]
    lost = within({str(path): path for path in paths if path}, read)
    if lost is not None:
        raise UsageError(f"the snapshot {lost} would overwrite a file that this run reads; name another with -o")
    code = 0
    lines: list[str] = []
    for host, path, captured in zip(hosts, paths, read_hosts(hosts, how, arguments.jobs, sink), strict=True):
        snapshot = captured.snapshot
        if snapshot is None:
            code = 3
            sink.say(f"envspec: {captured.error}")
            continue
        if path is None:
            sink.print(ascii_json(snapshot.to_dict(), sort_keys=True, indent=1) + "\n")
        else:
            try:
                save(snapshot, path)
            except UsageError as error:  # which must not lose the other hosts' snapshots
                code = max(code, error.exit_code)
                sink.say(f"envspec: {host.label}: {error}")
                continue
            lines.append(f"{path}: {host.label}, {len(snapshot.distributions)} distributions, {snapshot.digest}")
        for section, status in snapshot.sections.items():
            if status.status == "partial":
                sink.say(f"envspec: {host.label}: {section} was read in part: {status.reason}")
    for line in lines:  # when all are safe: standard output may be one that cannot be written
        sink.print_line(line)
    return code


def _paths(hosts: Sequence[NamedHost], save_to: str | None) -> list[Path | None]:
    """Where each snapshot goes: standard output, a file, or a file of the host's name in a directory (which is made)."""
    if save_to is None:
        if len(hosts) > 1:
            raise UsageError(f"{len(hosts)} hosts were named; give a directory for their snapshots with -o DIR")
        return [None]
    place = Path(save_to)
    if len(hosts) == 1 and not is_dir(place) and not save_to.endswith("/"):
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
