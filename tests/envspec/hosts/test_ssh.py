"""Capture over a real sshd on loopback."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import pytest

from envspec.capture import capture_all
from envspec.errors import CaptureError, UsageError
from envspec.hosts import CaptureOptions, Host, open_host, parse_host
from envspec.hosts.ssh import SshHost, quote_remote_path
from tests.envspec.build import check_call
from tests.envspec.conftest import SshServer, world_readable_python
from tests.envspec.peers import of_pip, of_uv, ours, uv

pytestmark = pytest.mark.ssh


def host(text: str) -> Host:
    return open_host(parse_host(text))


def test_a_venv_named_below_the_home_is_captured_through_noise(ssh: SshServer) -> None:
    python = f"{ssh.homes['gpu-a']}/env one/bin/python3"
    snapshot = host(f"gpu-a:{python}").snapshot(CaptureOptions())
    assert [(dist.name, dist.version) for dist in snapshot.distributions] == [("alpha", "1.0"), ("beta-kit", "2.0")]
    assert snapshot.capture.transport == "ssh"
    assert snapshot.capture.noise is not None
    assert "Welcome!" in snapshot.capture.noise
    assert "\x1b" not in snapshot.capture.noise
    assert snapshot.interpreter is not None
    assert snapshot.interpreter.executable == python
    assert [name for name, section in snapshot.sections.items() if section.status != "ok"] == ["deep"]


def test_the_list_of_each_account_is_that_of_pip_and_uv(ssh: SshServer) -> None:
    for alias in ("gpu-a", "gpu-b"):
        python = f"{ssh.homes[alias]}/env one/bin/python3"
        snapshot = host(f"{alias}:{python}").snapshot(CaptureOptions())
        assert (ours(snapshot), dict(snapshot.markers)) == of_pip(check_call(sys.executable, "-m", "pip", "--python", python, "inspect"))
        assert ours(snapshot) == of_uv(check_call(uv(), "pip", "list", "--format", "json", "--python", python))


@pytest.mark.skipif(os.geteuid() != 0, reason="the accounts' homes are theirs only when the tests may create accounts")
@pytest.mark.parametrize("path", ["~/env one/bin/python3", "~/env one", "env one/bin/python3"])
def test_the_tilde_and_relative_paths_and_a_venv_directory_are_resolved_there(ssh: SshServer, path: str) -> None:
    for alias in ("gpu-a", "gpu-b", "jumped"):
        snapshot = host(f"{alias}:{path}").snapshot(CaptureOptions())
        assert len(snapshot.distributions) == 2
        assert snapshot.capture.user == f"envspec-{os.getpid()}{'a' if alias == 'gpu-a' else 'b'}"


def test_equal_environments_of_two_accounts_have_equal_digests(ssh: SshServer) -> None:
    first, second = (host(f"{alias}:{ssh.homes[alias]}/env one").snapshot(CaptureOptions(salt="s")) for alias in ("gpu-a", "gpu-b"))
    assert first.capture.cwd != second.capture.cwd or os.geteuid() != 0
    assert first.interpreter != second.interpreter
    assert first.digest == second.digest


def test_url_form_with_port_and_user(ssh: SshServer) -> None:
    me = host("me:python3").snapshot(CaptureOptions()).capture.user
    target = host(f"ssh://{me}@me:{ssh.port}{ssh.homes['gpu-a']}/env%20one/bin/python3")
    assert isinstance(target, SshHost)
    assert (target.user, target.port) == (me, ssh.port)
    assert len(target.snapshot(CaptureOptions()).distributions) == 2


def test_nothing_is_left_behind_and_no_bytecode_is_written(ssh: SshServer) -> None:
    home = ssh.homes["gpu-a"]
    before = {path: path.stat().st_mtime_ns for path in home.rglob("*")}
    temporary = set(Path("/tmp").iterdir())
    host(f"gpu-a:{home}/env one").snapshot(CaptureOptions(deep=("*",)))
    after = {path: path.stat().st_mtime_ns for path in home.rglob("*")}
    assert after == before
    assert {path for path in set(Path("/tmp").iterdir()) - temporary if path.name.startswith("envspec")} == set()


def test_another_source_runs_there(ssh: SshServer) -> None:
    source = "import os\ndef main(request):\n    print('noise from the source')\n    return [request['x'] + 1, os.environ['USER'], '\\udcff']\n"
    answer = host(f"gpu-a:{ssh.homes['gpu-a']}/env one").run_python(source, {"x": 41}, 30)
    assert isinstance(answer, list)
    assert answer[0] == 42
    assert answer[2] == "\ufffd"


def test_a_source_that_raises_is_one_sentence(ssh: SshServer) -> None:
    target = SshHost("me:python3", "me", python="python3", label="me")
    with pytest.raises(CaptureError, match=r"^me: the probe failed there \(ValueError: bad luck\)$"):
        target.run_python("def main(request):\n    raise ValueError('bad\\nluck')\n", None, 30)


def test_a_python_that_is_too_old_says_so(ssh: SshServer) -> None:
    old = sorted(Path.home().glob(".pyenv/versions/2.7.*/bin/python")) + sorted(Path.home().glob(".pyenv/versions/3.[67].*/bin/python"))
    if not old:
        pytest.skip("no Python older than 3.8 below ~/.pyenv")
    for path in old:
        with pytest.raises(CaptureError, match=r"its interpreter is too old: Python (2\.7|3\.[67])\.\d+ here, 3\.8 or newer is needed"):
            host(f"me:~/{path.relative_to(Path.home())}").snapshot(CaptureOptions())


def test_python_38_answers(ssh: SshServer) -> None:
    old = sorted(Path.home().glob(".pyenv/versions/3.8.*/bin/python"))
    if not old:
        pytest.skip("no Python 3.8 below ~/.pyenv")
    snapshot = host(f"me:~/{old[0].relative_to(Path.home())}").snapshot(CaptureOptions())
    assert snapshot.markers["python_version"] == "3.8"
    assert {section.status for name, section in snapshot.sections.items() if name != "deep"} == {"ok"}


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("refused:python3", "ssh could not connect: .*Connection refused"),
        ("denied:python3", "ssh could not connect: .*Permission denied.*; a key or agent is needed, passwords are never asked for"),
        ("gpu-a:/nowhere/python3", "no python at /nowhere/python3"),
        ("gpu-a:~/nowhere", "no python at /.*/nowhere"),
        ("gpu-a:/bin/false", "no answer; the command ended with status 1"),
        ("no-such-host.invalid:python3", "ssh could not connect: .*no-such-host.invalid"),
    ],
)
def test_a_host_that_does_not_answer_is_one_sentence(ssh: SshServer, text: str, sentence: str) -> None:
    with pytest.raises(CaptureError, match=sentence) as caught:
        host(text).snapshot(CaptureOptions(timeout=20))
    message = str(caught.value)
    assert message.startswith(text + ": ")
    assert "\n" not in message
    assert message.isprintable()


def test_hosts_that_hang_do_not_hold_up_the_others(ssh: SshServer) -> None:
    good = f"gpu-a:{ssh.homes['gpu-a']}/env one"
    finished: list[tuple[str, float]] = []
    start = time.monotonic()
    hosts = [host(text) for text in ("hang:python3", "mute:python3", good, "refused:python3")]
    outcomes = capture_all(
        hosts, CaptureOptions(timeout=6), progress=lambda outcome: finished.append((outcome.host.target, time.monotonic() - start))
    )
    assert [outcome.host.target for outcome in outcomes] == ["hang:python3", "mute:python3", good, "refused:python3"]
    assert outcomes[2].snapshot is not None
    assert str(outcomes[0].error) == "hang:python3: no answer within 6 s"
    assert outcomes[1].error is not None
    # The order in which they finished: those that hang come last, whatever the machine's speed.
    assert {name for name, _ in finished[:2]} == {good, "refused:python3"}


def test_many_hosts_at_once(ssh: SshServer) -> None:
    good = f"gpu-a:{ssh.homes['gpu-a']}/env one"
    outcomes = capture_all([host(good) for _ in range(12)], CaptureOptions(salt="s"))
    assert [outcome.error for outcome in outcomes] == [None] * 12
    assert len({outcome.snapshot.digest for outcome in outcomes if outcome.snapshot}) == 1


@pytest.mark.parametrize(
    "text",
    [
        "-oProxyCommand=touch /tmp/pwned:python3",
        "ssh://-oProxyCommand=touch%20x/python3",
        "ssh://-lroot@gpu/python3",
        "a;touch x:python3",
        "$(touch x):python3",
        "`touch x`@gpu:python3",
        "us er@gpu:python3",
        "gpu a:python3",
        "ssh://gpu:99999/python3",
        "ssh://user:secret@gpu/python3",
        "gpu:python3\x1b[2J",
        "-x@gpu",
    ],
)
def test_host_names_cannot_become_options_or_shell(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        open_host(parse_host(text))
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("path", ["/tmp/x; touch /tmp/envspec-pwned", "$(touch /tmp/envspec-pwned)", "~/`touch /tmp/envspec-pwned`", "~a b/'\"\\!$x", "-c"])
def test_paths_cannot_run_commands(ssh: SshServer, path: str) -> None:
    marker = Path("/tmp/envspec-pwned")
    marker.unlink(missing_ok=True)
    with pytest.raises(CaptureError):
        SshHost("gpu-a:x", "gpu-a", python=path).snapshot(CaptureOptions(timeout=20))
    assert not marker.exists()


def test_the_command_is_batch_mode_and_ends_options_before_the_host() -> None:
    command = SshHost("t", "gpu.example", "me", 2222, "~/e/bin/python3").command()
    assert "BatchMode=yes" in command
    end = command.index("--")
    assert command[end + 1] == "gpu.example"
    assert len(command) == end + 3


def test_only_a_leading_tilde_is_left_to_the_shell() -> None:
    assert quote_remote_path("~/a b/python3") == "\"$HOME\"/'a b/python3'"
    assert quote_remote_path("~root/x") == "~root/x"
    assert quote_remote_path("~ro;ot/x") == "'~ro;ot/x'"
    assert quote_remote_path("/a/~/x") == "'/a/~/x'"
    assert world_readable_python()
