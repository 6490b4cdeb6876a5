"""``eagle3-diag serve-check``: start a server with a drafter, probe it, stop it."""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
from pathlib import Path

from eagle3_diag.commands.arguments import integer, positive
from eagle3_diag.commands.convert import ConvertCommand
from eagle3_diag.commands.probe import ProbeCommand
from eagle3_diag.commands.torch_import import import_torch
from eagle3_diag.demo import paths
from eagle3_diag.errors import InputError
from eagle3_diag.serving.launch import ENGINES, Launch, launched


class ServeCheckCommand:
    """A server's life around a probe."""

    name = "serve-check"
    summary = "start a server with a drafter, probe it and stop it"
    description = (
        "Start a real server from an interpreter, ask it for rows of the demo's samples or of a given pair's, and stop it:\n"
        "is this drafter served as trained in this environment?\n"
        "Exit code 0: served as trained; 1: not, or not decided; 2: wrong use, bad input, or the server did not start; 130: interrupted."
    )

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        server = parser.add_argument_group("server")
        server.add_argument("--engine", choices=ENGINES, default="vllm", help="which server (default vllm)")
        server.add_argument("--python", default=sys.executable, metavar="PATH", help="interpreter that has the engine (default: this one)")
        server.add_argument("--start-timeout", type=positive, default=900.0, metavar="SECONDS", help="longest wait for its first answer (default 900)")
        server.add_argument("--server-argument", action="append", default=[], metavar="ARG", help="further argument of the server, as --server-argument=--dtype=float32")
        server.add_argument("--log", type=Path, metavar="FILE", help="keep the server's output")
        pair = parser.add_argument_group("pair (the shipped demo where none is named)")
        pair.add_argument("--drafter", type=Path, metavar="DIR", help="drafter as it was trained")
        pair.add_argument("--served-drafter", type=Path, metavar="DIR", help="drafter that the server loads (default: the same)")
        pair.add_argument("--target", type=Path, metavar="DIR", help="target model, which is served whole")
        pair.add_argument("--samples", type=Path, nargs="+", action="extend", metavar="PATH", help="stored samples")
        asking = parser.add_argument_group("asking")
        asking.add_argument("--steps", type=integer(1, 64), default=5, metavar="K", help="drafted tokens per verification (default 5)")
        asking.add_argument("--requests", type=integer(1, 100000), default=64, metavar="N", help="rows to ask (default 64)")
        asking.add_argument("--stream", action="store_true", help="ask by streams instead of the server's own counts")
        asking.add_argument("--device", default="auto", metavar="auto|cpu|cuda|cuda:N", help="where predictions are computed (default auto)")
        asking.add_argument("--dtype", choices=["auto", "float32", "bfloat16", "float16"], default="auto", help="of predictions (default auto)")
        reports = parser.add_argument_group("reports")
        reports.add_argument("--json", metavar="FILE|-", help="write the verdict as JSON; - prints it, and nothing else, on stdout")
        reports.add_argument("--html", metavar="FILE", help="write the verdict as one self-contained page with plots")
        reports.add_argument("--quiet", action="store_true", help="no text and no progress bar")

    def run(self, arguments: argparse.Namespace) -> int:
        import_torch()

        given = [name for name in ("drafter", "target", "samples") if getattr(arguments, name)]
        if given and len(given) < 3:
            raise InputError(f"--drafter, --target and --samples go together; given was only --{' and --'.join(given)}")
        demo = paths()
        drafter, target = arguments.drafter or demo.drafter, arguments.target or demo.target
        python = shutil.which(arguments.python)
        if python is None:
            raise InputError(f"--python {arguments.python}: there is no such interpreter; name one that has {arguments.engine}")
        for name, folder in (("drafter", arguments.served_drafter or drafter), ("target", target)):
            if not (folder / "config.json").is_file():
                raise InputError(f"--{name} {folder}: has no config.json; give the directory of a checkpoint")
        log = arguments.log or _log_file()
        with tempfile.TemporaryDirectory() as folder:
            served = arguments.served_drafter or _readable(arguments.engine, drafter, Path(folder) / "drafter")
            launch = Launch(
                engine=arguments.engine, python=python, target=target.absolute(), drafter=served.absolute(), steps=arguments.steps,
                arguments=arguments.server_argument,
            )  # fmt: skip
            with launched(launch, log, timeout=arguments.start_timeout, say=lambda line: None if arguments.quiet else _say(line)) as url:
                code = ProbeCommand().run(_probing(arguments, url, drafter, target))
        if arguments.log is None:  # what a failed start leaves is worth reading; nobody asked for this one
            log.unlink()
        return code


def _readable(engine: str, drafter: Path, place: Path) -> Path:
    """The drafter in a format that the engine reads: SGLang knows no speculators checkpoints, so those are rewritten with their wiring unchanged."""
    from eagle3_diag.checkpoint.fields import read_config

    config, _ = read_config(drafter, "drafter")
    if engine != "sglang" or "speculators_model_type" not in config.data:
        return drafter
    command = ConvertCommand()
    parser = argparse.ArgumentParser(allow_abbrev=False)
    command.add_arguments(parser)
    command.run(parser.parse_args([str(drafter), str(place), "--to", "specforge", "--quiet"]))
    return place


def _log_file() -> Path:
    """A file for the server's output beside the system's other temporary ones."""
    handle, name = tempfile.mkstemp(prefix="eagle3-diag-serve-check-", suffix=".log")
    os.close(handle)
    return Path(name)


def _probing(arguments: argparse.Namespace, url: str, drafter: Path, target: Path) -> argparse.Namespace:
    """The arguments of ``probe`` for the server at ``url``."""
    kind = "openai" if arguments.stream else arguments.engine
    words = ["--server", f"{kind}:{url}", "--drafter", str(drafter), "--target", str(target), "--samples"]
    words += [str(path) for path in arguments.samples or [paths().samples]]
    words += ["--requests", str(arguments.requests), "--steps", str(arguments.steps), "--device", arguments.device, "--dtype", arguments.dtype]
    for name in ("json", "html"):
        if getattr(arguments, name) is not None:
            words += [f"--{name}", getattr(arguments, name)]
    if arguments.quiet:
        words.append("--quiet")
    parser = argparse.ArgumentParser(allow_abbrev=False)
    ProbeCommand().add_arguments(parser)
    return parser.parse_args(words)


def _say(line: str) -> None:
    sys.stderr.write(line + "\n")
    sys.stderr.flush()
