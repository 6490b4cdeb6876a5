"""CI's entry: passes the tests' exit code on and ends with pytest's closing line, whatever is installed."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    (tmp_path / "clone" / ".ci").mkdir(parents=True)
    shutil.copy(ROOT / ".ci" / "run", tmp_path / "clone" / ".ci" / "run")
    return tmp_path / "clone"


def program(folder: Path, name: str, script: str) -> None:
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(f"#!/bin/sh\n{script}\n")
    (folder / name).chmod(0o755)


def run(clone: Path, **programs: str) -> subprocess.CompletedProcess[str]:
    """With stand-ins first on the PATH; nothing on stdin, called from elsewhere."""
    folder = clone.parent / "bin"
    for name, script in {"apt-get": "echo apt-get $* >> '%s'" % (clone.parent / "log"), **programs}.items():
        program(folder, name.replace("_", "-"), script)
    env = {**os.environ, "PATH": f"{folder}{os.pathsep}{os.environ['PATH']}"}
    return subprocess.run([str(clone / ".ci" / "run")], cwd="/", env=env, capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=60, check=False)


OUTPUT = "echo 'nox > pytest'; printf '\\033[32m===== \\033[1m12 passed\\033[0m, 3 skipped in 4.56s (0:00:04) =====\\033[0m\\n'; echo 'nox > Session tests was successful.'"


def test_ends_with_pytests_closing_line(clone: Path) -> None:
    program(clone, "noxw", f'[ "$*" = "-s tests" ] || exit 9; read -r line && exit 8; {OUTPUT}')
    done = run(clone, chromium="", sshd="")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "===== 12 passed, 3 skipped in 4.56s (0:00:04) ====="
    assert "Session tests was successful." in done.stdout


def test_a_failure_is_the_exit_code(clone: Path) -> None:
    program(clone, "noxw", "echo '=== 1 failed, 11 passed in 4.56s ==='; exit 1")
    done = run(clone, chromium="", sshd="")
    assert done.returncode == 1
    assert done.stdout.splitlines()[-1] == "=== 1 failed, 11 passed in 4.56s ==="


def test_tests_run_even_where_nothing_can_be_installed(clone: Path) -> None:
    program(clone, "noxw", OUTPUT)
    done = run(clone, apt_get="exit 100", id="echo 0", python3="exit 1")
    assert done.returncode == 0
    assert "ci: python3-venv could not be installed" in done.stderr
