"""Capture in a vLLM worker, on a stand-in that calls its drafter as vLLM does; ``tests/peers/test_capture.py`` does it in the real one."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from eagle3_diag.captures import read_captures
from eagle3_diag.serving.capture_store import Call, Store
from eagle3_diag.serving.vllm import Capture, register
from tests.eagle3_diag.capture.standin import DRAFTER, SAMPLES, STEPS, Vllm, VllmDrafter, features_of


class Worker(Capture):
    """What vLLM makes of its worker and the extension."""

    def __init__(self, served: Vllm) -> None:
        self.model_runner = served.runner


@pytest.fixture
def served() -> Vllm:
    return Vllm(DRAFTER)


def test_everything_that_the_drafter_saw_is_in_the_file(served: Vllm, tmp_path: Path) -> None:
    plain = Vllm(DRAFTER).serve("x", SAMPLES[0])
    worker = Worker(served)
    assert worker.eagle3_capture_start(str(tmp_path)) == {"capturing": True, "problem": None, "files": []}
    assert served.serve("req-1", SAMPLES[0]) == plain
    status = worker.eagle3_capture_stop()
    assert (status["capturing"], len(status["files"])) == (False, 1)
    (found,) = read_captures(tmp_path)
    rows, prompt = int(found.positions_M.shape[0]), int((~SAMPLES[0].mask_N).sum())
    assert found.drafts_CK.tolist() == plain
    assert found.positions_M.tolist() == list(range(rows))
    assert torch.equal(found.sequence(), SAMPLES[0].tokens_N[: rows + 1])
    assert found.features_MF is not None
    assert torch.equal(found.features_MF, features_of(SAMPLES[0], (2, 4, 6))[:rows])
    assert found.prompt_rows == prompt
    assert torch.equal(found.step_positions_CK, found.positions_M[found.last_rows_C][:, None] + torch.arange(STEPS))
    assert torch.equal(found.step_tokens_CK[:, 1:], found.drafts_CK[:, :-1])
    assert found.step_states_CKH is not None
    assert found.step_outputs_CKH is not None
    assert torch.equal(found.step_states_CKH[:, 1:], found.step_outputs_CKH[:, :-1])
    assert {k: found.about[k] for k in ("engine", "request", "layer_inputs", "cut_off")} == {"engine": "vllm", "request": "req-1", "layer_inputs": [2, 4, 6], "cut_off": False}


def test_the_drafter_is_as_before_afterwards(served: Vllm, tmp_path: Path) -> None:
    worker = Worker(served)
    worker.eagle3_capture_start(str(tmp_path))
    assert "propose" in vars(served.drafter)
    worker.eagle3_capture_stop()
    assert "propose" not in vars(served.drafter)
    assert not served.drafter.model._forward_hooks
    served.serve("later", SAMPLES[1])
    assert worker.eagle3_capture_status()["files"] == []
    assert list(tmp_path.iterdir()) == []


def test_off_unless_asked(served: Vllm, monkeypatch: pytest.MonkeyPatch) -> None:
    worker = Worker(served)
    assert worker.eagle3_capture_status() == worker.eagle3_capture_stop() == {"capturing": False, "problem": None, "files": []}
    monkeypatch.delenv("EAGLE3_DIAG_CAPTURE", raising=False)
    register()  # imports no vLLM, which is not here


def test_the_plug_in_is_harmless_where_vllm_is_another(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setenv("EAGLE3_DIAG_CAPTURE", str(tmp_path))
    register()
    assert "cannot capture in this vLLM" in caplog.text


def test_the_plug_in_learns_the_runner_that_the_proposer_does_not_keep(served: Vllm, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """vLLM 0.27 to 0.32: ``SpecDecodeBaseProposer`` is given its runner and stores none; the runner names it its drafter before the model is loaded."""

    class Base(VllmDrafter):
        def __init__(self, vllm_config: Any, device: Any, pass_hidden_states_to_model: bool, runner: Any = None) -> None:
            super().__init__(DRAFTER)

        def load_model(self, target_model: Any) -> str:
            return f"loaded for {target_model}"

    class Eagle(Base):
        def __init__(self, vllm_config: Any, device: Any, runner: Any = None) -> None:
            super().__init__(vllm_config, device, pass_hidden_states_to_model=True, runner=runner)

    module = ModuleType("vllm.v1.spec_decode.llm_base_proposer")
    module.SpecDecodeBaseProposer = Base  # type: ignore[attr-defined]
    for name in ("vllm", "vllm.v1", "vllm.v1.spec_decode"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    monkeypatch.setitem(sys.modules, module.__name__, module)
    ended: list[Callable[[], None]] = []
    monkeypatch.setattr("atexit.register", ended.append)
    monkeypatch.setenv("EAGLE3_DIAG_CAPTURE", str(tmp_path))
    plain = served.serve("x", SAMPLES[0])
    register()
    register()  # vLLM calls it in every process, and may call it again
    served.runner.drafter = served.drafter = Eagle(None, None, served.runner)
    assert served.drafter.load_model("target") == "loaded for target"
    assert served.serve("req-1", SAMPLES[0]) == plain
    (detach,) = ended
    detach()
    (found,) = read_captures(tmp_path)
    assert [row for row in found.drafts_CK.tolist() if row != [-1] * STEPS] == plain


def test_only_chosen_requests_and_no_more_than_allowed(served: Vllm, tmp_path: Path) -> None:
    worker = Worker(served)
    worker.eagle3_capture_start(str(tmp_path / "named"), requests=["mine"])
    for name in ("other", "mine-1", "mine-2"):
        served.serve(name, SAMPLES[0])
    worker.eagle3_capture_stop()
    assert [c.about["request"] for c in read_captures(tmp_path / "named")] == ["mine-1", "mine-2"]
    worker.eagle3_capture_start(str(tmp_path / "one"), max_requests=1)
    for name in ("a", "b"):
        served.serve(name, SAMPLES[0])
    worker.eagle3_capture_stop()
    assert [c.about["request"] for c in read_captures(tmp_path / "one")] == ["a"]


def test_bounded_in_size_and_says_so(served: Vllm, tmp_path: Path) -> None:
    worker = Worker(served)
    worker.eagle3_capture_start(str(tmp_path), max_bytes=80_000)
    served.serve("long", SAMPLES[0])
    worker.eagle3_capture_stop()
    (found,) = read_captures(tmp_path)
    assert found.about["cut_off"] is True
    assert 0 < found.path.stat().st_size < 100_000
    assert int(found.calls_M.max()) + 1 == found.drafts_CK.shape[0]


def test_an_error_inside_never_reaches_the_server(served: Vllm, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    plain = Vllm(DRAFTER).serve("x", SAMPLES[0])
    worker = Worker(served)
    worker.eagle3_capture_start(str(tmp_path))
    served.runner.input_batch = SimpleNamespace()  # the next version calls it something else
    features = features_of(SAMPLES[0], (2, 4, 6))
    served.drafter.model.start()
    n = int((~SAMPLES[0].mask_N).sum())
    drafts = served.drafter.propose(
        STEPS, SAMPLES[0].tokens_N[:n], torch.arange(n), features[:n], SAMPLES[0].tokens_N[n : n + 1], None,
        SimpleNamespace(query_start_loc=torch.tensor([0, n])), None,
    )  # fmt: skip
    assert drafts[0].tolist() == plain[0]
    status = worker.eagle3_capture_status()
    assert status["capturing"] is False
    assert "AttributeError" in status["problem"]
    assert caplog.text.count("stopped capturing") == 1


def test_a_folder_that_cannot_be_written_is_said_not_raised(served: Vllm, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    status = Worker(served).eagle3_capture_start(str(tmp_path / "file"))
    assert status["capturing"] is False
    assert "FileExistsError" in status["problem"]
    assert "propose" not in vars(served.drafter)


@pytest.mark.parametrize(
    ("runner", "words"),
    [
        (SimpleNamespace(), "no drafter with propose"),
        (SimpleNamespace(drafter=SimpleNamespace(propose=lambda x: x, model=torch.nn.Identity())), "propose() has no target_token_ids"),
    ],
)
def test_a_runner_of_another_kind_is_named(runner: Any, words: str, tmp_path: Path) -> None:
    worker = Worker(Vllm(DRAFTER))
    worker.model_runner = runner
    assert words in worker.eagle3_capture_start(str(tmp_path))["problem"]


def test_what_is_on_disk_when_a_server_is_killed(served: Vllm, tmp_path: Path) -> None:
    """After 1, 2, 4, 8 drafts the file holds them, though nobody stopped the capture."""
    worker = Worker(served)
    worker.eagle3_capture_start(str(tmp_path))
    count = len(served.serve("a", SAMPLES[0]))
    (found,) = read_captures(tmp_path)
    assert found.drafts_CK.shape[0] == max(n for n in (1, 2, 4, 8, 16, 32) if n <= count)


def test_a_call_without_inner_states_is_stored_all_the_same(tmp_path: Path) -> None:
    store = Store(tmp_path, {"engine": "vllm"})
    for c in range(3):
        store.takes("r")
        store.add("r", Call(positions_R=torch.tensor([c]), tokens_R=torch.tensor([9]), features_RF=torch.zeros(1, 6), drafts=[1, 2][: c + 1]))
    store.close()
    (path,) = tmp_path.glob("*.safetensors")
    stored = load_file(path)
    assert sorted(stored) == ["draft_tokens", "row_calls", "row_features", "row_positions", "row_tokens", "step_positions", "step_tokens"]
    assert stored["draft_tokens"].tolist() == [[1, -1], [1, 2], [1, 2]]
    assert json.loads(json.dumps(store.files)) == [str(path)]


def test_a_capture_is_a_dump_to_compare(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from eagle3_diag.cli import main
    from tests.eagle3_diag.capture.standin import DEMO

    for name, layers in (("right", (2, 4, 6)), ("late", (3, 5, 7))):
        served = Vllm(DRAFTER, layers)
        worker = Worker(served)
        worker.eagle3_capture_start(str(tmp_path / name))
        served.serve("a", SAMPLES[0])
        worker.eagle3_capture_stop()
    assert main(["compare-hidden", str(DEMO.samples), str(tmp_path / "right"), "--drafter", str(DEMO.drafter)]) == 0
    assert "Verdict Identical: 3 states" in " ".join(capsys.readouterr().out.split())
    assert main(["compare-hidden", str(DEMO.samples), str(tmp_path / "late"), "--drafter", str(DEMO.drafter)]) == 1
    assert "State 0, state 1, state 2 in B are A's layer 3, layer 5, layer 7: 1 layer late." in " ".join(capsys.readouterr().out.split())
