"""``envspec.yaml`` (or ``[tool.envspec]`` in pyproject.toml): what the hosts are and what may differ between them.

A mistake is one sentence with the key path and the line: ``envspec.yaml:12: roles.infer.versions.torch: …``.
"""

from __future__ import annotations

import fnmatch
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date, datetime
from pathlib import Path
from typing import Final

import yaml
from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.utils import canonicalize_name

from envspec.document import Source, as_list, as_table, kind_of, near, only_keys, read_yaml, text_at, texts_of
from envspec.errors import UsageError
from envspec.findings import SEVERITIES, FailOn, Severity
from envspec.locks.model import parse_specifier
from envspec.rules import RULES
from envspec.toml import read_toml

__all__ = [
    "Declared",
    "HostSpec",
    "Ignore",
    "Override",
    "RoleSpec",
    "Spec",
    "find_spec",
    "init_text",
    "load_spec",
]

_KINDS: Final = ("package", "component", "variable", "host", "library", "limit", "setting")
_TABLE: Final = re.compile(rb"""tool["'\s]*\.["'\s]*envspec""")
_MAX_PATH, _MAX_NAME = 4095, 255
"""Bytes of a path and of each name in it, as file systems allow them."""


@dataclass(frozen=True, kw_only=True, slots=True)
class HostSpec:
    """A host by name: its target in the command line's syntax, and its role."""

    name: str
    target: str
    role: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class RoleSpec:
    """What holds for the hosts of one role. ``baseline`` names a host, or a snapshot file, that the others follow."""

    name: str
    lock: str | None = None
    baseline: str | None = None
    requires: tuple[str, ...] = ()
    versions: Mapping[str, SpecifierSet] = field(default_factory=dict)
    scripts: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Declared:
    """A difference between roles that is meant. ``kind`` and ``pattern`` name what may differ (``*`` is allowed)."""

    kind: str
    pattern: str
    roles: frozenset[str]
    reason: str | None = None
    line: int | None = None

    def covers(self, kind: str, key: str, roles: Iterable[str | None]) -> bool:
        """Whether this declares a difference in ``key`` between hosts of these roles. No roles means any."""
        concerned = set(roles)
        if None in concerned or (self.roles and not concerned <= self.roles):
            return False
        return self.kind == kind and fnmatch.fnmatchcase(key, self.pattern)

    def __str__(self) -> str:
        return f"{self.kind} {self.pattern}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Ignore:
    """Findings that are accepted, with the reason and until when. ``code`` may be a family (``EP8``)."""

    code: str
    subject: str = "*"
    hosts: frozenset[str] = frozenset()
    roles: frozenset[str] = frozenset()
    reason: str
    until: date | None = None
    line: int | None = None

    def __str__(self) -> str:
        return self.code if self.subject == "*" else f"{self.code} {self.subject}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Override:
    """Another severity for a code."""

    code: str
    severity: Severity
    line: int | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Spec:
    """The file as read. Paths in it are relative to ``root``, the directory it stands in."""

    path: str
    root: Path
    hosts: Mapping[str, HostSpec] = field(default_factory=dict)
    roles: Mapping[str, RoleSpec] = field(default_factory=dict)
    lock: str | None = None
    requires: tuple[str, ...] = ()
    versions: Mapping[str, SpecifierSet] = field(default_factory=dict)
    declared: tuple[Declared, ...] = ()
    ignores: tuple[Ignore, ...] = ()
    severity: tuple[Override, ...] = ()
    fail_on: FailOn = "breaks"

    def required(self, role: str | None) -> tuple[str, ...]:
        """Canonical names of the packages that every host of the role must have."""
        own = self.roles[role].requires if role is not None and role in self.roles else ()
        return tuple(dict.fromkeys((*self.requires, *own)))

    def policies(self, role: str | None) -> dict[str, SpecifierSet]:
        """Version policies of the role; its own ones replace the general ones."""
        own = self.roles[role].versions if role is not None and role in self.roles else {}
        return {**self.versions, **own}

    def baseline_of(self, role: str | None) -> str | None:
        """The role's baseline host, as written."""
        return self.roles[role].baseline if role is not None and role in self.roles else None

    def declaration(self, kind: str, key: str, roles: Iterable[str | None]) -> Declared | None:
        """The first declaration that covers a difference."""
        concerned = tuple(roles)
        return next((item for item in self.declared if item.covers(kind, key, concerned)), None)


# Reading. Each value is read with its key path; the line of a path comes from the file's own structure.


def find_spec(directory: Path | None = None) -> Path | None:
    """``envspec.yaml`` in the directory, else a pyproject.toml in it that has ``[tool.envspec]``, else None.

    A pyproject.toml that cannot be read, or is not TOML and mentions the table, is returned too: ``load_spec`` says what
    is the matter, and nothing runs without the rules that somebody wrote.
    """
    place = directory or Path.cwd()
    for name in ("envspec.yaml", "envspec.yml"):
        if (place / name).is_file():
            return place / name
    project = place / "pyproject.toml"
    if project.is_file():
        try:
            data = project.read_bytes()
        except OSError:
            return project
        try:
            tool = read_toml(data.decode("utf-8-sig")).get("tool")
        except ValueError:
            return project if _TABLE.search(data) else None
        if isinstance(tool, dict) and "envspec" in tool:
            return project
    return None


def load_spec(path: str | Path) -> Spec:
    """Read a spec file.

    Raises:
        UsageError: it cannot be read or holds a mistake; the message names file, line and key path.
    """
    place = Path(path)
    try:
        text = place.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise UsageError(f"cannot read the spec {place}: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise UsageError(f"the spec {place} is not UTF-8 text (byte {error.start})") from error
    except ValueError as error:  # no path of this system: a NUL in it, or what its encoding lacks
        raise UsageError(f"cannot read the spec {str(place)!r}: {error}") from error
    data, lines = _from_toml(text, place) if place.suffix == ".toml" else read_yaml(text, place)
    return _spec(data, Source(place, lines))


def _from_toml(text: str, path: Path) -> tuple[object, dict[str, int]]:
    try:
        data = read_toml(text)
    except ValueError as error:
        raise UsageError(f"{path}: this is not valid TOML: {error}") from error
    if path.name == "pyproject.toml":
        tool = data.get("tool", {})
        data = tool.get("envspec", {}) if isinstance(tool, dict) else {}
    return data, _toml_lines(text)


_TOML_HEADER: Final = re.compile(r"^\s*(\[\[?)\s*([^\[\]#]+?)\s*\]\]?\s*(?:#.*)?$")
_TOML_KEY: Final = re.compile(
    r"""^\s*((?:[A-Za-z0-9_-]+|"[^"]*"|'[^']*')(?:\s*\.\s*(?:[A-Za-z0-9_-]+|"[^"]*"|'[^']*'))*)\s*="""
)


def _toml_lines(text: str) -> dict[str, int]:
    """Key path to line, for headers and the keys under them. tomllib keeps no positions."""
    lines: dict[str, int] = {}
    counts: dict[str, int] = {}
    table = ""
    for number, line in enumerate(text.splitlines(), 1):
        header = _TOML_HEADER.match(line)
        if header:
            table = _dotted(header[2]).removeprefix("tool.envspec").removeprefix(".")
            if header[1] == "[[":
                counts[table] = counts.get(table, -1) + 1
                table = f"{table}[{counts[table]}]"
            lines.setdefault(table, number)
            continue
        key = _TOML_KEY.match(line)
        if key:
            name = _dotted(key[1])
            lines.setdefault(f"{table}.{name}" if table else name, number)
    return lines


def _dotted(text: str) -> str:
    return ".".join(part.strip().strip("\"'") for part in text.split("."))


def _spec(data: object, source: Source) -> Spec:
    table = as_table(data, "", source)
    known = {
        "version": None,
        "hosts": None,
        "roles": None,
        "lock": None,
        "requires": None,
        "versions": None,
        "declared": None,
        "ignore": None,
        "severity": None,
        "fail-on": None,
    }
    only_keys(table, known, "", source)
    if table.get("version", 1) != 1 or isinstance(table.get("version"), bool):
        source.fail("version", f"expected 1, found {table['version']!r}")
    roles = {
        name: _role(name, value, f"roles.{name}", source)
        for name, value in as_table(table.get("roles"), "roles", source).items()
    }
    hosts = {
        name: _host(name, value, f"hosts.{name}", roles, source)
        for name, value in as_table(table.get("hosts"), "hosts", source).items()
    }
    fail_on = table.get("fail-on", "breaks")
    if fail_on not in ("breaks", "results", "any", "never"):
        source.fail("fail-on", f"expected breaks, results, any or never, found {fail_on!r}")
    spec_roles = set(roles) | {host.role for host in hosts.values() if host.role}
    return Spec(
        path=str(source.path),
        root=source.path.parent,
        hosts=hosts,
        roles=roles,
        lock=_path_at(table, "lock", "lock", source),
        requires=_names(table.get("requires"), "requires", source),
        versions=_versions(table.get("versions"), "versions", source),
        declared=tuple(
            _declared(item, f"declared[{index}]", spec_roles, source)
            for index, item in enumerate(as_list(table.get("declared"), "declared", source))
        ),
        ignores=tuple(
            _ignore(item, f"ignore[{index}]", source)
            for index, item in enumerate(as_list(table.get("ignore"), "ignore", source))
        ),
        severity=tuple(
            _override(code, value, f"severity.{code}", source)
            for code, value in as_table(table.get("severity"), "severity", source).items()
        ),
        fail_on=fail_on,
    )


def _host(name: str, value: object, where: str, roles: Mapping[str, RoleSpec], source: Source) -> HostSpec:
    if isinstance(value, str):
        return HostSpec(name=name, target=_checked_target(value, where, source))
    table = as_table(value, where, source)
    only_keys(table, ("target", "role"), where, source)
    target = text_at(table, "target", f"{where}.target", source)
    if target is None:
        source.fail(where, "the key 'target' is missing, such as `target: user@gpu:~/env/bin/python3`")
    role = text_at(table, "role", f"{where}.role", source)
    if role is not None and roles and role not in roles:
        source.fail(f"{where}.role", f"there is no role {role!r}{near(role, roles)}")
    return HostSpec(name=name, target=_checked_target(target, where, source), role=role)


def _checked_target(target: str, where: str, source: Source) -> str:
    if not target.strip() or target.startswith("-") or any(ord(char) < 32 for char in target):
        source.fail(where, f"{target[:80]!r} is not a host")
    return _checked_path(target, where, source)


def _role(name: str, value: object, where: str, source: Source) -> RoleSpec:
    table = as_table(value, where, source)
    only_keys(table, ("lock", "baseline", "requires", "versions", "scripts"), where, source)
    return RoleSpec(
        name=name,
        lock=_path_at(table, "lock", f"{where}.lock", source),
        baseline=_path_at(table, "baseline", f"{where}.baseline", source),
        requires=_names(table.get("requires"), f"{where}.requires", source),
        versions=_versions(table.get("versions"), f"{where}.versions", source),
        scripts=tuple(
            _checked_path(script, f"{where}.scripts[{index}]", source)
            for index, script in enumerate(texts_of(table.get("scripts"), f"{where}.scripts", source))
        ),
    )


def _path_at(table: Mapping[str, object], key: str, where: str, source: Source) -> str | None:
    text = text_at(table, key, where, source)
    return _checked_path(text, where, source) if text is not None else None


def _checked_path(text: str, where: str, source: Source) -> str:
    """The text, where a file could have it for its path; the system refuses any other with an error of its own."""
    if not text.strip() or "\0" in text:
        source.fail(where, f"{text[:40]!r} is not a path")
    if len(text.encode()) > _MAX_PATH or any(len(part.encode()) > _MAX_NAME for part in text.split("/")):
        source.fail(where, f"{text[:40]!r}… is longer than a path can be ({_MAX_PATH:,} bytes, {_MAX_NAME} for each name in it)")
    return text


def _declared(value: object, where: str, roles: set[str], source: Source) -> Declared:
    table = as_table(value, where, source)
    only_keys(table, (*_KINDS, "roles", "reason"), where, source)
    kinds = [kind for kind in _KINDS if kind in table]
    if len(kinds) != 1:
        source.fail(where, f"expected one of {', '.join(_KINDS)} to say what may differ")
    kind = kinds[0]
    pattern = text_at(table, kind, f"{where}.{kind}", source) or "*"
    if kind in ("package", "component") and "*" not in pattern:
        pattern = canonicalize_name(pattern)
    named = texts_of(table.get("roles"), f"{where}.roles", source)
    for index, role in enumerate(named):
        if roles and role not in roles:
            source.fail(f"{where}.roles[{index}]", f"there is no role {role!r}{near(role, roles)}")
    return Declared(
        kind=kind,
        pattern=pattern,
        roles=frozenset(named),
        reason=text_at(table, "reason", f"{where}.reason", source),
        line=source.lines.get(where),
    )


def _ignore(value: object, where: str, source: Source) -> Ignore:
    table = as_table(value, where, source)
    only_keys(table, ("code", "subject", "hosts", "roles", "reason", "until"), where, source)
    code = text_at(table, "code", f"{where}.code", source)
    if code is None:
        source.fail(where, "the key 'code' is missing")
    _check_code(code, f"{where}.code", source, families=True)
    reason = text_at(table, "reason", f"{where}.reason", source)
    if not reason or not reason.strip():
        source.fail(where, "the key 'reason' is missing: say why this is accepted")
    until = table.get("until")
    if isinstance(until, str):
        try:
            until = date.fromisoformat(until)
        except ValueError:
            source.fail(f"{where}.until", f"expected a date such as 2027-01-31, found {until!r}")
    if isinstance(until, datetime):
        until = until.date()
    if until is not None and not isinstance(until, date):
        source.fail(f"{where}.until", f"expected a date such as 2027-01-31, found {until!r}")
    return Ignore(
        code=code.upper(),
        subject=text_at(table, "subject", f"{where}.subject", source) or "*",
        hosts=frozenset(texts_of(table.get("hosts"), f"{where}.hosts", source)),
        roles=frozenset(texts_of(table.get("roles"), f"{where}.roles", source)),
        reason=reason,
        until=until,
        line=source.lines.get(where),
    )


def _override(code: str, value: object, where: str, source: Source) -> Override:
    _check_code(code, where, source, families=False)
    if value not in SEVERITIES:
        source.fail(where, f"expected {', '.join(SEVERITIES[:-1])} or {SEVERITIES[-1]}, found {value!r}")
    return Override(code=code.upper(), severity=value, line=source.lines.get(where))


def _check_code(code: str, where: str, source: Source, *, families: bool) -> None:
    wanted = code.upper()
    if wanted in RULES or (families and re.fullmatch(r"EP[1-9]", wanted)):
        return
    source.fail(where, f"there is no finding code {code!r}{near(wanted, RULES)}")


def _names(value: object, where: str, source: Source) -> tuple[str, ...]:
    names = texts_of(value, where, source)
    for index, name in enumerate(names):
        if not re.fullmatch(r"[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?", name):
            source.fail(f"{where}[{index}]", f"{name!r} is not a package name; versions go under 'versions'")
    return tuple(canonicalize_name(name) for name in names)


def _versions(value: object, where: str, source: Source) -> dict[str, SpecifierSet]:
    policies: dict[str, SpecifierSet] = {}
    for name, text in as_table(value, where, source).items():
        place = f"{where}.{name}"
        if not isinstance(text, str):
            source.fail(place, f'expected a specifier in quotes such as ">=2.9,<2.11", found {kind_of(text)}')
        try:
            policies[canonicalize_name(name)] = parse_specifier(text)
        except InvalidSpecifier:
            source.fail(place, f'{text[:80]!r} is not a version specifier such as ">=2.9,<2.11"')
    return policies


# Writing.


def init_text(
    hosts: Sequence[tuple[str, str, str | None]] = (),
    *,
    locks: Mapping[str | None, str] | None = None,
    scripts: Mapping[str, Sequence[str]] | None = None,
) -> str:
    """A commented ``envspec.yaml``.

    Args:
        hosts: name, target and role of each known host.
        locks: role (None for all) to the path of a lock that was found.
        scripts: role to scripts that were found.
    """
    found = dict(locks or {})
    wanted = dict(scripts or {})
    roles = sorted({role for _, _, role in hosts if role} | {role for role in (*found, *wanted) if role})
    out = [
        "# What must be the same on which hosts. `envspec diff` with no arguments compares them.",
        "version: 1",
        "",
        "# Hosts by name: local, local:/path/to/python, user@host:~/env/bin/python3, image:NAME, container:NAME,",
        "# pod:NAMESPACE/NAME, or a snapshot file.",
        "hosts:" if hosts else "hosts: {}",
    ]
    for name, target, role in hosts:
        out.append(f"  {_quoted(name)}:")
        out.append(f"    target: {_quoted(target)}")
        if role:
            out.append(f"    role: {_quoted(role)}")
    out += ["", "# What holds for every host of a role.", "roles:" if roles else "roles: {}"]
    for role in roles:
        out.append(f"  {_quoted(role)}:")
        if role in found:
            out.append(f"    lock: {_quoted(found[role])}")
        else:
            out.append("    # lock: pylock.toml            # what the role should have")
        out.append("    # baseline: HOST             # without a lock: the host that the others follow")
        out.append("    requires: []                 # packages that must be there, whatever the version")
        out.append('    versions: {}                 # policies, such as torch: ">=2.9,<2.11"')
        if wanted.get(role):
            out.append("    scripts:                     # preflighted on each host of the role")
            out.extend(f"      - {_quoted(script)}" for script in wanted[role])
        else:
            out.append("    scripts: []                  # preflighted on each host of the role")
    if None in found:
        out += ["", "# The lock of every role without one of its own.", f"lock: {_quoted(found[None])}"]
    out += [
        "",
        "# Differences between roles that are meant. They are shown, and do not fail a run.",
        "declared: []",
        "#  - package: transformers       # or component, variable, host, library, limit, setting; * is allowed",
        "#    roles: [train, infer]",
        "#    reason: the server pins its own",
        "",
        "# Findings that are accepted. Each needs a reason; one past its date counts again.",
        "ignore: []",
        "#  - code: EP304",
        '#    subject: "*"',
        "#    reason: the drivers are updated together in spring",
        "#    until: 2027-03-31",
        "",
        "# Another severity for a code: breaks, results or noise.",
        "severity: {}",
        "",
        "# From which severity on a run fails: breaks, results, any or never.",
        "fail-on: breaks",
    ]
    return "\n".join(out) + "\n"


def _quoted(text: str) -> str:
    """A YAML scalar: bare where that reads back as the same text, else quoted as JSON, which YAML includes."""
    if re.fullmatch(r"[A-Za-z_./~][A-Za-z0-9_./~@-]*", text):
        try:
            if yaml.safe_load(text) == text:
                return text
        except yaml.YAMLError:
            pass
    return json.dumps(text)
