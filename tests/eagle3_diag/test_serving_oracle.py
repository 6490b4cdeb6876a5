"""The walk over the demo's stored samples against what the real vLLM counted for the same requests (``tests/peers/test_vllm.py``)."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

import eagle3_diag.demo
from eagle3_diag.checkpoint import read_drafter
from eagle3_diag.drafter import Drafter, Weights
from eagle3_diag.rollout import rollout, target_argmax, target_states
from eagle3_diag.samples import iter_samples
from eagle3_diag.samples.checks import fit_states
from eagle3_diag.target import read_target
from tests.peers.cases import ORACLES
from tests.peers.serving import predict

DEMO = Path(eagle3_diag.demo.__file__).parent


@pytest.fixture(scope="module")
def served() -> dict[str, object]:
    data: dict[str, object] = json.loads((ORACLES / "vllm-demo.json").read_text())
    return data


def test_walk_over_stored_samples_equals_the_servers_counters(served: dict[str, object]) -> None:
    steps, max_tokens, requests = served["steps"], served["max_tokens"], served["requests"]
    assert isinstance(steps, int)
    assert isinstance(max_tokens, int)
    assert isinstance(requests, list)
    cpu, past = torch.device("cpu"), 0
    weights = Weights(read_drafter(DEMO / "drafter"), read_target(DEMO / "target"), cpu, torch.float32)
    with torch.inference_mode():
        config, inputs = weights.checkpoint.config, weights.checkpoint.wiring.aux_layer_inputs
        for stored, request in zip(iter_samples([DEMO / "samples"]), requests, strict=True):
            sample = fit_states(stored, num_aux=config.num_aux, hidden_size=config.target_hidden_size, layer_inputs=inputs)
            assert sample.final_NH is not None
            prompt = int(torch.nonzero(sample.mask_N)[0])
            assert sample.tokens_N[prompt : prompt + max_tokens].tolist() == request["output"]
            state_NH = target_states(weights.target, sample.final_NH, sample.final_normed, device=cpu, dtype=torch.float32)
            drafts_RK = rollout(Drafter(weights), sample.tokens_N, list(sample.aux_ANH), steps=steps).drafts_RK
            choices = target_argmax(weights.target_head, state_NH).tolist()
            prediction = predict(drafts_RK, sample.tokens_N.tolist(), choices, prompt=prompt, max_tokens=max_tokens)
            assert (prediction.drafts, prediction.counted) == (request["drafts"], request["accepted_per_position"]), sample.name
            past += sum(prediction.past)
    assert past > 0
