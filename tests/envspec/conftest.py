"""Fixtures of the envspec tests: a real sshd on loopback with several accounts."""

from __future__ import annotations

import contextlib
import os
import pwd
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.envspec.build import bare_venv, install

NOISE = "Welcome!\x1b[31m red \x1b]0;title\x07\nquota: 93% used\n"


@dataclass(frozen=True, kw_only=True)
class SshServer:
    """A running sshd. ``command`` is what ENVSPEC_SSH must be; the aliases below are host names for it.

    ``gpu-a`` and ``gpu-b`` are two accounts (both this account where the tests do not run as root), ``jumped`` is gpu-b through
    gpu-a, ``me`` is the account that runs the tests, ``hang`` logs in and says nothing, ``mute`` accepts the connection and never
    speaks, ``refused`` is a closed port, ``denied`` takes no key of ours.
    """

    command: str
    port: int
    homes: dict[str, Path]
    log: Path


def free_port() -> int:
    """A TCP port nobody listens on."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


def _account(name: str, home: Path) -> None:
    subprocess.run(["userdel", name], capture_output=True, check=False)
    subprocess.run(["useradd", "-M", "-d", str(home), "-s", "/bin/bash", "-p", "*", name], check=True, capture_output=True)
    entry = pwd.getpwnam(name)
    for path in (home, *home.rglob("*")):
        os.chown(path, entry.pw_uid, entry.pw_gid, follow_symlinks=False)


def _fill_home(home: Path, python: str) -> None:
    """A noisy start-up file and a venv with two distributions."""
    home.mkdir()
    home.chmod(0o755)
    (home / ".bashrc").write_text(f"cat {home}/noise\necho to-stderr >&2\nalias python3=false\n")
    (home / "noise").write_text(NOISE)
    site = bare_venv(home / "env one", python)
    install(site, "alpha", "1.0", {"alpha/__init__.py": b"A = 1\n"})
    install(site, "Beta.Kit", "2.0", {"beta.py": b"B = 2\n"}, requires=["alpha>=1"])


def world_readable_python() -> str:
    """An interpreter every account can start."""
    if os.geteuid() != 0:
        return sys.executable
    return next((path for path in ("/usr/bin/python3", "/usr/local/bin/python3") if Path(path).exists()), sys.executable)


@pytest.fixture(scope="session")
def ssh_server() -> Iterator[SshServer]:
    """sshd on loopback; skips with the reason where there is none."""
    daemon = shutil.which("sshd") or next((path for path in ("/usr/sbin/sshd", "/usr/local/sbin/sshd") if Path(path).exists()), None)
    if daemon is None or shutil.which("ssh") is None:
        pytest.skip("no OpenSSH server here; apt-get install openssh-server")
    root = os.geteuid() == 0
    folder = Path(tempfile.mkdtemp(prefix="envspec-ssh-", dir="/tmp"))
    folder.chmod(0o755)
    me = pwd.getpwuid(os.geteuid()).pw_name
    # Names of this process alone: several test processes may run at once.
    accounts = {"gpu-a": f"envspec-{os.getpid()}a", "gpu-b": f"envspec-{os.getpid()}b"} if root else {"gpu-a": me, "gpu-b": me}
    homes: dict[str, Path] = {}
    created = []
    process = mute = None
    try:
        for key in ("host", "client", "stranger"):
            subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / key)], check=True)
        shutil.copy(folder / "client.pub", folder / "authorized")
        (folder / "authorized").chmod(0o644)
        (folder / "banner").write_text("AUTHORISED USE ONLY \x1b[5m\n")
        for alias, account in accounts.items():
            home = folder / ("home-" + alias)
            _fill_home(home, world_readable_python())
            homes[alias] = home
            if root:
                _account(account, home)
                created.append(account)
        port, hang_port, closed = free_port(), free_port(), free_port()
        mute = socket.socket()
        mute.bind(("127.0.0.1", 0))
        mute.listen(64)
        if root:
            Path("/run/sshd").mkdir(exist_ok=True)
        (folder / "sshd_config").write_text(
            f"Port {port}\nPort {hang_port}\nListenAddress 127.0.0.1\nHostKey {folder}/host\nPidFile none\nAuthorizedKeysFile {folder}/authorized\n"
            f"StrictModes no\nUsePAM no\nPasswordAuthentication no\nKbdInteractiveAuthentication no\nPermitRootLogin prohibit-password\n"
            f"Banner {folder}/banner\nMaxStartups 200:30:300\nMaxSessions 100\nLogLevel VERBOSE\nAllowTcpForwarding yes\n"
            f"Match LocalPort {hang_port}\n    ForceCommand sleep 300\n"
        )
        with socket.socket() as known:
            known.bind(("127.0.0.1", 0))
        host_key = (folder / "host.pub").read_text()
        (folder / "known_hosts").write_text("".join(f"[127.0.0.1]:{number} {host_key}" for number in (port, hang_port)))
        common = f"    HostName 127.0.0.1\n    UserKnownHostsFile {folder}/known_hosts\n    IdentitiesOnly yes\n    GlobalKnownHostsFile /dev/null\n"
        rows = [(alias, port, account, "client") for alias, account in accounts.items()]
        rows += [("me", port, me, "client"), ("hang", hang_port, accounts["gpu-a"], "client"), ("refused", closed, me, "client")]
        rows += [("mute", mute.getsockname()[1], me, "client"), ("denied", port, me, "stranger")]
        text = "".join(
            f"Host {alias}\n{common}    Port {number}\n    User {account}\n    IdentityFile {folder}/{key}\n" for alias, number, account, key in rows
        )
        text += f"Host jumped\n{common}    Port {port}\n    User {accounts['gpu-b']}\n    IdentityFile {folder}/client\n    ProxyJump gpu-a\n"
        (folder / "ssh_config").write_text(text)
        (folder / "client").chmod(0o600)
        log = folder / "sshd.log"
        with log.open("wb") as output:
            process = subprocess.Popen([daemon, "-D", "-e", "-f", str(folder / "sshd_config")], stdout=output, stderr=output)
        for _ in range(100):
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
                break
            if process.poll() is not None:
                pytest.skip(f"sshd does not start here: {log.read_text()[-300:]}")
            time.sleep(0.05)
        yield SshServer(command=f"ssh -F {folder}/ssh_config", port=port, homes=homes, log=log)
    finally:
        if process is not None:
            process.terminate()
            process.wait(10)
        if mute is not None:
            mute.close()
        for account in created:
            subprocess.run(["pkill", "-KILL", "-U", account], check=False)
            subprocess.run(["userdel", account], capture_output=True, check=False)
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def ssh(ssh_server: SshServer, monkeypatch: pytest.MonkeyPatch) -> SshServer:
    """The server, with envspec's ssh pointed at its configuration."""
    monkeypatch.setenv("ENVSPEC_SSH", ssh_server.command)
    return ssh_server
