"""The real vLLM on a CPU, its drafter wired right and wrong on purpose: what it feeds its drafter is captured, and the replay names the fault.

Each case starts a server (a minute or two). ``VLLM_PYTHON`` names an interpreter that has vLLM.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from eagle3_diag import demo
from eagle3_diag.captures import read_captures
from eagle3_diag.catalogue import catalogue
from eagle3_diag.checkpoint import read_drafter
from eagle3_diag.drafter import Drafter, Weights
from eagle3_diag.dumps import sample_dump
from eagle3_diag.replay import Replay, replay
from eagle3_diag.samples import Sample, iter_samples
from eagle3_diag.target import read_target
from tests.peers.test_vllm import interpreter

DEMO = demo.paths()
ROOT = Path(__file__).parents[2]
STEPS, REQUESTS = 5, 3

pytestmark = [pytest.mark.peers, pytest.mark.slow]


def _reverse(tensors: dict[str, torch.Tensor]) -> None:
    tensors["fc.weight"] = torch.cat(list(tensors["fc.weight"].chunk(3, dim=1))[::-1], dim=1)


def _swap(tensors: dict[str, torch.Tensor]) -> None:
    first, second = (next(name for name in tensors if name.endswith(f"{norm}.weight")) for norm in ("input_layernorm", "hidden_norm"))
    tensors[first], tensors[second] = tensors[second].clone(), tensors[first].clone()


def _no_map(tensors: dict[str, torch.Tensor]) -> None:
    tensors["d2t"] = torch.zeros_like(tensors["d2t"])


def _nothing(_: Any) -> None:
    return


Case = tuple[str, Callable[[dict[str, Any]], None], Callable[[dict[str, torch.Tensor]], None], tuple[int, str] | None, str | None]
CASES: list[Case] = [
    ("right", _nothing, _nothing, None, None),
    ("layers one late", lambda c: c.update(eagle_aux_hidden_state_layer_ids=[3, 5, 7]), _nothing, (0, "features"), "layers-plus-1"),
    ("fc blocks reversed", _nothing, _reverse, (0, "inputs"), "aux-order-reversed"),
    ("residual flipped", lambda c: c.update(norm_before_residual=True), _nothing, (0, "output"), "residual-flipped"),
    ("norms swapped", _nothing, _swap, (0, "output"), "norms-swapped"),
    ("d2t zero", _nothing, _no_map, (0, "drafts"), "d2t-missing"),
    ("rope base", lambda c: c["transformer_layer_config"]["rope_parameters"].update(rope_theta=500000.0), _nothing, (0, "output"), "rope-base-500000"),
]


@pytest.mark.parametrize(("name", "config", "weights", "first", "explanation"), CASES, ids=[case[0] for case in CASES])
def test_the_real_vllm(
    name: str, config: Any, weights: Any, first: tuple[int, str] | None, explanation: str | None, tmp_path: Path
) -> None:
    served = tmp_path / "drafter"
    served.mkdir()
    data = json.loads((DEMO.drafter / "config.json").read_text())
    config(data)
    (served / "config.json").write_text(json.dumps(data))
    tensors = load_file(DEMO.drafter / "model.safetensors")
    weights(tensors)
    save_file({key: tensor.contiguous() for key, tensor in tensors.items()}, served / "model.safetensors", metadata={"format": "pt"})
    answer, samples = serve(served, tmp_path, {"PYTHONPATH": str(ROOT)})
    assert [s["problem"] for s in answer["started"] + answer["stopped"]] == [None, None]
    found = look(tmp_path / "captured", samples)
    if first is None:
        assert (found.departures, found.explanations) == ((), ())
        assert found.features is not None
        assert found.features.verdict == "rounding"  # vLLM's states are those that Transformers computed for the samples
        return
    assert (found.departures[0].step, found.departures[0].tensor) == first
    assert explanation in [each.id for each in found.explanations]


def test_the_plug_in(tmp_path: Path) -> None:
    """Installed beside vLLM, without an extension named: the environment variable starts it, and the files are there when the server is gone."""
    installed = tmp_path / "installed" / "eagle3_parity-0.dist-info"
    installed.mkdir(parents=True)
    (installed / "METADATA").write_text("Metadata-Version: 2.1\nName: eagle3-parity\nVersion: 0\n")
    entry = (ROOT / "pyproject.toml").read_text().split('[project.entry-points."vllm.general_plugins"]\n')[1].split("\n")[0]
    (installed / "entry_points.txt").write_text("[vllm.general_plugins]\n" + entry.replace('"', "") + "\n")
    environment = {"PYTHONPATH": f"{installed.parent}{os.pathsep}{ROOT}", "EAGLE3_DIAG_CAPTURE": str(tmp_path / "captured"), "EAGLE3_DIAG_CAPTURE_REQUESTS": str(REQUESTS)}
    _, samples = serve(DEMO.drafter, tmp_path, environment, plugin=True)
    assert look(tmp_path / "captured", samples).departures == ()


def serve(drafter: Path, folder: Path, environment: dict[str, str], *, plugin: bool = False) -> tuple[dict[str, Any], list[Sample]]:
    """Serve the first samples' prompts; capturing changes none of the answers."""
    samples = list(iter_samples([DEMO.samples], max_samples=REQUESTS))
    prompts = [s.tokens_N[~s.mask_N].tolist() for s in samples]
    job = {"target": str(DEMO.target), "drafter": str(drafter), "prompts": prompts, "max_tokens": 40, "steps": STEPS, "out": str(folder / "captured"), "plugin": plugin}
    (folder / "job.json").write_text(json.dumps(job))
    script = Path(__file__).parent / "vllm_capture.py"
    done = subprocess.run(
        [interpreter(), str(script), str(folder / "job.json")], capture_output=True, text=True, cwd=folder, timeout=1800, check=False,
        env={**os.environ, **environment},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-4000:]
    answer = json.loads(next(line for line in done.stdout.splitlines() if line.startswith("RESULT ")).removeprefix("RESULT "))
    for sample, prompt, output in zip(samples, prompts, answer["outputs"], strict=True):  # capturing changes nothing
        assert output == sample.tokens_N[len(prompt) : len(prompt) + 40].tolist()
    return answer, samples


def look(captured: Path, samples: list[Sample]) -> Replay:
    """The replay of what was captured, under the demo drafter's right wiring."""
    captures = read_captures(captured)
    assert len(captures) == REQUESTS
    checkpoint, target = read_drafter(DEMO.drafter), read_target(DEMO.target)
    listed = catalogue(checkpoint, target, tuple(range(1, 8)))
    drafter = Drafter(Weights(checkpoint, target, torch.device("cpu"), torch.float32), listed.right)
    with torch.inference_mode():
        return replay(drafter, captures, listed, [sample_dump(sample) for sample in samples])
