"""SpecForge's checkpoints, as SGLang serves them: EAGLE's names plus ``eagle_config``, ``fc_norm``, ``norm_output``.

SpecForge 0.2.0 ``modeling/draft/llama3_eagle.py``: positions count from 0; the state before the final norm is fed back;
``norm_output`` (default true) says whether the final norm is applied before ``lm_head``.
"""

from __future__ import annotations

from pathlib import Path

from eagle3_diag.checkpoint.fields import Fields
from eagle3_diag.checkpoint.flat import read_flat
from eagle3_diag.checkpoint.interface import DrafterCheckpoint, TensorSource
from eagle3_diag.checkpoint.layout import Reading, build

name = "specforge"
_KEYS = ("eagle_config", "fc_norm", "use_aux_norm", "norm_output", "target_hidden_size", "target_model_type")


def matches(config: Fields, names: tuple[str, ...]) -> bool:
    return any("midlayer." in n for n in names) and any(key in config.data for key in _KEYS)


def read(path: Path, config: Fields, config_bytes: bytes, source: TensorSource) -> DrafterCheckpoint:
    keys = read_flat(config)
    notes = []
    if keys.norm_output is not None:
        notes.append(
            f"norm_output is {str(keys.norm_output).lower()}: read as SpecForge means it (final norm before lm_head); "
            "vLLM and "
            "SGLang read true as feeding the state after the norm back."
        )
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
        output_norm=keys.norm_output is not False,
        notes=tuple(notes),
    )
    return build(path, reading, source, config_bytes)
