"""The real speculators on small random pairs: draft tokens, logits and metric sums of its own forward pass."""

from __future__ import annotations

import importlib.util
import inspect
import json
import tempfile
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F

from tests.eagle3_diag.reference import Shape
from tests.peers.cases import STEPS, Case, Sizes, random_samples, random_target, random_vocabulary, random_weights, target_config

ROPE: dict[str, dict[str, Any]] = {
    "default": {"rope_type": "default", "rope_theta": 10000.0},
    "llama3": {
        "rope_type": "llama3",
        "rope_theta": 50000.0,
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64,
    },
    "yarn": {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 32, "beta_fast": 4.0, "beta_slow": 1.0},
    "linear": {"rope_type": "linear", "rope_theta": 10000.0, "factor": 2.5},
    "dynamic": {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 2.0},
}


def make(
    name: str,
    *,
    seed: int,
    layers: int = 1,
    model: str = "llama",
    norm_before_residual: bool = False,
    norm_before_fc: bool = False,
    fc_norm: bool = False,
    norm_output: bool = False,
    draft_vocab: bool = True,
    rope: str = "default",
    bias: bool = False,
    packed: bool = False,
    heads: tuple[int, int, int] = (4, 2, 8),
    lengths: tuple[int, ...] = (40, 33, 24),
) -> Case:
    """A random pair in speculators' own checkpoint layout, and what speculators says about it."""
    sizes = Sizes(draft_vocab=48 if draft_vocab else 96, attention_bias=bias, mlp_bias=bias and model == "llama")
    parameters = ROPE[rope]
    # dynamic RoPE stretches with the longest position in the batch, which depends on the padding: out of reach of a per-sample reading
    maximum = 4096
    shape = Shape(
        num_layers=layers,
        num_heads=heads[0],
        num_kv_heads=heads[1],
        head_dim=heads[2],
        eps=1e-5,
        rope_type=rope,
        rope_theta=parameters["rope_theta"],
        rope={k: v for k, v in parameters.items() if k not in ("rope_type", "rope_theta")},
        max_positions=maximum,
        norm_before_residual=norm_before_residual,
        norm_before_fc=norm_before_fc,
        fc_norm=fc_norm,
        post_norm_feedback=norm_output,
        qk_norm=model == "qwen3",
        first_position=1,
    )
    generator = torch.Generator().manual_seed(seed)
    weights = random_weights(shape, sizes, generator)
    ids = random_vocabulary(sizes, generator)
    target = random_target(sizes, generator, weights["embed_tokens.weight"])
    samples = random_samples(shape, weights, ids, target, sizes, list(lengths), seed)
    module = _module(shape, sizes, model, parameters, maximum, weights, ids)
    with tempfile.TemporaryDirectory() as folder:
        module.save_pretrained(folder)
        config = json.loads((Path(folder) / "config.json").read_text())
        from safetensors.torch import load_file

        drafter = load_file(Path(folder) / "model.safetensors")
    case = Case(name, "speculators", shape, config, drafter, target_config(sizes), target, samples, about={"packed": packed, "model": model})
    return observe(case)


def observe(case: Case) -> Case:
    """Fill in what the real package says, from the case's own tensors."""
    module = load(case)
    case.about["made_by"] = f"speculators {version('speculators')} Eagle3DraftModel.forward, float32"
    case.about["feed"] = "true" if teacher_forces() else "own"
    case.expected = []
    if case.about["packed"]:
        tokens, logits, metrics = _forward(module, case, list(range(len(case.samples))))
        start = 0
        for i, sample in enumerate(case.samples):
            rows = sample.length - 1
            case.expected.append({"tokens": tokens[start : start + rows].clone()} | ({"logits": logits[start : start + rows].clone()} if i == len(case.samples) - 1 else {}))
            start += rows
        case.about["packed_metrics"] = metrics
    else:
        for i in range(len(case.samples)):
            tokens, logits, metrics = _forward(module, case, [i])
            sums = {key: torch.tensor([int(metrics[f"{key.rsplit('.', 1)[0]}_{k}_{key.rsplit('.', 1)[1]}"]) for k in range(STEPS)]) for key in METRICS}
            case.expected.append({"tokens": tokens} | sums | ({"logits": logits} if i == len(case.samples) - 1 else {}))
    return case


def teacher_forces() -> bool:
    """Whether the installed version feeds true tokens whenever it runs (0.7 and later)."""
    return tuple(map(int, version("speculators").split(".")[:2])) >= (0, 7)


METRICS = ("full_acc.sum", "full_acc.total", "cond_acc.sum", "cond_acc.total")


def _module(shape: Shape, sizes: Sizes, model: str, rope: dict[str, Any], maximum: int, weights: dict[str, torch.Tensor], ids: torch.Tensor) -> Any:
    from speculators.config import SpeculatorsConfig, VerifierConfig
    from speculators.models.eagle3 import Eagle3DraftModel, Eagle3SpeculatorConfig
    from speculators.proposals.greedy import GreedyTokenProposalConfig
    from transformers import LlamaConfig, Qwen3Config

    common: dict[str, Any] = {
        "vocab_size": sizes.vocab,
        "hidden_size": sizes.hidden,
        "intermediate_size": sizes.intermediate,
        "num_hidden_layers": shape.num_layers,
        "num_attention_heads": shape.num_heads,
        "num_key_value_heads": shape.num_kv_heads,
        "head_dim": shape.head_dim,
        "rms_norm_eps": shape.eps,
        "max_position_embeddings": maximum,
        "rope_parameters": rope,
        "attention_bias": sizes.attention_bias,
        "tie_word_embeddings": False,
    }
    layer = LlamaConfig(**common, mlp_bias=sizes.mlp_bias) if model == "llama" else Qwen3Config(**common)
    config = Eagle3SpeculatorConfig(
        transformer_layer_config=layer,
        draft_vocab_size=sizes.draft_vocab,
        norm_before_residual=shape.norm_before_residual,
        norm_before_fc=shape.norm_before_fc,
        **{name: True for name, on in (("fc_norm", shape.fc_norm), ("norm_output", shape.post_norm_feedback)) if on},  # since 0.7
        eagle_aux_hidden_state_layer_ids=[2, 4, 5],
        speculators_config=SpeculatorsConfig(
            algorithm="eagle3",
            proposal_methods=[GreedyTokenProposalConfig(speculative_tokens=STEPS)],
            default_proposal_method="greedy",
            verifier=VerifierConfig(name_or_path=None, architectures=["LlamaForCausalLM"]),
        ),
    )
    module = Eagle3DraftModel(config).float()
    state = dict(weights)
    if sizes.draft_vocab != sizes.vocab:
        t2d = torch.zeros(sizes.vocab, dtype=torch.bool)
        t2d[ids] = True
        state |= {"d2t": ids - torch.arange(sizes.draft_vocab), "t2d": t2d}
    missing, unexpected = module.load_state_dict(state, strict=False)
    assert not unexpected, unexpected
    assert all(name.startswith("verifier_") for name in missing), missing
    return module.eval()


def load(case: Case) -> Any:
    """The package's own model, loaded by its own ``from_pretrained``, which takes norm and head from the target beside it."""
    from speculators.models.eagle3 import Eagle3DraftModel

    with tempfile.TemporaryDirectory() as folder:
        drafter, target, _ = case.write(Path(folder))
        config = json.loads((drafter / "config.json").read_text())
        config["speculators_config"]["verifier"]["name_or_path"] = str(target)
        (drafter / "config.json").write_text(json.dumps(config))
        return Eagle3DraftModel.from_pretrained(str(drafter)).float().eval()


def _forward(module: Any, case: Case, which: list[int]) -> tuple[torch.Tensor, torch.Tensor, dict[str, float]]:
    """Draft tokens (target ids) [R, K], logits [R, K, D] and metrics of one batch: samples shifted, packed, padded to whole blocks."""
    from speculators.models.eagle3 import Eagle3DraftModel
    from speculators.models.eagle3.data import shift_batch

    shifted = []
    for i in which:
        s = case.samples[i]
        batch = {
            "input_ids": s.tokens,
            "hidden_states": torch.cat(list(s.aux.float()), dim=-1),
            "verifier_last_hidden_states": s.final.float(),
            "loss_mask": s.mask,
            "lengths": torch.tensor([s.length]),
            "position_ids": torch.arange(s.length),
        }
        shifted.append(shift_batch(batch))
    joined = {key: torch.cat([b[key] for b in shifted]) for key in shifted[0]}
    lengths = joined.pop("lengths")
    rows = int(lengths.sum())
    padded = {k: F.pad(v, (0, 0, 0, -rows % 128) if v.dim() == 2 else (0, -rows % 128))[None] for k, v in joined.items()}
    forward = getattr(Eagle3DraftModel.forward, "__wrapped__", Eagle3DraftModel.forward)
    seen: list[torch.Tensor] = []
    hook = module.lm_head.register_forward_hook(lambda _m, _i, output: seen.append(output.detach()[0, :rows]))
    if "document_ids" in inspect.signature(forward).parameters:  # since 0.7; -1 is padding
        documents = torch.repeat_interleave(torch.arange(lengths.shape[0]), lengths)
        padded["document_ids"] = F.pad(documents, (0, -rows % 128), value=-1)[None]
    else:
        padded["lengths"] = lengths
    if importlib.util.find_spec("speculators.losses"):  # its default loss is a Triton kernel
        from speculators.losses import resolve_loss_config

        padded["loss_config"] = resolve_loss_config("kl_div", "eager")
    with torch.no_grad():
        drafted, _, metrics = forward(module, **padded, ttt_steps=STEPS)
    hook.remove()
    tokens = case.ids[torch.stack([t[0, :rows] for t in drafted], dim=1)]
    return tokens, torch.stack(seen, dim=1), {k: float(v) for k, v in metrics.items()}
