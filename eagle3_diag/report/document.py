"""An evaluation as plain JSON data: schema ``eagle3-diag/report/1`` (``schema/report.json``).

Everything but ``environment`` and ``timing`` depends on the inputs alone: the same inputs give the same bytes.
"""

from __future__ import annotations

import json
import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from typing import Any

import safetensors
import torch

import eagle3_diag
from eagle3_diag.acceptance import SampleResult, conditional_rates, length_of
from eagle3_diag.breakdown import CLASSES, Breakdown, range_names
from eagle3_diag.checkpoint.interface import DrafterCheckpoint
from eagle3_diag.evaluate import Evaluation
from eagle3_diag.report.verdict import verdict
from eagle3_diag.target import Target

SCHEMA = "eagle3-diag/report/1"
Document = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Inputs:
    """What a report says about the run beyond its figures.

    ``skipped`` (name, reason) of sample files left out (at most the first thousand), ``skipped_count`` of all; ``notes`` what readers
    assumed; ``prompt_length``/``max_samples`` as asked for.
    """

    skipped: Sequence[tuple[str, str]] = ()
    skipped_count: int = 0
    notes: Sequence[str] = ()
    prompt_length: int | None = None
    max_samples: int | None = None


def document(evaluation: Evaluation, checkpoint: DrafterCheckpoint, target: Target, inputs: Inputs | None = None) -> Document:
    """The whole report. Reads all of the drafter's and the target's judging weights once, for their digests."""
    inputs = inputs or Inputs()
    options = evaluation.options
    report: Document = {
        "schema": SCHEMA,
        "drafter": drafter_facts(checkpoint),
        "target": target_facts(target),
        "samples": _samples(evaluation, inputs),
        "steps": options.steps,
        "labels": options.labels,
        "options": {
            "only": "serving" if options.only_serving else None,
            "serving_mode": options.serving_mode,
            "temperature": options.temperature,
            "seed": options.seed,
            "max_samples": inputs.max_samples,
            "max_rows": options.max_rows,
            "prompt_length": inputs.prompt_length,
            "trainer": options.trainer,
            "device": evaluation.device,
            "dtype": evaluation.dtype,
        },
        "accuracy": _accuracy(evaluation),
        "serving": _serving(evaluation),
        "breakdown": breakdown(evaluation.table.breakdown()),
        "vocabulary": {
            "target": target.config.vocab_size,
            "draft": checkpoint.config.draft_vocab_size,
            "labelled": evaluation.vocabulary.labelled,
            "covered": evaluation.vocabulary.covered,
            "coverage": evaluation.vocabulary.coverage,
            "ceiling": evaluation.vocabulary.ceiling,
        },
        "normalisation": {
            "samples": evaluation.normalisation.samples,
            "positions": evaluation.normalisation.positions,
            "agree_pre_norm": evaluation.normalisation.agree_pre,
            "agree_post_norm": evaluation.normalisation.agree_post,
            "read_as_post_norm": evaluation.normalisation.read_as_normed,
            "doubtful": evaluation.normalisation.doubtful,
        },
        "wiring": evaluation.wiring.to_dict(),
        "warnings": list(evaluation.warnings),
        "notes": unique([*checkpoint.notes, *target.notes, *inputs.notes]),
        "environment": environment(evaluation.device),
        "timing": {
            "load_s": evaluation.timing.load,
            "evaluate_s": evaluation.timing.evaluate,
            "rows_per_second": evaluation.timing.rows_per_second,
            "peak_memory_bytes": evaluation.timing.peak_memory,
        },
    }
    report["verdict"] = verdict(report)
    cleaned: Document = encodable(report)
    return cleaned


def schema() -> dict[str, Any]:
    """The JSON Schema (2020-12) that every report fulfils."""
    text = (resources.files("eagle3_diag.report") / "schema" / "report.json").read_text("utf-8")
    loaded: dict[str, Any] = json.loads(text)
    return loaded


def dumps(report: Mapping[str, Any]) -> str:
    """JSON text, ASCII, keys in the document's order, with a closing newline."""
    return json.dumps(report, indent=2, allow_nan=False) + "\n"


def unique(sentences: Sequence[str]) -> list[str]:
    return list(dict.fromkeys(sentences))


def encodable(data: Any) -> Any:
    """The same data with bytes of file names that are no UTF-8 (lone surrogates) written as escapes, so that every reader can read it."""
    if isinstance(data, str):
        return data.encode("utf-8", "backslashreplace").decode("utf-8")
    if isinstance(data, Mapping):
        return {encodable(key): encodable(value) for key, value in data.items()}
    if isinstance(data, list | tuple):
        return [encodable(each) for each in data]
    return data


def drafter_facts(checkpoint: DrafterCheckpoint) -> dict[str, Any]:
    """The drafter in a report; reads all of its weights for their digest."""
    config = checkpoint.config
    return {
        "path": str(checkpoint.path),
        "format": config.format,
        "architecture": config.architecture,
        "hidden_size": config.hidden_size,
        "target_hidden_size": config.target_hidden_size,
        "num_aux": config.num_aux,
        "num_layers": config.num_layers,
        "num_heads": config.num_heads,
        "num_kv_heads": config.num_kv_heads,
        "head_dim": config.head_dim,
        "intermediate_size": config.intermediate_size,
        "vocab_size": config.vocab_size,
        "draft_vocab_size": config.draft_vocab_size,
        "attention": "mla" if config.mla is not None else "gqa",
        "rope": config.rope.type,
        "dtype": _dtype(checkpoint.source.dtype(checkpoint.tensors["fc.weight"])),
        "aux_layer_ids": None if config.aux_layer_ids is None else list(config.aux_layer_ids),
        "aux_layer_inputs": None if checkpoint.wiring.aux_layer_inputs is None else list(checkpoint.wiring.aux_layer_inputs),
        "own_embedding": checkpoint.has("embed_tokens.weight"),
        "own_head": checkpoint.has("lm_head.weight"),
        "config_sha256": checkpoint.config_sha256,
        "weights_sha256": checkpoint.weights_sha256(),
    }


def target_facts(target: Target) -> dict[str, Any]:
    """The target in a report; reads its judging weights for their digest."""
    config = target.config
    return {
        "path": str(target.path),
        "format": "transformers",
        "architecture": config.architecture,
        "hidden_size": config.hidden_size,
        "num_layers": config.num_layers,
        "vocab_size": config.vocab_size,
        "tied_head": config.tied_head,
        "dtype": _dtype(target.head().dtype),
        "config_sha256": target.config_sha256,
        "weights_sha256": target.weights_sha256(),
    }


def _dtype(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _samples(evaluation: Evaluation, inputs: Inputs) -> dict[str, Any]:
    return {
        "format": ", ".join(evaluation.sample_formats),
        "count": evaluation.samples,
        "tokens": evaluation.tokens,
        "rows": evaluation.rows,
        "skipped": {"count": inputs.skipped_count, "files": [{"name": name, "reason": reason} for name, reason in inputs.skipped]},
        "each": [_sample(s) for s in evaluation.table.ordered()],
    }


def _sample(result: SampleResult) -> dict[str, Any]:
    """Figures of one sample; its acceptance length is null where it had no draft with a known outcome."""
    drafts: int | None = None
    length: float | None = None
    if result.walk is not None:
        drafts = result.walk.drafts
        if drafts:
            length = length_of(conditional_rates(result.walk.accepted, result.walk.at_risk))
    elif result.chances is not None and result.chance_rows is not None:
        drafts = result.chance_rows[0]
        if drafts:
            length = 1 + sum(c / n for c, n in zip(result.chances, result.chance_rows, strict=True) if n)
    return {"name": result.name, "tokens": result.tokens, "rows": result.rows, "drafts": drafts, "acceptance_length": length}


def _accuracy(evaluation: Evaluation) -> dict[str, Any] | None:
    counts, theirs = evaluation.accuracy, evaluation.trainer
    trainer: dict[str, Any] | None = None
    if theirs is not None:
        trainer = {
            "name": evaluation.options.trainer,
            "definition": evaluation.trainer_definition,
            "accuracy": conditional_rates(theirs.correct, theirs.total),
            "correct": theirs.correct,
            "total": theirs.total,
        }
    if counts is None:
        return None
    return {
        "full": conditional_rates(counts.correct, counts.total),
        "conditional": conditional_rates(counts.correct, counts.at_risk),
        "correct": counts.correct,
        "total": counts.total,
        "at_risk": counts.at_risk,
        "trainer": trainer,
    }


def breakdown(found: Breakdown | None) -> dict[str, Any] | None:
    """Where first drafts are right, in a report."""
    if found is None:
        return None
    ranges = zip(range_names(), found.range_right, found.range_total, strict=True)
    classes = zip(CLASSES, found.class_right, found.class_total, strict=True)
    return {
        "ranges": [{"name": name, "right": right, "total": total} for name, right, total in ranges],
        "classes": [{"name": name, "right": right, "total": total} for name, right, total in classes],
    }


def _serving(evaluation: Evaluation) -> dict[str, Any]:
    serving = evaluation.serving
    return {
        "mode": serving.mode,
        "temperature": evaluation.options.temperature if serving.mode == "sampled" else None,
        "drafts": serving.drafts,
        "accepted_per_position": list(serving.accepted_per_position),
        "at_risk": list(serving.at_risk),
        "conditional_rates": list(serving.rates),
        "marginal_rates": marginal_rates(serving.rates),
        "acceptance_length": serving.acceptance_length,
        "ci95": None if serving.ci95 is None else list(serving.ci95),
        "per_request": serving.per_request,
        "counted_length": serving.counted_length,
        "censored": serving.censored,
        "ended": serving.ended,
    }


def marginal_rates(rates: Sequence[float | None]) -> list[float | None]:
    """The chance that steps 0..k are all accepted, from the chance of each step given all before; None from the first unknown on."""
    marginal: list[float | None] = []
    chance: float | None = 1.0
    for rate in rates:
        chance = None if chance is None or rate is None else min(1.0, chance * rate)
        marginal.append(chance)
    return marginal


def environment(device: str) -> dict[str, Any]:
    """The interpreter, torch and machine of this run."""
    return {
        "eagle3_diag": eagle3_diag.__version__,
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        "safetensors": safetensors.__version__,
        "cuda": torch.version.cuda,
        "device": torch.cuda.get_device_name(device) if device.startswith("cuda") else (platform.machine() or "cpu"),
        "threads": torch.get_num_threads(),
        "platform": platform.platform(),
        "host": platform.node(),
    }
