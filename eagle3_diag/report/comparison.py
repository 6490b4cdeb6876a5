"""A comparison of hidden states as JSON data (schema ``eagle3-diag/compare-hidden/1``) and as text."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from typing import Any

from eagle3_diag.hidden import RELATIONS, Comparison
from eagle3_diag.report.text import labelled

SCHEMA = "eagle3-diag/compare-hidden/1"
_MANY = 20


@dataclass(frozen=True, kw_only=True)
class Compared:
    """One pair of files and what was found."""

    a: str
    b: str
    comparison: Comparison


def schema() -> dict[str, Any]:
    """The JSON Schema (2020-12) that every result fulfils."""
    loaded: dict[str, Any] = json.loads((resources.files("eagle3_diag.report") / "schema" / "compare-hidden.json").read_text("utf-8"))
    return loaded


def document(a: str, b: str, pairs: Sequence[Compared], *, only_a: Sequence[str] = (), only_b: Sequence[str] = ()) -> dict[str, Any]:
    """The whole result; ``verdict`` is the worst of the pairs'."""
    worst = max((p.comparison.verdict for p in pairs), key=("identical", "rounding", "differs").index)
    return {
        "schema": SCHEMA,
        "a": a,
        "b": b,
        "verdict": worst,
        "findings": _together(pairs),
        "pairs": [_pair(p) for p in pairs],
        "unpaired": {"a": list(only_a), "b": list(only_b)},
    }


def _together(pairs: Sequence[Compared]) -> list[dict[str, Any]]:
    """Findings of all pairs, those of one kind as one, with the number of pairs that have it."""
    found: dict[tuple[Any, ...], dict[str, Any]] = {}
    for p in pairs:
        for finding in p.comparison.findings:
            entry = found.setdefault((finding.code, finding.states), {"code": finding.code, "text": finding.text, "states": list(finding.states), "pairs": []})
            entry["pairs"].append(p.b)
    return sorted(found.values(), key=lambda each: -len(each["pairs"]))


def _pair(p: Compared) -> dict[str, Any]:
    c = p.comparison
    matches = [
        {
            "b": m.b, "a": m.a, "relation": m.relation, "detail": dict(m.detail), "shift": m.shift,
            "median_error": _number(m.error), "largest_error": _number(m.worst), "first_token": m.first,
        }
        for m in c.matches
    ]  # fmt: skip
    findings = [{"code": f.code, "text": f.text, "states": list(f.states)} for f in c.findings]
    return {
        "a": p.a, "b": p.b, "tokens": c.tokens, "verdict": c.verdict, "precision": c.precision, "limit": c.limit, "states": matches, "findings": findings,
    }  # fmt: skip


def _number(x: float | None) -> float | None:
    """JSON has no infinity."""
    return None if x is None or x != x or abs(x) == float("inf") else x


def headline(report: Mapping[str, Any]) -> str:
    """The verdict in one sentence."""
    pairs = report["pairs"]
    tokens, states = sum(p["tokens"] for p in pairs), max(len(p["states"]) for p in pairs)
    what = f"{states} state{'s' if states != 1 else ''} of {tokens:,} tokens"
    if report["verdict"] == "identical":
        return f"Identical: {what} are equal to the bit."
    if report["verdict"] == "rounding":
        worst = max((s["largest_error"] or 0.0 for p in pairs for s in p["states"]), default=0.0)
        coarsest = min((p["precision"] for p in pairs), key=("bfloat16", "float16", "float32").index)
        rounded = {s["detail"]["to"] for p in pairs for s in p["states"] if s["relation"] == "rounded"}
        exactly = f"; one is the other rounded to {', '.join(sorted(rounded))}" if rounded else ""
        return f"The same up to {coarsest} rounding: {what}, a token is off by at most {worst:.2g} of its size{exactly}."
    kinds = len(report["findings"])
    return f"Different: {kinds} finding{'s' if kinds != 1 else ''} in {sum(p['verdict'] == 'differs' for p in pairs)} of {len(pairs)} pairs of dumps."


def render(report: Mapping[str, Any], *, width: int = 100, colour: bool = False) -> str:
    """The result for the terminal."""
    pairs = report["pairs"]
    shown = next((p for p in pairs if p["verdict"] == "differs"), pairs[0])
    facts = [("A", report["a"]), ("B", report["b"])]
    if len(pairs) > 1:
        facts.append(("Pairs", f"{len(pairs):,} of the same text; the table shows {shown['b']}"))
    facts.append(("Precision", f"{shown['precision']}: a token that is off by more than {shown['limit']:g} of its size counts as different"))
    blocks = [labelled(facts, width)]
    if shown["states"]:
        blocks.append(_table(shown["states"]))
    lines = [("Verdict", headline(report))]
    for finding in report["findings"][:_MANY]:
        among = f" ({len(finding['pairs'])} of {len(pairs)} pairs)" if len(pairs) > 1 else ""
        text = finding["text"]
        lines.append(("", f"{text[0].upper()}{text[1:]}{among}."))
    if len(report["findings"]) > _MANY:
        lines.append(("", f"... and {len(report['findings']) - _MANY} more (all in the JSON report)."))
    blocks.append(labelled(lines, width, style="1" if colour else ""))
    lonely = [(side, report["unpaired"][side]) for side in ("a", "b") if report["unpaired"][side]]
    if lonely:
        blocks.append(labelled([("Note", f"{len(names)} file{'s' if len(names) > 1 else ''} of {side.upper()} found no partner (first: {names[0]})") for side, names in lonely], width))
    return "\n\n".join(blocks) + "\n"


def _how(state: Mapping[str, Any]) -> str:
    detail = state["detail"]
    if state["relation"] in ("rounded", "quantised"):
        return f"{state['relation']} to {detail['to']}"
    if state["relation"] == "scaled":
        return f"multiplied by {detail['by']:g}"
    return RELATIONS[state["relation"]].split(":")[0]


def _table(states: Sequence[Mapping[str, Any]]) -> str:
    head = ("in B", "is A's", "how", "shift", "median error", "largest", "first token")
    rows = [head]
    for s in states:
        cells = (
            s["b"],
            s["a"] or "-",
            _how(s),
            f"{s['shift']:+d}" if s["shift"] else "-",
            "-" if s["median_error"] is None else f"{s['median_error']:.2g}",
            "-" if s["largest_error"] is None else f"{s['largest_error']:.2g}",
            "-" if s["first_token"] is None else str(s["first_token"]),
        )
        rows.append(cells)
    widths = [max(len(row[i]) for row in rows) for i in range(len(head))]
    lines = ["  ".join(cell.ljust(w) if i < 3 else cell.rjust(w) for i, (cell, w) in enumerate(zip(row, widths, strict=True))).rstrip() for row in rows]
    return "\n".join([lines[0], "  ".join("-" * w for w in widths), *lines[1:]])
