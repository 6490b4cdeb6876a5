"""``eagle3-diag probe``: ask a running server for chosen rows and name what is wired wrong."""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from eagle3_diag.commands.arguments import integer, positive
from eagle3_diag.commands.evaluate import MAX_STEPS
from eagle3_diag.commands.torch_import import import_torch
from eagle3_diag.errors import InputError
from eagle3_diag.output import Output, check_apart, check_writable, write_all
from eagle3_diag.progress import Progress

if TYPE_CHECKING:
    from eagle3_diag.probe import Reply, Row
    from eagle3_diag.serving.ask import Asker, Pace, Request

#: Usable rows looked at unless more are wanted: enough to part every pair of explanations many times over.
_ROWS = 2048
#: Times that a row is asked where its answer is read off a stream's timing and contradicts what looked settled.
_AGAIN = 2


class ProbeCommand:
    """Predicts, asks, weighs, writes the reports asked for, prints the verdict."""

    name = "probe"
    summary = "ask a running server for chosen rows and name what is wired wrong"
    description = (
        "Ask a running server for single rows of stored samples, chosen where the possible faults predict different answers,\n"
        "and solve for its wiring. Sends prefixes of the samples as token ids, greedily, one at a time, and nothing else.\n"
        "Exit code 0: served as trained (or a plan was written); 1: not, or not decided; 2: wrong use or bad input; 130: interrupted."
    )

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        inputs = parser.add_argument_group("inputs")
        inputs.add_argument("--drafter", type=Path, required=True, metavar="DIR", help="drafter checkpoint of any format, as it was trained")
        inputs.add_argument("--target", type=Path, required=True, metavar="DIR", help="target model; only embedding, final norm and LM head are read")
        inputs.add_argument(
            "--samples", type=Path, required=True, nargs="+", action="extend", metavar="PATH", help="stored samples: files or directories of any format"
        )
        inputs.add_argument("--max-samples", type=integer(1), metavar="N", help="stop after N samples")
        inputs.add_argument("--max-rows", type=integer(1), default=_ROWS, metavar="N", help=f"choose among the first N usable rows (default {_ROWS})")
        inputs.add_argument("--prompt-length", type=integer(0), metavar="N", help="tokens of prompt, instead of the stored loss mask")
        asking = parser.add_argument_group("asking")
        asking.add_argument("--server", metavar="KIND:URL", help="vllm:URL (by its counters), sglang:URL (by meta_info), openai:URL (any other, by its stream)")
        asking.add_argument("--steps", type=integer(1, MAX_STEPS), metavar="K", help="drafted tokens per verification, where the server does not say")
        asking.add_argument("--requests", type=integer(1, 100000), default=64, metavar="N", help="rows to ask (default 64)")
        asking.add_argument("--max-rate", type=positive, metavar="X", help="at most X requests a second")
        asking.add_argument("--timeout", type=positive, default=120.0, metavar="SECONDS", help="longest wait for one answer (default 120)")
        asking.add_argument("--model", metavar="NAME", help="name of the served model (default: the first that the server names)")
        asking.add_argument("--dry-run", action="store_true", help="show the requests that a plan would send, and send none")
        asking.add_argument("--plan", metavar="FILE", help="write the requests as JSON instead of sending them")
        asking.add_argument("--answers", type=Path, metavar="FILE", help="read answers from a file instead of asking; may be partial")
        asking.add_argument("--save-answers", metavar="FILE", help="write what the server answered, as --answers reads it")
        asking.add_argument("--no-combinations", action="store_true", help="do not search two faults at once where no single one fits")
        compute = parser.add_argument_group("compute")
        compute.add_argument("--device", default="auto", metavar="auto|cpu|cuda|cuda:N", help="default auto: the GPU where there is one")
        compute.add_argument(
            "--dtype", choices=["auto", "float32", "bfloat16", "float16"], default="auto", help="default auto: float32 on a CPU, bfloat16 on a GPU"
        )
        reports = parser.add_argument_group("reports")
        reports.add_argument("--json", metavar="FILE|-", help="write the verdict as JSON; - prints it, and nothing else, on stdout")
        reports.add_argument("--html", metavar="FILE", help="write the verdict as one self-contained page with plots")
        reports.add_argument("--quiet", action="store_true", help="no text and no progress bar")

    def run(self, arguments: argparse.Namespace) -> int:
        started = time.perf_counter()
        _check(arguments)
        files = {name: Path(value) for name in ("json", "html", "plan", "save_answers") if (value := getattr(arguments, name)) not in (None, "-")}
        by_option = {f"--{name.replace('_', '-')}": path for name, path in files.items()}
        check_writable(by_option)
        check_apart(by_option, [arguments.drafter, arguments.target, *arguments.samples])
        import_torch()

        from eagle3_diag import plan as plans
        from eagle3_diag import probe
        from eagle3_diag.catalogue import catalogue
        from eagle3_diag.checkpoint import read_drafter
        from eagle3_diag.evaluate import resolve_device, resolve_dtype
        from eagle3_diag.inquiry import inquire
        from eagle3_diag.predict import Predictor
        from eagle3_diag.probe_verdict import as_diagnosis, predicted, verdict
        from eagle3_diag.report.diagnosis import html, text
        from eagle3_diag.report.diagnosis.document import Inputs, document
        from eagle3_diag.report.document import dumps
        from eagle3_diag.samples import iter_samples
        from eagle3_diag.serving import ask
        from eagle3_diag.solve import Rows
        from eagle3_diag.target import read_target

        device = resolve_device(arguments.device)
        dtype = resolve_dtype(arguments.dtype, device)
        checkpoint, target = read_drafter(arguments.drafter), read_target(arguments.target)
        kind = "vllm" if arguments.server is None else ask.address(arguments.server)[0]
        sends = arguments.plan is None and arguments.answers is None and not arguments.dry_run
        # Before the work of predicting: an address that nobody answers is found out at once.
        asker = ask.connect(arguments.server, steps=arguments.steps, model=arguments.model, timeout=arguments.timeout) if sends else None
        steps = arguments.steps if asker is None else asker.steps
        if steps is None:
            raise InputError("how many tokens are drafted per step must be known without a server to ask; give --steps K")
        rows = Rows(Predictor(checkpoint, target, steps=steps, device=device, dtype=dtype))
        samples = iter_samples(arguments.samples, max_samples=arguments.max_samples, prompt_length=arguments.prompt_length, check=rows.predictor.check)
        held: set[int] | None = None
        normed = False
        for sample in samples:
            layers = set(rows.predictor.held_layers(sample))
            held = layers if held is None else held & layers
            rows.add(sample, arguments.max_rows - len(rows.rows))
            normed = normed or (sample.name in rows.loaded and rows.loaded[sample.name].normed)
            if len(rows.rows) >= arguments.max_rows:
                break
        if not rows.rows:
            raise InputError(
                f"none of {rows.unusable} rows is usable: the stored text leaves the target's own choice everywhere; give samples that the target decoded greedily "
                "(eagle3-diag record)"
            )
        listed = catalogue(checkpoint, target, sorted(held or ()), final_normed=normed)
        explanations = [each for each in listed if each.served]
        with Progress("predicting", unit="explanations", quiet=arguments.quiet) as progress:
            done = [0]

            def one_more() -> None:
                done[0] += 1
                progress.update(done[0])

            table = rows.table(explanations, one_more)

        def request(row: Row) -> Request:
            return ask.Request(id=row.id, prompt_token_ids=rows.prompt(row), max_tokens=ask.max_tokens(kind, steps))

        if not sends and arguments.answers is None:
            chosen, left = probe.plan(table, arguments.requests)
            for a, b in left:
                sys.stderr.write(f"{a} and {b} are not parted by {len(chosen)} rows; give more --requests\n")
            if arguments.plan is not None:
                written = plans.plan_text(chosen, {row.id: rows.prompt(row) for row in chosen}, ask.max_tokens(kind, steps))
                _write(arguments.plan, written)
            if arguments.dry_run:
                shown = "vllm:http://SERVER" if arguments.server is None else arguments.server
                sys.stdout.write("".join(ask.dry(shown, request(row)) + "\n" for row in chosen))
            return 0

        replies = None if arguments.answers is None else plans.read_answers(arguments.answers, table)
        with Progress("asking", unit="rows", quiet=arguments.quiet) as progress:
            if progress.shown and asker is not None:
                progress.expect(arguments.requests, arguments.requests)
            state = inquire(
                rows, table, listed, sorted(held or ()), None if asker is None else _asking(asker, request, ask.Pace(arguments.max_rate)),
                requests=arguments.requests, replies=replies, combinations=not arguments.no_combinations, progress=progress.update,
            )  # fmt: skip
        found = verdict(state)
        source = f"{len(state.replies)} chosen rows " + (f"asked of {arguments.server}" if replies is None else f"of {arguments.answers}")
        predictions = predicted(state, found, rows)
        diagnosis = as_diagnosis(state, found, predictions, rows, source)
        report = document(
            diagnosis, listed, checkpoint, target,
            Inputs(
                samples=len(rows.loaded), tokens=sum(int(one.tokens_N.shape[0]) for one in rows.loaded.values()), skipped=samples.skipped_count,
                notes=[*sorted(samples.notes), *_noticed(asker)], device=str(device), dtype=str(dtype).removeprefix("torch."),
                seconds=time.perf_counter() - started,
            ),
        )  # fmt: skip
        report["rows"] = found.rows
        outputs = {"json": lambda: dumps(report), "html": lambda: html.render(report), "save_answers": lambda: plans.answers_text(state.replies)}
        write_all([Output(path, outputs[name]()) for name, path in files.items()])
        if arguments.json == "-":
            sys.stdout.write(dumps(report))
        elif not arguments.quiet:
            width = min(120, shutil.get_terminal_size((100, 24)).columns)
            sys.stdout.write(text.render(report, width=width, colour=sys.stdout.isatty() and "NO_COLOR" not in os.environ))
        return 0 if found.as_trained else 1


def _check(arguments: argparse.Namespace) -> None:
    """Options that exclude or need each other."""
    if arguments.answers is not None and (arguments.plan is not None or arguments.dry_run):
        raise InputError("--answers reads what was answered, --plan and --dry-run ask nothing; give one of them")
    if arguments.server is None and arguments.answers is None and arguments.plan is None and not arguments.dry_run:
        raise InputError("--server is missing: write vllm:URL, sglang:URL or openai:URL; or give --plan FILE to send the requests in another way")
    if arguments.save_answers is not None and (arguments.answers is not None or arguments.plan is not None or arguments.dry_run):
        raise InputError("--save-answers keeps what a server answers, and none is asked here; leave it out")
    for name in ("html", "save_answers"):
        if getattr(arguments, name) == "-":
            raise InputError(f"--{name.replace('_', '-')} - is not possible; name a file (only --json and --plan can print)")
    if arguments.json == "-" and arguments.plan == "-":
        raise InputError("--json - and --plan - would print two things on one stream; name a file for one of them")


def _write(place: str, content: str) -> None:
    if place == "-":
        sys.stdout.write(content)
    else:
        write_all([Output(Path(place), content)])


def _asking(asker: Asker, request: Callable[[Row], Request], pace: Pace) -> Callable[[Row], Reply]:
    """A function that asks for one row; where answers are read off a stream's timing, a run is the shortest seen: two steps in one chunk
    look longer, nothing looks shorter."""
    from eagle3_diag.probe import Reply

    def ask_one(row: Row) -> Reply:
        found = None
        for _ in range(1 if asker.certain else _AGAIN):
            pace.wait()
            answer = asker.ask(request(row))
            reply = Reply(first_token=answer.first_token, accepted=answer.accepted)
            found = reply if found is None or reply.accepted < found.accepted else found
        assert found is not None
        return found

    return ask_one


def _noticed(asker: Asker | None) -> list[str]:
    """What was noticed while asking, in one sentence."""
    notes = [] if asker is None else asker.notes
    return [f"{len(notes)} rows had to be asked again (first: {notes[0]})"] if notes else []
