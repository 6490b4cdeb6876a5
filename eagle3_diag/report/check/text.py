"""A check for the terminal: one table of choices, then what differs and what mends it. ASCII of its own, 80 columns at least."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from eagle3_diag.report.escape import plain
from eagle3_diag.report.text import labelled

_Wiring = Mapping[str, Any]
TITLES = {"sglang": "SGLang", "vllm": "vLLM", "tensorrt-llm": "TensorRT-LLM"}


def _rope(wiring: _Wiring) -> str:
    rope = wiring["rope"]
    if rope is None:
        return "-"
    factor = rope["parameters"].get("factor")
    return f"{rope['type']} {rope['theta']:g}" + (f" x{factor:g}" if isinstance(factor, (int, float)) else "")


def _yes(name: str) -> Callable[[_Wiring], str]:
    return lambda wiring: "yes" if wiring[name] else "no"


def _word(name: str) -> Callable[[_Wiring], str]:
    return lambda wiring: str(wiring[name]).replace("-", " ")


def _inputs(wiring: _Wiring) -> str:
    inputs = wiring["aux_layer_inputs"]
    return "unknown" if inputs is None else ", ".join(map(str, inputs))


# Every choice of the table: what it is called, the wiring's fields, the words for it.
ROWS: tuple[tuple[str, str, Callable[[_Wiring], str]], ...] = (
    ("inputs of layers", "aux_layer_inputs", _inputs),
    ("fc", "fc", _word("fc")),
    ("norm before fc", "norm_before_fc", _yes("norm_before_fc")),
    ("norm per aux state", "fc_norm", _yes("fc_norm")),
    ("norm of the state", "hidden_norm", lambda w: {"own": "hidden_norm", "both": "twice"}.get(str(w["hidden_norm"]), str(w["hidden_norm"]))),
    ("residual taken", "residual", _word("residual")),
    ("attention bias", "attention_bias", lambda w: "as stored" if w["attention_bias"] else "left out"),
    ("q and k norms", "qk_norm", lambda w: "as stored" if w["qk_norm"] else "left out"),
    ("norm of layers 1...", "further_norm", lambda w: w["further_norm"].replace("_layernorm", " norm").replace("_", " ")),
    ("norm before lm_head", "output_norm", lambda w: "yes" if w["output_norm"] == "own" else "no"),
    ("state fed back", "feedback", _word("feedback")),
    ("RoPE", "rope", _rope),
    ("position of row 0", "position_offset", lambda w: str(w["position_offset"])),
    ("embedding", "embedding", lambda w: f"{w['embedding']}'s"),
    ("LM head", "head", lambda w: f"{w['head']}'s"),
    ("d2t", "vocabulary", _word("vocabulary")),
)
# Choices that most checkpoints do not have; shown only where one differs.
_RARE = ("attention_bias", "qk_norm", "further_norm")


def render(report: Mapping[str, Any], *, width: int = 100, colour: bool = False) -> str:
    """The whole answer, wrapped to ``width`` columns (at least 80)."""
    width = max(80, width)
    drafter, target, trained_by = report["drafter"], report["target"], report["trained_by"]
    layers = f"{target['num_layers']} layers"
    trainer = (trained_by["trainer"] or "unknown") + (f" {trained_by['version']}" if trained_by["version"] else "")
    blocks = [
        labelled(
            [
                ("Drafter", f"{drafter['path']} ({drafter['format']} format, fc takes {drafter['num_aux']} states)"),
                ("Target", f"{target['path']} ({target['architecture'] or target['model_type']}, {layers})"),
                ("Trained by", trainer),
                *(("Assumed" if i == 0 else "", text) for i, text in enumerate(trained_by["assumptions"])),
            ],
            width,
        ),
        _table(report, width, colour),
    ]
    verdicts = []
    for answer in report["engines"]:
        verdicts.append((name_of(answer), "wires it as trained." if answer["as_trained"] else _count(answer)))
    blocks.append(_list(verdicts, width, colour))
    for key, group in _grouped(report).items():
        blocks.append(_finding(key, group, width, colour))
    if report["changes"]:
        lines = [f"{c['before']} -> {c['after']}: {_change(c)}" for c in report["changes"]]
        blocks.append(labelled([("Changes" if i == 0 else "", line) for i, line in enumerate(lines)], width))
    notes = [("Note", text) for text in report["notes"]]
    said: dict[str, list[str]] = {}
    for answer in report["engines"]:
        for text in answer["notes"]:
            said.setdefault(text, []).append(name_of(answer))
    notes += [("Note", f"{', '.join(names)}: {text}") for text, names in said.items()]
    if notes:
        blocks.append(labelled(notes, width))
    return "\n\n".join(blocks) + "\n"


def name_of(answer: Mapping[str, Any]) -> str:
    return f"{TITLES[answer['engine']]} {answer['version']}" + (f" {answer['runner']}" if answer["runner"] else "")


def _count(answer: Mapping[str, Any]) -> str:
    errors = sum(f["severity"] == "error" for f in answer["findings"])
    if answer["wiring"] is None:
        return "does not start with this checkpoint."
    return f"wires it otherwise: {errors} finding" + ("s." if errors != 1 else ".")


def _table(report: Mapping[str, Any], width: int, colour: bool) -> str:
    """Blocks of as many engines as fit; what differs has an exclamation mark."""
    trained = report["trained"]
    marked = [{f["field"] for f in a["findings"] if f["severity"] == "error"} for a in report["engines"]]
    rare = {field for field in _RARE if any(field in each for each in marked)}
    rows = [row for row in ROWS if row[1] not in _RARE or row[1] in rare]
    columns: list[list[str]] = []
    for answer, marks in zip(report["engines"], marked, strict=True):
        wiring = answer["wiring"]
        if wiring is not None:  # an engine that does not start makes no choices; the lines below the table say so
            head = [TITLES[answer["engine"]], answer["version"] + (f" {answer['runner']}" if answer["runner"] else "")]
            columns.append([*head, *(show(wiring) + (" !" if field in marks else "") for _, field, show in rows)])
    fixed = [["choice", "", *(name for name, _, _ in rows)], ["as trained", "", *(show(trained) for _, _, show in rows)]]
    blocks: list[str] = []
    rest = columns
    while rest or not blocks:
        taken: list[list[str]] = []
        while rest and (not taken or _width([*fixed, *taken, rest[0]]) <= width):
            taken.append(rest[0])
            rest = rest[1:]
        blocks.append(_grid([*fixed, *taken], colour))
    return "\n\n".join(blocks)


def _width(columns: Sequence[Sequence[str]]) -> int:
    return sum(max(map(len, column)) for column in columns) + 2 * (len(columns) - 1)


def _grid(columns: Sequence[Sequence[str]], colour: bool) -> str:
    widths = [max(map(len, column)) for column in columns]
    lines = []
    for i, row in enumerate(zip(*columns, strict=True)):
        cells = [plain(cell).ljust(w) for cell, w in zip(row, widths, strict=True)]
        if colour:
            cells = [f"\x1b[1;31m{c}\x1b[0m" if raw.endswith(" !") else c for c, raw in zip(cells, row, strict=True)]
        lines.append("  ".join(cells).rstrip())
        if i == 1:
            lines.append("  ".join("-" * w for w in widths))
    return "\n".join(lines)


def _list(pairs: Sequence[tuple[str, str]], width: int, colour: bool) -> str:
    indent = max(len(name) for name, _ in pairs) + 2
    out = []
    for name, text in pairs:
        body = textwrap.wrap(text, width - indent)
        head = f"\x1b[1m{name}\x1b[0m" + " " * (indent - len(name)) if colour else name.ljust(indent)
        out.append("\n".join([head + body[0], *(" " * indent + line for line in body[1:])]))
    return "\n".join(out)


def _grouped(report: Mapping[str, Any]) -> dict[tuple[Any, ...], list[tuple[str, Mapping[str, Any]]]]:
    """Findings that say the same thing of several engines, together; errors first."""
    groups: dict[tuple[Any, ...], list[tuple[str, Mapping[str, Any]]]] = {}
    for severity in ("error", "warning"):
        for answer in report["engines"]:
            for finding in answer["findings"]:
                if finding["severity"] == severity:
                    key = (severity, finding["code"], finding["text"], finding["mend"])
                    groups.setdefault(key, []).append((name_of(answer), finding))
    return groups


def _finding(key: tuple[Any, ...], group: Sequence[tuple[str, Mapping[str, Any]]], width: int, colour: bool) -> str:
    severity, code = key[0], key[1]
    finding = group[0][1]
    names = ", ".join(name for name, _ in group)
    head = f"{'x' if severity == 'error' else 'i'} {code} ({names})"
    lines = textwrap.wrap(head, width, subsequent_indent="  ", break_on_hyphens=False)
    if colour:
        style = "1;31" if severity == "error" else "1"
        lines = [f"\x1b[{style}m{line}\x1b[0m" for line in lines]
    body = [("what", finding["text"]), ("effect", f"{finding['effect']}."), ("mend", finding["mend"]), ("read in", finding["source"])]
    for label, text in body:
        lines += textwrap.wrap(plain(text), width, initial_indent=f"  {label:<9}", subsequent_indent=" " * 11, break_on_hyphens=False, break_long_words=False)
    return "\n".join(lines)


def _change(change: Mapping[str, Any]) -> str:
    if change["field"] == "starts":
        return "starts" if change["new"] else "does not start any more"
    row = next((r for r in ROWS if r[1] == change["field"]), None)
    name = row[0] if row else change["field"]

    def word(value: Any) -> str:
        return row[2]({change["field"]: value}) if row else str(value)

    return f"{name}: {word(change['old'])} becomes {word(change['new'])}"
