"""What must hold between a case's expected values and eagle3_diag, through its readers."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

from eagle3_diag.acceptance import step_counts
from eagle3_diag.checkpoint import read_drafter
from eagle3_diag.drafter import Drafter, Weights
from eagle3_diag.rollout import rollout, target_states
from eagle3_diag.samples import iter_samples
from eagle3_diag.samples.interface import Sample
from eagle3_diag.target import Target, read_target
from eagle3_diag.trainers import get
from tests.peers.cases import STEPS, Case, target_argmax
from tests.peers.speculators_peer import METRICS


@dataclass
class Opened:
    drafter: Drafter
    target: Target
    samples: list[Sample]

    def state(self, sample: Sample) -> torch.Tensor:
        assert sample.final_NH is not None
        return target_states(self.target, sample.final_NH, sample.final_normed, device=torch.device("cpu"), dtype=torch.float32)


def opened(case: Case, folder: Path) -> Opened:
    """The case written to disk and read back by the project's readers."""
    drafter, target, samples = case.write(folder)
    read = read_target(target)
    weights = Weights(read_drafter(drafter), read, torch.device("cpu"), torch.float32)
    found = [s for s in iter_samples([samples]) if isinstance(s, Sample)]
    assert len(found) == len(case.samples)
    for stored, sample in zip(case.samples, found, strict=True):
        assert torch.equal(stored.tokens, sample.tokens_N)
        assert torch.equal(stored.mask, sample.mask_N)
    return Opened(Drafter(weights), read, found)


def check(case: Case, folder: Path) -> None:
    with torch.inference_mode():
        pair = opened(case, folder)
        if case.kind == "mla":
            check_layer(case, pair)
        elif case.kind == "speculators":
            check_speculators(case, pair)
        else:
            check_teacher_forced(case, pair)


def draft_logits(drafter: Drafter, sample: Sample, steps: int, feed: str = "own") -> torch.Tensor:
    """Draft-vocabulary logits of every row and step: [R, K, D]."""
    padded_N = torch.cat((sample.tokens_N, sample.tokens_N.new_zeros(steps)))
    rows_R = torch.arange(sample.length - 1)
    prefix, drafts = drafter.begin(sample.tokens_N, list(sample.aux_ANH), rows_R)
    assert drafts is not None
    out = []
    for k in range(steps):
        if k:
            drafts = drafter.next(prefix, drafts, drafter.argmax(drafts.state_RH) if feed == "own" else padded_N[rows_R + 1 + k])
        out.append(drafter.normed(drafts.state_RH) @ drafter.head_VH.float().T)
    return torch.stack(out, dim=1)


def check_speculators(case: Case, pair: Opened) -> None:
    trainer, all_drafts = get("speculators", pair.drafter.weights.checkpoint), []
    feed = trainer.definition.feed
    assert feed == case.about.get("feed", "own")
    for sample, expected in zip(pair.samples, case.expected, strict=True):
        drafts_RK = rollout(pair.drafter, sample.tokens_N, list(sample.aux_ANH), steps=STEPS, feed=feed).drafts_RK
        assert torch.equal(drafts_RK, expected["tokens"]), f"{sample.name}: draft tokens differ"
        all_drafts.append(drafts_RK)
        if "logits" in expected:
            ours, theirs = draft_logits(pair.drafter, sample, STEPS, feed), expected["logits"]
            scale = theirs.abs().amax(dim=-1, keepdim=True)
            assert float(((ours - theirs).abs() / scale).max()) < 1e-4
        if not case.about["packed"]:
            counts = trainer.count(pair.drafter, sample.tokens_N, list(sample.aux_ANH), pair.state(sample), sample.mask_N, STEPS)
            assert dict(zip(METRICS, (counts.correct, counts.total, counts.correct, counts.at_risk), strict=True)) == {
                name: expected[name].tolist() for name in METRICS
            }
    if case.about["packed"]:
        check_packed(case, torch.cat(all_drafts))


def check_packed(case: Case, drafts_RK: torch.Tensor) -> None:
    """speculators packs samples into one batch: the last rows of one meet the labels of the next, and the logged sums contain that."""
    none = torch.zeros(1, dtype=torch.int64)
    labels_N = torch.cat([none, *(target_argmax(case, s, case.ids)[1:] for s in case.samples)])
    mask_N = torch.cat([none.bool(), *(s.mask[1:] for s in case.samples)])
    rows_R = torch.nonzero(mask_N[1:], as_tuple=True)[0]
    counts = step_counts(drafts_RK[rows_R], rows_R, labels_N, mask_N, padded_label=int(case.ids[0]))
    got = dict(zip(METRICS, (counts.correct, counts.total, counts.correct, counts.at_risk), strict=True))
    metrics = case.about["packed_metrics"]
    assert got == {f"{p}.{q}": [int(metrics[f"{p}_{k}_{q}"]) for k in range(STEPS)] for p, q in (name.split(".") for name in METRICS)}


def check_teacher_forced(case: Case, pair: Opened) -> None:
    """SpecForge, EAGLE, Model-Optimizer: predictions with true tokens fed, and the accuracies they log."""
    trainer = get(case.kind)
    for sample, expected in zip(pair.samples, case.expected, strict=True):
        counts = trainer.count(pair.drafter, sample.tokens_N, list(sample.aux_ANH), pair.state(sample), sample.mask_N, STEPS)
        if "correct" in expected:
            assert (counts.correct, counts.total) == (expected["correct"].tolist(), expected["total"].tolist()), sample.name
        else:
            ratios = [c / max(t, 1) for c, t in zip(counts.correct, counts.total, strict=True)]
            assert ratios == pytest.approx(expected["accuracy"].tolist(), abs=1e-6), sample.name
        trained = trained_drafter(case, pair.drafter)
        drafts_RK = rollout(trained, sample.tokens_N, list(sample.aux_ANH), steps=STEPS, feed="true").drafts_RK
        known = expected["tokens_true"] >= 0
        assert torch.equal(drafts_RK[known], expected["tokens_true"][known]), f"{sample.name}: predictions differ"


def trained_drafter(case: Case, drafter: Drafter) -> Drafter:
    """The drafter as the case's trainer computes it, where that is not what a server computes."""
    from eagle3_diag.trainers import eagle

    if case.kind == "model-optimizer":
        return drafter.rewired(hidden_norm="both")
    return eagle.as_trained(drafter) if case.kind == "eagle" else drafter


def check_layer(case: Case, pair: Opened) -> None:
    """MLA: on-policy draft tokens and logits."""
    for sample, expected in zip(pair.samples, case.expected, strict=True):
        drafts_RK = rollout(pair.drafter, sample.tokens_N, list(sample.aux_ANH), steps=STEPS).drafts_RK
        assert torch.equal(drafts_RK, expected["tokens"]), f"{sample.name}: draft tokens differ"
        if "logits" in expected:
            theirs = expected["logits"]
            assert float(((draft_logits(pair.drafter, sample, STEPS) - theirs).abs() / theirs.abs().amax(dim=-1, keepdim=True)).max()) < 1e-4
