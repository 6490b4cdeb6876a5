"""Fixtures: an index that is a folder, with uv kept offline; and the command line run in this process."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path

import pytest

from envspec.cli import main
from envspec.output import Sink
from tests.envspec.locking.index import Index

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Index:
    """An empty folder of wheels that is uv's only source."""
    made = Index(tmp_path / "wheels", tmp_path / "stacks")
    made.wheels.mkdir()
    made.stacks.mkdir()
    for key, value in {"UV_NO_INDEX": "1", "UV_OFFLINE": "1", "UV_FIND_LINKS": str(made.wheels), "UV_CACHE_DIR": str(tmp_path / "cache")}.items():
        monkeypatch.setenv(key, value)
    return made


@pytest.fixture
def run(index: Index) -> Run:
    """``envspec`` on the index's stacks: exit code, standard output, standard error."""

    def call(command: str, *arguments: str, environment: dict[str, str] | None = None) -> tuple[int, str, str]:
        sink = Sink(stdout=io.StringIO(), stderr=io.StringIO(), environment=environment or {})
        code = main([command, "--stacks", str(index.stacks), *arguments], sink)
        assert isinstance(sink.stdout, io.StringIO)
        assert isinstance(sink.stderr, io.StringIO)
        return code, sink.stdout.getvalue(), sink.stderr.getvalue()

    return call
