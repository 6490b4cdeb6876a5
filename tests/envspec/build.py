"""Builds what the tests look at: wheels, installed distributions, virtual environments, ELF files."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import struct
import subprocess
import sys
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from envspec.probe import gnu_hash

DEFAULT_TAG = "py3-none-any"


def record_row(path: str, data: bytes) -> str:
    """One RECORD row."""
    digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
    return f"{path},sha256={digest},{len(data)}"


def metadata(name: str, version: str, requires: Sequence[str] = (), extra: str = "") -> bytes:
    """A METADATA file."""
    lines = ["Metadata-Version: 2.1", f"Name: {name}", f"Version: {version}", *(f"Requires-Dist: {item}" for item in requires)]
    return ("\n".join(lines) + "\n" + extra + "\nThe description.\nVersion: 9.9.9\n").encode()


def wheel_files(
    name: str,
    version: str,
    files: Mapping[str, bytes],
    requires: Sequence[str] = (),
    tag: str = DEFAULT_TAG,
    build: str | None = None,
    extra: str = "",
) -> dict[str, bytes]:
    """Every file of a wheel, RECORD included, by path."""
    info = f"{name.replace('-', '_')}-{version}.dist-info"
    wheel = f"Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\nTag: {tag}\n" + (f"Build: {build}\n" if build else "")
    out = dict(files)
    out[f"{info}/METADATA"] = metadata(name, version, requires, extra)
    out[f"{info}/WHEEL"] = wheel.encode()
    rows = [record_row(path, data) for path, data in out.items()]
    out[f"{info}/RECORD"] = ("\n".join([*rows, f"{info}/RECORD,,"]) + "\n").encode()
    return out


def make_wheel(folder: Path, name: str, version: str, files: Mapping[str, bytes], **more: object) -> Path:
    """Write a wheel into a folder."""
    tag, build = str(more.get("tag", DEFAULT_TAG)), more.get("build")
    stem = f"{name.replace('-', '_')}-{version}" + (f"-{build}" if build else "")
    path = folder / f"{stem}-{tag}.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for where, data in wheel_files(name, version, files, **more).items():  # type: ignore[arg-type]
            archive.writestr(where, data)
    return path


def install(site: Path, name: str, version: str, files: Mapping[str, bytes], installer: str = "pip", **more: object) -> Path:
    """Lay a distribution's files into a site directory as an installer would; its dist-info directory."""
    contents = wheel_files(name, version, files, **more)  # type: ignore[arg-type]
    for where, data in contents.items():
        target = site / where
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(data)
    info = site / f"{name.replace('-', '_')}-{version}.dist-info"
    (info / "INSTALLER").write_text(installer + "\n")
    return info


def python_env() -> dict[str, str]:
    """An environment for child processes without pip's and uv's settings, so that nothing is fetched."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("PIP_", "UV_", "PYTHON", "VIRTUAL_ENV"))}
    return {**kept, "PIP_CONFIG_FILE": os.devnull, "PIP_NO_INDEX": "1", "PIP_DISABLE_PIP_VERSION_CHECK": "1", "UV_OFFLINE": "1", "UV_NO_CONFIG": "1"}


def check_call(*command: str | os.PathLike[str], cwd: Path | None = None) -> str:
    """Run a command to success; its stdout."""
    done = subprocess.run([os.fspath(item) for item in command], capture_output=True, text=True, env=python_env(), cwd=cwd, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def bare_venv(folder: Path, python: str = sys.executable) -> Path:
    """A venv without pip, in the fewest files; its site-packages directory."""
    check_call(python, "-m", "venv", "--without-pip", folder)
    (site,) = folder.glob("lib/python3*/site-packages")
    return site


# ELF ------------------------------------------------------------------------------------------------------------------


def elf(
    *,
    needed: Sequence[str] = (),
    undefined: Sequence[str] = (),
    weak: Sequence[str] = (),
    exports: Sequence[str] = (),
    versions: Mapping[str, Sequence[str]] | None = None,
    rpath: str | None = None,
    runpath: str | None = None,
    constants: bytes = b"",
    machine: int = 62,
    sections: bool = True,
) -> bytes:
    """A 64-bit little-endian shared object with just a dynamic section: enough for a loader's questions, nothing to run.

    One PT_LOAD maps the whole file at address 0, so addresses are offsets. ``versions`` maps a library to the versions needed of it.
    """
    table = bytearray(b"\0")

    def string(text: str) -> int:
        at = len(table)
        table.extend(text.encode() + b"\0")
        return at

    ordered = sorted(exports, key=lambda name: gnu_hash(name.encode()) % max(1, len(exports)))
    symbols = [struct.pack("<IBBHQQ", 0, 0, 0, 0, 0, 0)]
    symbols += [struct.pack("<IBBHQQ", string(name), 0x12, 0, 0, 0, 0) for name in undefined]
    symbols += [struct.pack("<IBBHQQ", string(name), 0x22, 0, 0, 0, 0) for name in weak]
    first = len(symbols)
    symbols += [struct.pack("<IBBHQQ", string(name), 0x12, 0, 1, 0x1000, 8) for name in ordered]
    hashes = [gnu_hash(name.encode()) for name in ordered]
    buckets = max(1, len(ordered))
    heads = [0] * buckets
    chains = []
    for index, value in enumerate(hashes):
        bucket = value % buckets
        heads[bucket] = heads[bucket] or first + index
        last = index + 1 == len(hashes) or hashes[index + 1] % buckets != bucket
        chains.append((value & ~1) | int(last))
    bloom = 0
    for value in hashes:
        bloom |= 1 << (value & 63) | 1 << ((value >> 6) & 63)
    gnu = struct.pack("<IIIIQ", buckets, first, 1, 6, bloom) + struct.pack(f"<{buckets}I", *heads) + struct.pack(f"<{len(chains)}I", *chains)
    verneed = bytearray()
    items = list((versions or {}).items())
    for position, (library, names) in enumerate(items):
        step = 16 + 16 * len(names)
        verneed += struct.pack("<HHIII", 1, len(names), string(library), 16, step if position + 1 < len(items) else 0)
        for index, name in enumerate(names):
            verneed += struct.pack("<IHHII", 0, 0, 2 + index, string(name), 16 if index + 1 < len(names) else 0)
    entries = [(1, string(name)) for name in needed]
    entries += [(15, string(rpath))] if rpath else []
    entries += [(29, string(runpath))] if runpath else []
    count = len(entries) + (7 if verneed else 5)
    at = 64 + 2 * 56
    dynamic_at, at = at, at + 16 * count
    symbols_at, at = at, at + 24 * len(symbols)
    gnu_at, at = at, at + len(gnu)
    verneed_at, at = at, at + len(verneed)
    strings_at, at = at, at + len(table)
    constants_at, at = at, at + len(constants)
    sections_at = (at + 7) // 8 * 8
    size = sections_at + (3 * 64 if sections else 0)
    entries += [(5, strings_at), (10, len(table)), (6, symbols_at), (0x6FFFFEF5, gnu_at)]
    entries += [(0x6FFFFFFE, verneed_at), (0x6FFFFFFF, len(items))] if verneed else []
    entries.append((0, 0))
    header = b"\x7fELF\x02\x01\x01" + bytes(9)
    header += struct.pack("<HHIQQQIHHHHHH", 3, machine, 1, 0, 64, sections_at if sections else 0, 0, 64, 56, 2, 64, 3 if sections else 0, 0)
    header += struct.pack("<IIQQQQQQ", 1, 5, 0, 0, 0, size, size, 4096)
    header += struct.pack("<IIQQQQQQ", 2, 6, dynamic_at, dynamic_at, dynamic_at, 16 * count, 16 * count, 8)
    body = header + b"".join(struct.pack("<qQ", *entry) for entry in entries) + b"".join(symbols) + gnu + bytes(verneed) + bytes(table) + constants
    if sections:
        body = body.ljust(sections_at, b"\0")
        body += struct.pack("<IIQQQQIIQQ", 0, 0, 0, 0, 0, 0, 0, 0, 0, 0)
        body += struct.pack("<IIQQQQIIQQ", 0, 11, 2, symbols_at, symbols_at, 24 * len(symbols), 0, 0, 8, 24)
        body += struct.pack("<IIQQQQIIQQ", 0, 1, 2, constants_at, constants_at, len(constants), 0, 0, 1, 0)
    return body


def torch_files(version: str = "2.9.1+cu128", cuda: str | None = "12.8", exports: Sequence[str] = (), archs: str = "sm_80 sm_90") -> dict[str, bytes]:
    """A torch without code: version.py and libraries that export what is given."""
    python = elf(exports=["THPVariableClass"], constants=b"junk sm_ x\0" + archs.encode() + b"\0sm_1\0")
    return {
        "torch/__init__.py": b"raise RuntimeError('torch must not be imported')\n",
        "torch/version.py": (
            f"__all__ = []\n__version__ = {version!r}\ndebug = False\ncuda: Optional[str] = {cuda!r}\ngit_version = 'abc'\nhip: Optional[str] = None\n"
        ).encode(),
        "torch/lib/libc10.so": elf(exports=["_ZN3c105ErrorC1ENSt7__cxx1112basic_stringE", *exports]),
        "torch/lib/libtorch_cpu.so": elf(exports=["_ZN2at4_ops3add4callE"]),
        "torch/lib/libtorch_python.so": python,
        "torch/lib/libtorch.so": elf(needed=["libtorch_cpu.so"]),
    }


def direct_url(info: Path, document: object) -> None:
    """Write direct_url.json."""
    (info / "direct_url.json").write_text(json.dumps(document))
