"""Workflows and actions are checked by the checkers of the trade, and hold what those do not look at."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.github.conftest import ROOT, Run

GITHUB = ROOT / ".github"
WORKFLOWS = sorted((GITHUB / "workflows").glob("*.yml"))
ACTIONS = sorted((GITHUB / "actions").glob("*/action.yml"))
STAND_INS = sorted(Path(__file__).parent.glob("actions/*/action.yml"))


def load(path: Path) -> dict[Any, Any]:
    document = yaml.safe_load(path.read_text("utf-8"))
    assert isinstance(document, dict)
    return document


def steps_of(path: Path) -> list[dict[str, Any]]:
    document = load(path)
    jobs = document["jobs"].values() if "jobs" in document else [document["runs"]]
    return [step for job in jobs for step in job["steps"]]


def test_they_are_there() -> None:
    assert [path.stem for path in WORKFLOWS] == ["ci", "gpu", "images"]
    assert [path.parent.name for path in ACTIONS] == ["diff-env", "serve-check", "standalone-test"]


def test_zizmor_finds_nothing(program: Run) -> None:
    done = program("zizmor", "--offline", "--no-progress", "--persona", "pedantic", ".github")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "No findings to report" in done.stdout + done.stderr


def test_zizmor_would_find_something(program: Run, tmp_path: Path) -> None:
    text = WORKFLOWS[0].read_text("utf-8")
    broken = tmp_path / ".github" / "workflows" / "ci.yml"
    broken.parent.mkdir(parents=True)
    broken.write_text(re.sub(r"actions/checkout@[0-9a-f]{40} # \S+", "actions/checkout@v7", text), "utf-8")
    done = program("zizmor", "--offline", "--no-progress", broken)
    assert done.returncode != 0
    assert "unpinned-uses" in done.stdout


def test_actionlint_finds_nothing(program: Run) -> None:
    done = program("actionlint", *WORKFLOWS)
    assert (done.returncode, done.stdout) == (0, ""), done.stdout + done.stderr


@pytest.mark.parametrize(
    ("schema", "files"),
    [
        ("vendor.github-workflows", WORKFLOWS),
        ("custom.github-workflows-require-timeout", WORKFLOWS),
        ("vendor.github-actions", [*ACTIONS, *STAND_INS]),
        ("vendor.dependabot", [GITHUB / "dependabot.yml"]),
        ("vendor.compose-spec", [ROOT / "docker" / "compose.yaml"]),
    ],
)
def test_files_follow_their_schemas(schema: str, files: list[Path], program: Run) -> None:
    assert files
    done = program("check-jsonschema", "--builtin-schema", schema, *files)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_dockerfile_passes_hadolint(program: Run) -> None:
    done = program("hadolint", "--failure-threshold", "warning", "docker/Dockerfile")
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_nothing_is_allowed_that_a_job_does_not_name(path: Path) -> None:
    document = load(path)
    assert document["permissions"] == {}
    assert "concurrency" in document
    for name, job in document["jobs"].items():
        assert job["permissions"]["contents"] in ("read", "write"), name
        assert "timeout-minutes" in job, name


@pytest.mark.parametrize("path", [*WORKFLOWS, *ACTIONS], ids=lambda path: path.parent.name + "/" + path.stem)
def test_other_peoples_actions_are_pinned_and_leave_no_credentials(path: Path) -> None:
    for step in steps_of(path):
        uses = step.get("uses", "./")
        assert uses.startswith("./") or re.fullmatch(r"[\w-]+/[\w.-]+@[0-9a-f]{40}", uses), uses
        if uses.startswith("actions/checkout@"):
            assert step["with"]["persist-credentials"] is False
    pins = dict(re.findall(r"uses: (\S+)@[0-9a-f]{40} # (v\d+\.\d+\.\d+)$", path.read_text("utf-8"), re.M))
    assert set(pins) == {step["uses"].split("@")[0] for step in steps_of(path) if "@" in step.get("uses", "")}, "each pin says its release"


def test_an_action_has_one_pin() -> None:
    """The same commit everywhere: an update that leaves one behind would go unseen."""
    found: dict[str, set[str]] = {}
    for path in [*WORKFLOWS, *ACTIONS]:
        for action, commit in re.findall(r"uses: ([\w-]+/[\w.-]+)@([0-9a-f]{40})", path.read_text("utf-8")):
            found.setdefault(action, set()).add(commit)
    assert {action: commits for action, commits in found.items() if len(commits) > 1} == {}


def test_no_code_of_a_fork_reaches_the_gpu() -> None:
    document = load(GITHUB / "workflows" / "gpu.yml")
    assert set(document[True]) == {"push", "schedule", "workflow_dispatch"}
    assert document[True]["push"] == {"branches": ["main"]}
    for name, job in document["jobs"].items():
        assert job["runs-on"] == ["self-hosted", "linux", "x64", "gpu"], name
    self_hosted = [path.stem for path in WORKFLOWS if "self-hosted" in path.read_text("utf-8")]
    assert self_hosted == ["gpu"]


def test_the_hosts_are_compared_before_an_image_is_touched() -> None:
    jobs = load(GITHUB / "workflows" / "gpu.yml")["jobs"]
    assert jobs["images"]["needs"] == "hosts"
    assert any(step.get("uses") == "./.github/actions/diff-env" for step in jobs["hosts"]["steps"])
    names = [step.get("run", step.get("uses", "")) for step in jobs["images"]["steps"]]
    order = [next(i for i, text in enumerate(names) if part in text) for part in ("docker pull", "-s verify-images", "-s smoke", "standalone-test", "serve-check")]
    assert order == sorted(order)


@pytest.mark.parametrize("path", [*WORKFLOWS, *ACTIONS], ids=lambda path: path.parent.name + "/" + path.stem)
def test_sessions_exist(path: Path) -> None:
    noxfile = (ROOT / "noxfile.py").read_text("utf-8")
    used = set(re.findall(r"noxw\"?.*? -s ([a-z][a-z-]*)", path.read_text("utf-8")))
    used |= {entry["session"] for job in load(path).get("jobs", {}).values() for entry in job.get("strategy", {}).get("matrix", {}).get("include", []) if path.stem == "ci"}
    missing = [name for name in used if not re.search(rf'name="{name}"|^def {name.replace("-", "_")}\(', noxfile, re.M)]
    assert missing == []


@pytest.mark.parametrize("path", ACTIONS, ids=lambda path: path.parent.name)
def test_every_input_is_used_and_documented(path: Path) -> None:
    document, text = load(path), path.read_text("utf-8")
    page = (ROOT / "docs" / "docker" / "actions.md").read_text("utf-8")
    section = page.split(f"## {path.parent.name}\n", 1)[1].split("\n## ", 1)[0]
    rows = dict(re.findall(r"^\| `([a-z-]+)` \| (.*?) \|$", section, re.M))
    assert rows == {name: " ".join(each["description"].split()) for kind in ("inputs", "outputs") for name, each in document[kind].items()}
    assert [name for name in document["inputs"] if f"inputs.{name} " not in text] == []


@pytest.mark.parametrize("path", sorted((GITHUB / "matchers").glob("*.json")), ids=lambda path: path.stem)
def test_matchers_have_what_the_runner_needs(path: Path) -> None:
    owners = set()
    for matcher in json.loads(path.read_text("utf-8"))["problemMatcher"]:
        owners.add(matcher["owner"])
        (pattern,) = matcher["pattern"]
        assert re.compile(pattern["regexp"]).groups >= max(value for value in pattern.values() if isinstance(value, int))
        assert {"file", "message"} <= set(pattern)
    assert len(owners) == len(json.loads(path.read_text("utf-8"))["problemMatcher"])
