"""What the probe makes of damaged, doubled and unusual installs. Each fault is named; nothing else is, and nothing is lost."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import zipfile
from pathlib import Path

import pytest

from envspec import probe
from envspec.snapshot import Snapshot
from tests.envspec.build import direct_url, elf, install, metadata, record_row, torch_files


@pytest.fixture
def site(tmp_path: Path) -> Path:
    folder = tmp_path / "root/lib/site-packages"
    folder.mkdir(parents=True)
    return folder


def read(site: Path, *more: str, **request: object) -> Snapshot:
    """The snapshot of a bare directory as the only entry of sys.path."""
    sections = probe.Sections(5.0)
    path = probe.SearchPath()
    for folder in (str(site), *more):
        path.add_site(folder, "site", [])
    found = probe.Distributions(path, None, sections)
    sections.found["path"] = path.entries
    sections.found["hooks"] = path.hooks
    sections.run("distributions", found.read)
    sections.run("torch", lambda out, reasons: probe.read_torch(found, out, reasons))
    torch = sections.found.get("torch", {}).get("location")
    sections.run("extensions", lambda out, reasons: probe.read_extensions(found, None, torch, out, reasons))
    if request.get("deep"):
        sections.run("deep", lambda out, reasons: probe.verify(found, list(request["deep"]), request.get("seconds", 60), out, reasons))  # type: ignore[call-overload,arg-type]
    sections.status.setdefault("interpreter", {"status": "ok"})
    document = json.loads(json.dumps(probe.answer({}, sections, 0.0)))
    document["capture"].update(label="t", target="t", transport="local")
    return Snapshot.from_dict(document)


def problems(snapshot: Snapshot) -> dict[str, list[str]]:
    return {dist.name: [item.kind for item in dist.problems] for dist in snapshot.distributions}


def test_a_whole_one_has_no_problem(site: Path) -> None:
    install(site, "alpha", "1.0", {"alpha/__init__.py": b"", "alpha/sub/deep/x.py": b"", "single.py": b"", "not-a-module/x.py": b""}, build="3")
    (dist,) = read(site).distributions
    assert (dist.name, dist.version, dist.build, dist.problems, dist.origin.kind) == ("alpha", "1.0", "3", (), "index")
    assert dist.modules == ("alpha", "alpha.sub", "single")


def test_metadata_that_is_missing_or_empty(site: Path) -> None:
    (install(site, "alpha", "1.0", {"alpha.py": b""}) / "METADATA").unlink()
    (site / "beta-2.0.dist-info").mkdir()
    (install(site, "gamma", "3.0", {"gamma.py": b""}) / "METADATA").write_bytes(b"")
    snapshot = read(site)
    assert {(dist.name, dist.version) for dist in snapshot.distributions} == {("alpha", "1.0"), ("beta", "2.0"), ("gamma", "3.0")}
    assert problems(snapshot) == {"alpha": ["no-metadata"], "beta": ["no-metadata"], "gamma": ["no-name", "no-version"]}


def test_metadata_without_version_or_in_latin1_or_with_crlf(site: Path) -> None:
    (install(site, "alpha", "1.0", {}) / "METADATA").write_bytes(b"Metadata-Version: 2.1\nName: alpha\n\nVersion: 7\n")
    (install(site, "beta", "2.0", {}) / "METADATA").write_bytes(b"Name: beta\nVersion: 2.0\nAuthor: Ren\xe9\n\n")
    (install(site, "gamma", "3.0", {}) / "METADATA").write_bytes(metadata("gamma", "3.0", ["alpha"]).replace(b"\n", b"\r\n"))
    snapshot = read(site)
    assert [(dist.name, dist.version) for dist in snapshot.distributions] == [("alpha", "1.0"), ("beta", "2.0"), ("gamma", "3.0")]
    assert problems(snapshot) == {"alpha": ["no-version"], "beta": ["not-utf8"], "gamma": []}
    assert snapshot.distributions[2].requires == ("alpha",)


def test_continued_fields_and_import_names(site: Path) -> None:
    extra = "Requires-Dist: beta>=1;\n  extra == 'x'\nProvides-Extra: x\nImport-Name: alpha\nImport-Namespace: ns\nRequires-Python: >=3.8\n"
    install(site, "alpha", "1.0", {}, extra=extra)
    (dist,) = read(site).distributions
    assert dist.requires == ("beta>=1; extra == 'x'",)
    assert (dist.extras, dist.import_names, dist.import_namespaces, dist.requires_python) == (("x",), ("alpha",), ("ns",), ">=3.8")


def test_directory_and_metadata_that_disagree(site: Path) -> None:
    (install(site, "mismatch", "1.0", {}) / "METADATA").write_bytes(metadata("Other", "1.5"))
    install(site, "local", "1.0+cu128", {}).rename(site / "local-1.0_cu128.dist-info")
    (site / "local-1.0_cu128.dist-info/RECORD").write_text("")
    snapshot = read(site)
    assert problems(snapshot)["other"] == ["name-mismatch", "version-mismatch"]
    assert "version-mismatch" not in problems(snapshot)["local"]


def test_two_metadata_directories_for_one_name(site: Path) -> None:
    install(site, "torch", "2.8.0", {"torch/only_old.py": b"old"})
    install(site, "torch", "2.9.1", torch_files("2.9.1+cu128"))
    shutil.rmtree(site / "torch")
    for where, data in torch_files("2.9.1+cu128").items():
        (site / where).parent.mkdir(parents=True, exist_ok=True)
        (site / where).write_bytes(data)
    snapshot = read(site)
    assert [(dist.version, dist.current) for dist in snapshot.distributions] == [("2.8.0", False), ("2.9.1", True)]
    assert problems(snapshot)["torch"] == ["duplicate"]
    assert snapshot.installed()["torch"].version == "2.9.1"


def test_leftovers_are_no_distributions(site: Path) -> None:
    install(site, "torch", "2.9.1", {"torch/__init__.py": b""})
    shutil.copytree(site / "torch-2.9.1.dist-info", site / "~orch-2.9.1.dist-info")
    (site / "~orch").mkdir()
    snapshot = read(site)
    assert [dist.name for dist in snapshot.distributions] == ["torch"]
    assert [item.name for item in snapshot.leftovers] == ["~orch", "~orch-2.9.1.dist-info"]
    assert problems(snapshot) == {"torch": []}


def test_eggs_of_every_kind(site: Path, tmp_path: Path) -> None:
    (site / "flat-1.0-py3.11.egg-info").write_bytes(metadata("flat", "1.0"))
    folder = site / "Dir_Egg-2.0.egg-info"
    folder.mkdir()
    (folder / "PKG-INFO").write_bytes(metadata("Dir-Egg", "2.0"))
    (folder / "requires.txt").write_text("alpha>=1\n\n[extra:python_version < '4']\nbeta\n")
    (folder / "top_level.txt").write_text("dir_egg\n")
    source = tmp_path / "source"
    (source / "linked.egg-info").mkdir(parents=True)
    (source / "linked.egg-info/PKG-INFO").write_bytes(metadata("linked", "3.0"))
    (site / "linked.egg-link").write_text(f"{source}\n.\n")
    (site / "easy-install.pth").write_text(f"{source}\n")
    snapshot = read(site)
    assert [(dist.name, dist.version, dist.format) for dist in snapshot.distributions] == [
        ("dir-egg", "2.0", "egg-info"),
        ("flat", "1.0", "egg-info"),
        ("linked", "3.0", "egg-link"),
    ]
    assert snapshot.distributions[0].requires == ("alpha>=1", "beta; (python_version < '4') and extra == \"extra\"")
    assert snapshot.distributions[2].origin.kind == "editable"


def test_a_zip_on_the_path(site: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "bundle.zip", "w") as archive:
        archive.writestr("inside-1.0.dist-info/METADATA", metadata("inside", "1.0"))
    (tmp_path / "broken.zip").write_bytes(b"PK nonsense")
    (site / "a.pth").write_text(f"{tmp_path}/bundle.zip\n{tmp_path}/broken.zip\n")
    snapshot = read(site)
    assert [(dist.name, dist.version, dist.format) for dist in snapshot.distributions] == [("inside", "1.0", "archive")]
    assert snapshot.section("distributions").status == "partial"
    assert "broken.zip" in str(snapshot.section("distributions").reason)


def test_shadowed_copies(site: Path, tmp_path: Path) -> None:
    second = tmp_path / "second"
    second.mkdir()
    install(site, "alpha", "1.0", {})
    install(second, "Alpha", "2.0", {})
    snapshot = read(site, str(second))
    assert [(dist.version, dist.shadowed_by) for dist in snapshot.distributions] == [("1.0", None), ("2.0", str(site))]


def test_files_with_two_owners(site: Path) -> None:
    same = {"nvidia/__init__.py": b"", "shared/__init__.py": b""}
    install(site, "nvidia-nccl-cu12", "2.27.5", {**same, "nvidia/nccl/lib/libnccl.so.2": b"twelve"})
    install(site, "nvidia-nccl-cu13", "2.28.9", {**same, "nvidia/nccl/lib/libnccl.so.2": b"thirteen"})
    install(site, "lonely", "1", {"lonely.py": b""})
    (shared,) = read(site).shared_files
    assert shared.owners == ("nvidia-nccl-cu12", "nvidia-nccl-cu13")
    assert "nvidia/nccl/lib/libnccl.so.2" in shared.paths
    assert (shared.count, shared.same) == (3, False)


def test_loose_modules_that_no_distribution_owns(site: Path, tmp_path: Path) -> None:
    install(site, "alpha", "1.0", {"alpha/__init__.py": b""})
    (site / "vllm").mkdir()
    (site / "stray.py").write_text("")
    (site / "other.cpython-27m-arm-linux-gnu.so").write_bytes(b"")
    (site / "__pycache__").mkdir()
    assert read(site).path[0].loose == ("stray", "vllm")


def test_editable_installs(site: Path, tmp_path: Path) -> None:
    source = tmp_path / "project/src"
    (source / "plain_pkg").mkdir(parents=True)
    (source / "plain_pkg/__init__.py").write_text("")
    (source / "plain.egg-info").mkdir()
    (source / "plain.egg-info/PKG-INFO").write_bytes(metadata("plain", "1.0"))
    info = install(site, "plain", "1.0", {"__editable__.plain-1.0.pth": f"{source}\n".encode()})
    direct_url(info, {"url": f"file://{tmp_path}/project", "dir_info": {"editable": True}})
    finder = b"import sys\nMAPPING: dict[str, str] = {'mapped': '/src/mapped', 'mapped.sub': '/elsewhere'}\nNAMESPACES: dict = {}\nraise SystemExit\n"
    hook = b"import __editable___finder_pkg_2_0_finder; __editable___finder_pkg_2_0_finder.install()"
    info = install(site, "finder-pkg", "2.0", {"__editable___finder_pkg_2_0_finder.py": finder, "__editable__.finder_pkg-2.0.pth": hook})
    direct_url(info, {"url": "file:///src", "dir_info": {"editable": True}})
    snapshot = read(site)
    by_name = {dist.name: dist for dist in snapshot.distributions}
    assert set(by_name) == {"plain", "finder-pkg"}
    assert by_name["plain"].modules == ("plain_pkg",)
    assert by_name["finder-pkg"].modules == ("mapped", "mapped.sub")
    assert by_name["plain"].shadowed_by is None
    assert [(item.kind, dict(item.mapping)) for item in snapshot.hooks] == [("editable", {"mapped": "/src/mapped", "mapped.sub": "/elsewhere"})]
    digests = {dist.content for dist in snapshot.distributions}
    moved = install(site, "plain", "1.0", {"__editable__.plain-1.0.pth": b"/somewhere/else\n"})
    assert moved.exists()
    assert {dist.content for dist in read(site).distributions} & digests


@pytest.mark.parametrize(
    ("document", "kind"),
    [
        ({"url": "https://user:secret@pkg.example/a.whl?token=abc", "archive_info": {"hashes": {"sha256": "00"}}}, "archive"),
        ({"url": "https://git.example/x", "vcs_info": {"vcs": "git", "commit_id": "c0ffee", "requested_revision": "main"}}, "vcs"),
        ({"url": "file:///nowhere", "dir_info": {}}, "directory"),
    ],
)
def test_direct_urls(site: Path, document: dict[str, object], kind: str) -> None:
    direct_url(install(site, "alpha", "1.0", {}), document)
    (dist,) = read(site).distributions
    assert (dist.origin.kind, dist.problems) == (kind, ())
    assert "secret" not in str(dist.origin.url)
    assert "abc" not in str(dist.origin.url)
    if kind == "vcs":
        assert (dist.origin.commit, dist.origin.requested_revision) == ("c0ffee", "main")


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b'{"url": 3}', b'{"url": "x"}', b'{"url": "x", "dir_info": {}, "vcs_info": {}}', b'{"url":"x","dir_info":7}', b"\xff"])
def test_damaged_direct_urls(site: Path, data: bytes) -> None:
    (install(site, "alpha", "1.0", {}) / "direct_url.json").write_bytes(data)
    (dist,) = read(site).distributions
    assert [item.kind for item in dist.problems] == ["direct-url-damaged"]
    assert dist.origin.kind == "unknown"


def test_git_says_commit_and_changes_of_a_source(site: Path, tmp_path: Path) -> None:
    source = tmp_path / "a project"
    source.mkdir()
    (source / "x.py").write_text("1\n")
    git = ["git", "-c", "user.name=t", "-c", "user.email=t@example", "-C", str(source)]
    for command in (["init", "-q"], ["add", "x.py"], ["commit", "-q", "-m", "one"]):
        subprocess.run([*git, *command], check=True, capture_output=True)
    commit = subprocess.run([*git, "rev-parse", "HEAD"], check=True, capture_output=True, text=True).stdout.strip()
    direct_url(install(site, "alpha", "1.0", {}), {"url": "file://" + str(source).replace(" ", "%20"), "dir_info": {"editable": True}})
    (dist,) = read(site).distributions
    assert (dist.origin.commit, dist.origin.dirty, dist.origin.vcs) == (commit, False, "git")
    (source / "x.py").write_text("2\n")
    subprocess.run([*git, "pack-refs", "--all"], check=True)
    (dist,) = read(site).distributions
    assert (dist.origin.commit, dist.origin.dirty, dist.origin.changed) == (commit, True, ("x.py",))
    marker = tmp_path / "ran"
    for key, value in (("filter.evil.clean", f"touch {marker}"), ("core.fsmonitor", f"touch {marker}")):
        subprocess.run([*git, "config", key, value], check=True)
        (source / ".git/info/attributes").write_text("*.py filter=evil\n")
        (dist,) = read(site).distributions
        assert (dist.origin.commit, dist.origin.dirty) == (commit, None)
        assert "not asked" in str(dist.origin.note)
    assert not marker.exists()


def test_record_that_is_absent_empty_damaged_or_quoted(site: Path) -> None:
    (install(site, "absent", "1", {"a.py": b""}) / "RECORD").unlink()
    (install(site, "empty", "1", {"b.py": b""}) / "RECORD").write_bytes(b"")
    info = install(site, "damaged", "1", {"c.py": b""})
    with (info / "RECORD").open("ab") as file:
        file.write(b"one,two\n,,\n\0,sha256=x,1\nc,d,e,f\n")
    info = install(site, "quoted", "1", {"d.py": b""})
    with (info / "RECORD").open("ab") as file:
        file.write(b'"with, comma.py",sha256=x,1\n')
    snapshot = read(site)
    assert problems(snapshot) == {"absent": ["no-record"], "empty": [], "damaged": ["record-damaged"], "quoted": []}
    assert {dist.name: dist.record for dist in snapshot.distributions} == {
        "absent": "absent",
        "empty": "empty",
        "damaged": "damaged",
        "quoted": "ok",
    }
    assert {dist.name: dist.modules for dist in snapshot.distributions}["damaged"] == ("c",)


def test_content_sees_another_build_and_not_the_installer(site: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    info = install(site, "alpha", "1.0", {"alpha.py": b"one"})
    with (info / "RECORD").open("a") as file:
        file.write(f"{record_row('../../../bin/tool', b'#!/one/python')}\nalpha/__pycache__/x.pyc,,\n{info.name}/INSTALLER,,\n")
    info = install(other, "alpha", "1.0", {"alpha.py": b"one"}, installer="uv")
    with (info / "RECORD").open("a") as file:
        file.write(f"{record_row('../../../bin/tool', b'#!/another/python')}\n{info.name}/direct_url.json,sha256=x,1\n")
    (first,), (second,) = read(site).distributions, read(other).distributions
    assert first.content == second.content
    assert first.scripts == ("tool",)
    shutil.rmtree(other)
    other.mkdir()
    install(other, "alpha", "1.0", {"alpha.py": b"two"})
    (third,) = read(other).distributions
    assert third.content != first.content
    assert third.metadata == first.metadata


def test_deep_names_what_is_changed_gone_and_added(site: Path) -> None:
    install(site, "sglang", "0.5.9", {"sglang/srt/models/llama_eagle3.py": b"original\n", "sglang/__init__.py": b"", "sglang/gone.py": b"x"})
    install(site, "other", "1.0", {"other/__init__.py": b"", "sglang/plugin.py": b""})
    (site / "sglang/srt/models/llama_eagle3.py").write_bytes(b"patched!\n")
    (site / "sglang/gone.py").unlink()
    (site / "sglang/srt/models/extra.py").write_bytes(b"")
    (site / "other/__init__.py").write_bytes(b"also")
    snapshot = read(site, deep=["sglang"])
    by_name = {dist.name: dist for dist in snapshot.distributions}
    assert by_name["other"].verification is None
    found = by_name["sglang"].verification
    assert found is not None
    assert [(item.path, item.fault) for item in found.faults] == [
        ("sglang/gone.py", "missing"),
        ("sglang/srt/models/extra.py", "added"),
        ("sglang/srt/models/llama_eagle3.py", "modified"),
    ]
    assert found.checked == 5
    everything = read(site, deep=["*"])
    assert [len(dist.verification.faults) for dist in everything.distributions if dist.verification] == [1, 3]
    assert snapshot.digest != read(site).digest
    assert "absent-one is not installed" in str(read(site, deep=["absent-one"]).section("deep").reason)


def test_deep_names_code_that_was_added_anywhere_below_a_package(site: Path) -> None:
    suffix = probe.extension_suffixes()[0]
    install(site, "idna", "3.10", {"idna/__init__.py": b"", "idna/core.py": b"", "idna/data/table.txt": b""})
    install(site, "other", "1.0", {"idna/plug/__init__.py": b"", "idna/plug/_c.so": b""})
    added = [f"idna/_fast{suffix}", "idna/data/late.py", "idna/libx.so", "idna/newsub/__init__.py", "idna/newsub/below/y.py"]
    for name in (*added, "idna/__pycache__/core.py", "idna/plug/z.py", "idna/notes.txt"):
        (site / name).parent.mkdir(parents=True, exist_ok=True)
        (site / name).write_bytes(b"")
    by_name = {dist.name: dist for dist in read(site, deep=["*"]).distributions}
    for name, expected in (("idna", added), ("other", ["idna/plug/z.py"])):
        found = by_name[name].verification
        assert found is not None
        assert [(item.path, item.fault) for item in found.faults] == [(path, "added") for path in sorted(expected)]


def test_deep_tells_what_it_could_not_verify(site: Path) -> None:
    install(site, "alpha", "1.0", {"alpha/__init__.py": b"", "alpha/core.py": b""})
    (install(site, "bare", "1.0", {"bare.py": b""}) / "RECORD").unlink()
    assert read(site, deep=["alpha"]).section("deep").status == "ok"
    for asked in ("bare", "*"):
        assert read(site, deep=[asked]).section("deep").reason == "bare has no RECORD to verify against"
    assert read(site, deep=["x", "y"]).section("deep").reason == "x, y are not installed"
    (site / "alpha/core.py").unlink()
    (site / "alpha/core.py").mkdir()
    (dist,) = [dist for dist in read(site, deep=["alpha"]).distributions if dist.verification]
    assert [(item.path, item.fault) for item in dist.verification.faults] == [("alpha/core.py", "modified")]  # type: ignore[union-attr]
    (site / "alpha/core.py").rmdir()
    (site / "alpha/core.py").symlink_to("core.py")  # a loop: there, and nobody can read it
    assert read(site, deep=["alpha"]).section("deep").reason == "alpha/core.py could not be read"
    assert read(site, deep=["alpha"], seconds=0).section("deep").reason == "alpha was not verified to the end within 0 s"


def test_torch_is_read_and_not_imported(site: Path) -> None:
    install(site, "torch", "2.9.1", torch_files("2.9.1+cu128", "12.8", archs="sm_70 sm_75 sm_80 sm_86 sm_90 sm_100 sm_120"))
    snapshot = read(site)
    torch = snapshot.torch
    assert torch is not None
    assert (torch.version, torch.cuda, torch.variant, torch.cxx11_abi, torch.debug) == ("2.9.1+cu128", "12.8", "cu128", True, False)
    assert torch.archs == ("sm_70", "sm_75", "sm_80", "sm_86", "sm_90", "sm_100", "sm_120")
    assert snapshot.installed()["torch"].build_variant == "cu128"
    assert snapshot.section("torch").status == "ok"


@pytest.mark.parametrize(
    ("version", "cuda", "variant"), [("2.9.1+cpu", None, "cpu"), ("2.9.1", None, "cpu"), ("2.9.0a0+145a3a7bda.nv25.10", "13.0", "cu130")]
)
def test_torch_variants(site: Path, version: str, cuda: str | None, variant: str) -> None:
    install(site, "torch", version.split("+")[0], torch_files(version, cuda))
    assert read(site).installed()["torch"].build_variant == variant


def test_extensions_and_their_needs(site: Path) -> None:
    install(site, "torch", "2.9.1", torch_files(exports=["_ZN3c104goodEv"]))
    kernel = elf(
        needed=["libc10.so", "libcudart.so.99", "libc.so.6", "libprivate.so"],
        undefined=["_ZN3c104goodEv", "_ZN3c103badEv", "_ZNK3c106SymInt22sym_ne_slow_path", "malloc", "_ZN9mykernels3runERKN2at6TensorE", "THPVariableClass"],
        weak=["_ZN3c104weakEv"],
        versions={"libc.so.6": ["GLIBC_2.2.5", "GLIBC_2.32", "GLIBC_2.4"], "libstdc++.so.6": ["GLIBCXX_3.4.29", "CXXABI_1.3.9"]},
        runpath="$ORIGIN/../kernel.libs",
    )
    install(site, "sgl-kernel", "0.3.21", {"sgl_kernel/sm90/common_ops.abi3.so": kernel, "kernel.libs/x": b"", "sgl_kernel/kernel.libs/libprivate.so": elf()})
    snapshot = read(site)
    (ext,) = [ext for ext in snapshot.extensions if ext.path.endswith("common_ops.abi3.so")]
    assert (ext.owner, ext.glibc, ext.glibcxx, ext.cxxabi, ext.machine, ext.fault) == ("sgl-kernel", "2.32", "3.4.29", "1.3.9", "x86_64", None)
    assert ext.torch_checked
    assert ext.torch_symbols == 4
    assert ext.missing == ("_ZN3c103badEv", "_ZNK3c106SymInt22sym_ne_slow_path")
    assert {need.soname: need.by for need in ext.needed} == {"libc10.so": "environment", "libcudart.so.99": "nothing", "libprivate.so": "runpath"}


def test_extensions_without_torch_are_not_judged(site: Path) -> None:
    install(site, "kernel", "1", {"kernel.abi3.so": elf(undefined=["_ZN3c103badEv"])})
    (ext,) = read(site).extensions
    assert (ext.torch_symbols, ext.torch_checked, ext.missing) == (1, False, ())


def test_a_damaged_torch_library_makes_no_symbol_missing(site: Path) -> None:
    files = torch_files()
    files["torch/lib/libtorch_cpu.so"] = files["torch/lib/libtorch_cpu.so"][:150]
    install(site, "torch", "2.9.1", files)
    install(site, "kernel", "1", {"kernel.abi3.so": elf(undefined=["_ZN2at4_ops3add4callE"])})
    snapshot = read(site)
    (ext,) = [ext for ext in snapshot.extensions if ext.owner == "kernel"]
    assert (ext.torch_checked, ext.missing) == (False, ())
    assert snapshot.section("extensions").status == "partial"


def test_the_loaders_order(site: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("r", "l", "u"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "libx.so.1").write_bytes(b"")
    monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path / "l"))
    install(site, "one", "1", {"one.abi3.so": elf(needed=["libx.so.1"], rpath=str(tmp_path / "r"))})
    install(site, "two", "1", {"two.abi3.so": elf(needed=["libx.so.1"], rpath=str(tmp_path / "r"), runpath=str(tmp_path / "u"))})
    (tmp_path / "u/liby.so").write_bytes(b"")
    install(site, "three", "1", {"three.abi3.so": elf(needed=["liby.so"], runpath=str(tmp_path / "u"))})
    by_owner = {ext.owner: ext.needed[0].by for ext in read(site).extensions}
    assert by_owner == {"one": "rpath", "two": "LD_LIBRARY_PATH", "three": "runpath"}


@pytest.mark.skipif(shutil.which("gcc") is None, reason="needs a C compiler to compare with what a real linker writes")
def test_a_real_linkers_output_reads_the_same_way(site: Path, tmp_path: Path) -> None:
    (tmp_path / "torch.c").write_text("int _ZN3c104goodEv(void) { return 1; }\nint _ZN3c105otherEv(void) { return 2; }\n")
    (tmp_path / "kernel.c").write_text(
        '#include <stdio.h>\nint _ZN3c104goodEv(void); int _ZN3c103badEv(void);\nint run(void) { puts("x"); return _ZN3c104goodEv() + _ZN3c103badEv(); }\n'
    )
    for style in ("gnu", "both", "sysv"):
        files = torch_files()
        flags = ["gcc", "-shared", "-fPIC", f"-Wl,--hash-style={style}"]
        subprocess.run([*flags, "-o", str(tmp_path / "libc10.so"), str(tmp_path / "torch.c")], check=True)
        subprocess.run([*flags, "-o", str(tmp_path / "kernel.so"), str(tmp_path / "kernel.c")], check=True)
        files["torch/lib/libc10.so"] = (tmp_path / "libc10.so").read_bytes()
        install(site, "torch", "2.9.1", files)
        install(site, "kernel", "1", {"kernel.abi3.so": (tmp_path / "kernel.so").read_bytes()})
        (ext,) = [ext for ext in read(site).extensions if ext.owner == "kernel"]
        assert ext.torch_symbols == 2
        assert ext.glibc is not None
        # Without GNU's table the exports cannot be looked up, so nothing is called missing.
        assert (ext.torch_checked, ext.missing) == ((False, ()) if style == "sysv" else (True, ("_ZN3c103badEv",)))


def test_fifos_and_devices_do_not_hang(site: Path) -> None:
    info = install(site, "alpha", "1.0", {"alpha.abi3.so": b"x"})
    for name in ("METADATA", "WHEEL"):
        (info / name).unlink()
        os.mkfifo(info / name)
    (site / "alpha.abi3.so").unlink()
    os.mkfifo(site / "alpha.abi3.so")
    os.mkfifo(site / "x.pth")
    snapshot = read(site)
    assert problems(snapshot) == {"alpha": ["unreadable", "wheel-damaged"]}
    assert snapshot.extensions[0].fault == "not a regular file"
