"""Snapshots with any value replaced: refused by path, or compared without a traceback and without forging anything."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from envspec.compare import compare
from envspec.findings import json_schema
from envspec.snapshot import (
    Container,
    Cpu,
    Extension,
    FileFault,
    Leftover,
    Library,
    Limits,
    LoaderDirectory,
    Needed,
    Origin,
    PathEntry,
    Problem,
    SharedFile,
    SnapshotError,
    StartupHook,
    Toolkit,
    Verification,
    loads,
)
from tests.envspec.compare.make import SITE, dist, gpu_host, host, lock_of, relabel

RICH = gpu_host(
    "a",
    dist(
        "vllm",
        "0.19.1",
        "torch==2.10.0",
        "missing>=1; python_version > '3'",
        origin=Origin(kind="vcs", url="https://git.example/v", commit="a" * 40, dirty=True, changed=("x.py",)),
        problems=(Problem(kind="record-damaged", detail="bad"), Problem(kind="duplicate", detail="two")),
        verification=Verification(checked=2, faults=(FileFault(path="a.py", fault="modified", found="1"),)),
    ),
    dist("numpy", "2.0.0", shadowed_by="/other"),
    dist("nvidia-nccl-cu12", "2.27.5"),
    dist("nvidia-cublas", "13.0.0"),
    extensions=(
        Extension(
            path=f"{SITE}/vllm/_C.abi3.so",
            owner="vllm",
            needed=(Needed(soname="libcudart.so.13", by="nothing"), Needed(soname="libcuda.so.1", by="nothing")),
            glibc="2.40",
            machine="x86_64",
            torch_symbols=9,
            torch_checked=True,
            missing=("_ZN3c10", "_ZN5torch3jit1ERKSs"),
        ),
    ),
    libraries=(Library(component="nccl", path="x", version="2.1", owner="nvidia-nccl-cu12", declared="2.27.5"),),
    loader=(LoaderDirectory(directory="/l", source="LD_LIBRARY_PATH", libraries=("libnccl.so.2",)),),
    leftovers=(Leftover(path="~x", name="~x"),),
    shared_files=(SharedFile(owners=("numpy", "vllm"), paths=("t.py",), count=1, same=False),),
    hooks=(StartupHook(kind="pth", path="x.pth", line="import x"),),
    path=(PathEntry(path="/repo", origin="pythonpath", loose=("vllm", "queue")), PathEntry(path=SITE, origin="venv")),
    toolkits=(Toolkit(path="/usr/local/cuda", version="13.0", nvcc=True),),
    limits=Limits(shm_bytes=1),
    container=Container(kind="docker"),
    cpu=Cpu(architecture="x86_64", flags=("avx2",)),
    env={"NCCL_ALGO": "Ring", "NVIDIA_REQUIRE_CUDA": "cuda>=13 brand=tesla,driver>=580"},
)
DOCUMENT = json.loads(json.dumps(RICH.to_dict()))


def leaves(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    if path:
        yield path
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in items:
        yield from leaves(item, (*path, key))


PATHS = sorted(leaves(DOCUMENT), key=str)
texts = st.text(max_size=8) | st.sampled_from(
    ["", "~", "../..", "1.0+", "==", "a" * 300, "\x1b[2J", "::error::x", "|", "\ud800"]
)
values = (
    texts
    | st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats()
    | st.just([])
    | st.just({})
    | st.lists(texts, max_size=2)
)


@pytest.fixture(scope="module")
def lock(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder: Path = tmp_path_factory.mktemp("lock")
    return lock_of(folder, "vllm==0.15.1", "numpy==2.0.0", "nvidia-nccl-cu13==2.28.9", "six==1.0 ; os_name == 'posix'")


@pytest.mark.parametrize("value", ["", "~", "12", "1.x", "-1", "99999999999999999999.1", "१२.८", "\ud800", "x\ny"])
def test_every_text_replaced(lock: Any, value: str) -> None:
    """Each single text of the snapshot in turn."""
    for path in PATHS:
        document = copy.deepcopy(DOCUMENT)
        inner = document
        for key in path[:-1]:
            inner = inner[key]
        if not isinstance(inner[path[-1]], str):
            continue
        inner[path[-1]] = value
        try:
            snapshot = loads(document)
        except SnapshotError:
            continue
        json.dumps(compare([host(relabel(snapshot, "b"))], [lock]).to_dict())


@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(PATHS), values), min_size=1, max_size=3))
def test_any_value_replaced(lock: Any, changes: list[tuple[tuple[Any, ...], Any]]) -> None:
    document = copy.deepcopy(DOCUMENT)
    for path, value in changes:
        inner = document
        try:
            for key in path[:-1]:
                inner = inner[key]
            inner[path[-1]] = value
        except (KeyError, IndexError, TypeError):
            continue  # an earlier change took the place away
    try:
        snapshot = relabel(loads(document), "b")
    except SnapshotError:
        return
    report = compare([host(RICH), host(snapshot)], [lock])
    text = json.dumps(report.to_dict())
    jsonschema.validate(json.loads(text), json_schema(), cls=jsonschema.Draft202012Validator)


def test_the_rich_snapshot_has_every_kind_of_fault(lock: Any) -> None:
    """So that the replacement above reaches the checks it is meant for."""
    families = {item.code[:3] for item in compare([host(RICH)], [lock]).findings}
    assert families == {"EP2", "EP3", "EP4", "EP5", "EP6", "EP8"}
