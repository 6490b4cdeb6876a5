"""Making a base with debootstrap: what is missing is one sentence, and a failure imports nothing."""

from __future__ import annotations

import os
import tarfile
from pathlib import Path

import pytest

from envspec.errors import UsageError
from envspec.images.base import bootstrap
from envspec.images.engine import Engine, EngineError


def program(path: Path, script: str) -> None:
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)


@pytest.fixture
def engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Engine:
    """An engine that records what it imports."""
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    program(tmp_path / "docker", f'echo "$*" >{tmp_path}/called; cat >{tmp_path}/imported.tar; echo sha256:abc')
    return Engine(name="docker", command=str(tmp_path / "docker"), version="1")


MAKES = 'for root; do case $root in /*) break ;; esac; done; mkdir -p "$root/etc" "$root/var/log" "$root/proc"; echo 12 >"$root/etc/debian_version"; echo x >"$root/var/log/dpkg.log"'


def test_the_tree_is_imported_in_one_order_without_logs(engine: Engine, tmp_path: Path) -> None:
    program(tmp_path / "debootstrap", MAKES)
    told: list[str] = []
    assert bootstrap(engine, "base:1", ["python3", "ca-certificates"], suite="bookworm", tell=told.append) == "sha256:abc"
    assert (tmp_path / "called").read_text() == "import --message debootstrap bookworm - base:1\n"
    with tarfile.open(tmp_path / "imported.tar") as archive:
        members = archive.getmembers()
    assert [member.name for member in members] == [".", "./etc", "./etc/debian_version", "./proc", "./var", "./var/log"]
    assert {member.mtime for member in members} == {0}
    assert told == ["debootstrap bookworm with python3, ca-certificates", "importing base:1"]


def test_a_mirror_that_fails_imports_nothing(engine: Engine, tmp_path: Path) -> None:
    program(tmp_path / "debootstrap", "echo 'E: Failed getting release file http://mirror.example/Release' >&2; exit 1")
    with pytest.raises(EngineError, match=r"debootstrap of bookworm failed: E: Failed getting release file .*; name a mirror that can be reached with --mirror URL"):
        bootstrap(engine, "base:1", ["python3"], suite="bookworm")
    assert not (tmp_path / "called").exists()


def test_an_import_that_fails_is_said(engine: Engine, tmp_path: Path) -> None:
    program(tmp_path / "debootstrap", MAKES)
    program(tmp_path / "docker", "cat >/dev/null; echo 'Error response from daemon: no space left on device' >&2; exit 1")
    with pytest.raises(EngineError, match=r"^docker could not import the base: no space left on device$"):
        bootstrap(engine, "base:1", ["python3"], suite="bookworm")


def test_it_needs_root(engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program(tmp_path / "debootstrap", MAKES)
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(UsageError, match="needs root; run it with sudo"):
        bootstrap(engine, "base:1", ["python3"], suite="bookworm")
