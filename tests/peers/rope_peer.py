"""Rotary frequencies as Transformers computes them, as JSON: `python tests/peers/rope_peer.py FILE`."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

HEAD, LONGEST, THETA = 64, 4096, 500000.0
STRETCH = {"short_factor": [1.0 + 0.01 * i for i in range(HEAD // 2)], "long_factor": [1.0 + 0.5 * i for i in range(HEAD // 2)]}
LONGROPE = {"rope_type": "longrope", "factor": 32.0, "original_max_position_embeddings": 128, **STRETCH}
YARN = {"rope_type": "yarn", "original_max_position_embeddings": 128, "beta_fast": 32.0, "beta_slow": 1.0}
CASES: dict[str, tuple[dict[str, Any], int]] = {
    "linear": ({"rope_type": "linear", "factor": 4.0}, 10),
    "dynamic-short": ({"rope_type": "dynamic", "factor": 4.0}, 10),
    "dynamic-long": ({"rope_type": "dynamic", "factor": 4.0}, 5000),
    "yarn": ({"rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 512}, 10),
    "yarn-mscale": ({**YARN, "factor": 40.0, "mscale": 0.707, "mscale_all_dim": 1.0}, 10),
    "yarn-untruncated": ({**YARN, "factor": 32.0, "truncate": False}, 10),
    "llama3": ({"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 512}, 10),
    "longrope-short": (LONGROPE, 100),
    "longrope-long": (LONGROPE, 200),
}


def oracle() -> dict[str, Any]:
    import torch
    from transformers import LlamaConfig
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    found = {}
    for name, (parameters, length) in CASES.items():
        heads = {"hidden_size": 4 * HEAD, "num_attention_heads": 4, "max_position_embeddings": LONGEST}
        config = LlamaConfig(**heads, rope_parameters={"rope_theta": THETA, **parameters})
        inverse, scale = ROPE_INIT_FUNCTIONS[parameters["rope_type"]](config, torch.device("cpu"), seq_len=length)
        found[name] = {"parameters": parameters, "length": length, "scale": scale, "inverse": [float(x) for x in inverse]}
    return found


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(json.dumps(oracle(), indent=1) + "\n")
