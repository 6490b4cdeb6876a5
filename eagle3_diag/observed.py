"""What was seen of a server: the one form that every reader of counters, logs and figures returns."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from eagle3_diag.errors import InputError

Mean = Literal["step", "request"]


@dataclass(frozen=True, kw_only=True)
class Observed:
    """A served acceptance, validated by :func:`observed`.

    Attributes:
        steps: drafted tokens per verification, K.
        drafts: verifications counted; None where only shares or a mean were reported.
        accepted_per_position: length K; counts where ``drafts`` is known, else shares of verifications.
        acceptance_length: tokens per verification, the bonus included; None only while being built.
        per: what ``acceptance_length`` is a mean over: verification steps, or requests of each request's own.
        source: where it was read, for the report.
        rounding: half the last digit of ``acceptance_length`` as reported.
        requests: requests behind the counts, where known.
        dtype: what the server computes in, where it says.
    """

    steps: int
    drafts: int | None
    accepted_per_position: tuple[float, ...] | None
    acceptance_length: float | None
    per: Mean = "step"
    source: str = "figures"
    rounding: float = 0.0
    requests: int | None = None
    dtype: str | None = None

    @property
    def rates(self) -> tuple[float, ...] | None:
        """Share of verifications in which positions 0..k were all accepted; None where only a mean is known."""
        if self.accepted_per_position is None:
            return None
        if self.drafts is None:
            return self.accepted_per_position
        return tuple(a / self.drafts for a in self.accepted_per_position)

    @property
    def length(self) -> float:
        """Tokens per verification: from the profile where there is one, else as reported."""
        rates = self.rates
        if rates is not None:
            return 1.0 + math.fsum(rates)
        assert self.acceptance_length is not None
        return self.acceptance_length


def observed(
    *,
    steps: int | None,
    drafts: int | None = None,
    accepted_per_position: Sequence[float] | None = None,
    acceptance_length: float | None = None,
    per: Mean = "step",
    source: str = "figures",
    rounding: float = 0.0,
    requests: int | None = None,
) -> Observed:
    """A checked :class:`Observed`. Raises InputError for figures that no server can have, saying which."""
    profile = None if accepted_per_position is None else tuple(float(a) for a in accepted_per_position)
    if profile is not None:
        if not profile:
            raise InputError(f"{source}: the profile is empty; give one figure per draft step")
        if steps is not None and steps != len(profile):
            raise InputError(f"{source}: the profile has {len(profile)} positions, but the server is said to draft {steps} steps; give the one it ran with")
        steps = len(profile)
    if steps is None:
        raise InputError(f"{source}: how many tokens are drafted per verification is not said; give --steps K (or steps=K beside the figures)")
    if not 1 <= steps <= 64:
        raise InputError(f"{source}: {steps} draft steps; expected 1 to 64")
    if drafts is not None and drafts < 0:
        raise InputError(f"{source}: {drafts} drafts were counted; counters cannot be negative")
    if drafts == 0:
        raise InputError(f"{source}: no draft was counted; send the server requests with speculative decoding on, then read again")
    if profile is not None:
        _check_profile(profile, drafts, source)
        length = 1.0 + math.fsum(profile) / (drafts or 1)
        if acceptance_length is not None and per == "step" and abs(acceptance_length - length) > max(0.02, rounding + 0.005) * 1.001:
            raise InputError(f"{source}: an acceptance length of {acceptance_length:g} does not fit the profile, which gives {length:.3f}; check the figures")
        acceptance_length = length if acceptance_length is None or per == "step" else acceptance_length
    if acceptance_length is None:
        raise InputError(f"{source}: neither a profile nor an acceptance length is given")
    if not math.isfinite(acceptance_length) or acceptance_length < 1.0 - 1e-9:
        raise InputError(f"{source}: an acceptance length of {acceptance_length:g}; with the bonus token counted it is 1 or more")
    if acceptance_length > steps + 1 + rounding + 1e-9:
        raise InputError(f"{source}: an acceptance length of {acceptance_length:g} with {steps} draft steps; it can be at most {steps + 1}")
    return Observed(
        steps=steps, drafts=drafts, accepted_per_position=profile, acceptance_length=acceptance_length, per=per, source=source, rounding=rounding,
        requests=requests,
    )  # fmt: skip


def _check_profile(profile: tuple[float, ...], drafts: int | None, source: str) -> None:
    most = 1.0 if drafts is None else float(drafts)
    for k, value in enumerate(profile):
        if not math.isfinite(value) or value < 0:
            raise InputError(f"{source}: position {k} has {value:g} accepted drafts; expected 0 or more")
        if value > most + 1e-9:
            what = "a share above 1 (give rates from 0 to 1)" if drafts is None else f"more accepted drafts ({value:g}) than there were drafts ({drafts})"
            raise InputError(f"{source}: position {k} has {what}")
        if k and value > profile[k - 1] + 1e-9:
            raise InputError(
                f"{source}: position {k} has more accepted drafts ({value:g}) than position {k - 1} ({profile[k - 1]:g}); a draft counts only when all "
                "before it are accepted, so these are not acceptances per position (conditional rates must be multiplied up first)"
            )
