"""SpecForge's own module (``OnlineEagle3Model`` around ``LlamaForCausalLMEagle3``) on small random pairs.

Runs from an installed wheel (``pip install --no-deps specforge``) or from a checkout on ``PYTHONPATH``. Its loss is a Triton kernel, which
no CPU runs: the loss, and only the loss, is replaced by zero.
"""

from __future__ import annotations

import importlib.util
import os
import sys
import types
from typing import Any

import torch

from tests.eagle3_diag.reference import Shape
from tests.peers.cases import STEPS, Case, Sizes, normed_final, random_samples, random_target, random_vocabulary, random_weights, target_config

ROPE: dict[str, dict[str, Any] | None] = {
    "default": None,
    "llama3": {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 64},
    "yarn": {
        "rope_type": "yarn",
        "factor": 4.0,
        "original_max_position_embeddings": 32,
        "beta_fast": 4.0,
        "beta_slow": 1.0,
        "mscale": 1.0,
        "mscale_all_dim": 0.0,
    },
}


def _packages() -> tuple[Any, Any]:
    """(draft model class, training model class), imported without Triton and without compiling."""
    os.environ["TORCHDYNAMO_DISABLE"] = "1"
    if importlib.util.find_spec("triton") is None and "triton" not in sys.modules:
        triton, language = types.ModuleType("triton"), types.ModuleType("triton.language")
        triton.jit = lambda function: function  # type: ignore[attr-defined]
        language.constexpr = int  # type: ignore[attr-defined]
        triton.language = language  # type: ignore[attr-defined]
        triton.__spec__ = importlib.util.spec_from_loader("triton", None)
        sys.modules |= {"triton": triton, "triton.language": language}
    from specforge.algorithms.eagle3 import model as training
    from specforge.modeling.draft.llama3_eagle import LlamaForCausalLMEagle3

    training.LogSoftmaxLoss = types.SimpleNamespace(apply=lambda logits, target, mask: logits.new_zeros(()))
    return LlamaForCausalLMEagle3, training.OnlineEagle3Model


def make(name: str, *, seed: int, rope: str = "default", draft_vocab: bool = True, fc_norm: bool = False, lengths: tuple[int, ...] = (40, 33, 24)) -> Case:
    """A random pair in SpecForge's checkpoint layout, and what SpecForge says about it."""
    sizes = Sizes(draft_vocab=48 if draft_vocab else 96)
    scaling = ROPE[rope]
    theta = 10000.0 if scaling is None else 50000.0
    shape = Shape(
        num_layers=1,
        num_heads=4,
        num_kv_heads=2,
        head_dim=8,
        eps=1e-5,
        rope_type=rope,
        rope_theta=theta,
        rope={k: v for k, v in (scaling or {}).items() if k != "rope_type"},
        fc_norm=fc_norm,
    )
    generator = torch.Generator().manual_seed(seed)
    weights = random_weights(shape, sizes, generator)
    ids = random_vocabulary(sizes, generator)
    target = random_target(sizes, generator, weights["embed_tokens.weight"])
    samples = random_samples(shape, weights, ids, target, sizes, list(lengths), seed)
    config: dict[str, Any] = {
        "architectures": ["LlamaForCausalLMEagle3"],
        "model_type": "llama",
        "vocab_size": sizes.vocab,
        "draft_vocab_size": sizes.draft_vocab,
        "hidden_size": sizes.hidden,
        "intermediate_size": sizes.intermediate,
        "num_hidden_layers": 1,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "rms_norm_eps": 1e-5,
        "max_position_embeddings": 128,
        "rope_theta": theta,
        "rope_scaling": scaling,
        "hidden_act": "silu",
        "pretraining_tp": 1,
        "attention_bias": False,
        "tie_word_embeddings": False,
        "pad_token_id": 0,
        "fc_norm": fc_norm,
        "eagle_config": {"eagle_aux_hidden_state_layer_ids": [1, 3, 4], "use_aux_hidden_state": True},
    }
    t2d = torch.zeros(sizes.vocab, dtype=torch.bool)
    t2d[ids] = True
    drafter = {k.replace("layers.0.", "midlayer."): v for k, v in weights.items() if k != "embed_tokens.weight"}
    drafter |= {"d2t": ids - torch.arange(sizes.draft_vocab), "t2d": t2d}
    return observe(Case(name, "specforge", shape, config, drafter, target_config(sizes), target, samples))


def observe(case: Case) -> Case:
    """Fill in correct and total per step as SpecForge counts them, and its predictions (target ids, [R, K])."""
    from importlib.metadata import PackageNotFoundError, version

    from transformers import LlamaConfig

    draft_class, training_class = _packages()
    try:
        release = version("specforge")
    except PackageNotFoundError:
        release = "0.2.0 (checkout)"
    case.about["made_by"] = f"specforge {release} OnlineEagle3Model.forward, sdpa, float32"
    config = {k: v for k, v in case.drafter_config.items() if k not in ("rope_theta", "rope_scaling")}
    rope = {"rope_type": "default"} | (case.drafter_config["rope_scaling"] or {}) | {"rope_theta": case.drafter_config["rope_theta"]}
    draft = draft_class(LlamaConfig(**config, rope_parameters=rope), attention_backend="sdpa").float().eval()
    missing, unexpected = draft.load_state_dict(case.drafter, strict=False)
    assert not unexpected, unexpected
    assert missing == ["embed_tokens.weight"], missing
    case.expected = []
    with torch.no_grad():
        draft.embed_tokens.weight.copy_(case.target["model.embed_tokens.weight"])
        model = training_class(draft, length=STEPS, attention_backend="sdpa").eval()
        for sample in case.samples:
            # as its offline reader and TargetHead.preprocess hand a sample over
            from specforge.algorithms.eagle3.data import normalize_offline_sample
            from specforge.utils import padding

            raw = {
                "aux_hidden_state": torch.cat(list(sample.aux.float()), dim=-1)[None],
                "hidden_state": normed_final(case, sample)[None],
                "input_ids": sample.tokens,
                "loss_mask": sample.mask.to(torch.int64),
            }
            batch = normalize_offline_sample(raw, max_len=sample.length)
            logits: list[torch.Tensor] = []
            hook = draft.lm_head.register_forward_hook(lambda _m, _i, out, seen=logits: seen.append(out.detach()[0, :-1]))
            _, _, _, correct, total, _, _ = model(
                input_ids=padding(batch["input_ids"], left=False),
                attention_mask=batch["attention_mask"],
                target=padding(batch["target"] @ case.target["lm_head.weight"].T, left=False),
                loss_mask=batch["loss_mask"][..., None],
                hidden_states=batch["hidden_state"],
            )
            hook.remove()
            fed_true = case.ids[torch.stack([x.argmax(-1) for x in logits], dim=1)]
            case.expected.append({"correct": torch.tensor([int(c) for c in correct]), "total": torch.tensor([int(t) for t in total]), "tokens_true": fed_true})
    return case
