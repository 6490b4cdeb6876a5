"""``data/rope.json`` holds what Transformers 5.10 computes for each type (theta 500000, head 64, 4096 positions).

`python tests/peers/rope_peer.py FILE` makes it anew; tests/peers/test_rope.py compares with the installed Transformers.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from eagle3_diag.config import RopeConfig
from eagle3_diag.errors import InputError
from eagle3_diag.rope import Rotary, inverse_frequencies

ORACLES: dict[str, Any] = json.loads((Path(__file__).parent / "data" / "rope.json").read_text())


def config(parameters: dict[str, Any]) -> RopeConfig:
    rest = {k: v for k, v in parameters.items() if k != "rope_type"}
    return RopeConfig(type=parameters["rope_type"], theta=500000.0, max_position_embeddings=4096, parameters=rest)


@pytest.mark.parametrize("name", ORACLES)
def test_frequencies_equal_transformers(name: str) -> None:
    case = ORACLES[name]
    inverse_P, scale = inverse_frequencies(config(case["parameters"]), 64, case["length"])
    torch.testing.assert_close(inverse_P, torch.tensor(case["inverse"]), rtol=1e-6, atol=0)
    assert scale == pytest.approx(case["scale"], rel=1e-12)


@pytest.mark.parametrize("pairing", ["half", "interleaved"])
def test_scores_depend_on_the_distance_only(pairing: Any) -> None:
    generator = torch.Generator().manual_seed(0)
    q, k = torch.randn(1, 1, 64, generator=generator), torch.randn(1, 1, 64, generator=generator)
    rotary = Rotary(RopeConfig(), 64, pairing, torch.device("cpu"))

    def score(at_q: int, at_k: int) -> float:
        turned = [rotary.apply(x, *rotary.angles(torch.tensor([p]), 4096)) for x, p in ((q, at_q), (k, at_k))]
        return float((turned[0] * turned[1]).sum())

    assert score(17, 5) == pytest.approx(score(112, 100), abs=1e-4)
    assert score(17, 5) != pytest.approx(score(18, 5), abs=1e-3)


def test_pairings_differ_by_a_permutation_of_the_head() -> None:
    x = torch.randn(3, 2, 8, generator=torch.Generator().manual_seed(0))
    positions = torch.tensor([0, 5, 9])
    half, inter = (Rotary(RopeConfig(), 8, p, torch.device("cpu")) for p in ("half", "interleaved"))  # type: ignore[arg-type]
    permutation = torch.tensor([0, 2, 4, 6, 1, 3, 5, 7])
    expected = inter.apply(x, *inter.angles(positions, 10))[..., permutation]
    torch.testing.assert_close(half.apply(x[..., permutation], *half.angles(positions, 10)), expected)


def test_partial_rotation_leaves_the_rest() -> None:
    rotary = Rotary(RopeConfig(partial_rotary_factor=0.5), 8, "half", torch.device("cpu"))
    x = torch.randn(2, 1, 8)
    turned = rotary.apply(x, *rotary.angles(torch.tensor([3, 4]), 10))
    assert torch.equal(turned[..., 4:], x[..., 4:])
    assert not torch.equal(turned[..., :4], x[..., :4])


@pytest.mark.parametrize(
    ("parameters", "said"),
    [
        ({"rope_type": "linear"}, "needs the number 'factor'"),
        ({"rope_type": "llama3", "factor": 8.0}, "'low_freq_factor'"),
        ({"rope_type": "yarn", "factor": "eight"}, "'eight'"),
        ({"rope_type": "longrope", "short_factor": [1.0], "original_max_position_embeddings": 128}, "needs 32 numbers in 'short_factor'"),
    ],
)
def test_missing_parameters_are_named(parameters: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError, match=said):
        inverse_frequencies(config(parameters), 64, 10)
