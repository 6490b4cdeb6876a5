from __future__ import annotations

import io
import json
from pathlib import Path

import pytest

from envspec.errors import UsageError
from envspec.output import Output, Sink, parse_output, write_atomically
from envspec.report import View, render
from envspec.report.github import SUMMARY_BYTES
from tests.envspec.report.samples import FULL


def sink(environment: dict[str, str] | None = None, encoding: str = "utf-8") -> Sink:
    return Sink(
        stdout=io.TextIOWrapper(io.BytesIO(), encoding=encoding, write_through=True),
        stderr=io.TextIOWrapper(io.BytesIO(), encoding=encoding, write_through=True),
        environment=environment or {},
    )


def printed(stream: object) -> str:
    assert isinstance(stream, io.TextIOWrapper)
    assert isinstance(stream.buffer, io.BytesIO)
    return stream.buffer.getvalue().decode(stream.encoding)


def test_a_report_goes_to_standard_output_and_to_each_file(tmp_path: Path) -> None:
    to = sink()
    outputs = [Output(format="json", path=tmp_path / "a.json"), Output(format="junit", path=tmp_path / "a.xml")]
    to.report(FULL, to.view(), format="text", outputs=outputs)
    assert printed(to.stdout) == render("text", FULL, View())
    assert printed(to.stderr) == ""
    assert (tmp_path / "a.json").read_text() == render("json", FULL, View())
    assert (tmp_path / "a.xml").read_text() == render("junit", FULL, View())
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.json", "a.xml"]


def test_in_github_actions_annotations_and_summary_come_by_themselves(tmp_path: Path) -> None:
    summary = tmp_path / "summary.md"
    summary.write_text("before\n")
    to = sink({"GITHUB_ACTIONS": "true", "GITHUB_STEP_SUMMARY": str(summary)})
    to.report(FULL, to.view(), format="json", outputs=[])
    assert json.loads(printed(to.stdout))["schema"] == "envspec/findings/1"  # still nothing but JSON
    assert printed(to.stderr) == render("github", FULL, View())
    assert summary.read_text() == "before\n" + render("markdown", FULL, View())


def test_annotations_are_not_printed_twice() -> None:
    to = sink({"GITHUB_ACTIONS": "true"})
    to.report(FULL, to.view(), format="github", outputs=[])
    assert printed(to.stdout) == render("github", FULL, View())
    assert printed(to.stderr) == ""


def test_a_full_step_summary_gets_nothing_more(tmp_path: Path) -> None:
    summary = tmp_path / "summary.md"
    summary.write_text("x" * (SUMMARY_BYTES - 5))
    to = sink({"GITHUB_ACTIONS": "true", "GITHUB_STEP_SUMMARY": str(summary)})
    to.report(FULL, to.view(), format="text", outputs=[])
    assert summary.stat().st_size <= SUMMARY_BYTES


def test_a_stream_that_cannot_carry_the_text_gets_escapes() -> None:
    to = sink(encoding="ascii")
    to.print("naïve 包\n")
    assert printed(to.stdout) == "na\\xefve \\u5305\n"
    to.say("naïve\x1b[2J")
    assert printed(to.stderr) == "na\\xefve\\x1b[2J\n"


def test_a_remark_is_no_workflow_command() -> None:
    to = sink()
    to.say("::error::forged")
    assert printed(to.stderr) == "\\x3a:error::forged\n"


def test_a_forged_command_in_the_middle_of_a_remark_is_none_either() -> None:
    to = sink()
    to.say("envspec: gone: ##[error]forged")
    to.print_line("::error::q/a.json: ##[error]b")
    assert printed(to.stderr) == "envspec: gone: \\x23#[error]forged\n"
    assert printed(to.stdout) == "\\x3a:error::q/a.json: \\x23#[error]b\n"


def test_when_one_output_cannot_be_written_none_is(tmp_path: Path) -> None:
    to = sink()
    outputs = [Output(format="json", path=tmp_path / "a.json"), Output(format="sarif", path=tmp_path / "missing" / "b")]
    with pytest.raises(UsageError, match=r"cannot write .*missing/b: No such file or directory"):
        to.report(FULL, to.view(), format="text", outputs=outputs, besides=[(tmp_path / "baseline", "{}")])
    assert (list(tmp_path.iterdir()), printed(to.stdout)) == ([], "")


@pytest.mark.parametrize("text", ["json", "json=", "=a", "yaml=a", "JSON=a"])
def test_a_bad_output_is_named(text: str) -> None:
    with pytest.raises(UsageError, match=r"--output .*: expected FORMAT=FILE with a format of text, json"):
        parse_output(text)


def test_an_output_may_hold_an_equals_sign() -> None:
    assert parse_output("sarif=a=b.sarif") == Output(format="sarif", path=Path("a=b.sarif"))


def test_a_file_that_cannot_be_written_is_one_sentence_and_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"cannot write .*missing/a\.json: No such file or directory"):
        write_atomically(tmp_path / "missing" / "a.json", "{}")
    (tmp_path / "folder").mkdir()
    with pytest.raises(UsageError, match="cannot write"):
        write_atomically(tmp_path / "folder", "{}")
    assert [path.name for path in tmp_path.iterdir()] == ["folder"]
