"""Rotary position embeddings of every type that drafters are trained with.

The formulas are those of Transformers' ``modeling_rope_utils.py`` (default, linear, dynamic, yarn, llama3, longrope), which
speculators and SpecForge train with; YaRN is arXiv 2309.00071, LongRoPE arXiv 2402.13753.

Dimension suffixes: R rows, P pairs of a head (rotary width / 2), D rotary width.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Literal

import torch

from eagle3_diag.config import RopeConfig
from eagle3_diag.errors import InputError


def _number(parameters: Mapping[str, Any], name: str, rope_type: str, default: float | None = None) -> float:
    value = parameters.get(name)
    if value is None:
        value = default
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise InputError(
            f"RoPE type {rope_type!r} needs the number {name!r}, but the drafter's config.json has {value!r} there; add it to its rope parameters"
        )
    return float(value)


def yarn_mscale(factor: float, mscale: float = 1.0) -> float:
    """YaRN's attention temperature for a context stretched ``factor`` times (1.0 where it is not stretched)."""
    return 1.0 if factor <= 1 else 0.1 * mscale * math.log(factor) + 1.0


def inverse_frequencies(rope: RopeConfig, head_dim: int, length: int) -> tuple[torch.Tensor, float]:
    """Frequencies of a rotary embedding and the factor on its cosines and sines.

    ``length`` is the longest position in use plus one; only ``dynamic`` and ``longrope`` look at it.
    Returns (float32 [P], factor). Raises InputError when a parameter of the type is missing.
    """
    width = int(head_dim * rope.partial_rotary_factor)
    exponents_P = torch.arange(0, width, 2, dtype=torch.int64).to(torch.float32) / width
    inverse_P = 1.0 / (rope.theta**exponents_P)
    p: Mapping[str, Any] = rope.parameters
    longest = rope.max_position_embeddings
    if rope.type == "default":
        return inverse_P, 1.0
    if rope.type == "linear":
        return inverse_P / _number(p, "factor", rope.type), 1.0
    if rope.type == "dynamic":
        factor = _number(p, "factor", rope.type)
        reach = max(length, longest)
        base = rope.theta * ((factor * reach / longest) - (factor - 1)) ** (width / (width - 2))
        return 1.0 / (base**exponents_P), 1.0
    original = _number(p, "original_max_position_embeddings", rope.type, default=float(longest))
    if rope.type == "llama3":
        return _llama3(inverse_P, p, original), 1.0
    factor = _number(p, "factor", rope.type, default=longest / original)
    given = p.get("attention_factor")
    if rope.type == "yarn":
        scale = float(given) if given is not None else _yarn_attention_factor(p, factor)
        return _yarn(rope, exponents_P, p, factor, original, width), scale
    # longrope: one list of stretch factors up to the original context, another beyond it
    name = "long_factor" if length > original else "short_factor"
    stretch = p.get(name)
    if not isinstance(stretch, (list, tuple)) or len(stretch) != width // 2:
        found = len(stretch) if isinstance(stretch, (list, tuple)) else stretch
        raise InputError(f"RoPE type 'longrope' needs {width // 2} numbers in {name!r}, but the drafter's config.json has {found!r}; correct its rope parameters")
    scale = float(given) if given is not None else (1.0 if factor <= 1 else math.sqrt(1 + math.log(factor) / math.log(original)))
    return inverse_P / torch.tensor(stretch, dtype=torch.float32), scale


def _llama3(inverse_P: torch.Tensor, p: Mapping[str, Any], original: float) -> torch.Tensor:
    factor = _number(p, "factor", "llama3")
    low, high = _number(p, "low_freq_factor", "llama3"), _number(p, "high_freq_factor", "llama3")
    wavelength_P = 2 * math.pi / inverse_P
    smooth_P = (original / wavelength_P - low) / (high - low)
    blended_P = (1 - smooth_P) * inverse_P / factor + smooth_P * inverse_P
    result_P = torch.where(wavelength_P > original / low, inverse_P / factor, inverse_P)
    medium_P = (wavelength_P >= original / high) & (wavelength_P <= original / low)
    return torch.where(medium_P, blended_P, result_P)


def _yarn_attention_factor(p: Mapping[str, Any], factor: float) -> float:
    mscale, all_dim = p.get("mscale"), p.get("mscale_all_dim")
    if mscale and all_dim:
        return yarn_mscale(factor, float(mscale)) / yarn_mscale(factor, float(all_dim))
    return yarn_mscale(factor)


def _yarn(rope: RopeConfig, exponents_P: torch.Tensor, p: Mapping[str, Any], factor: float, original: float, width: int) -> torch.Tensor:
    fast, slow = _number(p, "beta_fast", "yarn", 32.0), _number(p, "beta_slow", "yarn", 1.0)

    def dimension(rotations: float) -> float:
        return width * math.log(original / (rotations * 2 * math.pi)) / (2 * math.log(rope.theta))

    low, high = dimension(fast), dimension(slow)
    if p.get("truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, width - 1)
    if low == high:
        high += 0.001  # a ramp of no width would divide by zero
    ramp_P = ((torch.arange(width // 2, dtype=torch.float32) - low) / (high - low)).clamp(0, 1)
    extrapolated_P = 1.0 / (rope.theta**exponents_P)
    interpolated_P = 1.0 / (factor * rope.theta**exponents_P)
    kept_P = 1 - ramp_P
    return interpolated_P * (1 - kept_P) + extrapolated_P * kept_P


class Rotary:
    """Cosines and sines for given positions, and their application to queries and keys."""

    def __init__(self, rope: RopeConfig, head_dim: int, pairing: Literal["half", "interleaved"], device: torch.device) -> None:
        self._rope, self._head_dim, self._pairing, self._device = rope, head_dim, pairing, device
        self._cache: dict[int, tuple[torch.Tensor, float]] = {}

    def angles(self, positions_R: torch.Tensor, length: int) -> tuple[torch.Tensor, torch.Tensor]:
        """(cos, sin), float32 [R, P] each, for int64 positions [R]; ``length`` as in :func:`inverse_frequencies`."""
        if self._rope.type == "dynamic":
            key = max(length, self._rope.max_position_embeddings)
        elif self._rope.type == "longrope":
            original = self._rope.parameters.get("original_max_position_embeddings", self._rope.max_position_embeddings)
            key = int(length > float(str(original)))
        else:
            key = 0
        if key not in self._cache:
            inverse_P, scale = inverse_frequencies(self._rope, self._head_dim, length)
            self._cache[key] = inverse_P.to(self._device), scale
        inverse_P, scale = self._cache[key]
        angles_RP = positions_R.to(torch.float32)[:, None] * inverse_P[None, :]
        return angles_RP.cos() * scale, angles_RP.sin() * scale

    def apply(self, x_RND: torch.Tensor, cos_RP: torch.Tensor, sin_RP: torch.Tensor) -> torch.Tensor:
        """Rotate the first 2·P numbers of every head of x [R, heads, head_dim]; the rest pass through."""
        cos_R1P, sin_R1P = cos_RP[:, None].to(x_RND.dtype), sin_RP[:, None].to(x_RND.dtype)
        width = 2 * cos_RP.shape[-1]
        turned, rest = x_RND[..., :width], x_RND[..., width:]
        if self._pairing == "half":
            a, b = turned.chunk(2, dim=-1)
            out = torch.cat((a * cos_R1P - b * sin_R1P, b * cos_R1P + a * sin_R1P), dim=-1)
        else:
            a, b = turned[..., 0::2], turned[..., 1::2]
            out = torch.stack((a * cos_R1P - b * sin_R1P, b * cos_R1P + a * sin_R1P), dim=-1).flatten(-2)
        return out if rest.shape[-1] == 0 else torch.cat((out, rest), dim=-1)
