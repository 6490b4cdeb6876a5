"""Rotary positions: base, scaling, pairing, counting."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from eagle3_diag.catalogue.context import Context
from eagle3_diag.catalogue.explanation import Explanation
from eagle3_diag.checkpoint.rotary import DEFAULT_THETA

# Bases that widely used targets have: Llama 3, Qwen 2 and 3, Kimi K2.
_BASES = ((500000.0, 1.0), (1000000.0, 1.0), (50000.0, 0.5))


def explanations(context: Context) -> Iterator[Explanation]:
    rope = context.right.rope or context.checkpoint.config.rope
    own = context.right.rope_pairing or ("interleaved" if context.checkpoint.config.mla is not None and context.checkpoint.config.mla.rope_interleave else "half")
    look = "The rope parameters that the server logs for the drafter, against config.json."
    mend = f'Write the base where the server reads it: "rope_theta": {rope.theta:g} (and "rope_parameters": {{"rope_theta": {rope.theta:g}}}).'
    if rope.theta != DEFAULT_THETA:
        yield Explanation(
            id="rope-base-default", title=f"RoPE runs with the default base {DEFAULT_THETA:g}, not {rope.theta:g}", family="positions",
            changes={"rope": replace(rope, theta=DEFAULT_THETA)}, prior=3.0, mend=mend, check=look, incidents=("vllm PR 51092",),
        )  # fmt: skip
    theirs = context.target_rope
    if theirs is not None and (theirs.type, theirs.theta, theirs.parameters) != (rope.type, rope.theta, rope.parameters):
        yield Explanation(
            id="rope-targets", title="The drafter runs with the target's rotary embedding", family="positions", changes={"rope": theirs}, prior=2.0,
            mend=mend, check=look, incidents=("vllm PR 51092",),
        )  # fmt: skip
    for theta, prior in _BASES:
        if theta != rope.theta:
            yield Explanation(
                id=f"rope-base-{theta:.0f}", title=f"RoPE runs with base {theta:g}, not {rope.theta:g}", family="positions",
                changes={"rope": replace(rope, theta=theta)}, prior=prior, mend=mend, check=look,
            )  # fmt: skip
    if rope.type != "default":
        yield Explanation(
            id="rope-scaling-dropped", title=f"RoPE runs without its {rope.type} scaling", family="positions",
            changes={"rope": replace(rope, type="default", parameters={})}, prior=2.5,
            mend=f'Write "rope_scaling" ({rope.type}) where the server reads it.', check=look, incidents=("vllm PR 51092",),
        )  # fmt: skip
    other = "half" if own == "interleaved" else "interleaved"
    yield Explanation(
        id=f"rope-pairing-{other}", title=f"RoPE pairs channels {'2i and 2i+1' if other == 'interleaved' else 'i and i + d/2'}", family="positions",
        changes={"rope_pairing": other}, prior=1.0, mend=f"Rotate in the {own} style (is_neox_style={own == 'half'} in vLLM and SGLang).", check=look,
    )  # fmt: skip
    yield Explanation(
        id="positions-stuck", title="Every draft step has the position of the first", family="positions", changes={"position_step": 0}, prior=1.0,
        mend="Advance the position by one per draft step.", check="Capture the positions of draft steps.",
    )  # fmt: skip
    for by in (1, -1):
        yield Explanation(
            id=f"positions-{'plus' if by > 0 else 'minus'}-1-after-prompt",
            title=f"Positions are one too {'large' if by > 0 else 'small'} from the first draft step on", family="positions", changes={"decode_offset": by},
            prior=0.8, mend="Let positions go on without a gap from the prompt to the draft steps.", check="Capture the positions of draft steps.",
        )  # fmt: skip
