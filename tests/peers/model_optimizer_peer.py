"""NVIDIA Model-Optimizer's own module (``HFEagleModel``) on small random pairs: its offline training forward and its exporter."""

from __future__ import annotations

import contextlib
import io
import json
import tempfile
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from tests.eagle3_diag.reference import Shape
from tests.peers.cases import STEPS, Case, Sizes, normed_final, random_samples, random_target, random_vocabulary, random_weights, target_config

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
}


def _convert(sizes: Sizes, layers: int, rope: dict[str, Any]) -> Any:
    import modelopt.torch.speculative as mtsp
    from transformers import LlamaConfig, LlamaForCausalLM

    config = target_config(sizes)
    del config["architectures"], config["model_type"]
    base = LlamaForCausalLM(LlamaConfig(**config, head_dim=8, max_position_embeddings=1024))
    architecture = {
        "hidden_act": "silu",
        "num_hidden_layers": layers,
        "intermediate_size": sizes.intermediate,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "rms_norm_eps": 1e-5,
        "draft_vocab_size": sizes.draft_vocab,
        "use_aux_hidden_state": True,
        "use_last_layernorm": True,
        "eagle_aux_hidden_state_layer_ids": [1, 3, 4],
        "rope_scaling": dict(rope),
        "has_lm_head": True,
        "torch_dtype": "float32",
    }
    options = {"eagle_decoder_type": "llama", "eagle_offline": True, "eagle_ttt_steps": STEPS, "eagle_use_torch_compile": False}
    if rope["rope_type"] != "default":
        options["eagle_export_rope_scaling"] = {}  # its exporter puts YaRN over plain RoPE, and refuses to over any other
    with contextlib.redirect_stdout(io.StringIO()):
        mtsp.convert(base, [("eagle", {**options, "eagle_architecture_config": architecture})])
    return base


def make(
    name: str, *, seed: int, layers: int = 1, rope: str = "default", draft_vocab: bool = True, lengths: tuple[int, ...] = (40, 33, 24)
) -> Case:
    """A random pair exported by Model-Optimizer, and what its training forward says about it."""
    sizes = Sizes(draft_vocab=48 if draft_vocab else 96)
    shape = Shape(
        num_layers=layers,
        num_heads=4,
        num_kv_heads=2,
        head_dim=8,
        eps=1e-5,
        rope_type=rope,
        rope_theta=ROPE[rope]["rope_theta"],
        rope={k: v for k, v in ROPE[rope].items() if k not in ("rope_type", "rope_theta")},
        double_norm=True,
    )
    generator = torch.Generator().manual_seed(seed)
    weights = random_weights(shape, sizes, generator)
    ids = random_vocabulary(sizes, generator)
    target = random_target(sizes, generator, weights["embed_tokens.weight"])
    samples = random_samples(shape, weights, ids, target, sizes, list(lengths), seed)
    model = _convert(sizes, layers, ROPE[rope])
    state = {k: v for k, v in weights.items() if k != "embed_tokens.weight"}
    if draft_vocab:
        state["d2t"] = ids - torch.arange(sizes.draft_vocab)
    model.eagle_module.load_state_dict(state, strict=True)
    with tempfile.TemporaryDirectory() as folder:
        model.get_exporter().export(folder)
        config = json.loads((Path(folder) / "config.json").read_text())
        from safetensors.torch import load_file

        drafter = load_file(Path(folder) / "model.safetensors")
    about = {"layers": layers, "rope": rope}
    return observe(Case(name, "model-optimizer", shape, config, drafter, target_config(sizes), target, samples, about=about))


def observe(case: Case) -> Case:
    """Fill in its training accuracy per step (float32, as ``train_acc``) and its predictions, row t at step k ([R, K] target ids)."""
    about = case.about
    about["made_by"] = f"nvidia-modelopt {version('nvidia-modelopt')} HFEagleModel.forward (offline), float32"
    draft_vocab = case.drafter["lm_head.weight"].shape[0]
    sizes = Sizes(draft_vocab=draft_vocab)
    model = _convert(sizes, about["layers"], ROPE[about["rope"]])
    model.eagle_module.load_state_dict(case.drafter, strict=True)
    case.expected = []
    model.train()
    with torch.no_grad():
        model.lm_head.weight.copy_(case.target["lm_head.weight"])
        model.model.embed_tokens.weight.copy_(case.target["model.embed_tokens.weight"])
        for sample in case.samples:
            model._cached_attn_blk_masks.clear()  # made for one length
            logits: list[torch.Tensor] = []
            attention_inputs: list[torch.Tensor] = []
            hooks = [
                model.eagle_module.lm_head.register_forward_hook(lambda _m, _i, out, seen=logits: seen.append(out.detach()[0])),
                model.eagle_module.layers[0].self_attn.q_proj.register_forward_hook(lambda _m, i, _o, seen=attention_inputs: seen.append(i[0].detach()[0])),
            ]
            out = model(
                input_ids=sample.tokens[None],
                attention_mask=torch.ones(1, sample.length, dtype=torch.int64),
                loss_mask=sample.mask.to(torch.int64)[None],
                base_model_outputs={
                    "base_model_hidden_states": normed_final(case, sample)[None],
                    "aux_hidden_states": torch.cat(list(sample.aux.float()), dim=-1)[None],
                },
            )
            for hook in hooks:
                hook.remove()
            # its row r at step k is the draft made from row r - k: bring every draft back to the row that began it
            rows = sample.length - 1
            table = torch.full((rows, STEPS), -1)
            for k, x in enumerate(logits):
                table[: rows - k, k] = case.ids[x.argmax(-1)[k : sample.length - 1]]
            case.expected.append(
                {"accuracy": torch.tensor(out.train_acc[0]), "tokens_true": table, "attention_input": attention_inputs[0][:, sizes.hidden :][:4].clone()}
            )
    return case
