"""The command line itself: arguments, exit codes, streams. What the commands do is in test_end_to_end.py."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from envspec.cli import COMMANDS, OPTIONS, _expand, parser
from envspec.rules import RULES

ROOT = Path(__file__).parents[2]


def envspec(*arguments: str, cwd: Path = ROOT) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "envspec", *arguments], cwd=cwd, capture_output=True, text=True, check=False, env={"PYTHONPATH": str(ROOT)}
    )


def test_every_option_is_used_and_every_command_can_be_parsed() -> None:
    used = {name for command in COMMANDS for name in command.options}
    assert used == set(OPTIONS)
    for command in COMMANDS:
        words = [*command.name.split(), *(name for name in ("host", "image", "images", "argv") if name in command.options)]
        assert parser().parse_args(words).chosen is command


@pytest.mark.parametrize(
    ("arguments", "expanded"),
    [
        (["diff", "--deep", "local"], ["diff", "--deep=*", "local"]),
        (["diff", "--deep=sglang", "local"], ["diff", "--deep=sglang", "local"]),
        (["diff", "--", "--deep"], ["diff", "--", "--deep"]),
    ],
)
def test_deep_without_a_value_takes_no_host(arguments: list[str], expanded: list[str]) -> None:
    assert _expand(arguments) == expanded


@pytest.mark.parametrize(
    "arguments",
    [
        (),
        ("nonsense",),
        ("diff", "--format", "yaml"),
        ("diff", "--fail-on", "all"),
        ("diff", "--form", "json"),
        ("plan",),
        ("diff", "--timeout", "soon"),
    ],
)
def test_wrong_use_is_exit_code_2_without_a_traceback(arguments: tuple[str, ...]) -> None:
    result = envspec(*arguments)
    assert result.returncode == 2
    assert result.stdout == ""
    assert "error:" in result.stderr
    assert "Traceback" not in result.stderr


def test_explain_one_code_many_a_family_and_all() -> None:
    assert envspec("explain", "ep101").stdout.startswith("EP101  An imported package is not installed\n")
    assert [line[:5] for line in envspec("explain", "EP101", "EP201").stdout.splitlines() if line.startswith("EP")] == ["EP101", "EP201"]
    assert [rule["code"] for rule in json.loads(envspec("explain", "EP3", "--format", "json").stdout)] == [
        code for code in RULES if code.startswith("EP3")
    ]
    everything = envspec("explain").stdout
    assert all(code in everything for code in RULES)


def test_explain_of_an_unknown_code_names_close_ones() -> None:
    result = envspec("explain", "EP199")
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr.startswith("envspec: there is no finding code 'EP199'; codes like it: EP101, ")
    assert result.stderr.count("\n") == 1


def test_a_reader_that_goes_away_is_no_traceback() -> None:
    command = f"{sys.executable} -m envspec explain --format json | head -c 10"
    result = subprocess.run(["bash", "-c", command], cwd=ROOT, capture_output=True, text=True, check=False)
    assert result.stderr == ""
    assert len(result.stdout) == 10


def test_a_reader_that_has_gone_ends_it_without_a_word() -> None:
    """`envspec explain | head -0`: the shell's code for a broken pipe, nothing on stderr."""
    with subprocess.Popen([sys.executable, "-m", "envspec", "explain"], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait(60) == 141


def test_a_closed_stdout_is_no_error() -> None:
    """Started with it closed, as some supervisors do: the work is done, the exit code tells."""
    command = [sys.executable, "-m", "envspec", "explain"]
    done = subprocess.run(["sh", "-c", 'exec "$@" >&-', "sh", *command], cwd=ROOT, stderr=subprocess.PIPE, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")
