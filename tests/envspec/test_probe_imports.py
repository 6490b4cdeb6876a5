"""The resolver: where modules come from and what importing them would do, beside what an interpreter really does."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import sysconfig
import threading
import zipfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from envspec import probe_imports
from envspec.probe_imports import Failed, Finder, Machine

PROBE = Path(probe_imports.__file__)


def write(root: Path, files: Mapping[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return root


def stdlib() -> list[str]:
    paths = sysconfig.get_paths()
    return [paths["stdlib"], str(Path(paths["stdlib"]) / "lib-dynload")]


def asked(path: list[str], module: str, *names: str, **request: Any) -> dict[str, Any]:
    answer = probe_imports.main({
        "path": [*path, *stdlib()], "scripts": [{"modules": [{"module": module, "names": list(names)}], **request}],
    })  # fmt: skip
    return dict(answer["scripts"][0]["modules"][0])


def test_where_no_further_thread_is_allowed_the_answer_is_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = [str(write(tmp_path, {"package/__init__.py": "import nowhere"}))]
    before = asked(path, "package")

    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    assert asked(path, "package") == before


TRUTH = """
import json, os, sys
sys.path.insert(0, sys.argv[1])
from reality_worker import name_of
sys.path.pop(0)
for line in sys.stdin:
    path, statement = json.loads(line)
    reader, writer = os.pipe()
    pid = os.fork()
    if not pid:
        sys.path[:0] = path
        try:
            exec(statement)
        except BaseException as error:
            result = [False, name_of(error)]
        else:
            result = [True, None]
        os.write(writer, json.dumps(result).encode())
        os._exit(0)
    os.close(writer)
    os.waitpid(pid, 0)
    with os.fdopen(reader) as file:
        print(file.read(), flush=True)
"""

Truth = Callable[..., tuple[bool, str | None]]


@pytest.fixture(scope="module")
def truly() -> Iterator[Truth]:
    """What a new process does, with the same search path: imports or not, and on which name it fails.

    Each answer comes from a fork of one interpreter that has imported nothing of the kind.
    """
    command = [sys.executable, "-E", "-s", "-S", "-B", "-c", TRUTH, str(Path(__file__).parent)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None

        def ask(path: list[str], module: str, *names: str) -> tuple[bool, str | None]:
            statement = f"from {module} import {', '.join(names)}" if names else f"import {module}"
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdin.write(json.dumps([path, statement]) + "\n")
            process.stdin.flush()
            ok, name = json.loads(process.stdout.readline())
            return bool(ok), name

        yield ask
        process.stdin.close()


# Each case: the files of a site directory, and the import that is asked for.
CASES: dict[str, tuple[dict[str, str], str, tuple[str, ...]]] = {
    "package": ({"a/__init__.py": ""}, "a", ()),
    "submodule": ({"a/__init__.py": "", "a/b/__init__.py": "", "a/b/c.py": ""}, "a.b.c", ()),
    "missing package": ({}, "a.b", ()),
    "missing submodule": ({"a/__init__.py": ""}, "a.b", ()),
    "missing deep submodule": ({"a/__init__.py": "", "a/b/__init__.py": ""}, "a.b.c", ()),
    "not a package": ({"a/__init__.py": "", "a/b.py": ""}, "a.b.c", ()),
    "namespace": ({"ns/x.py": ""}, "ns.x", ()),
    "namespace in a namespace": ({"ns/deep/x.py": ""}, "ns.deep.x", ()),
    "missing in a namespace": ({"ns/deep/x.py": ""}, "ns.deep.y", ()),
    "name": ({"a.py": "X = 1\n"}, "a", ("X",)),
    "missing name": ({"a.py": "X = 1\n"}, "a", ("Y",)),
    "name that is a submodule": ({"a/__init__.py": "", "a/b.py": ""}, "a", ("b",)),
    "name by star": ({"a.py": "from b import *\n", "b.py": "X = 1\n"}, "a", ("X",)),
    "missing by star": ({"a.py": "from b import *\n", "b.py": "_X = 1\n"}, "a", ("_X",)),
    "star with __all__": ({"a.py": "from b import *\n", "b.py": "__all__ = ['_X']\n_X = Y = 1\n"}, "a", ("_X",)),
    "star without a name": ({"a.py": "from b import *\n", "b.py": "__all__ = ['X']\nX = Y = 1\n"}, "a", ("Y",)),
    "module __getattr__": (
        {"a.py": "def __getattr__(n):\n    if n == 'X':\n        return 1\n    raise AttributeError(n)\n"}, "a", ("X",),
    ),
    "__getattr__ importing what is missing": (
        {"a.py": "import importlib\ndef __getattr__(n):\n    return getattr(importlib.import_module('gone'), n)\n"}, "a", ("X",),
    ),
    "lazy table of where each name comes from": (
        {
            "a/__init__.py": "from importlib import import_module\n_T = {'X': (__spec__.parent, '.b'), 'Y': (__spec__.name, '.c')}\n"
            "def __getattr__(n):\n    package, name = _T[n]\n    return getattr(import_module(name, package=package), n)\n",
            "a/b.py": "import gone\nX = 1\n",
            "a/c.py": "Y = 1\n",
        },
        "a", ("Y", "X"),
    ),
    "a spec is there": ({"a.py": "if __spec__ is None or not __spec__.origin.endswith('a.py'):\n    import gone\n"}, "a", ()),
    "lazy table": (
        {
            "a/__init__.py": "_T = {'X': '.b'}\ndef __getattr__(n):\n    if n not in _T:\n        raise AttributeError(n)\n"
            "    import importlib\n    return getattr(importlib.import_module(_T[n], __name__), n)\n",
            "a/b.py": "import gone\nX = 1\n",
        }, "a", ("X",),
    ),
    "names by globals": ({"a.py": "globals().update(X=1)\n"}, "a", ("X",)),
    "own import": ({"a.py": "import gone.x\n"}, "a", ()),
    "own import by way of another": ({"a.py": "import b\n", "b.py": "from gone import x\n"}, "a", ()),
    "caught": ({"a.py": "try:\n    import gone\nexcept ImportError:\n    gone = None\n"}, "a", ("gone",)),
    "caught too narrowly": ({"a.py": "try:\n    import gone\nexcept ValueError:\n    pass\n"}, "a", ()),
    "caught and raised": ({"a.py": "try:\n    import gone\nexcept ImportError as e:\n    raise ImportError('x') from e\n"}, "a", ()),
    "fallback": ({"a.py": "try:\n    import gone\nexcept ImportError:\n    import lost\n"}, "a", ()),
    "fallback there": ({"a.py": "try:\n    import gone\nexcept ImportError:\n    import b\n", "b.py": ""}, "a", ()),
    "else": ({"a.py": "try:\n    import b\nexcept ImportError:\n    pass\nelse:\n    import gone\n", "b.py": ""}, "a", ()),
    "finally": ({"a.py": "try:\n    pass\nfinally:\n    import gone\n"}, "a", ()),
    "suppressed": ({"a.py": "import contextlib\nwith contextlib.suppress(ImportError):\n    import gone\n"}, "a", ()),
    "swallowed by a class that decides": (
        {"a.py": "class Trap:\n    def __enter__(self):\n        return self\n    def __exit__(self, kind, value, trace):\n        return kind and issubclass(kind, Exception)\n"
                 "with Trap():\n    import gone\n"}, "a", (),
    ),
    "not swallowed by a class that returns False": (
        {"a.py": "class Trap:\n    def __enter__(self):\n        return self\n    def __exit__(self, *what):\n        if what:\n            return False\n"
                 "with Trap():\n    import gone\n"}, "a", (),
    ),
    "not yet among the module's names": (
        {"a.py": "class Late:\n    def start(self):\n        if 'gone' in globals():\n            return\n        global gone\n        try:\n            import gone\n"
                 "        except ImportError as e:\n            gone = None\n            raise ImportError('needed') from e\nLate().start()\n"}, "a", (),
    ),
    "names that begin as the others that are made": (
        {"a.py": "import b\nto = globals()\nfor name in dir(b):\n    if name.startswith('RLIM') and name.isupper():\n        to[name] = getattr(b, name)\n", "b.py": "import sys\nexec('RLIM_X = 1')\n"},
        "a", ("RLIM_X",),
    ),
    "a name that does not begin as those that are made": (
        {"a.py": "import b\nto = globals()\nfor name in dir(b):\n    if name.startswith('RLIM') and name.isupper():\n        to[name] = getattr(b, name)\n", "b.py": "RLIM_X = OTHER = 1\n"},
        "a", ("OTHER",),
    ),
    "child of a package that fails after it": (
        {"a/__init__.py": "try:\n    from . import b\nexcept ImportError:\n    pass\n", "a/b/__init__.py": "from . import c\nimport gone\n", "a/b/c.py": ""}, "a.b.c", (),
    ),
    "one class under two names": (
        {"a.py": "import b\nclass C:\n    @classmethod\n    def f(cls):\n        import gone\nD = C\nif D != C:\n    class C:\n        f = print\nC.f()\n", "b.py": ""}, "a", (),
    ),
    "an object in the place of its module": (
        {"a/__init__.py": "import sys, types\nclass auto(types.ModuleType):\n    pass\nold = sys.modules[__name__]\nnew = auto(__name__)\n"
                          "new.__dict__.update(old.__dict__)\nsys.modules[__name__] = new\ndel new, old, sys, types\n", "b.py": "from a.gone import X\n"}, "b", (),
    ),
    "another module in its place": (
        {"a/__init__.py": "import sys, c\nsys.modules[__name__] = c\n", "c/__init__.py": "", "c/d.py": "", "b.py": "import a.d\n"}, "b", (),
    ),
    "flag": (
        {"a.py": "try:\n    import gone\n    HAS = True\nexcept ImportError:\n    HAS = False\nif HAS:\n    import lost\n"}, "a", (),
    ),
    "flag not set": (
        {"a.py": "try:\n    import gone\n    HAS = True\nexcept ImportError:\n    HAS = False\nif not HAS:\n    import lost\n"}, "a", (),
    ),
    "find_spec": ({"a.py": "from importlib.util import find_spec\nif find_spec('gone'):\n    import gone\n"}, "a", ()),
    "find_spec there": (
        {"a.py": "from importlib.util import find_spec\nif find_spec('b') is not None:\n    import gone\n", "b.py": ""}, "a", (),
    ),
    "other platform": ({"a.py": "import sys\nif sys.platform == 'amiga':\n    import gone\n"}, "a", ()),
    "this platform": (
        {"a.py": "import os\nif os.name in ('nt', 'posix'):\n    import gone\n"}, "a", (),
    ),
    "old Python": ({"a.py": "import sys\nif sys.version_info[0] < 3:\n    import gone\nelse:\n    import b\n", "b.py": ""}, "a", ()),
    "TYPE_CHECKING": ({"a.py": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import gone\n"}, "a", ()),
    "function": ({"a.py": "def f():\n    import gone\n"}, "a", ()),
    "function called": ({"a.py": "def f():\n    import gone\nf()\n"}, "a", ()),
    "function of another module": ({"a.py": "from b import f\nf()\n", "b.py": "def f():\n    import gone\n"}, "a", ()),
    "function giving a flag": (
        {"a.py": "def f():\n    try:\n        import gone\n    except ImportError:\n        return False\n    return True\nif f():\n    import lost\n"}, "a", (),
    ),
    "constructor": ({"a.py": "class A:\n    def __init__(self):\n        import gone\nA()\n"}, "a", ()),
    "class body": ({"a.py": "class A:\n    import gone\n"}, "a", ()),
    "decorator that wraps": (
        {"a.py": "import functools\ndef d(f):\n    @functools.wraps(f)\n    def w(*a):\n        return f(*a)\n    return w\n@d\ndef g():\n    import gone\n"}, "a", (),
    ),
    "generator": ({"a.py": "def f():\n    import gone\n    yield 1\nf()\n"}, "a", ()),
    "loop over names": (
        {"a.py": "bad = []\nfor n in ('os', 'gone'):\n    try:\n        __import__(n)\n    except ImportError as e:\n        bad.append(n)\nif bad:\n    raise ImportError(str(bad))\n"}, "a", (),
    ),
    "import_module": ({"a.py": "import importlib\nimportlib.import_module('gone.x')\n"}, "a", ()),
    "relative import_module": (
        {"a/__init__.py": "import importlib\nimportlib.import_module('.b', __name__)\n", "a/b.py": "import gone\n"}, "a", (),
    ),
    "relative": ({"a/__init__.py": "from .b import X\n", "a/b.py": "from . import c\nX = 1\n", "a/c.py": ""}, "a", ("X",)),
    "relative beyond": ({"a/__init__.py": "from ... import x\n"}, "a", ()),
    "circular": ({"a.py": "import b\nX = 1\n", "b.py": "from a import X\n"}, "a", ()),
    "circular after": ({"a.py": "X = 1\nimport b\n", "b.py": "from a import X\n"}, "a", ()),
    "sys.modules": ({"a.py": "import sys, types\nsys.modules['a.moved'] = types.ModuleType('a.moved')\n"}, "a.moved", ()),
    "sys.modules by the module's own name": (
        {"a/__init__.py": "import sys, types\nsys.modules.setdefault(f'{__name__}.moved', types.ModuleType('m'))\n"}, "a.moved", (),
    ),
    "sys.modules holds one name and not another": (
        {"a/__init__.py": "import sys, types\nsys.modules[__name__ + '.moved'] = types.ModuleType('m')\n"}, "a.absent", (),
    ),
    "sys.modules in a function for others": (
        {"a/__init__.py": "import sys\ndef register(name, module):\n    sys.modules['.'.join([__name__, name])] = module\n"}, "a.absent", (),
    ),
    "sys.modules in a function that is called": (
        {"a/__init__.py": "import sys, types\ndef register(name):\n    sys.modules[__name__ + '.' + name] = types.ModuleType(name)\n"
                          "for n in 'xyz'.split():\n    register(n)\n"}, "a.xyz", (),
    ),
    "imported while the path was longer": (
        {"a/__init__.py": "import contextlib, os, sys\n@contextlib.contextmanager\ndef longer():\n    sys.path.insert(0, os.path.dirname(__file__) + '/vendor')\n"
                          "    try:\n        yield\n    finally:\n        del sys.path[0]\nwith longer():\n    import one\n",
         "a/b.py": "import one, two\n", "a/vendor/one.py": "import two\n", "a/vendor/two.py": ""}, "a.b", (),
    ),
    "first of several that is there": (
        {"a.py": "import sys\nif sys.modules.get('gone.core'):\n    API = 'gone'\nelif 'lost' in sys.modules:\n    API = 'lost'\nelse:\n    API = None\n"
                 "def one():\n    import gone\ndef two():\n    import lost\nif API is None:\n    for f, API in [(one, 'gone'), (two, 'lost')]:\n"
                 "        try:\n            f()\n        except ImportError:\n            continue\n        break\n"
                 "    else:\n        raise ImportError('none is there')\nfrom b import X\n", "b.py": ""}, "a", (),
    ),
    "skipped by an object that is called": (
        {"a.py": "class Skipped(BaseException):\n    pass\nclass Skip:\n    def __call__(self, why):\n        raise Skipped(why)\nskip = Skip()\n",
         "b.py": "from a import skip\ntry:\n    from gone import X\nexcept ImportError:\n    skip('not there')\nprint(X)\n"}, "b", (),
    ),
    "skipped by a function, for no import": (
        {"a.py": "class Skipped(BaseException):\n    pass\ndef skip(why):\n    raise Skipped(why)\n", "b.py": "from a import skip\nskip('no')\nimport gone\n"}, "b", (),
    ),
    "parent fails first": ({"a/__init__.py": "import gone\n", "a/b.py": ""}, "a.b", ()),
    "metadata": ({"a.py": "from importlib.metadata import version\nversion('gone-dist')\n"}, "a", ()),
    "metadata caught": (
        {"a.py": "from importlib.metadata import version, PackageNotFoundError\ntry:\n    version('gone-dist')\nexcept PackageNotFoundError:\n    pass\n"}, "a", (),
    ),
    "raised of its own accord": ({"a.py": "raise RuntimeError('no')\n"}, "a", ()),
    "exit": ({"a.py": "import sys\nsys.exit(3)\nimport gone\n"}, "a", ()),
    "syntax error": ({"a.py": "import ("}, "a", ()),
    "undefined after a caught import": (
        {"a.py": "try:\n    from gone import Base\nexcept ImportError:\n    pass\nclass A(Base):\n    import lost\n"}, "a", (),
    ),
    "conditional on an unset variable": (
        {"a.py": "import os\nif os.environ.get('ENVSPEC_TEST_UNSET'):\n    import gone\n"}, "a", (),
    ),
    "version of a stdlib name": ({}, "collections", ("Mapping" if sys.version_info >= (3, 10) else "nope",)),
    "stdlib": ({}, "xml.etree.ElementTree", ("parse",)),
    "extended path": (
        {"p1/n/__init__.py": "from pkgutil import extend_path\n__path__ = extend_path(__path__, __name__)\n", "p2/n/__init__.py": "",
         "p2/n/x.py": ""}, "n.x", (),
    ),
}  # fmt: skip

# What a function or a loop does before it fails, and whether it then fails for certain. The listing of "/" is known to nobody but the host.
LEAVING = {
    "return under an unknown condition": "def f():\n    if os.listdir('/'):\n        return 1\n    {fail}\nf()\n",
    "return in an unknown loop": "def f():\n    for name in os.listdir('/'):\n        return name\n    {fail}\nf()\n",
    "return in an endless loop": "def f():\n    while True:\n        if os.listdir('/'):\n            return 1\n        {fail}\nf()\n",
    "return inside with": "def f():\n    with open(os.devnull):\n        if os.listdir('/'):\n            return 1\n    {fail}\nf()\n",
    "return inside try": "def f():\n    try:\n        if os.listdir('/'):\n            return 1\n    finally:\n        pass\n    {fail}\nf()\n",
    "return in a known loop": "def f():\n    for n in (1, 2):\n        if len(os.listdir('/')) > n:\n            return n\n    {fail}\nf()\n",
    "return of a class's start": "class A:\n    def __init__(self):\n        if os.listdir('/'):\n            return\n        {fail}\nA()\n",
    "return of an inner call": "def g():\n    if os.listdir('/'):\n        return True\n    return False\ndef f():\n    if g():\n        return\n    {fail}\nf()\n",
    "break of a known loop": "for n in (1, 2):\n    if os.listdir('/'):\n        break\nelse:\n    {fail}\n",
    "continue of a known loop": "for n in (1, 2):\n    if os.listdir('/'):\n        continue\n    {fail}\n",
    "break of an endless loop": "while True:\n    if os.listdir('/'):\n        break\n    {fail}\n",
}  # fmt: skip
STAYING = {
    "return under a known condition": "def f():\n    if os.name == 'nowhere':\n        return 1\n    {fail}\nf()\n",
    "return of another function": "def g():\n    if os.listdir('/'):\n        return 1\n    return 2\ndef f():\n    g()\n    {fail}\nf()\n",
    "break of an inner loop": "def f():\n    for n in (1, 2):\n        for m in os.listdir('/'):\n            break\n        {fail}\nf()\n",
    "both ways go on": "def f():\n    if os.listdir('/'):\n        n = 1\n    else:\n        n = 2\n    {fail}\nf()\n",
    "the same value either way": "def g():\n    if os.listdir('/'):\n        return True\n    return True\ndef f():\n    if g():\n        {fail}\nf()\n",
    "return in a branch that fails otherwise": "def f():\n    try:\n        import gone\n        return gone\n    except ImportError:\n        {fail}\nf()\n",
    "break of a loop before": "for n in (1, 2):\n    if os.listdir('/'):\n        break\n{fail}\n",
}  # fmt: skip
FAILURES = {"named": "import nosuchmodule", "unnamed": "raise ImportError(f'{os.sep} is not enough')"}


@pytest.mark.parametrize("failure", FAILURES)
@pytest.mark.parametrize(("case", "text"), [*LEAVING.items(), *STAYING.items()], ids=[*LEAVING, *STAYING])
def test_what_may_have_been_left_before_it_fails(tmp_path: Path, truly: Truth, case: str, text: str, failure: str) -> None:
    write(tmp_path, {"a.py": "import os\n" + text.replace("{fail}", FAILURES[failure])})
    verdict = asked([str(tmp_path)], "a")
    ok, name = truly([str(tmp_path)], "a")
    assert ok is (case in LEAVING)
    assert (verdict["status"] != "fails") is ok, verdict
    assert "UNKNOWN" not in json.dumps(verdict)
    if not ok:
        assert verdict["missing"] == name


@pytest.mark.parametrize("case", CASES)
def test_the_verdict_is_what_an_interpreter_does(tmp_path: Path, truly: Truth, case: str) -> None:
    files, module, names = CASES[case]
    write(tmp_path, files)
    path = [str(tmp_path / p) for p in ("p1", "p2")] if case == "extended path" else [str(tmp_path)]
    verdict = asked(path, module, *names)
    failed = [verdict, *verdict["names"].values()]
    worst = next((v for v in failed if v["status"] == "fails"), None)
    ok, name = truly(path, module, *names)
    assert (worst is None) is ok, verdict
    if worst is not None:
        assert worst["missing"] == name


def test_nothing_is_executed(tmp_path: Path) -> None:
    mark = tmp_path / "executed"
    text = f"open({str(mark)!r}, 'w').close()\n"
    write(tmp_path / "site", {"a/__init__.py": text, "a/b.py": text, "evil.pth": f"import os; os.mkdir({str(mark)!r})\n"})
    assert asked([str(tmp_path / "site")], "a.b", "X")["names"]["X"]["status"] == "fails"
    assert not mark.exists()


def test_a_package_that_makes_modules_when_it_runs(tmp_path: Path) -> None:
    write(tmp_path, {"a/__init__.py": "import sys\nfor name in made():\n    sys.modules[name] = object()\n", "m.py": "import sys\nsys.modules[x()] = 1\n"})
    verdict = asked([str(tmp_path)], "a.b")
    assert (verdict["status"], verdict["reason"]) == ("unknown", "a has no file for it and may make it when it runs")
    assert asked([str(tmp_path)], "m.b")["reason"] == "made at run time"


class TestLadder:
    """The fields by which a person sees what is wrong."""

    def test_kinds(self, tmp_path: Path) -> None:
        write(tmp_path, {"a/__init__.py": "", "a/mod.py": "Name = 1\n"})
        path = [str(tmp_path)]
        assert asked(path, "zzz.b")["kind"] == "module"
        assert asked(path, "a.zzz")["kind"] == "submodule"
        not_a_package = asked(path, "a.mod.x")
        assert (not_a_package["kind"], not_a_package["parent"]["module"]) == ("not-a-package", "a.mod")
        assert not_a_package["parent"]["origin"] == str(tmp_path / "a" / "mod.py")
        assert asked(path, "a.mod", "Nane")["names"]["Nane"]["near"] == ["Name"]
        assert asked(path, "a.modd")["near"] == ["a.mod"]

    def test_the_chain_leads_to_the_missing_import(self, tmp_path: Path) -> None:
        write(tmp_path, {"a/__init__.py": "\nfrom . import b\n", "a/b.py": "\n\nimport gone\n"})
        verdict = asked([str(tmp_path)], "a")
        assert [(c["module"], c["line"]) for c in verdict["chain"]] == [("a", 2), ("a.b", 3)]
        assert verdict["missing"] == "gone"

    def test_an_absent_module_of_a_package_that_fails_anyway(self, tmp_path: Path) -> None:
        write(tmp_path, {"a/__init__.py": "import gone\n", "a/m.py": ""})
        verdict = asked([str(tmp_path)], "a.m.x")
        assert (verdict["kind"], verdict["missing"], verdict["behind"]["missing"]) == ("not-a-package", "a.m.x", "gone")

    def test_an_extension_for_another_interpreter(self, tmp_path: Path) -> None:
        write(tmp_path, {"a/__init__.py": "", "a/_c.cpython-27-x86_64-linux-gnu.so": ""})
        verdict = asked([str(tmp_path)], "a._c")
        assert verdict["kind"] == "tag"
        assert verdict["files"] == [str(tmp_path / "a" / "_c.cpython-27-x86_64-linux-gnu.so")]

    @pytest.mark.parametrize("suffix", [sysconfig.get_config_var("EXT_SUFFIX"), ".abi3.so"])
    def test_an_extension_for_this_interpreter(self, tmp_path: Path, suffix: str) -> None:
        write(tmp_path, {"a/__init__.py": "", f"a/_c{suffix}": ""})
        verdict = asked([str(tmp_path)], "a._c", "anything")
        assert (verdict["status"], verdict["names"]["anything"]["status"]) == ("ok", "unknown")

    def test_a_zip_on_the_path(self, tmp_path: Path) -> None:
        with zipfile.ZipFile(tmp_path / "z.zip", "w") as archive:
            archive.writestr("pkg/__init__.py", "from . import sub\n")
            archive.writestr("pkg/sub.py", "X = 1\n")
        path = [str(tmp_path / "z.zip")]
        assert asked(path, "pkg.sub", "X")["names"]["X"]["status"] == "ok"
        assert asked(path, "pkg.sub", "Y")["names"]["Y"]["missing"] == "pkg.sub:Y"
        assert asked(path, "pkg.gone")["kind"] == "submodule"

    def test_a_damaged_zip_and_unreadable_entries(self, tmp_path: Path) -> None:
        (tmp_path / "z.zip").write_bytes(b"PK\x03\x04 not a zip")
        path = [str(tmp_path / "z.zip"), str(tmp_path / "gone"), "\0bad"]
        assert asked(path, "a")["kind"] == "module"

    def test_only_bytecode(self, tmp_path: Path) -> None:
        import py_compile

        source = write(tmp_path, {"b.py": "X = 1\n"}) / "b.py"
        py_compile.compile(str(source), cfile=str(tmp_path / "b.pyc"))
        source.unlink()
        verdict = asked([str(tmp_path)], "b", "X")
        assert (verdict["status"], verdict["names"]["X"]["status"]) == ("ok", "unknown")

    def test_local_names_stand_before_the_path(self, tmp_path: Path) -> None:
        write(tmp_path, {"torch/__init__.py": "import gone\n", "torch-1.0.dist-info/METADATA": "Name: torch\nVersion: 1.0\n",
                         "torch-1.0.dist-info/RECORD": "torch/__init__.py,,\n"})  # fmt: skip
        answer = probe_imports.main({
            "path": [str(tmp_path), *stdlib()],
            "scripts": [{"modules": [{"module": "torch.nn"}], "local": ["torch", "token", "mine"]}],
        })["scripts"][0]  # fmt: skip
        assert answer["modules"][0]["status"] == "unknown"
        assert answer["local"]["torch"]["owner"] == {"name": "torch", "version": "1.0"}
        assert answer["local"]["token"]["stdlib"] is True
        assert "mine" not in answer["local"]


class TestEditable:
    def test_setuptools_finder(self, tmp_path: Path) -> None:
        write(tmp_path / "src", {"pkg/__init__.py": "", "pkg/mod.py": "X = 1\n", "single.py": "", "parts/ns/x.py": ""})
        src = tmp_path / "src"
        text = (
            "import sys\nfrom typing import Dict, List\n"
            f"MAPPING: Dict[str, str] = {{'pkg': {str(src / 'pkg')!r}, 'single': {str(src / 'single')!r}}}\n"
            f"NAMESPACES: Dict[str, List[str]] = {{'ns': [{str(src / 'parts' / 'ns')!r}]}}\n"
        )
        write(tmp_path / "site", {"__editable___pkg_1_0_finder.py": text})
        path = [str(tmp_path / "site")]
        assert asked(path, "pkg.mod", "X")["names"]["X"]["status"] == "ok"
        assert asked(path, "pkg.gone")["kind"] == "submodule"
        assert asked(path, "single.x")["kind"] == "not-a-package"
        assert asked(path, "ns.x")["status"] == "ok"
        assert asked(path, "ns.y")["kind"] == "submodule"

    def test_a_damaged_finder(self, tmp_path: Path) -> None:
        write(tmp_path, {"__editable___a_finder.py": "MAPPING = open('x')\n", "__editable___b_finder.py": "MAPPING = {"})
        assert asked([str(tmp_path)], "a")["kind"] == "module"

    def test_another_backends_loader(self, tmp_path: Path) -> None:
        write(tmp_path, {"_pkg_editable.py": "install({'pkg': '/x/pkg/__init__.py', 'pkg.c': '/x/c.so'}, {}, None)\n",
                         "_pkg_editable.pth": "import _pkg_editable\n"})  # fmt: skip
        assert asked([str(tmp_path)], "pkg.c")["status"] == "unknown"
        assert asked([str(tmp_path)], "other")["kind"] == "module"


@pytest.mark.parametrize(("compiled", "text", "status"), [("ab12__mypyc", "import gone\n", "fails"), ("", "import gone\n", "ok"), ("ab12__mypyc", "import b\n", "ok")])
def test_a_compiled_module_beside_its_source(tmp_path: Path, compiled: str, text: str, status: str) -> None:
    """mypyc leaves the source that it compiled beside the module; with others it may be a fallback with needs of its own."""
    suffix = str(sysconfig.get_config_var("EXT_SUFFIX"))
    write(tmp_path, {"a.py": text, f"a{suffix}": compiled, "b.py": ""})
    verdict = asked([str(tmp_path)], "a")
    assert verdict["status"] == status
    assert verdict.get("missing") == ("gone" if status == "fails" else None)


def test_owners_and_versions(tmp_path: Path) -> None:
    write(
        tmp_path,
        {
            "google/cloud/storage/__init__.py": "", "google/auth/__init__.py": "", "old/__init__.py": "", "loose.py": "",
            "google_cloud_storage-2.0.dist-info/METADATA": "Name: google-cloud-storage\nVersion: 2.0\n",
            "google_cloud_storage-2.0.dist-info/RECORD": "google/cloud/storage/__init__.py,sha256=x,1\n",
            "google_auth-1.5.dist-info/METADATA": "Name: google-auth\nVersion: 1.5\n\nName: body\n",
            "google_auth-1.5.dist-info/RECORD": "google/auth/__init__.py,,\n",
            "old-0.1.egg-info/PKG-INFO": "Name: Old\nVersion: 0.1\n", "old-0.1.egg-info/top_level.txt": "old\n",
        },
    )  # fmt: skip
    path = [str(tmp_path)]
    assert asked(path, "google.cloud.storage")["owner"] == {"name": "google-cloud-storage", "version": "2.0"}
    assert asked(path, "google.auth")["owner"] == {"name": "google-auth", "version": "1.5"}
    assert asked(path, "old")["owner"] == {"name": "Old", "version": "0.1"}
    assert "owner" not in asked(path, "loose")
    answer = probe_imports.main({"path": path, "scripts": [], "distributions": ["Google_Auth", "gone"]})
    assert answer["distributions"] == {"google-auth": "1.5", "gone": None}


def test_the_bound_makes_nothing_missing(tmp_path: Path) -> None:
    write(tmp_path, {"a.py": "import gone\n"})
    machine = Machine(Finder([str(tmp_path)]), deadline=0.0)
    machine.load("a")
    assert machine.late


RINGS = {
    "ring": {
        "a.py": "import b\nX = 1\n", "b.py": "import c\n", "c.py": "from a import X\n", "d.py": "import b\n",
        "e.py": "X = 1\nimport a\n", "f.py": "try:\n    import a\nexcept ImportError:\n    import gone\n",
    },
    "submodule of a package that is settled": {
        "p/__init__.py": "", "p/low.py": "import ring\n", "ring.py": "import p.low\nX = 1\n", "a.py": "from p import low\n",
        "b.py": "from p import low\nfrom ring import X\n", "c.py": "import ring\nfrom p import low\n", "low.py": "from ring import X\n",
    },
    "what a failure leaves loaded": {
        "a.py": "X = 1\nimport b\n", "b.py": "from a import X\nimport gone\n", "c.py": "try:\n    import b\nexcept ImportError:\n    pass\n",
        "d.py": "import c\nfrom a import X\n", "e.py": "import c, sys\nif 'a' in sys.modules:\n    import lost\n",
    },
}  # fmt: skip


def answers(root: Path, order: list[str]) -> dict[str, str | None]:
    """The verdict on each module, each in a new process image of one machine."""
    machine = Machine(Finder([str(root), *stdlib()]))
    result: dict[str, str | None] = {}
    for name in order:
        machine.fresh()
        try:
            machine.load(name)
            result[name] = "ok"
        except Failed as failure:
            result[name] = failure.missing
    return result


def importable(files: Mapping[str, str]) -> list[str]:
    return [name.removesuffix(".py").replace("/", ".").removesuffix(".__init__") for name in files]


@pytest.mark.parametrize("case", RINGS)
def test_settled_modules_answer_alike_in_any_order(tmp_path: Path, truly: Truth, case: str) -> None:
    write(tmp_path, RINGS[case])
    names = importable(RINGS[case])
    real = {name: truly([str(tmp_path)], name) for name in names}
    expected = {name: "ok" if ok else missing for name, (ok, missing) in real.items()}
    for shift in range(len(names)):
        assert answers(tmp_path, names[shift:] + names[:shift]) == expected
        assert answers(tmp_path, names[::-1][shift:] + names[::-1][:shift]) == expected


@pytest.mark.parametrize("seed", range(100))
def test_packages_that_import_each_other_at_random(tmp_path: Path, truly: Truth, seed: int) -> None:
    chance = random.Random(seed)
    places = ["p/__init__.py", "p/a.py", "p/b.py", "q/__init__.py", "q/a.py", "q/b.py", "m.py", "n.py"]
    names = importable(places)

    def statement() -> str:
        name = chance.choice([*names, *names, *names, "gone"])
        package, _, last = name.rpartition(".")
        return chance.choice([
            f"import {name}", f"from {name} import X", f"from {package} import {last}" if package else f"import {name}",
            f"try:\n    import {name}\nexcept ImportError:\n    pass", f"try:\n    from {name} import X\nexcept ImportError:\n    import gone2",
        ])  # fmt: skip

    files = {}
    for place in places:
        lines = [statement() for _ in range(chance.randint(0, 3))]
        lines.insert(chance.randint(0, len(lines)), "X = 1")
        files[place] = "\n".join(lines) + "\n"
    write(tmp_path, files)
    real = {name: truly([str(tmp_path)], name) for name in names}
    expected = {name: "ok" if ok else missing for name, (ok, missing) in real.items()}
    for _ in range(4):
        assert answers(tmp_path, chance.sample(names, len(names))) == expected


def pythons() -> Iterator[Path]:
    roots = [*Path.home().glob(".pyenv/versions/*"), Path("/usr")]
    for root in roots:
        for name in ("python3.8", "python3.9", "python3.12", "python3.13", "python3.14"):
            if (root / "bin" / name).exists():
                yield root / "bin" / name


@pytest.mark.parametrize("python", list(pythons()) or [Path(sys.executable)], ids=str)
def test_on_other_interpreters(tmp_path: Path, python: Path) -> None:
    """The whole source runs on every Python from 3.8 on, without its site packages, as `Host.run_python` runs it."""
    write(tmp_path, {"a/__init__.py": "", "a/b.py": "def f(x, /): ...\n", "ns/deep/x.py": "import gone\n"})
    with zipfile.ZipFile(tmp_path / "z.zip", "w") as archive:
        archive.writestr("zipped/__init__.py", "X = 1\n")
    request = {
        "path": None, "prepend": [str(tmp_path), str(tmp_path / "z.zip")],
        "scripts": [{
            "modules": [{"module": "a.b", "names": ["f", "g"]}, {"module": "ns.deep.x"}, {"module": "zipped", "names": ["X"]},
                        {"module": "json.decoder"}, {"module": "tomllib"}],
            "sources": [{"file": "new.py", "text": "match x:\n    case 1: pass\n"}],
        }],
    }  # fmt: skip
    code = (
        "import sys, json\nspace = {'__name__': 'remote'}\nexec(compile(open(sys.argv[1]).read(), 'x', 'exec', 0, True), space)\n"
        "print(json.dumps(space['main'](json.loads(sys.argv[2]))))"
    )
    run = subprocess.run(
        [str(python), "-E", "-s", "-S", "-B", "-W", "error", "-c", code, str(PROBE), json.dumps(request)],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    answer = json.loads(run.stdout)
    modules = {m["module"]: m for m in answer["scripts"][0]["modules"]}
    assert {k: v["status"] for k, v in modules["a.b"]["names"].items()} == {"f": "ok", "g": "fails"}
    assert modules["ns.deep.x"]["missing"] == "gone"
    assert modules["zipped"]["names"]["X"]["status"] == "ok"
    assert modules["json.decoder"]["status"] == "ok"
    version = tuple(map(int, answer["python"].split(".")[:2]))
    assert modules["tomllib"]["status"] == ("ok" if version >= (3, 11) else "fails")
    assert bool(answer["scripts"][0]["syntax"]) is (version < (3, 10))

