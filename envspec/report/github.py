"""GitHub Actions: annotations in the log, and a step summary.

The service keeps at most ten errors, ten warnings and ten notices of a step, so the last of each kind says how many
more there are. A step summary may have one MiB.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import PurePath

from envspec.findings import SEVERITIES, Finding, Report
from envspec.report.escape import annotation_data, annotation_property, plain
from envspec.report.interface import View, fold_hosts
from envspec.report.markdown import within

__all__ = ["ANNOTATIONS_PER_LEVEL", "SUMMARY_BYTES", "GitHub", "summary"]

ANNOTATIONS_PER_LEVEL = 10
SUMMARY_BYTES = 1024 * 1024
_MESSAGE_CHARACTERS = 4000
_LEVELS = ("error", "warning", "notice")
_LEVEL = {"breaks": "error", "results": "warning", "noise": "notice"}
"""The level of a finding that does not fail the run; one that does is an error."""


class GitHub:
    """``--format github``: workflow commands, one a line."""

    name = "github"

    def render(self, report: Report, view: View) -> str:
        return "".join(line + "\n" for line in _annotations(report, view))


def summary(report: Report, view: View, *, used: int = 0) -> str:
    """Markdown for the step summary file, which already holds ``used`` bytes."""
    return within(report, view, max(0, SUMMARY_BYTES - used))


def _annotations(report: Report, view: View) -> Iterator[str]:
    failed = [host for host in report.hosts if host.status == "failed"]
    errors = [
        _command("error", title="envspec: host not captured", message=f"{host.label} could not be captured: {host.reason or 'no reason given'}")
        for host in failed
    ]
    failing = report.failing(view.fail_on)
    counted = [("error" if finding in failing else _LEVEL[finding.severity], finding) for finding in report.findings if finding.counts]
    for level in _LEVELS:
        # Of one level the gravest first: what is cut at the limit is the least.
        lines = [_of(finding, level, view) for severity in SEVERITIES for its, finding in counted if (its, finding.severity) == (level, severity)]
        if level == "error":
            lines = errors + lines
        if len(lines) > ANNOTATIONS_PER_LEVEL:
            kept = ANNOTATIONS_PER_LEVEL - 1
            more = len(lines) - kept
            lines = [*lines[:kept], _command(level, title="envspec", message=f"and {more} more; they are in the step summary and the log")]
        yield from lines


def _of(finding: Finding, level: str, view: View) -> str:
    place = finding.location
    file = place.file if place else view.anchor
    hosts = f" (on {fold_hosts(finding.hosts)})" if finding.hosts else ""
    return _command(
        level,
        title=f"{finding.code} {finding.subject}",
        message=f"{plain(finding.what)}{plain(hosts)}\n{plain(finding.fix)}",
        file=_relative(file) if file else None,
        line=place.line if place else None,
        column=place.column if place else None,
    )


def _command(level: str, *, title: str, message: str, file: str | None = None, line: int | None = None, column: int | None = None) -> str:
    properties = {
        "file": file,
        "line": str(line) if file and line and line > 0 else None,
        "col": str(column) if file and line and column and column > 0 else None,
        "title": title,
    }
    written = ",".join(f"{key}={annotation_property(value)}" for key, value in properties.items() if value)
    if len(message) > _MESSAGE_CHARACTERS:
        message = message[: _MESSAGE_CHARACTERS - 1] + "…"
    return f"::{level} {written}::{annotation_data(message)}"


def _relative(file: str) -> str:
    return PurePath(file).as_posix()
