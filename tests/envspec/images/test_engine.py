"""Finding an engine, on a PATH with programs that answer as real ones do."""

from __future__ import annotations

from pathlib import Path

import pytest

from envspec.errors import UsageError
from envspec.images.engine import EngineError, engine_words, find_engine

DAEMON = "Cannot connect to the Docker daemon at unix:///var/run/docker.sock. Is the docker daemon running?"


def program(folder: Path, name: str, client: str = "", *, buildx: bool = False, complaint: str = "") -> Path:
    """A command line of an engine: its version, whether it has buildx, or what it complains of."""
    folder.mkdir(exist_ok=True)
    path = folder / name
    version = f"echo {complaint!r} >&2; exit 1" if complaint else f"echo '{client}'; exit 0"
    path.write_text(f"#!/bin/sh\ncase $1 in\nversion) {version} ;;\nbuildx) exit {0 if buildx else 1} ;;\nesac\nexit 9\n")
    path.chmod(0o755)
    return path


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Two folders that are the whole PATH."""
    folders = [tmp_path / "first", tmp_path / "second"]
    monkeypatch.setenv("PATH", ":".join(map(str, folders)))
    return folders


def test_a_client_that_holds_buildkit_serves_as_it_is(path: list[Path]) -> None:
    program(path[0], "docker", "20.10.24 20.10.24")
    engine = find_engine()
    assert (engine.name, engine.version, engine.buildx, engine.command) == ("docker", "20.10.24", False, str(path[0] / "docker"))


def test_a_newer_client_builds_through_its_plug_in(path: list[Path]) -> None:
    program(path[0], "docker", "28.2.2 28.2.2", buildx=True)
    assert find_engine("docker").buildx


def test_a_client_without_buildkit_gives_way_to_one_further_down_the_path(path: list[Path]) -> None:
    program(path[0], "docker", "28.2.2 20.10.24")
    program(path[1], "docker", "20.10.24 20.10.24")
    assert find_engine("docker").command == str(path[1] / "docker")


def test_a_client_without_buildkit_alone_says_what_to_install(path: list[Path]) -> None:
    program(path[0], "docker", "28.2.2 28.2.2")
    with pytest.raises(EngineError, match=r"docker 28\.2\.2 \(.*/first/docker\) cannot build with BuildKit; install its plug-in buildx") as caught:
        find_engine("docker")
    assert caught.value.exit_code == 3
    assert "\n" not in str(caught.value)


def test_podman_serves_where_docker_does_not(path: list[Path]) -> None:
    program(path[0], "docker", complaint=DAEMON)
    program(path[0], "podman", "4.3.1")
    assert (find_engine().name, find_engine().version) == ("podman", "4.3.1")


@pytest.mark.parametrize(
    ("complaint", "said"),
    [
        (DAEMON, "no docker daemon answers (Cannot connect to the Docker daemon at unix:///var/run/docker.sock. Is the docker daemon running?); start it"),
        ("Got permission denied while trying to connect: dial unix: permission denied", "add the user to the group docker"),
    ],
)
def test_a_daemon_that_does_not_answer(path: list[Path], complaint: str, said: str) -> None:
    program(path[0], "docker", complaint=complaint)
    with pytest.raises(EngineError) as caught:
        find_engine("docker")
    assert said in str(caught.value)


def test_no_engine_at_all_names_both(path: list[Path]) -> None:
    with pytest.raises(EngineError, match=r"there is no docker on the PATH; install Docker .*; there is no podman on the PATH$"):
        find_engine()


def test_a_name_that_is_no_engine() -> None:
    with pytest.raises(UsageError, match=r"no engine 'containerd' here; engines are docker and podman"):
        find_engine("containerd")


def test_an_engines_words_are_one_line_without_its_own_prefix() -> None:
    assert engine_words("Error response from daemon: No such image: x:latest\nSee 'docker run --help'.\n") == "No such image: x:latest"
    assert engine_words("") == "it said nothing"
