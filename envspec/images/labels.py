"""What an image says of itself: where its files are and what its labels mean. The build writes them, verification checks them.

``org.eagle3-parity.*`` labels, beside the standard ones of the OCI image specification:

- ``stack``, ``role``: names;
- ``lock-digest``, ``snapshot-digest``: ``sha256:`` of the bytes of the two files, so that ``sha256sum`` gives the same;
- ``base-digest``: of the base image (a registry's digest, else the image's id);
- ``environment-digest``: :func:`envspec.images.digest.environment_digest` over what is below :data:`ENVIRONMENT`.
"""

from __future__ import annotations

import hashlib
from typing import Final

__all__ = [
    "BASE_DIGEST",
    "DIGESTS",
    "DIGESTS_FILE",
    "ENVIRONMENT",
    "ENVIRONMENT_DIGEST",
    "LOCK",
    "LOCK_DIGEST",
    "PREFIX",
    "RECORDS",
    "ROLE",
    "SNAPSHOT",
    "SNAPSHOT_DIGEST",
    "SPEC_FILE",
    "STACK",
    "STACK_FILE",
    "TOOLS",
    "sha256_of",
]

PREFIX: Final = "org.eagle3-parity."
STACK: Final = PREFIX + "stack"
ROLE: Final = PREFIX + "role"
LOCK_DIGEST: Final = PREFIX + "lock-digest"
SNAPSHOT_DIGEST: Final = PREFIX + "snapshot-digest"
BASE_DIGEST: Final = PREFIX + "base-digest"
ENVIRONMENT_DIGEST: Final = PREFIX + "environment-digest"
DIGESTS: Final = (LOCK_DIGEST, SNAPSHOT_DIGEST, BASE_DIGEST, ENVIRONMENT_DIGEST)

ENVIRONMENT: Final = "/opt/env"
"""The virtual environment that the lock describes."""
TOOLS: Final = "/opt/tools"
"""envspec and nox, in an environment of their own."""
RECORDS: Final = "/etc/envspec"
LOCK: Final = RECORDS + "/requirements.lock"
STACK_FILE: Final = RECORDS + "/stack.yaml"
SPEC_FILE: Final = RECORDS + "/envspec.yaml"
"""The findings that the stack accepts, as a spec's `ignore`; without any where the stack has no such file."""
SNAPSHOT: Final = RECORDS + "/snapshot.json"
DIGESTS_FILE: Final = RECORDS + "/digests.json"
"""The digests of the environment, the lock and the snapshot, as the build's own check computed them."""


def sha256_of(data: bytes) -> str:
    """``sha256:<hex>`` of a file's bytes, as the labels hold it."""
    return f"sha256:{hashlib.sha256(data).hexdigest()}"
