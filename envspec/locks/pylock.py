"""``pylock.toml`` (PEP 751), single- and multi-use, read by ``packaging.pylock``."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from packaging.pylock import Package, Pylock, PylockUnsupportedVersionError, PylockValidationError
from packaging.utils import (
    InvalidName,
    InvalidSdistFilename,
    InvalidWheelFilename,
    canonicalize_name,
    parse_wheel_filename,
)

from envspec.errors import UsageError
from envspec.locks.files import header_lines, locked_file, parse_toml, read_text
from envspec.locks.model import Direct, Lock, LockedFile, LockedPackage

__all__ = ["declares", "read_pylock"]


def declares(path: Path, role: str) -> bool:
    """Whether the lock offers a dependency group or an extra of this name."""
    data = parse_toml(read_text(path), path)
    wanted = canonicalize_name(role)
    offered = [*_list(data, "dependency-groups"), *_list(data, "extras"), *_list(data, "default-groups")]
    return any(isinstance(item, str) and canonicalize_name(item) == wanted for item in offered)


def _list(data: Mapping[str, Any], key: str) -> list[object]:
    value = data.get(key)
    return value if isinstance(value, list) else []


def read_pylock(path: Path, role: str | None = None) -> Lock:
    """Read a ``pylock.toml``. A role selects the group of its name, else the extra, else the default install.

    Raises:
        UsageError: it cannot be read, is not valid (the message carries the key path), or has no ``packages`` array:
            such a file must never be taken for an empty environment.
    """
    text = read_text(path)
    data = parse_toml(text, path)
    if "packages" not in data:
        raise UsageError(f"the lock {path} has no 'packages' array: it is cut short, not empty; lock again")
    variants = _take_variant_wheels(data)
    try:
        pylock = Pylock.from_dict(data)
    except PylockUnsupportedVersionError as error:
        raise UsageError(f"the lock {path} is of a version this program cannot read: {error}") from error
    except PylockValidationError as error:
        place = f" in {error.context!r}" if error.context else ""
        raise UsageError(f"the lock {path} is not valid: {_first(error.message)}{place}") from error
    except (InvalidName, ValueError, TypeError, AttributeError) as error:
        raise UsageError(f"the lock {path} is not valid: {_first(str(error))}") from error
    lines = header_lines(text, "packages")
    packages = []
    for index, package in enumerate(pylock.packages):
        line = lines[index] if len(lines) == len(pylock.packages) else None
        packages.append(_package(package, variants.get(index, ()), line))
    extras, groups = _selection(pylock, role)
    notes = ()
    if variants:
        names = ", ".join(sorted({pylock.packages[index].name for index in variants}))
        notes = (f"{path.name}: wheel variants (PEP 825) are not judged by tag: {names}",)  # type: ignore[assignment]
    return Lock(
        path=str(path),
        kind="pylock",
        packages=tuple(packages),
        environments=tuple(pylock.environments or ()),
        requires_python=pylock.requires_python,
        extras=extras,
        groups=groups,
        offered=tuple(sorted({*(pylock.dependency_groups or ()), *(pylock.extras or ())})),
        notes=notes,
    )


def _first(text: str) -> str:
    """The first line: a marker's error draws a pointer below it."""
    return (text.splitlines() or [""])[0].rstrip(":")


def _take_variant_wheels(data: dict[str, Any]) -> dict[int, tuple[LockedFile, ...]]:
    """Take wheels whose names have PEP 825's variant label out of the document, since one fails the whole file.

    A package that has no other file is given a source archive of the same name in their place, so that it stays valid.
    """
    taken: dict[int, tuple[LockedFile, ...]] = {}
    for index, package in enumerate(_list(data, "packages")):
        if not isinstance(package, dict) or not isinstance(wheels := package.get("wheels"), list):
            continue
        kept, variants = [], []
        for wheel in wheels:
            file = _file(wheel)
            if file is not None and file.opaque and _is_variant(file.name):
                variants.append(file)
            else:
                kept.append(wheel)
        if variants:
            taken[index] = tuple(variants)
            package["wheels"] = kept
            if not kept:
                del package["wheels"]
                if "sdist" not in package:
                    name, version = package.get("name", "unnamed"), package.get("version", "0")
                    archive = f"{str(name).replace('-', '_')}-{version}.tar.gz"
                    package["sdist"] = {"name": archive, "path": archive, "hashes": {"sha256": "0" * 64}}
    return taken


def _is_variant(name: str) -> bool:
    """Whether the name reads as a wheel's once its last dash-separated part, the variant label, is taken off."""
    stem, _, label = name.removesuffix(".whl").rpartition("-")
    try:
        parse_wheel_filename(f"{stem}.whl")
    except (InvalidWheelFilename, InvalidSdistFilename):
        return False
    return bool(label)


def _file(wheel: object) -> LockedFile | None:
    if not isinstance(wheel, dict):
        return None
    name, url, path, hashes = (wheel.get(key) for key in ("name", "url", "path", "hashes"))
    if not all(value is None or isinstance(value, str) for value in (name, url, path)):
        return None
    return locked_file(name, url, path, _hashes(hashes if isinstance(hashes, dict) else {}))


def _hashes(table: Mapping[Any, Any]) -> frozenset[str]:
    return frozenset(f"{algorithm}:{str(value).lower()}" for algorithm, value in table.items())


def _package(package: Package, variants: tuple[LockedFile, ...], line: int | None) -> LockedPackage:
    files = [locked_file(w.name, w.url, w.path, _hashes(w.hashes)) for w in package.wheels or ()]
    sdist = package.sdist
    if sdist is not None and "0" * 64 not in sdist.hashes.values():
        files.append(locked_file(sdist.name, sdist.url, sdist.path, _hashes(sdist.hashes)))
    files.extend(variants)
    direct: Direct | None = None
    if package.vcs is not None:
        vcs = package.vcs
        direct = Direct(
            kind="vcs", url=vcs.url, path=vcs.path, commit=vcs.commit_id.lower(), subdirectory=vcs.subdirectory
        )
    elif package.directory is not None:
        tree = package.directory
        direct = Direct(kind="directory", path=tree.path, editable=bool(tree.editable), subdirectory=tree.subdirectory)
    elif package.archive is not None:
        archive = package.archive
        direct = Direct(
            kind="archive",
            url=archive.url,
            path=archive.path,
            hashes=_hashes(archive.hashes),
            subdirectory=archive.subdirectory,
        )
    requires = []
    for dependency in package.dependencies or ():
        name = dependency.get("name")
        if isinstance(name, str):
            requires.append(canonicalize_name(name))
    hashes = frozenset().union(*(file.hashes for file in files), direct.hashes if direct else frozenset())
    return LockedPackage(
        name=package.name,
        version=str(package.version) if package.version else None,
        marker=package.marker,
        requires_python=package.requires_python,
        files=tuple(files),
        hashes=hashes,
        index=package.index,
        direct=direct,
        requires=tuple(requires),
        line=line,
    )


def _selection(pylock: Pylock, role: str | None) -> tuple[frozenset[str], frozenset[str]]:
    """Extras and groups to evaluate with. Declared names are canonical, as PEP 751 compares them."""
    default = frozenset(canonicalize_name(group) for group in pylock.default_groups or ())
    if role is None:
        return frozenset(), default
    wanted = canonicalize_name(role)
    groups = {canonicalize_name(group) for group in (*(pylock.dependency_groups or ()), *(pylock.default_groups or ()))}
    if wanted in groups:
        return frozenset(), frozenset({wanted})
    if wanted in {canonicalize_name(extra) for extra in pylock.extras or ()}:
        return frozenset({wanted}), default
    return frozenset(), default
