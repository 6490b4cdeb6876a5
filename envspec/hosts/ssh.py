"""A host reached by the system's OpenSSH client.

The user's configuration, jump hosts, agent and control sockets work as they do by hand.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Sequence

from envspec.errors import UsageError
from envspec.hosts import wire
from envspec.hosts.interface import ProcessHost, find_python, flags_from_stdin, last_line
from envspec.hosts.process import Exchange

__all__ = ["SshHost", "quote_remote_path"]

# What a user and a host name may hold. ssh puts both into ProxyCommand and Match exec lines, so shell syntax must not
# pass.
_USER = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+\\@-]*")
_HOST = re.compile(
    r"[A-Za-z0-9_](?:[A-Za-z0-9_.-]*[A-Za-z0-9_])?|\[?[0-9A-Fa-f]*:[0-9A-Fa-f:.]+(?:%[A-Za-z0-9_.-]+)?\]?"
)
_OPTIONS = (
    "BatchMode=yes",
    "ConnectTimeout=15",
    "RemoteCommand=none",
    "ClearAllForwardings=yes",
    "PermitLocalCommand=no",
)


class SshHost(ProcessHost):
    """``user@host:PATH`` and ``ssh://user@host:port/PATH``. PATH is an interpreter or a venv there; ``~/`` is the
    home there.

    The variable ``ENVSPEC_SSH`` replaces the command ``ssh``, with options, as ``GIT_SSH_COMMAND`` does for git.
    """

    transport = "ssh"

    def __init__(
        self,
        target: str,
        host: str,
        user: str | None = None,
        port: int | None = None,
        python: str | None = None,
        label: str | None = None,
    ) -> None:
        super().__init__(target, label)
        if not _HOST.fullmatch(host):
            raise UsageError(f"{host!r} in {target!r} is not a host name")
        if user is not None and not _USER.fullmatch(user):
            raise UsageError(f"{user!r} in {target!r} is not a user name")
        if port is not None and not 0 < port < 65536:
            raise UsageError(f"port {port} in {target!r} is not between 1 and 65535")
        if python is not None and not python.isprintable():
            raise UsageError(f"the path in {target!r} holds control characters")
        self.host = host.strip("[]")
        self.user = user
        self.port = port
        self.python = python

    def command(self) -> Sequence[str]:
        """See :class:`ProcessHost`."""
        ssh = shlex.split(os.environ.get("ENVSPEC_SSH", "")) or ["ssh"]
        options = [item for option in _OPTIONS for item in ("-o", option)]
        port = ["-p", str(self.port)] if self.port else []
        user = ["-l", self.user] if self.user else []
        return (*ssh, "-T", *options, *port, *user, "--", self.host, self.remote_command())

    def remote_command(self) -> str:
        """One line for the account's login shell, whichever it is."""
        arguments = find_python(None if self.python is None else "-", flags_from_stdin())
        line = "exec " + shlex.join(arguments[:4])
        return line if self.python is None else f"{line} {quote_remote_path(self.python)}"

    def explain(self, result: Exchange) -> str:
        """See :class:`ProcessHost`."""
        said = last_line(result.stderr)
        if result.status == 255:
            hint = ""
            if "Host key verification failed" in result.stderr:
                hint = "; connect once by hand to accept its key"
            elif "Permission denied" in result.stderr:
                hint = "; a key or agent is needed, passwords are never asked for"
            return f"ssh could not connect: {said or 'no reason given'}{hint}"
        if result.status == 127:
            return said.replace("envspec: ", "") or "there is no python there"
        where = (
            f" (the login printed: {wire.clean(result.stdout.decode('utf-8', 'replace'), 120)})"
            if result.stdout
            else ""
        )
        return f"no answer; the command ended with status {result.status}{': ' + said if said else ''}{where}"


def quote_remote_path(path: str) -> str:
    """A path as one shell word in which only a leading ``~/`` or ``~user/`` still means a home directory."""
    if path == "~":
        return '"$HOME"'
    if path.startswith("~/"):
        return '"$HOME"/' + shlex.quote(path[2:])
    named = re.fullmatch(r"(~[A-Za-z0-9_][A-Za-z0-9_.-]*)/(.*)", path, re.S)
    if named:
        return f"{named.group(1)}/{shlex.quote(named.group(2))}"
    return shlex.quote(path if not path.startswith("-") else "./" + path)
