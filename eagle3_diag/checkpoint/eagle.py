"""EAGLE's own checkpoints (SafeAILab/EAGLE ``eagle/model/cnets.py``): ``midlayer.*`` names, flat Llama keys.

The trainer captures the *inputs* of layers 2, n//2 and n-3 of the target (``modeling_llama_kv.py``), counts positions
from 0 and feeds the state before the final norm back. With linear or dynamic RoPE scaling it ignores ``rope_theta``
(``_init_rope``).
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from eagle3_diag.checkpoint.fields import Fields
from eagle3_diag.checkpoint.flat import read_flat
from eagle3_diag.checkpoint.interface import DrafterCheckpoint, TensorSource
from eagle3_diag.checkpoint.layout import Reading, build
from eagle3_diag.checkpoint.rotary import DEFAULT_THETA, read_rope
from eagle3_diag.config import RopeConfig

name = "eagle"


def matches(config: Fields, names: tuple[str, ...]) -> bool:
    return any("midlayer." in n for n in names)


def read(path: Path, config: Fields, config_bytes: bytes, source: TensorSource) -> DrafterCheckpoint:
    keys = read_flat(config)
    trained_rope, notes = _trained_rope(config)
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
        trained_rope=trained_rope,
        notes=notes,
    )
    return build(path, reading, source, config_bytes)


def _trained_rope(config: Fields) -> tuple[RopeConfig | None, tuple[str, ...]]:
    scaling = config.table("rope_scaling")
    kind = scaling.text("type", None) or scaling.text("rope_type", "default")
    if kind not in ("linear", "dynamic"):
        return None, ()
    written = read_rope(config, 0)
    if written.theta == DEFAULT_THETA:
        return None, ()
    note = f"EAGLE's trainer ignores rope_theta under {kind} scaling: trained with base {DEFAULT_THETA:g}, not {written.theta:g}."
    return replace(written, theta=DEFAULT_THETA), (note,)
