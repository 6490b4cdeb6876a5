"""RoPE as older and newer configurations write it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from eagle3_diag.checkpoint.fields import Fields
from eagle3_diag.checkpoint.rotary import read_rope
from eagle3_diag.config import RopeConfig
from eagle3_diag.errors import InputError

LLAMA3 = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}


def read(head_dim: int = 8, **config: Any) -> RopeConfig:
    return read_rope(Fields({"max_position_embeddings": 4096} | config, Path("config.json")), head_dim)


@pytest.mark.parametrize(
    "config",
    [
        {},
        {"rope_theta": 10000.0},
        {"rope_theta": None, "rope_scaling": None, "rope_parameters": None},
        {"rope_parameters": {"rope_type": "default", "rope_theta": 10000}},
        {"rope_scaling": {"rope_type": "default", "rope_theta": 10000}, "rope_theta": 5},
        {"rope_parameters": {"rope_theta": 10000.0}, "rope_scaling": {"type": "linear", "factor": 3.0}},
        {"rope_scaling": {"type": "mrope", "mrope_section": [2, 1, 1]}},
        {"rope_scaling": {"rope_type": "default", "type": "mrope", "mrope_section": [2, 1, 1]}},
        {"rope_parameters": {"full_attention": {"rope_type": "default", "rope_theta": 10000.0}}},
    ],
)
def test_plain(config: dict[str, Any]) -> None:
    assert read(**config) == RopeConfig(max_position_embeddings=4096)


def test_older_and_newer_keys_say_the_same() -> None:
    older = read(rope_theta=500000.0, rope_scaling=LLAMA3 | {"rope_type": "llama3"})
    newer = read(rope_parameters=LLAMA3 | {"rope_type": "llama3", "rope_theta": 500000.0})
    oldest = read(rope_theta=500000.0, rope_scaling=LLAMA3 | {"type": "llama3"})
    assert older == newer == oldest
    assert older == RopeConfig(type="llama3", theta=500000.0, max_position_embeddings=4096, parameters=LLAMA3)


def test_sliding_layers_go_first_when_nested() -> None:
    """As speculators' flatten_rope_parameters."""
    nested = {"full_attention": {"rope_theta": 1e6}, "sliding_attention": {"rope_theta": 5e4}}
    assert read(rope_parameters=nested).theta == 5e4


@pytest.mark.parametrize("kind", ["yarn", "llama3"])
def test_original_length_defaults_to_the_length(kind: str) -> None:
    """Transformers ``standardize_rope_params``: the model's own length, and a top-level key goes before the inner one."""
    scaling = {k: v for k, v in LLAMA3.items() if k != "original_max_position_embeddings"} | {"rope_type": kind}
    assert read(rope_scaling=scaling).parameters["original_max_position_embeddings"] == 4096
    scaling["original_max_position_embeddings"] = 100
    assert read(rope_scaling=scaling).parameters["original_max_position_embeddings"] == 100
    assert read(rope_scaling=scaling, original_max_position_embeddings=64).parameters["original_max_position_embeddings"] == 64


@pytest.mark.parametrize("kind", ["longrope", "su"])
def test_longrope(kind: str) -> None:
    factors = {"short_factor": [1.0, 1.1, 1.2, 1.3], "long_factor": [1, 2, 3, 4]}
    rope = read(rope_scaling=factors | {"type": kind}, original_max_position_embeddings=1024)
    assert rope.type == "longrope"
    assert rope.parameters == factors | {"original_max_position_embeddings": 1024}
    halved = {"short_factor": [1.0, 1.1], "long_factor": [1.0, 2.0]}
    assert read(rope_scaling=halved | {"type": kind}, partial_rotary_factor=0.5).partial_rotary_factor == 0.5


@pytest.mark.parametrize("factors", [None, 3, [1.0], [1.0] * 5, [1.0, 1.0, 1.0, "x"], [1.0, 1.0, 1.0, 0], [1.0, 1.0, 1.0, float("nan")], [True] * 4])
def test_bad_longrope_factors(factors: object) -> None:
    with pytest.raises(InputError, match=r"long_factor.*a list of 4 positive numbers"):
        read(rope_scaling={"type": "longrope", "short_factor": [1.0] * 4, "long_factor": factors})


def test_numbers_of_yarn_are_kept_and_checked() -> None:
    yarn = {"factor": 4.0, "beta_fast": 32, "mscale": 1.0, "truncate": False, "attention_factor": None}
    parameters = read(rope_scaling=yarn | {"rope_type": "yarn"}).parameters
    assert parameters == {"factor": 4.0, "beta_fast": 32, "mscale": 1.0, "truncate": False, "original_max_position_embeddings": 4096}
    with pytest.raises(InputError, match=r'rope_scaling.beta_fast is "fast", expected a number'):
        read(rope_scaling=yarn | {"rope_type": "yarn", "beta_fast": "fast"})


def test_partial_rotation() -> None:
    assert read(partial_rotary_factor=0.5).partial_rotary_factor == 0.5
    assert read(rope_parameters={"rope_theta": 1e4, "partial_rotary_factor": 0.25}, partial_rotary_factor=0.5).partial_rotary_factor == 0.25
