"""``envspec images smoke IMAGE …``."""

from __future__ import annotations

import argparse
from pathlib import Path

from envspec.commands.inputs import check_apart, check_timeout, finish, outputs, read_baseline
from envspec.errors import UsageError
from envspec.images import labels
from envspec.images.inspect import READ_TIMEOUT, inspect, read_record
from envspec.images.read import named_images
from envspec.images.run import has_driver
from envspec.images.smoke import smoke, smoke_report
from envspec.output import Sink
from envspec.stacks import parse_stack

__all__ = ["run"]


def run(arguments: argparse.Namespace, sink: Sink) -> int:
    """Import in each image what its stack lists."""
    check_timeout(arguments.timeout, least=1)
    wanted, baseline = outputs(arguments), read_baseline(arguments)
    check_apart(arguments, wanted, others=[arguments.stack] if arguments.stack else [])
    images = named_images(arguments.images)
    gpus = arguments.gpus == "all" or (arguments.gpus == "auto" and has_driver())
    tell = sink.say if sink.stderr.isatty() else lambda text: None
    runs = []
    with images[0].host.engine(max(READ_TIMEOUT, arguments.timeout)) as client:
        for image in images:
            facts = inspect(client, image.host)
            where = arguments.stack or f"{image.label}:{labels.STACK_FILE}"
            data = _file(arguments.stack) if arguments.stack else read_record(client, facts, labels.STACK_FILE)
            if data is None:
                raise UsageError(f"{image.label} holds no {labels.STACK_FILE}; name the stack's with --stack FILE")
            runs.append(smoke(client, facts, image.label, parse_stack(data, Path(where)).smoke, timeout=arguments.timeout, gpus=gpus, tell=tell))
    return finish(smoke_report(runs), arguments, sink, spec=None, baseline=baseline, locks=(), outputs=wanted, preflighted=False)


def _file(path: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise UsageError(f"cannot read the stack {path}: {error.strerror or error}") from error
