"""One test per stored layout: what the file says is what the sample says."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from eagle3_diag.errors import InputError
from eagle3_diag.samples import FORMATS, Sample, fields, read_sample
from eagle3_diag.samples.containers import Record
from tests.eagle3_diag.samples import builders
from tests.eagle3_diag.samples.builders import AUX, HIDDEN, LENGTH

FIXTURES = Path(__file__).parent / "fixtures"


def check(sample: Sample, *, normed: bool, aux: list[torch.Tensor] | None = None) -> None:
    *expected_aux, final = builders.states()
    expected_aux = expected_aux if aux is None else aux
    assert sample.tokens_N.dtype == torch.int64
    assert torch.equal(sample.tokens_N, builders.tokens())
    assert len(tuple(sample.aux_ANH)) == len(expected_aux)
    for found, expected in zip(sample.aux_ANH, expected_aux, strict=True):
        assert torch.equal(found, expected)
    assert sample.final_NH is not None
    assert torch.equal(sample.final_NH, final)
    assert sample.final_normed is normed


@pytest.mark.parametrize("zipped", [True, False])
def test_speculators(tmp_path: Path, zipped: bool) -> None:
    sample = read_sample(builders.write(tmp_path / "data_3.pt", builders.speculators(), zipped=zipped))
    check(sample, normed=False)
    assert (sample.name, sample.format, sample.notes) == ("data_3.pt", "speculators", ())
    assert torch.equal(sample.mask_N, builders.mask().bool())
    assert sample.final_certain
    assert sample.length == LENGTH


def test_hidden_states_of_vllm(tmp_path: Path) -> None:
    sample = read_sample(builders.write(tmp_path / "req-7.safetensors", builders.hidden_states()))
    check(sample, normed=False)
    assert sample.format == "vllm"
    assert sample.mask_N.all()
    assert sample.notes == (fields.NO_MASK,)


def test_hidden_states_of_the_recorder(tmp_path: Path) -> None:
    stored = builders.hidden_states(loss_mask=builders.mask(), layer_ids=torch.tensor([2, 4, 5, 8]))
    sample = read_sample(builders.write(tmp_path / "hs_0.safetensors", stored))
    check(sample, normed=False)
    assert sample.layer_ids == (2, 4, 5)
    assert sample.format == "recorded"
    assert torch.equal(sample.mask_N, builders.mask().bool())
    assert sample.notes == ()


@pytest.mark.parametrize("below", ["hs_2.safetensors", "hidden_states/hs_2.safetensors"])
def test_hidden_states_beside_a_real_arrow_dataset(tmp_path: Path, below: str) -> None:
    """The mask comes from row 2 of the dataset beside the file, or one directory up (speculators' default)."""
    directory = shutil.copytree(FIXTURES / "speculators", tmp_path / "d")
    stored = {"token_ids": torch.arange(20, 26), "hidden_states": torch.stack(builders.states(length=6), 1)}
    sample = read_sample(builders.write(directory / below, stored))
    assert sample.format == "speculators-arrow"
    assert sample.mask_N.tolist() == [False, True, False, True, True, True]
    assert sample.notes == ()


def test_hidden_states_of_other_tokens_than_the_dataset(tmp_path: Path) -> None:
    directory = shutil.copytree(FIXTURES / "speculators", tmp_path / "d")
    stored = {"token_ids": torch.arange(21, 27), "hidden_states": torch.stack(builders.states(length=6), 1)}
    with pytest.raises(InputError, match=r"tokens are not those of row 2"):
        read_sample(builders.write(directory / "hs_2.safetensors", stored))


@pytest.mark.parametrize("name", ["data_0.ckpt", "data_0.ckpt.gz"])
def test_specforge(tmp_path: Path, name: str) -> None:
    sample = read_sample(builders.write(tmp_path / "rows_0-2000" / name, builders.specforge()))
    check(sample, normed=True)
    assert (sample.name, sample.format) == (name, "specforge")
    assert torch.equal(sample.mask_N, builders.mask().bool())


def test_specforge_without_a_final_state_keeps_one_wide_block(tmp_path: Path) -> None:
    sample = read_sample(builders.write(tmp_path / "data_0.ckpt", builders.specforge(hidden_state=None)))
    assert sample.final_NH is None
    assert [tuple(state.shape) for state in sample.aux_ANH] == [(LENGTH, AUX * HIDDEN)]


@pytest.mark.parametrize(
    ("flag", "normed", "certain"), [(None, True, False), (True, False, True), (False, True, True), (torch.tensor(True), False, True)]
)
def test_model_optimizer(tmp_path: Path, flag: Any, normed: bool, certain: bool) -> None:
    stored = builders.model_optimizer(hidden_states_prenorm=flag)
    sample = read_sample(builders.write(tmp_path / "a1b2.pt", stored))
    check(sample, normed=normed)
    assert sample.final_certain is certain
    assert sample.format == "model-optimizer"
    assert sample.mask_N.all()
    assert sample.notes == (fields.NO_MASK,)


def test_model_optimizer_with_a_mask(tmp_path: Path) -> None:
    sample = read_sample(builders.write(tmp_path / "a.pt", builders.model_optimizer(loss_mask=builders.mask())))
    assert torch.equal(sample.mask_N, builders.mask().bool())
    assert sample.notes == ()


def test_eagle(tmp_path: Path) -> None:
    sample = read_sample(builders.write(tmp_path / "data_9.ckpt", builders.eagle()))
    check(sample, normed=True, aux=[builders.states()[-1]])
    assert sample.format == "eagle"


@pytest.mark.parametrize(
    "stored", [builders.speculators(), builders.hidden_states(), builders.specforge(), builders.model_optimizer(), builders.eagle()]
)
def test_at_most_one_format_matches(stored: dict[str, Any]) -> None:
    record = Record(path=Path("x.pt"), container="torch", data=stored)
    assert sum(f.matches(record) for f in FORMATS) == 1


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_stored_dtype_is_kept(tmp_path: Path, dtype: torch.dtype) -> None:
    stored = builders.speculators(hidden_states=builders.states(dtype=dtype), input_ids=builders.tokens().to(torch.int32)[None])
    sample = read_sample(builders.write(tmp_path / "data_0.pt", stored))
    assert all(state.dtype == dtype for state in sample.aux_ANH)
    assert sample.tokens_N.dtype == torch.int64


def test_states_are_views_of_the_mapped_file(tmp_path: Path) -> None:
    """Cutting a block into states or dropping the last one copies nothing."""
    for name, stored in (("a.safetensors", builders.hidden_states()), ("a.pt", builders.model_optimizer())):
        sample = read_sample(builders.write(tmp_path / name, stored))
        starts = {state.untyped_storage().data_ptr() for state in sample.aux_ANH}
        assert len(starts) == 1


@pytest.mark.parametrize(
    ("stored", "says"),
    [
        (builders.speculators(hidden_states=builders.states()[:1]), "holds 1 states, expected the aux states and the final one"),
        (builders.speculators(hidden_states=builders.states(length=11)), r"hidden_states\[0\] is float32 \[11, 8\], expected .*\[12, width\]"),
        (builders.speculators(hidden_states=[1, 2]), r"hidden_states\[0\] is int, expected"),
        (builders.speculators(input_ids=builders.tokens().float()), "'input_ids' is float32"),
        (builders.speculators(input_ids=torch.zeros(2, 6, dtype=torch.int64)), r"'input_ids' is int64 \[2, 6\]"),
        (builders.speculators(loss_mask=builders.mask(11)), r"'loss_mask' is int64 \[11\], expected 12 entries"),
        (builders.speculators(loss_mask=torch.full((LENGTH,), torch.nan)), "'loss_mask' is NaN or Inf"),
        (builders.speculators(input_ids=builders.tokens(1)), "number of tokens is 1"),
        (builders.speculators(input_ids=[2**70]), "numbers beyond 64 bits"),
        (builders.speculators(input_ids="text"), "'input_ids' is str"),
        (builders.specforge(aux_hidden_state=torch.ones(1, LENGTH, 24, dtype=torch.int64)), "'aux_hidden_state' is int64"),
        (builders.model_optimizer(aux_hidden_states=torch.empty(0)), r"'aux_hidden_states' is float32 \[0\]"),
        (builders.model_optimizer(hidden_states_prenorm="yes"), "'hidden_states_prenorm' is str, expected true or false"),
        (builders.eagle(hidden_state=torch.ones(LENGTH, 0)), "'hidden_state' is float32"),
        ({"hidden_states": torch.ones(LENGTH, 1, 8), "token_ids": builders.tokens()}, "at least two states"),
        (builders.hidden_states(layer_ids=torch.tensor([1, 2])), "'layer_ids' is int64 .*expected 4 integers"),
        ({"d2t": torch.ones(3), "t2d": torch.ones(3)}, r"no sample of a known format \(it holds: d2t, t2d\)"),
        ({}, r"it holds: nothing"),
    ],
)  # fmt: skip
def test_entries_that_are_not_a_sample(tmp_path: Path, stored: dict[str, Any], says: str) -> None:
    path = builders.write(tmp_path / "data_0.pt", stored)
    with pytest.raises(InputError, match=says) as error:
        read_sample(path)
    assert str(error.value).startswith(str(path))
    assert "\n" not in str(error.value)


def test_sparse_states_are_refused(tmp_path: Path) -> None:
    stored = builders.eagle(hidden_state=builders.states()[0].to_sparse())
    with pytest.raises(InputError, match="plain tensor"):
        read_sample(builders.write(tmp_path / "data_0.ckpt", stored))
