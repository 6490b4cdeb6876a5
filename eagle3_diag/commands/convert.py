"""``eagle3-diag convert``: the same drafter in another format, its wiring unchanged."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from eagle3_diag.commands.check import TRAINERS, read_trained_by
from eagle3_diag.commands.torch_import import import_torch

FORMATS = ("speculators", "specforge", "eagle", "vllm", "model-optimizer")


class ConvertCommand:
    """Reads, plans, writes, reads back."""

    name = "convert"
    summary = "write a drafter in another format, its wiring unchanged"
    description = (
        "Write an EAGLE-3 drafter in another format: names of tensors, places of keys and the meaning of layer ids change, the\n"
        "wiring and every weight stay as they are. What a format cannot say is refused with the reason. The result is read\n"
        "back and compared before it is put in its place.\n"
        "Exit code 0: written; 2: wrong use, bad input, or refused."
    )

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("drafter", type=Path, metavar="DRAFTER", help="drafter checkpoint of any format")
        parser.add_argument("out", type=Path, metavar="OUT", help="directory to make")
        parser.add_argument("--to", choices=FORMATS, required=True, help="format to write")
        parser.add_argument("--target", type=Path, metavar="DIR", help="target model, where a format needs its number of layers (eagle)")
        parser.add_argument("--trained-by", metavar="TRAINER[==V]", help=f"the trainer ({', '.join(TRAINERS)}), where the files do not tell")
        parser.add_argument("--ids", choices=["inputs", "outputs"], help="what the layer ids in config.json mean (default: what the trainer means)")
        parser.add_argument("--quiet", action="store_true", help="say nothing")

    def run(self, arguments: argparse.Namespace) -> int:
        import_torch()

        from eagle3_diag.convert import differences, plan
        from eagle3_diag.convert.writing import check_place, write
        from eagle3_diag.engines.reading import read_trained
        from eagle3_diag.errors import InputError
        from eagle3_diag.report.escape import plain
        from eagle3_diag.target import read_outline

        check_place(arguments.out, arguments.drafter)
        target = read_outline(arguments.target) if arguments.target else None
        checkpoint, raw, trained = read_trained(arguments.drafter, target, trained_by=read_trained_by(arguments.trained_by), ids=arguments.ids)
        made = plan(checkpoint, raw, trained, arguments.to, target.num_layers if target else None)

        def verify(folder: Path) -> None:
            written, _, after = read_trained(folder, target)
            changed = differences((checkpoint.config, trained.wiring), (written.config, after.wiring))
            if changed:
                words = ", ".join(f"{name} {mine} would become {theirs}" for name, (mine, theirs) in changed.items())
                raise InputError(f"{arguments.drafter}: the {arguments.to} format would change its wiring ({words}); nothing was written.")

        write(checkpoint, made, arguments.out, verify)
        if not arguments.quiet:
            lines = [f"{arguments.out}: {arguments.to} format, {len(made.tensors)} tensors as they were, wiring unchanged"]
            lines += [f"assumed: {text}" for text in trained.assumptions] + [f"note: {text}" for text in made.notes]
            sys.stdout.write("".join(plain(line) + "\n" for line in lines))
        return 0
