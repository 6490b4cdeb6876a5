"""A replay of captured requests as JSON data (schema ``eagle3-diag/replay/1``) and as text."""

from __future__ import annotations

import json
from collections.abc import Mapping
from importlib import resources
from typing import Any

from eagle3_diag.replay import TENSORS, Departure, Replay
from eagle3_diag.report.text import labelled

SCHEMA = "eagle3-diag/replay/1"
_SHOWN = 6


def schema() -> dict[str, Any]:
    """The JSON Schema (2020-12) that every result fulfils."""
    loaded: dict[str, Any] = json.loads((resources.files("eagle3_diag.report") / "schema" / "replay.json").read_text("utf-8"))
    return loaded


def document(found: Replay, *, captured: str, drafter: str, target: str, server: Mapping[str, Any]) -> dict[str, Any]:
    """The whole result. ``verdict`` is ``quality`` where nothing departs (what the server drafts is what the weights draft), else ``wiring``.

    Explanations that nothing in these captures tells apart have equal shares of the probability, or ``unknown`` has all of it.
    """
    named = found.explanations
    return {
        "schema": SCHEMA,
        "verdict": "wiring" if found.departures else "quality",
        "headline": headline(found),
        "captured": captured,
        "drafter": drafter,
        "target": target,
        "server": dict(server),
        "requests": found.requests,
        "drafts": found.calls,
        "first_departure": None if not found.departures else _departure(found.departures[0]),
        "departures": [_departure(each) for each in found.departures],
        "features": [] if found.features is None else [{"code": f.code, "text": f.text} for f in found.features.findings],
        "explanations": [
            {
                "id": each.id, "title": each.title, "probability": round(1 / len(named), 6), "indistinguishable": [o.id for o in named if o.id != each.id],
                "predicted": None, "mend": each.mend,
            }
            for each in named
        ]
        or ([{"id": "unknown", "title": "None of the known faults", "probability": 1.0, "indistinguishable": [], "predicted": None, "mend": ""}] if found.departures else []),
        "checked": [{"step": step, "tensor": tensor, "rows": rows} for step, tensor, rows in found.checked],
        "notes": list(found.notes),
    }  # fmt: skip


def _departure(each: Departure) -> dict[str, Any]:
    error = each.error if each.error is None or abs(each.error) != float("inf") else None
    return {"step": each.step, "tensor": each.tensor, "rows": each.of, "departing": each.wrong, "largest_error": error, "request": each.request, "first_row": each.row}


def headline(found: Replay) -> str:
    """The verdict in one sentence."""
    if not found.departures:
        return f"The server does what these weights do when wired as trained: no departure in {found.calls:,} drafts of {found.requests} requests"
    first = found.departures[0]
    where = f"draft step {first.step}, {TENSORS[first.tensor]}"
    if not found.explanations:
        return f"The server departs from right wiring first at {where}; no known fault explains it"
    names = " or ".join(each.id for each in found.explanations[:4]) + (" or others" if len(found.explanations) > 4 else "")
    return f"The server is wired otherwise than trained: {names} (first departure: {where})"


def _sentence(each: Mapping[str, Any]) -> str:
    error = "" if each["largest_error"] is None else f", by up to {each['largest_error']:.2g} of its size"
    count = f"{each['departing']:,} of {each['rows']:,} rows"
    return f"Step {each['step']}, {TENSORS[each['tensor']]}: {count} depart{error}; first in {each['request']}, row {each['first_row']}."


def render(report: Mapping[str, Any], *, width: int = 100, colour: bool = False) -> str:
    """The result for the terminal."""
    server = report["server"]
    said = f"{server.get('engine', 'unknown')} {server.get('version', '')}".strip()
    if server.get("layer_inputs"):
        said += f", set to capture the inputs of layers {', '.join(map(str, server['layer_inputs']))}"
    blocks = [
        labelled([("Captured", f"{report['captured']}: {report['requests']} requests, {report['drafts']:,} drafts"), ("Server", said)], width),
        labelled([("Drafter", report["drafter"]), ("Target", report["target"])], width),
        labelled([("Verdict", f"{report['headline']}.")], width, style="1" if colour else ""),
    ]
    lines = [("Departures" if i == 0 else "", _sentence(each)) for i, each in enumerate(report["departures"][:_SHOWN])]
    if len(report["departures"]) > _SHOWN:
        lines.append(("", f"... and {len(report['departures']) - _SHOWN} more (all in the JSON report)."))
    lines += [("Features" if i == 0 else "", f"{each['text'][0].upper()}{each['text'][1:]}.") for i, each in enumerate(report["features"])]
    for i, each in enumerate(report["explanations"]):
        if each["id"] != "unknown":
            lines.append(("Fault" if i == 0 else "", f"{each['id']}: {each['title']}. {each['mend']}"))
    if lines:
        blocks.append(labelled(lines, width))
    if report["notes"]:
        blocks.append(labelled([("Note", f"{text[0].upper()}{text[1:]}.") for text in report["notes"]], width))
    return "\n\n".join(blocks) + "\n"
