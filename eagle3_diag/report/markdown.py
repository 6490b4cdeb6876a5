"""A report as Markdown, for a pull request, an issue or a model card."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from eagle3_diag.report import tables
from eagle3_diag.report.escape import markdown as safe
from eagle3_diag.report.verdict import speed

_SHOWN = 20


def render(report: Mapping[str, Any]) -> str:
    """GitHub-flavoured Markdown; text that came from files cannot act as markup."""
    verdict, length = report["verdict"], report["serving"]["acceptance_length"]
    columns = tables.step_columns(report)
    rows = zip(*(column.cells for column in columns), strict=True)
    lines = [
        f"## EAGLE-3 acceptance: {safe(verdict['headline'])}",
        "",
        safe(verdict["text"]),
        "",
        "| " + " | ".join(safe(column.heading) for column in columns) + " |",
        "|" + " ---: |" * len(columns),
        *("| " + " | ".join(safe(cell) if cell != "-" else "–" for cell in row) + " |" for row in rows),
        "",
        f"- **Acceptance length:** {safe(tables.length_line(report))}",
        f"- **Vocabulary:** {safe(tables.vocabulary_line(report))}",
    ]
    if length is not None:
        lines.append(f"- **Speed:** {safe(speed(length))}")
    lines += [f"- **{label}:** {safe(text)}" for label, text in tables.facts(report)]
    lines += [f"- **Warning:** {safe(text)}" for text in report["warnings"]]
    lines += [f"- **Note:** {safe(text)}" for text in report["notes"]]
    skipped = report["samples"]["skipped"]
    if skipped["count"]:
        lines += ["", f"<details><summary>{skipped['count']:,} files skipped</summary>", ""]
        lines += [f"- {safe(each['reason'])}" for each in skipped["files"][:_SHOWN]]
        if skipped["count"] > _SHOWN:
            lines.append(f"- ... and {skipped['count'] - _SHOWN:,} more")
        lines += ["", "</details>"]
    return "\n".join(lines) + "\n"
