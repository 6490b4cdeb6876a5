"""``eagle3-diag compare-hidden``: two dumps of the same tokens' hidden states."""

from __future__ import annotations

import argparse
import os
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from eagle3_diag.commands.arguments import positive
from eagle3_diag.commands.torch_import import import_torch
from eagle3_diag.errors import InputError
from eagle3_diag.output import Output, check_apart, check_writable, write_all
from eagle3_diag.progress import Progress

if TYPE_CHECKING:
    from eagle3_diag.hidden import Norm
    from eagle3_diag.target import Target


class CompareHiddenCommand:
    """Says which state is which, and what was done to it."""

    name = "compare-hidden"
    summary = "compare two dumps of hidden states: which state is which, and what was done to it"
    description = (
        "Compare two dumps of the same tokens' hidden states (stored samples of any format, recorded ones, a server's capture):\n"
        "which state is which, in what order, shifted, one layer off, scaled, normed, quantised, rotated, and where they part.\n"
        "Exit code 0: the same, up to rounding; 1: they differ; 2: wrong use or bad input; 130: interrupted."
    )

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("a", type=Path, metavar="A", help="what is right: a file, or a folder of files")
        parser.add_argument("b", type=Path, metavar="B", help="what is held against it: a file, or a folder")
        parser.add_argument("--target", type=Path, metavar="DIR", help="the target, whose final norm is then known by name")
        parser.add_argument("--drafter", type=Path, metavar="DIR", help="the drafter: which states B should hold, in which order, and its norms")
        parser.add_argument("--tolerance", type=positive, metavar="X", help="largest relative error of a token that counts as the same (default: by precision)")
        parser.add_argument("--json", metavar="FILE|-", help="write the result as JSON; - prints it, and nothing else, on stdout")
        parser.add_argument("--quiet", action="store_true", help="print nothing; the exit code tells")

    def run(self, arguments: argparse.Namespace) -> int:
        files = {} if arguments.json in (None, "-") else {"--json": Path(arguments.json)}
        check_writable(files)
        check_apart(files, [each for each in (arguments.a, arguments.b, arguments.target, arguments.drafter) if each is not None])
        import_torch()

        import torch

        from eagle3_diag.checkpoint import read_drafter
        from eagle3_diag.dumps import pair_files, read_dump
        from eagle3_diag.hidden import compare
        from eagle3_diag.report.comparison import Compared, document, render
        from eagle3_diag.report.document import dumps
        from eagle3_diag.target import read_target

        target = None if arguments.target is None else read_target(arguments.target)
        checkpoint = None if arguments.drafter is None else read_drafter(arguments.drafter)
        norms = _norms(target, arguments.drafter)
        width = target.config.hidden_size if target is not None else None if checkpoint is None else checkpoint.config.target_hidden_size
        expected = None if checkpoint is None else checkpoint.wiring.aux_layer_inputs
        found = pair_files(arguments.a, arguments.b)
        compared, tokens = [], 0
        with Progress("comparing", unit="tokens", quiet=arguments.quiet) as progress, torch.inference_mode():
            progress.expect(len(found.pairs))
            for path_a, path_b in found.pairs:
                a, b = read_dump(path_a, width), read_dump(path_b, width)
                for dump, path in ((a, path_a), (b, path_b)):
                    if not dump.states:
                        raise InputError(f"{path}: holds no hidden states; give a file that does")
                comparison = compare(a, b, norms=norms, expected=expected, limit=arguments.tolerance)
                compared.append(Compared(a=str(path_a), b=str(path_b), comparison=comparison))
                tokens += comparison.tokens
                progress.update(tokens)
        report = document(
            str(arguments.a), str(arguments.b), compared, only_a=[str(p) for p in found.only_a], only_b=[str(p) for p in found.only_b]
        )
        write_all([Output(path, dumps(report)) for path in files.values()])
        if arguments.json == "-":
            sys.stdout.write(dumps(report))
        elif not arguments.quiet:
            columns = min(120, shutil.get_terminal_size((100, 24)).columns)
            sys.stdout.write(render(report, width=max(60, columns), colour=sys.stdout.isatty() and "NO_COLOR" not in os.environ))
        return 1 if report["verdict"] == "differs" else 0


def _norms(target: Target | None, drafter: Path | None) -> list[Norm]:
    """Every norm that a state may have gone through on its way, by name."""
    import torch

    from eagle3_diag.checkpoint import read_drafter
    from eagle3_diag.hidden import Norm

    found = []
    if target is not None:
        found.append(Norm(name="the target's final norm", weight_H=target.norm_weight().to(torch.float32) + target.config.norm_offset))
    if drafter is not None:
        checkpoint = read_drafter(drafter)
        names = {"layers.0.hidden_norm.weight": "the drafter's hidden_norm", "norm.weight": "the drafter's output norm"}
        names |= {f"fc_norm.{i}.weight": f"the drafter's fc_norm.{i}" for i in range(checkpoint.config.num_aux)}
        found += [Norm(name=words, weight_H=checkpoint.get(name).to(torch.float32)) for name, words in names.items() if checkpoint.has(name)]
    return found
