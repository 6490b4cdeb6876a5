"""speculators 0.6.0.2 and 0.9.0, ``models/eagle3/{config,core,model_definitions}.py``.

Its data come from vLLM, so ids are inputs, captured in depth order. Every switch is in config.json; ``norm_before_residual`` defaults to
false, ``embed_requires_grad`` (default false) says whether the embedding was trained.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from eagle3_diag.engines.trained.interface import Convention, Facts, Rules
from eagle3_diag.engines.versions import Version

name = "speculators"
convention: Convention = "inputs"
source = "speculators 0.6.0.2, 0.9.0 models/eagle3"


def defaults(num_layers: int) -> tuple[int, ...]:
    return (2, num_layers // 2, num_layers - 3)


def frozen_embedding(raw: Mapping[str, Any]) -> bool | None:
    return raw.get("embed_requires_grad", False) is not True


def rules(facts: Facts, version: Version | None) -> Rules:
    return Rules(changes={"position_offset": 1})
