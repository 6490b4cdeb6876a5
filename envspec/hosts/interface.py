"""What every transport offers: run a Python source there, and take a snapshot."""

from __future__ import annotations

import functools
import shlex
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from importlib import resources
from pathlib import Path
from typing import ClassVar

from envspec.errors import CaptureError
from envspec.files import exists
from envspec.hosts import wire
from envspec.hosts.process import Exchange, exchange
from envspec.snapshot import Snapshot, SnapshotError

__all__ = ["CaptureOptions", "Host", "ProcessHost", "find_python", "probe_source"]


@dataclass(frozen=True, kw_only=True)
class CaptureOptions:
    """How to capture. Times in seconds.

    ``timeout`` bounds one host as a whole (connection included), ``section_timeout`` each section on it,
    ``deep_timeout`` the verification of files, which is added to ``timeout`` when ``deep`` names distributions
    (``("*",)`` for all). ``salt`` makes the hashes of redacted values; snapshots can be compared by them when
    they were taken with one salt. ``variables`` are further environment variables to record, by name or
    ``PREFIX_*``.
    """

    timeout: float = 60.0
    section_timeout: float = 10.0
    deep_timeout: float = 600.0
    deep: tuple[str, ...] = ()
    salt: str | None = None
    variables: tuple[str, ...] = ()

    @property
    def whole_timeout(self) -> float:
        """Seconds for one host."""
        return self.timeout + (self.deep_timeout if self.deep else 0.0)

    def request(self) -> dict[str, object]:
        """The probe's request."""
        return {
            "salt": self.salt,
            "deep": list(self.deep),
            "variables": list(self.variables),
            "timeout": self.section_timeout,
            "deep_timeout": self.deep_timeout,
            "alone": True,
        }


@functools.cache
def probe_source() -> str:
    """The text of the probe."""
    return resources.files("envspec").joinpath("probe.py").read_text(encoding="utf-8")


class Host(ABC):
    """A place where a Python environment is. ``target`` is how it was written, ``label`` how reports call it."""

    transport: ClassVar[str]

    def __init__(self, target: str, label: str | None = None) -> None:
        self.target = target
        self.label = label or target

    @abstractmethod
    def run_python(self, source: str, stdin_json: object, timeout: float) -> object:
        """Run a standard-library-only source (Python 3.8+) there and return what its ``main(stdin_json)``
        returns, as JSON data.

        Nothing is written on the host and nothing of its environment is imported. ``timeout`` in seconds.

        Raises:
            CaptureError: the host cannot be reached or gave no answer; one sentence that names the host.
        """

    @abstractmethod
    def snapshot(self, options: CaptureOptions) -> Snapshot:
        """The host's snapshot.

        Raises:
            CaptureError: as :meth:`run_python`.
        """

    def failure(self, sentence: str) -> CaptureError:
        """An error that begins with the host's name."""
        return CaptureError(f"{wire.clean(self.label)}: {sentence}")

    def finished(self, document: object, *, python: str | None = None, noise: bytes = b"") -> Snapshot:
        """The snapshot in a probe's answer, with what only this side knows."""
        if not isinstance(document, dict) or not isinstance(document.get("capture"), dict):
            raise self.failure("the answer is no snapshot")
        document["capture"].update(label=self.label, target=self.target, transport=self.transport)
        try:
            snapshot = Snapshot.from_dict(document)
        except SnapshotError as error:
            raise self.failure(f"the answer is no valid snapshot ({error})") from error
        said = wire.clean(noise.decode("utf-8", "replace"), 500) or None
        return replace(snapshot, capture=replace(snapshot.capture, python=python, noise=said))


class ProcessHost(Host):
    """A host reached through a command that takes the program on its stdin."""

    python: str | None = None

    @abstractmethod
    def command(self) -> Sequence[str]:
        """The command line; everything the user wrote is either validated or behind ``--``."""

    @abstractmethod
    def explain(self, result: Exchange) -> str:
        """One sentence for an exchange without a frame that did not time out."""

    def converse(self, source: str, request: object, timeout: float) -> tuple[object, bytes]:
        """The answer of ``main(request)``, and what else the host printed."""
        token = wire.new_token()
        try:
            command = self.command()
            result = exchange(command, wire.encode(source, request, token), token, timeout)
        except OSError as error:
            raise self.failure(f"{wire.clean(command[0])} cannot be started: {error.strerror or error}") from error
        if result.frame is None:
            if result.timed_out:
                raise self.failure(f"no answer within {timeout:g} s")
            if result.too_long:
                raise self.failure("it printed more than an answer can be long; its shell start-up files may loop")
            raise self.failure(self.explain(result))
        try:
            return wire.read_answer(result.frame), result.frame.noise
        except wire.FrameError as error:
            raise self.failure(str(error)) from error

    def run_python(self, source: str, stdin_json: object, timeout: float) -> object:
        """See :meth:`Host.run_python`."""
        return self.converse(source, stdin_json, timeout)[0]

    def snapshot(self, options: CaptureOptions) -> Snapshot:
        """See :meth:`Host.snapshot`."""
        document, noise = self.converse(probe_source(), options.request(), options.whole_timeout)
        return self.finished(document, python=self.python, noise=noise)


def expand_user(path: str) -> Path:
    """The path with a leading ``~`` replaced; as it is where that account does not exist."""
    try:
        return Path(path).expanduser()
    except RuntimeError:
        return Path(path)


def interpreter_in(directory: Path) -> Path | None:
    """The interpreter of a virtual environment's directory, None where there is none."""
    found = (directory / name for name in ("bin/python3", "bin/python", "Scripts/python.exe"))
    return next(filter(exists, found), None)


def last_line(text: str) -> str:
    """The last line that says something, safe to show."""
    lines = [line for line in text.splitlines() if line.strip()]
    return wire.clean(lines[-1]) if lines else ""


_FIND = (
    "for p in python3 python python3.14 python3.13 python3.12 python3.11 python3.10 python3.9 python3.8 python3.15; do "
    'if command -v "$p" >/dev/null 2>&1; then exec "$p" {flags}; fi; done; '
    "echo envspec: no python in PATH >&2; exit 127"
)
_GIVEN = (
    'p=$1; if [ -d "$p" ]; then if [ -x "$p/bin/python3" ]; then p=$p/bin/python3; else p=$p/bin/python; fi; fi; '
    'if command -v "$p" >/dev/null 2>&1; then exec "$p" {flags}; fi; echo "envspec: no python at $p" >&2; exit 127'
)


def find_python(python: str | None, flags: str) -> tuple[str, ...]:
    """``sh -c`` arguments that start the interpreter: the one named (a directory is a venv), else the first found
    in PATH.

    ``flags`` is shell text of ours. The script holds no single quote, backslash, newline or ``!``, so that it
    passes through csh and fish.
    """
    if python is None:
        return ("sh", "-c", _FIND.format(flags=flags))
    return ("sh", "-c", _GIVEN.format(flags=flags), "sh", python)


def flags_from_stdin() -> str:
    """Interpreter flags as shell text: the program is stdin up to its end."""
    return shlex.join((*wire.FLAGS, "-"))
