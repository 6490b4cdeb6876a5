"""The pages about images: links lead somewhere, sessions and scenarios exist, variables are those that the workflows read."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from envspec import cuda
from tests.github.conftest import ROOT
from tests.github.run_workflows import SCENARIOS

DOCS = ROOT / "docs" / "docker"
PAGES = sorted(DOCS.glob("*.md"))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_to_files(page: Path) -> None:
    targets = re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text("utf-8"))
    assert [target for target in targets if not (page.parent / target).exists()] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_files_sessions_and_scenarios_exist(page: Path) -> None:
    text, noxfile = page.read_text("utf-8"), (ROOT / "noxfile.py").read_text("utf-8")
    named = re.findall(r"(?:^|[ `])((?:docker|\.github)/[\w./-]+\.(?:yml|yaml|sh|sbatch))", text, re.M)
    assert [name for name in named if not (ROOT / name).exists()] == []
    sessions = set(re.findall(r"nox(?:w)? -s ([a-z][a-z-]*)", text))
    assert [name for name in sessions if not re.search(rf'name="{name}"|^def {name}\(', noxfile, re.M)] == []
    scenarios = set(re.findall(r"workflows -- run (?!-)([a-z-]+)", text))
    assert scenarios <= {scenario.name for scenario in SCENARIOS}


def test_variables_are_those_that_the_workflows_read() -> None:
    read = {name for path in (ROOT / ".github" / "workflows").glob("*.yml") for name in re.findall(r"vars\.([A-Z_]+)", path.read_text("utf-8"))}
    page = (DOCS / "actions.md").read_text("utf-8").split("Repository variables", 1)[1]
    assert set(re.findall(r"^\| `([A-Z_]+)` \|", page, re.M)) == read
    listed = (ROOT / ".github" / "actionlint.yaml").read_text("utf-8").split("config-variables:", 1)[1]
    assert set(re.findall(r"- ([A-Z_]+)", listed)) == read


def test_the_drivers_are_envspecs() -> None:
    text = (DOCS / "runner.md").read_text("utf-8")
    assert f"below {cuda.DRIVER_FLOORS[12]}" in text
    assert f"{cuda.TOOLKIT_DRIVERS['12.8']} and later" in text


def test_the_runners_labels_are_the_workflows() -> None:
    labels = re.search(r"runs-on: \[([^\]]+)\]", (ROOT / ".github" / "workflows" / "gpu.yml").read_text("utf-8"))
    assert labels is not None
    text = (DOCS / "runner.md").read_text("utf-8")
    assert all(f"`{label.strip()}`" in text for label in labels[1].split(","))
