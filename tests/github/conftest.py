"""The checkers, as programs beside the running interpreter."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="session")
def program() -> Run:
    """Run a program of the test environment, else of the PATH, from the project's root; skips where it is not there."""

    def run(name: str, *arguments: str | Path, cwd: Path = ROOT) -> subprocess.CompletedProcess[str]:
        beside = Path(sys.executable).parent / name
        found = str(beside) if beside.exists() else shutil.which(name)
        if found is None:
            pytest.skip(f"{name} is not installed here")
        return subprocess.run([found, *map(str, arguments)], cwd=cwd, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL, timeout=120)

    return run
