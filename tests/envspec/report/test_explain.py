from __future__ import annotations

import json
from pathlib import Path

from envspec.report import View
from envspec.report.explain import explain_json, explain_markdown, explain_text, list_text
from envspec.rules import FAMILIES, RULES, Rule

RULE = Rule(
    code="EP999",
    name="nothing-works",
    title="Nothing works",
    severity="breaks",
    why="It is " + "very " * 30 + "broken.",
    mend="Run `envspec plan`, then pray.",
)


def test_one_code_says_what_why_and_how_within_80_columns() -> None:
    text = explain_text([RULE], View())
    assert text.startswith("EP999  Nothing works\n  Collection and configuration; breaks; nothing-works\n  Why it matters: It is very")
    assert "  How to mend it: Run `envspec plan`, then pray.\n" in text
    assert max(map(len, text.splitlines())) <= 80


def test_the_list_holds_every_code_and_family_within_80_columns() -> None:
    text = list_text(list(RULES.values()), View())
    for code in RULES:
        assert text.count(code) == 1
    for family in FAMILIES.values():
        assert family in text.splitlines()
    assert max(map(len, text.splitlines())) <= 80


def test_json_holds_every_field() -> None:
    assert json.loads(explain_json([RULE])) == [
        {
            "code": "EP999",
            "name": "nothing-works",
            "title": "Nothing works",
            "family": "Collection and configuration",
            "severity": "breaks",
            "why": RULE.why,
            "mend": "Run `envspec plan`, then pray.",
        }
    ]


def test_the_documentation_page_is_fresh() -> None:
    page = Path(__file__).parents[3] / "docs" / "envspec" / "codes.md"
    assert page.read_text(encoding="utf-8") == explain_markdown(list(RULES.values())), (
        "write it again: python -m envspec explain --format markdown > docs/envspec/codes.md"
    )
