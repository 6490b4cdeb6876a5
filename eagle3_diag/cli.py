"""Arguments in, exit code out: 0 done, 2 wrong use or bad input (one sentence on stderr), 130 interrupted.

A sub-command is a module of :mod:`eagle3_diag.commands`; this module knows nothing else about it. Only the command line prints.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from eagle3_diag import __version__
from eagle3_diag.commands import COMMANDS, Command
from eagle3_diag.errors import InputError

PROGRAM = "eagle3-diag"


class _Parser(argparse.ArgumentParser):
    """Says what was wrong in one line instead of printing the whole usage."""

    def error(self, message: str) -> NoReturn:
        raise InputError(f"{message}; see {self.prog} --help")


def parser() -> argparse.ArgumentParser:
    """The whole command line."""
    top = _Parser(prog=PROGRAM, description="Tell bad EAGLE-3 draft weights from bad wiring, from stored samples.", allow_abbrev=False)
    top.add_argument("--version", action="version", version=f"{PROGRAM} {__version__}")
    commands = top.add_subparsers(title="commands", metavar="COMMAND", dest="command")
    for command in COMMANDS:
        sub = commands.add_parser(
            command.name, help=command.summary, description=command.description, allow_abbrev=False, formatter_class=argparse.RawDescriptionHelpFormatter
        )
        command.add_arguments(sub)
        sub.set_defaults(run=command)
    return top


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; never raises for anything a user can cause."""
    if sys.stdout is None:  # started with it closed
        sys.stdout = Path(os.devnull).open("w")  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):  # a path may hold characters that the terminal's encoding lacks
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")
    prog = PROGRAM
    try:
        arguments = parser().parse_args(argv)
        if arguments.command is None:
            raise InputError(f"a command is missing (known: {', '.join(command.name for command in COMMANDS)}); see {PROGRAM} --help")
        prog = f"{PROGRAM} {arguments.command}"
        command: Command = arguments.run
        code = command.run(arguments)
        sys.stdout.flush()
        return code
    except InputError as error:
        print(f"{prog}: error: {_one_line(str(error))}", file=sys.stderr)
        return 2
    except MemoryError:
        print(f"{prog}: error: out of memory; use shorter samples, --dtype bfloat16 or a machine with more memory", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print(f"{prog}: interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:  # whoever read our output has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as error:
        where = "" if error.filename is None else f"{error.filename}: "
        print(f"{prog}: error: {_one_line(where + (error.strerror or str(error)))}", file=sys.stderr)
        return 2


def _one_line(text: str) -> str:
    from eagle3_diag.report.escape import plain

    return plain(" ".join(text.split()))
