"""Is the stored final state before or after the target's final norm, and is it this target's at all?

Formats differ (facts of the formats are in their modules) and some dumps do not say. Two readings of the stored state y
are tried on response positions p: ``logits = head(y)`` if y is already normed, ``logits = head(norm(y))`` if it is not.
The right reading's argmax agrees with the stored token p + 1 as often as the text is the target's most likely one; with
another target's states, or another target's text, it agrees as often as chance.

Norm weights are often nearly constant over the channels, and then both readings have the same argmax. What tells them
apart whatever the weights is a length: RMSNorm gives y = w * x / sqrt(mean(x^2) + eps), so mean((y / w)^2) = 1 (up to
eps and rounding) at every position of a normed state, and anything but 1 otherwise.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch

from eagle3_diag.samples.interface import Sample

Verdict = Literal["agrees", "contradicts", "chance", "undecided"]

#: Head rows multiplied at once: bounds the copy in float32 to a few hundred MB for the widest targets.
_HEAD_ROWS = 8192
#: A normed state's mean((y / w)^2) is 1 up to rounding: bfloat16 keeps 8 bits, and 1e-2 leaves room for eps.
_UNIT = 0.05
#: Fewer positions than this say nothing about a rate.
_FEW = 8


@dataclass(frozen=True, kw_only=True)
class FinalStateCheck:
    """What the stored final states of one sample (or, combined, of several) say.

    Attributes:
        name: the sample's. normed: how the format says it is stored. positions: response positions looked at.
        agree_prenorm, agree_normed: at how many of them the argmax is the stored next token, reading the state as
        before or
            as after the norm.
        chance: the share that two unrelated columns with these tokens' frequencies would agree (the larger of both
        readings'). unit_length: share of positions where mean((y / w)^2) is 1, as it is for a normed state; None where
        w is too small to divide by. verdict: ``agrees`` with the format; ``contradicts`` it (the other reading is the
        right one); ``chance``: neither
            reading knows the text, so states and text, or states and target, do not belong together; ``undecided``.
    """

    name: str
    normed: bool
    positions: int
    agree_prenorm: int
    agree_normed: int
    chance: float
    unit_length: float | None
    verdict: Verdict

    @property
    def found_normed(self) -> bool | None:
        """How the state really is stored; None when that could not be told."""
        if self.verdict == "agrees":
            return self.normed
        return not self.normed if self.verdict == "contradicts" else None

    def sentence(self) -> str | None:
        """The warning a user should read, with the numbers; None when there is nothing to warn of."""
        if self.verdict in ("agrees", "undecided"):
            return None
        rates = (
            f"the target's argmax agrees with the stored next token at {self.agree_normed} of {self.positions} "
            f"positions when the state is read as normed, at {self.agree_prenorm} when it is read as not yet normed"
        )
        if self.verdict == "chance":
            return (
                f"{self.name}: these look like samples of another target: {rates}; chance alone would give about "
                f"{self.chance * self.positions:.0f}."
            )
        said, found = ("after", "before") if self.normed else ("before", "after")
        length = (
            ""
            if self.unit_length is None
            else f", and {self.unit_length:.0%} of the states have a normed state's length"
        )
        return (
            f"{self.name}: the format stores the final state {said} the norm, but it lies {found} it: {rates}{length}."
        )


def rms_norm(states_NH: torch.Tensor, weight_H: torch.Tensor, eps: float, offset: float = 0.0) -> torch.Tensor:
    """float32 RMSNorm: ``(offset + weight) * x / sqrt(mean(x^2) + eps)`` (offset 1 for Gemma)."""
    x_NH = states_NH.to(torch.float32)
    return x_NH * torch.rsqrt(x_NH.square().mean(-1, keepdim=True) + eps) * (weight_H.to(torch.float32) + offset)


def check_final_state(
    sample: Sample,
    *,
    norm_weight_H: torch.Tensor,
    eps: float,
    head_VH: torch.Tensor,
    norm_offset: float = 0.0,
    max_positions: int = 64,
) -> FinalStateCheck | None:
    """Compare both readings of ``sample.final_NH`` with the stored tokens on up to ``max_positions`` response
    positions.

    Positions are spread evenly over the response. ``head_VH`` [V, H] may be a memory map of any floating dtype; it is
    read once, a bounded piece at a time. None where the sample stores no final state.
    """
    if sample.final_NH is None:
        return None
    known_P = sample.mask_N[1:].nonzero().flatten()  # position p is judged by token p + 1
    count = int(known_P.shape[0])
    if count > max_positions:
        known_P = known_P[torch.linspace(0, count - 1, max_positions).round().to(torch.int64)]
    state_PH = sample.final_NH[known_P].to(torch.float32)
    next_P = sample.tokens_N[known_P + 1]
    normed_PH = rms_norm(state_PH, norm_weight_H, eps, norm_offset)
    best_2P = _argmax(torch.cat((normed_PH, state_PH)), head_VH).view(2, -1)
    agree_prenorm, agree_normed = (int(n) for n in (best_2P == next_P).sum(1))
    chance = max(_chance(best_P, next_P) for best_P in best_2P)
    unit = _unit_length(state_PH, norm_weight_H.to(torch.float32) + norm_offset)
    return FinalStateCheck(
        name=sample.name,
        normed=sample.final_normed,
        positions=int(next_P.shape[0]),
        agree_prenorm=agree_prenorm,
        agree_normed=agree_normed,
        chance=chance,
        unit_length=unit,
        verdict=_verdict(sample.final_normed, int(next_P.shape[0]), agree_prenorm, agree_normed, chance, unit),
    )


def combine(checks: Sequence[FinalStateCheck]) -> FinalStateCheck | None:
    """The checks of several samples that are stored the same way, as one; None for none. Named after how many they "
    "are."""
    if not checks:
        return None
    if len(checks) == 1:
        return checks[0]
    if len({check.normed for check in checks}) > 1:
        raise ValueError("checks of samples that are stored differently cannot be combined")
    positions = sum(check.positions for check in checks)
    agree_prenorm = sum(check.agree_prenorm for check in checks)
    agree_normed = sum(check.agree_normed for check in checks)
    chance = math.fsum(check.chance * check.positions for check in checks) / max(positions, 1)
    known = [(check.unit_length, check.positions) for check in checks if check.unit_length is not None]
    measured = sum(count for _, count in known)
    unit = math.fsum(share * count for share, count in known) / measured if measured else None
    return FinalStateCheck(
        name=f"{len(checks)} samples",
        normed=checks[0].normed,
        positions=positions,
        agree_prenorm=agree_prenorm,
        agree_normed=agree_normed,
        chance=chance,
        unit_length=unit,
        verdict=_verdict(checks[0].normed, positions, agree_prenorm, agree_normed, chance, unit),
    )


def _verdict(
    normed: bool, positions: int, agree_prenorm: int, agree_normed: int, chance: float, unit: float | None
) -> Verdict:
    if positions < _FEW:
        return "undecided"
    # Two standard deviations above chance. The text need not be the target's most likely one (temperature, repetitive text),
    # so a rate that is clearly above chance, if low, is no reason for an alarm; over several samples the band is narrow.
    threshold = positions * chance + 2 * (positions * chance * (1 - chance)) ** 0.5
    if max(agree_prenorm, agree_normed) <= max(threshold, 1):
        return "chance"
    if unit is not None and not 0.1 < unit < 0.9:
        found: bool | None = unit >= 0.9
    else:
        found = None
    if found is None:
        # The readings disagree on n positions at most; a coin would give a difference beyond 3 sqrt(n) once in 400.
        difference = agree_normed - agree_prenorm
        if abs(difference) <= 3 * max(1.0, (agree_normed + agree_prenorm) / 4) ** 0.5:
            return "undecided"
        found = difference > 0
    return "agrees" if found == normed else "contradicts"


def _argmax(states_PH: torch.Tensor, head_VH: torch.Tensor) -> torch.Tensor:
    """int64 [P]: argmax over V of ``states @ head^T``, the head read in pieces; the smallest id wins a tie."""
    best_P = torch.full((states_PH.shape[0],), -torch.inf)
    token_P = torch.zeros(states_PH.shape[0], dtype=torch.int64)
    for start in range(0, int(head_VH.shape[0]), _HEAD_ROWS):
        value_P, index_P = (states_PH @ head_VH[start : start + _HEAD_ROWS].to(torch.float32).T).max(-1)
        better_P = value_P > best_P
        best_P = torch.where(better_P, value_P, best_P)
        token_P = torch.where(better_P, index_P + start, token_P)
    return token_P


def _chance(best_P: torch.Tensor, next_P: torch.Tensor) -> float:
    """The share of equal pairs if the two columns were shuffled: sum over tokens of the product of their "
    "frequencies."""
    total = int(next_P.shape[0])
    if total == 0:
        return 0.0
    return float((best_P.unsqueeze(1) == next_P.unsqueeze(0)).sum()) / total**2


def _unit_length(state_PH: torch.Tensor, weight_H: torch.Tensor) -> float | None:
    """Share of rows whose mean((y / w)^2) is 1; None where a weight is too small to divide by."""
    usable_H = weight_H.abs() > 1e-3 * weight_H.abs().max()
    if state_PH.shape[0] == 0 or not bool(usable_H.all()):
        return None
    length_P = (state_PH / weight_H).square().mean(-1)
    return float(((length_P - 1).abs() < _UNIT).to(torch.float32).mean())
