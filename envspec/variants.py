"""Build variants: the several binaries behind one public version.

``torch 2.9.1`` from PyPI and ``torch 2.9.1+cu128`` from its own index are the same build; ``2.9.1+cpu`` is not. Neither text
nor PEP 440 comparison tells them apart, so a variant is derived from whatever says it.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from envspec.locks.model import LockedPackage, parse_version

__all__ = [
    "COMPONENTS",
    "TORCH_FAMILY",
    "LocalLabel",
    "component",
    "cuda_major",
    "is_cpu",
    "locked_variant",
    "parse_local",
    "parse_version",
    "public",
    "pypi_torch_variant",
    "vendor_build",
]

TORCH_FAMILY: Final = frozenset({"torch", "torchaudio", "torchvision"})

# CUDA version of the default torch wheel on PyPI (Linux x86_64), by torch's minor version; read from wheel metadata.
_PYPI_TORCH: Final[Mapping[tuple[int, int], str]] = {
    (2, 6): "cu124",
    (2, 7): "cu126",
    (2, 8): "cu128",
    (2, 9): "cu128",
    (2, 10): "cu128",
    (2, 11): "cu130",
    (2, 12): "cu130",
    (2, 13): "cu130",
    (2, 14): "cu130",
}

COMPONENTS: Final[Mapping[str, str]] = {
    "cublas": "cublas",
    "cuda-cupti": "cupti",
    "cuda-nvcc": "nvcc",
    "cuda-nvrtc": "nvrtc",
    "cuda-runtime": "cudart",
    "cudnn": "cudnn",
    "cudnn-frontend": "cudnn-frontend",
    "cufft": "cufft",
    "cufile": "cufile",
    "curand": "curand",
    "cusolver": "cusolver",
    "cusparse": "cusparse",
    "cusparselt": "cusparselt",
    "nccl": "nccl",
    "nvjitlink": "nvjitlink",
    "nvshmem": "nvshmem",
    "nvtx": "nvtx",
}
"""Distribution name between ``nvidia-`` and ``-cuNN`` to the library it holds."""

_RENAMED: Final[Mapping[str, str]] = {
    "pytorch-triton": "triton",
    "triton": "triton",
    "sgl-kernel": "sgl-kernel",
    "sglang-kernel": "sgl-kernel",
}


@functools.lru_cache(maxsize=4096)
def component(name: str) -> str | None:
    """The library that a distribution holds, under one name for every CUDA major; None for an ordinary package.

    ``nvidia-nccl-cu12`` and ``nvidia-nccl-cu13`` are ``nccl``; ``nvidia-cuda-runtime`` (CUDA 13) is ``cudart``.
    """
    if name in _RENAMED:
        return _RENAMED[name]
    match = re.fullmatch(r"nvidia-(.+?)(-cu\d+)?", name)
    return COMPONENTS.get(match[1]) if match else None


def cuda_major(name: str, version: str | None) -> int | None:
    """The CUDA major of a component distribution: from its name, else from the version of an unsuffixed one."""
    match = re.fullmatch(r"nvidia-(.+?)(?:-cu(\d{1,4}))?", name)
    if not match or match[1] not in COMPONENTS:
        return None
    if match[2]:
        return int(match[2])
    if match[1] in ("cuda-runtime", "cuda-nvrtc", "cuda-cupti", "nvjitlink", "cublas"):
        head = re.match(r"(\d{1,4})\.", version or "")
        return int(head[1]) if head else None
    return None


def public(text: str | None) -> str | None:
    """The version without its local label, normalised (``1.0`` and ``1.0.0`` are one); the text if not PEP 440."""
    parsed = parse_version(text)
    if parsed is None:
        return text
    return re.sub(r"(\.0)+(?=$|[a-z.])", "", parsed.public) if parsed.public.count(".") else parsed.public


@dataclass(frozen=True, kw_only=True, slots=True)
class LocalLabel:
    """What a local version label says of a build: ``+cu122torch2.3cxx11abiFALSE`` and its like."""

    cuda: str | None = None
    torch: str | None = None
    cxx11_abi: bool | None = None
    cpu: bool = False


def parse_local(label: str | None) -> LocalLabel:
    """Read a local label as seen in the wild: ``cu128``, ``pt270cu126``, ``cu124torch2.5``, ``cu.12.8.torch.2.11``."""
    rest = (label or "").lower()
    abi = re.search(r"cxx11abi\.?(true|false)", rest)
    if abi:
        rest = rest.replace(abi[0], "")
    torch_version: str | None = None
    found = re.search(r"torch\.?(\d+\.\d+)", rest)
    if found:
        torch_version, rest = found[1], rest.replace(found[0], "")
    else:
        short = re.search(r"(?:^|\.)pt(\d)(\d)(\d)?", rest)
        if short:
            torch_version, rest = f"{short[1]}.{short[2]}", rest.replace(short[0], "")
    cuda: str | None = None
    found = re.search(r"cu\.?(\d{2})\.?(\d)?", rest)
    if found:
        cuda = f"{found[1]}.{found[2]}" if found[2] else found[1]
        rest = rest.replace(found[0], "")
    return LocalLabel(
        cuda=cuda,
        torch=torch_version,
        cxx11_abi=None if abi is None else abi[1] == "true",
        cpu="cpu" in re.split(r"[.\d]", rest),
    )


def vendor_build(text: str | None) -> str | None:
    """``25.10`` for a torch of NVIDIA's container release 25.10 (``2.9.0a0+145a3a7bda.nv25.10``), else None."""
    match = re.search(r"a0\+.*nv(\d\d\.\d\d)", text or "")
    return match[1] if match else None


def is_cpu(variant: str | None) -> bool:
    """Whether a variant is a build without GPU code."""
    return variant is not None and parse_local(variant).cpu


def pypi_torch_variant(text: str | None, markers: Mapping[str, str]) -> str | None:
    """The variant of PyPI's own torch wheel of this version on this platform, None where it is not known."""
    parsed = parse_version(text)
    if parsed is None or markers.get("sys_platform") != "linux" or markers.get("platform_machine") != "x86_64":
        return None
    return _PYPI_TORCH.get((parsed.major, parsed.minor))


def locked_variant(
    package: LockedPackage, packages: Mapping[str, LockedPackage], markers: Mapping[str, str]
) -> str | None:
    """The build variant that a lock asks for, None when it says nothing.

    In order: the version's local label; the index (``…/whl/cu128``); for torch the CUDA runtime that the lock pins
    beside it; for torch on PyPI what PyPI serves.
    """
    parsed = package.parsed
    if parsed is not None and parsed.local:
        return parsed.local
    for place in (package.index, *(file.url for file in package.files[:1])):
        found = re.search(r"/whl/(?:nightly/)?(cu\d{3}|cpu|rocm[\d.]+|xpu)(?:/|$)", place or "")
        if found:
            return found[1]
    if package.name != "torch":
        return None
    for name in ("nvidia-cuda-runtime-cu12", "nvidia-cuda-runtime-cu11", "nvidia-cuda-runtime", "cuda-toolkit"):
        if name in packages:
            version = re.match(r"(\d+)\.(\d+)", packages[name].version or "")
            if version:
                return f"cu{version[1]}{version[2]}"
    return pypi_torch_variant(package.version, markers)
