"""Options of the commands that read a running server's counters."""

from __future__ import annotations

import argparse
import sys

from eagle3_diag.commands.arguments import positive
from eagle3_diag.errors import InputError
from eagle3_diag.serving import Between


def add_reading_arguments(group: argparse._ArgumentGroup) -> None:
    """``--interval`` and ``--since``."""
    group.add_argument("--interval", type=positive, metavar="SECONDS", help="time between the two readings of a server's counters (default: until Enter is pressed)")
    group.add_argument("--since", metavar="FILE|start", help="earlier reading of the counters: a saved /metrics, or start = everything since the server started")


def between(arguments: argparse.Namespace) -> Between:
    """What :func:`add_reading_arguments` parsed. Raises InputError where the two contradict each other."""
    if arguments.interval is not None and arguments.since is not None:
        raise InputError("--interval and --since both say what the earlier reading is; give one of them")
    return Between(interval=arguments.interval, since=arguments.since, say=_say)


def _say(line: str) -> None:
    sys.stderr.write(line + "\n")
    sys.stderr.flush()
