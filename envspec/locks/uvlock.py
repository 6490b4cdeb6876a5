"""``uv.lock`` (version 1): a universal graph. What a host should have is what its role reaches from the project.

Its schema is uv's own: each ``[[package]]`` has a ``source`` and ``dependencies`` with markers; two versions of one package
are told apart by ``version`` and ``source`` in the dependency. Where roles conflict, uv writes their choice into markers as
``extra == 'group-4-demo-training'`` (length and name of the project, then the group).
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, Final, cast

from packaging.markers import InvalidMarker, Marker
from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.utils import InvalidName, canonicalize_name

from envspec.errors import UsageError
from envspec.locks.files import HASH_EXPECTED, digest, header_lines, locked_file, parse_toml, read_text
from envspec.locks.model import Direct, Lock, LockedPackage, parse_specifier, parse_version
from envspec.locks.target import Target

__all__ = ["UvLock", "declares", "read_uv_lock"]

_EXTRA: Final = re.compile(r"""extra\s*(==|!=)\s*(['"])([^'"]+)\2""")


@dataclass(frozen=True, kw_only=True, slots=True)
class _Edge:
    name: str
    version: str | None
    source: object
    marker: Marker | None
    extras: tuple[str, ...]
    where: str

    def leads_to(self, node: _Node) -> bool:
        """Whether an entry of this name is what the edge means: uv tells entries of one name apart by version and source."""
        return self.version in (None, node.package.version) and self.source in (None, node.source)

    def __str__(self) -> str:
        return f"{self.name} {self.version}" if self.version else self.name


@dataclass(frozen=True, kw_only=True, slots=True)
class _Node:
    package: LockedPackage
    source: Mapping[str, Any]
    edges: tuple[_Edge, ...]
    optional: Mapping[str, tuple[_Edge, ...]]
    groups: Mapping[str, tuple[_Edge, ...]]

    @property
    def root(self) -> bool:
        """A project of the workspace: a source tree that is part of it."""
        return any(self.source.get(kind) == "." for kind in ("virtual", "editable", "directory"))


@dataclass(frozen=True, kw_only=True)
class UvLock(Lock):
    """A lock whose selection is a walk of its graph. ``groups`` and ``extras`` are those of the project itself."""

    nodes: tuple[_Node, ...] = ()

    def select(self, target: Target) -> tuple[list[LockedPackage], set[str]]:
        """The packages that the project reaches on the host with the role's extras and groups."""
        by_name = _by_name(self.nodes)
        roots = [node for node in self.nodes if node.root] or self._unreached()
        active = {
            _encoded(kind, root.package.name, name)
            for root in roots
            for kind, names in self._choice()
            for name in names
        }
        selected: dict[int, LockedPackage] = {}
        undecided: set[str] = set()
        seen: set[tuple[int, str | None]] = set()
        queue: deque[tuple[_Node, str | None]] = deque()
        for root in roots:
            queue.append((root, None))
            queue.extend((root, extra) for extra in sorted(self.extras))
        while queue:
            node, extra = queue.popleft()
            if (id(node), extra) in seen:
                continue
            seen.add((id(node), extra))
            if "virtual" not in node.source:
                selected[id(node)] = node.package
            edges: Sequence[_Edge] = node.edges if extra is None else node.optional.get(extra, ())
            if extra is None and node in roots:
                edges = [*edges, *(edge for group in sorted(self.groups) for edge in node.groups.get(group, ()))]
            for edge in edges:
                result = _edge_applies(edge, target, active)
                if result is None:
                    undecided.add(edge.name)
                if not result:
                    continue
                for child in by_name.get(edge.name, ()):
                    if edge.leads_to(child):
                        queue.append((child, None))
                        queue.extend((child, item) for item in edge.extras)
        return list(selected.values()), undecided

    def _choice(self) -> tuple[tuple[str, frozenset[str]], ...]:
        return (("extra", self.extras), ("group", self.groups))

    def _unreached(self) -> list[_Node]:
        reached = {edge.name for node in self.nodes for edge in node.edges}
        return [node for node in self.nodes if node.package.name not in reached]


def _by_name(nodes: Iterable[_Node]) -> dict[str, list[_Node]]:
    found: dict[str, list[_Node]] = {}
    for node in nodes:
        found.setdefault(node.package.name, []).append(node)
    return found


def _check_whole(nodes: Sequence[_Node], members: Iterable[str], path: Path) -> None:
    """Refuse a graph that names what it does not hold.

    uv locks every member and every dependency, those of other platforms, extras and groups too, so only a file that was
    cut short or edited has an edge without an end.
    """
    by_name = _by_name(nodes)
    cut = "the file is cut short or was edited; run `uv lock`"
    for node in nodes:
        for edge in (*node.edges, *chain.from_iterable((*node.optional.values(), *node.groups.values()))):
            named = by_name.get(edge.name, ())
            if not any(edge.leads_to(child) for child in named):
                elsewhere = any(edge.version in (None, child.package.version) for child in named)
                source = " from the source that it names" if elsewhere else ""
                raise UsageError(f"{edge.where}: the lock holds no {edge}{source}: {cut}")
    for name in members:
        if canonicalize_name(name) not in by_name:
            raise UsageError(f"the lock {path}: manifest.members: the lock holds no {name}: {cut}")


def _encoded(kind: str, project: str, name: str) -> str:
    return f"{kind}-{len(project)}-{project}-{name}"


def _edge_applies(edge: _Edge, target: Target, active: set[str]) -> bool | None:
    if edge.marker is None:
        return True
    probe = Lock(path="", kind="uv", packages=(), extras=frozenset(active))
    return probe.applies(edge.marker, target)


def declares(path: Path, role: str) -> bool:
    """Whether a project of the lock has a group or an extra of this name."""
    lock = cast("UvLock", read_uv_lock(path))
    return any(canonicalize_name(role) in (*node.groups, *node.optional) for node in lock.nodes if node.root)


def read_uv_lock(path: Path, role: str | None = None) -> Lock:
    """Read a ``uv.lock``. A role adds the group, else the extra, of its name; without one, uv's default group ``dev``.

    Raises:
        UsageError: it cannot be read, is not TOML, is of another version, has no entries, a bad one, or one whose
            dependencies it does not hold.
    """
    text = read_text(path)
    data = parse_toml(text, path)
    if data.get("version") != 1:
        raise UsageError(f"the lock {path} has version {data.get('version')!r}; uv.lock version 1 can be read")
    entries = data.get("package")
    if not isinstance(entries, list):
        raise UsageError(f"the lock {path} has no 'package' array: it is cut short, not empty; run `uv lock`")
    if not entries:
        raise UsageError(f"the lock {path} lists no package; comparing with it would call every package superfluous")
    lines = header_lines(text, "package")
    nodes = []
    for index, entry in enumerate(entries):
        where = f"the lock {path}: package[{index}]"
        nodes.append(_node(entry, lines[index] if len(lines) == len(entries) else None, where))
    manifest = data.get("manifest")
    _check_whole(nodes, _strings(manifest, "members") if isinstance(manifest, dict) else (), path)
    extras: frozenset[str] = frozenset()
    groups: frozenset[str] = frozenset()
    roots = [node for node in nodes if node.root]
    wanted = canonicalize_name(role) if role is not None else "dev"
    if any(wanted in node.groups for node in roots):
        groups = frozenset({wanted})
    elif role is not None and any(wanted in node.optional for node in roots):
        extras = frozenset({wanted})
    return UvLock(
        path=str(path),
        kind="uv",
        packages=tuple(node.package for node in nodes if "virtual" not in node.source),
        environments=tuple(
            _marker(item, f"the lock {path}: supported-markers") for item in _strings(data, "supported-markers")
        ),
        requires_python=_python(data.get("requires-python"), f"the lock {path}"),
        extras=extras,
        groups=groups,
        nodes=tuple(nodes),
    )


def _node(entry: object, line: int | None, where: str) -> _Node:
    if not isinstance(entry, dict) or not isinstance(entry.get("name"), str):
        raise UsageError(f"{where}: expected a table with a 'name'")
    name = _name(entry["name"], f"{where}.name")
    version = _text(entry, "version", where)
    if version is not None and parse_version(version) is None:
        raise UsageError(f"{where}.version: {version[:80]!r} is not a version; run `uv lock`")
    source = entry.get("source", {})
    if not isinstance(source, dict):
        raise UsageError(f"{where}.source: expected a table")
    files = []
    wheels = entry.get("wheels", [])
    if not isinstance(wheels, list):
        raise UsageError(f"{where}.wheels: expected an array")
    for item in [*wheels, *([entry["sdist"]] if "sdist" in entry else [])]:
        if not isinstance(item, dict):
            raise UsageError(f"{where}: expected wheels and sdist to be tables")
        file, url, place = (item.get(key) if isinstance(item.get(key), str) else None for key in ("filename", "url", "path"))
        files.append(locked_file(file, url, place, _hashes(item, where)))
    direct = _source(source)
    if direct is not None:
        files = [file for file in files if direct.kind == "archive"]
    package = LockedPackage(
        name=name,
        version=version,
        files=tuple(files),
        hashes=frozenset().union(*(file.hashes for file in files)),
        index=source.get("registry") if isinstance(source.get("registry"), str) else None,
        direct=direct,
        requires=tuple(edge.name for edge in _edges(entry.get("dependencies"), f"{where}.dependencies")),
        line=line,
    )
    return _Node(
        package=package,
        source=source,
        edges=_edges(entry.get("dependencies"), f"{where}.dependencies"),
        optional=_edge_table(entry.get("optional-dependencies"), f"{where}.optional-dependencies"),
        groups=_edge_table(entry.get("dev-dependencies"), f"{where}.dev-dependencies"),
    )


def _source(source: Mapping[str, Any]) -> Direct | None:
    if isinstance(source.get("git"), str):
        url, _, commit = source["git"].partition("#")
        return Direct(kind="vcs", url=url.split("?")[0], commit=commit.lower() or None)
    for key, editable in (("editable", True), ("directory", False), ("virtual", False)):
        if isinstance(source.get(key), str):
            return Direct(kind="directory", path=source[key], editable=editable)
    for key in ("url", "path"):
        if isinstance(source.get(key), str):
            return Direct(kind="archive", url=source[key])
    return None


def _edge_table(value: object, where: str) -> dict[str, tuple[_Edge, ...]]:
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise UsageError(f"{where}: expected a table")
    return {canonicalize_name(name): _edges(items, f"{where}.{name}") for name, items in value.items()}


def _edges(value: object, where: str) -> tuple[_Edge, ...]:
    if value is None:
        return ()
    if not isinstance(value, list):
        raise UsageError(f"{where}: expected an array")
    edges = []
    for index, item in enumerate(value):
        place = f"{where}[{index}]"
        if not isinstance(item, dict) or not isinstance(item.get("name"), str):
            raise UsageError(f"{place}: expected a table with a 'name'")
        marker = _text(item, "marker", place)
        edges.append(
            _Edge(
                name=_name(item["name"], f"{place}.name"),
                version=_text(item, "version", place),
                source=item.get("source"),
                marker=_marker(marker, f"{place}.marker") if marker is not None else None,
                extras=tuple(canonicalize_name(extra) for extra in _strings(item, "extra")),
                where=place,
            )
        )
    return tuple(edges)


def _name(text: str, where: str) -> str:
    try:
        return canonicalize_name(text, validate=True)
    except InvalidName as error:
        raise UsageError(f"{where}: {text[:80]!r} is not a package name; run `uv lock`") from error


def _text(table: Mapping[str, Any], key: str, where: str) -> str | None:
    value = table.get(key)
    if value is not None and not isinstance(value, str):
        raise UsageError(f"{where}.{key}: expected a string")
    return value


def _hashes(table: Mapping[str, Any], where: str) -> frozenset[str]:
    """The hash of a file, none where uv wrote none, as for an index that tells none."""
    text = _text(table, "hash", where)
    if text is None:
        return frozenset()
    found = digest(text)
    if found is None:
        raise UsageError(f"{where}: the hash {text[:80]!r} is none; expected {HASH_EXPECTED}; run `uv lock`")
    return frozenset({found})


def _strings(table: Mapping[str, Any], key: str) -> list[str]:
    value = table.get(key)
    return [item for item in value if isinstance(item, str)] if isinstance(value, list) else []


def _marker(text: str, where: str) -> Marker:
    """uv's conflict markers test ``extra`` for equality although several may hold: that is membership in ``extras``."""
    rewritten = _EXTRA.sub(lambda m: f"'{m[3]}' {'in' if m[1] == '==' else 'not in'} extras", text)
    try:
        return Marker(rewritten)
    except InvalidMarker as error:
        raise UsageError(f"{where}: {text[:80]!r} is not a marker") from error


def _python(text: object, where: str) -> SpecifierSet | None:
    if text is None:
        return None
    try:
        return parse_specifier(text if isinstance(text, str) else "?")
    except InvalidSpecifier as error:
        raise UsageError(f"{where}.requires-python: {str(text)[:80]!r} is not a version specifier") from error
