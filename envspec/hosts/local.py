"""This machine: the interpreter that runs envspec, or any other one or venv on it."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

from envspec.files import exists, is_dir, real
from envspec.hosts import wire
from envspec.hosts.interface import ProcessHost, expand_user, interpreter_in, last_line
from envspec.hosts.process import Exchange

__all__ = ["LocalHost"]


class LocalHost(ProcessHost):
    """``local`` and ``local:PATH``. PATH is an interpreter, a command in PATH, or a venv's directory; ``~`` expands.

    Without a path it is the interpreter the variable ``ENVSPEC_PYTHON`` names, else the one that runs envspec.
    """

    transport = "local"

    def __init__(self, target: str, python: str | None = None, label: str | None = None) -> None:
        super().__init__(target, label)
        self.python = python

    def command(self) -> Sequence[str]:
        """See :class:`ProcessHost`."""
        return (self._interpreter(), *wire.FLAGS, "-")

    def _interpreter(self) -> str:
        given = self.python or os.environ.get("ENVSPEC_PYTHON")
        if not given:
            return sys.executable
        path = expand_user(given)
        if is_dir(path):
            inside = interpreter_in(path)
            if inside is not None:
                return str(inside)
            self._refuse_lost(path / "bin/python3")
            raise self.failure(
                f"{wire.clean(str(path))} is a directory without bin/python3; name an interpreter or a venv"
            )
        if "/" in given and not exists(path):
            self._refuse_lost(path)
            raise self.failure(f"there is no interpreter at {wire.clean(str(path))}")
        # "./name" without its dot would be looked for in PATH
        return f"./{path}" if "/" in given and len(path.parts) == 1 else str(path)

    def _refuse_lost(self, path: Path) -> None:
        """An environment stays when the Python that it was made from is removed or replaced; only its link leads nowhere."""
        if os.path.islink(path):  # noqa: PTH114 -- pathlib's raises where the directory may not be searched
            target = wire.clean(str(real(path)))
            raise self.failure(f"{wire.clean(str(path))} leads to {target}, which is not there; make the environment anew")

    def explain(self, result: Exchange) -> str:
        """See :class:`ProcessHost`."""
        said = last_line(result.stderr)
        return f"the interpreter ended with status {result.status} and gave no answer" + (f": {said}" if said else "")
