"""Is a stored final hidden state before or after the target's final norm? Decided by the format, verified against the tokens.

One family of trainers stores it before the norm, the other after it, and one format does not say which (facts about stored samples are in
``samples/``). The right reading makes the target's argmax agree with the tokens that the target itself generated.

Where the norm's weights are much the same in all channels, both readings have the same argmax and agreement cannot tell them apart. Their length
can: RMSNorm gives y = w * x / sqrt(mean(x^2) + eps), so mean((y / w)^2) = 1, up to eps and rounding, at every position of a normed state, and
anything but 1 at those of a state before the norm. So agreement says whether states, text and target belong together, and length which reading it is.
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
_CANDIDATES, _RUN = 256, 16
# Below this share of agreement the states say nothing about the tokens.
_CHANCE = 0.1
_MARGIN = 0.15
# A normed state's mean((y / w)^2) is 1: bfloat16 keeps 8 bits, eps takes a little off short states.
_UNIT = 0.05


@dataclass(frozen=True, kw_only=True)
class FinalState:
    """Agreement of the target's argmax (among the sample's own tokens and some others) with the stored next tokens.

    ``positions`` looked at; ``agree_pre``/``agree_post`` of them agree when the state is read as before / after the norm; ``unit`` of them have a
    normed state's length (None where a weight of the norm is too small to divide by). ``normed`` is the reading to use. ``finding`` is None,
    ``contradicts`` (the format's reading is not the right one) or ``chance`` (neither reading knows the text).
    """

    name: str
    positions: int
    agree_pre: int
    agree_post: int
    unit: int | None
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
    others = _candidates(config.vocab_size)
    ids = torch.unique(torch.cat((sample.tokens_N, others)))
    next_R = sample.tokens_N[at + 1]
    state_RH = sample.final_NH[at].to(torch.float32)
    weight_H = target.norm_weight().to(torch.float32)
    normed_RH = rms_norm(state_RH, weight_H, config.rms_norm_eps, config.norm_offset)
    head_VH = target.head()
    pre, post = (int((ids[heads.argmax(x_RH, head_VH, ids)] == next_R).sum()) for x_RH in (normed_RH, state_RH))
    count = int(at.numel())
    unit = _unit(state_RH, weight_H + config.norm_offset)
    found = _reading(count, pre, post, unit)
    normed, finding = sample.final_normed, None
    if count >= 8 and max(pre, post) < _CHANCE * count:
        finding = "chance"
    elif found is not None and found != normed:
        if sample.final_certain:
            finding = "contradicts"
        else:
            normed = found
    return FinalState(name=sample.name, positions=count, agree_pre=pre, agree_post=post, unit=unit, normed=normed, finding=finding)


def _candidates(vocab_size: int) -> torch.Tensor:
    """Token ids that compete with the sample's own: runs of neighbours, evenly spread, int64 ascending.

    Runs, because a mapped file may come in by blocks of 2 MiB: 256 rows from everywhere would bring 500 MiB of a head into memory.
    """
    if vocab_size <= _CANDIDATES:
        return torch.arange(vocab_size)
    starts_R1 = torch.linspace(0, vocab_size - _RUN, _CANDIDATES // _RUN).long()[:, None]
    ids: torch.Tensor = torch.unique(starts_R1 + torch.arange(_RUN))
    return ids


def _unit(state_RH: torch.Tensor, weight_H: torch.Tensor) -> int | None:
    """How many rows have mean((y / w)^2) = 1; None where a weight is too small to divide by."""
    if bool((weight_H.abs() < 1e-3 * weight_H.abs().max()).any()):
        return None
    length_R = (state_RH / weight_H).square().mean(-1)
    return int(((length_R - 1).abs() < _UNIT).sum())


def _reading(positions: int, pre: int, post: int, unit: int | None) -> bool | None:
    """Whether the states are normed, by their length, else by a clear difference of agreement; None when neither tells."""
    if positions < 8:
        return None
    if unit is not None and not 0.1 * positions < unit < 0.9 * positions:
        return unit >= 0.9 * positions
    return post > pre if abs(post - pre) > _MARGIN * positions else None


@dataclass(frozen=True, kw_only=True)
class Normalisation:
    """The check over all samples: sums of :class:`FinalState`, and how many samples are read as after the norm; ``doubtful`` counts those with a finding."""

    samples: int
    positions: int
    agree_pre: int
    agree_post: int
    read_as_normed: int
    doubtful: int
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
        if kind == "contradicts" and all(s.unit is not None for s in bad):
            numbers += f", and {sum(s.unit or 0 for s in bad)} of {positions} states have a normed state's length"
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
        doubtful=sum(s.finding is not None for s in states),
        warnings=tuple(warnings),
    )
