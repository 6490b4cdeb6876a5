"""Docker and Podman: a running container, or an image, through the engine's API (the ``docker`` package).

A container is asked with an exec, an image with a container of it that has no network and a read-only file system and
is removed again. An image without a Python (or whose Python cannot start) is read from its exported file system
instead.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import posixpath
import re
import socket
import struct
import tarfile
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from envspec import probe
from envspec.chunks import ChunkFile, until
from envspec.errors import UsageError
from envspec.hosts import wire
from envspec.hosts.interface import CaptureOptions, Host, find_python, last_line, probe_source
from envspec.snapshot import Container, Image, Section, Snapshot

__all__ = ["ContainerHost", "ImageHost", "close_stream"]

_REFERENCE = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.:/@-]{0,254}")
_REMOVAL_SECONDS = 10
_STOP = "import sys;exec(sys.stdin.read(%d))"


class _EngineHost(Host):
    """What images and containers share: the client, and reading a multiplexed stream to the frame."""

    def __init__(self, target: str, name: str, python: str | None = None, label: str | None = None) -> None:
        super().__init__(target, label)
        if not _REFERENCE.fullmatch(name):
            raise UsageError(f"{name!r} in {target!r} is not the name of an image or container")
        self.name = name
        self.python = python

    @contextlib.contextmanager
    def engine(self, timeout: float) -> Iterator[Any]:
        """A client of the engine that DOCKER_HOST names, else of Docker's or Podman's usual socket.

        Raises:
            CaptureError: there is no package ``docker`` or no engine answers.
        """
        try:
            docker = importlib.import_module("docker")
        except ImportError as error:
            raise self.failure("images and containers need the package docker; install envspec[docker]") from error
        tried = []
        for base in self._addresses():
            try:
                _connect(base)
                client = docker.from_env(timeout=max(5, int(timeout)), environment={**os.environ, "DOCKER_HOST": base})
            except Exception as error:  # the SDK raises requests' and urllib3's errors as well as its own
                tried.append(f"{base}: {wire.clean(str(error), 160)}")
                continue
            with contextlib.closing(client):
                try:
                    client.ping()
                except Exception as error:
                    tried.append(f"{base}: {wire.clean(str(error), 160)}")
                    continue
                yield client
                return
        raise self.failure(f"no container engine answers ({tried[0]}); start it or set DOCKER_HOST")

    @staticmethod
    def _addresses() -> list[str]:
        given = os.environ.get("DOCKER_HOST")
        if given:
            return [given]
        runtime = os.environ.get("XDG_RUNTIME_DIR")
        podman = [f"unix://{runtime}/podman/podman.sock"] if runtime else []
        return ["unix:///var/run/docker.sock", *podman, "unix:///run/podman/podman.sock"]

    def commands(self, payload: bytes) -> list[list[str]]:
        """Command lines to try, best first.

        The program is read to its length, so the stream need not be half-closed.
        """
        code = _STOP % len(payload)
        flags = " ".join(wire.FLAGS)
        through_shell = list(find_python(self.python, f"{flags} -c '{code}'"))
        direct = [self.python or "python3", *wire.FLAGS, "-c", code]
        return [through_shell, direct]

    def talk(self, stream: Any, payload: bytes, token: str, timeout: float) -> tuple[wire.Frame | None, str]:
        """Feed the program and read to the frame; what the other side wrote to stderr, too.

        The stream is multiplexed: an 8 byte header (stream, three zeros, length as a big-endian 32-bit
        number) before each part.
        """
        raw = getattr(stream, "_sock", stream)
        deadline = time.monotonic() + timeout
        raw.settimeout(min(timeout, 30.0))
        with contextlib.suppress(OSError):
            raw.sendall(payload)
        received, errors = bytearray(), bytearray()
        pending = bytearray()
        while time.monotonic() < deadline:
            raw.settimeout(max(0.05, deadline - time.monotonic()))
            try:
                chunk = raw.recv(1 << 18)
            except TimeoutError:
                break
            except OSError:
                return None, last_line(errors.decode("utf-8", "replace"))
            if not chunk:
                return None, last_line(errors.decode("utf-8", "replace"))
            pending.extend(chunk)
            while len(pending) >= 8:
                kind, size = struct.unpack(">B3xI", pending[:8])
                if len(pending) < 8 + size:
                    break
                (errors if kind == 2 else received).extend(pending[8 : 8 + size])
                del pending[: 8 + size]
            if len(received) > wire.MAX_ANSWER:
                raise self.failure("it printed more than an answer can be long")
            frame = wire.find_frame(bytes(received), token) if b"\x1e" in received else None
            if frame is not None:
                return frame, ""
        raise self.failure(f"no answer within {timeout:g} s")

    def open_frame(self, frame: wire.Frame) -> object:
        """The answer in a frame."""
        try:
            return wire.read_answer(frame)
        except wire.FrameError as error:
            raise self.failure(str(error)) from error


class ContainerHost(_EngineHost):
    """``container:NAME[#PYTHON]``: a running container, asked with an exec."""

    transport = "container"

    def run_python(self, source: str, stdin_json: object, timeout: float) -> object:
        """See :meth:`Host.run_python`."""
        with self.engine(timeout) as client:
            return self._run(client, source, stdin_json, timeout)

    def _run(self, client: Any, source: str, request: object, timeout: float) -> object:
        token = wire.new_token()
        payload = wire.encode(source, request, token)
        api = client.api
        said = ""
        for command in self.commands(payload):
            try:
                made = api.exec_create(self.name, command, stdin=True, stdout=True, stderr=True)
                stream = api.exec_start(made["Id"], socket=True)
            except Exception as error:
                raise self.failure(_explained(error)) from error
            try:
                frame, said_now = self.talk(stream, payload, token, timeout)
            finally:
                close_stream(stream)
            if frame is not None:
                return self.open_frame(frame)
            said = said or said_now
        raise self.failure(said.replace("envspec: ", "") or "there is no Python in it that starts")

    def snapshot(self, options: CaptureOptions) -> Snapshot:
        """See :meth:`Host.snapshot`."""
        with self.engine(options.whole_timeout) as client:
            document = self._run(client, probe_source(), options.request(), options.whole_timeout)
            snapshot = self.finished(document, python=self.python)
            try:
                container = client.containers.get(self.name)
                image = _image(container.image)
            except Exception:
                return snapshot  # the container answered; what the engine says of its image is a plus
        kind = snapshot.container.kind if snapshot.container else None
        return replace(snapshot, container=Container(kind=kind or "docker", name=container.name, image=image))


class ImageHost(_EngineHost):
    """``image:NAME[:TAG][#PYTHON]``: an image of this machine's engine; it is not pulled."""

    transport = "image"

    def run_python(self, source: str, stdin_json: object, timeout: float) -> object:
        """See :meth:`Host.run_python`."""
        with self.engine(timeout) as client:
            answer = self._run(client, self._find(client), source, stdin_json, timeout)
        if answer is None:
            raise self.failure("there is no Python in it that starts, so nothing can be looked up in it")
        return answer[0]

    def _find(self, client: Any) -> Any:
        try:
            return client.images.get(self.name)
        except Exception as error:
            raise self.failure(_explained(error)) from error

    def _run(self, client: Any, image: Any, source: str, request: object, timeout: float) -> tuple[object] | None:
        """The answer in a tuple; None when no Python in the image started."""
        token = wire.new_token()
        payload = wire.encode(source, request, token)
        for command in self.commands(payload):
            container = client.containers.create(
                image.id,
                command[1:],
                entrypoint=command[:1],
                stdin_open=True,
                network_mode="none",
                read_only=True,
                labels={"envspec": "capture"},
            )
            stream = None
            try:
                stream = container.attach_socket(params={"stdin": 1, "stdout": 1, "stderr": 1, "stream": 1})
                try:
                    container.start()
                except Exception:
                    continue  # the entrypoint does not exist in this image
                frame, _ = self.talk(stream, payload, token, timeout)
                if frame is not None:
                    return (self.open_frame(frame),)
            finally:
                close_stream(stream)
                with contextlib.suppress(Exception):
                    container.remove(force=True, v=True)
        return None

    def snapshot(self, options: CaptureOptions) -> Snapshot:
        """See :meth:`Host.snapshot`."""
        deadline = time.monotonic() + options.whole_timeout
        with self.engine(options.whole_timeout) as client:
            image = self._find(client)
            about = Container(kind="docker", image=_image(image))
            answer = self._run(client, image, probe_source(), options.request(), options.whole_timeout)
            if answer is not None:
                return replace(self.finished(answer[0], python=self.python), container=about)
            return replace(self._exported(client, image, options, deadline), container=about)

    def _exported(self, client: Any, image: Any, options: CaptureOptions, deadline: float) -> Snapshot:
        """The snapshot of an image's files; the container made for it is never started."""
        container = client.containers.create(image.id, ["/envspec"], entrypoint=["/envspec"], network_mode="none")
        try:
            return self._from_export(until(deadline, lambda: container.export(chunk_size=1 << 20)), options)
        except TimeoutError:
            sentence = f"no Python in it starts, and its file system was not exported within {options.whole_timeout:g} s; --timeout gives it more"
            raise self.failure(sentence) from None
        finally:
            client.api.timeout = min(client.api.timeout, _REMOVAL_SECONDS)  # the engine may be what hangs
            with contextlib.suppress(Exception):
                container.remove(force=True, v=True)

    def _from_export(self, chunks: Iterator[bytes], options: CaptureOptions) -> Snapshot:
        with tempfile.TemporaryDirectory(prefix="envspec-") as folder:
            path = unpack_metadata(chunks, Path(folder))
            request = {**options.request(), "root": folder, "path": path}
            document = probe.main(request)
        reason = "there is no Python in the image that starts; its files were read"
        document["sections"]["path"] = {
            "status": "partial",
            "reason": "the order of the search path is not known; " + reason,
        }
        snapshot = self.finished(document)
        unread = {
            name: Section(status="unknown", reason=reason)
            for name in ("interpreter", "libraries", "extensions", "loader", "driver", "gpus", "toolkit", "environment")
        }
        return replace(snapshot, sections={**unread, **snapshot.sections})


_WANTED = re.compile(
    r"(?:^|/)(?:[^/]+\.(?:dist-info|egg-info)(?:/(?:METADATA|PKG-INFO|WHEEL|RECORD|INSTALLER|REQUESTED|direct_url\.json|"
    r"entry_points\.txt|top_level\.txt|requires\.txt|variant\.json))?|[^/]+\.(?:pth|egg-link)|torch/(?:__init__|version)\.py)$"
)
_SITE = re.compile(r"(?:^|/)(?:site|dist)-packages$")
_MAX_MEMBER = 64 << 20


def unpack_metadata(chunks: Iterator[bytes], folder: Path) -> list[str]:
    """Write the packages' metadata of an exported file system below ``folder``; the site directories found, as
    absolute paths there.

    Only regular files are written, only below ``folder``, and their content is never executed. Other names in a
    site directory become empty files, so that the directory lists as it does in the image.
    """
    sites: set[str] = set()
    with tarfile.open(fileobj=ChunkFile(chunks), mode="r|") as archive:  # type: ignore[call-overload]
        for member in archive:
            name = posixpath.normpath(member.name).lstrip("/")
            if name.startswith("../") or name == ".." or "\0" in name or "\\" in name:
                continue
            parent = posixpath.dirname(name)
            if member.isdir() and _SITE.search(name):
                sites.add(name)
            if member.isdir() and _SITE.search(parent):
                (folder / name).mkdir(parents=True, exist_ok=True)
            if not member.isfile() or member.size > _MAX_MEMBER:
                continue
            if _WANTED.search(name):
                source = archive.extractfile(member)
                content = source.read() if source else b""
            elif _SITE.search(parent):
                content = b""
            else:
                continue
            target = folder / name
            with contextlib.suppress(OSError):
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(content)
    for site in sites:
        (folder / site).mkdir(parents=True, exist_ok=True)
    return sorted("/" + site for site in sites)


def _connect(address: str) -> None:
    """Try a Unix socket before the SDK does, which leaves it open when nobody listens.

    Raises:
        OSError: nobody listens there.
    """
    if address.startswith("unix://"):
        with socket.socket(socket.AF_UNIX) as probe_socket:
            probe_socket.settimeout(5.0)
            probe_socket.connect(address[len("unix://") :])


def _image(image: Any) -> Image:
    """What the engine says of an image."""
    about = image.attrs
    config = about.get("Config") or {}
    return Image(
        id=about.get("Id"),
        tags=tuple(sorted(about.get("RepoTags") or ())),
        repo_digests=tuple(sorted(about.get("RepoDigests") or ())),
        layers=tuple((about.get("RootFS") or {}).get("Layers") or ()),
        labels={str(key): str(value) for key, value in sorted((config.get("Labels") or {}).items())},
    )


def _explained(error: Exception) -> str:
    """The engine's own words."""
    return wire.clean(str(getattr(error, "explanation", None) or error)) or type(error).__name__


def close_stream(stream: Any) -> None:
    """Close an attached stream, the socket below it and the response that keeps both."""
    for part in (stream, getattr(stream, "_sock", None), getattr(stream, "_response", None)):
        if part is not None:
            with contextlib.suppress(Exception):
                part.close()
