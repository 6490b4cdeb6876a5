"""The digest that a registry has for a stack's base image now, asked through the container engine, which knows mirrors and logins."""

from __future__ import annotations

import re

from envspec.errors import CaptureError, UsageError
from envspec.hosts.docker import ImageHost
from envspec.hosts.wire import clean
from envspec.locking.errors import ResolutionError
from envspec.output import write_atomically
from envspec.stacks import Stack

__all__ = ["digest_of", "rebase"]

_TIMEOUT = 60.0


def digest_of(image: str) -> str:
    """``sha256:…`` of ``NAME:TAG``: of the index, where the tag is one for several platforms.

    Raises:
        ResolutionError: no engine answers, or the registry cannot be reached or does not have it.
    """
    try:
        with ImageHost(f"image:{image}", image).engine(_TIMEOUT) as client:
            try:
                found = str(client.images.get_registry_data(image).id)
            except Exception as error:  # the SDK raises requests' errors as well as its own
                raise ResolutionError(f"the registry of {image} gives no digest: {clean(str(error), 300)}") from error
    except CaptureError as error:
        raise ResolutionError(str(error)) from error
    if not re.fullmatch(r"sha256:[0-9a-f]{64}", found):
        raise ResolutionError(f"the registry of {image} gives {found[:80]!r}, which is no sha256 digest")
    return found


def rebase(stack: Stack) -> str:
    """Write the digest that the base's tag has now into ``stack.yaml``, and say what changed.

    Raises:
        UsageError: the stack names no base with a tag, or the file cannot be written.
        ResolutionError: the digest cannot be had.
    """
    image, _, old = (stack.base or "").partition("@")
    if not image or ":" not in image.rpartition("/")[2]:
        raise UsageError(f"{stack.file}: base: there is no NAME:TAG@sha256:… whose digest could be resolved anew")
    new = digest_of(image)
    if new == old:
        return f"{stack.name}: the base {image} is unchanged"
    text = stack.file.read_text(encoding="utf-8")
    write_atomically(stack.file, text.replace(f"{image}@{old}", f"{image}@{new}"))
    return f"{stack.name}: the base {image} is now {new}, was {old}"
