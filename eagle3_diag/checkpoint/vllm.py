"""Flat configurations in vLLM's naming: ``layers.0.*`` names, the EAGLE-3 keys at top level.

vLLM 0.32 ``model_executor/models/{llama_eagle3,qwen3_eagle3,deepseek_eagle3}.py``: layer ids are inputs,
``norm_output`` true feeds the state after the final norm back (the norm itself is always applied),
``norm_before_residual`` defaults to false here.
"""

from __future__ import annotations

from pathlib import Path

from eagle3_diag.checkpoint.fields import Fields
from eagle3_diag.checkpoint.flat import read_flat
from eagle3_diag.checkpoint.interface import DrafterCheckpoint, TensorSource
from eagle3_diag.checkpoint.layout import Reading, build

name = "vllm"


def matches(config: Fields, names: tuple[str, ...]) -> bool:
    return True


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
        post_norm_feedback=bool(keys.norm_output),
    )
    return build(path, reading, source, config_bytes)
