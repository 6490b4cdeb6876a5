"""A stack: the folder that says what both images are made of.

``requirements.in`` (what is wanted), optionally ``requirements.<role>.in`` (what one role wants besides), ``requirements.lock``
with ``requirements.metadata.json`` (written by ``envspec lock``; with a role in the middle for a role of its own), and
``stack.yaml``::

    version: 1
    description: SGLang and speculators on CUDA 12.8
    python: ["3.12", "3.11"]          # the lock holds for all of them; an image takes the first that its base offers
    glibc: "2.36"                     # the oldest C library the wheels must run on
    cuda: "12.8"                      # of torch's build; left out for a stack without CUDA
    base: nvidia/cuda:TAG@sha256:…
    archs: [sm_80, sm_90]             # GPU code that torch's build must hold
    smoke:                            # imported in each image
      - torch
      - {import: sgl_kernel, needs: driver}
    roles:                            # only for a role with inputs of its own: why it may differ
      train: the trainer needs a newer transformers
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal, cast

from envspec.document import Source, as_list, as_table, only_keys, read_yaml, text_at, texts_of
from envspec.errors import UsageError
from envspec.files import is_file

__all__ = ["DEFAULT_STACK", "ROLES", "STACKS", "SmokeImport", "Stack", "find_stack", "find_stacks", "load_stack", "parse_stack"]

STACKS: Final = Path("docker/stacks")
"""Where stacks are looked for by name, relative to the working directory."""

DEFAULT_STACK: Final = "sglang"
ROLES: Final = ("train", "infer")

_KEYS: Final = ("version", "description", "python", "glibc", "cuda", "base", "archs", "smoke", "roles")
_NAME: Final = re.compile(r"[a-z0-9]+([._-][a-z0-9]+)*")
_DIGEST: Final = re.compile(r"[^\s@]+@sha256:[0-9a-f]{64}")


@dataclass(frozen=True, kw_only=True, slots=True)
class SmokeImport:
    """A module that must import in the image. ``needs`` is ``driver`` where that loads the GPU driver's libcuda."""

    module: str
    needs: Literal["driver"] | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Stack:
    """A stack as read. ``roles`` are those with inputs of their own, each with the declared reason.

    ``python`` are minor versions of CPython, the preferred one first; ``base`` is an image with its digest, None where a
    build has to name one; ``cuda`` is None for a stack without CUDA.
    """

    name: str
    folder: Path
    description: str = ""
    python: tuple[str, ...]
    glibc: str
    cuda: str | None = None
    base: str | None = None
    archs: tuple[str, ...] = ()
    smoke: tuple[SmokeImport, ...] = ()
    roles: Mapping[str, str] = field(default_factory=dict)

    @property
    def file(self) -> Path:
        """``stack.yaml``."""
        return self.folder / "stack.yaml"

    @property
    def own(self) -> tuple[str | None, ...]:
        """What is resolved: None for the common lock, then each role that has a lock of its own."""
        return (None, *sorted(self.roles))

    def inputs(self, role: str | None = None) -> tuple[Path, ...]:
        """The input files of a role: the common one, then its own where it has one."""
        common = self.folder / "requirements.in"
        return (common, self.folder / f"requirements.{role}.in") if role in self.roles else (common,)

    def lock(self, role: str | None = None) -> Path:
        """The lock that a role installs from: its own where it has inputs of its own, else the common one."""
        return self.folder / (f"requirements.{role}.lock" if role in self.roles else "requirements.lock")

    def metadata(self, role: str | None = None) -> Path:
        """What the lock's entries require, beside the lock."""
        return self.folder / (f"requirements.{role}.metadata.json" if role in self.roles else "requirements.metadata.json")


def find_stacks(root: Path = STACKS) -> list[Path]:
    """The folders under ``root`` that hold a ``stack.yaml``, by name."""
    return sorted(path.parent for path in root.glob("*/stack.yaml"))


def find_stack(name: str | None, root: Path = STACKS) -> Stack:
    """A stack by its name under ``root`` or by the path of its folder; the default one for None.

    Raises:
        UsageError: there is none of this name, or its ``stack.yaml`` holds a mistake.
    """
    wanted = name or DEFAULT_STACK
    for folder in (root / wanted, Path(wanted)) if "/" not in wanted else (Path(wanted),):
        if is_file(folder / "stack.yaml"):
            return load_stack(folder)
    known = ", ".join(path.name for path in find_stacks(root)) or f"none in {root}"
    raise UsageError(f"there is no stack {wanted!r}: no stack.yaml in {root / wanted if '/' not in wanted else wanted}; stacks here: {known}")


def load_stack(folder: str | Path) -> Stack:
    """Read a stack's folder.

    Raises:
        UsageError: a file is missing or ``stack.yaml`` holds a mistake; the message names file, line and key path.
    """
    place = Path(folder)
    path = place / "stack.yaml"
    try:
        data = path.read_bytes()
    except OSError as error:
        raise UsageError(f"cannot read the stack {path}: {error.strerror or error}") from error
    stack = parse_stack(data, path)
    for role in (None, *stack.roles):
        for needed in stack.inputs(role):
            if not is_file(needed):
                raise UsageError(f"{path}: the stack has no {needed.name}; write what it needs into {needed}")
    for extra in sorted(place.glob("requirements.*.in")):
        role = extra.name.split(".")[1]
        if role not in stack.roles:
            raise UsageError(f"{path}: {extra.name} makes the role {role!r} differ, which 'roles' does not declare; add `{role}: REASON` under roles")
    return stack


def parse_stack(data: bytes, path: Path) -> Stack:
    """A ``stack.yaml`` alone, as an image holds it: what stands beside it is not looked for. Its folder gives the name.

    Raises:
        UsageError: it holds a mistake; the message names ``path``, line and key path.
    """
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UsageError(f"the stack {path} is not UTF-8 text (byte {error.start})") from error
    document, lines = read_yaml(text, path)
    return _stack(document, path.parent, Source(path, lines))


def _stack(data: object, folder: Path, source: Source) -> Stack:
    table = as_table(data, "", source)
    only_keys(table, _KEYS, "", source)
    if table.get("version") != 1 or isinstance(table.get("version"), bool):
        source.fail("version", f"expected 1, found {table.get('version')!r}")
    name = folder.resolve().name
    if not _NAME.fullmatch(name):
        source.fail("", f"the folder's name {name!r} becomes an image's name: lower-case letters, digits, and . _ - between them")
    python = texts_of(table.get("python"), "python", source)
    if not python:
        source.fail("python", 'expected the versions of CPython that the lock is for, such as ["3.12", "3.11"]')
    _each(python, r"3\.\d{1,2}", "python", 'a minor version in quotes such as "3.12"', source)
    glibc = text_at(table, "glibc", "glibc", source)
    if glibc is None:
        source.fail("glibc", 'the oldest C library that the wheels must run on is missing, such as "2.36"')
    _each([glibc], r"2\.\d{1,2}", "glibc", 'a version in quotes such as "2.36"', source)
    cuda = text_at(table, "cuda", "cuda", source)
    _each([cuda] if cuda is not None else [], r"\d{2}\.\d", "cuda", 'a version in quotes such as "12.8"', source)
    base = text_at(table, "base", "base", source)
    _each([base] if base is not None else [], _DIGEST.pattern, "base", "an image with its digest, NAME:TAG@sha256:<64 hex digits>", source)
    archs = texts_of(table.get("archs"), "archs", source)
    _each(archs, r"sm_\d{2,3}[af]?", "archs", "an architecture such as sm_90", source)
    return Stack(
        name=name,
        folder=folder,
        description=text_at(table, "description", "description", source) or "",
        python=python,
        glibc=glibc,
        cuda=cuda,
        base=base,
        archs=archs,
        smoke=tuple(_smoke(item, f"smoke[{index}]", source) for index, item in enumerate(as_list(table.get("smoke"), "smoke", source))),
        roles=_roles(table.get("roles"), source),
    )


def _each(values: Iterable[str], pattern: str, where: str, expected: str, source: Source) -> None:
    seen: set[str] = set()
    for index, value in enumerate(values):
        place = f"{where}[{index}]" if f"{where}[{index}]" in source.lines else where
        if not re.fullmatch(pattern, value):
            source.fail(place, f"expected {expected}, found {value!r}")
        if value in seen:
            source.fail(place, f"{value} stands twice")
        seen.add(value)


def _smoke(value: object, where: str, source: Source) -> SmokeImport:
    table: Mapping[str, object] = {"import": value} if isinstance(value, str) else as_table(value, where, source)
    only_keys(table, ("import", "needs"), where, source)
    module, needs = text_at(table, "import", f"{where}.import", source), text_at(table, "needs", f"{where}.needs", source)
    if module is None or not all(part.isidentifier() for part in module.split(".")):
        source.fail(where, f"expected a module to import, such as torch, found {module!r}")
    if needs not in (None, "driver"):
        source.fail(f"{where}.needs", f"expected driver, found {needs!r}")
    return SmokeImport(module=module, needs=cast('Literal["driver"] | None', needs))


def _roles(value: object, source: Source) -> dict[str, str]:
    roles: dict[str, str] = {}
    table = as_table(value, "roles", source)
    only_keys(table, ROLES, "roles", source)
    for role in table:
        reason = text_at(table, role, f"roles.{role}", source)
        if not reason or not reason.strip():
            source.fail(f"roles.{role}", "say in words why this role may differ")
        roles[role] = reason.strip()
    return roles
