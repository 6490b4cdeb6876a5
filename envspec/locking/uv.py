"""Calling uv. It resolves and tells where files are; everything that is judged is judged here.

uv reads the user's own configuration (index, mirror, certificates, credentials), so those need no options of ours. What would
make two people's locks differ (another Python, a torch backend, a project around the working directory) is kept from it.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from envspec.errors import UsageError
from envspec.locking.environments import Platform, uv_environment
from envspec.locking.errors import ResolutionError
from envspec.locking.model import Entry
from envspec.locks.files import parse_toml

__all__ = ["compile_pylock", "explain", "find_uv", "run_uv", "workspace"]

_LIMIT: Final = 1800.0
_KEPT_OUT: Final = (
    "UV_PYTHON", "UV_PROJECT", "UV_WORKING_DIRECTORY", "UV_WORKING_DIR", "UV_NO_PROJECT", "UV_TORCH_BACKEND", "UV_RESOLUTION", "UV_PRERELEASE",
    "UV_FORK_STRATEGY", "UV_CONSTRAINT", "UV_OVERRIDE", "UV_EXCLUDE", "UV_BUILD_CONSTRAINT", "UV_EXCLUDE_NEWER", "UV_REQUIRE_HASHES", "UV_NO_BINARY",
    "UV_NO_BINARY_PACKAGE", "UV_NO_CONFIG", "UV_CONFIG_FILE", "UV_CUSTOM_COMPILE_COMMAND", "UV_FROZEN", "UV_LOCKED", "VIRTUAL_ENV", "CONDA_PREFIX",
)  # fmt: skip


def find_uv() -> str:
    """uv beside the running interpreter, else on the PATH.

    Raises:
        ResolutionError: there is none.
    """
    beside = Path(sys.executable).parent / "uv"
    found = str(beside) if os.access(beside, os.X_OK) else shutil.which("uv")
    if found is None:
        raise ResolutionError("there is no uv beside this Python nor on the PATH; install it (pip install uv), or use `nox -s lock`, which brings its own")
    return found


def run_uv(arguments: Sequence[str], folder: Path) -> str:
    """Run uv in a folder; its standard output.

    Raises:
        ResolutionError: it cannot be started, fails, or takes over half an hour.
    """
    environment = {key: value for key, value in os.environ.items() if key not in _KEPT_OUT}
    environment |= _configuration(folder)
    command = [find_uv(), "--no-progress", "--color", "never", *arguments]
    try:
        done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, errors="replace", stdin=subprocess.DEVNULL, timeout=_LIMIT, check=False)
    except OSError as error:
        raise ResolutionError(f"uv cannot be started: {command[0]}: {error.strerror or error}") from error
    except subprocess.TimeoutExpired as error:
        raise ResolutionError(f"uv did not finish within {_LIMIT / 60:.0f} minutes; look at the network, or at uv's index") from error
    if done.returncode != 0:
        raise ResolutionError(f"uv {_words(arguments)} failed: {explain(done.stderr)}")
    return done.stdout


def _configuration(folder: Path) -> dict[str, str]:
    """A configuration file that the user names, or wants none of, in the place of the usual one: named, it would replace the workspace's too."""
    named = os.environ.get("UV_CONFIG_FILE")
    if not named and not os.environ.get("UV_NO_CONFIG"):
        return {}
    place = folder / ".config" / "uv" / "uv.toml"
    place.parent.mkdir(parents=True, exist_ok=True)
    try:
        place.write_bytes(Path(named).read_bytes() if named else b"")
    except OSError as error:
        raise ResolutionError(f"cannot read uv's configuration {named}: {error.strerror or error}") from error
    return {"XDG_CONFIG_HOME": str(place.parents[1])}


def _words(arguments: Sequence[str]) -> str:
    return " ".join(word for word in arguments[:2] if not word.startswith("-"))


def explain(stderr: str) -> str:
    """uv's error as one line: its causes without the markers of the fork it was in, then its hint."""
    start = re.search(r"^error: ", stderr, re.MULTILINE)
    stderr = stderr[start.start() :] if start else stderr
    text = re.sub(r" for split \(markers: .*?\)(?=\n|$)", "", stderr)
    text = re.sub(r"`python_full_version[^`]*`-compatible", "compatible", text)
    said = [line.strip() for line in text.splitlines() if line.strip() and not line.lstrip().startswith("warning:")]
    joined = " ".join(re.sub(r"^(error|cause|hint): ", lambda m: "Hint: " if m[1] == "hint" else "", line) for line in said)
    # An address may carry a login.
    joined = re.sub(r"(?<=://)[^/@\s]+@", "", joined)
    return joined or "it said nothing"


@contextmanager
def workspace(platform: Platform, **project: str) -> Iterator[Path]:
    """A folder in which uv resolves for the platform only, and finds no other project's settings.

    Keywords are lines of the ``[project]`` table, as TOML.
    """
    with tempfile.TemporaryDirectory(prefix="envspec-lock-") as name:
        folder = Path(name)
        marker = json.dumps(uv_environment(platform))
        constraints = project.pop("constraints", None)
        lines = [f"{key.replace('_', '-')} = {value}" for key, value in project.items()]
        lines = (["[project]", *lines, ""] if lines else []) + ["[tool.uv]", f"environments = [{marker}]", f"required-environments = [{marker}]"]
        if constraints is not None:
            lines.append(f"constraint-dependencies = {constraints}")
        (folder / "pyproject.toml").write_text("\n".join(lines) + "\n", encoding="utf-8")
        yield folder


def compile_pylock(
    platform: Platform,
    requirements: Iterable[str],
    *,
    constraints: Iterable[str] = (),
    prefer: Iterable[Entry] = (),
    dependencies: bool = True,
) -> list[Mapping[str, Any]]:
    """Resolve for the whole platform, from wheels alone; ``packages`` of the ``pylock.toml`` that uv writes.

    Args:
        requirements: lines of a requirements file.
        constraints: lines of a constraints file.
        prefer: entries whose versions are kept where they are allowed.
        dependencies: False takes the requirements alone.

    Raises:
        ResolutionError: there is no solution, or uv cannot reach its index.
    """
    with workspace(platform) as folder:
        (folder / "requirements.in").write_text("".join(f"{line}\n" for line in requirements), encoding="utf-8")
        (folder / "constraints.in").write_text("".join(f"{line}\n" for line in constraints), encoding="utf-8")
        kept = "".join(
            f"\n[[packages]]\nname = {json.dumps(entry.name)}\nversion = {json.dumps(entry.version)}\n"
            + (f"marker = {json.dumps(entry.marker)}\n" if entry.marker else "")
            for entry in prefer
        )
        # uv prefers the versions of the file that it is about to write.
        out = folder / "pylock.toml"
        if kept:
            out.write_text(f'lock-version = "1.0"\ncreated-by = "envspec"\n{kept}', encoding="utf-8")
        run_uv(
            [
                "pip", "compile", "requirements.in", "--constraints", "constraints.in", "--universal", "--python", sys.executable,
                "--python-version", platform.python[0], "--only-binary", ":all:", "--fork-strategy", "fewest", "--no-header",
                "--format", "pylock.toml", "--output-file", "pylock.toml", *([] if dependencies else ["--no-deps"]),
            ],
            folder,
        )  # fmt: skip
        try:
            document = parse_toml(out.read_text(encoding="utf-8"), out)
        except (OSError, UsageError) as error:
            raise ResolutionError(f"uv wrote no lock that can be read: {error}") from error
    packages = document.get("packages")
    if not isinstance(packages, list):
        raise ResolutionError("uv wrote a lock without packages; look at its version (0.9 or newer is needed)")
    return packages
