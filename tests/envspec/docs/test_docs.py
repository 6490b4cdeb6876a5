"""Every command in the documentation is run, and what it prints is compared with what the page shows.

A block is fenced as ``console exit=N``. ``...`` on a line of its own stands for any lines, inside a line for any text.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import stat
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

from envspec.cli import COMMANDS, OPTIONS
from envspec.report import RENDERERS
from tests.envspec.build import python_env
from tests.envspec.docs.example import FOLDER, write
from tests.envspec.worlds import ENVSPEC, install, make_venv, modules

PAGES = FOLDER.parent
_BLOCK = re.compile(r"^```console(?P<info>[^\n]*)\n(?P<body>.*?)^```$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Example:
    """One fenced block: commands with what each prints, and the exit code of the last."""

    page: str
    line: int
    code: int
    commands: tuple[tuple[str, str], ...]

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"


def examples(*pages: Path) -> list[Example]:
    """The blocks of these pages, else of all that are about hosts."""
    found = []
    for page in pages or sorted(PAGES.glob("*.md")):
        text = page.read_text(encoding="utf-8")
        for block in _BLOCK.finditer(text):
            info = re.fullmatch(r" exit=(\d)", block["info"])
            assert info, f"{page.name}: a console block without exit=N"
            commands: list[tuple[str, str]] = []
            for line in block["body"].splitlines(keepends=True):
                if line.startswith("$ "):
                    commands.append((line[2:].strip(), ""))
                else:
                    commands[-1] = (commands[-1][0], commands[-1][1] + line)
            found.append(Example(page.name, text.count("\n", 0, block.start()) + 1, int(info[1]), tuple(commands)))
    return found


def matches(expected: str, printed: str) -> bool:
    """Whether the text is as expected, where ``...`` stands for anything."""
    parts = re.split(r"^\.\.\.\n|\.\.\.", expected, flags=re.MULTILINE)
    pattern = ".*?".join(re.escape(part) for part in parts)
    return re.fullmatch(pattern, printed, re.DOTALL) is not None


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the example beside an environment, and an ssh that knows one host and runs its command here."""
    folder = tmp_path_factory.mktemp("docs")
    shutil.copytree(FOLDER, folder / "example")
    modules(folder / "wheels", alpha="1.0")
    install(make_venv(folder / "home" / "env"), folder / "wheels", "alpha==1.0")
    ssh = folder / "ssh"
    ssh.write_text(
        "#!/bin/sh\nwhile [ \"$1\" != -- ]; do shift; done\n"
        'case "$2" in gpu-*) HOME="$HERE" exec sh -c "$3";; *) echo "ssh: Could not resolve hostname $2" >&2; exit 255;; esac\n'
    )  # fmt: skip
    ssh.chmod(ssh.stat().st_mode | stat.S_IXUSR)
    return folder


@pytest.mark.parametrize("example", examples(), ids=str)
def test_a_documented_command_prints_what_the_page_shows(example: Example, place: Path, tmp_path: Path) -> None:
    here = tmp_path / "example"
    shutil.copytree(place / "example", here)
    env = {
        **python_env(),
        "PYTHONIOENCODING": "utf-8",
        "ENVSPEC_PYTHON": str(place / "home" / "env" / "bin" / "python"),
        "ENVSPEC_SSH": str(place / "ssh"),
        "HERE": str(place / "home"),
    }
    for name in ("GITHUB_ACTIONS", "GITHUB_STEP_SUMMARY", "COLUMNS", "CLICOLOR_FORCE", "ENVSPEC_SALT"):
        env.pop(name, None)
    code = 0
    for command, expected in example.commands:
        words = shlex.split(command)
        assert words[0] == "envspec", f"{example}: only envspec is run here"
        result = subprocess.run([*ENVSPEC, *words[1:]], cwd=here, env=env, capture_output=True, text=True, encoding="utf-8", check=False)
        assert result.stderr == "", result.stderr
        assert matches(expected, result.stdout), f"{example}: $ {command}\n{result.stdout}"
        code = result.returncode
    assert code == example.code


def test_the_pages_hold_examples_of_every_command() -> None:
    shown = {shlex.split(command)[1] for example in examples() for command, _ in example.commands}
    # These are on the pages of images: `lock` and `export` run there, the others need a container engine.
    elsewhere = {command.name for command in COMMANDS if command.name in ("lock", "export") or command.name.startswith("images ")}
    assert shown == {command.name for command in COMMANDS} - elsewhere


def test_every_flag_and_format_in_the_pages_exists() -> None:
    flags = {flag for option in OPTIONS.values() for flag in option.flags if flag.startswith("-")} | {"--version", "--help"}
    for page in PAGES.glob("*.md"):
        if page.name == "codes.md":
            continue
        text = page.read_text(encoding="utf-8")
        for block in re.findall(r"envspec [^`\n]*|`--[^`]*`", text):
            for flag in re.findall(r"(?<![\w-])--[a-z][a-z-]*", block):
                assert flag in flags, f"{page.name}: {flag}"
    formats = (PAGES / "outputs.md").read_text(encoding="utf-8")
    for name in RENDERERS:
        assert f"| `{name}` |" in formats


def test_links_between_the_pages_lead_somewhere() -> None:
    for page in PAGES.glob("*.md"):
        for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8")):
            assert (PAGES / target).exists(), f"{page.name}: {target}"


def test_the_example_snapshots_are_what_their_builder_makes(tmp_path: Path) -> None:
    write(tmp_path)
    for made in tmp_path.iterdir():
        assert made.read_bytes() == (FOLDER / made.name).read_bytes(), "write them again: python -m tests.envspec.docs.example"
    assert {path.name for path in tmp_path.iterdir()} == {path.name for path in FOLDER.glob("*.json")}


def test_elision() -> None:
    assert matches("a\n...\nd\n", "a\nb\nc\nd\n")
    assert matches("a ... c\n", "a b c\n")
    assert not matches("a\nb\n", "a\nc\n")
    assert not matches("...\nz\n", "a\nb\n")
    assert os.linesep == "\n"
