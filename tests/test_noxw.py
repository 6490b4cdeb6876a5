"""The bootstrap: real environments and the real pip, with a stand-in for nox so that no network is needed."""

from __future__ import annotations

import base64
import hashlib
import os
import shutil
import stat
import subprocess
import sys
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PIN = "2026.10.20"


def make_wheel(folder: Path, version: str) -> None:
    """A wheel named nox whose module prints its version and arguments."""
    files = {
        "nox/__init__.py": f"version = {version!r}\n",
        "nox/__main__.py": "import sys, nox\nprint('fake nox', nox.version, *sys.argv[1:])\nsys.exit(7 if 'fail' in sys.argv else 0)\n",
        f"nox-{version}.dist-info/METADATA": f"Metadata-Version: 2.1\nName: nox\nVersion: {version}\n",
        f"nox-{version}.dist-info/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = f"nox-{version}.dist-info/RECORD"
    lines = []
    for name, text in files.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=").decode()
        lines.append(f"{name},sha256={digest},{len(text.encode())}\n")
    files[record] = "".join(lines) + f"{record},,\n"
    folder.mkdir(exist_ok=True)
    with zipfile.ZipFile(folder / f"nox-{version}-py3-none-any.whl", "w") as wheel:
        for name, text in files.items():
            wheel.writestr(name, text)


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A project folder (with a space in its name) that holds noxw and wheels of two nox versions."""
    folder = tmp_path / "my project"
    folder.mkdir()
    shutil.copy(ROOT / "noxw", folder / "noxw")
    (folder / "noxfile.py").write_text("")
    make_wheel(tmp_path / "wheels", PIN)
    make_wheel(tmp_path / "wheels", "2026.1.1")
    return folder


def run(project: Path, *arguments: str, path: str | None = None, cwd: Path | None = None, **env: str) -> subprocess.CompletedProcess[str]:
    clean = {key: value for key, value in os.environ.items() if not key.startswith(("PIP_", "NOXW_", "PYTHON"))}
    clean |= {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(project.parent / "wheels"), "PIP_CONFIG_FILE": os.devnull, **env}
    if path is not None:
        clean["PATH"] = path
    command = [str(project / "noxw"), *arguments]
    return subprocess.run(command, env=clean, cwd=cwd or project, capture_output=True, text=True, timeout=300, check=False, stdin=subprocess.DEVNULL)


def fake_python(folder: Path, name: str, script: str) -> None:
    folder.mkdir(exist_ok=True)
    file = folder / name
    file.write_text(f"#!/bin/sh\n{script}\n")
    file.chmod(file.stat().st_mode | stat.S_IXUSR)


def tools(tmp_path: Path) -> str:
    """A PATH with a shell's tools and no Python."""
    folder = tmp_path / "tools"
    folder.mkdir()
    for tool in ("sh", "dirname", "cat", "rm", "mv", "tail", "touch"):
        found = shutil.which(tool)
        assert found is not None
        (folder / tool).symlink_to(found)
    return str(folder)


def test_the_pin_is_one_exact_version() -> None:
    assert f"pin=${{NOXW_VERSION:-{PIN}}}" in (ROOT / "noxw").read_text()


def test_makes_an_environment_once_and_passes_arguments_and_exit_code(project: Path) -> None:
    """Also where pip is told to install for the user or only into environments, and a PYTHONPATH is set: none of it reaches nox's own."""
    settings = {"NOXW_PYTHON": sys.executable, "PIP_USER": "1", "PIP_REQUIRE_VIRTUALENV": "1", "PYTHONPATH": "/nowhere"}
    first = run(project, "-s", "standalone-test", "--", "--drafter", "a b", **settings)
    assert first.returncode == 0, first.stderr
    assert first.stdout == f"fake nox {PIN} --noxfile {project}/noxfile.py -s standalone-test -- --drafter a b\n"
    assert f"installing nox {PIN} into .noxw/ (once)" in first.stderr
    assert sorted(p.name for p in project.iterdir()) == [".noxw", "noxfile.py", "noxw"]
    again = run(project, "fail", cwd=project.parent)
    assert (again.returncode, again.stderr) == (7, "")
    (project / ".noxw" / "bin" / "python").unlink()  # the Python it was made with went away
    assert run(project, "-l", NOXW_PYTHON=sys.executable).returncode == 0


def test_two_at_once_do_not_disturb_each_other(project: Path) -> None:
    with ThreadPoolExecutor() as pool:
        done = list(pool.map(lambda word: run(project, word, NOXW_PYTHON=sys.executable), ["one", "two"]))
    assert [each.returncode for each in done] == [0, 0]
    assert sorted(p.name for p in project.iterdir()) == [".noxw", "noxfile.py", "noxw"]


def test_another_version_is_installed_anew(project: Path) -> None:
    assert run(project, NOXW_PYTHON=sys.executable).returncode == 0
    other = run(project, NOXW_PYTHON=sys.executable, NOXW_VERSION="2026.1.1")
    assert other.stdout.startswith("fake nox 2026.1.1 ")


def test_takes_the_first_python_that_is_new_enough(project: Path, tmp_path: Path) -> None:
    fake_python(tmp_path / "bin", "python3", "exit 1  # an older Python answers so")
    fake_python(tmp_path / "bin", "python3.12", f'touch "{tmp_path}/used"; exec "{sys.executable}" "$@"')
    done = run(project, path=f"{tmp_path / 'bin'}:{tools(tmp_path)}")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "used").exists()


def test_says_what_to_install_where_there_is_no_python(project: Path, tmp_path: Path) -> None:
    done = run(project, path=tools(tmp_path))
    assert done.returncode == 2
    assert done.stderr.startswith("noxw: no Python 3.10 or newer on the PATH; install one (Debian, Ubuntu: apt-get install python3 python3-venv)")
    assert len(done.stderr.splitlines()) == 1


def test_says_so_when_the_named_python_does_not_suit(project: Path) -> None:
    done = run(project, NOXW_PYTHON="/no/such/python")
    assert (done.returncode, done.stderr) == (2, "noxw: NOXW_PYTHON=/no/such/python is no working Python 3.10 or newer; name another.\n")


@pytest.mark.parametrize("message", ["ensurepip is not\navailable", "/usr/bin/python3: No module named venv"])
def test_says_what_to_install_where_venv_is_missing(project: Path, tmp_path: Path, message: str) -> None:
    fake_python(
        tmp_path / "bin", "python3", f'case "$1 $2" in "-m venv") mkdir -p "$3" 2>/dev/null; printf "%s\\n" "{message}" >&2; exit 1;; esac\nexec "{sys.executable}" "$@"'
    )
    done = run(project, path=f"{tmp_path / 'bin'}:{tools(tmp_path)}")
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1
    assert f"has no working 'venv' module; install it (Debian, Ubuntu: apt-get install python{version}-venv or python3-venv" in done.stderr
    assert sorted(p.name for p in project.iterdir()) == ["noxfile.py", "noxw"]


def test_a_failed_download_leaves_nothing_behind(project: Path) -> None:
    done = run(project, NOXW_PYTHON=sys.executable, NOXW_VERSION="1999.1.1")
    assert done.returncode == 2
    assert "noxw: nox 1999.1.1 could not be installed (pip's reason stands above)" in done.stderr
    assert sorted(p.name for p in project.iterdir()) == ["noxfile.py", "noxw"]
