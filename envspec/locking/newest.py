"""Inputs that nobody pinned and that a resolver left behind without a word.

A resolver that may choose takes an old release when a new one does not fit beside the rest: an unpinned ``speculators`` beside
sglang 0.5.9 becomes 0.2.0.
"""

from __future__ import annotations

from collections.abc import Mapping

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from envspec.locking.closed import Closure, on_platform
from envspec.locking.environments import marker_environments
from envspec.locking.inputs import Inputs
from envspec.locking.metadata import read_many
from envspec.locking.model import Entry, StackLock
from envspec.locking.resolve import Located, located
from envspec.locking.uv import compile_pylock

__all__ = ["behind", "left_behind"]


def behind(version: Version, newest: Version) -> bool:
    """Whether a version is more than one minor version behind: an older epoch or major, or two minors and more."""
    if (version.epoch, version.major) != (newest.epoch, newest.major):
        return (version.epoch, version.major) < (newest.epoch, newest.major)
    return newest.minor - version.minor > 1


def left_behind(inputs: Inputs, lock: StackLock, closure: Closure) -> list[str]:
    """A warning for each unpinned input that ended behind the newest release it allows itself, with what holds it back.

    Raises:
        ResolutionError: the index cannot be read.
    """
    free = {item.name: item for item in inputs.requirements if not item.pinned}
    if not free:
        return []
    alone = located(compile_pylock(inputs.platform, map(str, free.values()), dependencies=False), inputs.platform)
    newest: dict[str, Located] = {}
    for item in alone:
        if item.name not in newest or Version(item.version) > Version(newest[item.name].version):
            newest[item.name] = item
    entries = {entry.name: entry for entry in lock.entries}
    late = {name: item for name, item in newest.items() if name in entries and behind(entries[name].parsed, Version(item.version))}
    metadata = read_many(item.files[0].url or "" for item in late.values())
    warnings = []
    for name, item in late.items():
        wants = [Requirement(text) for text in metadata[item.files[0].url or ""].requires]
        reasons = _reasons(wants, inputs, entries, closure)
        why = f"; {item.version} {reasons}" if reasons else ""
        warnings.append(f"{free[name].file}:{free[name].line}: {name} is not pinned and became {entries[name].version}, the newest is {item.version}{why}; pin the version you mean")
    return warnings


def _reasons(wants: list[Requirement], inputs: Inputs, entries: Mapping[str, Entry], closure: Closure) -> str:
    environments = marker_environments(inputs.platform, [str(item.marker) for item in wants if item.marker])
    found = []
    for want in wants:
        name = canonicalize_name(want.name)
        here = entries.get(name)
        if here is None or want.specifier.contains(here.parsed, prereleases=True):
            continue
        if on_platform(want, [environment for each in environments.values() for environment in each]):
            found.append(f"needs {name}{want.specifier}, the lock has {here.version} ({closure.chain(name)})")
    return " and ".join(found)
