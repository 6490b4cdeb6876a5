"""EAGLE's own trainer (SafeAILab/EAGLE cb7e084 ``eagle/traineagle3/{cnets,main,modeling_llama_kv}.py``).

It captures the inputs of layers 2, n//2 and n-3 whatever a config says, keeps the target's embedding frozen, takes the residual before the
norm, and turns with RoPE base 10000 whatever ``rope_theta`` says (its inference code reads it).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from eagle3_diag.checkpoint.rotary import DEFAULT_THETA
from eagle3_diag.engines.trained.interface import Convention, Facts, Rules
from eagle3_diag.engines.versions import Version

name = "eagle"
convention: Convention = "inputs"
source = "SafeAILab/EAGLE cb7e084 eagle/traineagle3"


def defaults(num_layers: int) -> tuple[int, ...]:
    return (2, num_layers // 2, num_layers - 3)


def frozen_embedding(raw: Mapping[str, Any]) -> bool | None:
    return True


def rules(facts: Facts, version: Version | None) -> Rules:
    rope = facts.checkpoint.wiring.rope or facts.checkpoint.config.rope
    changes: dict[str, Any] = {"residual": "before-norm", "norm_before_fc": False, "fc_norm": False, "feedback": "pre-norm", "position_offset": 0}
    if rope.type not in ("default", "linear", "dynamic") or rope.theta == DEFAULT_THETA:
        return Rules(changes=changes)
    if facts.told:
        return Rules(changes=changes | {"rope": replace(rope, theta=DEFAULT_THETA)})
    # Others write this format too, with trainers that read rope_theta.
    note = f"trained with RoPE base {rope.theta:g} as config.json says; EAGLE's own trainer turns with {DEFAULT_THETA:g} whatever it says: --trained-by eagle."
    return Rules(changes=changes, assumptions=(note,))
