"""What judges the executed workflows: it must see a red run that should be green, and a green one that should be red."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from tests.github.act import ROOT, Annotation, Outcome
from tests.github.run_workflows import SCENARIOS, Expected, judge


def outcome(*, result: str = "success", annotations: list[Annotation] | None = None) -> Outcome:
    failed = [("images", "Both images hold one environment")] if result == "failure" else []
    return Outcome(exit_code=int(result != "success"), jobs={"images": result}, failed_steps=failed, annotations=annotations or [], summary="3 findings")


GREEN = Expected(jobs=("images",))
RED = Expected(failed=("images", "one environment"), annotation="EP208 .*packaging", file="docker/lock")
RIGHT = Annotation(level="error", title="EP208 packaging", message="packaging was changed", file="docker/lock", line=3)


def test_as_expected(tmp_path: Path) -> None:
    assert judge(outcome(), GREEN, tmp_path) == []
    assert judge(outcome(result="failure", annotations=[RIGHT]), RED, tmp_path) == []


@pytest.mark.parametrize(
    ("got", "expected", "words"),
    [
        (outcome(result="failure"), GREEN, "job images ended with failure"),
        (Outcome(exit_code=0), GREEN, "no result"),
        (outcome(annotations=[RIGHT]), GREEN, "unexpected annotation"),
        (outcome(), RED, "should have failed"),
        (outcome(result="failure"), RED, "no error fits"),
        (outcome(result="failure", annotations=[Annotation(level="warning", title=RIGHT.title, message=RIGHT.message, file=RIGHT.file)]), RED, "no error fits"),
        (outcome(result="failure", annotations=[Annotation(level="error", title=RIGHT.title, message=RIGHT.message)]), RED, "no error fits"),
        (outcome(result="failure", annotations=[RIGHT]), Expected(failed=("images", "smoke")), "'smoke' of images should have failed"),
        (outcome(), Expected(jobs=("images",), summary="acceptance"), "does not hold 'acceptance'"),
        (outcome(), Expected(jobs=("images",), artifacts=("a/b.json",)), "artifact a/b.json is missing"),
    ],
)
def test_anything_else_is_said(got: Outcome, expected: Expected, words: str, tmp_path: Path) -> None:
    assert words in "; ".join(judge(got, expected, tmp_path))


def test_every_job_of_every_workflow_is_executed() -> None:
    executed = {(scenario.workflow, job) for scenario in SCENARIOS for job in scenario.expected.jobs}
    all_jobs = {
        (path.name, job)
        for path in (ROOT / ".github" / "workflows").glob("*.yml")
        for job in yaml.safe_load(path.read_text("utf-8"))["jobs"]
    }  # fmt: skip
    assert executed == all_jobs


def test_names_are_unique_and_red_ones_are_called_so() -> None:
    names = [scenario.name for scenario in SCENARIOS]
    assert len(set(names)) == len(names)
    assert [s.name for s in SCENARIOS if s.name.startswith("red-") != (s.expected.failed is not None)] == []
    assert all(re.compile(s.expected.annotation) for s in SCENARIOS if s.expected.annotation)
