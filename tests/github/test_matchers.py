"""The problem matchers on what pytest and mypy really print."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tests.github.act import Annotation, annotate, load_matchers

MATCHERS = Path(__file__).parents[2] / ".github" / "matchers"

FAILING = """\
import pytest

@pytest.fixture
def broken():
    raise RuntimeError("no such thing")

def test_wrong():
    assert 1 + 1 == 3

def test_setup(broken):
    pass

def test_right():
    pass
"""


def annotations(output: str, name: str) -> list[Annotation]:
    matchers = load_matchers(MATCHERS / f"{name}.json")
    return [found for line in output.splitlines() if (found := annotate(line, matchers))]


@pytest.mark.parametrize("settings", [{"FORCE_COLOR": "1", "PY_COLORS": "0"}, {}])
def test_failures_of_pytest(tmp_path: Path, settings: dict[str, str]) -> None:
    """Also where nox forces colours, which the workflow takes back: the runner's matchers do not see through them."""
    assert yaml.safe_load((MATCHERS.parent / "workflows" / "ci.yml").read_text("utf-8"))["env"]["PY_COLORS"] == "0"
    (tmp_path / "test_it.py").write_text(FAILING)
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-ra", "test_it.py"]
    environment = {name: value for name, value in os.environ.items() if name not in ("PYTEST_ADDOPTS", "PYTEST_XDIST_WORKER")} | settings
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 1
    found = annotations(done.stdout, "pytest")
    assert [(each.level, each.file, each.line) for each in found if each.line] == [("error", "test_it.py", 5), ("error", "test_it.py", 8)]
    assert {each.message.split(" ")[0] for each in found if each.line is None} == {"::test_wrong", "::test_setup"}


def test_a_green_run_of_pytest_gives_none(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text("def test_right():\n    print('tests/a.py:3: a word')\n    print('FAILED to fail')\n")
    done = subprocess.run([sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-s", "test_it.py"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0
    assert annotations(done.stdout, "pytest") == []


def test_errors_of_mypy() -> None:
    output = """\
envspec/broken.py:1: error: Incompatible types in assignment (expression has type "str", variable has type "int")  [assignment]
envspec/broken.py:7:12: error: Function is missing a return type annotation  [no-untyped-def]
envspec/broken.py:9: note: Use "-> None" if function does not return a value
Found 2 errors in 1 file (checked 80 source files)
"""
    assert annotations(output, "mypy") == [
        Annotation(
            level="error",
            file="envspec/broken.py",
            line=1,
            title="assignment",
            message='Incompatible types in assignment (expression has type "str", variable has type "int")',
        ),
        Annotation(level="error", file="envspec/broken.py", line=7, title="no-untyped-def", message="Function is missing a return type annotation"),
    ]
