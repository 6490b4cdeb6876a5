"""The final state's reading is told from the tokens and from its length."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from eagle3_diag.samples import Sample
from eagle3_diag.samples.final_state import check_final_state, combine, rms_norm

VOCABULARY, WIDTH, LENGTH, EPS = 50, 16, 80, 1e-6


def made(
    seed: int = 0, *, normed: bool = False, said: bool | None = None, flat: bool = False, dtype: torch.dtype = torch.float32,
    offset: float = 0.0, noise: float = 0.0,
) -> tuple[Sample, torch.Tensor, torch.Tensor]:  # fmt: skip
    """A sample whose tokens follow the target's argmax, but for a share; the norm's weights; the head."""
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
        format="speculators",
        tokens_N=tokens_N,
        mask_N=torch.arange(LENGTH) >= 10,
        aux_ANH=(state_NH,),
        final_NH=(normed_NH if normed else state_NH).to(dtype),
        final_normed=normed if said is None else said,
    )
    return sample, weight_H - offset, head_VH


def check(sample: Sample, weight_H: torch.Tensor, head_VH: torch.Tensor, **options: float):  # type: ignore[no-untyped-def]
    return check_final_state(sample, norm_weight_H=weight_H, eps=EPS, head_VH=head_VH, **options)


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 10_000), normed=st.booleans(), lie=st.booleans(), flat=st.booleans(),
    dtype=st.sampled_from([torch.float32, torch.bfloat16, torch.float16]), offset=st.sampled_from([0.0, 1.0]),
    noise=st.sampled_from([0.0, 0.3]),
)  # fmt: skip
def test_the_reading_is_found(seed: int, normed: bool, lie: bool, flat: bool, dtype: torch.dtype, offset: float, noise: float) -> None:
    """Whatever the weights (all equal: both readings have one argmax), rounding, and text that follows the target in part."""
    sample, weight_H, head_VH = made(seed, normed=normed, said=normed != lie, flat=flat, dtype=dtype, offset=offset, noise=noise)
    result = check(sample, weight_H, head_VH, norm_offset=offset)
    assert result.verdict == ("contradicts" if lie else "agrees")
    assert result.found_normed is normed
    assert (result.sentence() is None) is not lie


def test_numbers_of_a_clean_sample() -> None:
    result = check(*made(normed=True))
    assert (result.positions, result.agree_normed, result.unit_length) == (64, 64, 1.0)
    assert 0 < result.chance < 0.1


def test_bounded_positions_spread_over_the_response() -> None:
    sample, weight_H, head_VH = made()
    assert check(sample, weight_H, head_VH, max_positions=1000).positions == LENGTH - 10
    assert check(sample, weight_H, head_VH, max_positions=20).positions == 20


def test_states_of_another_target() -> None:
    sample, weight_H, head_VH = made()
    shuffled_VH = head_VH[torch.randperm(VOCABULARY, generator=torch.Generator().manual_seed(1))]
    result = check(sample, weight_H, shuffled_VH)
    assert result.verdict == "chance"
    assert result.found_normed is None
    assert "look like samples of another target" in str(result.sentence())
    assert f"at {result.agree_normed} of 64 positions" in str(result.sentence())


def test_repetitive_text_does_not_hide_another_target() -> None:
    """One token everywhere: chance is high and counted as such."""
    sample, weight_H, head_VH = made()
    sample.tokens_N.fill_(3)
    assert check(sample, weight_H, head_VH).verdict == "chance"


def test_contradiction_names_the_numbers() -> None:
    result = check(*made(normed=True, said=False))
    assert "the format stores the final state before the norm, but it lies after it" in str(result.sentence())
    assert "at 64 of 64 positions when the state is read as normed" in str(result.sentence())
    assert "100% of the states have a normed state's length" in str(result.sentence())


def test_weights_too_small_to_divide_by_leave_the_argmax() -> None:
    sample, weight_H, head_VH = made(3, normed=True)
    weight_H = weight_H.clone()
    weight_H[0] = 0
    result = check(sample, weight_H, head_VH)
    assert result.unit_length is None
    assert result.verdict in ("agrees", "undecided")


def test_few_positions_decide_nothing() -> None:
    sample, weight_H, head_VH = made()
    assert check(sample, weight_H, head_VH, max_positions=5).verdict == "undecided"


def test_no_final_state() -> None:
    sample, weight_H, head_VH = made()
    object.__setattr__(sample, "final_NH", None)
    assert check(sample, weight_H, head_VH) is None


def test_a_head_read_in_pieces_has_the_same_argmax(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = check(*made(5))
    monkeypatch.setattr("eagle3_diag.samples.final_state._HEAD_ROWS", 7)
    assert check(*made(5)) == whole


def test_combined() -> None:
    results = [check(*made(seed, noise=0.8)) for seed in range(6)]
    together = combine(results)
    assert together.positions == 6 * 64
    assert together.agree_prenorm == sum(result.agree_prenorm for result in results)
    assert together.verdict == "agrees"
    assert combine(results[:1]) is results[0]
    assert combine([]) is None
    with pytest.raises(ValueError, match="stored differently"):
        combine([results[0], check(*made(normed=True))])
