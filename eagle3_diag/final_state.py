"""Is a stored final hidden state before or after the target's final norm? Decided by the format, verified against the tokens.

One family of trainers stores it before the norm, the other after it, and one format does not say which (facts about stored samples are in
``samples/``). The right reading makes the target's argmax agree with the tokens that the target itself generated.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch

from eagle3_diag import heads
from eagle3_diag.drafter import rms_norm
from eagle3_diag.samples.interface import Sample
from eagle3_diag.target import Target

# Positions looked at per sample, and how many tokens besides the sample's own compete for the argmax. A full argmax would read the whole
# head; against some hundred candidates the right reading still stands far above chance.
_POSITIONS = 48
_CANDIDATES = 256
# Below this share of agreement the states say nothing about the tokens.
_CHANCE = 0.1
_MARGIN = 0.15


@dataclass(frozen=True, kw_only=True)
class FinalState:
    """Agreement of the target's argmax (among the sample's own tokens and some others) with the stored next tokens.

    ``positions`` looked at; ``agree_pre``/``agree_post`` of them agree when the state is read as before / after the norm. ``normed`` is the
    reading to use. ``finding`` is None, ``contradicts`` (the other reading agrees far better than the format's) or ``chance`` (neither does).
    """

    name: str
    positions: int
    agree_pre: int
    agree_post: int
    normed: bool
    finding: str | None


def check_final_state(sample: Sample, target: Target) -> FinalState | None:
    """Measure both readings on up to 48 response positions of one sample; None where the sample stores no final state.

    Deterministic: the same sample gives the same answer whatever was read before it.
    """
    if sample.final_NH is None:
        return None
    at = torch.nonzero(sample.mask_N[1:], as_tuple=True)[0]  # positions whose next token is of a response
    at = at[torch.linspace(0, at.numel() - 1, min(_POSITIONS, at.numel())).round().long()] if at.numel() else at
    config = target.config
    others = torch.linspace(0, config.vocab_size - 1, min(_CANDIDATES, config.vocab_size)).long()
    ids = torch.unique(torch.cat((sample.tokens_N, others)))
    next_R = sample.tokens_N[at + 1]
    state_RH = sample.final_NH[at].to(torch.float32)
    normed_RH = rms_norm(state_RH, target.norm_weight().to(torch.float32), config.rms_norm_eps, config.norm_offset)
    head_VH = target.head()
    pre, post = (int((ids[heads.argmax(x_RH, head_VH, ids)] == next_R).sum()) for x_RH in (normed_RH, state_RH))
    count = int(at.numel())
    by_format, other = (post, pre) if sample.final_normed else (pre, post)
    if not sample.final_certain:
        normed = post > pre if pre != post else sample.final_normed
        return FinalState(name=sample.name, positions=count, agree_pre=pre, agree_post=post, normed=normed, finding=_chance(count, max(pre, post)))
    finding = "contradicts" if count >= 8 and other - by_format > _MARGIN * count else _chance(count, by_format)
    return FinalState(name=sample.name, positions=count, agree_pre=pre, agree_post=post, normed=sample.final_normed, finding=finding)


def _chance(positions: int, agreeing: int) -> str | None:
    return "chance" if positions >= 8 and agreeing < _CHANCE * positions else None


@dataclass(frozen=True, kw_only=True)
class Normalisation:
    """The check over all samples: sums of :class:`FinalState`, and how many samples are read as after the norm."""

    samples: int
    positions: int
    agree_pre: int
    agree_post: int
    read_as_normed: int
    warnings: tuple[str, ...]


def summarise(found: Iterable[FinalState]) -> Normalisation:
    """Totals, and one sentence per kind of finding that names the numbers. The order of the samples does not matter."""
    states = sorted(found, key=lambda each: each.name)
    warnings = []
    for kind in ("contradicts", "chance"):
        bad = [s for s in states if s.finding == kind]
        if not bad:
            continue
        positions = sum(s.positions for s in bad)
        pre, post = sum(s.agree_pre for s in bad), sum(s.agree_post for s in bad)
        numbers = f"read as before the final norm the target's choice agrees with {pre} of {positions} stored tokens, read as after it with {post}"
        who = f"{len(bad)} of {len(states)} samples (first: {bad[0].name})"
        if kind == "contradicts":
            warnings.append(
                f"{who}: the format says that the final state is {'after' if bad[0].normed else 'before'} the target's norm, but {numbers}; "
                "labels of these samples are wrong unless the format is: make the samples again with a recorder whose convention is known"
            )
        else:
            warnings.append(
                f"{who}: {numbers}, which is chance level; these samples were made by another target (or their tokens were not generated by it), so "
                "acceptance figures from them mean nothing"
            )
    return Normalisation(
        samples=len(states),
        positions=sum(s.positions for s in states),
        agree_pre=sum(s.agree_pre for s in states),
        agree_post=sum(s.agree_post for s in states),
        read_as_normed=sum(s.normed for s in states),
        warnings=tuple(warnings),
    )
