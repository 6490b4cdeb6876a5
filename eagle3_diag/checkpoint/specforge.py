"""SpecForge's and TorchSpec's checkpoints, as SGLang serves them: EAGLE's names plus ``eagle_config``, ``fc_norm``, ``norm_output``.

SpecForge 0.2.0 (``modeling/draft/llama3_eagle.py``, ``algorithms/model_providers.py``, ``offline_capture/sglang_backend``): layer
ids go to SGLang's ``set_eagle3_layers_to_capture``, so they are *outputs* (default 1, n//2-1, n-4); positions count from 0; the
state before the final norm is fed back. ``norm_output`` has had two meanings:

- SpecForge up to 0.2.0: whether the final norm stands before ``lm_head`` (default true); never what is fed back.
- SpecForge since its pull request 879, TorchSpec (``models/draft/llama3_eagle.py``), vLLM, SGLang, TensorRT-LLM: true feeds the state
  after the norm back (EAGLE 3.1); the norm always stands before ``lm_head``.
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
    output_norm, post_norm = True, False
    if keys.norm_output is False:
        # A norm that stood nowhere in training still has the ones it began with.
        output_norm = not _untrained_norm(source)
        if not output_norm:
            notes.append(
                "norm_output is false and norm.weight was never trained: read as SpecForge up to 0.2.0 means it, without a final norm before "
                "lm_head; every engine applies one."
            )
    elif keys.norm_output:
        # SpecForge itself trains nothing but Llama layers over three aux states; what goes beyond comes from TorchSpec.
        other = any(config.table("eagle_config").has(key) for key in ("use_last_layernorm", "use_input_layernorm_in_first_layer"))
        post_norm = other or keys.num_aux is not None or any("kv_a_proj_with_mqa" in n for n in source.names())
        if not post_norm:
            notes.append(
                "norm_output is true: read as SpecForge up to 0.2.0 means it, the state before the norm is fed back; engines, TorchSpec and later "
                "SpecForge feed the state after it back, so compare feedback pre-norm with post-norm."
            )
    if keys.layer_ids and keys.layer_ids[0] != 1:
        notes.append(
            f"layer ids {list(keys.layer_ids)} are read as outputs, as SGLang captures them; for a DeepSeek, Kimi or GLM-lite target SGLang 0.5.13 "
            "and later captures inputs unless the first id is 1."
        )
    reading = Reading(
        format=name,
        config=config,
        outer=config,
        architecture=keys.architecture,
        layer_ids=keys.layer_ids,
        id_offset=1,
        num_aux=keys.num_aux,
        norm_before_residual=keys.norm_before_residual,
        norm_before_fc=keys.norm_before_fc,
        fc_norm=keys.fc_norm,
        output_norm=output_norm,
        post_norm_feedback=post_norm,
        notes=tuple(notes),
    )
    return build(path, reading, source, config_bytes)


def _untrained_norm(source: TensorSource) -> bool:
    stored = next((n for n in source.names() if n.removeprefix("model.") == "norm.weight"), None)
    return stored is not None and bool((source.get(stored) == 1).all())
