"""The catalogue of finding codes, for ``envspec explain`` and for the documentation page made from it."""

from __future__ import annotations

import io
from collections.abc import Iterable, Sequence
from itertools import groupby

from rich.padding import Padding
from rich.table import Table
from rich.text import Text as Styled

from envspec.findings import Json
from envspec.report.escape import ascii_json, code, sentence
from envspec.report.interface import CONSEQUENCE, View
from envspec.report.text import console_for
from envspec.rules import Rule

__all__ = ["explain_json", "explain_markdown", "explain_text", "list_text"]


def explain_text(rules: Iterable[Rule], view: View) -> str:
    """Each code with what it means, why it matters and how to mend it."""
    buffer = io.StringIO()
    console = console_for(buffer, view)
    for number, rule in enumerate(rules):
        if number:
            console.print()
        console.print(Styled.assemble((rule.code, "bold"), f"  {rule.title}"))
        console.print(Padding(Styled(f"{rule.family}; {CONSEQUENCE[rule.severity].lower()}; {rule.name}", style="dim"), (0, 0, 0, 2)))
        console.print(Padding(Styled(f"Why it matters: {rule.why}"), (0, 0, 0, 2)))
        console.print(Padding(Styled(f"How to mend it: {rule.mend}"), (0, 0, 0, 2)))
    return _trimmed(buffer)


def list_text(rules: Sequence[Rule], view: View) -> str:
    """All codes, one a line, by family."""
    buffer = io.StringIO()
    console = console_for(buffer, view)
    for number, (family, members) in enumerate(groupby(rules, key=lambda rule: rule.family)):
        if number:
            console.print()
        console.print(Styled(family, style="bold"))
        grid = Table.grid(padding=(0, 2, 0, 0))
        for rule in members:
            grid.add_row(f"  {rule.code}", rule.severity, rule.title)
        console.print(grid)
    return _trimmed(buffer)


def _trimmed(buffer: io.StringIO) -> str:
    return "".join(line.rstrip() + "\n" for line in buffer.getvalue().splitlines())


def explain_json(rules: Iterable[Rule]) -> str:
    """A list of objects with the fields of a rule."""
    document: list[object] = [_object(rule) for rule in rules]
    return ascii_json(document, indent=1) + "\n"


def _object(rule: Rule) -> dict[str, Json]:
    return {
        "code": rule.code,
        "name": rule.name,
        "title": rule.title,
        "family": rule.family,
        "severity": rule.severity,
        "why": rule.why,
        "mend": rule.mend,
    }


def explain_markdown(rules: Sequence[Rule]) -> str:
    """The documentation page: a table of all codes, then each with why and mend."""
    lines = [
        "# Finding codes",
        "",
        "<!-- Made by `python -m envspec explain --format markdown`; edit envspec/rules.py instead. -->",
        "",
        "The severity is the usual one; a finding can carry another where the facts say so, and `severity` in the spec sets it.",
        "A code never changes its meaning.",
        "",
        "| code | name | severity | title |",
        "|---|---|---|---|",
        *(f"| [{rule.code}](#{rule.code.lower()}) | {code(rule.name)} | {rule.severity} | {sentence(rule.title)} |" for rule in rules),
    ]
    for family, members in groupby(rules, key=lambda rule: rule.family):
        lines += ["", f"## {family}"]
        for rule in members:
            lines += ["", f"### {rule.code}", "", f"**{sentence(rule.title)}** ({rule.severity}, {code(rule.name)})"]
            lines += ["", f"Why it matters: {sentence(rule.why)}", "", f"How to mend it: {sentence(rule.mend)}"]
    return "\n".join(lines) + "\n"
