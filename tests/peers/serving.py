"""What the decoding walk predicts of a server's counters, request by request, with the tokens past a request's end told apart."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from eagle3_diag.acceptance import Walk, walk_drafts


@dataclass(frozen=True)
class Prediction:
    """``drafts`` verifications; ``inside[k]`` drafts accepted at step k by the walk; ``past[k]`` those that a server counts besides."""

    drafts: int
    inside: list[int]
    past: list[int]

    @property
    def counted(self) -> list[int]:
        return [a + b for a, b in zip(self.inside, self.past, strict=True)]


def predict(drafts_RK: torch.Tensor, tokens: Sequence[int], choices: Sequence[int], *, prompt: int, max_tokens: int) -> Prediction:
    """One greedy request of ``max_tokens`` after ``prompt`` tokens.

    ``drafts_RK``: drafts of every row of the longer text ``tokens`` (at least ``max_tokens`` + K + 1 after the prompt); ``choices[p]`` the
    target's choice at position p. The server verifies a draft that begins before the request's end to its last token and counts all of
    it, so the last run of a request may reach past its end; the walk sees the request's own tokens only.
    """
    steps, end = int(drafts_RK.shape[1]), prompt + max_tokens
    assert all(choices[p] == tokens[p + 1] for p in range(prompt - 1, end + steps)), "the text is not the target's greedy one"
    table = {row: drafts_RK[row].tolist() for row in range(end)}
    walk = walk_drafts(Walk(list(tokens[:end]), list(choices[:end]), [(prompt, end)], steps), table)
    # the last run again, on the longer text: begin at the prompt, follow the runs to the one that crosses the end
    known, past = prompt, [0] * steps
    while known < end - 1:
        run = 0
        while run < steps and table[known - 1][run] == choices[known + run]:
            run += 1
        for k in range(run):
            past[k] += known + k >= end  # draft k stands at position known+1+k; the walk itself judges the one at position `end`
        known += run + 1
    return Prediction(walk.drafts, walk.accepted, past)
