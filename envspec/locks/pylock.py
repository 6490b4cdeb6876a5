"""``pylock.toml`` (PEP 751), single- and multi-use, read by ``packaging.pylock``."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from packaging.pylock import Package, Pylock, PylockValidationError
from packaging.utils import (
    InvalidName,
    InvalidSdistFilename,
    InvalidWheelFilename,
    canonicalize_name,
    parse_wheel_filename,
)
from packaging.version import Version

from envspec.errors import UsageError
from envspec.locks.files import HASH_EXPECTED, HASH_LENGTHS, digest, header_lines, locked_file, parse_toml, read_text
from envspec.locks.model import Direct, Lock, LockedFile, LockedPackage, parse_specifier, parse_version

__all__ = ["declares", "read_pylock"]

_KNOWN: Final = "1.0"
_NEXT: Final = Version("2.dev0")
"""PEP 751: a newer minor version may be read, with a warning; another major one may not."""


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
        UsageError: it cannot be read, is not valid (the message carries the key path), or lists no package: such a file
            must never be taken for an empty environment.
    """
    text = read_text(path)
    data = parse_toml(text, path)
    notes = []
    given = data.get("lock-version")
    version = parse_version(given) if isinstance(given, str) else None
    if version is not None and not Version("1") <= version < _NEXT:
        raise UsageError(f"the lock {path} is of a version this program cannot read: {version}; {_KNOWN} can be read")
    if version is not None and version > Version(_KNOWN):
        # The parser would say so in a bare line of its own.
        notes.append(f"{path.name}: lock-version {version} is read as {_KNOWN}, the newest that this program knows")
        data["lock-version"] = _KNOWN
    if "packages" not in data:
        raise UsageError(f"the lock {path} has no 'packages' array: it is cut short, not empty; lock again")
    if data["packages"] == []:
        raise UsageError(f"the lock {path} lists no package; comparing with it would call every package superfluous")
    _check_hashes(data, path)
    variants = _take_variant_wheels(data)
    try:
        pylock = Pylock.from_dict(data)
        for specifier in (pylock.requires_python, *(package.requires_python for package in pylock.packages)):
            parse_specifier(str(specifier or ""))
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
    if variants:
        names = ", ".join(sorted({pylock.packages[index].name for index in variants}))
        notes.append(f"{path.name}: wheel variants (PEP 825) are not judged by tag: {names}")
    return Lock(
        path=str(path),
        kind="pylock",
        packages=tuple(packages),
        environments=tuple(pylock.environments or ()),
        requires_python=pylock.requires_python,
        extras=extras,
        groups=groups,
        offered=tuple(sorted({*(pylock.dependency_groups or ()), *(pylock.extras or ())})),
        notes=tuple(notes),
    )


def _first(text: str) -> str:
    """The first line: a marker's error draws a pointer below it."""
    return (text.splitlines() or [""])[0].rstrip(":")


def _check_hashes(data: Mapping[str, Any], path: Path) -> None:
    """Refuse a hash that no file can be checked against, and a table of none but algorithms that are not known.

    PEP 751 lets a lock hold hashes of other algorithms beside one that every tool knows.
    """
    for index, package in enumerate(_list(data, "packages")):
        if not isinstance(package, dict):
            continue
        files = {f"wheels[{number}]": wheel for number, wheel in enumerate(_list(package, "wheels"))}
        for key, file in {**files, **{key: package.get(key) for key in ("sdist", "archive")}}.items():
            hashes = file.get("hashes") if isinstance(file, dict) else None
            if not isinstance(hashes, dict) or not hashes:
                continue  # what has to be there is for the parser to say
            where = f"the lock {path}: packages[{index}].{key}.hashes"
            known = {algorithm: value for algorithm, value in hashes.items() if algorithm in HASH_LENGTHS}
            wrong = next((f"{name}:{value}" for name, value in known.items() if digest(f"{name}:{value}") is None), None)
            if wrong is None and not known:
                wrong = f"{next(iter(hashes))}:"
            if wrong is not None:
                raise UsageError(f"{where}: {wrong[:80]!r} is no hash; expected {HASH_EXPECTED}; lock again")


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
    found = (digest(f"{algorithm}:{value}") for algorithm, value in table.items())
    return frozenset(value for value in found if value is not None)


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
