"""Requirements that installed packages declare and the environment does not meet: what ``pip check`` reports."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from packaging.markers import Marker
from packaging.requirements import InvalidRequirement, Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import Version

from envspec.locks.model import holds
from envspec.snapshot import Distribution, Snapshot
from envspec.variants import parse_version

__all__ = ["Unsatisfied", "together", "unsatisfied"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Unsatisfied:
    """``dist`` requires ``name`` as ``requirement`` says; ``found`` is the installed version, None when missing."""

    dist: str
    name: str
    requirement: str
    specifier: str
    found: str | None


@functools.lru_cache(maxsize=65536)
def _parse(text: str) -> tuple[str, SpecifierSet, Marker | None, str] | None:
    try:
        requirement = Requirement(text)
    except InvalidRequirement:
        return None
    shown = f"{requirement.name}{requirement.specifier}"
    return canonicalize_name(requirement.name), requirement.specifier, requirement.marker, shown


@functools.lru_cache(maxsize=65536)
def _accepts(text: str, version: str) -> bool:
    """Whether the requirement of this text takes the version. By text, since hashing a specifier costs more."""
    requirement, parsed = _parse(text), parse_version(version)
    return requirement is None or parsed is None or requirement[1].contains(parsed, prereleases=True)


def unsatisfied(snapshot: Snapshot, installed: Mapping[str, Distribution] | None = None) -> tuple[Unsatisfied, ...]:
    """Every declared requirement that is not met, as ``pip check`` decides it.

    Extras are not followed, conditions are evaluated with the host's markers (one that cannot be evaluated is not
    reported), pre-releases count, and a requirement that is not valid is skipped. A package is called missing only where
    the list of distributions is complete.
    """
    present = snapshot.installed() if installed is None else installed
    complete = snapshot.known("distributions")
    environment = {**snapshot.markers, "extra": ""}
    evaluated: dict[str, bool | None] = {}
    out: list[Unsatisfied] = []
    for dist in present.values():
        for text in dist.requires:
            parsed = _parse(text)
            if parsed is None:
                continue
            name, specifier, marker, shown = parsed
            other = present.get(name)
            if other is None and not complete:
                continue
            if other is not None and (other.version is None or _accepts(text, other.version)):
                continue
            if marker is not None:
                key = str(marker)
                if key not in evaluated:
                    evaluated[key] = holds(marker, environment, "metadata")
                if not evaluated[key]:
                    continue
            out.append(
                Unsatisfied(
                    dist=dist.name,
                    name=name,
                    requirement=shown,
                    specifier=str(specifier),
                    found=other.version if other is not None else None,
                )
            )
    return tuple(out)


_DECIDES: Final = {">=": max, ">": max, "<": min, "<=": min}


def together(specifiers: Iterable[str]) -> str:
    """One specifier for what all of these ask, lower bounds first; of several bounds of a kind the one that decides."""
    terms: dict[str, dict[Version, str]] = {}
    others: set[str] = set()
    for item in itertools.chain.from_iterable(map(SpecifierSet, specifiers)):
        if item.operator in _DECIDES:
            terms.setdefault(item.operator, {})[Version(item.version)] = str(item)
        else:
            others.add(str(item))
    bounds = [terms[operator][decides(terms[operator])] for operator, decides in _DECIDES.items() if operator in terms]
    return ",".join([*bounds, *sorted(others)])
