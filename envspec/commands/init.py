"""``envspec init [[ROLE=]HOST …]``."""

from __future__ import annotations

import argparse
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from packaging.pylock import is_valid_pylock_path

from envspec.commands.inputs import files_of
from envspec.errors import UsageError
from envspec.files import exists, within
from envspec.hosts import HostName, parse_host
from envspec.output import Sink, write_atomically
from envspec.spec import init_text

__all__ = ["run"]

_ROLE_WORDS: Mapping[str, tuple[str, ...]] = {
    "train": ("train", "finetune", "prepare", "record"),
    "infer": ("infer", "serve", "server", "launch", "generate", "sample"),
}
_MAIN = re.compile(rb"^if __name__ == ['\"]__main__['\"]", re.MULTILINE)


def run(arguments: argparse.Namespace, sink: Sink) -> int:
    """Write a spec from the hosts named and from the locks, environments and scripts that are found here."""
    target = Path(arguments.spec or "envspec.yaml")
    if exists(target) and not arguments.force:
        raise UsageError(f"{target} exists already; --force overwrites it")
    here = Path()
    names = [parse_host(text) for text in arguments.hosts] or [parse_host(text) for text in _environments(here)]
    locks = _locks(here)
    if within({"spec": target}, [*files_of(names), *locks.values()]):
        raise UsageError(f"{target} is what the spec would be made from; name another file with --spec FILE")
    roles = {name.role for name in names if name.role} | {role for role in locks if role}
    hosts = [(label, _seen_from(target.parent, name), name.role) for label, name in _named(names)]
    scripts = {role: [_from(target.parent, path) for path in paths] for role, paths in _scripts(here, roles).items()}
    beside = {role: _from(target.parent, path) for role, path in locks.items()}
    write_atomically(target, init_text(hosts, locks=beside, scripts=scripts))
    found = [f"{len(hosts)} host{'s' * (len(hosts) != 1)}", *(f"the lock {path}" for path in locks.values())]
    sink.print_line(f"wrote {target}: {', '.join(found)}")
    return 0


def _from(folder: Path, path: str) -> str:
    """A path that is relative to here, relative to the directory of the spec, as its paths are read."""
    return path if folder == Path() or Path(path).is_absolute() else Path(os.path.relpath(path, folder)).as_posix()


def _seen_from(folder: Path, name: HostName) -> str:
    """A host's target with its path as `_from` has it. What is no path (a command to be found, ``~``) stays."""
    path = name.path
    if not path or path.startswith("~") or not (name.kind in ("file", "lock") or (name.kind == "local" and ("/" in path or Path(path).is_dir()))):
        return name.text
    moved = _from(folder, path)
    if name.kind == "local" and "/" not in moved:
        moved = f"./{moved}"  # a bare word of a spec is a command to be found
    return f"{name.text.removesuffix(path)}{moved}"


def _environments(here: Path) -> list[str]:
    venvs = [name for name in (".venv", "venv") if (here / name / "pyvenv.cfg").is_file()]
    return [f"local:./{name}" for name in venvs] or ["local"]


def _locks(here: Path) -> dict[str | None, str]:
    """Role to lock: ``pylock.<role>.toml``, and for all the first of the usual names."""
    found: dict[str | None, str] = {}
    for path in sorted(here.glob("pylock.*.toml")):
        if is_valid_pylock_path(path):
            found[path.name.split(".")[1]] = path.name
    for name in ("pylock.toml", "uv.lock", "requirements.lock"):
        if None not in found and (here / name).is_file():
            found[None] = name
    return found


def _scripts(here: Path, roles: set[str]) -> dict[str, Sequence[str]]:
    """Files here and in scripts/ that are made to be run, for the role that their name speaks of."""
    found: dict[str, list[str]] = {}
    for path in sorted([*here.glob("*.py"), *here.glob("scripts/*.py")]):
        words = re.split(r"[_\W]+", path.stem.lower())
        for role in sorted(roles):
            if {role.lower(), *_ROLE_WORDS.get(role.lower(), ())} & set(words) and _runs(path):
                found.setdefault(role, []).append(path.as_posix())
    return dict(found)


def _runs(path: Path) -> bool:
    try:
        return _MAIN.search(path.read_bytes()) is not None
    except OSError:
        return False


def _named(names: Sequence[HostName]) -> list[tuple[str, HostName]]:
    """A short unique name for each host."""
    taken: dict[str, HostName] = {}
    for name in names:
        short = re.sub(r"[^A-Za-z0-9._-]+", "-", _short(name)).strip("-.") or "host"
        unique = next(word for number in range(1, len(names) + 2) if (word := short if number == 1 else f"{short}-{number}") not in taken)
        taken[unique] = name
    return list(taken.items())


def _short(name: HostName) -> str:
    """The word that tells a host best: its own name, a file's, or that of the environment's folder (``local`` is the interpreter in use)."""
    if name.host or not name.path:
        return name.host or "local"
    path = Path(name.path)
    if name.kind != "local":
        return path.stem
    return path.parent.parent.name if path.parent.name == "bin" else path.name
