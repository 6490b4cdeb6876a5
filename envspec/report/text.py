"""Text for a person at a terminal."""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence, Set
from itertools import groupby

from rich import box
from rich.cells import cell_len
from rich.console import Console, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text as Styled

from envspec.findings import Cell, Finding, Group, HostStatus, Report, Row, Severity
from envspec.report.escape import no_commands, plain
from envspec.report.interface import CONSEQUENCE, View, after_subject, fold_hosts, is_command, outcome, title
from envspec.report.markdown import footer

__all__ = ["Text", "console_for"]

_STYLE: dict[Severity, str] = {"breaks": "bold red", "results": "yellow", "noise": "dim"}
_KEY_COLUMNS = 28
_GAP = 3
_CORNER = "differs"
_TOLD = 5
_NAMED = 60


class Text:
    """``--format text``: hosts by group, a table of what differs, the findings, a footer with the counts."""

    name = "text"

    def render(self, report: Report, view: View) -> str:
        buffer = io.StringIO()
        console = console_for(buffer, view)
        for part in _parts(report, view):
            # What does not wrap is a command to copy: it goes over the edge rather than being broken.
            console.print(part, soft_wrap=isinstance(part, Styled) and part.no_wrap is True)
        # A line that wrapping happened to begin with "::" is no workflow command of ours.
        return no_commands("\n".join(line.rstrip() for line in buffer.getvalue().splitlines()) + "\n")


def console_for(buffer: io.StringIO, view: View) -> Console:
    """A console that takes nothing from the environment: the view says it all, and markup is never read from text."""
    return Console(
        file=buffer,
        width=view.width,
        force_terminal=view.colour,
        no_color=not view.colour,
        color_system="standard" if view.colour else None,
        markup=False,
        emoji=False,
        highlight=False,
        legacy_windows=False,
        safe_box=True,
        _environ={},
    )


def _parts(report: Report, view: View) -> Iterator[RenderableType]:
    yield Styled.assemble((f"envspec {plain(report.command)}", "bold"), f"  compared with {plain(report.reference)}" if report.reference else "")
    yield from _hosts(report, view)
    rows = [row for row in report.rows if view.verbose or not (row.declared or row.ignored)]
    beyond = [] if view.verbose else [row for row in rows if _beyond(row, report.groups)]
    if len(beyond) > _TOLD:  # hundreds of lines that all say "not in the lock" hide the few that matter
        rows = [row for row in rows if row not in beyond]
    if rows:
        yield from _tables(rows, report.groups, view)
    yield from _findings(report, view, {row.key for row in rows}, {row.key for row in beyond if row not in rows})
    for note in report.notes:
        yield Styled(f"note: {plain(note)}")
    yield Styled("")
    yield Styled(", ".join(footer(report)) + ".")
    worst = next((finding.severity for finding in report.findings if finding.counts), None)
    failed = any(host.status == "failed" for host in report.hosts)
    yield Styled(outcome(report), style="bold red" if failed else _STYLE[worst] if worst else "bold green")


def _hosts(report: Report, view: View) -> Iterator[RenderableType]:
    by_group: dict[tuple[str | None, str | None, str | None], list[HostStatus]] = {}
    for host in report.hosts:
        if host.status != "failed":
            by_group.setdefault((host.group, host.role, None if host.group else host.summary), []).append(host)
    if report.hosts:
        yield Styled("")
    for (group, role, _), members in by_group.items():
        line = Styled()
        if group:
            line.append(f"{plain(group)}  ", style="bold")
        line.append(plain(fold_hosts(host.label for host in members)))
        if role and role not in (host.label for host in members):
            line.append(f"  {plain(role)}", style="cyan")
        if len(members) > 1:
            line.append(f"  ({len(members)} hosts)")
        summary = Styled(plain(members[0].summary or ""), style="dim")
        if summary.cell_len and line.cell_len + summary.cell_len + 4 <= view.width:
            yield _indented(line.append("  ").append_text(summary), 2)
        else:
            yield _indented(line, 2)
            if summary.cell_len:
                yield _indented(summary, 6)
        for host in members:
            if host.status == "partial":
                yield _indented(Styled(f"{plain(host.label)} was read in part: {plain(host.reason or 'no reason given')}", style="yellow"), 6)
    for host in report.hosts:
        if host.status == "failed":
            yield _indented(Styled(f"{plain(host.label)} could not be captured: {plain(host.reason or 'no reason given')}", style="bold red"), 2)


def _tables(rows: Sequence[Row], groups: Sequence[Group], view: View) -> Iterator[RenderableType]:
    """Rows are what differs, columns are groups; as many columns a table as the width allows, the reference in each."""
    first = [number for number, group in enumerate(groups) if group.reference]
    widths = [
        max(cell_len(text.plain) for text in (_head(group), *(_cell(row.cells[n], _told(group, groups)) for row in rows)))
        for n, group in enumerate(groups)
    ]
    room = (
        view.width - min(_KEY_COLUMNS, max(len(_CORNER), *(cell_len(_key(row, view).plain) for row in rows))) - sum(widths[n] + _GAP for n in first)
    )
    parts: list[list[int]] = [[]]
    used = 0
    for number in range(len(groups)):
        if number in first:
            continue
        width = widths[number] + _GAP
        if parts[-1] and used + width > room:
            parts.append([])
            used = 0
        parts[-1].append(number)
        used += width
    for part in parts:
        yield Styled("")
        yield _table(rows, groups, [*first, *part], view)
    states = {cell.state for row in rows for cell, group in zip(row.cells, groups, strict=True) if cell.state != "same" or not _told(group, groups)}
    legend = [words for state, words in (("same", "= as the reference"), ("absent", "- not there"), ("unknown", "? could not be read"),
                                         ("unlisted", ". not in the lock")) if state in states]  # fmt: skip
    if legend:
        yield Styled("  " + "   ".join(legend), style="dim")


def _beyond(row: Row, groups: Sequence[Group]) -> bool:
    """Whether all that a row says is that a package is not in the lock."""
    locked = [cell for cell, group in zip(row.cells, groups, strict=True) if group.kind == "lock"]
    return row.kind == "package" and row.severity == "noise" and bool(locked) and all(cell.state == "unlisted" for cell in locked)


def _table(rows: Sequence[Row], groups: Sequence[Group], columns: Sequence[int], view: View) -> Table:
    table = Table(box=box.ASCII if view.ascii else box.SIMPLE_HEAD, pad_edge=False, show_edge=False, header_style="bold")
    table.add_column(_CORNER, overflow="fold", max_width=_KEY_COLUMNS)
    for number in columns:
        table.add_column(_head(groups[number]), overflow="fold")
    for row in rows:
        table.add_row(_key(row, view), *(_cell(row.cells[number], _told(groups[number], groups)) for number in columns))
    return table


def _head(group: Group) -> Styled:
    name = plain(group.name)
    if group.kind == "hosts" and len(group.hosts) == 1 and group.hosts[0] != group.name:
        name += f" {plain(group.hosts[0])}"
    elif group.kind == "hosts" and len(group.hosts) > 1:
        name += f" ({len(group.hosts)} hosts)"
    return Styled(name)


def _key(row: Row, view: View) -> Styled:
    key = Styled(plain(row.key), style=_STYLE[row.severity])
    if row.names and (view.verbose or len(row.names) > 1):
        key.append(f" ({', '.join(map(plain, row.names))})", style="dim")
    return key


def _told(group: Group, groups: Sequence[Group]) -> bool:
    """Whether a column tells its values: the reference does, and every column where there is none."""
    return group.reference or not any(each.reference for each in groups)


def _cell(cell: Cell, told: bool) -> Styled:
    if cell.state == "absent":
        return Styled("-")
    if cell.state == "unknown":
        return Styled("?")
    if cell.state == "unlisted":
        return Styled(".", style="dim")
    if cell.state == "same":
        return Styled(plain(cell.text)) if told and cell.text else Styled("=", style="dim")
    return Styled(plain(cell.text or "="))


def _findings(report: Report, view: View, keys: Set[str], beyond: Set[str]) -> Iterator[RenderableType]:
    """The findings by severity. ``keys`` are those of the table; findings about those in ``beyond`` are a list of names."""
    shown = [finding for finding in report.findings if finding.counts]
    for severity, group in groupby(shown, key=lambda finding: finding.severity):
        found = list(group)
        yield Styled("")
        yield Styled(f"{CONSEQUENCE[severity]} ({len(found)})", style=_STYLE[severity])
        for _, same in groupby(found, key=lambda finding: (finding.code, finding.why)):
            members = list(same)
            listed = [each for each in members if severity == "noise" and each.subject in beyond]
            members = [each for each in members if each not in listed]
            # What breaks is always told in full; a hundred packages that differ are in the table already.
            more = [each for each in members[_TOLD:] if each.subject in keys] if severity != "breaks" and not view.verbose else []
            more = more if len(more) > 1 else []
            if members:
                yield from _rule([each for each in members if each not in more], folded=severity == "noise" and not view.verbose)
            elif listed:
                yield _heading(listed[0])
            if more:
                yield _indented(Styled(f"and {len(more)} more, which are in the table above; --verbose tells each", style="dim"), 4)
            for hosts, group_of in groupby(sorted(listed, key=lambda each: each.hosts), key=lambda each: each.hosts):
                yield _names(list(group_of), hosts)
    if view.verbose:
        accepted = [finding for finding in report.findings if not finding.counts]
        if accepted:
            yield Styled("")
            yield Styled(f"Declared or ignored ({len(accepted)})", style="dim")
            for _, same in groupby(accepted, key=lambda finding: (finding.code, finding.why)):
                yield from _rule(list(same), folded=True)


def _rule(findings: Sequence[Finding], *, folded: bool) -> Iterator[RenderableType]:
    first = findings[0]
    yield _heading(first)
    if not folded:
        yield _indented(Styled(plain(first.why), style="dim"), 8)
    for finding in findings:
        where = f"{plain(str(finding.location))}  " if finding.location else ""
        rest = after_subject(finding)
        what = plain(rest) if rest is not None else f"  {plain(finding.what)}"
        line = Styled.assemble((where, "cyan"), (plain(finding.subject), "bold"), what)
        if finding.hosts:
            line.append(f"  (on {plain(fold_hosts(finding.hosts))})", style="cyan")
        yield _indented(line, 4)
        if not folded and finding.fix:
            # A mend is one line. A line feed in it came with a name; were it kept, its second half would be a line to paste.
            yield from _mend(plain(finding.fix))


def _heading(first: Finding) -> Padding:
    return _indented(Styled.assemble((plain(first.code), "bold"), f" {plain(title(first))}"), 2)


def _names(findings: Sequence[Finding], hosts: Sequence[str]) -> Padding:
    """Many subjects of one code on the same hosts, as a paragraph."""
    subjects = [plain(each.subject) for each in findings]
    more = f" and {len(subjects) - _NAMED} more, which --verbose tells" if len(subjects) > _NAMED else ""
    line = Styled.assemble((f"{len(subjects)} on {plain(fold_hosts(hosts))}: ", "cyan"), ", ".join(subjects[:_NAMED]), (more, "dim"))
    return _indented(line, 4)


def _mend(line: str) -> Iterator[RenderableType]:
    if is_command(line):
        yield Styled(f"        fix: {line}", style="green", no_wrap=True)
    else:
        yield _indented(Styled(f"fix: {line}", style="green"), 8)


def _indented(text: Styled, columns: int) -> Padding:
    return Padding(text, (0, 0, 0, columns))
