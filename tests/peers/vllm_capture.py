"""Serve a pair with the real vLLM on a CPU and capture what it feeds its drafter, as a script: `python vllm_capture.py JOB.json`.

The job names ``target``, ``drafter``, ``prompts`` (token ids), ``max_tokens``, ``steps`` and ``out``. All prompts are sent at once, so that one step drafts for several
requests. Prints one JSON line with the answers and what the worker says. With ``plugin`` in the job the worker gets no extension: the environment says where to capture.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path


def main() -> None:
    job = json.loads(Path(sys.argv[1]).read_text())
    os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    from vllm import LLM, SamplingParams

    llm = LLM(
        model=job["target"],
        dtype="float32",
        max_model_len=256,
        enforce_eager=True,
        enable_prefix_caching=False,
        worker_extension_cls="" if job.get("plugin") else "eagle3_diag.serving.vllm.Capture",
        speculative_config={"method": "eagle3", "model": job["drafter"], "num_speculative_tokens": job["steps"]},
    )
    prompts = [{"prompt_token_ids": prompt} for prompt in job["prompts"]]
    parameters = SamplingParams(temperature=0.0, max_tokens=job["max_tokens"], ignore_eos=True)
    started = stopped = []
    if not job.get("plugin"):
        started = llm.collective_rpc("eagle3_capture_start", args=(job["out"],))
    outputs = [list(each.outputs[0].token_ids) for each in llm.generate(prompts, parameters, use_tqdm=False)]
    if not job.get("plugin"):
        stopped = llm.collective_rpc("eagle3_capture_stop")
    print("RESULT " + json.dumps({"started": started, "stopped": stopped, "outputs": outputs}), flush=True)


if __name__ == "__main__":
    main()
