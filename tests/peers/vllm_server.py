"""Serve a pair with the real vLLM on a CPU, as a script: `python vllm_server.py JOB.json`.

The job names ``target``, ``drafter``, ``prompts`` (token ids), ``max_tokens``, ``steps``, ``states`` (a file to write) and ``layers``. Every prompt is served
alone, greedily, twice: once longer, to learn what the target says past the end, then with ``max_tokens`` between two readings of the
counters. Prints one JSON line. The target's hidden states on the longer texts come from Transformers in float32.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

COUNTERS = {
    "vllm:spec_decode_num_drafts": "drafts",
    "vllm:spec_decode_num_draft_tokens": "draft_tokens",
    "vllm:spec_decode_num_accepted_tokens": "accepted",
    "vllm:spec_decode_num_accepted_tokens_per_pos": "accepted_per_position",
}


def read(llm: Any) -> dict[str, Any]:
    """The speculative-decoding counters; zero where vLLM has not counted yet."""
    found: dict[str, Any] = {"drafts": 0, "draft_tokens": 0, "accepted": 0, "accepted_per_position": []}
    for metric in llm.get_metrics():
        if metric.name in COUNTERS:
            found[COUNTERS[metric.name]] = list(metric.values) if hasattr(metric, "values") else metric.value
    return found


def difference(after: dict[str, Any], before: dict[str, Any], steps: int) -> dict[str, Any]:
    earlier = before["accepted_per_position"] or [0] * steps
    plain = {k: after[k] - before[k] for k in ("drafts", "draft_tokens", "accepted")}
    return plain | {"accepted_per_position": [a - b for a, b in zip(after["accepted_per_position"], earlier, strict=True)]}


def states(job: dict[str, Any], texts: list[list[int]]) -> dict[str, Any]:
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(job["target"], dtype=torch.float32).eval()
    last: list[Any] = []
    model.model.norm.register_forward_pre_hook(lambda _module, inputs: last.append(inputs[0].detach()[0]))
    found = {}
    with torch.no_grad():
        for i, text in enumerate(texts):
            out = model(input_ids=torch.tensor([text]), output_hidden_states=True)
            found[f"aux/{i}"] = torch.stack([out.hidden_states[layer][0] for layer in job["layers"]])
            found[f"final/{i}"] = last.pop()
            found[f"tokens/{i}"] = torch.tensor(text)
    return found


def main() -> None:
    job = json.loads(Path(sys.argv[1]).read_text())
    os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    import vllm
    from safetensors.torch import save_file
    from vllm import LLM, SamplingParams

    steps = job["steps"]
    llm = LLM(
        model=job["target"],
        dtype="float32",
        max_model_len=256,
        enforce_eager=True,
        enable_prefix_caching=False,
        disable_log_stats=False,
        speculative_config={"method": "eagle3", "model": job["drafter"], "num_speculative_tokens": steps},
    )

    def ask(prompt: list[int], count: int) -> list[int]:
        parameters = SamplingParams(temperature=0.0, max_tokens=count, ignore_eos=True)
        return list(llm.generate([{"prompt_token_ids": prompt}], parameters, use_tqdm=False)[0].outputs[0].token_ids)

    longer = [ask(prompt, job["max_tokens"] + steps + 2) for prompt in job["prompts"]]
    requests, before = [], read(llm)
    for prompt in job["prompts"]:
        tokens = ask(prompt, job["max_tokens"])
        after = read(llm)
        requests.append({"output": tokens, **difference(after, before, steps)})
        before = after
    save_file(states(job, [p + o for p, o in zip(job["prompts"], longer, strict=True)]), job["states"])
    print("RESULT " + json.dumps({"made_by": f"vllm {vllm.__version__} on CPU, float32, greedy", "requests": requests}), flush=True)


if __name__ == "__main__":
    main()
