"""``envspec explain [CODE …]``."""

from __future__ import annotations

import argparse

from envspec.output import Sink
from envspec.report.explain import explain_json, explain_markdown, explain_text, list_text
from envspec.rules import FAMILIES, RULES, Rule, rule

__all__ = ["run"]


def run(arguments: argparse.Namespace, sink: Sink) -> int:
    """Print what the codes mean; without codes, the list of all."""
    rules = [each for code in arguments.codes for each in _named(code)] or list(RULES.values())
    if arguments.format == "json":
        sink.print(explain_json(rules))
    elif arguments.format == "markdown":
        sink.print(explain_markdown(rules))
    else:
        sink.print((explain_text if arguments.codes else list_text)(rules, sink.view()))
    return 0


def _named(code: str) -> list[Rule]:
    """The rule of a code; all of a family for ``EP3``."""
    if code.upper() in FAMILIES:
        return [each for each in RULES.values() if each.code.startswith(code.upper())]
    return [rule(code)]
