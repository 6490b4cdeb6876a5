"""Where a command's results go: standard output, files, and GitHub's step summary."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TextIO

from envspec.errors import UsageError
from envspec.files import write_whole
from envspec.findings import FailOn, Report
from envspec.report import RENDERERS, View, render, view_of
from envspec.report.escape import plain
from envspec.report.github import summary

__all__ = ["Output", "Sink", "parse_output", "write_atomically"]


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
        """Results, to standard output. What its encoding cannot carry is written as an escape."""
        encoding = getattr(self.stdout, "encoding", None) or "utf-8"
        self.stdout.write(text.encode(encoding, "backslashreplace").decode(encoding))
        self.stdout.flush()

    def say(self, text: str) -> None:
        """A remark for the person at the terminal, to standard error."""
        encoding = getattr(self.stderr, "encoding", None) or "utf-8"
        line = plain(text)
        line = f"\\x3a{line[1:]}" if line.lstrip().startswith("::") else line
        self.stderr.write(line.encode(encoding, "backslashreplace").decode(encoding) + "\n")
        self.stderr.flush()

    def report(self, report: Report, view: View, *, format: str, outputs: Sequence[Output]) -> None:
        """Show a report: the chosen format on standard output, each ``--output`` in its file, and in GitHub Actions
        annotations on standard error (the runner reads both streams) and the step summary.

        Raises:
            UsageError: a file cannot be written.
        """
        on_file = replace(view, colour=False, ascii=False, width=max(view.width, 80))
        for output in outputs:
            write_atomically(output.path, render(output.format, report, on_file))
        self.print(render(format, report, view))
        if self.environment.get("GITHUB_ACTIONS") == "true":
            if format != "github":
                self.stderr.write(render("github", report, on_file))
                self.stderr.flush()
            path = self.environment.get("GITHUB_STEP_SUMMARY")
            if path:
                _append_summary(Path(path), report, on_file)


def _append_summary(path: Path, report: Report, view: View) -> None:
    try:
        used = path.stat().st_size if path.exists() else 0
        with path.open("a", encoding="utf-8") as file:
            file.write(summary(report, view, used=used))
    except OSError as error:
        raise UsageError(f"cannot write the step summary {path}: {error.strerror or error}") from error


def write_atomically(path: Path, text: str) -> None:
    """Write a whole UTF-8 file or none.

    Raises:
        UsageError: it cannot be written.
    """
    try:
        write_whole(path, text)
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror or error}") from error
