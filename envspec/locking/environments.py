"""The environments that a stack's lock holds for: CPython of its versions on Linux x86_64 with glibc."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from packaging.markers import Marker
from packaging.tags import Tag, compatible_tags, cpython_tags

from envspec.locks.model import LockedFile, holds
from envspec.locks.target import platforms
from envspec.stacks import Stack

__all__ = ["PLATFORM", "Platform", "applies", "best", "marker_environments", "narrow", "uv_environment"]

PLATFORM: Final = "linux x86_64"

_FIXED: Final[Mapping[str, str]] = {
    "os_name": "posix",
    "sys_platform": "linux",
    "platform_system": "Linux",
    "platform_machine": "x86_64",
    "platform_python_implementation": "CPython",
    "implementation_name": "cpython",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Platform:
    """What wheels must fit: minor versions of CPython in rising order (``3.11``), and the oldest glibc."""

    python: tuple[str, ...]
    glibc: str

    @classmethod
    def of(cls, stack: Stack) -> Platform:
        """The stack's."""
        return cls(python=tuple(sorted(stack.python, key=_minor)), glibc=stack.glibc)

    @property
    def requires_python(self) -> str:
        """The versions as a specifier from the lowest to the highest: ``>=3.11,<3.13``."""
        return f">={self.python[0]},<3.{_minor(self.python[-1]) + 1}"

    def __str__(self) -> str:
        return f"CPython {' and '.join(self.python)} on {PLATFORM} with glibc {self.glibc}"


def _minor(python: str) -> int:
    return int(python.split(".")[1])


def uv_environment(platform: Platform) -> str:
    """The marker that keeps uv's universal resolution to the platform."""
    low, high = platform.python[0], f"3.{_minor(platform.python[-1]) + 1}"
    return (
        "sys_platform == 'linux' and platform_machine == 'x86_64' and implementation_name == 'cpython' "
        f"and python_full_version >= '{low}' and python_full_version < '{high}'"
    )


def marker_environments(platform: Platform, markers: Iterable[str]) -> dict[str, list[dict[str, str]]]:
    """For each Python every environment that these markers can tell apart.

    Markers such as ``python_full_version < '3.11.3'`` part a minor version: each release that one names, and the one before,
    stands for its side.
    """
    patches: dict[str, set[int]] = {python: {0, 99} for python in platform.python}
    for text in set(markers):
        for minor, patch in re.findall(r"(3\.\d+)\.(\d+)", text):
            if minor in patches:
                patches[minor] |= {int(patch), max(int(patch) - 1, 0)}
    return {
        python: [
            {**_FIXED, "python_version": python, "python_full_version": full, "implementation_version": full}
            for full in (f"{python}.{patch}" for patch in sorted(patches[python]))
        ]
        for python in platform.python
    }


def applies(marker: Marker | None, environment: Mapping[str, str], extras: Iterable[str] = ()) -> bool:
    """Whether a requirement's marker holds, with no extra or one of these. What cannot be told (a kernel's version) counts as yes."""
    if marker is None:
        return True
    return any(holds(marker, {**environment, "extra": extra}, "metadata") is not False for extra in ("", *extras))


def narrow(marker: Marker | None, environments: Mapping[str, Sequence[Mapping[str, str]]]) -> str | None:
    """The marker in the fewest words that say the same on the platform, None where it always holds."""
    if marker is None:
        return None
    results = {python: {applies(marker, environment) for environment in each} for python, each in environments.items()}
    if all(result == {True} for result in results.values()):
        return None
    if all(len(result) == 1 for result in results.values()):
        return " or ".join(f"python_version == '{python}'" for python, result in results.items() if result == {True})
    return str(marker)


@functools.lru_cache(maxsize=64)
def _ranks(python: str, glibc: str) -> Mapping[Tag, int]:
    version, accepted = (3, _minor(python)), list(platforms("linux-x86_64", "glibc", glibc))
    interpreter = f"cp3{version[1]}"
    tags = [*cpython_tags(version, [interpreter], accepted), *compatible_tags(version, interpreter, accepted)]
    ranks: dict[Tag, int] = {}
    for rank, tag in enumerate(tags):
        ranks.setdefault(tag, rank)
    return ranks


def best(files: Iterable[LockedFile], python: str, glibc: str) -> LockedFile | None:
    """The wheel that an installer takes there: of the most wanted tag, then of the highest build number; None where none fits."""
    ranks = _ranks(python, glibc)
    fitting = []
    for file in files:
        found = [ranks[tag] for tag in file.tags if tag in ranks]
        if found:
            build = re.match(r"(\d+)(.*)", file.build or "")
            fitting.append((-min(found), (int(build[1]), build[2]) if build else (-1, ""), file.name, file))
    return max(fitting, key=lambda item: item[:3])[3] if fitting else None
