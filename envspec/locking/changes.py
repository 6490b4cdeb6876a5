"""What changed between an old and a new lock, in words."""

from __future__ import annotations

from collections.abc import Sequence

from packaging.version import Version

from envspec.locking.closed import Closure
from envspec.locking.model import Entry, StackLock

__all__ = ["changes"]


def changes(old: StackLock | None, new: StackLock, closure: Closure) -> list[str]:
    """One line for each distribution that is raised, lowered, added, removed or built anew; the summary first."""
    if old is None:
        return [f"new lock with {len(new.entries)} distributions"]
    before, after = _by_name(old.entries), _by_name(new.entries)
    lines: list[str] = []
    raised = lowered = other = 0
    for name in sorted(before.keys() & after.keys()):
        was, now = before[name], after[name]
        if [item.requirement for item in was] != [item.requirement for item in now]:
            old_top, new_top = max(item.parsed for item in was), max(item.parsed for item in now)
            if new_top > old_top:
                raised, word = raised + 1, "raised"
            elif new_top < old_top:
                lowered, word = lowered + 1, "lowered"
            else:
                other, word = other + 1, "now"
            lines.append(f"  {word:<8} {name} {_versions(was)} → {_versions(now)}{_step(old_top, new_top)}")
        elif was != now:
            other += 1
            lines.append(f"  {'changed':<8} {name} {_versions(now)}: {_inside(was, now)}")
    added, removed = sorted(after.keys() - before.keys()), sorted(before.keys() - after.keys())
    lines += [f"  {'added':<8} {name} {_versions(after[name])}{_why(closure, name)}" for name in added]
    lines += [f"  {'removed':<8} {name} {' and '.join(entry.version for entry in before[name])}: nothing requires it any more" for name in removed]
    if not lines:
        return [f"unchanged, {len(new.entries)} distributions" + (", made for other inputs" if old.inputs != new.inputs else "")]
    counts = [(raised, "raised"), (lowered, "lowered"), (other, "changed"), (len(added), "added"), (len(removed), "removed")]
    told = ", ".join(f"{count} {word}" for count, word in counts if count)
    same = len(after) - raised - lowered - other - len(added)
    return [f"{told}, {same} the same", *lines]


def _by_name(entries: Sequence[Entry]) -> dict[str, tuple[Entry, ...]]:
    out: dict[str, tuple[Entry, ...]] = {}
    for entry in entries:
        out[entry.name] = (*out.get(entry.name, ()), entry)
    return out


def _versions(entries: Sequence[Entry]) -> str:
    if len(entries) == 1 and not entries[0].marker:
        return entries[0].version
    return " and ".join(f"{entry.version} where {entry.marker}" if entry.marker else entry.version for entry in entries)


def _step(old: Version, new: Version) -> str:
    if old.major != new.major:
        return " (another major version)"
    return " (another build)" if old.public == new.public and old != new else ""


def _inside(was: Sequence[Entry], now: Sequence[Entry]) -> str:
    words = []
    old_wheels = {wheel.name: wheel for entry in was for wheel in entry.wheels}
    new_wheels = {wheel.name: wheel for entry in now for wheel in entry.wheels}
    for name in sorted(new_wheels.keys() & old_wheels.keys()):
        if old_wheels[name].sha256 != new_wheels[name].sha256:
            words.append(f"{name} is another file, sha256 {old_wheels[name].sha256[:12]}… before and {new_wheels[name].sha256[:12]}… now")
    if added := sorted(new_wheels.keys() - old_wheels.keys()):
        words.append("now from " + ", ".join(added))
    elif dropped := sorted(old_wheels.keys() - new_wheels.keys()):
        words.append("no longer from " + ", ".join(dropped))
    gone, come = (
        {text for entry in one for text in entry.requires} - {text for entry in two for text in entry.requires} for one, two in ((was, now), (now, was))
    )
    if gone or come:
        words.append("requires " + ", ".join([*(f"{text} anew" for text in sorted(come)), *(f"{text} no more" for text in sorted(gone))]))
    return "; ".join(words) or "other facts of the same files"


def _why(closure: Closure, name: str) -> str:
    need = closure.needs.get(name)
    return f": {need}" if need else ""
