"""vLLM's speculative-decoding counters.

Names: vllm ``v1/spec_decode/metrics.py`` (0.32.0): counters since start, summed over engines here. The first counts
verifications; ``…_per_pos`` is labelled with the 0-based draft position.
"""

from __future__ import annotations

from dataclasses import dataclass

from eagle3_diag.errors import InputError
from eagle3_diag.observed import Observed, observed
from eagle3_diag.serving import prometheus
from eagle3_diag.serving.http import HttpStatus, get_text
from eagle3_diag.serving.waiting import Between

DRAFTS = "vllm:spec_decode_num_drafts"
DRAFT_TOKENS = "vllm:spec_decode_num_draft_tokens"
ACCEPTED = "vllm:spec_decode_num_accepted_tokens"
PER_POSITION = "vllm:spec_decode_num_accepted_tokens_per_pos"
SWITCH_ON = (
    "start vLLM with --speculative-config '{\"method\": \"eagle3\", \"model\": DRAFTER, \"num_speculative_tokens\": K}' and without --disable-log-stats"
)


@dataclass(frozen=True)
class Counters:
    """One reading: ``drafts`` verifications, ``draft_tokens``, and ``accepted`` per position."""

    drafts: int
    draft_tokens: int
    accepted: tuple[int, ...]

    @property
    def steps(self) -> int:
        return len(self.accepted)

    def since(self, earlier: Counters, source: str) -> Counters:
        """What was counted between two readings. Raises InputError where they cannot be of one run of the server."""
        if earlier.steps and self.steps != earlier.steps:
            raise InputError(
                f"{source}: the two readings count {earlier.steps} and {self.steps} positions; the server was started anew with another number of draft tokens"
            )
        before = earlier.accepted or (0,) * self.steps
        accepted = tuple(a - b for a, b in zip(self.accepted, before, strict=True))
        found = Counters(self.drafts - earlier.drafts, self.draft_tokens - earlier.draft_tokens, accepted)
        if min(found.drafts, found.draft_tokens, *found.accepted) < 0:
            raise InputError(
                f"{source}: the counters went backwards ({earlier.drafts} drafts, then {self.drafts}): the server was restarted between the two readings; "
                "take both from one run"
            )
        return found

    def observed(self, source: str) -> Observed:
        """As an acceptance profile."""
        if self.drafts > 0 and self.draft_tokens > self.drafts * self.steps:
            raise InputError(f"{source}: counts {self.draft_tokens} draft tokens in {self.drafts} drafts of {self.steps} positions; the text is damaged")
        return observed(steps=self.steps, drafts=self.drafts, accepted_per_position=self.accepted, source=source)


def counters(text: str, source: str) -> Counters:
    """The counters in a ``/metrics`` text.

    Raises InputError where there are none: it says how to switch them on.
    """
    metrics = prometheus.parse(text)
    drafts, tokens = prometheus.total(metrics, DRAFTS), prometheus.total(metrics, DRAFT_TOKENS)
    if drafts is None or tokens is None:
        kind = "other metrics" if metrics else "no metrics"
        raise InputError(f"{source}: has {kind}, but no counters of speculative decoding ({DRAFTS}_total); {SWITCH_ON}")
    by_position = prometheus.by_label(metrics, PER_POSITION, "position")
    positions = sorted(int(p) for p in by_position if p.isdecimal())
    if not positions or positions != list(range(len(positions))):
        raise InputError(f"{source}: has no counters {PER_POSITION}_total for positions 0 to K-1; {SWITCH_ON}")
    return Counters(round(drafts), round(tokens), tuple(round(by_position[str(p)]) for p in positions))


def reading(url: str, *, timeout: float = 30.0) -> Counters:
    """The counters of a running server now."""
    return counters(metrics_text(url, SWITCH_ON, timeout=timeout), url)


def metrics_text(url: str, switch_on: str, *, timeout: float = 30.0) -> str:
    """The text of a server's ``/metrics``. Raises InputError that says how to have it."""
    try:
        return get_text(f"{url}/metrics", timeout=timeout)
    except HttpStatus as error:
        if error.status == 404:
            raise InputError(f"{url} has no /metrics; {switch_on}, or give the server's own address instead of a gateway's") from None
        raise


def read(url: str, between: Between) -> Observed:
    """Two readings of a running server, and their difference."""
    source = f"vllm:{url}"
    if between.from_start:
        return reading(url).observed(source)
    saved = between.saved()
    if saved is not None:
        earlier = counters(saved, f"--since {between.since}")
    else:
        earlier = reading(url)
        between.wait(source)
    return reading(url).since(earlier, source).observed(source)


def read_file(text: str, source: str, between: Between) -> Observed:
    """A saved ``/metrics``, less an earlier one where ``--since`` names it."""
    later, saved = counters(text, source), between.saved()
    return (later if saved is None else later.since(counters(saved, f"--since {between.since}"), source)).observed(source)
