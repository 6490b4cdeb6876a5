"""What every sample format turns into, and the protocol a format module fulfils."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch

from eagle3_diag.samples.containers import Record


@dataclass(frozen=True, kw_only=True)
class Sample:
    """One stored sequence with the target's hidden states.

    Attributes:
        name: the file's name (unique within a run; used as the sample's identity, never its path). format: name of the
        format module that read it. tokens_N: int64 token ids of the sequence. mask_N: bool; True where a token belongs
        to a response (the trainers' loss mask). aux_ANH: the aux hidden states in stored order, [A, N, H_target], in
        the stored dtype; may be a view of a memory map. final_NH: the target's last hidden state, or None where the
        format stores none. final_normed: whether ``final_NH`` is after the target's final norm (True), before it
        (False). final_certain: False when the format does not say which of the two it is (older Model-Optimizer dumps).
        layer_ids: ids written beside the states (indices of layer inputs), one per aux state, or None. notes: sentences
        for the user about what was assumed while reading; the same sentence for the same assumption.
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
    notes: tuple[str, ...] = ()

    @property
    def length(self) -> int:
        return int(self.tokens_N.shape[0])


class SampleFormat(Protocol):
    """One stored layout. Modules of :mod:`eagle3_diag.samples` each provide one."""

    name: str

    def matches(self, record: Record) -> bool:
        """Whether the record's entries are this format's; at most one format matches."""

    def parse(self, record: Record) -> Sample:
        """Turn it into a sample named after its file. Raises InputError with one sentence when it is not a whole "
        "one."""
