"""Small snapshots for the comparison's tests: a healthy Linux host with a GPU driver, changed where a test says."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from envspec.compare import LabelledSnapshot
from envspec.locks import RoleLock, load_lock
from envspec.snapshot import (
    SECTIONS,
    Capture,
    Distribution,
    Driver,
    Gpu,
    Interpreter,
    Libc,
    Limits,
    Origin,
    PathEntry,
    Section,
    Snapshot,
    TorchBuild,
    Variable,
)

SITE = "/opt/env/lib/python3.12/site-packages"

MARKERS = {
    "implementation_name": "cpython",
    "implementation_version": "3.12.4",
    "os_name": "posix",
    "platform_machine": "x86_64",
    "platform_release": "6.1.0",
    "platform_system": "Linux",
    "platform_version": "#1 SMP",
    "platform_python_implementation": "CPython",
    "python_full_version": "3.12.4",
    "python_version": "3.12",
    "sys_platform": "linux",
}

H200 = Gpu(index=0, name="NVIDIA H200", compute_capability="9.0", memory_mib=143771)


def dist(name: str, version: str | None, *requires: str, **more: Any) -> Distribution:
    """An installed distribution with a recorded content."""
    values: dict[str, Any] = {
        "name": name,
        "raw_name": name,
        "version": version,
        "location": SITE,
        "metadata_path": f"{SITE}/{name}-{version}.dist-info",
        "tags": ("py3-none-any",),
        "installer": "pip",
        "origin": Origin(kind="index"),
        "requires": requires,
        "modules": (name.replace("-", "_"),),
        "record": "ok",
        "files": 3,
        "content": f"sha256:{name}-{version}",
    }
    return Distribution(**{**values, **more})


def snap(label: str, *dists: Distribution, **more: Any) -> Snapshot:
    """A host on which every section was read; ``env`` gives plain environment variables."""
    env = {name: Variable(value=value) for name, value in more.pop("env", {}).items()}
    values: dict[str, Any] = {
        "capture": Capture(label=label, target=label, transport="ssh", salt_id="one"),
        "sections": {name: Section(status="ok") for name in SECTIONS},
        "interpreter": Interpreter(
            implementation="cpython",
            version="3.12.4",
            executable="/opt/env/bin/python3",
            prefix="/opt/env",
            base_prefix="/usr",
            venv=True,
            soabi="cpython-312-x86_64-linux-gnu",
            platform="linux-x86_64",
        ),
        "markers": MARKERS,
        "libc": Libc(family="glibc", version="2.36"),
        "path": (
            PathEntry(path="/usr/lib/python3.12", origin="stdlib"),
            PathEntry(path=SITE, origin="venv"),
        ),
        "distributions": (dist("pip", "26.3"), *dists),
        "limits": Limits(nofile_soft=1024, shm_bytes=2**34),
        "environment": env,
    }
    return Snapshot(**{**values, **more})


def gpu_host(label: str, *dists: Distribution, **more: Any) -> Snapshot:
    """A host with torch 2.10.0+cu128, an H200 and driver 570."""
    values: dict[str, Any] = {
        "driver": Driver(version="570.124.06", cuda="12.8"),
        "gpus": (H200,),
        "torch": TorchBuild(
            location=SITE,
            version="2.10.0+cu128",
            variant="cu128",
            cuda="12.8",
            archs=("sm_70", "sm_75", "sm_80", "sm_86", "sm_90", "sm_100", "sm_120"),
            cxx11_abi=True,
        ),
    }
    return snap(label, TORCH, *dists, **{**values, **more})


TORCH = dist("torch", "2.10.0", build_variant="cu128", tags=("cp312-cp312-manylinux_2_28_x86_64",))


def host(snapshot: Snapshot, role: str | None = None) -> LabelledSnapshot:
    """A captured host of the comparison."""
    return LabelledSnapshot.of(snapshot, role=role)


def relabel(snapshot: Snapshot, label: str) -> Snapshot:
    """The same host under another name."""
    return dataclasses.replace(snapshot, capture=dataclasses.replace(snapshot.capture, label=label, target=label))


def lock_of(folder: Path, *lines: str, role: str | None = None, name: str = "requirements.lock") -> RoleLock:
    """A requirements lock of these lines."""
    path = folder / name
    path.write_text("".join(f"{line}\n" for line in lines))
    return RoleLock(role=role, lock=load_lock(path))
