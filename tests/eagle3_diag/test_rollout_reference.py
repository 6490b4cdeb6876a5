"""The fast path equals the slow autoregressive reference token for token, over random configurations."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file

from eagle3_diag.checkpoint import read_drafter
from eagle3_diag.drafter import Drafter, Weights
from eagle3_diag.rollout import rollout
from eagle3_diag.target import read_target
from tests.eagle3_diag.reference import Mla, ReferenceDrafter, Shape
from tests.peers.cases import Sizes, random_target, random_vocabulary, random_weights, target_config

HIDDEN = 16
ROPES = st.sampled_from(
    [
        {"rope_type": "default", "rope_theta": 10000.0},
        {"rope_type": "default", "rope_theta": 500000.0},
        {"rope_type": "linear", "rope_theta": 10000.0, "factor": 3.0},
        {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 2.0, "max_position_embeddings": 6},
        {"rope_type": "llama3", "rope_theta": 10000.0, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 32},
        {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 16, "beta_fast": 4.0, "beta_slow": 1.0},
        {"rope_type": "longrope", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 8, "short_factor": 1.2, "long_factor": 3.0},
    ]
)


@st.composite
def configurations(draw: st.DrawFn) -> dict[str, Any]:
    return {
        "layers": draw(st.integers(1, 3)),
        "heads": draw(st.sampled_from([(4, 4, 4), (4, 2, 8), (4, 1, 6), (2, 2, 8)])),
        "model": draw(st.sampled_from(["llama", "qwen3", "mla", "mla-no-q-rank"])),
        "norm_before_residual": draw(st.booleans()),
        "norm_before_fc": draw(st.booleans()),
        "fc_norm": draw(st.booleans()),
        "post_norm": draw(st.booleans()),
        "hidden_first": draw(st.booleans()),
        "bias": draw(st.booleans()),
        "draft_vocab": draw(st.booleans()),
        "num_aux": draw(st.integers(1, 4)),
        "rope": draw(ROPES),
        "length": draw(st.integers(2, 14)),
        "steps": draw(st.integers(1, 5)),
        "position": draw(st.sampled_from([0, 1])),
        "seed": draw(st.integers(0, 2**31)),
    }


def build(c: dict[str, Any], folder: Path) -> tuple[Drafter, ReferenceDrafter, Sizes]:
    """The same random drafter twice: read from a flat checkpoint, and as the reference takes it."""
    mla = None
    heads, groups, width = c["heads"]
    if c["model"].startswith("mla"):
        groups, mla = heads, Mla(q_lora_rank=None if c["model"] == "mla-no-q-rank" else 12, kv_lora_rank=8, nope=4, rope=4, value=6)
    bias = c["bias"] and c["model"] == "llama"
    sizes = Sizes(vocab=40, draft_vocab=24 if c["draft_vocab"] else 40, hidden=HIDDEN, intermediate=24, num_aux=c["num_aux"], attention_bias=bias, mlp_bias=bias)
    rope = {k: v for k, v in c["rope"].items() if k not in ("rope_type", "rope_theta", "max_position_embeddings")}
    rotary = 4 if mla is not None else width
    for name in ("short_factor", "long_factor"):
        if name in rope:
            rope[name] = [rope[name] + 0.1 * i for i in range(rotary // 2)]
    if mla is not None and c["rope"]["rope_type"] == "yarn":
        rope |= {"mscale": 1.0, "mscale_all_dim": 0.7}
    longest = c["rope"].get("max_position_embeddings", 64)
    shape = Shape(
        num_layers=c["layers"],
        num_heads=heads,
        num_kv_heads=groups,
        head_dim=width,
        eps=1e-5,
        rope_type=c["rope"]["rope_type"],
        rope_theta=c["rope"]["rope_theta"],
        rope=rope,
        max_positions=longest,
        norm_before_residual=c["norm_before_residual"],
        norm_before_fc=c["norm_before_fc"] and not c["fc_norm"],
        fc_norm=c["fc_norm"],
        post_norm_feedback=c["post_norm"],
        hidden_first=c["hidden_first"],
        qk_norm=c["model"] == "qwen3",
        first_position=c["position"],
        mla=mla,
    )
    generator = torch.Generator().manual_seed(c["seed"])
    weights = random_weights(shape, sizes, generator)
    ids = random_vocabulary(sizes, generator)
    target = random_target(sizes, generator, weights["embed_tokens.weight"])
    config: dict[str, Any] = {
        "architectures": ["Eagle3DeepseekV2ForCausalLM" if mla is not None else "Eagle3LlamaForCausalLM"],
        "model_type": {"llama": "llama", "qwen3": "qwen3"}.get(c["model"], "deepseek_v3"),
        "vocab_size": sizes.vocab,
        "draft_vocab_size": sizes.draft_vocab,
        "hidden_size": HIDDEN,
        "intermediate_size": sizes.intermediate,
        "num_hidden_layers": c["layers"],
        "num_attention_heads": heads,
        "num_key_value_heads": groups,
        "head_dim": width,
        "rms_norm_eps": 1e-5,
        "max_position_embeddings": longest,
        "rope_parameters": {**c["rope"], **rope},
        "hidden_act": "silu",
        "attention_bias": bias,
        "mlp_bias": bias,
        "norm_before_residual": shape.norm_before_residual,
        "norm_before_fc": shape.norm_before_fc,
        "fc_norm": shape.fc_norm,
        "norm_output": shape.post_norm_feedback,
        "num_aux_hidden_states": c["num_aux"],
        "tie_word_embeddings": False,
    }
    if mla is not None:
        config |= {"q_lora_rank": mla.q_lora_rank, "kv_lora_rank": mla.kv_lora_rank, "qk_nope_head_dim": mla.nope, "qk_rope_head_dim": mla.rope}
        config |= {"v_head_dim": mla.value}
    tensors = dict(weights)
    if c["draft_vocab"]:
        tensors["d2t"] = ids - torch.arange(sizes.draft_vocab)
    for name, settings_, stored in (("drafter", config, tensors), ("target", target_config(sizes), target)):
        (folder / name).mkdir()
        (folder / name / "config.json").write_text(json.dumps(settings_))
        save_file(stored, folder / name / "model.safetensors")
    read = Weights(read_drafter(folder / "drafter"), read_target(folder / "target"), torch.device("cpu"), torch.float32)
    concat = "hidden-first" if c["hidden_first"] else "embedding-first"
    return Drafter(read).rewired(position_offset=c["position"], concat=concat), ReferenceDrafter(shape, weights, ids.tolist()), sizes


@settings(max_examples=30, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
@given(configurations())
def test_fast_path_equals_reference(c: dict[str, Any]) -> None:
    with tempfile.TemporaryDirectory() as folder, torch.inference_mode():
        drafter, reference, sizes = build(c, Path(folder))
        generator = torch.Generator().manual_seed(c["seed"] + 1)
        tokens_N = torch.randint(sizes.vocab, (c["length"],), generator=generator)
        aux = list(torch.randn(c["num_aux"], c["length"], HIDDEN, generator=generator))
        own_RK = rollout(drafter, tokens_N, aux, steps=c["steps"]).drafts_RK
        true_RK = rollout(drafter, tokens_N, aux, steps=c["steps"], feed="true").drafts_RK
        some_R = torch.arange(0, c["length"] - 1, 3)
        assert torch.equal(rollout(drafter, tokens_N, aux, steps=c["steps"], rows_R=some_R).drafts_RK, own_RK[some_R])
        x = tokens_N.tolist()
        for row in range(c["length"] - 1):
            assert agrees(own_RK[row].tolist(), *reference.draft(x, aux, row, c["steps"]), reference.ids), (row, "own")
            feed = (x[row + 2 :] + [0] * c["steps"])[: c["steps"]]
            assert agrees(true_RK[row].tolist(), *reference.draft(x, aux, row, c["steps"], feed), reference.ids), (row, "true")


def agrees(fast: list[int], slow: list[int], logits: list[torch.Tensor], ids: list[int]) -> bool:
    """Equal tokens; where they part, only because float32 cannot tell the two largest logits apart (nothing after it is compared)."""
    for a, b, each in zip(fast, slow, logits, strict=True):
        if a != b:
            return float(each.max() - each[ids.index(a)]) < 1e-5 * float(each.abs().max())
    return True
