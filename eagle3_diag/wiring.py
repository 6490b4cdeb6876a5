"""Every choice that a trainer or a server makes around the same drafter weights, as one dataclass.

A mis-wiring is data: the right :class:`Wiring` with one field (or several) replaced. The forward pass reads these
fields and nothing else, so a fault never needs a second code path.

Sources: speculators ``models/eagle3/{core,model_definitions}.py``, SpecForge ``modeling/draft/llama3_eagle.py``,
sglang ``srt/models/llama_eagle3.py``, vllm ``model_executor/models/llama_eagle3.py``, EAGLE ``eagle/model/cnets.py``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, Literal

from eagle3_diag.config import RopeConfig

NormSource = Literal["own", "none", "other"]


@dataclass(frozen=True, kw_only=True)
class Wiring:
    """How features, tokens, norms, rotary positions and vocabularies are joined. Defaults are the plain EAGLE-3 ones.

    States
        ``aux_layer_inputs``: the captured states as indices of layer *inputs* (0 = embedding, n = output of the last
        layer), in the order of fc's blocks; None when nobody wrote them down. ``aux_order``: which stored aux state feeds
        block i of fc; None = as stored. ``feature_shift``: row t takes the features of position t - shift (those of the nearest
        position where there is none). ``features``: the ``aux`` states, or in place of each the ``final`` one after the target's norm.
        ``features_quantised``: what each state is rounded to, one scale per row; ``features_rotated``: by an orthogonal matrix
        (drawn from ``instance``), as the residual stream of a target that was rotated before it was quantised.
    Tokens
        ``token_shift``: row t embeds token x[t + shift]; 1 is EAGLE's.
    First layer
        ``concat``: what comes first in the attention's input. ``fc``: ``skipped`` hands the (last) state on unprojected.
        ``norm_before_fc`` (``input_norm`` over all states), ``fc_norm`` (one norm per state), then for each norm of the
        drafter whether its ``own`` weight is used, ``none``, or the ``other`` one of the input pair; ``hidden_norm: both`` is
        hidden_norm(input_layernorm(state)), as Model-Optimizer 0.41 and later trains (no server does it).
        ``residual``: taken ``before-norm`` or ``after-norm`` (``norm_before_residual: true``), or left out (``none``);
        ``mlp_residual``: whether the last layer's MLP is added to what went into it. ``attention``: ``none`` loses its output.
        ``attention_bias``: whether stored q/k/v biases are loaded. ``qk_norm``: the same of stored q and k norms.
        ``further_norm``: the norm before the attention of layers 1, 2, ...; SGLang uses a ``hidden_norm`` that checkpoints do not hold, so
        its weight stays at one.
    Later draft steps
        ``feedback``: what is fed back, the state before or after the output norm, ``zero``, or ``stale`` (step 0's input
        again); ``fc_on_feedback``: fc applied to it again (its width is repeated for every block).
        ``prefix_visible``, ``steps_visible``: whether draft step k sees the keys of the prefix and of steps 1..k-1.
        ``accepted_keys``: accepted tokens' keys are computed again from the ``target``'s features, or stay the drafter's ``own``
        of the draft steps (depends on the path taken, so that only a walk shows it).
    Positions
        ``rope`` None = the checkpoint's. ``rope_pairing``: ``half`` pairs i with i + d/2, ``interleaved`` 2i with 2i+1.
        ``position_offset``: position of row 0. ``position_step``: added per draft step.
        ``decode_offset``: added to positions from the first draft step on: of rows behind the prompt, and of all draft steps.
    Vocabulary and weights
        ``vocabulary``: ``offset`` (id = i + d2t[i]), ``absolute`` (d2t[i]), ``missing`` (id = i).
        ``embedding``/``head``: whose weights; a ``foreign`` embedding is drawn from ``instance``. ``embedding_scaled``: whether
        the target's factor on embeddings is applied. ``target_norm``: ``missing`` takes the labels from states before the target's
        final norm, as only a trainer can. ``layers``: how many of the drafter's layers run (None = all).
        ``quantised``: what the drafter's matrices were rounded to. ``eps``: None = the checkpoint's.
        ``instance``: seed of contents that nobody knows.
    """

    aux_layer_inputs: tuple[int, ...] | None = None
    aux_order: tuple[int, ...] | None = None
    feature_shift: int = 0
    features: Literal["aux", "final"] = "aux"
    features_quantised: Literal["fp8", "int8"] | None = None
    features_rotated: bool = False
    token_shift: int = 1
    concat: Literal["embedding-first", "hidden-first"] = "embedding-first"
    fc: Literal["applied", "skipped"] = "applied"
    norm_before_fc: bool = False
    fc_norm: bool = False
    embedding_norm: NormSource = "own"
    hidden_norm: NormSource | Literal["both"] = "own"
    post_attention_norm: Literal["own", "none"] = "own"
    output_norm: Literal["own", "none"] = "own"
    residual: Literal["before-norm", "after-norm", "none"] = "before-norm"
    mlp_residual: bool = True
    attention: Literal["own", "none"] = "own"
    attention_bias: bool = True
    qk_norm: bool = True
    further_norm: Literal["input_layernorm", "hidden_norm"] = "input_layernorm"
    feedback: Literal["pre-norm", "post-norm", "zero", "stale"] = "pre-norm"
    fc_on_feedback: bool = False
    prefix_visible: bool = True
    steps_visible: bool = True
    accepted_keys: Literal["target", "own"] = "target"
    rope: RopeConfig | None = None
    rope_pairing: Literal["half", "interleaved"] | None = None
    position_offset: int = 0
    position_step: int = 1
    decode_offset: int = 0
    vocabulary: Literal["offset", "absolute", "missing"] = "offset"
    embedding: Literal["drafter", "target", "foreign"] = "target"
    embedding_scaled: bool = True
    head: Literal["drafter", "target"] = "drafter"
    target_norm: Literal["applied", "missing"] = "applied"
    layers: int | None = None
    quantised: Literal["fp8", "int8", "int4"] | None = None
    eps: float | None = None
    instance: int = 0

    def differences(self, other: Wiring) -> dict[str, tuple[Any, Any]]:
        """Fields in which two wirings differ, as ``{field: (mine, theirs)}``."""
        pairs = ((f.name, getattr(self, f.name), getattr(other, f.name)) for f in fields(self))
        return {name: (mine, theirs) for name, mine, theirs in pairs if mine != theirs}

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON data; tuples become lists."""
        return {f.name: self.to_plain(getattr(self, f.name)) for f in fields(self)}

    @staticmethod
    def to_plain(value: Any) -> Any:
        """One field's value as plain JSON data."""
        if isinstance(value, RopeConfig):
            return asdict(value)
        return list(value) if isinstance(value, tuple) else value

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Wiring:
        """Inverse of :meth:`to_dict`."""
        known = {f.name for f in fields(cls)}
        unknown = sorted(set(data) - known)
        if unknown:
            raise ValueError(f"unknown wiring fields: {', '.join(unknown)}")
        values: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in data.items()}
        if isinstance(values.get("rope"), Mapping):
            values["rope"] = RopeConfig(**values["rope"])
        return cls(**values)
