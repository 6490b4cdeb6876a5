"""One CUDA in a lock: no mixed majors, and torch built for the stack's version."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from envspec import cuda
from envspec.locking.closed import Closure
from envspec.locking.model import Entry
from envspec.variants import cuda_major, is_cpu

__all__ = ["cuda_faults", "major", "torch_cuda"]

_BY_VERSION: Final = frozenset({"cuda-toolkit", "cuda-python", "cuda-bindings"})
"""Distributions whose own version is the CUDA version."""


def major(entry: Entry) -> int | None:
    """The CUDA major that a distribution is made for, from its name, its version or its local label; None where neither tells.

    ``nvidia-ml-py`` and ``cuda-pathfinder`` work with every major and tell nothing.
    """
    named = re.search(r"-(?:cu|cuda)(\d{2})(?:x|-|$)", entry.name)
    if named:
        return int(named[1])
    if entry.name in _BY_VERSION:
        return entry.parsed.major
    label = cuda.of_variant(entry.parsed.local)
    return int(label.split(".")[0]) if label else cuda_major(entry.name, entry.version)


def torch_cuda(torch: Entry) -> str | None:
    """The CUDA version of a torch build: from its label, else from the runtime it requires; None for a build without CUDA."""
    if torch.parsed.local:
        return None if is_cpu(torch.parsed.local) else cuda.of_variant(torch.parsed.local)
    for text in torch.requires:
        requirement = Requirement(text)
        if re.fullmatch(r"nvidia-cuda-runtime(-cu\d+)?|cuda-toolkit", canonicalize_name(requirement.name)):
            pins = [re.match(r"(\d+)\.(\d+)", item.version) for item in requirement.specifier if item.operator == "=="]
            for pin in pins:
                if pin:
                    return f"{pin[1]}.{pin[2]}"
    return None


def cuda_faults(entries: Sequence[Entry], wanted: str | None, closure: Closure) -> list[tuple[str, Entry | None]]:
    """What is wrong, in words, each with the entry that is to blame.

    Args:
        entries: the lock's.
        wanted: the stack's CUDA version such as ``12.8``; None for a stack without CUDA, whose parts must still be of one major.
        closure: says who brought an entry in.
    """
    faults: list[tuple[str, Entry | None]] = []
    majors = {entry.name: found for entry in entries if (found := major(entry)) is not None}
    torch = [entry for entry in entries if entry.name == "torch"]
    if wanted is not None:
        if not torch:
            faults.append((f"the stack is for CUDA {wanted}, but nothing brings torch in", None))
        for entry in torch:
            built = torch_cuda(entry)
            if built != wanted:
                what = f"for CUDA {built}" if built else "without CUDA"
                faults.append((f"{entry} is built {what}, the stack is for CUDA {wanted} ({closure.chain(entry.name)})", entry))
        if faults:
            # The parts that a wrong torch brings along would only bury it.
            return faults
        own = int(wanted.split(".")[0])
    elif majors:
        counted = sorted(majors.values())
        own = max(set(counted), key=counted.count)
    else:
        return faults
    for entry in entries:
        found = majors.get(entry.name)
        if found is not None and found != own:
            faults.append((f"{entry} is a part of CUDA {found} among those of CUDA {own} ({closure.chain(entry.name)})", entry))
    return faults
