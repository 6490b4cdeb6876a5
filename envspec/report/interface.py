"""What a renderer is: a finished Report in, text out. It reads nothing, decides nothing and writes nothing."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol, TextIO

from envspec.findings import FailOn, Finding, Report, Severity
from envspec.rules import RULES

__all__ = ["CONSEQUENCE", "Renderer", "View", "after_subject", "fold_hosts", "is_command", "outcome", "plural", "title", "view_of"]

CONSEQUENCE: Mapping[Severity, str] = {
    "breaks": "Breaks",
    "results": "May change results",
    "noise": "Noise",
}
"""What each severity means, as a heading."""


@dataclass(frozen=True, kw_only=True)
class View:
    """Who will read the text, and how.

    ``width`` is in columns. ``ascii`` is set where the stream cannot carry more. ``verbose`` asks for what is folded
    away by default. ``fail_on`` is the severity from which the run fails. ``anchor`` is the file (lock or spec) that a
    finding without a file of its own is shown at, in the formats that must have one.
    """

    width: int = 80
    colour: bool = False
    ascii: bool = False
    verbose: bool = False
    fail_on: FailOn = "breaks"
    anchor: str | None = None


class Renderer(Protocol):
    """One output format."""

    name: str

    def render(self, report: Report, view: View) -> str:
        """The whole document, ending in a line feed unless it is empty."""
        ...


def view_of(
    stream: TextIO,
    environment: Mapping[str, str],
    *,
    verbose: bool = False,
    fail_on: FailOn = "breaks",
    anchor: str | None = None,
) -> View:
    """The view for a stream. NO_COLOR wins over CLICOLOR_FORCE, which wins over what the stream is.

    The width is COLUMNS where it is set, the terminal's where there is one, else 80; never under 40 or over 10,000.
    """
    terminal = stream.isatty()
    if environment.get("NO_COLOR"):
        colour = False
    elif environment.get("CLICOLOR_FORCE", "0") not in ("", "0"):
        colour = True
    else:
        colour = terminal and environment.get("CLICOLOR") != "0" and environment.get("TERM") != "dumb"
    encoding = (getattr(stream, "encoding", None) or "utf-8").lower().replace("_", "-")
    return View(
        width=min(max(40, _width(stream, environment, terminal)), 10_000),
        colour=colour,
        ascii=not encoding.startswith("utf"),
        verbose=verbose,
        fail_on=fail_on,
        anchor=anchor,
    )


def _width(stream: TextIO, environment: Mapping[str, str], terminal: bool) -> int:
    columns = environment.get("COLUMNS", "").lstrip("0")
    if columns.isascii() and columns.isdecimal():
        return int(columns[:9])  # as many digits as decide; Python refuses to read thousands of them
    if terminal:
        try:
            return os.get_terminal_size(stream.fileno()).columns or 80
        except OSError:
            pass
    return 80


def title(finding: Finding) -> str:
    """The rule's title; the code itself for a code of a newer version."""
    rule = RULES.get(finding.code)
    return rule.title if rule else finding.code


_COMMAND = re.compile(
    r"(?:\S*/)?(?:uvx?|pip3?|pipx|python[\d.]*|conda|mamba|micromamba|pixi|docker|podman|kubectl|ssh|sudo|apt(?:-get)?|export|unset|rm|mv|env|envspec)\s+\S"
)


def is_command(line: str) -> bool:
    """Whether a line of a mend is a command to copy, which must not be wrapped."""
    return _COMMAND.match(line) is not None


def plural(number: int, noun: str, nouns: str | None = None) -> str:
    """``1 host``, ``2 hosts``."""
    return f"{number:,} {noun if number == 1 else nouns or noun + 's'}"


def outcome(report: Report) -> str:
    """The run in one sentence."""
    counts = report.counts
    parts = [
        f"{number:,} {words}"
        for number, words in (
            (counts.breaks, "that break" if counts.breaks != 1 else "that breaks"),
            (counts.results, "that may change results"),
            (counts.noise, "noise"),
        )
        if number
    ]
    failed = sum(host.status == "failed" for host in report.hosts)
    sentence = f"Findings: {', '.join(parts)}." if parts else "No findings."
    if failed:
        sentence += f" {plural(failed, 'host')} could not be captured."
    return sentence


_NUMBER = re.compile(r"(?s)(.*?)(\d{1,9})(\D*)")


def after_subject(finding: Finding) -> str | None:
    """What a finding says behind its subject, where it begins with that; None where it begins otherwise."""
    rest = finding.what.removeprefix(finding.subject)
    return rest if rest != finding.what and not re.match(r"[\w.-]", rest) else None


def fold_hosts(labels: Iterable[str]) -> str:
    """Labels as a short sorted list in which runs of three and more are folded: ``gpu-[01-03,07], trainer``."""
    numbered: dict[tuple[str, str], list[str]] = {}
    parts = []
    for label in sorted(set(labels)):
        found = _NUMBER.fullmatch(label) if label.isascii() else None
        if found:
            numbered.setdefault((found[1], found[3]), []).append(found[2])
        else:
            parts.append(label)
    for (prefix, suffix), digits in numbered.items():
        padded = any(len(text) > 1 and text.startswith("0") for text in digits)
        for width in sorted({len(text) for text in digits}) if padded else [0]:
            numbers = sorted(int(text) for text in digits if not padded or len(text) == width)
            if len(numbers) < 3:
                parts += [f"{prefix}{number:0{width}d}{suffix}" for number in numbers]
            else:
                parts.append(f"{prefix}[{','.join(_runs(numbers, width))}]{suffix}")
    return ", ".join(sorted(parts))


def _runs(numbers: list[int], width: int) -> Iterable[str]:
    start = last = numbers[0]
    for number in [*numbers[1:], None]:
        if number is not None and number == last + 1:
            last = number
            continue
        yield f"{start:0{width}d}" if start == last else f"{start:0{width}d}-{last:0{width}d}"
        if number is not None:
            start = last = number
