"""``eagle3-diag check``: how engines would wire a checkpoint, before any is started."""

from __future__ import annotations

import argparse
import os
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from eagle3_diag.commands.torch_import import import_torch
from eagle3_diag.errors import InputError
from eagle3_diag.output import Output, check_apart, check_writable, write_all

if TYPE_CHECKING:
    from eagle3_diag.engines.versions import Version

ENGINES = ("sglang", "vllm", "tensorrt-llm", "all")
TRAINERS = ("speculators", "specforge", "model-optimizer", "eagle")


class CheckCommand:
    """Reads the two config.json and the drafter's tensor headers, asks the presets, prints the table."""

    name = "check"
    summary = "say how serving engines would wire a drafter, and where that is not how it was trained"
    description = (
        "Say how serving engines would wire an EAGLE-3 drafter, by engine, version and target, and where that is not how\n"
        "it was trained, with the edit that mends it. Reads the two config.json and the drafter's tensor headers: no\n"
        "samples, no server, no weights of the target.\n"
        "Exit code 0: every engine asked for wires it as trained; 1: one does not; 2: wrong use or bad input."
    )

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("drafter", type=Path, metavar="DRAFTER", help="drafter checkpoint of any format")
        parser.add_argument("--target", type=Path, required=True, metavar="DIR", help="target model; only its config.json is read")
        which = parser.add_argument_group("which engines")
        which.add_argument("--engine", choices=ENGINES, help="one engine (default all)")
        which.add_argument("--engine-version", metavar="V", help="that engine's version (default the newest that was read)")
        which.add_argument("--engine-from", type=Path, metavar="SNAPSHOT", help="take engine and version from an envspec snapshot")
        which.add_argument(
            "--compare-engines", nargs="+", metavar="ENGINE==V", help="two versions or more; also says what changes from each to the next"
        )
        trained = parser.add_argument_group("how it was trained, where the files do not tell")
        trained.add_argument("--trained-by", metavar="TRAINER[==V]", help=f"the trainer ({', '.join(TRAINERS)}), and its version where that matters")
        trained.add_argument("--ids", choices=["inputs", "outputs"], help="what the layer ids in config.json mean (default: what the trainer means)")
        reports = parser.add_argument_group("reports")
        reports.add_argument("--json", metavar="FILE|-", help="write the answer as JSON; - prints it, and nothing else, on stdout")
        reports.add_argument("--quiet", action="store_true", help="no table; the exit code tells")

    def run(self, arguments: argparse.Namespace) -> int:
        ways = [name for name in ("engine", "engine_from", "compare_engines") if getattr(arguments, name)]
        if len(ways) > 1:
            raise InputError(f"--{' and --'.join(w.replace('_', '-') for w in ways)} each say which engines; give one of them")
        if arguments.engine_version and arguments.engine in (None, "all"):
            raise InputError("--engine-version needs --engine with one engine's name")
        if arguments.compare_engines and len(arguments.compare_engines) < 2:
            raise InputError("--compare-engines needs two versions or more, as in --compare-engines sglang==0.5.12 sglang==0.5.13")
        files = {"--json": Path(arguments.json)} if arguments.json not in (None, "-") else {}
        check_writable(files)
        check_apart(files, [arguments.drafter, arguments.target])
        import_torch()

        from eagle3_diag.check import check
        from eagle3_diag.engines.reading import read_subject
        from eagle3_diag.report.check import document as documents
        from eagle3_diag.report.check import text
        from eagle3_diag.report.document import dumps

        asked = _asked(arguments)
        subject, found = read_subject(arguments.drafter, arguments.target, trained_by=read_trained_by(arguments.trained_by), ids=arguments.ids)
        answer = check(subject, found, asked, compare=bool(arguments.compare_engines))
        report = documents.document(answer)
        write_all([Output(path, dumps(report)) for path in files.values()])
        if arguments.json == "-":
            sys.stdout.write(dumps(report))
        elif not arguments.quiet:
            width = min(120, shutil.get_terminal_size((100, 24)).columns)
            sys.stdout.write(text.render(report, width=width, colour=sys.stdout.isatty() and "NO_COLOR" not in os.environ))
        return 0 if answer.as_trained else 1


def _asked(arguments: argparse.Namespace) -> list[tuple[str, Version | None]]:
    from eagle3_diag.engines import ENGINES as known
    from eagle3_diag.engines.reading import engine_spec, engine_version, engines_in_snapshot

    if arguments.engine_from:
        return engines_in_snapshot(arguments.engine_from)
    if arguments.compare_engines:
        return [engine_spec(text) for text in arguments.compare_engines]
    if arguments.engine in (None, "all"):
        return [(name, None) for name in known]
    version = engine_version(arguments.engine, arguments.engine_version) if arguments.engine_version else None
    return [(arguments.engine, version)]


def read_trained_by(text: str | None) -> tuple[str, Version | None] | None:
    """``TRAINER[==V]`` as a name and a version. Raises InputError for either that is none."""
    from eagle3_diag.engines.versions import parse

    if text is None:
        return None
    name, separator, written = text.partition("==")
    if name not in TRAINERS:
        raise InputError(f"--trained-by {text}: no trainer that is known, expected one of {', '.join(TRAINERS)}")
    try:
        return name, parse(written) if separator else None
    except ValueError as error:
        raise InputError(f"--trained-by {text}: {error}") from None
