"""``envspec images self-check``: the last step of an image's build."""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path

from envspec.errors import UsageError
from envspec.hosts import CaptureOptions
from envspec.hosts.local import LocalHost
from envspec.images import labels
from envspec.images.digest import environment_digest, walk
from envspec.images.self_check import self_check
from envspec.locks import load_lock
from envspec.output import Sink, write_atomically
from envspec.spec import load_spec
from envspec.stacks import parse_stack

__all__ = ["run"]


def run(arguments: argparse.Namespace, sink: Sink) -> int:
    """Hold the environment against the lock and the stack, write the snapshot and the digests beside them; 1 with findings."""
    root = Path(arguments.root)
    environment, lock_path, stack_path, spec_path = (root / path.lstrip("/") for path in (labels.ENVIRONMENT, labels.LOCK, labels.STACK_FILE, labels.SPEC_FILE))
    # Set by a builder for its own run; a container does not have them.
    for name in ("http_proxy", "https_proxy", "no_proxy", "all_proxy", "ftp_proxy"):
        for spelling in (name, name.upper()):
            os.environ.pop(spelling, None)
    lock = load_lock(lock_path)
    try:
        stack = parse_stack(stack_path.read_bytes(), stack_path)
        digest = environment_digest(walk(environment))
    except OSError as error:
        raise UsageError(f"cannot read {error.filename}: {error.strerror or error}; self-check runs inside an image") from error
    # The salt is the environment's own digest: two builds of one lock write the same snapshot.
    options = CaptureOptions(timeout=600.0, section_timeout=120.0, deep_timeout=3600.0, deep=("*",), salt=digest)
    snapshot = LocalHost("image", python=str(environment), label="image").snapshot(options)
    report = self_check(snapshot, lock, stack, "image", load_spec(spec_path) if spec_path.is_file() else None)
    text = json.dumps(snapshot.to_dict(), sort_keys=True, indent=1, ensure_ascii=True) + "\n"
    write_atomically(root / labels.SNAPSHOT.lstrip("/"), text)
    digests = {"environment": digest, "lock": labels.sha256_of(lock_path.read_bytes()), "snapshot": labels.sha256_of(text.encode("ascii"))}
    write_atomically(root / labels.DIGESTS_FILE.lstrip("/"), json.dumps(digests, indent=1) + "\n")
    code = report.exit_code("results")
    sink.report(report, sink.view(fail_on="results", anchor=lock.path), format="text", outputs=[])
    sink.print(f"self-check: {len(snapshot.distributions)} distributions, {'as the lock says' if code == 0 else 'not as the lock says'}, environment {digest}\n")
    return code
