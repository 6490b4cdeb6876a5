"""The shipped pair does what its page says: right wiring is accepted, wrong features are not."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from eagle3_diag import demo
from eagle3_diag.checkpoint import read_drafter
from eagle3_diag.evaluate import Evaluation, Labels, Options, evaluate, fits
from eagle3_diag.samples import Sample, iter_samples
from eagle3_diag.target import read_target
from eagle3_diag.wiring import Wiring

PATHS = demo.paths()
STEPS = 5


def run(
    wiring: Callable[[Wiring], Wiring] = lambda right: right, shift: int = 0, labels: Labels = "full", steps: int = STEPS
) -> Evaluation:
    """Evaluate the demo under another wiring; ``shift`` gives the drafter the states of so many layers later."""
    checkpoint, target = read_drafter(PATHS.drafter), read_target(PATHS.target)
    check = fits(checkpoint, target)
    layers = checkpoint.wiring.aux_layer_inputs
    assert layers is not None

    def picked(sample: Sample) -> Sample:
        return fits(checkpoint, target, Wiring(aux_layer_inputs=tuple(i + shift for i in layers)))(sample)

    return evaluate(
        checkpoint,
        target,
        iter_samples([PATHS.samples], strict=True, check=picked if shift else check),
        Options(steps=steps, labels=labels),
        device=torch.device("cpu"),
        dtype=torch.float32,
        wiring=wiring(checkpoint.wiring),
    )


@pytest.fixture(scope="module")
def right() -> Evaluation:
    return run()


def test_right_wiring_is_accepted(right: Evaluation) -> None:
    assert right.samples == 16
    assert right.serving.acceptance_length >= 3
    assert right.warnings == ()


def test_counts_are_the_training_librarys(right: Evaluation) -> None:
    """speculators 0.6.0.2's own forward on these samples: rows right at every step so far, labels within the draft vocabulary."""
    found = run(labels="draft-vocab", steps=6)
    assert found.accuracy is not None
    assert found.accuracy.correct == [928, 834, 727, 609, 524, 480]
    assert found.accuracy.total == [1012] * 6
    assert found.rows == right.rows == 1012


@pytest.mark.parametrize("name", ["reversed", "rotated", "layers-plus-1", "layers-minus-1", "one-token-late"])
def test_wrong_features_are_not(right: Evaluation, name: str) -> None:
    wrong = {
        "reversed": lambda: run(lambda w: replace(w, aux_order=(2, 1, 0))),
        "rotated": lambda: run(lambda w: replace(w, aux_order=(1, 2, 0))),
        "layers-plus-1": lambda: run(shift=1),
        "layers-minus-1": lambda: run(shift=-1),
        "one-token-late": lambda: run(lambda w: replace(w, feature_shift=1)),
    }[name]()
    assert wrong.serving.acceptance_length < right.serving.acceptance_length - 1


def test_samples_are_the_targets_own_text(right: Evaluation) -> None:
    """Greedy continuations: the target's argmax is the stored token nearly everywhere (states are kept in float16)."""
    found = right.normalisation
    assert found.agree_pre >= 0.99 * found.positions


def test_samples_differ() -> None:
    samples = list(iter_samples([PATHS.samples], strict=True))
    assert len({tuple(sample.tokens_N.tolist()) for sample in samples}) == 16
    assert len({sample.length for sample in samples}) >= 8
    assert len({int(sample.mask_N.sum()) for sample in samples}) >= 8
    assert all(sample.layer_ids == (1, 2, 3, 4, 5, 6, 7) for sample in samples)


def test_small_enough_for_the_repository() -> None:
    files = [file for directory in PATHS for file in directory.rglob("*") if file.is_file()]
    assert sum(file.stat().st_size for file in files) <= 6_000_000
    assert not [file for file in files if file.suffix == ".py"]


def test_complete_checkpoints() -> None:
    """What a server looks for is there, and names no path of the machine that made it."""
    for name in ("config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"):
        assert (PATHS.target / name).is_file()
    config = json.loads((PATHS.drafter / "config.json").read_text())
    assert config["speculators_config"]["verifier"]["name_or_path"] == "../target"
    for path in (PATHS.drafter / "config.json", PATHS.target / "config.json", PATHS.target / "tokenizer_config.json"):
        assert "/tmp" not in path.read_text()


@pytest.mark.slow
@pytest.mark.peers
def test_training_is_reproducible(tmp_path: Path) -> None:
    """A few steps of the real training, twice: the same bytes, and a pair that can be read and evaluated."""
    pytest.importorskip("speculators")
    script = Path(demo.__file__).parent / "train.py"
    made = []
    for name in ("a", "b"):
        command = [sys.executable, script, "--out", tmp_path / name, "--target-steps", "2", "--drafter-steps", "2"]
        subprocess.run(command, check=True, capture_output=True)
        files = [path for path in sorted((tmp_path / name).rglob("*")) if path.is_file()]
        made.append({path.relative_to(tmp_path / name): path.read_bytes() for path in files})
    assert made[0] == made[1]
    assert {path.parts[0] for path in made[0]} == {"target", "drafter", "samples"}
    checkpoint, target = read_drafter(tmp_path / "a" / "drafter"), read_target(tmp_path / "a" / "target")
    samples = iter_samples([tmp_path / "a" / "samples"], strict=True, check=fits(checkpoint, target))
    assert evaluate(checkpoint, target, samples, Options(steps=2), device=torch.device("cpu"), dtype=torch.float32).samples == 16
