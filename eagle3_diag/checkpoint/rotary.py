"""Rotary position embedding as configurations write it: ``rope_parameters``, or ``rope_theta`` and ``rope_scaling``.

Key names and defaults: Transformers ``modeling_rope_utils.py`` (``standardize_rope_params``, ``_validate_*``).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

from eagle3_diag.checkpoint.fields import Fields
from eagle3_diag.config import RopeConfig, RopeType

DEFAULT_THETA = 10000.0
# Each type and the numbers it cannot do without.
REQUIRED: Mapping[str, tuple[str, ...]] = {
    "default": (),
    "linear": ("factor",),
    "dynamic": ("factor",),
    "yarn": ("factor",),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor"),
    "longrope": (),
}
# "su" is longrope's first name; "mrope" gives every axis of a text token the same position, which is plain RoPE.
ALIASES = {"su": "longrope", "mrope": "default"}
_SCALED_FROM_ORIGINAL = ("llama3", "yarn", "longrope")


def read_rope(config: Fields, head_dim: int) -> RopeConfig:
    """The RoPE that a (flat) model configuration describes.

    Raises:
        InputError: the type is unknown, or a number that it needs is absent or of the wrong kind.
    """
    table = config.table("rope_parameters")
    nested = [k for k in ("sliding_attention", "full_attention") if isinstance(table.data.get(k), dict)]
    if nested:
        # One set per layer type; speculators' flatten_rope_parameters takes the sliding one when there is one.
        table = table.table(nested[0])
    if not table.data:
        table = config.table("rope_scaling")
    max_position = config.integer("max_position_embeddings", 2048)
    theta = table.number("rope_theta", None, positive=True)
    if theta is None:
        theta = config.number("rope_theta", DEFAULT_THETA, positive=True)
    partial = table.number("partial_rotary_factor", None, positive=True)
    if partial is None:
        partial = config.number("partial_rotary_factor", 1.0, positive=True)
    if partial > 1:
        raise (table if table.has("partial_rotary_factor") else config).error("partial_rotary_factor", "at most 1")

    key = "rope_type" if table.has("rope_type") else "type"
    kind = table.text(key, "default")
    kind = ALIASES.get(kind, kind)
    if kind not in REQUIRED:
        raise table.error(key, f"one of {', '.join(REQUIRED)}")
    for name in REQUIRED[kind]:
        table.number(name, positive=True)
    drop = {"rope_type", "type", "rope_theta", "partial_rotary_factor", "mrope_section", "mrope_interleaved"}
    parameters = {name: value for name, value in table.data.items() if name not in drop and value is not None}
    if kind in _SCALED_FROM_ORIGINAL:
        # Phi-3 and its kin keep the original length beside, not inside, the scaling; it then goes first.
        original = config.integer("original_max_position_embeddings", None)
        original = original or table.integer("original_max_position_embeddings", max_position)
        parameters["original_max_position_embeddings"] = original
    if kind == "longrope":
        for name in ("short_factor", "long_factor"):
            _check_factors(table, name, int(head_dim * partial) // 2)
    for name in ("beta_fast", "beta_slow", "mscale", "mscale_all_dim", "attention_factor"):
        table.number(name, None)
    return RopeConfig(
        type=cast(RopeType, kind),
        theta=theta,
        max_position_embeddings=max_position,
        partial_rotary_factor=partial,
        parameters=parameters if kind != "default" else {},
    )


def _check_factors(table: Fields, name: str, count: int) -> None:
    value = table.data.get(name)
    good = isinstance(value, list) and len(value) == count
    if not good or not all(isinstance(v, (int, float)) and not isinstance(v, bool) and 0 < v < 1e30 for v in value or ()):
        raise table.error(name, f"a list of {count} positive numbers (half of the rotary dimensions)")
