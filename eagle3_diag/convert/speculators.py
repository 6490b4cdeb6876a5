"""speculators' ``config.json`` around a ``transformer_layer_config``; ids are inputs, at top level."""

from __future__ import annotations

from eagle3_diag.convert.interface import Config, Source, choice_refusals, layer_keys, position_refusals

name = "speculators"


def refusals(source: Source) -> list[str]:
    w = source.trained.wiring
    both = ["norm_before_fc and fc_norm together"] if w.norm_before_fc and w.fc_norm else []
    allowed = ("residual", "norm_before_fc", "fc_norm", "feedback", "layers", "qk", "bias", "num_aux", "width", "embedding")
    return [*both, *choice_refusals(source, *allowed), *position_refusals(source, 1)]


def config(source: Source) -> Config:
    w, c, rope = source.trained.wiring, source.checkpoint.config, source.rope
    layer = layer_keys(source, "qwen3" if c.qk_norm else "llama")
    if "torch_dtype" in layer:
        layer["dtype"] = layer.pop("torch_dtype")
    layer["rope_parameters"] = {"rope_type": rope.type, "rope_theta": rope.theta, **rope.parameters}
    if rope.partial_rotary_factor != 1.0:
        layer["rope_parameters"]["partial_rotary_factor"] = rope.partial_rotary_factor
    return {
        "architectures": ["Eagle3DraftModel"],
        "speculators_model_type": "eagle3",
        "draft_vocab_size": c.draft_vocab_size,
        "target_hidden_size": None if c.target_hidden_size == c.hidden_size else c.target_hidden_size,
        "eagle_aux_hidden_state_layer_ids": None if source.inputs is None else list(source.inputs),
        "norm_before_residual": w.residual == "after-norm",
        "norm_before_fc": w.norm_before_fc,
        "fc_norm": w.fc_norm,
        "norm_output": w.feedback == "post-norm",
        "embed_requires_grad": source.own_embedding,
        "speculators_config": {
            "algorithm": "eagle3",
            "default_proposal_method": "greedy",
            "proposal_methods": [{"proposal_type": "greedy", "speculative_tokens": 5, "accept_tolerance": 0.0, "verifier_accept_k": 1}],
            "verifier": {"name_or_path": None, "architectures": []},
        },
        "tie_word_embeddings": False,
        "transformer_layer_config": layer,
    }


def rename(tensor: str, source: Source) -> str:
    return tensor
