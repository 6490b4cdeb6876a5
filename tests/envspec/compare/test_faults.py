"""Public failures of real stacks as small fixtures: each is found, named right, and nothing else is reported."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from envspec.compare import LabelledSnapshot, compare
from envspec.locks import RoleLock, load_lock
from envspec.rules import RULES
from envspec.snapshot import (
    SECTIONS,
    Capture,
    ConfigValue,
    Container,
    Cpu,
    CxxLibrary,
    Distribution,
    Driver,
    Extension,
    FileFault,
    Gpu,
    Image,
    Interpreter,
    Leftover,
    Libc,
    Library,
    Limits,
    LoaderDirectory,
    Needed,
    OperatingSystem,
    Origin,
    PathEntry,
    Problem,
    Section,
    SharedFile,
    StartupHook,
    Toolkit,
    TorchBuild,
    Variable,
    Verification,
)
from envspec.spec import load_spec
from tests.envspec.compare.make import H200, SITE, TORCH, dist, gpu_host, host, lock_of, relabel, snap

USER = "/home/ann/.local/lib/python3.12/site-packages"
TORCH_211 = dist("torch", "2.11.0", build_variant="cu130", tags=("cp312-cp312-manylinux_2_28_x86_64",))


class Case(NamedTuple):
    """``expected`` are (code, subject, hosts); ``says`` are words that the first finding must contain."""

    hosts: Sequence[LabelledSnapshot]
    expected: Sequence[tuple[str, str, str]]
    says: Sequence[str] = ()
    locks: Sequence[RoleLock] = ()
    spec: str | None = None
    severity: str | None = None
    mends: str = ""


CASES: dict[str, Callable[[Path], Case]] = {}


def case(function: Callable[[Path], Case]) -> Callable[[Path], Case]:
    CASES[function.__name__] = function
    return function


def ext(owner: str, **more: Any) -> Extension:
    return Extension(path=f"{SITE}/{owner.replace('-', '_')}/_C.abi3.so", owner=owner, machine="x86_64", **more)


def torch(**more: Any) -> TorchBuild:
    values: dict[str, Any] = {
        "location": SITE,
        "version": "2.10.0+cu128",
        "variant": "cu128",
        "cuda": "12.8",
        "archs": ("sm_80", "sm_90"),
        "cxx11_abi": True,
    }
    return TorchBuild(**{**values, **more})


# The story: the inference host lacks the library.


@case
def missing_against_the_lock(tmp_path: Path) -> Case:
    lock = lock_of(tmp_path, "speculators==0.9.0", "numpy==2.0.0")
    return Case(
        [host(snap("gpu", dist("numpy", "2.0.0")), "infer")],
        [("EP201", "speculators", "gpu")],
        ["speculators 0.9.0"],
        [lock],
    )


@case
def missing_on_one_host(tmp_path: Path) -> Case:
    return Case(
        [host(snap("train", dist("speculators", "0.9.0")), "train"), host(snap("infer"), "infer")],
        [("EP204", "speculators", "infer")],
        ["0.9.0", "on train", "not on infer"],
    )


@case
def missing_though_required_by_the_role(tmp_path: Path) -> Case:
    spec = "roles:\n  infer:\n    requires: [speculators]\n"
    return Case([host(snap("infer"), "infer")], [("EP219", "speculators", "infer")], ["role infer"], spec=spec)


@case
def missing_on_one_host_though_declared(tmp_path: Path) -> Case:
    # Reported, as declared: see test_declared below for the flag itself.
    spec = "declared:\n  - package: speculators\n    roles: [train, infer]\n"
    return Case(
        [host(snap("train", dist("speculators", "0.9.0")), "train"), host(snap("infer"), "infer")],
        [("EP204", "speculators", "infer")],
        spec=spec,
    )


# Declared requirements.


@case
def transitive_kernel_missing(tmp_path: Path) -> Case:
    return Case(
        [host(snap("a", dist("sglang", "0.4.3", "sgl-kernel>=0.0.3")))],
        [("EP210", "sgl-kernel", "a")],
        ["sglang requires sgl-kernel", "sgl_kernel"],
    )


@case
def pinned_torch_not_the_installed_one(tmp_path: Path) -> Case:
    return Case(
        [host(gpu_host("a", dist("vllm", "0.15.1", "torch==2.9.1")))],
        [("EP211", "torch", "a")],
        ["vllm requires torch==2.9.1", "2.10.0 is installed"],
    )


@case
def requirement_of_another_platform(tmp_path: Path) -> Case:
    needs = dist("wincon", "1.0", "pywin32; sys_platform == 'win32'", "tomli; python_version < '3.11'")
    return Case([host(snap("a", needs))], [])


@case
def transformers_conflict(tmp_path: Path) -> Case:
    return Case(
        [host(snap("a", dist("sglang", "0.5.9", "transformers==4.57.1"), dist("transformers", "5.3.0")))],
        [("EP211", "transformers", "a")],
    )


@case
def twins_disagree(tmp_path: Path) -> Case:
    return Case(
        [host(snap("a", dist("flashinfer-python", "0.6.10"), dist("flashinfer-cubin", "0.6.8.post1")))],
        [("EP223", "flashinfer-python", "a")],
        ["flashinfer-python 0.6.10", "flashinfer-cubin 0.6.8.post1"],
    )


# Versions and builds.


@case
def version_drift_from_the_lock(tmp_path: Path) -> Case:
    lock = lock_of(tmp_path, "transformers==4.57.1")
    return Case(
        [host(snap("a", dist("transformers", "5.3.0")))],
        [("EP202", "transformers", "a")],
        ["5.3.0", "4.57.1"],
        [lock],
    )


@case
def drift_that_breaks_a_requirement_is_said_once(tmp_path: Path) -> Case:
    lock = lock_of(tmp_path, "torch==2.9.1", "vllm==0.15.1")
    return Case(
        [host(gpu_host("a", dist("vllm", "0.15.1", "torch==2.9.1")))],
        [("EP211", "torch", "a")],
        ["the lock has 2.9.1"],
        [lock],
        severity="breaks",
    )


@case
def one_row_of_the_image_differs(tmp_path: Path) -> Case:
    return Case(
        [host(snap(name, dist("sgl-kernel", "0.3.10"))) for name in ("a", "b")]
        + [host(snap("c", dist("sgl-kernel", "3.14")))],
        [("EP225", "sgl-kernel", "c")],
        ["3.14", "0.3.10"],
    )


@case
def cu126_where_the_lock_says_cu128(tmp_path: Path) -> Case:
    lock = lock_of(tmp_path, "torch==2.10.0+cu128")
    other = dist("torch", "2.10.0+cu126", build_variant="cu126", tags=TORCH.tags)
    return Case([host(snap("a", other))], [("EP205", "torch", "a")], ["cu126", "cu128"], [lock])


@case
def pypi_build_is_its_own_index_build(tmp_path: Path) -> Case:
    lock = lock_of(tmp_path, "torch==2.9.1+cu128")
    pypi = dist("torch", "2.9.1", build_variant="cu128", tags=TORCH.tags)
    return Case([host(snap("a", pypi))], [], locks=[lock])


@case
def index_build_under_a_plain_lock(tmp_path: Path) -> Case:
    lock = lock_of(tmp_path, "torch==2.9.1")
    index = dist("torch", "2.9.1+cu128", build_variant="cu128", tags=TORCH.tags)
    return Case([host(snap("a", index))], [], locks=[lock])


@case
def cpu_build_under_a_gpu_lock(tmp_path: Path) -> Case:
    lock = lock_of(tmp_path, "torch==2.9.1")
    cpu = dist("torch", "2.9.1+cpu", build_variant="cpu", tags=TORCH.tags)
    return Case([host(snap("a", cpu))], [("EP206", "torch", "a")], ["cpu", "cu128"], [lock], severity="breaks")


@case
def local_label_that_the_lock_does_not_have(tmp_path: Path) -> Case:
    lock = lock_of(tmp_path, "demo==1.0")
    return Case(
        [host(snap("a", dist("demo", "1.0+cpu", build_variant="cpu")))], [("EP206", "demo", "a")], ["cpu"], [lock]
    )


@case
def cpu_and_gpu_build_on_two_hosts(tmp_path: Path) -> Case:
    cpu = dist("torch", "2.10.0+cpu", build_variant="cpu", tags=TORCH.tags)
    return Case(
        [host(snap("a", cpu)), host(snap("b", TORCH)), host(snap("c", TORCH))],
        [("EP206", "torch", "a")],
        ["cpu", "cu128"],
        severity="breaks",
    )


@case
def vendor_build_below_the_release(tmp_path: Path) -> Case:
    lock = lock_of(tmp_path, "torch==2.9.0")
    vendor = dist("torch", "2.9.0a0+145a3a7bda.nv25.10", tags=TORCH.tags)
    return Case([host(snap("a", vendor))], [("EP202", "torch", "a")], ["25.10", "sorts below"], [lock])


@case
def same_version_other_content(tmp_path: Path) -> Case:
    return Case(
        [host(snap(name, dist("flashinfer-python", "0.2.6.post1"))) for name in ("a", "b")]
        + [host(snap("c", dist("flashinfer-python", "0.2.6.post1", content="sha256:other")))],
        [("EP207", "flashinfer-python", "c")],
    )


@case
def hot_patched_server(tmp_path: Path) -> Case:
    faults = (
        FileFault(path="sglang/srt/models/llama_eagle3.py", fault="modified", expected="sha256:1", found="sha256:2"),
    )
    patched = dist("sglang", "0.5.9", verification=Verification(checked=900, faults=faults))
    return Case(
        [host(snap("a", dist("sglang", "0.5.9"))), host(snap("b", patched))],
        [("EP208", "sglang", "b")],
        ["sglang/srt/models/llama_eagle3.py", "1 file"],
    )


@case
def installed_files_are_gone(tmp_path: Path) -> Case:
    faults = (FileFault(path="demo/core.py", fault="missing"),)
    return Case(
        [host(snap("a", dist("demo", "1.0", verification=Verification(checked=3, faults=faults))))],
        [("EP209", "demo", "a")],
        ["demo/core.py"],
    )


@case
def wheel_build_number_differs(tmp_path: Path) -> Case:
    one = dist("torch", "2.10.0", build_variant="cu128", tags=TORCH.tags, build="3", content="sha256:3")
    return Case([host(snap("a", TORCH)), host(snap("b", one))], [("EP213", "torch", "a,b")])


@case
def different_commits(tmp_path: Path) -> Case:
    def at(commit: str) -> Distribution:
        origin = Origin(kind="vcs", url="https://git.example/specforge", vcs="git", commit=commit * 40)
        return dist("specforge", "0.2.0", origin=origin, content=f"sha256:{commit}")

    return Case(
        [host(snap("a", at("a"))), host(snap("b", at("a"))), host(snap("c", at("b")))],
        [("EP215", "specforge", "c")],
        ["bbbbbbbbbbbb"],
    )


@case
def uncommitted_changes(tmp_path: Path) -> Case:
    origin = Origin(kind="editable", url="file:///src", commit="a" * 40, dirty=True, changed=("specforge/core.py",))
    return Case(
        [host(snap("a", dist("specforge", "0.2.0", origin=origin)))],
        [("EP216", "specforge", "a")],
        ["specforge/core.py"],
    )


@case
def editable_on_one_host(tmp_path: Path) -> Case:
    origin = Origin(kind="editable", url="file:///src")
    return Case(
        [
            host(snap("a", dist("demo", "1.0"))),
            host(snap("b", dist("demo", "1.0"))),
            host(snap("c", dist("demo", "1.0", origin=origin))),
        ],
        [("EP217", "demo", "c")],
    )


@case
def wheel_of_another_python(tmp_path: Path) -> Case:
    wrong = dist("fast", "1.0", tags=("cp310-cp310-manylinux_2_17_x86_64",))
    return Case([host(snap("a", wrong))], [("EP214", "fast", "a")], ["cp310"], severity="breaks")


@case
def wheel_for_a_newer_glibc(tmp_path: Path) -> Case:
    wrong = dist("vllm", "0.20.2", tags=("cp38-abi3-manylinux_2_35_x86_64",))
    return Case([host(snap("a", wrong, libc=Libc(family="glibc", version="2.31")))], [("EP214", "vllm", "a")])


@case
def policy_not_satisfied(tmp_path: Path) -> Case:
    spec = 'versions:\n  transformers: ">=5,<5.6"\n'
    return Case([host(snap("a", dist("transformers", "4.57.1")))], [("EP218", "transformers", "a")], [">=5"], spec=spec)


@case
def not_in_the_lock(tmp_path: Path) -> Case:
    lock = lock_of(tmp_path, "numpy==2.0.0")
    return Case(
        [host(snap("a", dist("numpy", "2.0.0"), dist("extra", "1.0")))],
        [("EP212", "extra", "a")],
        locks=[lock],
        severity="noise",
    )


@case
def lock_for_another_python(tmp_path: Path) -> Case:
    path = tmp_path / "pylock.toml"
    path.write_text(
        'lock-version = "1.0"\ncreated-by = "x"\nrequires-python = ">=3.13"\n\n[[packages]]\nname = "fast"\nversion = "1.0"\n'
        f'wheels = [{{ path = "fast-1.0-py3-none-any.whl", hashes = {{ sha256 = "{"0" * 64}" }} }}]\n'
    )
    return Case(
        [host(snap("a", dist("fast", "1.0")))],
        [("EP220", "pylock.toml", "a")],
        ["3.13", "3.12.4"],
        [RoleLock(role=None, lock=load_lock(path))],
    )


@case
def locked_wheel_does_not_fit_the_host(tmp_path: Path) -> Case:
    path = tmp_path / "pylock.toml"
    path.write_text(
        'lock-version = "1.0"\ncreated-by = "x"\n\n[[packages]]\nname = "fast"\nversion = "1.0"\n'
        'wheels = [{ name = "fast-1.0-cp312-cp312-manylinux_2_39_x86_64.whl", '
        f'path = "fast-1.0-cp312-cp312-manylinux_2_39_x86_64.whl", hashes = {{ sha256 = "{"0" * 64}" }} }}]\n'
    )
    fast = dist("fast", "1.0", tags=("cp312-cp312-linux_x86_64",))
    return Case(
        [host(snap("a", fast))], [("EP221", "fast", "a")], ["fast 1.0"], [RoleLock(role=None, lock=load_lock(path))]
    )


@case
def installed_from_a_file_that_is_not_locked(tmp_path: Path) -> Case:
    lock = lock_of(tmp_path, f"demo==1.0 --hash=sha256:{'a' * 64}")
    origin = Origin(kind="archive", url="file:///tmp/demo.whl", hashes={"sha256": "b" * 64})
    return Case([host(snap("a", dist("demo", "1.0", origin=origin)))], [("EP224", "demo", "a")], locks=[lock])


# CUDA components.


@case
def cuda_13_names_are_the_same_library(tmp_path: Path) -> Case:
    twelve = [dist("nvidia-nccl-cu12", "2.27.5"), dist("nvidia-cuda-runtime-cu12", "12.8.90")]
    thirteen = [dist("nvidia-nccl-cu13", "2.28.9"), dist("nvidia-cuda-runtime", "13.0.48")]
    return Case(
        [host(snap("a", *twelve)), host(snap("b", *twelve)), host(snap("c", *thirteen))],
        [("EP225", "cudart", "c"), ("EP225", "nccl", "c")],
    )


@case
def component_of_another_major_than_the_lock(tmp_path: Path) -> Case:
    lock = lock_of(tmp_path, "nvidia-nccl-cu12==2.27.5")
    return Case(
        [host(snap("a", dist("nvidia-nccl-cu13", "2.28.9")))],
        [("EP225", "nccl", "a")],
        ["2.28.9 (nvidia-nccl-cu13)", "2.27.5 (nvidia-nccl-cu12)"],
        [lock],
    )


@case
def lock_drifted_from_the_declared_cuda(tmp_path: Path) -> Case:
    return Case(
        [host(gpu_host("a", dist("nvidia-cuda-runtime-cu12", "12.8.90"), dist("nvidia-cublas", "13.1.0.3")))],
        [("EP306", "nvidia-cublas", "a")],
        ["CUDA 13", "CUDA 12"],
    )


@case
def two_packages_own_one_nccl(tmp_path: Path) -> Case:
    both = [dist("nvidia-nccl-cu12", "2.29.3"), dist("nvidia-nccl-cu13", "2.29.7")]
    shared = SharedFile(
        owners=("nvidia-nccl-cu12", "nvidia-nccl-cu13"), paths=("nvidia/nccl/lib/libnccl.so.2",), count=1, same=False
    )
    library = Library(
        component="nccl",
        path=f"{SITE}/nvidia/nccl/lib/libnccl.so.2",
        version="2.29.3",
        owner="nvidia-nccl-cu13",
        declared="2.29.7",
    )
    return Case(
        [host(gpu_host("a", *both, shared_files=(shared,), libraries=(library,)))],
        [("EP505", "nvidia-nccl-cu12", "a")],
        ["libnccl.so.2", "on disk is 2.29.3"],
    )


# Driver and architecture.


@case
def driver_of_cuda_12_under_cuda_13(tmp_path: Path) -> Case:
    build = torch(version="2.12.1", variant="cu130", cuda="13.0")
    return Case(
        [
            host(
                snap(
                    "a",
                    dist("torch", "2.12.1", build_variant="cu130"),
                    torch=build,
                    gpus=(H200,),
                    driver=Driver(version="565.57.01", cuda="12.7"),
                )
            )
        ],
        [("EP301", "driver", "a")],
        ["CUDA 13.0 needs driver 580", "565.57.01", "12.7"],
        severity="breaks",
    )


@case
def minor_version_compatibility(tmp_path: Path) -> Case:
    return Case(
        [host(gpu_host("a", driver=Driver(version="535.104.05", cuda="12.2")))],
        [("EP309", "driver", "a")],
        severity="noise",
    )


@case
def blackwell_on_an_older_build(tmp_path: Path) -> Case:
    card = Gpu(index=0, name="NVIDIA RTX PRO 6000 Blackwell", compute_capability="12.0")
    build = torch(version="2.6.0+cu124", variant="cu124", cuda="12.4", archs=("sm_50", "sm_80", "sm_90"))
    return Case(
        [
            host(
                snap(
                    "a",
                    dist("torch", "2.6.0", build_variant="cu124"),
                    torch=build,
                    gpus=(card,),
                    driver=Driver(version="575.51.03", cuda="12.9"),
                )
            )
        ],
        [("EP302", "torch", "a")],
        ["sm_90", "12.0"],
        severity="breaks",
    )


@case
def gpu_without_a_driver(tmp_path: Path) -> Case:
    return Case([host(gpu_host("a", driver=None))], [("EP308", "driver", "a")])


@case
def image_asks_for_a_newer_driver(tmp_path: Path) -> Case:
    image = snap("image", env={"NVIDIA_REQUIRE_CUDA": "cuda>=12.8 brand=tesla,driver>=570,driver<571"})
    machine = snap("gpu", driver=Driver(version="550.54.15", cuda="12.4"), gpus=(H200,))
    return Case(
        [host(image), host(machine)], [("EP303", "NVIDIA_REQUIRE_CUDA", "gpu,image")], ["cuda>=12.8", "550.54.15"]
    )


@case
def image_requirement_met_by_an_alternative(tmp_path: Path) -> Case:
    text = "cuda>=12.8 brand=unknown,driver>=470 brand=tesla,driver>=550,driver<551"
    image = snap("image", env={"NVIDIA_REQUIRE_CUDA": text})
    return Case([host(image), host(snap("gpu", driver=Driver(version="550.54.15", cuda="12.4"), gpus=(H200,)))], [])


@case
def toolkit_of_another_major(tmp_path: Path) -> Case:
    kit = Toolkit(path="/usr/local/cuda", version="13.0", nvcc=True)
    return Case([host(gpu_host("a", toolkits=(kit,)))], [("EP307", "/usr/local/cuda", "a")])


@case
def gpu_models_differ(tmp_path: Path) -> Case:
    a100 = Gpu(index=0, name="NVIDIA A100-SXM4-80GB", compute_capability="8.0", memory_mib=81920)
    return Case(
        [host(gpu_host("a")), host(gpu_host("b")), host(gpu_host("c", gpus=(a100,)))], [("EP305", "gpu", "c")], ["A100"]
    )


@case
def drivers_differ(tmp_path: Path) -> Case:
    return Case(
        [
            host(gpu_host("a")),
            host(gpu_host("b")),
            host(gpu_host("c", driver=Driver(version="580.65.06", cuda="13.0"))),
        ],
        [("EP304", "driver", "c")],
        severity="noise",
    )


# ABI and native libraries.


@case
def undefined_torch_symbols(tmp_path: Path) -> Case:
    symbols = ("_ZN3c104cuda29c10_cuda_check_implementationEiPKcz", "_ZN3c1013MessageLoggerC1Ev")
    module = ext("sgl-kernel", torch_symbols=90, torch_checked=True, missing=symbols)
    return Case(
        [host(gpu_host("a", dist("sgl-kernel", "0.3.21"), extensions=(module,)))],
        [("EP401", "sgl-kernel", "a")],
        ["2 symbols", "2.10.0+cu128", "sgl-kernel 0.3.21"],
        severity="breaks",
    )


@case
def wheel_label_names_another_torch(tmp_path: Path) -> Case:
    module = ext("flash-attn", torch_symbols=90, torch_checked=True, missing=("_ZN3c104cuda9SetDeviceEa",))
    flash = dist("flash-attn", "2.7.4+cu12torch2.6cxx11abiTRUE", build_variant="cu12torch2.6cxx11abitrue")
    return Case(
        [host(gpu_host("a", flash, extensions=(module,)))],
        [("EP401", "flash-attn", "a")],
        ["1 symbol", "label says torch 2.6"],
    )


@case
def old_string_abi(tmp_path: Path) -> Case:
    module = ext(
        "flashinfer-python",
        torch_symbols=50,
        torch_checked=True,
        missing=("_ZN5torch3jit21parseSchemaOrNameERKSs",),
    )
    return Case(
        [host(gpu_host("a", dist("flashinfer-python", "0.2.0"), extensions=(module,)))],
        [("EP404", "flashinfer-python", "a")],
        ["old C++ string ABI"],
    )


@case
def needs_cuda_13_library(tmp_path: Path) -> Case:
    module = ext("vllm", needed=(Needed(soname="libcudart.so.13", by="nothing"),))
    cudart = Library(component="cudart", path=f"{SITE}/nvidia/cuda_runtime/lib/libcudart.so.12", version="12.8")
    return Case(
        [host(gpu_host("a", dist("vllm", "0.20.2"), extensions=(module,), libraries=(cudart,)))],
        [("EP402", "vllm", "a")],
        ["libcudart.so.13", "libcudart.so.12 is there"],
        severity="breaks",
    )


@case
def library_of_the_right_cuda_is_not_installed(tmp_path: Path) -> Case:
    module = ext("sgl-kernel", needed=(Needed(soname="libnvrtc.so.12", by="nothing"),))
    return Case(
        [host(gpu_host("a", dist("sgl-kernel", "0.3.21"), extensions=(module,)))],
        [("EP402", "sgl-kernel", "a")],
        ["libnvrtc.so.12, which is nowhere"],
        mends="-m pip install nvidia-cuda-nvrtc-cu12",
    )


def variants(owner: str, pattern: str, **needs: Sequence[str]) -> tuple[Extension, ...]:
    """One module a version; what it needs is nowhere."""
    return tuple(
        Extension(path=pattern.format(version[1:]), owner=owner, needed=tuple(Needed(soname=name, by="nothing") for name in names))
        for version, names in needs.items()
    )


@case
def no_variant_finds_its_libraries(tmp_path: Path) -> Case:
    modules = [
        item
        for kind in ("core", "ops")
        for item in variants("codec", f"codec/lib{kind}{{}}.so", v6=["libavutil.so.58", "libavcodec.so.60"], v7=["libavutil.so.59", "libavcodec.so.61"])
    ]
    return Case(
        [host(gpu_host(label, dist("codec", "0.8.0"), extensions=tuple(modules))) for label in "ab"],
        [("EP402", "codec", "a,b")],
        ["none of its 4 variants", "libcore6.so and 1 more need libavutil.so.58, libavcodec.so.60", "libcore7.so and 1 more need libavutil.so.59"],
        severity="breaks",
    )


@case
def one_variant_finds_its_libraries(tmp_path: Path) -> Case:
    six, seven = variants("codec", "codec/ffmpeg{}/core.so", v6=["libavutil.so.58"], v7=["libavutil.so.59"])
    fits = dataclasses.replace(seven, needed=(Needed(soname="libavutil.so.59", by="system", path="/lib/libavutil.so.59"),))
    return Case([host(gpu_host("a", dist("codec", "0.8.0"), extensions=(six, fits)))], [])


def for_torches(pattern: str, **missing: Sequence[str]) -> tuple[Extension, ...]:
    return tuple(
        Extension(path=pattern.format(version[1:]), owner="dlpack", torch_checked=True, torch_symbols=9, missing=tuple(names))
        for version, names in missing.items()
    )


@case
def one_variant_is_for_this_torch(tmp_path: Path) -> Case:
    modules = for_torches("dlpack/addon_torch{}-cuda.so", v25=["_ZN3c106detail14torchCheckFailEPKcRKSs"], v29=[])
    return Case([host(gpu_host("a", dist("dlpack", "0.1"), extensions=modules))], [])


@case
def no_variant_is_for_this_torch(tmp_path: Path) -> Case:
    modules = for_torches("dlpack/addon_torch{}-cuda.so", v24=["_ZN3c104gone1aEv"], v25=["_ZN3c104gone1bEv"])
    return Case([host(gpu_host("a", dist("dlpack", "0.1"), extensions=modules))], [("EP401", "dlpack", "a")], ["2 symbols", "addon_torch24-cuda.so"], severity="breaks")


@case
def kernels_with_a_number_are_no_variants(tmp_path: Path) -> Case:
    modules = for_torches("dlpack/sm{}/ops.so", v90=["_ZN3c104gone1aEv"], v100=[]) + for_torches("dlpack/_fa{}_C.so", v2=["_ZN3c104gone1bEv"], v3=[])
    return Case([host(gpu_host("a", dist("dlpack", "0.1"), extensions=modules))], [("EP401", "dlpack", "a")], ["2 symbols", "_fa2_C.so", "sm90/ops.so"])


@case
def module_that_its_package_can_do_without(tmp_path: Path) -> Case:
    module = ext("ao", torch_symbols=9, torch_checked=True, missing=("_ZN3c104gone1aEv",), optional=True)
    return Case([host(gpu_host("a", dist("ao", "0.9.0"), extensions=(module,)))], [("EP401", "ao", "a")], ["leaves it out"], severity="noise")


@case
def needs_a_newer_glibc(tmp_path: Path) -> Case:
    module = ext("flash-attn", glibc="2.32")
    return Case(
        [host(snap("a", dist("flash-attn", "2.8.3"), extensions=(module,), libc=Libc(family="glibc", version="2.31")))],
        [("EP403", "flash-attn", "a")],
        ["GLIBC_2.32", "2.31"],
    )


@case
def needs_a_newer_cxx_library(tmp_path: Path) -> Case:
    """Both of its families are too old: one finding. A module that finds a library of its own says nothing."""
    own = Needed(soname="libstdc++.so.6", by="runpath", path="/opt/own/libstdc++.so.6")
    modules = (ext("flash-attn", glibcxx="3.4.32", cxxabi="1.3.15"), ext("bundled", glibcxx="3.4.99", needed=(own,)), ext("older", glibcxx="3.4.29"))
    cxx = CxxLibrary(path="/usr/lib/x86_64-linux-gnu/libstdc++.so.6", glibcxx="3.4.30", cxxabi="1.3.13")
    return Case(
        [host(snap("a", *(dist(name, "1.0") for name in ("flash-attn", "bundled", "older")), extensions=modules, cxx=cxx, libc=Libc(family="glibc", version="2.36")))],
        [("EP403", "flash-attn", "a")],
        ["GLIBCXX_3.4.32", "/usr/lib/x86_64-linux-gnu/libstdc++.so.6 has GLIBCXX_3.4.30"],
        mends="libstdcxx-ng",
    )


@case
def driver_library_on_a_cpu_host(tmp_path: Path) -> Case:
    module = ext("vllm", needed=(Needed(soname="libcuda.so.1", by="nothing"),))
    return Case(
        [host(snap("a", dist("vllm", "0.19.1"), extensions=(module,)))], [("EP409", "vllm", "a")], severity="breaks"
    )


@case
def driver_library_in_an_image(tmp_path: Path) -> Case:
    module = ext("vllm", needed=(Needed(soname="libcuda.so.1", by="nothing"),))
    box = Container(kind="docker")
    return Case(
        [host(snap("a", dist("vllm", "0.19.1"), extensions=(module,), container=box))],
        [("EP409", "vllm", "a")],
        severity="noise",
    )


@case
def extension_truncated(tmp_path: Path) -> Case:
    module = Extension(path="fast/_core.abi3.so", owner="fast", fault="truncated or damaged")
    whole = dataclasses.replace(module, fault=None)
    fast = dist("fast", "1.0")
    return Case(
        [host(gpu_host("a", fast, extensions=(module,))), host(gpu_host("b", fast, extensions=(whole,)))],
        [("EP411", "fast", "a")],
        ["fast 1.0: fast/_core.abi3.so is truncated or damaged"],
        severity="breaks",
        mends="--force-reinstall --no-deps --no-cache-dir fast==1.0",
    )


@case
def extensions_missing(tmp_path: Path) -> Case:
    modules = tuple(Extension(path=f"fast/{name}.so", owner="fast", fault="missing") for name in ("_a", "_b"))
    return Case(
        [host(gpu_host("a", dist("fast", "1.0"), extensions=modules))],
        [("EP411", "fast", "a")],
        ["fast/_a.so, fast/_b.so are missing"],
    )


@case
def what_is_no_module_of_this_process_is_not_damaged(tmp_path: Path) -> Case:
    faults = {
        "debug/attach_x86.so": "not a 64-bit little-endian ELF file",
        "debug/kernel.bpf.so": "it has no dynamic section",
        "debug/_core.cpython-312-darwin.so": "not an ELF file",
        "debug/notes.so.txt": "not an ELF file",
    }
    files = tuple(Extension(path=path, owner="debug", fault=fault) for path, fault in faults.items())
    return Case([host(gpu_host("a", dist("debug", "1.0"), extensions=files))], [])


@case
def module_for_another_machine(tmp_path: Path) -> Case:
    module = dataclasses.replace(ext("fast"), machine="aarch64")
    return Case([host(snap("a", dist("fast", "1.0"), extensions=(module,)))], [("EP407", "fast", "a")])


@case
def cudnn_of_the_system_first(tmp_path: Path) -> Case:
    cudnn = Library(
        component="cudnn", path=f"{SITE}/x", version="9.10.2", owner="nvidia-cudnn-cu12", declared="9.10.2.21"
    )
    folder = LoaderDirectory(directory="/usr/local/cudnn8", source="LD_LIBRARY_PATH", libraries=("libcudnn.so.8",))
    return Case(
        [host(gpu_host("a", dist("nvidia-cudnn-cu12", "9.10.2.21"), libraries=(cudnn,), loader=(folder,)))],
        [("EP405", "cudnn", "a")],
        ["/usr/local/cudnn8", "libcudnn.so.8"],
    )


@case
def nccl_on_disk_is_not_the_listed_one(tmp_path: Path) -> Case:
    nccl = Library(component="nccl", path=f"{SITE}/x", version="2.19.3", owner="nvidia-nccl-cu12", declared="2.27.5")
    return Case(
        [host(gpu_host("a", dist("nvidia-nccl-cu12", "2.27.5"), libraries=(nccl,)))],
        [("EP406", "nvidia-nccl-cu12", "a")],
        ["2.19.3", "2.27.5"],
    )


@case
def preloaded_library(tmp_path: Path) -> Case:
    folder = LoaderDirectory(directory="/usr/lib", source="LD_PRELOAD", libraries=("libjemalloc.so.2",))
    return Case([host(snap("a", loader=(folder,)))], [("EP408", "LD_PRELOAD", "a")], ["libjemalloc"])


# Shadowing.


def shadowed(by: str, origin: str) -> Sequence[LabelledSnapshot]:
    copies = (
        dist("huggingface-hub", "1.16.0", location=by),
        dist("huggingface-hub", "0.36.0", shadowed_by=by),
    )
    entry = PathEntry(path=by, origin=origin)  # type: ignore[arg-type]
    base = snap("a")
    return [host(dataclasses.replace(base, distributions=base.distributions + copies, path=(entry, *base.path)))]


@case
def user_site_wins_over_the_image(tmp_path: Path) -> Case:
    return Case(shadowed(USER, "user"), [("EP502", "huggingface-hub", "a")], ["1.16.0", "hides 0.36.0"])


@case
def pythonpath_wins_over_the_venv(tmp_path: Path) -> Case:
    return Case(shadowed("/shared/site", "pythonpath"), [("EP503", "huggingface-hub", "a")], ["/shared/site"])


@case
def two_copies_on_debian(tmp_path: Path) -> Case:
    return Case(shadowed("/usr/local/lib/python3.12/dist-packages", "site"), [("EP501", "huggingface-hub", "a")])


@case
def vendored_directory_hides_vllm(tmp_path: Path) -> Case:
    entry = PathEntry(path="/repo", origin="pythonpath", loose=("vllm", "tools"))
    base = snap("a", dist("vllm", "0.11.2"))
    return Case(
        [host(dataclasses.replace(base, path=(entry, *base.path)))],
        [("EP504", "vllm", "a")],
        ["/repo", "vllm 0.11.2"],
    )


@case
def local_queue_hides_the_standard_one(tmp_path: Path) -> Case:
    entry = PathEntry(path="/repo", origin="pythonpath", loose=("queue",))
    base = snap("a")
    return Case([host(dataclasses.replace(base, path=(entry, *base.path)))], [("EP504", "queue", "a")])


@case
def opencv_twice(tmp_path: Path) -> Case:
    both = [dist("opencv-python", "5.0.0.93"), dist("opencv-python-headless", "5.0.0.93")]
    shared = SharedFile(
        owners=("opencv-python", "opencv-python-headless"), paths=("cv2/__init__.py",), count=120, same=False
    )
    return Case(
        [host(snap("a", *both, shared_files=(shared,)))],
        [("EP505", "opencv-python", "a")],
        ["cv2/__init__.py", "119 more"],
    )


@case
def system_torch_under_a_venv(tmp_path: Path) -> Case:
    base = snap("a", dist("torch", "2.9.0", location="/usr/lib/python3/dist-packages", origin=Origin(kind="system")))
    below = PathEntry(path="/usr/lib/python3/dist-packages", origin="site")
    assert base.interpreter is not None
    interpreter = dataclasses.replace(base.interpreter, system_site=True)
    return Case(
        [host(dataclasses.replace(base, path=(*base.path, below), interpreter=interpreter))], [("EP508", "torch", "a")]
    )


@case
def startup_code_on_one_host(tmp_path: Path) -> Case:
    hook = StartupHook(kind="pth", path=f"{SITE}/patch_sglang.pth", line="import patch_sglang")
    return Case(
        [host(snap("a")), host(snap("b")), host(snap("c", hooks=(hook,)))], [("EP506", "patch_sglang.pth", "c")]
    )


@case
def search_path_entry_is_gone(tmp_path: Path) -> Case:
    base = snap("a")
    entry = PathEntry(path="/gone", origin="pth", by=f"{SITE}/old.pth", kind="missing")
    return Case([host(dataclasses.replace(base, path=(*base.path, entry)))], [("EP509", "/gone", "a")], ["old.pth"])


# Metadata.


def problem(kind: str, detail: str = "the header is wrong", **more: Any) -> Sequence[LabelledSnapshot]:
    return [host(snap("a", dist("demo", "1.0", problems=(Problem(kind=kind, detail=detail),), **more)))]


@case
def metadata_without_version(tmp_path: Path) -> Case:
    return Case(problem("no-version"), [("EP601", "demo", "a")])


@case
def metadata_without_name(tmp_path: Path) -> Case:
    return Case(problem("no-name"), [("EP601", "demo", "a")])


@case
def metadata_in_latin_1(tmp_path: Path) -> Case:
    return Case(problem("not-utf8"), [("EP602", "demo", "a")])


@case
def metadata_of_another_version_than_the_wheel(tmp_path: Path) -> Case:
    return Case(problem("version-mismatch"), [("EP603", "demo", "a")])


@case
def damaged_record(tmp_path: Path) -> Case:
    return Case(problem("record-damaged", record="damaged"), [("EP604", "demo", "a")])


@case
def no_record_in_a_system_package(tmp_path: Path) -> Case:
    return Case(problem("no-record", origin=Origin(kind="system"), record="absent"), [])


@case
def two_versions_in_one_place(tmp_path: Path) -> Case:
    twice = (Problem(kind="duplicate", detail="two copies"),)
    base = snap("a")
    copies = (
        dist("torch", "2.8.0", current=False, problems=twice, build_variant="cu128", tags=()),
        dist("torch", "2.9.1", current=True, problems=twice, build_variant="cu128", tags=()),
    )
    return Case(
        [host(dataclasses.replace(base, distributions=base.distributions + copies))],
        [("EP605", "torch", "a")],
        ["2.8.0 and 2.9.1", "the files are those of 2.9.1"],
    )


@case
def interrupted_uninstall(tmp_path: Path) -> Case:
    left = Leftover(path=f"{SITE}/~orch-2.9.1.dist-info", name="~orch")
    return Case([host(snap("a", leftovers=(left,)))], [("EP606", "~orch", "a")])


@case
def damaged_direct_url(tmp_path: Path) -> Case:
    return Case(problem("direct-url-damaged"), [("EP607", "demo", "a")])


# Variables.


@case
def tf32_forced_on_one_host(tmp_path: Path) -> Case:
    return Case(
        [host(snap("a")), host(snap("b", env={"TORCH_ALLOW_TF32_CUBLAS_OVERRIDE": "1"}))],
        [("EP706", "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE", "b")],
    )


@case
def determinism_switch_differs(tmp_path: Path) -> Case:
    on = {"CUBLAS_WORKSPACE_CONFIG": ":4096:8"}
    return Case(
        [host(snap("a", env=on)), host(snap("b", env=on)), host(snap("c"))],
        [("EP701", "CUBLAS_WORKSPACE_CONFIG", "c")],
        [":4096:8", "not set"],
    )


@case
def allocator_alias_is_one_variable(tmp_path: Path) -> Case:
    return Case(
        [
            host(snap("a", env={"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"})),
            host(snap("b", env={"PYTORCH_ALLOC_CONF": "expandable_segments:True"})),
        ],
        [],
    )


@case
def allocator_differs(tmp_path: Path) -> Case:
    return Case(
        [host(snap("a")), host(snap("b")), host(snap("c", env={"PYTORCH_CUDA_ALLOC_CONF": "max_split_size_mb:64"}))],
        [("EP702", "PYTORCH_ALLOC_CONF", "c")],
    )


@case
def version_check_switched_off(tmp_path: Path) -> Case:
    return Case(
        [host(snap("a", env={"FLASHINFER_DISABLE_VERSION_CHECK": "1"}))],
        [("EP705", "FLASHINFER_DISABLE_VERSION_CHECK", "a")],
    )


@case
def offline_cache_differs(tmp_path: Path) -> Case:
    return Case(
        [host(snap("a")), host(snap("b")), host(snap("c", env={"HF_HUB_OFFLINE": "1"}))],
        [("EP704", "HF_HUB_OFFLINE", "c")],
        severity="noise",
    )


@case
def variable_that_one_host_was_not_asked_for(tmp_path: Path) -> Case:
    """Where a variable of the user's own was recorded, it is compared; where it was not, nobody says that it is not set."""
    asked = ("ACME_*", "SITE")
    mine = [snap(label, env=env, capture=Capture(label=label, target=label, transport="local", variables=asked)) for label, env in (("a", {"ACME_RING": "1", "SITE": "x"}), ("b", {"SITE": "x"}))]
    return Case(
        [*map(host, mine), host(snap("c"))],
        [("EP708", "ACME_RING", "a,b")],
        ["1 on a; not set on b"],
    )


@case
def secret_differs_and_is_not_shown(tmp_path: Path) -> Case:
    def with_secret(label: str, digest: str) -> LabelledSnapshot:
        return host(snap(label, environment={"HF_TOKEN": Variable(redacted=True, hash=digest)}))

    return Case([with_secret("a", "1"), with_secret("b", "1"), with_secret("c", "2")], [("EP707", "HF_TOKEN", "c")])


@case
def places_differ_by_nature(tmp_path: Path) -> Case:
    return Case(
        [host(snap("a", env={"VIRTUAL_ENV": "/a", "PATH": "/a/bin"})), host(snap("b", env={"PATH": "/b/bin"}))], []
    )


# Host and limits.


def interpreter(**more: Any) -> Interpreter:
    found = snap("a").interpreter
    assert found is not None
    return dataclasses.replace(found, **more)


@case
def python_minor_differs(tmp_path: Path) -> Case:
    return Case(
        [host(snap("a")), host(snap("b")), host(snap("c", interpreter=interpreter(version="3.11.9")))],
        [("EP801", "python", "c")],
    )


@case
def python_patch_differs(tmp_path: Path) -> Case:
    return Case(
        [host(snap("a")), host(snap("b")), host(snap("c", interpreter=interpreter(version="3.12.1")))],
        [("EP802", "python", "c")],
        severity="noise",
    )


@case
def free_threaded_on_one_host(tmp_path: Path) -> Case:
    return Case(
        [host(snap("a")), host(snap("b")), host(snap("c", interpreter=interpreter(free_threaded=True), markers={}))],
        [("EP803", "abi", "c")],
    )


@case
def processors_differ(tmp_path: Path) -> Case:
    one, other = Cpu(architecture="x86_64", flags=("avx2", "avx512f")), Cpu(architecture="x86_64", flags=("avx2",))
    return Case(
        [host(snap("a", cpu=one)), host(snap("b", cpu=one)), host(snap("c", cpu=other))], [("EP806", "cpu", "c")]
    )


@case
def small_shared_memory(tmp_path: Path) -> Case:
    return Case(
        [host(gpu_host("a", container=Container(kind="docker"), limits=Limits(shm_bytes=2**26)))],
        [("EP807", "/dev/shm", "a")],
        ["64 MiB"],
    )


@case
def installer_settings_differ(tmp_path: Path) -> Case:
    value = ConfigValue(tool="pip", key="global.constraint", value="/etc/constraints.txt", source="/etc/pip.conf")
    return Case(
        [host(snap("a")), host(snap("b")), host(snap("c", configuration=(value,)))],
        [("EP222", "pip global.constraint", "c")],
        severity="noise",
    )


@case
def installer_variables_differ(tmp_path: Path) -> Case:
    """What resolves is compared; where files are kept, how long to wait and what to print is not, nor is a constraint's path."""
    own = {"PIP_EXTRA_INDEX_URL": "https://pkg.example/simple", "UV_TORCH_BACKEND": "cu128"}
    other = {"PIP_TIMEOUT": "60", "UV_CACHE_DIR": "/cache", "PIP_DISABLE_PIP_VERSION_CHECK": "1", "UV_NO_PROGRESS": "1", "PIP_CONSTRAINT": "/etc/c.txt"}
    return Case(
        [host(snap("a")), host(snap("b")), host(snap("c", env={**own, **other}))],
        [("EP222", "PIP_EXTRA_INDEX_URL", "c"), ("EP222", "UV_TORCH_BACKEND", "c")],
        ["not set on a, b; https://pkg.example/simple on c"],
        severity="noise",
        mends="unset PIP_EXTRA_INDEX_URL",
    )


@case
def index_with_a_secret_differs(tmp_path: Path) -> Case:
    def using(label: str, digest: str) -> LabelledSnapshot:
        return host(snap(label, environment={"PIP_INDEX_URL": Variable(value="https://<redacted>@pkg.example/simple", redacted=True, hash=digest)}))

    return Case([using("a", "11"), using("b", "22")], [("EP707", "PIP_INDEX_URL", "a,b")])


# Collection.


@case
def host_not_captured(tmp_path: Path) -> Case:
    return Case(
        [host(snap("a")), LabelledSnapshot(label="b", snapshot=None, error="ssh: connection refused")],
        [("EP901", "b", "b")],
        ["connection refused"],
    )


@case
def unknown_is_not_absent(tmp_path: Path) -> Case:
    blind = snap("b")
    sections = {**blind.sections, "distributions": Section(status="unknown", reason="timed out")}
    return Case(
        [
            host(snap("a", dist("numpy", "2.0.0"))),
            host(dataclasses.replace(blind, sections=sections, distributions=())),
        ],
        [("EP902", "distributions", "b")],
        ["timed out"],
        severity="breaks",
    )


@case
def unknown_is_not_missing_from_the_lock(tmp_path: Path) -> Case:
    blind = snap("b")
    sections = {**blind.sections, "distributions": Section(status="partial", reason="the disk hangs")}
    lock = lock_of(tmp_path, "numpy==2.0.0")
    return Case(
        [host(dataclasses.replace(blind, sections=sections, distributions=()))],
        [("EP902", "distributions", "b")],
        locks=[lock],
        severity="results",
    )


@case
def noisy_login(tmp_path: Path) -> Case:
    capture = Capture(label="a", target="a", transport="ssh", noise="Welcome to gpu-a!\n")
    return Case([host(snap("a", capture=capture))], [("EP903", "a", "a")], ["Welcome"])


@case
def another_interpreter_answered(tmp_path: Path) -> Case:
    capture = Capture(label="a", target="a", transport="ssh", python="/home/ann/ml-env/bin/python3")
    return Case([host(snap("a", capture=capture))], [("EP904", "/home/ann/ml-env/bin/python3", "a")])


@case
def known_by_a_package_list_only(tmp_path: Path) -> Case:
    capture = Capture(label="a", target="a", transport="file", notes=("from pip freeze",))
    sections = {name: Section(status="unknown", reason="pip freeze does not say") for name in SECTIONS}
    return Case([host(snap("a", capture=capture, sections=sections))], [("EP908", "a", "a")])


# What differs between hosts only.


def three(**more: Any) -> list[LabelledSnapshot]:
    """Two hosts that are alike and a third with something changed."""
    return [host(snap("a")), host(snap("b")), host(snap("c", **more))]


@case
def lock_with_two_versions_at_once(tmp_path: Path) -> Case:
    lock = lock_of(tmp_path, "six==1.0 ; python_version >= '3'", "six==2.0 ; os_name == 'posix'")
    return Case([host(snap("a", dist("six", "1.0")))], [("EP226", "six", "a")], ["1.0 and 2.0"], [lock])


@case
def gpu_memory_differs(tmp_path: Path) -> Case:
    other = dataclasses.replace(H200, mig="Enabled")
    return Case(
        [host(gpu_host("a")), host(gpu_host("b")), host(gpu_host("c", gpus=(other,)))],
        [("EP310", "gpu settings", "c")],
    )


@case
def torch_built_for_fewer_architectures(tmp_path: Path) -> Case:
    hosts = [host(gpu_host("a")), host(gpu_host("b")), host(gpu_host("c", torch=torch(archs=("sm_90",))))]
    return Case(hosts, [("EP311", "torch", "c")], ["[sm_90] on c"])


@case
def library_differs_under_one_package(tmp_path: Path) -> Case:
    def with_cudnn(label: str, version: str) -> LabelledSnapshot:
        cudnn = Library(component="cudnn", path=f"{SITE}/x", version=version)
        return host(gpu_host(label, libraries=(cudnn,)))

    return Case(
        [with_cudnn("a", "9.10.2"), with_cudnn("b", "9.10.2"), with_cudnn("c", "9.1.0")],
        [("EP410", "cudnn", "c")],
        ["9.10.2 on a, b; 9.1.0 on c"],
    )


@case
def user_site_is_searched_on_one_host(tmp_path: Path) -> Case:
    entry = PathEntry(path=USER, origin="user")
    return Case(three(path=(*snap("c").path, entry)), [("EP507", "user site", "c")])


@case
def search_path_variable_differs(tmp_path: Path) -> Case:
    return Case(three(env={"PYTHONPATH": "/repo"}), [("EP703", "PYTHONPATH", "c")], severity="noise")


@case
def an_unknown_variable_differs(tmp_path: Path) -> Case:
    return Case(three(env={"MALLOC_ARENA_MAX": "1"}), [("EP708", "MALLOC_ARENA_MAX", "c")], severity="noise")


@case
def version_differs(tmp_path: Path) -> Case:
    hosts = [host(snap(name, dist("triton-like", v))) for name, v in (("a", "3.5.0"), ("b", "3.5.0"), ("c", "3.6.0"))]
    return Case(hosts, [("EP203", "triton-like", "c")], ["3.5.0 on a, b; 3.6.0 on c"])


@case
def libc_differs(tmp_path: Path) -> Case:
    return Case(three(libc=Libc(family="glibc", version="2.39")), [("EP804", "libc", "c")], ["glibc 2.39 on c"])


@case
def operating_system_differs(tmp_path: Path) -> Case:
    debian, ubuntu = OperatingSystem(id="debian", version="12"), OperatingSystem(id="ubuntu", version="24.04")
    return Case(
        [host(snap("a", os=debian)), host(snap("b", os=debian)), host(snap("c", os=ubuntu))], [("EP805", "os", "c")]
    )


@case
def limits_differ(tmp_path: Path) -> Case:
    return Case(three(limits=Limits(nofile_soft=65536, shm_bytes=2**34)), [("EP808", "nofile_soft", "c")])


@case
def containers_differ(tmp_path: Path) -> Case:
    def image(digest: str) -> Container:
        return Container(kind="docker", image=Image(id=f"sha256:{digest}"))

    hosts = [host(snap(name, container=image(digest))) for name, digest in (("a", "1"), ("b", "1"), ("c", "2"))]
    return Case(hosts, [("EP809", "container", "c")])


@pytest.mark.parametrize("name", CASES)
def test_fault_is_found_named_right_and_alone(name: str, tmp_path: Path) -> None:
    """Exactly the expected findings, with their subjects and hosts."""
    given = CASES[name](tmp_path)
    spec = None
    if given.spec is not None:
        (tmp_path / "envspec.yaml").write_text(given.spec)
        spec = load_spec(tmp_path / "envspec.yaml")
    report = compare(given.hosts, given.locks, spec)
    found = [(item.code, item.subject, ",".join(item.hosts)) for item in report.findings]
    assert found == list(given.expected), [item.what for item in report.findings]
    if given.expected:
        first = report.findings[0]
        for words in given.says:
            assert words in first.what
        assert first.fix
        assert given.mends in first.fix
        assert first.why
        if given.severity is not None:
            assert first.severity == given.severity


def test_every_code_of_the_comparison_has_a_fault(tmp_path: Path) -> None:
    """At least 40 faults, and none of the catalogue's codes goes untried (EP1 is preflight's, EP82 the images', EP905 to EP907 policy's)."""
    shown = {code for build in CASES.values() for code, _, _ in build(tmp_path).expected}
    assert len(shown) >= 40
    assert [code for code in RULES if code not in shown and code[:3] != "EP1" and code[:4] != "EP82"] == ["EP905", "EP906", "EP907"]


def test_equal_hosts_have_no_findings() -> None:
    one = gpu_host("a", dist("numpy", "2.0.0"), env={"NCCL_ALGO": "Ring"})
    report = compare([host(one), host(relabel(one, "b"))])
    assert report.findings == ()
    assert report.rows == ()
    assert [group.hosts for group in report.groups] == [("a", "b")]
    assert report.counts.matched == report.counts.packages == 3


def test_a_fault_that_all_hosts_have_is_no_difference() -> None:
    module = ext("fast", needed=(Needed(soname="libgone.so.1", by="nothing"),))
    one, other = (gpu_host(label, dist("fast", "1.0"), extensions=(module,)) for label in "ab")
    counts = compare([host(one), host(other)]).counts
    assert (counts.packages, counts.matched, counts.differed) == (3, 3, 0)
    counts = compare([host(one), host(dataclasses.replace(other, extensions=()))]).counts
    assert (counts.packages, counts.matched, counts.differed) == (3, 2, 1)


@pytest.mark.parametrize(("chosen", "states"), [("a", ["same", "different"]), ("b", ["different", "same"])])
def test_cells_are_held_against_the_reference_wherever_it_stands(chosen: str, states: list[str]) -> None:
    report = compare([host(gpu_host("a", dist("numpy", "2.0.0"))), host(gpu_host("b", dist("numpy", "2.1.0")))], reference=chosen)
    (row,) = [row for row in report.rows if row.key == "numpy"]
    assert [cell.state for cell in row.cells] == states


def test_what_the_reference_lacks_is_different_elsewhere() -> None:
    report = compare([host(gpu_host("a")), host(gpu_host("b", dist("numpy", "2.1.0")))], reference="a")
    (row,) = [row for row in report.rows if row.key == "numpy"]
    assert [(cell.state, cell.text) for cell in row.cells] == [("absent", None), ("different", "2.1.0")]
