"""Drafts from every row of a stored sequence at once, exactly as a server would draft from each.

While a draft is right, its tokens are the sequence's own; so the leading run of matches of row t is what a server drafting
greedily from t would get accepted. A row that has gone wrong under every label in use can be dropped: later steps compute
only the rows that are still right.

Dimension suffixes: R rows, K draft steps, N tokens of the sequence, L label sets.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from eagle3_diag import heads
from eagle3_diag.acceptance import Walk
from eagle3_diag.drafter import Drafter, Drafts, Keys, Prefix, rms_norm
from eagle3_diag.target import Target


@dataclass(frozen=True, kw_only=True)
class Rollout:
    """``rows_R`` ascending rows t; ``drafts_RK`` drafted target-vocabulary ids, -1 where the row had been dropped."""

    rows_R: torch.Tensor
    drafts_RK: torch.Tensor


def target_states(target: Target, final_NH: torch.Tensor, normed: bool, *, device: torch.device, dtype: torch.dtype) -> torch.Tensor:
    """What the target's head is applied to, from the stored final state (before or after the norm)."""
    state_NH = final_NH.to(device, dtype)
    if normed:
        return state_NH
    config = target.config
    return rms_norm(state_NH, target.norm_weight().to(device, dtype), config.rms_norm_eps, config.norm_offset)


def target_argmax(head_VH: torch.Tensor, state_RH: torch.Tensor, ids_V: torch.Tensor | None = None) -> torch.Tensor:
    """The target's next token at each state, int64 [R]: over the whole vocabulary, or over the ids given (ascending)."""
    index_R = heads.argmax(state_RH, head_VH, ids_V)
    return index_R if ids_V is None else ids_V.to(index_R.device)[index_R]


def target_labels(drafter: Drafter, state_NH: torch.Tensor, wanted_N: torch.Tensor, ids_V: torch.Tensor | None) -> torch.Tensor:
    """The target's argmax (over ``ids_V``, or everything) at the positions where ``wanted_N`` holds, -1 elsewhere: int64 [n]."""
    labels_N = torch.full(wanted_N.shape, -1, dtype=torch.int64, device=state_NH.device)
    at = torch.nonzero(wanted_N, as_tuple=True)[0]
    if at.numel():
        labels_N[at] = target_argmax(drafter.weights.target_head, state_NH[at], ids_V)
    return labels_N


def reach(mask_N: torch.Tensor, steps: int) -> torch.Tensor:
    """Positions where ``steps`` drafts from rows of a response are verified: those of the mask and ``steps - 1`` behind each, bool [n]."""
    reached_N = mask_N.clone()
    for k in range(1, min(steps, int(mask_N.shape[0]))):
        reached_N[k:] |= mask_N[:-k]
    return reached_N


def rollout(
    drafter: Drafter,
    tokens_N: torch.Tensor,
    aux: Sequence[torch.Tensor],
    *,
    steps: int,
    rows_R: torch.Tensor | None = None,
    labels_LN: torch.Tensor | None = None,
    feed: str = "own",
    begun: tuple[Prefix, Drafts] | None = None,
) -> Rollout:
    """Draft ``steps`` tokens from rows of one sequence.

    Args:
        tokens_N: int64 [n], on the drafter's device.
        aux: the aux hidden states, each [n, H_target], in stored order.
        rows_R: ascending int64 rows (each <= n-2); None = all.
        labels_LN: int64 [L, n]; step k of row t is right under set l when the draft equals ``labels_LN[l, t+1+k]``. -1 marks a
            position without a label. A row lives while it is right at every step so far under at least one set. None drops none.
        feed: ``own`` feeds each row its own draft (servers, speculators); ``true`` feeds the sequence's tokens (SpecForge, EAGLE),
            with 0 past its end, as those trainers pad.
        begun: what ``drafter.begin`` gave for these very rows, to be used again by wirings that draft step 0 alike.
    """
    device = tokens_N.device
    n = int(tokens_N.shape[0])
    if rows_R is None:
        rows_R = torch.arange(n - 1, device=device)
    drafts_RK = torch.full((rows_R.shape[0], steps), -1, dtype=torch.int64, device=device)
    if rows_R.numel() == 0 or steps == 0:
        return Rollout(rows_R=rows_R, drafts_RK=drafts_RK)
    at_R = torch.arange(rows_R.shape[0], device=device)
    fed_R = at_R
    right_LR = torch.ones((1 if labels_LN is None else labels_LN.shape[0], rows_R.shape[0]), dtype=torch.bool, device=device)
    prefix, drafts = drafter.begin(tokens_N, list(aux), rows_R) if begun is None else begun
    assert drafts is not None
    for k in range(steps):
        if k > 0:
            drafts = drafter.next(prefix, drafts, fed_R)
        token_R = drafter.argmax(drafts.state_RH)
        drafts_RK[at_R, k] = token_R
        if labels_LN is not None:
            q_R = drafts.rows_R + 1 + k
            inside_R = q_R < n
            label_LR = torch.where(inside_R[None], labels_LN[:, q_R.clamp(max=n - 1)], -1)
            right_LR &= label_LR == token_R[None]
            alive_R = right_LR.any(dim=0)
            if not bool(alive_R.all()):
                drafts, at_R, right_LR, token_R = drafts.keep(alive_R), at_R[alive_R], right_LR[:, alive_R], token_R[alive_R]
            if at_R.numel() == 0:
                break
        if feed == "own":
            fed_R = token_R
        else:
            q_R = drafts.rows_R + 2 + k
            fed_R = torch.where(q_R < n, tokens_N[q_R.clamp(max=n - 1)], 0)
    return Rollout(rows_R=rows_R, drafts_RK=drafts_RK)


def draft_log_probabilities(
    drafter: Drafter, tokens_N: torch.Tensor, aux: Sequence[torch.Tensor], *, steps: int, rows_R: torch.Tensor, temperature: float
) -> torch.Tensor:
    """Log-probability the drafter gives to the stored token at each step of each row when fed the stored tokens: float64 [R, K].

    0 where the sequence has no such token (position t+2+k past its end).
    """
    n = int(tokens_N.shape[0])
    out_RK = torch.zeros((rows_R.shape[0], steps), dtype=torch.float64, device=tokens_N.device)
    if rows_R.numel() == 0:
        return out_RK
    prefix, drafts = drafter.begin(tokens_N, list(aux), rows_R)
    assert drafts is not None
    for k in range(steps):
        q_R = drafts.rows_R + 2 + k
        inside_R = q_R < n
        token_R = tokens_N[q_R.clamp(max=n - 1)]
        log_R = drafter.log_probability(drafts.state_RH, token_R, temperature)
        out_RK[:, k] = torch.where(inside_R, log_R, 0.0)
        if k + 1 < steps:
            drafts = drafter.next(prefix, drafts, token_R)
    return out_RK


@dataclass
class _Flight:
    """One sequence on its walk: its keys, the walk, and the draft in the making."""

    walk: Walk
    tokens_N: torch.Tensor
    prefix: Prefix
    decode_from: int | None = None
    drafts: Drafts | None = None
    token: int = -1


class WalkPool:
    """Runs many decoding walks side by side, so that every step is one matrix product over the sequences in flight.

    Keys and values are computed for every row; everything else only for the rows that the walks visit. Counts equal those of
    :func:`rollout` followed by the same walk. For one-layer drafters (further layers would need every row's output).
    """

    def __init__(self, drafter: Drafter, size: int) -> None:
        self.drafter, self.size = drafter, size
        self._flights: list[_Flight] = []

    @property
    def full(self) -> bool:
        return len(self._flights) >= self.size

    def __len__(self) -> int:
        return len(self._flights)

    def add(self, walk: Walk, tokens_N: torch.Tensor, aux: Sequence[torch.Tensor], decode_from: int | None = None) -> None:
        """Take a walk in; its keys are computed now, its features are not needed any more afterwards.

        ``decode_from``: the first row behind the prompt, where the walk is of one response only.
        """
        if walk.done:
            return
        prefix, _ = self.drafter.begin(tokens_N, list(aux), None, decode_from)
        self._flights.append(_Flight(walk, tokens_N, prefix, decode_from))

    def tick(self) -> None:
        """One draft step for every sequence in flight, whatever step each is at; finished ones leave."""
        drafter, flights = self.drafter, self._flights
        device = drafter.weights.device
        wiring = drafter.wiring
        tokens, positions, lengths = [], [], []
        for f in flights:
            row = f.walk.row
            if f.drafts is None:
                tokens.append(f.walk.token(row + wiring.token_shift))
                behind = f.decode_from is not None and row >= f.decode_from
                positions.append(row + wiring.position_offset + (wiring.decode_offset if behind else 0))
                lengths.append(f.prefix.length + wiring.position_offset)
            else:
                step = f.drafts.step + 1
                tokens.append(f.token)
                positions.append(row + wiring.position_offset + wiring.decode_offset + step * wiring.position_step)
                lengths.append(f.prefix.length + wiring.position_offset + step)
        state_BH = torch.stack([f.prefix.input_TH[f.walk.row] for f in flights])
        later = [i for i, f in enumerate(flights) if f.drafts is not None]
        at = torch.tensor(later, dtype=torch.int64, device=device)
        if later:
            state_BH[at] = drafter.feed_back(torch.cat([f.drafts.state_RH for f in flights if f.drafts is not None]), state_BH[at])
        embedded_BH = drafter.embed(torch.tensor(tokens, device=device))
        cos_sin = [drafter.rotary.angles(torch.tensor([p], device=device), n) for p, n in zip(positions, lengths, strict=True)]
        cos_BP, sin_BP = torch.cat([c for c, _ in cos_sin]), torch.cat([s for _, s in cos_sin])
        x_BX, residual_BH = drafter.attention_input(0, state_BH, embedded_BH)
        q_BND = drafter.queries(0, x_BX, cos_BP, sin_BP)
        own: dict[int, Keys] = {}
        if later:
            keys = drafter.keys(0, x_BX[at], cos_BP[at], sin_BP[at])
            own = {i: Keys(keys.k[j : j + 1], keys.v[j : j + 1]) for j, i in enumerate(later)}
        attended, mine_of = [], []
        for i, f in enumerate(flights):
            mine = [] if f.drafts is None else [*f.drafts.own[0], own[i]]
            mine_of.append(mine)
            rows_R = torch.tensor([f.walk.row], device=device)
            attended.append(drafter.attend(q_BND[i : i + 1], rows_R, f.prefix.layers[0], mine))
        out_BH = drafter.finish(0, torch.cat(attended), residual_BH)
        drafted = drafter.argmax(out_BH).tolist()
        for i, f in enumerate(flights):
            row, step, label = f.walk.row, f.walk.step, f.walk.label
            if f.walk.offer(drafted[i]):
                f.drafts = Drafts(torch.tensor([row], device=device), step, out_BH[i : i + 1], [mine_of[i]])
                f.token = drafted[i]
                continue
            f.drafts = None
            if wiring.accepted_keys == "own":
                accepted = step + (drafted[i] == label)
                prefix = f.prefix.layers[0]
                for later_row, kept in enumerate(mine_of[i][:accepted], start=row + 1):
                    if later_row < prefix.k.shape[0]:
                        prefix.k[later_row], prefix.v[later_row] = kept.k[0], kept.v[0]
        self._flights = [f for f in flights if not f.walk.done]
