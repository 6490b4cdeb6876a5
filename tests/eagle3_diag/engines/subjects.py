"""Drafters as trainers write them and targets that are a config.json alone."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from eagle3_diag.check import Answer, Check, check
from eagle3_diag.engines.reading import engine_spec, read_subject
from tests.eagle3_diag.checkpoint.builders import Files, Model

SMALL = Model(hidden=32)


def target(path: Path, architecture: str = "LlamaForCausalLM", *, model_type: str = "llama", layers: int = 61, hidden: int = 32, vocab: int = 96) -> Path:
    """A target's directory that holds its config.json and nothing else."""
    config: dict[str, Any] = {"model_type": model_type, "hidden_size": hidden, "vocab_size": vocab, "num_hidden_layers": layers}
    if architecture.endswith("ForConditionalGeneration"):
        config = {"model_type": "kimi_k25", "text_config": config}
    config["architectures"] = [architecture]
    path.mkdir(parents=True, exist_ok=True)
    (path / "config.json").write_text(json.dumps(config))
    return path


def kimi(path: Path) -> Path:
    return target(path, "KimiK25ForConditionalGeneration", model_type="kimi_k2")


def ask(files: Files, target_path: Path, *engines: str, **how: Any) -> Check:
    """Write the drafter beside the target and check it against these engines."""
    drafter = files.write(target_path.parent / "drafter")
    subject, trained = read_subject(drafter, target_path, **how)
    return check(subject, trained, [engine_spec(each) for each in engines])


def one(files: Files, target_path: Path, engine: str, **how: Any) -> Answer:
    return ask(files, target_path, engine, **how).answers[0]


def inputs(answer: Answer) -> tuple[int, ...] | None:
    assert answer.wiring is not None, answer.findings
    return answer.wiring.aux_layer_inputs


def codes(answer: Answer, severity: str = "error") -> list[str]:
    return [f.code for f in answer.findings if f.severity == severity]
