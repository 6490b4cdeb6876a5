"""The final state's reading is told from the tokens and from its length."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from eagle3_diag.drafter import rms_norm
from eagle3_diag.final_state import _candidates, check_final_state, summarise
from eagle3_diag.samples.interface import Sample

VOCABULARY, WIDTH, LENGTH, EPS = 50, 16, 80, 1e-6


def made(
    seed: int = 0,
    *,
    normed: bool = False,
    said: bool | None = None,
    certain: bool = True,
    flat: bool = False,
    dtype: torch.dtype = torch.float32,
    offset: float = 0.0,
    noise: float = 0.0,
) -> tuple[Sample, Any]:
    """A sample whose tokens follow the target's argmax, but for a share of ``noise``, and what is asked of its target.

    ``flat``: the norm's weights are all one, so that both readings have the same argmax.
    """
    generator = torch.Generator().manual_seed(seed)
    weight_H = torch.ones(WIDTH) if flat else torch.rand(WIDTH, generator=generator) * 3 + 0.1
    head_VH = torch.randn(VOCABULARY, WIDTH, generator=generator)
    state_NH = torch.randn(LENGTH, WIDTH, generator=generator) * 5
    normed_NH = rms_norm(state_NH, weight_H - offset, EPS, offset)
    tokens_N = torch.zeros(LENGTH, dtype=torch.int64)
    tokens_N[1:] = (normed_NH @ head_VH.T).argmax(-1)[:-1]
    other_N = torch.randint(0, VOCABULARY, (LENGTH,), generator=generator)
    tokens_N = torch.where(torch.rand(LENGTH, generator=generator) < noise, other_N, tokens_N)
    sample = Sample(
        name=f"data_{seed}.pt",
        format="model-optimizer",
        tokens_N=tokens_N,
        mask_N=torch.arange(LENGTH) >= 10,
        aux_ANH=(state_NH,),
        final_NH=(normed_NH if normed else state_NH).to(dtype),
        final_normed=normed if said is None else said,
        final_certain=certain,
    )
    target = SimpleNamespace(
        config=SimpleNamespace(vocab_size=VOCABULARY, rms_norm_eps=EPS, norm_offset=offset),
        norm_weight=lambda: weight_H - offset,
        head=lambda: head_VH,
    )
    return sample, target


@settings(max_examples=80, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    normed=st.booleans(),
    lie=st.booleans(),
    certain=st.booleans(),
    flat=st.booleans(),
    dtype=st.sampled_from([torch.float32, torch.bfloat16, torch.float16]),
    offset=st.sampled_from([0.0, 1.0]),
    noise=st.sampled_from([0.0, 0.3]),
)
def test_the_reading_is_found(seed: int, normed: bool, lie: bool, certain: bool, flat: bool, dtype: torch.dtype, offset: float, noise: float) -> None:
    """Whatever the weights, the rounding, and text that follows the target only in part."""
    sample, target = made(seed, normed=normed, said=normed != lie, certain=certain, flat=flat, dtype=dtype, offset=offset, noise=noise)
    found = check_final_state(sample, target)
    assert found is not None
    if certain:
        assert (found.normed, found.finding) == (sample.final_normed, "contradicts" if lie else None)
    else:
        assert (found.normed, found.finding) == (normed, None)


def test_equal_argmax_does_not_hide_a_contradiction() -> None:
    sample, target = made(normed=True, said=False, flat=True)
    found = check_final_state(sample, target)
    assert found is not None
    assert (found.positions, found.agree_pre, found.agree_post, found.unit) == (48, 48, 48, 48)
    (warning,) = summarise([found]).warnings
    assert "the format says that the final state is before the target's norm" in warning
    assert "48 of 48 states have a normed state's length" in warning


def test_states_of_another_target() -> None:
    sample, target = made()
    shuffled_VH = target.head()[torch.randperm(VOCABULARY, generator=torch.Generator().manual_seed(1))]
    target.head = lambda: shuffled_VH
    found = check_final_state(sample, target)
    assert found is not None
    assert found.finding == "chance"
    (warning,) = summarise([found]).warnings
    assert f"agrees with {found.agree_pre} of 48 stored tokens" in warning
    assert "made by another target" in warning


def test_another_target_is_not_taken_for_another_reading() -> None:
    """Normed by another target's weights, the states have no normed state's length here; that is no contradiction."""
    sample, _ = made(normed=True)
    _, other = made(1)
    found = check_final_state(sample, other)
    assert found is not None
    assert found.finding == "chance"


def test_weights_too_small_to_divide_by_leave_the_argmax() -> None:
    sample, target = made(3, normed=True)
    weight_H = target.norm_weight().clone()
    weight_H[0] = 0
    target.norm_weight = lambda: weight_H
    found = check_final_state(sample, target)
    assert found is not None
    assert found.unit is None
    assert found.finding is None


def test_few_positions_decide_nothing() -> None:
    sample, target = made(normed=True, said=False)
    found = check_final_state(replace(sample, mask_N=torch.arange(LENGTH) >= LENGTH - 5), target)
    assert found is not None
    assert (found.positions, found.finding) == (5, None)


def test_no_final_state() -> None:
    sample, target = made()
    assert check_final_state(replace(sample, final_NH=None), target) is None


@pytest.mark.parametrize("order", [1, -1])
def test_totals_do_not_depend_on_the_order(order: int) -> None:
    results = [check_final_state(*made(seed, normed=True, said=seed % 2 == 0)) for seed in range(5)][::order]
    together = summarise([result for result in results if result is not None])
    assert together.samples == 5
    assert together.positions == 5 * 48
    (warning,) = together.warnings
    assert warning.startswith("2 of 5 samples (first: data_1.pt)")


@pytest.mark.parametrize("vocab_size", [1, 16, 96, 256, 257, 300, 128256])
def test_candidates_are_ids_in_runs_of_neighbours(vocab_size: int) -> None:
    ids = _candidates(vocab_size)
    assert ids.tolist() == sorted(set(ids.tolist()))
    assert ids.numel() <= min(vocab_size, 256)
    assert (int(ids[0]), int(ids[-1])) == (0, vocab_size - 1)
    if vocab_size > 10_000:
        assert ids.numel() == 256
        assert int((ids.diff() > 1).sum()) == 15
