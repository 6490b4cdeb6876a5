"""Transformers' own models of every family: our reading of norm, scales and head gives their logits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from eagle3_diag.target import read_target

pytestmark = pytest.mark.peers

SMALL: dict[str, Any] = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
MOE = {"num_experts": 2, "num_experts_per_tok": 1, "moe_intermediate_size": 8}
MLA = {"q_lora_rank": 8, "kv_lora_rank": 8, "qk_nope_head_dim": 4, "qk_rope_head_dim": 4, "v_head_dim": 4, "num_key_value_heads": 4}
DEEPSEEK = MLA | {"head_dim": 4, "n_routed_experts": 2, "num_experts_per_tok": 1, "moe_intermediate_size": 8, "first_k_dense_replace": 2}
FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {},
    "mistral": {},
    "qwen2": {},
    "qwen3": {},
    "qwen3_moe": MOE,
    "deepseek_v2": DEEPSEEK | {"topk_group": 1, "n_group": 1},
    "deepseek_v3": DEEPSEEK | {"topk_group": 1, "n_group": 1},
    "gpt_oss": {"num_local_experts": 2, "num_experts_per_tok": 1},
    "gemma": {},
    "gemma2": {},
    "gemma3_text": {},
    "gemma4_text": {"hidden_size_per_layer_input": 0, "num_kv_shared_layers": 0, "final_logit_softcapping": 30.0},
    "qwen3_next": MOE | {"shared_expert_intermediate_size": 8, "linear_num_value_heads": 4, "linear_num_key_heads": 2},
    "qwen3_5_text": {"linear_num_value_heads": 4, "linear_num_key_heads": 2},
    "granite": {"embedding_multiplier": 12.0, "logits_scaling": 8.0},
    "olmo2": {},
    "phi3": {"rope_scaling": None},
    "glm4": {},
    "smollm3": {},
    "seed_oss": {},
}


@pytest.mark.parametrize("family", FAMILIES)
def test_logits_and_embeddings(family: str, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers", reason="Transformers is not installed here (nox -s peers)")
    AutoConfig, AutoModelForCausalLM = transformers.AutoConfig, transformers.AutoModelForCausalLM
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(family, **SMALL | FAMILIES[family])).eval().float()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=0.5)
    model.save_pretrained(tmp_path)
    # Read back, so that tied weights are as stored.
    model = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32).eval()
    target = read_target(tmp_path)
    assert target.notes == ()

    seen: dict[str, torch.Tensor] = {}
    norm = model.model.norm
    hooks = [
        norm.register_forward_pre_hook(lambda _, args: seen.__setitem__("state", args[0].detach())),
        model.model.layers[0].register_forward_pre_hook(
            lambda _, args, kwargs: seen.__setitem__("input", (args[0] if args else kwargs["hidden_states"]).detach()), with_kwargs=True
        ),
    ]
    tokens = torch.tensor([[3, 17, 42, 5]])
    with torch.no_grad():
        logits = model(input_ids=tokens, use_cache=False).logits[0]
    for hook in hooks:
        hook.remove()

    config = target.config
    state = seen["state"][0].double()
    normed = state * torch.rsqrt(state.pow(2).mean(-1, keepdim=True) + config.rms_norm_eps) * (target.norm_weight().double() + config.norm_offset)
    ours = normed @ target.head().double().T * config.logit_scale
    if config.logit_softcap is not None:
        ours = torch.tanh(ours / config.logit_softcap) * config.logit_softcap
    torch.testing.assert_close(ours, logits.double(), rtol=1e-4, atol=1e-4)
    embedded = target.embedding()[tokens[0]].double() * config.embedding_scale
    torch.testing.assert_close(embedded, seen["input"][0].double(), rtol=1e-4, atol=1e-4)
    assert config.num_layers == 2
