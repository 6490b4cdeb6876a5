"""Writes the snapshots of docs/envspec/example: a trainer and three servers that do not exist.

python -m tests.envspec.docs.example
"""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path

from envspec.snapshot import (
    SECTIONS,
    Capture,
    Cpu,
    Distribution,
    Driver,
    Gpu,
    Interpreter,
    Libc,
    Limits,
    OperatingSystem,
    Origin,
    PathEntry,
    Section,
    Snapshot,
    TorchBuild,
    Variable,
    save,
)

FOLDER = Path(__file__).parents[3] / "docs" / "envspec" / "example"
_SITE = "/opt/env/lib/python3.12/site-packages"
_PINS = {
    "filelock": "3.20.0",
    "numpy": "2.3.4",
    "packaging": "25.0",
    "safetensors": "0.6.2",
    "speculators": "0.3.0",
    "torch": "2.9.1",
    "transformers": "4.57.1",
}
_MARKERS = {
    "implementation_name": "cpython",
    "implementation_version": "3.12.3",
    "os_name": "posix",
    "platform_machine": "x86_64",
    "platform_python_implementation": "CPython",
    "platform_release": "6.8.0-60-generic",
    "platform_system": "Linux",
    "platform_version": "#63-Ubuntu SMP",
    "python_full_version": "3.12.3",
    "python_version": "3.12",
    "sys_platform": "linux",
}


def _distribution(name: str, version: str) -> Distribution:
    return Distribution(
        name=name,
        raw_name=name,
        version=version,
        build_variant="cu128" if name == "torch" else None,
        location=_SITE,
        metadata_path=f"{_SITE}/{name}-{version}.dist-info",
        tags=("cp312-cp312-manylinux_2_28_x86_64",) if name in ("numpy", "safetensors", "torch") else ("py3-none-any",),
        installer="uv",
        requested=True,
        origin=Origin(kind="index"),
        modules=(name,),
        record="ok",
        files=100,
        content="sha256:" + hashlib.sha256(f"{name} {version}".encode()).hexdigest(),
        metadata="sha256:" + hashlib.sha256(f"{name} {version} metadata".encode()).hexdigest(),
    )


def _host(label: str, pins: dict[str, str]) -> Snapshot:
    return Snapshot(
        capture=Capture(label=label, target=label, transport="ssh", hostname=f"{label}.example"),
        sections={name: Section(status="ok") for name in SECTIONS if name != "deep"},
        interpreter=Interpreter(
            implementation="cpython",
            version="3.12.3",
            executable="/opt/env/bin/python3",
            prefix="/opt/env",
            base_prefix="/usr",
            venv=True,
            venv_creator="uv 0.9.5",
            soabi="cpython-312-x86_64-linux-gnu",
            platform="linux-x86_64",
        ),
        markers=_MARKERS,
        libc=Libc(family="glibc", version="2.39"),
        os=OperatingSystem(id="ubuntu", version="24.04", name="Ubuntu 24.04.3 LTS", kernel="6.8.0-60-generic"),
        cpu=Cpu(model="Intel(R) Xeon(R) Platinum 8480+", architecture="x86_64", flags=("amx_bf16", "avx2", "avx512f")),
        path=(PathEntry(path="/usr/lib/python3.12", origin="stdlib"), PathEntry(path=_SITE, origin="venv")),
        distributions=tuple(_distribution(name, version) for name, version in sorted(pins.items())),
        torch=TorchBuild(
            location=f"{_SITE}/torch",
            version=f"{pins['torch']}+cu128",
            variant="cu128",
            cuda="12.8",
            archs=("sm_70", "sm_75", "sm_80", "sm_86", "sm_90", "sm_100", "sm_120"),
            cxx11_abi=True,
        ),
        driver=Driver(version="570.124.06", cuda="12.8", open_kernel=True, source="/proc/driver/nvidia/version"),
        gpus=tuple(Gpu(index=index, name="NVIDIA H100 80GB HBM3", compute_capability="9.0", memory_mib=81559) for index in range(8)),
        environment={"CUDA_VISIBLE_DEVICES": Variable(value="0,1,2,3,4,5,6,7")},
        limits=Limits(nofile_soft=1048576, nofile_hard=1048576, cpus=192),
    )


def snapshots() -> dict[str, Snapshot]:
    """Host name to its snapshot."""
    trainer = _host("trainer", _PINS)
    server = {name: version for name, version in _PINS.items() if name != "speculators"}
    gpu_01 = _host("gpu-01", server)
    gpu_02 = replace(_host("gpu-02", server), environment={**gpu_01.environment, "NVIDIA_TF32_OVERRIDE": Variable(value="0")})
    gpu_03 = _host("gpu-03", {**_PINS, "torch": "2.10.0"})
    return {"trainer": trainer, "gpu-01": gpu_01, "gpu-02": gpu_02, "gpu-03": gpu_03}


def write(folder: Path) -> None:
    for name, snapshot in snapshots().items():
        save(snapshot, folder / f"{name}.json")


if __name__ == "__main__":
    write(FOLDER)
