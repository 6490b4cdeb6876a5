"""Files in the place of hosts: snapshots, pip inspect, pip freeze."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from envspec import snapshot
from envspec.errors import CaptureError, UsageError
from envspec.hosts import CaptureOptions, open_host, parse_host
from envspec.snapshot import Snapshot
from tests.envspec.build import python_env


def read(path: Path) -> Snapshot:
    return open_host(parse_host(str(path))).snapshot(CaptureOptions())


def test_a_snapshot_comes_back_whole(tmp_path: Path) -> None:
    taken = open_host(parse_host("local")).snapshot(CaptureOptions())
    snapshot.save(taken, tmp_path / "s.json")
    again = read(tmp_path / "s.json")
    assert again.distributions == taken.distributions
    assert again.digest == taken.digest
    assert again.label == str(tmp_path / "s.json")


def test_pip_inspect_and_freeze_list_what_the_probe_lists(tmp_path: Path) -> None:
    live = open_host(parse_host("local")).snapshot(CaptureOptions())
    ours = {(dist.name, dist.version) for dist in live.installed().values()}
    for command, name in ((["inspect"], "inspect.json"), (["freeze", "--all"], "freeze.txt")):
        done = subprocess.run([sys.executable, "-m", "pip", *command], capture_output=True, text=True, env=python_env(), check=True)
        (tmp_path / name).write_text(done.stdout)
    inspected, frozen = read(tmp_path / "inspect.json"), read(tmp_path / "freeze.txt")
    assert {(dist.name, dist.version) for dist in inspected.distributions} == ours
    assert {dist.name for dist in frozen.distributions} == {name for name, _ in ours}
    assert {(dist.name, dist.version) for dist in frozen.distributions if dist.version} <= ours
    assert dict(inspected.markers) == dict(live.markers)
    assert inspected.section("gpus").status == "unknown"
    assert not frozen.known("distributions")
    by_name = inspected.installed()
    assert by_name["packaging"].requires == live.installed()["packaging"].requires


def test_freeze_lines(tmp_path: Path) -> None:
    (tmp_path / "f.txt").write_text(
        "# a comment\nTorch==2.9.1+cu128\n\nvllm @ https://u:secret@pkg.example/vllm.whl\n"
        f"sg @ git+https://git.example/sg@{'a' * 40}\n-e git+https://git.example/ed.git@{'b' * 40}#egg=Ed_It\n"
    )
    found = {dist.name: dist for dist in read(tmp_path / "f.txt").distributions}
    assert (found["torch"].version, found["torch"].build_variant) == ("2.9.1+cu128", "cu128")
    assert (found["vllm"].origin.kind, found["vllm"].origin.url) == ("archive", "https://pkg.example/vllm.whl")
    assert (found["sg"].origin.kind, found["sg"].origin.commit) == ("vcs", "a" * 40)
    assert (found["ed-it"].origin.kind, found["ed-it"].origin.commit) == ("editable", "b" * 40)


def test_freeze_names_an_editable_install_in_a_comment(tmp_path: Path) -> None:
    (tmp_path / "f.txt").write_text(
        "--find-links /wheels\n-i https://pkg.example/simple\n"
        "# Editable Git install with no remote (My.Kit==0.1.0)\n-e /src/main\n"
        "# Editable Git install (other==2.0) with either a deleted local remote or invalid URI:\n# 'gone'\n-e /src/elsewhere\n"
        "-e file:///src/uv_writes_no_name\n"
    )
    frozen = read(tmp_path / "f.txt")
    assert {(dist.raw_name, dist.version) for dist in frozen.distributions} == {
        ("My.Kit", "0.1.0"), ("other", "2.0"), ("uv_writes_no_name", None)}  # fmt: skip
    assert {dist.origin.kind for dist in frozen.distributions} == {"editable"}
    assert "uv_writes_no_name is named after its directory" in (frozen.section("distributions").reason or "")


def test_freeze_as_powershell_writes_it(tmp_path: Path) -> None:
    (tmp_path / "f.txt").write_bytes("torch==2.9.1\r\n".encode("utf-16"))
    assert [dist.name for dist in read(tmp_path / "f.txt").distributions] == ["torch"]


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"\xff\xfea", "is not UTF-8"),
        (b"\x80\x81", "is not UTF-8"),
        (b"{", "is not valid JSON"),
        (b'{"installed": 3, "version": "1"}', "installed: expected a list"),
        (b'{"installed": [], "version": "7"}', "version '7'"),
        (b'{"installed": [{"metadata": {}}], "version": "1"}', "installed[0]: expected an object with metadata.name"),
        (b'{"installed": [{"metadata": {"name": "x", "requires_dist": 1}}], "version": "1"}', "installed[0].metadata.requires_dist"),
        (b"torch>=2\n", "f.txt:1: 'torch>=2' does not pin one version"),
        (b"ok==1\n!!\n", "f.txt:2: '!!' is not a line of pip freeze"),
        (b"-e http://[::1/x\n", "f.txt:1: an editable line without a name"),
        (b"", "f.txt lists no package; expected a snapshot"),
        (b"\xff\xfe", "f.txt lists no package"),
        (b"\xef\xbb\xbf\n", "f.txt lists no package"),
        (b"# nothing is installed\n-i https://pkg.example/simple\n\n", "f.txt lists no package"),
        (b'{"installed": [], "version": "1"}', "f.txt lists no package"),
        (b'{"schema": "envspec/snapshot/1", "a": {"b": 1, "b": 1}}', "the key 'b' stands twice"),
    ],
)
def test_other_files_are_one_sentence(tmp_path: Path, data: bytes, message: str) -> None:
    path = tmp_path / "f.txt"
    path.write_bytes(data)
    with pytest.raises(UsageError) as caught:
        read(path)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_nothing_can_be_looked_up_in_a_file(tmp_path: Path) -> None:
    with pytest.raises(CaptureError, match="it is a file"):
        open_host(parse_host(str(tmp_path / "s.json"))).run_python("", None, 1)
    with pytest.raises(UsageError, match="cannot read"):
        read(tmp_path / "s.json")
    assert json.dumps(None) == "null"
