"""Many hosts at once."""

from __future__ import annotations

import sys
import threading
from pathlib import Path

import pytest

from envspec.capture import capture_all, with_salt
from envspec.cli import main
from envspec.errors import CaptureError
from envspec.hosts import CaptureOptions, Host
from envspec.hosts.local import LocalHost
from envspec.snapshot import Capture, Snapshot, load


class Fake(Host):
    """A host whose snapshot is whatever a function does."""

    transport = "fake"

    def __init__(self, label: str, act: object) -> None:
        super().__init__(label)
        self.act = act
        self.options: CaptureOptions | None = None

    def run_python(self, source: str, stdin_json: object, timeout: float) -> object:
        raise AssertionError

    def snapshot(self, options: CaptureOptions) -> Snapshot:
        self.options = options
        self.act()  # type: ignore[operator]
        return Snapshot(capture=Capture(label=self.label, target=self.label, transport="fake"))


def raises(error: Exception) -> None:
    raise error


def test_outcomes_are_in_the_order_of_the_hosts_whatever_finishes_first() -> None:
    second_done = threading.Event()
    hosts = [Fake("a", lambda: second_done.wait(30)), Fake("b", second_done.set), Fake("c", lambda: raises(CaptureError("c: no")))]
    hosts.append(Fake("d", lambda: raises(KeyError("surprise"))))
    seen: list[str] = []
    outcomes = capture_all(hosts, progress=lambda outcome: seen.append(outcome.host.label))
    assert [outcome.host.label for outcome in outcomes] == ["a", "b", "c", "d"]
    assert seen.index("b") < seen.index("a")
    assert [outcome.snapshot is not None for outcome in outcomes] == [True, True, False, False]
    assert str(outcomes[2].error) == "c: no"
    assert str(outcomes[3].error) == "d: KeyError: 'surprise'"


def test_all_share_one_salt_that_is_never_stored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ENVSPEC_SALT", raising=False)
    hosts = [Fake(name, lambda: None) for name in "abc"]
    capture_all(hosts)
    salts = {host.options.salt for host in hosts if host.options}
    assert len(salts) == 1
    assert None not in salts
    assert with_salt(CaptureOptions()).salt != with_salt(CaptureOptions()).salt
    monkeypatch.setenv("ENVSPEC_SALT", "fleet")
    assert with_salt(CaptureOptions()).salt == "fleet"
    taken = LocalHost("local", sys.executable).snapshot(CaptureOptions(salt="fleet-salt"))
    assert "fleet-salt" not in str(taken.to_dict())
    assert taken.capture.salt_id is not None


@pytest.mark.parametrize("allowed", [0, 1])
def test_where_no_further_thread_is_allowed_all_are_captured_nevertheless(allowed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    start = threading.Thread.start
    started: list[threading.Thread] = []

    def refuse(thread: threading.Thread) -> None:
        if len(started) == allowed:
            raise RuntimeError("can't start new thread")
        started.append(thread)
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", refuse)
    outcomes = capture_all([LocalHost("local", sys.executable), Fake("b", lambda: None)])
    assert [outcome.error for outcome in outcomes] == [None, None]
    assert len(started) == allowed


def test_no_hosts_are_no_outcomes() -> None:
    assert capture_all([]) == []


def test_a_variable_of_the_users_own_is_recorded_when_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ACME_RING", "7")
    monkeypatch.setenv("ACME_TOKEN", "hunter2")
    for arguments, found in (((), set()), (("--variable", "ACME_*"), {"ACME_RING", "ACME_TOKEN"}), (("--variable", "ACME_RING"), {"ACME_RING"})):
        assert main(["capture", "local", "-o", str(tmp_path / "a.json"), *arguments]) == 0
        text = (tmp_path / "a.json").read_text()
        assert {name for name in load(tmp_path / "a.json").environment if name.startswith("ACME")} == found
        assert "hunter2" not in text
    assert load(tmp_path / "a.json").capture.variables == ("ACME_RING",)


@pytest.mark.parametrize("name", ["*", "A B", "A=1", "1A", ""])
def test_what_is_no_name_of_a_variable_is_refused(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["capture", "local", f"--variable={name}"])
    assert "Traceback" not in capsys.readouterr().err


@pytest.mark.parametrize("named", ["", "bin/python3"])
def test_an_environment_whose_python_was_removed_is_told_from_none(named: str, tmp_path: Path) -> None:
    link = tmp_path / "env/bin/python3"
    link.parent.mkdir(parents=True)
    link.symlink_to(tmp_path / "removed/python3")
    (outcome,) = capture_all([LocalHost("env", str(tmp_path / "env" / named))])
    assert f"{link} leads to {tmp_path}/removed/python3, which is not there" in str(outcome.error)
