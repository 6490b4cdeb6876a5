"""A wheelhouse: a folder with every wheel of a lock, for builds without a network.

pip fetches, since it knows the user's index, mirror, certificates and logins; each file is then held against the lock.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Final

from envspec.errors import UsageError
from envspec.images.engine import EngineError
from envspec.images.failures import hash_mismatch
from envspec.locking.check import check_wheel
from envspec.locking.environments import Platform, applies, best, marker_environments
from envspec.locking.model import Entry, StackLock, Wheel
from envspec.locks.files import locked_file
from envspec.locks.target import platforms

__all__ = ["check_wheelhouse", "fetch"]

_LIMIT: Final = 4 * 3600.0


def digest_of(path: Path) -> str:
    """A file's sha256 in hex, read in blocks."""
    state = sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            state.update(block)
    return state.hexdigest()


def check_wheelhouse(folder: Path, lock: StackLock, *, every: bool) -> None:
    """Hold the wheels of a folder against a lock.

    Args:
        folder: holds wheels of this lock, and perhaps others.
        lock: the lock.
        every: whether each wheel must be there; else one of each distribution, since the base decides the Python.

    Raises:
        UsageError: a wheel is missing or has another hash; the sentence names the file and both hashes.
    """
    if not folder.is_dir():
        raise UsageError(f"there is no folder {folder}; `nox -s wheelhouse -- {lock.stack}` makes one")
    missing: list[str] = []
    for entry in lock.entries:
        there = [wheel for wheel in entry.wheels if (folder / wheel.name).is_file()]
        for wheel in there:
            problem = check_wheel(wheel.name, digest_of(folder / wheel.name), lock)
            if problem is not None:
                raise UsageError(f"{folder}: {problem}; remove the file and run `nox -s wheelhouse` again")
        if not there or (every and len(there) < len(entry.wheels)):
            missing += [wheel.name for wheel in entry.wheels if wheel not in there]
    if missing:
        more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        raise UsageError(f"{folder} lacks {missing[0]}{more} of the lock of {lock.stack}; `nox -s wheelhouse -- {lock.stack}` fetches what is missing")


def fetch(folder: Path, lock: StackLock, platform: Platform, tell: Callable[[str], None] = lambda text: None) -> tuple[int, int]:
    """Bring every wheel of a lock into a folder; those that are there stay. The number of wheels fetched, and of all.

    Raises:
        UsageError: a file that is there has another hash than the lock's, or the folder cannot be written.
        EngineError: pip cannot fetch one.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"cannot make {folder}: {error.strerror or error}") from error
    wheels = {wheel.name: wheel for entry in lock.entries for wheel in entry.wheels}
    there = {name for name in wheels if (folder / name).is_file()}
    for name in sorted(there):
        problem = check_wheel(name, digest_of(folder / name), lock)
        if problem is not None:
            raise UsageError(f"{folder}: {problem}; remove the file and run this again")
    for python, wanted in _by_python(lock, platform, there).items():
        tell(f"{lock.stack}: {len(wanted)} wheels for CPython {python}")
        _download(folder, wanted, python, platform, lock)
    check_wheelhouse(folder, lock, every=True)
    return len(wheels) - len(there), len(wheels)


def _by_python(lock: StackLock, platform: Platform, there: set[str]) -> dict[str, list[tuple[Entry, Wheel]]]:
    """For each Python the wheels that it is the first to need."""
    known = set(there)
    environments = marker_environments(platform, [entry.marker for entry in lock.entries if entry.marker])
    wanted: dict[str, list[tuple[Entry, Wheel]]] = {}
    for python, each in environments.items():
        for entry in lock.entries:
            chosen = best([locked_file(wheel.name, None, None, frozenset()) for wheel in entry.wheels], python, platform.glibc)
            if chosen is None or chosen.name in known or not any(applies(entry.condition, environment) for environment in each):
                continue
            known.add(chosen.name)
            wanted.setdefault(python, []).append((entry, next(wheel for wheel in entry.wheels if wheel.name == chosen.name)))
    return wanted


def _download(folder: Path, wanted: Sequence[tuple[Entry, Wheel]], python: str, platform: Platform, lock: StackLock) -> None:
    with tempfile.TemporaryDirectory(prefix=".envspec-", dir=folder) as name:
        place = Path(name)
        asked = place / "requirements.txt"
        asked.write_text("".join(f"{entry.name}=={entry.version} --hash=sha256:{wheel.sha256}\n" for entry, wheel in wanted), encoding="utf-8")
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--require-hashes", "--only-binary", ":all:", "--dest", str(place / "wheels")]
        command += ["--implementation", "cp", "--python-version", python, "--abi", f"cp{python.replace('.', '')}", "--abi", "abi3", "--abi", "none"]
        for tag in platforms("linux-x86_64", "glibc", platform.glibc):
            command += ["--platform", tag]
        # A constraint of the machine must not have a say in what a lock has decided.
        environment: Mapping[str, str] = {**os.environ, "PIP_CONSTRAINT": os.devnull, "PIP_DISABLE_PIP_VERSION_CHECK": "1", "PIP_NO_CACHE_DIR": "1"}
        try:
            done = subprocess.run([*command, "-r", str(asked)], env=dict(environment), capture_output=True, text=True, errors="replace", stdin=subprocess.DEVNULL, timeout=_LIMIT, check=False)
        except (OSError, subprocess.TimeoutExpired) as error:
            raise EngineError(f"pip cannot fetch the wheels of {lock.stack}: {error}") from error
        if done.returncode != 0:
            mismatch = hash_mismatch(done.stderr)
            if mismatch is not None:
                raise EngineError(mismatch)
            said = [line.strip() for line in done.stderr.splitlines() if line.strip() and not line.startswith("WARNING")]
            if any("No space left" in line for line in said):
                raise EngineError(f"the disk is full: the wheels of {lock.stack} need more space in {folder}")
            if any("No module named pip" in line for line in said):
                raise EngineError(f"{sys.executable} has no pip, which fetches the wheels; use `nox -s wheelhouse`, which brings its own")
            raise EngineError(f"pip cannot fetch the wheels of {lock.stack} for CPython {python}: {said[-1] if said else 'it said nothing'}")
        for file in sorted((place / "wheels").iterdir()):
            problem = check_wheel(file.name, digest_of(file), lock)
            if problem is not None:
                raise UsageError(problem)
            shutil.move(file, folder / file.name)
