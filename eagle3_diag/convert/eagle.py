"""EAGLE's own format: it has keys for nothing but the layer's numbers, and always takes the inputs of layers 2, n//2 and n-3."""

from __future__ import annotations

from eagle3_diag.checkpoint.rotary import DEFAULT_THETA
from eagle3_diag.convert.interface import Config, Source, choice_refusals, layer_keys, legacy_rope, position_refusals

name = "eagle"


def refusals(source: Source) -> list[str]:
    n, inputs = source.num_layers, source.inputs
    out = choice_refusals(source)
    if inputs is not None and n is None:
        out.append("layer ids (it always takes the inputs of layers 2, n//2 and n-3: say --target so that these can be compared)")
    elif inputs is not None and n is not None and inputs != (2, n // 2, n - 3):
        out.append(f"layer ids (it always takes the inputs of layers 2, {n // 2} and {n - 3}, this drafter those of {', '.join(map(str, inputs))})")
    if source.rope.type in ("linear", "dynamic") and source.rope.theta != DEFAULT_THETA:
        out.append(f"{source.rope.type} RoPE scaling of base {source.rope.theta:g} (it takes base {DEFAULT_THETA:g} with it)")
    return [*out, *position_refusals(source, 0)]


def config(source: Source) -> Config:
    keys: Config = {"architectures": ["LlamaForCausalLMEagle3"]} | layer_keys(source, "llama") | legacy_rope(source.rope)
    return keys | {"draft_vocab_size": source.checkpoint.config.draft_vocab_size}


def rename(tensor: str, source: Source) -> str:
    return "midlayer." + tensor.removeprefix("layers.0.") if tensor.startswith("layers.0.") else tensor
