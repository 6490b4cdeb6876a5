"""What is carried from a part of the samples to all of them."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from eagle3_diag import demo
from eagle3_diag.catalogue import Catalogue, catalogue
from eagle3_diag.checkpoint import read_drafter
from eagle3_diag.evidence import exact_fit
from eagle3_diag.observed import observed
from eagle3_diag.predict import Loaded, Predictor, Walked
from eagle3_diag.samples import iter_samples
from eagle3_diag.survey import survey
from eagle3_diag.target import read_target
from tests.eagle3_diag.remembering import Remembering

STEPS = 5


@pytest.fixture(scope="module")
def known() -> tuple[Predictor, list[Loaded], Catalogue]:
    paths = demo.paths()
    checkpoint, target = read_drafter(paths.drafter), read_target(paths.target)
    predictor = Remembering(Predictor(checkpoint, target, steps=STEPS, device=torch.device("cpu"), dtype=torch.float32))
    samples = list(iter_samples([paths.samples], check=predictor.check))
    loaded = [predictor.load(sample, greedy=True) for sample in samples]
    return predictor, loaded, catalogue(checkpoint, target, predictor.held_layers(samples[0]))


@pytest.mark.parametrize("name", ["hidden-norm-missing", "norms-swapped", "steps-unseen", "positions-plus-1-after-prompt", "positions-minus-1-after-prompt"])
def test_exact_counters_name_a_fault_that_the_first_samples_put_behind_others(name: str, known: tuple[Predictor, list[Loaded], Catalogue]) -> None:
    """These cost so little that a few samples rank a dozen others before them."""
    predictor, loaded, listed = known
    total = Walked.zero(STEPS)
    for one in loaded:
        total.add(predictor.predict(one, listed.get(name))[0])
    seen = replace(observed(steps=STEPS, drafts=total.drafts, accepted_per_position=total.low), dtype="float32")
    found = survey(predictor, loaded, listed, seen, same_requests=True)
    first = found.weighing.ranked()[0]
    assert exact_fit(seen, found.get(first).totals[0])
    assert found.weighing.log_likelihood[name] == pytest.approx(found.weighing.log_likelihood[first])
    assert "+" not in first
