"""Build variants, components and the commands that mend."""

from __future__ import annotations

import dataclasses
import shlex

import pytest

from envspec import mend
from envspec.locks import LockedFile, LockedPackage
from envspec.snapshot import Interpreter, Origin
from envspec.variants import (
    component,
    cuda_major,
    is_cpu,
    locked_variant,
    parse_local,
    pypi_torch_variant,
    vendor_build,
)
from tests.envspec.compare.make import MARKERS, dist, snap


@pytest.mark.parametrize(
    ("label", "cuda", "torch", "abi", "cpu"),
    [
        ("cu128", "12.8", None, None, False),
        ("cpu", None, None, None, True),
        ("rocm7.2", None, None, None, False),
        ("pt270cu126", "12.6", "2.7", None, False),
        ("cu122torch2.3cxx11abifalse", "12.2", "2.3", False, False),
        ("cu12torch2.8cxx11abitrue", "12", "2.8", True, False),
        ("cu.12.8.torch.2.11", "12.8", "2.11", None, False),
        ("cu124torch2.5", "12.4", "2.5", None, False),
        ("gabcdef0.d20260101.cu128", "12.8", None, None, False),
        (None, None, None, None, False),
    ],
)
def test_local_labels_of_the_wild(
    label: str | None, cuda: str | None, torch: str | None, abi: bool | None, cpu: bool
) -> None:
    parsed = parse_local(label)
    assert (parsed.cuda, parsed.torch, parsed.cxx11_abi, parsed.cpu) == (cuda, torch, abi, cpu)


def test_components() -> None:
    """cu12 and cu13 names of one library are one; an unrelated NVIDIA package is none."""
    pairs = [
        ("nvidia-nccl-cu12", "nccl"),
        ("nvidia-nccl-cu13", "nccl"),
        ("nvidia-cuda-runtime-cu12", "cudart"),
        ("nvidia-cuda-runtime", "cudart"),
        ("nvidia-cusparselt-cu13", "cusparselt"),
        ("nvidia-ml-py", None),
        ("torch", None),
        ("pytorch-triton", "triton"),
        ("sglang-kernel", "sgl-kernel"),
    ]
    assert [(name, component(name)) for name, _ in pairs] == pairs
    assert cuda_major("nvidia-nccl-cu12", "2.27.5") == 12
    assert cuda_major("nvidia-cuda-runtime", "13.0.48") == 13
    assert cuda_major("nvidia-cufft", "12.0.0") is None
    assert cuda_major("torch", "2.9.1") is None


def test_variant_of_a_locked_torch() -> None:
    plain = LockedPackage(name="torch", version="2.9.1")
    runtime = LockedPackage(name="nvidia-cuda-runtime-cu12", version="12.6.77")
    assert locked_variant(LockedPackage(name="torch", version="2.9.1+cu130"), {}, MARKERS) == "cu130"
    assert (
        locked_variant(LockedPackage(name="torch", version="2.9.1", index="https://x.example/whl/cpu"), {}, MARKERS)
        == "cpu"
    )
    wheel = LockedFile(name="t.whl", url="https://x.example/whl/cu126/t.whl")
    assert locked_variant(LockedPackage(name="torch", version="2.9.1", files=(wheel,)), {}, MARKERS) == "cu126"
    assert locked_variant(plain, {runtime.name: runtime}, MARKERS) == "cu126"
    assert locked_variant(plain, {}, MARKERS) == "cu128"
    assert locked_variant(plain, {}, {**MARKERS, "sys_platform": "darwin"}) is None
    assert locked_variant(LockedPackage(name="six", version="1.0"), {}, MARKERS) is None


def test_what_pypi_serves() -> None:
    served = {
        version: pypi_torch_variant(version, MARKERS)
        for version in ("2.6.0", "2.7.1", "2.8.0", "2.10.0", "2.11.0", "9.9.9", "x")
    }
    assert served == {
        "2.6.0": "cu124",
        "2.7.1": "cu126",
        "2.8.0": "cu128",
        "2.10.0": "cu128",
        "2.11.0": "cu130",
        "9.9.9": None,
        "x": None,
    }
    assert is_cpu("cpu")
    assert not is_cpu("cu128")
    assert not is_cpu(None)
    assert vendor_build("2.9.0a0+145a3a7bda.nv25.10") == "25.10"
    assert vendor_build("2.9.0+cu128") is None


def test_each_tool_gets_its_command() -> None:
    base = snap("a")
    assert base.interpreter is not None
    uv = dataclasses.replace(base, interpreter=dataclasses.replace(base.interpreter, venv_creator="uv"))
    system = dataclasses.replace(
        base,
        interpreter=Interpreter(
            implementation="cpython",
            version="3.12",
            executable="/usr/bin/python3",
            prefix="/usr",
            base_prefix="/usr",
            externally_managed=True,
        ),
    )
    apt = dist("numpy", "1.0", origin=Origin(kind="system"))
    conda = dist("numpy", "1.0", origin=Origin(kind="conda"))
    assert mend.install(base, ["numpy==2.0"]) == "/opt/env/bin/python3 -m pip install numpy==2.0"
    assert mend.install(uv, ["numpy==2.0"]) == "uv pip install --python /opt/env/bin/python3 numpy==2.0"
    assert mend.install(base, ["numpy==2.0"], dist=conda) == "conda install -p /opt/env numpy=2.0"
    assert mend.install(base, ["numpy"], dist=apt) == "apt-get install python3-numpy"
    assert (
        mend.install(system, ["numpy==2.0"])
        == "/usr/bin/python3 -m venv ~/env && ~/env/bin/python -m pip install numpy==2.0"
    )
    assert (
        mend.reinstall(uv, "numpy==2.0")
        == "uv pip install --python /opt/env/bin/python3 --reinstall --no-deps numpy==2.0"
    )
    assert mend.uninstall(base, ["numpy"], dist=conda) == "conda remove --force numpy"
    assert mend.install(None, ["numpy"]) == "python3 -m pip install numpy"
    without_pip = dataclasses.replace(base, distributions=())
    assert mend.tool(without_pip) == "uv"


def test_hostile_names_cannot_leave_their_argument() -> None:
    """A pasted command does what it shows, whatever a host calls its packages and paths."""
    base = snap("a")
    assert base.interpreter is not None
    evil = "x; rm -rf ~ $(id) `id` '\"\n"
    host = dataclasses.replace(
        base, interpreter=dataclasses.replace(base.interpreter, executable=f"/tmp/{evil}/python")
    )
    for command in (mend.install(host, [evil]), mend.reinstall(host, evil), mend.uninstall(host, [evil])):
        words = shlex.split(command)
        assert words[0] == f"/tmp/{evil}/python"
        assert words[-1] == evil
