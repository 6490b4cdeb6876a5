"""Sub-commands, one module each. To add one: write a module with a :class:`Command` and name it in ``COMMANDS``.

A command module imports torch and all that needs it inside ``run``, so that ``--help`` and wrong use answer at once.
"""

from __future__ import annotations

import argparse
from typing import Protocol

from eagle3_diag.commands.check import CheckCommand
from eagle3_diag.commands.compare_hidden import CompareHiddenCommand
from eagle3_diag.commands.convert import ConvertCommand
from eagle3_diag.commands.diagnose import DiagnoseCommand
from eagle3_diag.commands.evaluate import EvaluateCommand
from eagle3_diag.commands.probe import ProbeCommand
from eagle3_diag.commands.record import RecordCommand
from eagle3_diag.commands.serve_check import ServeCheckCommand

__all__ = ["COMMANDS", "Command"]


class Command(Protocol):
    """One sub-command."""

    @property
    def name(self) -> str: ...

    @property
    def summary(self) -> str:
        """One line for the list of commands."""

    @property
    def description(self) -> str:
        """What ``--help`` says above the options."""

    def add_arguments(self, parser: argparse.ArgumentParser) -> None: ...

    def run(self, arguments: argparse.Namespace) -> int:
        """Do it and return the exit code. Raises InputError with one sentence for wrong use and bad input."""


COMMANDS: tuple[Command, ...] = (
    EvaluateCommand(),
    CheckCommand(),
    ConvertCommand(),
    RecordCommand(),
    CompareHiddenCommand(),
    DiagnoseCommand(),
    ProbeCommand(),
    ServeCheckCommand(),
)
