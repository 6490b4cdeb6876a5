"""What `envspec.imports` reads of scripts: every rule of classification, on sources written by the tests."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from envspec.errors import UsageError
from envspec.imports import Import, ScriptImports, evaluate_host, parse_directory, parse_module, parse_script, read_source

LINUX: Mapping[str, Any] = {
    "sys.version_info": [3, 11, 7, "final", 0],
    "sys.hexversion": 0x030B07F0,
    "sys.platform": "linux",
    "sys.maxsize": 2**63 - 1,
    "sys.implementation.name": "cpython",
    "os.name": "posix",
    "platform.system()": "Linux",
    "platform.machine()": "x86_64",
    "platform.python_implementation()": "CPython",
}
WINDOWS_38 = {
    **LINUX, "sys.version_info": [3, 8, 0, "final", 0], "sys.platform": "win32", "os.name": "nt",
    "platform.system()": "Windows",
}  # fmt: skip

Parse = Callable[..., ScriptImports]


@pytest.fixture
def parse(tmp_path: Path) -> Parse:
    """Write files (`main` is the script's text) and parse the script."""

    def run(main: str, **files: str) -> ScriptImports:
        write(tmp_path, {"main.py": main, **{name.replace("__DOT__", ".") + ".py": text for name, text in files.items()}})
        return parse_script(tmp_path / "main.py", base=tmp_path)

    return run


def write(root: Path, files: Mapping[str, str]) -> None:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


def one(script: ScriptImports, module: str) -> Import:
    found = [item for item in script.imports if item.module == module]
    assert len(found) == 1, [(i.module, i.site.line) for i in script.imports]
    return found[0]


def holds(item: Import, host: Mapping[str, Any] = LINUX, present: Mapping[str, bool] | None = None) -> bool | None:
    values = [gate.holds(host, (present or {}).get) for gate in item.gates]
    return False if False in values else None if None in values else True


def test_plain_forms(parse: Parse) -> None:
    script = parse("import a.b as c, d\nfrom e.f import g, h as i\nfrom j import *\n")
    assert [(i.module, i.names, i.form, i.reach, i.site.line) for i in script.imports] == [
        ("a.b", (), "import", "module", 1),
        ("d", (), "import", "module", 1),
        ("e.f", ("g", "h"), "from", "module", 2),
        ("j", ("*",), "star", "module", 3),
    ]


def test_future_is_no_import(parse: Parse) -> None:
    assert parse("from __future__ import annotations\n").imports == ()


class TestReach:
    def test_a_function_called_at_module_level(self, parse: Parse) -> None:
        item = one(parse("def f():\n    import a\n\nf()\n"), "a")
        assert (item.reach, item.function, [s.line for s in item.path]) == ("called", "f", [4])

    def test_a_function_nobody_calls(self, parse: Parse) -> None:
        assert one(parse("def f():\n    import a\n"), "a").reach == "function"

    def test_through_other_functions(self, parse: Parse) -> None:
        item = one(parse("def f():\n    import a\ndef g():\n    f()\nif __name__ == '__main__':\n    g()\n"), "a")
        assert (item.reach, [s.line for s in item.path], item.gates) == ("called", [6, 4], ())

    @pytest.mark.parametrize(
        "call",
        [
            "asyncio.run(main())", "sys.exit(main())", "typer.run(main)", "fire.Fire(main)", "app.run(main)",
            "mp.spawn(main, nprocs=8)", "threading.Thread(target=main).start()", "x = [main() for _ in y]",
        ],
    )  # fmt: skip
    def test_handed_to_what_runs_it(self, parse: Parse, call: str) -> None:
        assert one(parse(f"def main():\n    import a\n{call}\n"), "a").reach == "called"

    def test_a_command_of_an_application(self, parse: Parse) -> None:
        text = "app = typer.Typer()\n@app.command()\ndef train():\n    import a\nif __name__ == '__main__':\n    app()\n"
        assert one(parse(text), "a").reach == "called"

    def test_methods(self, parse: Parse) -> None:
        text = (
            "class Base:\n    def setup(self):\n        import a\n"
            "class T(Base):\n    def __init__(self):\n        self.setup()\n    def fit(self):\n        import b\n"
            "    def never(self):\n        import c\n"
            "t = T()\nt.fit()\n"
        )
        script = parse(text)
        assert {m: one(script, m).reach for m in "abc"} == {"a": "called", "b": "called", "c": "function"}

    def test_a_class_body_runs(self, parse: Parse) -> None:
        assert one(parse("class A:\n    import a\n"), "a").reach == "module"

    def test_a_lambda_does_not(self, parse: Parse) -> None:
        assert one(parse("def f():\n    import a\ng = lambda: f()\n"), "a").reach == "function"

    def test_across_local_modules(self, parse: Parse) -> None:
        script = parse(
            "import helper\nfrom pkg.tool import build\nbuild()\n",
            helper="import a\ndef unused():\n    import b\n",
            pkg__DOT__tool="",
            **{"pkg/__init__": "import c\n", "pkg/tool": "def build():\n    from d import e\n"},
        )
        assert {m: one(script, m).reach for m in "abcd"} == {
            "a": "module", "b": "function", "c": "module", "d": "called",
        }  # fmt: skip
        assert [str(s) for s in one(script, "a").path] == ["main.py:1"]
        assert [str(s) for s in one(script, "d").path] == ["main.py:3"]

    def test_the_surest_way_wins(self, parse: Parse) -> None:
        script = parse("try:\n    import helper\nexcept ImportError:\n    pass\nimport helper\n", helper="import a\n")
        assert not one(script, "a").optional

    def test_a_local_module_only_a_function_imports(self, parse: Parse) -> None:
        script = parse("def f():\n    import helper\n", helper="import a\n")
        assert one(script, "a").reach == "function"

    def test_cycles_end(self, parse: Parse) -> None:
        assert one(parse("import x\n", x="import y\nimport a\n", y="import x\n"), "a").reach == "module"


class TestOptional:
    @pytest.mark.parametrize("caught", ["ImportError", "ModuleNotFoundError", "Exception", "(OSError, ImportError)", ""])
    def test_caught(self, parse: Parse, caught: str) -> None:
        assert one(parse(f"try:\n    import a\nexcept {caught}:\n    a = None\n"), "a").optional

    @pytest.mark.parametrize("handler", ["raise", "raise RuntimeError('install a') from None", "sys.exit(1)"])
    def test_passed_on(self, parse: Parse, handler: str) -> None:
        assert not one(parse(f"try:\n    import a\nexcept ImportError:\n    {handler}\n"), "a").optional

    @pytest.mark.parametrize("caught", ["ValueError", "KeyError"])
    def test_another_exception(self, parse: Parse, caught: str) -> None:
        assert not one(parse(f"try:\n    import a\nexcept {caught}:\n    pass\n"), "a").optional

    def test_suppress(self, parse: Parse) -> None:
        script = parse(
            "import contextlib\nfrom contextlib import suppress as quiet\n"
            "with contextlib.suppress(ImportError):\n    import a\nwith quiet(ModuleNotFoundError):\n    import b\n"
            "with contextlib.suppress(KeyError):\n    import c\n"
        )
        assert [one(script, m).optional for m in "abc"] == [True, True, False]

    def test_the_fallback_counts_when_the_first_is_missing(self, parse: Parse) -> None:
        script = parse("try:\n    import a\nexcept ImportError:\n    import b\nelse:\n    import c\n")
        assert holds(one(script, "b"), present={"a": True}) is False
        assert holds(one(script, "b"), present={"a": False}) is True
        assert holds(one(script, "c"), present={"a": False}) is False
        assert not one(script, "b").optional

    def test_a_call_under_try(self, parse: Parse) -> None:
        script = parse("def f():\n    import a\ntry:\n    f()\nexcept ImportError:\n    pass\n")
        assert one(script, "a").optional

    def test_importorskip(self, parse: Parse) -> None:
        assert one(parse("import pytest\npytest.importorskip('a')\n"), "a").optional


class TestGates:
    @pytest.mark.parametrize(
        ("test", "linux", "windows"),
        [
            ("sys.platform == 'win32'", False, True),
            ("sys.platform.startswith('linux')", True, False),
            ("sys.version_info >= (3, 11)", True, False),
            ("sys.version_info[:2] < (3, 9)", False, True),
            ("sys.version_info[0] == 3", True, True),
            ("sys.version_info.minor > 9", True, False),
            ("not sys.platform == 'win32'", True, False),
            ("os.name == 'nt' or sys.version_info >= (3, 12)", False, True),
            ("os.name == 'posix' and sys.platform in ('linux', 'darwin')", True, False),
            ("platform.system() == 'Windows'", False, True),
            ("system() == 'Windows'", False, True),
            ("sys.maxsize > 2**32", True, True),
            ("args.flag", None, None),
            ("args.flag and sys.platform == 'win32'", False, None),
            ("args.flag or sys.platform == 'win32'", None, True),
            ("bool(sys.platform == 'win32')", False, True),
            ("0", False, False),
        ],
    )
    def test_values_of_the_host(self, parse: Parse, test: str, linux: bool | None, windows: bool | None) -> None:
        head = "import sys, os, platform\nfrom platform import system\n"
        script = parse(f"{head}if {test}:\n    import a\nelse:\n    import b\n")
        found = [i for i in script.imports if i.module == "a"]
        assert (holds(found[0]) if found else False) is linux
        assert (holds(found[0], WINDOWS_38) if found else False) is windows
        opposite = {True: False, False: True, None: None}
        assert holds(one(script, "b")) is opposite[linux]

    @pytest.mark.parametrize(
        "head",
        [
            "from typing import TYPE_CHECKING\nif TYPE_CHECKING:", "import typing as t\nif t.TYPE_CHECKING:",
            "import typing_extensions as te\nif te.TYPE_CHECKING:", "MYPY = False\nif MYPY:",
            "from typing import TYPE_CHECKING as TC\nif TC:", "import typing\nif typing.TYPE_CHECKING and x:",
        ],
    )  # fmt: skip
    def test_type_checking_never_runs(self, parse: Parse, head: str) -> None:
        script = parse(f"{head}\n    import a\nelse:\n    import b\n")
        assert all(holds(i) is False for i in script.imports if i.module == "a")
        assert one(script, "b").reach == "module"

    @pytest.mark.parametrize(
        "guard",
        [
            "if importlib.util.find_spec('a') is not None:\n    import a",
            "if find_spec('a'):\n    import a",
            "HAS = find_spec('a') is not None\nif HAS:\n    import a",
            "try:\n    import a\n    HAS = True\nexcept ImportError:\n    HAS = False\nif HAS:\n    import a.sub",
            "try:\n    import a\nexcept ImportError:\n    a = None\nif a is not None:\n    import a.sub",
            "def has_a():\n    return find_spec('a') is not None\nif has_a():\n    import a",
        ],
    )
    def test_guards_that_ask_for_a_module(self, parse: Parse, guard: str) -> None:
        script = parse(f"import importlib.util\nfrom importlib.util import find_spec\n{guard}\n")
        item = [i for i in script.imports if i.module.startswith("a")][-1]
        assert holds(item, present={"a": False}) is False
        assert holds(item, present={"a": True}) is True

    def test_an_early_return_is_a_guard(self, parse: Parse) -> None:
        text = "import importlib.util as u\ndef f():\n    if u.find_spec('a') is None:\n        return\n    import a\nf()\n"
        assert holds(one(parse(text), "a"), present={"a": False}) is False

    def test_an_early_failure_is_none(self, parse: Parse) -> None:
        text = "import importlib.util as u\nif u.find_spec('a') is None:\n    raise ImportError('a')\nimport a\n"
        assert holds(one(parse(text), "a"), present={"a": False}) is True

    @pytest.mark.parametrize("helper", ["is_flash_attn_available()", "utils.has_torch()", "HAS_X", "cfg.APEX_AVAILABLE"])
    def test_helpers_known_by_their_name(self, parse: Parse, helper: str) -> None:
        item = one(parse(f"if {helper}:\n    import a\n"), "a")
        assert item.gates[0].guards
        assert holds(item) is None

    def test_main_guard_of_script_and_module(self, parse: Parse) -> None:
        script = parse("import m\nif __name__ == '__main__':\n    import a\n", m="if __name__ == '__main__':\n    import b\n")
        assert [i.module for i in script.imports] == ["a"]

    def test_match(self, parse: Parse) -> None:
        assert holds(one(parse("match x:\n    case 1:\n        import a\n"), "a")) is None


class TestDynamic:
    @pytest.mark.parametrize(
        ("text", "module"),
        [
            ("import importlib\nimportlib.import_module('a.b')", "a.b"),
            ("from importlib import import_module as im\nim('a.b')", "a.b"),
            ("import importlib as il\nNAME = 'a.b'\nil.import_module(NAME)", "a.b"),
            ("import importlib\nimportlib.import_module('.b', package='a')", "a.b"),
            ("import importlib\nimportlib.import_module('..c', 'a.b')", "a.c"),
            ("__import__('a.b')", "a.b"),
            ("import importlib\nP = 'a'\nimportlib.import_module(f'{P}.b')", "a.b"),
            ("import pkgutil\npkgutil.resolve_name('a.b:c.d')", "a.b"),
            ("import runpy\nrunpy.run_module('a.b', run_name='__main__')", "a.b"),
        ],
    )
    def test_literal_names(self, parse: Parse, text: str, module: str) -> None:
        script = parse(text + "\n")
        assert one(script, module).form in ("dynamic", "run")

    def test_names_in_a_loop(self, parse: Parse) -> None:
        script = parse("import importlib\nfor name in ('a', 'b.c'):\n    importlib.import_module(name)\n")
        assert [i.module for i in script.imports[1:]] == ["a", "b.c"]

    def test_a_computed_name(self, parse: Parse) -> None:
        script = parse("import importlib, sys\nimportlib.import_module(sys.argv[1])\n")
        assert [i.unresolved for i in script.imports if not i.module] == ["computed"]

    def test_run_path_is_followed(self, parse: Parse) -> None:
        script = parse("import runpy\nrunpy.run_path('other.py')\n", other="import a\n")
        assert one(script, "a").site.file == "other.py"


class TestRelative:
    def test_in_a_script(self, parse: Parse) -> None:
        script = parse("from . import a\nfrom .b import c\n")
        assert [i.unresolved for i in script.imports] == ["relative", "relative"]

    def test_in_a_local_package(self, parse: Parse) -> None:
        script = parse(
            "import pkg.deep.mod\n",
            **{
                "pkg/__init__": "", "pkg/deep/__init__": "", "pkg/deep/mod": "from ..side import X\nfrom . import near\n",
                "pkg/side": "import a\nX = 1\n", "pkg/deep/near": "import b\n",
            },
        )  # fmt: skip
        assert {m: one(script, m).reach for m in "ab"} == {"a": "module", "b": "module"}
        assert script.problems == ()

    def test_as_a_module(self, tmp_path: Path) -> None:
        write(tmp_path, {"pkg/__init__.py": "import a\n", "pkg/__main__.py": "from .x import y\n", "pkg/x.py": "import b\ny = 1\n"})
        script = parse_module("pkg", base=tmp_path)
        assert [i.module for i in script.imports] == ["a", "b"]
        assert all(i.reach == "module" for i in script.imports)

    def test_an_installed_module(self, tmp_path: Path) -> None:
        script = parse_module("torch.distributed.run", base=tmp_path)
        assert [(i.module, i.form) for i in script.imports] == [("torch.distributed.run", "run")]
        assert "torch.distributed.run.__main__" in script.requests()


class TestLocalFaults:
    def test_a_missing_submodule_and_name(self, parse: Parse) -> None:
        script = parse(
            "from pkg.gone import x\nfrom pkg.mod import there, lost\n", **{"pkg/__init__": "", "pkg/mod": "there = 1\n"}
        )
        assert [(p.kind, p.subject, p.site.line) for p in script.problems] == [
            ("submodule", "pkg.gone", 1),
            ("name", "pkg.mod:lost", 2),
        ]

    @pytest.mark.parametrize(
        "opening",
        [
            "import os\n__path__.append(os.path.join(os.path.dirname(__file__), '..', 'hidden'))\n",
            "import pkgutil\n__path__ = pkgutil.extend_path(__path__, __name__)\n",
            "import sys, types\nsys.modules[__name__ + '.gone'] = types.ModuleType('gone')\n",
        ],
    )
    def test_what_a_package_brings_in_by_code_is_not_missing(self, parse: Parse, opening: str) -> None:
        script = parse("import pkg.gone\nfrom pkg import gone\n", **{"pkg/__init__": opening})
        assert script.problems == ()
        plain = parse("import pkg.gone\n", **{"pkg/__init__": "print(list(__path__), __import__('sys').modules[__name__])\n"})
        assert [(p.kind, p.subject) for p in plain.problems] == [("submodule", "pkg.gone")]

    def test_names_made_at_run_time_are_not_called_missing(self, parse: Parse) -> None:
        script = parse("from mod import lost\n", mod="globals().update(lost=1)\n")
        assert script.problems == ()

    def test_a_plain_directory_does_not_stand_for_a_package(self, parse: Parse) -> None:
        script = parse("import data\nimport tools.x\n", **{"data/notes": "", "tools/x": "import a\n"})
        assert {i.module for i in script.imports} == {"data", "a"}
        assert script.local == ("main",)


class TestReading:
    def test_encodings(self, tmp_path: Path) -> None:
        (tmp_path / "latin.py").write_bytes("# -*- coding: latin-1 -*-\nimport a  # é\n".encode("latin-1"))
        (tmp_path / "bom.py").write_bytes(b"\xef\xbb\xbfimport a\n")
        (tmp_path / "crlf.py").write_bytes(b"import x\r\nimport a\r\n")
        for name in ("latin", "bom", "crlf"):
            script = parse_script(tmp_path / f"{name}.py", base=tmp_path)
            assert one(script, "a").reach == "module"
            assert script.problems == ()

    @pytest.mark.parametrize(
        "raw",
        ["import a\n".encode("utf-16"), b"# \xe9\nimport a\n", b"# coding: nonsense-8\nimport a\n", b"import a\0\n"],
    )
    def test_files_python_refuses(self, tmp_path: Path, raw: bytes) -> None:
        (tmp_path / "bad.py").write_bytes(raw)
        assert [p.kind for p in parse_script(tmp_path / "bad.py", base=tmp_path).problems] == ["syntax"]
        with pytest.raises(SyntaxError):
            read_source(raw, "bad.py")

    def test_a_syntax_error_keeps_what_can_be_read(self, parse: Parse) -> None:
        script = parse("import a\nfrom b import (\n    c,\n)\nif x:\n    import d\nthis is no python\n")
        assert [p.kind for p in script.problems] == ["syntax"]
        assert {i.module: i.reach for i in script.imports} == {"a": "module", "b": "module", "d": "function"}

    @pytest.mark.skipif(sys.version_info >= (3, 15), reason="lazy imports are syntax there")
    def test_lazy_imports(self, parse: Parse) -> None:
        script = parse("lazy import a.b\nlazy from c import d\nimport e\nlazy = 1\nif lazy:\n    pass\n")
        assert [(i.module, i.form) for i in script.imports] == [("a.b", "lazy"), ("c", "lazy"), ("e", "import")]
        assert script.problems == ()

    def test_a_notebook(self, tmp_path: Path) -> None:
        cells = [
            {"cell_type": "markdown", "source": ["import not_code"]},
            {"cell_type": "code", "source": ["%pip install x\n", "!ls\n", "import a\n", "files = !ls\n", "df?\n"]},
            {"cell_type": "code", "source": "%%bash\nimport not_python\n"},
            {"cell_type": "code", "source": ["if True:\n", "    %matplotlib inline\n", "    from b import c"]},
        ]
        (tmp_path / "n.ipynb").write_text(json.dumps({"cells": cells, "metadata": {}, "nbformat": 4}))
        script = parse_script(tmp_path / "n.ipynb", base=tmp_path)
        assert [(i.module, i.site.cell, i.site.line) for i in script.imports] == [("a", 2, 3), ("b", 4, 3)]
        assert script.problems == ()
        assert script.sources == ()

    @pytest.mark.parametrize("text", ["", "[]", "{}", '{"cells": 3}', '{"cells": [1]}'])
    def test_a_damaged_notebook(self, tmp_path: Path, text: str) -> None:
        (tmp_path / "n.ipynb").write_text(text)
        assert [p.kind for p in parse_script(tmp_path / "n.ipynb", base=tmp_path).problems] == ["syntax"]

    def test_inline_metadata(self, parse: Parse) -> None:
        script = parse('# /// script\n# requires-python = ">=3.11"\n# dependencies = [\n#   "rich>13",\n# ]\n# ///\nimport a\n')
        assert script.requirements is not None
        assert (script.requirements.requires_python, script.requirements.dependencies) == (">=3.11", ("rich>13",))

    @pytest.mark.parametrize("body", ["dependencies = 'rich'", "dependencies = [1]", "dependencies = [", f"a = {'9' * 5000}", f"a = {'[' * 3000}"], ids=range(5))
    def test_damaged_inline_metadata(self, parse: Parse, body: str) -> None:
        script = parse(f"# /// script\n# {body}\n# ///\nimport a\n")
        assert script.requirements is None
        assert [(p.kind, p.message.partition(":")[0]) for p in script.problems] == [("unreadable", "main.py")]
        assert [i.module for i in script.imports] == ["a"]

    def test_inline_ignores(self, parse: Parse) -> None:
        script = parse(
            "import a  # envspec: ignore[EP101, EP107]\nimport b  # envspec: ignore\nfrom c import (  # envspec: ignore[EP104]\n    d,\n)\nimport e\n"
        )
        assert [sorted(i.ignored) for i in script.imports] == [["EP101", "EP107"], ["*"], ["EP104"], []]

    def test_a_directory(self, tmp_path: Path) -> None:
        write(
            tmp_path,
            {
                "p/__init__.py": "", "p/a.py": "from .b import x\nimport one\n", "p/b.py": "x = 1\n",
                "scripts/run.py": "import side\n", "scripts/side.py": "import two\n", ".venv/lib/z.py": "import no\n",
                "build/lib/z.py": "import no\n",
            },
        )  # fmt: skip
        found = {s.script: [i.module for i in s.imports] for s in parse_directory(tmp_path, base=tmp_path)}
        assert found["p/a.py"] == ["one"]
        assert found["scripts/run.py"] == ["two"]
        assert not any("no" in modules for modules in found.values())
        assert all(s.problems == () for s in parse_directory(tmp_path, base=tmp_path))

    def test_what_is_not_there(self, tmp_path: Path) -> None:
        with pytest.raises(UsageError, match="no script"):
            parse_script(tmp_path / "gone.py")
        with pytest.raises(UsageError, match="not a module name"):
            parse_module("a-b")
        with pytest.raises(UsageError, match=r"__main__\.py"):
            parse_script(tmp_path)

    def test_what_cannot_be_read(self, tmp_path: Path) -> None:
        write(tmp_path, {"main.py": "import helper\n"})
        (tmp_path / "helper.py").symlink_to(tmp_path / "nowhere.py")
        script = parse_script(tmp_path / "main.py", base=tmp_path)
        assert [i.module for i in script.imports] == ["helper"]


DEEP = {
    "terms": "x = 0" + " + 1" * 400,
    "attributes": "x = a" + ".b" * 400,
    "calls": "a" + ".b()" * 400,
    "elifs": "if a: pass\n" + "".join(f"elif a == {number}: import m{number}\n" for number in range(400)),
    "lambdas": "f = " + "lambda: " * 400 + "1",
    "conditionals": "x = " + "1 if a else " * 400 + "2",
    "nots": "if " + "not " * 400 + "a: pass",
    "subscripts": "x = a" + "[0]" * 400,
    "named": "import importlib.util as u\ng = u.find_spec('x') is None\n" + "g = g and g\n" * 400 + "if g: pass",
}


@pytest.mark.parametrize("text", DEEP.values(), ids=DEEP)
def test_deep_nesting_is_read_whole(parse: Parse, text: str) -> None:
    script = parse(f"{text}\nimport after\n")
    assert script.problems == ()
    assert one(script, "after").reach == "module"
    assert len(script.imports) == 1 + text.count("import ")


@pytest.mark.parametrize("text", ["x = " + "-" * 10000 + "1", "x = 0" + " + 1" * 20000], ids=["minus", "terms"])
def test_what_no_parser_takes_is_the_problem_of_its_file(parse: Parse, text: str) -> None:
    script = parse("import deep, other\n", deep=f"{text}\nimport after\n")
    assert [(p.kind, p.site.file) for p in script.problems] == [("syntax", "deep.py")]
    assert script.problems[0].message
    assert {item.module for item in script.imports} == {"after", "other"}


@pytest.mark.parametrize("codec", ["rot13", "hex", "zlib", "undefined", "punycode"])
def test_a_codec_that_makes_no_source_is_a_syntax_error(codec: str) -> None:
    with pytest.raises(SyntaxError, match=r"x\.py is not valid"):
        read_source(f"# coding: {codec}\nimport \xff\n".encode("latin-1"), "x.py")


def test_powers_of_powers_are_not_worked_out() -> None:
    assert evaluate_host("sys.version_info > ((((((9**128)**128)**128)**128),))", LINUX) is None
    assert evaluate_host("sys.maxsize > 2**32", LINUX) is True


def test_names_no_file_can_have(parse: Parse) -> None:
    script = parse(f"import {'c' * 300}\nimport importlib\nfor n in ('../x', '/x', '', 'a\\0b'): importlib.import_module(n)\n")
    assert {item.module for item in script.imports} == {"c" * 300, "importlib", "../x", "/x", "", "a\0b"} - {"../x"}


class TestFolders:
    def test_links_and_pipes(self, tmp_path: Path) -> None:
        write(tmp_path, {"pk/a.py": "import one\n", "pk/in/__init__.py": "", "other/far.py": "import two\n"})
        (tmp_path / "pk/far.py").symlink_to(tmp_path / "other/far.py")
        (tmp_path / "pk/in/far.py").symlink_to(tmp_path / "other/far.py")
        (tmp_path / "pk/loop.py").symlink_to(tmp_path / "pk/loop.py")
        (tmp_path / "pk/again").symlink_to(tmp_path / "pk")
        os.mkfifo(tmp_path / "pk/f.py")
        scripts = parse_directory(tmp_path / "pk", base=tmp_path)
        assert [item.module for script in scripts for item in script.imports] == ["one", "two", "two"]
        assert [problem.kind for script in scripts for problem in script.problems] == ["unreadable"]

    def test_a_folder_that_is_gone(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        (tmp_path / "gone").mkdir()
        monkeypatch.chdir(tmp_path / "gone")
        (tmp_path / "gone").rmdir()
        with pytest.raises(UsageError, match="no longer there"):
            parse_directory(Path())


class TestSearchPath:
    """Modules that a script finds beside it without a source, or where it lets Python look."""

    @pytest.mark.parametrize(
        "change",
        [
            "sys.path.insert(0, os.path.join(os.path.dirname(__file__), '..', 'src'))",
            "sys.path.append(str(pathlib.Path(__file__).resolve().parent.parent / 'src'))",
            "sys.path.append(str(pathlib.Path(__file__).parents[1].joinpath('src')))",
            "sys.path.extend([f'{os.path.dirname(HERE)}/src'])",
            "sys.path[:0] = [os.path.abspath(HERE + '/../src')]",
            "sys.path += [os.path.join(HERE, os.pardir, 'src')]",
            "sys.path = [os.path.realpath(os.path.join(HERE, '../src')), *sys.path]",
            "sys.path = ['src'] + sys.path[1:]",
            "site.addsitedir(os.path.join(os.getcwd(), 'src'))",
        ],
    )
    def test_literal_directories_are_followed(self, tmp_path: Path, change: str) -> None:
        head = "import os, sys, site, pathlib\nHERE = os.path.dirname(os.path.abspath(__file__))\n"
        write(tmp_path, {"run/main.py": f"{head}{change}\nimport helper\n", "src/helper.py": "import deep\n"})
        script = parse_script(tmp_path / "run/main.py", base=tmp_path)
        assert script.search == ()
        assert one(script, "deep").site.file == "src/helper.py"
        assert "helper" not in [item.module for item in script.imports]

    @pytest.mark.parametrize(
        "change",
        [
            "sys.path.append(os.environ['X'])",
            "sys.path.insert(0, '/opt/only/on/the/host')",
            "sys.path.extend(found)",
            "sys.path = found",
            "sys.meta_path.append(Finder())",
            "sys.path_hooks.insert(0, hook)",
            "sys.modules[name] = made",
            "sys.modules.update(made)",
        ],
    )
    def test_other_changes_are_told(self, parse: Parse, change: str) -> None:
        script = parse(f"import sys, os\n{change}\n")
        assert [site.line for site in script.search] == [2]

    @pytest.mark.parametrize(
        "change",
        [
            "sys.path.append(os.path.join(os.path.dirname(__file__), 'nowhere'))",
            "sys.path = [p for p in sys.path if p]",
            "sys.path.remove('x')",
            "sys.modules[__name__] = Lazy()",
            "sys.modules['torch'] = None",
        ],
    )
    def test_changes_that_bring_nothing(self, parse: Parse, change: str) -> None:
        script = parse(f"import sys, os\n{change}\n")
        assert (script.search, script.added) == ((), ())

    def test_modules_put_there_by_hand(self, parse: Parse) -> None:
        assert parse("import sys\nsys.modules['a.b'] = object()\nsys.modules.setdefault('c', x)\n").added == ("a.b", "c")

    def test_compiled_modules_and_plain_directories(self, tmp_path: Path) -> None:
        write(tmp_path, {
            "main.py": "import m, ext, pk.inner, bare\nfrom ns import h\nfrom ns import nope\nimport torch\n",
            "m.pyc": "", "ext.cpython-311-x86_64-linux-gnu.so": "", "pk/__init__.abi3.so": "", "bare/data.csv": "",
            "ns/h.py": "import deep\n",
        })  # fmt: skip
        script = parse_script(tmp_path / "main.py", base=tmp_path)
        assert script.problems == ()
        assert [(i.module, i.names, i.beside) for i in script.imports] == [
            ("bare", (), True), ("ns", ("h",), True), ("ns", ("nope",), False), ("torch", (), False), ("deep", (), False)]  # fmt: skip
        assert set(script.local) == {"main", "m", "ext", "pk"}


class TestOtherWaysIn:
    def test_a_lambda_is_a_function(self, parse: Parse) -> None:
        item = one(parse("import importlib\nf = lambda: importlib.import_module('x')\n"), "x")
        assert (item.reach, item.function) == ("function", "<lambda>")

    def test_a_lambda_s_defaults_are_not_in_it(self, parse: Parse) -> None:
        assert one(parse("f = lambda a=__import__('x'): a\n"), "x").reach == "module"

    @pytest.mark.parametrize("call", ["run([sys.executable, 'child.py'])", "Popen((sys.executable, '-u', os.path.join(os.path.dirname(__file__), 'child.py'), arg))"])
    def test_a_child_script_is_followed(self, parse: Parse, call: str) -> None:
        item = one(parse(f"import os, sys, subprocess\nsubprocess.{call}\n", child="import x\n"), "x")
        assert (item.site.file, item.reach, [str(site) for site in item.path]) == ("child.py", "module", ["main.py:2"])

    def test_a_child_module(self, parse: Parse) -> None:
        assert one(parse("import sys, subprocess\nsubprocess.check_call([sys.executable, '-m', 'x.y'])\n"), "x.y").form == "run"

    @pytest.mark.parametrize("command", ["[sys.executable, '-c', 'import x']", "['python3', 'child.py']", "[sys.executable]", "[sys.executable, name]", "[sys.executable, 'gone.py']"])
    def test_other_children_are_not(self, parse: Parse, command: str) -> None:
        script = parse(f"import sys, subprocess\nsubprocess.run({command})\n", child="import x\n")
        assert [item.module for item in script.imports] == ["subprocess", "sys"]

    @pytest.mark.parametrize(
        ("text", "why"),
        [
            ("import ctypes\nctypes.CDLL('libx.so')", "library"),
            ("import torch\ntorch.ops.load_library('x.so')", "library"),
            ("from importlib.metadata import entry_points\nfor p in entry_points(group='g'): p.load()", "plugins"),
        ],
    )
    def test_libraries_and_plugins(self, parse: Parse, text: str, why: str) -> None:
        assert [item.unresolved for item in parse(text).imports if not item.module] == [why]

    def test_what_loads_nothing(self, parse: Parse) -> None:
        text = "import ctypes\nfrom importlib.metadata import entry_points\nctypes.CDLL(None)\nlist(entry_points(group='g'))\n"
        assert [item.unresolved for item in parse(text).imports if not item.module] == []


PIECES = st.sampled_from(["sys.path", "sys.modules", "sys.meta_path", "__file__", "os.path.join(", "Path(", ")", "[", "]", " / ", " + ", " = ", "'..'", "'\\0'", "\n", ".parent", ".parents[0]", ".append(", ".insert(0, ", "x", "lambda: ", "__import__(", "import ", "if ", ": ", "subprocess.run([sys.executable, "])  # fmt: skip


@given(st.lists(PIECES, max_size=12), st.integers(1, 300))
@settings(deadline=None)
def test_any_change_of_the_search_path_is_read(tmp_path_factory: pytest.TempPathFactory, pieces: list[str], times: int) -> None:
    path = tmp_path_factory.getbasetemp() / "fuzz_path.py"
    path.write_text(f"import sys, os, subprocess\nfrom pathlib import Path\n{''.join(pieces)}\n{''.join(pieces[:1]) * times}\n")
    assert parse_script(path).script.endswith("fuzz_path.py")


@given(st.text(max_size=200))
def test_any_text_is_read(tmp_path_factory: pytest.TempPathFactory, text: str) -> None:
    path = tmp_path_factory.getbasetemp() / "fuzz.py"
    path.write_bytes(text.encode("utf-8", "surrogatepass"))
    try:
        script = parse_script(path)
    except UsageError:
        return
    assert all(item.site.line >= 1 for item in script.imports)


@given(st.binary(max_size=200))
def test_any_bytes_are_read(tmp_path_factory: pytest.TempPathFactory, raw: bytes) -> None:
    path = tmp_path_factory.getbasetemp() / "fuzz_bytes.py"
    path.write_bytes(b"import a\n" + raw)
    try:
        parse_script(path)
    except UsageError:
        return


@given(st.sampled_from([">", ">=", "==", "<", "<=", "!="]), st.tuples(st.integers(2, 4), st.integers(0, 20)))
def test_version_gates_agree_with_python(operator: str, version: tuple[int, int]) -> None:
    here = {"sys.version_info": list(sys.version_info)}
    text = f"sys.version_info[:2] {operator} {version}"
    assert evaluate_host(text, here) is bool(eval(text))
