"""Images and containers of a real engine, and the reading of an exported file system without one."""

from __future__ import annotations

import importlib.metadata
import io
import shutil
import sys
import tarfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from envspec.chunks import until
from envspec.errors import CaptureError, UsageError
from envspec.hosts import CaptureOptions, Host, open_host, parse_host
from envspec.hosts.docker import ImageHost, unpack_metadata
from tests.envspec.build import torch_files, wheel_files
from tests.envspec.engine import BASE, PREFIX, containers_of, running_engine
from tests.envspec.peers import of_pip, of_uv, ours, uv

ECHO = "import sys\ndef main(request):\n    return [request, sys.version_info[0]]\n"


def tar(files: dict[str, bytes], more: list[tarfile.TarInfo] | None = None) -> bytes:
    """A file system as an engine exports it."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        folders = {str(parent) for name in files for parent in Path(name).parents if str(parent) != "."}
        for folder in sorted(folders):
            info = tarfile.TarInfo(folder)
            info.type = tarfile.DIRTYPE
            archive.addfile(info)
        for name, data in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
        for info in more or []:
            archive.addfile(info)
    return buffer.getvalue()


def chunks(data: bytes) -> Iterator[bytes]:
    return (data[at : at + 1000] for at in range(0, len(data), 1000))


def packages() -> dict[str, bytes]:
    site = "opt/env/lib/python3.12/site-packages/"
    files = {site + name: data for name, data in wheel_files("alpha", "1.0", {"alpha/__init__.py": b""}).items()}
    files.update({site + name: data for name, data in wheel_files("torch", "2.9.1", torch_files()).items()})
    return files


def test_an_exported_file_system_is_read_without_running_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    host = ImageHost("image:x", "x")
    snapshot = host._from_export(chunks(tar(packages())), CaptureOptions())
    assert [(dist.name, dist.version) for dist in snapshot.distributions] == [("alpha", "1.0"), ("torch", "2.9.1")]
    assert snapshot.distributions[0].location == "/opt/env/lib/python3.12/site-packages"
    assert snapshot.torch is not None
    assert (snapshot.torch.version, snapshot.torch.variant) == ("2.9.1+cu128", "cu128")
    assert snapshot.section("distributions").status == "ok"
    assert snapshot.section("deep").reason == "files were not verified; --deep does"
    deep = host._from_export(chunks(tar(packages())), CaptureOptions(deep=("alpha",)))
    assert deep.capture.deep == ("alpha",)
    assert deep.section("deep").reason == "the files of an unpacked file system are not verified"
    assert {snapshot.section(name).status for name in ("interpreter", "extensions", "gpus", "environment")} == {"unknown"}


class StuckEngine:
    """An engine whose export gives one chunk and then no other; what a client of the SDK has, as far as it is used."""

    def __init__(self, first: bytes) -> None:
        self.first = first
        self.api = self.containers = self
        self.timeout = 60
        self.removed = False
        self.gate = threading.Event()

    def create(self, *_: object, **__: object) -> StuckEngine:
        return self

    id = "sha256:1"

    def export(self, chunk_size: int) -> Iterator[bytes]:
        if self.first:
            yield self.first
        self.gate.wait(30)

    def remove(self, **_: object) -> None:
        self.removed = True


@pytest.mark.parametrize("first", [b"", tar(packages())[:3000]], ids=["at once", "inside"])
def test_an_export_that_hangs_ends_with_its_time(first: bytes) -> None:
    engine, started = StuckEngine(first), time.monotonic()
    try:
        with pytest.raises(CaptureError, match=r"^image:x: .* was not exported within 0\.5 s; --timeout gives it more$"):
            ImageHost("image:x", "x")._exported(engine, engine, CaptureOptions(timeout=0.5), started + 0.5)
    finally:
        engine.gate.set()
    assert time.monotonic() - started < 5
    assert engine.removed


def test_chunks_end_with_their_source_or_its_error() -> None:
    def broken() -> Iterator[bytes]:
        yield b"a"
        raise ValueError("torn")

    assert list(until(time.monotonic() + 60, lambda: chunks(bytes(20_000)))) == list(chunks(bytes(20_000)))
    found = until(time.monotonic() + 60, broken)
    assert next(found) == b"a"
    with pytest.raises(ValueError, match="torn"):
        next(found)


def test_a_hostile_archive_writes_nothing_outside(tmp_path: Path) -> None:
    inside = tmp_path / "inside"
    inside.mkdir()
    link = tarfile.TarInfo("opt/site-packages/link")
    link.type, link.linkname = tarfile.SYMTYPE, "/etc"
    files = {"../evil/site-packages/x.pth": b"x", "a/../../site-packages/y.pth": b"x", "/abs/site-packages/z.pth": b"z"}
    found = unpack_metadata(chunks(tar(files, [link])), inside)
    assert {path.relative_to(tmp_path).parts[0] for path in tmp_path.rglob("*")} == {"inside"}
    assert not (inside / "opt/site-packages/link").exists()
    assert all(site.startswith("/") and ".." not in site for site in found)


@pytest.mark.parametrize("text", ["image:--privileged", "container:-x", "image:a;b", "container:$(x)", "image:" + "a" * 300])
def test_names_cannot_become_anything_else(text: str) -> None:
    with pytest.raises(UsageError):
        open_host(parse_host(text))


def test_without_an_engine_the_error_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_HOST", "unix:///nowhere/docker.sock")
    with pytest.raises(CaptureError, match=r"image:x: (no container engine answers|images and containers need the package docker)") as caught:
        open_host(parse_host("image:x")).snapshot(CaptureOptions(timeout=5))
    assert "\n" not in str(caught.value)


# With a real engine ----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def engine() -> Iterator[Any]:
    """A client, with the images the tests need; skips with the reason."""
    with running_engine() as client:
        container = client.containers.create(BASE, ["x"])
        container.commit(repository=f"{PREFIX}-python", tag="latest")
        container.remove()
        for name, files in ((f"{PREFIX}-files", packages()), (f"{PREFIX}-empty", {"etc/empty": b""})):
            client.api.import_image_from_data(tar(files), repository=name)
        yield client
        for name in (f"{PREFIX}-files", f"{PREFIX}-empty", f"{PREFIX}-python"):
            client.images.remove(name, force=True)


def host(text: str) -> Host:
    return open_host(parse_host(text))


@pytest.mark.docker
def test_an_image_with_python(engine: Any) -> None:
    before = containers_of(engine, f"{PREFIX}-python")
    snapshot = host(f"image:{PREFIX}-python").snapshot(CaptureOptions())
    assert snapshot.interpreter is not None
    assert snapshot.section("distributions").status == "ok"
    assert snapshot.container is not None
    assert snapshot.container.image is not None
    assert snapshot.container.image.id == engine.images.get(f"{PREFIX}-python").id
    assert host(f"image:{PREFIX}-python").run_python(ECHO, "x", 60) == ["x", 3]
    assert containers_of(engine, f"{PREFIX}-python") == before


@pytest.mark.docker
@pytest.mark.parametrize("entrypoint", [["/bin/echo", "foreign"], ["/bin/sh", "-c", "echo noise; sleep 100"]])
def test_a_foreign_entrypoint_is_not_run(engine: Any, entrypoint: list[str]) -> None:
    container = engine.containers.create(BASE, ["x"])
    image = container.commit(repository=f"{PREFIX}-entry", conf={"Entrypoint": entrypoint, "Env": ["NCCL_ALGO=Ring", "PATH=/usr/bin:/bin"]})
    container.remove()
    try:
        snapshot = host(f"image:{PREFIX}-entry").snapshot(CaptureOptions())
        assert snapshot.environment["NCCL_ALGO"].value == "Ring"
    finally:
        engine.images.remove(image.id, force=True)


@pytest.mark.docker
def test_an_image_without_python_is_read_from_its_files(engine: Any) -> None:
    snapshot = host(f"image:{PREFIX}-files").snapshot(CaptureOptions())
    assert [(dist.name, dist.version) for dist in snapshot.distributions] == [("alpha", "1.0"), ("torch", "2.9.1")]
    assert snapshot.section("interpreter").status == "unknown"
    with pytest.raises(CaptureError, match=r"no Python in it that starts"):
        host(f"image:{PREFIX}-files").run_python(ECHO, None, 30)
    assert host(f"image:{PREFIX}-empty").snapshot(CaptureOptions()).distributions == ()


@pytest.mark.docker
def test_a_running_container(engine: Any) -> None:
    container = engine.containers.run(BASE, ["sleep", "300"], detach=True, name=f"{PREFIX}-running")
    try:
        snapshot = host(f"container:{PREFIX}-running").snapshot(CaptureOptions(deep=("*",)))
        assert snapshot.container is not None
        assert snapshot.container.name == f"{PREFIX}-running"
        assert snapshot.section("deep").status == "ok"
        assert host(f"container:{PREFIX}-running#/usr/bin/python3").run_python(ECHO, 1, 60) == [1, 3]
        with pytest.raises(CaptureError, match=r"no python at /nowhere|nowhere"):
            host(f"container:{PREFIX}-running#/nowhere").run_python(ECHO, 1, 60)
    finally:
        container.remove(force=True)


@pytest.mark.docker
def test_the_list_in_a_container_and_its_image_is_that_of_pip_and_uv(engine: Any) -> None:
    """pip and uv are put beside the environment, not into it, and asked inside the container."""

    def said(*command: str) -> str:
        code, text = container.exec_run([*command], environment={"PYTHONPATH": "/opt/peers"}, demux=True)
        assert code == 0, text
        return (text[0] or b"").decode()

    pip = Path(str(importlib.metadata.distribution("pip").locate_file("pip")))
    peers = {f"peers/pip/{path.relative_to(pip)}": path.read_bytes() for path in pip.rglob("*.py")}
    peers["peers/uv"] = Path(uv()).read_bytes()
    container = engine.containers.run(BASE, ["sleep", "300"], detach=True, name=f"{PREFIX}-listed")
    try:
        assert container.exec_run(["python3", "-m", "venv", "--without-pip", "/opt/env"]).exit_code == 0
        site = said("/opt/env/bin/python", "-c", "import sysconfig; print(sysconfig.get_path('purelib'), end='')")
        files = {**wheel_files("alpha", "1.0", {"alpha/__init__.py": b""}), **wheel_files("Beta.Kit", "2.0.1", {"beta_kit.py": b""})}
        assert container.put_archive("/opt", tar(peers))
        said("chmod", "+x", "/opt/peers/uv")
        container.put_archive(site, tar(files))
        for place, python in (("", "/usr/bin/python3"), ("#/opt/env", "/opt/env/bin/python")):
            snapshot = host(f"container:{PREFIX}-listed{place}").snapshot(CaptureOptions())
            listed, markers = of_pip(said(python, "-m", "pip", "inspect"))
            assert (ours(snapshot), dict(snapshot.markers)) == (listed, markers)
            assert of_uv(said("/opt/peers/uv", "pip", "list", "--format", "json", "--python", python)) <= listed
        assert len(listed) == 2
        image = container.commit(repository=f"{PREFIX}-listed")
        try:
            assert ours(host(f"image:{PREFIX}-listed#/opt/env").snapshot(CaptureOptions())) == listed
        finally:
            engine.images.remove(image.id, force=True)
    finally:
        container.remove(force=True)


@pytest.mark.docker
def test_what_is_not_there_is_one_sentence(engine: Any) -> None:
    for text in ("image:envspec-no-such", "container:envspec-no-such"):
        with pytest.raises(CaptureError, match=r"(?i)no such") as caught:
            host(text).snapshot(CaptureOptions())
        assert "\n" not in str(caught.value)
    assert shutil.which(sys.executable)
