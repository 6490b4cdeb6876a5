"""EAGLE's own training module (``eagle/traineagle3/cnets.py``) on small random pairs.

EAGLE is no package: ``EAGLE_SOURCE`` names a checkout of SafeAILab/EAGLE. The target model inside its ``Model`` is replaced by one that
returns the stored states and logits; everything else runs as it is.
"""

from __future__ import annotations

import importlib
import os
import sys
import types
from pathlib import Path
from typing import Any

import torch
from torch import nn

from tests.eagle3_diag.reference import Shape
from tests.peers.cases import STEPS, Case, Sizes, normed_final, random_samples, random_target, random_vocabulary, random_weights, target_config


def source() -> Path | None:
    """``eagle/traineagle3`` of the checkout, or None."""
    folder = Path(os.environ.get("EAGLE_SOURCE", "")) / "eagle" / "traineagle3"
    return folder if (folder / "cnets.py").is_file() else None


def _package() -> Any:
    folder = source()
    assert folder is not None, "EAGLE_SOURCE does not name a checkout"
    # only its constructor, which is not run here, needs the target class; its name must exist for the import
    stub = types.ModuleType("modeling_llama_kv")
    stub.LlamaForCausalLM = object  # type: ignore[attr-defined]
    sys.modules["modeling_llama_kv"] = stub
    sys.path.insert(0, str(folder))
    try:
        return importlib.import_module("cnets")
    finally:
        sys.path.remove(str(folder))


class _StoredTarget(nn.Module):
    """Stands for the target: returns stored aux states and logits."""

    def __init__(self, states: tuple[torch.Tensor, ...], logits: torch.Tensor) -> None:
        super().__init__()
        self.answer = types.SimpleNamespace(hidden_states=states, logits=logits)

    def forward(self, **_: object) -> types.SimpleNamespace:
        return self.answer


def make(name: str, *, seed: int, draft_vocab: bool = True, lengths: tuple[int, ...] = (40, 33, 24)) -> Case:
    """A random pair in EAGLE's checkpoint layout, and what EAGLE's training code says about it."""
    sizes = Sizes(draft_vocab=48 if draft_vocab else 96)
    shape = Shape(num_layers=1, num_heads=4, num_kv_heads=2, head_dim=8, eps=1e-5)
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
        "rms_norm_eps": 1e-5,
        "max_position_embeddings": 128,
        "rope_theta": 50000.0,  # which its training code does not read
        "hidden_act": "silu",
        "tie_word_embeddings": False,
        "pad_token_id": 0,
        "pretraining_tp": 1,
    }
    t2d = torch.zeros(sizes.vocab, dtype=torch.bool)
    t2d[ids] = True
    drafter = {k.replace("layers.0.", "midlayer."): v for k, v in weights.items() if k != "embed_tokens.weight"}
    drafter |= {"d2t": ids - torch.arange(sizes.draft_vocab), "t2d": t2d}
    return observe(Case(name, "eagle", shape, config, drafter, target_config(sizes), target, samples))


def observe(case: Case) -> Case:
    """Fill in EAGLE's accuracy per step (float, as it logs it) and its predictions (target ids, [R, K])."""
    cnets = _package()
    case.about["made_by"] = "SafeAILab/EAGLE cb7e084 traineagle3/cnets.py Model.forward, float32"
    config = types.SimpleNamespace(**case.drafter_config, rope_scaling=None)
    model = cnets.Model.__new__(cnets.Model)
    nn.Module.__init__(model)
    hidden, vocab, draft_vocab = config.hidden_size, config.vocab_size, config.draft_vocab_size
    model.midlayer = cnets.LlamaDecoderLayeremb(config)
    model.norm = cnets.LlamaRMSNorm(hidden, eps=config.rms_norm_eps)
    model.fc, model.lm_head = nn.Linear(3 * hidden, hidden, bias=False), nn.Linear(hidden, draft_vocab, bias=False)
    model.embed_tokens = nn.Embedding(vocab, hidden, 0)
    model.register_buffer("d2t", torch.zeros(draft_vocab, dtype=torch.int64))
    model.register_buffer("t2d", torch.zeros(vocab, dtype=torch.bool))
    model.gradient_checkpointing, model.length = False, STEPS
    missing, unexpected = model.load_state_dict(case.drafter, strict=False)
    assert not unexpected, unexpected
    assert missing == ["embed_tokens.weight"], missing
    model.eval()
    case.expected = []
    with torch.no_grad():
        model.embed_tokens.weight.copy_(case.target["model.embed_tokens.weight"])
        for sample in case.samples:
            model.target_model = _StoredTarget(tuple(a.float()[None] for a in sample.aux), (normed_final(case, sample) @ case.target["lm_head.weight"].T)[None])
            logits: list[torch.Tensor] = []
            hook = model.lm_head.register_forward_hook(lambda _m, _i, out, seen=logits: seen.append(out.detach()[0, :-1]))
            mask = sample.mask.to(torch.int64)[None]
            _, _, accuracies = model(input_ids=sample.tokens[None], attention_mask=torch.ones_like(mask), loss_mask=mask)
            hook.remove()
            fed_true = case.ids[torch.stack([x.argmax(-1) for x in logits], dim=1)]
            case.expected.append({"accuracy": torch.tensor(accuracies, dtype=torch.float64), "tokens_true": fed_true})
    return case
