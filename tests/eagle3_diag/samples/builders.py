"""Sample files of every format, as their makers write them."""

from __future__ import annotations

import gzip
import io
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

LENGTH, HIDDEN, AUX = 12, 8, 3


def states(seed: int = 0, length: int = LENGTH, dtype: torch.dtype = torch.float32) -> list[torch.Tensor]:
    """The aux states and the final one, each [N, H]."""
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(length, HIDDEN, generator=generator).to(dtype) for _ in range(AUX + 1)]


def tokens(length: int = LENGTH) -> torch.Tensor:
    return torch.arange(5, 5 + length)


def mask(length: int = LENGTH) -> torch.Tensor:
    return (torch.arange(length) >= 4).to(torch.int64)


def speculators(**changes: Any) -> dict[str, Any]:
    return {"input_ids": tokens(), "loss_mask": mask(), "hidden_states": states(), **changes}


def hidden_states(**changes: Any) -> dict[str, Any]:
    return {"hidden_states": torch.stack(states(), 1), "token_ids": tokens(), **changes}


def specforge(**changes: Any) -> dict[str, Any]:
    *aux, final = states()
    return {
        "input_ids": tokens(),
        "loss_mask": mask(),
        "aux_hidden_state": torch.cat(aux, -1)[None],
        "hidden_state": final[None],
        **changes,
    }


def model_optimizer(**changes: Any) -> dict[str, Any]:
    *aux, final = states()
    return {
        "input_ids": tokens(),
        "aux_hidden_states": torch.cat(aux, -1),
        "hidden_states": final,
        "conversation_id": "a1b2",
        **changes,
    }


def eagle(**changes: Any) -> dict[str, Any]:
    return {"input_ids": tokens(), "hidden_state": states()[-1], "loss_mask": mask(), **changes}


def write(path: Path, data: dict[str, Any], *, zipped: bool = True) -> Path:
    """Write by the file's ending; None entries are dropped."""
    path.parent.mkdir(parents=True, exist_ok=True)
    data = {key: value for key, value in data.items() if value is not None}
    if path.suffix == ".safetensors":
        save_file({key: value.contiguous() for key, value in data.items()}, path)
        return path
    buffer = io.BytesIO()
    torch.save(data, buffer, _use_new_zipfile_serialization=zipped)
    path.write_bytes(gzip.compress(buffer.getvalue()) if path.suffix == ".gz" else buffer.getvalue())
    return path


def one_sentence(error: Exception) -> None:
    """What a user is shown: one line, ended as a sentence."""
    text = str(error)
    assert text.endswith(".")
    assert "\n" not in text
