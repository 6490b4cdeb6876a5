"""speculators' checkpoints: ``speculators_model_type: eagle3`` around a ``transformer_layer_config``.

speculators ``models/eagle3/{config,core}.py`` (0.6.0.2, 0.9.0): layer ids are inputs (data made through vLLM),
positions count from 1, the final norm always stands before ``lm_head``, ``norm_output`` (newer) feeds the state after
it back.
"""

from __future__ import annotations

from pathlib import Path

from eagle3_diag.checkpoint.fields import Fields
from eagle3_diag.checkpoint.interface import DrafterCheckpoint, TensorSource
from eagle3_diag.checkpoint.layout import Reading, build
from eagle3_diag.errors import InputError

name = "speculators"
# ``transformer_layer_config.model_type`` of the layers that speculators trains EAGLE-3 with (model_definitions.py).
FAMILIES = {"llama": "llama", "qwen3": "qwen3"}


def matches(config: Fields, names: tuple[str, ...]) -> bool:
    return config.has("speculators_model_type") or config.has("transformer_layer_config")


def read(path: Path, config: Fields, config_bytes: bytes, source: TensorSource) -> DrafterCheckpoint:
    kind = config.text("speculators_model_type", "eagle3")
    if kind != "eagle3":
        raise InputError(f"{config.path}: speculators_model_type is {kind!r}, expected 'eagle3'; this tool evaluates EAGLE-3 drafters only.")
    if not config.has("transformer_layer_config"):
        raise config.error("transformer_layer_config", "an object that describes the drafter's layer")
    layer = config.table("transformer_layer_config")
    model_type = layer.text("model_type", None)
    if model_type is not None and model_type not in FAMILIES:
        raise layer.error("model_type", f"one of {', '.join(FAMILIES)}")
    notes = []
    if not config.has("norm_before_residual"):
        notes.append("config.json has no norm_before_residual: speculators trains with false, vLLM reads it as true.")
    reading = Reading(
        format=name,
        config=layer,
        outer=config,
        architecture=next(iter(config.texts("architectures")), ""),
        layer_ids=config.integers("eagle_aux_hidden_state_layer_ids"),
        norm_before_residual=config.boolean("norm_before_residual", False),
        norm_before_fc=config.boolean("norm_before_fc", False),
        fc_norm=config.boolean("fc_norm", False),
        post_norm_feedback=config.boolean("norm_output", False),
        position_offset=1,
        family=FAMILIES[model_type] if model_type is not None else None,
        notes=tuple(notes),
    )
    return build(path, reading, source, config_bytes)
