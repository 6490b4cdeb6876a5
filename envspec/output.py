"""Where a command's results go: standard output, files, and GitHub's step summary."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TextIO

from envspec.errors import UsageError
from envspec.files import is_file, write_all
from envspec.findings import FailOn, Report
from envspec.report import RENDERERS, View, render, view_of
from envspec.report.escape import no_commands, plain
from envspec.report.github import summary

__all__ = ["Output", "Sink", "parse_output", "write_atomically", "write_together"]


@dataclass(frozen=True, kw_only=True)
class Output:
    """One ``--output FMT=FILE``."""

    format: str
    path: Path


def parse_output(text: str) -> Output:
    """Read ``FMT=FILE``.

    Raises:
        UsageError: it has no ``=``, no file, or an unknown format.
    """
    name, equals, path = text.partition("=")
    if not equals or not path or name not in RENDERERS:
        raise UsageError(f"--output {text!r}: expected FORMAT=FILE with a format of {', '.join(RENDERERS)}")
    return Output(format=name, path=Path(path))


@dataclass(frozen=True, kw_only=True)
class Sink:
    """The streams and environment of a run, so that a test can give its own."""

    stdout: TextIO
    stderr: TextIO
    environment: Mapping[str, str]

    @classmethod
    def of_process(cls) -> Sink:
        return cls(stdout=sys.stdout, stderr=sys.stderr, environment=os.environ)

    def view(self, *, verbose: bool = False, fail_on: FailOn = "breaks", anchor: str | None = None) -> View:
        """How standard output is seen."""
        return view_of(self.stdout, self.environment, verbose=verbose, fail_on=fail_on, anchor=anchor)

    def print(self, text: str) -> None:
        """Results, to standard output. What its encoding cannot carry is written as an escape.

        Raises:
            UsageError: it cannot be written, as on a full disk.
            BrokenPipeError: whoever read it has gone.
        """
        try:
            _write(self.stdout, text)
        except BrokenPipeError:
            raise
        except OSError as error:
            raise UsageError(f"cannot write standard output: {error.strerror or error}") from error

    def print_line(self, text: str) -> None:
        """A line with names from elsewhere in it, to standard output: it stays one line and is no workflow command.

        Raises:
            UsageError, BrokenPipeError: as for :meth:`print`.
        """
        self.print(no_commands(plain(text)) + "\n")

    def say(self, text: str) -> None:
        """A remark for the person at the terminal, to standard error."""
        self.remark(no_commands(plain(text)) + "\n")

    def remark(self, text: str) -> None:
        """Finished text for standard error. One that nobody can read is lost: the exit code still tells."""
        with suppress(OSError):
            _write(self.stderr, text)

    def report(self, report: Report, view: View, *, format: str, outputs: Sequence[Output], besides: Sequence[tuple[Path, str]] = ()) -> None:
        """Show a report: the chosen format on standard output, each ``--output`` in its file, and in GitHub Actions
        annotations on standard error (the runner reads both streams) and the step summary. ``besides`` are files, each with
        its text, that are written with the outputs or not at all.

        Raises:
            UsageError: a file or standard output cannot be written; of the files none was.
        """
        on_file = replace(view, colour=False, ascii=False, width=max(view.width, 80))
        write_together([*((output.path, render(output.format, report, on_file)) for output in outputs), *besides])
        self.print(render(format, report, view))
        if self.environment.get("GITHUB_ACTIONS") == "true":
            if format != "github":
                self.remark(render("github", report, on_file))
            path = self.environment.get("GITHUB_STEP_SUMMARY")
            if path:
                _append_summary(Path(path), report, on_file)


def _write(stream: TextIO, text: str) -> None:
    encoding = getattr(stream, "encoding", None) or "utf-8"
    stream.write(text.encode(encoding, "backslashreplace").decode(encoding))
    stream.flush()


def _append_summary(path: Path, report: Report, view: View) -> None:
    try:
        used = path.stat().st_size if is_file(path) else 0
        with path.open("a", encoding="utf-8") as file:
            file.write(summary(report, view, used=used))
    except OSError as error:
        raise UsageError(f"cannot write the step summary {path}: {error.strerror or error}") from error


def write_atomically(path: Path, text: str) -> None:
    """Write a whole UTF-8 file or none.

    Raises:
        UsageError: it cannot be written.
    """
    write_together([(path, text)])


def write_together(files: Sequence[tuple[Path, str]]) -> None:
    """Write whole UTF-8 files, or none of them.

    Raises:
        UsageError: one cannot be written.
    """
    try:
        write_all(files)
    except OSError as error:
        raise UsageError(f"cannot write {error.filename}: {error.strerror}") from error
