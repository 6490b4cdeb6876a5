"""Reads images for verification: what the engine says, every file, a snapshot taken now, and the build's own records."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from envspec.capture import with_salt
from envspec.errors import UsageError
from envspec.hosts import CaptureOptions
from envspec.hosts.docker import ImageHost
from envspec.images import labels
from envspec.images.inspect import READ_TIMEOUT, ImageContent, ImageFacts, inspect, read_content
from envspec.images.verify import SeenImage
from envspec.locks import Lock, load_lock, load_role_locks, named_lock
from envspec.snapshot import Snapshot, loads
from envspec.spec import Spec, load_spec
from envspec.stacks import ROLES, Stack, parse_stack

__all__ = ["NamedImage", "image_host", "named_images", "read_images", "stack_in"]

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class NamedImage:
    """An image as named by the user: ``label`` is unique in a report."""

    label: str
    host: ImageHost
    lock: Lock | None = None


def image_host(name: str, label: str | None = None) -> ImageHost:
    """The host of an image's name, written with or without ``image:``.

    Raises:
        UsageError: it cannot be the name of an image.
    """
    plain = name.removeprefix("image:")
    return ImageHost(f"image:{plain}", plain, label=label or plain)


def named_images(names: Sequence[str]) -> list[NamedImage]:
    """Images with labels: their names, with ``train=`` and ``infer=`` before two that are the same.

    Raises:
        UsageError: a name cannot be an image's.
    """
    plain = [name.removeprefix("image:") for name in names]
    own = plain if len(set(plain)) == len(plain) else [f"{ROLES[i] if len(plain) == 2 else i + 1}={name}" for i, name in enumerate(plain)]
    return [NamedImage(label=label, host=image_host(name, label)) for label, name in zip(own, plain, strict=True)]


def read_images(images: Sequence[NamedImage], timeout: float, lock_texts: Sequence[str] = (), tell: Callable[[str], None] = lambda text: None) -> list[SeenImage]:
    """Read the images, two at a time; ``timeout`` in seconds bounds the snapshot of one. Where layers are the same the files are read once, and where the environment variables are too, so is
    the snapshot.

    Raises:
        CaptureError: there is no engine or no such image, or one cannot be read.
        UsageError: a lock cannot be read, or a record in an image is damaged.
    """
    options = with_salt(CaptureOptions(timeout=timeout, section_timeout=timeout, deep_timeout=timeout, deep=("*",)))
    with images[0].host.engine(READ_TIMEOUT) as client:
        facts = [inspect(client, image.host) for image in images]
        roles = [_role(about, number, len(images)) for number, about in enumerate(facts)]
        asked = [_asked(lock_texts, role, set(roles)) for role in roles]
        for image in images:
            tell(f"reading {image.label}")
        with ThreadPoolExecutor(2) as pool:
            contents = {about.layers: pool.submit(read_content, client, about) for about in facts}
            snapshots = {_run_as(about): pool.submit(image.host.snapshot, options) for image, about in zip(images, facts, strict=True)}
            pairs = [(contents[about.layers].result(), snapshots[_run_as(about)].result()) for about in facts]
    locks: dict[bytes, Lock] = {}
    seen = []
    for image, about, role, lock, (content, now) in zip(images, facts, roles, asked, pairs, strict=True):
        stack = stack_in(content, image.label)
        seen.append(
            SeenImage(
                label=image.label,
                role=role,
                facts=about,
                content=content,
                now=replace(now, capture=replace(now.capture, label=image.label, target=image.host.target)),
                baked=_baked(content, image.label),
                lock=_own_lock(content, image.label, locks),
                asked=lock,
                roles=stack.roles if stack else None,
                accepted=_accepted(content, image.label),
            )
        )
    return seen


def _role(facts: ImageFacts, number: int, count: int) -> str | None:
    """The image's own role; else, of two images, the one of its place."""
    return facts.role or (ROLES[number] if count == 2 else None)


def _run_as(facts: ImageFacts) -> tuple[Any, ...]:
    """What a snapshot of an image depends on."""
    return facts.layers, tuple(sorted(facts.environment.items())), facts.settings.get("User"), facts.settings.get("WorkingDir")


def _asked(texts: Sequence[str], role: str | None, roles: set[str | None]) -> Lock | None:
    """The lock of ``[ROLE=]FILE`` arguments for a role."""
    chosen: Lock | None = None
    for text in texts:
        name, path = named_lock(text, roles)
        if name is not None:
            if name == role:
                return load_lock(path, role)
            continue
        chosen = next((lock.lock for lock in load_role_locks(text, [role])), chosen)
    return chosen


def _own_lock(content: ImageContent, label: str, known: dict[bytes, Lock]) -> Lock | None:
    data = content.records.get(labels.LOCK)
    if data is not None and data not in known:
        known[data] = replace(_as_file(data, labels.LOCK, label, load_lock), path=f"{label}:{labels.LOCK}")
    return known[data] if data is not None else None


def _accepted(content: ImageContent, label: str) -> Spec | None:
    data = content.records.get(labels.SPEC_FILE)
    return _as_file(data, labels.SPEC_FILE, label, load_spec) if data is not None else None


def _as_file(data: bytes, where: str, label: str, load: Callable[[Path], T]) -> T:
    """What a reader of files makes of a record in an image; its errors name the image."""
    with tempfile.TemporaryDirectory(prefix="envspec-") as folder:
        path = Path(folder) / Path(where).name
        path.write_bytes(data)
        try:
            return load(path)
        except UsageError as error:
            raise UsageError(str(error).replace(str(path), f"{label}:{where}")) from error


def _baked(content: ImageContent, label: str) -> Snapshot | None:
    data = content.records.get(labels.SNAPSHOT)
    if data is None:
        return None
    where = f"{labels.SNAPSHOT} in {label}"
    try:
        return loads(json.loads(data), where)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{where} is not a snapshot: it is not valid JSON ({error})") from error


def stack_in(content: ImageContent, label: str) -> Stack | None:
    """The ``stack.yaml`` that an image holds.

    Raises:
        UsageError: it holds a mistake.
    """
    data = content.records.get(labels.STACK_FILE)
    return parse_stack(data, Path(f"{label}:{labels.STACK_FILE}")) if data is not None else None
