"""``envspec images attest IMAGE``."""

from __future__ import annotations

import argparse
import json
import re
from pathlib import Path

from envspec.commands.inputs import check_timeout
from envspec.errors import UsageError
from envspec.files import is_dir
from envspec.images.attest import statement
from envspec.images.read import named_images, read_images
from envspec.images.verify import verify
from envspec.output import Sink, write_atomically

__all__ = ["run"]


def run(arguments: argparse.Namespace, sink: Sink) -> int:
    """Write the statement, once the image has been found to be what its labels and records say; else the findings, and 1."""
    if not re.fullmatch(r"[A-Za-z][A-Za-z0-9+.-]*:\S+", arguments.builder):
        raise UsageError(f"--builder {arguments.builder!r}: expected a URI, such as https://ci.example/builders/gpu")
    if arguments.save and not is_dir(Path(arguments.save).parent):
        raise UsageError(f"cannot write {arguments.save}: there is no directory {Path(arguments.save).parent}")
    check_timeout(arguments.timeout)
    images = read_images(named_images([arguments.image]), arguments.timeout)
    report = verify(images)
    failing = report.failing("results")
    if failing:
        for item in failing:
            sink.say(f"envspec: not attested: {item.code} {item.what}")
        return 1
    text = json.dumps(statement(images[0].facts, arguments.builder), indent=2) + "\n"
    if arguments.save:
        write_atomically(Path(arguments.save), text)
    else:
        sink.print(text)
    return 0
