"""The Arrow reader against datasets saved by the real library (fixtures written by datasets 5.0.1, pyarrow 26.0.1)."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from eagle3_diag.errors import InputError
from eagle3_diag.samples import arrow
from tests.eagle3_diag.samples.builders import one_sentence

FIXTURES = Path(__file__).parent / "fixtures"
COLUMNS = ("input_ids", "loss_mask")


def expected(i: int) -> dict[str, list[int]]:
    return {"input_ids": list(range(10 * i, 10 * i + 4 + i)), "loss_mask": [0, 1] * 2 + [1] * i}


@pytest.mark.parametrize("name", ["speculators", "narrow"])
def test_every_row_of_a_saved_dataset(name: str) -> None:
    """Two files with string and struct columns in front; int32 ids with a bit-packed mask."""
    dataset = arrow.open_dataset(FIXTURES / name)
    assert dataset is not None
    assert dataset.rows == 5
    assert [dataset.row(i, COLUMNS) for i in range(5)] == [expected(i) for i in range(5)]


def test_no_dataset(tmp_path: Path) -> None:
    assert arrow.open_dataset(tmp_path) is None


def test_row_beyond_the_end() -> None:
    dataset = arrow.open_dataset(FIXTURES / "narrow")
    assert dataset is not None
    with pytest.raises(InputError, match=r"has 5 rows, but row 5 was asked for"):
        dataset.row(5, COLUMNS)


def test_column_that_is_no_list_of_integers() -> None:
    dataset = arrow.open_dataset(FIXTURES / "speculators")
    assert dataset is not None
    for name in ("seq_len", "messages", "absent"):
        with pytest.raises(InputError, match=f"no column '{name}' of integer lists"):
            dataset.row(0, (name,))


def test_indices_mapping_is_refused(tmp_path: Path) -> None:
    """A dataset saved with a selection on top: row i of the file is not row i of the dataset."""
    shutil.copytree(FIXTURES / "narrow", tmp_path / "d")
    state = json.loads((tmp_path / "d" / "state.json").read_text())
    (tmp_path / "d" / "state.json").write_text(json.dumps(state | {"_indices_files": [{"filename": "x.arrow"}]}))
    with pytest.raises(InputError, match="indices mapping"):
        arrow.open_dataset(tmp_path / "d")


def test_a_dataset_rewritten_in_place_is_read_again(tmp_path: Path) -> None:
    directory = shutil.copytree(FIXTURES / "narrow", tmp_path / "d")
    assert arrow.open_dataset(directory) is arrow.open_dataset(directory)
    first = arrow.open_dataset(directory)
    (directory / "state.json").touch()
    assert arrow.open_dataset(directory) is not first


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_damage_never_gives_anything_but_a_row_or_a_sentence(data: st.DataObject, tmp_path: Path) -> None:
    """Truncated anywhere, with bytes changed anywhere: a row of integers or one InputError."""
    content = bytearray((FIXTURES / "speculators" / "data-00000-of-00002.arrow").read_bytes())
    if data.draw(st.booleans(), "truncate"):
        del content[data.draw(st.integers(0, len(content) - 1), "length") :]
    for _ in range(data.draw(st.integers(0, 4), "changes")):
        if content:
            content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    directory = tmp_path / "d"
    directory.mkdir(exist_ok=True)
    (directory / "state.json").write_text(json.dumps({"_data_files": [{"filename": "a.arrow"}]}))
    (directory / "a.arrow").write_bytes(content)
    arrow._open.cache_clear()
    try:
        dataset = arrow.open_dataset(directory)
        assert dataset is not None
        row = dataset.row(1, COLUMNS)
    except InputError as error:
        one_sentence(error)
    else:
        assert all(type(value) is int for column in row.values() for value in column)
