"""A diagnosis for the terminal, readable at 80 columns: nothing but ASCII of its own."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from typing import Any

from eagle3_diag.report.escape import plain
from eagle3_diag.report.tables import number
from eagle3_diag.report.text import labelled

#: Explanations less probable than this are left to the JSON report, beyond the first few.
_LEAST, _FEW, _MOST = 0.005, 3, 10


def shown(report: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The explanations worth showing: the likely ones, right wiring always."""
    ranked: list[Mapping[str, Any]] = report["explanations"]
    chosen = [e for i, e in enumerate(ranked) if i < _FEW or e["probability"] >= _LEAST][:_MOST]
    return chosen + [e for e in ranked if e["id"] == "as-trained" and e not in chosen]


def probability(value: float) -> str:
    """A whole per cent that never says 0 or 100 of what is not certain."""
    return "<1%" if value < 0.01 else ">99%" if value > 0.99 else f"{value:.0%}"


def profile(shares: list[float] | None, most: int = 6) -> str:
    """``0.71 0.22 0.05``, cut to the first steps."""
    if shares is None:
        return "-"
    return " ".join(f"{share:.2f}" for share in shares[:most]) + (" ..." if len(shares) > most else "")


def render(report: Mapping[str, Any], *, width: int = 100, colour: bool = False) -> str:
    """The whole diagnosis, wrapped to ``width`` columns (at least 60)."""
    width = max(60, width)
    served, right = report["served"], report["right"]
    facts = [
        ("Drafter", report["drafter"]["path"]),
        ("Target", report["target"]["path"]),
        ("Samples", f"{report['samples']['count']:,} ({report['samples']['tokens']:,} tokens)"),
        ("Served", f"{served['source']}: length {number(served['acceptance_length'])}, {profile(served['rates'])}"),
        ("Right", f"length {number(right['acceptance_length'])}, {profile(right['accepted_per_position'])}"),
    ]
    blocks = [labelled(facts, width), labelled([("Verdict", f"{report['headline']}.")], width, style="1" if colour else "")]
    blocks.append(labelled([("", sentence) for sentence in report["text"]], width))
    if report["tell"]:
        blocks.append(labelled([("To be sure", report["tell"])], width))
    if report["rows"] is not None:
        blocks.append(labelled([("Rows", _rows(report["rows"]))], width))
    blocks.append(_table(report, width))
    rest = [("Warning", text) for text in report["warnings"]]
    if report["untestable"]:
        first = report["untestable"][0]
        ids = ", ".join(each["id"] for each in report["untestable"])
        rest.append(("Not tested", f"{ids}: {first['reason']}. To record them: {first['command']}"))
    rest += [("Note", text) for text in report["notes"]]
    if rest:
        blocks.append(labelled(rest, width))
    return "\n\n".join(blocks) + "\n"


def _rows(rows: Mapping[str, Any]) -> str:
    best = sorted(rows["agreeing"].items(), key=lambda each: (-each[1], each[0]))[:4]
    return f"{rows['asked']:,} asked, {rows['answered']:,} answered; agreeing: " + ", ".join(f"{name} {count:,}" for name, count in best)


def _table(report: Mapping[str, Any], width: int) -> str:
    lines = ["chance  length  explanation", "------  ------  -----------"]
    for each in shown(report):
        length = None if each["predicted"] is None else each["predicted"]["acceptance_length"]
        body = textwrap.wrap(plain(f"{each['id']}: {each['title']}"), width - 16, break_on_hyphens=False)
        if each["indistinguishable"]:
            same = each["indistinguishable"]
            more = f" and {len(same) - 5} more" if len(same) > 5 else ""
            body += textwrap.wrap(plain("looks like " + ", ".join(same[:5]) + more), width - 16, break_on_hyphens=False)
        lines.append(f"{probability(each['probability']):>6}  {number(length):>6}  {body[0]}")
        lines += [" " * 16 + line for line in body[1:]]
    return "\n".join(lines)
