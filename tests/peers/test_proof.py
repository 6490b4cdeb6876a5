"""How the proof's results are judged and counted; servers themselves are run by hand (nox -s prove)."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from eagle3_diag.catalogue import AS_TRAINED
from tests.peers import proof_page, prove_http
from tests.peers.faults import FAULTS
from tests.peers.judge import chance_of_no_difference, differs, named

RIGHT = {"drafts": 1000, "accepted_per_position": [800, 600, 400, 200, 100]}


def found(first: str, *group: str, counts: dict[str, object] | None = None, verdict: str = "wiring") -> dict[str, object]:
    said = {"named": first, "group": [first, *group], "probability": 0.9, "agreeing": 60, "answered": 64, "verdict": verdict, "length": 3.1}
    return {"vllm": "1.2", "probe": said, "diagnose": {"same": said, "others": said}, "others": counts or RIGHT, "same": RIGHT}


def test_a_name_is_right_alone_or_in_its_group() -> None:
    said = found("layers-plus-1", "layers-minus-1")["probe"]
    assert named(said, ["layers-minus-1"])  # type: ignore[arg-type]
    assert not named(said, ["residual-flipped"])  # type: ignore[arg-type]
    assert not named({"named": "unknown", "group": ["unknown", "residual-flipped"]}, ["residual-flipped"])


def test_sampling_error_is_not_a_difference() -> None:
    near = {"drafts": 1000, "accepted_per_position": [810, 606, 399, 204, 99]}
    far = {"drafts": 1000, "accepted_per_position": [700, 450, 250, 120, 50]}
    assert chance_of_no_difference(RIGHT, RIGHT) == pytest.approx(1.0)
    assert not differs(RIGHT, near)
    assert differs(RIGHT, far)
    assert chance_of_no_difference({"drafts": 0, "accepted_per_position": [0] * 5}, RIGHT) == 1.0


def test_the_page_counts_what_it_lists(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"# Title\n\nWords.\n\n{proof_page.HEADING}\n\nold\n")
    far = {"drafts": 1000, "accepted_per_position": [300, 90, 20, 5, 1]}
    results = {"one": {"right": found(AS_TRAINED, verdict="quality"), "layers +1": found("layers-plus-1", counts=far), "norms swapped": found("rope-base-50000", counts=far)}}
    proof_page.write(page, results)
    text = page.read_text()
    assert text.startswith("# Title\n\nWords.\n\n")
    assert "old" not in text
    assert "| a fault of the catalogue: named first, alone or in its group | 1 of 2 | 1 of 2 | 1 of 2 |" in text
    assert "| right wiring: cleared | 1 of 1 | 1 of 1 | 1 of 1 |" in text
    assert len(re.findall(r"\(wrong\)", text)) == 3
    assert [line.split("|")[1].strip() for line in text.splitlines() if line.startswith(("| layers +1", "| norms"))] == ["layers +1", "norms swapped"]
    assert {f.name for f in FAULTS} >= {"right", "layers +1", "norms swapped"}


def test_a_section_is_replaced_and_the_next_one_stays(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"# Title\n\n{prove_http.HEADING}\n\nold\n\n{proof_page.HEADING}\n\nkept\n\n### below\n")
    proof_page.replace(page, prove_http.HEADING, ["new"])
    assert page.read_text() == f"# Title\n\n{prove_http.HEADING}\n\nnew\n\n{proof_page.HEADING}\n\nkept\n\n### below\n"
    proof_page.replace(page, proof_page.HEADING, ["newer"])
    assert page.read_text() == f"# Title\n\n{prove_http.HEADING}\n\nnew\n\n{proof_page.HEADING}\n\nnewer\n"


def test_over_http_a_fault_is_named_and_only_right_wiring_is_cleared() -> None:
    def asked(first: str, verdict: str) -> dict[str, object]:
        said: dict[str, object] = {"verdict": verdict, "named": first, "group": [first], "probability": 0.9}
        return {"counters": said | {"agreeing": 63, "answered": 64}, "stream": said, "same": said, "seconds": {"start": 41.2, "asked": 12.0}}

    results = {"1.2": {"right": asked(AS_TRAINED, "quality"), "layers +1": asked("layers-plus-1", "quality"), "norms swapped": {"failed": "it ended"}}}
    lines = [line.split(" | ") for line in prove_http.section(results) if line.startswith("|")]
    assert lines[2] == ["| 1.2", "probe, by counters", "named, 63 of 64", "`layers-plus-1` (wrong), 63 of 64", "did not serve |"]
    assert len(lines) == 5
