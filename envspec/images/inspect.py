"""Looks into images: layers, configuration, labels, the build's own records, and every file. Nothing in them is run."""

from __future__ import annotations

import contextlib
import io
import json
import posixpath
import tarfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from envspec.errors import CaptureError
from envspec.hosts.docker import ImageHost
from envspec.images import labels
from envspec.images.digest import Entry, entries_of_tar
from envspec.probe import SECRET_NAME

__all__ = ["READ_TIMEOUT", "ImageContent", "ImageFacts", "inspect", "read_content", "read_record", "stopped"]

READ_TIMEOUT: Final = 900.0
"""Seconds that the engine may be silent: it prepares an export of tens of GB before it sends the first byte."""

_MASKED: Final = ("dev", "proc", "sys")
"""Mounted over when a container starts; what an export shows of them is the engine's."""
_PUT_THERE: Final = frozenset({".dockerenv", "etc/hosts", "etc/hostname", "etc/mtab", "etc/resolv.conf", "run/.containerenv"})
_SETTINGS: Final = ("User", "WorkingDir", "Volumes", "ExposedPorts", "Healthcheck", "StopSignal", "Shell", "OnBuild", "ArgsEscaped")
_RECORDS: Final = (labels.LOCK, labels.STACK_FILE, labels.SPEC_FILE, labels.SNAPSHOT)


@dataclass(frozen=True, kw_only=True)
class ImageFacts:
    """An image as its engine describes it. ``id`` is the digest of its configuration, ``layers`` those of the unpacked layers
    from the base up.

    ``settings`` are the parts of the configuration, besides the environment and what is started, as compact JSON; only set ones.
    """

    name: str
    id: str
    layers: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict)
    settings: Mapping[str, str] = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)
    repo_digests: tuple[str, ...] = ()
    created: str | None = None

    @property
    def role(self) -> str | None:
        """The role that its build gave it."""
        return self.labels.get(labels.ROLE)

    def shown(self, variable: str) -> str | None:
        """A variable's value as it may be printed; None where it is not set."""
        value = self.environment.get(variable)
        return "a secret" if value and SECRET_NAME.search(variable) else value


@dataclass(frozen=True, kw_only=True)
class ImageContent:
    """An image's files: every entry by its path (without a leading ``/``), and the bytes of the build's records that are there."""

    files: Mapping[str, Entry]
    records: Mapping[str, bytes] = field(default_factory=dict)


def inspect(client: Any, host: ImageHost) -> ImageFacts:
    """What the engine says of an image.

    Raises:
        CaptureError: there is no such image.
    """
    try:
        about = client.images.get(host.name).attrs
    except Exception as error:
        reason = str(getattr(error, "explanation", None) or error).strip().splitlines() or [type(error).__name__]
        raise host.failure(reason[0]) from error
    config = about.get("Config") or {}
    parts = {name: config[name] for name in _SETTINGS if config.get(name)}
    parts |= {name: about[name] for name in ("Os", "Architecture", "Variant") if about.get(name)}
    return ImageFacts(
        name=host.name,
        id=about["Id"],
        layers=tuple((about.get("RootFS") or {}).get("Layers") or ()),
        environment=dict(text.split("=", 1) if "=" in text else (text, "") for text in config.get("Env") or ()),
        settings={name: value if isinstance(value, str) else json.dumps(value, sort_keys=True) for name, value in parts.items()},
        labels={str(key): str(value) for key, value in (config.get("Labels") or {}).items()},
        repo_digests=tuple(sorted(about.get("RepoDigests") or ())),
        created=about.get("Created"),
    )


@contextlib.contextmanager
def stopped(client: Any, image: str, **settings: Any) -> Iterator[Any]:
    """A container of the image that has not been started, removed again with its volumes. ``settings`` are docker-py's."""
    container = client.containers.create(image, **{"command": ["/envspec"], "entrypoint": ["/envspec"], "network_mode": "none", **settings})
    try:
        yield container
    finally:
        with contextlib.suppress(Exception):
            container.remove(force=True, v=True)


def read_content(client: Any, facts: ImageFacts) -> ImageContent:
    """Read and hash every file of an image. Memory: one entry a file, about 300 bytes each.

    Raises:
        CaptureError: the engine's archive ends early or is damaged.
    """
    with stopped(client, facts.id, labels={"envspec": "inspect"}) as container:
        records = {path: data for path in _RECORDS if (data := _file(container, path)) is not None}
        try:
            files = {entry.path: entry for entry in entries_of_tar(container.export(chunk_size=1 << 20)) if _of_image(entry.path)}
        except (tarfile.TarError, OSError, EOFError) as error:
            raise CaptureError(f"{facts.name}: its files could not be read to the end ({error}); is the engine's disk full?") from error
    return ImageContent(files=files, records=records)


def read_record(client: Any, facts: ImageFacts, path: str) -> bytes | None:
    """One file of an image; None where there is no regular file of this path."""
    with stopped(client, facts.id, labels={"envspec": "inspect"}) as container:
        return _file(container, path)


def _of_image(path: str) -> bool:
    return path.split("/", 1)[0] not in _MASKED and path not in _PUT_THERE


def _file(container: Any, path: str) -> bytes | None:
    """One file of a container; None where it is no regular file."""
    try:
        chunks, _ = container.get_archive(path)
    except Exception as error:
        if getattr(getattr(error, "response", None), "status_code", None) == 404:
            return None
        raise CaptureError(f"{path}: {str(error).splitlines()[0]}") from error
    with tarfile.open(fileobj=io.BytesIO(b"".join(chunks))) as archive:
        member = archive.getmember(posixpath.basename(path))
        source = archive.extractfile(member) if member.isreg() else None
        return source.read() if source else None
