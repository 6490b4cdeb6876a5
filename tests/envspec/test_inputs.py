"""Which hosts and locks the commands read, from the command line and the spec."""

from __future__ import annotations

import argparse
import threading
from pathlib import Path

import pytest

from envspec.commands.diff import with_baselines
from envspec.commands.inputs import concurrently, host_names, named_hosts, outputs, read_locks
from envspec.errors import CaptureError, EnvspecError, UsageError
from envspec.output import Sink
from envspec.spec import Spec, load_spec

LOCK = "alpha==1.0 --hash=sha256:" + "a" * 64 + "\n"


@pytest.fixture
def spec(tmp_path: Path) -> Spec:
    for name in ("own.lock", "all.lock", "other.lock"):
        (tmp_path / name).write_text(LOCK)
    (tmp_path / "kept.json").write_text('{"version": "1", "installed": [{"metadata": {"name": "demo", "version": "1.0"}}]}')
    (tmp_path / "envspec.yaml").write_text(
        "hosts:\n"
        "  box: {target: 'local:./env', role: train}\n"
        "  gpu: {target: 'me@gpu.example:~/env/bin/python3', role: infer}\n"
        "  kept: {target: kept.json, role: infer}\n"
        "  free: local\n"
        "lock: all.lock\n"
        "roles:\n  train: {lock: own.lock, baseline: gold.json}\n  infer: {baseline: gpu}\n"
    )
    return load_spec(tmp_path / "envspec.yaml")


def locks_of(spec: Spec | None, hosts: list[str], *given: str) -> list[tuple[str | None, str]]:
    return [(lock.role, Path(lock.lock.path).name) for lock in read_locks(list(given), host_names(hosts, spec), spec)]


def test_no_host_means_those_of_the_spec_with_their_roles_and_places(spec: Spec) -> None:
    names = host_names([], spec)
    assert [(name.label, name.role) for name in names] == [("box", "train"), ("gpu", "infer"), ("kept", "infer"), ("free", None)]
    assert names[0].path == str(spec.root / "env")
    assert names[1].path == "~/env/bin/python3"
    assert names[2].path == str(spec.root / "kept.json")
    assert [host.label for host in named_hosts(names)] == ["box", "gpu", "kept", "free"]


def test_a_bad_file_is_found_before_any_host_is_asked(spec: Spec) -> None:
    (spec.root / "kept.json").write_text("{")
    with pytest.raises(UsageError, match=r"kept\.json is not valid JSON"):
        named_hosts(host_names([], spec))
    (spec.root / "kept.json").unlink()
    with pytest.raises(UsageError, match=r"cannot read .*kept\.json: No such file"):
        named_hosts(host_names([], spec))


def test_a_name_that_is_nearly_one_of_the_spec(spec: Spec) -> None:
    with pytest.raises(UsageError, match=r"'kep' is not a host; did you mean 'kept' of the spec\?"):
        host_names(["kep"], spec)
    with pytest.raises(UsageError, match="'nothing' is not a host; write local"):
        host_names(["infer=nothing"], spec)


def test_each_format_has_a_file_of_its_own(tmp_path: Path) -> None:
    def found(*texts: str) -> list[str]:
        return [output.format for output in outputs(argparse.Namespace(outputs=list(texts), write_baseline=None))]

    assert found(f"text={tmp_path}/a", f"json={tmp_path}/b") == ["text", "json"]
    with pytest.raises(UsageError, match="for text and for json; give each a file of its own"):
        found(f"text={tmp_path}/a", f"json={tmp_path}/../{tmp_path.name}/a")
    with pytest.raises(UsageError, match="it is a directory"):
        found(f"text={tmp_path}")
    with pytest.raises(UsageError, match="for json and for the baseline; give each a file of its own"):
        outputs(argparse.Namespace(outputs=[f"json={tmp_path}/w"], write_baseline=f"{tmp_path}/w"))
    (tmp_path / "loop").symlink_to("loop")
    assert found(f"text={tmp_path}/loop") == ["text"]  # which fails when it is written


def test_a_lock_for_a_role_that_no_host_has_is_refused(spec: Spec) -> None:
    other = str(spec.root / "other.lock")
    with pytest.raises(UsageError, match=r"no host has the role 'tran'; the roles here are infer, train"):
        locks_of(spec, ["box", "gpu"], f"tran={other}")
    with pytest.raises(UsageError, match=r"no host has the role 'tran'; the roles here are train"):
        locks_of(spec, ["box", f"tran=lock:{other}"])
    with pytest.raises(UsageError, match="no host here has a role, which is given as ROLE=HOST"):
        locks_of(None, ["local"], f"train={other}")
    odd = spec.root / "a=b.lock"
    odd.write_text(LOCK)
    assert locks_of(spec, ["box"], str(odd)) == [(None, "a=b.lock")]


def test_a_role_on_the_command_line_wins_over_the_spec(spec: Spec) -> None:
    (name,) = host_names(["infer=box"], spec)
    assert (name.label, name.role) == ("box", "infer")


def test_the_same_host_in_two_roles_gets_two_labels() -> None:
    assert [name.label for name in host_names(["train=local", "infer=local"], None)] == ["train=local", "infer=local"]
    with pytest.raises(UsageError, match="the host 'train=local' is named 2 times"):
        host_names(["train=local", "train=local"], None)


def test_the_spec_s_locks_each_for_its_role(spec: Spec) -> None:
    assert locks_of(spec, []) == [("train", "own.lock"), (None, "all.lock")]
    assert locks_of(spec, ["box"]) == [("train", "own.lock")]
    assert locks_of(spec, ["gpu"]) == [(None, "all.lock")]


def test_a_lock_on_the_command_line_replaces_those_of_the_spec(spec: Spec) -> None:
    other = str(spec.root / "other.lock")
    assert locks_of(spec, [], other) == [(None, "other.lock")]
    assert locks_of(spec, ["box", "gpu"], f"infer={other}") == [("infer", "other.lock")]
    assert locks_of(spec, ["box", f"lock:{other}"]) == [(None, "other.lock")]
    assert locks_of(spec, ["box", f"train=lock:{other}"]) == [("train", "other.lock")]


def test_without_a_spec_there_is_no_lock_but_the_one_named() -> None:
    assert locks_of(None, ["local"]) == []


def test_a_lock_that_is_not_there_is_named(spec: Spec) -> None:
    with pytest.raises(UsageError, match=r"missing\.lock"):
        locks_of(spec, ["local"], "missing.lock")


def test_the_host_that_a_role_follows_is_read_too(spec: Spec) -> None:
    names = with_baselines(host_names(["box", "kept"], spec), spec)
    assert [(name.label, name.role, name.kind) for name in names[2:]] == [("gold.json", "train", "file"), ("gpu", "infer", "ssh")]
    assert names[2].path == str(spec.root / "gold.json")
    assert with_baselines(names, spec) == names


def test_concurrent_work_keeps_every_answer_and_every_failure() -> None:
    meet = threading.Barrier(3, timeout=20)  # passes only if three run at the same time

    def good() -> int:
        meet.wait()
        return meet.parties

    def refused() -> int:
        meet.wait()
        raise CaptureError("refused: no")

    def broken() -> int:
        meet.wait()
        raise ZeroDivisionError("surprise")

    answers = concurrently({"good": good, "refused": refused, "broken": broken}, None, Sink.of_process())
    assert answers["good"] == 3
    assert str(answers["refused"]) == "refused: no"
    assert isinstance(answers["broken"], EnvspecError)
    assert str(answers["broken"]) == "broken: ZeroDivisionError: surprise"
