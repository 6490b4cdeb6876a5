"""The build's context: a folder with exactly what the Dockerfile's steps read, so that nothing else can reach an image."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import envspec
from envspec.errors import UsageError
from envspec.images.engine import EngineError
from envspec.locking.files import entry_lines
from envspec.locking.model import StackLock
from envspec.stacks import Stack, load_stack

__all__ = ["PROJECT", "Project", "build_context", "load_tools", "project_of"]

PROJECT: Final = ("envspec", "eagle3_diag", "noxfile.py", "noxw", "pyproject.toml", "README.md", "LICENSE", "envspec.yaml")
"""What an image holds of this project, where it is there (a checkout has all, an installed envspec its packages)."""

_LEFT_OUT: Final = shutil.ignore_patterns("__pycache__", "*.pyc", ".*", "*.egg-info")


@dataclass(frozen=True, kw_only=True)
class Project:
    """This project as it is put into images. ``revision`` and ``date`` are the commit's, None outside a checkout."""

    root: Path
    revision: str | None = None
    date: str | None = None


def project_of(root: Path | None = None) -> Project:
    """The project that this module belongs to."""
    place = root or Path(envspec.__file__).resolve().parent.parent
    revision = _git(place, "rev-parse", "HEAD") if (place / ".git").exists() else None
    if revision and _git(place, "status", "--porcelain", "--", *PROJECT):
        revision += "-changed"
    return Project(root=place, revision=revision, date=_git(place, "log", "-1", "--format=%cI") if revision else None)


def _git(place: Path, *arguments: str) -> str | None:
    try:
        done = subprocess.run(["git", "-C", str(place), *arguments], capture_output=True, text=True, timeout=60, check=False, stdin=subprocess.DEVNULL)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() or None if done.returncode == 0 else None


def load_tools(recipe: Path) -> Stack:
    """The stack of the images' tools, beside the Dockerfile."""
    return load_stack(recipe / "tools")


@contextmanager
def build_context(
    *, recipe: Path, stack_file: Path, lock_file: Path, tools: Stack, tools_lock: StackLock, project: Project, wheels: Path | None
) -> Iterator[Path]:
    """A new folder with the context, removed afterwards. Modes are those of a umask of 022 and times 1970, whoever builds.

    With ``wheels`` it is made beside them, where their files can be linked instead of copied. The folder's name is new each
    time: builders keep contexts by their path and compare files by size and time alone.

    Raises:
        UsageError: a file cannot be read.
        EngineError: the disk is full.
    """
    place = wheels.resolve().parent if wheels is not None and os.access(wheels.resolve().parent, os.W_OK) else None
    try:
        with tempfile.TemporaryDirectory(prefix=".envspec-build-", dir=place) as name:
            folder = Path(name)
            _copy(recipe / "Dockerfile", folder / "Dockerfile")
            _copy(recipe / "steps", folder / "steps")
            for source, target in ((lock_file, "stack/requirements.lock"), (stack_file, "stack/stack.yaml"), (tools.lock(), "tools/requirements.lock")):
                (folder / target).parent.mkdir(exist_ok=True)
                shutil.copyfile(source, folder / target)
            accepted = stack_file.with_name("envspec.yaml")
            (folder / "stack" / "envspec.yaml").write_text(accepted.read_text(encoding="utf-8") if accepted.is_file() else "version: 1\n", encoding="utf-8")
            own = [entry for entry in tools_lock.entries if entry.name == "uv"]
            if not own:
                raise UsageError(f"{tools.lock()}: it has no uv, which the build installs with; add it to {tools.inputs()[0]}")
            uv = StackLock(stack=tools_lock.stack, inputs=("uv",), inputs_digest="", entries=tuple(own))
            (folder / "tools" / "uv.txt").write_text(entry_lines(uv), encoding="utf-8")
            for part in PROJECT:
                if (project.root / part).exists():
                    _copy(project.root / part, folder / "project" / part)
            _normalise(folder)
            # Their times stay: a linked file is the wheelhouse's own.
            (folder / "wheels").mkdir()
            for wheel in sorted(wheels.glob("*.whl")) if wheels is not None else ():
                _link(wheel, folder / "wheels" / wheel.name)
            yield folder
    except OSError as error:
        if error.errno == 28:  # ENOSPC
            raise EngineError(f"the disk is full: the build's context needs space in {place or tempfile.gettempdir()}") from error
        raise UsageError(f"cannot prepare the build: {error.filename or place}: {error.strerror or error}") from error


def _copy(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    if source.is_dir():
        shutil.copytree(source, target, ignore=_LEFT_OUT)
    else:
        shutil.copy(source, target)


def _link(source: Path, target: Path) -> None:
    with suppress(OSError):
        target.hardlink_to(source.resolve())
        return
    shutil.copyfile(source, target)


def _normalise(folder: Path) -> None:
    for path in [*folder.rglob("*"), folder]:
        executable = path.is_dir() or bool(path.stat().st_mode & 0o100)
        path.chmod(0o755 if executable else 0o644)
    for path in sorted(folder.rglob("*"), reverse=True):
        os.utime(path, (0, 0))
