"""Real environments, captured by the probe and compared: what pip says, what a loader would say, what damage looks like."""

from __future__ import annotations

import hashlib
import importlib.util
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from envspec.compare import LabelledSnapshot, compare, unsatisfied
from envspec.findings import Report
from envspec.hosts.interface import CaptureOptions
from envspec.hosts.local import LocalHost
from envspec.locks import RoleLock, load_lock
from envspec.snapshot import Snapshot
from tests.envspec.build import bare_venv, elf, install, make_wheel, python_env, torch_files

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads ELF files and a Linux search path")


def capture(site: Path, label: str, *deep: str) -> Snapshot:
    """The environment that this site-packages directory belongs to."""
    python = site.parents[2] / "bin" / "python"
    return LocalHost(f"local:{python}", str(python), label).snapshot(CaptureOptions(salt="salt", deep=deep))


def judge(*snapshots: Snapshot, lock: Path | None = None) -> Report:
    locks = [RoleLock(role=None, lock=load_lock(lock))] if lock else []
    return compare([LabelledSnapshot.of(item) for item in snapshots], locks)


@pytest.fixture(scope="module")
def empty(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A venv without packages; its site-packages directory."""
    return bare_venv(tmp_path_factory.mktemp("venv") / "env")


@pytest.fixture
def site(empty: Path) -> Iterator[Path]:
    """The same venv, emptied again after each test."""
    yield empty
    for item in empty.iterdir():
        shutil.rmtree(item) if item.is_dir() else item.unlink()


def codes(report: Report) -> list[tuple[str, str]]:
    """The findings that are not the machine's own (its shell's variables, its kernel's limits, its CUDA toolkit)."""
    own = ("EP307", "EP7", "EP8")
    return [(item.code, item.subject) for item in report.findings if not item.code.startswith(own)]


def test_twice_the_same_environment(site: Path) -> None:
    install(site, "numpy", "2.0.0", {"numpy/__init__.py": b"x = 1\n"})
    install(site, "torch", "2.9.1", torch_files())
    one, other = capture(site, "a"), capture(site, "b")
    report = judge(one, other)
    assert [item.what for item in report.findings if len(item.hosts) == 1] == []
    assert report.rows == () or {row.kind for row in report.rows} == {"variable"}
    assert len(report.groups) == 1


def test_a_lock_satisfies_the_environment_uv_installed_from_it(tmp_path: Path, empty: Path) -> None:
    """With hashes, by uv, from wheels: no finding on packages, and one for each that is then removed."""

    wheels = tmp_path / "wheels"
    wheels.mkdir()
    lines = []
    for name, requires in (("alpha", ("beta>=1",)), ("beta", ()), ("gamma-delta", ())):
        wheel = make_wheel(wheels, name, "1.5", {f"{name.replace('-', '_')}/__init__.py": b""}, requires=requires)
        digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
        lines.append(f"{name}==1.5 --hash=sha256:{digest}\n")
    lock = tmp_path / "requirements.lock"
    lock.write_text("".join(lines))
    site = bare_venv(tmp_path / "env")
    uv = [sys.executable, "-m", "uv", "pip"]
    python = ["--python", str(site.parents[2] / "bin" / "python")]
    command = [
        *uv,
        "sync",
        "--quiet",
        *python,
        "--require-hashes",
        "--no-index",
        "--find-links",
        str(wheels),
        str(lock),
    ]
    subprocess.run(command, check=True, env=python_env())
    assert codes(judge(capture(site, "a"), lock=lock)) == []
    subprocess.run([*uv, "uninstall", "--quiet", *python, "beta"], check=True, env=python_env())
    report = judge(capture(site, "a"), lock=lock)
    assert codes(report) == [("EP201", "beta")]
    assert "alpha requires it" in report.findings[0].what


@pytest.mark.skipif(importlib.util.find_spec("pip") is None, reason="compares with pip")
def test_unsatisfied_requirements_are_those_of_pip_check(site: Path) -> None:
    """Missing, too old, gated, pre-release, local version, extra, other spelling of the name."""
    needs = (
        "absent",
        "Old_Thing>=2",
        "fine<3",
        "windows-only; sys_platform == 'win32'",
        "linux-only; sys_platform == 'linux'",
        "with-extra; extra == 'more'",
        "pre>=1.0a1",
        "torchy==2.9.1",
        "newer>1.0",
        "exact===1.0",
    )
    install(site, "needy", "1.0", {"needy.py": b""}, requires=needs, extra="Provides-Extra: more\n")
    for name, version in (
        ("old-thing", "1.9"),
        ("fine", "2.5"),
        ("pre", "1.0b2"),
        ("torchy", "2.9.1+cu128"),
        ("newer", "1.0.post1"),
        ("exact", "1.0.0"),
    ):
        install(site, name, version, {f"{name.replace('-', '_')}.py": b""})
    python = site.parents[2] / "bin" / "python"
    done = subprocess.run(
        [sys.executable, "-m", "pip", "--python", str(python), "check"],
        capture_output=True,
        text=True,
        env=python_env(),
        check=False,
    )
    said = set()
    for line in done.stdout.splitlines():
        missing = re.fullmatch(r"(\S+) \S+ requires (\S+), which is not installed\.", line)
        wrong = re.fullmatch(r"(\S+) \S+ has requirement (\S+), but you have (\S+) (\S+)\.", line)
        assert missing or wrong, line
        if missing:
            said.add((missing[1], missing[2], None))
        elif wrong:
            said.add((wrong[1], wrong[3], wrong[4]))
    ours = {(item.dist, item.name, item.found) for item in unsatisfied(capture(site, "a"))}
    assert ours == said
    assert {name for _, name, _ in ours} >= {"absent", "old-thing", "linux-only"}


# The table of undefined symbols: extensions built against one torch, loaded under others.

TORCHES = ("2.8.0", "2.9.1", "2.10.0", "2.11.0")
TABLE = {
    "sgl_kernel/sm90/common_ops.abi3.so": (2, 0, 2, 2),
    "vllm/_C.abi3.so": (5, 5, 0, 1),
    "vllm/_C_stable_libtorch.abi3.so": (9, 7, 0, 0),
    "vllm/_moe_C.abi3.so": (3, 3, 0, 0),
}
"""Symbols that each torch does not export, as read from the real wheels."""

KNOWN = {
    ("sgl_kernel/sm90/common_ops.abi3.so", "2.8.0"): ["_ZNK3c106SymInt16sym_ne_slow_pathERKS0_"],
    ("sgl_kernel/sm90/common_ops.abi3.so", "2.10.0"): ["_ZN3c104cuda29c10_cuda_check_implementationEiPKcz"],
}


def _symbols(file: str) -> dict[str, set[str]]:
    """Names that are missing under each torch; they overlap where the same count suggests one cause."""
    out: dict[str, set[str]] = {}
    stem = re.sub(r"\W", "", file)
    for torch, count in zip(TORCHES, TABLE[file], strict=True):
        first = KNOWN.get((file, torch), [])
        rest = [f"_ZN3c10{len(stem) + len(str(n))}{stem}{n}Ev" for n in range(count - len(first))]
        out[torch] = {*first, *rest}
    return out


@pytest.mark.parametrize("torch", TORCHES)
def test_the_table_of_undefined_symbols(site: Path, torch: str) -> None:
    common = {"_ZN2at4_ops3addE", "_ZN5torch7LibraryC1Ev", "aoti_torch_delete"}
    wanted = {file: set().union(*_symbols(file).values()) for file in TABLE}
    everything = common.union(*wanted.values())
    absent = set().union(*(_symbols(file)[torch] for file in TABLE))
    install(site, "torch", torch, torch_files(f"{torch}+cu128", exports=sorted(everything - absent)))
    modules = {
        file: elf(needed=["libtorch.so", "libc10.so"], undefined=sorted({*common, *names}))
        for file, names in wanted.items()
    }
    kernels = {file: data for file, data in modules.items() if file.startswith("sgl_kernel")}
    install(site, "sgl-kernel", "0.3.21", kernels)
    install(site, "vllm", "0.19.1", {file: data for file, data in modules.items() if file.startswith("vllm")})
    snapshot = capture(site, "a")
    counted = {item.path.partition("site-packages/")[2] or item.path: len(item.missing) for item in snapshot.extensions}
    column = TORCHES.index(torch)
    assert counted == {file: counts[column] for file, counts in TABLE.items()}
    report = judge(snapshot)
    broken = {item.subject: item for item in report.findings if item.code == "EP401"}
    expected = {file.split("/")[0].replace("_", "-") for file, counts in TABLE.items() if counts[column]}
    assert set(broken) == expected
    assert all(item.severity == "breaks" for item in broken.values())
    assert codes(report) == [("EP401", name) for name in sorted(expected)]
    for item in broken.values():
        assert f"torch {torch}+cu128" in item.what


# Other faults of the loader.


def test_old_string_abi(site: Path) -> None:
    install(
        site, "torch", "2.9.1", torch_files(exports=["_ZN5torch3jit21parseSchemaOrNameERKNSt7__cxx1112basic_stringE"])
    )
    module = elf(needed=["libtorch.so"], undefined=["_ZN5torch3jit21parseSchemaOrNameERKSs"])
    install(site, "flashinfer-python", "0.2.0", {"flashinfer/_kernels.abi3.so": module})
    assert codes(judge(capture(site, "a"))) == [("EP404", "flashinfer-python")]


def test_library_of_another_cuda(site: Path) -> None:
    install(site, "torch", "2.10.0", torch_files("2.10.0+cu128"))
    install(site, "vllm", "0.20.2", {"vllm/_C.abi3.so": elf(needed=["libcudart.so.99"])})
    report = judge(capture(site, "a"))
    assert codes(report) == [("EP402", "vllm")]
    finding = next(item for item in report.findings if item.code == "EP402")
    assert "libcudart.so.99" in finding.what
    assert "CUDA 12.8" in finding.fix


def test_newer_cxx_library(site: Path) -> None:
    versions = {"libstdc++.so.6": ["GLIBCXX_3.4.11", "GLIBCXX_3.4.999", "CXXABI_1.3"]}
    install(site, "fast", "1.0", {"fast/_core.abi3.so": elf(versions=versions, needed=["libstdc++.so.6"])})
    beside = elf(versions=versions, needed=["libstdc++.so.6"], runpath="$ORIGIN")
    install(site, "own", "1.0", {"own/_core.abi3.so": beside, "own/libstdc++.so.6": elf()})
    snapshot = capture(site, "a")
    cxx = snapshot.cxx
    assert cxx is not None
    names = re.findall(rb"\0GLIBCXX_([\d.]+)\0", Path(cxx.path).read_bytes().replace(b"\0", b"\0\0"))
    numbers = [tuple(map(int, name.decode().split("."))) for name in names]
    assert cxx.glibcxx == ".".join(map(str, max(numbers)))
    report = judge(snapshot)
    assert codes(report) == [("EP403", "fast")]
    assert "GLIBCXX_3.4.999" in report.findings[0].what


def test_newer_glibc(site: Path) -> None:
    module = elf(versions={"libc.so.6": ["GLIBC_2.17", "GLIBC_2.99"]}, needed=["libc.so.6"])
    install(site, "fast", "1.0", {"fast/_core.abi3.so": module})
    report = judge(capture(site, "a"))
    assert codes(report) == [("EP403", "fast")]
    assert "GLIBC_2.99" in report.findings[0].what


@pytest.mark.parametrize(
    ("guard", "severity"),
    [
        ("try:\n    torch.ops.load_library(next(here.glob('_C*.so')))\nexcept:\n    pass\n", "noise"),
        ("try:\n    ctypes.CDLL(here / '_C.abi3.so')\nexcept (OSError, ImportError):\n    library = None\n", "noise"),
        ("torch.ops.load_library(next(here.glob('_C*.so')))\n", "breaks"),
        ("try:\n    torch.ops.load_library(next(here.glob('_C*.so')))\nexcept OSError:\n    raise\n", "breaks"),
        ("try:\n    torch.ops.load_library(here / '_other.so')\nexcept OSError:\n    pass\n", "breaks"),
        ("try:\n    torch.ops.load_library(here / '_C.abi3.so')\nexcept KeyError:\n    pass\n", "breaks"),
        ("try:\n  this is no Python", "breaks"),
    ],
)
def test_a_package_that_goes_on_without_its_module(site: Path, guard: str, severity: str) -> None:
    install(site, "torch", "2.9.1", torch_files(exports=["_ZN3c104cuda9SetDeviceEab"]))
    module = elf(needed=["libc10.so"], undefined=["_ZN3c104cuda9SetDeviceEa"])
    install(site, "ao", "0.9.0", {"ao/__init__.py": guard.encode(), "ao/_C.abi3.so": module})
    report = judge(capture(site, "a"))
    assert codes(report) == [("EP401", "ao")]
    assert next(item.severity for item in report.findings if item.code == "EP401") == severity


@pytest.mark.parametrize(
    ("files", "severity"),
    [
        ({"p/pick.py": "def pick():\n    try:\n        from p import pool as lib\n    except ImportError:\n        lib = None\n"}, "noise"),
        ({"p/pick.py": "try:\n    import p.pool\nexcept (OSError, ImportError):\n    pass\n", "p/more.py": "try:\n    from .pool import run\nexcept Exception:\n    run = None\n"}, "noise"),
        ({"p/pick.py": "try:\n    import p.pool\nexcept ImportError:\n    pass\n", "p/more.py": "from .pool import run\n"}, "breaks"),
        ({"p/pick.py": "try:\n    import p.pool\nexcept ImportError as error:\n    raise RuntimeError('no pool') from error\n"}, "breaks"),
        ({"p/pick.py": "try:\n    pass\nexcept ImportError:\n    import p.pool\n"}, "breaks"),
        ({"p/pick.py": "pool = 1\n"}, "breaks"),
    ],
)
def test_a_module_that_is_imported_with_care(site: Path, files: dict[str, str], severity: str) -> None:
    texts = {name: text.encode() for name, text in {"p/__init__.py": "", **files}.items()}
    install(site, "p", "1.0", {**texts, "p/pool.abi3.so": elf(needed=["libtbb.so.12"])})
    report = judge(capture(site, "a"))
    assert codes(report) == [("EP402", "p")]
    assert next(item.severity for item in report.findings if item.code == "EP402") == severity


def test_damaged_modules(site: Path) -> None:
    """One host has the whole file, one a part of it, one nothing: no two of them are the same, and the mend is named."""
    install(site, "fast", "1.0", {"fast/__init__.py": b"", "fast/_core.abi3.so": elf()})
    whole = capture(site, "a")
    file = site / "fast" / "_core.abi3.so"
    file.write_bytes(file.read_bytes()[:100])
    cut = capture(site, "b")
    file.unlink()
    gone = capture(site, "c")
    assert len({item.digest for item in (whole, cut, gone)}) == 3
    report = judge(whole, cut, gone)
    assert codes(report) == [("EP411", "fast"), ("EP411", "fast")]
    found = {item.hosts: item for item in report.findings if item.code == "EP411"}
    assert found["b",].what == "fast 1.0: fast/_core.abi3.so is truncated or damaged"
    assert found["c",].what == "fast 1.0: fast/_core.abi3.so is missing"
    assert all("fast==1.0" in item.fix and item.location.file == "fast/_core.abi3.so" for item in found.values())
    file.write_bytes(elf())
    assert codes(judge(whole, capture(site, "b"))) == []


def test_a_deep_capture_tells_a_missing_module_once(site: Path) -> None:
    install(site, "fast", "1.0", {"fast/_core.abi3.so": elf()})
    (site / "fast" / "_core.abi3.so").unlink()
    assert codes(judge(capture(site, "a", "*"))) == [("EP209", "fast")]


def test_module_for_another_machine(site: Path) -> None:
    install(site, "fast", "1.0", {"fast/_core.abi3.so": elf(machine=243)})
    assert codes(judge(capture(site, "a"))) == [("EP407", "fast")]


def test_two_packages_own_one_library(site: Path) -> None:
    for name, version, data in (("nvidia-nccl-cu12", "2.29.3", b"one"), ("nvidia-nccl-cu13", "2.29.7", b"two")):
        install(site, name, version, {"nvidia/nccl/lib/libnccl.so.2": data})
    report = judge(capture(site, "a"))
    assert ("EP505", "nvidia-nccl-cu12") in codes(report)
    shared = next(item for item in report.findings if item.code == "EP505")
    assert "nvidia/nccl/lib/libnccl.so.2" in shared.what


# Damage.


def _latin_1(site: Path) -> None:
    info = install(site, "demo", "1.0", {"demo.py": b""})
    (info / "METADATA").write_bytes(
        "Metadata-Version: 2.1\nName: demo\nVersion: 1.0\nAuthor: Ren\xe9\n\n".encode("latin-1")
    )


def _no_version(site: Path) -> None:
    info = install(site, "demo", "1.0", {"demo.py": b""})
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: demo\n\n")


def _overwritten(site: Path) -> None:
    info = install(site, "demo", "1.0", {"demo.py": b""})
    (info / "METADATA").write_bytes(b"junk\x00\xff")


def _no_metadata(site: Path) -> None:
    (site / "demo-1.0.dist-info").mkdir()


def _other_name(site: Path) -> None:
    info = install(site, "demo", "1.0", {"demo.py": b""})
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: other\nVersion: 1.0\n\n")


def _twice(site: Path) -> None:
    install(site, "demo", "1.0", {"demo/__init__.py": b"version = 1\n"})
    install(site, "demo", "2.0", {"demo/__init__.py": b"version = 2  # more\n"})


def _leftover(site: Path) -> None:
    install(site, "torch", "2.9.1", {"torch/nothing.py": b""}).rename(site / "~orch-2.9.1.dist-info")


def _bad_url(site: Path) -> None:
    info = install(site, "demo", "1.0", {"demo.py": b""})
    (info / "direct_url.json").write_text("{")


def _files_gone(site: Path) -> None:
    install(site, "demo", "1.0", {"demo.py": b"", "demo_data.txt": b"x"})
    (site / "demo.py").unlink()


def _patched(site: Path) -> None:
    install(
        site, "sglang", "0.5.9", {"sglang/__init__.py": b"", "sglang/srt/models/llama_eagle3.py": b"capture = False\n"}
    )
    (site / "sglang/srt/models/llama_eagle3.py").write_text("capture = True\n")


def _loose(site: Path) -> None:
    install(site, "demo", "1.0", {"demo/__init__.py": b""})
    shadow = site.parents[2] / "shadow"
    (shadow / "demo").mkdir(parents=True, exist_ok=True)
    (shadow / "demo" / "__init__.py").write_text("")


@pytest.mark.parametrize(
    ("damage", "expected", "says"),
    [
        (_latin_1, [("EP602", "demo")], "demo"),
        (_no_version, [("EP601", "demo")], "demo"),
        (_overwritten, [("EP601", "demo")], "no Name"),
        (_no_metadata, [("EP601", "demo")], "demo"),
        (_other_name, [("EP603", "other")], "other"),
        (_twice, [("EP605", "demo")], "the files are those of 2.0"),
        (_leftover, [("EP606", "~orch-2.9.1.dist-info")], "~orch"),
        (_bad_url, [("EP607", "demo")], "demo"),
        (_files_gone, [("EP209", "demo")], "demo.py"),
        (_patched, [("EP208", "sglang")], "sglang/srt/models/llama_eagle3.py"),
    ],
)
def test_damage_is_named_and_nothing_else(
    site: Path, damage: Callable[[Path], None], expected: list[tuple[str, str]], says: str
) -> None:
    damage(site)
    # Metadata that was changed by hand is also a changed file; that is not what these look for.
    report = judge(capture(site, "a", *(["*"] if damage in (_patched, _files_gone) else [])))
    assert codes(report) == expected
    assert says in report.findings[0].what


def test_a_loose_directory_on_pythonpath(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _loose(site)
    monkeypatch.setenv("PYTHONPATH", str(site.parents[2] / "shadow"))
    report = judge(capture(site, "a"))
    assert codes(report) == [("EP504", "demo")]


def test_a_plain_directory_on_pythonpath_hides_nothing(
    site: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(site, "demo", "1.0", {"demo/__init__.py": b""})
    shadow = tmp_path / "shadow"
    for name in ("demo", "json", "alone"):  # a project's own folders: namespace portions, which lose against real packages
        (shadow / name).mkdir(parents=True)
        (shadow / name / "notes.md").write_text("")
    monkeypatch.setenv("PYTHONPATH", str(shadow))
    taken = capture(site, "a")
    assert next(entry.loose for entry in taken.path if entry.path == str(shadow)) == ("alone",)
    assert codes(judge(taken)) == []


def test_a_copy_on_pythonpath_hides_the_installed_one(
    site: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(site, "demo", "1.0", {"demo.py": b"version = 1\n"})
    install(tmp_path, "demo", "2.0", {"demo.py": b"version = 2\n"})
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    report = judge(capture(site, "a"))
    assert codes(report) == [("EP503", "demo")]
    assert "2.0" in report.findings[0].what


def test_the_same_version_built_twice(site: Path, tmp_path: Path) -> None:
    """Other bits under one number, seen without reading a file of the package."""
    install(site, "demo", "1.0", {"demo.py": b"value = 1\n"})
    one = capture(site, "a")
    other_site = bare_venv(tmp_path / "env")
    install(other_site, "demo", "1.0", {"demo.py": b"value = 2\n"})
    report = judge(one, capture(other_site, "b"))
    assert [item for item in codes(report) if item[0] != "EP904"] == [("EP207", "demo")]


@pytest.mark.slow
@pytest.mark.parametrize(("torch", "symbols"), [("2.9.1", 0), ("2.10.0", 2)])
def test_the_real_kernels_under_the_real_torch(empty: Path, site: Path, torch: str, symbols: int) -> None:
    """sgl-kernel 0.3.21 is built for torch 2.9.1 and declares no requirement that would say so."""
    python = empty.parents[2] / "bin" / "python"
    command = [sys.executable, "-m", "uv", "pip", "install", "--quiet", "--python", str(python), "--no-deps"]
    done = subprocess.run(
        [*command, f"torch=={torch}", "sgl-kernel==0.3.21"], capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        pytest.skip(f"the wheels cannot be had here: {done.stderr.strip()[-200:]}")
    snapshot = capture(site, "a")
    (module,) = [item for item in snapshot.extensions if item.path.endswith("sm90/common_ops.abi3.so")]
    assert len(module.missing) == symbols
    broken = {item.subject for item in judge(snapshot).findings if item.code in ("EP401", "EP404")}
    assert broken == ({"sgl-kernel"} if symbols else set())
