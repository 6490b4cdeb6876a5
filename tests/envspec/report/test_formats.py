"""Every format against its schema, ordinary reports and hostile ones."""

from __future__ import annotations

import dataclasses
import io
import json
import re
import unicodedata
import xml.etree.ElementTree as ET
from pathlib import Path

import jsonschema
import pytest
import xmlschema
from hypothesis import given, settings
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from envspec.findings import Cell, FailOn, Finding, Group, HostStatus, Report, Row, count
from envspec.report import RENDERERS, View, render
from envspec.report.github import ANNOTATIONS_PER_LEVEL, SUMMARY_BYTES, summary
from envspec.report.interface import fold_hosts, is_command, outcome, view_of
from envspec.rules import finding
from tests.envspec.report import schemas
from tests.envspec.report.samples import ATTACKS, EMPTY, FULL, hostile

REPORTS = pytest.mark.parametrize("report", [FULL, EMPTY, Report()], ids=["full", "empty", "nothing"])
HOSTILE = pytest.mark.parametrize("text", ATTACKS, ids=[f"attack{number}" for number in range(len(ATTACKS))])
MARKDOWN = MarkdownIt("commonmark", {"html": True}).enable("table")


def runner_reads_a_command(log: str) -> bool:
    return any(line.strip().startswith("::") or "##[" in line for line in re.split(r"[\r\n]", log))


# Common to all formats.


@pytest.mark.parametrize("name", RENDERERS)
@HOSTILE
def test_no_format_prints_a_control_character_or_what_cannot_be_encoded(name: str, text: str) -> None:
    output = render(name, hostile(text), View())
    output.encode("utf-8")
    assert not any(unicodedata.category(char) in {"Cc", "Cf", "Cs", "Zl", "Zp"} for char in output if char != "\n")


@pytest.mark.parametrize("name", [name for name in RENDERERS if name != "github"])
@HOSTILE
def test_no_format_but_github_prints_a_workflow_command(name: str, text: str) -> None:
    for width in (40, 80):
        assert not runner_reads_a_command(render(name, hostile(text), View(width=width, verbose=True)))


@pytest.mark.parametrize("name", RENDERERS)
@REPORTS
def test_rendering_is_deterministic_and_ends_in_a_line_feed(name: str, report: Report) -> None:
    output = render(name, report, View())
    assert output == render(name, report, View())
    assert output == "" or output.endswith("\n")


# JSON and JSON Lines.


@REPORTS
def test_json_follows_its_schema_and_reads_back_equal(report: Report) -> None:
    document = json.loads(render("json", report, View()))
    schemas.check_findings(document)
    assert Report.from_dict(document) == report


@HOSTILE
def test_json_of_hostile_text_reads_back_equal(text: str) -> None:
    document = json.loads(render("json", hostile(text), View()))
    schemas.check_findings(document)
    assert Report.from_dict(document) == hostile(text)


def test_the_schema_refuses_a_document_that_is_not_one() -> None:
    document = json.loads(render("json", FULL, View()))
    document["findings"][0]["severity"] = "fatal"
    with pytest.raises(jsonschema.ValidationError):
        schemas.check_findings(document)


@REPORTS
def test_json_lines_hold_the_same_objects(report: Report) -> None:
    lines = [json.loads(line) for line in render("jsonl", report, View()).splitlines()]
    document = json.loads(render("json", report, View()))
    kinds = [line.pop("record") for line in lines]
    assert kinds == ["host"] * len(report.hosts) + ["finding"] * len(report.findings) + ["counts"]
    assert lines == [*document["hosts"], *document["findings"], document["counts"]]


# SARIF.


@REPORTS
def test_sarif_follows_the_standard_s_schema(report: Report) -> None:
    for view in (View(), View(anchor="requirements.lock")):
        schemas.check_sarif(json.loads(render("sarif", report, view)))


@HOSTILE
def test_sarif_of_hostile_text_follows_the_schema(text: str) -> None:
    schemas.check_sarif(json.loads(render("sarif", hostile(text), View(anchor="envspec.yaml"))))


def test_the_sarif_schema_is_the_whole_one() -> None:
    document = json.loads(render("sarif", FULL, View()))
    assert len(schemas.sarif_schema()["definitions"]) > 40
    document["runs"][0]["results"][0]["level"] = "fatal"
    with pytest.raises(jsonschema.ValidationError):
        schemas.check_sarif(document)


def test_sarif_says_what_the_report_says() -> None:
    (run,) = json.loads(render("sarif", FULL, View(anchor="requirements.lock")))["runs"]
    results = run["results"]
    assert [result["ruleId"] for result in results] == [finding.code for finding in FULL.findings]
    assert [run["tool"]["driver"]["rules"][result["ruleIndex"]]["id"] for result in results] == [finding.code for finding in FULL.findings]
    assert [result["level"] for result in results] == ["error", "error", "warning", "note", "warning", "warning"]
    assert [bool(result.get("suppressions")) for result in results] == [False, False, False, False, True, True]
    assert results[0]["partialFingerprints"] == {"envspec/v1": FULL.findings[0].fingerprint}
    assert results[0]["locations"][0]["physicalLocation"] == {
        "artifactLocation": {"uri": "scripts/launch.py", "uriBaseId": "%SRCROOT%"},
        "region": {"startLine": 32, "startColumn": 5},
    }
    assert results[1]["locations"][0]["physicalLocation"]["artifactLocation"]["uri"] == "requirements.lock"
    assert [place["name"] for place in results[0]["locations"][0]["logicalLocations"]] == ["gpu-01", "gpu-02", "gpu-03"]
    (invocation,) = run["invocations"]
    assert invocation["executionSuccessful"] is False
    assert "gpu-09" in invocation["toolExecutionNotifications"][0]["message"]["text"]


@pytest.mark.parametrize(
    ("what", "text"),
    [
        ("six 1.0 is in the lock, not installed", "six 1.0 is in the lock, not installed. On a. Install it."),
        ("a.py:1 imports six.", "six: a.py:1 imports six. On a. Install it."),
    ],
)
def test_sarif_messages_are_sentences_that_say_nothing_twice(what: str, text: str) -> None:
    finding = dataclasses.replace(FULL.findings[0], subject="six", what=what, hosts=("a",), fix="Install it.")
    (run,) = json.loads(render("sarif", Report(findings=(finding,)), View()))["runs"]
    assert run["results"][0]["message"]["text"] == text


def test_sarif_paths_are_uris() -> None:
    finding = dataclasses.replace(FULL.findings[0], location=dataclasses.replace(FULL.findings[0].location, file="/a b/ü#1.py"))  # type: ignore[type-var]
    (run,) = json.loads(render("sarif", Report(findings=(finding,)), View()))["runs"]
    assert run["results"][0]["locations"][0]["physicalLocation"]["artifactLocation"] == {"uri": "file:///a%20b/%C3%BC%231.py"}


# JUnit.


@REPORTS
def test_junit_follows_its_schema(report: Report) -> None:
    for fail_on in ("breaks", "results", "any", "never"):
        schemas.check_junit(render("junit", report, View(fail_on=fail_on)))  # type: ignore[arg-type]


@HOSTILE
def test_junit_of_hostile_text_follows_the_schema_and_holds_no_forged_element(text: str) -> None:
    output = render("junit", hostile(text), View())
    schemas.check_junit(output)
    root = ET.fromstring(output.encode())
    assert len(root.findall(".//failure")) == int(root.get("failures", "-1")) == 2  # one finding, on two hosts


def test_the_junit_schema_refuses_a_wrong_document() -> None:
    with pytest.raises(xmlschema.XMLSchemaValidationError):
        schemas.check_junit('<testsuites tests="1" failures="0" errors="0"><testsuite name="a"/></testsuites>')


@pytest.mark.parametrize(("fail_on", "failures"), [("never", 0), ("breaks", 4), ("results", 5), ("any", 6)])
def test_junit_fails_what_fails_the_run(fail_on: str, failures: int) -> None:
    root = ET.fromstring(render("junit", FULL, View(fail_on=fail_on)).encode())  # type: ignore[arg-type]
    assert root.get("failures") == str(failures)
    assert root.get("errors") == "1"
    assert root.get("skipped") == "2"
    assert [suite.get("name") for suite in root] == ["gpu-01", "gpu-02", "gpu-03", "trainer", "gpu-09"]


def test_junit_of_parity_passes() -> None:
    root = ET.fromstring(render("junit", EMPTY, View()).encode())
    assert [(case.get("classname"), case.get("name"), len(case)) for case in root.iter("testcase")] == [
        ("trainer", "parity", 0),
        ("server", "parity", 0),
    ]


# GitHub.

_ANNOTATION = re.compile(r"::(error|warning|notice) ((?:(?:file|line|col|title)=[^,:\r\n]*,?)+)::([^\r\n]*)")


@HOSTILE
def test_annotations_are_one_a_finding_whatever_the_text(text: str) -> None:
    lines = render("github", hostile(text), View()).splitlines()
    assert len(lines) == 3  # the failed host and the two findings
    for line in lines:
        assert _ANNOTATION.fullmatch(line), line
    assert [line.split(" ", 1)[0] for line in lines] == ["::error", "::error", "::notice"]


def test_annotations_stand_at_their_line() -> None:
    lines = render("github", FULL, View(anchor="requirements.lock")).splitlines()
    assert lines[1].startswith("::error file=scripts/launch.py,line=32,col=5,title=EP101 speculators::no module named speculators")
    assert lines[2].startswith("::error file=requirements.lock,title=EP201 torch::")
    assert "%0Auv pip install --no-deps speculators==0.3.0" in lines[1]


@pytest.mark.parametrize(
    ("fail_on", "levels"), [("never", ("error", "warning", "notice")), ("breaks", ("error", "warning", "notice")), ("results", ("error", "error", "notice")), ("any", ("error",) * 3)]
)
def test_a_finding_that_fails_the_run_is_an_error(fail_on: FailOn, levels: tuple[str, ...]) -> None:
    report = dataclasses.replace(_many(1), hosts=())
    lines = render("github", report, View(fail_on=fail_on)).splitlines()
    assert tuple(line.split(" ", 1)[0].removeprefix("::") for line in lines) == levels


def _many(number: int, words: str = "it differs") -> Report:
    findings = tuple(
        dataclasses.replace(FULL.findings[0], subject=f"package-{index:05}", severity=severity, what=words)
        for severity in ("breaks", "results", "noise")
        for index in range(number)
    )
    return dataclasses.replace(FULL, findings=findings, counts=count(findings, FULL.counts))  # type: ignore[arg-type]


@pytest.mark.parametrize("number", [9, 10, 11, 500])
def test_annotations_stay_within_the_limit_of_a_step(number: int) -> None:
    report = dataclasses.replace(_many(number), hosts=())
    lines = render("github", report, View()).splitlines()
    for level in ("error", "warning", "notice"):
        of_level = [line for line in lines if line.startswith(f"::{level} ")]
        assert len(of_level) == min(number, ANNOTATIONS_PER_LEVEL)
        if number > ANNOTATIONS_PER_LEVEL:
            assert f"and {number - ANNOTATIONS_PER_LEVEL + 1} more" in of_level[-1]


def test_a_step_summary_within_the_limit_is_the_whole_document() -> None:
    assert summary(FULL, View()) == render("markdown", FULL, View())


@pytest.mark.parametrize("used", [0, 1000, SUMMARY_BYTES - 3000, SUMMARY_BYTES - 10, SUMMARY_BYTES + 5])
def test_a_step_summary_stays_within_the_limit(used: int) -> None:
    text = summary(_many(900, "wörds " * 200), View(), used=used)
    assert len(text.encode()) <= max(0, SUMMARY_BYTES - used)
    if text:
        assert text.endswith("to have it all._\n")
        assert text.count("<details>") == text.count("</details>")


# Markdown.


@HOSTILE
def test_markdown_tables_and_blocks_cannot_be_forged(text: str) -> None:
    tame, wild = (MARKDOWN.parse(render("markdown", hostile(word), View(verbose=True))) for word in ("tame", text))
    kinds = [token.type for token in tame]
    if not text:
        return
    assert [token.type for token in wild] == kinds
    inline_kinds = {child.type for token in wild for child in token.children or []}
    assert not inline_kinds & {"link_open", "image", "em_open", "s_open"}
    html = {child.content for token in wild for child in token.children or [] if child.type == "html_inline"}
    assert html <= {"<code>", "</code>", "<!-- -->", "<summary>", "</summary>"}
    assert {token.content.strip() for token in wild if token.type == "html_block"} == {
        token.content.strip() for token in tame if token.type == "html_block"
    }


def test_markdown_is_what_a_reviewer_reads() -> None:
    text = render("markdown", FULL, View())
    assert "**Findings: 2 that break, 1 that may change results, 1 noise. 1 host could not be captured.**" in text
    assert "| `torch` | `2.9.1` | = | `2.10.0` |" in text
    assert "```sh\nuv pip install --no-deps speculators==0.3.0\n```" in text
    assert "- **EP801** `kernel`: is 6.8.0 on gpu-02 and 6.1.0 elsewhere (on gpu-02)" in text


# Text.


def test_text_of_a_fleet_at_80_columns() -> None:
    assert render("text", FULL, View()) == Path(__file__).with_name("full.txt").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("subject", "what", "line", "marked"),
    [
        ("torch", "torch 2.9.1 is gone", "    torch 2.9.1 is gone  (on a)", "`torch` 2.9.1 is gone"),
        ("torch", "torchvision needs another", "    torch  torchvision needs another  (on a)", "`torch`: torchvision needs another"),
        ("TF32", "TF32=1: forced", "    TF32=1: forced  (on a)", "`TF32`=1: forced"),
        ("a.py", "b.py:3 imports it", "    a.py  b.py:3 imports it  (on a)", "`a.py`: b.py:3 imports it"),
    ],
)
def test_a_subject_is_said_once(subject: str, what: str, line: str, marked: str) -> None:
    report = dataclasses.replace(EMPTY, findings=()).with_findings([finding("EP202", subject, ["a"], what)])
    assert line in render("text", report, View()).splitlines()
    assert marked in render("markdown", report, View())


def test_text_of_parity() -> None:
    assert render("text", EMPTY, View()) == (
        "envspec diff  compared with majority: A\n"
        "\n"
        "  A  trainer  train  Python 3.12.3, torch 2.9.1+cu128\n"
        "  A  server  infer  Python 3.12.3, torch 2.9.1+cu128\n"
        "\n"
        "190 packages, 190 matched, 0 differed, 2 hosts.\n"
        "No findings.\n"
    )


@pytest.mark.parametrize("width", [40, 60, 80, 200])
def test_text_keeps_to_the_width_except_for_commands(width: int) -> None:
    report = dataclasses.replace(
        FULL, findings=(*FULL.findings, dataclasses.replace(FULL.findings[0], what="word " * 60, fix="pip install " + "x==1 " * 60))
    )
    for line in render("text", report, View(width=width)).splitlines():
        assert len(line) <= width or is_command(line.strip().removeprefix("fix: ")), line


def test_a_command_is_not_broken_over_lines() -> None:
    command = "uv pip install --no-deps --python /opt/very/long/path/to/an/environment/bin/python speculators==0.3.0 torch==2.9.1"
    report = Report(findings=(dataclasses.replace(FULL.findings[0], fix=command),))
    assert f"fix: {command}\n" in render("text", report, View(width=60))


def test_many_groups_become_several_tables_each_with_the_reference() -> None:
    groups = (Group(name="lock", hosts=("a.lock",), kind="lock", reference=True), *(Group(name=f"G{n}", hosts=(f"host{n}",)) for n in range(8)))
    row = Row(
        kind="package",
        key="torch",
        severity="breaks",
        cells=(Cell(state="same", text="2.9.1"), *(Cell(state="different", text=f"2.{n}.0") for n in range(8))),
    )
    text = render("text", Report(groups=groups, rows=(row,)), View())
    headers = [line for line in text.splitlines() if line.startswith("differs")]
    assert len(headers) == 2
    assert all("lock" in line for line in headers)
    for number in range(8):
        assert text.count(f"G{number} host{number}") == 1
        assert text.count(f"2.{number}.0") == 1


def test_text_has_colour_only_when_asked() -> None:
    assert "\x1b[" not in render("text", FULL, View())
    coloured = render("text", FULL, View(colour=True))
    assert "\x1b[" in coloured
    assert re.sub(r"\x1b\[[0-9;]*m", "", coloured).split() == render("text", FULL, View()).split()


@HOSTILE
def test_coloured_text_holds_only_our_own_escapes(text: str) -> None:
    output = render("text", hostile(text), View(colour=True, verbose=True))
    assert not [char for char in re.sub(r"\x1b\[[0-9;]*m", "", output) if unicodedata.category(char) in {"Cc", "Cf", "Cs"} and char != "\n"]


def test_verbose_text_lists_what_was_declared_and_ignored() -> None:
    assert "~orch" not in render("text", FULL, View())
    verbose = render("text", FULL, View(verbose=True))
    assert "~orch" in verbose
    assert "Declared or ignored (2)" in verbose
    assert "It rarely matters." in verbose


def test_ascii_text_is_ascii() -> None:
    assert render("text", FULL, View(ascii=True)).isascii()


def test_a_long_list_that_the_table_shows_is_folded_but_nothing_that_breaks_is() -> None:
    rows = tuple(Row(kind="package", key=f"package-{n:05}", severity="results", cells=(Cell(state="different", text="1"),)) for n in range(30))
    report = dataclasses.replace(_many(30), groups=(Group(name="A", hosts=("a",)),), rows=rows)
    text = render("text", report, View())
    breaks, _, rest = text.partition("May change results (30)")
    assert breaks.count("    scripts/launch.py:32:5  package-") == 30
    results, _, noise = rest.partition("Noise (30)")
    assert results.count("package-") == 5
    assert "and 25 more, which are in the table above; --verbose tells each" in results
    assert noise.count("package-") == 5
    assert render("text", report, View(verbose=True)).count("    scripts/launch.py:32:5  package-") == 90
    without = render("text", dataclasses.replace(report, rows=()), View())
    assert without.count("    scripts/launch.py:32:5  package-") == 90


def test_without_a_reference_every_column_tells_its_value() -> None:
    groups = (Group(name="A", hosts=("a",)), Group(name="B", hosts=("b",)))
    row = Row(kind="package", key="fsspec", severity="results", cells=(Cell(state="different", text="2026.6.0"), Cell(state="same", text="2026.9.0")))
    report = Report(groups=groups, rows=(row,))
    assert "fsspec    2026.6.0   2026.9.0\n" in render("text", report, View())
    assert "as the reference" not in render("text", report, View())
    assert "| `fsspec` | `2026.6.0` | `2026.9.0` |" in render("markdown", report, View())


# How the reader sees it.


class _Stream(io.StringIO):
    def __init__(self, terminal: bool, encoding: str | None = "utf-8") -> None:
        super().__init__()
        self._terminal, self._encoding = terminal, encoding

    def isatty(self) -> bool:
        return self._terminal

    @property
    def encoding(self) -> str | None:  # type: ignore[override]
        return self._encoding


@pytest.mark.parametrize(
    ("terminal", "environment", "colour"),
    [
        (True, {}, True),
        (False, {}, False),
        (True, {"NO_COLOR": "1"}, False),
        (True, {"NO_COLOR": ""}, True),
        (True, {"NO_COLOR": "1", "CLICOLOR_FORCE": "1"}, False),
        (False, {"CLICOLOR_FORCE": "1"}, True),
        (False, {"CLICOLOR_FORCE": "0"}, False),
        (True, {"CLICOLOR": "0"}, False),
        (True, {"CLICOLOR": "0", "CLICOLOR_FORCE": "1"}, True),
        (True, {"TERM": "dumb"}, False),
    ],
)
def test_colour_precedence(terminal: bool, environment: dict[str, str], colour: bool) -> None:
    assert view_of(_Stream(terminal), environment).colour is colour


def test_width_and_encoding_come_from_the_stream() -> None:
    assert view_of(_Stream(False), {}).width == 80
    assert view_of(_Stream(False), {"COLUMNS": "132"}).width == 132
    assert view_of(_Stream(False), {"COLUMNS": "7"}).width == 40
    assert view_of(_Stream(False), {"COLUMNS": "wide"}).width == 80
    assert view_of(_Stream(False), {"COLUMNS": "000"}).width == 80
    assert view_of(_Stream(False), {"COLUMNS": "0000000000000132"}).width == 132
    assert view_of(_Stream(False), {"COLUMNS": "9" * 5000}).width == 10_000
    assert view_of(_Stream(False, "latin-1"), {}).ascii is True
    assert view_of(_Stream(False, "UTF-8"), {}).ascii is False
    assert view_of(_Stream(False, None), {}).ascii is False


# Host sets.


@pytest.mark.parametrize(
    ("labels", "folded"),
    [
        (["b", "a"], "a, b"),
        (["gpu-1", "gpu-2"], "gpu-1, gpu-2"),
        (["gpu-1", "gpu-2", "gpu-3"], "gpu-[1-3]"),
        ([f"gpu-{n:02}" for n in (1, 2, 3, 7, 10)], "gpu-[01-03,07,10]"),
        ([f"n{n}" for n in (8, 9, 10, 11)], "n[8-11]"),
        (["trainer", "r1.example", "r2.example", "r3.example"], "r[1-3].example, trainer"),
        ([], ""),
    ],
)
def test_fold_hosts(labels: list[str], folded: str) -> None:
    assert fold_hosts(labels) == folded


def _unfold(folded: str) -> set[str]:
    labels: set[str] = set()
    for part in re.split(r", ", folded) if folded else []:
        found = re.fullmatch(r"(.*?)\[([\d,-]+)\](.*)", part)
        if not found:
            labels.add(part)
            continue
        for run in found[2].split(","):
            start, _, end = run.partition("-")
            width = len(start) if start.startswith("0") and len(start) > 1 else 0
            width = max(width, len(start)) if len(start) == len(end or start) else width
            labels |= {f"{found[1]}{number:0{width}d}{found[3]}" for number in range(int(start), int(end or start) + 1)}
    return labels


@given(st.lists(st.from_regex(r"(gpu|n)-?\d{1,3}(\.example)?", fullmatch=True) | st.sampled_from(["trainer", "local"])))
def test_folding_loses_no_host(labels: list[str]) -> None:
    assert _unfold(fold_hosts(labels)) == set(labels)
    assert fold_hosts(labels) == fold_hosts(reversed(labels))


def test_outcome_counts_what_the_report_holds() -> None:
    assert outcome(EMPTY) == "No findings."
    assert outcome(dataclasses.replace(EMPTY, hosts=(HostStatus(label="x", status="failed"),))) == "No findings. 1 host could not be captured."


# Anything at all.

_words = st.text(max_size=12) | st.sampled_from(ATTACKS)
_findings = st.builds(
    Finding,
    code=st.sampled_from(["EP101", "EP201", "EP999"]),
    severity=st.sampled_from(["breaks", "results", "noise"]),
    subject=_words,
    hosts=st.lists(_words, max_size=3).map(tuple),
    what=_words,
    why=_words,
    fix=_words,
    declared=st.booleans(),
    ignored=st.booleans(),
)


@settings(deadline=None, max_examples=25)
@given(
    st.lists(_findings, max_size=5), st.lists(st.builds(HostStatus, label=_words, status=st.sampled_from(["ok", "partial", "failed"])), max_size=3)
)
def test_every_format_of_any_report_is_valid(findings: list[Finding], hosts: list[HostStatus]) -> None:
    report = Report(hosts=tuple(hosts)).with_findings(findings)
    for name in RENDERERS:
        render(name, report, View()).encode("utf-8")
    document = json.loads(render("json", report, View()))
    schemas.check_findings(document)
    assert Report.from_dict(document) == report
    schemas.check_sarif(json.loads(render("sarif", report, View(anchor="a.lock"))))
    schemas.check_junit(render("junit", report, View()))


def test_hundreds_of_packages_beyond_the_lock_are_names_and_no_rows() -> None:
    names = [f"package-{n:03}" for n in range(200)]
    extra = [Finding(code="EP212", severity="noise", subject=name, hosts=("gpu-1",), what=f"{name} is installed", why="w", fix="f") for name in names]
    missing = Finding(code="EP201", severity="breaks", subject="torch", hosts=("gpu-1",), what="torch is not installed", why="w", fix="f")
    lock, there = Cell(state="unlisted"), Cell(state="different", text="1")
    rows = [Row(kind="package", key="torch", severity="breaks", cells=(Cell(state="same", text="2.9.1"), Cell(state="absent")))]
    rows += [Row(kind="package", key=name, severity="noise", cells=(lock, there)) for name in names]
    groups = (Group(name="lock", hosts=(), kind="lock", reference=True), Group(name="A", hosts=("gpu-1",)))
    report = dataclasses.replace(_many(0), groups=groups, rows=tuple(rows)).with_findings([missing, *extra])
    text = render("text", report, View(width=80))
    assert len(text.splitlines()) < 40
    assert max(map(len, text.splitlines())) <= 80
    assert "EP212 A package is installed that the lock does not list" in text
    assert "200 on gpu-1: package-000, package-001" in text
    assert "and 140 more, which --verbose tells" in " ".join(text.split())
    assert not re.search(r"(?m)^package-", text)
    verbose = render("text", report, View(width=80, verbose=True))
    assert all(re.search(rf"(?m)^{name} ", verbose) for name in names)
    few = dataclasses.replace(report, rows=tuple(rows[:4])).with_findings([missing, *extra[:3]])
    assert re.search(r"(?m)^package-001 ", render("text", few, View(width=80)))
