"""Host names of the command line.

==========================================  ==================================================================
``local``, ``local:PATH``                   this machine's interpreter; PATH is an interpreter, a command or a venv
``ssh://[user@]host[:port][/PATH]``         OpenSSH; ``/~/PATH`` is below the home directory there
``[user@]host:PATH``, ``user@host``         the scp-like form; without PATH, ``python3`` there
``image:NAME[:TAG][#PYTHON]``               an image of this machine's Docker or Podman
``container:NAME[#PYTHON]``                 a running container
``pod:NAMESPACE/NAME[/CONTAINER][#PYTHON]`` a Kubernetes pod
``lock:PATH``                               a lock file, in the place of a host
a path to a file                            a snapshot, ``pip inspect`` JSON or ``pip freeze`` text
a name of ``envspec.yaml``                  whatever it stands for there
==========================================  ==================================================================

Each may be given a role: ``train=user@gpu:~/env/bin/python3``.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal
from urllib.parse import unquote, urlsplit

from envspec.errors import UsageError
from envspec.files import exists, is_file
from envspec.hosts.docker import ContainerHost, ImageHost
from envspec.hosts.file import FileHost
from envspec.hosts.interface import Host, expand_user
from envspec.hosts.kubernetes import KubernetesHost
from envspec.hosts.local import LocalHost
from envspec.hosts.ssh import SshHost

__all__ = ["HostName", "open_host", "parse_host"]

Kind = Literal["local", "ssh", "image", "container", "pod", "lock", "file"]

_ROLE = re.compile(r"([A-Za-z][A-Za-z0-9_-]*)=(.+)", re.S)
_SCP = re.compile(r"(?:(?P<user>[^@/:]+)@)?(?P<host>\[[0-9A-Za-z:.%_-]+\]|[^@/:\[\]]+):(?P<path>.*)", re.S)
_FORMS = (
    "local, local:PATH, ssh://user@host:port/PATH, user@host:PATH, image:NAME, container:NAME, pod:NAMESPACE/NAME, "
    "lock:PATH, the path of a snapshot, or a name of envspec.yaml"
)


@dataclass(frozen=True, kw_only=True)
class HostName:
    """A parsed host name.

    ``text`` is what was written after the role; ``label`` is the name of ``envspec.yaml`` or ``text``.
    """

    text: str
    kind: Kind
    label: str
    role: str | None = None
    host: str | None = None
    user: str | None = None
    port: int | None = None
    path: str | None = None


def parse_host(text: str, names: Mapping[str, str] | None = None) -> HostName:
    """Parse one host name of the command line. ``names`` are those of ``envspec.yaml``; a name may not stand for
    a name.

    Raises:
        UsageError: it is none of the forms; the message lists them.
    """
    role = None
    rest = text
    match = _ROLE.fullmatch(text)
    if match and not exists(text):
        role, rest = match.group(1), match.group(2)
    if not rest.strip() or "\0" in rest or "\n" in rest:
        raise UsageError(f"an empty or broken host name {text!r}; write {_FORMS}")
    if names and rest in names:
        inner = names[rest]
        nested = _ROLE.fullmatch(inner)
        parsed = _parse(nested.group(2) if nested else inner)
        return replace(parsed, label=rest, role=role or (nested.group(1) if nested else None))
    try:
        return replace(_parse(rest), role=role)
    except UsageError as error:
        meant = difflib.get_close_matches(rest, list(names or ()), n=1)
        if not meant or ":" in rest:
            raise
        raise UsageError(f"{rest!r} is not a host; did you mean {meant[0]!r} of the spec?") from error


def _parse(text: str) -> HostName:
    if text.startswith("-"):
        raise UsageError(f"{text!r} is not a host; a host name does not begin with '-'")
    if text == "local":
        return HostName(text=text, kind="local", label=text)
    scheme, colon, rest = text.partition(":")
    if colon and not rest and scheme in ("local", "image", "container", "pod", "lock"):
        raise UsageError(f"{text!r} names nothing after the colon; write {_FORMS}")
    if colon and scheme in ("image", "container", "pod"):
        name, _, python = rest.partition("#")
        kind: Kind = "image" if scheme == "image" else "container" if scheme == "container" else "pod"
        return HostName(text=text, kind=kind, label=text, host=name, path=python or None)
    if colon and scheme in ("local", "lock"):
        return HostName(text=text, kind="local" if scheme == "local" else "lock", label=text, path=rest)
    if text.startswith("ssh://"):
        return _ssh_url(text)
    if "://" in text:
        raise UsageError(f"{text!r} has a scheme that is no host's; write {_FORMS}")
    if text.startswith((".", "/", "~")) or text.endswith((".json", ".txt")) or is_file(text):
        return HostName(text=text, kind="file", label=text, path=text)
    match = _SCP.fullmatch(text)
    if match:
        return HostName(
            text=text,
            kind="ssh",
            label=text,
            host=match.group("host"),
            user=match.group("user"),
            path=match.group("path") or None,
        )
    if re.fullmatch(r"[^@/:]+@[^@/:]+", text):
        user, _, host = text.partition("@")
        return HostName(text=text, kind="ssh", label=text, host=host, user=user)
    raise UsageError(f"{text!r} is not a host; write {_FORMS}")


def _ssh_url(text: str) -> HostName:
    try:
        parts = urlsplit(text)
        host, port = parts.hostname, parts.port
    except ValueError as error:
        raise UsageError(f"{text!r} is not an ssh address: {error}") from error
    if not host:
        raise UsageError(f"{text!r} names no host; write ssh://user@host:port/PATH")
    if parts.password is not None:
        raise UsageError(f"the address of {host!r} holds a password; passwords are never used, a key or agent is")
    path = unquote(parts.path)
    if path.startswith("/~"):
        path = path[1:]
    # urlsplit lowers the case of the host; an alias of ssh_config may have capitals.
    written = re.search(re.escape(host), parts.netloc, re.I)
    return HostName(
        text=text,
        kind="ssh",
        label=text,
        host=written.group() if written else host,
        user=unquote(parts.username) if parts.username else None,
        port=port,
        path=path if path not in ("", "/") else None,
    )


def open_host(name: HostName) -> Host:
    """The host of a parsed name.

    Raises:
        UsageError: a part of the name is not allowed, or it is a lock, which is no host.
    """
    if name.kind == "local":
        return LocalHost(name.text, python=name.path, label=name.label)
    if name.kind == "ssh":
        assert name.host is not None
        return SshHost(name.text, name.host, name.user, name.port, name.path, name.label)
    if name.kind == "image":
        return ImageHost(name.text, name.host or "", name.path, name.label)
    if name.kind == "container":
        return ContainerHost(name.text, name.host or "", name.path, name.label)
    if name.kind == "pod":
        parts = (name.host or "").split("/")
        if len(parts) not in (2, 3):
            raise UsageError(f"{name.text!r} is not a pod; write pod:NAMESPACE/NAME or pod:NAMESPACE/NAME/CONTAINER")
        return KubernetesHost(
            name.text, parts[0], parts[1], parts[2] if len(parts) == 3 else None, name.path, name.label
        )
    if name.kind == "file":
        return FileHost(name.text, expand_user(name.path or ""), name.label)
    raise UsageError(f"{name.text!r} is a lock, which can be compared with but not captured")
