"""Model-Optimizer 0.37 to 0.47, ``speculative/plugins/{hf_eagle,modeling_eagle}.py``, ``export/plugins/hf_spec_export.py``.

Ids are outputs (hooks on the layers), the embedding is the target's. Since 0.41 (tensors named ``layers.0``) the first layer's state goes
through ``input_layernorm`` before ``hidden_norm``; up to 0.40 (``midlayer``) through ``hidden_norm`` alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from eagle3_diag.engines.trained.interface import Convention, Facts, Rules
from eagle3_diag.engines.versions import Version, parse

name = "model-optimizer"
convention: Convention = "outputs"
source = "nvidia-modelopt 0.37 to 0.47 torch/speculative/plugins"
_BOTH = parse("0.41.0")


def defaults(num_layers: int) -> tuple[int, ...]:
    outputs = sorted({1, max(0, num_layers // 2 - 1), max(0, num_layers - 4)})
    return tuple(i + 1 for i in outputs)


def frozen_embedding(raw: Mapping[str, Any]) -> bool | None:
    return True


def rules(facts: Facts, version: Version | None) -> Rules:
    named = any(n.removeprefix("model.").startswith("layers.0.") for n in facts.stored)
    both = named if version is None else version >= _BOTH
    changes: dict[str, Any] = {"hidden_norm": "both" if both else "own", "position_offset": 0}
    if version is not None:
        return Rules(changes=changes)
    kind = "0.41 or later (tensors are named layers.0)" if both else "0.40 or earlier (tensors are named midlayer)"
    other = "0.40" if both else "0.41"
    norms = "hidden_norm(input_layernorm(state))" if both else "hidden_norm(state)"
    return Rules(
        changes=changes,
        assumptions=(f"trained by Model-Optimizer {kind}: the state goes through {norms}; if not, say --trained-by model-optimizer=={other}.",),
    )
