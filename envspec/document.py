"""Reading a configuration document value by value. A mistake is one sentence with file, line and key path:
``envspec.yaml:12: roles.infer.versions.torch: …``.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NoReturn, cast

import yaml

from envspec.errors import UsageError

__all__ = ["Source", "as_list", "as_table", "kind_of", "near", "only_keys", "read_yaml", "text_at", "texts_of"]


_MAX_VALUES: Final = 100_000
_MISFITS: Final = (ValueError, TypeError, AttributeError, LookupError, ArithmeticError)
"""What PyYAML's constructors raise for a value that does not fit its tag."""


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
        key = "".join(char if char.isprintable() else ascii(char)[1:-1] for char in where)
        raise UsageError(f"{prefix}: {key + ': ' if key else ''}{message}")


def read_yaml(text: str, path: Path) -> tuple[object, dict[str, int]]:
    """The document and the line of each key path.

    Raises:
        UsageError: it is not YAML, a key stands twice, it refers to itself, or its aliases stand for too many values.
    """
    lines: dict[str, int] = {}
    try:
        node = yaml.compose(text, Loader=yaml.SafeLoader)
        if node is None:
            return {}, lines
        _mark(node, "", lines, Source(path, lines), frozenset(), {})
        return yaml.constructor.SafeConstructor().construct_document(node), lines
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = f":{mark.line + 1}" if mark else ""
        raise UsageError(f"{path}{line}: this is not valid YAML: {error.problem or error.context}") from error
    except yaml.YAMLError as error:
        raise UsageError(f"{path}: this is not valid YAML: {str(error).splitlines()[0]}") from error
    except RecursionError as error:
        raise UsageError(f"{path}: this is not valid YAML: it is nested too deeply") from error
    except _MISFITS as error:
        raise UsageError(f"{path}: this is not valid YAML: a value does not fit its tag") from error


def _mark(
    node: yaml.Node, where: str, lines: dict[str, int], source: Source, above: frozenset[int], sizes: dict[int, int]
) -> int:
    """Enter the line of each key path, and return how many values the node stands for, aliases counted each time.

    A node is visited once, where it stands first; ``sizes`` are those of the visited ones. Below an alias there are no
    paths: a mistake there is told at the line of the alias.
    """
    if id(node) in above or len(above) > 50:
        source.fail(where, "this refers to itself or is nested too deeply")
    if id(node) in sizes:
        return sizes[id(node)]
    inside = above | {id(node)}
    size = 1
    if isinstance(node, yaml.ScalarNode):
        _check_scalar(node, where, source)
    elif isinstance(node, yaml.MappingNode):
        seen: set[str] = set()
        for key, value in node.value:
            if not isinstance(key, yaml.ScalarNode):
                source.fail(where, "a key of this table is not text; put it in quotes")
            name = key.value
            place = f"{where}.{name}" if where else name
            lines[place] = key.start_mark.line + 1
            _check_scalar(key, place, source)
            if name in seen:
                source.fail(place, "this key stands twice; the first one would be lost")
            seen.add(name)
            size += 1 + _mark(value, place, lines, source, inside, sizes)
    elif isinstance(node, yaml.SequenceNode):
        for index, value in enumerate(node.value):
            place = f"{where}[{index}]"
            lines[place] = value.start_mark.line + 1
            size += _mark(value, place, lines, source, inside, sizes)
    if size > _MAX_VALUES:
        source.fail(where, f"this stands for more than {_MAX_VALUES:,} values, aliases counted each time; write out what is meant")
    sizes[id(node)] = size
    return size


def _check_scalar(node: yaml.ScalarNode, where: str, source: Source) -> None:
    """Refuse a value that does not fit its tag, explicit or implied, and text that no file or terminal can take."""
    kind = node.tag.rpartition(":")[2]
    if kind not in ("str", "null", "merge", "value"):
        try:
            yaml.constructor.SafeConstructor().construct_document(node)
        except _MISFITS:
            source.fail(where, f"{node.value[:40]!r} cannot be read as {kind}; put it in quotes if it is text")
    if any("\ud800" <= char <= "\udfff" for char in node.value):
        source.fail(where, f"{node.value[:40]!r} holds half of a character (a lone surrogate)")


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
