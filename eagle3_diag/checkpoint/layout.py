"""What all formats share: which tensors an EAGLE-3 drafter has, their names and shapes, and its vocabulary map.

An adapter says how its format writes a choice (:class:`Reading`); :func:`build` then finds the dimensions, checks every
tensor's name and shape against them and gives the checkpoint. Nothing but ``d2t`` and ``t2d`` is read.

Sources of names and shapes: speculators ``models/eagle3/{core,model_definitions}.py``, SpecForge
``modeling/draft/llama3_eagle.py``, Model-Optimizer ``export/plugins/hf_spec_export.py``, vllm
``model_executor/models/{llama_eagle3,qwen3_eagle3,deepseek_eagle3}.py``.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from eagle3_diag.checkpoint.fields import Fields
from eagle3_diag.checkpoint.interface import DrafterCheckpoint, TensorSource
from eagle3_diag.checkpoint.names import StoredTensors
from eagle3_diag.checkpoint.rotary import read_rope
from eagle3_diag.checkpoint.tensors import missing_tensor
from eagle3_diag.checkpoint.vocabulary import check_vocabulary_map, take_vocabulary
from eagle3_diag.config import DrafterConfig, MlaConfig, RopeConfig
from eagle3_diag.errors import InputError
from eagle3_diag.wiring import Wiring

MLA_ARCHITECTURES = ("Eagle3DeepseekV2ForCausalLM", "Eagle3DeepseekV3ForCausalLM")
QWEN3_ARCHITECTURES = ("Eagle3Qwen3ForCausalLM", "Qwen3ForCausalLMEagle3")
# The last three are vLLM's other names for its Llama drafter (``models/registry.py``).
LLAMA_ARCHITECTURES = (
    "LlamaForCausalLMEagle3",
    "Eagle3LlamaForCausalLM",
    "LlamaForCausalLM",
    "Eagle3MiniMaxM2ForCausalLM",
    "Eagle3Qwen2_5vlForCausalLM",
    "Eagle3Qwen3vlForCausalLM",
)
SPECULATORS_ARCHITECTURES = ("Eagle3DraftModel", "Eagle3Speculator", "Eagle3SpeculatorModel")
ARCHITECTURES = LLAMA_ARCHITECTURES + QWEN3_ARCHITECTURES + MLA_ARCHITECTURES + SPECULATORS_ARCHITECTURES


@dataclass(frozen=True, kw_only=True)
class Reading:
    """What an adapter read in its format's own way.

    ``config`` is the flat Llama-like table that holds the layer's numbers. ``outer`` holds ``draft_vocab_size`` and
    ``target_hidden_size``. ``layer_ids`` are as written; ``id_offset`` is added to make them layer-input indices.
    ``rope`` None = what ``config`` says; ``trained_rope`` None = the same was used in training.
    """

    format: str
    config: Fields
    outer: Fields
    architecture: str
    layer_ids: tuple[int, ...] | None
    id_offset: int = 0
    num_aux: int | None = None
    norm_before_residual: bool = False
    norm_before_fc: bool = False
    fc_norm: bool = False
    output_norm: bool = True
    post_norm_feedback: bool = False
    position_offset: int = 0
    trained_rope: RopeConfig | None = None
    family: str | None = None
    notes: tuple[str, ...] = field(default=())


def family_of(architecture: str) -> str | None:
    """``llama``, ``qwen3`` or ``mla``; None when the architecture does not say."""
    if architecture in MLA_ARCHITECTURES:
        return "mla"
    return "qwen3" if architecture in QWEN3_ARCHITECTURES else None


def build(path: Path, reading: Reading, source: TensorSource, config_bytes: bytes) -> DrafterCheckpoint:
    """The checkpoint in the project's own terms, every tensor's presence and shape checked.

    Raises:
        InputError: a number of config.json is absent or contradicts the tensors, a tensor is missing, unexpected or of the
            wrong shape, or the vocabulary map is wrong.
    """
    config, outer = reading.config, reading.outer
    notes = list(reading.notes)
    tensors = StoredTensors(path, source)
    _require_eagle3(path, reading, tensors)

    hidden = config.integer("hidden_size")
    heads = config.integer("num_attention_heads")
    layers = config.integer("num_hidden_layers", 1)
    attention_bias = config.boolean("attention_bias", False)
    family = reading.family or family_of(reading.architecture)
    if tensors.has("layers.0.self_attn.kv_a_proj_with_mqa.weight"):
        family = "mla"
    elif family is None:
        family = "qwen3" if tensors.has("layers.0.self_attn.q_norm.weight") else "llama"
    qk_norm = family == "qwen3"
    num_aux, target_hidden = _aux(path, reading, tensors, hidden, notes)
    eps = config.number("rms_norm_eps", None, positive=True)
    if eps is None:
        eps = 1e-6
        notes.append("config.json has no rms_norm_eps; 1e-6 (the default of Transformers' Llama and Qwen3) is taken.")

    tensors.take("fc.weight", (hidden, num_aux * target_hidden), f"[hidden_size, {num_aux} aux states * {target_hidden}]")
    if reading.norm_before_fc:
        tensors.take("input_norm.weight", (num_aux * target_hidden,), "norm_before_fc, over all aux states")
    if reading.fc_norm:
        for a in range(num_aux):
            tensors.take(f"fc_norm.{a}.weight", (target_hidden,), "fc_norm, one per aux state")
    if reading.output_norm or tensors.has("norm.weight"):
        tensors.take("norm.weight", (hidden,), "[hidden_size]")
    mlp_bias = config.boolean("mlp_bias", False)
    intermediate = config.integer("intermediate_size")
    mla: MlaConfig | None = None
    kv_heads = heads
    if family == "mla":
        mla = _read_mla(config)
        head_dim = mla.qk_nope_head_dim + mla.qk_rope_head_dim
        rope = read_rope(config, mla.qk_rope_head_dim)
    else:
        kv_heads = config.integer("num_key_value_heads", heads)
        if heads % kv_heads:
            raise config.error("num_key_value_heads", f"a divisor of num_attention_heads ({heads})")
        head_dim = _head_dim(tensors, config, hidden, heads)
        rope = read_rope(config, head_dim)
    for i in range(layers):
        width = 2 * hidden if i == 0 else hidden
        layer = f"layers.{i}."
        if mla is not None:
            _take_mla(tensors, layer, mla, heads, width, hidden)
        else:
            _take_attention(tensors, layer, heads, kv_heads, head_dim, width, hidden, bias=attention_bias, qk_norm=qk_norm)
        for name in ("gate", "up"):
            tensors.take(f"{layer}mlp.{name}_proj.weight", (intermediate, hidden), "[intermediate_size, hidden_size]")
        tensors.take(f"{layer}mlp.down_proj.weight", (hidden, intermediate), "[hidden_size, intermediate_size]")
        if mlp_bias:
            for name, rows in (("gate", intermediate), ("up", intermediate), ("down", hidden)):
                tensors.take(f"{layer}mlp.{name}_proj.bias", (rows,), "mlp_bias")
        for name in ("input_layernorm", "post_attention_layernorm", *(("hidden_norm",) if i == 0 else ())):
            tensors.take(f"{layer}{name}.weight", (hidden,), "[hidden_size]")

    vocab, draft_vocab, head = take_vocabulary(path, config, outer, tensors, hidden, target_hidden, notes)
    unexpected = tensors.unexpected()
    if unexpected:
        shown = ", ".join(unexpected[:4]) + (f" and {len(unexpected) - 4} more" if len(unexpected) > 4 else "")
        raise InputError(
            f"{path} holds {shown}, expected no such tensor in a drafter of {layers} {family} layer{'s' * (layers > 1)} by its config.json "
            f"({reading.format} format); correct config.json ({_hint(unexpected[0])}) or remove the tensor."
        )
    _note_the_rest(config, tensors, notes)
    check_vocabulary_map(path, tensors, vocab, draft_vocab, notes)
    if reading.layer_ids is None:
        notes.append(
            "config.json does not say which target layers the aux states come from; engines then take their own defaults, usually the inputs of "
            "layers 2, n//2 and n-3."
        )

    drafter = DrafterConfig(
        format=reading.format,
        architecture=reading.architecture,
        hidden_size=hidden,
        target_hidden_size=target_hidden,
        num_aux=num_aux,
        num_layers=layers,
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_dim=head_dim,
        intermediate_size=intermediate,
        vocab_size=vocab,
        draft_vocab_size=draft_vocab,
        rms_norm_eps=eps,
        rope=rope,
        attention_bias=attention_bias,
        mlp_bias=mlp_bias,
        qk_norm=qk_norm,
        hidden_act=config.text("hidden_act", "silu"),
        logit_scale=config.number("logit_scale", 1.0),
        mla=mla,
        aux_layer_ids=reading.layer_ids,
    )
    written = (reading.layer_ids or ())[:num_aux]
    ids = tuple(sorted(written))
    if ids != written:
        notes.append(
            f"layer ids {list(written)} are not in depth order; every trainer and engine captures in depth order, so fc's blocks "
            f"are taken in the order {list(ids)}."
        )
    wiring = Wiring(
        aux_layer_inputs=tuple(i + reading.id_offset for i in ids) if ids else None,
        norm_before_fc=reading.norm_before_fc,
        fc_norm=reading.fc_norm,
        output_norm="own" if reading.output_norm else "none",
        residual="after-norm" if reading.norm_before_residual else "before-norm",
        feedback="post-norm" if reading.post_norm_feedback else "pre-norm",
        rope=reading.trained_rope,
        position_offset=reading.position_offset,
        embedding="drafter" if "embed_tokens.weight" in tensors.taken else "target",
        head="drafter" if head else "target",
    )
    return DrafterCheckpoint(
        path=path,
        config=drafter,
        wiring=wiring,
        source=source,
        tensors=dict(tensors.taken),
        config_sha256=hashlib.sha256(config_bytes).hexdigest(),
        notes=tuple(notes),
    )


def _require_eagle3(path: Path, reading: Reading, tensors: StoredTensors) -> None:
    if tensors.has("fc.weight") and tensors.has("layers.0.hidden_norm.weight"):
        return
    deepest = max((int(m[1]) for m in (re.match(r"layers\.(\d{1,6})\.", k) for k in tensors.stored) if m), default=0)
    if deepest >= 3 and not tensors.has("fc.weight"):
        raise InputError(
            f"{path} holds a whole model of {deepest + 1} layers without fc.weight, expected an EAGLE-3 drafter; give the drafter's directory (is "
            "this the target's?)."
        )
    absent = [n for n in ("fc.weight", "layers.0.hidden_norm.weight") if not tensors.has(n)]
    query = tensors.shape("layers.0.self_attn.q_proj.weight")
    if tensors.has("fc.weight") and query is not None and query[-1:] == (reading.config.integer("hidden_size"),):
        raise InputError(
            f"{path} has no {absent[0]} and its attention takes one hidden_size, as EAGLE-1 and EAGLE-2 drafters do, expected EAGLE-3; give an "
            "EAGLE-3 drafter."
        )
    raise missing_tensor(path, (absent[0],), tensors.stored.values())


def _aux(path: Path, reading: Reading, tensors: StoredTensors, hidden: int, notes: list[str]) -> tuple[int, int]:
    """Number of aux states and their width, from fc's width and what the configuration says."""
    columns = tensors.matrix("fc.weight")[1]
    ids = reading.layer_ids
    count = reading.num_aux or (len(ids) if ids else None)
    width = reading.outer.integer("target_hidden_size", None) or reading.config.integer("target_hidden_size", None)
    if width is None:
        width = hidden
        if columns % hidden or (count and columns // hidden not in (count, count - 1)):
            if count is None or columns % count:
                raise InputError(
                    f"{path}: {tensors.stored['fc.weight']} takes {columns} numbers, expected a multiple of hidden_size ({hidden}); add "
                    "target_hidden_size to config.json if the target is of another width."
                )
            width = columns // count
            notes.append(f"config.json has no target_hidden_size; {width} follows from fc's width and {count} aux states.")
    if columns % width:
        raise InputError(
            f"{path}: {tensors.stored['fc.weight']} takes {columns} numbers, expected a multiple of target_hidden_size ({width}); correct "
            "config.json."
        )
    num_aux = columns // width
    if count is not None and count != num_aux:
        if reading.num_aux is None and ids is not None and len(ids) == num_aux + 1:
            notes.append(
                f"config.json lists {len(ids)} layer ids for the {num_aux} aux states that fc takes; the last ({ids[-1]}) is taken as the final "
                "state's, which data generation writes beside them."
            )
        else:
            said = "num_aux_hidden_states" if reading.num_aux else "list of layer ids"
            raise InputError(
                f"{path}: {tensors.stored['fc.weight']} takes {columns} numbers = {num_aux} aux states of {width}, expected {count} by "
                f"config.json's {said}; correct config.json."
            )
    return num_aux, width


def _head_dim(tensors: StoredTensors, config: Fields, hidden: int, heads: int) -> int:
    rows = tensors.matrix("layers.0.self_attn.q_proj.weight")[0]
    head_dim = config.integer("head_dim", None)
    if head_dim is None:
        head_dim = rows // heads if rows % heads == 0 else hidden // heads
    if head_dim % 2 or head_dim == 0:
        raise InputError(f"{config.path}: the head dimension is {head_dim}, expected an even number for RoPE; correct head_dim.")
    return head_dim


def _take_attention(
    tensors: StoredTensors,
    layer: str,
    heads: int,
    kv_heads: int,
    head_dim: int,
    width: int,
    hidden: int,
    *,
    bias: bool,
    qk_norm: bool,
) -> None:
    what = "2*hidden_size" if width != hidden else "hidden_size"
    for name, count in (("q", heads), ("k", kv_heads), ("v", kv_heads)):
        proj = f"{layer}self_attn.{name}_proj"
        tensors.take(f"{proj}.weight", (count * head_dim, width), f"[{count} heads * head_dim {head_dim}, {what}]")
        if bias:
            tensors.take(f"{proj}.bias", (count * head_dim,), "attention_bias")
    tensors.take(f"{layer}self_attn.o_proj.weight", (hidden, heads * head_dim), "[hidden_size, heads * head_dim]")
    # Llama has a bias on o_proj under attention_bias, Qwen2-like configurations and vLLM's drafters do not.
    if bias and tensors.has(f"{layer}self_attn.o_proj.bias"):
        tensors.take(f"{layer}self_attn.o_proj.bias", (hidden,), "attention_bias")
    if qk_norm:
        for name in ("q_norm", "k_norm"):
            tensors.take(f"{layer}self_attn.{name}.weight", (head_dim,), "[head_dim]")


def _read_mla(config: Fields) -> MlaConfig:
    return MlaConfig(
        q_lora_rank=config.integer("q_lora_rank", None),
        kv_lora_rank=config.integer("kv_lora_rank"),
        qk_nope_head_dim=config.integer("qk_nope_head_dim"),
        qk_rope_head_dim=config.integer("qk_rope_head_dim"),
        v_head_dim=config.integer("v_head_dim"),
        rope_interleave=config.boolean("rope_interleave", True),
    )


def _take_mla(tensors: StoredTensors, layer: str, mla: MlaConfig, heads: int, width: int, hidden: int) -> None:
    query = heads * (mla.qk_nope_head_dim + mla.qk_rope_head_dim)
    attention = f"{layer}self_attn."
    if mla.q_lora_rank is None:
        tensors.take(f"{attention}q_proj.weight", (query, width), "[heads * (nope + rope), width]")
    else:
        rank = mla.q_lora_rank
        tensors.take(f"{attention}q_a_proj.weight", (rank, width), "[q_lora_rank, width]")
        tensors.take(f"{attention}q_a_layernorm.weight", (rank,), "[q_lora_rank]")
        tensors.take(f"{attention}q_b_proj.weight", (query, rank), "[heads * (nope + rope), q_lora_rank]")
    rank = mla.kv_lora_rank
    tensors.take(f"{attention}kv_a_proj_with_mqa.weight", (rank + mla.qk_rope_head_dim, width), "[kv_lora_rank + rope, width]")
    tensors.take(f"{attention}kv_a_layernorm.weight", (rank,), "[kv_lora_rank]")
    rows = heads * (mla.qk_nope_head_dim + mla.v_head_dim)
    tensors.take(f"{attention}kv_b_proj.weight", (rows, rank), "[heads * (nope + v), kv_lora_rank]")
    tensors.take(f"{attention}o_proj.weight", (hidden, heads * mla.v_head_dim), "[hidden_size, heads * v_head_dim]")


def _note_the_rest(config: Fields, tensors: StoredTensors, notes: list[str]) -> None:
    if any(k.startswith("parallel_draft_heads.") for k in tensors.stored):
        notes.append("parallel_draft_heads are left out; the chain drafts of the EAGLE-3 layer are evaluated.")
    if tensors.has("mask_hidden"):
        notes.append("mask_hidden (parallel drafting) is left out; the drafter is evaluated step by step.")
    if (tensors.path / "adapter_model.safetensors").exists():
        notes.append("adapter_model.safetensors: the target was trained along (LoRA); its states must come from the adapted target.")
    if config.boolean("mla_use_nope", False):
        notes.append("config.json sets mla_use_nope; rotary positions are applied all the same, as vLLM and TorchSpec do.")
    window = config.integer("sliding_window", None, minimum=1)
    layer_types = config.texts("layer_types")[: config.integer("num_hidden_layers", 1)]
    if window is not None and "sliding_attention" in layer_types:
        notes.append(f"the drafter attends within a sliding window of {window} tokens; longer samples see more here.")


def _hint(name: str) -> str:
    hints: Mapping[str, str] = {
        "input_norm": "norm_before_fc",
        "fc_norm": "fc_norm",
        "aux_norm": "use_aux_norm",
        "q_norm": "model_type qwen3",
        "k_norm": "model_type qwen3",
        "_proj.bias": "attention_bias or mlp_bias",
        "layers.": "num_hidden_layers",
    }
    return next((key for part, key in hints.items() if part in name), "num_hidden_layers, norms, biases")
