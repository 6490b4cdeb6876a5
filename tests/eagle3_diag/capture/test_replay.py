"""Replaying what stand-in servers did: the right one departs nowhere; each wrong one departs first where its fault is, and is named."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from eagle3_diag.captures import read_capture, read_captures
from eagle3_diag.dumps import sample_dump
from eagle3_diag.errors import InputError
from eagle3_diag.replay import Replay, replay
from eagle3_diag.serving.vllm import attach
from tests.eagle3_diag.capture.standin import DRAFTER, LISTED, SAMPLES, Sglang, Vllm
from tests.eagle3_diag.capture.test_sglang import attach as attach_sglang

REFERENCES = [sample_dump(sample) for sample in SAMPLES]


def captured(folder: Path, layers: tuple[int, ...] = (2, 4, 6), engine: str = "vllm", **changes: Any) -> Path:
    """Two requests of a server wired with these changes."""
    drafter = DRAFTER.rewired(**changes)
    with torch.inference_mode():
        if engine == "vllm":
            served = Vllm(drafter, layers)
            tap = attach(served.runner, str(folder))
            for i in (0, 1):
                served.serve(f"r{i}", SAMPLES[i])
            tap.detach()
        else:
            sglang = Sglang(drafter, layers)
            taps = attach_sglang(sglang, folder=str(folder))
            for i in (0, 1):
                sglang.serve(f"r{i}", SAMPLES[i])
            for each in taps:
                each.close()
    return folder


def replayed(folder: Path, references: Any = REFERENCES) -> Replay:
    with torch.inference_mode():
        return replay(DRAFTER, read_captures(folder), LISTED, references)


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_a_right_server_departs_nowhere(engine: str, tmp_path: Path) -> None:
    found = replayed(captured(tmp_path, engine=engine))
    assert (found.departures, found.explanations, found.notes) == ((), (), ())
    assert found.requests == 2
    checked = {tensor for _, tensor, _ in found.checked}
    assert checked >= {"positions", "features", "inputs", "fed-back", "output", "drafts"}
    assert ("tokens" in checked) or engine == "sglang"


FAULTS: list[tuple[str, dict[str, Any], tuple[int, str]]] = [
    ("residual-flipped", {"residual": "after-norm"}, (0, "output")),
    ("norms-swapped", {"embedding_norm": "other", "hidden_norm": "other"}, (0, "output")),
    ("feedback", {"feedback": "post-norm"}, (1, "fed-back")),
    ("stale", {"feedback": "stale"}, (1, "fed-back")),
    ("steps blind", {"prefix_visible": False}, (1, "output")),
    ("position step", {"position_step": 0}, (1, "positions")),
    ("d2t missing", {"vocabulary": "missing"}, (0, "drafts")),
    ("fp8", {"quantised": "fp8"}, (0, "inputs")),
    ("no output norm", {"output_norm": "none"}, (0, "output")),
    ("blocks reversed", {"aux_order": (2, 1, 0)}, (0, "inputs")),
]


@pytest.mark.parametrize(("name", "changes", "first"), FAULTS, ids=[fault[0] for fault in FAULTS])
def test_a_wrong_server_departs_first_where_its_fault_is_and_is_named(name: str, changes: dict[str, Any], first: tuple[int, str], tmp_path: Path) -> None:
    found = replayed(captured(tmp_path, **changes))
    assert (found.departures[0].step, found.departures[0].tensor) == first
    assert {d.tensor for d in found.departures} <= {first[1], *(("inputs", "output", "drafts") if name == "fp8" else ("output",) if name == "position step" else ())}
    assert found.explanations, found.departures
    assert dict(found.explanations[0].changes) == changes


@pytest.mark.parametrize(
    ("layers", "words"), [((3, 5, 7), "1 layer late"), ((1, 3, 5), "1 layer early"), ((6, 4, 2), "the same states in another order")]
)
def test_wrong_states_are_read_off_the_features(layers: tuple[int, ...], words: str, tmp_path: Path) -> None:
    found = replayed(captured(tmp_path, layers=layers))
    assert {(d.step, d.tensor) for d in found.departures} == {(0, "features")}
    assert found.features is not None
    assert words in found.features.findings[0].text
    expected = {"aux_order": (2, 1, 0)} if layers == (6, 4, 2) else {"aux_layer_inputs": layers}
    assert [dict(e.changes) for e in found.explanations] == [expected]


def test_two_faults_at_once(tmp_path: Path) -> None:
    found = replayed(captured(tmp_path, layers=(3, 5, 7), residual="after-norm"))
    assert [(d.step, d.tensor) for d in found.departures][:2] == [(0, "features"), (0, "output")]
    assert [dict(e.changes) for e in found.explanations] == [{"aux_layer_inputs": (3, 5, 7), "residual": "after-norm"}]
    found = replayed(captured(tmp_path / "b", feedback="post-norm", residual="after-norm"))
    assert {"feedback": "post-norm", "residual": "after-norm"} in [dict(e.changes) for e in found.explanations]


def test_a_fault_outside_the_catalogue_has_a_place_and_no_name(tmp_path: Path) -> None:
    with torch.inference_mode():
        served = Vllm(DRAFTER)
        tap = attach(served.runner, str(tmp_path))
        norm = served.drafter.model.drafter.normed
        served.drafter.model.drafter = DRAFTER.rewired()
        served.drafter.model.drafter.normed = lambda x: norm(x).roll(3, dims=-1)  # type: ignore[method-assign]
        served.serve("r", SAMPLES[0])
        tap.detach()
    found = replayed(tmp_path)
    assert (found.departures[0].step, found.departures[0].tensor, found.explanations) == (0, "output", ())


def test_without_samples_the_features_stay_unchecked_and_that_is_said(tmp_path: Path) -> None:
    found = replayed(captured(tmp_path, layers=(3, 5, 7)), references=[])
    assert found.departures == ()
    assert "which of the target's states were captured could not be checked" in found.notes[0]


def test_without_inner_states_tokens_are_replayed(tmp_path: Path) -> None:
    """What CUDA graphs leave: features and drafts."""
    for name, changes in (("right", {}), ("wrong", {"residual": "after-norm"})):
        for path in captured(tmp_path / name, **changes).glob("*.safetensors"):
            about = read_capture(path).about
            import json

            kept = {k: v for k, v in load_file(path).items() if not k.startswith(("step_states", "step_outputs", "step_normed", "row_inputs"))}
            save_file(kept, path, metadata={"eagle3_diag": json.dumps(dict(about))})
    right, wrong = replayed(tmp_path / "right"), replayed(tmp_path / "wrong")
    assert right.departures == ()
    assert "holds no states of the draft steps" in right.notes[0]
    assert wrong.departures[0].tensor == "drafts"
    assert "residual-flipped" in {e.id for e in wrong.explanations}


def test_a_cached_prefix_cannot_be_replayed(tmp_path: Path) -> None:
    import json

    (path, *_) = sorted(captured(tmp_path).glob("*.safetensors"))
    stored, about = load_file(path), dict(read_capture(path).about)
    stored["row_positions"] += 16
    save_file(stored, tmp_path / "capture_9.safetensors", metadata={"eagle3_diag": json.dumps(about)})
    with pytest.raises(InputError, match="begins at position 16, its prefix came from the server's cache"):
        replay(DRAFTER, [read_capture(tmp_path / "capture_9.safetensors")], LISTED)


@pytest.mark.parametrize("damage", ["truncated", "another schema", "a tensor missing", "rows missing", "empty folder"])
def test_what_is_no_capture_is_refused(damage: str, tmp_path: Path) -> None:
    import json

    (path, *_) = sorted(captured(tmp_path / "c").glob("*.safetensors"))
    stored, about = load_file(path), dict(read_capture(path).about)
    if damage == "truncated":
        path.write_bytes(path.read_bytes()[:2000])
    elif damage == "another schema":
        save_file(stored, path, metadata={"eagle3_diag": json.dumps(about | {"schema": "x/2"})})
    elif damage == "empty folder":
        with pytest.raises(InputError, match="holds no capture_"):
            read_captures(tmp_path)
        return
    else:
        name = "draft_tokens" if damage == "a tensor missing" else "row_tokens"
        stored = {k: v for k, v in stored.items() if k != name or damage == "rows missing"}
        if damage == "rows missing":
            stored[name] = stored[name][:-1]
        save_file(stored, path, metadata={"eagle3_diag": json.dumps(about)})
    with pytest.raises(InputError, match=str(path)):
        read_capture(path)
