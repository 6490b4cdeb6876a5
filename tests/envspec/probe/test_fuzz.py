"""Whatever bytes lie in an environment: no traceback, a valid snapshot, and no distribution is lost."""

from __future__ import annotations

import json
import shutil
import tempfile
from pathlib import Path

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from envspec import probe
from envspec.snapshot import Snapshot
from tests.envspec.build import elf, install, torch_files

FEW = settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
BYTES = st.binary(max_size=300) | st.text(max_size=200).map(lambda text: text.encode("utf-8", "surrogatepass"))
LINES = st.lists(st.sampled_from([b"Name: x", b"Version: 1", b"Name:", b" continued", b"", b"\xff\xfe", b"a,b,c", b"a,sha256=x,1", b'"q,b",,', b",,", b"\0,\0,\0",
                                  b"../../bin/x,sha256=a,1", b"/abs,sha256=a,1", b"import os", b"import", b"./x", b"{", b'{"url":"x"}', b"Tag: py3"]), max_size=12).map(b"\n".join)  # fmt: skip


def snapshot_of(site: Path) -> Snapshot:
    document = probe.main({"root": str(site.parent.parent), "path": ["/lib/site-packages"]})
    document["capture"].update(label="t", target="t", transport="local")
    return Snapshot.from_dict(json.loads(json.dumps(document)))


class Site:
    """A fresh site directory."""

    def __enter__(self) -> Path:
        self.folder = Path(tempfile.mkdtemp(prefix="envspec-fuzz-"))
        site = self.folder / "lib/site-packages"
        site.mkdir(parents=True)
        return site

    def __exit__(self, *_: object) -> None:
        shutil.rmtree(self.folder)


@FEW
@given(name=st.sampled_from(["METADATA", "RECORD", "WHEEL", "direct_url.json", "INSTALLER", "top_level.txt", "entry_points.txt", "variant.json"]), data=BYTES | LINES)
def test_metadata_files(name: str, data: bytes) -> None:
    with Site() as site:
        install(site, "whole", "1.0", {"whole.py": b""})
        (install(site, "victim", "1.0", {"victim/__init__.py": b""}) / name).write_bytes(data)
        snapshot = snapshot_of(site)
        names = {dist.name for dist in snapshot.distributions}
        assert "whole" in names
        assert len(snapshot.distributions) == 2
        if name != "METADATA":
            assert names == {"whole", "victim"}
        assert snapshot.section("distributions").status == "ok"


@FEW
@given(data=BYTES | LINES, name=st.sampled_from(["x.pth", "x.egg-link", "x-1.egg-info", "x.dist-info", "~x.dist-info", "__editable___x_finder.py"]))
def test_files_beside_the_metadata(data: bytes, name: str) -> None:
    with Site() as site:
        install(site, "whole", "1.0", {"whole.py": b""})
        (site / name).write_bytes(data)
        assert "whole" in {dist.name for dist in snapshot_of(site).distributions}
        path = probe.SearchPath()
        path.add_site(str(site), "site", [])


GOOD = elf(needed=["libc10.so"], undefined=["_ZN3c104goodEv", "_ZN3c103badEv"], exports=["a", "b"], versions={"libc.so.6": ["GLIBC_2.34"]}, constants=b"sm_90")


@settings(max_examples=300, deadline=None)
@given(cut=st.integers(0, len(GOOD)), edits=st.lists(st.tuples(st.integers(0, len(GOOD) - 1), st.integers(0, 255)), max_size=6))
def test_elf_files(cut: int, edits: list[tuple[int, int]]) -> None:
    """Every damage is a BadElfError or a reading, also where offsets, counts and links are nonsense."""
    data = bytearray(GOOD)
    for at, value in edits:
        data[at] = value
    with tempfile.NamedTemporaryFile(suffix=".so") as file:
        file.write(data[:cut] if cut % 2 else data)
        file.flush()
        loader = probe.Loader(None, None, probe.Distributions(probe.SearchPath(), None, probe.Sections(1)))
        (needs,) = probe.read_needs("/", [file.name])
        if "fault" not in needs:
            probe.describe_extension(needs, {"path": "x", "owner": "x"}, loader, probe.TorchExports(None, []), None)
        try:
            read = probe.Elf(file.name)
        except probe.BadElfError:
            assert "fault" in needs
            return
        try:
            read.open_exports()
            read.versions_defined()
            read.exports(b"a", probe.gnu_hash(b"a"))
            probe.constant_sections(read)
        except (probe.BadElfError, IndexError, ValueError, probe.struct.error):
            pass
        finally:
            read.close()


@FEW
@given(victim=st.sampled_from(["libc10.so", "libtorch_cpu.so", "libtorch_python.so"]), data=st.data())
def test_damaged_torch_libraries(victim: str, data: st.DataObject) -> None:
    files = torch_files(exports=["_ZN3c104goodEv"])
    body = bytearray(files[f"torch/lib/{victim}"])
    for _ in range(data.draw(st.integers(1, 4))):
        body[data.draw(st.integers(0, len(body) - 1))] = data.draw(st.integers(0, 255))
    files[f"torch/lib/{victim}"] = bytes(body)
    files["torch/version.py"] = data.draw(BYTES)
    with Site() as site:
        install(site, "torch", "2.9.1", files)
        snapshot = snapshot_of(site)
        assert snapshot.torch is not None
        assert [dist.name for dist in snapshot.distributions] == ["torch"]


@given(st.binary(max_size=1500))
def test_gnu_hash_is_bernsteins(name: bytes) -> None:
    value = 5381
    for byte in name:
        value = (value * 33 + byte) % 2**32
    assert probe.gnu_hash(name) == value


@given(st.lists(st.sampled_from(["_ZN3c10aE", "_ZN3c10bE", "_ZN2at1xE", "malloc", "torch_x"]) | st.text("abcXYZ_09", min_size=1, max_size=30), unique=True, max_size=40))
@settings(deadline=None, max_examples=60)
def test_every_export_is_found_and_nothing_else(names: list[str]) -> None:
    with tempfile.NamedTemporaryFile(suffix=".so") as file:
        file.write(elf(exports=names))
        file.flush()
        read = probe.Elf(file.name)
        read.open_exports()
        for name in names:
            assert read.exports(name.encode(), probe.gnu_hash(name.encode()))
            other = name.encode() + b"!"
            assert not read.exports(other, probe.gnu_hash(other))
        read.close()
