"""What a snapshot says is written by others: no name, version, path or host name of it may run or forge anything."""

from __future__ import annotations

import dataclasses
import io
import json
import re
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from envspec.cli import main
from envspec.output import Sink
from envspec.report import RENDERERS
from envspec.snapshot import Distribution, FileFault, Leftover, Origin, Problem, SharedFile, Snapshot, StartupHook, Variable, Verification, save
from tests.envspec.docs.example import FOLDER, snapshots

PAYLOADS = (
    "x$(>pwned)",
    "x`>pwned`",
    "x;>pwned;",
    "x'>pwned'",
    'x">pwned"',
    "x\n>pwned\n",
    "x|>pwned&",
    "EOF\n>pwned\nEOF",
    "-r/etc/passwd",
    "::error file=a::forged",
    "x\n::error file=a::forged",
    "##[error]x",
    "\x1b[2J\x9b31m\u202e",
    "a|b</details><script>",
    "https://user:hunter2@a.example/x",
    "",
)


def poisoned(text: str) -> Snapshot:
    """A server of the example in which everything that can hold a string holds this one."""
    base = snapshots()["gpu-01"]
    assert base.interpreter is not None
    assert base.torch is not None
    (first, *rest) = base.distributions
    bad = Distribution(
        name=text,
        raw_name=text,
        version=text,
        location=text,
        metadata_path=text,
        installer=text,
        requires=(f"{text}>=1", "numpy>=99", f"alpha ; {text}"),
        modules=(text,),
        origin=Origin(kind="vcs", url=text, vcs="git", commit=text, dirty=True, changed=(text,)),
        problems=(Problem(kind="no-record", detail=text, path=text),),
        verification=Verification(checked=1, faults=(FileFault(path=text, fault="modified", expected=text, found=text),)),
    )
    changed = replace(first, version=text, verification=bad.verification, problems=bad.problems, origin=bad.origin)
    return replace(
        base,
        capture=replace(base.capture, label=text, target=text, hostname=text, user=text, noise=text, notes=(text,), python="/" + text),
        interpreter=replace(base.interpreter, executable="/" + text, prefix=text, version="3.12.3", venv_creator=text),
        distributions=(changed, *rest, bad),
        leftovers=(Leftover(path=text, name=text),),
        shared_files=(SharedFile(owners=(text, "numpy"), paths=(text,), count=1, same=False),),
        hooks=(StartupHook(kind="pth", path=text, line=text),),
        environment={text: Variable(value=text), "LD_PRELOAD": Variable(value=text), "PYTHONPATH": Variable(value=text), "PYTORCH_CUDA_ALLOC_CONF": Variable(value=text)},
        torch=replace(base.torch, version=text, variant=text, cuda=text),
    )  # fmt: skip


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("trainer.json", "requirements.lock", "launch.py"):
        (tmp_path / name).write_bytes((FOLDER / name).read_bytes())
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(*arguments: str, environment: dict[str, str] | None = None) -> tuple[int, str, str]:
    out, err = (io.TextIOWrapper(io.BytesIO(), "utf-8", write_through=True) for _ in range(2))
    code = main(arguments, Sink(stdout=out, stderr=err, environment=environment or {}))
    return code, out.buffer.getvalue().decode(), err.buffer.getvalue().decode()  # type: ignore[attr-defined]


def is_clean(text: str) -> bool:
    return not [char for char in text if not char.isprintable() and char != "\n"]


def commands_in(log: str) -> list[str]:
    return [line for line in log.split("\n") if line.strip().startswith("::") or "##[" in line]


@pytest.mark.parametrize("text", PAYLOADS, ids=[f"payload{number}" for number in range(len(PAYLOADS))])
def test_a_poisoned_snapshot_forges_nothing_and_its_mends_run_nothing(text: str, place: Path) -> None:
    save(poisoned(text), place / "bad.json")
    compared = ("trainer.json", "bad.json", "--lock", "requirements.lock", "--no-spec", "--verbose")
    documents: dict[str, str] = {}
    for name in RENDERERS:
        code, out, err = run("diff", *compared, "--format", name)
        assert code in (0, 1), err
        assert (err, is_clean(out)) == ("", True)
        if name != "github":
            assert commands_in(out) == []
        assert not {line.strip() for line in out.splitlines()} & {">pwned", ">pwned'"}  # half a command, ready to paste
        documents[name] = out
    findings: list[dict[str, Any]] = json.loads(documents["json"])["findings"]
    assert len(findings) > 3
    levels = {"breaks": "error", "results": "warning", "noise": "notice"}
    forged = [line for line in documents["github"].splitlines() if not re.match(rf"::({'|'.join(levels.values())}) \S", line)]
    assert forged == []

    code, planned, err = run("plan", "bad.json", "--lock", "requirements.lock", "--no-spec")
    assert code in (0, 1, 2, 3), err
    assert is_clean(planned)
    assert ">pwned" not in planned.splitlines()
    assert is_clean(err)
    code, judged, err = run("preflight", "launch.py", "--on", "bad.json", "--no-spec", "--format", "json")
    assert code in (0, 1), err
    pasted = [finding["fix"] for finding in [*findings, *json.loads(judged)["findings"]]] + [planned]
    shell = place / "shell"
    shell.mkdir()
    for script in dict.fromkeys(pasted):
        # With no PATH no program runs; what the shell itself would do with an unquoted name, it does.
        subprocess.run(["/bin/bash", "-c", script], cwd=shell, env={"PATH": "/nonexistent"}, capture_output=True, check=False, timeout=20)
        assert list(shell.iterdir()) == [], script


@pytest.mark.parametrize("data", [b"", b"\xff\xfe", b'{"version": "1", "installed": []}', b"# nothing\n"], ids=["empty", "mark", "inspect", "comment"])
def test_a_list_of_nothing_passes_no_gate(data: bytes, place: Path) -> None:
    (place / "nothing.json").write_bytes(data)
    for arguments in (("diff", "nothing.json", "--lock", "requirements.lock"), ("preflight", "launch.py", "--on", "nothing.json")):
        code, out, err = run(*arguments, "--no-spec")
        assert (code, out, err.count("\n")) == (2, "", 1)
        assert "nothing.json lists no package" in err


def test_a_preflight_on_locks_alone_is_refused(place: Path) -> None:
    code, out, err = run("preflight", "launch.py", "--on", "lock:requirements.lock", "--no-spec")
    assert (code, out) == (2, "")
    assert "only locks were named" in err


@pytest.mark.parametrize("label", ["../../escape", "/etc/cron.d/x", "a b;c", "..", "-o", "\u202e"])
def test_a_host_s_name_cannot_choose_where_its_snapshot_goes(label: str, tmp_path: Path) -> None:
    from envspec.commands.capture import _paths
    from envspec.commands.inputs import NamedHost, named_hosts
    from envspec.hosts import parse_host

    hosts = [
        NamedHost(name=dataclasses.replace(host.name, label=label), host=host.host)
        for host in named_hosts([parse_host("local"), parse_host("local")])
    ]
    paths = _paths(hosts, str(tmp_path / "out"))
    assert len(set(paths)) == 2
    for path in paths:
        assert path is not None
        assert path.resolve().parent == tmp_path / "out"
        assert path.suffix == ".json"
        assert path.name.isascii()
