"""A report for the terminal: plain text, no library needed, nothing but ASCII of its own."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from eagle3_diag.report import tables
from eagle3_diag.report.escape import plain
from eagle3_diag.report.verdict import speed

_LABEL = 12
_SHOWN_SKIPPED = 5


def render(report: Mapping[str, Any], *, width: int = 100, colour: bool = False) -> str:
    """The whole report, wrapped to ``width`` columns (at least 60); ``colour`` adds ANSI bold, red and yellow."""
    width = max(60, width)
    length = report["serving"]["acceptance_length"]
    verdict = report["verdict"]
    blocks: list[str] = [labelled(tables.facts(report), width)]
    blocks.append(_table(tables.step_columns(report)))
    figures = [("Length", tables.length_line(report)), ("Vocabulary", tables.vocabulary_line(report))]
    if length is not None:
        figures.append(("Speed", speed(length)))
    blocks.append(labelled([*figures, ("Timing", tables.timing_line(report))], width))
    blocks.append(labelled([("Verdict", f"{verdict['headline']}."), ("", verdict["text"])], width, style="1" if colour else ""))
    warnings = [("Warning", text) for text in report["warnings"]]
    if warnings:
        blocks.append(labelled(warnings, width, style="1;31" if colour else ""))
    rest = [("Note", text) for text in report["notes"]]
    skipped = report["samples"]["skipped"]
    rest += [("Skipped", each["reason"]) for each in skipped["files"][:_SHOWN_SKIPPED]]
    if skipped["count"] > _SHOWN_SKIPPED:
        rest.append(("", f"... and {skipped['count'] - _SHOWN_SKIPPED:,} more (all named in the JSON report)"))
    if rest:
        blocks.append(labelled(rest, width))
    return "\n\n".join(blocks) + "\n"


def labelled(pairs: Iterable[tuple[str, str]], width: int, *, style: str = "") -> str:
    """``Label   text`` with the text wrapped and indented; the label in the style given."""
    out = []
    for label, text in pairs:
        body = textwrap.wrap(plain(text), width - _LABEL, break_on_hyphens=False) or [""]
        head = f"{label:<{_LABEL}}"
        if style and label:
            head = f"\x1b[{style}m{label}\x1b[0m" + head[len(label) :]
        out.append("\n".join([head + body[0], *(" " * _LABEL + line for line in body[1:])]).rstrip())
    return "\n".join(out)


def _table(columns: Sequence[tables.Column]) -> str:
    widths = [max(len(column.heading), *map(len, column.cells)) for column in columns]
    rows = [[column.heading for column in columns], *zip(*(column.cells for column in columns), strict=True)]
    lines = ["  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in rows]
    return "\n".join([lines[0], "  ".join("-" * width for width in widths), *lines[1:]])
