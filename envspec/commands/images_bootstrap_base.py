"""``envspec images bootstrap-base``."""

from __future__ import annotations

import argparse

from envspec.images.base import bootstrap
from envspec.images.build import BASIC_PACKAGES, COMPILER_PACKAGES
from envspec.images.engine import find_engine
from envspec.output import Sink

__all__ = ["run"]


def run(arguments: argparse.Namespace, sink: Sink) -> int:
    """Make a Debian base and import it."""
    packages = BASIC_PACKAGES + (() if arguments.minimal else COMPILER_PACKAGES)
    image = bootstrap(find_engine(arguments.engine), arguments.tag, packages, suite=arguments.suite, mirror=arguments.mirror, tell=sink.say)
    sink.print_line(f"{arguments.tag}: {image}")
    return 0
