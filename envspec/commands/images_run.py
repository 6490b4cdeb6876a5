"""``envspec images run IMAGE -- COMMAND …``."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from typing import TextIO

from envspec.capture import with_salt
from envspec.errors import UsageError
from envspec.hosts import CaptureOptions
from envspec.hosts.local import LocalHost
from envspec.images.inspect import READ_TIMEOUT, inspect
from envspec.images.read import image_host
from envspec.images.run import Mounts, driver_faults, has_driver
from envspec.images.run import run as run_in
from envspec.output import Sink

__all__ = ["run"]


def run(arguments: argparse.Namespace, sink: Sink) -> int:
    """Run it and return its exit code; 1 before the start where this machine's driver or GPUs cannot carry the image."""
    mounts = Mounts.of(arguments.read, arguments.write)
    variables = {}
    for text in arguments.variables:
        name, equals, value = text.partition("=")
        if not name or not equals:
            raise UsageError(f"--env {text!r}: expected NAME=VALUE")
        variables[name] = value
    host = image_host(arguments.image)
    gpus = arguments.gpus == "all" or (arguments.gpus == "auto" and has_driver())
    with host.engine(READ_TIMEOUT) as client:
        facts = inspect(client, host)
        if gpus:
            options = with_salt(CaptureOptions())
            faults = driver_faults(host.snapshot(options), LocalHost("local", python=sys.executable, label="this machine").snapshot(options))
            for item in faults:
                sink.say(f"envspec: {facts.name} cannot run here: {item.what}. {item.fix}")
            if faults:
                return 1
        return run_in(client, facts.id, arguments.argv, _to(sink.stdout), _to(sink.stderr), mounts=mounts, gpus=gpus, variables=variables)


def _to(stream: TextIO) -> Callable[[bytes], object]:
    """Bytes to a stream, as they come: the command's own output, which is neither cut nor escaped."""
    raw = getattr(stream, "buffer", None)

    def write(data: bytes) -> None:
        if raw is not None:
            raw.write(data)
            raw.flush()
        else:
            stream.write(data.decode("utf-8", "replace"))

    return write
