"""Runs commands in images: without network, on a read-only file system, with paths of this machine at their own places."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from envspec.compare import LabelledSnapshot, compare
from envspec.errors import UsageError
from envspec.findings import Finding
from envspec.hosts.docker import close_stream
from envspec.images import labels
from envspec.snapshot import Snapshot

__all__ = ["Mounts", "driver_faults", "execute", "has_driver", "run", "sandbox"]

_ITS_OWN: Final = frozenset({"bin", "dev", "etc", "lib", "lib64", "proc", "sbin", "sys", "usr"})
_ABOVE: Final = frozenset({"/", "/opt", "/run", "/tmp", "/var"})
_DRIVER: Final = frozenset({"EP301", "EP302", "EP303", "EP308"})


@dataclass(frozen=True, kw_only=True)
class Mounts:
    """Paths of this machine that a container sees at the same place, so that arguments need no translation."""

    read: tuple[Path, ...] = ()
    write: tuple[Path, ...] = ()

    @classmethod
    def of(cls, read: Sequence[str | Path], write: Sequence[str | Path]) -> Mounts:
        """Absolute mounts; a path inside a mounted one is not mounted again.

        Raises:
            UsageError: a path is not there, is no directory to write into, or would hide the image's own files.
        """
        writable = _outermost([_checked(Path(each)) for each in write])
        for path in writable:
            if not path.is_dir():
                raise UsageError(f"--write {path}: this is no directory")
        readable = [path for path in _outermost([_checked(Path(each)) for each in read]) if path not in writable]
        return cls(read=tuple(readable), write=tuple(writable))


def _checked(path: Path) -> Path:
    # Not resolved: the command gets the path as it was written, and a link in it must lead to the same place inside.
    path = Path(os.path.abspath(path))  # noqa: PTH100 (resolve() would follow links)
    if not path.exists():
        raise UsageError(f"cannot mount {path}: there is no such file or directory")
    own = path.parts[1:2] and path.parts[1] in _ITS_OWN
    if own or str(path) in _ABOVE or any(path.is_relative_to(place) for place in (labels.ENVIRONMENT, labels.TOOLS)):
        raise UsageError(f"cannot mount {path} into an image: it would hide the image's own files; copy what is needed to another directory")
    return path


def _outermost(paths: Sequence[Path]) -> list[Path]:
    return [path for path in dict.fromkeys(paths) if not any(other != path and path.is_relative_to(other) for other in paths)]


@contextlib.contextmanager
def sandbox(client: Any, image: str, command: Sequence[str], *, mounts: Mounts = Mounts(), gpus: bool = False, user: str | None = None, variables: Mapping[str, str] | None = None) -> Iterator[Any]:
    """A container made but not started: no network, nothing writable but ``/tmp`` (in memory) and the mounts for it, no privileges.
    It is removed, running or not.
    """
    from docker.types import DeviceRequest, Mount

    settings: dict[str, Any] = {"user": user} if user else {}
    if user and user.startswith("0:"):
        settings["cap_add"] = ["DAC_OVERRIDE"]  # root reads others' files here as it does outside
    if gpus:
        settings["device_requests"] = [DeviceRequest(count=-1, capabilities=[["gpu"]])]
    binds = [Mount(str(path), str(path), "bind", read_only=True) for path in mounts.read] + [Mount(str(path), str(path), "bind") for path in mounts.write]
    container = client.containers.create(
        image,
        list(command[1:]),
        entrypoint=[command[0]],
        network_mode="none",
        read_only=True,
        tmpfs={"/tmp": "rw,exec,mode=1777"},
        cap_drop=["ALL"],
        security_opt=["no-new-privileges"],
        environment={"HOME": "/tmp", "PYTHONDONTWRITEBYTECODE": "1", **(variables or {})},
        mounts=binds,
        working_dir="/",
        labels={"envspec": "run"},
        **settings,
    )
    try:
        yield container
    finally:
        with contextlib.suppress(Exception):
            container.remove(force=True, v=True)


def run(client: Any, image: str, command: Sequence[str], out: Callable[[bytes], object], err: Callable[[bytes], object], *, mounts: Mounts, gpus: bool, variables: Mapping[str, str]) -> int:
    """Run a command as the calling user and pass on what it prints; its exit code. An interrupt ends and removes it."""
    with sandbox(client, image, command, mounts=mounts, gpus=gpus, user=f"{os.getuid()}:{os.getgid()}", variables=variables) as container:
        stream = container.attach_socket(params={"stdout": 1, "stderr": 1, "stream": 1})
        try:
            try:
                container.start()
            except Exception as error:
                reason = str(getattr(error, "explanation", None) or error)
                raise UsageError(f"{image}: {command[0]} cannot be started in it ({' '.join(reason.split())[:300]})") from error
            follow(stream, out, err)
        finally:
            close_stream(stream)
        return int(container.wait()["StatusCode"])


def execute(container: Any, command: Sequence[str]) -> tuple[int, bytes]:
    """Run a command in a running container; its exit code and what it wrote to stderr."""
    api, errors = container.client.api, bytearray()
    made = api.exec_create(container.id, list(command))
    stream = api.exec_start(made["Id"], socket=True)
    try:
        follow(stream, lambda data: None, errors.extend)
    finally:
        close_stream(stream)
    return int(api.exec_inspect(made["Id"])["ExitCode"]), bytes(errors)


def follow(stream: Any, out: Callable[[bytes], object], err: Callable[[bytes], object]) -> None:
    """Pass on an attached stream until it ends."""
    from docker.utils import socket

    frames: Any = socket.frames_iter  # typed by some releases of the stubs only
    for kind, data in frames(stream, tty=False):
        (err if kind == socket.STDERR else out)(data)


# The driver.


def has_driver(root: Path = Path("/")) -> bool:
    """Whether this machine has a loaded NVIDIA driver and a GPU of it."""
    return (root / "proc/driver/nvidia/version").exists() and any((root / "dev").glob("nvidia[0-9]*"))


def driver_faults(image: Snapshot, machine: Snapshot) -> list[Finding]:
    """Why what an image holds cannot run on a machine's driver and GPUs: what the container's start would say in the runtime's words, or
    the first kernel in CUDA's.

    The image's environment is judged as if it stood on the machine.
    """
    told = {name: machine.section(name) for name in ("driver", "gpus")}
    there = replace(image, driver=machine.driver, gpus=machine.gpus, sections={**image.sections, **told})
    report = compare([LabelledSnapshot(label=machine.label, snapshot=there)])
    return [item for item in report.findings if item.code in _DRIVER and item.severity == "breaks"]
