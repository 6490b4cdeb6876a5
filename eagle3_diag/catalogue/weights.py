"""What the matrices were made into when they were loaded."""

from __future__ import annotations

from collections.abc import Iterator

from eagle3_diag.catalogue.context import Context
from eagle3_diag.catalogue.explanation import Explanation


def explanations(context: Context) -> Iterator[Explanation]:
    for to, prior in (("fp8", 1.5), ("int8", 0.7), ("int4", 0.7)):
        yield Explanation(
            id=f"drafter-quantised-{to}", title=f"The drafter's matrices are rounded to {to}", family="weights", changes={"quantised": to}, prior=prior,
            mend="Serve the drafter unquantised (vLLM: no quantization in speculative_config; SGLang: --speculative-draft-model-quantization unquant).",
            check="Whether the server logs a quantisation method for the drafter (it may inherit the target's).",
        )  # fmt: skip
    if context.checkpoint.config.attention_bias:
        yield Explanation(
            id="attention-bias-dropped", title="The biases of q, k and v are not loaded", family="weights", changes={"attention_bias": False}, prior=5.0,
            mend='Serve with an engine that loads them (vLLM with "attention_bias": true); SGLang up to 0.5.23 does not.', check="Tensors logged as not loaded.",
        )  # fmt: skip
