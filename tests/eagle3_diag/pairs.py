"""Tiny drafters and targets with random weights, and samples whose accepted runs are known because they were written that way.

A sample is built as a server would decode it: from each row the drafter itself drafts, chance decides how many of its tokens the
target agrees with, and the target's final hidden states are made so that their argmax says just that. So the counts of the
decoding walk are known before anything is measured.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from eagle3_diag.checkpoint import read_drafter
from eagle3_diag.drafter import Drafter, Weights
from eagle3_diag.rollout import rollout
from eagle3_diag.target import read_target

AUX = (2, 4, 5)


@dataclass
class Pair:
    """Where the pair lies, and what a greedy server's counters would say of its samples.

    ``accepted[k]``/``at_risk[k]`` are those of the walk with ``steps`` drafts, exact as long as no stored token leaves the target's
    path (``deviations`` 0).
    """

    root: Path
    steps: int
    drafts: int = 0
    accepted: list[int] = field(default_factory=list)
    at_risk: list[int] = field(default_factory=list)

    @property
    def drafter(self) -> Path:
        return self.root / "drafter"

    @property
    def target(self) -> Path:
        return self.root / "target"

    @property
    def samples(self) -> Path:
        return self.root / "samples"

    @property
    def sample_files(self) -> list[Path]:
        return sorted(self.samples.iterdir())

    def arguments(self) -> list[str]:
        """The command line's three inputs."""
        return ["--drafter", str(self.drafter), "--target", str(self.target), "--samples", str(self.samples)]


def make_pair(
    root: Path,
    *,
    seed: int = 0,
    samples: int = 4,
    length: int = 40,
    prompt: int = 8,
    steps: int = 6,
    agreement: float = 0.75,
    deviations: float = 0.0,
    hidden: int = 32,
    vocab: int = 64,
    draft_vocab: int | None = 48,
    num_layers: int = 1,
    norm_before_residual: bool = False,
    final_state: bool = True,
    dtype: torch.dtype = torch.float32,
) -> Pair:
    """Write ``drafter/`` (speculators' format), ``target/`` (Llama names) and ``samples/data_{i}.pt`` below ``root``.

    ``agreement``: chance that the target agrees with a draft. ``deviations``: chance that a stored response token is another
    than the target's argmax, as in text sampled at a temperature. ``draft_vocab`` None = the target's vocabulary.
    """
    generator = torch.Generator().manual_seed(seed)
    pair = Pair(root, steps, accepted=[0] * steps, at_risk=[0] * steps)
    _write_target(pair.target, hidden, vocab, dtype, generator)
    _write_drafter(pair.drafter, hidden, vocab, draft_vocab, num_layers, norm_before_residual, dtype, generator)
    pair.samples.mkdir()
    weights = Weights(read_drafter(pair.drafter), read_target(pair.target), torch.device("cpu"), torch.float32)
    with torch.inference_mode():
        for i in range(samples):
            sample = _sample(pair, Drafter(weights), length, prompt, agreement, deviations, generator)
            if not final_state:
                del sample["hidden_states"][-1]
            torch.save(sample, pair.samples / f"data_{i}.pt")
    return pair


def _normal(generator: torch.Generator, *shape: int, scale: float = 1.0) -> torch.Tensor:
    return torch.randn(*shape, generator=generator) * scale


def _gain(generator: torch.Generator, *shape: int) -> torch.Tensor:
    """A norm's weight: positive, around one."""
    return 0.5 + torch.rand(*shape, generator=generator)


def _write_target(path: Path, hidden: int, vocab: int, dtype: torch.dtype, generator: torch.Generator) -> None:
    path.mkdir(parents=True)
    head_VH = _normal(generator, vocab, hidden)
    head_VH = head_VH / head_VH.norm(dim=1, keepdim=True)  # of equal length, a row's best match is itself
    tensors = {
        "model.embed_tokens.weight": _normal(generator, vocab, hidden),
        "model.norm.weight": _gain(generator, hidden),
        "lm_head.weight": head_VH,
    }
    save_file({name: tensor.to(dtype).contiguous() for name, tensor in tensors.items()}, path / "model.safetensors")
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": hidden,
        "vocab_size": vocab,
        "num_hidden_layers": 8,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "head_dim": hidden // 2,
        "intermediate_size": 2 * hidden,
        "rms_norm_eps": 1e-6,
        "tie_word_embeddings": False,
        "torch_dtype": str(dtype).removeprefix("torch."),
    }
    (path / "config.json").write_text(json.dumps(config, indent=1))


def _write_drafter(
    path: Path, hidden: int, vocab: int, draft_vocab: int | None, layers: int, norm_before_residual: bool, dtype: torch.dtype, generator: torch.Generator
) -> None:
    path.mkdir(parents=True)
    half = hidden // 2
    count = draft_vocab or vocab
    tensors: dict[str, torch.Tensor] = {
        "fc.weight": _normal(generator, hidden, 3 * hidden, scale=hidden**-0.5),
        "norm.weight": _gain(generator, hidden),
        "lm_head.weight": _normal(generator, count, hidden),
        "embed_tokens.weight": _normal(generator, vocab, hidden),
        "layers.0.hidden_norm.weight": _gain(generator, hidden),
    }
    for i in range(layers):
        wide = 2 * hidden if i == 0 else hidden
        name = f"layers.{i}"
        for part, shape in {
            "self_attn.q_proj": (hidden, wide),
            "self_attn.k_proj": (half, wide),
            "self_attn.v_proj": (half, wide),
            "self_attn.o_proj": (hidden, hidden),
            "mlp.gate_proj": (2 * hidden, hidden),
            "mlp.up_proj": (2 * hidden, hidden),
            "mlp.down_proj": (hidden, 2 * hidden),
        }.items():
            tensors[f"{name}.{part}.weight"] = _normal(generator, *shape, scale=shape[1] ** -0.5)
        tensors[f"{name}.input_layernorm.weight"] = _gain(generator, hidden)
        tensors[f"{name}.post_attention_layernorm.weight"] = _gain(generator, hidden)
    stored = {name: tensor.to(dtype) for name, tensor in tensors.items()}
    if draft_vocab is not None:
        ids_D = torch.randperm(vocab, generator=generator)[:draft_vocab].sort().values
        stored["d2t"] = ids_D - torch.arange(draft_vocab)
        stored["t2d"] = torch.zeros(vocab, dtype=torch.bool).index_fill(0, ids_D, True)
    save_file(stored, path / "model.safetensors")
    config: dict[str, Any] = {
        "architectures": ["Eagle3DraftModel"],
        "speculators_model_type": "eagle3",
        "speculators_version": "0.6.0",
        "draft_vocab_size": count,
        "eagle_aux_hidden_state_layer_ids": list(AUX),
        "norm_before_residual": norm_before_residual,
        "target_hidden_size": None,
        "tie_word_embeddings": False,
        "transformer_layer_config": {
            "model_type": "llama",
            "hidden_size": hidden,
            "intermediate_size": 2 * hidden,
            "num_attention_heads": 2,
            "num_key_value_heads": 1,
            "head_dim": half,
            "num_hidden_layers": layers,
            "vocab_size": vocab,
            "rms_norm_eps": 1e-6,
            "max_position_embeddings": 256,
            "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
        },
    }
    (path / "config.json").write_text(json.dumps(config, indent=1))


def _sample(
    pair: Pair, drafter: Drafter, length: int, prompt: int, agreement: float, deviations: float, generator: torch.Generator
) -> dict[str, Any]:
    """One sequence in speculators' ``.pt`` layout, written run by run."""
    config, target = drafter.config, drafter.weights.target
    vocab, hidden = config.vocab_size, config.hidden_size

    def chance() -> float:
        return float(torch.rand((), generator=generator))

    def other_than(token: int) -> int:
        return (token + 1 + int(torch.randint(vocab - 1, (), generator=generator))) % vocab

    aux = [_normal(generator, length, hidden) for _ in AUX]
    tokens = torch.randint(vocab, (prompt,), generator=generator).tolist()
    labels = [*tokens[1:], int(torch.randint(vocab, (), generator=generator))]  # labels[q] is the target's choice for position q + 1
    tokens.append(labels[-1])
    while len(tokens) < length:
        p = len(tokens) - 1
        rows_R = torch.tensor([p - 1])
        drafted = rollout(drafter, torch.tensor(tokens), [state[: p + 1] for state in aux], steps=pair.steps, rows_R=rows_R)
        pair.drafts += 1
        for k, draft in enumerate([*drafted.drafts_RK[0].tolist(), -1]):  # the last one is the bonus
            if len(tokens) == length:  # the target's choice behind the last token is known too: not this draft
                if k < pair.steps:
                    labels.append(other_than(draft))
                    pair.at_risk[k] += 1
                break
            agreed = k < pair.steps and chance() < agreement
            label = draft if agreed else other_than(draft)
            stored = other_than(label) if chance() < deviations else label
            labels.append(label)
            tokens.append(stored)
            if k < pair.steps:
                pair.at_risk[k] += 1
                pair.accepted[k] += agreed
            if not agreed or stored != label:
                break
    labels += [0] * (length - len(labels))
    head_VH, gain_H = target.head().float(), target.norm_weight().float()
    final_NH = head_VH[torch.tensor(labels)] / gain_H * 3 + _normal(generator, length, hidden, scale=0.01)
    mask_N = torch.zeros(length, dtype=torch.int64)
    mask_N[prompt:] = 1
    return {"input_ids": torch.tensor(tokens), "loss_mask": mask_N, "hidden_states": [*aux, final_NH]}
