"""Binary compatibility: undefined symbols, missing libraries, C library, string ABI, loader order."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Final

from envspec import cuda, mend
from envspec.compare.model import Collector, Host, Key, joined, some
from envspec.findings import Json, Location, Severity
from envspec.snapshot import Extension
from envspec.variants import COMPONENTS, component, parse_local, parse_version

__all__ = ["between_hosts", "each", "library_component", "old_string_abi"]

_LIBRARIES: Final = {
    "cudart": "cudart",
    "cublas": "cublas",
    "cublasLt": "cublas",
    "cudnn": "cudnn",
    "nccl": "nccl",
    "nvrtc": "nvrtc",
    "nvJitLink": "nvjitlink",
    "cusparse": "cusparse",
    "cusolver": "cusolver",
    "cufft": "cufft",
    "curand": "curand",
    "stdc++": "stdc++",
}
_VERSION: Final = re.compile(r"([a-z]*)[_-]?\d+(?:[._]\d+)*")
"""A number in a file's path, with the word before it."""
_LABELS: Final = frozenset({"torch", "libtorch", "pytorch", "pt", "cu", "cuda", "ffmpeg"})
_NO_VERSIONS: Final = frozenset({"sm", "compute", "gfx", "avx", "sse", "x", "amd", "arm", "armv", "aarch", "cp", "cpython", "pypy"})
"""Words whose numbers name a processor, a GPU or an interpreter: which of those modules is loaded is not free to choose."""
_LOADABLE: Final = re.compile(r"\.so(\.\d+)*$")
_FOREIGN: Final = ("not a 64-bit", "it has no dynamic section")
"""Faults of files that are whole but not for this process: helpers for 32-bit programs, objects for another linker."""
_CXX: Final = "libstdc++.so.6"
_NEWER_CXX: Final = (
    "Take a wheel built for an older libstdc++, or bring a newer one: that of a newer release of the system, or conda's libstdcxx-ng."
)
_MACHINES: Final = {"amd64": "x86_64", "arm64": "aarch64"}


def library_component(file: str) -> str | None:
    """The component of a library file: ``libcudnn_graph.so.9`` is ``cudnn``."""
    match = re.match(r"lib([A-Za-z+]+)", file.rsplit("/", 1)[-1])
    return _LIBRARIES.get(match[1]) if match else None


def old_string_abi(symbol: str) -> bool:
    """Whether a mangled name takes a ``std::string`` of the old ABI (the substitution ``Ss``)."""
    # "Ss" counts only where a type may stand: after a qualifier, reference or closing of a nested name.
    return symbol.startswith("_Z") and bool(re.search(r"(?:[EKRPv_]|\d)Ss(?![a-z]{2})|Ss$", symbol))


def _by_owner(extensions: Sequence[Extension]) -> dict[str, list[Extension]]:
    grouped: dict[str, list[Extension]] = {}
    for extension in extensions:
        grouped.setdefault(extension.owner, []).append(extension)
    return dict(sorted(grouped.items()))


def _row(owner: str) -> Key:
    held = component(owner)
    return ("component", held) if held else ("package", owner)


def each(out: Collector, host: Host) -> None:
    """What of the compiled modules cannot be loaded here, and which libraries are not what they seem."""
    for owner, every in _by_owner(host.snapshot.extensions).items():
        _damaged(out, host, owner, every)
        extensions, unfit = _chosen(host, [item for item in every if item.fault is None])
        _machine(out, host, owner, extensions)
        _libc(out, host, owner, extensions)
        _unfit(out, host, owner, unfit)
        for optional in (False, True):
            alike = [item for item in extensions if item.optional is optional]
            _needed(out, host, owner, alike, optional)
            _symbols(out, host, owner, alike, optional)
    _versions(out, host)
    _loader(out, host)


def _chosen(host: Host, extensions: Sequence[Extension]) -> tuple[list[Extension], list[Extension]]:
    """The modules that have to fit here, and the variants of which none finds its libraries.

    A package that brings a module once for each version of torch, CUDA or FFmpeg loads the one that fits; where one does,
    the others say nothing.
    """
    families: dict[str, list[Extension]] = {}
    for item in extensions:
        families.setdefault(_VERSION.sub(_unversioned, item.path), []).append(item)
    chosen: list[Extension] = []
    unfit: list[Extension] = []
    for members in families.values():
        if len(members) == 1 or not _are_variants(members):
            chosen += members
        elif fitting := [item for item in members if _wants(host, item) is None]:
            chosen += fitting
        else:
            (unfit if any(map(_lacks, members)) else chosen).extend(members)
    return chosen, unfit


def _unversioned(match: re.Match[str]) -> str:
    return match[0] if match[1] in _NO_VERSIONS else f"{match[1]}*"


def _are_variants(members: Sequence[Extension]) -> bool:
    """Whether modules of one name but for its numbers are one module in several versions.

    Their names say so (``torch29``), or they ask for different versions of the libraries that are not all here; ``fa2`` and
    ``fa3``, which ask for the same, are two modules.
    """
    if all(any(match[1] in _LABELS for match in _VERSION.finditer(item.path)) for item in members):
        return True
    absent = {_unnumbered(soname) for item in members for soname in _lacks(item)}
    asked = [{need.soname for need in item.needed if _unnumbered(need.soname) in absent} for item in members]
    everywhere = all({_unnumbered(soname) for soname in sonames} == absent for sonames in asked)
    return bool(absent) and everywhere and len(set(map(frozenset, asked))) > 1


def _unnumbered(soname: str) -> str:
    return soname.partition(".so")[0]


def _lacks(extension: Extension) -> list[str]:
    """The libraries that are nowhere, but for the driver's own, which comes with the driver."""
    return [item.soname for item in extension.needed if item.by == "nothing" and not item.soname.startswith("libcuda.so")]


def _wants(host: Host, extension: Extension) -> str | None:
    """What a module needs that is not here, None where it fits."""
    if absent := _lacks(extension):
        return some(absent, 2)
    if extension.torch_checked and extension.missing:
        return f"{_count(extension.missing)} that torch does not export"
    return next((symbol for symbol, _, _ in _too_old(host, extension)), None)


def _too_old(host: Host, extension: Extension) -> Iterator[tuple[str, str, str]]:
    """Symbol versions that a module asks for and the C or C++ library here lacks: the version, the library, what it has."""
    libc, cxx = host.snapshot.libc, host.snapshot.cxx
    if libc is None or libc.family != "glibc":
        return
    asked = [("GLIBC", extension.glibc, "glibc", libc.version)]
    if cxx is not None and all(need.soname != _CXX for need in extension.needed):
        asked += [("GLIBCXX", extension.glibcxx, cxx.path, cxx.glibcxx), ("CXXABI", extension.cxxabi, cxx.path, cxx.cxxabi)]
    for name, text, library, provided in asked:
        needed, have = cuda.version(text), cuda.version(provided)
        if needed is not None and have is not None and needed > have:
            yield f"{name}_{text}", library, f"{provided}"


def _unfit(out: Collector, host: Host, owner: str, variants: Sequence[Extension]) -> None:
    if not variants:
        return
    wants: dict[str, list[str]] = {}
    for item in variants:
        wants.setdefault(_wants(host, item) or "", []).append(item.path.rsplit("/", 1)[-1])
    each_of = [f"{some(files, 1)} {'needs' if len(files) == 1 else 'need'} {want}" for want, files in wants.items()]
    what = f"{_title(host, owner)}: none of its {len(variants)} variants fits this host: {'; '.join(each_of)}"
    fix = f"Install the libraries that one of the variants needs, such as {list(wants)[-1]}; {owner} loads the variant that fits."
    evidence: dict[str, Json] = {"expected": {item.path: list(_lacks(item)) for item in variants}, "found": None}
    severity: Severity | None = "noise" if all(item.optional for item in variants) else None
    out.add("EP402", owner, [host.label], what, row=_row(owner), fix=fix, severity=severity, evidence=evidence)


def _title(host: Host, owner: str) -> str:
    dist = host.installed.get(owner)
    return f"{owner} {dist.version}" if dist is not None and dist.version else owner


def _base(extension: Extension) -> str:
    return "/".join(extension.path.split("/")[-2:])


def _damaged(out: Collector, host: Host, owner: str, extensions: Sequence[Extension]) -> None:
    """Files that are gone or are no shared objects."""
    dist = host.installed.get(owner)
    verified = dist.verification.faults if dist is not None and dist.verification is not None else ()
    elsewhere = {fault.path for fault in verified if fault.fault == "missing"}  # --deep tells of them with the others (EP209)
    if sum(other.name == owner for other in host.snapshot.distributions) > 1:
        # What an older copy's RECORD lists, an upgrade has removed; the copies are a finding of their own.
        elsewhere.update(item.path for item in extensions if item.fault == "missing")
    linux = host.snapshot.markers.get("sys_platform", "linux") == "linux"
    faults: dict[str, list[str]] = {}
    for item in extensions:
        if item.fault is None or item.path in elsewhere or not _LOADABLE.search(item.path):
            continue
        if item.fault == "missing" or (linux and "darwin" not in item.path and not item.fault.startswith(_FOREIGN)):
            faults.setdefault(item.fault, []).append(item.path)
    requirement = f"{owner}=={dist.version}" if dist is not None and dist.version else owner
    for fault, files in sorted(faults.items()):
        files.sort()
        what = f"{_title(host, owner)}: {some(files)} {'is' if len(files) == 1 else 'are'} {fault.removeprefix('it is ')}"
        fix = mend.reinstall(host.snapshot, requirement, dist=dist)
        evidence: dict[str, Json] = {"found": fault, "files": list(files[:20])}
        out.add("EP411", owner, [host.label], what, row=_row(owner), fix=fix, location=Location(file=files[0]), evidence=evidence)


def _machine(out: Collector, host: Host, owner: str, extensions: Sequence[Extension]) -> None:
    own = host.snapshot.markers.get("platform_machine", "").lower()
    own = _MACHINES.get(own, own)
    foreign = [item for item in extensions if item.machine and own and _MACHINES.get(item.machine, item.machine) != own]
    if foreign and own in ("x86_64", "aarch64"):
        what = f"{_title(host, owner)}: {_base(foreign[0])} is for {foreign[0].machine}, this machine is {own}"
        out.add(
            "EP407", owner, [host.label], what, row=_row(owner), evidence={"expected": own, "found": foreign[0].machine}
        )


def _libc(out: Collector, host: Host, owner: str, extensions: Sequence[Extension]) -> None:
    highest: dict[str, tuple[str, str, str, Extension]] = {}
    for extension in extensions:
        for symbol, library, have in _too_old(host, extension):
            name, _, version = symbol.partition("_")
            known = highest.get(name)
            if known is None or (cuda.version(version) or ()) > (cuda.version(known[0]) or ()):
                highest[name] = (version, library, have, extension)
    # A library that is too old lacks both of its families: the first says it.
    for name in ("GLIBC", "GLIBCXX" if "GLIBCXX" in highest else "CXXABI"):
        if name not in highest:
            continue
        version, library, have, extension = highest[name]
        here = f"this host has glibc {have}" if name == "GLIBC" else f"{library} has {name}_{have}"
        what = f"{_title(host, owner)}: {_base(extension)} needs {name}_{version}, {here}"
        evidence: dict[str, Json] = {"expected": version, "found": have}
        out.add("EP403", owner, [host.label], what, row=_row(owner), fix=None if name == "GLIBC" else _NEWER_CXX, evidence=evidence)


def _needed(out: Collector, host: Host, owner: str, extensions: Sequence[Extension], optional: bool) -> None:
    missing: dict[str, list[Extension]] = {}
    for extension in extensions:
        for needed in extension.needed:
            if needed.by == "nothing":
                missing.setdefault(needed.soname, []).append(extension)
    present = sorted({lib.path.rsplit("/", 1)[-1] for lib in host.snapshot.libraries})
    for soname, users in sorted(missing.items()):
        head = f"{_title(host, owner)}: {_base(users[0])}"
        if soname.startswith("libcuda.so"):
            _driver_library(out, host, owner, head, soname)
            continue
        held = library_component(soname)
        near = [name for name in present if held and library_component(name) == held]
        what = f"{head} needs {soname}, which is nowhere on this host"
        if near:
            what += f"; {some(near)} is there"
        torch = host.snapshot.torch
        fix = None
        if held and torch is not None and torch.cuda and cuda.version(torch.cuda) is not None:
            fix = f"Install the build of {owner} for CUDA {torch.cuda} (torch's), or the torch that {owner} was built for."
            brings = _brings(held, soname, torch.cuda)
            if brings is not None and not any(component(name) == held for name in host.installed):
                fix = mend.install(host.snapshot, [brings])
        evidence = {"expected": soname, "found": near or None}
        severity, rest = _weight(optional)
        out.add("EP402", owner, [host.label], what + rest, row=_row(owner), fix=fix, severity=severity, evidence=evidence)


def _weight(optional: bool) -> tuple[Severity | None, str]:
    """Severity and further words for a module that cannot be loaded; what a package can do without is no break."""
    return ("noise", "; the package notices and leaves it out") if optional else (None, "")


def _brings(held: str, soname: str, torch_cuda: str) -> str | None:
    """The distribution that brings a library of torch's own CUDA major, None where the module needs another major."""
    major = torch_cuda.split(".")[0]
    base = next((base for base, name in COMPONENTS.items() if name == held), None)
    if base is None or (held in ("cublas", "cudart", "nvjitlink", "nvrtc") and not soname.endswith(f".so.{major}")):
        return None
    # From CUDA 13 on only the libraries with a release of their own keep the suffix.
    plain = int(major) >= 13 and held not in ("cudnn", "cusparselt", "nccl", "nvshmem")
    return f"nvidia-{base}" if plain else f"nvidia-{base}-cu{major}"


def _driver_library(out: Collector, host: Host, owner: str, head: str, soname: str) -> None:
    snapshot = host.snapshot
    if snapshot.driver is not None and snapshot.driver.version:
        return  # the driver answers: its library is bound in when the process starts
    image = snapshot.container is not None and snapshot.container.kind is not None
    what = f"{head} needs {soname}, the NVIDIA driver's own library, which is not on this host"
    # An image read on a machine without GPUs lacks the driver by nature; it comes with `--gpus`.
    severity: Severity = "noise" if image or not snapshot.known("driver") else "breaks"
    out.add(
        "EP409",
        owner,
        [host.label],
        what,
        row=_row(owner),
        severity=severity,
        evidence={"expected": soname, "found": None},
    )


def _symbols(out: Collector, host: Host, owner: str, extensions: Sequence[Extension], optional: bool) -> None:
    torch = host.snapshot.torch
    broken = [item for item in extensions if item.torch_checked and item.missing]
    if not broken:
        return
    symbols = sorted({symbol for item in broken for symbol in item.missing})
    dist = host.installed.get(owner)
    version = dist.version if dist is not None else None
    parsed = parse_version(version)
    label = parse_local(parsed.local if parsed is not None else None)
    torch_text = torch.version if torch is not None and torch.version else "the installed torch"
    old = [symbol for symbol in symbols if old_string_abi(symbol)]
    new_abi = torch.cxx11_abi if torch is not None else None
    mismatch = (bool(old) and new_abi is True) or (
        new_abi is False and bool(symbols) and all("__cxx11" in symbol for symbol in symbols)
    )
    evidence = {
        "expected": label.torch,
        "found": symbols[:20],
        "symbols": len(symbols),
        "files": sorted(_base(item) for item in broken)[:20],
        "torch": torch_text,
    }
    where = some(sorted(_base(item) for item in broken), 2)
    severity, rest = _weight(optional)
    if mismatch:
        built = "old" if new_abi else "new"
        what = f"{_title(host, owner)}: {where} uses the {built} C++ string ABI, torch {torch_text} the other"
        flag = "TRUE" if new_abi else "FALSE"
        fix = f"Install the {owner} file named cxx11abi{flag} for this torch, or build it here against this torch."
        out.add("EP404", owner, [host.label], what + rest, row=_row(owner), fix=fix, severity=severity, evidence=evidence)
        return
    what = (
        f"{_title(host, owner)}: {where} needs {_count(symbols)} that torch {torch_text} does not export: {symbols[0]}"
    )
    if label.torch:
        what += f"; its label says torch {label.torch}"
    fix = f"Install the build of {owner} for torch {torch_text}, or the torch that {owner} was built for"
    locked = host.resolved.packages if host.resolved is not None else {}
    pair = [f"{name}=={locked[name].version}" for name in ("torch", owner) if name in locked and locked[name].version]
    if pair:
        fix += f"; the lock has {' with '.join(pair)}: {mend.reinstall(host.snapshot, pair[0])}"
    out.add("EP401", owner, [host.label], what + rest, row=_row(owner), fix=fix + ".", severity=severity, evidence=evidence)


def _count(symbols: Sequence[str]) -> str:
    return "1 symbol" if len(symbols) == 1 else f"{len(symbols)} symbols"


def _versions(out: Collector, host: Host) -> None:
    """Libraries whose own word is not that of the package that owns them."""
    shared = {owner for files in host.snapshot.shared_files for owner in files.owners}
    for library in host.snapshot.libraries:
        says, declared = cuda.version(library.version), cuda.version(library.declared)
        if says is None or declared is None or library.owner is None or library.owner in shared:
            continue
        length = min(len(says), len(declared), 3)
        if says[:length] != declared[:length]:
            what = f"{library.component} on disk says {library.version}, its package {library.owner} says {library.declared}"
            fix = mend.reinstall(host.snapshot, f"{library.owner}=={library.declared}")
            evidence = {"expected": library.declared, "found": library.version}
            row = _row(library.owner)
            out.add("EP406", library.owner, [host.label], what, row=row, fix=fix, evidence=evidence)


def _loader(out: Collector, host: Host) -> None:
    own: dict[str, str] = {}
    for library in host.snapshot.libraries:
        if library.owner is not None:
            own.setdefault(library.component, f"{library.owner} {library.declared or ''}".strip())
    if not own:
        for name, dist in host.installed.items():
            held = component(name)
            if held is not None:
                own.setdefault(held, f"{name} {dist.version or ''}".strip())
    for directory in host.snapshot.loader:
        if directory.source == "LD_PRELOAD":
            libraries = [name.rsplit("/", 1)[-1] for name in directory.libraries] or [directory.directory]
            what = f"LD_PRELOAD loads {some(libraries)} into every process"
            out.add(
                "EP408", "LD_PRELOAD", [host.label], what, evidence={"found": libraries}, row=("variable", "LD_PRELOAD")
            )
            continue
        if directory.source != "LD_LIBRARY_PATH":
            continue
        clashes: dict[str, str] = {}
        for name in sorted(directory.libraries):
            held = library_component(name)
            if held is not None and held in own:
                clashes.setdefault(held, name.rsplit("/", 1)[-1])
        if clashes:
            held = min(clashes)
            files, owners = some(sorted(clashes.values())), some([own[name] for name in sorted(clashes)])
            what = f"LD_LIBRARY_PATH names {directory.directory}, which holds {files} beside the packages' {owners}"
            evidence = {"found": sorted(clashes.values())}
            row = ("variable", "LD_LIBRARY_PATH")
            out.add("EP405", held, [host.label], what, evidence=evidence, row=row)


def between_hosts(out: Collector, hosts: Sequence[Host]) -> None:
    """Versions that the libraries themselves tell, where their packages do not already differ."""
    values: dict[str, dict[str, tuple[str, ...]]] = {}
    for host in hosts:
        found: dict[str, set[str]] = {}
        for library in host.snapshot.libraries:
            if library.version is not None:
                found.setdefault(library.component, set()).add(library.version)
        for held, versions in found.items():
            if (host.label, ("component", held)) not in out.covered:
                values.setdefault(held, {})[host.label] = tuple(sorted(versions))
    reported = {row for item, row in out.items() if item.code in ("EP203", "EP225")}
    for held, versions_of in sorted(values.items()):
        if ("component", held) in reported:
            continue
        for split in out.splits(("library", held), versions_of):
            what = f"{held} differs: {joined(split, _versions_text)}"
            evidence = {"found": sorted(_versions_text(value) for value, _ in split.every)}
            row = ("library", held)
            out.add("EP410", held, split.hosts, what, row=row, declared=split.declared, evidence=evidence)


def _versions_text(value: object) -> str:
    return " and ".join(str(item) for item in value) if isinstance(value, tuple) else str(value)
