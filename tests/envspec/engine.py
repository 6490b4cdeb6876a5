"""What the tests with a real container engine share: the base they build on, and names that no other test process uses."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from typing import Any, Final

import pytest

from envspec.errors import CaptureError
from envspec.hosts.docker import ImageHost

__all__ = ["BASE", "PREFIX", "containers_of", "running_engine"]

BASE: Final = os.environ.get("ENVSPEC_TEST_IMAGE", "envspec-test-base")
"""`nox -s bootstrap-base -- --minimal --tag envspec-test-base` makes it."""

PREFIX: Final = f"envspec-test-{os.getpid()}"
"""What images and containers of this process are called: several test processes share one engine, and each removes its own."""


def containers_of(client: Any, image: str) -> set[str]:
    """The containers, running or not, that stand on an image."""
    return {container.id for container in client.containers.list(all=True, filters={"ancestor": image})}


@contextlib.contextmanager
def running_engine() -> Iterator[Any]:
    """A client of the running engine, which has the base image; skips with the reason."""
    docker = pytest.importorskip("docker")
    with contextlib.ExitStack() as stack:
        try:
            client = stack.enter_context(ImageHost(BASE, BASE).engine(600))
        except CaptureError as error:
            pytest.skip(str(error))
        try:
            client.images.get(BASE)
        except docker.errors.ImageNotFound:
            pytest.skip(f"no image {BASE}; make one with debootstrap and docker import, or name one in ENVSPEC_TEST_IMAGE")
        yield client
