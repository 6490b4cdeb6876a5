"""SpecForge 0.2.0, ``modeling/draft/llama3_eagle.py``, ``offline_capture/sglang_backend``, and what its pull request 879 changed after it.

Ids go to SGLang's ``set_eagle3_layers_to_capture``: outputs. The embedding is the target's, frozen. The residual is taken before the norm.
``norm_output`` says up to 0.2.0 whether the final norm stands before ``lm_head`` (default true), later what is fed back.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from eagle3_diag.engines.trained.interface import Convention, Facts, Rules
from eagle3_diag.engines.versions import Version, parse

name = "specforge"
convention: Convention = "outputs"
source = "specforge 0.2.0 modeling/draft/llama3_eagle.py; pull request 879"
_OLD = parse("0.2.0")


def defaults(num_layers: int) -> tuple[int, ...]:
    return (2, num_layers // 2, num_layers - 3)


def frozen_embedding(raw: Mapping[str, Any]) -> bool | None:
    width = raw.get("target_hidden_size")
    return width is None or width == raw.get("hidden_size")


def rules(facts: Facts, version: Version | None) -> Rules:
    written = facts.raw.get("norm_output")
    changes: dict[str, Any] = {"residual": "before-norm", "position_offset": 0}
    if version is not None and version > _OLD:
        changes |= {"output_norm": "own", "feedback": "post-norm" if written else "pre-norm"}
    elif version is not None:
        changes |= {"output_norm": "none" if written is False else "own", "feedback": "pre-norm"}
    elif written is not None:
        wiring = facts.checkpoint.wiring
        read = "the state after the final norm is fed back" if wiring.feedback == "post-norm" else "the state before the final norm is fed back"
        if wiring.output_norm == "none":
            read = "no final norm stands before lm_head"
        note = f"norm_output is {str(written).lower()}, whose meaning SpecForge changed after 0.2.0; read as '{read}': --trained-by specforge==V settles it."
        return Rules(changes=changes, assumptions=(note,))
    return Rules(changes=changes)
