"""A diagnosis as one page, of the same look and policy as a report's."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from eagle3_diag.report import plots
from eagle3_diag.report.diagnosis.text import probability, profile, shown
from eagle3_diag.report.escape import html as safe
from eagle3_diag.report.html import breakdown_plots, bullets, definitions, figure, page, safe_json
from eagle3_diag.report.tables import number, percent

_CLASS = {"quality": "good", "wiring": "weak", "training-convention": "weak", "insufficient": ""}


def render(report: Mapping[str, Any]) -> str:
    """The page. Every text that came from outside is escaped, and the page's policy forbids scripts and loading."""
    parts = [
        f'<header><h1>{safe(report["headline"])}</h1><p class="faint">A served acceptance against what these weights would give</p></header>',
        f'<div class="verdict {_CLASS[report["verdict"]]}">' + "".join(f"<p>{safe(sentence)}</p>" for sentence in report["text"]) + "</div>",
        *(f'<div class="warning"><b>Warning.</b> {safe(text)}</div>' for text in report["warnings"]),
        _cards(report),
        f'<div class="plots">{"".join(_plots(report))}</div>',
        f"<h2>To be sure</h2><p>{safe(report['tell'])}</p>" if report["tell"] else "",
        "<h2>Explanations</h2>",
        _explanations(report),
        "<h2>What was compared</h2>",
        definitions(_facts(report)),
        _extras(report),
    ]
    return page(report["headline"], "\n".join(parts))


def _cards(report: Mapping[str, Any]) -> str:
    served, right, speed = report["served"], report["right"], report["speed"]
    cards = [
        (number(served["acceptance_length"]), f"tokens per verification as served, at K = {served['steps']}"),
        (number(right["acceptance_length"]), "as these weights give when wired as trained. 95 % interval {:.2f} to {:.2f}".format(*right["ci95"])),
    ]
    if speed is not None:
        cards.append((number(speed["break_even_length"]), f"break-even acceptance length; {speed['served_tps']:g} tok/s as served"))
        cards.append((number(speed["right_tps"], 1), f"tok/s to expect when wired right ({speed['baseline_tps']:g} without speculation)"))
    return '<div class="cards">' + "".join(f'<div class="card"><b>{safe(value)}</b><span class="faint">{safe(what)}</span></div>' for value, what in cards) + "</div>"


def _plots(report: Mapping[str, Any]) -> Iterable[str]:
    served, right = report["served"], report["right"]
    best = next((e for e in report["explanations"] if e["predicted"] is not None), None)
    series = [plots.Series(name="wired as trained", values=right["accepted_per_position"], colour="c1")]
    if served["rates"] is not None:
        series.append(plots.Series(name="served", values=served["rates"], colour="c2"))
    if best is not None and best["id"] != "as-trained":
        series.append(plots.Series(name=best["id"], values=best["predicted"]["accepted_per_position"], colour="c3"))
    yield figure(
        "Accepted per position",
        plots.lines(series, y_label="verification steps", x_label="draft step", description="Accepted per position: right, served, best explanation"),
        f"Share of verification steps in which this draft step and all before it are accepted.{_keys(series)}",
    )
    conditional = [plots.Series(name="wired as trained", values=right["conditional_rates"], colour="c1")]
    if served["rates"] is not None:
        conditional.append(plots.Series(name="served", values=_conditional(served["rates"]), colour="c2"))
    yield figure(
        "Accuracy by depth",
        plots.lines(conditional, y_label="drafts", x_label="draft step", description="Chance of each draft step given that all before it were accepted"),
        f"Chance that a draft is accepted, given that all before it were.{_keys(conditional)}",
    )
    yield from breakdown_plots(report["breakdown"])


def _keys(series: Iterable[plots.Series]) -> str:
    return "".join(f' <span class="legend"><span class="key {s.colour}"></span>{safe(s.name)}</span>' for s in series)


def _conditional(rates: list[float]) -> list[float | None]:
    before, out = 1.0, []
    for rate in rates:
        out.append(min(1.0, rate / before) if before > 0 else None)
        before = rate
    return out


def _explanations(report: Mapping[str, Any]) -> str:
    rows = []
    for each in shown(report):
        predicted = each["predicted"]
        length = None if predicted is None else predicted["acceptance_length"]
        shares = None if predicted is None else predicted["accepted_per_position"]
        rows.append(f"<tr><td>{safe(each['id'])}</td><td>{probability(each['probability']).replace('<', '&lt;').replace('>', '&gt;')}</td><td>{number(length)}</td><td>{safe(profile(shares))}</td></tr>")
    head = "".join(f'<th scope="col">{name}</th>' for name in ("explanation", "chance", "length", "accepted per position"))
    details = []
    for each in shown(report):
        text = [("What", each["title"]), ("Change", each["mend"]), ("Check", each["check"])]
        if each["indistinguishable"]:
            text.append(("Looks like", ", ".join(each["indistinguishable"])))
        if each["incidents"]:
            text.append(("Seen in", ", ".join(each["incidents"])))
        details.append(f"<details><summary>{safe(each['id'])}</summary>{definitions(text)}</details>")
    return f'<div class="wide"><table><thead><tr>{head}</tr></thead><tbody>{"".join(rows)}</tbody></table></div>{"".join(details)}'


def _facts(report: Mapping[str, Any]) -> list[tuple[str, str]]:
    served = report["served"]
    drafts = "drafts not counted" if served["drafts"] is None else f"{served['drafts']:,} drafts"
    facts = [
        ("Drafter", report["drafter"]["path"]),
        ("Target", report["target"]["path"]),
        ("Samples", f"{report['samples']['count']:,} ({report['samples']['tokens']:,} tokens)"),
        ("Served", f"{served['source']}, {drafts}" + (", the samples' own requests" if served["same_requests"] else "")),
        ("Draft vocabulary", f"covers {percent(report['right']['coverage'])} of the target's choices"),
    ]
    if report["rows"] is not None:
        facts.append(("Rows", f"{report['rows']['answered']:,} of {report['rows']['asked']:,} answered"))
    return facts


def _extras(report: Mapping[str, Any]) -> str:
    parts = []
    if report["untestable"]:
        parts.append("<h2>Not testable from these samples</h2>" + bullets([f"{e['id']}: {e['reason']}. {e['command']}" for e in report["untestable"]]))
    if report["notes"]:
        parts.append("<h2>Notes</h2>" + bullets(report["notes"]))
    for title, data in (
        ("Wiring as trained", report["wiring"]),
        ("Checkpoints", {"drafter": report["drafter"], "target": report["target"]}),
        ("Environment and timing", {**report["environment"], **report["timing"]}),
    ):
        parts.append(f"<details><summary>{title}</summary><pre>{safe_json(data)}</pre></details>")
    return "\n".join(parts)
