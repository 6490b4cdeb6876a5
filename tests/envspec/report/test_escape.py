from __future__ import annotations

import json
import unicodedata
import xml.etree.ElementTree as ET

import pytest
from hypothesis import given
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from envspec.report.escape import (
    annotation_data,
    annotation_property,
    ascii_json,
    code,
    fence,
    no_commands,
    plain,
    prose,
    xml_text,
)

MARKDOWN = MarkdownIt("commonmark").enable("table")

# Pieces an attacker would use, mixed with any character at all.
hostile = st.lists(
    st.sampled_from(
        [
            "::error::", "##[error]", "::set-output name=x::y", "\x1b[2J", "\x1b]8;;http://a.example\x07", "\r\n", "\n",
            "\u202e", "\u200b", "\ud800", "|", "\\", "`", "``", "<script>", "</code>", "<!--", "&#124;", "&amp;", "](", "[x](y)",
            "*", "_", "__", "~~", "#", "@octocat", "%0A", "]]>", ",", "title=", "$(id)", "https://a.example", "www.a.example",
        ]
    )
    | st.text(max_size=4),
    max_size=8,
).map("".join)  # fmt: skip


def runner_reads_a_command(log: str) -> bool:
    """How the Actions runner decides: per line, trimmed, then either prefix."""
    return any(line.strip().startswith("::") or "##[" in line for line in log.split("\n"))


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("torch 2.9.1+cu128", "torch 2.9.1+cu128"),
        ("naïve 包", "naïve 包"),
        ("a\x1b[31mb", r"a\x1b[31mb"),
        ("a\r\nb\tc", r"a\r\nb\tc"),
        ("a\x85b", r"a\x85b"),
        ("gnp\u202e.exe", r"gnp\u202e.exe"),
        ("a\u2028b", r"a\u2028b"),
        ("bad\udcffname", r"bad\udcffname"),
        ("\ufffe\U000e0041", r"\ufffe\U000e0041"),
    ],
)
def test_plain_shows_what_cannot_be_seen(text: str, shown: str) -> None:
    assert plain(text) == shown


@given(hostile)
def test_plain_text_is_one_encodable_line_without_controls(text: str) -> None:
    shown = plain(text)
    shown.encode("utf-8")
    assert not any(unicodedata.category(char) in {"Cc", "Cf", "Cs", "Zl", "Zp"} for char in shown)
    assert plain(shown) == shown


def test_plain_keeps_line_feeds_only_when_asked() -> None:
    assert plain("a\nb\rc", multiline=True) == "a\nb\\rc"


@given(hostile)
def test_no_output_is_read_as_a_workflow_command(text: str) -> None:
    assert not runner_reads_a_command(no_commands(plain(text, multiline=True)))


def test_no_commands_changes_only_the_start_of_a_command() -> None:
    assert no_commands("std::vector\n  ::error::x\n##[add-mask]y") == "std::vector\n  \\x3a:error::x\n\\x23#[add-mask]y"


@given(hostile)
def test_annotation_message_and_properties_stay_inside_their_command(text: str) -> None:
    line = f"::error file={annotation_property(text)},line=3::{annotation_data(text)}"
    assert "\n" not in line
    assert "\r" not in line
    head, _, message = line[2:].partition("::")
    assert head.count(",") == 1
    assert head.endswith(",line=3")
    decoded = message.replace("%0D", "\r").replace("%0A", "\n").replace("%25", "%")
    assert decoded == plain(text, multiline=True)


def _inline(markdown: str) -> tuple[set[str], str]:
    """The kinds of inline token a Markdown paragraph holds, and the text it shows."""
    (paragraph,) = [token for token in MARKDOWN.parse("x" + markdown) if token.type == "inline"]
    children = paragraph.children or []
    shown = "".join(child.content for child in children if child.type in {"text", "text_special", "code_inline"})
    return {child.type for child in children}, shown.removeprefix("x")


@given(hostile.filter(lambda text: text.strip() != ""))
def test_prose_holds_no_markup_and_shows_every_character(text: str) -> None:
    kinds, shown = _inline(prose(text).replace("<!-- -->", ""))
    assert kinds <= {"text", "text_special"}
    assert shown.rstrip(" ") == plain(text).rstrip(" ")


@given(hostile)
def test_prose_and_code_cannot_add_a_table_cell(text: str) -> None:
    document = f"| a | b | c |\n|---|---|---|\n| {prose(text)} | {code(text)} | end |\n"
    tokens = MARKDOWN.parse(document)
    cells = [tokens[i + 1].content for i, token in enumerate(tokens) if token.type == "td_open"]
    assert len(cells) == 3
    assert cells[2] == "end"
    assert sum(token.type == "tr_open" for token in tokens) == 2


@given(hostile.filter(lambda text: text.strip() != ""))
def test_code_shows_the_text_as_code_only(text: str) -> None:
    kinds, shown = _inline(code(text))
    assert kinds <= {"text", "text_special", "code_inline", "html_inline"}
    assert shown.strip() == plain(text).strip()


@pytest.mark.parametrize("mention", ["@octocat", "see @octocat", "(@octocat)"])
def test_prose_mentions_nobody(mention: str) -> None:
    assert "@octocat" not in prose(mention)
    assert "&#64;octocat" not in prose(mention)


@given(hostile)
def test_a_fence_is_one_block_with_the_text_in_it(text: str) -> None:
    tokens = MARKDOWN.parse(fence(text, "sh") + "\n\nend")
    assert [token.type for token in tokens] == ["fence", "paragraph_open", "inline", "paragraph_close"]
    assert tokens[0].content == plain(text, multiline=True) + "\n"


@given(hostile)
def test_xml_text_can_be_written_and_read_back(text: str) -> None:
    element = ET.Element("failure", message=xml_text(text))
    element.text = xml_text(text)
    again = ET.fromstring(ET.tostring(element))
    assert (again.text or "") == xml_text(text)


@given(hostile)
def test_json_is_ascii_equal_when_read_and_no_command(text: str) -> None:
    written = ascii_json({"name": text}, indent=1)
    assert json.loads(written) == {"name": text}
    assert written.isascii()
    assert not runner_reads_a_command(written)
