"""Stored tensor names under this project's names, and the checks that each tensor goes through.

Names: speculators ``models/eagle3/core.py``, SpecForge ``modeling/draft/llama3_eagle.py``, vllm ``model_executor/models/llama_eagle3.py``
(``midlayer`` is ``layers.0``), sglang ``srt/models/llama_eagle3.py`` (``aux_norm_*``).
"""

from __future__ import annotations

import re
from pathlib import Path

import torch

from eagle3_diag.checkpoint.interface import TensorSource
from eagle3_diag.checkpoint.tensors import missing_tensor
from eagle3_diag.errors import InputError

PLAIN_DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)
_RENAMES = (
    (re.compile(r"^(draft_model|eagle_module)\."), ""),
    (re.compile(r"^model\."), ""),
    (re.compile(r"^midlayer\."), "layers.0."),
    (re.compile(r"^aux_norm_low\."), "fc_norm.0."),
    (re.compile(r"^aux_norm_mid\."), "fc_norm.1."),
    (re.compile(r"^aux_norm_high\."), "fc_norm.2."),
    (re.compile(r"^draft_id_to_target_id$"), "d2t"),
)
# Copies of the target's weights, buffers that follow from the configuration, parts of other methods kept in one file,
# and the hidden_norm that vLLM gives every layer and uses in the first alone.
_IGNORED = re.compile(
    r"(verifier_(lm_head|norm)\.weight|.*rotary_emb\..*|mask_hidden|parallel_draft_heads\..*|layers\.[1-9]\d*\.hidden_norm\.weight)"
)
_QUANTISED = re.compile(
    r".*\.(weight_scale(_inv|_2)?|input_scale|weight_packed|weight_shape|weight_zero_point|qweight|qzeros|scales|g_idx|"
    r"[kv]_scale|weight\.absmax|weight\.quant_map)"
)


def canonical(name: str) -> str:
    """A stored tensor name under this project's names (see :class:`DrafterCheckpoint`)."""
    for pattern, replacement in _RENAMES:
        name = pattern.sub(replacement, name)
    return name


class StoredTensors:
    """Stored names under canonical ones, taken one by one; what is left in the end is unexpected."""

    def __init__(self, path: Path, source: TensorSource) -> None:
        self.path = path
        self.source = source
        self.stored: dict[str, str] = {}
        for name in source.names():
            key = canonical(name)
            if key in self.stored:
                raise InputError(f"{path} holds both {self.stored[key]} and {name}, which are one and the same tensor; remove one of them.")
            self.stored[key] = name
        self.taken: dict[str, str] = {}
        quantised = next((n for n in self.stored.values() if _QUANTISED.fullmatch(n)), None)
        if quantised is not None:
            raise InputError(f"{path} is quantised (it holds {quantised}), expected plain weights; give the checkpoint before quantisation.")

    def has(self, name: str) -> bool:
        return name in self.stored

    def shape(self, name: str) -> tuple[int, ...] | None:
        return self.source.shape(self.stored[name]) if name in self.stored else None

    def matrix(self, name: str) -> tuple[int, int]:
        """Shape of a matrix that must be there."""
        shape = self.shape(name)
        if shape is None:
            raise missing_tensor(self.path, (name,), self.stored.values())
        if len(shape) != 2 or 0 in shape:
            raise InputError(f"{self.path}: {self.stored[name]} has shape {list(shape)}, expected a matrix; the file is not this drafter's.")
        return shape[0], shape[1]

    def take(self, name: str, shape: tuple[int, ...], meaning: str) -> None:
        """Note a tensor that must be there with exactly this shape."""
        found = self.shape(name)
        if found is None:
            raise missing_tensor(self.path, (name,), self.stored.values())
        if found != shape:
            raise InputError(
                f"{self.path}: {self.stored[name]} has shape {list(found)}, expected {list(shape)} ({meaning}); config.json and weights do not "
                "belong together, or config.json is wrong."
            )
        if self.source.dtype(self.stored[name]) not in PLAIN_DTYPES:
            raise InputError(
                f"{self.path}: {self.stored[name]} is stored as {short_dtype(self.source.dtype(self.stored[name]))}, expected float32, bfloat16 or "
                "float16; give the checkpoint before quantisation."
            )
        self.taken[name] = self.stored[name]

    def unexpected(self) -> list[str]:
        return sorted(n for k, n in self.stored.items() if k not in self.taken and k not in ("d2t", "t2d") and not _IGNORED.fullmatch(k))


def short_dtype(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
