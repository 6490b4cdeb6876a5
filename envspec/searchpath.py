"""Where a script lets Python look for modules: what it does to `sys.path`, `sys.modules` and the finders.

Paths are followed as far as they are literal: strings, `__file__`, `os.path` and `pathlib` on them, and names bound once.
The reading is pure but for asking whether a directory is there; what cannot be followed is said to be `opaque`, so that
nothing is called absent which such a change may provide.
"""

from __future__ import annotations

import ast
import os
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

__all__ = ["Changes", "Paths", "changes"]

_JOINING: Final = frozenset({"os.path.join", "pathlib.Path", "pathlib.PurePath", "pathlib.PosixPath"})
_SAME: Final = frozenset({"os.path.abspath", "os.path.normpath", "os.fspath", "str"})
_SAME_METHODS: Final = frozenset({"absolute", "as_posix", "__str__", "__fspath__"})
_NAMES: Final = {
    "os.pardir": os.pardir, "os.path.pardir": os.pardir, "os.curdir": os.curdir, "os.path.curdir": os.curdir,
    "os.sep": os.sep, "os.path.sep": os.sep,
}  # fmt: skip
_FINDERS: Final = frozenset({"sys.meta_path", "sys.path_hooks"})
_DEEP: Final = 60


@dataclass(slots=True)
class Changes:
    """What a file changes: directories searched `first` and `last`, names put into `sys.modules` (`stubs`), and the
    nodes of changes that only running them shows (`opaque`)."""

    first: list[Path] = field(default_factory=list)
    last: list[Path] = field(default_factory=list)
    stubs: set[str] = field(default_factory=set)
    opaque: list[ast.AST] = field(default_factory=list)


class Paths:
    """The texts that expressions of one file stand for. `canonical` undoes the file's import aliases."""

    def __init__(self, tree: ast.Module, canonical: Callable[[ast.expr], str], file: Path, cwd: Path) -> None:
        self.canonical = canonical
        self.file = os.path.abspath(file)
        self.cwd = os.path.abspath(cwd)
        self.anchored = False  # whether `__file__` took part in the last text
        stored: Counter[str] = Counter()
        values: dict[str, ast.expr] = {}
        for node in ast.walk(tree):
            match node:
                case ast.Name(id=name, ctx=ast.Store()) | ast.arg(arg=name):
                    stored[name] += 1
                case ast.Assign(targets=[ast.Name(id=name)], value=value) | ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as value):
                    values[name] = value
        self.values = {name: value for name, value in values.items() if stored[name] == 1}

    def of(self, node: ast.expr) -> str | None:
        """The absolute path of an expression, None when it is not literal."""
        self.anchored = False
        text = self.text(node)
        return None if text is None or "\0" in text else os.path.normpath(os.path.join(self.cwd, text))

    def text(self, node: ast.expr, depth: int = 0) -> str | None:
        """The text of an expression, None when it is not literal."""
        if depth > _DEEP:
            return None
        match node:
            case ast.Constant(value=str(text)):
                return text
            case ast.Name(id="__file__"):
                self.anchored = True
                return self.file
            case ast.Name(id=name) if name in self.values:
                return self.text(self.values[name], depth + 1)
            case ast.JoinedStr(values=pieces):
                return self.joined("", [piece.value if isinstance(piece, ast.FormattedValue) else piece for piece in pieces], depth)
            case ast.BinOp(left=left, op=ast.Div(), right=right):
                return self.joined(os.sep, [left, right], depth)
            case ast.BinOp(left=left, op=ast.Add(), right=right):
                return self.joined("", [left, right], depth)
            case ast.Attribute(value=inner, attr="parent"):
                return self.above(inner, 1, depth)
            case ast.Subscript(value=ast.Attribute(value=inner, attr="parents"), slice=ast.Constant(value=int(number))) if 0 <= number < _DEEP:
                return self.above(inner, number + 1, depth)
            case ast.Call(func=function, args=arguments):
                return self.called(function, arguments, depth)
        return _NAMES.get(self.canonical(node)) if isinstance(node, ast.Name | ast.Attribute) else None

    def called(self, function: ast.expr, arguments: list[ast.expr], depth: int) -> str | None:
        name = self.canonical(function)
        if name in ("os.getcwd", "pathlib.Path.cwd"):
            return self.cwd
        if name in _JOINING:
            return self.joined(os.sep, arguments, depth)
        if len(arguments) == 1 and name == "os.path.dirname":
            return self.above(arguments[0], 1, depth)
        if len(arguments) == 1 and name in _SAME:
            return self.text(arguments[0], depth + 1)
        resolved = arguments[0] if arguments and name == "os.path.realpath" else None
        if isinstance(function, ast.Attribute) and not name.startswith("os."):
            if function.attr in _SAME_METHODS:
                return self.text(function.value, depth + 1)
            if function.attr == "joinpath":
                return self.joined(os.sep, [function.value, *arguments], depth)
            resolved = function.value if function.attr == "resolve" else None
        text = None if resolved is None else self.text(resolved, depth + 1)
        return None if text is None or "\0" in text else os.path.realpath(os.path.join(self.cwd, text))

    def above(self, node: ast.expr, levels: int, depth: int) -> str | None:
        text = self.text(node, depth + 1)
        for _ in range(levels if text is not None else 0):
            text = os.path.dirname(text or "")
        return text

    def joined(self, separator: str, nodes: list[ast.expr], depth: int) -> str | None:
        texts: list[str] = []
        for node in nodes:
            text = self.text(node, depth + 1)
            if text is None:
                return None
            texts.append(text)
        return os.path.join(*texts) if separator and texts else "".join(texts)


def changes(tree: ast.Module, canonical: Callable[[ast.expr], str], file: Path, cwd: Path) -> Changes:
    """What a file does to the search for modules, wherever in it that stands. Relative paths begin at `cwd`."""
    return _Reader(Paths(tree, canonical, file, cwd)).read(tree)


class _Reader:
    def __init__(self, paths: Paths) -> None:
        self.paths = paths
        self.found = Changes()

    def read(self, tree: ast.Module) -> Changes:
        for node in ast.walk(tree):
            match node:
                case ast.Call():
                    self.call(node)
                case ast.Assign(targets=targets, value=value):
                    for target in targets:
                        self.assign(node, target, value)
                case ast.AugAssign(target=target, value=value) if self.paths.canonical(target) == "sys.path":
                    self.directories(node, value, self.found.last)
                case ast.AugAssign(target=target, value=value):
                    self.assign(node, target, value)
        return self.found

    def call(self, node: ast.Call) -> None:
        owner, _, method = self.paths.canonical(node.func).rpartition(".")
        match owner, method, node.args:
            case "sys.path", "insert", [ast.Constant(value=int(index)), path]:
                self.directory(node, path, self.found.first if index < 2 else self.found.last)
            case "sys.path", "append", [path]:
                self.directory(node, path, self.found.last)
            case "site", "addsitedir", [path, *_]:
                self.directory(node, path, self.found.last)
                added = self.paths.of(path)
                if added is not None and any(name.endswith(".pth") for name in _listed(added)):
                    self.found.opaque.append(node)
            case "sys.path", "extend", [paths]:
                self.directories(node, paths, self.found.last)
            case "sys.path", "insert" | "append" | "extend", _:
                self.found.opaque.append(node)
            case ("sys.meta_path" | "sys.path_hooks"), "append" | "insert" | "extend", _:
                self.found.opaque.append(node)
            case "sys.modules", "setdefault" | "__setitem__", [name, value]:
                self.stub(node, name, value)
            case "sys.modules", "update", [ast.Dict(keys=keys, values=values)]:
                for key, value in zip(keys, values, strict=True):
                    self.stub(node, key, value)
            case "sys.modules", "update", _:
                self.found.opaque.append(node)

    def assign(self, node: ast.AST, target: ast.expr, value: ast.expr) -> None:
        if isinstance(target, ast.Subscript):
            owner = self.paths.canonical(target.value)
            if owner == "sys.modules":
                self.stub(node, target.slice, value)
            elif owner == "sys.path" and isinstance(target.slice, ast.Slice):
                self.directories(node, value, self.found.first)
            elif owner == "sys.path":
                self.directory(node, value, self.found.first)
            elif owner in _FINDERS:
                self.found.opaque.append(node)
            return
        name = self.paths.canonical(target)
        if name == "sys.path":
            self.directories(node, value, self.found.first)
        elif name in _FINDERS or name in ("sys.modules", "builtins.__import__", "__builtins__.__import__"):
            self.found.opaque.append(node)

    def directories(self, node: ast.AST, value: ast.expr, into: list[Path]) -> None:
        """The directories of a list that becomes, or becomes part of, the search path."""
        stack = [value]
        while stack:
            item = stack.pop()
            if self.is_path(item):
                continue
            if isinstance(item, ast.List | ast.Tuple):
                stack += reversed([each.value if isinstance(each, ast.Starred) else each for each in item.elts])
            elif isinstance(item, ast.BinOp) and isinstance(item.op, ast.Add) and self.paths.of(item) is None:
                stack += [item.right, item.left]
            else:
                self.directory(node, item, into)

    def is_path(self, node: ast.expr) -> bool:
        """Whether an expression is the search path as it was, or a part of it."""
        match node:
            case ast.Subscript(value=inner, slice=ast.Slice()) | ast.Call(func=ast.Name(id="list" | "tuple"), args=[inner]):
                return self.is_path(inner)
            case ast.ListComp(elt=ast.Name(id=name), generators=[ast.comprehension(target=ast.Name(id=other), iter=inner)]):
                return name == other and self.is_path(inner)
        return self.paths.canonical(node) == "sys.path"

    def directory(self, node: ast.AST, path: ast.expr, into: list[Path]) -> None:
        found = self.paths.of(path)
        if found is not None and os.path.isdir(found):
            into.append(Path(found))
        elif found is None or os.path.exists(found) or not self.paths.anchored:
            # an archive, or a place that may be on the host alone; what lies relative to the script is here or nowhere
            self.found.opaque.append(node)

    def stub(self, node: ast.AST, name: ast.expr | None, value: ast.expr) -> None:
        if isinstance(value, ast.Constant) and value.value is None:
            return  # such a module cannot be imported
        if isinstance(name, ast.Constant) and isinstance(name.value, str):
            self.found.stubs.add(name.value)
        elif not (isinstance(name, ast.Name) and name.id == "__name__"):  # a module that replaces itself
            self.found.opaque.append(node)


def _listed(directory: str) -> list[str]:
    try:
        return os.listdir(directory)
    except (OSError, ValueError):
        return []
