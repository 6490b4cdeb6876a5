"""What a script imports, read from its source without running it, following its own local modules.

`parse_script`, `parse_module` and `parse_directory` return a `ScriptImports`: every import with where it stands, whether
and how it is reached, what it is conditional on, and what makes it optional. The reading is pure: nothing here looks at
a host. Conditions on the platform, the Python version or the presence of a module are kept as `Gate`s and decided later
with the values of the host on which the script will run.

How an import is reached:

* ``module``: when the file is imported or run;
* ``called``: in a function that module-level code calls, directly or through other functions, also of local modules;
* ``function``: in a function that nothing at module level was seen to call.
"""

from __future__ import annotations

import ast
import heapq
import io
import itertools
import json
import os
import re
import sys
import tokenize
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal

from envspec.errors import UsageError
from envspec.searchpath import Paths, changes

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

__all__ = [
    "Gate",
    "Import",
    "Problem",
    "ScriptImports",
    "ScriptRequirements",
    "Site",
    "Source",
    "parse_directory",
    "parse_module",
    "parse_script",
    "read_source",
]

Reach = Literal["module", "called", "function"]
Form = Literal["import", "from", "star", "dynamic", "lazy", "run"]
Unresolved = Literal["", "relative", "above", "computed", "plugins", "library"]

_RUNNERS: Final = frozenset(
    {"run", "Fire", "spawn", "run_until_complete", "start_processes", "exit", "run_app", "Thread", "Process", "launch"}
)
_CHILDREN: Final = frozenset(f"subprocess.{name}" for name in ("run", "Popen", "call", "check_call", "check_output"))
_LIBRARIES: Final = frozenset(
    {*(f"ctypes.{name}" for name in ("CDLL", "PyDLL", "cdll.LoadLibrary", "pydll.LoadLibrary")),
     "torch.ops.load_library", "torch.classes.load_library"}
)  # fmt: skip
_PLUGINS: Final = frozenset({"importlib.metadata.entry_points", "importlib_metadata.entry_points", "pkg_resources.iter_entry_points"})
_GUARD = re.compile(
    r"^_*((is|has|have)_\w+?(_available|_installed|_enabled|_supported)?|\w+_(available|installed|enabled))$", re.I
)
_IGNORE = re.compile(r"#\s*envspec:\s*ignore(?:\[([A-Z0-9,\s]+)\])?")
_PEP723 = re.compile(r"(?m)^# /// script\s*\n(?P<body>(?:^#(?: .*)?\n)*?)^# ///\s*$")
_BINARIES: Final = (".so", ".pyd", ".pyc")
_SKIPPED: Final = frozenset({"__pycache__", "node_modules", "site-packages", "venv", ".venv", "build", "dist"})


@dataclass(frozen=True, kw_only=True, slots=True)
class Site:
    """A place in a source file; `cell` is the 1-based code cell of a notebook, to which `line` then refers."""

    file: str
    line: int
    column: int = 0
    cell: int | None = None

    def __str__(self) -> str:
        if self.cell is not None:
            return f"{self.file} cell {self.cell}:{self.line}"
        return f"{self.file}:{self.line}" if self.line else self.file


@dataclass(frozen=True, kw_only=True, slots=True)
class Gate:
    """A condition an import stands under.

    `kind`: ``host`` (`text` is an expression over interpreter and platform values), ``present`` (all `modules` can be
    imported), ``guard`` (a helper that tells by its name that it asks whether something is installed), ``unknown``,
    ``const`` (`text` is "True" or "False"), ``not``, ``and``, ``or`` (over `parts`).
    """

    kind: Literal["host", "present", "guard", "unknown", "const", "not", "and", "or"]
    text: str
    modules: tuple[str, ...] = ()
    parts: tuple[Gate, ...] = ()

    def holds(self, host: Mapping[str, Any], present: Callable[[str], bool | None]) -> bool | None:
        """Whether it holds on a host, None when that cannot be known.

        `host` are the values of `probe_imports.host_values`; `present` says whether a module can be imported there.
        """
        if self.kind == "const":
            return self.text == "True"
        if self.kind == "host":
            return evaluate_host(self.text, host)
        if self.kind == "present":
            return _all([present(module) for module in self.modules])
        values = [part.holds(host, present) for part in self.parts]
        if self.kind == "not":
            return None if values[0] is None else not values[0]
        if self.kind == "and":
            return _all(values)
        if self.kind == "or":
            return True if True in values else (None if None in values else False)
        return None

    @property
    def guards(self) -> bool:
        """Whether a helper asking for the presence of something takes part."""
        return self.kind == "guard" or any(part.guards for part in self.parts)

    def asked(self) -> Iterator[str]:
        """The modules whose presence decides it."""
        yield from self.modules
        for part in self.parts:
            yield from part.asked()


def _all(values: Sequence[bool | None]) -> bool | None:
    return False if False in values else (None if None in values else True)


_TRUE = Gate(kind="const", text="True")
_FALSE = Gate(kind="const", text="False")


def _not(gate: Gate) -> Gate:
    if gate.kind == "not":
        return gate.parts[0]
    if gate.kind == "const":
        return _FALSE if gate.text == "True" else _TRUE
    return Gate(kind="not", text=f"not ({gate.text})", parts=(gate,))


def _is_small(gate: Gate) -> bool:
    """Whether a condition has few enough parts to be part of others: each that names it holds it whole."""
    stack, seen = [gate], 0
    while stack and seen <= 100:
        stack.extend(stack.pop().parts)
        seen += 1
    return not stack


@dataclass(frozen=True, kw_only=True, slots=True)
class Import:
    """One import.

    `module` is absolute, and empty where `unresolved` says why: relative without a package or to what is above the top one,
    computed at run time, whatever the installed plugins name, a shared library. `names` are those of a from-import (each may
    also be a submodule). `function` is the function it stands in, None at module level. `path` leads from the entry's own statements to it: the import
    of a local module, the call of a function; empty for a direct one.
    `optional` means that a failure is caught and the script goes on. `beside` means that where nothing installed has the
    module, a plain directory beside the script is it, as a namespace package. `ignored` are codes named by an inline
    ``# envspec: ignore[...]`` comment (``*`` for all).
    """

    module: str
    names: tuple[str, ...] = ()
    site: Site
    form: Form = "import"
    reach: Reach = "module"
    function: str | None = None
    path: tuple[Site, ...] = ()
    optional: bool = False
    beside: bool = False
    gates: tuple[Gate, ...] = ()
    ignored: frozenset[str] = frozenset()
    text: str = ""
    unresolved: Unresolved = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Problem:
    """A file that cannot be read or parsed, or an import of a local module that can be seen to fail.

    `kind`: ``unreadable``, ``syntax`` (by this controller's parser; the host's own parser decides), ``submodule`` and
    ``name`` (missing in a local module; `subject` names it).
    """

    kind: Literal["unreadable", "syntax", "submodule", "name"]
    site: Site
    message: str
    subject: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class ScriptRequirements:
    """The inline metadata of a script (PEP 723)."""

    site: Site
    requires_python: str | None = None
    dependencies: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Source:
    """A source text for the host to compile (not to run)."""

    file: str
    text: str


@dataclass(frozen=True, kw_only=True, slots=True)
class ScriptImports:
    """All that was read of one script.

    `local` are top-level names that the script's own directory (`root`) provides, or one it puts first on the search path.
    `added` are modules that it puts into `sys.modules` itself, or has in directories it puts last. `search` are the places
    where it changes the search for modules in a way that only running it shows: what is missing may then be there.
    """

    script: str
    imports: tuple[Import, ...]
    local: tuple[str, ...] = ()
    sources: tuple[Source, ...] = ()
    requirements: ScriptRequirements | None = None
    problems: tuple[Problem, ...] = ()
    root: str = ""
    added: tuple[str, ...] = ()
    search: tuple[Site, ...] = ()

    def requests(self) -> dict[str, tuple[str, ...]]:
        """The modules to resolve on a host, with the names wanted from each."""
        wanted: dict[str, list[str]] = {}
        for item in self.imports:
            if item.module:
                names = wanted.setdefault(item.module, [])
                names.extend(name for name in item.names if name not in names)
                if item.form == "run":
                    wanted.setdefault(f"{item.module}.__main__", [])
            for gate in item.gates:
                for module in gate.asked():
                    wanted.setdefault(module, [])
        return {module: tuple(names) for module, names in sorted(wanted.items())}


# ------------------------------------------------------------------------------------------------------------- gates


class _Undecided(Exception):
    pass


def evaluate_host(text: str, host: Mapping[str, Any]) -> bool | None:
    """Decide an expression over interpreter and platform values, None when it uses anything else."""
    try:
        return bool(_value(ast.parse(text, mode="eval").body, host))
    except (_Undecided, SyntaxError, TypeError, ValueError, IndexError, AttributeError, KeyError, RecursionError, MemoryError):
        return None


def _value(node: ast.expr, host: Mapping[str, Any]) -> Any:
    key = ast.unparse(node)
    if key in host:
        found = host[key]
        return tuple(found) if isinstance(found, list) else found
    if key in ("six.PY2", "sys.flags.optimize"):
        return False
    if key == "six.PY3":
        return True
    match node:
        case ast.Constant():
            return node.value
        case ast.Tuple() | ast.List() | ast.Set():
            return tuple(_value(element, host) for element in node.elts)
        case ast.Attribute(value=inner, attr="major" | "minor" | "micro" as part):
            return _value(inner, host)[("major", "minor", "micro").index(part)]
        case ast.Subscript(value=inner, slice=ast.Slice(lower=lower, upper=upper)):
            return _value(inner, host)[
                (None if lower is None else _value(lower, host)) : (None if upper is None else _value(upper, host))
            ]
        case ast.Subscript(value=inner, slice=index):
            return _value(inner, host)[_value(index, host)]
        case ast.UnaryOp(op=ast.Not(), operand=inner):
            return not _value(inner, host)
        case ast.UnaryOp(op=ast.USub(), operand=inner):
            return -_value(inner, host)
        case ast.BinOp(op=ast.Pow(), left=left, right=right):
            base, power = _value(left, host), _value(right, host)
            if not (isinstance(base, int) and isinstance(power, int) and power >= 0 and base.bit_length() * power <= 128):
                raise _Undecided  # beyond any value of an interpreter, and powers of powers take for ever
            return base**power
        case ast.BinOp(op=ast.LShift(), left=ast.Constant(value=int(left)), right=ast.Constant(value=int(right))):
            return left << min(right, 128)
        case ast.Call(func=ast.Attribute(value=inner, attr=method), args=arguments) if method in (
            "startswith", "endswith", "lower", "upper",
        ):  # fmt: skip
            return getattr(_value(inner, host), method)(*[_value(a, host) for a in arguments])
        case ast.Call(func=ast.Name(id="bool"), args=[inner]):
            return bool(_value(inner, host))
        case ast.Compare():
            left = _value(node.left, host)
            for operator, comparator in zip(node.ops, node.comparators, strict=True):
                right = _value(comparator, host)
                if not _COMPARE[type(operator)](left, right):
                    return False
                left = right
            return True
    raise _Undecided


_COMPARE: Final[dict[type, Callable[[Any, Any], Any]]] = {
    ast.Eq: lambda a, b: a == b,
    ast.NotEq: lambda a, b: a != b,
    ast.Lt: lambda a, b: a < b,
    ast.LtE: lambda a, b: a <= b,
    ast.Gt: lambda a, b: a > b,
    ast.GtE: lambda a, b: a >= b,
    ast.In: lambda a, b: a in b,
    ast.NotIn: lambda a, b: a not in b,
    ast.Is: lambda a, b: a is b,
    ast.IsNot: lambda a, b: a is not b,
}
_HOST_ROOTS: Final = ("sys.", "os.name", "platform.", "six.PY")


# ----------------------------------------------------------------------------------------------------------- reading


def read_source(raw: bytes, file: str) -> str:
    """Decode Python source as the interpreter would: byte-order mark, PEP 263 cookie, else UTF-8.

    Raises SyntaxError (UTF-16 and binary files, wrong cookies).
    """
    if raw[:2] in (b"\xff\xfe", b"\xfe\xff"):
        raise SyntaxError(f"{file} is encoded in UTF-16, which Python does not accept")
    if b"\0" in raw:
        raise SyntaxError(f"{file} contains null bytes")
    encoding, _ = tokenize.detect_encoding(io.BytesIO(raw).readline)
    try:
        return io.IncrementalNewlineDecoder(None, translate=True).decode(raw.decode(encoding), final=True)
    except UnicodeDecodeError as error:
        raise SyntaxError(f"{file} is not valid {encoding}: {error.reason} at byte {error.start}") from error
    except (LookupError, ValueError) as error:  # codecs that make no text of bytes, such as hex
        raise SyntaxError(f"{file} is not valid {encoding}: {error}") from error


def _parse(text: str) -> ast.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return ast.parse(text)


def _written(node: ast.AST) -> str:
    """The source of a node on one line; an ellipsis for what is nested too deep to be written out again."""
    try:
        return ast.unparse(node)
    except RecursionError:
        return "…"


def _without_lazy(text: str) -> tuple[str, frozenset[int]]:
    """The text with the soft keyword of lazy imports (PEP 810) blanked, and the lines it stood on."""
    lines = text.splitlines(keepends=True)
    found = set()
    try:
        tokens = list(tokenize.generate_tokens(io.StringIO(text).readline))
    except (tokenize.TokenError, SyntaxError):
        return text, frozenset()
    start = True
    for token, following in itertools.pairwise(tokens):
        if start and token.type == tokenize.NAME and token.string == "lazy" and following.string in ("import", "from"):
            row, column = token.start
            line = lines[row - 1]
            # the indentation must stay as it is, so the statement moves left and the blanks follow it
            lines[row - 1] = line[:column] + line[following.start[1] :]
            found.add(row)
        start = token.type in (tokenize.NEWLINE, tokenize.NL, tokenize.INDENT, tokenize.DEDENT, tokenize.COMMENT) or (
            token.type == tokenize.OP and token.string == ";"
        )
        start = start or token.type == tokenize.ENCODING
    return "".join(lines), frozenset(found)


def _by_lines(text: str) -> ast.Module:
    """The import statements alone of a text this parser cannot parse whole, such as one in a newer Python.

    Statements that are not at the left margin are put into a function, so that they do not count as always reached.
    """
    top: list[ast.stmt] = []
    inner: list[ast.stmt] = []
    lines = text.splitlines()
    for number, line in enumerate(lines, 1):
        stripped = line.strip()
        if not re.match(r"(import|from)\s+[\w.]", stripped):
            continue
        statement = stripped
        if "(" in stripped and ")" not in stripped:
            for more in lines[number : number + 60]:
                statement += " " + more.split("#")[0].strip()
                if ")" in more:
                    break
        try:
            nodes = _parse(statement).body
        except SyntaxError:
            continue
        for node in nodes:
            if isinstance(node, ast.Import | ast.ImportFrom):
                node.lineno = node.end_lineno = number
                node.col_offset = len(line) - len(line.lstrip())
                (inner if line[:1].isspace() else top).append(node)
    if inner:
        function = _parse("def _unparsed(): pass").body[0]
        assert isinstance(function, ast.FunctionDef)
        function.body = inner
        top.append(function)
    return ast.Module(body=top, type_ignores=[])


@dataclass(frozen=True, slots=True)
class _Text:
    text: str
    cells: tuple[tuple[int, int], ...] = ()  # (first line of the joined text, cell number)


def _notebook(raw: bytes, file: str) -> _Text:
    """The code cells of a notebook joined, with the lines of IPython magics blanked."""
    try:
        data = json.loads(raw.decode("utf-8-sig"))
        cells = data["cells"]
        language = data.get("metadata", {}).get("language_info", {}).get("name", "python")
        code = [(i, cell) for i, cell in enumerate(cells, 1) if cell.get("cell_type") == "code"]
        texts = [(i, "".join(cell.get("source", ""))) for i, cell in code]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise SyntaxError(f"{file} is not a notebook: {error}") from error
    if language not in ("python", "ipython"):
        return _Text("")
    lines: list[str] = []
    starts: list[tuple[int, int]] = []
    for number, text in texts:
        starts.append((len(lines) + 1, number))
        if re.match(r"\s*%%(?!time|timeit|capture|prun)", text):
            continue
        for line in text.splitlines():
            stripped = line.lstrip()
            if stripped.startswith(("%", "!", "?")) or re.match(r"[\w.]+\?{1,2}$", stripped):
                line = line[: len(line) - len(stripped)] + "pass"
            elif re.match(r"\w+\s*=\s*[!%]", stripped):
                line = line[: len(line) - len(stripped)] + stripped.split("=")[0] + "= None"
            lines.append(line)
    return _Text("\n".join(lines) + "\n", tuple(starts))


# --------------------------------------------------------------------------------------------------------- one file


@dataclass(frozen=True, slots=True)
class _Context:
    optional: bool = False
    gates: tuple[Gate, ...] = ()

    def under(self, gate: Gate) -> _Context:
        return self if gate == _TRUE else _Context(self.optional, (*self.gates, gate))

    @property
    def dead(self) -> bool:
        return any(gate.kind == "const" and gate.text == "False" for gate in self.gates)


@dataclass(slots=True)
class _Found:
    """An import statement or call before local modules are followed."""

    module: str
    names: tuple[str, ...]
    node: Any
    form: Form
    context: _Context
    unresolved: Unresolved = ""
    file: Path | None = None  # a local file run by its path
    child: bool = False  # run by an interpreter of its own, which searches the file's directory first


@dataclass(slots=True)
class _Unit:
    """The module body or one function: what it imports and what it calls (`target`, node, context)."""

    name: str
    imports: list[_Found] = field(default_factory=list)
    calls: list[tuple[str, Any, _Context]] = field(default_factory=list)


class _File:
    """One parsed source file."""

    def __init__(self, path: Path, shown: str, module: str, package: str, main: bool) -> None:
        self.path = path
        self.shown = shown
        self.module = module
        self.package = package
        self.main = main
        self.text = ""
        self.cells: tuple[tuple[int, int], ...] = ()
        self.lazy: frozenset[int] = frozenset()
        self.tree = ast.Module(body=[], type_ignores=[])
        self.problem: Problem | None = None
        self.ignores: dict[int, frozenset[str]] = {}
        self.units: dict[str, _Unit] = {}
        self.aliases: dict[str, str] = {}
        self.constants: dict[str, tuple[str, ...]] = {}
        self.gates: dict[str, Gate] = {}
        self.functions: dict[str, Any] = {}
        self.classes: dict[str, ast.ClassDef] = {}
        self.types: dict[str, str] = {}
        self.decorated: dict[str, list[str]] = {}
        self._read()
        try:
            self._survey()
            _Walker(self).walk()
        except RecursionError as error:
            self._refuse(error)
            self.units.clear()
            self._survey()
            _Walker(self).walk()

    def site(self, node: Any) -> Site:
        line = int(getattr(node, "lineno", 0))
        cell: int | None = None
        for first, number in self.cells:
            if first <= line:
                cell, base = number, first
        if cell is not None:
            line = line - base + 1
        return Site(file=self.shown, line=line, column=int(getattr(node, "col_offset", 0)) + 1, cell=cell)

    def _read(self) -> None:
        try:
            raw = self.path.read_bytes()
        except OSError as error:
            self.problem = Problem(
                kind="unreadable", site=Site(file=self.shown, line=0),
                message=f"{self.shown} cannot be read: {error.strerror}",
            )  # fmt: skip
            return
        try:
            if self.path.suffix == ".ipynb":
                made = _notebook(raw, self.shown)
                self.text, self.cells = made.text, made.cells
            else:
                self.text = read_source(raw, self.shown)
            self.tree = self._tree()
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
            self._refuse(error)
        for number, content in enumerate(self.text.splitlines(), 1):
            if "envspec" in content and (match := _IGNORE.search(content)):
                codes = match.group(1)
                self.ignores[number] = frozenset(re.findall(r"[A-Z0-9]+", codes)) if codes else frozenset({"*"})

    def _refuse(self, error: Exception) -> None:
        """Go on with the import statements alone of a file that cannot be read whole."""
        message = str(getattr(error, "msg", error)) or "it is nested too deep"
        self.problem = Problem(kind="syntax", site=Site(file=self.shown, line=getattr(error, "lineno", None) or 0), message=message)
        self.tree = _by_lines(self.text)

    def _tree(self) -> ast.Module:
        try:
            return _parse(self.text)
        except SyntaxError:
            stripped, self.lazy = _without_lazy(self.text)
            if not self.lazy:
                raise
            return _parse(stripped)

    def _survey(self) -> None:
        """Names that stand for modules, constants, functions and classes, wherever in the file they are bound."""
        for node in ast.walk(self.tree):
            match node:
                case ast.Import():
                    for alias in node.names:
                        self.aliases[alias.asname or alias.name.split(".")[0]] = (
                            alias.name if alias.asname else alias.name.split(".")[0]
                        )
                case ast.ImportFrom():
                    base = self.absolute(node)
                    for alias in node.names:
                        if base and alias.name != "*":
                            self.aliases[alias.asname or alias.name] = f"{base}.{alias.name}"
                case ast.Assign(targets=[ast.Name(id=name)], value=value):
                    strings = _strings(value)
                    if strings is not None:
                        self.constants[name] = strings
                    if isinstance(value, ast.Call) and isinstance(value.func, ast.Name):
                        self.types.setdefault(name, value.func.id)
                case ast.For(target=ast.Name(id=name), iter=value):
                    strings = _strings(value)
                    if strings is None and isinstance(value, ast.Name):
                        strings = self.constants.get(value.id)
                    if strings is not None:
                        self.constants[name] = strings
        self._collect()

    def _collect(self) -> None:
        """The functions and classes of the file, in the order in which they stand, by qualified name."""
        stack: list[tuple[ast.AST, str]] = [(node, "") for node in reversed(self.tree.body)]
        while stack:
            node, prefix = stack.pop()
            inner: list[ast.AST] = []
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                self.functions[prefix + node.name] = node
                for decorator in node.decorator_list:
                    call = decorator.func if isinstance(decorator, ast.Call) else decorator
                    if isinstance(call, ast.Attribute) and isinstance(call.value, ast.Name):
                        self.decorated.setdefault(call.value.id, []).append(prefix + node.name)
                inner, prefix = [*node.body], prefix + node.name + "."
            elif isinstance(node, ast.ClassDef):
                self.classes[prefix + node.name] = node
                inner, prefix = [*node.body], prefix + node.name + "."
            else:
                for name in ("body", "orelse", "finalbody", "handlers", "cases"):
                    inner += getattr(node, name, [])
            stack.extend((each, prefix) for each in reversed(inner))

    def absolute(self, node: ast.ImportFrom) -> str | None:
        """The absolute module of a from-import, None for a relative one without a package to be relative to."""
        if not node.level:
            return node.module or ""
        return _resolve(self.package, node.level, node.module or "")

    def canonical(self, node: ast.expr) -> str:
        """The dotted name an expression stands for, with the file's import aliases undone; empty for others."""
        attributes: list[str] = []
        while isinstance(node, ast.Attribute):
            attributes.append(node.attr)
            node = node.value
        if not isinstance(node, ast.Name):
            return ""
        return ".".join([self.aliases.get(node.id, node.id), *reversed(attributes)])


def _resolve(package: str, level: int, name: str) -> str | None:
    parts = package.split(".") if package else []
    if level > len(parts):
        return None
    base = ".".join(parts[: len(parts) - level + 1])
    return f"{base}.{name}" if name else base


def _strings(node: ast.expr) -> tuple[str, ...] | None:
    """The strings of a literal, or of a literal tuple or list of strings."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return (node.value,)
    if isinstance(node, ast.Tuple | ast.List | ast.Set) and node.elts:
        found = [e.value for e in node.elts if isinstance(e, ast.Constant) and isinstance(e.value, str)]
        return tuple(found) if len(found) == len(node.elts) else None
    return None


def _leaves(body: Sequence[ast.stmt]) -> Literal["", "leaves", "fails"]:
    """Whether a block ends by leaving its function or loop, or by failing."""
    for node in body:
        if isinstance(node, ast.Raise):
            return "fails"
        if isinstance(node, ast.Return | ast.Continue | ast.Break):
            return "leaves"
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
            called = _written(node.value.func)
            if called in ("sys.exit", "exit", "quit", "os._exit", "os.abort"):
                return "fails"
            if called in ("pytest.skip", "self.skipTest"):
                return "leaves"
    return ""


class _Walker:
    """Collects the imports and calls of one file, with what each stands under."""

    def __init__(self, file: _File) -> None:
        self.file = file
        self.unit = _Unit("")
        self.prefix = ""
        self.asking: list[str] = []  # helper functions whose answer is being worked out

    def walk(self) -> None:
        self.file.units[""] = self.unit
        self.block(self.file.tree.body, _Context())

    # -- statements

    def block(self, body: Sequence[ast.stmt], context: _Context) -> None:
        for node in body:
            context = self.statement(node, context)

    def statement(self, node: ast.stmt, context: _Context) -> _Context:
        """Handle one statement; returns the context of those after it."""
        match node:
            case ast.Import():
                for alias in node.names:
                    self.found(alias.name, (), node, "import", context)
            case ast.ImportFrom():
                self.from_import(node, context)
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                self.function(node, context)
            case ast.ClassDef():
                for expression in [*node.bases, *node.decorator_list, *(k.value for k in node.keywords)]:
                    self.expression(expression, context)
                outer, self.prefix = self.prefix, self.prefix + node.name + "."
                self.block(node.body, context)
                self.prefix = outer
            case ast.If():
                return self.condition(node, context)
            case ast.Try():
                self.attempt(node, context)
            case ast.With() | ast.AsyncWith():
                inner = context
                for item in node.items:
                    self.expression(item.context_expr, context)
                    if self.swallows(item.context_expr):
                        inner = _Context(True, context.gates)
                self.block(node.body, inner)
            case ast.For() | ast.AsyncFor() | ast.While():
                self.expression(node.test if isinstance(node, ast.While) else node.iter, context)
                self.block(node.body, context)
                self.block(node.orelse, context)
            case ast.Match():
                self.expression(node.subject, context)
                for case in node.cases:
                    text = f"case {_written(case.pattern)}"
                    self.block(case.body, context.under(Gate(kind="unknown", text=text)))
            case ast.Assign(targets=[ast.Name(id=name)], value=value):
                self.expression(value, context)
                gate = self.gate(value)
                if gate.kind in ("present", "not", "and", "or", "host") and not self.unit.name and _is_small(gate):
                    self.file.gates[name] = gate
            case _ if type(node).__name__ == "TryStar":  # since Python 3.11, with the fields of Try
                self.attempt(node, context)
            case _:
                for child in ast.iter_child_nodes(node):
                    if isinstance(child, ast.expr):
                        self.expression(child, context)
        return context

    def function(self, node: ast.FunctionDef | ast.AsyncFunctionDef, context: _Context) -> None:
        arguments = node.args
        for expression in [*node.decorator_list, *arguments.defaults, *arguments.kw_defaults]:
            if expression is not None:
                self.expression(expression, context)
        outer_unit, outer_prefix = self.unit, self.prefix
        name = self.prefix + node.name
        self.unit = self.file.units.setdefault(name, _Unit(name))
        self.prefix = name + "."
        self.block(node.body, _Context(False, context.gates))
        self.unit, self.prefix = outer_unit, outer_prefix

    def from_import(self, node: ast.ImportFrom, context: _Context) -> None:
        module = self.file.absolute(node)
        names = tuple(alias.name for alias in node.names)
        if module == "__future__":
            return
        form: Form = "star" if names == ("*",) else "from"
        if module is None:
            why: Unresolved = "above" if self.file.package else "relative"
            self.unit.imports.append(_Found("", names, node, form, context, why))
        else:
            self.found(module, names, node, form, context)

    def found(self, module: str, names: tuple[str, ...], node: Any, form: Form, context: _Context) -> None:
        if getattr(node, "lineno", 0) in self.file.lazy:
            form = "lazy"
        if not context.dead:
            self.unit.imports.append(_Found(module, names, node, form, context))

    def condition(self, node: ast.If, context: _Context) -> _Context:
        self.expression(node.test, context)
        gate = self.gate(node.test)
        self.block(node.body, context.under(gate))
        otherwise_under, rest = context.under(_not(gate)), node.orelse
        while len(rest) == 1 and isinstance(link := rest[0], ast.If):  # elif, of which there may be hundreds
            self.expression(link.test, otherwise_under)
            asked = self.gate(link.test)
            self.block(link.body, otherwise_under.under(asked))
            otherwise_under, rest = otherwise_under.under(_not(asked)), link.orelse
        self.block(rest, otherwise_under)
        body, otherwise = _leaves(node.body), _leaves(node.orelse)
        presence = any(True for _ in gate.asked())
        if body == "leaves" or (body == "fails" and not presence):
            context = context.under(_not(gate))
        elif node.orelse and (otherwise == "leaves" or (otherwise == "fails" and not presence)):
            context = context.under(gate)
        return context

    def attempt(self, node: Any, context: _Context) -> None:
        """`try`: optional when a handler catches a failed import and does not pass the failure on."""
        catching = [h for h in node.handlers if self.catches_import(h.type)]
        optional = bool(catching) and _leaves(catching[0].body) != "fails"
        before = len(self.unit.imports)
        self.block(node.body, _Context(context.optional or optional, context.gates))
        modules = tuple(
            dict.fromkeys(f.module for f in self.unit.imports[before:] if f.module and f.context.gates == context.gates)
        )
        gate = (
            Gate(kind="present", text=" and ".join(f"{m} can be imported" for m in modules), modules=modules)
            if modules and catching
            else Gate(kind="unknown", text="the try block fails")
        )
        for handler in node.handlers:
            failing = _not(gate) if catching and handler is catching[0] else Gate(kind="unknown", text="an exception")
            self.block(handler.body, context.under(failing))
            if modules and catching and handler is catching[0]:
                self.flags(node, handler, gate)
        self.block(node.orelse, context.under(gate) if modules and catching else context)
        self.block(node.finalbody, context)

    def flags(self, node: Any, handler: ast.ExceptHandler, gate: Gate) -> None:
        """Names set to False or None by the handler tell whether the import worked."""
        if self.unit.name:
            return
        bound = {a.asname or a.name.split(".")[0] for s in node.body if isinstance(s, ast.Import) for a in s.names}
        bound |= {a.asname or a.name for s in node.body if isinstance(s, ast.ImportFrom) for a in s.names}
        for inner in handler.body:
            if isinstance(inner, ast.Assign) and isinstance(inner.value, ast.Constant):
                for target in inner.targets:
                    if isinstance(target, ast.Name):
                        if inner.value.value in (False, None):
                            self.file.gates[target.id] = gate
                        elif inner.value.value is True and target.id not in bound:
                            self.file.gates[target.id] = _not(gate)

    def catches_import(self, node: ast.expr | None) -> bool:
        if node is None:
            return True
        if isinstance(node, ast.Tuple):
            return any(self.catches_import(element) for element in node.elts)
        last = self.file.canonical(node).rpartition(".")[2]
        return last in ("ImportError", "ModuleNotFoundError", "Exception", "BaseException") or "ImportError" in last

    def swallows(self, node: ast.expr) -> bool:
        if not isinstance(node, ast.Call):
            return False
        name = self.file.canonical(node.func)
        if name.rpartition(".")[2] == "suppress" or name == "pytest.raises":
            return any(self.catches_import(argument) for argument in node.args)
        return "try_import" in name or "optional_import" in name

    # -- conditions

    def gate(self, node: ast.expr) -> Gate:
        """The condition that a test stands for; unknown for one nested too deep to follow."""
        try:
            return self._gate(node)
        except RecursionError:
            return Gate(kind="unknown", text="…")

    def _gate(self, node: ast.expr) -> Gate:
        text = ast.unparse(node)
        match node:
            case ast.Constant(value=value):
                return _TRUE if value else _FALSE
            case ast.UnaryOp(op=ast.Not(), operand=inner):
                return _not(self.gate(inner))
            case ast.BoolOp(op=operator, values=values):
                parts = tuple(self.gate(value) for value in values)
                return Gate(kind="and" if isinstance(operator, ast.And) else "or", text=text, parts=parts)
            case ast.Compare(left=left, ops=[ast.Is() | ast.IsNot() as operator], comparators=[ast.Constant(value=None)]):
                asked = self.gate(left)
                if asked.kind in ("present", "not"):
                    return _not(asked) if isinstance(operator, ast.Is) else asked
                return Gate(kind="unknown", text=text)
            case ast.Compare(left=ast.Name(id="__name__"), ops=[ast.Eq() | ast.NotEq() as op], comparators=[other]):
                if isinstance(other, ast.Constant) and other.value == "__main__":
                    return _TRUE if self.file.main is isinstance(op, ast.Eq) else _FALSE
        name = self.file.canonical(node) if isinstance(node, ast.Name | ast.Attribute) else ""
        last = name.rpartition(".")[2]
        if last in ("TYPE_CHECKING", "MYPY", "MYPY_CHECK_RUNNING"):
            return _FALSE
        if isinstance(node, ast.Name) and node.id in self.file.gates:
            return self.file.gates[node.id]
        if isinstance(node, ast.Call):
            called = self.file.canonical(node.func)
            if called in ("importlib.util.find_spec", "pkgutil.find_loader", "importlib.find_loader") and node.args:
                strings = self.literal(node.args[0])
                if strings:
                    return Gate(kind="present", text=text, modules=strings)
            if called == "bool" and len(node.args) == 1:
                return self.gate(node.args[0])
            helper = self.file.functions.get(called)
            returned = helper.body[-1] if helper is not None and not helper.args.args else None
            if isinstance(returned, ast.Return) and returned.value is not None and called not in self.asking:
                self.asking.append(called)
                asked = self.gate(returned.value)
                self.asking.pop()
                if asked.kind in ("present", "not", "host"):
                    return asked
            if _GUARD.match(called.rpartition(".")[2]):
                return Gate(kind="guard", text=text)
        if last and _GUARD.match(last):
            return Gate(kind="guard", text=text)
        canonical = ast.unparse(_Undo(self.file).visit(ast.parse(text, mode="eval")))
        if any(root in canonical for root in _HOST_ROOTS):
            return Gate(kind="host", text=canonical)
        return Gate(kind="unknown", text=text)

    # -- expressions

    def expression(self, node: ast.expr, context: _Context) -> None:
        """Find dynamic imports and calls in an expression; the body of a lambda is a function that nothing calls."""
        outer = self.unit
        stack: list[tuple[ast.AST, _Unit]] = [(node, outer)]
        while stack:
            item, self.unit = stack.pop()
            if isinstance(item, ast.Lambda):
                name = f"{self.prefix}<lambda>"
                inner = self.file.units.setdefault(name, _Unit(name))
                stack.append((item.body, inner))
                stack.extend((each, self.unit) for each in (*item.args.defaults, *item.args.kw_defaults) if each is not None)
                continue
            if isinstance(item, ast.Call):
                self.call(item, context)
            stack.extend((each, self.unit) for each in ast.iter_child_nodes(item))
        self.unit = outer

    def literal(self, node: ast.expr | None) -> tuple[str, ...]:
        """The strings an argument can be: a literal, a constant of the file, a loop variable over literals."""
        if node is None:
            return ()
        if isinstance(node, ast.Name):
            return self.file.constants.get(node.id, ())
        if isinstance(node, ast.JoinedStr):
            parts: list[tuple[str, ...]] = []
            for piece in node.values:
                inner = piece.value if isinstance(piece, ast.FormattedValue) else piece
                parts.append(self.literal(inner) if isinstance(inner, ast.expr) else ())
            return tuple("".join(choice) for choice in itertools.product(*parts)) if all(parts) else ()
        return _strings(node) or () if isinstance(node, ast.Constant) else ()

    def call(self, node: ast.Call, context: _Context) -> None:
        if context.dead:
            return
        name = self.file.canonical(node.func)
        keywords = {k.arg: k.value for k in node.keywords if k.arg}
        first = node.args[0] if node.args else keywords.get("name")
        if name in ("importlib.import_module", "__import__", "importlib.__import__"):
            self.dynamic(node, first, keywords.get("package") or (node.args[1] if len(node.args) > 1 else None), context)
        elif name == "pytest.importorskip":
            for module in self.literal(first):
                self.found(module, (), node, "dynamic", _Context(True, context.gates))
        elif name == "pkgutil.resolve_name":
            for text in self.literal(first):
                module, _, attribute = text.partition(":")
                self.found(module, tuple(attribute.split(".")[:1]) if attribute else (), node, "dynamic", context)
        elif name == "runpy.run_module":
            for module in self.literal(first or keywords.get("mod_name")):
                self.found(module, (), node, "run", context)
        elif name == "runpy.run_path":
            for text in self.literal(first or keywords.get("path_name")):
                found = _Found("", (), node, "run", context)
                found.file = self.file.path.parent / text
                self.unit.imports.append(found)
        elif name in _CHILDREN:
            self.child(node, first or keywords.get("args"), context)
        elif name in _LIBRARIES:
            if self.literal(first):
                self.unit.imports.append(_Found("", (), node, "dynamic", context, "library"))
        elif name in _PLUGINS:
            if ".load()" in self.file.text:
                self.unit.imports.append(_Found("", (), node, "dynamic", context, "plugins"))
        else:
            self.reference(node, context)

    def child(self, node: ast.Call, command: ast.expr | None, context: _Context) -> None:
        """`subprocess.run([sys.executable, "child.py"])` and the like: a script or module this interpreter is to run."""
        if not isinstance(command, ast.List | ast.Tuple) or len(command.elts) < 2 or self.file.canonical(command.elts[0]) != "sys.executable":
            return
        words = command.elts[1:]
        for number, word in enumerate(words):
            text = self.literal(word)
            if text == ("-m",):
                for module in self.literal(words[number + 1]) if number + 1 < len(words) else ():
                    self.found(module, (), node, "run", context)
                return
            if not (len(text) == 1 and re.fullmatch(r"-[bBdEiIOqsSuvx]+", text[0])):
                path = Paths(self.file.tree, self.file.canonical, self.file.path, self.file.path.parent).of(word)
                if path is not None and path.endswith(".py"):
                    self.unit.imports.append(_Found("", (), node, "run", context, file=Path(path), child=True))
                return

    def dynamic(self, node: ast.Call, first: ast.expr | None, package: ast.expr | None, context: _Context) -> None:
        modules = self.literal(first)
        if not modules:
            found = _Found("", (), node, "dynamic", context, "computed")
            self.unit.imports.append(found)
        for text in modules:
            if not text.startswith("."):
                self.found(text, (), node, "dynamic", context)
                continue
            anchors = self.literal(package)
            if isinstance(package, ast.Name) and package.id in ("__package__", "__name__"):
                anchors = (self.file.package if package.id == "__package__" else self.file.module,)
            level = len(text) - len(text.lstrip("."))
            for anchor in anchors:
                module = _resolve(anchor, level, text[level:])
                if module:
                    self.found(module, (), node, "dynamic", context)

    def reference(self, node: ast.Call, context: _Context) -> None:
        """Note which function a call enters, and functions handed to something that runs them."""
        target = self.target(node.func)
        if target:
            self.unit.calls.append((target, node, context))
        last = node.func.id if isinstance(node.func, ast.Name) else node.func.attr if isinstance(node.func, ast.Attribute) else ""
        if last in _RUNNERS or last in ("submit", "apply_async"):
            for argument in [*node.args, *(k.value for k in node.keywords if k.arg in ("target", "main", "fn", "args"))]:
                handed = self.target(argument) if isinstance(argument, ast.Name | ast.Attribute) else ""
                if handed:
                    self.unit.calls.append((handed, node, context))
        root = node.func
        while isinstance(root, ast.Attribute):
            root = root.value
        if isinstance(root, ast.Name):
            for handed in self.file.decorated.get(root.id, ()):
                if not target:
                    self.unit.calls.append((handed, node, context))

    def target(self, node: ast.expr) -> str:
        """`qualified name` of a function or class of this file, or `module:qualified name` for an imported one."""
        if isinstance(node, ast.Name):
            scope = self.prefix
            while True:
                if scope + node.id in self.file.functions or scope + node.id in self.file.classes:
                    return scope + node.id
                if not scope:
                    break
                scope = scope.rstrip(".").rpartition(".")[0]
                scope = scope + "." if scope else ""
            dotted = self.file.aliases.get(node.id, "")
            module, _, last = dotted.rpartition(".")
            return f"{module}:{last}" if module else ""
        if not isinstance(node, ast.Attribute):
            return ""
        owner = node.value
        if isinstance(owner, ast.Call):
            inner = self.target(owner.func)
            return f"{inner}.{node.attr}" if inner else ""
        if isinstance(owner, ast.Name):
            if owner.id in ("self", "cls"):
                parts = self.unit.name.split(".")
                for i in range(len(parts) - 1, 0, -1):
                    name = ".".join(parts[:i])
                    if name in self.file.classes:
                        return f"{name}.{node.attr}"
                return ""
            if owner.id in self.file.types:
                inner = self.target(ast.Name(id=self.file.types[owner.id], ctx=ast.Load()))
                return f"{inner}.{node.attr}" if inner else ""
            if owner.id in self.file.classes:
                return f"{owner.id}.{node.attr}"
        dotted = self.file.canonical(owner)
        return f"{dotted}:{node.attr}" if dotted and (dotted.split(".")[0] != "self") else ""


class _Undo(ast.NodeTransformer):
    """Replaces the file's import aliases by what they stand for."""

    def __init__(self, file: _File) -> None:
        self.file = file

    def visit_Name(self, node: ast.Name) -> ast.expr:
        dotted = self.file.aliases.get(node.id)
        if dotted is None or dotted == node.id:
            return node
        return ast.parse(dotted, mode="eval").body


# ------------------------------------------------------------------------------------------------- following locally


class _Tree:
    """The local files reachable from an entry, found as the interpreter would find them in `roots`.

    The roots grow by the directories that the files put on the search path.
    """

    def __init__(self, roots: Sequence[Path], base: Path) -> None:
        self.roots = list(roots)
        self.hiding = list(roots)  # those searched before what is installed
        self.base = base
        self.files: dict[str, _File] = {}
        self.stubs: set[str] = set()
        self.search: list[Site] = []
        self.located: dict[str, Path | None] = {}
        self.binaries: dict[str, list[str]] = {}

    def shown(self, path: Path) -> str:
        try:
            return path.resolve().relative_to(self.base.resolve()).as_posix()
        except (ValueError, OSError, RuntimeError):  # elsewhere, or a link to itself
            return str(path)

    def adopt(self, file: _File) -> _File:
        """Take over what a file does to the search for modules."""
        if re.search(r"\b(sys|site|__import__)\b", file.text):
            made = changes(file.tree, file.canonical, file.path, self.base)
            self.stubs |= made.stubs
            self.search += [file.site(node) for node in made.opaque]
            self.hiding += [path for path in made.first if path not in self.hiding]
            new = [path for path in (*made.first, *made.last) if path not in self.roots]
            if new:
                self.roots += new
                self.located.clear()
        return file

    def locate(self, module: str) -> Path | None:
        """The local file of a module: `a/b/__init__.py` or `a/b.py` under a root, their compiled forms; a directory for a
        namespace."""
        if module not in self.located:
            self.located[module] = self._locate(module.split("."))
        return self.located[module]

    def _locate(self, parts: Sequence[str]) -> Path | None:
        if not all(parts) or any(os.sep in part for part in parts):
            return None
        bases = [os.path.join(root, *parts) for root in self.roots]
        for base in bases:
            if os.path.isfile(source := os.path.join(base, "__init__.py")) or os.path.isfile(source := f"{base}.py"):
                return Path(source)
            compiled = self._compiled(base, "__init__") or self._compiled(os.path.dirname(base), parts[-1])
            if compiled is not None:
                return compiled
        return next((Path(base) for base in bases if os.path.isdir(base)), None)

    def _compiled(self, directory: str, name: str) -> Path | None:
        """The extension module (for whichever interpreter) or the bytecode of a module without a source."""
        if directory not in self.binaries:
            try:
                self.binaries[directory] = sorted(each for each in os.listdir(directory) if each.endswith(_BINARIES))
            except (OSError, ValueError):
                self.binaries[directory] = []
        for each in self.binaries[directory]:
            if each.partition(".")[0] == name and os.path.isfile(os.path.join(directory, each)):
                return Path(directory, each)
        return None

    def is_local(self, module: str) -> bool:
        """Whether the top-level name of a module is found beside the script before anything installed."""
        top = self.locate(module.split(".")[0])
        if top is None:
            return False
        if top.is_dir():  # a namespace portion: an installed package of the name would win
            found = self.locate(module)
            return found is not None and found.is_file()
        return True

    def is_namespace(self, module: str, names: Sequence[str]) -> bool:
        """Whether a module is a plain directory here, and the names wanted from it are modules in it."""
        found = self.locate(module) if module else None
        return found is not None and found.is_dir() and all(self.locate(f"{module}.{name}") for name in names if name != "*")

    def load(self, module: str) -> _File | None:
        """The parsed file of a local module; None for a directory or a compiled one."""
        if module in self.files:
            return self.files[module]
        path = self.locate(module)
        if path is None or path.suffix != ".py":
            return None
        package = module if path.name == "__init__.py" else module.rpartition(".")[0]
        file = _File(path, self.shown(path), module, package, main=False)
        self.files[module] = file
        return self.adopt(file)

    def is_root(self, directory: Path) -> bool:
        return any(os.path.realpath(directory) == os.path.realpath(root) for root in self.roots)

    def run(self, path: Path) -> _File:
        """The parsed file of a script that is run by its path."""
        key = f"<{path}>"
        if key not in self.files:
            self.files[key] = _File(path, self.shown(path), "__main__", "", main=True)
            self.adopt(self.files[key])
        return self.files[key]


def _follow(entry: _File, tree: _Tree, shown: str) -> ScriptImports:
    """Walk from the entry through local imports and calls; what is reached most surely wins."""
    counter = itertools.count()
    best: dict[tuple[str, str], tuple[_Context, tuple[Site, ...], bool]] = {}
    files: dict[str, _File] = {entry.shown: tree.adopt(entry)}
    queue: list[tuple[tuple[int, int, int], int, _File, str, _Context, tuple[Site, ...], bool]] = []

    def push(file: _File, unit: str, context: _Context, path: tuple[Site, ...], called: bool) -> None:
        weight = (int(context.optional), len(context.gates), len(path))
        heapq.heappush(queue, (weight, next(counter), file, unit, context, path, called))

    def joined(outer: _Context, inner: _Context) -> _Context:
        gates = tuple(dict.fromkeys((*outer.gates, *inner.gates)))
        return _Context(outer.optional or inner.optional, gates)

    def enter(file: _File, target: str, context: _Context, path: tuple[Site, ...]) -> None:
        module, _, name = target.rpartition(":")
        if module:
            other = tree.load(module) if tree.is_local(module) else None
            if other is None:
                owner, _, last = module.rpartition(".")  # module.Class:method
                other = tree.load(owner) if owner and tree.is_local(owner) else None
                name = f"{last}.{name}"
            if other is None:
                return
            file = other
        for found in _entered(file, name):
            push(file, found, context, path, True)

    push(entry, "", _Context(), (), False)
    while queue:
        _, _, file, unit_name, context, path, called = heapq.heappop(queue)
        key = (file.shown, unit_name)
        if key in best:
            continue
        best[key] = (context, path, called)
        files[file.shown] = file
        unit = file.units.get(unit_name)
        if unit is None:
            continue
        for target, node, inner in unit.calls:
            enter(file, target, joined(context, inner), (*path, file.site(node)))
        for found in unit.imports:
            reached = joined(context, found.context)
            for other in _local_files(found, file, tree):
                push(other, "", reached, (*path, file.site(found.node)), called or bool(unit_name))
    for file in list(files.values()):  # functions nothing was seen to call, and local modules only they import
        pending = [name for name in file.units if (file.shown, name) not in best]
        for name in pending:
            best[(file.shown, name)] = (_Context(), (), False)
            for found in file.units[name].imports:
                for other in _local_files(found, file, tree):
                    if (other.shown, "") not in best:
                        files.setdefault(other.shown, other)
    imports: list[Import] = []
    problems: list[Problem] = []
    for file in files.values():
        if file.problem is not None:
            problems.append(file.problem)
        for name, unit in file.units.items():
            context, path, called = best.get((file.shown, name), (_Context(), (), False))
            seen = (file.shown, name) in best and (bool(path) or not name or called)
            reach: Reach = "module" if not name and not called else ("called" if seen else "function")
            if not name and (file.shown, "") not in best:
                reach = "function"
            for found in unit.imports:
                made = _import(found, file, joined(context, found.context), path, reach, name, tree, problems)
                imports.extend(made)
    imports.sort(key=lambda i: (i.site.file != entry.shown, i.site.file, i.site.cell or 0, i.site.line, i.module))
    requirements, problem = _inline(entry)
    if problem is not None:
        problems.append(problem)
    local = _beside(tree.hiding)
    return ScriptImports(
        script=shown,
        imports=tuple(imports),
        local=tuple(sorted(local)),
        sources=tuple(Source(file=f.shown, text=f.text) for f in files.values() if f.text and not f.cells),
        requirements=requirements,
        problems=tuple(dict.fromkeys(problems)),
        root=str(tree.roots[0].resolve()),
        added=tuple(sorted(tree.stubs | (_beside(tree.roots) - local))),
        search=tuple(dict.fromkeys(tree.search)),
    )


def _entered(file: _File, name: str) -> Iterator[str]:
    """The units that calling a name of a file runs: a function, or the constructor of a class."""
    if name in file.functions:
        yield name
        return
    if name in file.classes:
        for method in ("__init__", "__new__", "__post_init__", "__call__"):
            yield from _method(file, name, method, 0)
        return
    owner, _, last = name.rpartition(".")
    if owner in file.classes:
        yield from _method(file, owner, last, 0)


def _method(file: _File, owner: str, method: str, depth: int) -> Iterator[str]:
    if f"{owner}.{method}" in file.functions:
        yield f"{owner}.{method}"
    elif depth < 8 and owner in file.classes:
        for base in file.classes[owner].bases:
            if isinstance(base, ast.Name) and base.id in file.classes:
                yield from _method(file, base.id, method, depth + 1)


def _local_files(found: _Found, file: _File, tree: _Tree) -> Iterator[_File]:
    """The local files whose bodies an import runs: the packages above it, the module, submodules among its names."""
    if found.file is not None:
        # a child elsewhere finds other modules beside it than this script does
        if os.path.isfile(found.file) and not (found.child and not tree.is_root(found.file.parent)):
            yield tree.run(found.file)
        return
    if not found.module or not (tree.is_local(found.module) or tree.is_namespace(found.module, found.names)):
        return
    parts = found.module.split(".")
    wanted = [".".join(parts[: i + 1]) for i in range(len(parts))]
    wanted += [f"{found.module}.{name}" for name in found.names if name != "*"]
    if found.form == "run":
        wanted.append(f"{found.module}.__main__")
    for module in wanted:
        other = tree.load(module)
        if other is not None and other is not file:
            yield other


def _import(
    found: _Found,
    file: _File,
    context: _Context,
    path: tuple[Site, ...],
    reach: Reach,
    function: str,
    tree: _Tree,
    problems: list[Problem],
) -> Iterator[Import]:
    """The Import for a statement; imports of local modules are checked here and give none."""
    if context.dead or found.file is not None:
        return
    site = file.site(found.node)
    if found.module and tree.is_local(found.module):
        problem = _local_problem(found, site, tree)
        if problem is not None and not context.optional and not context.gates:
            problems.append(problem)
        return
    line = int(getattr(found.node, "lineno", 0))
    end = int(getattr(found.node, "end_lineno", None) or line)
    ignored = frozenset().union(*(file.ignores.get(n, frozenset()) for n in range(line, end + 1)))
    yield Import(
        module=found.module,
        names=tuple(n for n in found.names),
        site=site,
        form=found.form,
        reach=reach,
        function=function or None,
        path=path,
        optional=context.optional,
        beside=tree.is_namespace(found.module, found.names),
        gates=context.gates,
        ignored=ignored,
        text=_written(found.node),
        unresolved=found.unresolved,
    )


_OPENS: Final = re.compile(
    r"__path__\s*(=[^=]|\+=|\.(append|insert|extend)\b|\[)|\b(extend_path|declare_namespace|meta_path)\b"
    r"|\bmodules\s*(\[[^\]]*\]\s*=[^=]|\.(setdefault|update)\b)"
)
"""What a package's own code may bring modules in by that are not among its files, or other names than it defines."""


def _local_problem(found: _Found, site: Site, tree: _Tree) -> Problem | None:
    """What can be seen to fail in an import of a local module."""
    parts = found.module.split(".")
    for i in range(1, len(parts) + 1):
        module = ".".join(parts[:i])
        located = tree.locate(module)
        if located is not None and located.suffix in _BINARIES:
            return None  # a compiled package may bring its submodules inside
        if located is None:
            above = tree.load(".".join(parts[: i - 1])) if i > 1 else None
            if above is not None and _OPENS.search(above.text):
                return None
            return Problem(
                kind="submodule", site=site, subject=module, message=f"{module} is not among the script's own modules"
            )
    file = tree.load(found.module)
    if file is None or file.problem is not None:
        return None
    source = file.text
    if "__getattr__" in source or _OPENS.search(source) or re.search(r"\b(globals|vars|locals|exec|setattr)\s*\(|import \*", source):
        return None
    bound = _bound(file.tree)
    for name in found.names:
        if name != "*" and name not in bound and tree.locate(f"{found.module}.{name}") is None:
            return Problem(
                kind="name", site=site, subject=f"{found.module}:{name}",
                message=f"{file.shown} does not define {name}",
            )  # fmt: skip
    return None


def _bound(tree: ast.Module) -> set[str]:
    """Names that may be bound at module level, global statements of functions included."""
    names = {"__name__", "__file__", "__doc__", "__package__", "__spec__", "__path__", "__loader__"}
    stack: list[tuple[ast.AST, bool]] = [(node, True) for node in tree.body]
    while stack:
        node, top = stack.pop()
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            if top:
                names.add(node.name)
            stack.extend((child, False) for child in ast.iter_child_nodes(node))
            continue
        if isinstance(node, ast.Global):
            names.update(node.names)
        elif top and isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
        elif top and isinstance(node, ast.Import | ast.ImportFrom):
            names.update(alias.asname or alias.name.split(".")[0] for alias in node.names)
        elif top and isinstance(node, ast.MatchAs | ast.MatchStar) and node.name:
            names.add(node.name)
        stack.extend((child, top) for child in ast.iter_child_nodes(node))
    return names


def _beside(roots: Sequence[Path]) -> set[str]:
    """Top-level module names that directories provide; plain directories in them are namespaces and lose."""
    tree = _Tree(roots, Path())
    names: set[str] = set()
    for root in roots:
        try:
            entries = os.listdir(root)
        except OSError:
            continue
        stems = {each.partition(".")[0] for each in entries if each.endswith((".py", *_BINARIES)) or "." not in each}
        for name in stems:
            found = tree.locate(name) if name.isidentifier() and name != "__init__" else None
            if found is not None and not found.is_dir():
                names.add(name)
    return names


def _inline(file: _File) -> tuple[ScriptRequirements | None, Problem | None]:
    """The script's PEP 723 block; for a damaged one, the problem instead."""
    match = _PEP723.search(file.text)
    if match is None:
        return None, None
    body = "".join(line[2:] if line.startswith("# ") else line[1:] for line in match["body"].splitlines(keepends=True))
    site = Site(file=file.shown, line=file.text[: match.start()].count("\n") + 1)
    try:
        data = tomllib.loads(body)
    except (ValueError, RecursionError) as error:
        message = f"{site}: the script header is not valid TOML: {str(error).rstrip('.')}"
        return None, Problem(kind="unreadable", site=site, message=message)
    dependencies = data.get("dependencies", [])
    python = data.get("requires-python")
    if not isinstance(dependencies, list) or not all(isinstance(d, str) for d in dependencies):
        message = f"{site}: `dependencies` in the script header must be a list of strings"
        return None, Problem(kind="unreadable", site=site, message=message)
    made = ScriptRequirements(
        site=site,
        requires_python=python if isinstance(python, str) else None,
        dependencies=tuple(dependencies),
    )
    return made, None


# -------------------------------------------------------------------------------------------------------- entry points


def _here() -> Path:
    try:
        return Path.cwd()
    except FileNotFoundError as error:
        raise UsageError("the working directory is no longer there: change to another.") from error


def parse_script(path: Path, *, base: Path | None = None) -> ScriptImports:
    """What `python PATH` imports (also a notebook, or a directory with `__main__.py`).

    `base` is the directory file names are shown relative to (the working directory by default). Raises UsageError
    when the file is not there.
    """
    base = base or _here()
    if path.is_dir():
        if (path / "__main__.py").is_file():
            path = path / "__main__.py"
        else:
            raise UsageError(f"{path} is a directory without __main__.py: name a script in it.")
    if not path.is_file():
        raise UsageError(f"There is no script {path}: check the path.")
    tree = _Tree([path.parent], base)
    entry = _File(path, tree.shown(path), "__main__", "", main=True)
    return _follow(entry, tree, entry.shown)


def parse_module(name: str, *, base: Path | None = None) -> ScriptImports:
    """What `python -m NAME` imports when run in `base`: a local module is followed, an installed one is named."""
    base = base or _here()
    if not all(part.isidentifier() for part in name.split(".")):
        raise UsageError(f"{name!r} is not a module name.")
    tree = _Tree([base], base)
    if tree.is_local(name):
        path = tree.locate(name)
        package = name.rpartition(".")[0]
        if path is not None and (path.is_dir() or path.name == "__init__.py"):
            package = name
            main = tree.locate(f"{name}.__main__")
            if main is None or main.is_dir():  # or compiled, of which nothing can be read
                raise UsageError(f"{name} is a package without __main__.py: `python -m {name}` cannot run it.")
            path = main
        if path is not None and path.suffix == ".py":
            entry = _File(path, tree.shown(path), "__main__", package, main=True)
            parents = [".".join(name.split(".")[: i + 1]) for i in range(name.count(".") + 1)]
            for parent in parents if package == name else parents[:-1]:
                # the packages above run first: as if the entry began by importing them
                entry.units[""].imports.insert(
                    0, _Found(parent, (), ast.parse(f"import {parent}").body[0], "import", _Context())
                )
            return _follow(entry, tree, f"-m {name}")
    site = Site(file=f"-m {name}", line=0)
    item = Import(module=name, site=site, form="run", text=f"python -m {name}")
    return ScriptImports(script=f"-m {name}", imports=(item,), local=tuple(sorted(_beside(tree.roots))))


def parse_directory(path: Path, *, base: Path | None = None) -> tuple[ScriptImports, ...]:
    """What the Python files and notebooks below a directory import, each as a module of the package it lies in."""
    base = base or _here()
    if not path.is_dir():
        raise UsageError(f"There is no directory {path}: check the path.")
    root = path
    while (root / "__init__.py").is_file() and root != root.resolve().parent:
        root = root.resolve().parent
    result = []
    for file in _scripts(path):
        # what a link is called counts, not what it leads to
        parts = list((file.parent.resolve() / file.name).relative_to(root.resolve()).with_suffix("").parts)
        in_package = (file.parent / "__init__.py").is_file()
        tree = _Tree([root if in_package else file.parent, root], base)
        if in_package and file.suffix == ".py":
            module = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
            package = module if parts[-1] == "__init__" else ".".join(parts[:-1])
            entry = _File(file, tree.shown(file), module, package, main=file.name == "__main__.py")
        else:
            entry = _File(file, tree.shown(file), "__main__", "", main=True)
        result.append(_follow(entry, tree, entry.shown))
    return tuple(result)


def _scripts(path: Path) -> list[Path]:
    """The Python files and notebooks below a directory, sorted; links that lead nowhere are among them, pipes are not."""
    found: list[Path] = []
    for folder, inner, names in os.walk(path):
        inner[:] = [each for each in inner if not (each in _SKIPPED or each.startswith(".") or each.endswith(".egg-info"))]
        for name in names:
            place = os.path.join(folder, name)
            if name.endswith((".py", ".ipynb")) and not name.startswith(".") and (os.path.isfile(place) or not os.path.exists(place)):
                found.append(Path(place))
    return sorted(found)
