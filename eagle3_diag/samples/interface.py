"""What every sample format turns into, and the protocol a format module fulfils."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import torch


@dataclass(frozen=True, kw_only=True)
class Sample:
    """One stored sequence with the target's hidden states.

    Attributes:
        name: the file's name (unique within a run; used as the sample's identity, never its path).
        format: name of the format module that read it.
        tokens_N: int64 token ids of the sequence.
        mask_N: bool; True where a token belongs to a response (the trainers' loss mask).
        aux_ANH: the aux hidden states in stored order, [A, N, H_target], in the stored dtype; may be a view of a memory map.
        final_NH: the target's last hidden state, or None where the format stores none.
        final_normed: whether ``final_NH`` is after the target's final norm (True), before it (False).
        final_certain: False when the format does not say which of the two it is (older Model-Optimizer dumps).
        layer_ids: ids written beside the states (indices of layer inputs), one per aux state, or None.
    """

    name: str
    format: str
    tokens_N: torch.Tensor
    mask_N: torch.Tensor
    aux_ANH: torch.Tensor | tuple[torch.Tensor, ...]
    final_NH: torch.Tensor | None
    final_normed: bool
    final_certain: bool = True
    layer_ids: tuple[int, ...] | None = None

    @property
    def length(self) -> int:
        return int(self.tokens_N.shape[0])


class SampleFormat(Protocol):
    """One stored layout. Modules of :mod:`eagle3_diag.samples` each provide one."""

    name: str

    def find(self, directory: Path) -> Iterator[Path]:
        """Files of this format below ``directory``, lazily and in natural order (``data_2`` before ``data_10``)."""

    def read(self, path: Path) -> Sample:
        """Read one file. Raises InputError with one sentence for anything that is not a whole sample."""
