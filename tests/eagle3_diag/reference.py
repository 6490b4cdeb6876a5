"""A slow, obvious EAGLE-3 drafter: one row at a time, one token at a time, with a key/value cache, as a server drafts.

Written from the papers' formulas and independent of ``eagle3_diag.drafter``: it shares no code with what it checks. Everything
is in float64 unless told otherwise, so that its tokens are the ones exact arithmetic would give.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch


@dataclass(frozen=True, kw_only=True)
class Mla:
    """Multi-head latent attention: ranks and head parts (DeepSeek-V2, arXiv 2405.04434, section 2.1)."""

    q_lora_rank: int | None
    kv_lora_rank: int
    nope: int
    rope: int
    value: int
    interleave: bool = True


@dataclass(frozen=True, kw_only=True)
class Shape:
    """What the reference needs to know of a drafter; names as in Hugging Face configs."""

    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    eps: float
    rope_theta: float = 10000.0
    rope_type: str = "default"
    rope: Mapping[str, Any] = field(default_factory=dict)
    max_positions: int = 2048
    norm_before_residual: bool = False
    norm_before_fc: bool = False
    fc_norm: bool = False
    post_norm_feedback: bool = False
    hidden_first: bool = False
    qk_norm: bool = False
    first_position: int = 0
    double_norm: bool = False
    mla: Mla | None = None


def rms(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """x / sqrt(mean(x^2) + eps) * weight, over a vector."""
    return x / math.sqrt(float((x * x).mean()) + eps) * weight


def frequencies(shape: Shape, width: int, length: int) -> tuple[list[float], float]:
    """Angle per position of each rotary pair, and the factor on cosines and sines, by scalar arithmetic."""
    base, p = shape.rope_theta, shape.rope
    plain = [base ** (-2 * i / width) for i in range(width // 2)]
    if shape.rope_type == "default":
        return plain, 1.0
    if shape.rope_type == "linear":
        return [f / p["factor"] for f in plain], 1.0
    if shape.rope_type == "dynamic":
        longest = shape.max_positions
        reach = max(length, longest)
        stretched = base * (p["factor"] * reach / longest - (p["factor"] - 1)) ** (width / (width - 2))
        return [stretched ** (-2 * i / width) for i in range(width // 2)], 1.0
    original = p["original_max_position_embeddings"]
    if shape.rope_type == "llama3":
        out = []
        for f in plain:
            turns = original * f / (2 * math.pi)  # turns made within the original context
            if turns < p["low_freq_factor"]:
                out.append(f / p["factor"])
            elif turns > p["high_freq_factor"]:
                out.append(f)
            else:
                share = (turns - p["low_freq_factor"]) / (p["high_freq_factor"] - p["low_freq_factor"])
                out.append(share * f + (1 - share) * f / p["factor"])
        return out, 1.0
    if shape.rope_type == "longrope":
        stretch = p["long_factor"] if length > original else p["short_factor"]
        scale = p["factor"]
        return [f / s for f, s in zip(plain, stretch, strict=True)], math.sqrt(1 + math.log(scale) / math.log(original))
    assert shape.rope_type == "yarn"
    factor = p["factor"]

    def pair_with(turns: float) -> float:
        return width * math.log(original / (turns * 2 * math.pi)) / (2 * math.log(base))

    low, high = math.floor(pair_with(p.get("beta_fast", 32))), math.ceil(pair_with(p.get("beta_slow", 1)))
    low, high = max(low, 0), min(high, width - 1)
    span = (high - low) or 0.001
    out = []
    for i, f in enumerate(plain):
        ramp = min(max((i - low) / span, 0.0), 1.0)  # 0: turns fast, keep; 1: turns slowly, stretch
        out.append(f * (1 - ramp) + f / factor * ramp)

    def temperature(m: float) -> float:
        return 0.1 * m * math.log(factor) + 1 if factor > 1 else 1.0

    if p.get("mscale") and p.get("mscale_all_dim"):
        return out, temperature(p["mscale"]) / temperature(p["mscale_all_dim"])
    return out, temperature(1.0)


def turn(x: torch.Tensor, position: int, freqs: Sequence[float], scale: float, interleaved: bool) -> torch.Tensor:
    """Rotate one head's vector pair by pair."""
    out, half = x.clone(), len(freqs)
    for i, f in enumerate(freqs):
        c, s = math.cos(position * f) * scale, math.sin(position * f) * scale
        a, b = (2 * i, 2 * i + 1) if interleaved else (i, i + half)
        out[a], out[b] = x[a] * c - x[b] * s, x[b] * c + x[a] * s
    return out


class ReferenceDrafter:
    """Drafts greedily from one row at a time.

    ``weights`` by the names of the drafter's internal form (``fc.weight``, ``layers.0.self_attn.q_proj.weight``, ...), with
    ``embed_tokens.weight`` and ``lm_head.weight`` always present; ``ids`` maps draft ids to target ids.
    """

    def __init__(self, shape: Shape, weights: Mapping[str, torch.Tensor], ids: Sequence[int], dtype: torch.dtype = torch.float64) -> None:
        self.shape, self.ids = shape, list(ids)
        self.w = {name: tensor.to(dtype) for name, tensor in weights.items()}
        self.dtype = dtype

    def linear(self, name: str, x: torch.Tensor) -> torch.Tensor:
        y = self.w[f"{name}.weight"] @ x
        return y + self.w[f"{name}.bias"] if f"{name}.bias" in self.w else y

    def start(self, features: Sequence[torch.Tensor]) -> torch.Tensor:
        """Step 0's state from the aux states of one position."""
        states = [f.to(self.dtype) for f in features]
        if self.shape.fc_norm:
            states = [rms(f, self.w[f"fc_norm.{i}.weight"], self.shape.eps) for i, f in enumerate(states)]
        joined = torch.cat(states)
        if self.shape.norm_before_fc:
            joined = rms(joined, self.w["input_norm.weight"], self.shape.eps)
        return self.linear("fc", joined)

    def projections(self, name: str, x: torch.Tensor, position: int, length: int) -> tuple[list[torch.Tensor], list[torch.Tensor], list[torch.Tensor]]:
        """Query, key and value of every query head (key heads repeated), rotated."""
        s = self.shape
        if s.mla is not None:
            return self.latent_projections(name, x, position, length)
        freqs, scale = frequencies(s, s.head_dim, length)
        q, k, v = (self.linear(f"{name}.{p}_proj", x) for p in "qkv")
        queries, keys, values = [], [], []
        for head in range(s.num_heads):
            group = head // (s.num_heads // s.num_kv_heads)
            qh, kh = q[head * s.head_dim : (head + 1) * s.head_dim], k[group * s.head_dim : (group + 1) * s.head_dim]
            if s.qk_norm:
                qh, kh = rms(qh, self.w[f"{name}.q_norm.weight"], s.eps), rms(kh, self.w[f"{name}.k_norm.weight"], s.eps)
            queries.append(turn(qh, position, freqs, scale, False) / math.sqrt(s.head_dim))
            keys.append(turn(kh, position, freqs, scale, False))
            values.append(v[group * s.head_dim : (group + 1) * s.head_dim])
        return queries, keys, values

    def latent_projections(
        self, name: str, x: torch.Tensor, position: int, length: int
    ) -> tuple[list[torch.Tensor], list[torch.Tensor], list[torch.Tensor]]:
        s, m = self.shape, self.shape.mla
        assert m is not None
        freqs, scale = frequencies(s, m.rope, length)
        if m.q_lora_rank is None:
            q = self.linear(f"{name}.q_proj", x)
        else:
            q = self.linear(f"{name}.q_b_proj", rms(self.linear(f"{name}.q_a_proj", x), self.w[f"{name}.q_a_layernorm.weight"], s.eps))
        low = self.linear(f"{name}.kv_a_proj_with_mqa", x)
        shared = turn(low[m.kv_lora_rank :], position, freqs, scale, m.interleave)
        wide = self.linear(f"{name}.kv_b_proj", rms(low[: m.kv_lora_rank], self.w[f"{name}.kv_a_layernorm.weight"], s.eps))
        temperature = 1 / math.sqrt(m.nope + m.rope)
        if s.rope_type == "yarn" and s.rope.get("mscale_all_dim") and s.rope["factor"] > 1:
            temperature *= (0.1 * s.rope["mscale_all_dim"] * math.log(s.rope["factor"]) + 1) ** 2
        queries, keys, values = [], [], []
        for head in range(s.num_heads):
            qh = q[head * (m.nope + m.rope) : (head + 1) * (m.nope + m.rope)]
            kv = wide[head * (m.nope + m.value) : (head + 1) * (m.nope + m.value)]
            queries.append(torch.cat((qh[: m.nope], turn(qh[m.nope :], position, freqs, scale, m.interleave))) * temperature)
            keys.append(torch.cat((kv[: m.nope], shared)))
            values.append(kv[m.nope :])
        return queries, keys, values

    def step(self, token: int, state: torch.Tensor, position: int, length: int, cache: list[list[Any]]) -> torch.Tensor:
        """One token through all layers; its keys and values are appended to ``cache[layer]``."""
        s = self.shape
        for layer in range(s.num_layers):
            name = f"layers.{layer}"
            first = self.w[f"{name}.input_layernorm.weight"]
            if layer == 0:
                normed = rms(rms(state, first, s.eps), self.w[f"{name}.hidden_norm.weight"], s.eps) if s.double_norm else rms(state, self.w[f"{name}.hidden_norm.weight"], s.eps)
                embedded = rms(self.w["embed_tokens.weight"][token], first, s.eps)
                x = torch.cat((normed, embedded) if s.hidden_first else (embedded, normed))
                residual = normed if s.norm_before_residual else state
            else:
                x, residual = rms(state, first, s.eps), state
            queries, keys, values = self.projections(f"{name}.self_attn", x, position, length)
            cache[layer].append((keys, values))
            heads = []
            for head, query in enumerate(queries):
                scores = [float(query @ past_keys[head]) for past_keys, _ in cache[layer]]
                top = max(scores)
                weights = [math.exp(score - top) for score in scores]
                total = sum(weights)
                mixed = torch.zeros_like(values[head])
                for weight, (_, past_values) in zip(weights, cache[layer], strict=True):
                    mixed = mixed + weight / total * past_values[head]
                heads.append(mixed)
            y = residual + self.linear(f"{name}.self_attn.o_proj", torch.cat(heads))
            z = rms(y, self.w[f"{name}.post_attention_layernorm.weight"], s.eps)
            gate = self.linear(f"{name}.mlp.gate_proj", z)
            state = y + self.linear(f"{name}.mlp.down_proj", gate / (1 + torch.exp(-gate)) * self.linear(f"{name}.mlp.up_proj", z))
        return state

    def logits(self, state: torch.Tensor) -> torch.Tensor:
        return self.w["lm_head.weight"] @ rms(state, self.w["norm.weight"], self.shape.eps)

    def draft(self, tokens: Sequence[int], aux: Sequence[torch.Tensor], row: int, steps: int, feed: Sequence[int] | None = None) -> tuple[list[int], list[torch.Tensor]]:
        """``steps`` target-vocabulary tokens (and their draft-vocabulary logits) drafted from one row.

        ``feed`` gives the tokens to feed at steps 1, 2, ... instead of the drafter's own.
        """
        cache: list[list[Any]] = [[] for _ in range(self.shape.num_layers)]
        first, length = self.shape.first_position, len(tokens) - 1 + self.shape.first_position
        state = torch.empty(0)
        for t in range(row + 1):
            state = self.step(tokens[t + 1], self.start([a[t] for a in aux]), t + first, length, cache)
        drafted, logits = [], []
        for k in range(steps):
            if k > 0:
                fed = drafted[-1] if feed is None else feed[k - 1]
                back = rms(state, self.w["norm.weight"], self.shape.eps) if self.shape.post_norm_feedback else state
                state = self.step(fed, back, row + k + first, length + k, cache)
            logits.append(self.logits(state))
            drafted.append(self.ids[int(logits[-1].argmax())])
        return drafted, logits
