"""The real vLLM on a CPU serves the demo: the walk's drafts and accepted-per-position equal the server's counters, request by request.

``VLLM_PYTHON`` names an interpreter that has vLLM, where this one has not.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from eagle3_diag.checkpoint import read_drafter
from eagle3_diag.drafter import Drafter, Weights
from eagle3_diag.rollout import rollout, target_argmax, target_states
from eagle3_diag.samples import iter_samples
from eagle3_diag.target import read_target
from tests.peers.cases import ORACLES
from tests.peers.serving import predict

DEMO = Path(__file__).parents[2] / "eagle3_diag" / "demo"
STORED = ORACLES / "vllm-demo.json"
STEPS, MAX_TOKENS = 5, 45

pytestmark = pytest.mark.peers


def interpreter() -> str:
    """A Python that has vLLM; the test is skipped where there is none."""
    if os.environ.get("VLLM_PYTHON"):
        return os.environ["VLLM_PYTHON"]
    if importlib.util.find_spec("vllm") is None:
        pytest.skip("vLLM is not installed here and VLLM_PYTHON names no interpreter that has it")
    return sys.executable


def serve(folder: Path) -> tuple[dict[str, Any], list[list[int]], dict[str, torch.Tensor]]:
    """(the server's answer, prompts, target states of the longer texts)."""
    samples = list(iter_samples([DEMO / "samples"]))
    prompts = [s.tokens_N[: int(torch.nonzero(s.mask_N)[0])].tolist() for s in samples]
    job = {"target": str(DEMO / "target"), "drafter": str(DEMO / "drafter"), "prompts": prompts, "max_tokens": MAX_TOKENS, "steps": STEPS}
    job |= {"layers": list(read_drafter(DEMO / "drafter").wiring.aux_layer_inputs or ()), "states": str(folder / "states.safetensors")}
    (folder / "job.json").write_text(json.dumps(job))
    script = Path(__file__).parent / "vllm_server.py"
    done = subprocess.run([interpreter(), str(script), str(folder / "job.json")], capture_output=True, text=True, cwd=folder, timeout=1800, check=False)
    lines = [line for line in done.stdout.splitlines() if line.startswith("RESULT ")]
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads(lines[-1].removeprefix("RESULT ")), prompts, load_file(job["states"])


def test_walk_equals_the_servers_counters(tmp_path: Path) -> None:
    answer, prompts, states = serve(tmp_path)
    cpu = torch.device("cpu")
    weights = Weights(read_drafter(DEMO / "drafter"), read_target(DEMO / "target"), cpu, torch.float32)
    drafter, past = Drafter(weights), 0
    with torch.inference_mode():
        for i, (prompt, request) in enumerate(zip(prompts, answer["requests"], strict=True)):
            tokens_N = states[f"tokens/{i}"]
            assert request["output"] == tokens_N[len(prompt) : len(prompt) + MAX_TOKENS].tolist()
            state_NH = target_states(weights.target, states[f"final/{i}"], False, device=cpu, dtype=torch.float32)
            drafts_RK = rollout(drafter, tokens_N, list(states[f"aux/{i}"]), steps=STEPS).drafts_RK
            choices = target_argmax(weights.target_head, state_NH).tolist()
            prediction = predict(drafts_RK, tokens_N.tolist(), choices, prompt=len(prompt), max_tokens=MAX_TOKENS)
            assert (prediction.drafts, prediction.counted) == (request["drafts"], request["accepted_per_position"]), f"request {i}"
            assert request["draft_tokens"] == STEPS * request["drafts"]
            past += sum(prediction.past)
    assert past > 0, "no run reached past a request's end: that part of the account was not tried"
    if os.environ.get("WRITE_ORACLES"):
        STORED.write_text(json.dumps({"max_tokens": MAX_TOKENS, "steps": STEPS, **answer}) + "\n")
    assert json.loads(STORED.read_text()) == {"max_tokens": MAX_TOKENS, "steps": STEPS, **answer}, "the server says something else than is stored"
