"""eagle3_diag against the real packages, run here and now over a matrix of configurations."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest

from tests.peers import eagle_peer, mla_peer, model_optimizer_peer, specforge_peer, speculators_peer
from tests.peers.cases import ORACLES
from tests.peers.checks import check
from tests.peers.make_oracles import CASES, available
from tests.peers.make_oracles import check as differences

pytestmark = [
    pytest.mark.peers,
    # warnings of the packages under test, not of this project
    pytest.mark.filterwarnings("ignore"),
]

SPECULATORS = "speculators" if available("speculators") else "speculators>=0.7"
MATRIX = [
    {"model": model, "layers": layers, "norm_before_residual": residual, "draft_vocab": vocabulary, "rope": rope}
    for (model, layers, residual, vocabulary), rope in itertools.product(
        itertools.product(("llama", "qwen3"), (1, 2), (False, True), (True, False)), ("default", "yarn", "llama3")
    )
]


def need(package: str) -> None:
    if not available(package):
        pytest.skip(f"{package} is not here" + ("; EAGLE_SOURCE names no checkout" if package == "eagle" else ""))


@pytest.mark.parametrize("options", MATRIX, ids=lambda o: "-".join(str(v) for v in o.values()))
def test_speculators(options: dict[str, Any], tmp_path: Path) -> None:
    need(SPECULATORS)
    heads = ((4, 2, 8), (4, 1, 12), (4, 4, 8))[MATRIX.index(options) % 3]
    check(speculators_peer.make("live", seed=100 + MATRIX.index(options), heads=heads, lengths=(31, 16), **options), tmp_path)


@pytest.mark.parametrize(
    "options",
    [{"packed": True}, {"packed": True, "layers": 2, "model": "qwen3"}, {"norm_before_fc": True}, {"bias": True}, {"rope": "linear"}, {"lengths": (140, 9)}],
    ids=str,
)
def test_speculators_further(options: dict[str, Any], tmp_path: Path) -> None:
    need(SPECULATORS)
    if speculators_peer.teacher_forces() and options.get("packed"):
        pytest.skip("since 0.7 the last rows of a packed sample are fed the next one's tokens")
    check(speculators_peer.make("live", seed=300, **({"lengths": (29, 7, 17, 23)} | options)), tmp_path)


@pytest.mark.parametrize("options", [{"fc_norm": True}, {"norm_output": True, "layers": 2}, {"fc_norm": True, "norm_output": True, "model": "qwen3"}], ids=str)
def test_speculators_since_0_7(options: dict[str, Any], tmp_path: Path) -> None:
    need("speculators>=0.7")
    check(speculators_peer.make("live", seed=350, **options), tmp_path)


@pytest.mark.parametrize(("rope", "vocabulary", "norm"), list(itertools.product(("default", "llama3", "yarn"), (True, False), (True, False))))
def test_specforge(rope: str, vocabulary: bool, norm: bool, tmp_path: Path) -> None:
    need("specforge")
    check(specforge_peer.make("live", seed=400, rope=rope, draft_vocab=vocabulary, fc_norm=norm), tmp_path)


@pytest.mark.parametrize("vocabulary", [True, False])
def test_eagle(vocabulary: bool, tmp_path: Path) -> None:
    need("eagle")
    check(eagle_peer.make("live", seed=500, draft_vocab=vocabulary), tmp_path)


@pytest.mark.parametrize(("layers", "rope", "vocabulary"), list(itertools.product((1, 2), ("default", "llama3"), (True, False))))
def test_model_optimizer(layers: int, rope: str, vocabulary: bool, tmp_path: Path) -> None:
    need("modelopt")
    check(model_optimizer_peer.make("live", seed=600, layers=layers, rope=rope, draft_vocab=vocabulary), tmp_path)


@pytest.mark.parametrize(("rope", "rank"), list(itertools.product(("default", "yarn"), (24, None))))
def test_mla(rope: str, rank: int | None, tmp_path: Path) -> None:
    need("transformers")
    check(mla_peer.make("live", seed=700, rope=rope, q_lora_rank=rank), tmp_path)


@pytest.mark.parametrize("name", list(CASES))
def test_stored_oracles_are_what_the_packages_say(name: str) -> None:
    need(CASES[name][0])
    assert (ORACLES / f"{name}.safetensors").is_file()
    assert differences(name) == []
