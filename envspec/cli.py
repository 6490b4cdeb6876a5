"""The command line: arguments in, exit code out. Reading, deciding and showing are called from ``envspec.commands``."""

from __future__ import annotations

import argparse
import os
import re
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from envspec import __version__
from envspec.errors import EnvspecError, UsageError
from envspec.output import Sink
from envspec.report import RENDERERS

__all__ = ["main", "parser"]

_EPILOG = """\
hosts:
  local, local:PATH            this machine: the interpreter in use, or the interpreter or venv at PATH
  USER@HOST:PATH               over ssh, scp-like; PATH is the interpreter (~/env/bin/python3 expands there)
  ssh://USER@HOST:PORT/PATH    the same as a URL
  image:NAME[:TAG]             a docker or podman image; container:NAME a running container
  pod:NAMESPACE/NAME           a Kubernetes pod
  FILE.json                    a snapshot, or the output of pip inspect; FILE.txt the output of pip freeze
  lock:PATH                    a lock as if it were a host
  NAME                         a host of envspec.yaml
  ROLE=HOST                    any of them in a role, such as train=local infer=gpu-01:/opt/env/bin/python

exit codes:
  0  parity, or nothing at or above --fail-on
  1  findings at or above --fail-on
  2  wrong use, or a bad file
  3  a host could not be captured; what could be is still reported
"""


@dataclass(frozen=True)
class Option:
    """One argument, declared once and used by every command that names it."""

    flags: tuple[str, ...]
    settings: Mapping[str, Any]


def _option(*flags: str, **settings: Any) -> Option:
    if settings.get("action", "append") in ("append", "extend") and "choices" not in settings:
        settings.setdefault("type", _given)
    return Option(flags, settings)


def _given(text: str) -> str:
    """A value that is not empty: `--lock "$LOCK"` with the variable unset must not mean the working directory, or nothing."""
    if not text:
        raise argparse.ArgumentTypeError("the value is empty; is a variable unset?")
    return text


def _variable(text: str) -> str:
    if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*\*?", text):
        raise argparse.ArgumentTypeError(f"{text!r} is not the name of an environment variable, or the beginning of some with a * behind it")
    return text


_REPORT_FORMATS = tuple(RENDERERS)

OPTIONS: Mapping[str, Option] = {
    # What to look at.
    "hosts": _option("hosts", nargs="*", metavar="[ROLE=]HOST", help="hosts to read; none means those of the spec"),
    "found-hosts": _option("hosts", nargs="*", metavar="[ROLE=]HOST", help="hosts to write into it; none means the environments that are found here"),
    "host": _option("host", metavar="HOST", help="the host to bring to the lock"),
    "scripts": _option("scripts", nargs="*", metavar="SCRIPT", help="a script, a notebook or a directory; none means those of the spec"),
    "modules": _option("-m", "--module", dest="modules", action="append", default=[], metavar="PKG", help="what `python -m PKG` would run"),
    "on": _option("--on", nargs="+", action="extend", default=[], metavar="[ROLE=]HOST", help="where the scripts will run; none means the hosts of the spec"),
    "for": _option("--for", dest="scripts", action="append", default=[], metavar="SCRIPT", help="only what this script needs"),
    "codes": _option("codes", nargs="*", metavar="CODE", help="finding codes; none lists them all"),
    "stack-names": _option("names", nargs="*", metavar="STACK", help="stacks by name or folder; none means all"),
    "stack-name": _option("name", nargs="?", metavar="STACK", help="a stack by name or folder (default: sglang)"),
    "stacks": _option("--stacks", default="docker/stacks", metavar="DIR", help="where stacks are looked for by name (default: docker/stacks)"),
    "role": _option("--role", metavar="ROLE", help="train or infer, where a stack's roles differ"),
    # What to compare with.
    "lock": _option("--lock", dest="locks", action="append", default=[], metavar="[ROLE=]FILE", help="a lock, or a directory that holds one"),
    "reference": _option("--reference", metavar="HOST", help="the host that the others are compared with"),
    "spec": _option("--spec", metavar="FILE", help="the spec (default: envspec.yaml, or [tool.envspec] in pyproject.toml, here)"),
    "spec-file": _option("--spec", metavar="FILE", help="the spec to write (default: envspec.yaml)"),
    "no-spec": _option("--no-spec", action="store_true", help="look for no spec"),
    "baseline": _option("--baseline", metavar="FILE", help="accept the findings whose fingerprints stand in FILE"),
    "write-baseline": _option("--write-baseline", metavar="FILE", help="write the fingerprints of the findings into FILE and accept them"),
    "no-preflight": _option("--no-preflight", dest="preflight", action="store_false", help="leave out the scripts that the spec names for the roles"),
    # How to read.
    "deep": _option("--deep", action="append", default=[], nargs="?", metavar="=NAME", help="verify the files of every distribution, or with --deep=NAME of that one, against RECORD"),
    "record": _option("--variable", dest="recorded", action="append", default=[], type=_variable, metavar="NAME", help="record this environment variable too, or with NAME* those that begin so"),
    "timeout": _option("--timeout", type=float, default=60.0, metavar="SECONDS", help="how long to wait for a host (default: 60)"),
    "image-timeout": _option("--timeout", type=float, default=1800.0, metavar="SECONDS", help="how long the snapshot of one image may take (default: 1800)"),
    "jobs": _option("--jobs", type=int, metavar="N", help="how many hosts to read at once (default: 32)"),
    # What comes out.
    "format": _option("--format", choices=_REPORT_FORMATS, default="text", help="format on standard output (default: text)"),
    "plan-format": _option("--format", choices=("text", "json"), default="text", help="format on standard output (default: text)"),
    "explain-format": _option("--format", choices=("text", "json", "markdown"), default="text", help="format on standard output (default: text)"),
    "output": _option("--output", dest="outputs", action="append", default=[], metavar="FORMAT=FILE", help="also write FORMAT into FILE; may be repeated"),
    "fail-on": _option("--fail-on", choices=("breaks", "results", "any", "never"), help="the severity from which the exit code is 1 (default: the spec's, else breaks)"),
    "verbose": _option("-v", "--verbose", action="store_true", help="show what is folded away: declared and ignored findings, reasons of noise"),
    "save": _option("-o", "--save", metavar="FILE|DIR", help="write the snapshot into FILE, or one file a host into DIR"),
    "tool": _option("--tool", choices=("uv", "pip"), help="the installer to write for (default: the one that made the environment)"),
    "check": _option("--check", action="store_true", help="change nothing; prove offline that the locks belong to their inputs and are closed"),
    "upgrade": _option("--upgrade", action="store_true", help="take the newest of everything that the inputs allow"),
    "base": _option("--base", action="store_true", help="only resolve the base images' digests anew, where a registry is reachable"),
    "lock-format": _option("--format", choices=("pylock", "uv", "requirements"), default="pylock", help="whose format to write (default: pylock)"),
    "wheelhouse": _option("--wheelhouse", metavar="DIR", help="for pylock: a folder with the wheels, in place of an index"),
    "write": _option("-o", "--write", metavar="FILE|DIR", help="write into FILE; for uv the folder of pyproject.toml and uv.lock (default: standard output)"),
    "json": _option("--json", dest="format", action="store_const", const="json", help="the same as --format json"),
    # Images.
    "images": _option("images", nargs="+", metavar="IMAGE", help="images of this machine's engine; of two, the first trains and the second serves"),
    "image": _option("image", metavar="IMAGE", help="an image of this machine's engine"),
    "image-fail-on": _option("--fail-on", choices=("breaks", "results", "any", "never"), default="results", help="the severity from which the exit code is 1 (default: results)"),
    "builder": _option("--builder", metavar="URI", default="urn:eagle3-parity:builder:local", help="who built the image, as a URI (default: %(default)s)"),
    "statement": _option("-o", "--save", metavar="FILE", help="write the statement into FILE instead of standard output"),
    "stack-file": _option("--stack", metavar="FILE", help="the stack.yaml whose list counts (default: the one in the image)"),
    "import-timeout": _option("--timeout", type=float, default=300.0, metavar="SECONDS", help="how long one import may take (default: 300)"),
    "gpus": _option("--gpus", choices=("auto", "all", "none"), default="auto", help="give the container the GPUs (default: where this machine has a driver)"),
    "argv": _option("argv", type=str, nargs="+", metavar="ARG", help="the command and its arguments, behind --"),
    "mount-read": _option("--read", action="append", default=[], metavar="PATH", help="a file or directory that the command may read, at the same path"),
    "mount-write": _option("--write", action="append", default=[], metavar="DIR", help="a directory that the command may write into, at the same path"),
    "variable": _option("--env", dest="variables", action="append", default=[], metavar="NAME=VALUE", help="a variable of the command's environment"),
    "image-role": _option("--role", choices=("train", "infer", "both"), default="both", help="which image (default: both)"),
    "base-image": _option("--base", metavar="IMAGE", help="the image to stand on (default: the one of stack.yaml)"),
    "offline": _option("--offline", metavar="WHEELHOUSE", help="install from this folder of wheels, with no network at all"),
    "engine": _option("--engine", choices=("docker", "podman"), help="the container engine (default: the first that can build)"),
    "tag": _option("--tag", metavar="NAME", help="name of the images, to which -train and -infer are added (default: the stack's)"),
    "ca": _option("--ca", metavar="FILE", help="certificates for the build's downloads, which no layer keeps (default: SSL_CERT_FILE)"),
    "index": _option("--index", metavar="URL", help="the package index, which no layer keeps (default: UV_DEFAULT_INDEX, else PIP_INDEX_URL)"),
    "network": _option("--network", choices=("default", "host", "none"), default="default", help="the network of the build's steps (default: the builder's)"),
    "no-cache": _option("--no-cache", action="store_true", help="build every step anew"),
    "build-json": _option("--json", metavar="FILE", help="also write what was built, with its digests, into FILE"),
    "wheels": _option("-o", "--wheels", metavar="DIR", help="the folder (default: build/wheelhouse/STACK)"),
    "base-tag": _option("--tag", metavar="NAME", default="eagle3-parity-base", help="the image's name (default: %(default)s)"),
    "suite": _option("--suite", default="bookworm", help="Debian's release (default: %(default)s)"),
    "mirror": _option("--mirror", metavar="URL", help="where its packages come from (default: debootstrap's own)"),
    "minimal": _option("--minimal", action="store_true", help="leave out the compiler that CUDA stacks need at run time"),
    "root": _option("--root", metavar="DIR", default="/", help="where the image's files are (default: %(default)s)"),
    "force": _option("--force", action="store_true", help="overwrite an existing file"),
}  # fmt: skip


@dataclass(frozen=True)
class Command:
    """One subcommand: ``run`` of the module of its name in ``envspec.commands`` gets the parsed arguments.

    A name of two words (``images verify``) is a command of a group; its module is ``images_verify``.
    """

    name: str
    help: str
    options: tuple[str, ...]

    def run(self, arguments: argparse.Namespace, sink: Sink) -> int:
        """Import the command's module, which may be large, and call it."""
        module = "_".join(self.name.replace("-", "_").split())
        function: Callable[[argparse.Namespace, Sink], int] = import_module(f"envspec.commands.{module}").run
        return function(arguments, sink)


_READING = ("spec", "no-spec", "timeout", "jobs")
_SHOWING = ("baseline", "write-baseline", "format", "output", "verbose")
_JUDGING = (*_SHOWING, "fail-on")

COMMANDS = (
    Command("capture", "read hosts into snapshots", ("hosts", "save", "deep", "record", *_READING)),
    Command(
        "diff",
        "compare hosts with each other and with locks",
        ("hosts", "lock", "reference", "deep", "record", "no-preflight", *_READING, *_JUDGING),
    ),
    Command(
        "preflight",
        "say whether scripts can be imported on hosts, without running them",
        ("scripts", "modules", "on", "lock", *_READING, *_JUDGING),
    ),
    Command("plan", "print the smallest install that brings a host to a lock; nothing is run", ("host", "lock", "for", "modules", "tool", "plan-format", *_READING)),
    Command("lock", "write the locks of stacks and say what changed, or check them", ("stack-names", "stacks", "check", "upgrade", "base")),
    Command("export", "write a stack's lock in another tool's format", ("stack-name", "stacks", "role", "lock-format", "wheelhouse", "write", "force")),
    Command("explain", "say what a finding code means", ("codes", "explain-format")),
    Command("images build", "build a stack's images from its lock; the build checks itself", ("stack-name", "stacks", "image-role", "base-image", "offline", "engine", "tag", "ca", "index", "network", "no-cache", "build-json")),
    Command("images wheelhouse", "fetch every wheel of a stack's lock and of the tools, checked, for builds without a network", ("stack-name", "stacks", "image-role", "wheels")),
    Command("images bootstrap-base", "make a Debian base with debootstrap, where no registry is reachable", ("base-tag", "suite", "mirror", "minimal", "engine")),
    Command("images self-check", "inside an image that is being built: hold it against its lock and write its snapshot", ("root",)),
    Command("images verify", "prove that images hold one environment, or say where they differ", ("images", "lock", "image-timeout", *_SHOWING, "json", "image-fail-on")),
    Command("images attest", "write an in-toto statement of what an image was made from", ("image", "builder", "image-timeout", "statement")),
    Command("images smoke", "import in each image what its stack.yaml lists", ("images", "stack-file", "import-timeout", "gpus", *_SHOWING, "json", "image-fail-on")),
    Command("images run", "run a command in an image without network, with paths of this machine mounted read-only", ("image", "argv", "mount-read", "mount-write", "variable", "gpus")),
    Command("init", "write a commented envspec.yaml from what is found here", ("found-hosts", "spec-file", "force")),
)  # fmt: skip

GROUPS: Mapping[str, str] = {"images": "build images from a lock, look into them, prove them identical"}


def parser() -> argparse.ArgumentParser:
    """The whole command line."""
    root = argparse.ArgumentParser(
        prog="envspec",
        description="See what differs between Python environments, on any number of hosts, before anything runs.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    root.add_argument("--version", action="version", version=f"envspec {__version__}")
    commands = root.add_subparsers(dest="command", metavar="COMMAND", required=True)
    groups: dict[str, Any] = {}
    for command in COMMANDS:
        group, _, name = command.name.rpartition(" ")
        if group and group not in groups:
            summary = GROUPS[group]
            above = commands.add_parser(group, help=summary, description=summary[0].upper() + summary[1:] + ".", allow_abbrev=False)
            groups[group] = above.add_subparsers(dest="subcommand", metavar="COMMAND", required=True)
        sub = groups.get(group, commands).add_parser(
            name,
            help=command.help,
            description=command.help[0].upper() + command.help[1:] + ".",
            epilog=_EPILOG if {"hosts", "on", "host"} & set(command.options) else None,
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )
        for name in command.options:
            option = OPTIONS[name]
            sub.add_argument(*option.flags, **option.settings)
        sub.set_defaults(chosen=command)
    return root


def _expand(arguments: Sequence[str]) -> list[str]:
    """``--deep`` without a value means all; it must not take the host behind it for its value."""
    out: list[str] = []
    for number, argument in enumerate(arguments):
        if argument == "--":
            return [*out, *arguments[number:]]
        out.append("--deep=*" if argument == "--deep" else argument)
    return out


class _Ended(KeyboardInterrupt):
    """A signal that asks to end, raised where the command is: whatever puts away after an interrupt does so after this."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.signal = signal.Signals(number)


def _end(number: int, frame: object) -> None:
    raise _Ended(number)


@contextmanager
def _ending() -> Iterator[None]:
    """SIGTERM and SIGHUP end a command as an interrupt does, so that what it started ends too. Ignored ones stay ignored."""
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)}
    mine = [number for number, handler in before.items() if handler == signal.SIG_DFL]
    if threading.current_thread() is not threading.main_thread():  # signals are somebody else's there
        mine = []
    for number in mine:
        signal.signal(number, _end)
    try:
        yield
    finally:
        for number in mine:
            signal.signal(number, before[number])


def main(argv: Sequence[str] | None = None, sink: Sink | None = None) -> int:
    """Run one command and return its exit code (0 to 3; 130 when interrupted, 128 and the number of another signal that
    ended it, 141 when the reader of standard output has gone).

    Raises:
        SystemExit: help was asked for, or the arguments are wrong.
    """
    try:
        code = _main(argv, sink)
    except SystemExit as left:  # argparse's, which prints by itself
        raise SystemExit(_settle(left.code if isinstance(left.code, int) else UsageError.exit_code)) from None
    except OSError:  # argparse's too, which before Python 3.12 does not bear a stream that cannot be written
        code = UsageError.exit_code
    return _settle(code)


def _settle(code: int) -> int:
    """The exit code, once what a standard stream could not take is given up: it would be tried again at exit, and fail there."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError as error:
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
            if stream is sys.stdout and code < UsageError.exit_code:
                code = 141 if isinstance(error, BrokenPipeError) else UsageError.exit_code
    return code


def _main(argv: Sequence[str] | None, sink: Sink | None) -> int:
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # started with it closed (`envspec … >&-`): Python then gives none at all
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115, PTH123 -- for the whole run
    sink = sink or Sink.of_process()
    arguments = parser().parse_args(_expand(sys.argv[1:] if argv is None else argv))
    try:
        with _ending():
            code: int = arguments.chosen.run(arguments, sink)
    except EnvspecError as error:
        sink.say(f"envspec: {error}")
        return error.exit_code
    except _Ended as error:
        sink.say(f"envspec: ended by {error.signal.name}")
        return 128 + error.signal
    except KeyboardInterrupt:
        sink.say("envspec: interrupted")
        return 130
    except BrokenPipeError:  # the reader has gone (`envspec … | head`)
        return 141
    except OSError as error:  # what the system refused and nothing nearer has put into words
        sink.say(f"envspec: {f'{error.filename}: ' if error.filename else ''}{error.strerror or error}")
        return UsageError.exit_code
    return code
