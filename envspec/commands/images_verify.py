"""``envspec images verify IMAGE …``."""

from __future__ import annotations

import argparse
from dataclasses import replace

from envspec.commands.inputs import check_apart, check_timeout, finish, outputs, read_baseline
from envspec.images.read import named_images, read_images
from envspec.images.verify import verify
from envspec.output import Sink

__all__ = ["run"]


def run(arguments: argparse.Namespace, sink: Sink) -> int:
    """Hold images against their records, their lock and each other."""
    check_timeout(arguments.timeout)
    wanted, baseline = outputs(arguments), read_baseline(arguments)
    check_apart(arguments, wanted, others=[path for text in arguments.locks for path in (text, text.partition("=")[2]) if path])
    report = verify(read_images(named_images(arguments.images), arguments.timeout, arguments.locks, sink.say if sink.stderr.isatty() else lambda text: None))
    proof = [note for note in report.notes if note.startswith("identical: ")]
    if arguments.format == "text":  # on a line of its own, whole, as the last word
        report = replace(report, notes=tuple(note for note in report.notes if note not in proof))
    code = finish(report, arguments, sink, spec=None, baseline=baseline, locks=(), outputs=wanted, preflighted=False)
    if arguments.format == "text":
        sink.print("".join(f"{line}\n" for line in proof))
    return code
