"""Environment variables, numerics first: what each does decides its code."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Hashable, Sequence
from typing import Final

from envspec.compare.model import Collector, Fact, Host, Key, Split, joined

__all__ = ["between_hosts", "classify", "each", "facts", "recorded"]

_NUMERICS: Final = re.compile(
    r"^(NVIDIA_TF32_OVERRIDE|TORCH_ALLOW_TF32_CUBLAS_OVERRIDE|CUBLAS(LT)?_WORKSPACE_.*|CUDNN_.*|TORCH_CUDNN_.*|"
    r"PYTORCH_MIOPEN_.*|NCCL_(ALGO|PROTO|NVLS_ENABLE)|VLLM_(BATCH_INVARIANT|ATTENTION_BACKEND|USE_FLASHINFER_.*|"
    r"USE_TRITON_.*|FLASH_ATTN_VERSION)|SGLANG_.*DETERMINISTIC.*|TRITON_(?!CACHE_DIR|PTXAS_PATH|HOME).*|XFORMERS_.*|"
    r"FLASH_ATTENTION_.*|PYTHONHASHSEED|OMP_NUM_THREADS|MKL_(CBWR|NUM_THREADS|ENABLE_INSTRUCTIONS)|OPENBLAS_.*|"
    r"ATEN_CPU_CAPABILITY|DNNL_.*|ONEDNN_.*)$"
)
_CACHES: Final = re.compile(
    r"^(HF_.*|HUGGINGFACE_.*|TRANSFORMERS_(OFFLINE|CACHE)|TRITON_(CACHE_DIR|HOME)|TORCHINDUCTOR_CACHE_DIR|"
    r"FLASHINFER_WORKSPACE_BASE|XDG_CACHE_HOME|TORCH_HOME|VLLM_CACHE_ROOT|CUDA_CACHE_PATH|.*_CACHE(_DIR|_ROOT|_PATH)?|.*_OFFLINE)$"
)
_PATHS: Final = re.compile(
    r"^(PYTHONPATH|PYTHONNOUSERSITE|PYTHONSAFEPATH|PYTHONSTARTUP|LD_LIBRARY_PATH|LD_PRELOAD|CUDA_HOME|CUDA_PATH|"
    r"TRITON_PTXAS_PATH|LIBRARY_PATH|CPATH)$"
)
_PLACES: Final = re.compile(
    r"^(PATH|PWD|OLDPWD|HOME|USER|LOGNAME|HOSTNAME|SHELL|SHLVL|_|TERM|VIRTUAL_ENV.*|CONDA_.*|PYTHONHOME|"
    r"PYENV_.*|PIPX_.*|UV_.*|PIP_.*|NVIDIA_REQUIRE_.*|__PYVENV_LAUNCHER__)$"
)
"""Where an environment is, which differs by nature, and how installers work (caches, timeouts, output)."""
_INSTALLERS: Final = re.compile(
    r"^(PIP_(INDEX_URL|EXTRA_INDEX_URL|FIND_LINKS|NO_INDEX|PRE|ALL_RELEASES|ONLY_FINAL|PREFER_BINARY|NO_BINARY|ONLY_BINARY|NO_DEPS|"
    r"IGNORE_REQUIRES_PYTHON|PYTHON_VERSION|PLATFORM|IMPLEMENTATION|ABI|REQUIRE_HASHES|UPGRADE_STRATEGY|UPLOADED_PRIOR_TO|USE_FEATURE|"
    r"USE_DEPRECATED|USER)|"
    r"UV_(INDEX|DEFAULT_INDEX|INDEX_URL|EXTRA_INDEX_URL|FIND_LINKS|NO_INDEX|INDEX_STRATEGY|PRERELEASE|RESOLUTION|FORK_STRATEGY|"
    r"EXCLUDE|EXCLUDE_NEWER(_PACKAGE)?|TORCH_BACKEND|NO_BINARY(_PACKAGE)?|NO_BUILD(_PACKAGE)?|NO_SOURCES(_PACKAGE)?|REQUIRE_HASHES|"
    r"NO_CONFIG|LOCKED|FROZEN|GIT_LFS))$"
)
"""What decides which files pip and uv install. Of constraints, the probe reads the contents: those are rows of configuration."""
_BEHAVIOUR: Final = re.compile(
    r"^(PYTORCH_.*|TORCH_.*|TORCH(INDUCTOR|DYNAMO|ELASTIC).*|CUDA_.*|NCCL_.*|VLLM_.*|SGLANG_.*|SGL_.*|FLASHINFER_.*|"
    r"TRANSFORMERS_.*|TOKENIZERS_.*|OMP_.*|MKL_.*|KMP_.*|GOMP_.*|NVIDIA_.*|NVSHMEM_.*|UCX_.*|CUBLAS.*|DEEPSPEED_.*|"
    r"ACCELERATE_.*|PYTHON(OPTIMIZE|DEVMODE|UTF8|INTMAXSTRDIGITS|MALLOC|WARNINGS))$"
)
_CHECKS: Final = re.compile(
    r"^(NVIDIA_DISABLE_REQUIRE(S)?|FLASHINFER_DISABLE_VERSION_CHECK|SGLANG_SKIP_SGL_KERNEL_VERSION_CHECK|"
    r"[A-Z0-9_]*(DISABLE|SKIP)[A-Z0-9_]*(VERSION|COMPAT|REQUIREMENT)[A-Z0-9_]*CHECK[A-Z0-9_]*|TRANSFORMERS_SKIP_VERSION_CHECK)$"
)
_FORCED: Final = {
    "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE": "float32 matrix products run in TF32, whatever the program sets",
    "NVIDIA_TF32_OVERRIDE": "TF32 is forbidden or allowed in every NVIDIA library, whatever the program sets",
}
_ALIASES: Final = {"PYTORCH_CUDA_ALLOC_CONF": "PYTORCH_ALLOC_CONF"}
_FALSE: Final = frozenset({"", "0", "false", "no", "off"})


def classify(name: str) -> str | None:
    """The code of a difference in this variable, None for one that only says where things are."""
    if _INSTALLERS.match(name):
        return "EP222"
    if _PLACES.match(name):
        return None
    for code, pattern in (("EP701", _NUMERICS), ("EP703", _PATHS), ("EP704", _CACHES), ("EP702", _BEHAVIOUR)):
        if pattern.match(name):
            return code
    return "EP708"


def _value(host: Host, name: str) -> str | None:
    variable = host.snapshot.environment.get(name)
    return variable.value if variable is not None and not variable.redacted else None


def each(out: Collector, host: Host) -> None:
    """Variables that are a finding wherever they are set."""
    for name in sorted(host.snapshot.environment):
        value = _value(host, name)
        if value is None:
            continue
        row: Key = ("variable", name)
        if _CHECKS.match(name) and not _PLACES.match(name) and value.lower() not in _FALSE:
            what = f"{name}={value} switches off a compatibility check"
            out.add("EP705", name, [host.label], what, evidence={"found": value}, row=row)
        elif name in _FORCED and not (name.startswith("TORCH_") and value.lower() in _FALSE):
            what = f"{name}={value}: {_FORCED[name]}"
            out.add("EP706", name, [host.label], what, evidence={"found": value}, row=row, fix=f"unset {name}")


def recorded(host: Host, name: str) -> bool:
    """Whether a capture takes down this variable where it is set: not being there is then not being set."""
    from envspec.probe import VARIABLES  # large, and seldom asked

    return bool(VARIABLES.match(name)) or any(fnmatch.fnmatchcase(name, each) for each in host.snapshot.capture.variables)


def facts(host: Host) -> dict[Key, Fact]:
    """Every variable that can matter, by its current name; a redacted one by its salted hash."""
    out: dict[Key, Fact] = {}
    for name, variable in host.snapshot.environment.items():
        if classify(name) is None:
            continue
        key = ("variable", _ALIASES.get(name, name))
        if variable.redacted:
            identity: Hashable = ("redacted", host.snapshot.capture.salt_id, variable.hash, variable.value)
            out[key] = Fact(identity, variable.value or "(secret)")
        elif key not in out or name not in _ALIASES:
            out[key] = Fact(variable.value, variable.value or "(empty)")
    return out


def between_hosts(out: Collector, hosts: Sequence[Host]) -> None:
    """Variables that differ, or are set on some hosts only."""
    read = [host for host in hosts if host.snapshot.known("environment")]
    tables = {host.label: facts(host) for host in read}
    by_label = {host.label: host for host in read}
    salts = {host.label: host.snapshot.capture.salt_id for host in read}
    for key in sorted({key for table in tables.values() for key in table}):
        told = {label: table for label, table in tables.items() if key in table or recorded(by_label[label], key[1])}
        if len({table.get(key) for table in told.values()}) == 1:
            continue
        values: dict[str, Hashable] = {}
        secret = False
        for label, table in told.items():
            if (label, key) in out.covered:
                continue
            fact = table.get(key)
            if fact is not None and isinstance(fact.identity, tuple):
                secret = True
                if len(set(salts.values())) > 1:
                    continue  # hashes under different salts cannot be compared
            values[label] = fact.identity if fact is not None else None
        for split in out.splits(key, values):
            _report(out, key, split, secret)


def _report(out: Collector, key: Key, split: Split, secret: bool) -> None:
    name = key[1]
    code = "EP707" if secret else classify(name) or "EP708"
    what = f"{name}: {joined(split, _text)}"
    fix = None
    reference = split.reference if split.holders else None
    if split.holders and not secret:
        fix = f"unset {name}" if reference is None else f"export {name}={_quote(str(reference))}"
    evidence = {"found": sorted({_text(value) for value, _ in split.every})}
    out.add(code, name, split.hosts, what, fix=fix, evidence=evidence, row=key, declared=split.declared, cover=False)


def _quote(text: str) -> str:
    return text if re.fullmatch(r"[A-Za-z0-9_./:,=+-]+", text) else "'" + text.replace("'", "'\"'\"'") + "'"


def _text(value: object) -> str:
    if value is None:
        return "not set"
    if isinstance(value, tuple):
        return str(value[3]) if value[3] else "a secret"
    return str(value) or "(empty)"
