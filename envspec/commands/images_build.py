"""``envspec images build [STACK]``."""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Mapping
from pathlib import Path

from envspec.errors import UsageError
from envspec.images.build import Request, build
from envspec.images.context import project_of
from envspec.images.engine import find_engine
from envspec.images.failures import CheckFailed
from envspec.output import Sink, write_atomically
from envspec.report.escape import no_commands, plain
from envspec.stacks import ROLES, find_stack

__all__ = ["recipe_of", "run"]


def recipe_of(stacks: Path) -> Path:
    """The folder of the Dockerfile: above the stacks.

    Raises:
        UsageError: there is no Dockerfile.
    """
    recipe = stacks.resolve().parent
    if not (recipe / "Dockerfile").is_file():
        raise UsageError(f"there is no Dockerfile in {recipe}; run this in the project's folder, or name its stacks with --stacks DIR")
    return recipe


def run(arguments: argparse.Namespace, sink: Sink) -> int:
    """Build the images and say what they are; 1 when the build's own check has findings."""
    root = Path(arguments.stacks)
    stack, recipe = find_stack(arguments.name, root), recipe_of(root)
    request = Request(
        stack=stack,
        recipe=recipe,
        project=project_of(),
        name=arguments.tag or stack.name,
        roles=ROLES if arguments.role == "both" else (arguments.role,),
        base=arguments.base,
        wheelhouse=Path(arguments.offline) if arguments.offline else None,
        ca=_certificates(arguments.ca, sink.environment),
        index=arguments.index or sink.environment.get("UV_DEFAULT_INDEX") or sink.environment.get("PIP_INDEX_URL"),
        network=arguments.network,
        no_cache=arguments.no_cache,
    )
    engine = find_engine(arguments.engine)
    begun = time.monotonic()
    sink.say(f"{stack.name}: building {' and '.join(request.roles)} with {engine}")
    try:
        built = build(engine, request, lambda text: sink.say(f"  {text}"))
    except CheckFailed as error:
        sink.print(no_commands(plain(error.report + "\n", multiline=True)))
        raise
    took = time.monotonic() - begun
    for image in built:
        sink.print_line(f"{image.name}: {image.size / 1e9:.2f} GB, {image.id}")
    for name, digest in built[0].digests.items():
        sink.print(f"  {name:<12}{digest}\n")
    sink.say(f"{stack.name}: built in {took:.0f} s")
    if arguments.json:
        document = {"stack": stack.name, "engine": str(engine), "seconds": round(took, 1), "images": [image.to_dict() for image in built]}
        write_atomically(Path(arguments.json), json.dumps(document, indent=1) + "\n")
    return 0


def _certificates(given: str | None, environment: Mapping[str, str]) -> Path | None:
    path = given or environment.get("SSL_CERT_FILE")
    if not path:
        return None
    if not Path(path).is_file():
        raise UsageError(f"there is no file of certificates {path}; name one with --ca FILE{'' if given else ', or unset SSL_CERT_FILE'}")
    return Path(path)
