"""The page about locks: its commands are run one after the other, and print what the page shows."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from envspec.cli import OPTIONS
from envspec.stacks import load_stack
from tests.envspec.docs.test_docs import examples, matches
from tests.envspec.locking.index import Index

ROOT = Path(__file__).parents[3]
PAGE = ROOT / "docs" / "docker" / "locks.md"


@pytest.fixture
def demo(tmp_path: Path) -> Path:
    """The page's folder: a stack, an index with stand-ins of what real stacks hold, and an `envspec`."""
    index = Index(tmp_path / "wheels", tmp_path / "docker" / "stacks")
    index.wheels.mkdir()
    index.stacks.mkdir(parents=True)
    for version, needs in (("0.2.0", "transformers>=4"), ("0.7.0", "transformers>=4.57"), ("0.9.0", "transformers>=5")):
        index.add("speculators", version, [needs, "torch"])
    for version in ("4.57.1", "5.3.0"):
        index.add("transformers", version)
    index.add("torch", "2.9.1", ["nvidia-cuda-runtime-cu12==12.8.90"])
    index.add("nvidia-cuda-runtime-cu12", "12.8.90")
    index.add("sglang", "0.5.9", ["transformers==4.57.1", "torch==2.9.1"])
    index.add("sglang", "0.5.10", ["transformers==4.57.1", "torch==2.9.1", "sglang-kernel"])
    index.add("sglang-kernel", "0.4.0", ["nvidia-nccl-cu13"])
    index.add("nvidia-nccl-cu13", "2.28")
    index.stack("sglang==0.5.9\nspeculators\n", name="demo", settings='cuda: "12.8"\n')
    command = tmp_path / "bin" / "envspec"
    command.parent.mkdir()
    command.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m envspec "$@"\n')
    command.chmod(0o755)
    return tmp_path


def test_the_commands_print_what_the_page_shows(demo: Path) -> None:
    settings = {"UV_NO_INDEX": "1", "UV_OFFLINE": "1", "UV_FIND_LINKS": str(demo / "wheels"), "UV_CACHE_DIR": str(demo / "cache"), "PYTHONPATH": str(ROOT)}
    environment = {**os.environ, **settings, "PATH": f"{demo / 'bin'}{os.pathsep}{os.environ['PATH']}", "PYTHONIOENCODING": "utf-8"}
    shown = examples(PAGE)
    assert len(shown) > 5
    for example in shown:
        code = 0
        for command, expected in example.commands:
            done = subprocess.run(["sh", "-c", command], cwd=demo, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, encoding="utf-8", check=False)
            assert matches(expected, done.stdout), f"{example}: $ {command}\n{done.stdout}"
            code = done.returncode
        assert code == example.code, example
    assert {path.name for path in (demo / "project").iterdir()} == {"pyproject.toml", "uv.lock"}


def test_every_option_and_format_is_on_the_page() -> None:
    text = PAGE.read_text("utf-8")
    for name in ("check", "upgrade", "base", "wheelhouse", "force"):
        assert any(flag in text for flag in OPTIONS[name].flags), name
    choices = OPTIONS["lock-format"].settings["choices"]
    assert sorted(re.findall(r"^\| `(pylock|uv|requirements)`", text, re.M)) == sorted(choices)


def test_the_table_of_files_is_what_stacks_hold() -> None:
    rows = set(re.findall(r"`([a-z.]+\.(?:in|lock|json|yaml))`", PAGE.read_text("utf-8").split("## Lock", 1)[0]))
    held = {path.name for folder in (ROOT / "docker" / "stacks").iterdir() if load_stack(folder) for path in folder.iterdir()}
    assert held <= rows
