"""``eagle3-diag record``: samples made with a Transformers target."""

from __future__ import annotations

import argparse
import hashlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from eagle3_diag.commands.arguments import integer, positive
from eagle3_diag.commands.torch_import import import_torch
from eagle3_diag.errors import InputError
from eagle3_diag.progress import Progress, count_files

if TYPE_CHECKING:
    from eagle3_diag.prompts import Prompt
    from eagle3_diag.record import Job
    from eagle3_diag.running_target import RunningTarget

#: --samples re-runs text; a longer answer than this is a slip.
MAX_NEW_TOKENS = 1 << 20


class RecordCommand:
    """Runs the target over prompts or stored text and stores its hidden states."""

    name = "record"
    summary = "make samples: run a Transformers target over prompts and store its hidden states"
    description = (
        "Run a Transformers target over prompts (or over the text of stored samples) and store the hidden states that the\n"
        "other commands need. Needs transformers, which no other command does. Takes up an interrupted recording where it was.\n"
        "Exit code 0: recorded; 2: wrong use or bad input; 130: interrupted."
    )

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        inputs = parser.add_argument_group("inputs")
        inputs.add_argument("--target", type=Path, required=True, metavar="DIR", help="target model, run by Transformers")
        text = inputs.add_mutually_exclusive_group(required=True)
        text.add_argument("--prompts", type=Path, metavar="FILE", help="one prompt per line, or JSON Lines with prompt, messages or prompt_token_ids")
        text.add_argument(
            "--samples", type=Path, nargs="+", action="extend", metavar="PATH", help="stored samples whose text is run again as it is, mask kept"
        )
        inputs.add_argument("--max-samples", type=integer(1), metavar="N", help="stop after N samples")
        inputs.add_argument("--out", type=Path, required=True, metavar="DIR", help="folder for hs_0.safetensors, hs_1.safetensors, ...")
        states = parser.add_argument_group("which states")
        which = states.add_mutually_exclusive_group()
        which.add_argument("--layers", nargs="+", metavar="I", help="inputs of these layers (0 = embedding); the final state is always stored")
        which.add_argument("--all-layers", action="store_true", help="the inputs of all layers but the first, whose input is the embedding")
        states.add_argument("--drafter", type=Path, metavar="DIR", help="record what this drafter takes, and the layers beside (without: the usual layers)")
        answers = parser.add_argument_group("answers")
        answers.add_argument("--max-new-tokens", type=integer(1, MAX_NEW_TOKENS), metavar="N", help="longest answer (default 256)")
        answers.add_argument("--temperature", type=positive, metavar="T", help="sample at this temperature (default: greedy)")
        answers.add_argument("--seed", type=integer(0, 2**63 - 1), metavar="N", help="of the sampling (default 0)")
        answers.add_argument("--ignore-end", action="store_true", help="go on behind the end token, up to --max-new-tokens")
        compute = parser.add_argument_group("compute")
        compute.add_argument("--device", default="auto", metavar="auto|cpu|cuda|cuda:N", help="default auto: the GPU where there is one")
        compute.add_argument(
            "--dtype", choices=["auto", "float32", "bfloat16", "float16"], default="auto", help="default auto: float32 on a CPU, the target's own on a GPU"
        )
        compute.add_argument("--store-dtype", choices=["float32", "bfloat16", "float16"], help="of the stored states (default: what they were computed in)")
        compute.add_argument("--trust-remote-code", action="store_true", help="let Transformers run code that lies in the target's folder")
        compute.add_argument("--quiet", action="store_true", help="no summary and no progress bar")

    def run(self, arguments: argparse.Namespace) -> int:
        if arguments.samples:
            for option in ("max_new_tokens", "temperature", "seed", "ignore_end"):
                if getattr(arguments, option):
                    raise InputError(f"--{option.replace('_', '-')} is about answers, but --samples runs stored text as it is; use it with --prompts")
        if arguments.seed is not None and arguments.temperature is None:
            raise InputError("--seed has no meaning for a greedy target; use it with --temperature")
        if arguments.drafter is not None and (arguments.layers or arguments.all_layers):
            raise InputError("--drafter chooses the layers, and so does --layers or --all-layers; give one of them")
        layers = None if arguments.layers is None else _layers(arguments.layers)
        import_torch()

        import torch

        from eagle3_diag.evaluate import resolve_device
        from eagle3_diag.prompts import read_prompts
        from eagle3_diag.record import Settings, around, check_layer_inputs, record, usual_layer_inputs
        from eagle3_diag.running_target import RunningTarget, require_transformers
        from eagle3_diag.target import read_target

        require_transformers()
        target = read_target(arguments.target)
        prompts = None if arguments.prompts is None else read_prompts(arguments.prompts)[: arguments.max_samples]
        count = target.config.num_layers
        if layers is not None:
            chosen = check_layer_inputs(layers, count)
        elif arguments.all_layers:
            chosen = tuple(range(1, count + 1))
        elif arguments.drafter is not None:
            chosen = around(_of_drafter(arguments.drafter), count)
        else:
            chosen = usual_layer_inputs(count)
        device = resolve_device(arguments.device)
        dtypes = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16, "auto": None if device.type == "cuda" else torch.float32}
        settings = Settings(
            layer_inputs=chosen,
            max_new_tokens=arguments.max_new_tokens or 256,
            temperature=arguments.temperature or 0.0,
            seed=arguments.seed or 0,
            ignore_end=arguments.ignore_end,
            store=None if arguments.store_dtype is None else dtypes[arguments.store_dtype],
        )
        runner = RunningTarget(arguments.target, device=device, dtype=dtypes[arguments.dtype], trust_remote_code=arguments.trust_remote_code)
        if runner.num_layers != count:
            raise InputError(f"{arguments.target}: config.json says {count} layers, Transformers runs {runner.num_layers}; this target cannot be recorded")
        with Progress("recording", unit="tokens", quiet=arguments.quiet) as progress:
            if prompts is not None:
                progress.expect(len(prompts))
                source = f"prompts {hashlib.sha256(arguments.prompts.read_bytes()).hexdigest()}"
                jobs = _of_prompts(runner, prompts)
            else:
                progress.expect(count_files(arguments.samples, arguments.max_samples) if progress.shown else None)
                source = "samples " + ", ".join(sorted(str(path.resolve()) for path in arguments.samples))
                jobs = _of_samples(arguments.samples, arguments.max_samples, target.config.vocab_size)
            done = record(runner, target, jobs, settings, arguments.out, source=source, progress=progress.update)
        for reason in done.skipped[:5]:
            sys.stderr.write(f"eagle3-diag record: left out: {reason}\n")
        if not arguments.quiet:
            there = f" ({done.present:,} of them were there already)" if done.present else ""
            inputs = ", ".join(map(str, chosen[:-1]))
            sys.stdout.write(
                f"Recorded {done.written + done.present:,} samples{there}, {done.tokens:,} tokens, {done.bytes / 2**20:,.1f} MiB, in {arguments.out}: the inputs of "
                f"layers {inputs} and the final state of {count} layers.\n"
            )
        return 0


def _layers(words: list[str]) -> list[int]:
    """Numbers with spaces or commas between."""
    text = " ".join(words)
    try:
        return [int(each) for each in text.replace(",", " ").split()]
    except ValueError:
        raise InputError(f"--layers {text}: is no list of numbers; write layer inputs such as 2 16 29") from None


def _of_drafter(path: Path) -> tuple[int, ...]:
    from eagle3_diag.checkpoint import read_drafter

    checkpoint = read_drafter(path)
    inputs = checkpoint.wiring.aux_layer_inputs
    if inputs is None:
        raise InputError(f"{path}: does not say which layers it takes; give --layers, or leave --drafter out for the usual ones")
    return inputs


def _of_prompts(runner: RunningTarget, prompts: list[Prompt]) -> Iterator[Job]:
    from eagle3_diag.record import Job

    for prompt in prompts:
        yield Job(tokens=tuple(runner.tokens(prompt)), where=prompt.where)


def _of_samples(paths: list[Path], limit: int | None, vocab_size: int) -> Iterator[Job]:
    from eagle3_diag.record import Job
    from eagle3_diag.samples import iter_samples
    from eagle3_diag.samples.checks import check_tokens

    for sample in iter_samples(paths, max_samples=limit, strict=True, check=lambda each: check_tokens(each, vocab_size)):
        yield Job(tokens=tuple(sample.tokens_N.tolist()), mask=tuple(sample.mask_N.tolist()), where=sample.name)
