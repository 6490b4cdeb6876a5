"""Model-Optimizer's export: ``eagle_config`` with the trainer's switches, ids of outputs, no ``t2d``.

Names tell which release trained: ``layers.0`` is 0.41 and later (two norms of the state), ``midlayer`` 0.40 and earlier (one).
"""

from __future__ import annotations

from eagle3_diag.convert.interface import (
    Config,
    Source,
    choice_refusals,
    input_refusals,
    layer_keys,
    legacy_rope,
    outputs,
    position_refusals,
)

name = "model-optimizer"


def _both(source: Source) -> bool:
    return source.trained.wiring.hidden_norm == "both"


def refusals(source: Source) -> list[str]:
    allowed = ["mla", "bias", "num_aux", "head", "output_norm", "hidden_norm"]
    if _both(source):
        allowed.append("layers")
    out = [*input_refusals(source), *choice_refusals(source, *allowed), *position_refusals(source, 0)]
    if source.trained.wiring.output_norm == "none" and source.checkpoint.has("norm.weight"):
        out.append("a final norm that is stored and not applied")
    return out


def config(source: Source) -> Config:
    w, c = source.trained.wiring, source.checkpoint.config
    nested: Config = {
        "use_aux_hidden_state": True,
        "use_input_layernorm_in_first_layer": True,
        "use_last_layernorm": w.output_norm == "own",
        "use_mtp_layernorm": False,
        "parallel_draft_step": 1,
    }
    if _both(source):
        nested["next_layer_regular"] = True
    if source.inputs is not None:
        nested["eagle_aux_hidden_state_layer_ids"] = outputs(source.inputs)
    model_type = str(source.layer.get("model_type") or "kimi_k2") if source.is_mla else "llama"
    architecture = "Eagle3DeepseekV2ForCausalLM" if source.is_mla else "LlamaForCausalLMEagle3"
    # A scaling without its base inside would be read as one that was put there at export.
    keys: Config = {"architectures": [architecture]} | layer_keys(source, model_type) | legacy_rope(source.rope, theta_inside=True)
    return keys | {"draft_vocab_size": c.draft_vocab_size, "eagle_config": nested}


def rename(tensor: str, source: Source) -> str:
    first = tensor.startswith("layers.0.") and not _both(source)
    return "midlayer." + tensor.removeprefix("layers.0.") if first else tensor
