"""What token a row is about, and whose embedding it gets."""

from __future__ import annotations

from collections.abc import Iterator

from eagle3_diag.catalogue.context import Context
from eagle3_diag.catalogue.explanation import Explanation


def explanations(context: Context) -> Iterator[Explanation]:
    yield Explanation(
        id="tokens-not-shifted", title="A row embeds its own token, not the next one", family="tokens", changes={"token_shift": 0}, prior=1.5,
        mend="Drop the first token: row t takes the embedding of x[t+1].", check="Capture the drafter's input ids beside the positions.",
        incidents=("vllm PR 14464",),
    )  # fmt: skip
    yield Explanation(
        id="concat-swapped", title="Hidden state and embedding are swapped in the attention's input", family="tokens",
        changes={"concat": "hidden-first" if context.right.concat == "embedding-first" else "embedding-first"}, prior=0.7,
        mend="Put the normed embedding first, the normed hidden state second; a checkpoint with the other order needs its q, k and v columns swapped.",
        check="The order of the two halves where the server joins them.",
    )  # fmt: skip
    if context.own_embedding_differs:
        other = "target" if context.right.embedding == "drafter" else "drafter"
        yield Explanation(
            id=f"embedding-{other}s", title=f"Tokens are embedded with the {other}'s table", family="tokens", changes={"embedding": other}, prior=2.0,
            mend="Load the drafter's own embed_tokens.weight." if other == "target" else "Take the target's embedding: drop embed_tokens.weight.",
            check="Whether the server logs that the embedding is shared.",
        )  # fmt: skip
    if context.right.embedding == "target" and context.target.config.embedding_scale != 1.0:
        yield Explanation(
            id="embedding-unscaled", title="The target's factor on embeddings is left out", family="tokens", changes={"embedding_scaled": False}, prior=2.0,
            mend=f"Multiply embedding rows by {context.target.config.embedding_scale:.4g}, as the target does.", check="The drafter's embedding module.",
        )  # fmt: skip
    yield Explanation(
        id="embedding-foreign", title="The embedding table is of another model", family="tokens", changes={"embedding": "foreign"}, prior=1.0, exact=False,
        mend="Check which embed_tokens.weight the server loads: the target's, or the drafter's where it has its own.",
        check="Checksum of the embedding in the served checkpoint against the target's.",
    )  # fmt: skip
