from __future__ import annotations

from dataclasses import fields, replace
from pathlib import Path

import pytest
import torch

from eagle3_diag.checkpoint import read_drafter
from eagle3_diag.config import RopeConfig
from eagle3_diag.drafter import Drafter, Weights, quantise
from eagle3_diag.rollout import rollout
from eagle3_diag.samples import iter_samples
from eagle3_diag.target import read_target
from eagle3_diag.wiring import Wiring
from tests.eagle3_diag.checkpoint.builders import Model, speculators
from tests.eagle3_diag.pairs import make_pair

# One change per knob that must change what this drafter computes. Knobs not named here need other weights (tested elsewhere).
CHANGES: dict[str, dict[str, object]] = {
    "aux-order": {"aux_order": (2, 1, 0)},
    "features-late": {"feature_shift": 1},
    "features-early": {"feature_shift": -1},
    "tokens-not-shifted": {"token_shift": 0},
    "concat-swapped": {"concat": "hidden-first"},
    "fc-skipped": {"fc": "skipped"},
    "embedding-norm-missing": {"embedding_norm": "none"},
    "norms-swapped": {"embedding_norm": "other", "hidden_norm": "other"},
    "hidden-norm-twice": {"hidden_norm": "both"},
    "hidden-norm-missing": {"hidden_norm": "none"},
    "post-attention-norm-missing": {"post_attention_norm": "none"},
    "output-norm-missing": {"output_norm": "none"},
    "residual-flipped": {"residual": "after-norm"},
    "post-norm-fed-back": {"feedback": "post-norm"},
    "zero-fed-back": {"feedback": "zero"},
    "stale-fed-back": {"feedback": "stale"},
    "fc-on-feedback": {"fc_on_feedback": True},
    "prefix-unseen": {"prefix_visible": False},
    "steps-unseen": {"steps_visible": False},
    "rope-base": {"rope": RopeConfig(theta=100.0)},
    "rope-pairing": {"rope_pairing": "interleaved"},
    "positions-stuck": {"position_step": 0},
    "d2t-absolute": {"vocabulary": "absolute"},
    "d2t-missing": {"vocabulary": "missing"},
    "embedding-targets": {"embedding": "target"},
    "head-targets": {"head": "target"},
    "int4": {"quantised": "int4"},
    "eps": {"eps": 0.5},
    "features-rounded": {"features_quantised": "fp8"},
    "features-rotated": {"features_rotated": True},
    "residual-missing": {"residual": "none"},
    "output-residual-missing": {"mlp_residual": False},
    "attention-lost": {"attention": "none"},
    "steps-one-later": {"decode_offset": 1},
    "embedding-foreign": {"embedding": "foreign"},
}


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> tuple[Weights, Path]:
    pair = make_pair(tmp_path_factory.mktemp("pair"), samples=2, length=50)
    return Weights(read_drafter(pair.drafter), read_target(pair.target), torch.device("cpu"), torch.float32), pair.samples


def drafts(weights: Weights, samples: Path, wiring: Wiring) -> torch.Tensor:
    drafter = Drafter(weights, wiring)
    with torch.inference_mode():
        return torch.cat([rollout(drafter, s.tokens_N, list(s.aux_ANH), steps=4).drafts_RK for s in iter_samples([samples])])


@pytest.mark.parametrize("name", CHANGES)
def test_every_knob_changes_what_is_drafted(weights: tuple[Weights, Path], name: str) -> None:
    right = weights[0].checkpoint.wiring
    wrong = replace(right, **CHANGES[name])  # type: ignore[arg-type]
    assert set(right.differences(wrong)) == set(CHANGES[name])
    assert not torch.equal(drafts(*weights, right), drafts(*weights, wrong))


def test_knobs_of_later_steps_leave_the_first_alone(weights: tuple[Weights, Path]) -> None:
    right = weights[0].checkpoint.wiring
    for name in ("post-norm-fed-back", "zero-fed-back", "stale-fed-back", "fc-on-feedback", "prefix-unseen", "steps-unseen", "positions-stuck", "steps-one-later"):
        wrong = replace(right, **CHANGES[name])  # type: ignore[arg-type]
        assert torch.equal(drafts(*weights, right)[:, 0], drafts(*weights, wrong)[:, 0]), name


def test_plain_rope_sees_only_differences_of_positions(weights: tuple[Weights, Path]) -> None:
    right = weights[0].checkpoint.wiring
    assert torch.equal(drafts(*weights, right), drafts(*weights, replace(right, position_offset=7)))


def test_wiring_round_trips_as_json_data() -> None:
    wiring = Wiring(aux_layer_inputs=(2, 4, 5), aux_order=(2, 0, 1), rope=RopeConfig(type="yarn", parameters={"factor": 4.0}), eps=1e-5)
    assert Wiring.from_dict(wiring.to_dict()) == wiring
    with pytest.raises(ValueError, match="unknown wiring fields: nope"):
        Wiring.from_dict({"nope": 1})


def test_norms_that_only_some_drafters_have(tmp_path: Path) -> None:
    """A second layer's norm, and norms of q and k: what SGLang leaves out of drafters that have them."""
    two = make_pair(tmp_path / "two", samples=1, num_layers=2)
    norms = speculators(Model(family="qwen3", vocab=64, draft_vocab=48)).write(tmp_path / "norms")
    for drafter, change in ((two.drafter, {"further_norm": "hidden_norm"}), (norms, {"qk_norm": False})):
        weights = Weights(read_drafter(drafter), read_target(two.target), torch.device("cpu"), torch.float32)
        if "further_norm" in change:
            weights.get("layers.1.input_layernorm.weight").mul_(torch.linspace(0.2, 3.0, 32))
        right = weights.checkpoint.wiring
        assert not torch.equal(drafts(weights, two.samples, right), drafts(weights, two.samples, replace(right, **change))), change  # type: ignore[arg-type]


def test_every_field_is_documented() -> None:
    assert Wiring.__doc__ is not None
    undocumented = [f.name for f in fields(Wiring) if f"``{f.name}``" not in Wiring.__doc__]
    documented_together = {"head", "embedding", "embedding_norm", "hidden_norm", "post_attention_norm", "output_norm"}
    assert set(undocumented) <= documented_together


@pytest.mark.parametrize(("to", "error"), [("fp8", 0.07), ("int8", 0.01), ("int4", 0.2)])
def test_quantised_weights_are_near_and_few(to: str, error: float) -> None:
    weight = torch.randn(64, 256, generator=torch.Generator().manual_seed(0))
    rounded = quantise(weight, to)
    assert 0 < float((rounded - weight).norm() / weight.norm()) < error
    if to == "int4":
        assert rounded[0, :128].unique().numel() <= 15


@pytest.mark.parametrize(("value", "dtype", "said"), [(float("nan"), torch.float32, "1 NaN"), (1e6, torch.float16, "do not fit into float16")])
def test_weights_that_are_not_numbers_are_named(tmp_path: Path, value: float, dtype: torch.dtype, said: str) -> None:
    from safetensors.torch import load_file, save_file

    from eagle3_diag.errors import InputError

    pair = make_pair(tmp_path, samples=1)
    file = pair.drafter / "model.safetensors"
    tensors = load_file(file)
    tensors["fc.weight"][3, 4] = value
    save_file(tensors, file)
    weights = Weights(read_drafter(pair.drafter), read_target(pair.target), torch.device("cpu"), dtype)
    with pytest.raises(InputError, match=rf"fc\.weight.*{said}|{said}.*fc\.weight|of fc\.weight {said}"):
        weights.get("fc.weight")
