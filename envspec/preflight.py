"""Will these scripts import on that host? Parsed here, resolved there in one round trip, judged here.

`resolve` sends what `imports` read to a host and returns `ImportFacts`; `facts_from_snapshot` answers from a saved
snapshot, as far as its module index goes; `judge` turns the facts of all hosts into findings and is pure.
"""

from __future__ import annotations

import functools
import re
import shlex
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import resources
from typing import Any, Final

from packaging.markers import InvalidMarker, UndefinedEnvironmentName
from packaging.requirements import InvalidRequirement, Requirement
from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from envspec import mend
from envspec.errors import CaptureError
from envspec.findings import Finding, Json, Location, sort_findings
from envspec.history import DISTRIBUTION_NAMES, Layout, has_module, layout_of, stdlib_change
from envspec.hosts.interface import Host
from envspec.imports import Import, ScriptImports, Site
from envspec.locks import RoleLock, Target
from envspec.rules import finding
from envspec.snapshot import Distribution, Snapshot

__all__ = [
    "HostImports",
    "ImportFacts",
    "ModuleFact",
    "ScriptFacts",
    "distribution_names",
    "facts_from_snapshot",
    "judge",
    "request",
    "resolve",
    "source",
]

SECONDS: Final = 30.0
"""How long a host may spend following what packages import; what is not reached counts as importing."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ModuleFact:
    """What a host says of one module, or of one name of it: see `probe_imports.verdict` for the fields.

    `behind` is a second failure: that of a package which lacks the module and could not be imported anyway.
    """

    status: str
    kind: str = ""
    missing: str | None = None
    message: str = ""
    chain: tuple[Site, ...] = ()
    modules: tuple[str, ...] = ()
    near: tuple[str, ...] = ()
    files: tuple[str, ...] = ()
    parent: str | None = None
    parent_origin: str | None = None
    package: bool = False
    origin: str | None = None
    owner: tuple[str, str] | None = None
    names: Mapping[str, ModuleFact] = field(default_factory=dict)
    behind: ModuleFact | None = None

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> ModuleFact:
        """Read one verdict. Raises KeyError, TypeError or ValueError for another shape."""
        owner, parent = data.get("owner"), data.get("parent") or {}
        chain = data.get("chain") or ()
        return cls(
            status=str(data["status"]),
            kind=str(data.get("kind") or ""),
            missing=None if data.get("missing") is None else str(data["missing"]),
            message=str(data.get("message") or data.get("reason") or ""),
            chain=tuple(Site(file=str(c["file"]), line=int(c["line"])) for c in chain),
            modules=tuple(str(c["module"]) for c in chain),
            near=tuple(str(n) for n in data.get("near") or ()),
            files=tuple(str(n) for n in data.get("files") or ()),
            parent=None if parent.get("module") is None else str(parent["module"]),
            parent_origin=None if parent.get("origin") is None else str(parent["origin"]),
            package=bool(data.get("package")),
            origin=None if data.get("origin") is None else str(data["origin"]),
            owner=(str(owner["name"]), str(owner["version"])) if owner else None,
            names={str(k): cls.from_dict(v) for k, v in (data.get("names") or {}).items()},
            behind=cls.from_dict(data["behind"]) if data.get("behind") else None,
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class ScriptFacts:
    """What a host says of one script: its modules, what its local names hide, sources it cannot compile."""

    modules: Mapping[str, ModuleFact]
    local: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    syntax: Mapping[str, tuple[int, str]] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, slots=True)
class ImportFacts:
    """A host's answer: one `ScriptFacts` for each script asked for, in the same order."""

    python: str
    scripts: tuple[ScriptFacts, ...]
    host: Mapping[str, Any] = field(default_factory=dict)
    markers: Mapping[str, str] = field(default_factory=dict)
    distributions: Mapping[str, str | None] = field(default_factory=dict)
    complete: bool = True
    executable: str = ""

    @classmethod
    def from_dict(cls, data: object) -> ImportFacts:
        """Read a host's answer. Raises ValueError with one sentence when it is not one."""
        try:
            if not isinstance(data, dict) or data.get("schema") != "envspec/imports/1":
                raise ValueError("the answer about imports has no schema envspec/imports/1")
            scripts = tuple(
                ScriptFacts(
                    modules={str(m["module"]): ModuleFact.from_dict(m) for m in script["modules"]},
                    local={str(k): dict(v) for k, v in script["local"].items()},
                    syntax={str(k): (int(v["line"]), str(v["message"])) for k, v in script["syntax"].items()},
                )
                for script in data["scripts"]
            )
            return cls(
                python=str(data["python"]),
                scripts=scripts,
                host=dict(data["host"]),
                markers={str(k): str(v) for k, v in data["markers"].items()},
                distributions=dict(data["distributions"]),
                complete=bool(data["complete"]),
                executable=str(data["executable"]),
            )
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"the answer about imports is damaged ({error!r})") from error


@dataclass(frozen=True, kw_only=True, slots=True)
class HostImports:
    """One host in the judgement. `snapshot` lets a mend name the tool that owns the environment."""

    label: str
    facts: ImportFacts
    role: str | None = None
    snapshot: Snapshot | None = None


# ----------------------------------------------------------------------------------------------------------- resolving


@functools.cache
def source() -> str:
    """The program that answers on a host: the resolver, with the snapshot probe inside for the search path."""
    read = resources.files("envspec").joinpath
    resolver = read("probe_imports.py").read_text(encoding="utf-8")
    return f"{resolver}\nPROBE = {read('probe.py').read_text(encoding='utf-8')!r}\n"


def request(scripts: Sequence[ScriptImports], *, seconds: float = SECONDS) -> dict[str, Any]:
    """The request of `probe_imports.answer` for these scripts."""
    wanted: list[str] = []
    for script in scripts:
        if script.requirements is not None:
            for text in script.requirements.dependencies:
                try:
                    wanted.append(canonicalize_name(Requirement(text).name))
                except InvalidRequirement:
                    continue
    return {
        "scripts": [
            {
                "modules": [{"module": m, "names": list(names)} for m, names in script.requests().items()],
                "local": list(script.local),
                "sources": [{"file": s.file, "text": s.text} for s in script.sources],
            }
            for script in scripts
        ],
        "distributions": wanted,
        "seconds": seconds,
    }


def resolve(host: Host, scripts: Sequence[ScriptImports], *, timeout: float = 60.0) -> ImportFacts:
    """Resolve the imports of the scripts on a host, in one round trip and without executing anything of it.

    Raises CaptureError when the host cannot be reached or answers something else.
    """
    seconds = max(5.0, min(SECONDS, timeout / 2))
    answer = host.run_python(source(), request(scripts, seconds=seconds), timeout)
    try:
        return ImportFacts.from_dict(answer)
    except ValueError as error:
        raise CaptureError(f"{host.label}: {error}.") from error


def facts_from_snapshot(snapshot: Snapshot, scripts: Sequence[ScriptImports]) -> ImportFacts:
    """What a saved snapshot can say: whether the first one or two parts of a module's name are there.

    Deeper submodules are known where the version tells (`history.layout_of`), names where they are such submodules; others are
    unknown. Nothing is called missing where the snapshot could not read.
    """
    owned: dict[str, tuple[str, str]] = {}
    for dist in snapshot.installed().values():
        for module in dist.modules:
            owned.setdefault(module, (dist.raw_name, dist.version or ""))
    loose = {name for entry in snapshot.path for name in entry.loose}
    mapped = {name for hook in snapshot.hooks for name in hook.mapping}
    sure = snapshot.known("distributions") and snapshot.known("path")
    version = snapshot.interpreter.version if snapshot.interpreter is not None else ""
    deep = {name.split(".")[0] for name in owned if "." in name}
    # The index is read from RECORD; a source beside a compiled module that is gone could still stand in for it.
    lost = {each.path.partition(".")[0].replace("/", "."): each.path for each in snapshot.extensions if each.fault == "missing"}

    def fact(module: str, names: Sequence[str], local: Iterable[str]) -> ModuleFact:
        parts = module.split(".")
        top, second = parts[0], ".".join(parts[:2])
        owner = owned.get(second) or owned.get(top)
        if top in sys.stdlib_module_names or top in local or top in loose or top in mapped:
            return ModuleFact(status="unknown", message="a snapshot does not list these modules", owner=owner)
        if top not in owned:
            if not sure:
                return ModuleFact(status="unknown", message="the snapshot could not read the packages")
            return ModuleFact(status="fails", kind="module", missing=top, message=f"No module named {top!r}")
        if len(parts) > 1 and second not in owned and top in deep and sure:
            # the index says what lies directly below a package; where nothing does, the module is a single file
            return ModuleFact(
                status="fails", kind="submodule", missing=second, parent=top, owner=owner, message=f"No module named {second!r}"
            )
        if module in lost:
            return ModuleFact(status="unknown", message=f"the snapshot says that {lost[module]} is gone", owner=owner)
        by_version = _by_layout(module, owner)
        layout = layout_of(module)
        if by_version is False and layout is not None:
            message = f"No module named {layout.module!r}; {layout.parent!r} is not a package"
            return ModuleFact(status="fails", kind="not-a-package", missing=layout.module, parent=layout.parent, owner=owner, message=message)
        there = len(parts) <= 2 or by_version is True
        inner = {name: name_fact(module, name, owner) for name in names}
        return ModuleFact(status="ok" if there else "unknown", owner=owner, message="" if there else "a snapshot does not go deeper", names=inner)

    def name_fact(module: str, name: str, owner: tuple[str, str] | None) -> ModuleFact:
        whole = f"{module}.{name}"
        by_version = _by_layout(whole, owner)
        if by_version is False:
            return ModuleFact(status="fails", kind="name", missing=f"{module}:{name}", message=f"cannot import name {name!r} from {module!r}")
        return ModuleFact(status="ok" if (whole in owned or by_version) and whole not in lost else "unknown")

    return ImportFacts(
        python=version,
        scripts=tuple(
            ScriptFacts(modules={module: fact(module, names, script.local) for module, names in script.requests().items()})
            for script in scripts
        ),
        host=_host_values(snapshot),
        markers=dict(snapshot.markers),
        distributions={name: dist.version for name, dist in snapshot.installed().items()},
    )


def _by_layout(module: str, owner: tuple[str, str] | None) -> bool | None:
    """Whether the version of its distribution, (name, version), has a module; None where the layouts do not tell."""
    return None if owner is None else has_module(module, canonicalize_name(owner[0]), owner[1])


def _host_values(snapshot: Snapshot) -> dict[str, Any]:
    markers = snapshot.markers
    parts = [int(p) for p in re.findall(r"\d+", markers.get("python_full_version", ""))[:3]]
    values: dict[str, Any] = {"sys.version_info": [*parts, "final", 0]} if len(parts) == 3 else {}
    for key, marker in (
        ("sys.platform", "sys_platform"),
        ("os.name", "os_name"),
        ("platform.system()", "platform_system"),
        ("platform.machine()", "platform_machine"),
        ("platform.python_implementation()", "platform_python_implementation"),
        ("sys.implementation.name", "implementation_name"),
    ):
        if marker in markers:
            values[key] = markers[marker]
    return values


# ------------------------------------------------------------------------------------------------------------- judging


def distribution_names(module: str) -> tuple[str, ...]:
    """Canonical names of distributions that may provide a module: the curated names, then guesses from the import."""
    parts = module.split(".")
    names: list[str] = []
    for i in range(len(parts), 0, -1):
        names.extend(DISTRIBUTION_NAMES.get(".".join(parts[:i]), ()))
    for i in range(min(len(parts), 3), 0, -1):
        names.append(canonicalize_name("-".join(parts[:i])))
    return tuple(dict.fromkeys(names))


@dataclass(frozen=True, kw_only=True, slots=True)
class _Source:
    """Where a missing module can be had: a distribution in a version, and who has it."""

    distribution: str
    version: str | None
    where: str
    locked: bool = False

    def __str__(self) -> str:
        return f"{self.where} has {self.distribution} {self.version}" if self.version else f"{self.where} has it"


@dataclass(frozen=True, kw_only=True, slots=True)
class _Damaged:
    """An installed distribution (a canonical name) that has lost files, and what shows that its version has them."""

    name: str
    version: str
    evidence: str


def judge(
    scripts: Sequence[ScriptImports],
    hosts: Sequence[HostImports],
    locks: Sequence[RoleLock] = (),
    elsewhere: Sequence[HostImports] = (),
) -> list[Finding]:
    """The findings for scripts on hosts. `elsewhere` are hosts only asked for what the others lack.

    A host whose facts hold fewer scripts than are asked about is judged for those it has. Pure.
    """
    found: list[Finding] = []
    for host in hosts:
        for index, script in enumerate(scripts[: len(host.facts.scripts)]):
            found.extend(_Judge(script, index, host, [*hosts, *elsewhere], locks).findings())
    return list(sort_findings(_merged(found)))


def _merged(found: Iterable[Finding]) -> list[Finding]:
    """One finding for what holds alike on several hosts, and for one import that several scripts of a directory reach."""
    shortest: dict[tuple[object, ...], Finding] = {}
    for item in found:
        # An import reached in several ways is told by the shortest of them.
        way: object = "" if "path" in item.evidence else item.what
        place = (item.code, item.subject, item.location, item.evidence.get("cell"), item.hosts, item.fix, item.severity, item.ignored, way)
        other = shortest.get(place)
        if other is None or len(item.what) < len(other.what):
            shortest[place] = item
    together: dict[tuple[object, ...], Finding] = {}
    for item in shortest.values():
        key = (item.code, item.subject, item.location, item.what, item.fix, item.severity, item.ignored)
        other = together.get(key)
        if other is None:
            together[key] = item
        else:
            hosts = tuple(sorted({*other.hosts, *item.hosts}))
            together[key] = other.replace(hosts=hosts)
    return list(together.values())


_RELATIVE: Final = {
    "relative": "is relative, and a script run by its path has no package",
    "above": "goes above the top-level package",
}
"""What is wrong with a relative import wherever it is run."""
_UNTOLD: Final = {
    "computed": "imports a module whose name is computed when it runs",
    "plugins": "imports what the installed plugins name",
    "library": "loads a shared library, which only the host's loader finds",
}
"""What an import that names no module does, for one whose outcome only running it shows."""


class _Judge:
    """One script on one host."""

    def __init__(
        self,
        script: ScriptImports,
        index: int,
        host: HostImports,
        everyone: Sequence[HostImports],
        locks: Sequence[RoleLock],
    ) -> None:
        self.script = script
        self.index = index
        self.host = host
        self.facts = host.facts.scripts[index]
        self.others = [other for other in everyone if other is not host]
        self.locks = [lock for lock in locks if lock.role is None or lock.role == host.role]
        self.foreign_locks = [lock for lock in locks if lock not in self.locks]

    def findings(self) -> Iterator[Finding]:
        yield from self.problems()
        yield from self.requirements()
        yield from self.shadows()
        best: dict[tuple[str, str], tuple[int, Finding, list[str]]] = {}
        for item in self.script.imports:
            for made in self.of_import(item):
                # One finding for one cause: the strongest place it is met, the others named beside it.
                key = (str(made.evidence.get("missing") or made.subject), "" if made.code != "EP112" else made.code)
                rank = ("breaks", "results", "noise").index(made.severity) + (10 if made.ignored else 0)
                place = str(item.site)
                if key not in best:
                    best[key] = (rank, made, [place])
                else:
                    kept_rank, kept, places = best[key]
                    places.append(place)
                    best[key] = (rank, made, places) if rank < kept_rank else (kept_rank, kept, places)
        for _, made, places in best.values():
            own = f"{made.location.file}:{made.location.line}" if made.location is not None else ""
            also = [p for p in dict.fromkeys(places) if p != own]
            yield made.replace(evidence={**made.evidence, "also": also}) if also else made

    # -- what stands outside imports

    def problems(self) -> Iterator[Finding]:
        local_syntax = {p.site.file for p in self.script.problems if p.kind == "syntax"}
        compiled = {s.file for s in self.script.sources}
        for file, (line, message) in self.facts.syntax.items():
            place = Site(file=file, line=line)
            what = f"{place}: Python {self.host.facts.python} cannot compile it: {message}."
            yield self.make("EP110", file, what, place)
        for problem in self.script.problems:
            if problem.kind == "unreadable":
                yield self.make("EP110", problem.site.file, f"{problem.message}.", problem.site)
            elif problem.kind == "syntax":
                if problem.site.file in compiled and problem.site.file in local_syntax and self.host.facts.host:
                    continue  # the host's own parser has decided
                yield self.make("EP110", problem.site.file, f"{problem.site}: {problem.message}.", problem.site)
            else:
                code = "EP102" if problem.kind == "submodule" else "EP104"
                yield self.make(code, problem.subject, f"{problem.site}: {problem.message}.", problem.site,
                                fix="Correct the import, or add what is missing to the script's own modules.")  # fmt: skip

    def requirements(self) -> Iterator[Finding]:
        wanted = self.script.requirements
        if wanted is None:
            return
        python = self.host.facts.python
        try:
            if wanted.requires_python and not SpecifierSet(wanted.requires_python).contains(python, prereleases=True):
                what = f"{wanted.site}: the script asks for Python {wanted.requires_python}; the host has {python}."
                yield self.make("EP111", "python", what, wanted.site, expected=wanted.requires_python, found=python)
        except (InvalidSpecifier, InvalidVersion):
            yield self.make("EP110", self.script.script, f"{wanted.site}: requires-python is not valid.", wanted.site)
        for text in wanted.dependencies:
            try:
                requirement = Requirement(text)
                if requirement.marker is not None and not requirement.marker.evaluate(dict(self.host.facts.markers)):
                    continue
            except (InvalidRequirement, InvalidMarker, UndefinedEnvironmentName):
                yield self.make(
                    "EP110", self.script.script, f"{wanted.site}: {text!r} is not a requirement.", wanted.site
                )
                continue
            name = canonicalize_name(requirement.name)
            version = self.host.facts.distributions.get(name)
            if version is not None and _contains(requirement.specifier, version):
                continue
            has = f"the host has {version}" if version else "the host does not have it"
            yield self.make(
                "EP111", name, f"{wanted.site}: the script asks for {text}; {has}.", wanted.site,
                fix=mend.install(self.host.snapshot, [text]), expected=text, found=version,
            )  # fmt: skip

    def shadows(self) -> Iterator[Finding]:
        for name, hidden in self.facts.local.items():
            owner = hidden.get("owner")
            if not hidden.get("stdlib") and owner is None:
                continue
            if self.script.root and str(hidden.get("origin") or "").startswith(self.script.root + "/"):
                continue  # the project itself, installed from where it lies
            victim = "the standard library's" if owner is None else f"{owner['name']} {owner['version']}'s"
            what = f"{self.script.script}: its directory has a module {name}, which hides {victim} module {name}."
            yield self.make("EP106", name, what, None, evidence={"origin": hidden.get("origin")})

    # -- imports

    def present(self, module: str) -> bool | None:
        fact = self.facts.modules.get(module)
        if fact is None or fact.status == "unknown":
            return True if module.split(".")[0] in self.script.local else None
        if fact.status == "fails" and self.brought(module, fact):
            return True
        return None if fact.status == "fails" and fact.kind == "module" and self.script.search else fact.status == "ok"

    def brought(self, module: str, fact: ModuleFact) -> bool:
        """Whether the script itself brings what the host lacks, in `sys.modules` or in a directory it adds."""
        missing = (fact.missing or "").partition(":")[0]
        added = self.script.added
        return module in added or missing in added or (fact.kind == "module" and missing.split(".")[0] in added)

    def of_import(self, item: Import) -> Iterator[Finding]:
        verdicts = [gate.holds(self.host.facts.host, self.present) for gate in item.gates]
        if False in verdicts:
            return
        conditional = None in verdicts
        guarded = any(g.guards for g, v in zip(item.gates, verdicts, strict=True) if v is None)
        if item.unresolved in _RELATIVE:
            what = f"{item.site}: `{item.text}` {_RELATIVE[item.unresolved]}"
            yield self.placed("EP115", item, item.text, f"{what}{self.reached(item)}.", conditional, guarded, {})
            return
        if item.unresolved:
            what = f"{item.site}: `{item.text}` {_UNTOLD[item.unresolved]}."
            yield self.make("EP109", item.site.file, what, item.site, ignored=_ignored(item, "EP109"),
                            evidence={"missing": str(item.site)})  # fmt: skip
            return
        fact = self.facts.modules.get(item.module)
        if fact is None:
            return
        if item.form == "run" and fact.status == "ok" and fact.package:
            fact = self.facts.modules.get(f"{item.module}.__main__", fact)
        if fact.status == "fails" and (self.brought(item.module, fact) or (item.beside and fact.kind == "module" and not fact.chain)):
            return
        if fact.status == "fails" and fact.kind == "module" and not fact.chain and self.script.search and not item.optional:
            what = f"{item.site} imports {item.module}: there is no module {fact.missing} on the host, but {self.script.search[0]} changes the search for modules in a way that only running it shows."
            yield self.make("EP109", item.module, what, item.site, ignored=_ignored(item, "EP109"), evidence={"missing": fact.missing or item.module})
            return
        if fact.status == "fails":
            yield from self.failing(item, item.module, fact, conditional, guarded)
            if fact.behind is not None:
                top = item.module.split(".")[0]
                yield from self.failing(item, top, fact.behind, conditional, guarded)
            return
        standard = item.module.split(".")[0] in sys.stdlib_module_names
        told = "snapshot" in fact.message or "has no file for it" in fact.message
        if fact.status == "unknown" and told and not item.optional and not standard:
            what = f"{item.site} imports {item.module}: {fact.message}."
            yield self.make("EP109", item.module, what, item.site, ignored=_ignored(item, "EP109"))
        for name in item.names:
            inner = fact.names.get(name)
            if inner is not None and inner.status == "fails":
                yield from self.failing(item, f"{item.module}.{name}", inner, conditional, guarded)
        yield from self.unlocked(item, fact)

    def failing(
        self, item: Import, wanted: str, fact: ModuleFact, conditional: bool, guarded: bool
    ) -> Iterator[Finding]:
        missing = fact.missing or ""
        module, _, name = missing.partition(":")
        direct = not fact.chain and fact.kind in ("module", "submodule", "not-a-package", "tag", "name")
        code = {
            "module": "EP101", "submodule": "EP102", "not-a-package": "EP103", "tag": "EP105", "name": "EP104",
        }.get(fact.kind, "EP114")  # fmt: skip
        stdlib = module.split(".")[0] in sys.stdlib_module_names or stdlib_change(module, self.version) is not None
        change = stdlib_change(module, self.version) if fact.kind in ("module", "submodule") else None
        has = self.has(module, fact)
        if fact.kind == "module":
            cause = f"there is no module {module} on the host"
            if stdlib:
                code = "EP113"
                cause = f"Python {self.host.facts.python} has no module {module}" + (f": {change}" if change else "")
        elif fact.kind == "submodule":
            cause = f"{has} has no submodule {module}"
            if stdlib:
                code = "EP113"
                cause = f"Python {self.host.facts.python} has no module {module}" + (f": {change}" if change else "")
        elif fact.kind == "not-a-package":
            cause = f"in {has}, {fact.parent or module.rpartition('.')[0]} is a module, not a package"
        elif fact.kind == "tag":
            files = ", ".join(file.rpartition("/")[2] for file in fact.files)
            cause = f"{module} is there only as {files}, which this interpreter (Python {self.host.facts.python}) cannot load"
        elif fact.kind == "name":
            cause = f"{has} has a module {module} without the name {name}"
        elif fact.kind == "distribution":
            cause = f"the metadata of the distribution {missing} is not there"
        elif fact.kind == "relative":
            cause = fact.message
        elif fact.kind == "syntax":
            cause = f"a source there is not valid for Python {self.host.facts.python}: {fact.message}"
        else:
            cause = fact.message or "it raises an error of its own accord"
        subject = missing.replace(":", ".") if direct and code != "EP101" else module or item.module
        if not direct:
            code = "EP114"
            place = fact.chain[-1] if fact.chain else None
            cause = f"it is there, but {fact.modules[-1] if fact.modules else wanted} fails to import ({place}): {cause}"
            subject = module or item.module
        layout = _layout(wanted, missing)
        if layout is not None and layout.has(self.installed(layout.distribution)):
            layout = None  # the version here is new enough: the layout is not what is wrong
        damaged = self.damaged(item, wanted, fact) if code != "EP113" else None
        sources = self.sources(item, wanted, missing, layout) if code not in ("EP113", "EP105") and damaged is None else []
        older = self.older_locks(layout) if layout is not None else {}
        extra = ""
        if layout is not None and fact.kind in ("submodule", "not-a-package", "name"):
            cause += f" ({layout.before} before {layout.distribution} {layout.since}, whose layout brought the submodule)"
        if damaged is not None:
            cause += f", which {damaged.name} {damaged.version} should have: {damaged.evidence}"
        if sources:
            extra = f" Elsewhere: {'; '.join(str(s) for s in sources[:3])}."
        elif fact.near and direct and not stdlib and damaged is None:
            extra = f" Near it: {', '.join(fact.near)}."
        if layout is not None and older:
            held = " and ".join(f"{path} has {version}" for path, version in older.items())
            extra += f" The lock must be raised to {layout.distribution} {layout.since} or newer: {held}."
        what = f"{item.site} imports {wanted}: {cause}{self.reached(item)}.{extra}"
        evidence: dict[str, Json] = {
            "missing": missing or item.module,
            "import": item.text,
            "near": list(fact.near),
            "chain": [f"{m} ({s})" for m, s in zip(fact.modules, fact.chain, strict=True)],
            "available": [str(s) for s in sources],
        }
        if fact.parent_origin:
            evidence["origin"] = fact.parent_origin
        yield self.placed(code, item, subject, what, conditional, guarded, evidence,
                          fix=self.fix(code, module, sources, layout, older, damaged))  # fmt: skip

    def installed(self, distribution: str) -> str | None:
        """The host's version of a distribution (a canonical name); None where it has none or was not asked for it."""
        dist = self.distribution(distribution)
        if dist is not None:
            return dist.version
        owners = (known.owner for known in self.facts.modules.values() if known.owner is not None)
        owned = next((owner[1] for owner in owners if canonicalize_name(owner[0]) == distribution), None)
        return owned or self.host.facts.distributions.get(distribution)

    def distribution(self, name: str) -> Distribution | None:
        """The installed distribution of a canonical name, where the host's snapshot is there to tell."""
        return self.host.snapshot.installed().get(name) if self.host.snapshot is not None else None

    @property
    def version(self) -> tuple[int, int]:
        numbers = [int(n) for n in re.findall(r"\d+", self.host.facts.python)[:2]]
        return (numbers[0], numbers[1]) if len(numbers) == 2 else (sys.version_info[0], sys.version_info[1])

    def has(self, module: str, fact: ModuleFact) -> str:
        """The distribution the missing part should be in, as the host has it: `speculators 0.2.0`."""
        parts = module.split(".")
        for i in range(len(parts), 0, -1):
            known = self.facts.modules.get(".".join(parts[:i]))
            if known is not None and known.owner is not None:
                return " ".join(known.owner)
        return fact.parent or parts[0]

    def reached(self, item: Import) -> str:
        """How the statement is reached, as the end of a sentence."""
        steps = ", ".join(str(site) for site in item.path)
        if item.form == "lazy":
            return "; the import is lazy and fails when the name is first used"
        if item.reach == "module":
            return "; it runs at import" + (f" (by way of {steps})" if steps else "")
        if item.reach == "called":
            where = f"is in {item.function}()" if item.function else "runs"
            return f"; it {where}, reached from {steps}"
        if item.function is None:
            return f"; {item.site.file} is imported in functions only, which nothing at module level was seen to call"
        return f"; it is in {item.function}(), which nothing at module level was seen to call"

    def placed(
        self, code: str, item: Import, subject: str, what: str, conditional: bool, guarded: bool,
        evidence: dict[str, Json], fix: str | None = None,
    ) -> Finding:  # fmt: skip
        """The finding under the code that fits how surely the import is reached."""
        if item.optional or guarded:
            code, severity = "EP108", "noise"
        elif item.reach == "function" or conditional or item.form == "lazy":
            unknown = next((g.text for g in item.gates if g.holds(self.host.facts.host, self.present) is None), "")
            if unknown:
                what = f"{what[:-1] if what.endswith('.') else what} (only if {unknown})."
            code, severity = "EP107", "results"
        else:
            severity = None
        evidence = {**evidence, "reach": item.reach, "path": [str(site) for site in item.path]}
        return self.make(code, subject, what, item.site, fix=fix, evidence=evidence, ignored=_ignored(item, code),
                         severity=severity)  # fmt: skip

    def make(
        self, code: str, subject: str, what: str, site: Site | None, *, fix: str | None = None,
        evidence: dict[str, Json] | None = None, ignored: bool = False, severity: Any = None,
        expected: str | None = None, found: str | None = None,
    ) -> Finding:  # fmt: skip
        facts: dict[str, Json] = dict(evidence or {})
        facts["script"] = self.script.script
        if expected is not None:
            facts.update(expected=expected, found=found)
        location = None
        if site is not None:
            line = site.line or None if site.cell is None else None
            location = Location(file=site.file, line=line, column=site.column or None if line else None)
            if site.cell is not None:
                facts["cell"], facts["cell_line"] = site.cell, site.line
        made = finding(code, subject, [self.host.label], what, fix=fix, severity=severity, location=location,
                       evidence=facts)  # fmt: skip
        return made.replace(ignored=True) if ignored else made

    # -- where else

    def there(self, item: Import, wanted: str) -> Iterator[tuple[str, str, str]]:
        """The other hosts that surely have it: label, distribution and version."""
        name = wanted[len(item.module) + 1 :] if wanted.startswith(item.module + ".") else ""
        for other in self.others:
            if self.index >= len(other.facts.scripts):
                continue
            fact = other.facts.scripts[self.index].modules.get(item.module)
            if fact is None or fact.status != "ok" or fact.owner is None:
                continue
            if name and (name not in fact.names or fact.names[name].status != "ok"):
                continue
            yield (other.label, *fact.owner)

    def damaged(self, item: Import, wanted: str, fact: ModuleFact) -> _Damaged | None:
        """The distribution whose version here should have what is missing, and what shows it: its files are not all there."""
        if fact.kind not in ("module", "submodule", "not-a-package", "name") or fact.missing is None:
            return None
        # `from package import module` looks for a name, and then for a module of that name.
        module = fact.missing.replace(":", ".")
        if self.host.snapshot is not None:
            lost = {(each.owner, each.path.partition(".")[0].replace("/", ".")) for each in self.host.snapshot.extensions if each.fault == "missing"}
            for dist in self.host.snapshot.installed().values():
                # The module index, two parts deep, is read from RECORD and names what was deleted since; so do the compiled files.
                listed = module in dist.modules or (dist.name, module) in lost
                if listed and dist.record == "ok" and dist.origin.kind != "editable" and dist.version:
                    return _Damaged(name=dist.name, version=dist.version, evidence=f"the RECORD of {dist.raw_name} lists it")
        if module.split(".")[0] != item.module.split(".")[0]:
            return None
        for label, name, version in self.there(item, wanted):
            here = self.installed(canonicalize_name(name))
            if here is not None and _same_release(here, version):
                return _Damaged(name=canonicalize_name(name), version=here, evidence=f"host {label} has it in {name} {version}")
        layout = layout_of(module) if fact.kind != "name" else None
        here = self.installed(layout.distribution) if layout is not None else None
        if layout is not None and here is not None and layout.module == module and layout.has(here):
            return _Damaged(name=layout.distribution, version=here, evidence=f"{layout.distribution} has it since {layout.since}")
        return None

    def older_locks(self, layout: Layout) -> dict[str, str]:
        """The host's own locks, by path, whose version of a distribution is older than the layout."""
        held = {lock.lock.path: self.locked(lock, layout.distribution) for lock in self.locks}
        return {path: versions[0] for path, versions in held.items() if versions and all(layout.has(each) is False for each in versions)}

    def sources(self, item: Import, wanted: str, missing: str, layout: Layout | None) -> list[_Source]:
        """Who has what is missing: the host's own locks, other roles' locks, other hosts; the surest first.

        A lock tells versions only. One that is installed here without what is missing, or is older than its layout, is no source.
        """
        module = missing.partition(":")[0] or item.module
        hosts: list[_Source] = []
        candidates: list[str] = []
        if module.split(".")[0] == item.module.split(".")[0]:
            for label, distribution, version in self.there(item, wanted):
                candidates.append(canonicalize_name(distribution))
                hosts.append(_Source(distribution=distribution, version=version, where=f"host {label}"))
        names = list(dict.fromkeys([*candidates, *distribution_names(module)]))
        mine = self.facts.modules.get(item.module.split(".")[0]) or self.facts.modules.get(item.module)
        have = canonicalize_name(mine.owner[0]) if mine is not None and mine.owner else None
        if have and have not in names and module.split(".")[0] == item.module.split(".")[0]:
            names.insert(0, have)
        found: list[_Source] = []
        for lock in [*self.locks, *self.foreign_locks]:
            for name in names:
                here = self.installed(name)
                versions = [
                    each
                    for each in self.locked(lock, name)
                    if not (layout is not None and layout.distribution == name and layout.has(each) is False)
                    and not (here is not None and _same_release(here, each))
                ]
                if versions:
                    where = lock.lock.path if lock.role is None else f"{lock.lock.path} (role {lock.role})"
                    found.append(
                        _Source(distribution=name, version=versions[0], where=where, locked=lock in self.locks)
                    )
                    break
        return [*found, *hosts]

    def locked(self, lock: RoleLock, name: str) -> tuple[str, ...]:
        target = Target.of(self.host.snapshot) if self.host.snapshot else Target(markers=dict(self.host.facts.markers))
        package = lock.lock.resolve(target).packages.get(name)
        if package is not None and package.version:
            return (package.version,)
        return lock.lock.versions(name)

    def fix(
        self,
        code: str,
        module: str,
        sources: Sequence[_Source],
        layout: Layout | None,
        older: Mapping[str, str],
        damaged: _Damaged | None,
    ) -> str | None:
        """The smallest command that mends it, None for the rule's own words."""
        if code in ("EP113", "EP115", "EP105"):
            return None
        snapshot = self.host.snapshot
        if damaged is not None:
            return mend.reinstall(snapshot, f"{damaged.name}=={damaged.version}", dist=self.distribution(damaged.name))
        best = next((s for s in sources if s.version), None)
        command = None
        if best is not None:
            command = mend.install(snapshot, [f"{canonicalize_name(best.distribution)}=={best.version}"])
        elif layout is not None:
            command = mend.install(snapshot, [f"{layout.distribution}>={layout.since}"])
        else:
            curated = DISTRIBUTION_NAMES.get(module) or DISTRIBUTION_NAMES.get(module.split(".")[0])
            if curated and code in ("EP101", "EP114"):
                command = mend.install(snapshot, [curated[0]])
        if command is not None and layout is not None and older:
            command += f"  # and raise {layout.distribution} in {', '.join(older)}"
        return command

    def unlocked(self, item: Import, fact: ModuleFact) -> Iterator[Finding]:
        """An import that works here, from a distribution the lock of this host does not have."""
        if not self.locks or fact.owner is None or fact.status != "ok" or item.optional:
            return
        name = canonicalize_name(fact.owner[0])
        if any(name in lock.lock.names for lock in self.locks):
            return
        lock = self.locks[0].lock.path
        what = f"{item.site} imports {item.module} from {fact.owner[0]} {fact.owner[1]}, which is not in {lock}."
        yield self.make("EP112", name, what, item.site, ignored=_ignored(item, "EP112"), evidence={"missing": name},
                        fix=f"Add {shlex.quote(name)} to the requirements that {lock} is made from, and lock again.")  # fmt: skip


def _layout(wanted: str, missing: str) -> Layout | None:
    """The layout that explains why a part of a module's name is missing, whatever the version."""
    dotted = missing.replace(":", ".")
    for layout in (layout_of(wanted), layout_of(dotted)):
        if layout is not None and (f"{dotted}.".startswith(f"{layout.module}.") or f"{layout.module}.".startswith(f"{dotted}.")):
            return layout
    return None


def _same_release(installed: str, version: str) -> bool:
    """Whether two versions are one release; a local label (``+cu128``) counts only where both have one."""
    try:
        one, other = Version(installed), Version(version)
    except InvalidVersion:
        return installed == version
    return one.public == other.public and (one.local == other.local or not (one.local and other.local))


def _contains(specifier: SpecifierSet, version: str) -> bool:
    try:
        return specifier.contains(Version(version), prereleases=True)
    except InvalidVersion:
        return not str(specifier)


def _ignored(item: Import, code: str) -> bool:
    return "*" in item.ignored or code in item.ignored
