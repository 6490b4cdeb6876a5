"""Say whether modules would import on this interpreter, without importing or executing any of them.

Standard library only, Python 3.8 and later, one file: it is sent to a host over stdin (`Host.run_python`) and is also
used as a library by the controller for the interpreter it runs on.

Two parts:

* `Finder` answers where a module would come from. It asks the interpreter's own path-entry finders one directory at a
  time, because `importlib.util.find_spec("a.b")` executes package `a`, and `PathFinder` raises KeyError for a namespace
  package nested in another.
* `Machine` follows what importing a module would *do*: it reads the module's source and walks its statements in order,
  entering imports, `try`, conditions whose value is known here (version, platform, presence of a module), and functions
  of third-party code that are called at module level. Nothing is run: values are abstract, and whatever cannot be known
  is `UNKNOWN`, which never makes a failure. So a reported failure is one on every path the walk could see.

The request and answer formats are those of `answer`.
"""

# ruff: noqa: B905 -- zip has no `strict` before Python 3.10

from __future__ import annotations

import sys

import ast
import builtins
import difflib
import gc
import importlib.machinery
import os
import pkgutil
import re
import sysconfig
import threading
import time
import warnings
from typing import Any, Callable, Dict, Iterable, Iterator, List, Optional, Sequence, Set, Tuple

MAX_CALL_DEPTH = 10
MAX_CALL_STEPS = 3000
MAX_ITERATIONS = 300
IMPORT_ERRORS = (ImportError, ModuleNotFoundError)


class Unknown:
    """A value that cannot be known without running the code."""

    def __repr__(self) -> str:
        return "UNKNOWN"


UNKNOWN = Unknown()


class Thing:
    """An object known to exist and to be true, of which nothing else is known."""


THING = Thing()


# ------------------------------------------------------------------------------------------------------------ finding


class Spec:
    """Where a module comes from: `kind` is source, bytecode, extension, builtin, frozen, namespace or opaque."""

    def __init__(self, name: str, kind: str, origin: Optional[str], locations: Optional[List[str]]) -> None:
        self.name = name
        self.kind = kind
        self.origin = origin
        self.locations = locations
        self.loader: Any = None
        self.passing = False  # may be there in this process only
        self.unseen = False  # its package has no file for it, and may make it when it runs

    def source(self) -> Optional[bytes]:
        """The module's source as bytes, None where there is none to read.

        mypyc leaves the source of a module beside what it compiled from it, which imports the same. With other compilers a source
        of the same name may be another thing altogether.
        """
        if self.kind not in ("source", "extension"):
            return None
        try:
            if self.kind == "extension":
                folder, name = os.path.split(self.origin or "")
                source = os.path.join(folder, name.split(".")[0] + ".py")
                if not os.path.isfile(source):
                    return None
                with open(self.origin or "", "rb") as compiled:
                    if b"__mypyc" not in compiled.read(1 << 20):
                        return None
                with open(source, "rb") as written:
                    return written.read()
            if self.loader is not None and not isinstance(self.loader, importlib.machinery.SourceFileLoader):
                text = self.loader.get_source(self.name)
                return None if text is None else ("# coding: utf-8\n" + text).encode("utf-8", "surrogatepass")
            with open(self.origin or "", "rb") as file:
                return file.read()
        except (OSError, ImportError, SyntaxError, UnicodeError, ValueError):
            return None


class Finder:
    """Finds modules by asking one path entry at a time; never imports a parent.

    `path` replaces `sys.path`; `local` are top-level names that stand before it (modules beside a script that lives on
    another machine) and are taken as present with unknown content.
    """

    def __init__(self, path: Optional[Sequence[str]] = None, local: Iterable[str] = ()) -> None:
        entries = sys.path if path is None else path
        self.path: List[str] = []
        for entry in entries:
            if isinstance(entry, str) and entry and "\0" not in entry and entry not in self.path:
                self.path.append(entry)
        self.local = set(local)
        self.stdlib = _stdlib_directories()
        self.site = [p for p in self.path if os.path.basename(p) in ("site-packages", "dist-packages")]
        self.editable, self.namespaces, self.foreign = _editable_finders(self.path)
        self._cache: Dict[Tuple[str, Optional[Tuple[str, ...]]], Optional[Spec]] = {}

    def find(self, name: str, locations: Optional[Sequence[str]] = None) -> Optional[Spec]:
        """The spec of `name`; `locations` is the parent package's search path, None for a top-level name."""
        key = (name, None if locations is None else tuple(locations))
        if key not in self._cache:
            self._cache[key] = self._find(name, locations)
        return self._cache[key]

    def _find(self, name: str, locations: Optional[Sequence[str]]) -> Optional[Spec]:
        if locations is None:
            if name in self.local:
                return Spec(name, "opaque", None, [])
            if name in sys.builtin_module_names:
                return Spec(name, "builtin", None, None)
            if name == "__main__":
                return Spec(name, "opaque", None, None)
            if name == "distutils" and self._hooked_distutils():
                found = self.find("setuptools")
                ours = self._on_path("_distutils", found.locations or []) if found is not None else None
                if ours is not None:
                    ours.name = name
                    return ours
        found = self._on_path(name, self.path if locations is None else locations)
        if found is not None and found.kind != "namespace":
            return found
        mapped = self._mapped(name)
        if mapped is not None:
            return mapped
        if found is not None:
            return found
        if locations is None:
            try:
                frozen = importlib.machinery.FrozenImporter.find_spec(name)
            except Exception:  # an interpreter without the finder's module-level form
                frozen = None
            if frozen is not None:
                return Spec(name, "frozen", None, [] if frozen.submodule_search_locations is not None else None)
        return None

    def _hooked_distutils(self) -> bool:
        """Whether setuptools' `.pth` file puts its own `distutils` in the place of the interpreter's, or where there is none."""
        for entry in self.path:
            try:
                with open(os.path.join(entry, "distutils-precedence.pth"), encoding="utf-8", errors="replace") as file:
                    default = re.search(r"get\(\s*var\s*,\s*'(\w+)'", file.read())
            except OSError:
                continue
            return os.environ.get("SETUPTOOLS_USE_DISTUTILS", default.group(1) if default else "") == "local"
        return False

    def _on_path(self, name: str, entries: Sequence[str]) -> Optional[Spec]:
        portions: List[str] = []
        for entry in entries:
            try:
                importer = pkgutil.get_importer(entry)
            except Exception:  # a path hook that cannot stand the entry
                continue
            if importer is None:
                continue
            try:
                spec = _ask(importer, name)
            except Exception:  # a damaged archive, an unreadable directory
                continue
            if spec is None:
                continue
            if spec.loader is None:
                portions.extend(spec.submodule_search_locations or [])
                continue
            return _from_module_spec(name, spec)
        if portions:
            return Spec(name, "namespace", None, portions)
        return None

    def _mapped(self, name: str) -> Optional[Spec]:
        target = self.editable.get(name)
        if target is not None:
            if target.endswith(tuple(importlib.machinery.all_suffixes())) and os.path.isfile(target):
                package = os.path.basename(target).split(".")[0] == "__init__"
                return Spec(name, "source" if target.endswith(".py") else "extension", target,
                            [os.path.dirname(target)] if package else None)  # fmt: skip
            directory, base = os.path.split(target)
            found = self._on_path(base, [directory]) if directory else None
            if found is not None:
                found.name = name
                return found
        if name in self.namespaces:
            return Spec(name, "namespace", None, list(self.namespaces[name]))
        for finder in self.foreign:
            if name in finder:
                return Spec(name, "opaque", None, [])
        return None

    def is_stdlib(self, spec: Spec) -> bool:
        """True for modules that belong to the interpreter itself."""
        if spec.kind in ("builtin", "frozen"):
            return True
        origin = spec.origin or ""
        return origin.startswith(self.stdlib) and "site-packages" not in origin and "dist-packages" not in origin

    def siblings(self, locations: Optional[Sequence[str]] = None) -> Set[str]:
        """The names of modules directly under `locations` (of the whole search path when None)."""
        names: Set[str] = set()
        for entry in self.path if locations is None else locations:
            try:
                listed = os.listdir(entry)
            except OSError:
                continue
            for item in listed:
                name = item.split(".")[0]
                if not name.isidentifier() or name.startswith("__"):
                    continue
                if item == name or item.endswith((".py", ".so", ".pyd", ".pyc")):
                    names.add(name)
        if locations is None:
            names.update(self.editable)
            names.update(sys.builtin_module_names)
        return names

    def other_tags(self, name: str, locations: Optional[Sequence[str]]) -> List[str]:
        """Extension files for `name` that this interpreter cannot see because they carry another interpreter's tag."""
        base = name.rpartition(".")[2]
        suffixes = tuple(importlib.machinery.EXTENSION_SUFFIXES)
        found = []
        for entry in self.path if locations is None else locations:
            try:
                listed = os.listdir(entry)
            except OSError:
                continue
            for item in listed:
                if item.startswith(base + ".") and item.endswith((".so", ".pyd")):
                    if not any(item == base + suffix for suffix in suffixes):
                        found.append(os.path.join(entry, item))
        return sorted(found)


def _stdlib_directories() -> Tuple[str, ...]:
    paths = {sysconfig.get_paths()[key] for key in ("stdlib", "platstdlib")}
    paths.add(os.path.dirname(os.__file__ or ""))
    return tuple(sorted(p.rstrip(os.sep) + os.sep for p in paths if p))


def _ask(importer: Any, name: str) -> Any:
    """A path-entry finder's spec for `name`; zip importers before 3.10 have only the older methods."""
    if hasattr(importer, "find_spec"):
        return importer.find_spec(name)
    loader, portions = importer.find_loader(name)
    if loader is None:
        if not portions:
            return None
        spec = importlib.machinery.ModuleSpec(name, None, is_package=True)
        spec.submodule_search_locations = portions
        return spec
    spec = importlib.machinery.ModuleSpec(name, loader, origin=loader.get_filename(name))
    if loader.is_package(name):
        spec.submodule_search_locations = [os.path.dirname(spec.origin or "")]
    return spec


def _from_module_spec(name: str, spec: Any) -> Spec:
    loader = spec.loader
    locations = None if spec.submodule_search_locations is None else list(spec.submodule_search_locations)
    if isinstance(loader, importlib.machinery.ExtensionFileLoader):
        kind = "extension"
    elif isinstance(loader, importlib.machinery.SourcelessFileLoader):
        kind = "bytecode"
    elif hasattr(loader, "get_source"):
        kind = "source"
    else:
        kind = "opaque"
    result = Spec(name, kind, spec.origin, locations)
    result.loader = loader
    return result


def _editable_finders(path: Sequence[str]) -> Tuple[Dict[str, str], Dict[str, List[str]], List[Set[str]]]:
    """What editable installs map: setuptools' tables read from their files, others' from the finders already there.

    The finders themselves are not asked: some rebuild the project when asked.
    """
    mapping: Dict[str, str] = {}
    namespaces: Dict[str, List[str]] = {}
    for entry in path:
        try:
            names = sorted(n for n in os.listdir(entry) if n.startswith("__editable__") and n.endswith("_finder.py"))
        except OSError:
            continue
        for item in names:
            try:
                with open(os.path.join(entry, item), "rb") as file:
                    tree = ast.parse(file.read())
            except (OSError, SyntaxError, ValueError):
                continue
            for node in tree.body:
                target = node.targets[0] if isinstance(node, ast.Assign) else getattr(node, "target", None)
                value = getattr(node, "value", None)
                if not isinstance(target, ast.Name) or target.id not in ("MAPPING", "NAMESPACES") or value is None:
                    continue
                try:
                    table = ast.literal_eval(value)
                except (ValueError, SyntaxError):
                    continue
                if isinstance(table, dict):
                    for key, item_value in table.items():
                        if target.id == "MAPPING" and isinstance(item_value, str):
                            mapping.setdefault(str(key), item_value)
                        elif target.id == "NAMESPACES" and isinstance(item_value, list):
                            namespaces.setdefault(str(key), [str(p) for p in item_value])
    return mapping, namespaces, _other_editables(path)


def _other_editables(path: Sequence[str]) -> List[Set[str]]:
    """Module names in the tables that the loaders of other build backends are installed with.

    Such a loader is a module beside the `.pth` file that imports it; it ends in `install({...}, ...)`.
    """
    result: List[Set[str]] = []
    for entry in path:
        try:
            names = [n for n in os.listdir(entry) if n.endswith(".pth") and "editable" in n]
        except OSError:
            continue
        for item in names:
            try:
                with open(os.path.join(entry, item), encoding="utf-8", errors="replace") as file:
                    modules = re.findall(r"^import\s+(\w+)", file.read(), re.M)
            except OSError:
                continue
            for module in modules:
                try:
                    with open(os.path.join(entry, module + ".py"), "rb") as file_bytes:
                        tree = ast.parse(file_bytes.read())
                except (OSError, SyntaxError, ValueError):
                    continue
                for node in tree.body:
                    call = node.value if isinstance(node, ast.Expr) else None
                    if isinstance(call, ast.Call) and getattr(call.func, "id", "") == "install":
                        known: Set[str] = set()
                        for argument in call.args:
                            if isinstance(argument, (ast.Dict, ast.Set)):
                                keys: List[Any] = list(getattr(argument, "keys", None) or getattr(argument, "elts", []))
                                known.update(k.value for k in keys if isinstance(getattr(k, "value", None), str))
                        result.append(known)
    return result


# ------------------------------------------------------------------------------------------------------ abstract values


class Failed(Exception):
    """An exception the walked code would raise: `missing` names the module, or `module:name` for a missing name."""

    def __init__(self, error: Any, missing: Optional[str] = None, kind: str = "", message: str = "") -> None:
        super().__init__(message)
        self.error = error
        self.missing = missing
        self.kind = kind
        self.message = message
        self.circular = False  # it depends on where a cycle of imports was entered
        self.chain: List[Tuple[str, str, int]] = []

    def copy(self) -> Failed:
        """A fresh instance: a cached failure is raised many times, each with its own chain."""
        other = Failed(self.error, self.missing, self.kind, self.message)
        other.circular = self.circular
        other.chain = list(self.chain)
        return other


class _Return(Exception):
    def __init__(self, value: Any) -> None:
        super().__init__()
        self.value = value


class _Break(Exception):
    pass


class _Continue(Exception):
    pass


class _Frame:
    """A call or a loop at work, and whether it may have been left already, by a branch that cannot be known to run.

    What fails from then on need not be reached. `values`: what a call may have returned.
    """

    def __init__(self, loop: bool) -> None:
        self.loop = loop
        self.left = False
        self.values: List[Any] = []


def _common(values: Sequence[Any]) -> Any:
    """What a call gives that may have returned any of these."""
    first = values[0]
    same = all(other is first or (_constant(first) and type(other) is type(first) and other == first) for other in values[1:])
    return first if same else UNKNOWN


class _Exhausted(Exception):
    """A call went on for longer than the walk allows."""


class Module:
    """A module's abstract state: the names bound so far, and whether more may be there than was seen.

    That is any name (`open`), or any with one of these beginnings (`prefixes`).
    """

    def __init__(self, name: str, spec: Spec) -> None:
        self.name = name
        self.spec = spec
        self.names: Dict[str, Any] = {}
        self.open = spec.kind not in ("source", "namespace")
        self.prefixes: Tuple[str, ...] = ()
        self.children_open = spec.kind in ("opaque", "extension")  # an extension may register submodules itself
        self.made: Set[str] = set()  # submodules that its code puts into sys.modules itself
        self.locations = spec.locations
        self.stdlib = False
        self.index = -1  # position on the stack while its body runs
        self.low = -1
        self.closure: Dict[str, Module] = {}  # what importing it leaves loaded
        self.touched: Set[str] = set()  # all it met on the way, what failed and was caught included
        self.loose: Dict[str, Optional[Module]] = {}  # of those, what it met in another state than each has by itself
        self.bound: Optional[Set[str]] = None
        self.path_roots: Set[str] = set()  # directories below which it, or what it imports, may add to sys.path

    def may_hold(self, name: str) -> bool:
        """Whether a name that was not seen may be there all the same."""
        return self.open or name.startswith(self.prefixes)

    @property
    def package(self) -> str:
        return self.name if self.locations is not None else self.name.rpartition(".")[0]


class Scope:
    """Names of a module, class or function body, with the scope it is nested in."""

    def __init__(self, module: Module, parent: Optional[Scope], names: Dict[str, Any], kind: str) -> None:
        self.module = module
        self.parent = parent
        self.names = names
        self.kind = kind
        self.globals: Set[str] = set()


class Function:
    """A function of walked code; `context` marks a generator made a context manager."""

    def __init__(self, node: Any, scope: Scope, defaults: Dict[str, Any]) -> None:
        self.node = node
        self.scope = scope
        self.defaults = defaults
        self.context = False
        self.static = False
        self._generator: Optional[bool] = None

    @property
    def generator(self) -> bool:
        """True when calling it does not run its body."""
        if self._generator is None:
            self._generator = isinstance(self.node, ast.AsyncFunctionDef) or _yields(self.node)
        return self._generator


class Class:
    """A class of walked code."""

    def __init__(self, name: str, bases: Tuple[Any, ...], names: Dict[str, Any], module: Module) -> None:
        self.name = name
        self.bases = bases
        self.names = names
        self.module = module

    def find(self, name: str) -> Any:
        if name in self.names:
            return self.names[name]
        for base in self.bases:
            if isinstance(base, Class):
                found = base.find(name)
                if found is not UNKNOWN:
                    return found
        return UNKNOWN

    def builtin_bases(self) -> List[type]:
        result: List[type] = []
        for base in self.bases:
            if isinstance(base, type):
                result.append(base)
            elif isinstance(base, Class):
                result.extend(base.builtin_bases())
        return result


class Instance:
    """An instance of a walked class."""

    def __init__(self, cls: Class) -> None:
        self.cls = cls
        self.names: Dict[str, Any] = {}


class Bound:
    """A method with its first argument."""

    def __init__(self, owner: Any, function: Function) -> None:
        self.owner = owner
        self.function = function


class Raised:
    """A caught exception, as `except ... as e` binds it; or one that was made and not raised yet."""

    def __init__(self, failure: Failed) -> None:
        self.failure = failure


class Native:
    """A function of the interpreter whose effect the walk knows, or a method of a known value."""

    def __init__(self, name: str, owner: Any = None) -> None:
        self.name = name
        self.owner = owner


class ListOf:
    """A list or set whose items are known; `fuzzy` when there may be more of them."""

    def __init__(self, items: List[Any]) -> None:
        self.items = items
        self.fuzzy = False


class DictOf:
    """A dict whose constant keys are known; `fuzzy` when there may be more of them."""

    def __init__(self, items: Dict[Any, Any]) -> None:
        self.items = items
        self.fuzzy = False


CONSTANTS = (str, bytes, int, float, complex, type(None), type(Ellipsis))


def _yields(node: Any) -> bool:
    stack = list(node.body) if isinstance(node.body, list) else [node.body]
    while stack:
        item = stack.pop()
        if isinstance(item, (ast.Yield, ast.YieldFrom)):
            return True
        if not isinstance(item, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)):
            stack.extend(ast.iter_child_nodes(item))
    return False


def _tells(node: Any) -> bool:
    """Whether it is a `return` of anything but None, False and such."""
    return isinstance(node, ast.Return) and node.value is not None and not (
        isinstance(node.value, ast.Constant) and not node.value.value
    )  # fmt: skip


def _only_raises(node: Any) -> bool:
    """Whether a function does nothing but raise, such as one that skips the rest of a test module."""
    plain = (ast.Expr, ast.Assign, ast.AnnAssign, ast.Raise)
    return any(isinstance(item, ast.Raise) for item in node.body) and all(isinstance(item, plain) for item in node.body)


def _constant(value: Any) -> bool:
    return isinstance(value, CONSTANTS) or (isinstance(value, tuple) and all(_constant(v) for v in value))


def truth(value: Any) -> Optional[bool]:
    """The truth of an abstract value, None when unknown."""
    if isinstance(value, CONSTANTS) or isinstance(value, tuple):
        return bool(value)
    if isinstance(value, (ListOf, DictOf)):
        return True if value.items else (None if value.fuzzy else False)
    if isinstance(value, (Function, Class, Module, Native, Bound, Thing, Raised, type)):
        return True
    return None


def _names_bound(nodes: Iterable[Any]) -> Set[str]:
    """Names that these statements may bind in their own scope."""
    bound: Set[str] = set()
    stack: List[Any] = list(nodes)
    while stack:
        node = stack.pop()
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            bound.add(node.name)
            continue
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            bound.add(node.id)
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            for alias in node.names:
                bound.add(alias.asname or alias.name.split(".")[0])
        elif isinstance(node, ast.Lambda):
            continue
        stack.extend(ast.iter_child_nodes(node))
    return bound


def _modules_made(tree: Any, name: str) -> Optional[Set[str]]:
    """Names that a module's code may put into `sys.modules` when it is imported; None where they are computed.

    A function that nothing else in the file speaks of is there for other packages to call, so it does not count.
    """
    spoken: Dict[int, Set[str]] = {}
    stores: List[Tuple[Any, Any]] = []
    for node in tree.body:
        names = spoken[id(node)] = set()
        for inner in ast.walk(node):
            if isinstance(inner, ast.Name):
                names.add(inner.id)
            elif isinstance(inner, ast.Attribute):
                names.add(inner.attr)
            elif isinstance(inner, ast.Assign):
                for target in inner.targets:
                    if isinstance(target, ast.Subscript) and _is_modules(target.value):
                        stores.append((node, _index(target.slice)))
            elif isinstance(inner, ast.Call) and isinstance(inner.func, ast.Attribute) and _is_modules(inner.func.value):
                if inner.func.attr in ("setdefault", "update", "__setitem__"):
                    stores.append((node, inner.args[0] if inner.args and inner.func.attr != "update" else None))
    made: Set[str] = set()
    for node, key in stores:
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and not node.decorator_list:
            if not any(node.name in names for other, names in spoken.items() if other != id(node)):
                continue
        text = _key_text(key, name)
        if text is None:
            return None
        made.add(text)
    return made


def _replaced(tree: Any) -> bool:
    """Whether a module's code puts another in its own place, which may have other submodules.

    An object of a class of its own is not one: it is given this module's names, its path among them.
    """
    classes = {node.name for node in ast.walk(tree) if isinstance(node, ast.ClassDef)}
    made: Set[str] = set()
    stored = []
    for node in ast.walk(tree):
        if not isinstance(node, ast.Assign):
            continue
        if isinstance(node.value, ast.Call) and getattr(node.value.func, "id", None) in classes:
            made.update([target.id for target in node.targets if isinstance(target, ast.Name)])
            continue
        stored += [node.value for target in node.targets if isinstance(target, ast.Subscript) and _is_own(target)]
    return any(getattr(value, "id", None) not in made for value in stored)


def _is_own(node: Any) -> bool:
    """`sys.modules[__name__]`."""
    return _is_modules(node.value) and getattr(_index(node.slice), "id", "") == "__name__"


def _is_modules(node: Any) -> bool:
    return getattr(node, "attr", getattr(node, "id", "")) == "modules"


def _key_text(node: Any, name: str) -> Optional[str]:
    """The text of a key made of constants and the module's own name, None for any other."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.Name) and node.id == "__name__":
        return name
    if isinstance(node, ast.FormattedValue) and node.conversion == -1 and node.format_spec is None:
        return _key_text(node.value, name)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        parts = [_key_text(node.left, name), _key_text(node.right, name)]
    elif isinstance(node, ast.JoinedStr):
        parts = [_key_text(value, name) for value in node.values]
    else:
        return None
    return None if None in parts else "".join([part for part in parts if part])


# ------------------------------------------------------------------------------------------------- calls that are known

_PLATFORM: Dict[str, Callable[[], Any]] = {
    "system": lambda: os.uname().sysname if hasattr(os, "uname") else {"win32": "Windows"}.get(sys.platform, ""),
    "machine": lambda: os.uname().machine if hasattr(os, "uname") else UNKNOWN,
    "release": lambda: os.uname().release if hasattr(os, "uname") else UNKNOWN,
    "python_implementation": lambda: {"cpython": "CPython", "pypy": "PyPy"}.get(sys.implementation.name, UNKNOWN),
    "python_version": lambda: "{}.{}.{}".format(*sys.version_info[:3]),
    "python_version_tuple": lambda: tuple(str(part) for part in sys.version_info[:3]),
}
_PASS_THROUGH = {
    "functools.lru_cache", "functools.cache", "functools.wraps", "functools.total_ordering", "functools.update_wrapper",
    "typing.overload", "typing.no_type_check", "typing.final", "typing.runtime_checkable", "abc.abstractmethod",
    "typing_extensions.deprecated", "warnings.deprecated", "typing.cast", "contextlib.contextmanager",
}  # fmt: skip
_SYS_KNOWN = ("version_info", "platform", "maxsize", "byteorder", "hexversion", "version", "api_version")
_PURE_METHODS = {
    "startswith", "endswith", "split", "rsplit", "join", "format", "lower", "upper", "strip", "lstrip", "rstrip",
    "replace", "partition", "rpartition", "isdigit", "isidentifier", "title", "count", "index", "find", "splitlines",
    "decode", "encode", "removeprefix", "removesuffix", "rfind",
}  # fmt: skip
_PYTHON_2 = {"basestring", "unicode", "xrange", "raw_input", "unichr", "execfile", "long"}
_BUILTIN_CALLS = {
    "__import__", "hasattr", "getattr", "setattr", "len", "bool", "tuple", "list", "set", "frozenset", "dict", "str",
    "int", "any", "all", "globals", "locals", "vars", "exec", "eval", "exit", "quit", "sorted", "reversed", "enumerate",
    "range", "zip", "print", "isinstance", "callable", "issubclass", "delattr", "super", "type", "filter", "map",
}  # fmt: skip


_FILLS_MODULES = re.compile(rb"modules\s*\[\s*(?!__name__\s*\])[^\]=]*\]\s*=[^=]|modules\.(setdefault|update|__setitem__)\s*\(")
_OPENS = re.compile(
    rb"\._convert_?\(|\bglobal_enum\b"
)  # text by which a module makes names that its statements do not show


class Machine:
    """Walks what an import would do. One machine per host; `fresh()` starts a new process image.

    `deadline` (from `time.monotonic`) bounds the walk: modules met after it are taken as importing with unknown names.
    """

    def __init__(
        self, finder: Finder, deadline: Optional[float] = None, trees: Optional[Dict[str, Any]] = None
    ) -> None:
        self.finder = finder
        self.deadline = deadline
        self.late = False
        self.loaded: Dict[str, Module] = {}
        self.done: Dict[str, Module] = {}
        self.failed: Dict[str, Tuple[Failed, Module]] = {}
        self.under: Dict[str, Tuple[Module, ...]] = {}  # of each loaded module, what was running when it was loaded
        self.unsettled: Set[str] = set()  # loaded modules that are running, or hold in this process only
        self.stack: List[Module] = []
        self.running: Set[str] = set()
        self.maybe = 0
        self.calls: List[Any] = []
        self.frames: List[_Frame] = []
        self.steps = 0
        self.handling: List[Failed] = []
        self.tests: List[Any] = []  # conditions, of those that nobody can know, that hold where the walk is
        self._trees: Dict[str, Any] = {} if trees is None else trees
        self._dists: Optional[Set[str]] = None
        self.path_roots: Set[str] = set()
        self.used_roots: Set[str] = set()  # those from which something was imported: it may have imported its neighbours
        self._below: Dict[str, Set[str]] = {}

    def fresh(self) -> None:
        """Forget which modules are loaded, as a new process would; what was read and settled is kept."""
        self.loaded = {}
        self.under = {}
        self.unsettled = set()
        self.stack = []
        self.running = set()
        self.path_roots = set()
        self.used_roots = set()
        self.maybe = 0
        self.calls = []
        self.frames = []
        self.handling = []
        self.tests = []

    # ---------------------------------------------------------------------------------------------- importing

    def load(self, name: str) -> Module:
        """Import `name` and its parents; raises Failed."""
        package = name.rpartition(".")[0]
        # A module that is there is taken without a look at its package, which may have failed since.
        parent = self.load(package) if package and (name not in self.loaded or package in self.loaded) else None
        return self._load_one(name, parent)

    def _touch(self, module: Module) -> None:
        """Record that the module now running needed `module`."""
        if not self.stack:
            return
        top = self.stack[-1]
        top.touched.add(module.name)
        if module.path_roots:
            top.path_roots |= module.path_roots
            self.path_roots |= module.path_roots
        if module.index >= 0:
            if not (top.name + ".").startswith(module.name + "."):
                top.low = min(top.low, module.index)
        else:
            ring = self.done.get(module.name) is not module or top.name in module.touched
            if ring and module.name not in top.closure and not self._of_package(top, module):
                top.low = min(top.low, self._history(module))
            top.closure[module.name] = module
            top.closure.update(module.closure)
            top.touched |= module.touched

    def _holds(self, module: Module) -> bool:
        """Whether what was settled of a module holds here.

        It does unless something it met is running now, or is there in another state: a ring was then entered at another point.
        """
        if not self.running.isdisjoint(module.touched):
            return False
        if any(self.loaded[name] is not module.closure.get(name) for name in module.touched & self.unsettled):
            return False
        return all(self.loaded.get(name, other) is other for name, other in module.loose.items())

    def _settle(self, module: Module) -> None:
        """Note what a module met that is not what it is when it is imported first: modules of a ring, and some that failed."""
        for name in module.touched:
            met = module.closure.get(name)
            package = name.rpartition(".")[0]
            failed = package in module.touched and package not in module.closure
            if failed and not module.name.startswith(package + "."):
                module.loose[name] = None  # what a package left that failed is found at once the next time, without it
            elif met is None or self.done.get(name) is not met:
                module.loose[name] = met
        module.loose.pop(module.name, None)

    def _history(self, module: Module) -> int:
        """The position on the stack of the module from whose start on it is settled what this one of a ring has become.

        That depends on where its ring was entered. What runs now and finds it there, loaded by another, need not find the same
        when it is imported first.
        """
        common = -1
        for earlier, running in zip(self.under.get(module.name, ()), self.stack):
            if earlier is not running:
                break
            common += 1
        return common

    def _of_package(self, module: Module, other: Module) -> bool:
        """Whether a package that is always imported before this module leaves the other one loaded."""
        parts = module.name.split(".")
        for i in range(1, len(parts)):
            package = self.done.get(".".join(parts[:i]))
            if package is not None and (package is other or other.name in package.closure):
                return True
        return False

    def _leaves(self, module: Module) -> None:
        """A module that failed stays out; what it had imported until then stays."""
        if self.stack:
            self.stack[-1].touched |= module.touched
            self.stack[-1].closure.update(module.closure)

    def _loads(self, modules: Dict[str, Module]) -> None:
        """What importing a module that is settled leaves loaded."""
        place = tuple(self.stack)
        for name, module in modules.items():
            if name not in self.loaded:
                self.loaded[name] = module
                self.under[name] = place
                if self.done.get(name) is not module:
                    self.unsettled.add(name)

    def _load_one(self, name: str, parent: Optional[Module]) -> Module:
        module = self.loaded.get(name)
        if module is not None:
            self._touch(module)
            return module
        module = self.done.get(name)
        if module is not None and self._holds(module):
            self._loads({name: module})
            self._loads(module.closure)
            self._touch(module)
            self._attach(parent, name, module)
            return module
        if name in self.failed:
            failure, module = self.failed[name]
            if self._holds(module):
                self._loads(module.closure)
                self._leaves(module)
                raise failure.copy()
        spec = self._spec(name, parent)
        module = Module(name, spec)
        module.stdlib = self.finder.is_stdlib(spec)
        self._run(module)
        self._attach(parent, name, module)
        self._touch(module)
        return module

    @staticmethod
    def _attach(parent: Optional[Module], name: str, module: Module) -> None:
        # To a package that has been settled it would stay attached in the next process; `loaded` tells of those.
        if parent is not None and parent.index >= 0:
            parent.names[name.rpartition(".")[2]] = module

    def _spec(self, name: str, parent: Optional[Module]) -> Spec:
        if parent is None:
            spec = self.finder.find(name)
            if spec is None and self._on_added_path(name):
                if self.stack:
                    self.stack[-1].low = -1  # holds in this process only: nothing on the stack is settled by it
                passing = Spec(name, "opaque", None, [])
                passing.passing = True
                return passing
            if spec is None:
                raise Failed(ModuleNotFoundError, name, "module", "No module named {!r}".format(name))
            return spec
        if parent.locations is None:
            if parent.children_open or name in parent.made:
                return Spec(name, "opaque", None, [])
            raise Failed(ModuleNotFoundError, name, "not-a-package",
                         "No module named {!r}; {!r} is not a package".format(name, parent.name))  # fmt: skip
        spec = self.finder.find(name, parent.locations)
        if spec is None:
            if parent.children_open or name in parent.made:
                made = Spec(name, "opaque", None, [])
                made.unseen = name not in parent.made and parent.spec.kind == "source"
                return made
            raise Failed(ModuleNotFoundError, name, "submodule", "No module named {!r}".format(name))
        return spec

    def _adds_to_path(self) -> None:
        """The module running now extends sys.path: what lies below its own top-level package may become importable."""
        if not self.stack:
            return
        module = self.stack[-1]
        top = self.finder.find(module.name.split(".")[0])
        if top is not None and top.locations:
            module.path_roots.update(top.locations)
            self.path_roots.update(top.locations)

    def _on_added_path(self, name: str) -> bool:
        for root in self.path_roots:
            if root not in self._below:
                names = self._below[root] = set()
                for _, directories, files in os.walk(root):
                    names.update(directories)
                    names.update(file[:-3] for file in files if file.endswith(".py"))
            if name in self._below[root]:
                self.used_roots.add(root)
                return True
        return False

    def _run(self, module: Module) -> None:
        name = module.name
        self._loads({name: module})
        if module.spec.kind == "builtin":
            real = sys.modules.get(name)
            if real is not None:
                module.names.update(dict.fromkeys(dir(real), UNKNOWN))
                module.open = False
        module.index = module.low = len(self.stack)
        self.stack.append(module)
        self.running.add(name)
        saved = self.calls, self.frames, self.steps, self.handling, self.maybe, self.tests
        self.calls, self.frames, self.steps, self.handling, self.maybe, self.tests = [], [], 0, [], 0, []
        failed = False
        try:
            self._body_of(module)
        except Failed as failure:
            failed = True
            self.loaded.pop(name, None)
            self.unsettled.discard(name)
            module.touched.add(name)
            if module.low >= module.index and not failure.circular:
                self.failed[name] = failure.copy(), module
                self._settle(module)
            raise
        finally:
            self.calls, self.frames, self.steps, self.handling, self.maybe, self.tests = saved
            self.stack.pop()
            self.running.discard(name)
            if self.stack and module.low < module.index:
                self.stack[-1].low = min(self.stack[-1].low, module.low)
            index, module.index = module.index, -1
            if failed:
                self._leaves(module)
        if module.low >= index and not self.late and not module.spec.passing:
            self.done[name] = module
            self.unsettled.discard(name)
            self._settle(module)

    def _body_of(self, module: Module) -> None:
        tree = self._tree(module)
        if tree is None:
            return
        names = module.names
        names.update(
            __name__=module.name, __package__=module.package, __file__=module.spec.origin, __spec__=Native("__spec__", module),
            __loader__=THING, __doc__=UNKNOWN, __builtins__=THING, __dict__=UNKNOWN,
        )  # fmt: skip
        if module.locations is not None:
            names["__path__"] = UNKNOWN
        scope = Scope(module, None, names, "module")
        try:
            self._block(tree.body, scope)
        except (_Return, _Break, _Continue, _Exhausted):
            module.open = True

    def _tree(self, module: Module) -> Any:
        """The module's syntax tree, None where there is no source; settles what the text says about its names."""
        if self.deadline is not None and time.monotonic() > self.deadline:
            self.late = module.open = True
            return None
        if module.spec.kind == "bytecode":
            module.children_open = True
        raw = module.spec.source()
        if raw is None:
            module.open = module.spec.kind != "namespace"
            return None
        key = module.spec.origin or module.name
        tree = self._trees.get(key)
        if tree is None:
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    tree = ast.parse(raw)
            except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
                tree = error
            self._trees[key] = tree
        if isinstance(tree, Exception):
            raise Failed(SyntaxError, None, "syntax", str(tree))
        if _OPENS.search(raw):
            module.open = True
        if b"modules" in raw:
            if _FILLS_MODULES.search(raw):
                made = _modules_made(tree, module.name)
                if made is None:
                    module.children_open = True
                else:
                    module.made |= made
            if re.search(rb"modules\s*\[\s*__name__\s*\]", raw):
                module.open = True
                if _replaced(tree):
                    module.children_open = True
        if re.search(rb"setattr\(\s*(sys\.modules|" + module.name.rpartition(".")[2].encode() + rb")\b", raw):
            module.open = True
        if b"meta_path" in raw:
            module.children_open = True
            parent = self.loaded.get(module.name.rpartition(".")[0])
            if parent is not None:  # a package that fills itself through a finder of its own
                parent.open = parent.children_open = True
        if b"__path__" in raw or b"declare_namespace" in raw:
            if b"extend_path" in raw or b"declare_namespace" in raw:
                module.locations = self._all_portions(module)
            elif re.search(rb"__path__\s*(=[^=]|\+=|\.(append|insert|extend)|\[)", raw):
                module.children_open = True
        return tree

    def _all_portions(self, module: Module) -> Optional[List[str]]:
        if module.locations is None:
            return None
        result = list(module.locations)
        tail = module.name.replace(".", os.sep)
        for entry in self.finder.path:
            candidate = os.path.join(entry, tail)
            if candidate not in result and os.path.isdir(candidate):
                result.append(candidate)
        return result

    # ---------------------------------------------------------------------------------------------- statements

    def _block(self, body: Sequence[Any], scope: Scope) -> None:
        for node in body:
            self._statement(node, scope)

    def _statement(self, node: Any, scope: Scope) -> None:
        self.steps += 1
        if self.calls and self.steps > MAX_CALL_STEPS:
            raise _Exhausted()
        method = getattr(self, "_do_" + type(node).__name__, None)
        if method is not None:
            method(node, scope)

    def _do_Expr(self, node: Any, scope: Scope) -> None:
        if not isinstance(node.value, ast.Constant):
            self.ev(node.value, scope)

    def _do_Import(self, node: Any, scope: Scope) -> None:
        for alias in node.names:
            module = self._at(node, scope, alias.name)
            if alias.asname:
                self._set(alias.asname, module, scope)
            else:
                top = alias.name.split(".")[0]
                self._set(top, module if top == alias.name else self._at(node, scope, top), scope)

    def _at(self, node: Any, scope: Scope, name: str) -> Module:
        """Import on behalf of a statement, adding it to the chain of a failure."""
        try:
            return self.load(name)
        except Failed as failure:
            failure.chain.insert(0, (scope.module.name, scope.module.spec.origin or "", getattr(node, "lineno", 0)))
            raise
        except RecursionError:
            self.late = True
            return Module(name, Spec(name, "opaque", None, []))

    def _relative(self, module: Module, level: int, name: Optional[str]) -> str:
        package = module.package
        if not package:
            raise Failed(ImportError, None, "relative", "attempted relative import with no known parent package")
        parts = package.split(".")
        if level - 1 >= len(parts):
            raise Failed(ImportError, None, "relative", "attempted relative import beyond top-level package")
        base = ".".join(parts[: len(parts) - level + 1])
        return base + "." + name if name else base

    def _do_ImportFrom(self, node: Any, scope: Scope) -> None:
        if node.module == "__future__" and not node.level:
            for alias in node.names:
                self._set(alias.asname or alias.name, THING, scope)
            return
        name = self._relative(scope.module, node.level, node.module) if node.level else node.module
        module = self._at(node, scope, name)
        for alias in node.names:
            if alias.name == "*":
                self._star(node, module, scope)
            else:
                value = self._from(node, module, alias.name, scope)
                self._set(alias.asname or alias.name, value, scope)

    def _from(self, node: Any, module: Module, name: str, scope: Scope) -> Any:
        """The value of `from module import name`, importing a submodule of that name where there is no attribute."""
        try:
            return self.name_in(module, name)
        except Failed as failure:
            failure.chain.insert(0, (scope.module.name, scope.module.spec.origin or "", getattr(node, "lineno", 0)))
            raise

    def name_in(self, module: Module, name: str) -> Any:
        """What `from module import name` gives; raises Failed when there is no such name."""
        if name in module.names:
            value = module.names[name]
            if isinstance(value, Module) and value.name in self.loaded:
                self._touch(value)
            return value
        full = module.name + "." + name
        if module.locations is not None:
            if full in self.loaded:
                self._touch(self.loaded[full])
                return self.loaded[full]
            if self.finder.find(full, module.locations) is not None:
                return self._load_one(full, module)
        if module.index >= 0 and self.stack:  # a module still running, met again in a cycle
            self.stack[-1].low = min(self.stack[-1].low, module.index)
        if module.may_hold(name) or (module.children_open and module.locations is not None):
            return UNKNOWN
        hook = module.names.get("__getattr__")
        if hook is not None:
            if isinstance(hook, Function) and not module.stdlib:
                try:
                    return self._call_function(hook, [name], {}, strict=True)
                except Failed as failure:
                    if not self._catches(failure, AttributeError):
                        raise
                    if failure.kind != "raise":
                        return UNKNOWN
            else:
                return UNKNOWN
        partial = " (it is still being imported: a circular import)" if module.index >= 0 else ""
        absent = Failed(ImportError, module.name + ":" + name, "name")
        absent.message = "cannot import name {!r} from {!r}{}".format(name, module.name, partial)
        absent.circular = module.index >= 0
        raise absent

    def _star(self, node: Any, module: Module, scope: Scope) -> None:
        listed = module.names.get("__all__")
        if isinstance(listed, (ListOf, tuple)):
            items = listed.items if isinstance(listed, ListOf) else list(listed)
            for item in items:
                if not isinstance(item, str):
                    continue
                try:
                    self._set(item, self._from(node, module, item, scope), scope)
                except Failed as failure:
                    if failure.kind == "name" and failure.missing == module.name + ":" + item:
                        # a name in __all__ that is nowhere: AttributeError, not ImportError
                        raise Failed(AttributeError, None, "raise", str(failure)) from None
                    raise
            if isinstance(listed, ListOf) and listed.fuzzy or len(items) != sum(isinstance(i, str) for i in items):
                scope.module.open = scope.module.open or scope.kind == "module"
        else:
            for key, value in list(module.names.items()):
                if not key.startswith("_"):
                    self._set(key, value, scope)
            if listed is not None:
                scope.module.open = True
        if module.open or module.prefixes or "__getattr__" in module.names and listed is None:
            scope.module.open = True
        if module.index >= 0 and self.stack:
            self.stack[-1].low = min(self.stack[-1].low, module.index)

    def _do_Assign(self, node: Any, scope: Scope) -> None:
        value = self.ev(node.value, scope)
        for target in node.targets:
            self._bind(target, value, scope)

    def _do_AnnAssign(self, node: Any, scope: Scope) -> None:
        if scope.kind != "function" and not self._postponed(scope):
            self.ev(node.annotation, scope)
        if node.value is not None:
            self._bind(node.target, self.ev(node.value, scope), scope)

    @staticmethod
    def _postponed(scope: Scope) -> bool:
        return "annotations" in scope.module.names or sys.version_info >= (3, 14)

    def _do_AugAssign(self, node: Any, scope: Scope) -> None:
        value = self.ev(node.value, scope)
        if not isinstance(node.target, ast.Name):
            self._children(node.target, scope)
            return
        old = self._get(node.target.id, scope)
        new: Any = UNKNOWN
        if isinstance(node.op, ast.Add):
            new = self._add(old, value)
            if isinstance(old, ListOf):
                if isinstance(value, (ListOf, tuple)) and not self.maybe:
                    old.items.extend(value.items if isinstance(value, ListOf) else value)
                    old.fuzzy = old.fuzzy or (isinstance(value, ListOf) and value.fuzzy)
                else:
                    old.fuzzy = True
                new = old
        self._set(node.target.id, new, scope)

    def _add(self, left: Any, right: Any) -> Any:
        if isinstance(left, str) and isinstance(right, str):
            return left + right
        if isinstance(left, (ListOf, tuple)) and isinstance(right, (ListOf, tuple)):
            a = left.items if isinstance(left, ListOf) else list(left)
            b = right.items if isinstance(right, ListOf) else list(right)
            if isinstance(left, tuple):
                return tuple(a + b)
            result = ListOf(a + b)
            result.fuzzy = left.fuzzy or (isinstance(right, ListOf) and right.fuzzy)
            return result
        if isinstance(left, ListOf):
            result = ListOf(list(left.items))
            result.fuzzy = True
            return result
        if type(left) is int and type(right) is int:
            return left + right
        return UNKNOWN

    def _do_Delete(self, node: Any, scope: Scope) -> None:
        for target in node.targets:
            if isinstance(target, ast.Name):
                scope.names.pop(target.id, None)
            else:
                self._children(target, scope)

    def _do_Global(self, node: Any, scope: Scope) -> None:
        scope.globals.update(node.names)

    def _do_FunctionDef(self, node: Any, scope: Scope) -> None:
        arguments = node.args
        defaults: Dict[str, Any] = {}
        positional = getattr(arguments, "posonlyargs", []) + arguments.args
        for arg, default in zip(positional[len(positional) - len(arguments.defaults) :], arguments.defaults):
            defaults[arg.arg] = self.ev(default, scope)
        for arg, default in zip(arguments.kwonlyargs, arguments.kw_defaults):
            if default is not None:
                defaults[arg.arg] = self.ev(default, scope)
        if not self._postponed(scope):
            for arg in positional + arguments.kwonlyargs:
                if arg.annotation is not None:
                    self.ev(arg.annotation, scope)
            if node.returns is not None:
                self.ev(node.returns, scope)
        value: Any = Function(node, scope, defaults)
        for decorator in reversed(node.decorator_list):
            value = self._decorated(self.ev(decorator, scope), value, decorator)
        self._set(node.name, value, scope)

    _do_AsyncFunctionDef = _do_FunctionDef

    def _decorated(self, decorator: Any, value: Any, node: Any) -> Any:
        name = self._qualified(decorator)
        if isinstance(value, Function):
            if name in ("contextlib.contextmanager", "contextlib.asynccontextmanager"):
                value.context = True
                return value
            if decorator in (staticmethod, classmethod):
                value.static = decorator is staticmethod
                return value
        if name in _PASS_THROUGH or (isinstance(decorator, Native) and decorator.name == "decorator"):
            return value
        if isinstance(decorator, (Function, Bound)):
            return self.call(decorator, [value], {}, node)
        return UNKNOWN

    def _do_ClassDef(self, node: Any, scope: Scope) -> None:
        bases = tuple(self.ev(base, scope) for base in node.bases)
        for keyword in node.keywords:
            self.ev(keyword.value, scope)
        inner = Scope(scope.module, scope, {}, "class")
        value: Any = Class(node.name, bases, inner.names, scope.module)
        self._block(node.body, inner)
        for decorator in reversed(node.decorator_list):
            made = self._decorated(self.ev(decorator, scope), value, decorator)
            value = made if isinstance(made, Class) else value
        self._set(node.name, value, scope)

    def _do_Return(self, node: Any, scope: Scope) -> None:
        raise _Return(None if node.value is None else self.ev(node.value, scope))

    def _do_Break(self, node: Any, scope: Scope) -> None:
        raise _Break()

    def _do_Continue(self, node: Any, scope: Scope) -> None:
        raise _Continue()

    def _do_Raise(self, node: Any, scope: Scope) -> None:
        if node.exc is None:
            if self.handling:
                raise self.handling[-1].copy()
            raise Failed(RuntimeError, None, "raise", "No active exception to reraise")
        value = self.ev(node.exc, scope)
        cause = self.ev(node.cause, scope) if node.cause is not None else None
        if isinstance(value, Raised):
            failure = value.failure.copy()
        elif isinstance(value, Instance):
            failure = Failed(value.cls, None, "raise")
        elif isinstance(value, (type, Class)):
            failure = Failed(value, None, "raise")
        else:
            failure = Failed(UNKNOWN, None, "raise")
        if failure.missing is None:
            origin = cause.failure if isinstance(cause, Raised) else (self.handling[-1] if self.handling else None)
            if origin is not None:
                failure.missing, failure.chain = origin.missing, list(origin.chain)
                failure.kind = origin.kind if origin.missing is not None else "raise"
                failure.message = origin.message or failure.message
                failure.circular = origin.circular
        if not failure.chain:
            failure.chain = [(scope.module.name, scope.module.spec.origin or "", node.lineno)]
        raise failure

    def _do_Assert(self, node: Any, scope: Scope) -> None:
        if truth(self.ev(node.test, scope)) is False:
            raise Failed(AssertionError, None, "raise")

    def _do_If(self, node: Any, scope: Scope) -> None:
        known = truth(self.ev(node.test, scope))
        if known is None:
            self._either([(node.body, True), (node.orelse, False)], scope, node.test)
        else:
            self._block(node.body if known else node.orelse, scope)

    def _either(self, branches: Sequence[Tuple[Sequence[Any], Any]], scope: Scope, test: Any = None) -> None:
        """One of these blocks runs and it cannot be known which: keep what holds after all of them."""
        before = dict(scope.names)
        results: List[Tuple[Optional[BaseException], Dict[str, Any]]] = []
        for body, holds in branches:
            scope.names.clear()
            scope.names.update(before)
            self.maybe += 1
            tests = self.tests
            if holds and test is not None:
                self.tests = [*tests, test]
            outcome: Optional[BaseException] = None
            try:
                self._block(body, scope)
            except (Failed, _Return, _Break, _Continue) as stop:
                outcome = stop
            finally:
                self.maybe -= 1
                self.tests = tests
            results.append((outcome, dict(scope.names)))
        going = [names for outcome, names in results if outcome is None]
        outcomes = [outcome for outcome, _ in results if outcome is not None]
        gentle = [o for o in outcomes if not isinstance(o, Failed)]
        scope.names.clear()
        for leaving in gentle if going else gentle[1:]:
            self._may_leave(leaving)
        if not going:
            scope.names.update(before)
            if gentle:
                if isinstance(gentle[0], _Return) and len(outcomes) > 1:
                    raise _Return(UNKNOWN)
                raise gentle[0]
            raise outcomes[0]
        merged = going[0]
        for names in going[1:]:
            for key, value in names.items():
                if key not in merged:
                    merged[key] = UNKNOWN
                elif merged[key] is not value and not (_constant(value) and merged[key] == value):
                    merged[key] = UNKNOWN
            for key in merged:
                if key not in names:
                    merged[key] = UNKNOWN
        if len(going) < len(results):
            for outcome, names in results:  # a branch that left: what it bound may still be seen by a handler
                if outcome is not None and scope.kind == "module":
                    for key in names:
                        merged.setdefault(key, UNKNOWN)
        scope.names.update(merged)

    def _may_leave(self, stop: BaseException) -> None:
        """A branch that may have run leaves the call (return) or the loop (break, continue) it is in."""
        for frame in reversed(self.frames):
            if isinstance(stop, _Return):
                if frame.loop:
                    continue
                frame.values.append(stop.value)
            frame.left = True
            return

    def _perhaps(self, body: Sequence[Any], scope: Scope) -> None:
        self._either([(body, None), ((), None)], scope)

    def _do_For(self, node: Any, scope: Scope) -> None:
        items = self._items(self.ev(node.iter, scope))
        if items is None or len(items) > MAX_ITERATIONS:
            self._bind(node.target, UNKNOWN, scope)
            self._rounds(node.body, scope)
            self._perhaps(node.orelse, scope)
            return
        left = False
        for item in items:
            self._bind(node.target, item, scope)
            stop, may_leave = self._round(node.body, scope)
            left = left or may_leave
            if isinstance(stop, _Break):
                return
        if left:
            self._perhaps(node.orelse, scope)
        else:
            self._block(node.orelse, scope)

    def _round(self, body: Sequence[Any], scope: Scope) -> Tuple[Optional[BaseException], bool]:
        """One round of a loop: how it was left, and whether it may have been left in another way before."""
        frame = _Frame(loop=True)
        self.frames.append(frame)
        try:
            self._block(body, scope)
        except (_Break, _Continue) as stop:
            return stop, frame.left
        except Failed:
            if not frame.left:
                raise
        finally:
            self.frames.pop()
        return None, frame.left

    _do_AsyncFor = _do_For

    def _rounds(self, body: Sequence[Any], scope: Scope) -> None:
        """A loop of which it cannot be known how many rounds there are, if any."""
        self.frames.append(_Frame(loop=True))
        try:
            self._perhaps(body, scope)
        except (_Break, _Continue):
            pass
        finally:
            self.frames.pop()

    @staticmethod
    def _items(value: Any) -> Optional[List[Any]]:
        if isinstance(value, ListOf) and not value.fuzzy:
            return list(value.items)
        if isinstance(value, DictOf) and not value.fuzzy:
            return list(value.items)
        if isinstance(value, tuple):
            return list(value)
        if isinstance(value, str) and len(value) < 64:
            return list(value)
        return None

    def _do_While(self, node: Any, scope: Scope) -> None:
        known = truth(self.ev(node.test, scope))
        if known is False:
            self._block(node.orelse, scope)
            return
        if known:
            self._round(node.body, scope)
        else:
            self._rounds(node.body, scope)
        for name in _names_bound(node.body):  # further rounds may change them
            if name in scope.names:
                scope.names[name] = UNKNOWN

    def _do_With(self, node: Any, scope: Scope) -> None:
        caught: List[Any] = []
        outside = set(self.path_roots)
        for item in node.items:
            value = self.ev(item.context_expr, scope)
            caught.extend(self._suppressed(value, item.context_expr))
            if item.optional_vars is not None:
                self._bind(item.optional_vars, UNKNOWN, scope)
        try:
            self._block(node.body, scope)
        except Failed as failure:
            if not any(self._catches(failure, error) for error in caught):
                raise
            for name in _names_bound(node.body):
                scope.names.setdefault(name, UNKNOWN)
        finally:
            if self.path_roots != outside:  # a manager that extends sys.path takes it back; what was imported stays
                self.path_roots &= outside | self.used_roots
                self.stack[-1].path_roots &= self.path_roots

    _do_AsyncWith = _do_With

    def _suppressed(self, value: Any, node: Any) -> List[Any]:
        """The exceptions a context manager swallows."""
        if isinstance(value, Native) and value.name == "contextlib.suppress":
            return list(value.owner)
        source: Any = None
        if isinstance(value, Function) and value.context:
            source = value.node
        elif isinstance(value, Instance):
            leave = value.cls.find("__exit__")
            source = leave.node if isinstance(leave, Function) else None
            if source is not None and any(_tells(n) for n in ast.walk(source)):
                return [Exception]  # which ones it swallows, it decides when it runs
        if source is not None:
            if any(isinstance(n, ast.Attribute) and n.attr == "path" and getattr(n.value, "id", "") == "sys"
                   for n in ast.walk(source)):  # fmt: skip
                self._adds_to_path()
            names = {n.id for n in ast.walk(source) if isinstance(n, ast.Name)}
            if names & {"ImportError", "ModuleNotFoundError", "Exception"}:
                return [ImportError]
            return []
        if value is UNKNOWN and isinstance(node, ast.Call):
            called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            if "import" in called.lower() or "suppress" in called.lower() or called == "raises":
                return [Exception]
        return []

    def _do_Try(self, node: Any, scope: Scope) -> None:
        try:
            try:
                self._block(node.body, scope)
            except Failed as failure:
                self._handle(node, failure, scope)
            else:
                self._note_handlers(node, scope)
                self._block(node.orelse, scope)
        except BaseException:
            if node.finalbody and not self.maybe:
                self._block(node.finalbody, scope)
            raise
        self._block(node.finalbody, scope)

    _do_TryStar = _do_Try

    def _handle(self, node: Any, failure: Failed, scope: Scope) -> None:
        for handler in node.handlers:
            wanted = Exception if handler.type is None else self._quiet(handler.type, scope)
            if handler.type is None:
                wanted = BaseException
            if not self._catches(failure, wanted):
                continue
            if handler.name:
                self._set(handler.name, Raised(failure), scope)
            self.handling.append(failure)
            try:
                self._block(handler.body, scope)
            except Failed as inner:
                if inner.missing is None and inner.kind != "raise" and failure.missing is not None:
                    inner.missing, inner.chain = failure.missing, failure.chain
                raise
            finally:
                self.handling.pop()
            if handler.name:
                scope.names.pop(handler.name, None)
            return
        raise failure

    def _quiet(self, node: Any, scope: Scope) -> Any:
        try:
            return self.ev(node, scope)
        except Failed:
            return UNKNOWN

    def _note_handlers(self, node: Any, scope: Scope) -> None:
        """The body went through as far as can be seen; names its handlers would bind may exist all the same."""
        imports_only = all(isinstance(n, (ast.Import, ast.ImportFrom, ast.Pass)) for n in node.body)
        for handler in node.handlers:
            if imports_only and handler.type is not None:
                continue
            for name in _names_bound(handler.body):
                scope.names.setdefault(name, UNKNOWN)

    def _catches(self, failure: Failed, wanted: Any) -> bool:
        if isinstance(wanted, (tuple, ListOf)):
            items = wanted.items if isinstance(wanted, ListOf) else wanted
            return any(self._catches(failure, item) for item in items)
        error = failure.error
        if isinstance(wanted, type):
            if isinstance(error, type):
                return issubclass(error, wanted)
            if isinstance(error, Class):
                known = error.builtin_bases()
                return any(issubclass(b, wanted) for b in known) or (not known and wanted in (Exception, BaseException))
            return wanted in (Exception, BaseException)
        if isinstance(wanted, Class):
            stack = [error]
            while stack:
                item = stack.pop()
                if item is wanted:
                    return True
                if isinstance(item, Class):
                    stack.extend(item.bases)
        return False

    def _do_Match(self, node: Any, scope: Scope) -> None:
        self.ev(node.subject, scope)
        for case in node.cases:
            for name in _names_bound([case.pattern]) | {
                str(getattr(n, "name", "")) for n in ast.walk(case.pattern) if isinstance(getattr(n, "name", None), str)
            }:
                scope.names[name] = UNKNOWN
        self._either([(case.body, None) for case in node.cases] + [((), None)], scope)

    def _do_TypeAlias(self, node: Any, scope: Scope) -> None:
        self._bind(node.name, UNKNOWN, scope)

    # ---------------------------------------------------------------------------------------------- names

    def _set(self, name: str, value: Any, scope: Scope) -> None:
        if name in scope.globals:
            scope.module.names[name] = value
        else:
            scope.names[name] = value

    def _get(self, name: str, scope: Scope) -> Any:
        current: Optional[Scope] = scope
        first = True
        while current is not None:
            if (first or current.kind != "class") and name in current.names:
                return current.names[name]
            first = False
            current = current.parent
        if name in scope.module.names:
            return scope.module.names[name]
        if name in _BUILTIN_CALLS:
            return Native("builtins." + name)
        known = getattr(builtins, name, None)
        if isinstance(known, type):
            return known
        if hasattr(builtins, name) or scope.module.may_hold(name) or scope.kind != "module" or self.maybe:
            return UNKNOWN
        # A name that no `try` of the module would bind was put there by someone else.
        if name not in _PYTHON_2 and name not in self._bound_in_try(scope.module):
            return UNKNOWN
        raise Failed(NameError, None, "name-error", "name {!r} is not defined".format(name))

    def _bound_in_try(self, module: Module) -> Set[str]:
        tree = self._trees.get(module.spec.origin or module.name)
        if module.bound is None:
            tries = [n for n in getattr(tree, "body", []) if type(n).__name__ in ("Try", "TryStar")]
            module.bound = _names_bound(inner for node in tries for inner in node.body)
        return module.bound

    def _bind(self, target: Any, value: Any, scope: Scope) -> None:
        if isinstance(target, ast.Name):
            self._set(target.id, value, scope)
        elif isinstance(target, (ast.Tuple, ast.List)):
            items = self._items(value)
            if items is None or len(items) != len(target.elts) or any(isinstance(t, ast.Starred) for t in target.elts):
                items = [UNKNOWN] * len(target.elts)
            for element, item in zip(target.elts, items):
                self._bind(element, item, scope)
        elif isinstance(target, ast.Starred):
            self._bind(target.value, UNKNOWN, scope)
        elif isinstance(target, ast.Attribute):
            owner = self.ev(target.value, scope)
            if isinstance(owner, Module) and owner.name == "sys" and target.attr == "path":
                self._adds_to_path()
            elif isinstance(owner, (Module, Instance, Class)):
                owner.names[target.attr] = UNKNOWN if self.maybe else value
        elif isinstance(target, ast.Subscript):
            owner = self.ev(target.value, scope)
            key = self.ev(_index(target.slice), scope)
            if isinstance(owner, DictOf):
                if _constant(key) and not self.maybe:
                    owner.items[key] = value
                else:
                    owner.fuzzy = True
            elif isinstance(owner, Native) and owner.name == "globals":
                if isinstance(key, str):
                    owner.owner.names[key] = UNKNOWN if self.maybe else value
                else:
                    begins = self._begins(_index(target.slice))
                    owner.owner.prefixes += begins
                    owner.owner.open = owner.owner.open or not begins
            elif isinstance(owner, Native) and owner.name == "sys.modules" and isinstance(key, str):
                alias = value if isinstance(value, Module) else Module(key, Spec(key, "opaque", None, []))
                self.loaded.setdefault(key, alias)

    def _begins(self, node: Any) -> Tuple[str, ...]:
        """How the text in a variable begins, by a condition that holds here (`name.startswith("X")`); () where none says."""
        for test in self.tests:
            for part in test.values if isinstance(test, ast.BoolOp) and isinstance(test.op, ast.And) else [test]:
                if not isinstance(part, ast.Call) or len(part.args) != 1 or not isinstance(node, ast.Name):
                    continue
                if getattr(part.func, "attr", "") != "startswith" or getattr(getattr(part.func, "value", None), "id", "") != node.id:
                    continue
                try:
                    begins = ast.literal_eval(part.args[0])
                except ValueError:
                    continue
                begins = begins if isinstance(begins, tuple) else (begins,)
                if all(isinstance(text, str) and text for text in begins):
                    return begins
        return ()

    # ---------------------------------------------------------------------------------------------- expressions

    def _children(self, node: Any, scope: Scope) -> None:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.expr):
                self.ev(child, scope)
            elif isinstance(child, ast.keyword):
                self.ev(child.value, scope)

    def ev(self, node: Any, scope: Scope) -> Any:
        """The abstract value of an expression, with the effects of evaluating it."""
        kind = type(node)
        if kind is ast.Constant:
            return node.value
        if kind is ast.Name:
            return self._get(node.id, scope)
        if kind is ast.Attribute:
            return self._attribute(self.ev(node.value, scope), node.attr)
        if kind is ast.Call:
            return self._ev_call(node, scope)
        if kind is ast.Lambda:
            return Function(node, scope, {})
        method = getattr(self, "_ev_" + kind.__name__, None)
        if method is not None:
            return method(node, scope)
        if kind in (ast.GeneratorExp,):
            return UNKNOWN
        self._children(node, scope)
        return UNKNOWN

    def _ev_Tuple(self, node: Any, scope: Scope) -> Any:
        items = self._elements(node, scope)
        return UNKNOWN if items is None else tuple(items)

    def _elements(self, node: Any, scope: Scope) -> Optional[List[Any]]:
        items: List[Any] = []
        known = True
        for element in node.elts:
            if isinstance(element, ast.Starred):
                inner = self._items(self.ev(element.value, scope))
                if inner is None:
                    known = False
                else:
                    items.extend(inner)
            else:
                items.append(self.ev(element, scope))
        return items if known else None

    def _ev_List(self, node: Any, scope: Scope) -> Any:
        items = self._elements(node, scope)
        result = ListOf(items or [])
        result.fuzzy = items is None
        return result

    _ev_Set = _ev_List

    def _ev_Dict(self, node: Any, scope: Scope) -> Any:
        result = DictOf({})
        for key, value in zip(node.keys, node.values):
            made = self.ev(value, scope)
            if key is None:
                if isinstance(made, DictOf):
                    result.items.update(made.items)
                    result.fuzzy = result.fuzzy or made.fuzzy
                else:
                    result.fuzzy = True
                continue
            name = self.ev(key, scope)
            if _constant(name):
                result.items[name] = made
            else:
                result.fuzzy = True
        return result

    def _ev_JoinedStr(self, node: Any, scope: Scope) -> Any:
        parts: List[str] = []
        known = True
        for piece in node.values:
            if isinstance(piece, ast.Constant):
                parts.append(str(piece.value))
                continue
            value = self.ev(piece.value, scope)
            if isinstance(value, (str, int)) and piece.format_spec is None and piece.conversion in (-1, 115):
                parts.append(str(value))
            else:
                known = False
        return "".join(parts) if known else UNKNOWN

    def _ev_BinOp(self, node: Any, scope: Scope) -> Any:
        left, right = self.ev(node.left, scope), self.ev(node.right, scope)
        if isinstance(node.op, ast.Add):
            return self._add(left, right)
        if isinstance(node.op, ast.Mod) and isinstance(left, str) and _constant(right):
            try:
                return left % right
            except (TypeError, ValueError, KeyError):
                return UNKNOWN
        if isinstance(node.op, ast.Mult) and type(left) is int and type(right) is int:
            return left * right if abs(left) < 1 << 64 and abs(right) < 1 << 64 else UNKNOWN
        return UNKNOWN

    def _ev_UnaryOp(self, node: Any, scope: Scope) -> Any:
        value = self.ev(node.operand, scope)
        if isinstance(node.op, ast.Not):
            known = truth(value)
            return UNKNOWN if known is None else not known
        if isinstance(node.op, ast.USub) and type(value) in (int, float):
            return -value
        return UNKNOWN

    def _ev_BoolOp(self, node: Any, scope: Scope) -> Any:
        stops_on = isinstance(node.op, ast.Or)
        result: Any = UNKNOWN
        certain = True
        decided = False
        for operand in node.values:
            if not certain:
                self.maybe += 1
                try:
                    value = self.ev(operand, scope)
                except Failed:
                    value = UNKNOWN
                finally:
                    self.maybe -= 1
            else:
                value = self.ev(operand, scope)
            known = truth(value)
            if known is stops_on:
                if certain:
                    return value
                decided = True  # whatever the unknown ones are, the whole has this truth
                result = value
                break
            if known is None:
                certain = False
            result = value
        if certain:
            return result
        return stops_on if decided else UNKNOWN

    def _ev_IfExp(self, node: Any, scope: Scope) -> Any:
        known = truth(self.ev(node.test, scope))
        if known is not None:
            return self.ev(node.body if known else node.orelse, scope)
        self.maybe += 1
        try:
            for branch in (node.body, node.orelse):
                self._quiet(branch, scope)
        finally:
            self.maybe -= 1
        return UNKNOWN

    def _ev_NamedExpr(self, node: Any, scope: Scope) -> Any:
        value = self.ev(node.value, scope)
        self._bind(node.target, value, scope)
        return value

    def _ev_Compare(self, node: Any, scope: Scope) -> Any:
        left = self.ev(node.left, scope)
        result: Any = True
        for operator, comparator in zip(node.ops, node.comparators):
            right = self.ev(comparator, scope)
            one = self._compare(operator, left, right)
            if one is False:
                return False
            if one is UNKNOWN:
                result = UNKNOWN
            left = right
        return result

    def _compare(self, operator: Any, left: Any, right: Any) -> Any:
        if isinstance(operator, (ast.Is, ast.IsNot)):
            answer: Any = UNKNOWN
            if left is None or right is None:
                other = right if left is None else left
                if other is None:
                    answer = True
                elif not isinstance(other, Unknown):
                    answer = False
            elif isinstance(left, bool) and isinstance(right, bool):
                answer = left is right
            elif isinstance(left, (Module, Class, Function)) and isinstance(right, (Module, Class, Function)):
                answer = left is right
            return answer if answer is UNKNOWN or isinstance(operator, ast.Is) else not answer
        if isinstance(operator, (ast.In, ast.NotIn)):
            found = self._contains(right, left)
            return found if found is UNKNOWN or isinstance(operator, ast.In) else not found
        if left is right and isinstance(left, (Module, Class, Function)) and isinstance(operator, (ast.Eq, ast.NotEq)):
            return isinstance(operator, ast.Eq)
        if not (_constant(left) and _constant(right)):
            return UNKNOWN
        try:
            if isinstance(operator, ast.Eq):
                return left == right
            if isinstance(operator, ast.NotEq):
                return left != right
            if isinstance(operator, ast.Lt):
                return left < right
            if isinstance(operator, ast.LtE):
                return left <= right
            if isinstance(operator, ast.Gt):
                return left > right
            if isinstance(operator, ast.GtE):
                return left >= right
        except TypeError:
            pass
        return UNKNOWN

    def _contains(self, container: Any, item: Any) -> Any:
        if isinstance(container, Native) and container.name == "os.environ" and isinstance(item, str):
            return item in os.environ
        if isinstance(container, Native) and container.name == "sys.modules" and isinstance(item, str):
            return True if item in self.loaded else (False if self._nowhere(item) else UNKNOWN)
        if isinstance(container, Native) and container.name == "globals" and isinstance(item, str):
            return True if item in container.owner.names else (UNKNOWN if container.owner.may_hold(item) else False)
        if isinstance(container, str) and isinstance(item, str):
            return item in container
        if isinstance(container, (ListOf, DictOf)) and _constant(item):
            known = [v for v in container.items if _constant(v)]
            if any(v == item for v in known):
                return True
            return False if not container.fuzzy and len(known) == len(container.items) else UNKNOWN
        if isinstance(container, tuple) and _constant(container) and _constant(item):
            return item in container
        return UNKNOWN

    def _ev_Subscript(self, node: Any, scope: Scope) -> Any:
        owner = self.ev(node.value, scope)
        inner = _index(node.slice)
        if isinstance(inner, ast.Slice):
            bounds = [None if b is None else self.ev(b, scope) for b in (inner.lower, inner.upper, inner.step)]
            if isinstance(owner, (str, tuple)) and all(b is None or type(b) is int for b in bounds):
                return owner[slice(*bounds)]
            return UNKNOWN
        key = self.ev(inner, scope)
        if isinstance(owner, (tuple, str)) and type(key) is int:
            return owner[key] if -len(owner) <= key < len(owner) else UNKNOWN
        if isinstance(owner, ListOf) and type(key) is int and not owner.fuzzy:
            return owner.items[key] if -len(owner.items) <= key < len(owner.items) else UNKNOWN
        if isinstance(owner, DictOf) and _constant(key):
            return owner.items.get(key, UNKNOWN)
        if isinstance(owner, Native):
            if owner.name == "os.environ" and isinstance(key, str):
                if key in os.environ:
                    return os.environ[key]
                raise Failed(KeyError, None, "raise", "the variable {} is not set".format(key))
            if owner.name == "sys.modules" and isinstance(key, str):
                return self.loaded.get(key, UNKNOWN)
        return UNKNOWN

    def _comprehension(self, node: Any, scope: Scope, element: Any) -> Any:
        inner = Scope(scope.module, scope, {}, "function")
        first = node.generators[0]
        items = self._items(self.ev(first.iter, scope))
        simple = len(node.generators) == 1 and items is not None and len(items) <= MAX_ITERATIONS
        if not simple:
            return None
        result = ListOf([])
        for item in items or []:
            self._bind(first.target, item, inner)
            keep: Optional[bool] = True
            for test in first.ifs:
                known = truth(self.ev(test, inner))
                keep = known if keep else keep
                if known is False:
                    keep = False
                    break
                if known is None:
                    keep = None
            if keep is False:
                continue
            if keep is None:
                result.fuzzy = True
                continue
            result.items.append(element(inner))
        return result

    def _ev_ListComp(self, node: Any, scope: Scope) -> Any:
        made = self._comprehension(node, scope, lambda inner: self.ev(node.elt, inner))
        return UNKNOWN if made is None else made

    _ev_SetComp = _ev_ListComp
    _ev_GeneratorExp = _ev_ListComp

    def _ev_DictComp(self, node: Any, scope: Scope) -> Any:
        pairs = self._comprehension(node, scope, lambda inner: (self.ev(node.key, inner), self.ev(node.value, inner)))
        if pairs is None:
            return UNKNOWN
        result = DictOf({k: v for k, v in pairs.items if _constant(k)})
        result.fuzzy = pairs.fuzzy or len(result.items) != len(pairs.items)
        return result

    # ---------------------------------------------------------------------------------------------- attributes

    def _attribute(self, owner: Any, name: str) -> Any:
        if isinstance(owner, Module):
            return self._module_attribute(owner, name)
        if isinstance(owner, Instance):
            if name in owner.names:
                return owner.names[name]
            found = owner.cls.find(name)
            if isinstance(found, Function):
                return found if found.static else Bound(owner, found)
            return found
        if isinstance(owner, Class):
            found = owner.find(name)
            if isinstance(found, Function) and not found.static:
                kinds = [getattr(d, "id", "") for d in getattr(found.node, "decorator_list", [])]
                return Bound(owner, found) if "classmethod" in kinds else found
            return found
        if isinstance(owner, (str, tuple)) and owner is not sys.version_info:
            return Native("method." + name, owner)
        if owner is sys.version_info:
            return getattr(owner, name) if name in ("major", "minor", "micro", "releaselevel", "serial") else UNKNOWN
        if isinstance(owner, (ListOf, DictOf)):
            return Native("method." + name, owner)
        if isinstance(owner, Native) and owner.name in ("os.environ", "sys.modules", "sys.path", "sys.implementation"):
            if owner.name == "sys.implementation":
                return {"name": sys.implementation.name, "cache_tag": sys.implementation.cache_tag}.get(name, UNKNOWN)
            return Native(owner.name + "." + name)
        if isinstance(owner, Native) and owner.name == "__spec__":
            return {"name": owner.owner.name, "parent": owner.owner.package, "origin": owner.owner.spec.origin}.get(name, UNKNOWN)
        if isinstance(owner, Native) and owner.name == "globals":
            if name in ("update", "setdefault", "__setitem__", "pop"):
                owner.owner.open = True
            return UNKNOWN
        if name == "f_globals" and self.stack:
            self.stack[-1].open = True  # a function that reaches into the names of its caller
        if isinstance(owner, Raised) and name == "name" and owner.failure.missing:
            return owner.failure.missing.split(":")[0]
        return UNKNOWN

    def _module_attribute(self, module: Module, name: str) -> Any:
        if module.name == "sys":
            if name in _SYS_KNOWN:
                return getattr(sys, name)
            if name in ("exit", "modules", "implementation", "path"):
                return Native("sys." + name)
        if module.name == "os":
            if name == "name":
                return os.name
            if name == "environ":
                return Native("os.environ")
        if module.name == "typing" and name == "TYPE_CHECKING":
            return False
        if name in module.names:
            return module.names[name]
        full = module.name + "." + name
        if full in self.loaded:
            return self.loaded[full]
        return UNKNOWN

    def _qualified(self, value: Any) -> str:
        """`module.function` for functions of the standard library and of modules the walk knows."""
        if isinstance(value, Function) and value.scope.kind == "module" and hasattr(value.node, "name"):
            return str(value.scope.module.name + "." + value.node.name)
        if isinstance(value, Class):
            return value.module.name + "." + value.name
        if isinstance(value, Native):
            return value.name
        return ""

    # ---------------------------------------------------------------------------------------------- calls

    def _ev_call(self, node: Any, scope: Scope) -> Any:
        function = self.ev(node.func, scope)
        arguments: List[Any] = []
        exact = True
        for argument in node.args:
            if isinstance(argument, ast.Starred):
                inner = self._items(self.ev(argument.value, scope))
                exact = exact and inner is not None
                arguments.extend(inner or [])
            else:
                arguments.append(self.ev(argument, scope))
        keywords: Dict[str, Any] = {}
        for keyword in node.keywords:
            value = self.ev(keyword.value, scope)
            if keyword.arg is not None:
                keywords[keyword.arg] = value
            else:
                exact = False
        if not exact and isinstance(function, (Function, Bound)):
            arguments, keywords = [], {}
        if function is UNKNOWN and getattr(node.func, "id", getattr(node.func, "attr", "")) == "exec_":
            scope.module.open = True
        return self.call(function, arguments, keywords, node, scope)

    def call(
        self, function: Any, arguments: List[Any], keywords: Dict[str, Any], node: Any, scope: Optional[Scope] = None
    ) -> Any:
        """The abstract result of a call, with its effects."""
        for argument in [*arguments, *keywords.values()]:
            if isinstance(argument, Native) and argument.name == "globals":
                if not (isinstance(function, Native) and function.name in ("builtins.eval", "builtins.__import__")):
                    argument.owner.open = True
        if isinstance(function, Native):
            return self._native(function, arguments, keywords, node, scope)
        if isinstance(function, Bound):
            return self._enter(function.function, [function.owner, *arguments], keywords)
        if isinstance(function, Function):
            return self._known(function, arguments, keywords, node, scope)
        if isinstance(function, Class):
            return self._construct(function, arguments, keywords, node)
        if isinstance(function, Instance):
            method = function.cls.find("__call__")
            return self._enter(method, [function, *arguments], keywords) if isinstance(method, Function) else UNKNOWN
        if isinstance(function, type):
            if issubclass(function, BaseException):
                return Raised(Failed(function, None, "raise", arguments[0] if arguments and isinstance(arguments[0], str) else ""))
            return UNKNOWN
        return UNKNOWN

    def _construct(self, cls: Class, arguments: List[Any], keywords: Dict[str, Any], node: Any) -> Any:
        name = self._qualified(cls)
        if name == "contextlib.suppress":
            return Native(name, tuple(arguments))
        instance = Instance(cls)
        start = cls.find("__init__")
        if isinstance(start, Function) and not cls.module.stdlib:
            self._enter(start, [instance, *arguments], keywords)
        return instance

    def _known(
        self, function: Function, arguments: List[Any], keywords: Dict[str, Any], node: Any, scope: Optional[Scope]
    ) -> Any:
        name = self._qualified(function)
        module = function.scope.module
        first = arguments[0] if arguments else UNKNOWN
        if name in ("importlib.import_module", "importlib.__import__"):
            package = arguments[1] if len(arguments) > 1 else keywords.get("package")
            return self._dynamic(first if arguments else keywords.get("name"), package, node, scope)
        if name in ("importlib.util.find_spec", "pkgutil.find_loader", "importlib.find_loader", "imp.find_module"):
            return self._find_spec(first)
        if name in (
            "importlib.metadata.version", "importlib.metadata.distribution", "importlib.metadata.metadata",
            "importlib.metadata.requires", "importlib_metadata.version", "importlib_metadata.distribution",
            "importlib_metadata.metadata", "pkg_resources.get_distribution", "pkg_resources.require",
        ):  # fmt: skip
            return self._metadata(first, name, module)
        if module.name == "platform" and module.stdlib:
            read = _PLATFORM.get(function.node.name)
            return read() if read is not None else UNKNOWN
        if name in ("pytest.importorskip", "_pytest.outcomes.importorskip"):
            if self._present(first) is False:
                raise Failed(UNKNOWN, None, "raise", "skipped: {} is not there".format(first))
            return UNKNOWN
        if name in ("os.getenv", "os.environ.get"):
            return self._environment(arguments)
        if name in _PASS_THROUGH:
            takes_function = name != "functools.wraps" and isinstance(first, (Function, Class))
            return first if takes_function else Native("decorator")
        if name == "_pytest.outcomes.skip":
            raise Failed(UNKNOWN, None, "raise", "skipped")
        if module.stdlib:
            return UNKNOWN
        return self._enter(function, arguments, keywords)

    def _enter(self, function: Function, arguments: List[Any], keywords: Dict[str, Any]) -> Any:
        if function.context:
            return function
        if function.generator or function.scope.module.stdlib:
            return UNKNOWN
        return self._call_function(function, arguments, keywords)

    def _call_function(
        self, function: Function, arguments: List[Any], keywords: Dict[str, Any], strict: bool = False
    ) -> Any:
        if len(self.calls) >= MAX_CALL_DEPTH or any(function.node is other for other in self.calls):
            return UNKNOWN
        node = function.node
        names: Dict[str, Any] = {}
        spec = node.args
        positional = [a.arg for a in getattr(spec, "posonlyargs", []) + spec.args]
        for name in positional + [a.arg for a in spec.kwonlyargs]:
            names[name] = function.defaults.get(name, UNKNOWN)
        names.update(zip(positional, arguments))
        for name, value in keywords.items():
            if name in names:
                names[name] = value
        if spec.vararg:
            names[spec.vararg.arg] = tuple(arguments[len(positional) :]) if arguments else UNKNOWN
        if spec.kwarg:
            names[spec.kwarg.arg] = UNKNOWN
        inner = Scope(function.scope.module, function.scope, names, "function")
        outermost = not self.calls
        if outermost:
            self.steps = 0
        self.calls.append(node)
        frame = _Frame(loop=False)
        self.frames.append(frame)
        tests, self.tests = self.tests, []
        try:
            if isinstance(node, ast.Lambda):
                return self.ev(node.body, inner)
            self._block(node.body, inner)
            return _common([*frame.values, None])
        except _Return as stop:
            return _common([*frame.values, stop.value])
        except Failed as failure:
            if frame.left:
                return UNKNOWN
            # State that calls change is followed too loosely to believe that a call fails for reasons of its own.
            if strict or failure.missing is not None or self._catches(failure, ImportError) or _only_raises(node):
                raise
            return UNKNOWN
        except (_Exhausted, _Break, _Continue):
            function.scope.module.open = True
            if not outermost:
                raise _Exhausted() from None
            return UNKNOWN
        finally:
            self.tests = tests
            self.frames.pop()
            self.calls.pop()

    def _dynamic(self, name: Any, package: Any, node: Any, scope: Optional[Scope]) -> Any:
        if not isinstance(name, str) or scope is None:
            return UNKNOWN
        if name.startswith("."):
            if not isinstance(package, str):
                return UNKNOWN
            level = len(name) - len(name.lstrip("."))
            parts = package.split(".")
            if level > len(parts):
                return UNKNOWN
            base = ".".join(parts[: len(parts) - level + 1])
            tail = name[level:]
            name = base + "." + tail if tail else base
        if not all(part.isidentifier() for part in name.split(".")):
            return UNKNOWN
        return self._at(node, scope, name)

    def _nowhere(self, name: str) -> bool:
        """Whether a module cannot have been imported, because nothing provides its top-level name."""
        top = name.split(".")[0]
        return top not in self.loaded and self.finder.find(top) is None and not self._on_added_path(top)

    def _present(self, name: Any) -> Optional[bool]:
        """Whether `import name` would find something; None when it cannot be known."""
        if not isinstance(name, str) or not name:
            return None
        try:
            self.load(name)
        except Failed as failure:
            return None if failure.missing is None else False
        return True

    def _find_spec(self, name: Any) -> Any:
        if not isinstance(name, str) or not name or name.startswith("."):
            return UNKNOWN
        parent_name, _, _ = name.rpartition(".")
        parent = self.load(parent_name) if parent_name else None
        try:
            self._spec(name, parent)
        except Failed:
            if parent is not None and parent.locations is None:
                raise
            return None
        return THING

    def _metadata(self, name: Any, function: str, module: Module) -> Any:
        if not isinstance(name, str):
            return UNKNOWN
        wanted = re.sub(r"[-_.]+", "-", re.split(r"[\s\[<>=!~;(]", name, maxsplit=1)[0]).lower()
        if wanted in self.distributions():
            return UNKNOWN
        if function.startswith("pkg_resources"):
            raise Failed(UNKNOWN, None, "raise", "The {!r} distribution was not found".format(name))
        raised = Failed(module.names.get("PackageNotFoundError", ModuleNotFoundError), name, "distribution")
        raised.message = "No package metadata was found for {}".format(name)
        raise raised

    def distributions(self) -> Set[str]:
        """Canonical names of the distributions on the path."""
        if self._dists is None:
            self._dists = set()
            for entry in self.finder.path:
                try:
                    listed = os.listdir(entry)
                except OSError:
                    continue
                for item in listed:
                    if item.endswith((".dist-info", ".egg-info", ".egg-link")) and not item.startswith("~"):
                        stem = item.rsplit(".", 1)[0].split("-")[0]
                        self._dists.add(re.sub(r"[-_.]+", "-", stem).lower())
        return self._dists

    @staticmethod
    def _environment(arguments: List[Any]) -> Any:
        if not arguments or not isinstance(arguments[0], str):
            return UNKNOWN
        return os.environ.get(arguments[0], arguments[1] if len(arguments) > 1 else None)

    def _native(
        self, function: Native, arguments: List[Any], keywords: Dict[str, Any], node: Any, scope: Optional[Scope]
    ) -> Any:
        name = function.name
        first = arguments[0] if arguments else UNKNOWN
        if name == "sys.exit" or name in ("builtins.exit", "builtins.quit"):
            raise Failed(SystemExit, None, "raise", "sys.exit")
        if name == "decorator":
            return first
        if name in ("sys.path.insert", "sys.path.append", "sys.path.extend"):
            self._adds_to_path()
            return None
        if name.startswith("os.environ."):
            return self._environment(arguments) if name in ("os.environ.get", "os.environ.setdefault") else UNKNOWN
        if name in ("sys.modules.get", "sys.modules.setdefault"):
            if not isinstance(first, str):
                return UNKNOWN
            if first not in self.loaded and self._nowhere(first):
                return arguments[1] if len(arguments) > 1 else None
            return self.loaded.get(first, UNKNOWN)
        if name.startswith("method."):
            return self._method(name[7:], function.owner, arguments, keywords)
        if name.startswith("builtins."):
            return self._builtin(name[9:], arguments, keywords, node, scope)
        return UNKNOWN

    def _method(self, name: str, owner: Any, arguments: List[Any], keywords: Dict[str, Any]) -> Any:
        if isinstance(owner, ListOf):
            if name in ("append", "add", "insert", "extend", "update"):
                value = arguments[-1] if arguments else UNKNOWN
                if self.maybe:
                    owner.fuzzy = True
                elif name in ("append", "add", "insert"):
                    owner.items.append(value)
                else:
                    more = self._items(value)
                    owner.items.extend(more or [])
                    owner.fuzzy = owner.fuzzy or more is None
                return None
            if name in ("remove", "pop", "clear", "discard"):
                owner.items.clear()
                owner.fuzzy = True
            return UNKNOWN
        if isinstance(owner, DictOf):
            if name == "get" and arguments and _constant(arguments[0]):
                if arguments[0] in owner.items:
                    return owner.items[arguments[0]]
                return UNKNOWN if owner.fuzzy else (arguments[1] if len(arguments) > 1 else None)
            if name in ("items", "keys", "values"):
                if name == "items":
                    made: List[Any] = list(owner.items.items())
                else:
                    made = list(owner.items) if name == "keys" else list(owner.items.values())
                result = ListOf(made)
                result.fuzzy = owner.fuzzy
                return result
            if name in ("update", "setdefault", "pop", "clear"):
                owner.fuzzy = True
            return UNKNOWN
        if name in _PURE_METHODS and all(_constant(a) for a in arguments) and not keywords:
            try:
                made = getattr(owner, name)(*arguments)
            except Exception:  # a call that would raise: its effect is not modelled
                return UNKNOWN
            return ListOf(made) if isinstance(made, list) else made
        if name == "join" and isinstance(first := (arguments[0] if arguments else None), ListOf) and not first.fuzzy:
            if all(isinstance(i, str) for i in first.items):
                return owner.join(first.items)
        return UNKNOWN

    def _builtin(
        self, name: str, arguments: List[Any], keywords: Dict[str, Any], node: Any, scope: Optional[Scope]
    ) -> Any:
        first = arguments[0] if arguments else UNKNOWN
        if name == "__import__":
            level = arguments[4] if len(arguments) > 4 else keywords.get("level", 0)
            if not isinstance(first, str) or scope is None or level not in (0, -1):
                return UNKNOWN
            module = self._dynamic(first, None, node, scope)
            wanted = arguments[3] if len(arguments) > 3 else keywords.get("fromlist")
            if truth(wanted):
                for item in self._items(wanted) or []:
                    if isinstance(module, Module) and isinstance(item, str) and item != "*":
                        try:
                            self.name_in(module, item)
                        except Failed as failure:
                            if failure.kind != "name":
                                raise
                return module
            return self.loaded.get(first.split(".")[0], module)
        if name in ("hasattr", "getattr") and len(arguments) >= 2 and isinstance(arguments[1], str):
            return self._getattr(name, first, arguments[1], arguments[2:])
        if name == "setattr" and len(arguments) == 3 and isinstance(first, (Module, Class, Instance)):
            if isinstance(arguments[1], str):
                first.names[arguments[1]] = UNKNOWN if self.maybe else arguments[2]
            elif isinstance(first, Module):
                first.open = True
            return None
        if name in ("tuple", "list", "set", "frozenset", "sorted", "reversed"):
            items = [] if not arguments else self._items(first)
            if items is None:
                return UNKNOWN
            return tuple(items) if name == "tuple" else ListOf(items)
        if name == "dict":
            made = DictOf(dict(first.items) if isinstance(first, DictOf) else {})
            made.fuzzy = (first.fuzzy if isinstance(first, DictOf) else bool(arguments)) or bool(node.keywords)
            return made
        if name == "enumerate":
            items = self._items(first)
            return UNKNOWN if items is None or len(arguments) > 1 else ListOf(list(enumerate(items)))
        if name == "zip":
            groups = [self._items(a) for a in arguments]
            return UNKNOWN if not groups or None in groups else ListOf(list(zip(*[g or [] for g in groups])))
        if name == "range" and arguments and all(type(a) is int for a in arguments):
            made_range = range(*arguments)
            return ListOf(list(made_range)) if len(made_range) <= MAX_ITERATIONS else UNKNOWN
        if name == "bool" and arguments:
            known = truth(first)
            return UNKNOWN if known is None else known
        if name == "len":
            if isinstance(first, (str, tuple)):
                return len(first)
            items = self._items(first)
            return UNKNOWN if items is None else len(items)
        if name in ("any", "all"):
            items = self._items(first)
            if items is None:
                return UNKNOWN
            truths = [truth(i) for i in items]
            if name == "any":
                return True if True in truths else (UNKNOWN if None in truths else False)
            return False if False in truths else (UNKNOWN if None in truths else True)
        if name == "int" and isinstance(first, (str, int)) and len(arguments) == 1:
            try:
                return int(first)
            except ValueError:
                return UNKNOWN
        if name == "str" and isinstance(first, (str, int)) and len(arguments) == 1:
            return str(first)
        if scope is not None and not arguments and (
            name == "globals" or name in ("locals", "vars") and scope.kind == "module"
        ):
            return Native("globals", scope.module)
        if name == "exec" and scope is not None:
            scope.module.open = True
        if name == "callable" and isinstance(first, (Function, Class, Bound)):
            return True
        return UNKNOWN

    def _getattr(self, name: str, owner: Any, attribute: str, default: List[Any]) -> Any:
        if not isinstance(owner, Module):
            return UNKNOWN
        value = self._module_attribute(owner, attribute)
        present: Optional[bool] = True
        if attribute not in owner.names and value is UNKNOWN:
            closed = not owner.open and not owner.prefixes and owner.index < 0 and "__getattr__" not in owner.names
            present = False if closed else None
        if name == "hasattr":
            return UNKNOWN if present is None else present
        if present is False and default:
            return default[0]
        return value


def _index(node: Any) -> Any:
    """The expression in a subscript; Python 3.8 wraps it."""
    return node.value if type(node).__name__ == "Index" else node


# -------------------------------------------------------------------------------------------------------------- answers


def near(name: str, names: Iterable[str]) -> List[str]:
    """Existing names that a reader may have meant."""
    return difflib.get_close_matches(name, sorted(names), n=3, cutoff=0.75)


def _metadata(entry: str) -> List[str]:
    """Names of the metadata directories (or files) at a path entry; leftovers of an interrupted uninstall are left out."""
    try:
        listed = sorted(os.listdir(entry))
    except OSError:
        return []
    return [item for item in listed if item.endswith((".dist-info", ".egg-info")) and not item.startswith("~")]


def owners(finder: Finder, origins: Iterable[str]) -> Dict[str, Tuple[str, str]]:
    """The distribution (name, version) whose RECORD or file list holds each path; paths nobody owns are left out."""
    wanted: Dict[str, Dict[str, str]] = {}
    for origin in origins:
        for entry in finder.path:
            prefix = entry.rstrip(os.sep) + os.sep
            if origin.startswith(prefix):
                wanted.setdefault(entry, {})[origin[len(prefix) :].replace(os.sep, "/")] = origin
    result: Dict[str, Tuple[str, str]] = {}
    for entry, relative in wanted.items():
        for item in _metadata(entry):
            base = os.path.join(entry, item)
            text = ""
            for name in ("RECORD", "installed-files.txt", "SOURCES.txt", "top_level.txt"):
                try:
                    with open(os.path.join(base, name), encoding="utf-8", errors="replace") as file:
                        text = file.read()
                except OSError:
                    continue
                break
            for path, origin in relative.items():
                if origin in result:
                    continue
                quoted = '"' + path + '"' if "," in path else path
                if name == "RECORD":
                    hit = ("\n" + text).find("\n" + quoted + ",") >= 0
                elif name == "top_level.txt":
                    hit = path.split("/")[0].split(".")[0] in text.split()
                else:
                    hit = any(line.strip().endswith(path) for line in text.splitlines())
                if hit:
                    result[origin] = _identity(base, item)
    return result


def _identity(directory: str, item: str) -> Tuple[str, str]:
    name = version = ""
    for file_name in ("METADATA", "PKG-INFO"):
        try:
            with open(os.path.join(directory, file_name), encoding="utf-8", errors="replace") as file:
                for line in file:
                    if not line.strip():
                        break
                    key, _, value = line.partition(":")
                    if key.lower() == "name":
                        name = value.strip()
                    elif key.lower() == "version":
                        version = value.strip()
        except OSError:
            continue
        break
    stem = item.rsplit(".", 1)[0].split("-")
    return name or stem[0], version or (stem[1] if len(stem) > 1 else "")


def verdict(machine: Machine, module: str, names: Sequence[str] = ()) -> Dict[str, Any]:
    """Whether `from module import names` works in a new process of this interpreter.

    `status` is ok, fails or unknown; `kind` says on which rung: module (the top-level package is absent), submodule,
    not-a-package, tag (an extension file for another interpreter is there), name, distribution (its metadata is
    absent), relative, syntax, raise (the module raises something of its own accord); `chain` are the import statements
    (module, file, line) from the module asked for down to the one that fails, empty when the failure is direct.
    """
    machine.fresh()
    result: Dict[str, Any] = {"module": module, "status": "ok", "names": {}}
    try:
        loaded = machine.load(module)
    except Failed as failure:
        result.update(_failure(machine, failure))
        absent = _ladder(machine, module) if failure.chain else None
        if absent is not None:  # the package fails on its own account, and does not have the module either
            behind = {key: value for key, value in result.items() if key not in ("module", "names")}
            result.update(_failure(machine, absent), behind=behind)
        return result
    except RecursionError:
        result.update(status="unknown", reason="the import is nested too deeply to follow")
        return result
    result["origin"] = loaded.spec.origin
    if loaded.spec.kind == "opaque":
        parent = module.rpartition(".")[0]
        reason = "{} has no file for it and may make it when it runs".format(parent) if loaded.spec.unseen else "made at run time"
        result.update(status="unknown", reason=reason)
    result["package"] = loaded.locations is not None
    for name in names:
        result["names"][name] = _name_verdict(machine, loaded, name)
    result["complete"] = not machine.late
    return result


def _ladder(machine: Machine, name: str) -> Optional[Failed]:
    """What a walk along the path alone finds missing, where the packages passed do not make modules at run time."""
    parent: Optional[Module] = None
    parts = name.split(".")
    for i in range(len(parts)):
        part = ".".join(parts[: i + 1])
        try:
            spec = machine._spec(part, parent)
            parent = Module(part, spec)
            machine._tree(parent)
        except Failed as failure:
            return failure if failure.missing else None
    return None


def _name_verdict(machine: Machine, module: Module, name: str) -> Dict[str, Any]:
    if name == "*":
        return {"status": "ok"}
    try:
        value = machine.name_in(module, name)
    except Failed as failure:
        return _failure(machine, failure)
    except RecursionError:
        return {"status": "unknown"}
    if name in module.names or isinstance(value, Module):
        return {"status": "ok"}
    return {"status": "unknown", "reason": "the module makes its names at run time"}


def _failure(machine: Machine, failure: Failed) -> Dict[str, Any]:
    finder = machine.finder
    missing = failure.missing
    answer: Dict[str, Any] = {
        "status": "fails", "kind": failure.kind, "missing": missing, "message": failure.message,
        "error": failure.error.__name__ if isinstance(failure.error, type) else getattr(failure.error, "name", None),
        "chain": [{"module": m, "file": f, "line": n} for m, f, n in failure.chain],
    }  # fmt: skip
    if missing is None or failure.kind == "distribution":
        return answer
    module, _, name = missing.partition(":")
    parent, _, last = module.rpartition(".")
    if failure.kind == "name":
        spec = _locate(finder, module)
        loaded = machine.loaded.get(module) or machine.done.get(module)
        known = set(loaded.names) if loaded is not None else set()
        if spec is not None:
            known |= finder.siblings(spec.locations) if spec.locations else set()
            answer["parent"] = {"module": module, "origin": spec.origin}
        answer["near"] = near(name, known)
    else:
        spec = _locate(finder, parent) if parent else None
        locations = spec.locations if spec is not None else None
        if spec is not None:
            answer["parent"] = {"module": parent, "origin": spec.origin, "kind": spec.kind}
        if not parent or locations:
            tagged = finder.other_tags(module, locations)
            if tagged:
                answer["kind"], answer["files"] = "tag", tagged
            answer["near"] = near(last, finder.siblings(locations))
            if parent:
                answer["near"] = [parent + "." + n for n in answer["near"]]
    return answer


def _locate(finder: Finder, name: str) -> Optional[Spec]:
    """Where a dotted name comes from by the path alone."""
    spec: Optional[Spec] = None
    parts = name.split(".")
    for i in range(len(parts)):
        if i and (spec is None or spec.locations is None):
            return None
        spec = finder.find(".".join(parts[: i + 1]), None if spec is None else spec.locations)
    return spec


def _origins(finder: Finder, name: str) -> Iterator[str]:
    """Files that stand for a module and its parents: whoever owns one of them provides the module."""
    parts = name.split(".")
    for i in range(len(parts), 0, -1):
        spec = _locate(finder, ".".join(parts[:i]))
        if spec is not None and spec.origin:
            yield spec.origin
            return
        if spec is not None and spec.kind == "namespace" and i == len(parts):
            for location in spec.locations or []:
                try:
                    inside = sorted(os.listdir(location))
                except OSError:
                    continue
                for item in inside:
                    if item.endswith(".py"):
                        yield os.path.join(location, item)
                        return


def answer(request: Dict[str, Any]) -> Dict[str, Any]:
    """Answer a request; both sides are JSON values.

    Request: `scripts`, a list of {`modules` (list of {module, names}), `local` (top-level names that lie beside the
    script), `sources` (list of {file, text} to compile, not to run)}; optionally `path` (replaces sys.path), `prepend`
    (directories of this machine searched first), `distributions` (names whose version is asked for), `seconds` (bound of
    the walk, default 20).
    Answer: `schema` "envspec/imports/1", `python`, `executable`, `path`, `host` (the values gates are decided by),
    `markers` (PEP 508), `distributions` (canonical name -> version or None), `complete` (False when the bound was
    reached), and `scripts`: for each {`modules` (one `verdict` for each, with `owner` {name, version} where a
    distribution owns what was found), `local` (what each local name hides), `syntax` (file -> {line, message} for sources
    this interpreter cannot compile)}.
    """
    base = request.get("path")
    path = list(search_path() if base is None else base)
    path = [os.path.expanduser(p) for p in request.get("prepend") or []] + [p for p in path if p]
    deadline = time.monotonic() + float(request.get("seconds") or 20)
    plain = Finder(path)
    machines: Dict[Tuple[str, ...], Machine] = {}
    trees: Dict[str, Any] = {}
    scripts = []
    for script in request.get("scripts") or []:
        local = tuple(sorted(str(name) for name in script.get("local") or []))
        if local not in machines:
            machines[local] = Machine(Finder(path, local), deadline, trees)
        scripts.append(_script_answer(script, local, machines[local], plain))
    return {
        "schema": "envspec/imports/1",
        "python": "{}.{}.{}".format(*sys.version_info[:3]),
        "executable": sys.executable,
        "path": plain.path,
        "host": host_values(),
        "markers": markers(),
        "distributions": _versions(plain, [str(name) for name in request.get("distributions") or []]),
        "complete": not any(machine.late for machine in machines.values()),
        "scripts": scripts,
    }


def _script_answer(script: Dict[str, Any], local: Tuple[str, ...], machine: Machine, plain: Finder) -> Dict[str, Any]:
    modules = []
    found: Dict[str, List[str]] = {}
    for item in script.get("modules") or []:
        name = str(item["module"])
        modules.append(verdict(machine, name, [str(n) for n in item.get("names") or []]))
        found[name] = list(_origins(plain, name))
    hidden: Dict[str, Any] = {}
    specs = {name: plain.find(name) for name in local}
    for name, spec in specs.items():
        if spec is not None:
            found[name] = [spec.origin] if spec.origin else list(_origins(plain, name))
    owned = owners(plain, [origin for origins in found.values() for origin in origins])

    def owner(name: str) -> Optional[Dict[str, str]]:
        for origin in found[name]:
            if origin in owned:
                return {"name": owned[origin][0], "version": owned[origin][1]}
        return None

    for entry in modules:
        who = owner(entry["module"])
        if who is not None:
            entry["owner"] = who
    for name, spec in specs.items():
        if spec is not None:
            hidden[name] = {"origin": spec.origin, "stdlib": plain.is_stdlib(spec), "owner": owner(name)}
    syntax: Dict[str, Any] = {}
    for source in script.get("sources") or []:
        message = compile_error(str(source["text"]))
        if message is not None:
            syntax[str(source["file"])] = message
    return {"modules": modules, "local": hidden, "syntax": syntax}


def _versions(finder: Finder, names: Sequence[str]) -> Dict[str, Optional[str]]:
    """The version of the first distribution of each name on the path, None where there is none."""
    wanted = {re.sub(r"[-_.]+", "-", name).lower() for name in names}
    result: Dict[str, Optional[str]] = dict.fromkeys(wanted)
    for entry in finder.path if wanted else ():
        for item in _metadata(entry):
            name = re.sub(r"[-_.]+", "-", item.rsplit(".", 1)[0].split("-")[0]).lower()
            if name in wanted and result[name] is None:
                result[name] = _identity(os.path.join(entry, item), item)[1]
    return result


def markers() -> Dict[str, str]:
    """The PEP 508 marker values of this interpreter."""
    import platform

    info = sys.implementation.version
    version = "{}.{}.{}".format(*info[:3])
    if info.releaselevel != "final":
        version += info.releaselevel[0] + str(info.serial)
    return {
        "implementation_name": sys.implementation.name,
        "implementation_version": version,
        "os_name": os.name,
        "platform_machine": platform.machine(),
        "platform_python_implementation": platform.python_implementation(),
        "platform_release": platform.release(),
        "platform_system": platform.system(),
        "platform_version": platform.version(),
        "python_full_version": platform.python_version(),
        "python_version": "{}.{}".format(*sys.version_info[:2]),
        "sys_platform": sys.platform,
    }


def compile_error(text: str) -> Optional[Dict[str, Any]]:
    """The syntax error of a source text on this interpreter, None when it compiles."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            compile(text, "<script>", "exec", dont_inherit=True)
    except (SyntaxError, ValueError) as error:
        return {"line": getattr(error, "lineno", None) or 0, "message": str(getattr(error, "msg", error))}
    except (RecursionError, MemoryError):
        return None
    return None


def host_values() -> Dict[str, Any]:
    """The values by which platform and version gates in a script are decided for this host."""
    uname: Sequence[str] = tuple(os.uname()) if hasattr(os, "uname") else ("Windows", "", "", "", "")
    return {
        "sys.version_info": [*sys.version_info[:3], sys.version_info.releaselevel, sys.version_info.serial],
        "sys.hexversion": sys.hexversion,
        "sys.platform": sys.platform,
        "sys.byteorder": sys.byteorder,
        "sys.maxsize": sys.maxsize,
        "sys.implementation.name": sys.implementation.name,
        "os.name": os.name,
        "platform.system()": uname[0],
        "platform.machine()": uname[4],
        "platform.python_implementation()": {"cpython": "CPython", "pypy": "PyPy"}.get(sys.implementation.name, ""),
        "platform.python_version()": "{}.{}.{}".format(*sys.version_info[:3]),
    }


PROBE: Optional[str] = None  # the text of the snapshot probe, where it was sent along


def search_path() -> List[str]:
    """`sys.path` as a script would find it, without the script's own directory.

    The source is run with `-S`, so that no `.pth` line is executed; the snapshot probe knows what `site` would add.
    """
    if PROBE is None:
        return [entry for entry in sys.path if entry]
    space: Dict[str, Any] = {"__name__": "envspec_probe"}
    exec(compile(PROBE, "<envspec probe>", "exec", 0, True), space)  # noqa: S102 -- envspec's own source
    path = space["SearchPath"]()
    path.build(space["Python"](), [])
    return [entry["path"] for entry in path.entries]


def main(request: Dict[str, Any]) -> Dict[str, Any]:
    """`answer` on a stack deep enough for long chains of imports."""
    result: List[Any] = []

    def work() -> None:
        try:
            result.append(answer(request))
        except BaseException as error:
            result.append(error)

    limit, collecting = sys.getrecursionlimit(), gc.isenabled()
    gc.disable()  # syntax trees are many small objects, all of them alive: collecting triples the time of parsing
    try:
        threading.stack_size(256 << 20)
        sys.setrecursionlimit(20000)
    except (ValueError, RuntimeError):
        pass
    thread = threading.Thread(target=work)
    try:
        thread.start()
        thread.join()
    except RuntimeError:  # this host allows no further thread, or none with such a stack
        sys.setrecursionlimit(limit)
        work()
    sys.setrecursionlimit(limit)
    threading.stack_size(0)
    if collecting:
        gc.enable()
    if isinstance(result[0], BaseException):
        raise result[0]
    return dict(result[0])
