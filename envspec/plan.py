"""The smallest install that brings a host to a lock, or makes scripts run there. Computed and shown, never run.

`plan` is pure: snapshot and lock in, `Plan` out. Only what is missing or not as locked is named, in exact versions with
the lock's hashes and without dependency resolution, so that the command changes what the plan lists and nothing else.
"""

from __future__ import annotations

import re
import shlex
import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from envspec import mend
from envspec.errors import CaptureError
from envspec.findings import Json
from envspec.imports import ScriptImports
from envspec.locks import Lock, LockedPackage, Target
from envspec.preflight import ImportFacts, distribution_names
from envspec.snapshot import Distribution, Snapshot
from envspec.variants import TORCH_FAMILY, locked_variant, public

__all__ = ["Plan", "Step", "plan", "script_needs"]

Action = Literal["install", "upgrade", "downgrade", "rebuild", "replace", "reinstall"]
Tool = Literal["uv", "pip"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Step:
    """One package to install: `have` is what is there now (None for nothing), `want` what the lock says.

    `rebuild` is another build of the same version, `replace` another source of it (commit, editable, file),
    `reinstall` the same again where files of it are gone or changed.
    """

    name: str
    action: Action
    have: str | None
    want: str
    requirement: str
    hashes: tuple[str, ...] = ()
    index: str | None = None
    why: str = ""

    def __str__(self) -> str:
        if self.have is None:
            return f"+ {self.name} {self.want}"
        if self.action == "reinstall":
            return f"~ {self.name} {self.have} ({self.action})"
        return f"~ {self.name} {self.have} -> {self.want} ({self.action})"


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """What to install on a host. `faults` say where the lock does not fit the host, `notes` what the change entails."""

    host: str
    lock: str
    tool: Tool
    python: str
    steps: tuple[Step, ...]
    faults: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def empty(self) -> bool:
        """Nothing to install."""
        return not self.steps

    def requirements(self, *, hashed: bool) -> str:
        """The steps with (or without) hashes as requirements lines."""
        lines = []
        for step in self.steps:
            if bool(step.hashes) is hashed:
                tail = "".join(f" \\\n    --hash={value}" for value in step.hashes)
                lines.append(step.requirement + tail + "\n")
        return "".join(lines)

    def commands(self) -> tuple[str, ...]:
        """Commands for a POSIX shell; each can be pasted as it stands.

        Packages with hashes go in one command under `--require-hashes`, those the lock has no hashes for (a commit, a
        directory) in another, because both installers refuse a mixture.
        """
        return tuple(command for hashed in (True, False) if (command := self._command(hashed)))

    def _command(self, hashed: bool) -> str:
        steps = [step for step in self.steps if bool(step.hashes) is hashed]
        if not steps:
            return ""
        python = shlex.quote(self.python)
        again = [step.name for step in steps if step.action in ("rebuild", "replace", "reinstall")]
        words = [f"uv pip install --python {python}" if self.tool == "uv" else f"{python} -m pip install", "--no-deps"]
        if hashed:
            words.append("--require-hashes")
        for index in dict.fromkeys(step.index for step in steps if step.index):
            words.append(f"{'--index' if self.tool == 'uv' else '--extra-index-url'} {shlex.quote(index)}")
        if again:
            # the version alone would count as satisfied
            words.append(
                " ".join(f"--reinstall-package {name}" for name in again) if self.tool == "uv" else "--force-reinstall"
            )
        if not hashed:
            return " ".join([*words, *(shlex.quote(step.requirement) for step in steps)])
        words.append("-r -" if self.tool == "uv" else "-r /dev/stdin")
        return f"{' '.join(words)} <<'EOF'\n{self.requirements(hashed=True)}EOF"

    def to_text(self) -> str:
        """The plan as a person reads it."""
        lines = [f"# {_line(fault)}" for fault in self.faults]
        if self.empty:
            lines.append(f"# {_line(self.host)} has what {_line(self.lock)} asks for: nothing to install.")
            lines.extend(f"# {_line(note)}" for note in self.notes)
            return "\n".join(lines) + "\n"
        count = len(self.steps)
        lines.append(f"# {count} package{'s' * (count != 1)} to install on {_line(self.host)}; nothing has been run.")
        lines.extend(f"#   {_line(f'{step}: {step.why}' if step.why else str(step))}" for step in self.steps)
        lines.extend(f"# {_line(note)}" for note in self.notes)
        lines.extend(self.commands())
        return "\n".join(lines) + "\n"

    def to_dict(self) -> dict[str, Json]:
        """The plan as JSON data."""
        return {
            "schema": "envspec/plan/1",
            "host": self.host,
            "lock": self.lock,
            "tool": self.tool,
            "python": self.python,
            "steps": [
                {
                    "name": s.name, "action": s.action, "have": s.have, "want": s.want, "requirement": s.requirement,
                    "hashes": list(s.hashes), "index": s.index, "why": s.why,
                }
                for s in self.steps
            ],
            "faults": list(self.faults),
            "notes": list(self.notes),
            "commands": list(self.commands()),
        }  # fmt: skip


def _line(text: str) -> str:
    """Text from a host or a lock as part of one comment line, which it must not end."""
    return "".join(char if char.isprintable() else " " for char in text)


def plan(
    snapshot: Snapshot,
    lock: Lock,
    *,
    needs: Mapping[str, str] | None = None,
    tool: Tool | None = None,
    notes: Iterable[str] = (),
) -> Plan:
    """The smallest install that makes the host satisfy the lock.

    `needs` limits it to these canonical names (each with why, see `script_needs`) and what they require; requirements are
    read from the lock's graph where it has one, else from the metadata on this host. Raises CaptureError
    when the snapshot could not read the packages: what is not known to be absent is not planned for.
    """
    if not snapshot.known("distributions"):
        reason = snapshot.section("distributions").reason or "no reason given"
        raise CaptureError(f"{snapshot.label}: its packages could not be read ({reason}), so no install can be planned.")
    resolved = lock.resolve(Target.of(snapshot))
    installed = snapshot.installed()
    remarks = list(notes)
    if needs is None:
        reasons = dict.fromkeys(resolved.packages, "")
    else:
        reasons, unknown = _closure(needs, resolved.packages, snapshot)
        if unknown:
            remarks.append(
                f"What {', '.join(sorted(unknown))} require{'s' * (len(unknown) == 1)} is not known here (the lock holds no "
                "dependency graph): run preflight again afterwards."
            )
    default = _default_index(lock)
    damaged = snapshot.file_faults()
    steps = []
    for name, why in sorted(reasons.items()):
        package = resolved.packages.get(name)
        if package is None:
            continue
        step = _step(package, installed.get(name), resolved.packages, snapshot)
        if step is None and (kinds := sorted({fault.fault for fault in damaged.get(name, ())} & {"missing", "modified"})):
            step = "reinstall", f"{installed[name].version}, files {' and '.join(kinds)}"
        if step is not None:
            index = package.index if package.index != default else None
            steps.append(
                Step(
                    name=name, action=step[0], have=step[1], want=package.version or "from source",
                    requirement=_requirement(package), hashes=_hashes(package), index=index, why=why,
                )
            )  # fmt: skip
    wanted = {step.name for step in steps} if needs is None else set(reasons)
    faults = [f.message for f in resolved.faults if f.name is None or f.name in wanted]
    owner = mend.tool(snapshot)
    if owner == "managed":
        remarks.append("This Python belongs to the operating system (PEP 668): make a virtual environment first.")
    remarks.extend(_upset(steps, installed, snapshot))
    interpreter = snapshot.interpreter
    return Plan(
        host=snapshot.label,
        lock=lock.path,
        tool=tool or ("uv" if owner == "uv" else "pip"),
        python=interpreter.executable if interpreter is not None and interpreter.executable else "python3",
        steps=tuple(steps),
        faults=tuple(dict.fromkeys(faults)),
        notes=tuple(dict.fromkeys(remarks)),
    )


def _step(
    package: LockedPackage, dist: Distribution | None, packages: Mapping[str, LockedPackage], snapshot: Snapshot
) -> tuple[Action, str | None] | None:
    """What has to be done for one locked package, None when the host has it as locked."""
    if dist is None:
        return "install", None
    have = dist.version or "no version"
    if package.version is not None and public(package.version) != public(dist.version):
        try:
            older = Version(have) < Version(package.version)
        except ValueError:  # InvalidVersion, and a number of more digits than Python reads
            return "replace", have
        return ("upgrade" if older else "downgrade"), have
    want_variant, have_variant = locked_variant(package, packages, snapshot.markers), dist.build_variant
    if package.version is not None and want_variant != have_variant:
        # Outside torch's family a lock without a label asks for the plain build; in it, PyPI's builds carry none.
        if want_variant is not None and (have_variant is not None or package.name not in TORCH_FAMILY):
            return "rebuild", f"{have} (build {have_variant or 'plain'})"
        if want_variant is None and package.name not in TORCH_FAMILY:
            return "rebuild", f"{have} (build {have_variant})"
    direct, origin = package.direct, dist.origin
    if direct is not None and direct.commit and origin.commit != direct.commit:
        return "replace", f"{have} ({'commit ' + origin.commit[:12] if origin.commit else 'not from that repository'})"
    if direct is None and origin.kind in ("editable", "vcs", "directory"):
        return "replace", f"{have} ({origin.kind})"
    found = {f"{algorithm}:{value.lower()}" for algorithm, value in origin.hashes.items()}
    algorithms = {value.partition(":")[0] for value in package.hashes}
    comparable = {value for value in found if value.partition(":")[0] in algorithms}
    if comparable and not comparable & package.hashes:
        return "replace", f"{have} (another file)"
    return None


def _requirement(package: LockedPackage) -> str:
    """The requirement line; a lock cannot break out of it, whatever control characters its strings hold."""
    return re.sub(r"[\x00-\x1f\x7f]", lambda match: f"%{ord(match[0]):02X}", _plain_requirement(package))


def _plain_requirement(package: LockedPackage) -> str:
    direct = package.direct
    if direct is not None:
        place = direct.url or direct.path or ""
        tail = f"#subdirectory={direct.subdirectory}" if direct.subdirectory else ""
        if direct.kind == "vcs":
            return f"{package.name} @ git+{place}@{direct.commit}{tail}"
        if direct.kind == "archive":  # its line may have hashes behind it, and a space would begin an option
            place, tail = (re.sub(r"\s", "%20", text) for text in (place, tail))
        if place:
            return f"{package.name} @ {place}{tail}"
    return f"{package.name}=={package.version}" if package.version else package.name


def _hashes(package: LockedPackage) -> tuple[str, ...]:
    if package.direct is not None and package.direct.kind != "archive":
        return ()
    found = package.hashes or (package.direct.hashes if package.direct is not None else frozenset())
    return tuple(sorted(value for value in found if re.fullmatch(r"[a-z0-9_]+:[0-9A-Fa-f]+", value)))


def _default_index(lock: Lock) -> str | None:
    """The index most packages come from: the host's own configuration answers for it."""
    counted = Counter(package.index for package in lock.packages if package.index)
    return counted.most_common(1)[0][0] if counted else None


def _closure(needs: Mapping[str, str], packages: Mapping[str, LockedPackage], snapshot: Snapshot) -> tuple[dict[str, str], set[str]]:
    """The needed packages of the lock with what they require, and those whose requirements nobody knows."""
    reasons: dict[str, str] = {}
    unknown: set[str] = set()
    graph = any(package.requires for package in packages.values())
    installed = snapshot.installed()
    queue = list(needs.items())
    while queue:
        name, why = queue.pop(0)
        if name in reasons or name not in packages:
            continue
        reasons[name] = why
        if graph:
            required: Iterable[str] = packages[name].requires
        else:
            dist = installed.get(name)
            if dist is None or public(dist.version) != public(packages[name].version):
                unknown.add(name)
                continue
            required = _required(dist, snapshot)
        queue.extend((other, f"{name} requires it") for other in required)
    return reasons, unknown


def _required(dist: Distribution, snapshot: Snapshot) -> list[str]:
    return [canonicalize_name(r.name) for r in _requirements(dist, snapshot)]


def _requirements(dist: Distribution, snapshot: Snapshot) -> list[Requirement]:
    """The requirements of an installed distribution that apply on the host, extras left out."""
    result = []
    for text in dist.requires:
        try:
            requirement = Requirement(text)
        except InvalidRequirement:
            continue
        marker = requirement.marker
        if marker is not None:
            if re.search(r"\bextra\b", str(marker)):
                continue
            if snapshot.markers and not marker.evaluate({**snapshot.markers, "extra": ""}):
                continue
        result.append(requirement)
    return result


def _upset(steps: Sequence[Step], installed: Mapping[str, Distribution], snapshot: Snapshot) -> list[str]:
    """Installed packages that the change would leave unsatisfied."""
    changed = {step.name: step.want for step in steps}
    notes = []
    for name, dist in sorted(installed.items()):
        if name in changed:
            continue
        for requirement in _requirements(dist, snapshot):
            want = changed.get(canonicalize_name(requirement.name))
            if want is None:
                continue
            try:
                fits = requirement.specifier.contains(Version(want), prereleases=True)
            except ValueError:  # InvalidVersion, and a number of more digits than Python reads
                continue
            if not fits:
                notes.append(f"{name} {dist.version} requires {requirement}: {want} would not satisfy it.")
    return notes


def script_needs(
    script: ScriptImports, facts: ImportFacts, lock: Lock, index: int = 0
) -> tuple[dict[str, str], tuple[str, ...]]:
    """The locked distributions a script imports from, each with why, and remarks on imports the lock cannot serve.

    `facts` are the host's answer for the script (`preflight.resolve`); optional imports and those whose condition does not
    hold on the host are left out.
    """
    there = facts.scripts[index].modules
    needs: dict[str, str] = {}
    remarks: list[str] = []

    def present(module: str) -> bool | None:
        fact = there.get(module)
        return None if fact is None or fact.status == "unknown" else fact.status == "ok"

    for item in script.imports:
        fact = there.get(item.module)
        if fact is None or item.optional or any(gate.guards for gate in item.gates):
            continue
        if any(gate.holds(facts.host, present) is False for gate in item.gates):
            continue
        why = f"{item.site} imports {item.module}"
        broken = [fact, *(n for n in fact.names.values() if n.status == "fails")]
        wanted = [item.module, *(f.missing.partition(":")[0] for f in broken if f.status == "fails" and f.missing)]
        names = [canonicalize_name(fact.owner[0])] if fact.owner is not None else []
        for module in dict.fromkeys(wanted):
            candidates = [*(names if module == item.module else ()), *distribution_names(module)]
            name = next((n for n in candidates if n in lock.names), None)
            if name is not None:
                needs.setdefault(name, why)
            elif any(f.status == "fails" and (f.missing or "").partition(":")[0] == module for f in broken):
                if stdlib_top(module):
                    remarks.append(f"{why}: {module} belongs to Python itself; no install brings it.")
                else:
                    remarks.append(f"{why}: nothing in {lock.path} provides {module}.")
    return needs, tuple(dict.fromkeys(remarks))


def stdlib_top(module: str) -> bool:
    """Whether a module's top-level package is the standard library's."""
    return module.split(".")[0] in sys.stdlib_module_names
