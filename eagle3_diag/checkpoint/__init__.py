"""Any EAGLE-3 drafter directory as a :class:`DrafterCheckpoint`: one module per format, one internal form.

``read_drafter`` reads headers, ``config.json`` and the two vocabulary maps; weights are read when asked for.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from eagle3_diag.checkpoint import eagle, model_optimizer, specforge, speculators, vllm
from eagle3_diag.checkpoint.fields import Fields, read_config
from eagle3_diag.checkpoint.interface import DrafterCheckpoint, DrafterFormat, TensorSource
from eagle3_diag.checkpoint.tensors import count_nonfinite, open_tensors, require_finite

__all__ = [
    "FORMATS",
    "DrafterCheckpoint",
    "DrafterFormat",
    "TensorSource",
    "count_nonfinite",
    "default_aux_layer_inputs",
    "open_tensors",
    "read_drafter",
    "require_finite",
]

# In the order asked: the first that matches reads; vllm takes what no other claims.
FORMATS: tuple[DrafterFormat, ...] = (speculators, model_optimizer, specforge, eagle, vllm)


def read_drafter(path: str | os.PathLike[str], instead: Mapping[str, Any] | None = None) -> DrafterCheckpoint:
    """The drafter in directory ``path``, whatever its format; no weight is read but ``d2t`` and ``t2d``.

    Args:
        path: the directory.
        instead: keys that are read in place of the whole config.json: what if it said this?

    Raises:
        InputError: the directory, its config.json or its tensors are not those of an EAGLE-3 drafter; the sentence says what was found
            where, what was expected and what to do.
    """
    directory = Path(path)
    config, content = read_config(directory, "drafter")
    config = config if instead is None else Fields(instead, config.path)
    source = open_tensors(directory)
    names = source.names()
    chosen = next(f for f in FORMATS if f.matches(config, names))
    return chosen.read(directory, config, content, source)


def default_aux_layer_inputs(format_name: str, num_layers: int) -> tuple[int, ...]:
    """Layer inputs that a format's trainer captures when nobody says otherwise, for a target of ``num_layers`` layers.

    Model-Optimizer's defaults are layer outputs (``default_eagle_aux_layer_ids``), given here as inputs; all others
    take (2, n//2, n-3) (EAGLE ``modeling_llama_kv.py``, speculators ``resolve_target_layer_ids``).
    """
    if format_name == model_optimizer.name:
        outputs = sorted({1, max(0, num_layers // 2 - 1), max(0, num_layers - 4)})
        return tuple(i + 1 for i in outputs)
    return (2, num_layers // 2, num_layers - 3)
