"""The Snapshot: what one host's Python environment is, as plain frozen data.

A snapshot is written by :mod:`envspec.probe` on the host, travels as JSON (schema ``envspec/snapshot/1``, in
``envspec/schema/snapshot.json``) and is read here. Reading is strict: a value of the wrong kind is an error that
carries the path to it (``distributions[3].version: expected a string, found 7``). Unknown keys are ignored, so that a
newer probe can be read.

Absence and ignorance are different things. A field that is ``None`` or empty was looked for and is not there, *if*
the section it belongs to has status ``ok`` in :attr:`Snapshot.sections`. With status ``partial`` what is listed is
true and the rest is not known; with ``unknown`` nothing is known, and the reason says why.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
import os
import re
import types
import typing
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeVar

from envspec.errors import UsageError
from envspec.files import write_whole
from envspec.json import read_json

__all__ = [
    "SCHEMA",
    "SECTIONS",
    "Capture",
    "Conda",
    "ConfigValue",
    "Container",
    "Cpu",
    "CxxLibrary",
    "Distribution",
    "Driver",
    "Extension",
    "FileFault",
    "Gpu",
    "Image",
    "Interpreter",
    "Leftover",
    "Libc",
    "Library",
    "Limits",
    "LoaderDirectory",
    "Needed",
    "OperatingSystem",
    "Origin",
    "PathEntry",
    "Problem",
    "Record",
    "Section",
    "SharedFile",
    "Snapshot",
    "SnapshotError",
    "StartupHook",
    "Toolkit",
    "TorchBuild",
    "Variable",
    "Verification",
    "identity",
    "json_schema",
    "load",
    "save",
]

SCHEMA = "envspec/snapshot/1"

Status = Literal["ok", "partial", "unknown"]

SECTIONS: tuple[str, ...] = (
    "interpreter",
    "path",
    "distributions",
    "torch",
    "libraries",
    "extensions",
    "loader",
    "driver",
    "gpus",
    "toolkit",
    "environment",
    "limits",
    "container",
    "configuration",
    "deep",
)
"""Every section a capture has a status for. ``deep`` is ``ok`` only when files were verified against RECORD."""


class SnapshotError(UsageError):
    """A snapshot file or document that cannot be read.

    ``where`` is the path to the bad value, such as ``gpus[0].name``.
    """

    def __init__(self, message: str, where: str = "") -> None:
        self.where = where
        super().__init__(f"{where}: {message}" if where else message)


RecordT = TypeVar("RecordT", bound="Record")


class Record:
    """Base of the snapshot's dataclasses: JSON in and out, driven by the field types."""

    __slots__ = ()

    @classmethod
    def from_dict(cls: type[RecordT], data: object, where: str = "") -> RecordT:
        """Read from JSON data.

        Raises:
            SnapshotError: a required key is missing or a value is of the wrong kind; the message begins
            with its path.
        """
        kind: Any = cls
        value: RecordT = _reader(kind)(data, where)
        return value

    def to_dict(self) -> dict[str, Any]:
        """The JSON form: every field, tuples as lists; fields that are empty or None by default are left out."""
        out: dict[str, Any] = {}
        kind: Any = type(self)
        for name, default in _defaults(kind):
            value = getattr(self, name)
            if default is not _REQUIRED and value == default:
                continue
            out[name] = _plain(value)
        return out


@dataclass(frozen=True, kw_only=True, slots=True)
class Section(Record):
    """How the reading of one section went. ``reason`` is one sentence for ``partial`` and ``unknown``."""

    status: Status
    reason: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Capture(Record):
    """How and when the snapshot was taken. Not part of the digest.

    ``label`` is the name used in reports, ``target`` the host as written on the command line, ``python`` the
    interpreter asked for. ``noise`` is a sample of what the host's login printed outside the frame. ``salt_id``
    names the salt of the redacted values' hashes: those of two snapshots can be compared only when their salt ids
    are equal. ``deep`` lists the distributions asked for with ``--deep``, ``["*"]`` for all. ``variables`` lists the
    environment variables recorded besides those that always are, by name or ``PREFIX_*``.
    """

    label: str
    target: str
    transport: str
    time: str | None = None
    elapsed_s: float | None = None
    hostname: str | None = None
    user: str | None = None
    cwd: str | None = None
    python: str | None = None
    noise: str | None = None
    salt_id: str | None = None
    deep: tuple[str, ...] = ()
    variables: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Interpreter(Record):
    """The interpreter that answered. ``version`` is the full PEP 440 version (``3.12.1``), ``soabi`` the
    extension tag.

    ``externally_managed`` is PEP 668's marker: the mend must not change this environment with pip.
    """

    implementation: str
    version: str
    executable: str
    prefix: str
    base_prefix: str
    real_executable: str | None = None
    venv: bool = False
    system_site: bool = False
    conda: bool = False
    venv_creator: str | None = None
    soabi: str | None = None
    platform: str | None = None
    pointer_bits: int = 64
    byteorder: str = "little"
    debug: bool = False
    free_threaded: bool = False
    externally_managed: bool = False
    build: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Libc(Record):
    """The C library: ``family`` is ``glibc`` or ``musl``, ``version`` such as ``2.36``."""

    family: str
    version: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class CxxLibrary(Record):
    """The C++ library (``libstdc++.so.6``) that a module without a run path gets, and the highest versions it provides."""

    path: str
    glibcxx: str | None = None
    cxxabi: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class OperatingSystem(Record):
    """``/etc/os-release`` and the kernel. ``kernel`` belongs to the machine, also inside a container."""

    id: str | None = None
    version: str | None = None
    name: str | None = None
    kernel: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Cpu(Record):
    """``flags`` are only those that change which kernels run (``avx2``, ``avx512f``, ``amx_bf16``, ...)."""

    model: str | None = None
    architecture: str | None = None
    flags: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class PathEntry(Record):
    """One entry of ``sys.path`` as a script of this interpreter would see it, after the script's own directory.

    ``by`` is what put it there: the ``.pth`` file, or ``PYTHONPATH``. ``loose`` are the importable top-level
    names in it that no distribution owns (only for entries outside the standard library).
    """

    path: str
    origin: Literal["pythonpath", "stdlib", "venv", "user", "site", "pth"]
    by: str | None = None
    kind: Literal["directory", "archive", "missing", "unknown"] = "directory"
    loose: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class StartupHook(Record):
    """Code that the interpreter runs at start. It was read, not run.

    ``line`` is the import line of a ``.pth`` file. ``mapping`` is an editable finder's table, module name to
    source path.
    """

    kind: Literal["pth", "start", "sitecustomize", "usercustomize", "editable"]
    path: str
    line: str | None = None
    mapping: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, slots=True)
class Problem(Record):
    """Something wrong with a distribution's metadata; ``kind`` is stable, ``detail`` is one sentence.

    Kinds: ``no-metadata``, ``no-name``, ``no-version``, ``not-utf8``, ``name-mismatch``, ``version-mismatch``,
    ``no-record``, ``record-damaged``, ``direct-url-damaged``, ``wheel-damaged``, ``duplicate``, ``unreadable``.
    """

    kind: str
    detail: str
    path: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Origin(Record):
    """Where a distribution was installed from (PEP 610), with what git says of a source directory.

    ``dirty`` is None when it cannot be known; ``note`` then says why. URLs carry no credentials.
    """

    kind: Literal["index", "archive", "vcs", "directory", "editable", "conda", "system", "unknown"]
    url: str | None = None
    vcs: str | None = None
    commit: str | None = None
    requested_revision: str | None = None
    subdirectory: str | None = None
    dirty: bool | None = None
    changed: tuple[str, ...] = ()
    hashes: Mapping[str, str] = field(default_factory=dict)
    note: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Conda(Record):
    """The conda package that owns a distribution, from ``conda-meta/*.json``."""

    name: str
    version: str
    build: str | None = None
    channel: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class FileFault(Record):
    """One file that is not what RECORD says. ``path`` is relative to the distribution's location, with ``/``."""

    path: str
    fault: Literal["modified", "missing", "unreadable", "added"]
    expected: str | None = None
    found: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Verification(Record):
    """The result of ``--deep``: every file of RECORD that carries a hash, read and hashed. ``complete`` is False
    after a time limit.

    ``source_digest`` is, for an editable install, a digest of the source tree's Python files.
    """

    checked: int
    complete: bool = True
    faults: tuple[FileFault, ...] = ()
    source_digest: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Distribution(Record):
    """One installed distribution.

    ``name`` is canonical (PEP 503), ``raw_name`` as METADATA spells it. ``build_variant`` is the build behind one
    public version (``cu128``, ``cpu``, another local label), None when there is only one. ``build`` is the
    wheel's build number. ``content`` is a digest of the files by RECORD, without what an installer writes;
    ``metadata`` one of METADATA alone. ``modules`` are dotted importable names, top level and second level.
    ``shadowed_by`` is the location of the copy that is imported instead of this one. ``current`` is, for one of
    two metadata directories in one place, whether the files on disk are this one's.
    """

    name: str
    raw_name: str
    version: str | None
    location: str
    metadata_path: str
    format: Literal["dist-info", "egg-info", "egg-link", "archive"] = "dist-info"
    build_variant: str | None = None
    tags: tuple[str, ...] = ()
    build: str | None = None
    variant_label: str | None = None
    installer: str | None = None
    requested: bool = False
    origin: Origin = field(default_factory=lambda: Origin(kind="unknown"))
    conda: Conda | None = None
    requires: tuple[str, ...] = ()
    requires_python: str | None = None
    extras: tuple[str, ...] = ()
    modules: tuple[str, ...] = ()
    import_names: tuple[str, ...] = ()
    import_namespaces: tuple[str, ...] = ()
    scripts: tuple[str, ...] = ()
    record: Literal["ok", "absent", "empty", "damaged"] = "absent"
    files: int = 0
    content: str | None = None
    metadata: str | None = None
    shadowed_by: str | None = None
    current: bool | None = None
    verification: Verification | None = None
    problems: tuple[Problem, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Leftover(Record):
    """What an interrupted uninstall left: a directory ``~name`` that imports nothing and is safe to delete."""

    path: str
    name: str


@dataclass(frozen=True, kw_only=True, slots=True)
class SharedFile(Record):
    """Files that two distributions of one location both own. ``same`` is whether their recorded hashes agree for
    all of them.

    ``paths`` holds the first few, ``count`` all.
    """

    owners: tuple[str, ...]
    paths: tuple[str, ...]
    count: int
    same: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class TorchBuild(Record):
    """torch as its files say, without importing it.

    ``version`` is ``torch.__version__`` (may carry ``+cu128`` where the distribution does not), ``archs`` the GPU
    architectures it carries code for, ``cxx11_abi`` whether libc10 uses the new C++ string ABI.
    """

    location: str
    version: str | None = None
    variant: str | None = None
    cuda: str | None = None
    hip: str | None = None
    git_version: str | None = None
    debug: bool = False
    archs: tuple[str, ...] = ()
    cxx11_abi: bool | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Library(Record):
    """A native library that tells its own version when loaded (in a child process).

    ``component`` is ``cudart``, ``nccl``, ``cudnn``, ``cublas``, ...; ``version`` is None with a ``note`` when it
    would not say. ``declared`` is the version of the distribution that owns the file.
    """

    component: str
    path: str
    version: str | None = None
    owner: str | None = None
    declared: str | None = None
    note: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Needed(Record):
    """One DT_NEEDED of an extension and where the loader would find it.

    ``by``: ``rpath``, ``LD_LIBRARY_PATH``, ``runpath``, ``system`` (cache or default directories),
    ``environment`` (a distribution owns a file of that name, which another import may have loaded before), or
    ``nothing``.
    """

    soname: str
    by: Literal["rpath", "LD_LIBRARY_PATH", "runpath", "system", "environment", "nothing"]
    path: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Extension(Record):
    """A compiled module or library of a distribution, from its ELF dynamic section.

    ``needed`` lists only what is *not* part of the system's C runtime, and the C++ library where it is not the snapshot's
    ``cxx``. ``glibc``, ``glibcxx``, ``cxxabi`` are the
    highest versions it asks for. ``torch_symbols`` counts its undefined torch symbols; ``missing`` are those no
    torch library here exports (mangled), empty when ``torch_checked`` is False because there is no torch to look
    in. ``optional`` is, for one with an unmet need, whether the code beside it goes on where loading it
    fails. ``fault`` says why the file could not be read as one: ``missing``, ``truncated or damaged``, ...
    """

    path: str
    owner: str
    needed: tuple[Needed, ...] = ()
    glibc: str | None = None
    glibcxx: str | None = None
    cxxabi: str | None = None
    machine: str | None = None
    torch_symbols: int = 0
    torch_checked: bool = False
    missing: tuple[str, ...] = ()
    optional: bool = False
    fault: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class LoaderDirectory(Record):
    """A directory the loader searches before the packages' own, with the GPU and C++ libraries in it."""

    directory: str
    source: Literal["LD_LIBRARY_PATH", "LD_PRELOAD", "ld.so.conf", "ld.so.cache"]
    libraries: tuple[str, ...] = ()
    exists: bool = True


@dataclass(frozen=True, kw_only=True, slots=True)
class Driver(Record):
    """The NVIDIA driver: ``version`` such as ``570.124.06``, ``cuda`` the newest CUDA it supports (``12.8``)."""

    version: str | None = None
    cuda: str | None = None
    open_kernel: bool | None = None
    source: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Gpu(Record):
    """One GPU; ``compute_capability`` such as ``9.0``, memory in MiB, power in W."""

    index: int
    name: str
    uuid: str | None = None
    compute_capability: str | None = None
    memory_mib: int | None = None
    vbios: str | None = None
    mig: str | None = None
    ecc: str | None = None
    persistence: str | None = None
    power_limit_w: float | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Toolkit(Record):
    """A CUDA toolkit on the machine; matters where kernels are compiled at run time."""

    path: str
    version: str | None = None
    nvcc: bool = False
    source: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Variable(Record):
    """An environment variable.

    A redacted one has no value, or one without its credentials; ``hash`` is salted (see Capture).
    """

    value: str | None = None
    redacted: bool = False
    hash: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Limits(Record):
    """Resource limits; None is unlimited or not applicable. Sizes in bytes, cpus as a count."""

    nofile_soft: int | None = None
    nofile_hard: int | None = None
    memlock_soft: int | None = None
    memlock_hard: int | None = None
    stack_soft: int | None = None
    shm_bytes: int | None = None
    memory_bytes: int | None = None
    cgroup_memory_bytes: int | None = None
    cgroup_cpus: float | None = None
    cpus: int | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Image(Record):
    """What the container engine says of the image."""

    id: str | None = None
    tags: tuple[str, ...] = ()
    repo_digests: tuple[str, ...] = ()
    layers: tuple[str, ...] = ()
    labels: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, slots=True)
class Container(Record):
    """``kind`` is ``docker``, ``podman``, ``apptainer``, ``kubernetes``, ``lxc`` or ``other``; None outside a
    container."""

    kind: str | None = None
    name: str | None = None
    image: Image | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class ConfigValue(Record):
    """A setting of pip or uv that can change what an install resolves to, and the file it stands in."""

    tool: Literal["pip", "uv"]
    key: str
    value: str
    source: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Snapshot(Record):
    """One host's environment. See the module's docstring for what an empty field means."""

    schema: str = SCHEMA
    capture: Capture
    sections: Mapping[str, Section] = field(default_factory=dict)
    interpreter: Interpreter | None = None
    markers: Mapping[str, str] = field(default_factory=dict)
    libc: Libc | None = None
    os: OperatingSystem | None = None
    cpu: Cpu | None = None
    path: tuple[PathEntry, ...] = ()
    hooks: tuple[StartupHook, ...] = ()
    distributions: tuple[Distribution, ...] = ()
    leftovers: tuple[Leftover, ...] = ()
    shared_files: tuple[SharedFile, ...] = ()
    torch: TorchBuild | None = None
    libraries: tuple[Library, ...] = ()
    extensions: tuple[Extension, ...] = ()
    cxx: CxxLibrary | None = None
    loader: tuple[LoaderDirectory, ...] = ()
    driver: Driver | None = None
    gpus: tuple[Gpu, ...] = ()
    toolkits: tuple[Toolkit, ...] = ()
    environment: Mapping[str, Variable] = field(default_factory=dict)
    limits: Limits | None = None
    container: Container | None = None
    configuration: tuple[ConfigValue, ...] = ()

    def section(self, name: str) -> Section:
        """The status of a section; ``unknown`` for one this capture did not try."""
        return self.sections.get(name, Section(status="unknown", reason="this capture did not read it"))

    def known(self, name: str) -> bool:
        """Whether what the section does not list is truly absent."""
        return self.section(name).status == "ok"

    def installed(self) -> dict[str, Distribution]:
        """Canonical name to the copy that an import would find (shadowed and stale copies are left out)."""
        found: dict[str, Distribution] = {}
        for dist in self.distributions:
            if dist.shadowed_by is None and (dist.name not in found or dist.current):
                found[dist.name] = dist
        return found

    def file_faults(self) -> dict[str, tuple[FileFault, ...]]:
        """What is known to be wrong with installed files, by distribution: from a verification, and compiled modules that are gone."""
        copies = Counter(dist.name for dist in self.distributions)
        out = {name: dist.verification.faults for name, dist in self.installed().items() if dist.verification is not None}
        for extension in self.extensions:
            earlier = out.get(extension.owner, ())
            # Of two copies nothing says which one an extension belongs to.
            lost = extension.fault == "missing" and copies[extension.owner] == 1
            if lost and all(fault.path != extension.path for fault in earlier):
                out[extension.owner] = (*earlier, FileFault(path=extension.path, fault="missing"))
        return {name: faults for name, faults in out.items() if faults}

    @property
    def label(self) -> str:
        """The name used in reports."""
        return self.capture.label

    @property
    def digest(self) -> str:
        """``sha256:…`` of what makes two hosts run the same: no times, host names, users, UUIDs or paths go in.

        Interpreter, C library, packages with build and content, torch, native library versions, extensions'
        unmet needs and damage, driver and GPU models, and the environment variables that are not themselves locations.
        """
        text = json.dumps(identity(self), sort_keys=True, separators=(",", ":"), ensure_ascii=True)
        return "sha256:" + hashlib.sha256(text.encode("ascii")).hexdigest()


def load(path: str | os.PathLike[str]) -> Snapshot:
    """Read a snapshot file.

    Raises:
        SnapshotError: the file cannot be read, is not JSON, is of another schema or has a bad value (named by
        its path).
    """
    try:
        data = read_json(Path(path).read_bytes())
    except OSError as error:
        raise SnapshotError(f"cannot read the snapshot {os.fspath(path)}: {error.strerror or error}") from error
    except (ValueError, RecursionError) as error:
        raise SnapshotError(f"{os.fspath(path)} is not a snapshot: it is not valid JSON ({error})") from error
    return loads(data, os.fspath(path))


def loads(data: object, name: str = "snapshot") -> Snapshot:
    """Read a snapshot from parsed JSON; ``name`` begins the messages.

    Raises:
        SnapshotError: another schema, a missing key or a bad value.

    A section the document gives no status is ``unknown``, so that nothing takes its emptiness for absence.
    """
    if not isinstance(data, dict) or "schema" not in data:
        raise SnapshotError(
            f"{name} is not a snapshot: it has no 'schema' key; write one with `envspec capture HOST -o FILE`"
        )
    if data["schema"] != SCHEMA:
        raise SnapshotError(f"{name} has schema {data['schema']!r}; this version reads {SCHEMA!r}")
    try:
        read = Snapshot.from_dict(data)
    except SnapshotError as error:
        raise SnapshotError(f"{name}: {error}", "") from error
    untold = {each: _UNTOLD for each in SECTIONS if each not in read.sections}
    return dataclasses.replace(read, sections={**read.sections, **untold}) if untold else read


_UNTOLD = Section(status="unknown", reason="the snapshot does not say whether it was read")


def save(snapshot: Snapshot, path: str | os.PathLike[str]) -> None:
    """Write a snapshot atomically, keys sorted, one value a line, with a trailing newline."""
    target = Path(path)
    text = json.dumps(snapshot.to_dict(), sort_keys=True, indent=1, ensure_ascii=True) + "\n"
    try:
        write_whole(target, text)
    except OSError as error:
        raise SnapshotError(f"cannot write the snapshot {target}: {error.strerror or error}") from error


# What goes into the digest.

_LOCATION_VARIABLES = re.compile(
    r"(^|_)(PATH|PATHS|HOME|PREFIX|DIR|BASE|ROOT|CACHE|FILE|EXE|PYTHON|ENV|CERT|BUNDLE|STARTUP)$|^(VIRTUAL_ENV|LD_PRELOAD|UV|PYTHONPATH)"
)
_NOISE_MARKERS = frozenset({"platform_release", "platform_version"})


def identity(snapshot: Snapshot) -> dict[str, object]:
    """What the digest is made of, as JSON data: part by part, so that what changed can be named."""
    interpreter = snapshot.interpreter
    return {
        "schema": snapshot.schema,
        "sections": {name: section.status for name, section in snapshot.sections.items() if name != "deep"},
        "interpreter": interpreter
        and [
            interpreter.implementation,
            interpreter.version,
            interpreter.soabi,
            interpreter.platform,
            interpreter.debug,
            interpreter.free_threaded,
        ],
        "markers": {key: value for key, value in snapshot.markers.items() if key not in _NOISE_MARKERS},
        "libc": snapshot.libc and snapshot.libc.to_dict(),
        "os": snapshot.os and [snapshot.os.id, snapshot.os.version],
        "cpu": snapshot.cpu and snapshot.cpu.to_dict(),
        "distributions": _digest_distributions(snapshot.distributions),
        "torch": snapshot.torch
        and {key: value for key, value in snapshot.torch.to_dict().items() if key != "location"},
        "libraries": sorted([lib.component, lib.version or "", lib.owner or ""] for lib in snapshot.libraries),
        "extensions": sorted(
            [ext.owner, list(ext.missing), sorted(need.soname for need in ext.needed if need.by == "nothing")]
            + ([ext.fault, ext.path] if ext.fault else [])
            for ext in snapshot.extensions
            if ext.missing or ext.fault or any(need.by == "nothing" for need in ext.needed)
        ),
        "cxx": snapshot.cxx and [snapshot.cxx.glibcxx, snapshot.cxx.cxxabi],
        "shared_files": sorted([list(shared.owners), shared.count] for shared in snapshot.shared_files),
        "driver": snapshot.driver and [snapshot.driver.version, snapshot.driver.cuda],
        "gpus": [[gpu.name, gpu.compute_capability, gpu.memory_mib, gpu.mig] for gpu in snapshot.gpus],
        "environment": {
            name: "<redacted>" if variable.redacted else variable.value
            for name, variable in snapshot.environment.items()
            if not _LOCATION_VARIABLES.search(name)
        },
    }


def _digest_distributions(distributions: Sequence[Distribution]) -> list[list[object]]:
    """In an order of their own: by name, and copies of one name by their text, which costs most and is seldom needed."""
    by_name: dict[str, list[list[object]]] = {}
    for dist in distributions:
        by_name.setdefault(dist.name, []).append(_digest_distribution(dist))
    return [each for name in sorted(by_name) for each in (by_name[name] if len(by_name[name]) == 1 else sorted(by_name[name], key=json.dumps))]


def _digest_distribution(dist: Distribution) -> list[object]:
    origin = dist.origin
    faults = dist.verification.faults if dist.verification else ()
    return [
        dist.name,
        dist.version,
        dist.build_variant,
        dist.build,
        list(dist.tags),
        dist.content,
        [origin.kind, origin.commit, origin.dirty],
        dist.conda and [dist.conda.name, dist.conda.version, dist.conda.build],
        dist.shadowed_by is not None,
        sorted(problem.kind for problem in dist.problems),
        [[fault.path, fault.fault, fault.found] for fault in faults],
    ]


# Reading by type. A reader is built once per type and takes (value, path to the value).

_Reader = Callable[[object, str], Any]
_REQUIRED = object()


@functools.cache
def _defaults(cls: Any) -> tuple[tuple[str, object], ...]:
    out: list[tuple[str, object]] = []
    for item in dataclasses.fields(cls):
        default: object = _REQUIRED
        if item.name == "schema":
            pass
        elif item.default is not dataclasses.MISSING:
            default = item.default
        elif item.default_factory is not dataclasses.MISSING:
            default = item.default_factory()
        out.append((item.name, default))
    return tuple(out)


def _plain(value: object) -> object:
    if isinstance(value, Record):
        return value.to_dict()
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in sorted(value.items())}
    return value


def _kind(value: object) -> str:
    if value is None:
        return "nothing (null)"
    if isinstance(value, dict):
        return "an object"
    if isinstance(value, list):
        return "a list"
    text = json.dumps(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _expected(what: str, value: object, where: str) -> SnapshotError:
    return SnapshotError(f"expected {what}, found {_kind(value)}", where or "top level")


@functools.cache
def _reader(kind: Any) -> _Reader:
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if kind is str:
        return _scalar(str, "a string")
    if kind is bool:
        return _scalar(bool, "true or false")
    if kind is int:
        return _scalar(int, "a whole number")
    if kind is float:
        return _scalar((int, float), "a number")
    if origin is Literal:
        return _literal(arguments)
    if origin in (types.UnionType, typing.Union):
        (inner,) = [argument for argument in arguments if argument is not type(None)]
        read = _reader(inner)
        return lambda value, where: None if value is None else read(value, where)
    if origin is tuple:
        return _sequence(_reader(arguments[0]))
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return _mapping(_reader(arguments[1]))
    if isinstance(kind, type) and issubclass(kind, Record):
        return _record(kind)
    raise TypeError(f"no reader for {kind!r}")


def _scalar(accepted: type | tuple[type, ...], what: str) -> _Reader:
    def read(value: object, where: str) -> object:
        if not isinstance(value, accepted) or (isinstance(value, bool) and accepted is not bool):
            raise _expected(what, value, where)
        return value

    return read


def _literal(options: Sequence[object]) -> _Reader:
    def read(value: object, where: str) -> object:
        if value not in options:
            raise _expected("one of " + ", ".join(map(repr, options)), value, where)
        return value

    return read


def _sequence(item: _Reader) -> _Reader:
    def read(value: object, where: str) -> object:
        if not isinstance(value, list):
            raise _expected("a list", value, where)
        return tuple([item(entry, f"{where}[{index}]") for index, entry in enumerate(value)])

    return read


def _mapping(item: _Reader) -> _Reader:
    def read(value: object, where: str) -> object:
        if not isinstance(value, dict):
            raise _expected("an object", value, where)
        return {key: item(entry, f"{where}.{key}" if where else key) for key, entry in sorted(value.items())}

    return read


def _record(cls: Any) -> _Reader:
    hints = typing.get_type_hints(cls)
    readers = [(name, _reader(hints[name]), default) for name, default in _defaults(cls)]

    def read(value: object, where: str) -> object:
        if not isinstance(value, dict):
            raise _expected("an object", value, where)
        arguments = {}
        for name, reader, default in readers:
            if name in value:
                arguments[name] = reader(value[name], f"{where}.{name}" if where else name)
            elif default is _REQUIRED:
                raise SnapshotError(f"the key {name!r} is missing", where or "top level")
        return cls(**arguments)

    return read


# The JSON Schema is made from the same types, so that it cannot drift; a test compares it with the file in the package.


def json_schema() -> dict[str, Any]:
    """The JSON Schema (draft 2020-12) of a snapshot document."""
    definitions: dict[str, Any] = {}
    _schema_of(Snapshot, definitions)
    root = definitions.pop("Snapshot")
    root["properties"]["schema"] = {"const": SCHEMA}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": SCHEMA,
        "title": "Snapshot of a Python environment",
        **root,
        "$defs": dict(sorted(definitions.items())),
    }


def _schema_of(kind: Any, definitions: dict[str, Any]) -> dict[str, Any]:
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    scalars = {str: "string", bool: "boolean", int: "integer", float: "number"}
    if kind in scalars:
        return {"type": scalars[kind]}
    if origin is Literal:
        return {"enum": list(arguments)}
    if origin in (types.UnionType, typing.Union):
        (inner,) = [argument for argument in arguments if argument is not type(None)]
        return {"anyOf": [_schema_of(inner, definitions), {"type": "null"}]}
    if origin is tuple:
        return {"type": "array", "items": _schema_of(arguments[0], definitions)}
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return {"type": "object", "additionalProperties": _schema_of(arguments[1], definitions)}
    name = kind.__name__
    if name not in definitions:
        definitions[name] = {}
        hints = typing.get_type_hints(kind)
        definitions[name] = {
            "description": " ".join((kind.__doc__ or "").split()),
            "type": "object",
            "properties": {item: _schema_of(hints[item], definitions) for item, _ in _defaults(kind)},
            "required": [item for item, default in _defaults(kind) if default is _REQUIRED],
        }
    return {"$ref": f"#/$defs/{name}"}
