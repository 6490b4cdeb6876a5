"""``eagle3-diag diagnose``: a served acceptance against what the drafter's weights would give, wired right or wrong."""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import time
from dataclasses import replace
from pathlib import Path

from eagle3_diag.commands import captured
from eagle3_diag.commands.arguments import integer, positive
from eagle3_diag.commands.evaluate import MAX_STEPS, TRAINERS
from eagle3_diag.commands.reading import add_reading_arguments, between
from eagle3_diag.commands.torch_import import import_torch
from eagle3_diag.errors import InputError
from eagle3_diag.output import Output, check_apart, check_writable, write_all
from eagle3_diag.progress import Progress

#: Share of response tokens that may differ from the target's choice in samples said to be decoded greedily (states in low precision).
_GREEDY = 0.05


class DiagnoseCommand:
    """Reads what was served, predicts, decides, writes the reports asked for, prints the verdict."""

    name = "diagnose"
    summary = "tell bad weights from bad wiring by what a server accepted"
    description = (
        "Compare what a server accepted with what these weights would give, wired as trained and wired wrong in every known way.\n"
        "Verdicts: quality, wiring, training-convention, insufficient. Needs torch and safetensors.\n"
        "Exit code 0: diagnosed, whatever the verdict; 2: wrong use or bad input; 130: interrupted."
    )

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        inputs = parser.add_argument_group("inputs")
        inputs.add_argument("--drafter", type=Path, required=True, metavar="DIR", help="drafter checkpoint of any format")
        inputs.add_argument("--target", type=Path, required=True, metavar="DIR", help="target model; only embedding, final norm and LM head are read")
        inputs.add_argument(
            "--samples", type=Path, nargs="+", action="extend", metavar="PATH", help="stored samples: files or directories of any format (needed with --served)"
        )
        inputs.add_argument("--max-samples", type=integer(1), metavar="N", help="stop after N samples")
        inputs.add_argument("--prompt-length", type=integer(0), metavar="N", help="tokens of prompt, instead of the stored loss mask")
        served = parser.add_argument_group("what was served")
        source = served.add_mutually_exclusive_group(required=True)
        source.add_argument(
            "--served", metavar="SOURCE",
            help="vllm:URL, sglang:URL, a log, metrics or JSON file, or figures: rates=0.71,0.22,... or accept-length=1.8,steps=5",
        )  # fmt: skip
        source.add_argument("--captured", type=Path, metavar="DIR", help="what a server fed its drafter (docs/eagle3_diag/capture.md): computed again, tensor by tensor")
        served.add_argument("--same-requests", action="store_true", help="the counters were made by exactly these samples' prompts, decoded greedily")
        served.add_argument("--steps", type=integer(1, MAX_STEPS), metavar="K", help="drafted tokens per verification, where the source does not say")
        served.add_argument("--mean", choices=["per-step", "per-request"], default="per-step", help="what a reported mean is a mean over (default per-step)")
        served.add_argument(
            "--server-dtype", choices=["float32", "bfloat16", "float16"], metavar="TYPE",
            help="what the server computes in: float32, bfloat16 or float16; with float32 on both sides, counts of the same requests hold but for rare ties",
        )  # fmt: skip
        add_reading_arguments(served)
        more = parser.add_argument_group("what else is known")
        more.add_argument("--claimed-accuracy", type=positive, metavar="X", help="accuracy of draft step 0 in training, 0 to 1; needs --claimed-by")
        more.add_argument("--claimed-by", choices=TRAINERS, help="whose definition of accuracy that is")
        more.add_argument("--baseline-tps", type=positive, metavar="X", help="tokens per second without speculation; needs --served-tps")
        more.add_argument("--served-tps", type=positive, metavar="X", help="tokens per second as served")
        compute = parser.add_argument_group("compute")
        compute.add_argument("--device", default="auto", metavar="auto|cpu|cuda|cuda:N", help="default auto: the GPU where there is one")
        compute.add_argument(
            "--dtype", choices=["auto", "float32", "bfloat16", "float16"], default="auto", help="default auto: float32 on a CPU, bfloat16 on a GPU"
        )
        reports = parser.add_argument_group("reports")
        reports.add_argument("--json", metavar="FILE|-", help="write the diagnosis as JSON; - prints it, and nothing else, on stdout")
        reports.add_argument("--html", metavar="FILE", help="write the diagnosis as one self-contained page with plots")
        reports.add_argument("--quiet", action="store_true", help="no text and no progress bar")

    def run(self, arguments: argparse.Namespace) -> int:
        started = time.perf_counter()
        _check(arguments)
        if arguments.captured is not None:
            import_torch()
            return captured.run(arguments)
        files = {name: Path(value) for name in ("json", "html") if (value := getattr(arguments, name)) not in (None, "-")}
        by_option = {f"--{name}": path for name, path in files.items()}
        check_writable(by_option)
        check_apart(by_option, [arguments.drafter, arguments.target, *arguments.samples])
        import_torch()

        from eagle3_diag.catalogue import catalogue
        from eagle3_diag.checkpoint import read_drafter
        from eagle3_diag.claims import examine
        from eagle3_diag.diagnose import Speeds, diagnose
        from eagle3_diag.evaluate import memory_in_words, resolve_device, resolve_dtype
        from eagle3_diag.predict import Predictor
        from eagle3_diag.report.diagnosis import html, text
        from eagle3_diag.report.diagnosis.document import Inputs, document
        from eagle3_diag.report.document import dumps
        from eagle3_diag.samples import iter_samples
        from eagle3_diag.serving import read_served
        from eagle3_diag.survey import survey
        from eagle3_diag.target import read_target

        device = resolve_device(arguments.device)
        dtype = resolve_dtype(arguments.dtype, device)
        checkpoint, target = read_drafter(arguments.drafter), read_target(arguments.target)
        observed = read_served(arguments.served, steps=arguments.steps, mean=arguments.mean, between=between(arguments))
        if arguments.same_requests and (observed.drafts is None or observed.accepted_per_position is None):
            raise InputError(f"--same-requests compares counts, but {observed.source} tells no drafts and accepted drafts per position; give the server's counters")
        observed = replace(observed, dtype=arguments.server_dtype)
        predictor = Predictor(checkpoint, target, steps=observed.steps, device=device, dtype=dtype)
        samples = iter_samples(
            arguments.samples, max_samples=arguments.max_samples, strict=arguments.same_requests, prompt_length=arguments.prompt_length, check=predictor.check
        )
        with memory_in_words(device), Progress("predicting", unit="predictions", quiet=arguments.quiet) as progress:
            held: set[tuple[int, ...]] = set()
            loaded = []
            for sample in samples:
                held.add(predictor.held_layers(sample))
                loaded.append(predictor.load(sample, greedy=arguments.same_requests))
            warnings = _text_warnings(loaded, same_requests=arguments.same_requests)
            common = sorted(set.intersection(*(set(layers) for layers in held)))
            listed = catalogue(checkpoint, target, common, final_normed=any(one.normed for one in loaded))
            found = survey(predictor, loaded, listed, observed, same_requests=arguments.same_requests, progress=progress.update)
            claim = None
            if arguments.claimed_accuracy is not None:
                claim = examine(predictor, loaded, listed, arguments.claimed_accuracy, arguments.claimed_by)
        speeds = None if arguments.served_tps is None else Speeds(baseline=arguments.baseline_tps, served=arguments.served_tps)
        limits = predictor.limits(loaded, found.predictions[0].rates)
        diagnosis = diagnose(observed, found, listed, limits, same_requests=arguments.same_requests, claim=claim, speeds=speeds)
        report = document(
            diagnosis,
            listed,
            checkpoint,
            target,
            Inputs(
                samples=len(loaded),
                tokens=sum(int(one.tokens_N.shape[0]) for one in loaded),
                skipped=samples.skipped_count,
                notes=sorted(samples.notes),
                warnings=warnings,
                device=str(device),
                dtype=str(dtype).removeprefix("torch."),
                breakdown=predictor.breakdown(loaded, found.predictions[0].runs),
                seconds=time.perf_counter() - started,
            ),
        )
        renderers = {"json": dumps, "html": html.render}
        write_all([Output(path, renderers[name](report)) for name, path in files.items()])
        if arguments.json == "-":
            sys.stdout.write(dumps(report))
        elif not arguments.quiet:
            width = min(120, shutil.get_terminal_size((100, 24)).columns)
            sys.stdout.write(text.render(report, width=width, colour=sys.stdout.isatty() and "NO_COLOR" not in os.environ))
        return 0


def _check(arguments: argparse.Namespace) -> None:
    """Options that only make sense together."""
    if arguments.captured is not None:
        for option in ("same_requests", "server_dtype", "steps", "interval", "since", "claimed_accuracy", "claimed_by", "baseline_tps", "served_tps", "prompt_length", "html"):
            if getattr(arguments, option):
                raise InputError(f"--{option.replace('_', '-')} has no meaning with --captured, which computes again what the server did; leave it out")
        return
    if not arguments.samples:
        raise InputError("--served needs --samples: what these weights would get accepted is predicted from stored samples")
    if (arguments.claimed_accuracy is None) != (arguments.claimed_by is None):
        raise InputError("--claimed-accuracy and --claimed-by belong together: an accuracy means nothing without its trainer's definition")
    if arguments.claimed_accuracy is not None and arguments.claimed_accuracy > 1:
        raise InputError(f"--claimed-accuracy {arguments.claimed_accuracy:g}: expected a share from 0 to 1 (0.747 for 74.7 %)")
    if arguments.server_dtype is not None and not arguments.same_requests:
        raise InputError("--server-dtype tells how exactly --same-requests can be held to; without that leave it out")
    if (arguments.baseline_tps is None) != (arguments.served_tps is None):
        raise InputError("--baseline-tps and --served-tps belong together: the cost of a step is told by both")
    if arguments.html == "-":
        raise InputError("--html - is not possible; name a file (only --json can print)")


def _text_warnings(loaded: list, *, same_requests: bool) -> list[str]:  # type: ignore[type-arg]
    """What the stored text says against the comparison. Raises InputError where the very same requests cannot have been decoded greedily."""
    differ, total = sum(one.differ for one in loaded), sum(b - a for one in loaded for a, b in one.responses)
    if not total or differ <= _GREEDY * total:
        return []
    if same_requests:
        raise InputError(
            f"--same-requests: {differ:,} of {total:,} response tokens are not the target's own greedy choice, so these samples were not decoded greedily; "
            "record them so (eagle3-diag record), or leave --same-requests out"
        )
    return [
        (f"{differ:,} of {total:,} response tokens are not the target's greedy choice: the samples were sampled, or made by another target; predictions for a server "
        "that decodes greedily then rest on the parts between such tokens.")
    ]
