"""Damaged files of every container: a whole sample or one sentence, never another exception and never a hang."""

from __future__ import annotations

import gzip
import io
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from eagle3_diag.errors import InputError
from eagle3_diag.samples import iter_samples
from tests.eagle3_diag.samples import builders
from tests.eagle3_diag.samples.builders import one_sentence

FILES = {
    "zip": ("data_0.pt", builders.speculators(), True),
    "legacy": ("data_0.pt", builders.speculators(), False),
    "gzip": ("data_0.ckpt.gz", builders.specforge(), True),
    "safetensors": ("hs_0.safetensors", builders.hidden_states(loss_mask=builders.mask()), True),
}


@pytest.mark.parametrize("kind", FILES)
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_truncated_and_flipped(kind: str, data: st.DataObject, tmp_path: Path) -> None:
    name, stored, zipped = FILES[kind]
    path = builders.write(tmp_path / name, stored, zipped=zipped)
    content = bytearray(path.read_bytes())
    # A gzip checksum would catch every change to the packed bytes, so the change goes inside.
    inside = kind == "gzip" and data.draw(st.booleans(), "inside the gzip")
    if inside:
        content = bytearray(gzip.decompress(bytes(content)))
    if data.draw(st.booleans(), "truncate"):
        del content[data.draw(st.integers(0, len(content) - 1), "length") :]
    # Headers lie at the front (safetensors, pickle) and at the back (zip): draw from there as often as from everywhere.
    last = max(len(content) - 1, 0)
    position = st.integers(0, last) | st.integers(0, min(last, 600)) | st.integers(max(0, last - 600), last)
    for _ in range(data.draw(st.integers(0, 4), "flips")):
        if content:
            content[data.draw(position, "at")] ^= 1 << data.draw(st.integers(0, 7), "bit")
    path.write_bytes(gzip.compress(bytes(content)) if inside else bytes(content))
    try:
        samples = list(iter_samples([path]))
    except InputError as error:
        one_sentence(error)
    else:
        (sample,) = samples
        assert sample.mask_N.shape == sample.tokens_N.shape
        assert all(state.shape[0] == sample.length for state in sample.aux_ANH)
        assert sample.final_NH is None or bool(torch.isfinite(sample.final_NH.float()).all())


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    values=st.dictionaries(
        st.sampled_from(
            ["input_ids", "loss_mask", "hidden_states", "token_ids", "aux_hidden_state", "hidden_state", "aux_hidden_states",
             "hidden_states_prenorm", "layer_ids"]
        ),
        st.one_of(
            st.none(), st.booleans(), st.integers(), st.text(max_size=3), st.floats(),
            st.lists(st.integers(-(2**70), 2**70), max_size=3),
            st.lists(st.sampled_from(builders.states()), max_size=4),
            st.builds(
                lambda shape, dtype: torch.ones(shape).to(dtype),
                st.lists(st.sampled_from([0, 1, 2, 8, 12, 24]), max_size=4),
                st.sampled_from([torch.float32, torch.bfloat16, torch.int64, torch.bool, torch.complex64, torch.uint8,
                                 torch.float8_e4m3fn]),
            ),
            st.just(builders.tokens()), st.just(builders.mask()), st.just(torch.stack(builders.states(), 1)),
        ),
    )
)  # fmt: skip
def test_entries_of_any_kind(values: dict[str, object], tmp_path: Path) -> None:
    """A well-formed archive of wrong things."""
    path = tmp_path / "data_0.pt"
    buffer = io.BytesIO()
    torch.save(values, buffer)
    path.write_bytes(buffer.getvalue())
    try:
        list(iter_samples([path]))
    except InputError as error:
        one_sentence(error)
