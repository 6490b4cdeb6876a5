"""Typed getters over a record: each returns a tensor of the promised shape or says which entry is wrong, and how."""

from __future__ import annotations

from typing import Any

import torch

from eagle3_diag.errors import InputError
from eagle3_diag.samples.containers import Record

#: The note of a sample without a loss mask.
NO_MASK = (
    "no loss mask is stored, so every token counts as response; give --prompt-length where all prompts have one length"
)

_INTEGERS = (torch.int64, torch.int32, torch.int16, torch.uint8, torch.int8)


def present(record: Record, *keys: str) -> bool:
    """Whether every one of ``keys`` is there and not None."""
    return all(record.data.get(key) is not None for key in keys)


def tokens(record: Record, key: str) -> torch.Tensor:
    """int64 [N] token ids, from integers of any width, with or without a leading batch of one."""
    value = record.data[key]
    if isinstance(value, list) and value and all(type(item) is int for item in value):
        try:
            value = torch.tensor(value, dtype=torch.int64)
        except (OverflowError, ValueError, RuntimeError):
            raise _wrong(record, repr(key), "numbers beyond 64 bits", "token ids [N]") from None
    tensor = _vector(record, key, value, "integer token ids [N]")
    if tensor.dtype not in _INTEGERS:
        raise _wrong(record, repr(key), describe(tensor), "integer token ids [N]")
    if tensor.shape[0] < 2:
        raise InputError(
            f"{record.path}: number of tokens is {tensor.shape[0]}; a drafter needs at least 2, leave this file out."
        )
    return tensor.to(torch.int64)


def mask(record: Record, key: str, length: int) -> torch.Tensor:
    """bool [N], True where the stored mask is not zero."""
    tensor = _vector(record, key, record.data[key], f"a mask of {length} entries")
    if tensor.shape[0] != length:
        raise _wrong(record, repr(key), describe(tensor), f"{length} entries, one per token")
    if tensor.is_floating_point() and not bool(torch.isfinite(tensor).all()):
        raise _wrong(record, repr(key), "NaN or Inf", "zeros and ones")
    if tensor.dtype != torch.bool and bool((tensor < 0).any()):  # labels with -100 for what does not count
        raise _wrong(record, repr(key), f"{int((tensor < 0).sum())} times below zero", "zeros and ones")
    return tensor != 0


def all_tokens(length: int) -> torch.Tensor:
    """bool [N], all True: the mask of a sample that stores none."""
    return torch.ones(length, dtype=torch.bool)


def states(record: Record, key: str, length: int) -> torch.Tensor:
    """[N, width] floating-point hidden states in the stored dtype, with or without a leading batch of one."""
    return states_of(record, repr(key), record.data[key], length)


def states_of(record: Record, what: str, value: Any, length: int) -> torch.Tensor:
    """As :func:`states`, for a value that is not an entry of its own (one of a list)."""
    tensor = _tensor(record, what, value, f"hidden states [{length}, width]")
    if tensor.dim() == 3 and tensor.shape[0] == 1:
        tensor = tensor[0]
    if tensor.dim() != 2 or tensor.shape[0] != length or tensor.shape[1] == 0 or not tensor.is_floating_point():
        raise _wrong(
            record, what, describe(tensor), f"floating-point hidden states [{length}, width], one row per token"
        )
    return tensor


def split(states_NW: torch.Tensor, hidden_size: int) -> torch.Tensor:
    """View [N, A*H] as [A, N, H]. When the width is no multiple of H it stays one state, for the width check to "
    "name."""
    count, rest = divmod(int(states_NW.shape[1]), hidden_size)
    if rest or count == 0:
        return states_NW.unsqueeze(0)
    return states_NW.unfold(1, hidden_size, hidden_size).transpose(0, 1)


def describe(value: object) -> str:
    """``int64 [3, 4]`` for a tensor, the type's name for anything else."""
    if isinstance(value, torch.Tensor):
        return f"{str(value.dtype).removeprefix('torch.')} {list(value.shape)}"
    return type(value).__name__


def _vector(record: Record, key: str, value: Any, expected: str) -> torch.Tensor:
    tensor = _tensor(record, repr(key), value, expected)
    if tensor.dim() == 2 and tensor.shape[0] == 1:
        tensor = tensor[0]
    if tensor.dim() != 1 or tensor.is_complex():
        raise _wrong(record, repr(key), describe(tensor), expected)
    return tensor


def _tensor(record: Record, what: str, value: Any, expected: str) -> torch.Tensor:
    if not isinstance(value, torch.Tensor):
        raise _wrong(record, what, describe(value), expected)
    if value.layout != torch.strided or value.is_quantized or value.device.type != "cpu":
        raise _wrong(record, what, f"a {value.layout} tensor on {value.device}", f"a plain tensor: {expected}")
    return value.detach()


def _wrong(record: Record, what: str, found: str, expected: str) -> InputError:
    return InputError(f"{record.path}: {what} is {found}, expected {expected}; make this sample again or leave it out.")
