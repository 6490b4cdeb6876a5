"""A report as one HTML page: no script, no network, everything inline; light and dark; readable on a phone and a desk screen."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from eagle3_diag.breakdown import CLASS_MEANINGS
from eagle3_diag.report import plots, tables
from eagle3_diag.report.escape import html as safe
from eagle3_diag.report.verdict import speed

_SHOWN = 50
_SHOWN_SAMPLES = 200
# Nothing may be loaded or run, whatever a file name holds.
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"

_STYLE = """
:root { color-scheme: light dark; --paper: #ffffff; --raised: #f5f6f8; --ink: #1b1f24; --faint: #5b6470; --line: #d5d9df;
  --c1: #2266cc; --c2: #b4530a; --c3: #12805c; --band: #2266cc22; --bad: #b3261e; --good: #12805c; --warn: #8a5a00; }
@media (prefers-color-scheme: dark) { :root { --paper: #14171b; --raised: #1d2127; --ink: #e6e9ed; --faint: #9aa4b1; --line: #353b44;
  --c1: #6ea8ff; --c2: #f0a060; --c3: #5fcf9f; --band: #6ea8ff2e; --bad: #ff8a80; --good: #5fcf9f; --warn: #e6b450; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--paper); color: var(--ink); font: 16px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, sans-serif;
  -webkit-text-size-adjust: 100%; }
main { max-width: 1080px; margin: 0 auto; padding: 20px 16px 48px; overflow-wrap: anywhere; }
h1 { font-size: 1.35rem; line-height: 1.25; margin: 0 0 4px; } h2 { font-size: 1.05rem; margin: 28px 0 8px; }
p { margin: 6px 0; } .faint, figcaption { color: var(--faint); font-size: .88rem; }
.verdict { border-left: 4px solid var(--warn); background: var(--raised); padding: 12px 16px; border-radius: 0 8px 8px 0; margin: 14px 0; }
.verdict.good { border-color: var(--good); } .verdict.unusable, .verdict.weak { border-color: var(--bad); }
.verdict strong { font-size: 1.1rem; }
.warning { border: 1px solid var(--bad); border-radius: 8px; padding: 8px 12px; margin: 8px 0; overflow-wrap: anywhere; }
.cards { display: grid; grid-template-columns: repeat(auto-fit, minmax(150px, 1fr)); gap: 10px; margin: 14px 0; }
.card { background: var(--raised); border-radius: 8px; padding: 10px 14px; } .card b { display: block; font-size: 1.5rem; line-height: 1.2; }
.plots { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(300px, 100%), 1fr)); gap: 18px; }
figure { margin: 0; min-width: 0; } figure h3 { font-size: .95rem; margin: 0 0 4px; }
svg { display: block; width: 100%; max-width: 480px; height: auto; }
svg text { fill: var(--ink); font-size: 11px; } svg .tick, svg .label { fill: var(--faint); } svg .figure { font-size: 11px; }
.axis { stroke: var(--faint); } .grid { stroke: var(--line); stroke-width: .7; } .c1 { fill: var(--c1); } .c2 { fill: var(--c2); } .c3 { fill: var(--c3); }
.line { fill: none; stroke-width: 2; } .line.c1 { stroke: var(--c1); } .line.c2 { stroke: var(--c2); } .line.c3 { stroke: var(--c3); }
.mean { stroke: var(--c2); stroke-width: 1.6; } .band { fill: var(--band); }
.legend { white-space: nowrap; }
.key { display: inline-block; width: .75em; height: .75em; border-radius: 2px; margin: 0 .3em 0 .8em; }
.key.c1 { background: var(--c1); } .key.c2 { background: var(--c2); } .key.c3 { background: var(--c3); }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; font-size: .92rem; }
th, td { padding: 5px 10px; text-align: right; border-bottom: 1px solid var(--line); white-space: nowrap; }
th { color: var(--faint); font-weight: 600; } td:first-child, th:first-child { text-align: left; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: 4px 14px; margin: 8px 0; }
dt { color: var(--faint); } dd { margin: 0; min-width: 0; overflow-wrap: anywhere; }
details { margin: 10px 0; } summary { cursor: pointer; } li { overflow-wrap: anywhere; }
pre { background: var(--raised); padding: 10px; border-radius: 8px; overflow-x: auto; font-size: .82rem; }
@media (max-width: 520px) { dl { grid-template-columns: 1fr; gap: 0; } dd { margin-bottom: 6px; } th, td { padding: 4px 7px; } }
"""


def render(report: Mapping[str, Any]) -> str:
    """The page. Every text that came from outside is escaped, and the page's policy forbids scripts and loading."""
    verdict = report["verdict"]
    body = "\n".join(
        [
            f'<header><h1>{safe(verdict["headline"])}</h1><p class="faint">EAGLE-3 drafter against its target, from stored samples</p></header>',
            f'<div class="verdict {safe(verdict["code"])}">{safe(verdict["text"])}</div>',
            *(f'<div class="warning"><b>Warning.</b> {safe(text)}</div>' for text in report["warnings"]),
            _cards(report),
            f'<div class="plots">{"".join(_plots(report))}</div>',
            "<h2>Per draft step</h2>",
            _steps(report),
            _speed(report),
            "<h2>What was measured</h2>",
            definitions([*tables.facts(report), ("Length", tables.length_line(report)), ("Vocabulary", tables.vocabulary_line(report))]),
            _extras(report),
        ]
    )
    return page(verdict["headline"], body)


def page(title: str, body: str) -> str:
    """A whole page of our look and policy around ``body``, which must be escaped already."""
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}"><meta name="referrer" content="no-referrer">'
        f"<title>{safe(title)}</title><style>{_STYLE}</style></head>\n<body><main>\n{body}\n</main></body></html>\n"
    )


def _cards(report: Mapping[str, Any]) -> str:
    serving, vocabulary = report["serving"], report["vocabulary"]
    interval = "" if serving["ci95"] is None else "95 % interval {:.2f} to {:.2f}".format(*serving["ci95"])
    first = serving["conditional_rates"][0] if serving["conditional_rates"] else None
    cards = [
        (tables.number(serving["acceptance_length"]), f"tokens per verification step at K = {report['steps']}. {interval}"),
        (tables.number(serving["per_request"]), "the same as a mean over requests"),
        (tables.percent(first), "of first drafted tokens accepted"),
        (tables.percent(vocabulary["coverage"]), "of the target's choices are in the draft vocabulary"),
    ]
    return '<div class="cards">' + "".join(f'<div class="card"><b>{safe(figure)}</b><span class="faint">{safe(what)}</span></div>' for figure, what in cards) + "</div>"


def _plots(report: Mapping[str, Any]) -> Iterable[str]:
    serving, accuracy = report["serving"], report["accuracy"]
    yield figure(
        "Accepted per position",
        plots.bars(
            plots.Series(name="accepted", values=serving["marginal_rates"], colour="c1"),
            y_label="verification steps",
            x_label="draft step",
            labels=[tables.count(n) for n in serving["accepted_per_position"]],
            description="Share of verification steps in which each draft step and all before it are accepted",
        ),
        "Share of verification steps in which this draft step and all before it are accepted.",
    )
    if accuracy is not None:
        series = [
            plots.Series(name="accuracy", values=accuracy["full"], colour="c1"),
            plots.Series(name="conditional", values=accuracy["conditional"], colour="c2"),
        ]
        if accuracy["trainer"] is not None:
            series.append(plots.Series(name=accuracy["trainer"]["name"], values=accuracy["trainer"]["accuracy"], colour="c3"))
        keys = "".join(f' <span class="legend"><span class="key {s.colour}"></span>{safe(s.name)}</span>' for s in series)
        yield figure(
            "Accuracy by depth",
            plots.lines(series, y_label="rows", x_label="draft step", description="Accuracy and conditional accuracy of every draft step over all rows"),
            f"Over all draft rows, not only those a server visits.{keys}",
        )
    yield from breakdown_plots(report["breakdown"])
    values = [(each["name"], each["acceptance_length"]) for each in report["samples"]["each"] if each["acceptance_length"] is not None]
    if values and serving["acceptance_length"] is not None:
        yield figure(
            "Acceptance length per sample",
            plots.spread(
                values,
                mean=serving["acceptance_length"],
                interval=serving["ci95"],
                top=report["steps"] + 1.0,
                y_label="tokens per step",
                description="Acceptance length of each sample, with the mean over verification steps and its confidence interval",
            ),
            "Line: mean over verification steps; band: its 95 % interval.",
        )


def breakdown_plots(found: Mapping[str, Any] | None) -> Iterable[str]:
    """First drafts by position in the response and by class of token; nothing where nothing was counted."""
    if found is None or not sum(each["total"] for each in found["ranges"]):
        return
    for key, title, x_label, caption in (
        ("ranges", "Accuracy by position in the response", "tokens into the response", "First drafts that are right, by how far into the response they are."),
        ("classes", "Accuracy by class of token", "token to be drafted", "First drafts that are right. " + "; ".join(f"{name}: {what}" for name, what in CLASS_MEANINGS.items()) + "."),
    ):  # fmt: skip
        shown = [each for each in found[key] if each["total"]]
        yield figure(
            title,
            plots.bars(
                plots.Series(name=title, values=[each["right"] / each["total"] for each in shown], colour="c1"), y_label="first drafts", x_label=x_label,
                labels=[f"{each['right']:,} of {each['total']:,}" for each in shown], description=title, names=[each["name"] for each in shown],
            ),
            safe(caption),
        )  # fmt: skip


def figure(title: str, svg: str, caption: str) -> str:
    return f"<figure><h3>{safe(title)}</h3>{svg}<figcaption>{caption}</figcaption></figure>"


def _steps(report: Mapping[str, Any]) -> str:
    columns = tables.step_columns(report)
    head = "".join(f'<th scope="col" title="{safe(column.meaning)}">{safe(column.heading)}</th>' for column in columns)
    rows = "".join("<tr>" + "".join(f"<td>{safe(cell)}</td>" for cell in row) + "</tr>" for row in zip(*(c.cells for c in columns), strict=True))
    meanings = definitions([(column.heading, column.meaning) for column in columns])
    return (
        f'<div class="wide"><table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></div>'
        f"<details><summary>What the columns mean</summary>{meanings}</details>"
    )


def _speed(report: Mapping[str, Any]) -> str:
    length = report["serving"]["acceptance_length"]
    return "" if length is None else f"<h2>What it means for speed</h2><p>{safe(speed(length))}</p>"


def _extras(report: Mapping[str, Any]) -> str:
    parts = []
    if report["notes"]:
        parts.append("<h2>Notes</h2>" + bullets(report["notes"]))
    skipped = report["samples"]["skipped"]
    if skipped["count"]:
        reasons = [each["reason"] for each in skipped["files"][:_SHOWN]]
        rest = skipped["count"] - len(reasons)
        reasons += [f"... and {rest:,} more"] if rest else []
        parts.append(f"<details><summary>{skipped['count']:,} files skipped</summary>{bullets(reasons)}</details>")
    each = report["samples"]["each"]
    rows = "".join(
        f"<tr><td>{safe(s['name'])}</td><td>{s['tokens']:,}</td><td>{s['rows']:,}</td><td>{'-' if s['drafts'] is None else format(s['drafts'], ',')}</td>"
        f"<td>{tables.number(s['acceptance_length'])}</td></tr>"
        for s in each[:_SHOWN_SAMPLES]
    )
    more = f"<p class=faint>The first {_SHOWN_SAMPLES} of {len(each):,}; all are in the JSON report.</p>" if len(each) > _SHOWN_SAMPLES else ""
    parts.append(
        f"<details><summary>Samples</summary>{more}<div class=wide><table><thead><tr><th>sample</th><th>tokens</th><th>rows</th><th>drafts</th>"
        f"<th>length</th></tr></thead><tbody>{rows}</tbody></table></div></details>"
    )
    for title, key in (("Wiring", "wiring"), ("Checkpoints", None), ("Environment and timing", "environment")):
        data = {"drafter": report["drafter"], "target": report["target"]} if key is None else report[key]
        if key == "environment":
            data = {**data, **report["timing"]}
        parts.append(f"<details><summary>{title}</summary><pre>{safe_json(data)}</pre></details>")
    return "\n".join(parts)


def safe_json(data: object) -> str:
    """Indented JSON as HTML text, line by line."""
    return "\n".join(safe(line) for line in json.dumps(data, indent=2).splitlines())


def definitions(pairs: Iterable[tuple[str, str]]) -> str:
    return "<dl>" + "".join(f"<dt>{safe(label)}</dt><dd>{safe(text)}</dd>" for label, text in pairs) + "</dl>"


def bullets(sentences: Sequence[str]) -> str:
    return "<ul>" + "".join(f"<li>{safe(text)}</li>" for text in sentences) + "</ul>"
