"""``eagle3-diag diagnose`` on the demo: what another half of its requests would count, and what it refuses."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from eagle3_diag import demo
from eagle3_diag.catalogue import Catalogue, catalogue, combine
from eagle3_diag.checkpoint import read_drafter
from eagle3_diag.cli import main
from eagle3_diag.predict import Loaded, Predictor, Walked
from eagle3_diag.samples import iter_samples
from eagle3_diag.target import read_target
from tests.eagle3_diag.pairs import make_pair

STEPS = 6


class Server:
    """Counters that a server of the demo would show, wired in any way."""

    def __init__(self) -> None:
        paths = demo.paths()
        checkpoint, target = read_drafter(paths.drafter), read_target(paths.target)
        self.predictor = Predictor(checkpoint, target, steps=STEPS, device=torch.device("cpu"), dtype=torch.float32)
        self.loaded: list[Loaded] = [self.predictor.load(s) for s in iter_samples([paths.samples], check=self.predictor.check)]
        self.listed: Catalogue = catalogue(checkpoint, target, range(1, 8))

    def counters(self, names: str, samples: slice, file: Path) -> Path:
        """vLLM's counters as a JSON file."""
        entries = [self.listed.get(name) for name in names.split("+")]
        entry = entries[0] if len(entries) == 1 else combine(*entries)
        assert entry is not None
        total = Walked.zero(STEPS)
        for one in self.loaded[samples]:
            total.add(self.predictor.walk(one, entry))
        file.write_text(json.dumps({"num_drafts": total.drafts, "num_accepted_tokens_per_pos": total.high}))
        return file


@pytest.fixture(scope="module")
def server() -> Server:
    return Server()


@pytest.fixture(scope="module")
def halves(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Six of the demo's samples, for the tool; the others are the traffic."""
    folder = tmp_path_factory.mktemp("samples")
    for i in range(6):
        (folder / f"hs_{i}.safetensors").symlink_to(demo.paths().samples / f"hs_{i}.safetensors")
    return folder


def arguments(samples: Path) -> list[str]:
    paths = demo.paths()
    return ["diagnose", "--drafter", str(paths.drafter), "--target", str(paths.target), "--samples", str(samples), "--device", "cpu"]


def run(options: list[str], capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    code = main([*options, "--json", "-"])
    caught = capsys.readouterr()
    assert code == 0, caught.err
    report: dict[str, Any] = json.loads(caught.out)
    return report


@pytest.mark.parametrize(
    ("fault", "verdict"),
    [("as-trained", "quality"), ("prefix-unseen", "wiring"), ("aux-capture-off", "wiring")],
)
def test_other_requests_tell_the_fault_or_its_group(
    server: Server, halves: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], fault: str, verdict: str
) -> None:
    counters = server.counters(fault, slice(6, 16), tmp_path / "counters.json")
    report = run([*arguments(halves), "--served", str(counters)], capsys)
    assert report["verdict"] == verdict
    first = report["explanations"][0]
    assert fault in (first["id"], *first["indistinguishable"])


@pytest.mark.parametrize("fault", ["as-trained", "layers-minus-1", "norms-swapped", "drafter-quantised-fp8", "accepted-keys-own", "layers-plus-1+residual-flipped"])
def test_the_same_requests_tell_the_fault_exactly(server: Server, halves: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], fault: str) -> None:
    names = ["hs_0", "hs_1", "hs_2", "hs_3", "hs_4", "hs_5"]
    chosen = [i for i, one in enumerate(server.loaded) if one.name.removesuffix(".safetensors") in names]
    assert chosen == list(range(6))
    counters = server.counters(fault, slice(0, 6), tmp_path / "counters.json")
    report = run([*arguments(halves), "--served", str(counters), "--same-requests"], capsys)
    first = report["explanations"][0]
    assert fault in (first["id"], *first["indistinguishable"]), [(e["id"], e["probability"]) for e in report["explanations"][:4]]
    if fault != "as-trained":
        assert report["verdict"] == "wiring"
        assert first["predicted"]["drafts"] == json.loads(counters.read_text())["num_drafts"]
    else:
        assert report["verdict"] == "quality"


def test_a_claim_is_held_against_the_trainers_own_definition(halves: Path, capsys: pytest.CaptureFixture[str]) -> None:
    served = ["--served", "rates=0.9,0.78,0.69,0.5,0.43,0.36"]
    held = run([*arguments(halves), *served, "--max-samples", "2", "--claimed-accuracy", "0.88", "--claimed-by", "speculators"], capsys)
    assert held["claim"]["holds"]
    low = run([*arguments(halves), *served, "--max-samples", "2", "--claimed-accuracy", "0.995", "--claimed-by", "speculators"], capsys)
    assert not low["claim"]["holds"]


def test_text_and_page_are_written(halves: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    page = tmp_path / "diagnosis.html"
    options = [*arguments(halves), "--served", "accept-length=1.3,steps=6", "--baseline-tps", "90", "--served-tps", "54.8"]
    assert main([*options, "--html", str(page)]) == 0
    shown = capsys.readouterr().out
    assert "Verdict     Wiring" in shown
    assert "break-even" in " ".join(shown.split())
    assert max(map(len, shown.splitlines())) <= 80
    assert page.read_text("utf-8").startswith("<!doctype html>")


def test_samples_that_hold_few_layers_leave_some_untested(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pair = make_pair(tmp_path, samples=2, steps=3)
    report = run(["diagnose", *pair.arguments(), "--served", "rates=0.7,0.5,0.3", "--device", "cpu"], capsys)
    assert {"layers-plus-1", "layers-minus-1"} <= {each["id"] for each in report["untestable"]}


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--served", "rates=0.2,0.7"], "position 1 has more accepted"),
        (["--served", "accept-length=1.8"], "steps=5"),
        (["--served", "nowhere.json"], "no such file"),
        (["--served", "rates=0.7,0.2", "--steps", "3"], "3"),
        (["--served", "rates=0.7,0.2", "--same-requests"], "--same-requests compares counts"),
        (["--served", "rates=0.7,0.2", "--server-dtype", "float32"], "--server-dtype tells how exactly --same-requests can be held to"),
        (["--served", "rates=0.7,0.2", "--claimed-accuracy", "0.7"], "belong together"),
        (["--served", "rates=0.7,0.2", "--claimed-accuracy", "74.7", "--claimed-by", "eagle"], "expected a share from 0 to 1"),
        (["--served", "rates=0.7,0.2", "--baseline-tps", "90"], "belong together"),
        (["--served", "rates=0.7,0.2", "--html", "-"], "only --json can print"),
        ([], "--served"),
    ],
)
def test_wrong_use_is_one_sentence(halves: Path, capsys: pytest.CaptureFixture[str], options: list[str], said: str) -> None:
    assert main([*arguments(halves), *options]) == 2
    caught = capsys.readouterr()
    assert caught.out == ""
    assert caught.err.count("\n") == 1
    assert said in caught.err


def test_sampled_text_is_not_the_same_requests(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pair = make_pair(tmp_path, samples=2, steps=2, deviations=0.5)
    counters = tmp_path / "counters.json"
    counters.write_text(json.dumps({"num_drafts": 10, "num_accepted_tokens_per_pos": [5, 1]}))
    assert main(["diagnose", *pair.arguments(), "--served", str(counters), "--same-requests", "--device", "cpu"]) == 2
    assert "were not decoded greedily" in capsys.readouterr().err
