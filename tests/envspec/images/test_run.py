"""Commands in an image: what they can see, write and reach, and that they compute what they compute outside."""

from __future__ import annotations

import importlib.metadata
import io
import json
import os
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from envspec.commands import images_run
from envspec.errors import UsageError
from envspec.hosts.docker import ImageHost
from envspec.hosts.local import LocalHost
from envspec.images.inspect import stopped
from envspec.images.run import Mounts, driver_faults, has_driver
from envspec.snapshot import Capture, Driver, Gpu, Section, Snapshot, TorchBuild
from tests.envspec.engine import PREFIX
from tests.envspec.images.conftest import Pair, Workshop
from tests.envspec.images.test_verify import run

ROOT = Path(__file__).parents[3]


@pytest.mark.docker
def test_paths_are_where_they_are_outside_and_only_what_is_named_can_be_written(pair: Pair, tmp_path: Path) -> None:
    given, out = tmp_path / "given", tmp_path / "out"
    given.mkdir()
    out.mkdir()
    (given / "a.txt").write_text("text")
    code = (
        "import os, socket, sys\n"
        f"assert open({str(given / 'a.txt')!r}).read() == 'text'\n"
        f"open({str(out / 'result')!r}, 'w').write('done')\n"
        "open('/tmp/scratch', 'w').write('x')\n"
        f"for path in ({str(given / 'b')!r}, '/opt/env/x', '/etc/x'):\n"
        "    try:\n        open(path, 'w')\n    except OSError as error:\n        assert error.errno == 30, error\n"
        "    else:\n        raise AssertionError(path)\n"
        "assert os.listdir('/sys/class/net') == ['lo']\n"
        "assert os.environ['NAME'] == 'a=b'\n"
        "import alpha\n"
        "print('to stdout'); print('to stderr', file=sys.stderr); sys.exit(5)\n"
    )
    outcome = run("run", pair.infer, "--gpus", "none", "--read", str(given), "--write", str(out), "--env", "NAME=a=b", "--", "python3", "-c", code)
    assert (outcome.code, outcome.out, outcome.err) == (5, "to stdout\n", "to stderr\n")
    assert (out / "result").read_text() == "done"
    assert (out / "result").stat().st_uid == os.getuid()
    assert [path.name for path in given.iterdir()] == ["a.txt"]


@pytest.mark.docker
def test_what_cannot_be_run_is_one_sentence(pair: Pair, tmp_path: Path) -> None:
    for words, message in (
        (("--read", str(tmp_path / "no")), "there is no such file or directory"),
        (("--read", "/usr/lib"), "it would hide the image's own files"),
        (("--env", "NAME"), "expected NAME=VALUE"),
    ):
        outcome = run("run", pair.infer, "--gpus", "none", *words, "--", "true")
        assert (outcome.code, outcome.out) == (2, "")
        assert message in outcome.err
    outcome = run("run", pair.infer, "--gpus", "none", "--", "no-such-program")
    assert outcome.code == 2
    assert "no-such-program cannot be started in it" in outcome.err
    assert outcome.err.count("\n") == 1


def test_mounts(tmp_path: Path) -> None:
    inner = tmp_path / "a" / "b"
    inner.mkdir(parents=True)
    (tmp_path / "file").touch()
    (tmp_path / "link").symlink_to(inner)
    mounts = Mounts.of([inner, tmp_path / "a", tmp_path / "link", tmp_path / "a"], [inner, inner])
    assert mounts == Mounts(read=(tmp_path / "a", tmp_path / "link"), write=(inner,))
    with pytest.raises(UsageError, match="is no directory"):
        Mounts.of([], [tmp_path / "file"])
    for place in ("/", "/tmp", "/etc", "/usr/share", "/proc/self", "/opt"):
        with pytest.raises(UsageError, match="would hide the image's own files"):
            Mounts.of([place], [])


# The driver.


def machine(driver: str, cuda: str, capability: str = "9.0") -> Snapshot:
    return Snapshot(
        capture=Capture(label="this machine", target="local", transport="local"),
        sections={"driver": Section(status="ok"), "gpus": Section(status="ok")},
        driver=Driver(version=driver, cuda=cuda),
        gpus=(Gpu(index=0, name="NVIDIA H100 80GB HBM3", compute_capability=capability),),
    )


def image(archs: tuple[str, ...] = ("sm_80", "sm_90")) -> Snapshot:
    torch = TorchBuild(location="/opt/env", version="2.9.1+cu128", variant="cu128", cuda="12.8", archs=archs)
    return Snapshot(capture=Capture(label="image", target="image:i", transport="image"), sections={"torch": Section(status="ok"), "distributions": Section(status="ok")}, torch=torch)


def test_a_driver_that_carries_the_image_has_no_faults() -> None:
    assert driver_faults(image(), machine("570.124.06", "12.8")) == []
    assert driver_faults(image(), machine("550.54.15", "12.4")) == []  # CUDA 12's minor-version compatibility


def test_a_driver_that_is_too_old_and_a_gpu_without_code_are_told_before_the_start() -> None:
    assert [item.code for item in driver_faults(image(), machine("470.57.02", "11.4"))] == ["EP301"]
    assert [item.code for item in driver_faults(image(("sm_80",)), machine("570.124.06", "12.8", "12.0"))] == ["EP302"]


@pytest.mark.docker
@pytest.mark.parametrize(
    ("here", "held", "sentence"),
    [
        (machine("470.57.02", "11.4"), image(), "EP301"),
        (machine("570.124.06", "12.8", "12.0"), image(("sm_80",)), "EP302"),
        (machine("570.124.06", "12.8"), image(), None),
    ],
)
def test_a_machine_that_cannot_carry_the_image_is_told_in_a_sentence_and_nothing_starts(
    pair: Pair, workshop: Workshop, monkeypatch: pytest.MonkeyPatch, here: Snapshot, held: Snapshot, sentence: str | None
) -> None:
    monkeypatch.setattr(LocalHost, "snapshot", lambda host, options: here)
    monkeypatch.setattr(ImageHost, "snapshot", lambda host, options: held)
    started: list[str] = []
    monkeypatch.setattr(images_run, "run_in", lambda client, name, command, *streams, gpus, **more: started.append(f"{command[0]} {gpus}") or 0)
    outcome = run("run", pair.infer, "--gpus", "all", "--", "python3", "-c", "print('started')")
    if sentence is None:
        assert (outcome.code, outcome.err, started) == (0, "", ["python3 True"])
        return
    (fault,) = driver_faults(held, here)
    assert (fault.code, outcome.code, outcome.out, started) == (sentence, 1, "", [])
    assert outcome.err == f"envspec: {pair.infer} cannot run here: {fault.what}. {fault.fix}\n"


def test_a_driver_without_a_gpu_is_none(tmp_path: Path) -> None:
    (tmp_path / "proc/driver/nvidia").mkdir(parents=True)
    (tmp_path / "proc/driver/nvidia/version").touch()
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev/nvidiactl").touch()
    assert not has_driver(tmp_path)
    (tmp_path / "dev/nvidia0").touch()
    assert has_driver(tmp_path)


# The standalone test, bit for bit.


def closure(*names: str) -> set[str]:
    """Installed distributions that these need, with themselves."""
    found: set[str] = set()
    pending = [canonicalize_name(name) for name in names]
    while pending:
        name = pending.pop()
        if name in found:
            continue
        try:
            needs = importlib.metadata.requires(name) or []
        except importlib.metadata.PackageNotFoundError:
            continue  # only wanted elsewhere
        found.add(name)
        parsed = (Requirement(text) for text in needs)
        pending += [canonicalize_name(item.name) for item in parsed if item.marker is None or item.marker.evaluate({"extra": ""})]
    return found


def _unneeded(parts: tuple[str, ...]) -> bool:
    return parts[:2] in (("torch", "include"), ("torch", "test")) or (parts[:2] == ("torch", "bin") and parts[2:] != ("torch_shm_manager",))


def torch_archive(file: io.BufferedIOBase, site: str) -> None:
    """This interpreter's torch, without what only compiling and testing need."""
    with tarfile.open(fileobj=file, mode="w") as tar:
        for name in sorted(closure("torch", "safetensors", "numpy")):
            for path in importlib.metadata.files(name) or []:
                if path.parts[0] == ".." or _unneeded(path.parts) or path.suffix == ".pyc":
                    continue
                if (real := Path(str(path.locate()))).is_file():
                    tar.add(real, f"{site}/{path}")


def numbers(report: dict[str, Any]) -> dict[str, Any]:
    """A report without where and how fast it was made."""
    out = {key: value for key, value in report.items() if key not in ("timing", "environment")}
    for name in ("drafter", "target"):
        out[name] = {key: value for key, value in out[name].items() if key != "path"}
    return out


@pytest.mark.docker
def test_the_standalone_test_gives_the_same_numbers_in_an_image_inside_one_and_outside(workshop: Workshop, pair: Pair, tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    if torch.version.cuda is not None or f"{sys.version_info[0]}.{sys.version_info[1]}" != workshop.python:
        pytest.skip(f"the image's torch is this interpreter's: it must be a CPU build for Python {workshop.python}")
    with (tmp_path / "torch.tar").open("w+b") as file, stopped(workshop.client, pair.infer) as container:
        torch_archive(file, workshop.site)
        file.seek(0)
        assert container.put_archive("/", file)
        container.commit(repository=f"{PREFIX}-torch", tag="latest")
    (tmp_path / "torch.tar").unlink()
    workshop.made += [f"{PREFIX}-torch:latest"]
    demo, out = ROOT / "eagle3_diag" / "demo", tmp_path / "out"
    out.mkdir()

    def arguments(at: Path, name: str) -> list[str]:
        inputs = [f"--{each}={at / 'eagle3_diag' / 'demo' / each}" for each in ("drafter", "target", "samples")]
        return ["-m", "eagle3_diag", "evaluate", "--quiet", *inputs, f"--json={out / name}.json"]

    threads = {"OMP_NUM_THREADS": "1"}
    mounts = ["--read", str(ROOT / "eagle3_diag"), "--read", str(demo), "--write", str(out)]
    called = run("run", f"{PREFIX}-torch", "--gpus", "none", *mounts, "--env", f"PYTHONPATH={ROOT}", "--", "python3", *arguments(ROOT, "in-image"))
    assert (called.code, called.err) == (0, "")
    # Inside: the image's own interpreter and the project where images have it.
    inside = Path("/opt/tools/project")
    workshop.client.containers.run(
        f"{PREFIX}-torch",
        arguments(inside, "inside"),
        entrypoint=["python3"],
        environment={"PYTHONPATH": str(inside), "HOME": "/tmp", **threads},
        volumes={str(ROOT): {"bind": str(inside), "mode": "ro"}, str(out): {"bind": str(out), "mode": "rw"}},
        user=f"{os.getuid()}:{os.getgid()}",
        network_mode="none",
        read_only=True,
        tmpfs={"/tmp": ""},
        remove=True,
    )
    subprocess.run([sys.executable, *arguments(ROOT, "outside")], cwd=ROOT, check=True, env={**os.environ, **threads})
    reports = {name: numbers(json.loads((out / f"{name}.json").read_text())) for name in ("in-image", "inside", "outside")}
    assert reports["in-image"]["serving"]["acceptance_length"] > 4
    assert json.dumps(reports["in-image"], sort_keys=True) == json.dumps(reports["inside"], sort_keys=True)
    assert json.dumps(reports["in-image"], sort_keys=True) == json.dumps(reports["outside"], sort_keys=True)
