"""EAGLE's own checkpoints (SafeAILab/EAGLE ``eagle/model/cnets.py``): ``midlayer.*`` names, flat Llama keys.

The trainer captures the *inputs* of layers 2, n//2 and n-3 of the target (``modeling_llama_kv.py``), counts positions
from 0 and feeds the state before the final norm back.
"""

from __future__ import annotations

from pathlib import Path

from eagle3_diag.checkpoint.fields import Fields
from eagle3_diag.checkpoint.flat import read_flat
from eagle3_diag.checkpoint.interface import DrafterCheckpoint, TensorSource
from eagle3_diag.checkpoint.layout import Reading, build

name = "eagle"


def matches(config: Fields, names: tuple[str, ...]) -> bool:
    return any("midlayer." in n for n in names)


def read(path: Path, config: Fields, config_bytes: bytes, source: TensorSource) -> DrafterCheckpoint:
    keys = read_flat(config)
    reading = Reading(
        format=name,
        config=config,
        outer=config,
        architecture=keys.architecture,
        layer_ids=keys.layer_ids,
        num_aux=keys.num_aux,
        norm_before_residual=keys.norm_before_residual,
        norm_before_fc=keys.norm_before_fc,
        fc_norm=keys.fc_norm,
    )
    return build(path, reading, source, config_bytes)
