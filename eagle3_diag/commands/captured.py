"""``eagle3-diag diagnose --captured DIR``: what a server was seen to feed its drafter, computed again."""

from __future__ import annotations

import argparse
import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from eagle3_diag.output import Output, check_apart, check_writable, write_all
from eagle3_diag.progress import Progress

if TYPE_CHECKING:
    from eagle3_diag.hidden import Dump
    from eagle3_diag.samples import Sample


def run(arguments: argparse.Namespace) -> int:
    """Replay ``arguments.captured`` with ``drafter``, ``target`` and ``samples``; ``json``, ``quiet``, ``device`` and ``dtype`` as elsewhere.

    Returns 0: diagnosed, whatever the verdict. Raises InputError with one sentence for bad input.
    """
    files = {} if arguments.json in (None, "-") else {"--json": Path(arguments.json)}
    samples: list[Path] = arguments.samples or []
    check_writable(files)
    check_apart(files, [arguments.drafter, arguments.target, arguments.captured, *samples])

    import torch

    from eagle3_diag.captures import read_captures
    from eagle3_diag.catalogue import catalogue
    from eagle3_diag.checkpoint import read_drafter
    from eagle3_diag.drafter import Drafter, Weights
    from eagle3_diag.evaluate import resolve_device, resolve_dtype
    from eagle3_diag.replay import replay
    from eagle3_diag.report.document import dumps
    from eagle3_diag.report.replay import document, render
    from eagle3_diag.samples import iter_samples
    from eagle3_diag.target import read_target

    device = resolve_device(arguments.device)
    checkpoint, target = read_drafter(arguments.drafter), read_target(arguments.target)
    captures = read_captures(arguments.captured)
    # All layers are listed: what was captured is read off the states, not predicted from samples.
    listed = catalogue(checkpoint, target, tuple(range(1, target.config.num_layers + 1)))
    drafter = Drafter(Weights(checkpoint, target, device, resolve_dtype(arguments.dtype, device)), listed.right)
    with Progress("replaying", unit="tokens", quiet=arguments.quiet) as progress, torch.inference_mode():
        stream = iter_samples(samples, max_samples=arguments.max_samples) if samples else ()
        found = replay(drafter, captures, listed, _dumps(stream, target.config.hidden_size, progress))
    report = document(
        found, captured=str(arguments.captured), drafter=str(arguments.drafter), target=str(arguments.target), server=captures[0].about
    )
    write_all([Output(path, dumps(report)) for path in files.values()])
    if arguments.json == "-":
        sys.stdout.write(dumps(report))
    elif not arguments.quiet:
        width = min(120, shutil.get_terminal_size((100, 24)).columns)
        sys.stdout.write(render(report, width=max(60, width), colour=sys.stdout.isatty() and "NO_COLOR" not in os.environ))
    return 0


def _dumps(samples: Iterator[Sample] | tuple[()], width: int, progress: Progress) -> Iterator[Dump]:
    from eagle3_diag.dumps import sample_dump

    tokens = 0
    for sample in samples:
        tokens += sample.length
        yield sample_dump(sample, width)
        progress.update(tokens)
