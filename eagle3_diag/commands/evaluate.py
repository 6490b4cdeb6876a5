"""``eagle3-diag evaluate``: a drafter against its target on stored samples."""

from __future__ import annotations

import argparse
import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from eagle3_diag.commands.arguments import integer, positive
from eagle3_diag.commands.torch_import import import_torch
from eagle3_diag.errors import InputError
from eagle3_diag.output import Output, check_apart, check_writable, write_all
from eagle3_diag.progress import Progress, count_files

if TYPE_CHECKING:
    from eagle3_diag.evaluate import Options
    from eagle3_diag.report.document import Document

TRAINERS = ("speculators", "specforge", "eagle", "model-optimizer")
#: More drafted tokens than any server is run with; a larger number is a slip.
MAX_STEPS = 64


class EvaluateCommand:
    """Reads, evaluates, writes the reports asked for, prints the table."""

    name = "evaluate"
    summary = "measure a drafter against its target on stored samples"
    description = (
        "Measure an EAGLE-3 drafter against its target on stored samples: accuracy of every draft step, and the\n"
        "acceptance length that a right server would reach. Needs torch and safetensors, no training library, no server.\n"
        "Exit code 0: evaluated; 2: wrong use or bad input; 130: interrupted."
    )

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        inputs = parser.add_argument_group("inputs")
        inputs.add_argument("--drafter", type=Path, required=True, metavar="DIR", help="drafter checkpoint of any format")
        inputs.add_argument("--target", type=Path, required=True, metavar="DIR", help="target model; only embedding, final norm and LM head are read")
        inputs.add_argument(
            "--samples", type=Path, required=True, nargs="+", action="extend", metavar="PATH", help="stored samples: files or directories of any format"
        )
        inputs.add_argument("--max-samples", type=integer(1), metavar="N", help="stop after N samples")
        inputs.add_argument("--max-rows", type=integer(1), metavar="N", help="stop after N draft rows")
        inputs.add_argument("--prompt-length", type=integer(0), metavar="N", help="tokens of prompt, instead of the stored loss mask")
        inputs.add_argument("--strict", action="store_true", help="stop at the first unusable sample instead of skipping it")
        measure = parser.add_argument_group("what to measure")
        measure.add_argument("--steps", type=integer(1, MAX_STEPS), default=6, metavar="K", help="drafted tokens per verification (default 6)")
        measure.add_argument("--only", choices=["serving"], help="only the acceptance figures, which is several times faster")
        measure.add_argument(
            "--labels", choices=["full", "draft-vocab"], default="full", help="vocabulary of the accuracy's labels: full (default) or as speculators logs it"
        )
        measure.add_argument(
            "--serving-mode",
            choices=["greedy", "sampled-argmax", "sampled"],
            default="greedy",
            help="how the server is imagined to decode (default greedy)",
        )
        measure.add_argument("--temperature", type=positive, metavar="T", help="sampling temperature of --serving-mode sampled (default 1)")
        measure.add_argument("--trainer", choices=TRAINERS, help="also the accuracies by that trainer's own definition")
        measure.add_argument("--seed", type=integer(0, 2**63 - 1), default=0, metavar="N", help="of the bootstrap (default 0)")
        compute = parser.add_argument_group("compute")
        compute.add_argument("--device", default="auto", metavar="auto|cpu|cuda|cuda:N", help="default auto: the GPU where there is one")
        compute.add_argument(
            "--dtype", choices=["auto", "float32", "bfloat16", "float16"], default="auto", help="default auto: float32 on a CPU, bfloat16 on a GPU"
        )
        reports = parser.add_argument_group("reports")
        reports.add_argument("--json", metavar="FILE|-", help="write the report as JSON; - prints it, and nothing else, on stdout")
        reports.add_argument("--html", metavar="FILE", help="write the report as one self-contained page with plots")
        reports.add_argument("--markdown", metavar="FILE", help="write the report as Markdown")
        reports.add_argument("--speculation-profile", metavar="FILE", help="write a speculation_profile.json 1.0 for serving simulators")
        reports.add_argument("--quiet", action="store_true", help="no table and no progress bar")

    def run(self, arguments: argparse.Namespace) -> int:
        if arguments.trainer and arguments.only:
            raise InputError("--trainer asks for accuracies over all rows, which --only serving leaves out; give one of the two")
        if arguments.temperature is not None and arguments.serving_mode != "sampled":
            raise InputError(f"--temperature has no meaning with --serving-mode {arguments.serving_mode}; use it with --serving-mode sampled")
        files = {name: Path(value) for name in ("json", "html", "markdown", "speculation_profile") if (value := getattr(arguments, name)) not in (None, "-")}
        for name in ("html", "markdown", "speculation_profile"):
            if getattr(arguments, name) == "-":
                raise InputError(f"--{name.replace('_', '-')} - is not possible; name a file (only --json can print)")
        by_option = {f"--{name.replace('_', '-')}": path for name, path in files.items()}
        check_writable(by_option)
        check_apart(by_option, [arguments.drafter, arguments.target, *arguments.samples])
        import_torch()

        from eagle3_diag.checkpoint import read_drafter
        from eagle3_diag.evaluate import evaluate, fits, resolve_device, resolve_dtype
        from eagle3_diag.report import html, markdown, speculation_profile, text
        from eagle3_diag.report.document import Inputs, document, dumps
        from eagle3_diag.samples import iter_samples
        from eagle3_diag.target import read_target

        device = resolve_device(arguments.device)
        dtype = resolve_dtype(arguments.dtype, device)
        checkpoint, target = read_drafter(arguments.drafter), read_target(arguments.target)
        samples = iter_samples(
            arguments.samples,
            max_samples=arguments.max_samples,
            strict=arguments.strict,
            prompt_length=arguments.prompt_length,
            check=fits(checkpoint, target),
        )
        with Progress("evaluating", unit="rows", quiet=arguments.quiet) as progress:
            if progress.shown:
                progress.expect(count_files(arguments.samples, arguments.max_samples), arguments.max_rows)
            evaluation = evaluate(checkpoint, target, samples, _options(arguments), device=device, dtype=dtype, progress=progress.update)
        report = document(
            evaluation,
            checkpoint,
            target,
            Inputs(
                skipped=[(str(each.path), each.reason) for each in samples.skipped],
                skipped_count=samples.skipped_count,
                notes=[note if n == samples.read else f"{note} ({n} of {samples.read} samples)" for note, n in sorted(samples.notes.items())],
                prompt_length=arguments.prompt_length,
                max_samples=arguments.max_samples,
            ),
        )
        renderers: dict[str, Callable[[Document], str]] = {
            "json": dumps,
            "html": html.render,
            "markdown": markdown.render,
            "speculation_profile": lambda each: dumps(speculation_profile.profile(each)),
        }
        write_all([Output(path, renderers[name](report)) for name, path in files.items()])
        if arguments.json == "-":
            sys.stdout.write(dumps(report))
        elif not arguments.quiet:
            width = min(120, shutil.get_terminal_size((100, 24)).columns)
            sys.stdout.write(text.render(report, width=width, colour=sys.stdout.isatty() and "NO_COLOR" not in os.environ))
            if files:
                sys.stdout.write(text.labelled([("Written", ", ".join(map(str, files.values())))], width) + "\n")
        return 0


def _options(arguments: argparse.Namespace) -> Options:
    from eagle3_diag.evaluate import Options

    return Options(
        steps=arguments.steps,
        only_serving=arguments.only == "serving",
        labels=arguments.labels,
        serving_mode=arguments.serving_mode,
        temperature=1.0 if arguments.temperature is None else arguments.temperature,
        max_rows=arguments.max_rows,
        trainer=arguments.trainer,
        seed=arguments.seed,
    )
