"""Counting by the trainers' definitions, on tables small enough to count by hand and against a direct transcription of each rule."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from eagle3_diag.acceptance import step_counts
from eagle3_diag.errors import InputError
from eagle3_diag.trainers import TRAINERS, get
from eagle3_diag.trainers.counting import spread


def test_unknown_trainer_names_the_known_ones() -> None:
    with pytest.raises(InputError, match="known are speculators, specforge, eagle, model-optimizer"):
        get("axolotl")


def test_names_are_those_of_the_command_line() -> None:
    assert sorted(TRAINERS) == ["eagle", "model-optimizer", "specforge", "speculators"]


@given(st.lists(st.booleans(), min_size=1, max_size=12), st.integers(0, 1), st.integers(1, 6))
def test_spread_is_the_rows_that_some_step_counts(mask: list[bool], offset: int, steps: int) -> None:
    n = len(mask)
    expected = [any(t + offset + k < n and mask[t + offset + k] for k in range(steps)) for t in range(n)]
    assert spread(torch.tensor(mask), offset, steps).tolist() == expected


def by_hand(drafts: list[list[int]], labels: list[int], mask: list[bool], padded: int | None) -> list[tuple[int, int, int]]:
    """(correct, total, at_risk) per step, following a whole padded batch row by row."""
    n, steps = len(labels), len(drafts[0])
    right = {t: mask[t + 1] for t in range(n - 1)}
    out = []
    for k in range(steps):
        if padded is None:
            right = {t: r for t, r in right.items() if t + 1 + k < n}
        at_risk = sum(right.values())
        for t in right:
            label = labels[t + 1 + k] if t + 1 + k < n else padded
            right[t] = right[t] and drafts[t][k] == label
        correct = sum(r for t, r in right.items() if t + 1 + k < n and mask[t + 1 + k])
        out.append((correct, sum(mask[1 + k :]), at_risk))
    return out


@settings(max_examples=200, deadline=None)
@given(st.data(), st.integers(2, 9), st.integers(1, 5), st.sampled_from([None, 0, 1]))
def test_step_counts_follow_speculators_rule(data: st.DataObject, n: int, steps: int, padded: int | None) -> None:
    bit = st.integers(0, 1)  # two tokens only, so that rows are right often and for long
    drafts = data.draw(st.lists(st.lists(bit, min_size=steps, max_size=steps), min_size=n - 1, max_size=n - 1))
    labels = data.draw(st.lists(bit, min_size=n, max_size=n))
    mask = data.draw(st.lists(st.booleans(), min_size=n, max_size=n))
    rows_R = torch.nonzero(torch.tensor(mask)[1:], as_tuple=True)[0]
    counts = step_counts(torch.tensor(drafts)[rows_R], rows_R, torch.tensor(labels), torch.tensor(mask), padded_label=padded)
    assert list(zip(counts.correct, counts.total, counts.at_risk, strict=True)) == by_hand(drafts, labels, mask, padded)


@pytest.mark.parametrize("name", sorted(TRAINERS))
def test_documentation_says_what_the_definition_says(name: str) -> None:
    page = (Path(__file__).parents[3] / "docs" / "eagle3_diag" / "trainers.md").read_text()
    definition = TRAINERS[name].definition
    row = next(line for line in page.splitlines() if line.startswith(f"| `{name}` "))
    assert ("its own drafts" in row) == (definition.feed == "own")
    assert ("the draft vocabulary" in row) == (definition.labels == "draft-vocab")
    assert ("right at steps 0 to k" in row) == definition.requires_prefix
    assert ("at the label" in row) == (definition.mask_offset == 1)
    section = page.split(f"## {name}\n")[1].split("\n## ")[0]
    assert definition.source in section
    for note in definition.notes:
        assert note[1:] in section
