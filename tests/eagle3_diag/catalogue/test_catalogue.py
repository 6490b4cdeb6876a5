"""What the catalogue lists, and that each entry changes something."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from eagle3_diag import demo
from eagle3_diag.catalogue import Catalogue, catalogue, combine
from eagle3_diag.catalogue.page import with_every_option
from eagle3_diag.checkpoint import read_drafter
from eagle3_diag.checkpoint.interface import DrafterCheckpoint
from eagle3_diag.drafter import quantise_states, rotate_states
from eagle3_diag.target import Target, read_target

#: Every incident of the public threads that a wiring explains. Two are none of it: a crash, and a regression whose cause nobody wrote down.
INCIDENTS = (
    "sglang PR 21272", "vllm PR 50170", "vllm PR 38111", "vllm PR 42764", "speculators PR 313", "sglang PR 32334", "vllm PR 14464", "vllm issue 14649",
    "vllm PR 11672", "vllm-ascend issue 5974", "vllm PR 47854", "vllm PR 51092", "sglang PR 25454", "tokenspeed PR 526", "sglang PR 24663", "sglang PR 26506",
)  # fmt: skip


@pytest.fixture(scope="module")
def opened() -> tuple[DrafterCheckpoint, Target]:
    return read_drafter(demo.paths().drafter), read_target(demo.paths().target)


@pytest.fixture(scope="module")
def listed(opened: tuple[DrafterCheckpoint, Target]) -> Catalogue:
    return catalogue(*opened, range(1, 8))


def test_ids_are_unique_kebab_case_and_say_what_to_mend(listed: Catalogue) -> None:
    ids = [each.id for each in listed]
    assert ids[0] == "as-trained"
    assert len(set(ids)) == len(ids)
    assert all(re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", name) for name in ids)
    assert all(each.title and each.mend and each.check and each.prior > 0 for each in listed)


def test_each_entry_is_another_wiring(listed: Catalogue) -> None:
    wirings = [each.wiring(listed.right) for each in listed]
    assert wirings[0] == listed.right
    assert all(a != b for i, a in enumerate(wirings) for b in wirings[:i])


@pytest.mark.parametrize(
    "name",
    ["layers-plus-1", "layers-minus-1", "aux-order-reversed", "aux-order-rotated", "residual-flipped", "d2t-missing", "d2t-absolute", "norms-swapped",
     "embedding-foreign", "drafter-quantised-fp8", "drafter-quantised-int8", "drafter-quantised-int4", "features-rotated", "fc-skipped", "aux-capture-off",
     "features-late", "features-early", "tokens-not-shifted", "concat-swapped", "post-norm-fed-back", "fc-on-feedback", "feedback-stale", "feedback-zero",
     "prefix-unseen", "steps-unseen", "positions-stuck", "positions-plus-1-after-prompt", "rope-pairing-interleaved", "head-targets", "accepted-keys-own",
     "eps-other", "final-state-only", "embedding-as-first-state", "features-quantised-fp8", "layers-default", "aux-first-repeated"],
)  # fmt: skip
def test_the_common_faults_are_listed_for_the_demo(listed: Catalogue, name: str) -> None:
    assert listed.get(name).changes


def test_options_of_the_checkpoint_bring_their_own_faults(opened: tuple[DrafterCheckpoint, Target]) -> None:
    plain = {each.id for each in catalogue(*opened, range(1, 8))}
    more = {each.id for each in catalogue(with_every_option(opened[0]), opened[1], range(1, 8))} - plain
    assert more >= {
        "norm-before-fc-missing", "fc-norm-missing", "pre-norm-fed-back", "attention-bias-dropped", "draft-layers-dropped", "rope-base-default",
        "rope-scaling-dropped", "rope-targets", "aux-order-by-depth",
    }  # fmt: skip


def test_every_incident_has_its_entry(opened: tuple[DrafterCheckpoint, Target]) -> None:
    both = [*catalogue(*opened, range(1, 8)), *catalogue(with_every_option(opened[0]), opened[1], range(1, 8))]
    assert {incident for each in both for incident in each.incidents} == set(INCIDENTS)


def test_states_that_were_not_stored_are_named_with_the_command_that_records_them(opened: tuple[DrafterCheckpoint, Target]) -> None:
    few = catalogue(*opened, None)
    missing = {each.explanation.id: each for each in few.untestable}
    assert "layers-plus-1" not in [each.id for each in few]
    assert missing["layers-plus-1"].reason == "the samples do not hold the inputs of layers [3, 5, 7]"
    assert missing["layers-plus-1"].command.endswith("--layers 2,3,4,5,6,7")
    assert "embedding-as-first-state" in [each.id for each in few]  # the embedding is always at hand
    bare = catalogue(*opened, range(1, 8), final_state=False)
    assert {each.explanation.id for each in bare.untestable} >= {"aux-capture-off", "final-state-only"}
    # Two layers late needs the last layer's output, which only a state stored before the norm is.
    assert "layers-plus-2" in [each.id for each in catalogue(*opened, range(1, 8))]
    assert "layers-plus-2" in [each.explanation.id for each in catalogue(*opened, range(1, 8), final_normed=True).untestable]


def test_layers_that_nobody_names_are_no_fault(tmp_path: Path) -> None:
    """Ids outside the target are no explanation; a drafter whose layers nobody wrote down has its trainer's defaults."""
    for name in ("drafter", "target"):
        source = getattr(demo.paths(), name)
        (tmp_path / name).mkdir()
        for file in source.iterdir():
            if file.name != "config.json":
                (tmp_path / name / file.name).symlink_to(file)
        config = json.loads((source / "config.json").read_text())
        config.pop("eagle_aux_hidden_state_layer_ids", None)
        (tmp_path / name / "config.json").write_text(json.dumps(config))
    found = catalogue(read_drafter(tmp_path / "drafter"), read_target(tmp_path / "target"), range(1, 8))
    assert found.right.aux_layer_inputs == (2, 4, 5)
    assert "layers-default" not in [each.id for each in found]
    assert all(max(each.wiring(found.right).aux_layer_inputs or ()) <= 8 for each in found)


def test_faults_of_the_path_are_left_to_drafters_of_one_layer(opened: tuple[DrafterCheckpoint, Target]) -> None:
    deep = replace(opened[0], config=replace(opened[0].config, num_layers=2))
    assert [each.id for each in catalogue(deep, opened[1], range(1, 8)) if each.path_dependent] == []
    assert [each.id for each in catalogue(*opened, range(1, 8)) if each.path_dependent] != []


def test_two_at_once(listed: Catalogue) -> None:
    late, flipped = listed.get("layers-plus-1"), listed.get("residual-flipped")
    both = combine(late, flipped)
    assert both is not None
    assert both == combine(flipped, late)
    assert both.id == "layers-plus-1+residual-flipped"
    assert both.wiring(listed.right) == flipped.wiring(late.wiring(listed.right))
    assert both.prior < min(late.prior, flipped.prior)
    assert combine(late, listed.get("layers-minus-1")) is None
    assert combine(late, listed.get("as-trained")) is None
    unknown = combine(late, listed.get("embedding-foreign"))
    assert unknown is not None
    assert not unknown.exact


def test_unknown_contents_have_instances(listed: Catalogue) -> None:
    for explanation in listed:
        if not explanation.exact:
            assert explanation.instance(3).wiring(listed.right) != explanation.wiring(listed.right)


@given(width=st.integers(1, 300), seed=st.integers(0, 50))
def test_a_rotation_keeps_lengths_and_angles(width: int, seed: int) -> None:
    x = torch.randn(4, width, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    assert torch.allclose(rotate_states(x, seed) @ rotate_states(x, seed).T, x @ x.T)


def test_rotations_differ_and_rounding_is_near() -> None:
    x = torch.randn(6, 96, generator=torch.Generator().manual_seed(1))
    assert not torch.allclose(rotate_states(x, 0), rotate_states(x, 1))
    for to, error in (("fp8", 0.06), ("int8", 0.02)):
        assert 0 < float((quantise_states(x, to) - x).norm() / x.norm()) < error
