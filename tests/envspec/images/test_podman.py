"""The small stack built by Podman and verified through its socket, in a store of the tests' own."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from envspec.images import labels
from envspec.images.build import BuiltImage, Request, build
from envspec.images.context import load_tools, project_of
from envspec.images.engine import Engine, EngineError, find_engine
from envspec.images.wheelhouse import fetch
from envspec.locking.check import load_stack_lock
from envspec.locking.environments import Platform
from envspec.stacks import load_stack
from tests.envspec.engine import BASE
from tests.envspec.images.test_verify import run

pytestmark = pytest.mark.docker

ROOT = Path(__file__).resolve().parents[3]
RECIPE = ROOT / "docker"
SMALL = Path(__file__).parent / "stacks" / "small"
# What docs/docker/podman.md says of nested and restricted machines.
SETTINGS = '[containers]\ndefault_ulimits = ["nofile=1024:1024", "nproc=1024:1024"]\n[engine]\nruntime = "runc"\n'


def podman(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["podman", *words], capture_output=True, text=True, stdin=subprocess.DEVNULL, check=False)


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    """Podman with a store, a socket and the base of its own; skips with the reason."""
    if shutil.which("podman") is None:
        pytest.skip("there is no podman on the PATH")
    folder = tmp_path_factory.mktemp("podman")
    (folder / "containers.conf").write_text(SETTINGS)
    (folder / "storage.conf").write_text(f'[storage]\ndriver = "overlay"\ngraphroot = "{folder}/root"\nrunroot = "{folder}/run"\n')
    socket = folder / "podman.sock"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CONTAINERS_CONF", str(folder / "containers.conf"))
        patch.setenv("CONTAINERS_STORAGE_CONF", str(folder / "storage.conf"))
        try:
            _bring_base()
            probe = podman("run", "--rm", "--network", "none", BASE, "true")
            if probe.returncode:
                pytest.skip(f"podman runs no container here: {probe.stderr.strip()[-200:]}")
            with subprocess.Popen(["podman", "system", "service", "--time", "0", f"unix://{socket}"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as service:
                try:
                    patch.setenv("DOCKER_HOST", f"unix://{socket}")
                    for _ in range(100):
                        if socket.exists() or service.poll() is not None:
                            break
                        time.sleep(0.1)
                    yield find_engine("podman")
                finally:
                    service.terminate()
        finally:
            podman("image", "rm", "--all", "--force")
            if os.path.ismount(folder / "root" / "overlay"):  # podman mounts its store onto itself, and pytest could not remove it later
                subprocess.run(["umount", str(folder / "root" / "overlay")], check=False)
            podman("unshare", "rm", "-rf", str(folder / "root")) if os.geteuid() else shutil.rmtree(folder / "root", ignore_errors=True)


def _bring_base() -> None:
    """The tests' base from Docker's store."""
    try:
        docker = find_engine("docker")
    except EngineError as error:
        pytest.skip(f"the base comes from docker's store: {error}")
    if docker.inspect(BASE) is None:
        pytest.skip(f"no image {BASE}; make one with `nox -s bootstrap-base -- --minimal --tag {BASE}`, or name one in ENVSPEC_TEST_IMAGE")
    container = docker.ask("create", "--network", "none", BASE, "x").strip()
    try:
        with subprocess.Popen([docker.command, "export", container], stdout=subprocess.PIPE) as export:
            done = subprocess.run(["podman", "import", "-", BASE], stdin=export.stdout, capture_output=True, text=True, check=False)
    finally:
        with contextlib.suppress(EngineError):
            docker.ask("rm", "--force", container)
    if done.returncode:
        pytest.skip(f"podman imports no image here: {done.stderr.strip()[-200:]}")


@pytest.fixture(scope="module")
def request_of(engine: Engine, tmp_path_factory: pytest.TempPathFactory) -> Request:
    wheels = tmp_path_factory.mktemp("wheelhouse")
    for stack in (load_stack(SMALL), load_tools(RECIPE)):
        try:
            fetch(wheels, load_stack_lock(stack), Platform.of(stack))
        except EngineError as error:
            pytest.skip(f"the wheels of the small stack cannot be fetched: {error}")
    return Request(stack=load_stack(SMALL), recipe=RECIPE, project=project_of(ROOT), name="small", base=BASE, wheelhouse=wheels)


@pytest.fixture(scope="module")
def built(engine: Engine, request_of: Request) -> list[BuiltImage]:
    told: list[str] = []
    images = build(engine, request_of, told.append)
    assert told[-1] == "check against the lock ..."
    return images


def test_what_podman_builds_is_one_environment(engine: Engine, built: list[BuiltImage]) -> None:
    assert [image.name for image in built] == ["small-train:latest", "small-infer:latest"]
    outcome = run("verify", "localhost/small-train", "localhost/small-infer")
    assert (outcome.code, outcome.err) == (0, ""), outcome.out
    assert outcome.out.splitlines()[-1].startswith("identical: 4 distributions, ")
    assert outcome.out.splitlines()[-1].endswith(built[0].digests["environment"])
    assert engine.read_file(built[0].id, labels.LOCK) == (SMALL / "requirements.lock").read_bytes()


def test_what_was_tampered_with_is_found_there_too(engine: Engine, built: list[BuiltImage]) -> None:
    edit = "for file in /opt/env/lib/python3*/site-packages/packaging/version.py; do echo '# edited' >> $file; done"
    container = engine.ask("create", "--network", "none", "--user", "0", "--entrypoint", "/bin/sh", built[1].name, "-c", edit).strip()
    engine.ask("start", "--attach", container)
    engine.ask("commit", "--quiet", container, "localhost/tampered")
    engine.ask("rm", container)
    outcome = run("verify", "--json", "localhost/small-train", "localhost/tampered")
    assert outcome.code == 1
    assert {"EP208", "EP822", "EP824", "EP825"} <= outcome.codes.keys()
    assert "packaging/version.py" in outcome.what("EP208")


def test_commands_run_in_it(built: list[BuiltImage]) -> None:
    outcome = run("run", "localhost/small-infer", "--gpus", "none", "--", "python3", "-c", "import numpy, os; print(os.listdir('/sys/class/net'))")
    assert (outcome.code, outcome.out) == (0, "['lo']\n"), outcome.err
    assert run("smoke", "localhost/small-train").code == 0
