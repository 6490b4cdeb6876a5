from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from eagle3_diag import heads


@settings(deadline=None)
@given(st.integers(0, 7), st.integers(1, 900), st.integers(1, 9), st.integers(0, 2**31))
def test_argmax_in_slices_equals_argmax_at_once(rows: int, vocab: int, hidden: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    # small integers: exact sums, and ties that the first index must win
    hidden_RH = torch.randint(-2, 3, (rows, hidden), generator=generator).to(torch.float32)
    weight_VH = torch.randint(-2, 3, (vocab, hidden), generator=generator).to(torch.float32)
    assert torch.equal(heads.argmax(hidden_RH, weight_VH), (hidden_RH @ weight_VH.T).argmax(dim=-1))
    ids = torch.nonzero(torch.rand(vocab, generator=generator) < 0.5)[:, 0]
    if ids.numel():
        assert torch.equal(heads.argmax(hidden_RH, weight_VH, ids), (hidden_RH @ weight_VH[ids].T).argmax(dim=-1))


@pytest.fixture(autouse=True)
def _small_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heads, "_SLICE", 1024)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("softcap", [None, 5.0])
def test_log_probability_equals_log_softmax(dtype: torch.dtype, softcap: float | None) -> None:
    generator = torch.Generator().manual_seed(0)
    hidden_RH = torch.randn(5, 8, generator=generator)
    weight_VH = torch.randn(700, 8, generator=generator).to(dtype)
    chosen = torch.tensor([0, 699, 300, -1, 256])
    logits = hidden_RH @ weight_VH.float().T * 0.5
    if softcap is not None:
        logits = softcap * torch.tanh(logits / softcap)
    expected = torch.log_softmax(logits.double() / 0.7, dim=-1).gather(1, chosen.clamp(min=0)[:, None])[:, 0]
    found = heads.log_probability(hidden_RH, weight_VH, chosen, temperature=0.7, scale=0.5, softcap=softcap)
    assert found[3] == -torch.inf
    keep = torch.tensor([0, 1, 2, 4])
    torch.testing.assert_close(found[keep], expected[keep], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("rows", [0, 1, 2, 65])
def test_linear_is_linear(rows: int, biased: bool, dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(rows)
    x, weight, bias = (torch.randint(-4, 5, shape, generator=generator).to(dtype) for shape in ((rows, 12), (7, 12), (7,)))
    kept = weight.clone(), bias.clone()
    assert torch.equal(heads.linear(x, weight, bias if biased else None), torch.nn.functional.linear(x, weight, bias if biased else None))
    assert torch.equal(kept[0], weight)
    assert torch.equal(kept[1], bias)
