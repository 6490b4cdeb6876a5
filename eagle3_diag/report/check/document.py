"""A check as plain JSON data (schema ``eagle3-diag/check/1``)."""

from __future__ import annotations

import json
from importlib import resources
from typing import Any

from eagle3_diag.check import Answer, Check
from eagle3_diag.report.document import Document

SCHEMA = "eagle3-diag/check/1"


def document(check: Check) -> Document:
    """The whole answer."""
    checkpoint, target, found = check.subject.checkpoint, check.subject.target, check.trained
    return {
        "schema": SCHEMA,
        "drafter": {
            "path": str(checkpoint.path),
            "format": checkpoint.config.format,
            "architecture": checkpoint.config.architecture,
            "num_layers": checkpoint.config.num_layers,
            "num_aux": checkpoint.config.num_aux,
            "config_sha256": checkpoint.config_sha256,
        },
        "target": {
            "path": str(target.path),
            "architecture": target.architecture,
            "model_type": target.model_type,
            "num_layers": target.num_layers,
            "hidden_size": target.hidden_size,
        },
        "trained_by": {
            "trainer": found.trainer,
            "version": found.version,
            "ids": found.convention,
            "written_ids": None if found.ids is None else list(found.ids),
            "source": found.source,
            "assumptions": list(found.assumptions),
        },
        "trained": found.wiring.to_dict(),
        "engines": [_answer(answer) for answer in check.answers],
        "changes": [vars(change) for change in check.changes],
        "as_trained": check.as_trained,
        "notes": list(check.notes),
    }


def _answer(answer: Answer) -> dict[str, Any]:
    return {
        "engine": answer.engine,
        "version": answer.version,
        "runner": answer.runner,
        "target_architecture": answer.target_architecture,
        "as_trained": answer.as_trained,
        "wiring": None if answer.wiring is None else answer.wiring.to_dict(),
        "findings": [vars(finding) for finding in answer.findings],
        "notes": list(answer.notes),
    }


def schema() -> dict[str, Any]:
    """The JSON Schema (2020-12) that every check fulfils."""
    loaded: dict[str, Any] = json.loads((resources.files("eagle3_diag.report") / "schema" / "check.json").read_text("utf-8"))
    return loaded
