"""What is asked of a sample once the drafter and the target are known."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from eagle3_diag.errors import InputError
from eagle3_diag.samples import Sample, checks, read_sample
from tests.eagle3_diag.samples import builders
from tests.eagle3_diag.samples.builders import AUX, HIDDEN, LENGTH


@pytest.fixture
def sample(tmp_path: Path) -> Sample:
    return read_sample(builders.write(tmp_path / "data_0.pt", builders.speculators()))


def test_prompt_length(sample: Sample) -> None:
    assert checks.with_prompt_length(sample, 0).mask_N.all()
    assert checks.with_prompt_length(sample, LENGTH - 1).mask_N.nonzero().tolist() == [[LENGTH - 1]]
    with pytest.raises(InputError, match=rf"the sample has {LENGTH} tokens, --prompt-length is {LENGTH}"):
        checks.with_prompt_length(sample, LENGTH)
    with pytest.raises(InputError, match="--prompt-length is -1"):
        checks.with_prompt_length(sample, -1)


def test_a_mask_on_the_first_token_alone_is_no_response(sample: Sample) -> None:
    first = torch.zeros(LENGTH, dtype=torch.bool)
    first[0] = True
    with pytest.raises(InputError, match=r"the response is empty \(none of its 12 tokens behind the first"):
        checks.check_response(replace(sample, mask_N=first))


def test_tokens_outside_the_vocabulary(sample: Sample) -> None:
    largest = int(sample.tokens_N.max())
    assert checks.check_tokens(sample, largest + 1) is sample
    with pytest.raises(InputError, match=rf"1 of {LENGTH} token ids .* vocabulary of {largest} \(first: {largest} at position 11\)"):
        checks.check_tokens(sample, largest)
    negative = replace(sample, tokens_N=torch.where(sample.tokens_N == 7, -100, sample.tokens_N))
    with pytest.raises(InputError, match=r"first: -100 at position 2"):
        checks.check_tokens(negative, 1000)


def test_states_that_fit(sample: Sample) -> None:
    fitted = checks.fit_states(sample, num_aux=AUX, hidden_size=HIDDEN)
    assert all(torch.equal(a, b) for a, b in zip(fitted.aux_ANH, builders.states(), strict=False))
    wide = replace(sample, aux_ANH=(torch.cat(builders.states()[:AUX], -1),))
    cut = checks.fit_states(wide, num_aux=AUX, hidden_size=HIDDEN)
    assert all(torch.equal(a, b) for a, b in zip(cut.aux_ANH, builders.states(), strict=False))


@pytest.mark.parametrize(
    ("num_aux", "hidden_size", "says"),
    [
        (4, HIDDEN, r"24 wide, the drafter takes 4 states of 8 = 32; it would fit 3 aux states"),
        (1, HIDDEN, "it would fit 3 aux states"),
        (3, 12, "it would fit 2 aux states"),
        (3, 16, "it is no multiple of 16"),
        (3, 32, "it is no multiple of 32"),
    ],
)
def test_states_that_do_not_fit(sample: Sample, num_aux: int, hidden_size: int, says: str) -> None:
    with pytest.raises(InputError, match=says):
        checks.fit_states(sample, num_aux=num_aux, hidden_size=hidden_size)


def test_final_state_of_another_width(sample: Sample) -> None:
    other = replace(sample, final_NH=torch.ones(LENGTH, 4))
    with pytest.raises(InputError, match="final hidden state is 4 wide, the target's width is 8"):
        checks.fit_states(other, num_aux=AUX, hidden_size=HIDDEN)


def test_states_are_picked_by_their_layers(sample: Sample) -> None:
    marked = replace(sample, layer_ids=(2, 4, 5))
    picked = checks.fit_states(marked, num_aux=2, hidden_size=HIDDEN, layer_inputs=(5, 2))
    assert picked.layer_ids == (5, 2)
    assert torch.equal(picked.aux_ANH[0], builders.states()[2])
    assert torch.equal(picked.aux_ANH[1], builders.states()[0])
    with pytest.raises(InputError, match=r"holds the inputs of layers \[2, 4, 5\], the drafter takes \[1, 4, 5\].*layers \[1\] among"):
        checks.fit_states(marked, num_aux=3, hidden_size=HIDDEN, layer_inputs=(1, 4, 5))


def test_layers_are_not_asked_for_where_the_file_names_none(sample: Sample) -> None:
    fitted = checks.fit_states(sample, num_aux=AUX, hidden_size=HIDDEN, layer_inputs=(2, 4, 5))
    assert fitted.layer_ids is None


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.float8_e5m2])
@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
def test_finite(sample: Sample, dtype: torch.dtype, value: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "_CHUNK_ELEMENTS", 16)  # pieces of two rows
    states = [state.to(dtype) for state in builders.states()]
    clean = replace(sample, aux_ANH=tuple(states[:-1]), final_NH=states[-1])
    assert checks.check_finite(clean) is clean
    bad = states[2].to(torch.float32)
    bad[LENGTH - 1, 3] = value
    with pytest.raises(InputError, match=r"NaN or Inf \(aux state 2: 1 of"):
        checks.check_finite(replace(clean, aux_ANH=(*states[:2], bad.to(dtype))))


def test_large_values_are_finite(sample: Sample) -> None:
    """A sum that overflows is no proof of an Inf."""
    huge = torch.full((LENGTH, HIDDEN), 3e38)
    assert checks.check_finite(replace(sample, final_NH=huge)).final_NH is huge


@pytest.mark.parametrize(("dtype", "size", "says"), [
    (torch.float16, 7e4, r"final state holds values of up to 7e\+04, beyond 6\.55e\+04, the most float16 computes with; use --dtype bfloat16"),
    (torch.float32, 1e30, r"up to 1e\+30, .* make this sample again"),
])  # fmt: skip
@pytest.mark.parametrize("sign", [1, -1])
def test_values_that_the_arithmetic_cannot_hold(sample: Sample, dtype: torch.dtype, size: float, says: str, sign: int) -> None:
    assert checks.check_range(sample, dtype) is sample
    assert sample.final_NH is not None
    sample.final_NH[5, 1] = sign * size
    with pytest.raises(InputError, match=says):
        checks.check_range(sample, dtype)
