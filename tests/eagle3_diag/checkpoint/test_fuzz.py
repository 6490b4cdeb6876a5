"""Damaged checkpoints end in an InputError of one line or are read; nothing else, whatever the damage."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from eagle3_diag.checkpoint import FORMATS, open_tensors, read_drafter, require_finite
from eagle3_diag.errors import InputError
from eagle3_diag.target import read_target
from tests.eagle3_diag.checkpoint import builders
from tests.eagle3_diag.checkpoint.builders import Files, Model
from tests.eagle3_diag.test_target import llama_target

SMALL = Model(hidden=4, target_hidden=4, heads=2, kv_heads=1, head_dim=2, intermediate=4, vocab=9, draft_vocab=5)
WRITERS: dict[str, Callable[..., Files]] = {
    "speculators": builders.speculators,
    "eagle": builders.eagle,
    "specforge": builders.specforge,
    "model-optimizer": builders.model_optimizer,
    "vllm": builders.vllm,
}
# EAGLE3_FUZZ_EXAMPLES=20000 for a long hunt.
fuzz = settings(
    max_examples=int(os.environ.get("EAGLE3_FUZZ_EXAMPLES", "150")), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


def read_everything(path: Path) -> None:
    """Open and read each tensor; only InputError may come out, and only as one line that names the place."""
    try:
        checkpoint = read_drafter(path)
        for name in checkpoint.tensors:
            require_finite(checkpoint.get(name), name, path)
        checkpoint.d2t_offsets()
        checkpoint.weights_sha256()
    except InputError as error:
        sentence = str(error)
    else:
        return
    assert "\n" not in sentence
    assert str(path) in sentence


def read_whole_target(path: Path) -> None:
    try:
        target = read_target(path)
        for tensor in (target.embedding(), target.head(), target.norm_weight()):
            require_finite(tensor, "weight", path)
        target.weights_sha256()
    except InputError as error:
        sentence = str(error)
    else:
        return
    assert "\n" not in sentence
    assert str(path) in sentence


def test_every_format_is_fuzzed() -> None:
    assert set(WRITERS) == {f.name for f in FORMATS}


damage = st.one_of(
    st.tuples(st.just("cut"), st.integers(0, 6000), st.just(0)),
    st.tuples(st.just("flip"), st.integers(0, 6000), st.integers(0, 7)),
    st.tuples(st.just("header flip"), st.integers(0, 1600), st.integers(0, 7)),
    st.tuples(st.just("fill"), st.integers(0, 6000), st.integers(0, 255)),
)


def damaged(content: bytes, kind: str, at: int, value: int) -> bytes:
    if kind == "cut":
        return content[: at % (len(content) + 1)]
    at %= len(content)
    if kind == "fill":
        return content[:at] + bytes([value]) * min(16, len(content) - at) + content[at + 16 :]
    return content[:at] + bytes([content[at] ^ 1 << value]) + content[at + 1 :]


@pytest.mark.parametrize(("shards", "torch_files"), [(1, False), (2, False), (1, True)])
@fuzz
@given(harm=st.lists(damage, min_size=1, max_size=3), which=st.integers(0, 5))
def test_damaged_files(tmp_path: Path, shards: int, torch_files: bool, harm: list[tuple[str, int, int]], which: int) -> None:
    path = tmp_path / "drafter"
    shutil.rmtree(path, ignore_errors=True)
    builders.eagle(SMALL).write(path, shards=shards, torch_files=torch_files)
    files = sorted(p for p in path.iterdir() if p.name != "config.json")
    file = files[which % len(files)]
    content = file.read_bytes()
    for kind, at, value in harm:
        content = damaged(content, kind, at, value) if content else content
    file.write_bytes(content)
    read_everything(path)


@fuzz
@given(harm=st.lists(damage, min_size=1, max_size=3))
def test_damaged_legacy_pickle(tmp_path: Path, harm: list[tuple[str, int, int]]) -> None:
    path = tmp_path / "drafter"
    files = builders.eagle(SMALL)
    files.write(path, torch_files=True)
    torch.save(files.tensors, path / "pytorch_model.bin", _use_new_zipfile_serialization=False)
    content = (path / "pytorch_model.bin").read_bytes()
    for kind, at, value in harm:
        content = damaged(content, kind, at, value) if content else content
    (path / "pytorch_model.bin").write_bytes(content)
    read_everything(path)


@fuzz
@given(content=st.binary(max_size=200), suffix=st.sampled_from(["safetensors", "bin"]))
def test_files_of_arbitrary_bytes(tmp_path: Path, content: bytes, suffix: str) -> None:
    path = tmp_path / suffix
    builders.eagle(SMALL).write(path, torch_files=suffix == "bin")
    next(path.glob(f"*.{suffix}")).write_bytes(content)
    read_everything(path)


values: st.SearchStrategy[Any] = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-2, 2**70),
    st.floats(),
    st.text(max_size=5),
    st.sampled_from(["llama", "qwen3", "yarn", "longrope", "kimi_k2", "gemma3", "LlamaForCausalLMEagle3", "Eagle3DeepseekV2ForCausalLM"]),
    st.lists(st.integers(-1, 9) | st.floats(), max_size=4),
    st.dictionaries(
        st.sampled_from(["rope_type", "type", "factor", "rope_theta", "short_factor", "full_attention", "use_last_layernorm", "layer_ids"]),
        st.one_of(st.none(), st.integers(-1, 3), st.floats(), st.sampled_from(["yarn", "linear", "su"]), st.lists(st.integers(), max_size=2)),
        max_size=3,
    ),
)
more_keys = st.sampled_from(
    [
        "rope_parameters",
        "rope_scaling",
        "eagle_config",
        "target_hidden_size",
        "num_aux_hidden_states",
        "norm_output",
        "fc_norm",
        "use_aux_norm",
        "norm_before_fc",
        "sliding_window",
        "layer_types",
        "logit_scale",
        "kv_lora_rank",
        "partial_rotary_factor",
        "speculators_model_type",
        "transformer_layer_config",
        "tie_word_embeddings",
        "original_max_position_embeddings",
        "text_config",
    ]
)


@fuzz
@given(name=st.sampled_from(sorted(WRITERS)), changes=st.lists(st.tuples(st.integers(0, 60), st.none() | more_keys, values), max_size=3))
def test_mutated_configs(tmp_path: Path, name: str, changes: list[tuple[int, str | None, Any]]) -> None:
    path = tmp_path / name
    files = WRITERS[name](SMALL)
    files.write(path)
    config = mutated(files.config, changes)
    (path / "config.json").write_text(json.dumps(config))
    read_everything(path)


def mutated(config: dict[str, Any], changes: list[tuple[int, str | None, Any]]) -> dict[str, Any]:
    """Each change replaces the value of an existing key, at whatever depth, or adds one."""
    config = json.loads(json.dumps(config))
    for at, key, value in changes:
        tables = [config, *(v for v in config.values() if isinstance(v, dict))]
        table = tables[at % len(tables)]
        known = sorted(table)
        chosen = key if key is not None or not known else known[at % len(known)]
        table[chosen or "x"] = value
    return config


@fuzz
@given(changes=st.lists(st.tuples(st.integers(0, 60), st.none() | more_keys, values), max_size=3), harm=st.lists(damage, max_size=2))
def test_damaged_targets(tmp_path: Path, changes: list[tuple[int, str | None, Any]], harm: list[tuple[str, int, int]]) -> None:
    path = tmp_path / "target"
    files = llama_target(hidden=4, vocab=9, layers=1)
    files.write(path)
    (path / "config.json").write_text(json.dumps(mutated(files.config, changes)))
    content = (path / "model.safetensors").read_bytes()
    for kind, at, value in harm:
        content = damaged(content, kind, at, value) if content else content
    (path / "model.safetensors").write_bytes(content)
    read_whole_target(path)


names = st.sampled_from(["fc.weight", "norm.weight", "layers.0.mlp.up_proj.weight", "d2t", "t2d", "lm_head.weight", "embed_tokens.weight"])
shapes = st.lists(st.integers(0, 9), max_size=3).map(tuple)
dtypes = st.sampled_from([torch.float32, torch.bfloat16, torch.int64, torch.bool, torch.int8, torch.float8_e5m2, torch.complex64])


@fuzz
@given(name=names, shape=shapes, dtype=dtypes, torch_files=st.booleans())
def test_tensors_of_any_shape_and_dtype(tmp_path: Path, name: str, shape: tuple[int, ...], dtype: torch.dtype, torch_files: bool) -> None:
    path = tmp_path / str(torch_files)
    torch_files |= dtype.is_complex  # older safetensors cannot write them
    builders.vllm(SMALL).put(name, torch.zeros(shape, dtype=dtype)).write(path, torch_files=torch_files)
    read_everything(path)


@given(st.lists(st.integers(-20, 20), min_size=5, max_size=5))
@fuzz
def test_d2t_is_taken_only_if_it_maps_into_the_vocabulary_once_each(tmp_path: Path, offsets: list[int]) -> None:
    path = tmp_path / "drafter"
    files = builders.model_optimizer(SMALL).having(d2t=torch.tensor(offsets))
    files.write(path)
    ids = [i + d for i, d in enumerate(offsets)]
    good = len(set(ids)) == 5 and all(0 <= i < 9 for i in ids)
    try:
        read = read_drafter(path).d2t_offsets()
    except InputError:
        assert not good
    else:
        assert good
        assert read is not None
        assert read.tolist() == offsets


def test_sources_give_what_was_stored(tmp_path: Path) -> None:
    files = builders.eagle(SMALL)
    for torch_files in (False, True):
        source = open_tensors(files.write(tmp_path / str(torch_files), torch_files=torch_files))
        assert set(source.names()) == set(files.tensors)
        for name, tensor in files.tensors.items():
            assert source.shape(name) == tuple(tensor.shape)
            assert source.dtype(name) is tensor.dtype
            assert torch.equal(source.get(name), tensor)
