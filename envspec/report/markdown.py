"""GitHub-flavoured Markdown, for a pull request comment or a step summary."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import groupby

from envspec.findings import Cell, Finding, Group, Report, Row
from envspec.report.escape import code, fence, no_commands, plain, prose, sentence
from envspec.report.interface import CONSEQUENCE, View, after_subject, fold_hosts, is_command, outcome, plural, title

__all__ = ["Markdown", "within"]

_TRUNCATED = "\n_The rest was left out: it would not fit. Ask for `--output json=FILE` to have it all._\n"


_LEGEND = (("same", "`=` as the reference"), ("absent", "`–` not there"), ("unknown", "`?` could not be read"), ("unlisted", "`·` not in the lock"))


class Markdown:
    """``--format markdown``: the outcome, who was compared, what differs, and each finding with its mend."""

    name = "markdown"

    def render(self, report: Report, view: View) -> str:
        return "\n".join(_lines(report, view))


def within(report: Report, view: View, limit: int) -> str:
    """The same document in at most ``limit`` UTF-8 bytes: whole blocks, worst findings first, then a note."""
    text = ""
    size = 0
    blocks = _lines(report, view)
    sizes = [len(block.encode()) + 1 for block in blocks]
    if sum(sizes) <= limit:
        return "\n".join(blocks)
    for block, length in zip(blocks, sizes, strict=True):
        if size + length + len(_TRUNCATED) > limit:
            break
        text += block + "\n"
        size += length
    return text + _TRUNCATED if len(_TRUNCATED) <= limit else ""


def _lines(report: Report, view: View) -> list[str]:
    # A fenced mend keeps its text as it is, and the document may be printed into the log of a workflow.
    return [no_commands(block) for block in _blocks(report, view)]


def _blocks(report: Report, view: View) -> Iterator[str]:
    """Pieces that are whole on their own: no element is opened in one and closed in another."""
    yield f"## envspec {prose(report.command)}\n\n**{outcome(report)}**\n"
    if report.reference:
        yield f"Compared with: {prose(report.reference)}\n"
    if report.hosts:
        yield from _hosts(report)
    rows = [row for row in report.rows if view.verbose or not (row.declared or row.ignored)]
    if rows:
        yield from _table(rows, report.groups)
    yield from _findings(report, view)
    yield _footer(report)


def _hosts(report: Report) -> Iterator[str]:
    yield "| host | role | group | environment |\n|---|---|---|---|"
    for host in report.hosts:
        status = {"ok": "", "partial": "read in part", "failed": "**not captured**"}[host.status]
        told = ": ".join(part for part in (status, prose(host.reason or "") if host.status != "ok" else "") if part)
        about = "; ".join(part for part in (prose(host.summary or ""), told) if part)
        yield f"| {code(host.label)} | {prose(host.role or '')} | {prose(host.group or '')} | {about} |"
    yield ""


def _table(rows: list[Row], groups: tuple[Group, ...]) -> Iterator[str]:
    heads = [f"{prose(group.name)}{' (reference)' if group.reference else ''}" for group in groups]
    yield f"### What differs\n\n| | {' | '.join(heads)} |\n|---|{'---|' * len(heads)}"
    referenced = any(group.reference for group in groups)
    for row in rows:
        yield f"| {code(row.key)} | {' | '.join(_cell(cell, group.reference or not referenced) for cell, group in zip(row.cells, groups, strict=True))} |"
    shown = {cell.state for row in rows for cell, group in zip(row.cells, groups, strict=True) if cell.state != "same" or (referenced and not group.reference)}
    legend = [words for state, words in _LEGEND if state in shown]
    yield f"\n{' · '.join(legend)}\n" if legend else ""


def _cell(cell: Cell, told: bool) -> str:
    if cell.state == "absent":
        return "–"
    if cell.state == "unknown":
        return "?"
    if cell.state == "unlisted":
        return "·"
    return code(cell.text) if cell.text and (told or cell.state == "different") else "="


def _findings(report: Report, view: View) -> Iterator[str]:
    counting = [finding for finding in report.findings if finding.counts]
    for severity, group in groupby(counting, key=lambda finding: finding.severity):
        members = list(group)
        yield f"### {CONSEQUENCE[severity]} ({len(members)})\n"
        if severity == "noise" and not view.verbose:
            for finding in members:
                yield f"- {_head(finding)}{_hosts_of(finding)}"
            yield ""
        else:
            for finding in members:
                yield _finding(finding)
    accepted = [finding for finding in report.findings if not finding.counts]
    if accepted:
        yield f"### Declared or ignored ({len(accepted)})\n"
        if view.verbose:
            for finding in accepted:
                yield f"- {_head(finding)} _{'declared' if finding.declared else 'ignored'}_"
        else:
            yield "Ask for `--verbose` to see them."
        yield ""


def _head(finding: Finding) -> str:
    rest = after_subject(finding)
    what = sentence(rest) if rest is not None else f": {sentence(finding.what)}"
    return f"**{finding.code}** {code(finding.subject)}{what}"


def _hosts_of(finding: Finding) -> str:
    return f" (on {prose(fold_hosts(finding.hosts))})" if finding.hosts else ""


def _finding(finding: Finding) -> str:
    place = f"\n\nAt {code(str(finding.location))}." if finding.location else ""
    fix = plain(finding.fix)
    mend = fence(fix, "sh") if is_command(fix) else sentence(fix)
    return (
        f"{_head(finding)}{_hosts_of(finding)}{place}\n\n"
        f"<details><summary>{prose(title(finding))}: why, and the mend</summary>\n\n{sentence(finding.why)}\n\n{mend}\n\n</details>\n"
    )


def _footer(report: Report) -> str:
    return "---\n" + " · ".join(footer(report)) + "\n"


def footer(report: Report) -> Iterable[str]:
    """What was looked at and what came of it, as short phrases."""
    counts = report.counts
    if counts.packages:
        yield plural(counts.packages, "package")
        yield f"{counts.matched:,} matched"
        yield f"{counts.differed:,} differed"
        if counts.unread:
            yield f"{counts.unread:,} could not be read"
    yield plural(len(report.hosts), "host")
    failed = sum(host.status == "failed" for host in report.hosts)
    if failed:
        yield f"{failed:,} not captured"
    if counts.declared:
        yield f"{counts.declared:,} declared"
    if counts.ignored:
        yield f"{counts.ignored:,} ignored"
