"""What the tests with a real container engine share: the base they build on, and names that no other test process uses."""

from __future__ import annotations

import os
from typing import Any, Final

__all__ = ["BASE", "PREFIX", "containers_of"]

BASE: Final = os.environ.get("ENVSPEC_TEST_IMAGE", "envspec-test-base")
"""`nox -s bootstrap-base -- --minimal --tag envspec-test-base` makes it."""

PREFIX: Final = f"envspec-test-{os.getpid()}"
"""What images and containers of this process are called: several test processes share one engine, and each removes its own."""


def containers_of(client: Any, image: str) -> set[str]:
    """The containers, running or not, that stand on an image."""
    return {container.id for container in client.containers.list(all=True, filters={"ancestor": image})}
