"""Preflight: scripts against hosts made of small directories, and against this interpreter through the real transport."""

from __future__ import annotations

import shutil
import sys
import sysconfig
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from packaging.version import Version

from envspec import probe_imports
from envspec.errors import CaptureError
from envspec.findings import Finding, Report
from envspec.hosts.interface import Host
from envspec.hosts.local import LocalHost
from envspec.imports import ScriptImports, parse_directory, parse_module, parse_script
from envspec.locks import RoleLock, load_lock
from envspec.preflight import HostImports, ImportFacts, ModuleFact, ScriptFacts, distribution_names, facts_from_snapshot, judge, request, resolve
from envspec.rules import rule
from envspec.snapshot import Extension
from tests.envspec.compare.make import dist, snap

SPECULATORS = {
    "0.2.0": {"speculators/__init__.py": "", "speculators/models/__init__.py": "",
              "speculators/models/eagle3.py": "class Eagle3SpeculatorConfig: ...\n"},
    "0.9.0": {"speculators/__init__.py": "", "speculators/models/__init__.py": "", "speculators/models/eagle3/__init__.py": "",
              "speculators/models/eagle3/config.py": "class Eagle3SpeculatorConfig: ...\n"},
}  # fmt: skip


def write(root: Path, files: Mapping[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return root


def install(site: Path, name: str, version: str, files: Mapping[str, str]) -> Path:
    """Put a distribution's files and metadata into a site directory."""
    info = f"{name.replace('-', '_')}-{version}.dist-info"
    record = "".join(f"{file},,\n" for file in [*files, f"{info}/METADATA", f"{info}/RECORD"])
    write(site, {**files, f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n", f"{info}/RECORD": record})
    return site


def on(site: Path | None, *scripts: ScriptImports, label: str = "gpu-a", role: str | None = None) -> HostImports:
    """The answer of a host that has the standard library and one site directory."""
    asked = request(scripts)
    paths = sysconfig.get_paths()
    asked["path"] = [paths["stdlib"], str(Path(paths["stdlib"]) / "lib-dynload"), *([str(site)] if site else [])]
    return HostImports(label=label, facts=ImportFacts.from_dict(probe_imports.main(asked)), role=role)


def lock_of(tmp_path: Path, text: str, role: str | None = None) -> RoleLock:
    path = tmp_path / "requirements.lock"
    path.write_text(text)
    return RoleLock(role=role, lock=load_lock(path))


Check = Callable[..., list[Finding]]


@pytest.fixture
def check(tmp_path: Path) -> Check:
    """Findings for a script text on a host with the given distributions ({name: files} or files alone)."""

    def run(text: str, site: Mapping[str, str] | None = None, **files: str) -> list[Finding]:
        write(tmp_path / "work", {"main.py": text, **{f"{name}.py": body for name, body in files.items()}})
        write(tmp_path / "site", site or {})
        script = parse_script(tmp_path / "work" / "main.py", base=tmp_path / "work")
        return judge([script], [on(tmp_path / "site", script)])

    return run


def codes(found: list[Finding]) -> list[tuple[str, str, str]]:
    return [(f.code, f.severity, f.subject) for f in found]


class TestMotivatingScript:
    """`from speculators.models.eagle3.config import …` in a function at line 32, called at module level from line 301."""

    @pytest.fixture
    def script(self, tmp_path: Path) -> ScriptImports:
        lines = [""] * 301
        lines[0] = "import argparse"
        lines[30] = "def load_config(path):"
        lines[31] = "    from speculators.models.eagle3.config import Eagle3SpeculatorConfig"
        lines[32] = "    return Eagle3SpeculatorConfig.from_pretrained(path)"
        lines[300] = "config = load_config('draft')"
        write(tmp_path, {"serve.py": "\n".join(lines) + "\n"})
        return parse_script(tmp_path / "serve.py", base=tmp_path)

    def test_without_the_package(self, tmp_path: Path, script: ScriptImports) -> None:
        train = on(install(tmp_path / "train", "speculators", "0.9.0", SPECULATORS["0.9.0"]), script, label="train-1", role="train")
        lock = lock_of(tmp_path, "speculators==0.9.0 --hash=sha256:" + "0" * 64 + "\n")
        (found,) = judge([script], [on(None, script)], [lock], elsewhere=[train])
        assert (found.code, found.severity, found.subject, found.hosts) == ("EP101", "breaks", "speculators", ("gpu-a",))
        assert found.location is not None
        assert (found.location.file, found.location.line) == ("serve.py", 32)
        assert "load_config()" in found.what
        assert "serve.py:301" in found.what
        assert "requirements.lock has speculators 0.9.0" in found.what
        assert "host train-1 has speculators 0.9.0" in found.what
        assert found.fix == "python3 -m pip install speculators==0.9.0"

    def test_with_an_older_layout(self, tmp_path: Path, script: ScriptImports) -> None:
        old = on(install(tmp_path / "old", "speculators", "0.2.0", SPECULATORS["0.2.0"]), script)
        (found,) = judge([script], [old])
        assert (found.code, found.severity, found.subject) == ("EP103", "breaks", "speculators.models.eagle3.config")
        assert "in speculators 0.2.0, speculators.models.eagle3 is a module, not a package" in found.what
        assert "before speculators 0.3.0" in found.what
        assert found.fix == "python3 -m pip install 'speculators>=0.3.0'"
        (found,) = judge([script], [old], [lock_of(tmp_path, "speculators==0.9.0\n")])
        assert found.fix == "python3 -m pip install speculators==0.9.0"

    def test_a_version_with_the_layout_is_not_told_to_get_it(self, tmp_path: Path, script: ScriptImports) -> None:
        files = dict.fromkeys(SPECULATORS["0.9.0"], "")  # the module is there, the name is not
        (found, *_) = judge([script], [on(install(tmp_path / "new", "speculators", "0.9.0", files), script)])
        assert found.code == "EP104"
        assert "before speculators" not in found.what
        assert "0.3.0" not in (found.fix or "")

    @pytest.mark.parametrize("installed", ["0.2.0", None])
    def test_a_lock_that_is_older_than_the_layout_is_no_source(self, tmp_path: Path, script: ScriptImports, installed: str | None) -> None:
        site = install(tmp_path / "old", "speculators", installed, SPECULATORS[installed]) if installed else None
        lock = lock_of(tmp_path, "speculators==0.2.0\n", role="infer")
        (found,) = judge([script], [on(site, script, role="infer")], [lock])
        assert found.code == ("EP103" if installed else "EP101")
        assert "Elsewhere" not in found.what
        assert "The lock must be raised to speculators 0.3.0 or newer" in found.what
        assert "requirements.lock has speculators 0.2.0" not in str(found.evidence["available"])
        assert found.fix is not None
        assert found.fix.startswith("python3 -m pip install 'speculators>=0.3.0'  # and raise speculators in ")
        # another role's lock that has it is one, and the own lock must still be raised
        newer = RoleLock(role="train", lock=load_lock(write(tmp_path, {"t/requirements.lock": "speculators==0.9.0\n"}) / "t"))
        (found,) = judge([script], [on(site, script, role="infer")], [lock, newer])
        assert "(role train) has speculators 0.9.0" in found.what
        assert found.fix is not None
        assert found.fix.startswith("python3 -m pip install speculators==0.9.0  # and raise speculators in ")

    def test_a_host_that_cannot_tell_is_no_source(self, tmp_path: Path, script: ScriptImports) -> None:
        fact = ModuleFact(status="unknown", owner=("speculators", "0.9.0"))
        facts = ImportFacts(python="3.11", scripts=(ScriptFacts(modules={"speculators.models.eagle3.config": fact}),))
        (found,) = judge([script], [on(None, script)], elsewhere=[HostImports(label="train-1", facts=facts)])
        assert "train-1" not in found.what
        assert found.fix == "python3 -m pip install 'speculators>=0.3.0'"

    @pytest.mark.parametrize("text", [None, "from speculators.models.eagle3 import config\n"])
    def test_a_saved_snapshot_says_what_the_live_host_says(self, tmp_path: Path, script: ScriptImports, text: str | None) -> None:
        if text:
            script = parse_script(write(tmp_path, {"other.py": text}) / "other.py", base=tmp_path)
        for version, files in SPECULATORS.items():
            modules = ("speculators", "speculators.models")
            saved = snap("gpu-a", dist("speculators", version, modules=modules))
            live = replace(on(install(tmp_path / version, "speculators", version, files), script), snapshot=saved)
            offline = HostImports(label="gpu-a", facts=facts_from_snapshot(saved, [script]), snapshot=saved)
            told = [[(f.code, f.severity, f.subject, f.what, f.fix) for f in judge([script], [host])] for host in (offline, live)]
            assert told[0] == told[1]
            assert [each[:2] for each in told[0]] == ([("EP104" if text else "EP103", "breaks")] if version == "0.2.0" else [])

    def test_a_saved_snapshot_of_a_version_that_has_it_is_a_source(self, script: ScriptImports) -> None:
        newer, older = (snap("train-1", dist("speculators", version)) for version in ("0.9.0", "0.2.0"))
        bare = HostImports(label="gpu-a", facts=facts_from_snapshot(snap("gpu-a"), [script]))
        others = [HostImports(label=label, facts=facts_from_snapshot(each, [script])) for label, each in (("new", newer), ("old", older))]
        (found,) = judge([script], [bare], elsewhere=others)
        assert found.evidence["available"] == ["host new has speculators 0.9.0"]

    def test_names_that_a_snapshot_knows(self, tmp_path: Path) -> None:
        script = parse_script(write(tmp_path, {"main.py": "from markupsafe import _native, escape\n"}) / "main.py", base=tmp_path)
        facts = facts_from_snapshot(snap("a", dist("markupsafe", "3.0.4", modules=("markupsafe", "markupsafe._native"))), [script])
        names = facts.scripts[0].modules["markupsafe"].names
        assert {name: fact.status for name, fact in names.items()} == {"_native": "ok", "escape": "unknown"}

    def test_where_it_runs(self, tmp_path: Path, script: ScriptImports) -> None:
        new = on(install(tmp_path / "new", "speculators", "0.9.0", SPECULATORS["0.9.0"]), script)
        assert judge([script], [new], [lock_of(tmp_path, "speculators==0.9.0\n")]) == []

    def test_hosts_that_fail_alike_are_one_finding(self, tmp_path: Path, script: ScriptImports) -> None:
        (found,) = judge([script], [on(None, script, label="b"), on(None, script, label="a")])
        assert found.hosts == ("a", "b")


class TestLostFiles:
    """A distribution that is installed in the right version and has lost the file."""

    LOCK = "markupsafe==3.0.4\n"
    FILES: Mapping[str, str] = {"markupsafe/__init__.py": "", "markupsafe/_native.py": "", "markupsafe/deep/__init__.py": "", "markupsafe/deep/x.py": ""}

    def host(self, tmp_path: Path, script: ScriptImports, *, without: str | None, label: str = "gpu-a", captured: bool = True) -> HostImports:
        site = install(tmp_path / label / "site", "MarkupSafe", "3.0.4", self.FILES)
        write(site, {"jinja/__init__.py": "import markupsafe._native\n"})
        if without is not None:
            gone = site / "markupsafe" / without
            gone.unlink() if gone.is_file() else shutil.rmtree(gone)
        modules = ("markupsafe", "markupsafe._native", "markupsafe.deep")
        known = snap(label, dist("markupsafe", "3.0.4", raw_name="MarkupSafe", installer="uv", modules=modules))
        return replace(on(site, script, label=label), snapshot=known if captured else None)

    @pytest.mark.parametrize(
        ("text", "without", "code"),
        [
            ("import markupsafe._native", "_native.py", "EP102"),
            ("import markupsafe.deep.x", "deep", "EP102"),
            ("from markupsafe import _native", "_native.py", "EP104"),
            ("import markupsafe", "", "EP101"),
            ("import jinja", "_native.py", "EP114"),
        ],
    )
    def test_what_record_lists_is_installed_again(self, tmp_path: Path, text: str, without: str, code: str) -> None:
        script = parse_script(write(tmp_path, {"main.py": text + "\n"}) / "main.py", base=tmp_path)
        (found,) = judge([script], [self.host(tmp_path, script, without=without)], [lock_of(tmp_path, self.LOCK)])
        assert (found.code, found.severity) == (code, "breaks")
        assert "which markupsafe 3.0.4 should have: the RECORD of MarkupSafe lists it" in found.what
        assert "Elsewhere" not in found.what
        assert found.fix == "uv pip install --python /opt/env/bin/python3 --reinstall --no-deps markupsafe==3.0.4"

    def test_a_snapshot_names_the_version_of_a_package_that_is_not_imported_itself(self, tmp_path: Path) -> None:
        script = parse_script(write(tmp_path, {"main.py": "import markupsafe.never\n"}) / "main.py", base=tmp_path)
        known = snap("old", dist("markupsafe", "3.0.4", raw_name="MarkupSafe", modules=("markupsafe", "markupsafe._native")))
        (found,) = judge([script], [HostImports(label="old", facts=facts_from_snapshot(known, [script]), snapshot=known)])
        assert "MarkupSafe 3.0.4 has no submodule markupsafe.never" in found.what

    def test_a_snapshot_does_not_call_a_module_there_whose_file_was_gone(self, tmp_path: Path) -> None:
        script = parse_script(write(tmp_path, {"main.py": "import yaml._yaml\n"}) / "main.py", base=tmp_path)
        gone = Extension(path="yaml/_yaml.cpython-311-x86_64-linux-gnu.so", owner="pyyaml", fault="missing")
        known = replace(snap("old", dist("pyyaml", "6.0.2", modules=("yaml", "yaml._yaml"))), extensions=(gone,))
        (found,) = judge([script], [HostImports(label="old", facts=facts_from_snapshot(known, [script]), snapshot=known)])
        assert (found.code, found.subject) == ("EP109", "yaml._yaml")
        assert f"{gone.path} is gone" in found.what

    def test_what_another_host_has_in_the_same_version_is_installed_again(self, tmp_path: Path) -> None:
        script = parse_script(write(tmp_path, {"main.py": "import markupsafe.deep.x\n"}) / "main.py", base=tmp_path)
        whole = self.host(tmp_path, script, without=None, label="gpu-b")
        torn = self.host(tmp_path, script, without="deep/x.py", captured=False)
        (found,) = judge([script], [torn, whole], [lock_of(tmp_path, self.LOCK)])
        assert "host gpu-b has it in MarkupSafe 3.0.4" in found.what
        assert found.fix == "python3 -m pip install --force-reinstall --no-deps --no-cache-dir markupsafe==3.0.4"

    def test_a_lock_of_the_same_version_is_not_said_to_have_it(self, tmp_path: Path) -> None:
        script = parse_script(write(tmp_path, {"main.py": "import markupsafe.never\n"}) / "main.py", base=tmp_path)
        (found,) = judge([script], [self.host(tmp_path, script, without=None)], [lock_of(tmp_path, self.LOCK)])
        assert "Elsewhere" not in found.what
        assert "should have" not in found.what
        assert found.fix == rule("EP102").mend  # no command would help


EIGHT = """\
from __future__ import annotations
from typing import TYPE_CHECKING
import sys, importlib
if TYPE_CHECKING:
    import only_for_types
try:
    import optional_thing
except ImportError:
    optional_thing = None
if sys.platform == "win32":
    import winreg_like
import packaging.nosuchsub
from packaging.models.eagle3.config import X
importlib.import_module("nope_dyn.sub")
__import__("nope_dunder")
from . import rel
"""


def test_the_eight_lines(check: Check) -> None:
    found = check(EIGHT, {"packaging/__init__.py": ""})
    assert codes([f for f in found if f.severity == "breaks"]) == [
        ("EP101", "breaks", "nope_dunder"),
        ("EP101", "breaks", "nope_dyn"),
        ("EP102", "breaks", "packaging.models"),
        ("EP102", "breaks", "packaging.nosuchsub"),
        ("EP115", "breaks", "from . import rel"),
    ]
    assert codes([f for f in found if f.severity != "breaks"]) == [("EP108", "noise", "optional_thing")]


def test_the_eight_lines_in_a_package(tmp_path: Path) -> None:
    write(tmp_path, {"pkg/__init__.py": "", "pkg/main.py": EIGHT, "pkg/rel.py": ""})
    write(tmp_path / "site", {"packaging/__init__.py": ""})
    script = next(s for s in parse_directory(tmp_path / "pkg", base=tmp_path) if s.script == "pkg/main.py")
    found = judge([script], [on(tmp_path / "site", script)])
    assert sorted(f.subject for f in found if f.severity == "breaks") == [
        "nope_dunder", "nope_dyn", "packaging.models", "packaging.nosuchsub",
    ]  # fmt: skip


def test_what_a_changed_search_may_bring_never_breaks(check: Check) -> None:
    found = check("import sys, os\nsys.path.append(os.environ['X'])\nimport gone\nimport a.b\n", {"a/__init__.py": ""})
    assert sorted(codes(found)) == [("EP102", "breaks", "a.b"), ("EP109", "noise", "gone")]
    (undecided,) = [each for each in found if each.code == "EP109"]
    assert "main.py:2 changes the search for modules" in undecided.what


def test_what_a_script_puts_there_itself_is_there(check: Check) -> None:
    assert check("import sys\nsys.modules['gone'] = sys\nsys.modules['x.y'] = sys\nimport gone\nimport x.y\nimport a\n", {"a.py": "import gone\n"}) == []


def test_a_plain_directory_beside_the_script_is_a_module_where_nothing_else_is(check: Check, tmp_path: Path) -> None:
    (tmp_path / "work" / "data").mkdir(parents=True)
    assert check("import data\n") == []
    assert codes(check("from data import X\n", {"data/__init__.py": ""})) == [("EP104", "breaks", "data.X")]


def test_a_local_module_that_only_functions_import_is_named_as_that(check: Check) -> None:
    (found,) = check("def f():\n    import helper\n", helper="import gone\n")
    assert (found.code, found.subject) == ("EP107", "gone")
    assert found.what.endswith("; helper.py is imported in functions only, which nothing at module level was seen to call.")


def test_plugins_and_libraries_are_undecided(check: Check) -> None:
    found = check("import ctypes\nfrom importlib.metadata import entry_points\n[p.load() for p in entry_points()]\nctypes.CDLL('libx.so')\n")
    assert [(f.code, f.severity, f.location and f.location.line) for f in found] == [("EP109", "noise", 3), ("EP109", "noise", 4)]


class TestLadder:
    @pytest.mark.parametrize(
        ("text", "site", "code", "subject"),
        [
            ("import a", {}, "EP101", "a"),
            ("import a.b.c", {"a/__init__.py": ""}, "EP102", "a.b"),
            ("import a.b.c", {"a/__init__.py": "", "a/b.py": ""}, "EP103", "a.b.c"),
            ("from a import X, Y", {"a.py": "X = 1\n"}, "EP104", "a.Y"),
            ("import a.c", {"a/__init__.py": "", "a/c.cpython-27-x86_64-linux-gnu.so": ""}, "EP105", "a.c"),
            ("import a", {"a/__init__.py": "import b\n"}, "EP114", "b"),
            ("from a import X", {"a/__init__.py": "from .m import X\n", "a/m.py": "import b.c\n"}, "EP114", "b"),
            ("import a", {"a.py": "raise RuntimeError('no GPU')\n"}, "EP114", "a"),
            ("import a", {"a.py": "print 'two'\n"}, "EP114", "a"),
            ("import aifc" if sys.version_info >= (3, 13) else "import annotationlib", {}, "EP113", ""),
        ],
    )
    def test_each_rung(self, check: Check, text: str, site: dict[str, str], code: str, subject: str) -> None:
        found = check(text + "\n", site)
        assert [(f.code, f.severity) for f in found] == [(code, "breaks")]
        assert found[0].subject == (subject or found[0].subject)
        assert found[0].location is not None
        assert found[0].location.line == 1

    def test_names_that_cannot_be_known_are_not_reported(self, check: Check) -> None:
        assert check("from a import X\n", {"a.py": "def __getattr__(n): return lookup(n)\n"}) == []

    def test_a_submodule_that_only_running_could_make_is_told_and_fails_nothing(self, check: Check) -> None:
        found = check("import a.b\n", {"a/__init__.py": "import sys\nfor name in made():\n    sys.modules[name] = object()\n"})
        assert codes(found) == [("EP109", "noise", "a.b")]
        assert found[0].what == "main.py:1 imports a.b: a has no file for it and may make it when it runs."

    def test_one_import_of_a_directory_is_one_finding(self, tmp_path: Path) -> None:
        write(tmp_path / "work", {"pkg/__init__.py": "import gone\n", "pkg/one.py": "X = 1\n", "pkg/two.py": "from pkg import one\n"})
        write(tmp_path / "site", {})
        scripts = parse_directory(tmp_path / "work" / "pkg", base=tmp_path / "work")
        (found,) = judge(scripts, [on(tmp_path / "site", *scripts)])  # __init__, one and two all reach it
        assert (found.code, str(found.location)) == ("EP101", "pkg/__init__.py:1:1")
        assert "by way of" not in found.what

    def test_a_module_of_the_command_line_has_no_line(self, tmp_path: Path) -> None:
        write(tmp_path / "site", {})
        script = parse_module("gone", base=tmp_path)
        (found,) = judge([script], [on(tmp_path / "site", script)])
        assert found.what.startswith("-m gone imports gone: there is no module gone")

    def test_a_relative_import_above_the_top_package(self, tmp_path: Path) -> None:
        write(tmp_path / "work", {"pk/__init__.py": "", "pk/__main__.py": "from ..up import x\n"})
        write(tmp_path / "site", {})
        script = parse_module("pk", base=tmp_path / "work")
        (found,) = judge([script], [on(tmp_path / "site", script)])
        assert (found.code, found.severity) == ("EP115", "breaks")
        assert "`from ..up import x` goes above the top-level package" in found.what

    def test_the_nearest_name(self, check: Check) -> None:
        (found,) = check("from a import Trainer\n", {"a.py": "class Trainers: ...\n"})
        assert "Near it: Trainers" in found.what

    def test_the_chain_is_in_the_evidence(self, check: Check) -> None:
        (found,) = check("import a\n", {"a/__init__.py": "from . import m\n", "a/m.py": "import gone\n"})
        chain = found.evidence["chain"]
        assert isinstance(chain, list)
        assert [str(step).split(" ")[0] for step in chain] == ["a", "a.m"]

    def test_a_package_that_lacks_the_module_and_fails_anyway(self, check: Check) -> None:
        found = check("import a.m.x\n", {"a/__init__.py": "import gone\n", "a/m.py": ""})
        assert codes(found) == [("EP103", "breaks", "a.m.x"), ("EP114", "breaks", "gone")]

    def test_a_module_that_runs(self, tmp_path: Path) -> None:
        write(tmp_path / "site", {"tool/__init__.py": "", "good/__init__.py": "", "good/__main__.py": "", "single.py": ""})
        subjects = {}
        for name in ("tool", "good", "single", "gone"):
            script = parse_module(name, base=tmp_path)
            subjects[name] = codes(judge([script], [on(tmp_path / "site", script)]))
        assert subjects == {
            "tool": [("EP102", "breaks", "tool.__main__")], "good": [], "single": [], "gone": [("EP101", "breaks", "gone")],
        }  # fmt: skip


class TestReach:
    @pytest.mark.parametrize(
        ("text", "expected"),
        [
            ("import a", [("EP101", "breaks")]),
            ("def f():\n    import a\nf()", [("EP101", "breaks")]),
            ("def f():\n    import a", [("EP107", "results")]),
            ("if args.x:\n    import a", [("EP107", "results")]),
            ("try:\n    import a\nexcept ImportError:\n    pass", [("EP108", "noise")]),
            ("if is_a_available():\n    import a", [("EP108", "noise")]),
            ("from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import a", []),
            ("import sys\nif sys.platform == 'amiga':\n    import a", []),
            ("import sys\nif sys.version_info >= (3, 8):\n    import a", [("EP101", "breaks")]),
            ("import importlib.util\nif importlib.util.find_spec('a'):\n    import a", []),
            ("import importlib, sys\nimportlib.import_module(sys.argv[1])", [("EP109", "noise")]),
            ("try:\n    import a\nexcept ImportError:\n    import b", [("EP101", "breaks"), ("EP108", "noise")]),
            ("import a\ndef f():\n    import a\ntry:\n    import a\nexcept ImportError:\n    pass", [("EP101", "breaks")]),
        ],
    )
    def test_severity(self, check: Check, text: str, expected: list[tuple[str, str]]) -> None:
        assert [(f.code, f.severity) for f in check(text + "\n")] == expected

    def test_other_places_are_named(self, check: Check) -> None:
        (found,) = check("def f():\n    import a\nimport a.b\n")
        assert found.location is not None
        assert (found.location.line, found.evidence["also"]) == (3, ["main.py:2"])

    def test_inline_ignores(self, check: Check) -> None:
        (found,) = check("import a  # envspec: ignore[EP101]\n")
        assert found.ignored
        (found,) = check("import a  # envspec: ignore[EP102]\n")
        assert not found.ignored

    def test_an_ignored_place_does_not_hide_another(self, check: Check) -> None:
        (found,) = check("import a  # envspec: ignore\nimport a\n")
        assert not found.ignored


class TestScript:
    def test_local_modules_count_as_found(self, check: Check) -> None:
        assert check("import helper\nfrom helper import X\n", helper="X = 1\n") == []

    def test_a_fault_in_a_local_module(self, check: Check) -> None:
        (found,) = check("import helper\n", helper="\nimport gone\n")
        assert (found.code, str(found.location)) == ("EP101", "helper.py:2:1")
        assert "main.py:1" in found.what

    @pytest.mark.parametrize(("name", "victim"), [("token", "standard library"), ("torch", "torch 2.9.1")])
    def test_shadowing(self, tmp_path: Path, check: Check, name: str, victim: str) -> None:
        install(tmp_path / "site", "torch", "2.9.1", {"torch/__init__.py": ""})
        found = check("import os\n", None, **{name: ""})
        assert [(f.code, f.subject) for f in found] == [("EP106", name)]
        assert victim in found[0].what

    def test_the_hosts_own_parser_decides(self, tmp_path: Path) -> None:
        write(tmp_path, {"main.py": "this is no python\n"})
        script = parse_script(tmp_path / "main.py", base=tmp_path)
        (found,) = judge([script], [on(None, script)])
        assert (found.code, found.severity, found.subject) == ("EP110", "breaks", "main.py")
        facts = on(None, script).facts
        newer = ImportFacts(python="3.99.0", scripts=(type(facts.scripts[0])(modules={}),), host=facts.host)
        assert judge([script], [HostImports(label="new", facts=newer)]) == []

    def test_inline_requirements(self, tmp_path: Path) -> None:
        install(tmp_path / "site", "rich", "13.0", {"rich/__init__.py": ""})
        header = '# /// script\n# requires-python = ">=3.99"\n# dependencies = ["rich>14", "gone", "win; sys_platform == \'win32\'"]\n# ///\n'
        write(tmp_path, {"main.py": header})
        script = parse_script(tmp_path / "main.py", base=tmp_path)
        found = judge([script], [on(tmp_path / "site", script)])
        assert codes(found) == [("EP111", "breaks", "gone"), ("EP111", "breaks", "python"), ("EP111", "breaks", "rich")]
        assert "the host has 13.0" in found[2].what

    def test_an_import_that_is_not_locked(self, tmp_path: Path) -> None:
        site = install(tmp_path / "site", "extra-tool", "1.0", {"extra_tool/__init__.py": ""})
        write(tmp_path, {"main.py": "import extra_tool\nimport json\n"})
        script = parse_script(tmp_path / "main.py", base=tmp_path)
        found = judge([script], [on(site, script)], [lock_of(tmp_path, "numpy==2.0.0\n")])
        assert codes(found) == [("EP112", "results", "extra-tool")]
        assert judge([script], [on(site, script)], [lock_of(tmp_path, "extra_tool==1.0\n")]) == []


@pytest.mark.parametrize(
    ("module", "name"),
    [
        ("yaml", "pyyaml"), ("cv2", "opencv-python"), ("PIL.Image", "pillow"), ("sklearn.svm", "scikit-learn"),
        ("google.protobuf.message", "protobuf"), ("google.cloud.storage", "google-cloud-storage"), ("sgl_kernel", "sgl-kernel"),
        ("flash_attn.bert_padding", "flash-attn"), ("torch", "torch"), ("ruamel.yaml", "ruamel-yaml"),
    ],
)  # fmt: skip
def test_distribution_names(module: str, name: str) -> None:
    assert name in distribution_names(module)


class TestTransport:
    """Through the real local transport and this interpreter's own environment."""

    @pytest.fixture
    def script(self, tmp_path: Path) -> ScriptImports:
        text = "import pytest\nfrom packaging.version import Version, Nothing\nimport packaging.gone\nimport gone_altogether\n"
        write(tmp_path, {"main.py": text})
        return parse_script(tmp_path / "main.py", base=tmp_path)

    def test_one_round_trip(self, script: ScriptImports) -> None:
        host = LocalHost(f"local:{sys.executable}", python=sys.executable)
        facts = resolve(host, [script])
        found = judge([script], [HostImports(label="here", facts=facts)])
        assert codes(found) == [
            ("EP101", "breaks", "gone_altogether"), ("EP102", "breaks", "packaging.gone"), ("EP104", "breaks", "packaging.version.Nothing"),
        ]  # fmt: skip
        owner = facts.scripts[0].modules["packaging.version"].owner
        assert owner is not None
        assert Version(owner[1]) >= Version("20")
        assert all(Finding.from_dict(f.to_dict()) == f for f in found)

    @pytest.mark.parametrize("answer", [None, [], {}, {"schema": "envspec/imports/1"}, {"schema": "envspec/imports/1", "scripts": [1]}])
    def test_a_damaged_answer(self, script: ScriptImports, answer: Any) -> None:
        class Broken(LocalHost):
            def run_python(self, source: str, stdin_json: object, timeout: float) -> object:
                return answer

        with pytest.raises(CaptureError, match="answer"):
            resolve(Broken("local"), [script])


def test_protocols_are_as_used() -> None:
    assert issubclass(LocalHost, Host)
    assert Report is not None
