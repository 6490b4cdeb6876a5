"""Reports made from small evaluations written by hand, for the tests of the renderers."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

from eagle3_diag.acceptance import AcceptanceTable, SampleResult, StepCounts, WalkCounts
from eagle3_diag.breakdown import Breakdown
from eagle3_diag.config import DrafterConfig, RopeConfig, TargetConfig
from eagle3_diag.evaluate import Evaluation, Options, Timing, Vocabulary
from eagle3_diag.report.document import Document, Inputs, document
from eagle3_diag.wiring import Wiring

STEPS = 5
# Accepted and at-risk counts of one sample's walk; correct and total rows. Chosen so that every ratio is easy to check by hand.
ACCEPTED = [8, 6, 3, 3, 0]
AT_RISK = [10, 8, 6, 3, 3]
CORRECT = [30, 20, 10, 5, 1]


def make_document(
    *,
    mode: str = "greedy",
    only_serving: bool = False,
    samples: int = 3,
    drafts: int = 10,
    trainer: bool = False,
    warnings: tuple[str, ...] = (),
    agree: int = 30,
    doubtful: int = 0,
    inputs: Inputs | None = None,
    path: str = "models/drafter",
    accepted: list[int] | None = None,
    at_risk: list[int] | None = None,
    censored: int = 2,
) -> Document:
    """A report of ``samples`` equal samples but for one draft, so that the bootstrap has something to do."""
    options = Options(steps=STEPS, serving_mode=mode, only_serving=only_serving, trainer="specforge" if trainer else None)  # type: ignore[arg-type]
    table = AcceptanceTable(STEPS, mode)
    for i in range(samples):
        took, risked = list(accepted or ACCEPTED), list(at_risk or AT_RISK)
        if i % 2 and accepted is None:
            took[4] += 1
        walk = None if mode == "sampled" else WalkCounts(took, risked, drafts=drafts, censored=censored, ended=1) if drafts else WalkCounts.zero(STEPS)
        sampled = mode == "sampled"
        table.add(
            SampleResult(
                name=f"data_{i}.pt", tokens=60, rows=40,
                breakdown=None if only_serving else Breakdown([3, 9, 0, 0, 0], [10, 30, 0, 0, 0], [0, 5, 4, 3], [2, 10, 18, 10]),
                accuracy=None if only_serving else StepCounts(list(CORRECT), [40] * STEPS, [40, *CORRECT[:-1]]),
                walk=walk,
                ceiling=None if sampled or not drafts else WalkCounts([9] * STEPS, [10, 9, 9, 9, 9], drafts=10),
                covered=38, labelled=40,
                chances=tuple(4.0 / (k + 1 + i % 2) for k in range(STEPS)) if sampled else None,
                chance_rows=(10,) * STEPS if sampled else None,
            )
        )  # fmt: skip
    serving = table.serving()
    evaluation = Evaluation(
        options=options,
        wiring=Wiring(aux_layer_inputs=(2, 4, 5)),
        table=table,
        serving=serving,
        accuracy=None if only_serving else table.accuracy(),
        trainer=StepCounts([30, 25, 20, 15, 10], [40] * STEPS, [40] * STEPS) if trainer else None,
        trainer_definition="share of all rows, true tokens fed" if trainer else None,
        vocabulary=Vocabulary(covered=38 * samples, labelled=40 * samples, ceiling=serving.ceiling),
        sample_formats=("speculators",),
        samples=samples,
        tokens=60 * samples,
        rows=40 * samples,
        normalisation=SimpleNamespace(samples=samples, positions=40, agree_pre=agree, agree_post=3, read_as_normed=0, doubtful=doubtful),  # type: ignore[arg-type]
        warnings=warnings,
        timing=Timing(load=0.5, evaluate=2.0, rows=40 * samples, peak_memory=300 << 20),
        device="cpu",
        dtype="float32",
    )
    return document(evaluation, _checkpoint(path), _target(), inputs)


def hostile() -> Document:
    """A report whose every foreign text tries to be markup, to run, to move the cursor, to be very long."""
    attack = "</style></title><script>window.hacked=1</script><img src=x onerror=window.hacked=1>\"'`|\x1b[31m\u202e@all[x](javascript:1)" + "W" * 300
    report = make_document(
        warnings=(attack,), inputs=Inputs(skipped=[(attack, attack)], skipped_count=7, notes=[attack]), path=attack
    )
    for sample in report["samples"]["each"]:
        sample["name"] = attack
    report["target"]["architecture"] = attack
    report["verdict"]["headline"] = attack
    report["verdict"]["text"] = attack
    return report


def _checkpoint(path: str) -> Any:
    config = DrafterConfig(
        format="speculators", architecture="Eagle3DraftModel", hidden_size=32, target_hidden_size=32, num_aux=3, num_layers=1, num_heads=2, num_kv_heads=1,
        head_dim=16, intermediate_size=64, vocab_size=64, draft_vocab_size=48, rms_norm_eps=1e-6, rope=RopeConfig(), aux_layer_ids=(2, 4, 5),
    )  # fmt: skip
    return SimpleNamespace(
        path=Path(path), config=config, wiring=Wiring(aux_layer_inputs=(2, 4, 5)), tensors={"fc.weight": "fc.weight"},
        source=SimpleNamespace(dtype=lambda name: torch.bfloat16), has=lambda name: True,
        config_sha256="a" * 64, weights_sha256=lambda: "b" * 64, notes=("config.json has no norm_before_residual.",),
    )  # fmt: skip


def _target() -> Any:
    config = TargetConfig(architecture="LlamaForCausalLM", hidden_size=32, vocab_size=64, num_layers=8, rms_norm_eps=1e-6, tied_head=False)
    return SimpleNamespace(
        path=Path("models/target"), config=config, head=lambda: torch.zeros(1), config_sha256="c" * 64, weights_sha256=lambda: "d" * 64, notes=()
    )
