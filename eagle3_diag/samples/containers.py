"""Open a sample's file as named tensors: ``torch.save`` archives (plain or gzipped) and safetensors.

Nothing in a file is ever executed: ``torch.load`` runs with ``weights_only=True``. Uncompressed files are
memory-mapped, so that only the pages a caller touches are read.
"""

from __future__ import annotations

import gzip
import io
import pickle
import re
import stat
import warnings
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Literal

import torch
from safetensors import SafetensorError, safe_open

from eagle3_diag.errors import InputError, OutOfMemory

#: A gzipped sample is unpacked in memory; one larger than this is taken for damage (a long Kimi-size sample has 4 GiB).
MAX_UNPACKED_BYTES = 32 << 30

#: How a pickle of protocol 3 to 5 begins; torch.save writes protocol 2.
_PICKLES = (b"\x80\x03", b"\x80\x04", b"\x80\x05")


@dataclass(frozen=True, kw_only=True)
class Record:
    """A file's content before its format is known. ``data`` maps names to tensors (or to what else a dict may hold)."""

    path: Path
    container: Literal["torch", "safetensors"]
    data: Mapping[str, Any]


def read_record(path: Path) -> Record:
    """Open ``path``. Raises InputError with one sentence for whatever is not a whole file of named tensors."""
    try:
        kind = path.stat().st_mode
        if not (stat.S_ISREG(kind) or stat.S_ISDIR(kind)):  # opening a pipe would wait for its writer forever
            raise InputError(f"{path}: this is a pipe or a device, no file; leave it out, or store the sample in a file.")
        with path.open("rb") as file:
            head = file.read(64)
    except OSError as error:
        raise InputError(f"{path}: the sample cannot be read ({error.strerror}).") from None
    if not head:
        raise InputError(f"{path}: the file is empty; its writer was probably stopped, make this sample again.")
    if head.startswith(b"version https://git-lfs"):
        raise InputError(f"{path}: this is a Git LFS pointer, not the sample itself; fetch it with `git lfs pull`.")
    try:
        if path.name.endswith(".safetensors"):
            return Record(path=path, container="safetensors", data=_read_safetensors(path))
        return Record(path=path, container="torch", data=_read_torch(path, head))
    except MemoryError:
        raise OutOfMemory(f"{path}: not enough memory to open this sample.") from None


def _read_safetensors(path: Path) -> dict[str, torch.Tensor]:
    try:
        with safe_open(path, framework="pt") as file:
            return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a mapping)
    except MemoryError:
        raise
    except (SafetensorError, OSError, ValueError, RuntimeError, TypeError, KeyError, AttributeError) as error:
        raise InputError(
            f"{path}: the safetensors file is truncated or corrupt ({_one_line(error)}); make or copy this sample "
            "again."
        ) from None


def _read_torch(path: Path, head: bytes) -> dict[str, Any]:
    unpacked = _gunzip(path) if head.startswith(b"\x1f\x8b") else None
    data = _unpickle(path, head, unpacked)
    if not isinstance(data, dict) or not all(isinstance(key, str) for key in data):
        raise InputError(
            f"{path}: holds a {type(data).__name__}, where a sample is a dict of named tensors; this file is no sample."
        )
    return data


def _unpickle(path: Path, head: bytes, unpacked: IO[bytes] | None) -> Any:
    def load(source: Path | IO[bytes], *, mmap: bool) -> Any:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # old archives make torch warn about its own internals
            return torch.load(source, map_location="cpu", weights_only=True, mmap=mmap)

    try:
        if unpacked is not None:
            return load(unpacked, mmap=False)
        return load(path, mmap=_is_zip(path))
    except MemoryError:
        raise
    except pickle.UnpicklingError as error:
        found = re.search(r"GLOBAL ([\w.]+)|global:? ([\w.]+)", str(error))
        if found or head[:2] in _PICKLES:
            what = (found[1] or found[2]) if found else "a plain pickle"
            raise InputError(
                f"{path}: holds Python objects, not only tensors ({what}); it was refused and nothing in it was run. Save "
                "the sample as tensors, with torch.save."
            ) from None
        # The rest of torch's text tells how to load the file unsafely, which is no advice to pass on.
        reason = re.search(r"WeightsUnpickler error:\s*(.+)", str(error))
        raise _corrupt(path, ValueError(reason[1] if reason else "not an archive of torch.save")) from None
    except Exception as error:  # a damaged archive makes the unpickler fail in any way it likes
        raise _corrupt(path, error) from None


def _is_zip(path: Path) -> bool:
    # torch maps only its zip format; the format before torch 1.6 has to be read into memory.
    with path.open("rb") as file:
        return file.read(4) == b"PK\x03\x04"


def _gunzip(path: Path) -> IO[bytes]:
    unpacked = io.BytesIO()
    try:
        with gzip.open(path, "rb") as file:
            while block := file.read(1 << 20):
                unpacked.write(block)
                if unpacked.tell() > MAX_UNPACKED_BYTES:
                    raise InputError(
                        f"{path}: unpacks to more than {MAX_UNPACKED_BYTES >> 30} GiB, which no sample does; the file "
                        "is corrupt."
                    )
    except (OSError, EOFError, zlib.error) as error:
        raise _corrupt(path, error) from None
    unpacked.seek(0)
    return unpacked


def _corrupt(path: Path, error: Exception) -> InputError:
    return InputError(f"{path}: the file is truncated or corrupt ({_one_line(error)}); make or copy this sample again.")


def _one_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    text = lines[0].strip().rstrip(".") if lines else type(error).__name__
    return text if len(text) <= 160 else text[:157] + "..."
