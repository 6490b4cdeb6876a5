"""What a server did inside its drafter, computed again under a wiring: the first tensor that departs names the fault. Pure: captures in, findings out.

Every check is local: each tensor is computed from what the *server* had before it, not from the replay's own earlier results. So one fault shows in one
place, and several in several.

Dimension suffixes: M rows of a request, C draft calls, K draft steps, H drafter width.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

import torch

from eagle3_diag import heads
from eagle3_diag.captures import Captured
from eagle3_diag.catalogue import Catalogue, Explanation, combine
from eagle3_diag.drafter import Drafter
from eagle3_diag.hidden import Comparison, Dump, compare, precision_of

#: The tensors of a draft step in the order in which a server computes them, and what each is.
TENSORS = {
    "positions": "the positions given to the drafter",
    "tokens": "the tokens that it embedded",
    "features": "the target's states that it was given",
    "inputs": "fc's output",
    "fed-back": "the state fed back from the step before",
    "output": "the normed output of its layers",
    "drafts": "the drafted token",
}
# Largest relative error of a row that rounding explains, and the share of rows (of tokens) that may be off, by the server's precision.
_LIMITS = {"float32": (1e-3, 0.0), "float16": (1e-2, 0.02), "bfloat16": (5e-2, 0.05)}
# Calls per request on which explanations are tried, and how many requests.
_CALLS, _REQUESTS = 12, 4
_LEAST = 4


@dataclass
class Tally:
    """One tensor at one step: rows compared, rows that depart, the largest relative error, and the first row that departs (request, row)."""

    of: int = 0
    wrong: int = 0
    worst: float = 0.0
    first: tuple[str, int] | None = None


@dataclass(frozen=True, kw_only=True)
class Departure:
    """A tensor that a right server would have computed otherwise. ``error`` None: tokens or positions, which are equal or not."""

    step: int
    tensor: str
    of: int
    wrong: int
    error: float | None
    request: str
    row: int


@dataclass(frozen=True, kw_only=True)
class Replay:
    """``departures`` in the order of computation (empty: the server is wired as replayed); ``checked`` (step, tensor) with rows compared;
    ``explanations`` under which nothing departs; ``features`` how the captured states stand to the samples', where texts met."""

    requests: int
    calls: int
    checked: tuple[tuple[int, str, int], ...]
    departures: tuple[Departure, ...]
    explanations: tuple[Explanation, ...] = ()
    features: Comparison | None = None
    notes: tuple[str, ...] = ()


@dataclass
class _Checks:
    """Tallies by (step, tensor)."""

    limit: float
    share: float
    tallies: dict[tuple[int, str], Tally] = field(default_factory=dict)

    def states(self, step: int, tensor: str, request: str, rows: torch.Tensor, error_R: torch.Tensor) -> None:
        known = ~torch.isnan(error_R)
        self.add(step, tensor, request, rows[known], error_R[known] > self.limit, error_R[known])

    def equal(self, step: int, tensor: str, request: str, rows: torch.Tensor, expected_R: torch.Tensor, found_R: torch.Tensor) -> None:
        known = found_R >= 0
        self.add(step, tensor, request, rows[known], (expected_R != found_R)[known], None)

    def add(self, step: int, tensor: str, request: str, rows: torch.Tensor, wrong_R: torch.Tensor, error_R: torch.Tensor | None) -> None:
        if not wrong_R.numel():
            return
        tally = self.tallies.setdefault((step, tensor), Tally())
        tally.of += int(wrong_R.numel())
        tally.wrong += int(wrong_R.sum())
        if error_R is not None:
            tally.worst = max(tally.worst, float(error_R.max()))
        if tally.first is None and bool(wrong_R.any()):
            tally.first = (request, int(rows[wrong_R][0]))

    def departures(self) -> tuple[Departure, ...]:
        order = list(TENSORS)
        found = []
        for (step, tensor), t in sorted(self.tallies.items(), key=lambda item: (item[0][0], order.index(item[0][1]))):
            exact = tensor in ("positions", "tokens")
            if t.first is not None and (t.wrong > self.share * t.of or exact):
                error = None if exact or tensor == "drafts" else float(f"{t.worst:.3g}")
                found.append(Departure(step=step, tensor=tensor, of=t.of, wrong=t.wrong, error=error, request=t.first[0], row=t.first[1]))
        return tuple(found)


def replay(drafter: Drafter, captures: Sequence[Captured], listed: Catalogue, references: Iterable[Dump] = ()) -> Replay:
    """Compute every captured request again under right wiring; where something departs, find what explains it.

    ``references`` are dumps of the target's own states, with their layers; captured texts that begin alike are held against them.
    """
    usable, notes = _usable(captures)
    right = drafter.rewired()
    found = _check(right, usable)
    features, texts = _features(right, usable, references, found)
    if texts == 0:
        notes.append("no sample begins with a captured text, so which of the target's states were captured could not be checked; record the captured prompts")
    departures = found.departures()
    explanations: tuple[Explanation, ...] = ()
    if departures:
        explanations = _explain(right, usable, listed, departures, features)
    checked = tuple((step, tensor, t.of) for (step, tensor), t in sorted(found.tallies.items(), key=lambda i: (i[0][0], list(TENSORS).index(i[0][1]))))
    return Replay(
        requests=len(usable), calls=sum(int(c.drafts_CK.shape[0]) for c in usable), checked=checked, departures=departures,
        explanations=explanations, features=features, notes=tuple(notes),
    )  # fmt: skip


def _usable(captures: Sequence[Captured]) -> tuple[list[Captured], list[str]]:
    """Captures that hold every row from the text's beginning on. Raises InputError when there is none."""
    from eagle3_diag.errors import InputError

    usable, notes = [], []
    for each in captures:
        if int(each.positions_M[0]) >= 8:  # a fault of positions is one or two; a cached prefix is a block of 16 or more
            notes.append(f"{each.name}: begins at position {int(each.positions_M[0])}, its prefix came from the server's cache; capture with prefix caching off")
        else:
            usable.append(each)
        if each.about.get("cut_off"):
            notes.append(f"{each.name}: was cut off at the capture's size limit; what was captured before is replayed")
        if each.step_states_CKH is None:
            notes.append(f"{each.name}: holds no states of the draft steps (CUDA graphs hide them), so only tokens and features were checked; start the server in eager mode")
    if not usable:
        raise InputError(notes[0] if notes else "no capture was given")
    return usable, sorted(set(notes))


def _limits(captures: Sequence[Captured]) -> tuple[float, float]:
    known = [t for c in captures for t in (c.inputs_MH, c.features_MF) if t is not None]
    names = [precision_of(t) for t in known] or ["bfloat16"]
    return _LIMITS[min(names, key=list(reversed(_LIMITS)).index)]


def _check(drafter: Drafter, captures: Sequence[Captured], calls: int | None = None) -> _Checks:
    limit, share = _limits(captures)
    checks = _Checks(limit, share)
    for each in captures:
        _check_one(checks, drafter, each, calls)
    return checks


def _check_one(checks: _Checks, drafter: Drafter, c: Captured, calls: int | None) -> None:
    wiring, name = drafter.wiring, c.name
    device, dtype = drafter.weights.device, drafter.weights.dtype
    all_M = torch.arange(c.positions_M.shape[0])
    offset = _offset(drafter, c)
    expected_M = all_M + offset + wiring.decode_offset * (all_M >= c.prompt_rows)
    checks.equal(0, "positions", name, all_M, expected_M, c.positions_M)
    text = c.sequence()
    if c.target_tokens_M is not None:
        inside = (all_M + wiring.token_shift >= 0) & (all_M + wiring.token_shift < text.shape[0] - 1)
        checks.equal(0, "tokens", name, all_M[inside], text[(all_M + wiring.token_shift)[inside]], c.tokens_M[inside])
    rows_C = c.last_rows_C[:calls]
    if c.features_MF is not None and c.inputs_MH is not None:
        states = [s.to(device, dtype) for s in _split(c.features_MF, drafter)]
        if drafter.wiring.fc == "skipped" or len(states) == drafter.config.num_aux:
            project = drafter.rewired(feature_shift=0)
            checks.states(0, "inputs", name, all_M, _errors(project.project(states), c.inputs_MH))
    if c.inputs_MH is None or c.step_states_CKH is None:
        _tokens_only(checks, drafter, c, rows_C)
        return
    # The layers alone: the server's own rows go in as they are.
    layers = drafter.rewired(
        fc="skipped", aux_order=None, features_rotated=False, features_quantised=None, feature_shift=0, token_shift=1, feedback="pre-norm", fc_on_feedback=False
    )
    tokens_N = torch.cat([torch.zeros(1, dtype=torch.int64), c.tokens_M]).to(device)
    prefix, drafts = layers.begin(tokens_N, [c.inputs_MH.to(device, dtype)], rows_C.to(device), c.prompt_rows)
    assert drafts is not None
    steps = int(c.drafts_CK.shape[1])
    input_CH = prefix.input_TH[drafts.rows_R]
    for k in range(steps):
        normed_CH = drafter.normed(drafts.state_RH)
        server_CH, off_C = normed_CH, torch.zeros(rows_C.shape[0])
        if c.step_normed_CKH is not None:
            server_CH = c.step_normed_CKH[: rows_C.shape[0], k].to(device, dtype)
            off_C = _errors(normed_CH, server_CH)
            checks.states(k, "output", name, rows_C, off_C)
        _drafted(checks, drafter, c, k, rows_C, server_CH)
        if k + 1 == steps:
            break
        there_C = c.step_positions_CK[: rows_C.shape[0], k + 1] >= 0
        if not bool(there_C.all()):
            rows_C = rows_C[there_C]
            if not rows_C.numel():
                break
            c = _without(c, there_C)
            drafts, input_CH = drafts.keep(there_C.to(device)), input_CH[there_C.to(device)]
        at = slice(0, rows_C.shape[0])
        expected = rows_C + offset + wiring.decode_offset + (k + 1) * wiring.position_step
        checks.equal(k + 1, "positions", name, rows_C, expected, c.step_positions_CK[at, k + 1])
        checks.equal(k + 1, "tokens", name, rows_C, c.drafts_CK[at, k], c.step_tokens_CK[at, k + 1])
        assert c.step_states_CKH is not None
        fed_CH = c.step_states_CKH[at, k + 1].to(device, dtype)
        error_C = _errors(drafter.feed_back(drafts.state_RH, input_CH), fed_CH)
        if wiring.feedback in ("pre-norm", "post-norm") and not wiring.fc_on_feedback:
            # Where the output itself departs, what is fed back must at least be the state that this output is made of.
            alike_C = _errors(server_CH, drafter.normed(fed_CH) if wiring.feedback == "pre-norm" else fed_CH)
            error_C = torch.where(off_C > 0.1 * checks.limit, torch.minimum(alike_C, error_C), error_C)
        checks.states(k + 1, "fed-back", name, rows_C, error_C)
        drafts = layers.next(prefix, replace(drafts, state_RH=fed_CH), c.step_tokens_CK[at, k + 1].to(device))


def _errors(expected_RH: torch.Tensor, found_RH: torch.Tensor) -> torch.Tensor:
    """Relative error of each row, float32 [R] on the CPU; NaN where nothing was found, infinite where it is not finite."""
    expected_RH, found_RH = expected_RH.float().cpu(), found_RH.float().cpu()
    error_R = (found_RH - expected_RH).norm(dim=-1) / expected_RH.norm(dim=-1).clamp(min=1e-30)
    error_R = torch.where(torch.isfinite(error_R), error_R, torch.full_like(error_R, torch.inf))
    return torch.where(torch.isnan(found_RH).all(-1), torch.full_like(error_R, torch.nan), error_R)


def _offset(drafter: Drafter, c: Captured) -> int:
    """Position of the first row: trainers count from 0 or from 1, which only rotary embeddings that depend on the length can tell apart."""
    rope = drafter.wiring.rope or drafter.config.rope
    return drafter.wiring.position_offset if rope.type in ("dynamic", "longrope") else int(c.positions_M[0])


def _without(c: Captured, keep_C: torch.Tensor) -> Captured:
    """The capture with only some of its calls (the first ones), for the drafts that are shorter than others."""
    n = keep_C.shape[0]

    def cut(t: torch.Tensor | None) -> torch.Tensor | None:
        return None if t is None else t[:n][keep_C]

    return replace(
        c, drafts_CK=c.drafts_CK[:n][keep_C], step_positions_CK=c.step_positions_CK[:n][keep_C], step_tokens_CK=c.step_tokens_CK[:n][keep_C],
        step_states_CKH=cut(c.step_states_CKH), step_outputs_CKH=cut(c.step_outputs_CKH), step_normed_CKH=cut(c.step_normed_CKH),
    )  # fmt: skip


def _drafted(checks: _Checks, drafter: Drafter, c: Captured, k: int, rows_C: torch.Tensor, normed_CH: torch.Tensor) -> None:
    """The token that the head draws from the state it saw. A near tie is no departure: rounding decides it."""
    found_C = c.drafts_CK[: rows_C.shape[0], k]
    index_C = heads.argmax(normed_CH, drafter.head_VH)
    expected_C = drafter.draft_ids(index_C).cpu()
    other = torch.nonzero((expected_C != found_C) & (found_C >= 0), as_tuple=True)[0]
    if other.numel():
        logits = normed_CH[other.to(normed_CH.device)].float() @ drafter.head_VH.to(normed_CH.device).float().T
        ids_D = drafter.draft_ids(torch.arange(logits.shape[1], device=logits.device))
        for i, row in enumerate(other.tolist()):
            theirs = torch.nonzero(ids_D == int(found_C[row]), as_tuple=True)[0]
            if theirs.numel() and float(logits[i].max() - logits[i, theirs].max()) < checks.limit * float(logits[i].std()):
                expected_C[row] = found_C[row]
    checks.equal(k, "drafts", c.name, rows_C, expected_C, found_C)


def _tokens_only(checks: _Checks, drafter: Drafter, c: Captured, rows_C: torch.Tensor) -> None:
    """Without the states of the draft steps: the whole chain from the features, the server's own drafts fed."""
    if c.features_MF is None:
        return
    device, dtype = drafter.weights.device, drafter.weights.dtype
    states = [s.to(device, dtype) for s in _split(c.features_MF, drafter)]
    if len(states) != drafter.config.num_aux and drafter.wiring.fc != "skipped":
        return
    chain = drafter.rewired(feature_shift=0, token_shift=1)
    tokens_N = torch.cat([torch.zeros(1, dtype=torch.int64), c.tokens_M]).to(device)
    padded = [torch.cat([s, s[-1:]]) for s in states]
    prefix, drafts = chain.begin(tokens_N, padded, rows_C.to(device), c.prompt_rows)
    assert drafts is not None
    for k in range(int(c.drafts_CK.shape[1])):
        _drafted(checks, drafter, c, k, rows_C, drafter.normed(drafts.state_RH))
        fed_C = c.drafts_CK[: rows_C.shape[0], k]
        if k + 1 < c.drafts_CK.shape[1] and bool((fed_C >= 0).all()):
            drafts = chain.next(prefix, drafts, fed_C.to(device))


# ---- features against the target's own -------------------------------------------------------------------------------


def _features(drafter: Drafter, captures: Sequence[Captured], references: Iterable[Dump], checks: _Checks) -> tuple[Comparison | None, int]:
    """Hold captured features against the dump whose text begins most alike. Returns the first comparison that differs (else the last), and how many met."""
    waiting = [c for c in captures if c.features_MF is not None]
    expected = drafter.wiring.aux_layer_inputs
    seen: Comparison | None = None
    met = 0
    for reference in references:
        if not waiting or reference.tokens_N is None:
            continue
        for c in list(waiting):
            length = _common(c, reference.tokens_N)
            if length < min(_LEAST, int(c.positions_M.shape[0])):
                continue
            waiting.remove(c)
            met += 1
            dump = c.dump(drafter.config.target_hidden_size)
            cut = Dump(name=dump.name, states=tuple(replace(s, x_NH=s.x_NH[:length]) for s in dump.states))
            inner = Dump(name=reference.name, states=tuple(replace(s, x_NH=s.x_NH[:length]) for s in reference.states))
            compared = compare(inner, cut, expected=expected)
            rows = torch.arange(length)
            wrong = torch.full((length,), compared.verdict == "differs")
            worst = max((m.worst or 0.0 for m in compared.matches), default=0.0)
            checks.add(0, "features", c.name, rows, wrong, torch.full((length,), worst))
            if seen is None or seen.verdict != "differs":
                seen = compared
    return seen, met


def _common(c: Captured, tokens_N: torch.Tensor) -> int:
    """How many tokens a captured text shares with a sample's from the start; the first token is unknown without target tokens."""
    mine = c.sequence()[:-1]
    n = min(int(mine.shape[0]), int(tokens_N.shape[0]))
    same = (mine[:n] == tokens_N[:n]) | (mine[:n] < 0)
    return int(torch.cumprod(same.int(), dim=0).sum())


# ---- what explains it ------------------------------------------------------------------------------------------------


def _explain(
    drafter: Drafter, captures: Sequence[Captured], listed: Catalogue, departures: Sequence[Departure], features: Comparison | None
) -> tuple[Explanation, ...]:
    """Explanations under which nothing departs: single ones, else two at once."""
    by_states = _by_states(drafter, listed, features)
    rest = [d for d in departures if d.tensor != "features"]
    if not rest:
        return by_states
    requests = {d.request for d in rest}
    few = sorted(captures, key=lambda c: (c.name not in requests, int(c.positions_M.shape[0])))[:_REQUESTS]
    candidates = [e for e in listed if not e.is_right and e.exact and (changed := _rewired(drafter, e)) is not None and changed is not drafter]
    first = (rest[0].step, rest[0].tensor)
    halves, whole = [], []
    for each in candidates:
        left = _left(drafter, each, few)
        if not left:
            whole.append(each)
        elif first not in {(d.step, d.tensor) for d in left}:
            halves.append(each)
    if not whole:
        for one in halves[:8]:
            pairs = [both for other in candidates if (both := combine(one, other)) is not None]
            whole += [both for both in pairs if both.id not in {w.id for w in whole} and not _left(drafter, both, few)]
    if by_states:
        joined = [both for one in by_states for other in whole if (both := combine(one, other)) is not None]
        return tuple(joined) or by_states
    return tuple(whole)


def _left(drafter: Drafter, explanation: Explanation, captures: Sequence[Captured]) -> tuple[Departure, ...]:
    changed = _rewired(drafter, explanation)
    return () if changed is None else _check(changed, captures, _CALLS).departures()


def _rewired(drafter: Drafter, explanation: Explanation) -> Drafter | None:
    """The drafter under an explanation, as far as a replay can tell: states that the server took instead of others show in the features."""
    changes = dict(explanation.changes)
    right = drafter.wiring.aux_layer_inputs
    inputs = changes.pop("aux_layer_inputs", None)
    if changes.get("features") == "final" or changes.get("accepted_keys") or changes.get("target_norm") or changes.get("feature_shift"):
        return None
    if inputs is not None:
        if right is None or any(i not in right for i in inputs):
            return None
        changes["aux_order"] = tuple(right.index(i) for i in inputs)
    return drafter.rewired(**changes)


def _by_states(drafter: Drafter, listed: Catalogue, features: Comparison | None) -> tuple[Explanation, ...]:
    """Explanations that say what the comparison of features found: these layers in this order, late or early, quantised or rotated."""
    if features is None or features.verdict != "differs":
        return ()
    matches = features.matches
    layers = [int(m.a.split()[1]) if m.a is not None and m.a.startswith("layer ") else None for m in matches]
    codes = {f.code for f in features.findings}
    changes: dict[str, object] = {}
    right = drafter.wiring.aux_layer_inputs
    known_layers = tuple(i for i in layers if i is not None)
    if len(known_layers) == len(layers) and known_layers != right and right is not None:
        among = all(i in right for i in known_layers)
        changes["aux_order" if among else "aux_layer_inputs"] = tuple(right.index(i) for i in known_layers) if among else known_layers
    shifts = {m.shift for m in matches}
    if len(shifts) == 1 and 0 not in shifts:
        changes["feature_shift"] = shifts.pop()
    if "quantised" in codes:
        changes["features_quantised"] = next(m.detail["to"] for m in matches if m.relation == "quantised")
    if "rotated" in codes:
        changes["features_rotated"] = True
    known = (*listed.explanations, *(each.explanation for each in listed.untestable))
    whole = [e for e in known if changes and all(dict(e.changes).get(k) == v for k, v in changes.items()) and e.changes.keys() - {"instance"} == changes.keys()]
    if whole or len(changes) < 2:
        return tuple(whole)
    single = {k: next((e for e in known if dict(e.changes).get(k) == v and e.changes.keys() - {"instance"} == {k}), None) for k, v in changes.items()}
    parts = [e for e in single.values() if e is not None]
    both = combine(parts[0], parts[1]) if len(parts) == 2 else None
    return () if both is None else (both,)


def _split(features_MF: torch.Tensor, drafter: Drafter) -> tuple[torch.Tensor, ...]:
    """The joined features as one state each."""
    states: tuple[torch.Tensor, ...] = features_MF.split(drafter.config.target_hidden_size, dim=1)  # type: ignore[no-untyped-call]
    return states
