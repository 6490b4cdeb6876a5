"""Builds: the context and the wheelhouse without an engine; with one, the small stack built for real."""

from __future__ import annotations

import http.server
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tarfile
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from envspec.errors import EnvspecError, UsageError
from envspec.images import labels
from envspec.images.build import BuiltImage, Request, build
from envspec.images.context import Project, build_context, load_tools, project_of
from envspec.images.digest import below, entries_of_tar, environment_digest
from envspec.images.engine import Engine, EngineError, find_engine
from envspec.images.failures import CheckFailed
from envspec.images.self_check import self_check
from envspec.images.wheelhouse import check_wheelhouse, fetch
from envspec.locking.check import load_stack_lock
from envspec.locking.environments import Platform
from envspec.locking.files import write_lock
from envspec.locking.inputs import read_inputs
from envspec.locking.model import Entry, StackLock, Wheel
from envspec.locks import load_lock
from envspec.snapshot import Section, TorchBuild, loads
from envspec.spec import load_spec
from envspec.stacks import Stack, load_stack
from tests.envspec.build import make_wheel
from tests.envspec.compare.make import dist, snap
from tests.envspec.engine import BASE, PREFIX

ROOT = Path(__file__).resolve().parents[3]
RECIPE = ROOT / "docker"
SMALL = Path(__file__).parent / "stacks" / "small"


def sha256(path: Path) -> str:
    return labels.sha256_of(path.read_bytes()).removeprefix("sha256:")


def tiny(folder: Path, wheel: Path, settings: str = "", python: str = "3.13\", \"3.12\", \"3.11") -> Stack:
    """A stack of one hand-made wheel, locked."""
    folder.mkdir(parents=True)
    (folder / "stack.yaml").write_text(f'version: 1\npython: ["{python}"]\nglibc: "2.36"\n{settings}')
    (folder / "requirements.in").write_text("alpha\n")
    stack = load_stack(folder)
    inputs = read_inputs(stack.inputs(), Platform.of(stack))
    entry = Entry(name="alpha", version="1.0", wheels=(Wheel(name=wheel.name, sha256=sha256(wheel)),))
    lock = StackLock(stack=stack.name, inputs=tuple(inputs.lines), inputs_digest=inputs.digest, entries=(entry,))
    write_lock(lock, str(Platform.of(stack)), stack.lock(), stack.metadata())
    load_stack_lock(stack)
    return stack


# Without an engine -----------------------------------------------------------------------------------------------------


def test_the_shipped_locks_of_tools_and_of_the_tests_stand() -> None:
    assert {entry.name for entry in load_stack_lock(load_tools(RECIPE)).entries} >= {"uv", "nox", "packaging", "pyyaml", "rich"}
    assert len(load_stack_lock(load_stack(SMALL)).entries) == 4


def test_the_context_holds_what_the_recipe_reads_and_nothing_else(tmp_path: Path) -> None:
    project = tmp_path / "project"
    for name, text in {"envspec/__init__.py": "", "envspec/__pycache__/x.pyc": "x", "noxw": "#!/bin/sh\n", ".git/config": "secret", ".env": "secret", "other/file": "x"}.items():
        (project / name).parent.mkdir(parents=True, exist_ok=True)
        (project / name).write_text(text)
    (project / "noxw").chmod(0o700)
    wheels = tmp_path / "wheels"
    wheels.mkdir()
    wheel = make_wheel(wheels, "alpha", "1.0", {"alpha/__init__.py": b""})
    (wheels / "notes.txt").write_text("x")
    stack, tools = tiny(tmp_path / "tiny", wheel), load_tools(RECIPE)
    before = wheel.stat().st_mtime_ns
    with build_context(
        recipe=RECIPE, stack_file=stack.file, lock_file=stack.lock(), tools=tools, tools_lock=load_stack_lock(tools), project=Project(root=project), wheels=wheels
    ) as context:
        files = {str(path.relative_to(context)): path.stat() for path in context.rglob("*") if path.is_file()}
        assert set(files) == {
            "Dockerfile", "project/envspec/__init__.py", "project/noxw", "stack/requirements.lock", "stack/stack.yaml", "stack/envspec.yaml", "tools/requirements.lock", "tools/uv.txt",
            f"wheels/{wheel.name}", *(f"steps/{path.name}" for path in (RECIPE / "steps").iterdir()),
        }  # fmt: skip
        assert {name for name, about in files.items() if about.st_mode & 0o777 != 0o644 and not name.startswith("wheels/")} == {"project/noxw"}
        assert {about.st_mtime for name, about in files.items() if not name.startswith("wheels/")} == {0}
        assert (context / "tools/uv.txt").read_text().startswith("uv==")
        assert "nox==" not in (context / "tools/uv.txt").read_text()
    assert not context.exists()
    assert wheel.stat().st_mtime_ns == before


def test_the_recipe_mounts_every_script_that_its_steps_use() -> None:
    recipe = (RECIPE / "Dockerfile").read_text()
    for block in re.split(r"(?m)^(?=RUN )", recipe)[1:]:
        script = re.search(r"sh /run/steps/(\w+\.sh)", block)
        if script is None:
            continue
        used = {script[1], *re.findall(r"/run/steps/(\w+\.sh)", (RECIPE / "steps" / script[1]).read_text())}
        assert set(re.findall(r"source=steps/(\w+\.sh)", block)) == used


def test_both_roles_get_the_same_labels_from_the_recipe() -> None:
    train, infer = (RECIPE / "Dockerfile").read_text().split("FROM tools AS ")[1:]
    assert train.replace("train", "infer").strip() == infer.strip()
    assert all(f"{label}=" in train for label in (labels.STACK, labels.ROLE, *labels.DIGESTS))


class TestWheelhouse:
    """A folder of wheels against a lock."""

    @pytest.fixture
    def wheels(self, tmp_path: Path) -> Path:
        folder = tmp_path / "wheels"
        folder.mkdir()
        make_wheel(folder, "alpha", "1.0", {"alpha/__init__.py": b"A = 1\n"})
        return folder

    @pytest.fixture
    def lock(self, tmp_path: Path, wheels: Path) -> StackLock:
        return load_stack_lock(tiny(tmp_path / "tiny", next(wheels.iterdir())))

    def test_one_that_holds_all_passes(self, wheels: Path, lock: StackLock) -> None:
        check_wheelhouse(wheels, lock, every=True)
        assert fetch(wheels, lock, Platform(python=("3.11",), glibc="2.36")) == (0, 1)

    def test_a_changed_wheel_is_named_with_both_hashes(self, wheels: Path, lock: StackLock) -> None:
        (wheel,) = wheels.iterdir()
        wheel.write_bytes(wheel.read_bytes() + b"x")
        for check in (partial(check_wheelhouse, every=False), partial(fetch, platform=Platform(python=("3.11",), glibc="2.36"))):
            with pytest.raises(UsageError, match=f"hash mismatch: {wheel.name} has sha256 {sha256(wheel)}, the lock of tiny holds {lock.entries[0].wheels[0].sha256}"):
                check(wheels, lock=lock)

    def test_a_missing_wheel_or_folder_is_named(self, wheels: Path, lock: StackLock) -> None:
        shutil.rmtree(wheels)
        with pytest.raises(UsageError, match="there is no folder"):
            check_wheelhouse(wheels, lock, every=False)
        wheels.mkdir()
        with pytest.raises(UsageError, match=r"lacks alpha-1\.0-py3-none-any\.whl of the lock of tiny"):
            check_wheelhouse(wheels, lock, every=False)

    def test_pip_fetches_what_is_missing_and_holds_it_against_the_lock(self, wheels: Path, lock: StackLock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("PIP_NO_INDEX", "1")
        monkeypatch.setenv("PIP_FIND_LINKS", str(wheels))
        platform = Platform(python=("3.11", "3.12"), glibc="2.36")
        assert fetch(tmp_path / "new", lock, platform) == (1, 1)
        assert [path.name for path in (tmp_path / "new").iterdir()] == ["alpha-1.0-py3-none-any.whl"]
        make_wheel(wheels, "alpha", "1.0", {"alpha/__init__.py": b"A = 2\n"})
        changed = sha256(wheels / "alpha-1.0-py3-none-any.whl")
        with pytest.raises(EnvspecError, match=f"^hash mismatch: alpha==1.0 from the index has sha256:{changed}, the lock holds sha256:{lock.entries[0].wheels[0].sha256}"):
            fetch(tmp_path / "other", lock, platform)
        assert list((tmp_path / "other").iterdir()) == []


class TestSelfCheck:
    """The check inside the build."""

    @pytest.fixture
    def stack(self, tmp_path: Path) -> Stack:
        wheel = make_wheel(tmp_path, "alpha", "1.0", {"alpha/__init__.py": b""})
        return tiny(tmp_path / "tiny", wheel)

    @pytest.mark.parametrize(
        ("installed", "found"),
        [
            ({"alpha": "1.0"}, []),
            ({}, ["EP201"]),
            ({"alpha": "1.1"}, ["EP202"]),
            ({"alpha": "1.0", "beta": "2"}, ["EP212"]),
        ],
    )
    def test_packages_against_the_lock(self, stack: Stack, installed: Mapping[str, str], found: list[str]) -> None:
        snapshot = snap("image", *(dist(name, version) for name, version in installed.items()), gpus=(), driver=None)
        report = self_check(snapshot, load_lock(stack.lock()), stack, "image")
        assert [item.code for item in report.findings if item.severity != "noise"] == found
        assert report.exit_code("results") == (1 if found else 0)

    @pytest.mark.parametrize(
        ("torch", "found"),
        [
            (TorchBuild(location="/t", version="2.9.1+cu128", variant="cu128", cuda="12.8", archs=("sm_80", "sm_90")), []),
            (TorchBuild(location="/t", version="2.9.1+cu126", variant="cu126", cuda="12.6", archs=("sm_80", "sm_90")), ["EP311"]),
            (TorchBuild(location="/t", version="2.9.1+cu128", variant="cu128", cuda="12.8", archs=("sm_90",)), ["EP302"]),
            (None, ["EP302", "EP311"]),
        ],
    )
    def test_torch_against_the_stack(self, stack: Stack, torch: TorchBuild | None, found: list[str]) -> None:
        wanted = replace(stack, cuda="12.8", archs=("sm_80", "sm_90"))
        report = self_check(snap("image", dist("alpha", "1.0"), gpus=(), driver=None, torch=torch), load_lock(stack.lock()), wanted, "image")
        assert sorted(item.code for item in report.findings if item.severity != "noise") == found
        assert report.exit_code("results") == (1 if found else 0)


    @pytest.mark.parametrize("section", ["distributions", "extensions", "deep"])
    def test_what_could_not_be_read_is_not_passed(self, stack: Stack, section: str) -> None:
        snapshot = snap("image", dist("alpha", "1.0"), gpus=(), driver=None)
        slow = replace(snapshot, sections={**snapshot.sections, section: Section(status="partial", reason="did not finish within 120 s")})
        found = [item for item in self_check(slow, load_lock(stack.lock()), stack, "image").findings if item.severity != "noise"]
        assert [(item.code, item.subject, item.severity) for item in found] == [("EP902", section, "breaks")]
        assert found[0].what == f"{section} of image could be read in part only: did not finish within 120 s"


def test_a_lock_edited_by_hand_is_refused_before_anything_is_asked_of_the_engine(tmp_path: Path) -> None:
    folder = tmp_path / "small"
    shutil.copytree(SMALL, folder)
    lock = folder / "requirements.lock"
    lock.write_text(re.sub(r"packaging==\S+", "packaging==1.0", lock.read_text()))
    request = Request(stack=load_stack(folder), recipe=RECIPE, project=Project(root=ROOT), name="x", base=BASE)
    with pytest.raises(UsageError, match=r"requirements\.lock:\d+: edited by hand: packaging is 1\.0 here"):
        build(Engine(name="docker", command="/nowhere/docker", version="1"), request)


def test_a_stack_without_a_base_asks_for_one(tmp_path: Path) -> None:
    request = Request(stack=load_stack(SMALL), recipe=RECIPE, project=Project(root=ROOT), name="x")
    with pytest.raises(UsageError, match=r"it names no base; name one with --base IMAGE"):
        build(Engine(name="docker", command="/nowhere/docker", version="1"), request)


def test_findings_that_a_stack_accepts_do_not_fail_its_build(tmp_path: Path) -> None:
    wheel = make_wheel(tmp_path, "alpha", "1.0", {"alpha/__init__.py": b""})
    stack = tiny(tmp_path / "tiny", wheel)
    (tmp_path / "envspec.yaml").write_text("version: 1\nignore:\n  - {code: EP201, subject: alpha, reason: not needed here}\n")
    report = self_check(snap("image", gpus=(), driver=None), load_lock(stack.lock()), stack, "image", load_spec(tmp_path / "envspec.yaml"))
    assert [(item.code, item.ignored) for item in report.findings if item.severity != "noise"] == [("EP201", True)]
    assert report.exit_code("results") == 0


def test_names_are_given_to_all_images_or_to_none(tmp_path: Path) -> None:
    from envspec.images.build import _name

    log = tmp_path / "log"
    docker = tmp_path / "docker"
    docker.write_text(
        f'#!/bin/sh\necho "$*" >>{log}\ncase "$*" in\n"image inspect x-train"*) echo \'[{{"Id": "sha256:old"}}]\' ;;\n'
        '"image inspect"*) echo "No such image" >&2; exit 1 ;;\n"tag sha256:new2"*) echo "Error response from daemon: no space left on device" >&2; exit 1 ;;\nesac\n'
    )
    docker.chmod(0o755)
    engine = Engine(name="docker", command=str(docker), version="1")
    images = [BuiltImage(role=role, name=f"x-{role}:latest", id=f"sha256:new{n}", size=0, digests={}) for n, role in ((1, "train"), (2, "infer"))]
    with pytest.raises(EngineError, match="no space left on device"):
        _name(engine, images)
    assert log.read_text().splitlines()[-3:] == ["tag sha256:new1 x-train:latest", "tag sha256:new2 x-infer:latest", "tag sha256:old x-train:latest"]


@pytest.mark.parametrize(("failures", "built"), [(1, True), (9, False)])
def test_a_builder_that_loses_its_client_is_tried_again_and_not_for_ever(tmp_path: Path, failures: int, built: bool) -> None:
    from envspec.images.build import _Run

    docker = tmp_path / "docker"
    docker.write_text(
        f"#!/bin/sh\necho x >>{tmp_path / 'calls'}\n[ $(wc -l <{tmp_path / 'calls'}) -gt {failures} ] || {{ echo '#9 [tools 5/5] RUN [\"/opt/tools/bin/envspec\", \"images\", \"self-check\"]';"
        " echo '#9 ERROR: rpc error: code = Canceled desc = grpc: the client connection is closing'; exit 1; }\n"
        "while [ $# -gt 0 ]; do [ \"$1\" != --iidfile ] || echo sha256:abc >\"$2\"; shift; done\n"
    )
    docker.chmod(0o755)
    told: list[str] = []
    request = Request(stack=load_stack(SMALL), recipe=RECIPE, project=Project(root=ROOT), name="x")
    building = _Run(engine=Engine(name="docker", command=str(docker), version="1"), request=request, base="b", tell=told.append)
    if built:
        assert building.stage("tools", tmp_path, {}, cached=True) == "sha256:abc"
        assert told == ["the builder and its client lost each other; trying again"]
    else:
        with pytest.raises(EngineError, match="lost each other while making: check against the lock, and again when it was tried anew"):
            building.stage("tools", tmp_path, {}, cached=True)
        assert len((tmp_path / "calls").read_text().split()) == 3


# With a real engine ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Shop:
    """What real builds need: an engine with a base, and a wheelhouse of the small stack and the tools."""

    engine: Engine
    wheels: Path

    def request(self, stack: Stack, name: str, **more: Any) -> Request:
        return Request(stack=stack, recipe=RECIPE, project=project_of(ROOT), name=name, base=BASE, **{"wheelhouse": self.wheels, **more})

    def names(self) -> set[str]:
        return set(self.engine.ask("images", "--format", "{{.Repository}}").split())

    def remove(self, *names: str) -> None:
        for name in names:
            self.engine.ask("image", "rm", "--force", f"{name}-train:latest", f"{name}-infer:latest")


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Shop:
    try:
        engine = find_engine(os.environ.get("ENVSPEC_TEST_ENGINE"))
    except EngineError as error:
        pytest.skip(str(error))
    if engine.inspect(BASE) is None:
        pytest.skip(f"no image {BASE}; make one with `nox -s bootstrap-base -- --minimal --tag {BASE}`, or name one in ENVSPEC_TEST_IMAGE")
    wheels = tmp_path_factory.mktemp("wheelhouse")
    try:
        for stack in (load_stack(SMALL), load_tools(RECIPE)):
            fetch(wheels, load_stack_lock(stack), Platform.of(stack))
    except EngineError as error:
        pytest.skip(f"the wheels of the small stack cannot be fetched: {error}")
    return Shop(engine=engine, wheels=wheels)


@pytest.fixture(scope="module")
def twice(shop: Shop) -> Iterator[tuple[list[BuiltImage], list[BuiltImage], list[str]]]:
    """The small stack built twice with no cache and no network, and what the first build told."""
    told: list[str] = []
    stack = load_stack(SMALL)
    first = build(shop.engine, shop.request(stack, f"{PREFIX}-first", no_cache=True), told.append)
    second = build(shop.engine, shop.request(stack, f"{PREFIX}-second", no_cache=True))
    yield first, second, told
    shop.remove(f"{PREFIX}-first", f"{PREFIX}-second")


def environment_of(engine: Engine, image: str) -> str:
    """The digest of an image's environment, from its files as the engine exports them."""
    container = engine.ask("create", "--network", "none", image).strip()
    try:
        with subprocess.Popen([engine.command, "export", container], stdout=subprocess.PIPE) as export:
            assert export.stdout is not None
            return environment_digest(list(below(entries_of_tar(iter(partial(export.stdout.read, 1 << 20), b"")), "opt/env")))
    finally:
        engine.ask("rm", "--force", container)


@pytest.mark.docker
def test_two_builds_give_the_same_environment(shop: Shop, twice: tuple[list[BuiltImage], list[BuiltImage], list[str]]) -> None:
    first, second, told = twice
    assert [line.split(":")[0] for line in told] == ["packages that the base lacks", "uv", "environment from the lock", "envspec and nox beside it", "check against the lock"]
    assert first[0].id != second[0].id  # made anew: only what is in the environment has to be the same
    # The snapshot's file says when and where it was taken; what it says of the environment is the same.
    assert {**first[0].digests, "snapshot": ""} == {**second[0].digests, "snapshot": ""}
    baked = [loads(json.loads(shop.engine.read_file(images[0].id, labels.SNAPSHOT))) for images in (first, second)]
    assert baked[0].digest == baked[1].digest
    assert len(baked[0].distributions) == 4
    assert environment_of(shop.engine, second[1].id) == first[0].digests["environment"]


@pytest.mark.docker
def test_the_roles_share_every_layer_and_differ_in_entry_point_and_labels(shop: Shop, twice: tuple[list[BuiltImage], list[BuiltImage], list[str]]) -> None:
    train, infer = ({**(shop.engine.inspect(image.name) or {})} for image in twice[0])
    assert train["RootFS"] == infer["RootFS"]
    changed = {key for key in train["Config"] if train["Config"][key] != infer["Config"][key]}
    assert changed <= {"Entrypoint", "Labels", "Image"}
    mine, theirs = train["Config"]["Labels"], infer["Config"]["Labels"]
    assert {key for key in mine if mine[key] != theirs[key]} == {labels.ROLE, "org.opencontainers.image.title", "org.opencontainers.image.description"}
    assert mine[labels.LOCK_DIGEST] == labels.sha256_of(shop.engine.read_file(twice[0][0].id, labels.LOCK)) == labels.sha256_of((SMALL / "requirements.lock").read_bytes())
    assert mine[labels.SNAPSHOT_DIGEST] == labels.sha256_of(shop.engine.read_file(twice[0][0].id, labels.SNAPSHOT))
    assert mine[labels.BASE_DIGEST] == (shop.engine.inspect(BASE) or {})["Id"]
    assert train["Config"]["User"] == "app"


@pytest.mark.docker
def test_what_runs_in_the_image(shop: Shop, twice: tuple[list[BuiltImage], list[BuiltImage], list[str]]) -> None:
    def run(role: int, *command: str) -> str:
        return shop.engine.ask("run", "--rm", "--network", "none", twice[0][role].name, *command).strip()

    code = "import sys, numpy; print(sys.prefix, numpy.__version__, [p for p in sys.path if 'tools' in p])"
    assert run(0, "python", "-c", code) == run(1, "-c", code)
    assert run(0, "python", "-c", code).startswith("/opt/env 2.")
    assert run(0, "python", "-c", code).endswith("[]")
    assert run(1, "id", "-u") == "1000"
    assert json.loads(run(0, "envspec", "capture", "local"))["interpreter"]["prefix"] == "/opt/env"
    assert run(1, "sh", "-c", "nox --version 2>&1")[:2] == "20"


@pytest.mark.docker
def test_a_stack_that_its_environment_does_not_meet_fails_the_build_and_names_nothing(shop: Shop, tmp_path: Path) -> None:
    folder = tmp_path / "small"
    shutil.copytree(SMALL, folder)
    with (folder / "stack.yaml").open("a") as file:
        file.write("archs: [sm_90]\n")
    with pytest.raises(CheckFailed) as caught:
        build(shop.engine, shop.request(load_stack(folder), f"{PREFIX}-failed"))
    assert "EP302" in caught.value.report
    assert "torch holds no code for sm_90" in caught.value.report
    assert not {name for name in shop.names() if f"{PREFIX}-failed" in name}


@pytest.mark.docker
@pytest.mark.parametrize("offline", [True, False])
def test_a_base_that_cannot_be_had(shop: Shop, offline: bool) -> None:
    request = replace(shop.request(load_stack(SMALL), f"{PREFIX}-none"), base="registry.invalid/no-such:1", wheelhouse=shop.wheels if offline else None)
    with pytest.raises(EngineError, match=r"the base image registry\.invalid/no-such:1 is not in .* store.*name another with --base") as caught:
        build(shop.engine, request)
    assert "\n" not in str(caught.value)


@pytest.fixture
def served(tmp_path: Path) -> Iterator[tuple[Path, str]]:
    """A folder that is an index of `alpha`, and its address on this machine's own network."""
    folder = tmp_path / "index" / "alpha"
    folder.mkdir(parents=True)
    wheel = make_wheel(folder, "alpha", "1.0", {"alpha/__init__.py": b"A = 1\n"})
    (folder / "index.html").write_text(f'<a href="{wheel.name}">{wheel.name}</a>')

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, format: str, *args: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(folder.parent))) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield wheel, f"http://reader:hunter2@127.0.0.1:{server.server_address[1]}/"
        server.shutdown()
        thread.join()


def online(shop: Shop, stack: Stack, name: str, index: str) -> Request:
    return shop.request(stack, name, wheelhouse=None, index=index, network="host")


@pytest.mark.docker
@pytest.mark.usefixtures("twice")
def test_an_index_comes_in_as_a_secret_and_leaves_no_trace(shop: Shop, served: tuple[Path, str], tmp_path: Path) -> None:
    wheel, index = served
    tools = tmp_path / "recipe" / "tools"
    shutil.copytree(RECIPE, tools.parent, ignore=shutil.ignore_patterns("stacks"))
    link_all(shop.wheels, wheel.parent.parent)
    request = replace(online(shop, tiny(tmp_path / "tiny", wheel), f"{PREFIX}-secret", index), recipe=tools.parent)
    images = build(shop.engine, request)
    try:
        about = json.dumps(shop.engine.inspect(images[0].name)) + shop.engine.ask("history", "--no-trunc", images[0].id)
        assert "hunter2" not in about
        with subprocess.Popen([shop.engine.command, "save", images[0].id], stdout=subprocess.PIPE) as saved:
            assert saved.stdout is not None
            with tarfile.open(fileobj=saved.stdout, mode="r|") as archive:
                for member in archive:
                    source = archive.extractfile(member)
                    assert source is None or b"hunter2" not in source.read()
    finally:
        shop.remove(f"{PREFIX}-secret")


def link_all(wheels: Path, index: Path) -> None:
    """Serve the tools' wheels from an index too."""
    for wheel in wheels.glob("*.whl"):
        folder = index / re.sub(r"[-_.]+", "-", wheel.name.split("-")[0]).lower()
        folder.mkdir(exist_ok=True)
        (folder / wheel.name).hardlink_to(wheel)
        (folder / "index.html").write_text("".join(f'<a href="{path.name}">{path.name}</a>\n' for path in folder.glob("*.whl")))


@pytest.mark.docker
def test_an_index_that_serves_another_file_is_refused_with_both_hashes(shop: Shop, served: tuple[Path, str], tmp_path: Path) -> None:
    wheel, index = served
    stack, locked = tiny(tmp_path / "tiny", wheel), sha256(wheel)
    link_all(shop.wheels, wheel.parent.parent)
    make_wheel(wheel.parent, "alpha", "1.0", {"alpha/__init__.py": b"A = 2\n"})
    with pytest.raises(EngineError, match=f"hash mismatch: alpha==1.0 from the index has sha256:{sha256(wheel)}, the lock holds sha256:{locked}"):
        build(shop.engine, online(shop, stack, f"{PREFIX}-other", index))
    assert not {name for name in shop.names() if f"{PREFIX}-other" in name}


@pytest.mark.docker
def test_a_base_without_the_locks_python(shop: Shop, tmp_path: Path) -> None:
    wheels = tmp_path / "wheels"
    shutil.copytree(shop.wheels, wheels)
    wheel = make_wheel(wheels, "alpha", "1.0", {"alpha/__init__.py": b""})
    stack = tiny(tmp_path / "tiny", wheel, python="3.8")
    with pytest.raises(EngineError, match=r"^the base has Python 3\.\d+\.\d+, the lock is for Python 3\.8; take another base"):
        build(shop.engine, shop.request(stack, f"{PREFIX}-python", wheelhouse=wheels))


@pytest.mark.docker
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_build_leaves_no_name_and_no_builder(shop: Shop, number: signal.Signals) -> None:
    build_it = [sys.executable, "-m", "envspec", "images", "build", str(SMALL), "--base", BASE, "--offline", str(shop.wheels), "--tag", f"{PREFIX}-stopped", "--no-cache"]
    # A shell's background jobs ignore SIGINT and hand that on to all that they start, these tests among them.
    command = ["env", "--default-signal=INT", *build_it]
    with subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        said = []
        for line in process.stderr:
            said.append(line)
            if "packages that the base lacks" in line:
                process.send_signal(number)
        assert process.wait(60) == 128 + number, said
    assert said[-1] == ("envspec: interrupted\n" if number == signal.SIGINT else "envspec: ended by SIGTERM\n")
    assert not {name for name in shop.names() if f"{PREFIX}-stopped" in name}
    assert list(shop.wheels.parent.glob(".envspec-build-*")) == []
