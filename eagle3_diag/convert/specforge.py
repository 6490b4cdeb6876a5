"""SpecForge's format, which SGLang serves: EAGLE's names, ``eagle_config`` with ids of outputs, the vocabulary map always written.

``norm_before_fc`` is SGLang's own key (0.5.17 and later). ``norm_output`` together with ``num_aux_hidden_states`` says that the state
after the norm is fed back; alone it would be read as SpecForge up to 0.2.0 means it.
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

name = "specforge"


def refusals(source: Source) -> list[str]:
    allowed = ["fc_norm", "feedback", "mla", "bias", "num_aux", "width", "head"]
    if not source.is_mla:
        allowed.append("norm_before_fc")
    return [*input_refusals(source), *choice_refusals(source, *allowed), *position_refusals(source, 0)]


def config(source: Source) -> Config:
    w, c = source.trained.wiring, source.checkpoint.config
    nested: Config = {"use_aux_hidden_state": True}
    if source.inputs is not None:
        nested["eagle_aux_hidden_state_layer_ids"] = outputs(source.inputs)
    model_type = str(source.layer.get("model_type") or "kimi_k2") if source.is_mla else "llama"
    architecture = "Eagle3DeepseekV2ForCausalLM" if source.is_mla else "LlamaForCausalLMEagle3"
    keys: Config = {"architectures": [architecture]} | layer_keys(source, model_type) | legacy_rope(source.rope)
    keys |= {"draft_vocab_size": c.draft_vocab_size, "eagle_config": nested}
    if w.norm_before_fc:
        keys["norm_before_fc"] = True
    if w.fc_norm:
        keys["fc_norm"] = True
    if w.feedback == "post-norm":
        keys["norm_output"] = True
    if w.feedback == "post-norm" or c.num_aux != 3:
        keys["num_aux_hidden_states"] = c.num_aux
    if c.target_hidden_size != c.hidden_size:
        keys["target_hidden_size"] = c.target_hidden_size
    return keys


def rename(tensor: str, source: Source) -> str:
    return "midlayer." + tensor.removeprefix("layers.0.") if tensor.startswith("layers.0.") else tensor
