"""Tensors of a checkpoint directory: sharded safetensors, memory-mapped, or PyTorch files read without executing them.

Opening reads headers only. Formats: safetensors (8-byte length, JSON header, data; huggingface/safetensors README) and
PyTorch's zip archive or legacy pickle through ``torch.load(weights_only=True)``, which admits nothing but tensors and
plain containers.
"""

from __future__ import annotations

import ctypes
import hashlib
import json
import re
import warnings
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors import SafetensorError, safe_open

from eagle3_diag.checkpoint.fields import LFS_POINTER, Fields, lfs_error, parse_json, read_bytes
from eagle3_diag.errors import InputError

if TYPE_CHECKING:
    from eagle3_diag.checkpoint.interface import TensorSource

# Names of dtypes in a safetensors header that torch can view the bytes as.
DTYPES: Mapping[str, torch.dtype] = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}
CHUNK_BYTES = 64 << 20
# How torch's weights-only unpickler (2.4 to 2.13) says that a pickle wants more than tensors.
_REFUSED = re.compile(
    r"unsupported global:? (?:GLOBAL )?([\w.]+)|GLOBAL ([\w.]+) was not an allowed|unsupported (?:operand|class)|(TorchScript)",
    re.IGNORECASE,
)
# Weights beside the model's own that loaders of these directories do not read as the model.
_NOT_THE_MODEL = re.compile(r"(adapter_model|consolidated|optimizer|scheduler|training_state|training_args|rng_state).*")


def open_tensors(directory: Path) -> TensorSource:
    """The directory's weights; headers are read when first needed, weights never.

    Safetensors go before PyTorch files, an index before single files, as in Transformers.

    Raises:
        InputError: there are no weights, or their index is damaged.
    """
    for pattern, make in (("safetensors", SafetensorsSource), ("bin", TorchSource)):
        stem = "model" if pattern == "safetensors" else "pytorch_model"
        index = directory / f"{stem}.{pattern}.index.json"
        if index.exists():
            return make(directory, shards=_read_index(index))
        single = directory / f"{stem}.{pattern}"
        if single.exists():
            return make(directory, files=(single,))
        files = tuple(p for p in sorted(directory.glob(f"*.{pattern}")) if not _NOT_THE_MODEL.fullmatch(p.name))
        if files:
            return make(directory, files=files)
    found = sorted(p.name for p in directory.iterdir())
    shown = ", ".join(found[:6]) + (f" and {len(found) - 6} more" if len(found) > 6 else "")
    raise InputError(f"{directory} has no weights (*.safetensors or pytorch_model.bin) but {shown}; download them or check the path.")


def _read_index(path: Path) -> dict[str, Path]:
    fields = Fields(parse_json(path, read_bytes(path)), path)
    weight_map = fields.data.get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise fields.error("weight_map", "an object of tensor names and files")
    for name, file in weight_map.items():
        if not isinstance(file, str) or not file or Path(file).name != file or file == ".." or "\0" in file:
            raise InputError(f"{path}: weight_map names {file!r} for {name}, expected a file name beside it; download the index again.")
    return {name: path.parent / file for name, file in weight_map.items()}


class _Source:
    """What both kinds of files share: which file holds which tensor."""

    def __init__(self, directory: Path, *, files: Iterable[Path] = (), shards: Mapping[str, Path] | None = None) -> None:
        self.directory = directory
        self._files = tuple(files)
        self._shards: dict[str, Path] | None = dict(shards) if shards is not None else None

    def _where(self) -> dict[str, Path]:
        if self._shards is None:
            shards: dict[str, Path] = {}
            for file in self._files:
                for name in self._names_of(file):
                    if name in shards:
                        raise InputError(
                            f"{self.directory}: {name} is in both {shards[name].name} and {file.name}; keep one of them or add the index file."
                        )
                    shards[name] = file
            self._shards = shards
        return self._shards

    def _file(self, name: str) -> Path:
        shards = self._where()
        if name not in shards:
            raise missing_tensor(self.directory, (name,), shards)
        return shards[name]

    def _names_of(self, file: Path) -> tuple[str, ...]:
        raise NotImplementedError

    def names(self) -> tuple[str, ...]:
        return tuple(self._where())


class SafetensorsSource(_Source):
    """Safetensors files; each is opened (mapped) when one of its tensors is first asked for."""

    def __init__(self, directory: Path, *, files: Iterable[Path] = (), shards: Mapping[str, Path] | None = None) -> None:
        super().__init__(directory, files=files, shards=shards)
        self._open: dict[Path, Any] = {}

    def _handle(self, file: Path) -> Any:
        if file not in self._open:
            try:
                self._open[file] = safe_open(file, framework="pt")
            except (SafetensorError, OSError, ValueError, RuntimeError) as error:
                raise _unreadable(file, error) from error
        return self._open[file]

    def _names_of(self, file: Path) -> tuple[str, ...]:
        return tuple(self._handle(file).keys())

    def _slice(self, name: str) -> Any:
        file = self._file(name)
        try:
            return self._handle(file).get_slice(name)
        except SafetensorError as error:
            raise InputError(f"{file} does not hold {name}, expected there by the index; download the file or the index again.") from error

    def shape(self, name: str) -> tuple[int, ...]:
        return tuple(self._slice(name).get_shape())

    def dtype(self, name: str) -> torch.dtype:
        stored = str(self._slice(name).get_dtype())
        if stored not in DTYPES:
            raise InputError(
                f"{self._file(name)}: {name} is stored as {stored}, expected one of {', '.join(DTYPES)}; use a checkpoint with unquantised weights."
            )
        return DTYPES[stored]

    def get(self, name: str) -> torch.Tensor:
        self.dtype(name)
        file = self._file(name)
        try:
            tensor: torch.Tensor = self._handle(file).get_tensor(name)
        except (SafetensorError, OSError, ValueError, RuntimeError, TypeError) as error:
            raise _unreadable(file, error) from error
        return tensor


class TorchSource(_Source):
    """``torch.save`` files with a flat dict of tensors (or one under ``state_dict``); zip archives are mapped."""

    def __init__(self, directory: Path, *, files: Iterable[Path] = (), shards: Mapping[str, Path] | None = None) -> None:
        super().__init__(directory, files=files, shards=shards)
        self._loaded: dict[Path, dict[str, torch.Tensor]] = {}

    def _load(self, file: Path) -> dict[str, torch.Tensor]:
        if file not in self._loaded:
            self._loaded[file] = load_torch_tensors(file)
        return self._loaded[file]

    def _names_of(self, file: Path) -> tuple[str, ...]:
        return tuple(self._load(file))

    def get(self, name: str) -> torch.Tensor:
        file = self._file(name)
        tensors = self._load(file)
        if name not in tensors:
            raise InputError(f"{file} does not hold {name}, expected there by the index; download the file or the index again.")
        return tensors[name]

    def shape(self, name: str) -> tuple[int, ...]:
        return tuple(self.get(name).shape)

    def dtype(self, name: str) -> torch.dtype:
        return self.get(name).dtype


def load_torch_tensors(file: Path) -> dict[str, torch.Tensor]:
    """A PyTorch file's named tensors; nothing in it is executed.

    Raises:
        InputError: it is damaged, holds something other than tensors, or would have to run code to be read.
    """
    head = _head(file)
    if head.startswith(LFS_POINTER):
        raise lfs_error(file)
    try:
        # Only zip archives (since torch 1.6) can be mapped; older files are read whole.
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the unpickler's remarks on odd files; it refuses what it cannot read
            data = torch.load(file, map_location="cpu", weights_only=True, mmap=head.startswith(b"PK"))
    except MemoryError as error:
        raise _unreadable(file, error) from error
    except Exception as error:  # the unpickler meets arbitrary bytes and raises whatever they lead to
        text = " ".join(str(error).split())
        refused = _REFUSED.search(text)
        if refused:
            what = next((part for part in refused.groups() if part), "more than tensors")
            raise InputError(
                f"{file} is a pickle that needs {what}, expected only tensors; it was refused and nothing in it was executed: save the weights "
                "again as safetensors."
            ) from error
        raise _unreadable(file, error) from error
    if isinstance(data, dict) and isinstance(data.get("state_dict"), dict):
        data = data["state_dict"]
    if not isinstance(data, dict) or not data:
        raise InputError(f"{file} holds a {type(data).__name__}, expected a dict of tensors; save the state dict alone.")
    for name, value in data.items():
        if not isinstance(name, str) or not isinstance(value, torch.Tensor):
            raise InputError(f"{file}: entry {name!r} is a {type(value).__name__}, expected only named tensors; save the state dict alone.")
        if value.layout is not torch.strided or value.is_quantized or value.device.type != "cpu":
            raise InputError(
                f"{file}: {name} is a {'quantised' if value.is_quantized else str(value.layout)} tensor on {value.device.type}, expected a plain "
                "one; save it again as safetensors."
            )
    return dict(data)


def _head(file: Path) -> bytes:
    try:
        with file.open("rb") as stream:
            return stream.read(len(LFS_POINTER))
    except OSError as error:
        raise _unreadable(file, error) from error


def _unreadable(file: Path, error: BaseException) -> InputError:
    """The sentence about a weights file that cannot be read: missing, a pointer, cut short, or damaged."""
    try:
        size = file.stat().st_size
        with file.open("rb") as stream:
            head = stream.read(max(8, len(LFS_POINTER)))
            if head.startswith(LFS_POINTER):
                return lfs_error(file)
            promised = _promised_size(stream, head, size) if file.suffix == ".safetensors" else None
    except FileNotFoundError:
        return InputError(f"{file} is missing, expected by the checkpoint's index; download it.")
    except OSError as problem:
        reason = (problem.strerror or str(problem)).lower()
        return InputError(f"{file} cannot be read ({reason}); check the path and its permissions.")
    if size == 0:
        return InputError(f"{file} is empty, expected weights; download it again.")
    if promised is not None and size < promised:
        return InputError(f"{file} is cut short: it has {size} bytes, its header promises {promised}; copy or download it again.")
    reason = " ".join(str(error).split())[:160] or type(error).__name__
    return InputError(f"{file} is damaged or not a weights file ({reason}); copy or download it again.")


def _promised_size(stream: Any, head: bytes, size: int) -> int | None:
    """Bytes that a safetensors file should have by its own header; None when the header tells nothing."""
    length = int.from_bytes(head[:8], "little")
    if len(head) < 8 or length > 100 << 20:
        return None
    if 8 + length > size:
        return 8 + length
    stream.seek(8)
    with suppress(ValueError, TypeError, LookupError, AttributeError, ArithmeticError, RecursionError):
        header = json.loads(stream.read(length))
        ends = [int(t["data_offsets"][1]) for name, t in header.items() if name != "__metadata__"]
        return 8 + length + max(ends, default=0)
    return None


def missing_tensor(directory: Path, looked_for: Iterable[str], present: Iterable[str]) -> InputError:
    """The sentence about a tensor that is not there: which was looked for, and which are."""
    wanted = " or ".join(looked_for)
    names = sorted(present)
    shown = ", ".join(names[:8]) + (f" and {len(names) - 8} more" if len(names) > 8 else "")
    return InputError(f"{directory} has no tensor {wanted}; it holds {shown or 'none'}: check that this is the right and whole checkpoint.")


def count_nonfinite(tensor: torch.Tensor) -> tuple[int, int]:
    """How many values are NaN and how many infinite, in pieces so that no second copy of a large tensor arises."""
    if not tensor.is_floating_point():
        return 0, 0
    flat = tensor.reshape(-1)
    step = max(1, CHUNK_BYTES // 4)
    nan = inf = 0
    for start in range(0, flat.numel(), step):
        # float8 has no isnan kernel; widening one piece is exact.
        piece = flat[start : start + step]
        piece = piece.float() if piece.element_size() < 2 else piece
        if not bool(torch.isfinite(piece).all()):
            nan += int(torch.isnan(piece).sum())
            inf += int(torch.isinf(piece).sum())
    return nan, inf


def require_finite(tensor: torch.Tensor, name: str, where: Path) -> torch.Tensor:
    """``tensor`` itself.

    Raises:
        InputError: it holds NaN or infinite values; their numbers are named.
    """
    nan, inf = count_nonfinite(tensor)
    if nan or inf:
        raise InputError(
            f"{where}: {name} holds {nan} NaN and {inf} infinite of {tensor.numel()} values, expected finite weights; the training diverged or the "
            "file is damaged: take an earlier checkpoint."
        )
    return tensor


def tensors_sha256(tensors: Iterable[tuple[str, Callable[[], torch.Tensor]]]) -> str:
    """SHA-256 over each tensor's name, dtype, shape and bytes, in the order of names."""
    digest = hashlib.sha256()
    for name, get in sorted(tensors, key=lambda item: item[0]):
        tensor = get()
        digest.update(f"{name}\0{str(tensor.dtype).removeprefix('torch.')}\0{list(tensor.shape)}\0".encode())
        tensor = tensor.contiguous()
        size, address = tensor.numel() * tensor.element_size(), tensor.data_ptr()
        for start in range(0, size, CHUNK_BYTES):
            piece = (ctypes.c_char * min(CHUNK_BYTES, size - start)).from_address(address + start)
            digest.update(piece)
    return digest.hexdigest()
