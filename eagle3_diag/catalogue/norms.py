"""Norms and residuals of the first layer and the way out."""

from __future__ import annotations

from collections.abc import Iterator

from eagle3_diag.catalogue.context import Context
from eagle3_diag.catalogue.explanation import Explanation

_LOOK = "Print the drafter's modules in the server, and which of the checkpoint's tensors were loaded."


def explanations(context: Context) -> Iterator[Explanation]:
    right = context.right
    flipped = "before-norm" if right.residual == "after-norm" else "after-norm"
    yield Explanation(
        id="residual-flipped", title=f"The residual is taken {flipped.replace('-', ' the ')}", family="norms", changes={"residual": flipped}, prior=4.0,
        mend=f'Set "norm_before_residual": {str(flipped == "before-norm").lower()} at the top level of config.json (vLLM); SGLang and TensorRT-LLM know only false.',
        check="eagle3-diag check compares the key with what each engine does.",
    )  # fmt: skip
    yield Explanation(
        id="residual-missing", title="The residual around the attention is left out", family="norms", changes={"residual": "none"}, prior=0.5,
        mend="Add the layer's input to the attention's output.", check=_LOOK, incidents=("vllm PR 11672",),
    )  # fmt: skip
    yield Explanation(
        id="output-residual-missing", title="The last layer's output is taken without its residual", family="norms", changes={"mlp_residual": False},
        prior=0.5, mend="Hand hidden state and residual to the output norm together.", check=_LOOK, incidents=("vllm PR 14464",),
    )  # fmt: skip
    for name, title, changes, prior in (
        ("embedding-norm-missing", "The embedding is not normed", {"embedding_norm": "none"}, 1.0),
        ("hidden-norm-missing", "The hidden state is not normed", {"hidden_norm": "none"}, 1.0),
        ("input-norms-missing", "Neither embedding nor hidden state is normed", {"embedding_norm": "none", "hidden_norm": "none"}, 0.6),
        ("norms-swapped", "The norms of embedding and hidden state are swapped", {"embedding_norm": "other", "hidden_norm": "other"}, 1.0),
        ("post-attention-norm-missing", "The norm before the MLP is left out", {"post_attention_norm": "none"}, 0.5),
        ("output-norm-missing", "The norm before the head is left out", {"output_norm": "none"}, 0.7),
    ):
        yield Explanation(
            id=name, title=title, family="norms", changes=changes, prior=prior, check=_LOOK,
            mend="Load input_layernorm (embedding), hidden_norm (state), post_attention_layernorm and norm under the names the server expects.",
        )  # fmt: skip
    twice = "own" if right.hidden_norm == "both" else "both"
    yield Explanation(
        id="hidden-norm-once" if twice == "own" else "hidden-norm-twice",
        title=f"The hidden state goes through {'hidden_norm only, though trained with both input norms' if twice == 'own' else 'both input norms, one after the other'}",
        family="norms", changes={"hidden_norm": twice}, prior=3.0 if twice == "own" else 0.3,
        mend="Trained with both norms on the state (Model-Optimizer does so): no server does; fold input_layernorm's weight into fc or train again."
        if twice == "own" else "Apply hidden_norm alone to the state.",
        check=_LOOK,
    )  # fmt: skip
    if right.norm_before_fc:
        yield Explanation(
            id="norm-before-fc-missing", title="input_norm before fc is left out", family="norms", changes={"norm_before_fc": False}, prior=5.0,
            mend='Set "norm_before_fc": true where the server reads it (top level for vLLM, also "eagle_config" for SGLang 0.5.17 and later); older servers lack it.',
            check="eagle3-diag check says which engine versions apply it.", incidents=("vllm PR 38111", "sglang PR 32334"),
        )  # fmt: skip
    if right.fc_norm:
        yield Explanation(
            id="fc-norm-missing", title="The norm of each aux state (fc_norm) is left out", family="norms", changes={"fc_norm": False}, prior=5.0,
            mend='Set "fc_norm": true and serve with an engine that knows it (SGLang 0.5.12 and later, vLLM); older servers ignore it.',
            check="eagle3-diag check says which engine versions apply it.", incidents=("vllm PR 42764", "sglang PR 24663", "sglang PR 26506"),
        )  # fmt: skip
    eps = context.checkpoint.config.rms_norm_eps
    other = 1e-5 if eps < 5e-6 else 1e-6
    yield Explanation(
        id="eps-other", title=f"RMSNorm's eps is {other:g}, not {eps:g}", family="norms", changes={"eps": other}, prior=0.3,
        mend=f'Set "rms_norm_eps": {eps:g} in the drafter\'s config.json.', check="The key in config.json against the training configuration.",
    )  # fmt: skip
    yield Explanation(
        id="labels-without-norm", title="Training labels were taken before the target's final norm", family="norms", changes={"target_norm": "missing"},
        prior=1.0, served=False, mend="Make the training labels with the target's final norm applied, and train again.",
        check="The final state's form in the training data (eagle3-diag evaluate verifies it).", incidents=("speculators PR 313",),
    )  # fmt: skip
