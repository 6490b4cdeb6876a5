"""Predictions are the rollout under the rewired drafter, and the walk under it, whatever was shared on the way."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from eagle3_diag import demo
from eagle3_diag.acceptance import Walk
from eagle3_diag.catalogue import Catalogue, catalogue
from eagle3_diag.checkpoint import read_drafter
from eagle3_diag.drafter import Drafter
from eagle3_diag.errors import InputError
from eagle3_diag.evaluate import Options, evaluate
from eagle3_diag.predict import Loaded, Predictor, Runs, Walked
from eagle3_diag.rollout import rollout
from eagle3_diag.samples import iter_samples
from eagle3_diag.samples.interface import Sample
from eagle3_diag.target import read_target
from tests.eagle3_diag.pairs import make_pair

STEPS = 5
CPU = torch.device("cpu")
# One of each way in which a prediction is shared or is not.
CHOSEN = (
    "as-trained", "layers-plus-1", "embedding-as-first-state", "aux-order-reversed", "aux-capture-off", "features-late", "features-rotated",
    "embedding-foreign", "norms-swapped", "residual-flipped", "post-norm-fed-back", "prefix-unseen", "positions-stuck", "d2t-missing",
    "drafter-quantised-fp8", "rope-base-500000", "head-targets",
)  # fmt: skip


@pytest.fixture(scope="module")
def case() -> tuple[Predictor, list[Sample], list[Loaded], Catalogue]:
    paths = demo.paths()
    checkpoint, target = read_drafter(paths.drafter), read_target(paths.target)
    predictor = Predictor(checkpoint, target, steps=STEPS, device=CPU, dtype=torch.float32)
    samples = list(iter_samples([paths.samples], max_samples=3, check=predictor.check))
    return predictor, samples, [predictor.load(s) for s in samples], catalogue(checkpoint, target, predictor.held_layers(samples[0]))


@pytest.mark.parametrize("name", CHOSEN)
def test_runs_are_those_of_a_rollout_under_the_rewired_drafter(case: tuple[Predictor, list[Sample], list[Loaded], Catalogue], name: str) -> None:
    predictor, samples, loaded, listed = case
    explanation = listed.get(name)
    wiring = explanation.wiring(predictor.right)
    for sample, one in zip(samples, loaded, strict=True):
        runs = predictor.runs(one, explanation)
        assert sample.layer_ids is not None
        states = {i: s.float() for i, s in zip(sample.layer_ids, sample.aux_ANH, strict=True)}
        states[0] = predictor.target.embedding()[sample.tokens_N].float()
        aux = [one.final_NH] * 3 if wiring.features == "final" else [states[i] for i in wiring.aux_layer_inputs or ()]
        with torch.inference_mode():
            drafted = rollout(Drafter(predictor.drafter.weights, wiring), sample.tokens_N, aux, steps=STEPS)
        for at, row in enumerate(runs.rows_R.tolist()):
            known = 0
            while known < STEPS and row + known + 1 < sample.length and int(one.labels_N[row + known]) == int(sample.tokens_N[row + known + 1]):
                known += 1
            right = 0
            while right < known and int(drafted.drafts_RK[row, right]) == int(one.labels_N[row + 1 + right]):
                right += 1
            assert (int(runs.known_R[at]), int(runs.accepted_R[at])) == (known, right), (name, row)


@pytest.mark.parametrize("name", ["as-trained", "layers-minus-1", "norms-swapped", "feedback-zero"])
def test_the_walk_is_that_of_an_evaluation_wired_so(case: tuple[Predictor, list[Sample], list[Loaded], Catalogue], name: str) -> None:
    predictor, samples, loaded, listed = case
    wiring = listed.get(name).wiring(predictor.right)
    total = Walked.zero(STEPS)
    for one in loaded:
        total.add(predictor.walk(one, listed.get(name)))
    inputs = wiring.aux_layer_inputs or ()
    picked = [replace(s, aux_ANH=tuple(s.aux_ANH[(s.layer_ids or ()).index(i)] for i in inputs), layer_ids=inputs) for s in samples]
    found = evaluate(predictor.checkpoint, predictor.target, picked, Options(steps=STEPS), device=CPU, dtype=torch.float32, wiring=wiring).serving
    assert (total.drafts, total.low, total.at_risk) == (found.drafts, list(found.accepted_per_position), list(found.at_risk))
    assert (total.censored, total.ended) == (found.censored, found.ended)
    assert all(low <= high for low, high in zip(total.low, total.high, strict=True))


def test_keys_kept_from_draft_steps_equal_a_plain_loop(case: tuple[Predictor, list[Sample], list[Loaded], Catalogue]) -> None:
    """The contaminated cache, written down as a server would live through it."""
    predictor, _, loaded, listed = case
    drafter = predictor.drafter
    for one in loaded:
        features = [s.float() for s in predictor.features(one, predictor.right)]
        walk = Walk(one.tokens_N.tolist(), one.labels_N.tolist(), one.responses, STEPS)
        with torch.inference_mode():
            prefix, _ = drafter.begin(one.tokens_N, features, None)
            keys = prefix.layers[0]
            while not walk.done:
                row, accepted, going = walk.row, 0, True
                # The row's own step 0, from the keys as they stand now.
                x, residual = drafter.attention_input(0, prefix.input_TH[row : row + 1], drafter.embed(one.tokens_N[row + 1 : row + 2]))
                rows = torch.tensor([row])
                at = rows + drafter.wiring.position_offset
                cos, sin = drafter.rotary.angles(at, prefix.length)
                state = drafter.finish(0, drafter.attend(drafter.queries(0, x, cos, sin), rows, keys, []), residual)
                own = []
                while going:
                    token = drafter.argmax(state)
                    accepted += int(token) == walk.label
                    going = walk.offer(int(token))
                    if going:
                        x, residual = drafter.attention_input(0, state, drafter.embed(token))
                        cos, sin = drafter.rotary.angles(at + len(own) + 1, prefix.length + len(own) + 1)
                        own.append(drafter.keys(0, x, cos, sin))
                        state = drafter.finish(0, drafter.attend(drafter.queries(0, x, cos, sin), rows, keys, own), residual)
                for s, kept in enumerate(own[:accepted]):
                    keys.k[row + 1 + s], keys.v[row + 1 + s] = kept.k[0], kept.v[0]
        found = predictor.walk(one, listed.get("accepted-keys-own"))
        assert (found.drafts, found.low) == (walk.counts.drafts, walk.counts.accepted)
        assert found.low != predictor.walk(one, listed.get("as-trained")).low


def test_positions_off_after_the_prompt_leave_the_prompt_alone(case: tuple[Predictor, list[Sample], list[Loaded], Catalogue]) -> None:
    """The walk has the jump at the prompt's end: the same as moving every position behind it by hand."""
    predictor, _, loaded, listed = case
    one, explanation = loaded[0], listed.get("positions-plus-1-after-prompt")
    start = one.responses[0][0]
    features, drafter = predictor.features(one, predictor.right), Drafter(predictor.drafter.weights, explanation.wiring(predictor.right))
    with torch.inference_mode():
        right, _ = predictor.drafter.begin(one.tokens_N, features, None)
        moved, _ = drafter.begin(one.tokens_N, features, None, start)
    assert torch.equal(right.layers[0].k[:start], moved.layers[0].k[:start])
    assert not torch.allclose(right.layers[0].k[start:], moved.layers[0].k[start:])
    assert predictor.walk(one, explanation).low != predictor.walk(one, listed.get("as-trained")).low


def test_rows_can_be_chosen(case: tuple[Predictor, list[Sample], list[Loaded], Catalogue]) -> None:
    predictor, _, loaded, listed = case
    for name in ("as-trained", "post-norm-fed-back", "layers-plus-1"):
        every = predictor.runs(loaded[0], listed.get(name))
        some = predictor.runs(loaded[0], listed.get(name), every.rows_R[3:20:4])
        assert torch.equal(some.accepted_R, every.accepted_R[3:20:4])
        assert torch.equal(some.known_R, every.known_R[3:20:4])
    nothing = predictor.runs(loaded[0], listed.get("as-trained"), torch.tensor([], dtype=torch.int64))
    assert nothing.accepted_R.numel() == 0


@given(accepted=st.integers(0, 4), known=st.integers(0, 4), seen=st.integers(0, 4))
def test_an_answer_agrees_as_far_as_the_prediction_is_known(accepted: int, known: int, seen: int) -> None:
    accepted = min(accepted, known)
    runs = Runs(rows_R=torch.tensor([3, 7]), accepted_R=torch.tensor([0, accepted]).char(), known_R=torch.tensor([4, known]).char(), steps=4)
    possible = {accepted} if accepted < known or known == 4 else set(range(accepted, 5))
    assert runs.agrees(7, seen) == (seen in possible)
    with pytest.raises(KeyError):
        runs.agrees(4, 0)


def test_samples_without_layer_ids_hold_what_the_drafter_takes(tmp_path: Path) -> None:
    pair = make_pair(tmp_path, samples=2, steps=4)
    checkpoint, target = read_drafter(pair.drafter), read_target(pair.target)
    predictor = Predictor(checkpoint, target, steps=4, device=CPU, dtype=torch.float32)
    total = Walked.zero(4)
    for sample in iter_samples([pair.samples], check=predictor.check):
        assert predictor.held_layers(sample) == checkpoint.wiring.aux_layer_inputs
        total.add(predictor.walk(predictor.load(sample), catalogue(checkpoint, target, None).explanations[0]))
    assert (total.drafts, total.low, total.at_risk) == (pair.drafts, pair.accepted, pair.at_risk)


def test_samples_that_do_not_fit_are_named(tmp_path: Path, case: tuple[Predictor, list[Sample], list[Loaded], Catalogue]) -> None:
    predictor, samples, _, _ = case
    sample = samples[0]
    with pytest.raises(InputError, match=r"drafter takes \[2, 4, 6\]; record the samples again with layers \[2\]"):
        predictor.check(replace(sample, aux_ANH=tuple(sample.aux_ANH)[2:], layer_ids=(sample.layer_ids or ())[2:]))
    with pytest.raises(InputError, match="no final hidden state"):
        predictor.check(replace(sample, final_NH=None))
    with pytest.raises(InputError, match="another drafter or target"):
        predictor.check(replace(sample, aux_ANH=tuple(s[:, :64] for s in sample.aux_ANH)))
    assert sample.final_NH is not None
    with pytest.raises(InputError, match="belong to another target"):
        predictor.check(replace(sample, final_NH=sample.final_NH[:, :64]))
