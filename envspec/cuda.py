"""CUDA facts as pure functions: driver floors, architecture cover, image requirements. No GPU is needed to test them.

Sources: NVIDIA's CUDA compatibility guide (minor-version compatibility floors), the binary compatibility rules of the CUDA
programming guide (SASS within a major, PTX forward, ``a`` nowhere else, ``f`` within its family), and the requirement
syntax of the NVIDIA container toolkit (space is OR, comma is AND).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

__all__ = [
    "DRIVER_FLOORS",
    "TOOLKIT_DRIVERS",
    "Cover",
    "RequirementResult",
    "Support",
    "brands",
    "covers",
    "decode",
    "driver_floor",
    "evaluate_requirement",
    "of_variant",
    "support",
    "version",
]

DRIVER_FLOORS: Final[Mapping[int, str]] = {11: "450.80.02", 12: "525.60.13", 13: "580.65.06"}
"""CUDA major to the oldest Linux driver that runs any of its runtimes by minor-version compatibility."""

TOOLKIT_DRIVERS: Final[Mapping[str, str]] = {
    "11.8": "520.61.05",
    "12.1": "530.30.02",
    "12.4": "550.54.14",
    "12.6": "560.28.03",
    "12.8": "570.26",
    "12.9": "575.51.03",
    "13.0": "580.65.06",
}
"""CUDA version to the driver its toolkit ships: from there on nothing is limited."""

Cover: TypeAlias = Literal["sass", "ptx", "none", "unknown"]
Support: TypeAlias = Literal["full", "minor", "too-old", "unknown"]


def version(text: str | None) -> tuple[int, ...] | None:
    """``"570.124.06"`` as ``(570, 124, 6)``; None when it is not dotted numbers."""
    if text is None or not re.fullmatch(r"\d{1,9}(\.\d{1,9})*", text.strip()):
        return None
    return tuple(int(part) for part in text.strip().split("."))


def decode(number: int) -> str:
    """CUDA's integer version as text: 12080 is ``12.8``, 11040 is ``11.4``."""
    return f"{number // 1000}.{number % 1000 // 10}"


def of_variant(variant: str | None) -> str | None:
    """The CUDA version in a build variant: ``cu128`` is ``12.8``, ``cu130`` ``13.0``, ``cu.12.8…`` ``12.8``."""
    match = re.search(r"cu\.?(\d{2})\.?(\d)?(?!\d)", variant or "")
    if not match or match[2] is None:
        return None
    return f"{match[1]}.{match[2]}"


def driver_floor(cuda: str) -> str | None:
    """The oldest driver on which a runtime of this CUDA version starts at all; None for an unknown major."""
    parsed = version(cuda)
    return DRIVER_FLOORS.get(parsed[0]) if parsed else None


def support(runtime: str | None, driver: str | None, driver_cuda: str | None) -> Support:
    """How a CUDA runtime runs on a driver.

    Args:
        runtime: the runtime's CUDA version, such as ``12.8``.
        driver: the driver's version, such as ``570.124.06``.
        driver_cuda: the newest CUDA version the driver's libcuda offers (forward-compatibility packages included).

    Returns:
        ``full``; ``minor`` when only minor-version compatibility carries it (no PTX from the newer toolkit, no new
        functions); ``too-old``; ``unknown`` when the facts do not decide.
    """
    wanted, offered, found = version(runtime), version(driver_cuda), version(driver)
    if wanted is None:
        return "unknown"
    if offered is not None:
        if offered[:2] >= wanted[:2]:
            return "full"
        # libcuda of the same major: every release of the major's floor or later carries it.
        if offered[0] > wanted[0] or (offered[0] == wanted[0] and found is None):
            return "minor" if offered[0] == wanted[0] else "full"
    if found is None:
        return "too-old" if offered is not None and offered[0] < wanted[0] else "unknown"
    floor = version(DRIVER_FLOORS.get(wanted[0]))
    if floor is None:
        return "unknown"
    if found < floor:
        return "too-old"
    if offered is not None and offered[0] < wanted[0]:
        return "too-old"
    shipped = version(TOOLKIT_DRIVERS.get(f"{wanted[0]}.{wanted[1] if len(wanted) > 1 else 0}"))
    if offered is None and shipped is not None and found >= shipped:
        return "full"
    return "minor" if offered is not None or shipped is not None else "unknown"


def covers(archs: Iterable[str], capability: str | None) -> Cover:
    """Whether a build with these architectures has code for a GPU.

    Args:
        archs: such as ``sm_90``, ``sm_90a``, ``sm_100f``, ``compute_90``.
        capability: the GPU's compute capability, such as ``9.0``.
    """
    gpu = version(capability)
    names = [arch.strip().lower() for arch in archs]
    if gpu is None or len(gpu) != 2 or not names:
        return "unknown"
    major, minor = gpu
    ptx = False
    for name in names:
        match = re.fullmatch(r"(sm|compute)_(\d+)(\d)([af]?)", name)
        if not match:
            continue
        of, at, suffix = int(match[2]), int(match[3]), match[4]
        exact = (of, at) == (major, minor)
        if match[1] == "sm":
            if exact or (suffix != "a" and of == major and minor >= at):
                return "sass"
        elif exact or (suffix == "" and (major, minor) >= (of, at)) or (suffix == "f" and of == major and minor >= at):
            ptx = True
    return "ptx" if ptx else "none"


@dataclass(frozen=True, kw_only=True, slots=True)
class RequirementResult:
    """``met`` is None when it cannot be told. ``failed`` is the condition that a user should read."""

    met: bool | None
    failed: str | None = None


def brands(gpu: str | None) -> frozenset[str]:
    """The brand names that the container toolkit may give a GPU, by its product name; empty when not known."""
    name = (gpu or "").lower()
    if not name:
        return frozenset()
    if "geforce" in name:
        return frozenset({"geforce", "geforcertx"}) if "rtx" in name else frozenset({"geforce"})
    if "titan" in name:
        return frozenset({"titan", "titanrtx"})
    if "quadro" in name:
        return frozenset({"quadro", "quadrortx"}) if "rtx" in name else frozenset({"quadro"})
    if "rtx" in name:
        return frozenset({"nvidiartx", "nvidia"})
    if "grid" in name:
        return frozenset({"grid"})
    return frozenset({"nvidia", "tesla"})


_CONDITION: Final = re.compile(r"(!?)(cuda|driver|arch|brand)(>=|<=|!=|==|=|>|<)(.+)")


def evaluate_requirement(
    text: str, *, driver_cuda: str | None, driver: str | None, capability: str | None, gpu: str | None
) -> RequirementResult:
    """Evaluate ``NVIDIA_REQUIRE_CUDA`` (or another ``NVIDIA_REQUIRE_*``) for a host.

    Alternatives are separated by spaces, the conditions of one by commas. A fact that is not known makes its
    condition unknown; the whole is then unknown unless another alternative is met.
    """
    alternatives = text.split()
    if not alternatives:
        return RequirementResult(met=True)
    unknown, first = False, None
    for alternative in alternatives:
        results = [
            (_condition(part, driver_cuda, driver, capability, gpu), part) for part in alternative.split(",") if part
        ]
        if all(result is True for result, _ in results):
            return RequirementResult(met=True)
        failed = [part for result, part in results if result is False]
        if not failed:
            unknown = True
        elif first is None:
            first = failed[0]
    return RequirementResult(met=None) if unknown else RequirementResult(met=False, failed=first)


def _condition(
    part: str, driver_cuda: str | None, driver: str | None, capability: str | None, gpu: str | None
) -> bool | None:
    match = _CONDITION.fullmatch(part.strip())
    if not match:
        return None
    negated, key, operator, wanted = match.groups()
    result: bool | None
    if key == "brand":
        known = brands(gpu)
        if not known:
            return None
        result = (wanted.lower() in known) == (operator != "!=")
    else:
        found = version({"cuda": driver_cuda, "driver": driver, "arch": capability}[key])
        limit = version(wanted)
        if found is None or limit is None:
            return None
        length = max(len(found), len(limit))
        left = found + (0,) * (length - len(found))
        right = limit + (0,) * (length - len(limit))
        if operator in ("=", "=="):
            result = found[: len(limit)] == limit
        elif operator == "!=":
            result = found[: len(limit)] != limit
        else:
            result = {">=": left >= right, "<=": left <= right, ">": left > right, "<": left < right}[operator]
    return not result if negated else result
