from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.peers.rope_peer import oracle

pytestmark = pytest.mark.peers


def test_stored_frequencies_are_those_of_the_installed_transformers() -> None:
    pytest.importorskip("transformers", reason="Transformers is not installed here (nox -s peers)")
    stored = json.loads((Path(__file__).parent.parent / "eagle3_diag" / "data" / "rope.json").read_text())
    now = oracle()
    assert stored.keys() == now.keys()
    for name, case in now.items():
        assert stored[name]["inverse"] == pytest.approx(case["inverse"], rel=1e-6), name
        assert stored[name]["scale"] == pytest.approx(case["scale"]), name
