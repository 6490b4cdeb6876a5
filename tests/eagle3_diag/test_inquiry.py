"""The demo's drafter behind stand-in servers, wired wrong in many ways: asked over HTTP, each fault is named."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from eagle3_diag.catalogue import Catalogue, Explanation, catalogue, combine
from eagle3_diag.checkpoint import read_drafter
from eagle3_diag.demo import paths
from eagle3_diag.inquiry import Inquiry, inquire
from eagle3_diag.predict import Predictor
from eagle3_diag.probe import Reply, Row, Table
from eagle3_diag.probe_verdict import verdict
from eagle3_diag.samples import iter_samples
from eagle3_diag.serving import ask
from eagle3_diag.solve import Rows
from eagle3_diag.target import read_target
from tests.eagle3_diag.serving.stand_in import StandIn, serving

STEPS = 5


@dataclass
class Demo:
    rows: Rows
    table: Table
    catalogue: Catalogue
    held: tuple[int, ...]

    def draft(self, truth: Explanation, rows: Rows | None = None) -> dict[tuple[int, ...], tuple[list[int], int]]:
        """For every stored prefix the greedy continuation and the run, as a server wired like this drafts (of this drafter, or another's rows)."""
        found = {}
        rows = rows or self.rows
        for loaded in rows.loaded.values():
            tokens = loaded.tokens_N.tolist()
            whole_R = torch.arange(loaded.rows_R[0].item(), len(tokens) - 1)
            runs = rows.predictor.runs(loaded, truth, whole_R)
            for t, run in zip(runs.rows_R.tolist(), runs.accepted_R.tolist(), strict=True):
                found[tuple(tokens[: t + 1])] = ([*tokens[t + 1 :], *[0] * (STEPS + 2)], run)
        return found


@pytest.fixture(scope="module")
def demo() -> Demo:
    torch.set_num_threads(1)
    where = paths()
    checkpoint, target = read_drafter(where.drafter), read_target(where.target)
    rows = Rows(Predictor(checkpoint, target, steps=STEPS, device=torch.device("cpu"), dtype=torch.float32))
    held: tuple[int, ...] = ()
    for sample in iter_samples([where.samples], max_samples=6, check=rows.predictor.check):
        held = rows.predictor.held_layers(sample)
        rows.add(sample, 1000)
    listed = catalogue(checkpoint, target, held)
    return Demo(rows, rows.table(each for each in listed if each.served), listed, held)


def questioned(demo: Demo, truth: Explanation, kind: str = "vllm", *, rows: Rows | None = None, requests: int = 64) -> Inquiry:
    drafts = demo.draft(truth, rows)

    def draft(prefix: Sequence[int]) -> tuple[list[int], int]:
        return drafts.get(tuple(prefix), ([0] * (STEPS + 3), 0))

    with serving(StandIn(draft, STEPS, kind="sglang" if kind == "sglang" else "vllm", version="0.5.23")) as server:
        asker = ask.connect(f"{kind}:{server.url}", steps=STEPS)

        def one(row: Row) -> Reply:
            request = ask.Request(id=row.id, prompt_token_ids=demo.rows.prompt(row), max_tokens=ask.max_tokens(kind, STEPS))
            answer = asker.ask(request)
            return Reply(first_token=answer.first_token, accepted=answer.accepted)

        return inquire(demo.rows, demo.table, demo.catalogue, demo.held, one, requests=requests)


@pytest.mark.parametrize("kind", ["vllm", "sglang", "openai"])
@pytest.mark.parametrize(
    "name", ["as-trained", "layers-plus-1", "aux-order-rotated", "residual-flipped", "norms-swapped", "drafter-quantised-fp8", "rope-base-500000", "d2t-missing"]
)
def test_a_server_is_asked_and_its_fault_named(demo: Demo, kind: str, name: str) -> None:
    state = questioned(demo, demo.catalogue.get(name), kind, requests=24)
    found = verdict(state)
    assert name in {found.ranked[0].id, *(each.id for each in found.ranked[0].indistinguishable)}
    assert found.ranked[0].probability >= 0.95
    assert found.code == ("quality" if name == "as-trained" else "wiring")
    assert found.rows["answered"] == found.rows["asked"] == 24
    assert found.ranked[0].agreeing == 24
    assert not state.combinations


@pytest.mark.slow
def test_content_that_nobody_knows_is_recognised(demo: Demo) -> None:
    for name, instance in (("embedding-foreign", 77), ("embedding-foreign", 1236), ("features-rotated", 77)):
        state = questioned(demo, demo.catalogue.get(name).instance(instance))
        assert state.best.id == name
        assert float(state.belief.probability_E[state.belief.best]) > 0.5


def test_two_faults_at_once_are_solved_for(demo: Demo) -> None:
    both = combine(demo.catalogue.get("layers-plus-1"), demo.catalogue.get("residual-flipped"))
    assert both is not None
    state = questioned(demo, both)
    assert state.combinations
    assert state.best.id == "layers-plus-1+residual-flipped"
    assert verdict(state).code == "wiring"


@pytest.mark.slow
def test_each_state_off_by_its_own_amount_is_solved_for(demo: Demo) -> None:
    moved = Explanation(id="layers-3-4-5", title="", family="features", changes={"aux_layer_inputs": (3, 4, 5)})
    state = questioned(demo, moved)
    assert state.best.id == "layers-3-4-5"
    assert state.best.wiring(demo.catalogue.right).aux_layer_inputs == (3, 4, 5)


@pytest.fixture
def other_weights(demo: Demo, tmp_path: Path) -> Rows:
    """The same rows, drafted by weights with noise on them."""
    where = paths()
    tensors = load_file(where.drafter / "model.safetensors")
    generator = torch.Generator().manual_seed(2)
    noisy = {
        name: (t.float() + 0.5 * t.float().std() * torch.randn(t.shape, generator=generator)).to(t.dtype) if t.dim() == 2 and name != "embed_tokens.weight" else t
        for name, t in tensors.items()
    }
    save_file(noisy, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_bytes((where.drafter / "config.json").read_bytes())
    rows = Rows(replace_drafter(demo.rows.predictor, tmp_path))
    for sample in iter_samples([where.samples], max_samples=6, check=rows.predictor.check):
        rows.add(sample, 1000)
    return rows


def replace_drafter(predictor: Predictor, drafter: Path) -> Predictor:
    return Predictor(read_drafter(drafter), predictor.target, steps=STEPS, device=torch.device("cpu"), dtype=torch.float32)


@pytest.mark.slow
def test_a_fault_outside_the_catalogue_is_none_of_these(demo: Demo, other_weights: Rows) -> None:
    state = questioned(demo, demo.catalogue.explanations[0], rows=other_weights)
    found = verdict(state)
    assert found.unknown >= 0.95
    assert found.code == "wiring"
    assert "none of" in found.headline
    assert found.rows["departures"]


def test_another_target_is_a_finding_of_its_own(demo: Demo) -> None:
    drafts = {prefix: ([(tokens[0] + 1) % 96, *tokens[1:]], run) for prefix, (tokens, run) in demo.draft(demo.catalogue.explanations[0]).items()}
    with serving(StandIn(lambda prefix: drafts[tuple(prefix)], STEPS)) as server:
        asker = ask.connect(f"vllm:{server.url}", steps=None)

        def one(row: Row) -> Reply:
            answer = asker.ask(ask.Request(id=row.id, prompt_token_ids=demo.rows.prompt(row), max_tokens=2))
            return Reply(first_token=answer.first_token, accepted=answer.accepted)

        found = verdict(inquire(demo.rows, demo.table, demo.catalogue, demo.held, one, requests=10))
    assert (found.code, len(found.rows["target_differs"])) == ("insufficient", 10)
    assert found.headline.startswith("The target itself differs")
    assert replace(found, headline="").headline == ""
