"""What a server would accept under each explanation, row by row and along the walk of every request. Reads nothing, decides nothing.

Predictions of one sample share what does not differ: tokens, states and labels are loaded once, and wirings that draft step 0 alike
share its keys and states. A row is dropped at its first wrong draft.

Dimension suffixes as in ``drafter.py``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

import torch

from eagle3_diag.acceptance import NO_TOKEN, Walk, segments
from eagle3_diag.breakdown import Breakdown, break_down
from eagle3_diag.catalogue.context import right_wiring
from eagle3_diag.catalogue.explanation import LATER, Explanation
from eagle3_diag.checkpoint.interface import DrafterCheckpoint
from eagle3_diag.drafter import Drafter, Drafts, Prefix, Weights
from eagle3_diag.errors import InputError
from eagle3_diag.final_state import check_final_state
from eagle3_diag.rollout import WalkPool, rollout, target_argmax, target_states
from eagle3_diag.samples import fields
from eagle3_diag.samples.checks import check_range, check_tokens
from eagle3_diag.samples.interface import Sample
from eagle3_diag.target import Target
from eagle3_diag.wiring import Wiring

#: Requests whose walks are lived through side by side: each holds its keys until it ends.
_LIVED = 32


@dataclass
class Loaded:
    """A sample on the device, with everything that any explanation takes from it.

    ``labels_N`` int64: the target's argmax at every position from the first response on, -1 before. ``states``: by layer input, in
    stored precision. ``final_NH``: what the target's head is applied to; ``unnormed_NH`` the same before the norm, where stored so.
    ``responses``: half-open ranges. ``normed``: whether the stored final state is after the target's norm. ``differ``: response tokens that
    are not the target's choice by the stored final state. ``begun``, ``matched``: what one drafter made of it under right wiring, kept.
    """

    name: str
    tokens_N: torch.Tensor
    mask_N: torch.Tensor
    labels_N: torch.Tensor
    states: dict[int, torch.Tensor]
    final_NH: torch.Tensor
    unnormed_NH: torch.Tensor | None
    responses: list[tuple[int, int]]
    normed: bool
    differ: int
    begun: dict[Wiring, tuple[torch.Tensor, Prefix, Drafts]] = field(default_factory=dict, repr=False)
    matched: tuple[torch.Tensor, torch.Tensor] | None = field(default=None, repr=False)

    @property
    def rows_R(self) -> torch.Tensor:
        """Rows whose next token is of a response: those a server decoding it may draft from."""
        return torch.nonzero(self.mask_N[1:], as_tuple=True)[0]


@dataclass(frozen=True, kw_only=True)
class Runs:
    """Per row, how many leading drafts are right, int8 [R], of the ``known_R`` first ones whose verdict the stored text tells.

    A server given x[0..t] answers x[t+1] first. Where that is not the target's own choice, nothing is known (``known`` 0), and each
    further verdict is known as long as the stored text follows the target's choices. ``accepted`` = ``known`` < K: at least that many.
    """

    rows_R: torch.Tensor
    accepted_R: torch.Tensor
    known_R: torch.Tensor
    steps: int

    def agrees(self, row: int, accepted: int) -> bool:
        """Whether an observed run of that row (a row number t) is compatible with the prediction."""
        at = int(torch.searchsorted(self.rows_R, row))
        if at >= self.rows_R.numel() or int(self.rows_R[at]) != row:
            raise KeyError(row)
        mine, known = int(self.accepted_R[at]), int(self.known_R[at])
        return accepted == mine if mine < known or known == self.steps else accepted >= mine


@dataclass
class Walked:
    """What a server's counters would say of one sample's requests, or of many added.

    ``low``/``high``: accepted per position without and with every draft past a request's end that may have been counted. ``at_risk``: runs
    that reached each step with a known outcome. ``censored``: runs cut where the stored text leaves the target's path, ``ended`` at a
    response's end.
    """

    low: list[int]
    high: list[int]
    at_risk: list[int]
    drafts: int = 0
    censored: int = 0
    ended: int = 0

    @classmethod
    def zero(cls, steps: int) -> Walked:
        return cls([0] * steps, [0] * steps, [0] * steps)

    def add(self, other: Walked) -> None:
        for mine, theirs in ((self.low, other.low), (self.high, other.high), (self.at_risk, other.at_risk)):
            mine[:] = [a + b for a, b in zip(mine, theirs, strict=True)]
        self.drafts += other.drafts
        self.censored += other.censored
        self.ended += other.ended


@dataclass(frozen=True, kw_only=True)
class Limits:
    """``covered`` of ``labelled`` target tokens are in the draft vocabulary; ``rates`` per step given that all before were right."""

    covered: int
    labelled: int
    rates: tuple[float | None, ...]


class Predictor:
    """A drafter and its target, ready to be wired in any way."""

    def __init__(self, checkpoint: DrafterCheckpoint, target: Target, *, steps: int, device: torch.device, dtype: torch.dtype) -> None:
        self.checkpoint, self.target, self.steps = checkpoint, target, steps
        self.right = right_wiring(checkpoint, target)
        self.drafter = self._last = Drafter(Weights(checkpoint, target, device, dtype), self.right)

    def rewired(self, wiring: Wiring) -> Drafter:
        """The drafter wired so; the last one asked for is kept, since explanations are tried on one sample after another."""
        if wiring == self.right:
            return self.drafter
        if self._last.wiring != wiring:
            self._last = Drafter(self.drafter.weights, wiring)
        return self._last

    # ---- samples -------------------------------------------------------------------------------------------------

    def held_layers(self, sample: Sample) -> tuple[int, ...]:
        """Layer inputs of the sample's aux states, in stored order; without ids of its own they are those the drafter takes."""
        assert self.right.aux_layer_inputs is not None
        return self.right.aux_layer_inputs if sample.layer_ids is None else sample.layer_ids

    def check(self, sample: Sample) -> Sample:
        """For ``iter_samples``: a sample that right wiring can be predicted from, or InputError."""
        width, held = self.checkpoint.config.target_hidden_size, self.held_layers(sample)
        aux = tuple(sample.aux_ANH)
        if len(aux) == 1 and aux[0].shape[1] != width:
            aux = tuple(fields.split(aux[0], width))
        if len(aux) != len(held) or any(int(state.shape[1]) != width for state in aux):
            raise InputError(
                f"{sample.name}: holds {len(aux)} aux states of width {', '.join(sorted({str(int(s.shape[1])) for s in aux}))}, the drafter takes "
                f"{len(held)} of width {width}; these samples belong to another drafter or target."
            )
        missing = sorted(set(self.right.aux_layer_inputs or ()) - set(held) - {0})
        if missing:
            raise InputError(
                f"{sample.name}: holds the inputs of layers {list(held)}, the drafter takes {list(self.right.aux_layer_inputs or ())}; "
                f"record the samples again with layers {missing} among them."
            )
        if sample.final_NH is None:
            raise InputError(f"{sample.name}: holds no final hidden state, so the target's own choice is unknown; record samples that store it.")
        if int(sample.final_NH.shape[1]) != width:
            raise InputError(f"{sample.name}: its final hidden state is {int(sample.final_NH.shape[1])} wide, the target's width is {width}; these samples belong to another target.")
        return check_range(check_tokens(replace(sample, aux_ANH=aux), self.target.config.vocab_size), torch.float32)

    def load(self, sample: Sample, *, greedy: bool = False) -> Loaded:
        """Move a checked sample to the device; its labels are computed here, once for all explanations.

        ``greedy``: the responses are known to be what the target decoded greedily, so a stored token is its choice, also where states
        stored in low precision say otherwise.
        """
        device, dtype = self.drafter.weights.device, self.drafter.weights.dtype
        with torch.inference_mode():
            mask_N = sample.mask_N.clone()
            mask_N[0] = False
            assert sample.final_NH is not None
            found = check_final_state(sample, self.target)
            normed = sample.final_normed if found is None else found.normed
            final_NH = target_states(self.target, sample.final_NH, normed, device=device, dtype=dtype)
            states = dict(zip(self.held_layers(sample), sample.aux_ANH, strict=True))  # stay where they are mapped until they are used
            unnormed_NH = None if normed else sample.final_NH
            if unnormed_NH is not None:
                states.setdefault(self.target.config.num_layers, unnormed_NH)
            first = int(torch.nonzero(mask_N, as_tuple=True)[0][0]) - 1
            labels_N = torch.full(tuple(sample.tokens_N.shape), -1, dtype=torch.int64, device=device)
            labels_N[first:] = target_argmax(self.drafter.weights.target_head, final_NH[first:])
            responses = segments(mask_N.tolist())
            differ = sum(int((labels_N[a - 1 : b - 1].cpu() != sample.tokens_N[a:b]).sum()) for a, b in responses)
            if greedy:
                for a, b in responses:
                    labels_N[a - 1 : b - 1] = sample.tokens_N[a:b].to(device)
            return Loaded(
                differ=differ,
                name=sample.name, tokens_N=sample.tokens_N.to(device), mask_N=mask_N.to(device), labels_N=labels_N, states=states, final_NH=final_NH,
                unnormed_NH=unnormed_NH, responses=responses, normed=normed,
            )  # fmt: skip

    def features(self, loaded: Loaded, wiring: Wiring) -> list[torch.Tensor]:
        """The aux states that this wiring hands to the drafter, [n, H_target] each, in the order of fc's blocks."""
        inputs = wiring.aux_layer_inputs or ()
        if wiring.features == "final":
            return [loaded.final_NH] * len(inputs)
        if 0 in inputs and 0 not in loaded.states:
            plain = self.drafter.rewired(embedding="target", embedding_scaled=True)
            with torch.inference_mode():
                loaded.states[0] = plain.embed(loaded.tokens_N)
        return [loaded.states[i] for i in inputs]

    def limits(self, loaded: Sequence[Loaded], rates: tuple[float | None, ...]) -> Limits:
        """What limits right wiring: how many of the responses' labels the draft vocabulary holds, and the rates given."""
        known_V = self._known_tokens()
        covered = labelled = 0
        for one in loaded:
            labels = one.labels_N[one.mask_N & (one.labels_N >= 0)].cpu()
            covered, labelled = covered + int(known_V[labels].sum()), labelled + int(labels.numel())
        return Limits(covered=covered, labelled=labelled, rates=rates)

    def breakdown(self, loaded: Sequence[Loaded], runs: Sequence[Runs]) -> Breakdown:
        """Where first drafts are right, over the rows whose verdict is known."""
        known_V = self._known_tokens().tolist()
        total = Breakdown()
        for one, each in zip(loaded, runs, strict=True):
            at_R = each.known_R > 0
            total.add(
                break_down(
                    one.tokens_N.tolist(), one.labels_N.tolist(), each.rows_R[at_R].tolist(), (each.accepted_R[at_R] > 0).tolist(), one.responses, known_V
                )
            )
        return total

    def _known_tokens(self) -> torch.Tensor:
        """Which tokens of the target the drafter can express, bool [V]."""
        known_V = torch.full((self.checkpoint.config.vocab_size,), self.drafter.ids_D is None)
        if self.drafter.ids_D is not None:
            known_V[self.drafter.ids_D.cpu()] = True
        return known_V

    # ---- predictions ---------------------------------------------------------------------------------------------

    def runs(self, loaded: Loaded, explanation: Explanation, rows_R: torch.Tensor | None = None) -> Runs:
        """Accepted runs of rows (default: all of responses) when each is asked by itself, as the end of a prompt."""
        rows_R = loaded.rows_R if rows_R is None else rows_R
        return self._runs(loaded, rows_R, self._matches(loaded, explanation.wiring(self.right), rows_R))

    def walk(self, loaded: Loaded, explanation: Explanation) -> Walked:
        """What the counters of a server decoding these requests greedily would say."""
        if explanation.path_dependent:
            return self._walk_lived([loaded], explanation.wiring(self.right))[0]
        return self._walk_read(loaded, self._matches(loaded, explanation.wiring(self.right), loaded.rows_R))

    def predict(self, loaded: Loaded, explanation: Explanation) -> tuple[Walked, Runs]:
        """Both at the price of one."""
        return next(self.predict_each([loaded], explanation))

    def predict_each(self, loaded: Sequence[Loaded], explanation: Explanation) -> Iterator[tuple[Walked, Runs]]:
        """Both, sample by sample; walks that have to be lived through go side by side."""
        wiring = explanation.wiring(self.right)
        lived = iter(self._walk_lived(loaded, wiring) if explanation.path_dependent else ())
        for one in loaded:
            rows_R = one.rows_R
            matches_R = self._matches(one, wiring, rows_R)
            yield next(lived) if explanation.path_dependent else self._walk_read(one, matches_R), self._runs(one, rows_R, matches_R)

    def _runs(self, loaded: Loaded, rows_R: torch.Tensor, matches_R: torch.Tensor) -> Runs:
        known_R = self._known(loaded, rows_R)
        return Runs(rows_R=rows_R.cpu(), accepted_R=torch.minimum(matches_R, known_R).cpu(), known_R=known_R.cpu(), steps=self.steps)

    def _walk_read(self, loaded: Loaded, matches_R: torch.Tensor) -> Walked:
        """The walk over rows whose leading matches are known."""
        walk = _Bounded(loaded.tokens_N.tolist(), loaded.labels_N.tolist(), loaded.responses, self.steps)
        matches = dict(zip(loaded.rows_R.tolist(), matches_R.tolist(), strict=True))
        while not walk.done:
            walk.offer(walk.label if walk.step < matches[walk.row] else NO_TOKEN)
        return walk.walked()

    def _walk_lived(self, loaded: Sequence[Loaded], wiring: Wiring) -> list[Walked]:
        """The walk of each response in its turn, where a draft depends on those before it in the same request; summed per sample."""
        totals = [Walked.zero(self.steps) for _ in loaded]
        walks: list[tuple[Walked, _Bounded]] = []
        with torch.inference_mode():
            drafter = self.rewired(wiring)
            pool = WalkPool(drafter, _LIVED)
            for one, total in zip(loaded, totals, strict=True):
                features = self.features(one, wiring)
                tokens, labels = one.tokens_N.tolist(), one.labels_N.tolist()
                for response in one.responses:
                    walks.append((total, _Bounded(tokens, labels, [response], self.steps)))
                    pool.add(walks[-1][1], one.tokens_N, features, decode_from=response[0])
                    while pool.full:
                        pool.tick()
            while len(pool):
                pool.tick()
        for total, walk in walks:
            total.add(walk.walked())
        return totals

    def _known(self, loaded: Loaded, rows_R: torch.Tensor) -> torch.Tensor:
        """How many verdicts of each row the stored text tells, int8 [R]."""
        tokens_N, labels_N = loaded.tokens_N, loaded.labels_N
        n = int(tokens_N.shape[0])
        follows_N = torch.zeros(n, dtype=torch.bool, device=tokens_N.device)  # [q]: the stored token q+1 is the target's choice at q
        follows_N[:-1] = labels_N[:-1] == tokens_N[1:]
        known_R = torch.zeros(rows_R.shape[0], dtype=torch.int8, device=tokens_N.device)
        alive_R = torch.ones_like(known_R, dtype=torch.bool)
        for k in range(self.steps):
            at_R = rows_R + k
            alive_R = alive_R & (at_R < n - 1) & follows_N[at_R.clamp(max=n - 1)]
            known_R += alive_R.to(torch.int8)
        return known_R

    def _matches(self, loaded: Loaded, wiring: Wiring, rows_R: torch.Tensor) -> torch.Tensor:
        """Leading drafts that equal the target's choice along the stored text, int8 [R]."""
        # A row asked by itself has no accepted tokens behind it, whatever keys those would leave.
        wiring = replace(wiring, accepted_keys=self.right.accepted_keys)
        if wiring == self.right and loaded.matched is not None and torch.equal(loaded.matched[0], rows_R):
            return loaded.matched[1]
        matches_R = self._roll(loaded, wiring, rows_R)
        if wiring == self.right:
            loaded.matched = rows_R, matches_R
        return matches_R

    def _roll(self, loaded: Loaded, wiring: Wiring, rows_R: torch.Tensor) -> torch.Tensor:
        drafter = self.rewired(wiring)
        with torch.inference_mode():
            features = self.features(loaded, wiring)
            begun = self._begin(loaded, drafter, features, rows_R)
            found = rollout(drafter, loaded.tokens_N, features, steps=self.steps, rows_R=rows_R, labels_LN=loaded.labels_N[None], begun=begun)
            n = int(loaded.tokens_N.shape[0])
            at_RK = found.rows_R[:, None] + 1 + torch.arange(self.steps, device=rows_R.device)
            label_RK = torch.where(at_RK < n, loaded.labels_N[at_RK.clamp(max=n - 1)], NO_TOKEN)
            return (found.drafts_RK == label_RK).cumprod(dim=1).sum(dim=1).to(torch.int8)

    def _begin(self, loaded: Loaded, drafter: Drafter, features: list[torch.Tensor], rows_R: torch.Tensor) -> tuple[Prefix, Drafts] | None:
        """Draft step 0, kept where it is right wiring's: many faults touch later steps only."""
        if rows_R.numel() == 0:
            return None
        key = replace(drafter.wiring, **{name: getattr(self.right, name) for name in LATER})
        if key != self.right:
            return None
        kept = loaded.begun.get(key)
        if kept is None or not torch.equal(kept[0], rows_R):
            prefix, drafts = drafter.begin(loaded.tokens_N, features, rows_R)
            assert drafts is not None
            kept = loaded.begun[key] = (rows_R, prefix, drafts)
        return kept[1], kept[2]


class _Bounded(Walk):
    """A walk that also notes at which step runs were cut, so that what lies past a cut can be bounded."""

    def __init__(self, tokens: Sequence[int], labels: Sequence[int], responses: Sequence[tuple[int, int]], steps: int) -> None:
        super().__init__(tokens, labels, responses, steps)
        self._cut = [0] * steps

    def offer(self, token: int) -> bool:
        before, at = self.counts.ended, self.step
        going = super().offer(token)
        if self.counts.ended > before:
            for k in range(at + 1, self._steps):
                self._cut[k] += 1
        return going

    def walked(self) -> Walked:
        counts = self.counts
        return Walked(
            low=list(counts.accepted), high=[a + c for a, c in zip(counts.accepted, self._cut, strict=True)], at_risk=list(counts.at_risk),
            drafts=counts.drafts, censored=counts.censored, ended=counts.ended,
        )  # fmt: skip
