"""What a later draft step is given, and what it sees."""

from __future__ import annotations

from collections.abc import Iterator

from eagle3_diag.catalogue.context import Context
from eagle3_diag.catalogue.explanation import Explanation

_LOOK = "Capture the state fed to draft steps 1 and 2 and compare it with a replay (eagle3-diag diagnose --captured)."


def explanations(context: Context) -> Iterator[Explanation]:
    right = context.right
    if right.feedback == "post-norm":
        yield Explanation(
            id="pre-norm-fed-back", title="The state before the output norm is fed back, not the one after it", family="steps", changes={"feedback": "pre-norm"},
            prior=4.0, mend='Set "norm_output": true and serve with an engine that knows it (SGLang 0.5.12 and later, vLLM).', check=_LOOK,
            incidents=("sglang PR 24663", "sglang PR 26506", "vllm PR 42764"),
        )  # fmt: skip
    else:
        yield Explanation(
            id="post-norm-fed-back", title="The state after the output norm is fed back, not the one before it", family="steps", changes={"feedback": "post-norm"},
            prior=2.0, mend='Set "norm_output": false (vLLM, SGLang); TensorRT-LLM: "eagle_config.return_hidden_post_norm": false.', check=_LOOK,
        )  # fmt: skip
    for name, title, changes, prior, mend in (
        ("fc-on-feedback", "fc is applied again to the state that is fed back", {"fc_on_feedback": True}, 0.5, "Apply fc to the target's features only."),
        ("feedback-stale", "Every draft step gets step 0's input state again", {"feedback": "stale"}, 0.7, "Feed each step the state of the step before."),
        ("feedback-zero", "Later draft steps get a state of zeros", {"feedback": "zero"}, 0.7, "Feed each step the state of the step before."),
        ("prefix-unseen", "Later draft steps do not see the prefix", {"prefix_visible": False}, 0.7,
         "Give draft steps the drafter's KV cache of the prefix (block tables, sequence lengths of the draft pass)."),
        ("steps-unseen", "Draft steps do not see each other", {"steps_visible": False}, 0.7,
         "Let a draft step see the keys of the steps before (tree mask, or slots written before they are read)."),
    ):  # fmt: skip
        if name != "fc-on-feedback" or context.same_width:
            yield Explanation(id=name, title=title, family="steps", changes=changes, prior=prior, mend=mend, check=_LOOK)
    yield Explanation(
        id="accepted-keys-own", title="Accepted tokens keep the keys of the drafter's own states", family="steps", changes={"accepted_keys": "own"},
        prior=1.0, mend="Run the drafter over accepted tokens again with the target's features, overwriting their KV entries.", check=_LOOK,
        incidents=("vllm issue 14649",),
    )  # fmt: skip
    yield Explanation(
        id="attention-lost", title="The draft layer's attention gives nothing", family="steps", changes={"attention": "none"}, prior=0.5,
        mend="Try another attention backend (vLLM: VLLM_ATTENTION_BACKEND; SGLang: --attention-backend, --speculative-attention-mode).",
        check="The same server with another attention backend.", incidents=("vllm PR 47854",),
    )  # fmt: skip
    if context.checkpoint.config.num_layers > 1:
        yield Explanation(
            id="draft-layers-dropped", title="Only the drafter's first layer runs", family="steps", changes={"layers": 1}, prior=3.0,
            mend="Serve with an engine that runs all layers (SGLang 0.5.12 and later, vLLM).", check="Which tensors the server logs as not loaded.",
        )  # fmt: skip
