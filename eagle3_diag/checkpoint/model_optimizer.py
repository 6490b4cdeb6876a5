"""NVIDIA Model-Optimizer's exports: flat keys with many nulls, ``eagle_config`` with the trainer's own switches.

Model-Optimizer 0.37 to 0.47, ``export/plugins/hf_spec_export.py`` and ``speculative/plugins``: layer ids are *outputs* (hooks on the
layers), positions count from 0, the state before the final norm is fed back, ``use_last_layernorm`` false means no final norm,
``t2d`` is not exported. Up to 0.40 the tensors have EAGLE's ``midlayer`` names; since 0.41 they are ``layers.0``, further layers
are possible (``next_layer_regular``), and training passes the state through ``input_layernorm`` before ``hidden_norm``.
Since 0.44 ``rope_scaling`` is replaced at export when training used plain RoPE.
"""

from __future__ import annotations

from pathlib import Path

from eagle3_diag.checkpoint.fields import Fields
from eagle3_diag.checkpoint.flat import read_flat
from eagle3_diag.checkpoint.interface import DrafterCheckpoint, TensorSource
from eagle3_diag.checkpoint.layout import MLA_ARCHITECTURES, Reading, build
from eagle3_diag.checkpoint.rotary import DEFAULT_THETA
from eagle3_diag.config import RopeConfig

name = "model-optimizer"
_KEYS = (
    "use_last_layernorm",
    "use_input_layernorm_in_first_layer",
    "use_mtp_layernorm",
    "next_layer_regular",
    "parallel_draft_step",
)


def matches(config: Fields, names: tuple[str, ...]) -> bool:
    nested = config.data.get("eagle_config")
    if not isinstance(nested, dict) or not any(key in nested for key in _KEYS):
        return False
    # TorchSpec copies some of these keys with EAGLE's tensor names, but has t2d, latent attention or keys of its own.
    foreign = any(config.has(key) for key in ("fc_norm", "norm_output", "num_aux_hidden_states"))
    return not any("midlayer." in n for n in names) or not (foreign or any("t2d" in n or "kv_a_proj" in n for n in names))


def read(path: Path, config: Fields, config_bytes: bytes, source: TensorSource) -> DrafterCheckpoint:
    keys = read_flat(config)
    nested = config.table("eagle_config")
    notes = []
    trained_rope, note = _trained_rope(config, keys.architecture)
    if note:
        notes.append(note)
    if nested.has("next_layer_regular"):
        notes.append("Model-Optimizer 0.41 and later trains with hidden_norm(input_layernorm(state)); servers apply hidden_norm alone.")
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
        output_norm=nested.boolean("use_last_layernorm", any(n.removeprefix("model.") == "norm.weight" for n in source.names())),
        post_norm_feedback=bool(keys.norm_output),
        trained_rope=trained_rope,
        notes=tuple(notes),
    )
    return build(path, reading, source, config_bytes)


def _trained_rope(config: Fields, architecture: str) -> tuple[RopeConfig | None, str]:
    """Plain RoPE when ``rope_scaling`` was put there at export, and the sentence about it; None when it was not.

    Since 0.44 the exporter writes its override as it is given (by default yarn), without ``rope_theta``, while a
    scaling that training itself used carries ``rope_theta`` (``hf_eagle.py`` puts it in). Up to 0.42 there was no
    override and training used llama3 scaling without ``rope_theta`` inside; those exports name Transformers 4. The
    kimik2 decoder trains with yarn.
    """
    scaling = config.table("rope_scaling")
    kind = scaling.text("rope_type", None) or scaling.text("type", "default")
    if kind == "default" or scaling.has("rope_theta") or architecture in MLA_ARCHITECTURES:
        return None, ""
    if kind == "llama3" and not config.text("transformers_version", "4").startswith("5"):
        return None, ""
    plain = RopeConfig(
        theta=config.number("rope_theta", DEFAULT_THETA, positive=True),
        max_position_embeddings=config.integer("max_position_embeddings", 2048),
        partial_rotary_factor=config.number("partial_rotary_factor", 1.0, positive=True),
    )
    return plain, (
        f"rope_scaling ({kind}) was put into config.json at export; training used plain RoPE with base {plain.theta:g}, which is what counts as "
        "trained here."
    )
