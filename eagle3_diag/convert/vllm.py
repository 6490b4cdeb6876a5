"""vLLM's flat configuration: every switch at top level, ``layers.0`` names, ids are inputs; a vocabulary map only where it changes something."""

from __future__ import annotations

from eagle3_diag.convert.interface import Config, Source, choice_refusals, layer_keys, legacy_rope, position_refusals

name = "vllm"


def refusals(source: Source) -> list[str]:
    allowed = ["residual", "fc_norm", "feedback", "layers", "mla", "qk", "bias", "num_aux", "width", "logit_scale", "head", "embedding"]
    if not source.is_mla:
        allowed.append("norm_before_fc")
    return [*choice_refusals(source, *allowed), *position_refusals(source, 0)]


def config(source: Source) -> Config:
    w, c = source.trained.wiring, source.checkpoint.config
    architecture = "Eagle3DeepseekV2ForCausalLM" if source.is_mla else "Eagle3Qwen3ForCausalLM" if c.qk_norm else "LlamaForCausalLMEagle3"
    model_type = str(source.layer.get("model_type") or "kimi_k2") if source.is_mla else "qwen3" if c.qk_norm else "llama"
    keys: Config = {"architectures": [architecture]} | layer_keys(source, model_type) | legacy_rope(source.rope)
    keys |= {
        "draft_vocab_size": c.draft_vocab_size,
        "norm_before_residual": w.residual == "after-norm",
        "norm_before_fc": w.norm_before_fc,
        "fc_norm": w.fc_norm,
        "norm_output": w.feedback == "post-norm",
        "num_aux_hidden_states": c.num_aux,
    }
    if c.target_hidden_size != c.hidden_size:
        keys["target_hidden_size"] = c.target_hidden_size
    if source.inputs is not None:
        keys["eagle_aux_hidden_state_layer_ids"] = list(source.inputs)
    return keys


def rename(tensor: str, source: Source) -> str:
    return tensor
