"""The figures of a report arranged for reading: one table and a few labelled lines, shared by all forms."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from eagle3_diag.report.verdict import lengths_by_k

MODES = {
    "greedy": "greedy target",
    "sampled-argmax": "sampling target, argmax drafts",
    "sampled": "rejection sampling with the drafter's own distribution",
}


@dataclass(frozen=True, kw_only=True)
class Column:
    """A heading, what it means, and one cell per draft step."""

    heading: str
    meaning: str
    cells: tuple[str, ...]


def percent(share: float | None) -> str:
    """``68.4%``; a dash where it is unknown."""
    return "-" if share is None else f"{share:.1%}"


def number(value: float | None, digits: int = 2) -> str:
    return "-" if value is None else f"{value:,.{digits}f}"


def count(value: float) -> str:
    """A whole number, or an expected count with one digit."""
    return f"{int(value):,}" if float(value).is_integer() else f"{value:,.1f}"


def step_columns(report: Mapping[str, Any]) -> list[Column]:
    """One row per draft step: accuracies over all rows (unless only serving was asked for), then the serving figures."""
    columns = [Column(heading="step", meaning="draft step, 0 first", cells=tuple(str(k) for k in range(report["steps"])))]

    def add(heading: str, meaning: str, cells: Sequence[str]) -> None:
        columns.append(Column(heading=heading, meaning=meaning, cells=tuple(cells)))

    accuracy, serving = report["accuracy"], report["serving"]
    if accuracy is not None:
        add("rows", "draft rows that have a label at this step", [count(n) for n in accuracy["total"]])
        add("accuracy", "share of rows right at this step and all before", [percent(a) for a in accuracy["full"]])
        add("conditional", "share right at this step among rows right at all before", [percent(a) for a in accuracy["conditional"]])
        if accuracy["trainer"] is not None:
            meaning = accuracy["trainer"]["definition"] or "by that trainer's own definition"
            add(accuracy["trainer"]["name"], meaning, [percent(a) for a in accuracy["trainer"]["accuracy"]])
    sampled = serving["mode"] == "sampled"
    add("accepted", "expected acceptances" if sampled else "drafts a right server would accept", [count(n) for n in serving["accepted_per_position"]])
    add("at risk", "rows with this step" if sampled else "runs that reached this step with a known outcome", [count(n) for n in serving["at_risk"]])
    add("rate", "accepted, given that all steps before were", [percent(r) for r in serving["conditional_rates"]])
    add("survival", "chance that this step and all before are accepted", [percent(r) for r in serving["marginal_rates"]])
    add("length", "acceptance length if drafting stopped after this step", [number(x) for x in lengths_by_k(serving["marginal_rates"])])
    return columns


def facts(report: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Labelled lines about what was measured."""
    drafter, target, samples, options = report["drafter"], report["target"], report["samples"], report["options"]
    layers = f"{drafter['num_layers']} layer" + ("s" if drafter["num_layers"] != 1 else "")
    ids = "aux layers not recorded" if drafter["aux_layer_ids"] is None else f"aux layers {', '.join(map(str, drafter['aux_layer_ids']))}"
    skipped = samples["skipped"]["count"]
    serving = MODES[options["serving_mode"]]
    if options["serving_mode"] == "sampled":
        serving += f", temperature {options['temperature']:g}"
    return [
        ("Drafter", f"{drafter['path']} ({drafter['format']}, {layers}, width {drafter['hidden_size']}, {drafter['dtype']}, {ids})"),
        ("Target", f"{target['path']} ({target['architecture']}, width {target['hidden_size']}, vocabulary {target['vocab_size']:,})"),
        (
            "Samples",
            f"{samples['count']:,} ({samples['format']}): {samples['tokens']:,} tokens, {samples['rows']:,} draft rows"
            + (f"; {skipped:,} unusable files skipped" if skipped else ""),
        ),
        ("Run", f"K = {report['steps']}, {serving}, labels {report['labels']}, {options['device']} in {options['dtype']}"),
    ]


def length_line(report: Mapping[str, Any]) -> str:
    """The acceptance length with its interval and the other mean."""
    serving = report["serving"]
    if serving["acceptance_length"] is None:
        return "unknown: no draft could be judged"
    interval = "no interval from one sample" if serving["ci95"] is None else "95 % interval {:.2f} to {:.2f}".format(*serving["ci95"])
    unit = "rows" if serving["mode"] == "sampled" else "verification steps"
    cut = [f"{serving['censored']:,} runs censored"] if serving["censored"] else []
    cut += [f"{serving['ended']:,} ended with their response"] if serving["ended"] else []
    means = f"{serving['acceptance_length']:.2f} tokens per verification step, bonus included ({interval}); mean over requests {number(serving['per_request'])}"
    return f"{means}; {serving['drafts']:,} {unit}" + "".join(f", {each}" for each in cut)


def vocabulary_line(report: Mapping[str, Any]) -> str:
    vocabulary = report["vocabulary"]
    if vocabulary["draft"] == vocabulary["target"]:
        return "the drafter has the target's whole vocabulary"
    line = f"{vocabulary['draft']:,} of {vocabulary['target']:,} tokens, which cover {percent(vocabulary['coverage'])} of the target's choices here"
    return line if vocabulary["ceiling"] is None else f"{line}; a perfect drafter with it would reach {vocabulary['ceiling']:.2f}"


def timing_line(report: Mapping[str, Any]) -> str:
    timing = report["timing"]
    return (
        f"load {timing['load_s']:.1f} s, evaluate {timing['evaluate_s']:.1f} s ({timing['rows_per_second']:,.0f} rows/s), "
        f"peak memory {timing['peak_memory_bytes'] / 2**20:,.0f} MiB"
    )
