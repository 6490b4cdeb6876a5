"""Whether a lock is closed: every requirement of every entry is satisfied inside it, on every Python that it holds for."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from packaging.markers import Marker
from packaging.requirements import Requirement
from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.utils import canonicalize_name

from envspec.locking.environments import Platform, applies, marker_environments
from envspec.locking.model import Entry

__all__ = ["Closure", "Gap", "Need", "close", "on_platform"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Need:
    """Who requires an entry: another entry, by one of its extras or without, or None for the inputs; and the requirement in its words."""

    by: Entry | None
    extra: str = ""
    text: str

    @property
    def key(self) -> str | None:
        """Under which who requires it stands in ``Closure.needs``: ``name`` or ``name[extra]``; None for the inputs."""
        return None if self.by is None else _key(self.by.name, self.extra)

    def __str__(self) -> str:
        return f"the inputs ask for {self.text}" if self.by is None else f"{self.key} {self.by.version} needs {self.text}"


def _key(name: str, extra: str) -> str:
    return f"{name}[{extra}]" if extra else name


@dataclass(frozen=True, kw_only=True, slots=True)
class Gap:
    """A requirement that the lock does not satisfy, on these Pythons. ``entry`` is where to look: who requires it, or what is there."""

    message: str
    entry: Entry | None
    python: tuple[str, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Closure:
    """What the inputs reach. ``needs`` has for each entry's ``name`` and ``name[extra]`` who first required it; ``unreached`` are entries that nobody does."""

    gaps: tuple[Gap, ...]
    needs: Mapping[str, Need] = field(default_factory=dict)
    unreached: tuple[Entry, ...] = ()

    def chain(self, name: str) -> str:
        """Why an entry is there, from it up to the inputs: ``sglang 0.5.9 needs torch==2.9.1; the inputs ask for sglang==0.5.9``."""
        words: list[str] = []
        key: str | None = name
        seen: set[str] = set()
        while key is not None and key in self.needs and key not in seen:
            seen.add(key)
            need = self.needs[key]
            words.append("the inputs ask for it" if need.by is None and not words else str(need))
            key = need.key
        return "; ".join(words)


def on_platform(requirement: Requirement, environments: Iterable[Mapping[str, str]]) -> bool:
    """Whether a requirement applies in any of these environments, with no extra."""
    return any(applies(requirement.marker, environment) for environment in environments)


def close(entries: Sequence[Entry], inputs: Sequence[str], platform: Platform) -> Closure:
    """Follow every requirement from the inputs, extras included, in every environment that a marker can tell apart."""
    requirements = {text: Requirement(text) for entry in entries for text in entry.requires}
    wanted = [Requirement(text) for text in inputs]
    conditions = {entry.marker: Marker(entry.marker) for entry in entries if entry.marker}
    markers = [str(item.marker) for item in (*requirements.values(), *wanted) if item.marker] + [str(marker) for marker in conditions.values()]
    found: dict[tuple[str, str | None], tuple[Gap, list[str]]] = {}
    needs: dict[str, Need] = {}
    reached: set[int] = set()

    def gap(message: str, entry: Entry | None, python: str) -> None:
        _, pythons = found.setdefault((message, entry.name if entry else None), (Gap(message=message, entry=entry, python=()), []))
        if python not in pythons:
            pythons.append(python)

    for python, environments in marker_environments(platform, markers).items():
        for environment in environments:
            here: dict[str, Entry] = {}
            for entry in entries:
                if not applies(conditions.get(entry.marker) if entry.marker else None, environment):
                    continue
                if entry.name in here:
                    gap(f"the lock has {here[entry.name]} and {entry} at once", entry, python)
                    continue
                here[entry.name] = entry
            queue: deque[tuple[Requirement, Entry | None, str]] = deque((item, None, "") for item in wanted if applies(item.marker, environment))
            done: set[tuple[str, str]] = set()
            while queue:
                requirement, by, through = queue.popleft()
                name = canonicalize_name(requirement.name)
                extras = ("", *sorted(canonicalize_name(item) for item in requirement.extras))
                text = _key(name, ",".join(extras[1:])) + str(requirement.specifier)
                target = here.get(name)
                need = Need(by=by, extra=through, text=text)
                if target is None:
                    gap(f"{need}, which is not in the lock", by, python)
                    continue
                reached.add(id(target))
                if not requirement.specifier.contains(target.parsed, prereleases=True):
                    gap(f"{need}, the lock has {target.version}", target, python)
                if target.requires_python and not _fits(target.requires_python, environment["python_full_version"]):
                    gap(f"{target} is for Python {target.requires_python}", target, python)
                for extra in extras:
                    needs.setdefault(_key(name, extra), need)
                    if (name, extra) in done:
                        continue
                    done.add((name, extra))
                    queue.extend((requirements[item], target, extra) for item in target.requires if _active(requirements[item], environment, extra))
    gaps = [Gap(message=gap.message, entry=gap.entry, python=tuple(pythons)) for gap, pythons in found.values()]
    return Closure(gaps=tuple(gaps), needs=needs, unreached=tuple(entry for entry in entries if id(entry) not in reached))


def _active(requirement: Requirement, environment: Mapping[str, str], extra: str) -> bool:
    if not extra:
        return applies(requirement.marker, environment)
    return requirement.marker is not None and applies(requirement.marker, environment, (extra,)) and not applies(requirement.marker, environment)


def _fits(requires_python: str, python: str) -> bool:
    try:
        return SpecifierSet(requires_python).contains(python, prereleases=True)
    except InvalidSpecifier:
        # Installers ignore what they cannot read here.
        return True
