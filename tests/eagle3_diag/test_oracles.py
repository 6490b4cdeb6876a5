"""eagle3_diag against stored values of the real packages: draft tokens, logits and logged accuracies (``tests/peers`` makes them anew)."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from eagle3_diag import trainers
from eagle3_diag.checkpoint import read_drafter
from eagle3_diag.evaluate import Options, evaluate
from eagle3_diag.rollout import rollout
from eagle3_diag.samples import iter_samples
from eagle3_diag.target import read_target
from eagle3_diag.trainers import TRAINERS
from tests.peers.cases import ORACLES, STEPS, Case
from tests.peers.checks import check, opened, trained_drafter
from tests.peers.serving import predict

NAMES = sorted(path.stem for path in ORACLES.glob("*.safetensors"))


@pytest.mark.parametrize("name", NAMES)
def test_stored_oracle(name: str, tmp_path: Path) -> None:
    check(Case.load(ORACLES / f"{name}.safetensors"), tmp_path)


def test_every_trainer_and_attention_has_an_oracle() -> None:
    assert {Case.load(ORACLES / f"{name}.safetensors").kind for name in NAMES} == {*TRAINERS, "mla"}


@pytest.mark.parametrize("name", [n for n in NAMES if n.startswith("speculators")])
def test_oracles_have_rows_that_count_at_every_step(name: str) -> None:
    """A pair whose drafter is never right would agree with anything."""
    case = Case.load(ORACLES / f"{name}.safetensors")
    if case.about["packed"]:
        sums = [case.about["packed_metrics"][f"full_acc_{k}_sum"] for k in range(STEPS)]
    else:
        sums = torch.stack([e["full_acc.sum"] for e in case.expected]).sum(dim=0).tolist()
    assert all(s >= 2 for s in sums), sums


@pytest.mark.parametrize("name", ["eagle", "model-optimizer", "model-optimizer-2-layers"])
def test_these_trainers_compute_something_else_than_a_server(name: str, tmp_path: Path) -> None:
    """EAGLE's code ignores rope_theta and Model-Optimizer's normalises twice: a plain forward pass gives other predictions."""
    case = Case.load(ORACLES / f"{name}.safetensors")
    with torch.inference_mode():
        pair = opened(case, tmp_path)
        assert trained_drafter(case, pair.drafter) is not pair.drafter
        differing = 0
        for sample, expected in zip(pair.samples, case.expected, strict=True):
            served_RK = rollout(pair.drafter, sample.tokens_N, list(sample.aux_ANH), steps=STEPS, feed="true").drafts_RK
            differing += int((served_RK != expected["tokens_true"])[expected["tokens_true"] >= 0].sum())
    assert differing > 0


@pytest.mark.parametrize("name", sorted(TRAINERS))
def test_definition_reads_as_a_sentence(name: str) -> None:
    definition = TRAINERS[name].definition
    text = definition.text()
    assert definition.name == name
    assert definition.source in text
    assert ("fed the sequence's true tokens" in text) == (definition.feed == "true")


def test_account_of_tokens_past_a_requests_end() -> None:
    """A drafter that is always right: the server counts every draft of every verification, the walk those up to the end."""
    steps, prompt, max_tokens = 5, 4, 9
    tokens = list(range(30))
    choices = [t + 1 for t in tokens]
    drafts_RK = torch.arange(29)[:, None] + torch.arange(2, 2 + steps)[None]
    prediction = predict(drafts_RK, tokens, choices, prompt=prompt, max_tokens=max_tokens)
    # the prefill gives position 4; verifications give 5..10 and 11..16, of which the request wants 11 and 12; the walk still judges 13
    assert prediction.drafts == 2
    assert prediction.counted == [2] * steps
    assert (prediction.inside, prediction.past) == ([2, 2, 2, 1, 1], [0, 0, 0, 1, 1])


@pytest.mark.parametrize("name", [n for n in NAMES if "packed" not in n and "mla" not in n])
def test_evaluate_reports_what_the_trainer_logged(name: str, tmp_path: Path) -> None:
    """The whole path of `eagle3-diag evaluate --trainer NAME`: sums over all samples."""
    case = Case.load(ORACLES / f"{name}.safetensors")
    drafter, target, samples = case.write(tmp_path)
    options = Options(steps=STEPS, labels="draft-vocab", trainer=case.kind)
    found = evaluate(read_drafter(drafter), read_target(target), iter_samples([samples]), options, device=torch.device("cpu"), dtype=torch.float32)
    assert found.trainer is not None
    if case.kind == "speculators":
        assert found.accuracy is not None
        figures = [("full_acc.sum", found.trainer.correct), ("full_acc.total", found.trainer.total)]
        if case.about.get("feed", "own") == "own":  # accuracy.full is on-policy, as servers draft and as speculators validated up to 0.6
            figures.append(("full_acc.sum", found.accuracy.correct))
        for key, counted in figures:
            assert counted == torch.stack([e[key] for e in case.expected]).sum(dim=0).tolist(), key
    elif case.kind == "specforge":
        for key, counted in (("correct", found.trainer.correct), ("total", found.trainer.total)):
            assert counted == torch.stack([e[key] for e in case.expected]).sum(dim=0).tolist(), key
    else:  # these log ratios per batch: weigh them by the rows of each sample
        offset = trainers.get(case.kind).definition.mask_offset
        totals = torch.tensor([[int(s.mask[offset + k :].sum()) for k in range(STEPS)] for s in case.samples])
        correct = (torch.stack([e["accuracy"] for e in case.expected]) * totals).sum(dim=0)
        assert found.trainer.total == totals.sum(dim=0).tolist()
        assert found.trainer.correct == pytest.approx(correct.tolist(), abs=1e-3)
