"""The target's part that judges a draft: embedding, final norm and LM head, read lazily from the right shards.

Names and norms: Transformers 5.24 ``modeling_{llama,qwen2,qwen3,deepseek_v3,mistral,gemma,gemma2,gemma3,gemma4,gpt_oss,...}.py`` and
the Kimi K2 and K2.5 checkpoints. Nothing else of a target is opened.
"""

from __future__ import annotations

import hashlib
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch

from eagle3_diag.checkpoint.fields import Fields, read_config
from eagle3_diag.checkpoint.interface import TensorSource
from eagle3_diag.checkpoint.tensors import open_tensors, tensors_sha256
from eagle3_diag.config import TargetConfig
from eagle3_diag.errors import InputError

# Where the language model sits: plain, or inside a multimodal model (layouts of several years).
PREFIXES = (
    "model.",
    "language_model.model.",
    "model.language_model.",
    "model.language_model.model.",
    "language_model.",
    "thinker.model.",
    "",
)
# The embedding's own name: nearly everybody's, InternLM2's, Ling's.
EMBEDDINGS = ("embed_tokens", "tok_embeddings", "word_embeddings")
HEADS = ("lm_head", "language_model.lm_head", "model.language_model.lm_head", "model.lm_head", "thinker.lm_head", "output")
# Keys of a multimodal configuration that hold the language model's own, looked up one after the other.
NESTED_CONFIGS = ("thinker_config", "text_config", "llm_config", "language_config")

# Final norms that multiply by (1 + weight).
OFFSET_NORMS = frozenset(
    {"gemma", "gemma2", "gemma3", "gemma3_text", "recurrent_gemma", "vaultgemma", "qwen3_next"}
    | {"qwen3_5", "qwen3_5_text", "qwen3_5_moe", "qwen3_5_moe_text", "qwen4_exp"}
)
# Embeddings multiplied by sqrt(hidden_size).
SCALED_EMBEDDINGS = ("gemma", "recurrent_gemma", "vaultgemma")
TIED_BY_DEFAULT = ("gemma", "recurrent_gemma", "vaultgemma")
# Soft caps that hold when config.json is silent (class defaults).
SOFTCAPS: Mapping[str, float] = {"gemma2": 30.0, "gemma3n": 30.0, "gemma3n_text": 30.0}
# Final norms that are no RMSNorm: their mean is taken off, or they have no weight.
NOT_RMS = frozenset(
    {
        "bloom",
        "cohere",
        "cohere2",
        "cohere2_moe",
        "falcon",
        "gpt2",
        "gpt_bigcode",
        "gpt_neo",
        "gpt_neox",
        "mpt",
        "nemotron",
    }
    | {"olmo", "opt", "phi", "stablelm", "starcoder2"}
)
PLAIN_RMS = frozenset(
    {
        "llama",
        "llama4",
        "llama4_text",
        "mistral",
        "mistral3",
        "ministral",
        "mixtral",
        "qwen2",
        "qwen2_moe",
        "qwen3",
        "qwen3_moe",
    }
    | {"qwen2_vl", "qwen2_5_vl", "qwen3_vl", "qwen3_vl_moe", "qwen2_vl_text", "qwen2_5_vl_text", "qwen3_vl_text"}
    | {"deepseek_v2", "deepseek_v3", "deepseek_v32", "kimi_k2", "kimi_k25", "kimi_vl", "kimi_linear", "gpt_oss", "phi3"}
    | {
        "gemma3n",
        "gemma3n_text",
        "gemma4",
        "gemma4_text",
        "gemma4_unified",
        "gemma4_unified_text",
        "glm",
        "glm4",
        "glm4_moe",
    }
    | {
        "glm4_moe_lite",
        "ernie4_5",
        "ernie4_5_moe",
        "granite",
        "granitemoe",
        "minimax",
        "minimax_m2",
        "olmo2",
        "olmo3",
        "exaone4",
    }
    | {"seed_oss", "smollm3", "hunyuan_v1_dense", "hunyuan_v1_moe", "internlm2", "internlm3", "minicpm", "bailing_moe"}
)
_PLAIN_DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)


@dataclass(frozen=True, kw_only=True)
class Target:
    """A target's configuration and the three tensors that judge a draft, each read when asked for.

    Attributes:
        path: the target's directory.
        config: shapes and scales.
        source: its tensors.
        tensors: ``embedding``, ``norm`` and ``head`` to the names in the source; ``head`` is the embedding's when tied.
        config_sha256: of config.json's bytes.
        notes: sentences for the user: what was assumed.
    """

    path: Path
    config: TargetConfig
    source: TensorSource
    tensors: Mapping[str, str]
    config_sha256: str
    notes: tuple[str, ...] = ()

    def embedding(self) -> torch.Tensor:
        """[V, H] in the stored dtype, memory-mapped: indexing rows touches only those rows. Not scaled."""
        return self.source.get(self.tensors["embedding"])

    def head(self) -> torch.Tensor:
        """[V, H] in the stored dtype, memory-mapped; the embedding when tied."""
        return self.source.get(self.tensors["head"])

    def norm_weight(self) -> torch.Tensor:
        """[H] in the stored dtype, as stored (see ``config.norm_offset``)."""
        return self.source.get(self.tensors["norm"])

    def weights_sha256(self) -> str:
        """SHA-256 over name, dtype, shape and bytes of embedding, head and norm; reads them all."""
        parts = {"embedding": self.embedding, "head": self.head, "norm": self.norm_weight}
        return tensors_sha256(parts.items())


@dataclass(frozen=True, kw_only=True)
class TargetOutline:
    """What a target's config.json alone tells: no weights need be there.

    ``architecture`` is empty where it names none; ``model_type`` is the language model's.
    """

    path: Path
    architecture: str
    model_type: str
    hidden_size: int
    vocab_size: int
    num_layers: int


def read_outline(path: str | os.PathLike[str]) -> TargetOutline:
    """The outline of the target in directory ``path``, from its config.json.

    Raises:
        InputError: config.json is missing, damaged, lacks a number, or is a drafter's.
    """
    return _read_outline(Path(path))[0]


def _read_outline(directory: Path) -> tuple[TargetOutline, Fields, Fields, bytes]:
    """The outline, the whole configuration, the language model's part of it, and the file's bytes."""
    top, content = read_config(directory, "target")
    if top.has("speculators_model_type") or top.has("draft_vocab_size"):
        raise InputError(f"{top.path} describes a drafter, expected a target; give the target's directory (are the two swapped?).")
    config = top
    for key in NESTED_CONFIGS:
        config = config.table(key) if config.has(key) else config
    outline = TargetOutline(
        path=directory,
        architecture=next(iter(top.texts("architectures") or config.texts("architectures")), ""),
        model_type=config.text("model_type", "") or top.text("model_type", ""),
        hidden_size=config.integer("hidden_size"),
        vocab_size=config.integer("vocab_size"),
        num_layers=config.integer("num_hidden_layers"),
    )
    return outline, top, config, content


def read_target(path: str | os.PathLike[str]) -> Target:
    """The target in directory ``path``; no weight is read.

    Raises:
        InputError: config.json, the embedding, the final norm or the LM head is missing, damaged, of the wrong shape,
            quantised, or of a kind that this tool does not know.
    """
    directory = Path(path)
    outline, top, config, content = _read_outline(directory)
    architecture, model_type = outline.architecture, outline.model_type
    if model_type in NOT_RMS:
        raise InputError(
            f"{config.path}: model_type is {model_type!r}, whose final norm is no RMSNorm, expected a target with one (Llama, Qwen, DeepSeek, "
            "Kimi, Mistral, Gemma, gpt-oss, ...); this tool cannot judge drafts for it."
        )
    notes = []
    if model_type not in PLAIN_RMS and model_type not in OFFSET_NORMS:
        notes.append(f"model_type {model_type or '(none)'} is not known here: a plain RMSNorm before the LM head is assumed.")
    hidden, vocab = outline.hidden_size, outline.vocab_size
    source = open_tensors(directory)
    names = frozenset(source.names())

    embedding, prefix = _embedding(directory, names)
    tied = top.boolean("tie_word_embeddings", None)
    if tied is None:
        tied = config.boolean("tie_word_embeddings", None)
    if tied is None:
        tied = model_type.startswith(TIED_BY_DEFAULT)
    norm = _find(directory, names, (f"{prefix}norm.weight",), "final norm")
    head = embedding if tied else _find(directory, names, tuple(f"{name}.weight" for name in HEADS), "LM head")
    if f"{prefix}norm.bias" in names:
        raise InputError(
            f"{directory} holds {prefix}norm.bias, so the final norm is no RMSNorm, expected one without bias; this tool cannot judge drafts for "
            "this target."
        )
    for name, shape, meaning in (
        (embedding, (vocab, hidden), "[vocab_size, hidden_size]"),
        (norm, (hidden,), "[hidden_size]"),
        (head, (vocab, hidden), "[vocab_size, hidden_size]"),
    ):
        _check(directory, source, name, shape, meaning)

    eps = config.number("rms_norm_eps", None, positive=True)
    if eps is None:
        eps = config.number("norm_eps", None, positive=True) or config.number("layer_norm_epsilon", None, positive=True)
    if eps is None:
        eps = 1e-6
        notes.append("config.json has no rms_norm_eps; 1e-6 (the default of most Transformers models) is taken.")
    embedding_scale = config.number("embedding_multiplier", 1.0) * config.number("scale_emb", 1.0)
    if model_type.startswith(SCALED_EMBEDDINGS):
        embedding_scale = math.sqrt(hidden)
    softcap = config.number("final_logit_softcapping", None)
    if softcap is None and "final_logit_softcapping" not in config.data:
        softcap = SOFTCAPS.get(model_type)
    return Target(
        path=directory,
        config=TargetConfig(
            architecture=architecture or model_type,
            hidden_size=hidden,
            vocab_size=vocab,
            num_layers=outline.num_layers,
            rms_norm_eps=eps,
            tied_head=tied,
            norm_offset=1.0 if model_type in OFFSET_NORMS else 0.0,
            embedding_scale=embedding_scale,
            logit_scale=_logit_scale(config, hidden),
            logit_softcap=softcap,
        ),
        source=source,
        tensors={"embedding": embedding, "norm": norm, "head": head},
        config_sha256=hashlib.sha256(content).hexdigest(),
        notes=tuple(notes),
    )


def _logit_scale(config: Fields, hidden: int) -> float:
    """What logits are multiplied by: ``logit_scale``, or Granite's divisor, or MiniCPM's ``dim_model_base / "
    "hidden_size``."""
    scale = config.number("logit_scale", 1.0)
    divisor = config.number("logits_scaling", 1.0, positive=True)
    base = config.number("dim_model_base", None, positive=True)
    return scale / divisor * (base / hidden if base is not None else 1.0)


def _embedding(directory: Path, names: frozenset[str]) -> tuple[str, str]:
    """The embedding's name and the prefix it stands under."""
    candidates = {f"{prefix}{name}.weight": prefix for name in EMBEDDINGS for prefix in PREFIXES}
    found = _find(directory, names, tuple(candidates), "embedding")
    return found, candidates[found]


def _find(directory: Path, names: frozenset[str], candidates: tuple[str, ...], what: str) -> str:
    found = next((name for name in candidates if name in names), None)
    if found is not None:
        return found
    # A quantised module keeps its name and has other endings (qweight, weight_packed, scales, ...).
    modules = tuple(c.removesuffix("weight") for c in candidates)
    relatives = sorted(n for n in names if n.startswith(modules))
    if relatives:
        raise InputError(
            f"{directory}: the {what} is quantised (it holds {', '.join(relatives[:3])}), expected {relatives[0].rsplit('.', 1)[0]}.weight in "
            "float32, bfloat16 or float16; give the unquantised target, or one whose head was left as it is."
        )
    # The tensors nearest to what was looked for say most about the layout: those outside the layers.
    outer = sorted(n for n in names if ".layers." not in n and not n.startswith("layers.")) or sorted(names)
    shown = ", ".join(outer[:6]) + (f" and {len(outer) - 6} more" if len(outer) > 6 else "")
    raise InputError(
        f"{directory} has no {what}: looked for {', '.join(candidates)}; outside its layers it holds {shown}: check that this is the right and "
        "whole target."
    )


def _check(directory: Path, source: TensorSource, name: str, shape: tuple[int, ...], meaning: str) -> None:
    dtype = source.dtype(name)
    if dtype not in _PLAIN_DTYPES:
        raise InputError(
            f"{directory}: {name} is stored as {str(dtype).removeprefix('torch.')}, expected float32, bfloat16 or float16; give the unquantised "
            "target, or one whose head was left as it is."
        )
    found = source.shape(name)
    if found != shape:
        raise InputError(
            f"{directory}: {name} has shape {list(found)}, expected {list(shape)} ({meaning} by config.json); config.json and weights do not "
            "belong together."
        )
