"""CUDA, driver and architecture: each host by itself, then between hosts. The decisions are in :mod:`envspec.cuda`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from envspec import cuda, mend
from envspec.compare.model import Collector, Host, joined, some
from envspec.variants import component, cuda_major

__all__ = ["between_hosts", "each", "image_requirements"]

_TRUE: Final = frozenset({"1", "true", "yes", "on"})


def _runtime(host: Host) -> str | None:
    """The CUDA version of the runtime that torch brings: torch's own word, else the library's."""
    torch = host.snapshot.torch
    if torch is not None and cuda.version(torch.cuda) is not None:
        return torch.cuda
    for library in host.snapshot.libraries:
        if library.component == "cudart" and library.version and cuda.version(library.version) is not None:
            return ".".join(library.version.split(".")[:2])
    return None


def each(out: Collector, host: Host) -> None:
    """Driver floor, architecture cover, mixed CUDA majors, toolkit."""
    snapshot, torch = host.snapshot, host.snapshot.torch
    runtime = _runtime(host)
    driver = snapshot.driver
    here = [host.label]
    if runtime and driver is not None and (driver.version or driver.cuda):
        verdict = cuda.support(runtime, driver.version, driver.cuda)
        offered = f" (CUDA {driver.cuda})" if driver.cuda else ""
        found = f"{driver.version or 'of unknown version'}{offered}"
        evidence = {"expected": cuda.driver_floor(runtime), "found": driver.version or driver.cuda}
        if verdict == "too-old":
            what = f"CUDA {runtime} needs driver {cuda.driver_floor(runtime)} or newer; the driver is {found}"
            fix = _driver_fix(host, driver.cuda)
            out.add("EP301", "driver", here, what, fix=fix, evidence=evidence, row=("host", "driver"), cover=False)
        elif verdict == "minor":
            what = f"CUDA {runtime} runs on driver {found} by minor-version compatibility only"
            out.add("EP309", "driver", here, what, evidence=evidence, row=("host", "driver"), cover=False)
    elif runtime and snapshot.gpus and snapshot.known("driver"):
        what = f"torch is built for CUDA {runtime}, a GPU is there ({snapshot.gpus[0].name}), and no driver answers"
        out.add("EP308", "driver", here, what, evidence={"found": None}, row=("host", "driver"), cover=False)
    if torch is not None and torch.archs:
        for capability in sorted({gpu.compute_capability for gpu in snapshot.gpus if gpu.compute_capability}):
            if cuda.covers(torch.archs, capability) == "none":
                names = sorted({gpu.name for gpu in snapshot.gpus if gpu.compute_capability == capability})
                what = f"torch {torch.version} has code for {' '.join(torch.archs)}, the GPU {names[0]} is {capability}"
                evidence_arch = {"expected": f"sm_{capability.replace('.', '')}", "found": list(torch.archs)}
                out.add("EP302", "torch", here, what, evidence=evidence_arch, row=("package", "torch"), cover=False)
    _mixed(out, host, runtime)
    for toolkit in snapshot.toolkits:
        if not (toolkit.nvcc and toolkit.version and runtime):
            continue
        if toolkit.version.split(".")[0] != runtime.split(".")[0]:
            what = f"the toolkit at {toolkit.path} is CUDA {toolkit.version}, torch is built for CUDA {runtime}"
            out.add("EP307", toolkit.path, here, what, evidence={"expected": runtime, "found": toolkit.version})


def _driver_fix(host: Host, offered: str | None) -> str | None:
    """Reinstalling torch alone, for a CUDA that the driver offers."""
    torch = host.installed.get("torch")
    if torch is None or torch.version is None or offered is None:
        return None
    public = torch.version.split("+")[0]
    series = offered.replace(".", "")
    command = mend.reinstall(host.snapshot, f"torch=={public}", dist=torch)
    return (
        f"{command} from an index of builds for CUDA {offered} or older (such as …/whl/cu{series}), "
        f"or install driver {cuda.driver_floor(_runtime(host) or '')} or newer"
    )


def _mixed(out: Collector, host: Host, runtime: str | None) -> None:
    shared = {owner for files in host.snapshot.shared_files for owner in files.owners}
    majors: dict[int, list[str]] = {}
    for name, dist in host.installed.items():
        major = cuda_major(name, dist.version)
        if major is not None and name not in shared:
            majors.setdefault(major, []).append(name)
    if len(majors) < 2:
        return
    own = int(runtime.split(".")[0]) if runtime else max(majors, key=lambda major: (len(majors[major]), major))
    for major in sorted(set(majors) - {own}):
        names = sorted(majors[major])
        what = f"libraries of CUDA {major} ({some(names)}) are installed beside those of CUDA {own}"
        fix = mend.uninstall(host.snapshot, names)
        held = component(names[0]) or names[0]
        row = ("component", held)
        out.add("EP306", names[0], [host.label], what, fix=fix, evidence={"expected": own, "found": names}, row=row)


def image_requirements(out: Collector, hosts: Sequence[Host]) -> None:
    """``NVIDIA_REQUIRE_CUDA`` of each image against its own driver, or against every machine of the comparison."""
    machines = [host for host in hosts if host.snapshot.driver is not None and host.snapshot.driver.version]
    for host in hosts:
        environment = host.snapshot.environment
        skip = environment.get("NVIDIA_DISABLE_REQUIRES")
        if skip is not None and (skip.value or "").lower() in _TRUE:
            continue
        own = host.snapshot.driver is not None and host.snapshot.driver.version is not None
        for name in sorted(environment):
            text = environment[name].value
            if not name.startswith("NVIDIA_REQUIRE_") or not text:
                continue
            for machine in [host] if own else machines:
                driver = machine.snapshot.driver
                gpus = machine.snapshot.gpus
                result = cuda.evaluate_requirement(
                    text,
                    driver_cuda=driver.cuda if driver else None,
                    driver=driver.version if driver else None,
                    capability=gpus[0].compute_capability if gpus else None,
                    gpu=gpus[0].name if gpus else None,
                )
                if result.met is False:
                    has = f"driver {driver.version}, CUDA {driver.cuda}" if driver else "no driver"
                    what = f"{name} asks for {result.failed}; {machine.label} has {has}"
                    evidence = {"expected": result.failed, "found": driver.version if driver else None}
                    out.add("EP303", name, {host.label, machine.label}, what, evidence=evidence, row=("variable", name))


def between_hosts(out: Collector, hosts: Sequence[Host]) -> None:
    """GPU models, drivers, torch's architectures."""
    models = {
        host.label: tuple(sorted({gpu.name for gpu in host.snapshot.gpus})) for host in hosts if host.snapshot.gpus
    }
    for split in out.splits(("host", "gpu"), models):
        what = f"GPU models differ: {joined(split, _names)}"
        evidence = {"found": sorted(_names(value) for value, _ in split.every)}
        out.add("EP305", "gpu", split.hosts, what, row=("host", "gpu"), declared=split.declared, evidence=evidence)
    settings = {
        host.label: tuple((gpu.memory_mib, gpu.mig, gpu.ecc) for gpu in host.snapshot.gpus)
        for host in hosts
        if host.snapshot.gpus and (host.label, ("host", "gpu")) not in out.covered
    }
    for split in out.splits(("host", "gpu settings"), settings):
        what = f"GPU number, memory or mode differ: {joined(split, _modes)}"
        out.add("EP310", "gpu settings", split.hosts, what, row=("host", "gpu settings"), declared=split.declared)
    drivers = {
        host.label: driver.version
        for host in hosts
        if (driver := host.snapshot.driver) is not None and driver.version is not None
    }
    for split in out.splits(("host", "driver"), drivers):
        what = f"NVIDIA drivers differ: {joined(split, str)}"
        evidence = {"found": sorted(str(value) for value, _ in split.every)}
        out.add(
            "EP304", "driver", split.hosts, what, row=("host", "driver"), declared=split.declared, evidence=evidence
        )
    if any(row == ("package", "torch") for _, row in out.items()):
        return
    builds = {
        host.label: (torch.cuda, torch.archs, torch.debug)
        for host in hosts
        if (torch := host.snapshot.torch) is not None and (torch.archs or torch.cuda)
    }
    for split in out.splits(("package", "torch"), builds):
        what = f"torch is built for different CUDA versions or architectures: {joined(split, _build)}"
        evidence = {"found": sorted(_build(value) for value, _ in split.every)}
        out.add(
            "EP311", "torch", split.hosts, what, row=("package", "torch"), declared=split.declared, evidence=evidence
        )


def _names(value: object) -> str:
    return ", ".join(str(item) for item in value) if isinstance(value, tuple) else str(value)


def _modes(value: object) -> str:
    gpus = value if isinstance(value, tuple) else ()
    modes = ", ".join(f"{memory or '?'} MiB, MIG {mig or '?'}, ECC {ecc or '?'}" for memory, mig, ecc in gpus[:1])
    return f"{len(gpus)} of ({modes})"


def _build(value: object) -> str:
    version, archs, debug = value if isinstance(value, tuple) else (None, (), False)
    return f"CUDA {version or 'none'} [{' '.join(archs)}]{' debug' if debug else ''}"
