"""The catalogue of finding codes: one row a code, and the only place where its words stand.

``title`` names the fault, ``why`` says what it does to a run, ``mend`` how to remove it. Findings, ``envspec explain`` and
the documentation page are made from these rows. A finding may carry a more exact ``fix`` (with names and versions) and
may, where the facts say so, have another severity than the default.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from envspec.errors import UsageError
from envspec.findings import Finding, Json, Location, Severity

__all__ = ["FAMILIES", "RULES", "Rule", "family", "finding", "rule"]

FAMILIES: Final[dict[str, str]] = {
    "EP1": "Import preflight",
    "EP2": "Packages against the lock and each other",
    "EP3": "CUDA, driver and GPU architecture",
    "EP4": "Binary compatibility and native libraries",
    "EP5": "Shadowing and search path",
    "EP6": "Metadata damage",
    "EP7": "Environment variables",
    "EP8": "Host, interpreter and limits",
    "EP9": "Collection and configuration",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Rule:
    """One finding code. ``name`` is a stable slug for SARIF and links."""

    code: str
    name: str
    title: str
    severity: Severity
    why: str
    mend: str

    @property
    def family(self) -> str:
        """The title of the code's family."""
        return FAMILIES[self.code[:3]]


def _rule(code: str, severity: Severity, name: str, title: str, why: str, mend: str) -> Rule:
    return Rule(code=code, name=name, title=title, severity=severity, why=why, mend=mend)


_ROWS: Final = (
    # Import preflight.
    _rule(
        "EP101",
        "breaks",
        "missing-package",
        "An imported package is not installed",
        "The import fails with ModuleNotFoundError as soon as it is reached.",
        "Install the distribution that provides the module, in the version of the lock: `envspec plan HOST --lock FILE "
        "--for SCRIPT` prints the command.",
    ),
    _rule(
        "EP102",
        "breaks",
        "missing-submodule",
        "The package is installed, the imported submodule is not in it",
        "The import fails although a package list shows the package: the submodule exists in another version only.",
        "Install the version that has the submodule, or import it from where this version keeps it.",
    ),
    _rule(
        "EP103",
        "breaks",
        "not-a-package",
        "The import goes through a module that is not a package",
        'Python stops with "is not a package": in this version the parent is a single file, so nothing can be below it.',
        "Install the version in which the parent is a package, or change the import.",
    ),
    _rule(
        "EP104",
        "breaks",
        "missing-name",
        "The module is there, the imported name is not defined in it",
        "The import fails with ImportError (cannot import name): the name was added, moved or removed in another version.",
        "Install the version that defines the name, or import it from where this version defines it.",
    ),
    _rule(
        "EP105",
        "breaks",
        "foreign-extension",
        "The module is there only as an extension for another interpreter",
        "A compiled module carries the tag of its interpreter; one built for another Python is invisible to the import.",
        "Reinstall the distribution with the interpreter that will run the script.",
    ),
    _rule(
        "EP106",
        "results",
        "local-shadow",
        "A file beside the script hides an installed or standard module",
        "The script's own directory is searched first, so the local file is imported in place of the package.",
        "Rename the local file, or run with `python -P`.",
    ),
    _rule(
        "EP107",
        "results",
        "missing-in-function",
        "An import inside a function that is not called at import time cannot be resolved",
        "The script starts, then fails when the function is called: often after hours, on one code path only.",
        "Install what the import needs, or guard it.",
    ),
    _rule(
        "EP108",
        "noise",
        "missing-optional",
        "An optional import cannot be resolved",
        "The script catches the failure; it takes its fallback, which other hosts may not take.",
        "Nothing is needed if the fallback is meant; otherwise install the package.",
    ),
    _rule(
        "EP109",
        "noise",
        "undecided-import",
        "Whether an import works cannot be told without running code",
        "The module builds its names at run time, or the module's name is computed.",
        "Run the script once on that host, or name the import literally.",
    ),
    _rule(
        "EP110",
        "breaks",
        "unreadable-script",
        "A script cannot be read or parsed",
        "Python will refuse the file with a SyntaxError, or it is not there.",
        "Correct the file; the message names line and column.",
    ),
    _rule(
        "EP111",
        "breaks",
        "script-requirement",
        "A requirement in the script's own header is not met",
        "The script's inline metadata (PEP 723) asks for a package or Python that the host does not have.",
        "Install the requirement, or run the script with a tool that reads the header, such as `uv run`.",
    ),
    _rule(
        "EP112",
        "results",
        "import-not-locked",
        "A package that the script imports is not in the lock",
        "The script works only by what happens to be installed; an environment made from the lock will not run it.",
        "Add the package to the requirements and lock again.",
    ),
    _rule(
        "EP113",
        "breaks",
        "standard-library",
        "A standard-library module is not in this Python version",
        "The module was added in a later Python or removed from this one (or the distributor packs it apart).",
        "Use the Python version that has it, or install the distributor's package of it.",
    ),
    # Packages against the lock and each other.
    _rule(
        "EP201",
        "breaks",
        "locked-missing",
        "A locked package is not installed",
        "What imports it fails; what imports it optionally behaves differently from where the lock was made.",
        "Install the locked version: `envspec plan HOST --lock FILE` prints the smallest command.",
    ),
    _rule(
        "EP202",
        "results",
        "locked-version",
        "A package has another version than the lock",
        "Other code runs than the one that was tested: names move, defaults and numerics change.",
        "Install the locked version: `envspec plan HOST --lock FILE` prints the smallest command.",
    ),
    _rule(
        "EP203",
        "results",
        "version-differs",
        "A package has different versions on the compared hosts",
        "Different code runs on them: names move, defaults and numerics change.",
        "Install the reference's version on the others, or declare the difference between the roles in envspec.yaml.",
    ),
    _rule(
        "EP204",
        "results",
        "present-on-some",
        "A package is installed on some of the compared hosts only",
        "What imports it fails on the others, or takes another path there.",
        "Install it on the others, or declare the difference between the roles in envspec.yaml.",
    ),
    _rule(
        "EP205",
        "results",
        "build-variant",
        "The same version is installed from another build",
        "One version number stands for several binaries (cu126, cu128, ROCm, another torch): different kernels run.",
        "Reinstall the expected build from its index, naming it with the local version (`torch==2.9.1+cu128`).",
    ),
    _rule(
        "EP206",
        "breaks",
        "cpu-build",
        "A CPU-only build is installed where a GPU build is expected",
        "`torch.cuda.is_available()` is False with it, whatever the driver.",
        "Reinstall the GPU build; a plain upgrade keeps the CPU build, since its version number compares equal.",
    ),
    _rule(
        "EP207",
        "results",
        "content-differs",
        "The same version and build has different files",
        "A rebuild, a local patch or another index gave other bits under the same number.",
        "Reinstall the package from the same wheel everywhere: name the index and pin the hash.",
    ),
    _rule(
        "EP208",
        "results",
        "files-modified",
        "Installed files were changed after installation",
        "A hot patch on one host: its version number says one thing, its code does another.",
        "Reinstall the package without cache, or carry the patch to every host as a build of its own.",
    ),
    _rule(
        "EP209",
        "breaks",
        "files-missing",
        "Files of an installed package are missing",
        "An import or a kernel load fails although the package counts as installed.",
        "Reinstall the package.",
    ),
    _rule(
        "EP210",
        "breaks",
        "requirement-missing",
        "A declared requirement of an installed package is not installed",
        "The package fails at the import that needs it.",
        "Install the requirement.",
    ),
    _rule(
        "EP211",
        "breaks",
        "requirement-version",
        "A declared requirement of an installed package has an incompatible version",
        "The package declares that it does not work with the installed version.",
        "Install a version that satisfies every package that asks for it.",
    ),
    _rule(
        "EP212",
        "noise",
        "not-locked",
        "A package is installed that the lock does not list",
        "It may change behaviour where something imports it if present; an environment made from the lock lacks it.",
        "Uninstall it, or add it to the requirements and lock again.",
    ),
    _rule(
        "EP213",
        "noise",
        "wheel-build",
        "The same version comes from a wheel with another build number or tag",
        "The files are the same, the wheel is another.",
        "Nothing is needed; pin the wheel's hash to make it exact.",
    ),
    _rule(
        "EP214",
        "breaks",
        "foreign-wheel",
        "An installed package is for another platform or Python",
        "Its compiled modules cannot be imported by this interpreter.",
        "Reinstall the package with this interpreter.",
    ),
    _rule(
        "EP215",
        "results",
        "source-commit",
        "A package is installed from different commits or places",
        "A source install keeps its version number while its code moves.",
        "Install the same commit everywhere: `NAME @ git+URL@COMMIT`.",
    ),
    _rule(
        "EP216",
        "results",
        "source-dirty",
        "A package is installed from a source tree with uncommitted changes",
        "What runs is in no commit and cannot be made again elsewhere.",
        "Commit the changes and install that commit everywhere.",
    ),
    _rule(
        "EP217",
        "results",
        "editable",
        "A package is an editable install on some hosts only",
        "The editable host runs a working tree that changes without an installation.",
        "Install a built wheel, or the same commit, on every host.",
    ),
    _rule(
        "EP218",
        "results",
        "version-policy",
        "A package does not satisfy the version policy",
        "envspec.yaml states which versions are allowed.",
        "Install a version that the policy allows, or change the policy.",
    ),
    _rule(
        "EP219",
        "breaks",
        "required-missing",
        "A package that the role requires is not installed",
        "envspec.yaml states that hosts of this role need it.",
        "Install it in the version of the lock or of the other hosts.",
    ),
    _rule(
        "EP220",
        "breaks",
        "lock-not-for-host",
        "The lock is not made for this host",
        "Its Python range or its list of environments leaves this host out, so an installer refuses it.",
        "Lock again with this host's Python and platform among the environments, or use the Python the lock asks for.",
    ),
    _rule(
        "EP221",
        "breaks",
        "no-wheel-for-host",
        "A locked package has no file that this host can install",
        "Every locked wheel is for another platform, Python or a newer glibc, and there is no source archive.",
        "Lock again for this platform, or take a newer base image.",
    ),
    _rule(
        "EP222",
        "noise",
        "installer-settings",
        "pip or uv settings that change what an install resolves to differ",
        "The same command installs other versions or builds on the hosts.",
        "Give the hosts the same pip and uv configuration, or install from a lock with hashes.",
    ),
    _rule(
        "EP223",
        "breaks",
        "twins-disagree",
        "Packages that must have one version disagree",
        "The library compares the two at start and refuses to run, or loads kernels made for another version.",
        "Install both in the same version.",
    ),
    _rule(
        "EP224",
        "results",
        "locked-hash",
        "A package was installed from a file whose hash is not in the lock",
        "Same name and version, other file: a rebuild or another index.",
        "Reinstall it from the lock with hash checking on.",
    ),
    _rule(
        "EP225",
        "results",
        "component-differs",
        "A CUDA library has different versions",
        "cuBLAS, cuDNN and NCCL choose other algorithms and other reduction orders in other versions.",
        "Install the same torch build everywhere; its pins bring the same libraries.",
    ),
    _rule(
        "EP226",
        "results",
        "lock-ambiguous",
        "The lock gives a package more than one version for this host",
        "The entries' conditions do not exclude each other on this host, so installers may disagree.",
        "Lock again with the tool that wrote the lock, or give the role its own lock.",
    ),
    # CUDA, driver and GPU architecture.
    _rule(
        "EP301",
        "breaks",
        "driver-too-old",
        "The NVIDIA driver is older than the CUDA runtime allows",
        'CUDA does not start: `torch.cuda.is_available()` is False, or "driver version is insufficient" is raised.',
        "Install a build of torch for the driver's CUDA (reinstall torch only), or a newer driver.",
    ),
    _rule(
        "EP302",
        "breaks",
        "arch-not-covered",
        "The installed build has no code for this GPU",
        'The first kernel fails: "no kernel image is available for execution on the device".',
        "Install a build whose architecture list covers the GPU's compute capability.",
    ),
    _rule(
        "EP303",
        "breaks",
        "image-requirement",
        "The image's NVIDIA_REQUIRE_CUDA is not met by the host",
        'The container does not start: "unsatisfied condition".',
        "Take a newer driver or an image for an older CUDA; NVIDIA_DISABLE_REQUIRES=true only skips the check.",
    ),
    _rule(
        "EP304",
        "noise",
        "driver-differs",
        "The NVIDIA drivers differ",
        "Code that is compiled at run time from PTX is compiled by the driver.",
        "Bring the hosts to one driver branch when results must be compared bit by bit.",
    ),
    _rule(
        "EP305",
        "results",
        "gpu-differs",
        "The GPU models differ",
        "Libraries choose other kernels for another GPU; results differ in the last bits.",
        "Compare acceptance figures on one GPU model, or declare the difference between the roles.",
    ),
    _rule(
        "EP306",
        "results",
        "mixed-cuda",
        "Libraries of different CUDA majors are installed together",
        "Which of the two a package loads depends on import order; each works only with its own major.",
        "Uninstall the libraries of the major that torch is not built for, then reinstall torch.",
    ),
    _rule(
        "EP307",
        "results",
        "toolkit-mismatch",
        "The CUDA toolkit on the host is not torch's CUDA",
        "Extensions compiled at run time (flashinfer, torch extensions) are built with the toolkit and refuse to build or to load.",
        "Point CUDA_HOME to a toolkit of torch's CUDA version, or unset it where nothing is compiled.",
    ),
    _rule(
        "EP308",
        "breaks",
        "no-driver",
        "A CUDA build is installed on a host with a GPU but no working driver",
        "CUDA does not start although the hardware is there.",
        "Install the NVIDIA driver, or start the container with the GPUs (`--gpus all`).",
    ),
    _rule(
        "EP309",
        "noise",
        "minor-compatibility",
        "The CUDA runtime is newer than the driver's CUDA of the same major",
        "It runs by minor-version compatibility: code compiled from PTX at run time and functions new in the runtime do not.",
        "Take a driver of the runtime's CUDA version where kernels are compiled at run time.",
    ),
    _rule(
        "EP310",
        "noise",
        "gpu-setting",
        "GPU number, memory or mode differ",
        "Memory decides batch and cache sizes; MIG and ECC change what is there.",
        "Nothing is needed if the hosts are meant to differ.",
    ),
    _rule(
        "EP311",
        "results",
        "cuda-differs",
        "torch is built for different CUDA versions or architectures",
        "Other libraries and other kernels run.",
        "Install the same torch build everywhere.",
    ),
    # Binary compatibility and native libraries.
    _rule(
        "EP401",
        "breaks",
        "undefined-symbols",
        "An extension needs torch symbols that the installed torch does not export",
        'It was built against another torch; the import fails with "undefined symbol".',
        "Install the build of the extension for this torch, or the torch it was built for.",
    ),
    _rule(
        "EP402",
        "breaks",
        "library-missing",
        "A compiled module needs a library that is nowhere on the loader's path",
        'The import fails: "cannot open shared object file".',
        "Install the package that brings the library, or the build of the module for the installed CUDA.",
    ),
    _rule(
        "EP403",
        "breaks",
        "libc-too-old",
        "A compiled module needs a newer C library than the host has",
        'The import fails: "version `GLIBC_…\' not found".',
        "Take a wheel for the older glibc, build it on this host, or use a newer base image.",
    ),
    _rule(
        "EP404",
        "breaks",
        "string-abi",
        "An extension was built with the other C++ string ABI",
        'Old and new std::string have different symbols; the import fails with "undefined symbol" names ending in Ss or containing __cxx11.',
        "Install the file whose name says the ABI of the installed torch (cxx11abiTRUE or cxx11abiFALSE).",
    ),
    _rule(
        "EP405",
        "results",
        "library-overridden",
        "A library directory of the system comes before the packages' own",
        "The loader takes LD_LIBRARY_PATH before the run path of cuDNN and of most extensions: another version runs, or two versions are mixed.",
        "Unset LD_LIBRARY_PATH for this process, or leave the CUDA directories out of it.",
    ),
    _rule(
        "EP406",
        "results",
        "library-version",
        "A library on disk is not the version its package says",
        "Two packages wrote one file, or the file was replaced; the metadata is wrong about what runs.",
        "Reinstall the package that torch pins (`--force-reinstall --no-deps`).",
    ),
    _rule(
        "EP407",
        "breaks",
        "foreign-machine",
        "A compiled module is for another processor architecture",
        'The loader refuses it: "wrong ELF class" or "cannot open shared object file".',
        "Reinstall the package on this machine.",
    ),
    _rule(
        "EP408",
        "results",
        "preload",
        "LD_PRELOAD puts a library before all others",
        "The preloaded library replaces functions in every process.",
        "Unset LD_PRELOAD unless it is meant (an allocator), and then set it on every host.",
    ),
    _rule(
        "EP409",
        "breaks",
        "driver-library-missing",
        "A compiled module needs the driver's libcuda.so.1, which is not on this host",
        "The module cannot be imported on a host without the NVIDIA driver.",
        "Run it on a host with the driver, or start the container with the GPUs (`--gpus all`).",
    ),
    _rule(
        "EP410",
        "results",
        "library-differs",
        "A native library has different versions on the compared hosts",
        "The libraries choose other algorithms and reduction orders in other versions.",
        "Install the same build everywhere, and compare LD_LIBRARY_PATH.",
    ),
    # Shadowing and search path.
    _rule(
        "EP501",
        "results",
        "shadowed-copy",
        "A package is installed twice and one copy hides the other",
        "The copy that an installer shows may not be the one that is imported.",
        "Uninstall one of the two copies.",
    ),
    _rule(
        "EP502",
        "results",
        "user-site",
        "A package in the user's own directory hides the environment's copy",
        "The container or environment is not what runs: ~/.local comes first.",
        "Set PYTHONNOUSERSITE=1, or uninstall the user's copy.",
    ),
    _rule(
        "EP503",
        "results",
        "pythonpath",
        "A package on PYTHONPATH hides the environment's copy",
        "PYTHONPATH comes before site-packages.",
        "Unset PYTHONPATH for this process.",
    ),
    _rule(
        "EP504",
        "results",
        "loose-module",
        "A directory or file that belongs to no package hides an installed or standard one",
        "It is imported in place of the package; compiled parts and versions do not fit together.",
        "Move or rename the directory, or take its parent off the search path.",
    ),
    _rule(
        "EP505",
        "results",
        "shared-files",
        "Two packages own the same files",
        "The one that was installed last won; uninstalling either breaks both.",
        "Uninstall both, then reinstall the one that is needed.",
    ),
    _rule(
        "EP506",
        "results",
        "startup-hook",
        "Code that runs at interpreter start is on some hosts only",
        "A .pth line or sitecustomize can change the search path and patch modules before the script begins.",
        "Remove the hook, or install it everywhere.",
    ),
    _rule(
        "EP507",
        "noise",
        "search-path",
        "The search paths are put together differently",
        "Order and origin of the entries decide which copy of a module is imported.",
        "Compare PYTHONPATH and .pth files; nothing is needed while no package is shadowed.",
    ),
    _rule(
        "EP508",
        "results",
        "system-packages",
        "A virtual environment takes packages from the system below it",
        "The environment changes when the system is updated; its lock does not describe it.",
        "Make the environment without --system-site-packages, or install the package in it.",
    ),
    _rule(
        "EP509",
        "noise",
        "path-entry-missing",
        "A search path entry does not exist",
        "Nothing is imported from it; modules expected there are missing or come from elsewhere.",
        "Remove the entry or restore the directory.",
    ),
    # Metadata damage.
    _rule(
        "EP601",
        "results",
        "metadata-broken",
        "A package's metadata is missing or has no name or version",
        "Version checks inside libraries get None or fail; installers cannot uninstall it.",
        "Delete the metadata directory and reinstall the package.",
    ),
    _rule(
        "EP602",
        "results",
        "metadata-encoding",
        "A package's metadata is not UTF-8",
        "importlib.metadata raises UnicodeDecodeError for it, and so does every library that lists packages.",
        "Reinstall the package, or a newer version with correct metadata.",
    ),
    _rule(
        "EP603",
        "results",
        "metadata-mismatch",
        "A package's file names and metadata disagree",
        "Tools that read the directory's name and tools that read the metadata see different packages.",
        "Reinstall the package from a correct wheel.",
    ),
    _rule(
        "EP604",
        "noise",
        "record-broken",
        "A package's list of files is missing or damaged",
        "It cannot be verified or cleanly uninstalled.",
        "Reinstall the package with --force-reinstall --no-deps.",
    ),
    _rule(
        "EP605",
        "results",
        "duplicate-metadata",
        "One place holds the metadata of two versions of a package",
        "Which of the two a version check sees is not defined; the files are those of one.",
        "Uninstall the package until it is gone, then install it once.",
    ),
    _rule(
        "EP606",
        "noise",
        "leftover",
        "An interrupted uninstall left a directory behind",
        "It takes space and makes pip warn; nothing is imported from it.",
        "Delete the directory.",
    ),
    _rule(
        "EP607",
        "noise",
        "origin-broken",
        "A package's record of its origin or wheel is damaged",
        "Where it came from cannot be told.",
        "Reinstall the package.",
    ),
    # Environment variables.
    _rule(
        "EP701",
        "results",
        "numerics-variable",
        "A variable that changes numerics differs",
        "TF32, determinism and reduction-order switches change results without changing any package.",
        "Set the variable to the same value on every host.",
    ),
    _rule(
        "EP702",
        "results",
        "behaviour-variable",
        "A variable that changes how the libraries run differs",
        "Allocation, compilation and communication switches choose other code paths.",
        "Set the variable to the same value on every host, or declare the difference.",
    ),
    _rule(
        "EP703",
        "noise",
        "path-variable",
        "A search-path variable differs",
        "It decides which files are found first; a finding of its own is reported where that changes a package.",
        "Nothing is needed while no package or library is shadowed.",
    ),
    _rule(
        "EP704",
        "noise",
        "cache-variable",
        "A cache or offline variable differs",
        "The hosts may read other copies of models and compiled kernels.",
        "Clear the caches when kernels or models look stale.",
    ),
    _rule(
        "EP705",
        "results",
        "check-disabled",
        "A variable switches off a library's own compatibility check",
        "The fault that the check would have named goes on into the run.",
        "Unset the variable and mend what the check then reports.",
    ),
    _rule(
        "EP706",
        "results",
        "tf32-forced",
        "A variable forces the precision of matrix products",
        "It outranks what the program asks for: float32 products run in TF32, or TF32 is forbidden.",
        "Unset the variable, or set it on every host and say so beside the figures.",
    ),
    _rule(
        "EP707",
        "noise",
        "secret-variable",
        "A secret differs",
        "Only that it differs is known; access to gated models may differ.",
        "Nothing is needed while both hosts can read the same models.",
    ),
    _rule(
        "EP708",
        "noise",
        "other-variable",
        "A variable differs",
        "It is not known to change results.",
        "Nothing is needed.",
    ),
    # Host, interpreter and limits.
    _rule(
        "EP801",
        "results",
        "python-differs",
        "The hosts run different Python versions",
        "Wheels, standard library and syntax differ from one minor version to the next.",
        "Use the same Python minor version everywhere: `uv venv --python VERSION` makes an environment with it.",
    ),
    _rule(
        "EP802",
        "noise",
        "python-patch",
        "The hosts run different patch releases of one Python version",
        "Patch releases correct faults; they seldom change results.",
        "Use the same patch release where exactness is wanted.",
    ),
    _rule(
        "EP803",
        "results",
        "python-abi",
        "The interpreters have different binary interfaces",
        "A free-threaded, debug or other implementation takes other wheels.",
        "Use the same build of Python everywhere.",
    ),
    _rule(
        "EP804",
        "noise",
        "libc-differs",
        "The C libraries differ",
        "The math library and the accepted wheels depend on it; where a module needs a newer one that is reported apart.",
        "Use the same base image.",
    ),
    _rule(
        "EP805",
        "noise",
        "os-differs",
        "Operating system or kernel differ",
        "It seldom matters by itself.",
        "Nothing is needed.",
    ),
    _rule(
        "EP806",
        "results",
        "cpu-differs",
        "The processors offer different instructions",
        "CPU kernels are chosen by instruction set; results differ in the last bits.",
        "Compare CPU results on the same processor family, or pin the kernels (MKL_CBWR, ATEN_CPU_CAPABILITY).",
    ),
    _rule(
        "EP807",
        "results",
        "shared-memory",
        "Shared memory is too small for several GPUs or workers",
        "NCCL and data loaders exchange data through /dev/shm and die with a bus error when it is full.",
        "Start the container with `--shm-size=16g` or `--ipc=host`.",
    ),
    _rule(
        "EP808",
        "noise",
        "limits-differ",
        "Resource limits differ",
        "Open files, locked memory, memory and CPU quotas decide where a run stops.",
        "Set the same limits where runs fail on one host only.",
    ),
    _rule(
        "EP809",
        "noise",
        "container-differs",
        "The hosts run in different containers or images",
        "The image is only the start of an environment; the findings on packages say what it changes.",
        "Use the same image digest.",
    ),
    # Collection and configuration.
    _rule(
        "EP901",
        "breaks",
        "not-captured",
        "A host could not be captured",
        "Nothing is known of it, so nothing can be said to match.",
        "The message says what failed; `envspec capture HOST` tries that host alone.",
    ),
    _rule(
        "EP902",
        "noise",
        "section-unknown",
        "A part of a host could not be read",
        "What it would have shown is unknown, not absent.",
        "The reason stands with the finding; capture again when it is removed.",
    ),
    _rule(
        "EP903",
        "noise",
        "login-noise",
        "The host's login prints on standard output",
        "It was skipped here; it breaks scp, rsync and other tools that speak over the login.",
        "Print only in interactive shells: guard the lines in .bashrc with `case $- in *i*) … esac`.",
    ),
    _rule(
        "EP904",
        "results",
        "other-interpreter",
        "Another interpreter answered than the one that was named",
        "A shim, alias or link leads elsewhere: the environment that was compared is not the one that was meant.",
        "Name the interpreter by its full path.",
    ),
    _rule(
        "EP905",
        "noise",
        "ignore-expired",
        "An ignore has passed its end date",
        "The findings that it hid count again.",
        "Mend them, or give the ignore a new date with its reason.",
    ),
    _rule(
        "EP906",
        "noise",
        "ignore-unused",
        "An ignore, declaration or override matches nothing",
        "What it was written for is gone; left in place it may hide the next fault.",
        "Remove the entry.",
    ),
    _rule(
        "EP907",
        "noise",
        "baseline-unused",
        "Accepted findings of the baseline no longer occur",
        "The faults are mended; the baseline can shrink.",
        "Write the baseline again with `--write-baseline`.",
    ),
    _rule(
        "EP908",
        "noise",
        "partial-snapshot",
        "A host is known by a package list only",
        "`pip inspect` and `pip freeze` say nothing of drivers, libraries, files or variables.",
        "Capture the host with `envspec capture`.",
    ),
)

RULES: Final[Mapping[str, Rule]] = {row.code: row for row in _ROWS}


def rule(code: str) -> Rule:
    """The row of a code, in any letter case.

    Raises:
        UsageError: there is no such code; close ones are named.
    """
    found = RULES.get(code.upper())
    if found is None:
        near = [known for known in RULES if known.startswith(code.upper()[:3])] or list(RULES)[:1]
        raise UsageError(f"there is no finding code {code!r}; codes like it: {', '.join(near[:8])}")
    return found


def family(code: str) -> str:
    """The title of a code's family."""
    return FAMILIES[code[:3]]


def finding(
    code: str,
    subject: str,
    hosts: Iterable[str],
    what: str,
    *,
    fix: str | None = None,
    severity: Severity | None = None,
    why: str | None = None,
    location: Location | None = None,
    evidence: Mapping[str, Json] | None = None,
) -> Finding:
    """A finding with the words of its rule where none are given. Hosts are sorted and made unique."""
    row = RULES[code]
    return Finding(
        code=code,
        severity=severity or row.severity,
        subject=subject,
        hosts=tuple(sorted(set(hosts))),
        what=what,
        why=why or row.why,
        fix=fix or row.mend,
        location=location,
        evidence=dict(evidence or {}),
    )
