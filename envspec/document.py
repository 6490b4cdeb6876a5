"""Reading a configuration document value by value. A mistake is one sentence with file, line and key path:
``envspec.yaml:12: roles.infer.versions.torch: …``.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn, cast

import yaml

from envspec.errors import UsageError

__all__ = ["Source", "as_list", "as_table", "kind_of", "near", "only_keys", "read_yaml", "text_at", "texts_of"]


@dataclass(frozen=True, slots=True)
class Source:
    """A document's file, and the line of each key path in it."""

    path: Path
    lines: Mapping[str, int]

    def fail(self, where: str, message: str) -> NoReturn:
        """Raise a ``UsageError`` that names the file, the line of ``where`` or of what holds it, and the key path."""
        place: str | None = where
        while place and place not in self.lines:
            place = place.rpartition(".")[0] if not place.endswith("]") else place.rpartition("[")[0]
        line = self.lines.get(place or "")
        prefix = f"{self.path}:{line}" if line else str(self.path)
        raise UsageError(f"{prefix}: {where + ': ' if where else ''}{message}")


def read_yaml(text: str, path: Path) -> tuple[object, dict[str, int]]:
    """The document and the line of each key path.

    Raises:
        UsageError: it is not YAML, a key stands twice, or it refers to itself.
    """
    lines: dict[str, int] = {}
    try:
        node = yaml.compose(text, Loader=yaml.SafeLoader)
        if node is None:
            return {}, lines
        _mark(node, "", lines, Source(path, lines), frozenset())
        return yaml.safe_load(text), lines
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = f":{mark.line + 1}" if mark else ""
        raise UsageError(f"{path}{line}: this is not valid YAML: {error.problem or error.context}") from error
    except (yaml.YAMLError, ValueError, RecursionError, TypeError) as error:
        raise UsageError(f"{path}: this is not valid YAML: {str(error).splitlines()[0]}") from error


def _mark(node: yaml.Node, where: str, lines: dict[str, int], source: Source, above: frozenset[int]) -> None:
    if id(node) in above or len(above) > 50:
        source.fail(where, "this refers to itself or is nested too deeply")
    inside = above | {id(node)}
    if isinstance(node, yaml.MappingNode):
        seen: set[str] = set()
        for key, value in node.value:
            name = str(key.value)
            place = f"{where}.{name}" if where else name
            lines[place] = key.start_mark.line + 1
            if name in seen:
                source.fail(place, "this key stands twice; the first one would be lost")
            seen.add(name)
            _mark(value, place, lines, source, inside)
    elif isinstance(node, yaml.SequenceNode):
        for index, value in enumerate(node.value):
            place = f"{where}[{index}]"
            lines[place] = value.start_mark.line + 1
            _mark(value, place, lines, source, inside)


def near(word: str, known: Iterable[str]) -> str:
    """``; did you mean 'torch'?`` where a known word is close, else nothing."""
    close = difflib.get_close_matches(word, list(known), n=1)
    return f"; did you mean {close[0]!r}?" if close else ""


def only_keys(table: Mapping[str, object], known: Iterable[str], where: str, source: Source) -> None:
    """Raise where the table has a key that is not known."""
    names = list(known)
    for key in table:
        if key not in names:
            place = f"{where}.{key}" if where else key
            source.fail(place, f"there is no such key{near(key, names)}; known: {', '.join(names)}")


def kind_of(value: object) -> str:
    """What a value is, in words."""
    names = {dict: "a table", list: "a list", str: "text", bool: "true or false", int: "a number", float: "a number"}
    return names.get(type(value), "nothing" if value is None else type(value).__name__)


def as_table(value: object, where: str, source: Source) -> dict[str, object]:
    """The table; an absent one is empty."""
    if value is None:
        return {}
    if not isinstance(value, dict):
        source.fail(where, f"expected a table, found {kind_of(value)}")
    for key in value:
        if not isinstance(key, str):
            source.fail(where, f"the key {key!r} is not text; put it in quotes")
    return value


def as_list(value: object, where: str, source: Source) -> list[object]:
    """The list; an absent one is empty."""
    if value is None:
        return []
    if not isinstance(value, list):
        source.fail(where, f"expected a list, found {kind_of(value)}")
    return value


def text_at(table: Mapping[str, object], key: str, where: str, source: Source) -> str | None:
    """The text under a key, None where there is none."""
    value = table.get(key)
    if value is not None and not isinstance(value, str):
        source.fail(where, f"expected text, found {kind_of(value)}")
    return value


def texts_of(value: object, where: str, source: Source) -> tuple[str, ...]:
    """One text or a list of texts."""
    items = [value] if isinstance(value, str) else as_list(value, where, source)
    for index, item in enumerate(items):
        if not isinstance(item, str):
            source.fail(f"{where}[{index}]", f"expected text, found {kind_of(item)}")
    return tuple(cast("list[str]", items))
