"""The container engine: which one is here, whether it can build with BuildKit, and the few things asked of it.

Builds go through the command line, since the SDK knows no BuildKit; so does the rest that a build needs, since one
command line speaks to Docker and Podman alike. What looks into images goes through the SDK (:meth:`Engine.client`).
"""

from __future__ import annotations

import contextlib
import importlib
import io
import json
import os
import re
import shutil
import subprocess
import tarfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

from envspec.errors import EnvspecError, UsageError

__all__ = ["ENGINES", "Engine", "EngineError", "engine_words", "find_engine"]

ENGINES: Final = ("docker", "podman")

_ASKING: Final = 300.0
"""Seconds for an answer. An engine that unpacks or exports an image of many GB meanwhile lets others wait."""
_BUILT_IN: Final = range(18, 23)
"""Major versions of Docker's command line that hold BuildKit's client themselves; 23 and later leave it to the plug-in buildx."""


class EngineError(EnvspecError):
    """There is no engine, it lacks what a build needs, or it failed: exit code 3."""

    exit_code = 3


@dataclass(frozen=True, kw_only=True, slots=True)
class Engine:
    """An engine that answered. ``command`` is its command line's path, ``buildx`` whether builds go through that plug-in."""

    name: Literal["docker", "podman"]
    command: str
    version: str
    buildx: bool = False

    def __str__(self) -> str:
        return f"{self.name} {self.version}"

    @property
    def environment(self) -> Mapping[str, str]:
        """What its command line runs with."""
        return {**os.environ, "DOCKER_BUILDKIT": "1", "BUILDKIT_PROGRESS": "plain", "DOCKER_CLI_HINTS": "false", "NO_COLOR": "1"}

    def ask(self, *arguments: str, timeout: float = _ASKING) -> str:
        """Standard output of a command of the engine.

        Raises:
            EngineError: it fails; the message is the engine's own, in one line.
        """
        done = _call([self.command, *arguments], timeout, self.environment)
        if done.returncode != 0:
            raise EngineError(f"{self.name} {arguments[0]} failed: {engine_words(done.stderr)}")
        return done.stdout

    def inspect(self, image: str) -> Mapping[str, Any] | None:
        """What the engine knows of an image of its store; None where it has none of this name."""
        done = _call([self.command, "image", "inspect", image], _ASKING, self.environment)
        if done.returncode != 0:
            if re.search(r"no such image|not known|not found|no such object", done.stderr, re.IGNORECASE):
                return None
            raise EngineError(f"{self.name} cannot inspect {image}: {engine_words(done.stderr)}")
        found: list[dict[str, Any]] = json.loads(done.stdout)
        return found[0]

    def read_file(self, image: str, path: str) -> bytes:
        """A file of an image; the container made for it is never started.

        Raises:
            EngineError: there is no such file.
        """
        container = self.ask("create", "--network", "none", "--entrypoint", "/envspec", image).strip()
        try:
            command = [self.command, "cp", f"{container}:{path}", "-"]
            done = subprocess.run(command, capture_output=True, env=dict(self.environment), timeout=_ASKING, check=False, stdin=subprocess.DEVNULL)
        finally:
            with contextlib.suppress(EngineError):
                self.ask("rm", "--force", "--volumes", container)
        if done.returncode != 0:
            raise EngineError(f"{path} cannot be read from {image}: {engine_words(done.stderr.decode('utf-8', 'replace'))}")
        return _only_file(done.stdout)

    @contextlib.contextmanager
    def client(self, timeout: float = _ASKING) -> Iterator[Any]:
        """The engine's API as a client of the package ``docker``, which is imported here.

        Raises:
            EngineError: the package is absent, or nobody answers at the engine's socket.
        """
        try:
            docker = importlib.import_module("docker")
        except ImportError as error:
            raise EngineError("images are looked into with the package docker; install envspec[docker]") from error
        try:
            client = docker.from_env(timeout=int(timeout), environment={**os.environ, "DOCKER_HOST": self._socket()})
        except Exception as error:  # the SDK raises requests' and urllib3's errors as well as its own
            raise EngineError(f"{self.name}'s socket {self._socket()} does not answer: {engine_words(str(error))}") from error
        with contextlib.closing(client):
            yield client

    def _socket(self) -> str:
        given = os.environ.get("DOCKER_HOST")
        if given:
            return given
        if self.name == "docker":
            return "unix:///var/run/docker.sock"
        runtime = os.environ.get("XDG_RUNTIME_DIR")
        own = Path(runtime) / "podman/podman.sock" if runtime else None
        return f"unix://{own}" if own is not None and own.exists() else "unix:///run/podman/podman.sock"


def _only_file(archive: bytes) -> bytes:
    with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        for member in tar:
            source = tar.extractfile(member)
            if source is not None:
                return source.read()
    raise EngineError("the engine gave an archive without a file")


def engine_words(text: str) -> str:
    """The last thing an engine said, in one line, without its own `Error response from daemon`."""
    lines = [line.strip() for line in text.splitlines() if line.strip() and not line.startswith("See 'docker")]
    said = re.sub(r"^(?:error response from daemon: |error: )", "", lines[-1], flags=re.IGNORECASE) if lines else "it said nothing"
    return said[:300]


def _call(command: Sequence[str], timeout: float, environment: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(
            list(command), capture_output=True, text=True, errors="replace", stdin=subprocess.DEVNULL, env=dict(environment), timeout=timeout, check=False
        )
    except OSError as error:
        raise EngineError(f"{command[0]} cannot be started: {error.strerror or error}") from error
    except subprocess.TimeoutExpired as error:
        raise EngineError(f"{' '.join(command[:2])} did not answer within {timeout:.0f} s") from error


def find_engine(name: str | None = None) -> Engine:
    """The engine of this name, else Docker, else Podman: the first that answers and builds with BuildKit (or Buildah).

    Raises:
        UsageError: the name is none of :data:`ENGINES`.
        EngineError: none serves; the message says what each lacks.
    """
    if name is not None and name not in ENGINES:
        raise UsageError(f"there is no engine {name!r} here; engines are {' and '.join(ENGINES)}")
    reasons: list[str] = []
    for each in ENGINES if name is None else (name,):
        try:
            return _docker() if each == "docker" else _podman()
        except EngineError as error:
            reasons.append(str(error))
    raise EngineError("; ".join(reasons))


def _on_path(name: str) -> Iterator[str]:
    """Every program of this name on the PATH: an older one further down may have what the first lacks."""
    seen: set[Path] = set()
    for folder in os.environ.get("PATH", os.defpath).split(os.pathsep):
        found = shutil.which(name, path=folder or ".")
        if found is not None and (real := Path(found).resolve()) not in seen:
            seen.add(real)
            yield found


def _docker() -> Engine:
    reason = "there is no docker on the PATH; install Docker (Debian: apt-get install docker.io) or name --engine podman"
    for number, command in enumerate(_on_path("docker")):
        engine = Engine(name="docker", command=command, version="")
        try:
            asked = _call([command, "version", "--format", "{{.Client.Version}} {{.Server.Version}}"], _ASKING, engine.environment)
        except EngineError as error:
            reason = reason if number else str(error)
            continue
        if asked.returncode != 0:
            said = engine_words(asked.stderr)
            reason = f"no docker daemon answers ({said}); start it (systemctl start docker, or dockerd as root), or set DOCKER_HOST"
            if "permission denied" in said:
                reason = f"the docker daemon refuses this user ({said}); add the user to the group docker, or run as root"
            break  # another command line of this machine would reach the same daemon
        client, _, server = asked.stdout.strip().partition(" ")
        major = client.partition(".")[0]
        if major.isdecimal() and int(major) in _BUILT_IN:
            return Engine(name="docker", command=command, version=server)
        if _call([command, "buildx", "version"], _ASKING, engine.environment).returncode == 0:
            return Engine(name="docker", command=command, version=server, buildx=True)
        if number == 0:
            reason = f"docker {client} ({command}) cannot build with BuildKit; install its plug-in buildx (package docker-buildx-plugin or docker-buildx)"
    raise EngineError(reason)


def _podman() -> Engine:
    command = shutil.which("podman")
    if command is None:
        raise EngineError("there is no podman on the PATH")
    asked = _call([command, "version", "--format", "{{.Client.Version}}"], _ASKING, os.environ)
    if asked.returncode != 0:
        raise EngineError(f"podman does not work here ({engine_words(asked.stderr)})")
    return Engine(name="podman", command=command, version=asked.stdout.strip())
