"""Findings, reports, the catalogue, ignores and the baseline."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from envspec import policy
from envspec.errors import UsageError
from envspec.findings import (
    SCHEMA,
    Counts,
    Finding,
    HostStatus,
    Location,
    Report,
    json_schema,
    sort_findings,
)
from envspec.rules import FAMILIES, RULES, finding, rule


def some(**changes: Any) -> Finding:
    made = finding(
        "EP202", "torch", ["b", "a", "a"], "torch is 2.9.1", evidence={"expected": "2.10.0", "found": "2.9.1"}
    )
    return made.replace(**changes)


class TestFinding:
    def test_words_come_from_the_rule(self) -> None:
        made = some()
        assert made.severity == RULES["EP202"].severity
        assert made.why == RULES["EP202"].why
        assert made.fix == RULES["EP202"].mend
        assert made.hosts == ("a", "b")

    def test_fixed_keys(self) -> None:
        """The contract: these keys are always there."""
        keys = {"code", "severity", "subject", "hosts", "what", "why", "fix", "declared", "ignored"}
        assert keys <= some().to_dict().keys()

    def test_fingerprint_names_the_fact(self) -> None:
        base = some()
        assert re.fullmatch("[0-9a-f]{16}", base.fingerprint)
        assert some(what="reworded", fix="x", severity="noise").fingerprint == base.fingerprint
        assert some(hosts=("b", "a")).fingerprint == base.fingerprint
        place = some(location=Location(file="s.py", line=3))
        assert some(location=Location(file="s.py", line=9)).fingerprint == place.fingerprint
        assert some(evidence={"expected": "2.10.0", "found": "2.8.0"}).fingerprint != base.fingerprint
        assert some(hosts=("a",)).fingerprint != base.fingerprint
        assert some(subject="numpy").fingerprint != base.fingerprint

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            ({"severity": "fatal"}, r"finding.severity: expected one of breaks"),
            ({"hosts": [1]}, r"finding.hosts\[0\]: expected str, found int"),
            ({"declared": 1}, r"finding.declared: expected bool, found int"),
            ({"location": {"file": "x", "line": True}}, r"finding.location.line: expected int"),
            ({"evidence": []}, r"finding.evidence: expected an object"),
        ],
    )
    def test_bad_values_are_named_by_path(self, change: dict[str, Any], message: str) -> None:
        with pytest.raises(UsageError, match=message):
            Finding.from_dict({**some().to_dict(), **change})

    def test_missing_key(self) -> None:
        data = {key: value for key, value in some().to_dict().items() if key != "fix"}
        with pytest.raises(UsageError, match=r"finding.fix: the key is missing"):
            Finding.from_dict(data)


class TestReport:
    def test_round_trip_and_schema(self) -> None:
        report = Report(
            hosts=(HostStatus(label="a"), HostStatus(label="b", status="failed", reason="refused")),
            counts=Counts(hosts=2, failed=1),
        ).with_findings([some(location=Location(file="x", line=1)), some(subject="numpy", ignored=True)])
        document = json.loads(json.dumps(report.to_dict()))
        jsonschema.validate(document, json_schema(), cls=jsonschema.Draft202012Validator)
        assert Report.from_dict(document) == report
        assert document["schema"] == SCHEMA
        with pytest.raises(UsageError, match="schema"):
            Report.from_dict({**document, "schema": "other/1"})

    @pytest.mark.parametrize(
        ("severity", "fail_on", "code"),
        [
            ("breaks", "breaks", 1),
            ("results", "breaks", 0),
            ("results", "results", 1),
            ("noise", "results", 0),
            ("noise", "any", 1),
            ("breaks", "never", 0),
        ],
    )
    def test_exit_codes(self, severity: str, fail_on: Any, code: int) -> None:
        assert Report(findings=(some(severity=severity),)).exit_code(fail_on) == code
        assert Report(findings=(some(severity=severity, declared=True),)).exit_code(fail_on) == 0
        assert Report(findings=(some(severity=severity, ignored=True),)).exit_code(fail_on) == 0

    def test_a_host_that_was_not_captured(self) -> None:
        report = Report(findings=(some(severity="breaks"),), hosts=(HostStatus(label="a", status="failed"),))
        assert report.exit_code() == 3
        assert report.exit_code("never") == 3

    def test_worst_first(self) -> None:
        mixed = [
            some(severity="noise"),
            some(severity="breaks", ignored=True),
            some(severity="results"),
            some(severity="breaks"),
        ]
        assert [(item.severity, item.ignored) for item in sort_findings(mixed)] == [
            ("breaks", False),
            ("breaks", True),
            ("results", False),
            ("noise", False),
        ]


class TestCatalogue:
    def test_every_row_is_whole(self) -> None:
        names = [row.name for row in RULES.values()]
        assert len(set(names)) == len(names)
        for code, row in RULES.items():
            assert re.fullmatch(r"EP[1-9]\d\d", code)
            assert code[:3] in FAMILIES
            assert re.fullmatch(r"[a-z0-9-]+", row.name)
            assert row.title[0].isupper()
            assert not row.title.endswith(".")
            assert row.why.endswith(".")
            assert row.mend.rstrip().endswith((".", "`"))

    def test_codes_are_in_order(self) -> None:
        assert list(RULES) == sorted(RULES)

    def test_every_comparison_code_is_made_somewhere(self) -> None:
        """A row that no check can report is a promise nobody keeps."""
        package = Path(policy.__file__).parent
        source = "".join(path.read_text() for path in sorted(package.rglob("*.py")) if path.name != "rules.py")
        assert [code for code in RULES if f'"{code}"' not in source] == []

    def test_look_up(self) -> None:
        assert rule("ep202") is RULES["EP202"]
        with pytest.raises(UsageError, match="EP201"):
            rule("EP299")


class TestBaseline:
    def test_accepts_what_is_there_and_nothing_new(self, tmp_path: Path) -> None:
        path = tmp_path / "baseline.json"
        path.write_text(policy.accepting([some(), some(subject="declared", declared=True)], path).to_text())
        baseline = policy.load_baseline(path)
        today = [some(), some(evidence={"expected": "2.10.0", "found": "2.8.0"})]
        assert [item.ignored for item in policy.apply(today, baseline=baseline)].count(True) == 1
        assert policy.audit(today, baseline=baseline) == ()
        (gone,) = policy.audit([], baseline=baseline)
        assert gone.code == "EP907"
        assert "EP202 torch on a, b" in gone.what
        assert policy.audit([], baseline=baseline, looked=lambda code, _: code.startswith("EP1")) == ()

    def test_applying_twice_changes_nothing(self, tmp_path: Path) -> None:
        path = tmp_path / "baseline.json"
        baseline = policy.accepting([some()], path)
        once = policy.apply([some(), some(subject="x")], baseline=baseline)
        assert policy.apply(once, baseline=baseline) == once

    @pytest.mark.parametrize("text", ["", "[]", "{}", '{"schema": "envspec/baseline/1", "accepted": [1]}', "nul"])
    def test_bad_files(self, tmp_path: Path, text: str) -> None:
        path = tmp_path / "baseline.json"
        path.write_text(text)
        with pytest.raises(UsageError, match="baseline"):
            policy.load_baseline(path)
        path.write_text('{"schema": "envspec/baseline/1", "accepted": {}, "accepted": {"f": "EP202 torch"}}')
        with pytest.raises(UsageError, match="the key 'accepted' stands twice"):
            policy.load_baseline(path)
        with pytest.raises(UsageError, match="cannot read"):
            policy.load_baseline(tmp_path / "none.json")
