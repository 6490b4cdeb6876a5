"""Exports: read back, held against the lock, installed from by uv."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest

from envspec.locking.uv import run_uv
from envspec.locks import Target, load_lock
from tests.envspec.locking.conftest import Run
from tests.envspec.locking.index import LINUX, Index, sha256


def host(python: str) -> Target:
    full = f"{python}.4"
    return Target(
        markers={
            "os_name": "posix", "sys_platform": "linux", "platform_system": "Linux", "platform_machine": "x86_64", "platform_python_implementation": "CPython",
            "implementation_name": "cpython", "python_version": python, "python_full_version": full, "implementation_version": full,
        }
    )  # fmt: skip


WANTED = {
    "3.11": {"alpha": "1.0", "backport": "0.1", "delta": "3.0"},
    "3.12": {"alpha": "1.0", "delta": "3.0"},
}


@pytest.fixture
def demo(index: Index, run: Run) -> Index:
    index.add("alpha", "1.0", ["backport; python_version < '3.12'"], python=">=3.9")
    index.add("backport", "0.1")
    for python in ("cp311", "cp312"):
        index.add("delta", "3.0", tag=f"{python}-{python}-{LINUX}")
    index.stack("alpha\ndelta\n")
    assert run("lock")[0] == 0
    return index


def versions(path: Path, python: str) -> dict[str, str | None]:
    return {package.name: package.version for package in load_lock(path).select(host(python))[0] if package.direct is None or package.direct.kind != "directory"}


@pytest.mark.parametrize(("format", "name"), [("requirements", "requirements.txt"), ("pylock", "pylock.toml"), ("uv", "project")])
def test_each_format_says_the_same_for_each_python(demo: Index, run: Run, tmp_path: Path, format: str, name: str) -> None:
    target = tmp_path / name
    code, out, err = run("export", "small", "--format", format, "-o", str(target))
    assert (code, out, err) == (0, "", "")
    read = target / "uv.lock" if format == "uv" else target
    assert {python: versions(read, python) for python in WANTED} == WANTED
    held = {item for package in load_lock(demo.stacks / "small" / "requirements.lock").packages for item in package.hashes}
    exported = {item for package in load_lock(read).packages for item in package.hashes}
    # uv writes no hashes for a folder of wheels.
    assert exported == (set() if format == "uv" else held)


def test_a_stack_may_be_named_like_one_of_its_packages(demo: Index, run: Run, tmp_path: Path) -> None:
    demo.stack("alpha\ndelta\n", name="alpha")
    assert run("lock", "alpha")[0] == 0
    assert run("export", "alpha", "--format", "uv", "-o", str(tmp_path / "project")) == (0, "", "")
    assert versions(tmp_path / "project" / "uv.lock", "3.12") == WANTED["3.12"]


def test_requirements_and_pylock_go_to_standard_output_too(demo: Index, run: Run) -> None:
    assert run("export", "small", "--format", "requirements")[1].startswith("# small for CPython 3.11 and 3.12 on linux x86_64 with glibc 2.36, from its requirements.lock\nalpha==1.0 \\\n")
    assert run("export", "small")[1].startswith('lock-version = "1.0"\ncreated-by = "envspec"\nrequires-python = ">=3.11,<3.13"\n')


@pytest.mark.skipif(sys.version_info < (3, 11), reason="uv installs from a pylock only into a Python that it is for")
def test_a_pylock_from_a_wheelhouse_asks_no_index_and_moves_with_its_folder(demo: Index, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = tmp_path / "export"
    shutil.copytree(demo.wheels, place / "wheels")
    monkeypatch.setenv("UV_FIND_LINKS", str(tmp_path / "nothing"))
    target = place / "pylock.toml"
    assert run("export", "small", "--wheelhouse", str(place / "wheels"), "-o", str(target))[0] == 0
    assert 'path = "wheels/alpha-1.0-py3-none-any.whl"' in target.read_text()
    moved = place.rename(tmp_path / "moved")
    assert {file.name for package in load_lock(moved / "pylock.toml").packages for file in package.files} == {path.name for path in demo.wheels.iterdir()}
    shutil.rmtree(demo.wheels)
    monkeypatch.delenv("UV_FIND_LINKS")
    into = tmp_path / "into"
    platform = ["--python-platform", "x86_64-manylinux_2_28", "--python-version", "3.12"]
    run_uv(["pip", "install", "--python", sys.executable, *platform, "--target", str(into), "-r", str(moved / "pylock.toml")], tmp_path)
    assert {path.name for path in into.glob("*.dist-info")} == {"alpha-1.0.dist-info", "delta-3.0.dist-info"}


def test_a_wheelhouse_with_another_or_no_file(demo: Index, run: Run, tmp_path: Path) -> None:
    old = sha256(demo.wheels / "backport-0.1-py3-none-any.whl")
    new = sha256(demo.add("backport", "0.1", content="tampered"))
    target = tmp_path / "pylock.toml"
    code, _, err = run("export", "small", "--wheelhouse", str(demo.wheels), "-o", str(target))
    assert (code, err) == (1, f"envspec: hash mismatch: {demo.wheels / 'backport-0.1-py3-none-any.whl'} has sha256 {new}, the lock holds {old}\n")
    (demo.wheels / "backport-0.1-py3-none-any.whl").unlink()
    assert run("export", "small", "--wheelhouse", str(demo.wheels), "-o", str(target))[2] == f"envspec: backport-0.1-py3-none-any.whl of backport 0.1 is not in {demo.wheels}\n"
    assert not target.exists()


def test_an_index_with_another_or_no_file(demo: Index, run: Run, tmp_path: Path) -> None:
    old = sha256(demo.wheels / "backport-0.1-py3-none-any.whl")
    new = sha256(demo.add("backport", "0.1", content="tampered"))
    code, out, err = run("export", "small")
    assert (code, out) == (1, "")
    assert err == f"envspec: hash mismatch: the index serves backport-0.1-py3-none-any.whl with sha256:{new}, the lock holds sha256:{old}\n"
    (demo.wheels / f"delta-3.0-cp312-cp312-{LINUX}.whl").unlink()
    demo.add("delta", "3.0")
    demo.add("backport", "0.1")
    assert "the index no longer serves delta-3.0-cp312-cp312-" in run("export", "small")[2]


def test_a_lock_that_does_not_stand_is_not_exported(demo: Index, run: Run) -> None:
    lock = demo.stacks / "small" / "requirements.lock"
    lock.write_text(lock.read_text().replace("alpha==1.0", "alpha==1.1"))
    code, out, err = run("export", "small", "--format", "requirements")
    assert (code, out) == (2, "")
    assert "edited by hand: alpha is 1.1 here and 1.0 in requirements.metadata.json" in err


def test_uv_needs_a_folder_and_overwrites_no_project(demo: Index, run: Run, tmp_path: Path) -> None:
    assert "name their folder with -o DIR" in run("export", "small", "--format", "uv")[2]
    (tmp_path / "pyproject.toml").write_text("mine")
    assert "exists already; --force overwrites it" in run("export", "small", "--format", "uv", "-o", str(tmp_path))[2]
    assert (tmp_path / "pyproject.toml").read_text() == "mine"
    assert run("export", "small", "--role", "teacher")[0] == 2
