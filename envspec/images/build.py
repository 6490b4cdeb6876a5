"""Builds a stack's images from its lock, through a Docker or Podman command line.

First the stage ``tools``, which both roles share and which holds the build's own check. What that check wrote (digests of the
environment and the snapshot) then becomes labels of ``train`` and ``infer``. Images get their names last, all of them or none, so a
build that fails or is interrupted leaves every name where it was.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import envspec
from envspec.errors import UsageError
from envspec.images import labels
from envspec.images.context import Project, build_context, load_tools
from envspec.images.engine import Engine, EngineError
from envspec.images.failures import explain, lost
from envspec.images.progress import Progress
from envspec.images.wheelhouse import check_wheelhouse
from envspec.locking.check import load_stack_lock
from envspec.stacks import ROLES, Stack

__all__ = ["BASIC_PACKAGES", "COMPILER_PACKAGES", "BuiltImage", "Request", "build"]

BASIC_PACKAGES: Final = ("ca-certificates", "python3", "python3-venv")
COMPILER_PACKAGES: Final = ("gcc", "libc6-dev", "libnuma1", "python3-dev")
"""What a CUDA stack needs besides: Triton compiles its launchers with gcc and Python's headers; sgl-kernel loads libnuma."""

_PROXIES: Final = ("http_proxy", "https_proxy", "no_proxy", "all_proxy")
_PULL: Final = 7200.0
_ATTEMPTS: Final = 3


@dataclass(frozen=True, kw_only=True)
class Request:
    """What to build. ``recipe`` is the folder with the Dockerfile; ``name`` what the images are called before ``-train`` and ``-infer``.

    ``ca`` (a file of certificates) and ``index`` (an address, perhaps with a login) reach the build as secrets.
    """

    stack: Stack
    recipe: Path
    project: Project
    name: str
    roles: Sequence[str] = ROLES
    base: str | None = None
    wheelhouse: Path | None = None
    ca: Path | None = None
    index: str | None = None
    network: str = "default"
    no_cache: bool = False


@dataclass(frozen=True, kw_only=True)
class BuiltImage:
    """One image. ``size`` in bytes; ``digests`` are those of its labels: ``lock``, ``snapshot``, ``environment``, ``base``."""

    role: str
    name: str
    id: str
    size: int
    digests: Mapping[str, str]

    def to_dict(self) -> dict[str, Any]:
        """As JSON values."""
        return {"role": self.role, "name": self.name, "id": self.id, "size": self.size, "digests": dict(self.digests)}


@dataclass
class _Run:
    """One build in progress."""

    engine: Engine
    request: Request
    base: str
    tell: Callable[[str], None]
    made: list[str] = field(default_factory=list)

    def stage(self, target: str, context: Path, arguments: Mapping[str, str], *, cached: bool) -> str:
        """Build one stage; the image's id. It has no name."""
        with tempfile.TemporaryDirectory(prefix="envspec-") as folder:
            written = Path(folder) / "id"
            command = self._command(target, context, arguments, written, Path(folder), cached=cached)
            for attempt in range(1, _ATTEMPTS + 1):
                progress = Progress(tell=(lambda text: None) if target in ROLES else self.tell)
                if _follow(command, self.engine.environment, progress.feed) == 0:
                    break
                if attempt == _ATTEMPTS or not lost(progress):
                    raise explain(progress, self.base, offline=self.request.wheelhouse is not None)
                self.tell("the builder and its client lost each other; trying again")
            image = written.read_text(encoding="ascii").strip()
        image = image if image.startswith("sha256:") else f"sha256:{image}"
        self.made.append(image)
        return image

    def _command(self, target: str, context: Path, arguments: Mapping[str, str], written: Path, folder: Path, *, cached: bool) -> list[str]:
        request, podman = self.request, self.engine.name == "podman"
        command = [self.engine.command, *(["buildx"] if self.engine.buildx else []), "build"]
        command += ["--file", str(context / "Dockerfile"), "--target", target, "--iidfile", str(written)]
        if self.engine.buildx:
            command.append("--load")
        if podman:
            # Buildah can give layers a fixed time, and then the same content has the same digest.
            command += ["--format", "docker", "--layers", "--timestamp", "0", "--pull=never"]
        else:
            command += ["--progress", "plain"]
        network = "none" if request.wheelhouse is not None else request.network
        if network != "default":
            command += ["--network", network]
        if not cached and request.no_cache:
            command.append("--no-cache")
        if request.ca is not None:
            command += ["--secret", f"id=ca,src={request.ca.resolve()}"]
        if request.index:
            secret = folder / "index"
            secret.touch(mode=0o600)
            secret.write_text(request.index, encoding="utf-8")
            command += ["--secret", f"id=index,src={secret}"]
        for name in _PROXIES:
            # Without a value: the builder takes it from the environment, where nobody else sees it, and writes it nowhere.
            command += [part for spelling in (name, name.upper()) if os.environ.get(spelling) for part in ("--build-arg", spelling)]
        for name, value in arguments.items():
            command += ["--build-arg", f"{name}={value}"]
        return [*command, str(context)]

    def forget(self, kept: Sequence[str] = ()) -> None:
        """Remove what was built and is not kept."""
        for image in self.made:
            if image not in kept:
                with suppress(EngineError):
                    self.engine.ask("image", "rm", image, timeout=600.0)


def build(engine: Engine, request: Request, tell: Callable[[str], None] = lambda text: None) -> list[BuiltImage]:
    """Build the images of the roles asked for. ``tell`` gets a line for each step that ended.

    Raises:
        UsageError: the lock does not stand, or a wheel of the wheelhouse is missing or not the locked one.
        EngineError: the base cannot be had, or a step failed.
        CheckFailed: what was installed is not what the lock says.
    """
    stack = request.stack
    tools = load_tools(request.recipe)
    tools_lock = load_stack_lock(tools)
    locks = {role: load_stack_lock(stack, role) for role in request.roles}
    if request.wheelhouse is not None:
        for lock in (tools_lock, *locks.values()):
            check_wheelhouse(request.wheelhouse, lock, every=False)
    base = request.base or stack.base
    if base is None:
        raise UsageError(f"{stack.file}: it names no base; name one with --base IMAGE, or make one with `nox -s bootstrap-base`")
    base_digest = resolve_base(engine, base, offline=request.wheelhouse is not None, tell=tell)
    run = _Run(engine=engine, request=request, base=base, tell=tell)
    built: list[BuiltImage] = []
    kept: list[str] = []
    try:
        for path in dict.fromkeys(stack.lock(role) for role in request.roles):
            with build_context(
                recipe=request.recipe, stack_file=stack.file, lock_file=path, tools=tools, tools_lock=tools_lock, project=request.project, wheels=request.wheelhouse
            ) as context:
                built += _of_one_lock(run, context, [role for role in request.roles if stack.lock(role) == path], base, base_digest)
        _name(engine, built)
        kept = [image.id for image in built]
    finally:
        run.forget(kept)
    return built


def _of_one_lock(run: _Run, context: Path, roles: Sequence[str], base: str, base_digest: str) -> list[BuiltImage]:
    request, stack, engine = run.request, run.request.stack, run.engine
    packages = BASIC_PACKAGES + (COMPILER_PACKAGES if stack.cuda is not None else ())
    common = {"BASE": base, "PACKAGES": " ".join(packages), "PYTHON": " ".join(stack.python), "OFFLINE": "1" if request.wheelhouse is not None else ""}
    shared = run.stage("tools", context, common, cached=False)
    digests: dict[str, str] = json.loads(engine.read_file(shared, labels.DIGESTS_FILE))
    digests["base"] = base_digest
    layers = _layers(engine, shared)
    said = {
        "STACK": stack.name,
        "LOCK_DIGEST": digests["lock"],
        "SNAPSHOT_DIGEST": digests["snapshot"],
        "ENVIRONMENT_DIGEST": digests["environment"],
        "BASE_NAME": base.partition("@")[0],
        "BASE_DIGEST": base_digest,
        "VERSION": envspec.__version__,
        "REVISION": request.project.revision or "",
        "CREATED": request.project.date or "",
    }
    built = []
    for role in roles:
        image = run.stage(role, context, {**common, **said}, cached=True)
        if _layers(engine, image) != layers:
            raise EngineError(f"the builder lost the cache between the check and the image of {role}, so what was checked is not what was built; build again")
        about = engine.inspect(image) or {}
        built.append(BuiltImage(role=role, name=f"{request.name}-{role}:latest", id=image, size=int(about.get("Size") or 0), digests=digests))
    return built


def _layers(engine: Engine, image: str) -> list[str]:
    about = engine.inspect(image)
    if about is None:
        raise EngineError(f"{engine.name} does not have the image {image} that it has just built")
    return list((about.get("RootFS") or {}).get("Layers") or [])


def _name(engine: Engine, built: Sequence[BuiltImage]) -> None:
    """Give the images their names: all, or none where one cannot be given."""
    before = {image.name: (engine.inspect(image.name) or {}).get("Id") for image in built}
    done: list[BuiltImage] = []
    try:
        for image in built:
            engine.ask("tag", image.id, image.name)
            done.append(image)
    except BaseException:
        for image in done:
            with suppress(EngineError):
                old = before[image.name]
                engine.ask(*(("tag", str(old), image.name) if old else ("image", "rm", image.name)))
        raise


def resolve_base(engine: Engine, base: str, *, offline: bool, tell: Callable[[str], None] = lambda text: None) -> str:
    """The base's digest: a registry's where it has one, else the image's id. It is pulled where the engine does not have it.

    Raises:
        EngineError: it is not there and cannot be pulled.
    """
    about = engine.inspect(base)
    if about is None:
        if offline:
            raise EngineError(f"the base image {base} is not in {engine.name}'s store, and an offline build cannot pull it; load it first (`{engine.name} load`), or name another with --base")
        tell(f"pulling {base}")
        try:
            engine.ask("pull", "--quiet", base, timeout=_PULL)
        except EngineError as error:
            said = str(error).removeprefix(f"{engine.name} pull failed: ")
            if re.search("no space left on device", said):
                raise EngineError(f"the engine's disk is full while pulling {base}; free space there (`{engine.name} system df` shows what takes it)") from error
            raise EngineError(f"the base image {base} is not in {engine.name}'s store and cannot be pulled ({said}); name another with --base, or make one with `nox -s bootstrap-base`") from error
        about = engine.inspect(base) or {}
    wanted = base.partition("@")[2]
    found = [str(item).partition("@")[2] for item in about.get("RepoDigests") or () if "@sha256:" in str(item)]
    if wanted:
        return wanted
    image = str(about.get("Id") or "")
    return found[0] if found else image if image.startswith("sha256:") else f"sha256:{image}"


def _follow(command: Sequence[str], environment: Mapping[str, str], feed: Callable[[str], None]) -> int:
    """Run a builder, line by line; it ends with us.

    Raises:
        EngineError: it cannot be started.
    """
    try:
        # A session of its own: an interrupt at the terminal reaches it through us, once.
        process = subprocess.Popen(
            list(command), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace", env=dict(environment), start_new_session=True
        )
    except OSError as error:
        raise EngineError(f"{command[0]} cannot be started: {error.strerror or error}") from error
    assert process.stdout is not None
    try:
        with process.stdout:
            for line in process.stdout:
                feed(line)
        return process.wait()
    except BaseException:
        process.terminate()
        with suppress(subprocess.TimeoutExpired):
            process.wait(20.0)
        process.kill()
        process.wait()
        raise
