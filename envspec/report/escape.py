"""Make text that came from a host safe to show.

Package names, versions, host names, paths and variables are written by others. Nothing in them may move a terminal's
cursor, start a workflow command, open a Markdown cell or end an XML element. Every renderer passes such text through
one of these functions; none of them loses a character that could matter, they make it visible instead.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping

__all__ = [
    "annotation_data",
    "annotation_property",
    "ascii_json",
    "code",
    "fence",
    "no_commands",
    "plain",
    "prose",
    "sentence",
    "xml_text",
]

_NAMED = {"\n": r"\n", "\r": r"\r", "\t": r"\t"}


def plain(text: str, *, multiline: bool = False) -> str:
    """Text with every character that cannot be seen written as an escape such as ``\\x1b``.

    These are terminal controls, bidirectional overrides and zero-width characters (which make one name look like
    another), other line breaks and spaces, halves of surrogate pairs (which no encoding can write) and unassigned
    characters. ``multiline`` keeps line feeds.
    """
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() or (multiline and char == "\n") else _escape(char) for char in text)


def _escape(char: str) -> str:
    point = ord(char)
    if char in _NAMED:
        return _NAMED[char]
    if point < 0x100:
        return f"\\x{point:02x}"
    return f"\\u{point:04x}" if point < 0x10000 else f"\\U{point:08x}"


# GitHub Actions reads a command from any line of the log that, trimmed, begins with "::", and from "##[" anywhere.
_COMMAND = re.compile(r"^(\s*):(?=:)|#(?=#\[)", re.MULTILINE)


def no_commands(output: str) -> str:
    """Finished output in which no line is a workflow command of GitHub Actions, however it was wrapped.

    The first of the characters that would start one becomes an escape (``\\x3a:error::``).
    """
    return _COMMAND.sub(lambda found: "\\x23" if found[1] is None else f"{found[1]}\\x3a", output)


def annotation_data(text: str) -> str:
    """The message of a workflow command: percent sign and line breaks encoded as the runner decodes them."""
    return plain(text, multiline=True).replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def annotation_property(text: str) -> str:
    """A property of a workflow command, where a comma or colon would also end it."""
    return annotation_data(plain(text)).replace(":", "%3A").replace(",", "%2C")


# An underscore inside a word is no emphasis; the edge of a run of them may be.
_PROSE = re.compile(r"[\\`*\[\]<>&|~#!$]|(?<![^\W_])_+|_+(?![^\W_])|:(?=//)|(?<=www)\.|(?<![\w.])@(?=\w)", re.IGNORECASE)


def prose(text: str) -> str:
    """Text for a Markdown sentence or table cell: markup, links and mentions are shown as they were written."""
    escaped = _PROSE.sub(lambda found: "".join(f"&#{ord(char)};" for char in found[0]), plain(text))
    return escaped.replace("&#64;", "&#64;<!-- -->")  # a mention is looked for after entities are decoded


_SIMPLE_CODE = re.compile(r"[^`|\\]*[^`|\\\s][^`|\\]*")


def code(text: str) -> str:
    """Text for a Markdown code span that is also safe inside a table cell.

    A code span cannot carry a backtick or a bar through a table, so text with one becomes an HTML element whose
    characters are entities: they are shown, never read as markup.
    """
    text = plain(text)
    if _SIMPLE_CODE.fullmatch(text):
        return f"`{text}`"
    return "<code>" + re.sub(r"[^\w ]|_", lambda found: f"&#{ord(found[0])};", text) + "</code>"


def sentence(text: str) -> str:
    """Like :func:`prose`, with what stands between backticks as code."""
    parts = plain(text).split("`")
    if len(parts) % 2 == 0:
        return prose(text)
    return "".join(code(part) if number % 2 and part.strip() else prose(part) for number, part in enumerate(parts))


def fence(text: str, language: str = "") -> str:
    """A fenced Markdown block around text that may itself hold fences."""
    text = plain(text, multiline=True)
    longest = max((len(run) for run in re.findall(r"`+", text)), default=0)
    bar = "`" * max(3, longest + 1)
    return f"{bar}{language}\n{text}\n{bar}"


def xml_text(text: str) -> str:
    """Text for an XML 1.0 node or attribute; the XML writer still escapes the markup.

    XML 1.0 cannot hold most controls even as entities, so they are written as escapes.
    """
    return plain(text, multiline=True)


def ascii_json(document: Mapping[str, object] | list[object], *, indent: int | None = None, sort_keys: bool = False) -> str:
    """JSON in ASCII, in the order given or sorted, with no text that the log of a workflow could take for a command."""
    text = json.dumps(document, ensure_ascii=True, allow_nan=False, indent=indent, sort_keys=sort_keys)
    return text.replace("##[", "\\u0023#[")  # only a string can hold it
