"""Multi-head latent attention from the code it comes from: Transformers' DeepSeek-V3 attention, norm, rotary and MLP modules.

No trainer with an MLA drafter runs here, so the drafter around the layer is put together from Transformers' own modules, as vLLM's
``deepseek_eagle3.py`` and SGLang's ``kimi_k25_eagle3.py`` put theirs together, and drafts one token at a time with a ``DynamicCache``.
"""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import nn

from tests.eagle3_diag.reference import Mla, Shape
from tests.peers.cases import STEPS, Case, Sizes, random_samples, random_target, random_vocabulary, random_weights, target_config

# Transformers' latent norms have epsilon 1e-6 whatever the config says (vLLM's take the config's): the same here.
EPS = 1e-6
ROPE: dict[str, dict[str, Any]] = {
    "default": {"rope_type": "default", "rope_theta": 10000.0},
    "yarn": {
        "rope_type": "yarn",
        "rope_theta": 50000.0,
        "factor": 16.0,
        "original_max_position_embeddings": 32,
        "beta_fast": 4.0,
        "beta_slow": 1.0,
        "mscale": 1.0,
        "mscale_all_dim": 0.8,
    },
}


def make(name: str, *, seed: int, rope: str = "default", q_lora_rank: int | None = 24, lengths: tuple[int, ...] = (40, 24)) -> Case:
    """A random MLA pair, and what Transformers' layer says about it."""
    sizes = Sizes()
    mla = Mla(q_lora_rank=q_lora_rank, kv_lora_rank=16, nope=8, rope=8, value=12)
    parameters = ROPE[rope]
    shape = Shape(
        num_layers=1,
        num_heads=4,
        num_kv_heads=4,
        head_dim=16,
        eps=EPS,
        rope_type=rope,
        rope_theta=parameters["rope_theta"],
        rope={k: v for k, v in parameters.items() if k not in ("rope_type", "rope_theta")},
        mla=mla,
    )
    generator = torch.Generator().manual_seed(seed)
    weights = random_weights(shape, sizes, generator)
    ids = random_vocabulary(sizes, generator)
    target = random_target(sizes, generator, weights["embed_tokens.weight"])
    samples = random_samples(shape, weights, ids, target, sizes, list(lengths), seed)
    scaling = {k: v for k, v in parameters.items() if k not in ("rope_type", "rope_theta")}
    config: dict[str, Any] = {
        "architectures": ["Eagle3DeepseekV2ForCausalLM"],
        "model_type": "kimi_k2",
        "vocab_size": sizes.vocab,
        "draft_vocab_size": sizes.draft_vocab,
        "hidden_size": sizes.hidden,
        "intermediate_size": sizes.intermediate,
        "num_hidden_layers": 1,
        "num_attention_heads": 4,
        "num_key_value_heads": 4,
        "q_lora_rank": q_lora_rank,
        "kv_lora_rank": mla.kv_lora_rank,
        "qk_nope_head_dim": mla.nope,
        "qk_rope_head_dim": mla.rope,
        "v_head_dim": mla.value,
        "rms_norm_eps": EPS,
        "max_position_embeddings": 512,
        "rope_theta": parameters["rope_theta"],
        "rope_scaling": None if rope == "default" else {"type": rope, **scaling},
        "hidden_act": "silu",
        "attention_bias": False,
        "tie_word_embeddings": False,
        "eagle_config": {"eagle_aux_hidden_state_layer_ids": [2, 4, 5], "use_aux_hidden_state": True},
    }
    drafter = {k: v for k, v in weights.items() if k != "embed_tokens.weight"} | {"d2t": ids - torch.arange(sizes.draft_vocab)}
    about = {"rope_parameters": parameters}
    return observe(Case(name, "mla", shape, config, drafter, target_config(sizes), target, samples, about=about))


class _Layer(nn.Module):
    """The drafter of Transformers' modules."""

    def __init__(self, case: Case) -> None:
        super().__init__()
        from transformers.models.deepseek_v3 import modeling_deepseek_v3 as source
        from transformers.models.deepseek_v3.configuration_deepseek_v3 import DeepseekV3Config

        taken = ("vocab_size", "hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads", "q_lora_rank", "kv_lora_rank")
        taken += ("qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim", "rms_norm_eps", "max_position_embeddings", "attention_bias")
        config = DeepseekV3Config(**{k: case.drafter_config[k] for k in taken}, rope_parameters=dict(case.about["rope_parameters"]), num_hidden_layers=1)
        config._attn_implementation = "eager"
        self.self_attn = source.DeepseekV3Attention(config, layer_idx=0)
        for name in ("q_proj", "q_a_proj", "kv_a_proj_with_mqa"):
            if hasattr(self.self_attn, name):
                setattr(self.self_attn, name, nn.Linear(2 * config.hidden_size, getattr(self.self_attn, name).out_features, bias=False))
        self.mlp = source.DeepseekV3MLP(config)
        for name in ("input_layernorm", "hidden_norm", "post_attention_layernorm"):
            setattr(self, name, source.DeepseekV3RMSNorm(config.hidden_size, eps=config.rms_norm_eps))
        self.rotary = source.DeepseekV3RotaryEmbedding(config)

    def forward(self, embedded: torch.Tensor, state: torch.Tensor, positions: torch.Tensor, cache: Any) -> torch.Tensor:
        """[n, H] each; causal over the cache and within the block."""
        x = torch.cat((self.input_layernorm(embedded), self.hidden_norm(state)), dim=-1)[None]
        past, rows = cache.get_seq_length(), x.shape[1]
        mask = torch.full((rows, past + rows), torch.finfo(torch.float32).min).triu(past + 1)[None, None]
        attended, _ = self.self_attn(x, self.rotary(x, positions[None]), mask, past_key_values=cache)
        y = state + attended[0]
        return y + self.mlp(self.post_attention_layernorm(y))


def observe(case: Case) -> Case:
    """Fill in draft tokens (target ids, [R, K]) and logits, drafting from every row with a cache."""
    import transformers
    from transformers import DynamicCache
    from transformers.models.deepseek_v3.modeling_deepseek_v3 import DeepseekV3RMSNorm

    case.about["made_by"] = f"transformers {transformers.__version__} DeepseekV3Attention, float32"
    layer = _Layer(case).float().eval()
    missing, unexpected = layer.load_state_dict({k.removeprefix("layers.0."): v for k, v in case.drafter.items() if k.startswith("layers.0.")}, strict=False)
    assert not missing, missing
    assert not unexpected, unexpected
    norm = DeepseekV3RMSNorm(case.drafter["norm.weight"].shape[0], eps=EPS)
    norm.load_state_dict({"weight": case.drafter["norm.weight"]})
    table, head, ids = case.target["model.embed_tokens.weight"], case.drafter["lm_head.weight"], case.ids
    case.expected = []
    with torch.no_grad():
        for i, sample in enumerate(case.samples):
            rows = sample.length - 1
            whole = DynamicCache()
            features = torch.cat(list(sample.aux.float()), dim=-1)[:-1] @ case.drafter["fc.weight"].T
            first = layer(table[sample.tokens[1:]], features, torch.arange(rows), whole)
            tokens, logits = torch.empty((rows, STEPS), dtype=torch.int64), torch.empty((rows, STEPS, head.shape[0]))
            for t in range(rows):
                cache, state = copy.deepcopy(whole), first[t : t + 1]
                cache.crop(t + 1)
                for k in range(STEPS):
                    if k:
                        state = layer(table[tokens[t, k - 1 : k]], state, torch.tensor([t + k]), cache)
                    logits[t, k] = (norm(state) @ head.T)[0]
                    tokens[t, k] = ids[logits[t, k].argmax()]
            case.expected.append({"tokens": tokens} | ({"logits": logits} if i == len(case.samples) - 1 else {}))
    return case
