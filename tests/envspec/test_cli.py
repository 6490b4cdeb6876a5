"""The command line itself: arguments, exit codes, streams. What the commands do is in test_end_to_end.py."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
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
        ("diff", "local", "--lock", ""),
        ("diff", "local", "--baseline", ""),
        ("diff", "local", "--write-baseline", ""),
        ("diff", "local", "--spec", ""),
        ("capture", "local", "-o", ""),
        ("preflight", "", "--on", "local"),
        ("plan", "local", "--for", ""),
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


@pytest.fixture
def example(tmp_path: Path) -> Path:
    """The documentation's example: a spec, a lock, a script and snapshots."""
    return shutil.copytree(ROOT / "docs" / "envspec" / "example", tmp_path / "example")


def shell(command: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    env = {"PYTHONPATH": str(ROOT), "PATH": os.environ["PATH"]}
    line = command.replace("envspec ", f"{sys.executable} -m envspec ", 1)
    return subprocess.run(["bash", "-c", line], cwd=cwd, capture_output=True, text=True, check=False, env=env)


@pytest.mark.parametrize("command", ["explain", "diff", "capture gpu-01.json", "capture gpu-01.json gpu-02.json -o new/"])
def test_a_full_disk_under_standard_output_is_one_sentence(example: Path, command: str) -> None:
    done = shell(f"envspec {command} > /dev/full", example)
    assert (done.returncode, done.stderr) == (2, "envspec: cannot write standard output: No space left on device\n")
    if "-o" in command:
        assert sorted(path.name for path in (example / "new").iterdir()) == ["gpu-01.json", "gpu-02.json"]


@pytest.mark.parametrize("command", ["envspec --help > /dev/full", "envspec diff nonsense 2> /dev/full", "envspec diff --nonsense 2> /dev/full"])
def test_a_stream_that_cannot_be_written_leaves_exit_code_2(example: Path, command: str) -> None:
    done = shell(command, example)
    assert (done.returncode, done.stdout, done.stderr) == (2, "", "")


def test_a_gone_reader_of_remarks_does_not_change_the_exit_code(example: Path) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run([sys.executable, "-m", "envspec", "diff", "nonsense"], cwd=ROOT, stdout=subprocess.DEVNULL, stderr=writing, check=False)
    os.close(writing)
    assert done.returncode == 2


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_the_command_and_what_it_started(tmp_path: Path, number: signal.Signals) -> None:
    hang = tmp_path / "hang"
    hang.write_text(f"#!/bin/sh\necho $$ >> {tmp_path}/started\nexec sleep 300\n")
    hang.chmod(0o755)
    (tmp_path / "next").symlink_to("hang")
    command = [sys.executable, "-m", "envspec", "capture", "--no-spec", "local:./hang", "local:./next", "--jobs", "1", "-o", "out/"]
    # A shell's background job ignores interrupts and hands that on; the command under test must not inherit it.
    listening = lambda: [signal.signal(each, signal.SIG_DFL) for each in (signal.SIGINT, signal.SIGHUP)]  # noqa: E731
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    process = subprocess.Popen(command, cwd=tmp_path, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, preexec_fn=listening)
    for _ in range(300):
        if (tmp_path / "started").exists() and (tmp_path / "started").read_text().endswith("\n"):
            break
        time.sleep(0.1)
    process.send_signal(number)
    out, err = process.communicate(timeout=30)
    said = "interrupted" if number == signal.SIGINT else f"ended by {number.name}"
    assert (process.returncode, out, err) == (128 + number, "", f"envspec: {said}\n")
    (child,) = map(int, (tmp_path / "started").read_text().split())
    for _ in range(100):
        try:
            os.kill(child, 0)
        except ProcessLookupError:
            return
        if Path(f"/proc/{child}/stat").exists() and Path(f"/proc/{child}/stat").read_text().split()[2] == "Z":
            return  # ended; whoever inherited it has not asked yet
        time.sleep(0.1)
    pytest.fail("what the command had started was left behind")


def test_an_interrupt_while_the_program_is_loaded_is_no_traceback(tmp_path: Path) -> None:
    (tmp_path / "argparse.py").write_text("raise KeyboardInterrupt\n")
    env = {"PYTHONPATH": f"{tmp_path}:{ROOT}"}
    done = subprocess.run([sys.executable, "-m", "envspec", "explain"], cwd=tmp_path, env=env, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "envspec: interrupted\n")


@pytest.mark.parametrize(
    ("arguments", "kept"),
    [
        ("diff --output json=requirements.lock", "requirements.lock"),
        ("diff --output json=./envspec.yaml", "envspec.yaml"),
        ("diff --output json=link", "gpu-01.json"),
        ("diff --write-baseline trainer.json", "trainer.json"),
        ("diff --no-spec gpu-01.json gpu-02.json --lock requirements.lock --output text=requirements.lock", "requirements.lock"),
        ("preflight launch.py --on gpu-01.json --output json=launch.py", "launch.py"),
        ("capture gpu-01.json gpu-02.json -o .", "gpu-01.json"),
        ("init gpu-01.json --spec gpu-01.json --force", "gpu-01.json"),
    ],
)
def test_what_is_read_is_never_overwritten(example: Path, arguments: str, kept: str) -> None:
    (example / "link").symlink_to("gpu-01.json")
    before = (example / kept).read_bytes()
    done = envspec(*arguments.split(), cwd=example)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.count("\n") == 1
    assert (example / kept).read_bytes() == before


def test_a_snapshot_that_cannot_be_written_costs_only_itself(example: Path) -> None:
    (example / "out" / "gpu-01.json").mkdir(parents=True)
    done = envspec("capture", "gpu-01.json", "gpu-02.json", "-o", "out", cwd=example)
    assert done.returncode == 2
    assert done.stderr == "envspec: gpu-01.json: cannot write the snapshot out/gpu-01.json: Is a directory\n"
    assert done.stdout.startswith("out/gpu-02.json: gpu-02.json, ")


def test_a_baseline_can_go_into_a_pipe(example: Path) -> None:
    done = shell("mkfifo pipe; timeout 30 cat pipe > read & envspec diff --write-baseline pipe > printed; code=$?; test -p pipe && wait && exit $code", example)
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads((example / "read").read_text())["schema"] == "envspec/baseline/1"


@pytest.mark.parametrize(
    "arguments",
    [
        "capture {5000}",
        "capture x={5000}",
        "diff gpu-01.json gpu-02.json --output json={300}",
        "diff gpu-01.json gpu-02.json --lock {300}",
        "diff gpu-01.json gpu-02.json --lock {300}={300}",
        "preflight {300} --on gpu-01.json",
        "lock {300}",
        "export {300}",
        "init --spec {300}",
    ],
)
def test_a_name_that_is_too_long_is_one_sentence(example: Path, arguments: str) -> None:
    done = envspec(*arguments.replace("{5000}", "x" * 5000).replace("{300}", "x" * 300).split(), cwd=example)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("envspec: ")
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize("seconds", ["inf", "1e300", "1e18", "nan", "-1", "0"])
def test_a_time_that_makes_no_sense_leaves_nothing_behind(example: Path, seconds: str) -> None:
    done = envspec("capture", "gpu-01.json", "-o", "new/", f"--timeout={seconds}", cwd=example)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert not (example / "new").exists()


def test_a_working_directory_that_is_gone_is_one_sentence(example: Path) -> None:
    done = shell(f"mkdir gone; cd gone; rmdir ../gone; envspec preflight a.py --on {example}/gpu-01.json", example)
    assert (done.returncode, done.stderr) == (2, "envspec: the working directory does not exist any more; change into one that does\n")


def test_names_that_would_be_workflow_commands_are_shown_as_text(example: Path) -> None:
    (example / "##[error]c.json").write_bytes((example / "gpu-01.json").read_bytes())
    saved = envspec("capture", "./##[error]c.json", "gpu-02.json", "-o", "::error::q/", cwd=example)
    printed = envspec("capture", "./##[error]c.json", cwd=example)
    assert [line[:13] for line in saved.stdout.splitlines()] == ["\\x3a:error::q"] * 2
    assert "##[" not in saved.stdout + printed.stdout
    assert json.loads(printed.stdout)["capture"]["label"] == "./##[error]c.json"


def test_an_interpreter_that_is_an_option_is_in_no_command(example: Path) -> None:
    snapshot = json.loads((example / "gpu-01.json").read_text())
    snapshot["interpreter"]["executable"] = "-x"
    (example / "bad.json").write_text(json.dumps(snapshot))
    done = envspec("plan", "bad.json", "--lock", "requirements.lock", cwd=example)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "envspec: the interpreter's path on bad.json is '-x', which a command would take for an option\n"


def test_a_closed_stdout_is_no_error() -> None:
    """Started with it closed, as some supervisors do: the work is done, the exit code tells."""
    command = [sys.executable, "-m", "envspec", "explain"]
    done = subprocess.run(["sh", "-c", 'exec "$@" >&-', "sh", *command], cwd=ROOT, stderr=subprocess.PIPE, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")
