"""What a lock is evaluated for: a host's markers and the wheel tags its interpreter accepts.

``packaging.tags`` builds tags for the running interpreter; those of another host are put together here from its facts.
The list of platforms follows PEP 600 (manylinux) with its three older aliases and PEP 656 (musllinux).
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from packaging.tags import Tag, compatible_tags, cpython_tags, generic_tags, mac_platforms
from packaging.version import Version

from envspec.snapshot import Snapshot

__all__ = ["Target", "platforms"]

_ALIASES: Final = {(2, 17): "manylinux2014", (2, 12): "manylinux2010", (2, 5): "manylinux1"}
_OLD_GLIBC: Final = frozenset({"x86_64", "i686"})


@dataclass(frozen=True, kw_only=True, slots=True)
class Target:
    """The host's markers and accepted tags. ``markers`` is empty and ``tags`` None where they are not known.

    ``tags`` maps each accepted tag to its rank; 0 is the most wanted.
    """

    markers: Mapping[str, str] = field(default_factory=dict)
    tags: Mapping[Tag, int] | None = None

    @classmethod
    def of(cls, snapshot: Snapshot) -> Target:
        """The target that a snapshot describes."""
        interpreter, libc = snapshot.interpreter, snapshot.libc
        tags = None
        if interpreter is not None and interpreter.platform and snapshot.markers:
            tags = _tags(
                interpreter.implementation.lower(),
                snapshot.markers.get("python_full_version", interpreter.version),
                interpreter.soabi or "",
                interpreter.free_threaded,
                interpreter.debug,
                interpreter.platform,
                interpreter.pointer_bits,
                libc.family if libc else None,
                libc.version if libc else None,
            )
        return cls(markers=dict(snapshot.markers), tags=tags)

    @property
    def python(self) -> Version | None:
        """The Python version, None when not known or not valid."""
        text = self.markers.get("python_full_version", "")
        try:
            return Version(text.removesuffix("+") if text.endswith("+") else text)
        except ValueError:
            return None

    @property
    def key(self) -> object:
        """Equal for hosts that a lock resolves alike for."""
        return (tuple(sorted(self.markers.items())), id(self.tags) if self.tags is not None else None)

    def rank(self, tags: frozenset[Tag]) -> int | None:
        """The best rank of a wheel's tags, None when the host accepts none of them."""
        if self.tags is None:
            return 0
        ranks = [self.tags[tag] for tag in tags if tag in self.tags]
        return min(ranks) if ranks else None


def platforms(platform: str, libc: str | None, libc_version: str | None, pointer_bits: int = 64) -> Iterator[str]:
    """The platform tags a host accepts, the most wanted first.

    ``platform`` is ``sysconfig.get_platform()`` (``linux-x86_64``, ``macosx-14.0-arm64``, ``win-amd64``), ``libc`` is
    ``glibc`` or ``musl`` with its version.
    """
    plain = platform.replace("-", "_").replace(".", "_").lower()
    if platform.startswith("macosx-"):
        _, version, arch = platform.split("-", 2)
        parts = [int(part) for part in version.split(".")]
        yield from mac_platforms((parts[0], parts[1] if len(parts) > 1 else 0), arch)
        return
    if platform.startswith("linux-"):
        arch = plain.removeprefix("linux_")
        if pointer_bits == 32:
            arch = {"x86_64": "i686", "aarch64": "armv8l"}.get(arch, arch)
        # A wheel built on this very kind of host outranks the portable ones, as in packaging.tags.
        yield f"linux_{arch}"
        match = re.match(r"(\d+)\.(\d+)", libc_version or "")
        if match and libc == "glibc":
            lowest = 5 if arch in _OLD_GLIBC else 17
            for minor in range(int(match[2]), lowest - 1, -1):
                yield f"manylinux_2_{minor}_{arch}"
                alias = _ALIASES.get((2, minor))
                if alias:
                    yield f"{alias}_{arch}"
        elif match and libc == "musl":
            for minor in range(int(match[2]), -1, -1):
                yield f"musllinux_{match[1]}_{minor}_{arch}"
        return
    yield plain


@functools.lru_cache(maxsize=256)
def _tags(
    implementation: str,
    version: str,
    soabi: str,
    free_threaded: bool,
    debug: bool,
    platform: str,
    pointer_bits: int,
    libc: str | None,
    libc_version: str | None,
) -> Mapping[Tag, int] | None:
    match = re.match(r"(\d+)\.(\d+)", version)
    if not match:
        return None
    python = (int(match[1]), int(match[2]))
    nodot = f"{python[0]}{python[1]}"
    accepted = list(platforms(platform, libc, libc_version, pointer_bits))
    if implementation in ("cpython", "cp"):
        interpreter = f"cp{nodot}"
        abi = interpreter + ("t" if free_threaded else "") + ("d" if debug else "")
        abis = [abi] + ([abi[:-1]] if debug else [])
        tags = list(cpython_tags(python, abis, accepted))
    else:
        interpreter = {"pypy": "pp", "graalpy": "graalpy"}.get(implementation, implementation) + nodot
        abi = "_".join(soabi.replace(".", "_").split("-")[:2]) or "none"
        tags = list(generic_tags(interpreter, [abi], accepted))
    tags += compatible_tags(python, interpreter, accepted)
    ranks: dict[Tag, int] = {}
    for rank, tag in enumerate(tags):
        ranks.setdefault(tag, rank)
    return ranks
