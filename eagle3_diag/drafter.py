"""The drafter's forward pass, wired as a :class:`~eagle3_diag.wiring.Wiring` says. Torch only.

Row t of a sequence x[0..n-1] takes the embedding of x[t+1] and the target's features at t, and predicts x[t+2]:

    h = fc(features[t])                                  draft step 0; later steps take the state that came out before
    y = layer(concat(norm(embed(token)), norm(h)))       attention over the step-0 keys of rows <= t and this row's own steps
    logits = lm_head(norm(y))

Sources: speculators ``models/eagle3/{core,model_definitions}.py``, SpecForge ``modeling/draft/llama3_eagle.py``, vllm
``model_executor/models/{llama,deepseek}_eagle3.py``, EAGLE ``eagle/model/cnets.py``.

Dimension suffixes: R rows at work, T all rows of a sequence, H drafter width, F width of all aux states, A aux states,
N heads, G key/value heads, D width of a head, E = width of a value head, K draft steps so far.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F

from eagle3_diag import heads
from eagle3_diag.checkpoint.interface import DrafterCheckpoint
from eagle3_diag.checkpoint.tensors import require_finite
from eagle3_diag.config import DrafterConfig
from eagle3_diag.errors import InputError
from eagle3_diag.rope import Rotary, yarn_mscale
from eagle3_diag.target import Target
from eagle3_diag.wiring import Wiring

# Rows per piece of work: bounds the widest intermediates (MLP, attention scores) whatever the sample's length.
_ROWS = 1024
_SCORES = 1 << 24

_ACTIVATIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "silu": F.silu,
    "swish": F.silu,
    "gelu": F.gelu,
    "gelu_pytorch_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "gelu_new": lambda x: F.gelu(x, approximate="tanh"),
    "relu": F.relu,
}


def rms_norm(x: torch.Tensor, weight: torch.Tensor | None, eps: float, offset: float = 0.0) -> torch.Tensor:
    """RMSNorm over the last dimension, the mean square taken in float32; ``weight`` None hands x on unchanged.

    ``offset`` is added to the weight (1.0 for Gemma).
    """
    if weight is None:
        return x
    x32 = x.to(torch.float32)
    normed = x32 * torch.rsqrt(x32.square().mean(dim=-1, keepdim=True) + eps)
    if offset:
        return (normed * (weight.to(torch.float32) + offset)).to(x.dtype)
    return weight * normed.to(x.dtype)


@dataclass
class Keys:
    """Keys and values of one layer: [rows, G, D] and [rows, G, E]."""

    k: torch.Tensor
    v: torch.Tensor


@dataclass
class Prefix:
    """What draft step 0 leaves behind for one sequence: keys and values of every row, per layer, and the rows' input."""

    layers: list[Keys]
    input_TH: torch.Tensor
    length: int


@dataclass
class Drafts:
    """Rows being drafted, all at the same draft step, and the keys and values of their own steps 1..k per layer.

    ``rows_R`` int64 row numbers t; ``state_RH`` the state fed to the next step; ``own`` [layer] -> Keys [R, K, ...].
    """

    rows_R: torch.Tensor
    step: int
    state_RH: torch.Tensor
    own: list[list[Keys]]

    def keep(self, alive_R: torch.Tensor) -> Drafts:
        """Only the rows where ``alive_R`` (bool) holds."""
        own = [[Keys(each.k[alive_R], each.v[alive_R]) for each in steps] for steps in self.own]
        return Drafts(self.rows_R[alive_R], self.step, self.state_RH[alive_R], own)


def _join(parts: list[torch.Tensor]) -> torch.Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(parts)


class Weights:
    """A drafter's and its target's tensors in the compute dtype on a device; converted once, when first asked for.

    Where dtype and device are the file's own, tensors stay memory-mapped.
    """

    def __init__(self, checkpoint: DrafterCheckpoint, target: Target, device: torch.device, dtype: torch.dtype) -> None:
        self.checkpoint, self.target, self.device, self.dtype = checkpoint, target, device, dtype
        self._cache: dict[str, torch.Tensor] = {}

    def find(self, name: str) -> torch.Tensor | None:
        """The drafter's tensor of that internal name, or None when the checkpoint has none."""
        if name not in self._cache:
            if not self.checkpoint.has(name):
                return None
            self._cache[name] = self._load(name, self.checkpoint.get(name))
        return self._cache[name]

    def get(self, name: str) -> torch.Tensor:
        """Like :meth:`find`; raises InputError when the tensor is not there."""
        tensor = self.find(name)
        if tensor is None:
            raise InputError(f"{self.checkpoint.path}: tensor {name!r} is missing; the wiring asked for needs it")
        return tensor

    @property
    def target_head(self) -> torch.Tensor:
        """The target's head [V, H]: on a GPU in the compute dtype, held; on a CPU as mapped (converted slice by slice where it is used)."""
        if self.device.type == "cpu":
            return self.target.head()
        if "target_head" not in self._cache:
            self._cache["target_head"] = self.target.head().to(self.device, self.dtype)
        return self._cache["target_head"]

    def _load(self, name: str, tensor: torch.Tensor) -> torch.Tensor:
        converted = tensor.to(self.device, self.dtype)
        # One pass without a temporary tells: a sum is finite unless something in it is not, or it overflowed itself.
        if not bool(torch.isfinite(converted.sum(dtype=torch.float32))):
            require_finite(tensor, name, self.checkpoint.path)
            overflowed = int((~torch.isfinite(converted)).sum())
            if overflowed:
                raise InputError(
                    f"{self.checkpoint.path}: {overflowed} of {converted.numel()} values of {name} do not fit into "
                    f"{str(self.dtype).removeprefix('torch.')}; use --dtype bfloat16 or float32"
                )
        return converted


def quantise(weight: torch.Tensor, to: str) -> torch.Tensor:
    """Round a matrix to what a quantised engine would hold, and back: fp8 (e4m3), int8 or int4, one scale per row.

    int4 has one scale per group of 128 columns (the usual layout), fp8 one scale per tensor (vLLM's and SGLang's default).
    """
    w = weight.to(torch.float32)
    if to == "fp8":
        scale = w.abs().max().clamp(min=1e-12) / 448.0
        return ((w / scale).to(torch.float8_e4m3fn).to(torch.float32) * scale).to(weight.dtype)
    levels = {"int8": 127, "int4": 7}[to]
    grouped = w.reshape(w.shape[0], -1, 128) if to == "int4" and w.shape[1] % 128 == 0 else w[:, None, :]
    scale = grouped.abs().amax(dim=-1, keepdim=True).clamp(min=1e-12) / levels
    return ((grouped / scale).round().clamp(-levels, levels) * scale).reshape(w.shape).to(weight.dtype)


def quantise_states(state_TH: torch.Tensor, to: str) -> torch.Tensor:
    """Round states to fp8 (e4m3) or int8 and back, one scale per row."""
    x = state_TH.to(torch.float32)
    scale = x.abs().amax(dim=-1, keepdim=True).clamp(min=1e-12) / {"fp8": 448.0, "int8": 127.0}[to]
    rounded_TH = (x / scale).to(torch.float8_e4m3fn).to(torch.float32) if to == "fp8" else (x / scale).round()
    return torch.mul(rounded_TH, scale).to(state_TH.dtype)


def rotate_states(state_TH: torch.Tensor, seed: int) -> torch.Tensor:
    """States through an orthogonal matrix: channels shuffled, signs drawn, then Hadamard's matrix over the largest power of two that divides H.

    That is how rotated targets are made (QuaRot, arXiv 2404.00456: a Hadamard matrix with random signs); which signs, nobody tells.
    """
    width = int(state_TH.shape[-1])
    generator = torch.Generator().manual_seed(seed)
    order = torch.randperm(width, generator=generator).to(state_TH.device)
    signs = (torch.randint(2, (width,), generator=generator) * 2 - 1).to(state_TH.device, state_TH.dtype)
    block = width & -width
    x = (state_TH[..., order] * signs).reshape(-1, block)
    step = 1
    while step < block:
        pairs = x.view(-1, block // (2 * step), 2, step)
        x = torch.stack((pairs[:, :, 0] + pairs[:, :, 1], pairs[:, :, 0] - pairs[:, :, 1]), dim=2).reshape(-1, block)
        step *= 2
    return torch.mul(x, block**-0.5).reshape(state_TH.shape)


# How much of a foreign embedding is another token's row: all of it for unrelated weights, less for those of a relative.
_FOREIGN_SHARES = (1.0, 0.7, 1.0, 0.4)


class Drafter:
    """One wiring of one drafter. Cheap to make: the weights are shared."""

    def __init__(self, weights: Weights, wiring: Wiring | None = None) -> None:
        self.weights = weights
        self.config: DrafterConfig = weights.checkpoint.config
        self.wiring = weights.checkpoint.wiring if wiring is None else wiring
        self.eps = self.config.rms_norm_eps if self.wiring.eps is None else self.wiring.eps
        self.num_layers = self.config.num_layers if self.wiring.layers is None else min(self.wiring.layers, self.config.num_layers)
        mla = self.config.mla
        pairing = self.wiring.rope_pairing or ("interleaved" if mla is not None and mla.rope_interleave else "half")
        width = self.config.head_dim if mla is None else mla.qk_rope_head_dim
        rope = self.wiring.rope or self.config.rope
        self.rotary = Rotary(rope, width, pairing, weights.device)
        self.scale = self._attention_scale()
        if self.config.hidden_act not in _ACTIVATIONS:
            raise InputError(
                f"{weights.checkpoint.path}: hidden_act {self.config.hidden_act!r} is not known; known are {', '.join(sorted(_ACTIVATIONS))}"
            )
        self.act = _ACTIVATIONS[self.config.hidden_act]
        self._quantised: dict[str, torch.Tensor] = {}
        self._foreign_V: torch.Tensor | None = None
        self._vocabulary()

    # ---- vocabulary ----------------------------------------------------------------------------------------------

    def _vocabulary(self) -> None:
        """Where draft ids lead: ``ids_D`` int64 [D] target ids, or None when draft ids are target ids."""
        offsets_D = self.weights.checkpoint.d2t_offsets()
        device = self.weights.device
        self.ids_D: torch.Tensor | None = None
        if self.wiring.head == "target" or offsets_D is None:
            return
        offsets_D = offsets_D.to(device, torch.int64)
        index_D = torch.arange(offsets_D.shape[0], device=device)
        chosen = {"offset": index_D + offsets_D, "absolute": offsets_D, "missing": index_D}[self.wiring.vocabulary]
        self.ids_D = chosen.clamp(0, self.config.vocab_size - 1)

    @property
    def head_VH(self) -> torch.Tensor:
        """The LM head, [D, H] in the compute dtype, or the target's [V, H]."""
        if self.wiring.head == "target" or not self.weights.checkpoint.has("lm_head.weight"):
            return self.weights.target_head
        return self._maybe_quantised("lm_head.weight", self.weights.get("lm_head.weight"))

    def embed(self, tokens_R: torch.Tensor) -> torch.Tensor:
        """Embedding rows [R, width] of target-vocabulary ids; only the rows asked for are read from the file."""
        right = self.weights.checkpoint.wiring.embedding if self.wiring.embedding == "foreign" else self.wiring.embedding
        own = right == "drafter" and self.weights.checkpoint.has("embed_tokens.weight")
        target = self.weights.target
        table_VH = self.weights.checkpoint.get("embed_tokens.weight") if own else target.embedding()
        tokens_R = tokens_R.to(table_VH.device)
        rows_RH = table_VH.index_select(0, tokens_R).to(self.weights.device, self.weights.dtype)
        if self.wiring.embedding == "foreign":
            share = _FOREIGN_SHARES[self.wiring.instance % len(_FOREIGN_SHARES)]
            if self._foreign_V is None:
                generator = torch.Generator().manual_seed(self.wiring.instance)
                self._foreign_V = torch.randperm(int(table_VH.shape[0]), generator=generator).to(table_VH.device)
            others_RH = table_VH.index_select(0, self._foreign_V[tokens_R]).to(self.weights.device, self.weights.dtype)
            rows_RH = (1 - share) * rows_RH + share * others_RH
        if own or target.config.embedding_scale == 1.0 or not self.wiring.embedding_scaled:
            return rows_RH
        return rows_RH * target.config.embedding_scale

    def draft_ids(self, index_R: torch.Tensor) -> torch.Tensor:
        """Target-vocabulary ids of draft-vocabulary indices."""
        return index_R if self.ids_D is None else self.ids_D[index_R]

    def argmax(self, state_RH: torch.Tensor) -> torch.Tensor:
        """Drafted tokens, int64 [R], in the target's vocabulary, from states before the output norm."""
        return self.draft_ids(heads.argmax(self.normed(state_RH), self.head_VH))

    def log_probability(self, state_RH: torch.Tensor, tokens_R: torch.Tensor, temperature: float) -> torch.Tensor:
        """Log-probability (float64 [R]) the drafter gives to target-vocabulary tokens; -inf outside its vocabulary."""
        if self.ids_D is None:
            index_R = tokens_R
        else:
            where_V = torch.full((self.config.vocab_size,), -1, dtype=torch.int64, device=tokens_R.device)
            where_V[self.ids_D] = torch.arange(self.ids_D.shape[0], device=tokens_R.device)
            index_R = where_V[tokens_R]
        return heads.log_probability(self.normed(state_RH), self.head_VH, index_R, temperature=temperature, scale=self.config.logit_scale)

    def normed(self, state_RH: torch.Tensor) -> torch.Tensor:
        """The state after the output norm."""
        return rms_norm(state_RH, self.weights.get("norm.weight") if self.wiring.output_norm == "own" else None, self.eps)

    # ---- matrices ------------------------------------------------------------------------------------------------

    def _maybe_quantised(self, name: str, matrix: torch.Tensor) -> torch.Tensor:
        if self.wiring.quantised is None:
            return matrix
        if name not in self._quantised:
            self._quantised[name] = quantise(matrix, self.wiring.quantised)
        return self._quantised[name]

    def linear(self, name: str, x: torch.Tensor) -> torch.Tensor:
        """x through the matrix of that internal name (and its bias, where the checkpoint has one and it is loaded)."""
        is_qkv = name.rsplit(".", 1)[-1] in ("q_proj", "k_proj", "v_proj")
        bias = None if is_qkv and not self.wiring.attention_bias else self.weights.find(f"{name}.bias")
        return heads.linear(x, self._maybe_quantised(name, self.weights.get(f"{name}.weight")), bias).contiguous()

    # ---- features and inputs -------------------------------------------------------------------------------------

    def project(self, aux_TA: list[torch.Tensor]) -> torch.Tensor:
        """The input of draft step 0, [T, H], from the aux states (a list of [T, H_target], in stored order)."""
        order = self.wiring.aux_order or tuple(range(len(aux_TA)))
        states = [aux_TA[i].to(self.weights.device, self.weights.dtype) for i in order]
        if self.wiring.features_rotated:
            states = [rotate_states(s, self.wiring.instance) for s in states]
        if self.wiring.features_quantised is not None:
            states = [quantise_states(s, self.wiring.features_quantised) for s in states]
        if self.wiring.fc == "skipped":
            return states[-1]
        if self.wiring.fc_norm:
            states = [rms_norm(s, self.weights.get(f"fc_norm.{i}.weight"), self.eps) for i, s in enumerate(states)]
        features_TF = torch.cat(states, dim=-1)
        if self.wiring.norm_before_fc:
            features_TF = rms_norm(features_TF, self.weights.get("input_norm.weight"), self.eps)
        return self.linear("fc", features_TF)

    def feed_back(self, state_RH: torch.Tensor, input_RH: torch.Tensor) -> torch.Tensor:
        """The state that the next draft step takes, from the one just computed (before the output norm)."""
        if self.wiring.feedback == "zero":
            return torch.zeros_like(state_RH)
        if self.wiring.feedback == "stale":
            return input_RH
        fed_RH = self.normed(state_RH) if self.wiring.feedback == "post-norm" else state_RH
        if self.wiring.fc_on_feedback and self.config.hidden_size == self.config.target_hidden_size:
            fed_RH = self.linear("fc", torch.cat([fed_RH] * self.config.num_aux, dim=-1))
        return fed_RH

    # ---- one layer -----------------------------------------------------------------------------------------------

    def attention_input(self, layer: int, state_RH: torch.Tensor, embedded_RH: torch.Tensor | None) -> tuple[torch.Tensor, torch.Tensor]:
        """(what attention sees, residual): layer 0 joins embedding and state, further layers are ordinary ones."""
        first = self.weights.get(f"layers.{layer}.input_layernorm.weight")
        if layer > 0 or embedded_RH is None:
            own = self.wiring.further_norm == "input_layernorm"
            return rms_norm(state_RH, first if own else None, self.eps), state_RH
        second = self.weights.get("layers.0.hidden_norm.weight")
        of = {"own": (first, second), "other": (second, first), "none": (None, None)}
        embedded_RH = rms_norm(embedded_RH, of[self.wiring.embedding_norm][0], self.eps)
        if self.wiring.hidden_norm == "both":
            normed_RH = rms_norm(rms_norm(state_RH, first, self.eps), second, self.eps)
        else:
            normed_RH = rms_norm(state_RH, of[self.wiring.hidden_norm][1], self.eps)
        residual_RH = {"before-norm": state_RH, "after-norm": normed_RH, "none": torch.zeros_like(state_RH)}[self.wiring.residual]
        pair = (embedded_RH, normed_RH) if self.wiring.concat == "embedding-first" else (normed_RH, embedded_RH)
        return torch.cat(pair, dim=-1), residual_RH

    def _attention_scale(self) -> float:
        mla = self.config.mla
        if mla is None:
            return float(self.config.head_dim**-0.5)
        scale = float((mla.qk_nope_head_dim + mla.qk_rope_head_dim) ** -0.5)
        all_dim = self.config.rope.parameters.get("mscale_all_dim")
        if self.config.rope.type == "yarn" and all_dim:
            # DeepSeek applies YaRN's temperature twice: once on cos and sin, once (squared) here.
            factor = float(str(self.config.rope.parameters["factor"]))
            scale *= yarn_mscale(factor, float(str(all_dim))) ** 2
        return scale

    def keys(self, layer: int, x_RX: torch.Tensor, cos_RP: torch.Tensor, sin_RP: torch.Tensor) -> Keys:
        """Keys and values of rows, from the attention's input."""
        name, rows = f"layers.{layer}.self_attn", x_RX.shape[0]
        if self.config.mla is not None:
            return self._mla_keys(name, x_RX, cos_RP, sin_RP)
        k_RGD = self.linear(f"{name}.k_proj", x_RX).view(rows, self.config.num_kv_heads, self.config.head_dim)
        v_RGD = self.linear(f"{name}.v_proj", x_RX).view(rows, self.config.num_kv_heads, self.config.head_dim)
        if self.config.qk_norm and self.wiring.qk_norm:
            k_RGD = rms_norm(k_RGD, self.weights.get(f"{name}.k_norm.weight"), self.eps)
        return Keys(self.rotary.apply(k_RGD, cos_RP, sin_RP), v_RGD)

    def queries(self, layer: int, x_RX: torch.Tensor, cos_RP: torch.Tensor, sin_RP: torch.Tensor) -> torch.Tensor:
        """Queries of rows [R, N, D], from the attention's input."""
        name, rows, mla = f"layers.{layer}.self_attn", x_RX.shape[0], self.config.mla
        if mla is None:
            q_RND = self.linear(f"{name}.q_proj", x_RX).view(rows, self.config.num_heads, self.config.head_dim)
            if self.config.qk_norm and self.wiring.qk_norm:
                q_RND = rms_norm(q_RND, self.weights.get(f"{name}.q_norm.weight"), self.eps)
            return self.rotary.apply(q_RND, cos_RP, sin_RP)
        if mla.q_lora_rank is None:
            q = self.linear(f"{name}.q_proj", x_RX)
        else:
            low = rms_norm(self.linear(f"{name}.q_a_proj", x_RX), self.weights.get(f"{name}.q_a_layernorm.weight"), self.eps)
            q = self.linear(f"{name}.q_b_proj", low)
        q_RND = q.view(rows, self.config.num_heads, mla.qk_nope_head_dim + mla.qk_rope_head_dim)
        plain, turned = torch.split(q_RND, [mla.qk_nope_head_dim, mla.qk_rope_head_dim], dim=-1)
        return torch.cat((plain, self.rotary.apply(turned, cos_RP, sin_RP)), dim=-1)

    def _mla_keys(self, name: str, x_RX: torch.Tensor, cos_RP: torch.Tensor, sin_RP: torch.Tensor) -> Keys:
        mla, rows, heads_ = self.config.mla, x_RX.shape[0], self.config.num_heads
        assert mla is not None
        latent, turned = torch.split(self.linear(f"{name}.kv_a_proj_with_mqa", x_RX), [mla.kv_lora_rank, mla.qk_rope_head_dim], dim=-1)
        latent = rms_norm(latent, self.weights.get(f"{name}.kv_a_layernorm.weight"), self.eps)
        wide = self.linear(f"{name}.kv_b_proj", latent).view(rows, heads_, mla.qk_nope_head_dim + mla.v_head_dim)
        plain, v_RNE = torch.split(wide, [mla.qk_nope_head_dim, mla.v_head_dim], dim=-1)
        turned = self.rotary.apply(turned[:, None], cos_RP, sin_RP).expand(-1, heads_, -1)
        return Keys(torch.cat((plain, turned), dim=-1), v_RNE)

    def attend(self, q_RND: torch.Tensor, rows_R: torch.Tensor, prefix: Keys, own: list[Keys]) -> torch.Tensor:
        """Attention of rows over the prefix's keys of rows <= t and over the rows' own earlier draft steps: [R, N·E].

        ``own`` holds the keys of draft steps 1..k of these very rows (empty at step 0, where a row's own key is in the prefix).
        """
        rows, num_heads, _ = q_RND.shape
        groups = prefix.k.shape[1]
        out = torch.empty((rows, num_heads * prefix.v.shape[-1]), dtype=q_RND.dtype, device=q_RND.device)
        see_prefix = self.wiring.prefix_visible or not own
        if own and not self.wiring.steps_visible:
            own = own[-1:]
        own_k = torch.stack([each.k for each in own], dim=1) if own else None  # [R, K, G, D]
        own_v = torch.stack([each.v for each in own], dim=1) if own else None
        step = max(1, min(_ROWS, _SCORES // (num_heads * max(prefix.k.shape[0], 1))))
        for start in range(0, rows, step):
            stop = min(start + step, rows)
            out[start:stop] = self._attend(q_RND[start:stop], rows_R[start:stop], prefix, own_k, own_v, slice(start, stop), groups, see_prefix)
        return out

    def _attend(
        self,
        q_RND: torch.Tensor,
        rows_R: torch.Tensor,
        prefix: Keys,
        own_k: torch.Tensor | None,
        own_v: torch.Tensor | None,
        part: slice,
        groups: int,
        see_prefix: bool,
    ) -> torch.Tensor:
        rows, num_heads, width = q_RND.shape
        per = num_heads // groups
        q_GpRD = (q_RND * self.scale).view(rows, groups, per, width).permute(1, 2, 0, 3)
        length = int(rows_R.max()) + 1
        k_GTD, v_GTE = prefix.k[:length].transpose(0, 1), prefix.v[:length].transpose(0, 1)
        scores = []
        if see_prefix:
            s = torch.matmul(q_GpRD.reshape(groups, per * rows, width), k_GTD.transpose(1, 2)).view(groups, per, rows, length)
            hidden_RT = torch.arange(length, device=rows_R.device)[None, :] > rows_R[:, None]
            scores.append(s.masked_fill_(hidden_RT, -torch.inf))
        if own_k is not None:
            scores.append(torch.einsum("gprd,rkgd->gprk", q_GpRD, own_k[part]))
        weights = torch.softmax(torch.cat(scores, dim=-1) if len(scores) > 1 else scores[0], dim=-1, dtype=torch.float32).to(q_RND.dtype)
        out = torch.zeros((groups, per, rows, v_GTE.shape[-1]), dtype=q_RND.dtype, device=q_RND.device)
        if see_prefix:
            on_prefix = weights[..., :length].reshape(groups, per * rows, length)
            out = torch.matmul(on_prefix, v_GTE).view(groups, per, rows, -1)
        if own_k is not None and own_v is not None:
            out = out + torch.einsum("gprk,rkge->gpre", weights[..., length if see_prefix else 0 :], own_v[part])
        return out.permute(2, 0, 1, 3).reshape(rows, num_heads * v_GTE.shape[-1])

    def finish(self, layer: int, attended_RX: torch.Tensor, residual_RH: torch.Tensor) -> torch.Tensor:
        """The layer's output from its attention: o_proj, residual, MLP."""
        y_RH = self.linear(f"layers.{layer}.self_attn.o_proj", attended_RX)
        if self.wiring.attention == "none":
            y_RH = torch.zeros_like(y_RH)
        y_RH += residual_RH
        name = f"layers.{layer}.post_attention_layernorm.weight"
        x_RH = rms_norm(y_RH, self.weights.get(name) if self.wiring.post_attention_norm == "own" else None, self.eps)
        gate = self.act(self.linear(f"layers.{layer}.mlp.gate_proj", x_RH))
        gate *= self.linear(f"layers.{layer}.mlp.up_proj", x_RH)
        out_RH = self.linear(f"layers.{layer}.mlp.down_proj", gate)
        if self.wiring.mlp_residual or layer < self.num_layers - 1:
            out_RH += y_RH
        return out_RH

    # ---- draft steps ---------------------------------------------------------------------------------------------

    def begin(
        self, tokens_N: torch.Tensor, aux: list[torch.Tensor], rows_R: torch.Tensor | None, decode_from: int | None = None
    ) -> tuple[Prefix, Drafts | None]:
        """Draft step 0: keys of every row of a sequence, and the states of the rows asked for.

        tokens_N int64 [n]; aux: list of [n, H_target] states in stored order; rows_R ascending int64 rows t (t <= n-2).
        ``rows_R`` None computes the keys only; that is possible for one-layer drafters, where no row needs another's output.
        ``decode_from``: the first row behind the prompt (None: there is none). The returned ``Drafts.state_RH`` is the step's output,
        before the output norm.
        """
        device = self.weights.device
        total = tokens_N.shape[0] - 1 if rows_R is None or self.num_layers == 0 else int(rows_R.max()) + 1
        shift = self.wiring.feature_shift
        if shift:
            at = (torch.arange(tokens_N.shape[0]) - shift).clamp(0, int(tokens_N.shape[0]) - 1)
            aux = [s[at.to(s.device)] for s in aux]
        states = aux
        pieces = [(a, min(a + _ROWS, total)) for a in range(0, total, _ROWS)]
        input_TH = _join([self.project([s[a:b] for s in states]) for a, b in pieces])
        tokens_T = torch.roll(tokens_N, -self.wiring.token_shift)[:total]
        embedded_TH = self.embed(tokens_T)
        positions_T = torch.arange(total, device=device) + self.wiring.position_offset
        if decode_from is not None:
            positions_T[decode_from:] += self.wiring.decode_offset
        cos_TP, sin_TP = self.rotary.angles(positions_T, int(tokens_N.shape[0]) - 1 + self.wiring.position_offset)
        layers: list[Keys] = []
        state_TH, all_T = input_TH, torch.arange(total, device=device)
        state_RH: torch.Tensor | None = None
        for layer in range(self.num_layers):
            last = layer == self.num_layers - 1
            inputs = [self.attention_input(layer, state_TH[a:b], embedded_TH[a:b] if layer == 0 else None) for a, b in pieces]
            parts = [self.keys(layer, x, cos_TP[a:b], sin_TP[a:b]) for (a, b), (x, _) in zip(pieces, inputs, strict=True)]
            keys = Keys(_join([p.k for p in parts]), _join([p.v for p in parts]))
            layers.append(keys)
            if last and rows_R is None:
                break
            wanted_R = rows_R if last and rows_R is not None else all_T
            outs = []
            for (a, b), (x, residual) in zip(pieces, inputs, strict=True):
                at = wanted_R[(wanted_R >= a) & (wanted_R < b)]
                if at.numel() == 0:
                    continue
                whole = at.numel() == b - a
                x_RX, residual_RH = (x, residual) if whole else (x[at - a], residual[at - a])
                q_RND = self.queries(layer, x_RX, cos_TP[at], sin_TP[at])
                outs.append(self.finish(layer, self.attend(q_RND, at, keys, []), residual_RH))
            state_TH = state_RH = _join(outs)
        prefix = Prefix(layers, input_TH, int(tokens_N.shape[0]) - 1)
        if rows_R is None or state_RH is None:
            return prefix, None
        return prefix, Drafts(rows_R, 0, state_RH, [[] for _ in range(self.num_layers)])

    def next(self, prefix: Prefix, drafts: Drafts, tokens_R: torch.Tensor) -> Drafts:
        """One more draft step of the rows in ``drafts``, which were just given ``tokens_R`` (target ids)."""
        step = drafts.step + 1
        state_RH = self.feed_back(drafts.state_RH, prefix.input_TH[drafts.rows_R])
        embedded_RH = self.embed(tokens_R)
        positions_R = drafts.rows_R + self.wiring.position_offset + self.wiring.decode_offset + step * self.wiring.position_step
        cos_RP, sin_RP = self.rotary.angles(positions_R, prefix.length + self.wiring.position_offset + step)
        own: list[list[Keys]] = []
        for layer in range(self.num_layers):
            x_RX, residual_RH = self.attention_input(layer, state_RH, embedded_RH if layer == 0 else None)
            mine = [*drafts.own[layer], self.keys(layer, x_RX, cos_RP, sin_RP)]
            q_RND = self.queries(layer, x_RX, cos_RP, sin_RP)
            state_RH = self.finish(layer, self.attend(q_RND, drafts.rows_R, prefix.layers[layer], mine), residual_RH)
            own.append(mine)
        return Drafts(drafts.rows_R, step, state_RH, own)

    def rewired(self, **changes: object) -> Drafter:
        """The same weights with fields of the wiring replaced."""
        return Drafter(self.weights, replace(self.wiring, **changes))  # type: ignore[arg-type]
