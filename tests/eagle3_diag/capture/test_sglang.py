"""Capture in SGLang by its forward hooks, on a stand-in that calls its model as SGLang does."""

from __future__ import annotations

import fnmatch
import importlib
import logging
import os
import zipfile
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from eagle3_diag.captures import read_captures
from eagle3_diag.serving.sglang import Tap, hook
from tests.eagle3_diag.capture.standin import DRAFTER, SAMPLES, STEPS, Sglang, features_of

MODULES = ["model", "model.fc"]


def attach(served: Sglang, **config: Any) -> list[Tap]:
    """As SGLang registers: the factory once per model, what it returns on each module that matches."""
    taps = []
    for root in (served.target, served.root):
        made = hook(config)
        assert isinstance(made, Tap)
        taps.append(made)
        for name, module in root.named_modules():
            if any(fnmatch.fnmatch(name, pattern) for pattern in MODULES):
                module.register_forward_hook(made)
    return taps


def close(taps: list[Tap]) -> None:
    for tap in taps:
        assert tap.guard.problem is None
        tap.close()


@pytest.mark.parametrize("padded", [True, False], ids=["padded", "exact"])
@pytest.mark.parametrize("ids", [True, False], ids=["named", "slots"])
@pytest.mark.parametrize("chunk", [None, 4])
def test_everything_that_the_drafter_saw_is_in_the_file(padded: bool, ids: bool, chunk: int | None, tmp_path: Path) -> None:
    plain = Sglang(DRAFTER).serve("x", SAMPLES[0])
    served = Sglang(DRAFTER, padded=padded, ids=ids, chunk=chunk)
    taps = attach(served, folder=str(tmp_path))
    assert served.serve("req-1", SAMPLES[0]) == plain
    assert served.serve("req-2", SAMPLES[1]) == Sglang(DRAFTER).serve("x", SAMPLES[1])
    close(taps)
    first, second = read_captures(tmp_path)
    assert [c.about["request"] for c in (first, second)] == (["req-1", "req-2"] if ids else ["request-0", "request-1"])
    for found, sample in ((first, SAMPLES[0]), (second, SAMPLES[1])):
        rows = int(found.positions_M.shape[0])
        assert found.positions_M.tolist() == list(range(rows))
        assert torch.equal(found.tokens_M, sample.tokens_N[1 : rows + 1])
        assert found.features_MF is not None
        assert torch.equal(found.features_MF, features_of(sample, (2, 4, 6))[:rows])
        assert found.inputs_MH is not None
        assert torch.allclose(found.inputs_MH, DRAFTER.project(list(found.features_MF.split(128, dim=1))), atol=1e-5)
    assert first.drafts_CK.tolist() == [[*drafts[:-1], -1] for drafts in plain]  # the last draft is drawn outside the model
    assert torch.equal(first.step_positions_CK, first.positions_M[first.last_rows_C][:, None] + torch.arange(STEPS))


def test_features_that_fc_never_saw(tmp_path: Path) -> None:
    """Aux capture off: the features are as wide as the drafter, and fc is skipped."""
    served = Sglang(DRAFTER.rewired(fc="skipped"), layers=(6,))
    taps = attach(served, folder=str(tmp_path))
    served.serve("a", SAMPLES[0])
    close(taps)
    (found,) = read_captures(tmp_path)
    assert found.features_MF is None
    assert found.inputs_MH is not None
    assert torch.equal(found.inputs_MH, features_of(SAMPLES[0], (6,))[: found.inputs_MH.shape[0]])


def test_a_capture_is_a_dump_to_compare_though_it_lacks_the_first_token(tmp_path: Path) -> None:
    from eagle3_diag.cli import main
    from tests.eagle3_diag.capture.standin import DEMO

    for name, layers, code in (("right", (2, 4, 6), 0), ("late", (3, 5, 7), 1)):
        served = Sglang(DRAFTER, layers)
        taps = attach(served, folder=str(tmp_path / name))
        served.serve("a", SAMPLES[1])
        close(taps)
        assert main(["compare-hidden", str(DEMO.samples), str(tmp_path / name), "--drafter", str(DEMO.drafter), "--quiet"]) == code


def test_without_a_folder_nothing_is_registered(caplog: pytest.LogCaptureFixture) -> None:
    assert hook({}) is None
    assert hook(None) is None
    assert "names no folder" in caplog.text


def test_bounds_and_names_are_kept(tmp_path: Path) -> None:
    served = Sglang(DRAFTER)
    taps = attach(served, folder=str(tmp_path / "one"), max_requests=1)
    named = attach(served, folder=str(tmp_path / "named"), requests=["b"])
    for name in ("a", "b"):
        served.serve(name, SAMPLES[0])
    close([*taps, *named])
    assert [c.about["request"] for c in read_captures(tmp_path / "one")] == ["a"]
    assert [c.about["request"] for c in read_captures(tmp_path / "named")] == ["b"]


def test_an_error_inside_never_reaches_the_server(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    served = Sglang(DRAFTER)
    (tmp_path / "file").write_text("")
    taps = attach(served, folder=str(tmp_path / "file" / "below"))
    with caplog.at_level(logging.WARNING):
        assert served.serve("a", SAMPLES[0]) == Sglang(DRAFTER).serve("a", SAMPLES[0])
    assert caplog.text.count("stopped capturing") == 1
    assert taps[1].guard.problem is not None


# ---- SGLang's own registration, out of its wheel -------------------------------------------------------------------------


def _wheels() -> list[Path]:
    folder = os.environ.get("SGLANG_WHEELS")
    return sorted(Path(folder).glob("sglang-*.whl")) if folder else []


def _hook_manager(wheel: Path) -> Callable[[torch.nn.Module, list[dict[str, Any]]], None] | None:
    """``register_forward_hooks`` of that version, executed from its source; None where the version has none."""
    with zipfile.ZipFile(wheel) as archive:
        name = "sglang/srt/model_executor/hook_manager.py"
        if name not in archive.namelist():
            return None
        module = ModuleType("hook_manager")
        exec(compile(archive.read(name), name, "exec"), vars(module))
    found: Callable[[torch.nn.Module, list[dict[str, Any]]], None] = module.register_forward_hooks
    return found


@pytest.mark.peers
@pytest.mark.parametrize("wheel", _wheels() or [None], ids=lambda w: "none" if w is None else w.name.split("-")[1])
def test_sglangs_own_registration_reaches_the_hook(wheel: Path | None, tmp_path: Path) -> None:
    if wheel is None:
        pytest.skip("SGLANG_WHEELS names no folder with sglang wheels")
    register = _hook_manager(wheel)
    if register is None:
        pytest.skip("this version has no forward hooks")
    assert importlib.import_module("eagle3_diag.serving.sglang")
    served = Sglang(DRAFTER)
    specs = [{"name": "eagle3-diag", "target_modules": MODULES, "hook_factory": "eagle3_diag.serving.sglang:hook", "config": {"folder": str(tmp_path)}}]
    register(served.target, specs)
    register(served.root, specs)
    drafts = served.serve("req", SAMPLES[0])
    taps = {tap for module in served.root.modules() for tap in module._forward_hooks.values()}
    assert len(taps) == 1
    close([tap for tap in taps if isinstance(tap, Tap)])
    (found,) = read_captures(tmp_path)
    assert found.drafts_CK.tolist() == [[*each[:-1], -1] for each in drafts]
