from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from eagle3_diag.breakdown import CLASS_MEANINGS, CLASSES, RANGES, Breakdown, break_down, range_names


def test_tokens_are_classed_by_what_the_row_has_read() -> None:
    #         0  1  2  3  4  5  6
    tokens = [1, 2, 3, 1, 2, 3, 9]
    labels = [2, 3, 1, 2, 3, 4, 0]  # labels[q] is the target's choice for q + 1
    found = break_down(tokens, labels, [1, 2, 3, 4, 5], [True, False, True, True, False], [(2, 7)], [True] * 9 + [False])
    # rows 1, 2, 3, 4, 5 draft for labels 1 (seen), 2 (1 2: phrase), 3 (2 3: phrase), 4 (new), 0 (new)
    assert dict(zip(CLASSES, found.class_total, strict=True)) == {"outside": 0, "phrase": 2, "seen": 1, "new": 2}
    assert dict(zip(CLASSES, found.class_right, strict=True)) == {"outside": 0, "phrase": 1, "seen": 1, "new": 1}


def test_what_cannot_be_drafted_is_a_class_of_its_own() -> None:
    found = break_down([1, 1, 1], [1, 1, 1], [0, 1], [False, False], [(1, 3)], [True, False])
    assert found.class_total == [2, 0, 0, 0]


def test_positions_count_from_each_responses_start() -> None:
    n = 200
    responses = [(10, 60), (100, 200)]
    rows = [*range(9, 59), *range(99, 199)]
    found = break_down(list(range(n)), [0] * n, rows, [True] * len(rows), responses, [True] * n)
    assert found.range_total[:3] == [16 + 16, 34 + 48, 36]
    assert found.range_right == found.range_total


@given(n=st.integers(2, 60), seed=st.integers(0, 9))
def test_every_labelled_row_counts_once(n: int, seed: int) -> None:
    tokens = [(i * 7 + seed) % 5 for i in range(n)]
    labels = [-1 if (i + seed) % 3 == 0 else (i * seed) % 5 for i in range(n)]
    rows = list(range(n - 1))
    found = break_down(tokens, labels, rows, [i % 2 == 0 for i in rows], [(1, n)], [True, True, True, False, True])
    labelled = sum(labels[r + 1] >= 0 for r in rows)
    assert sum(found.range_total) == sum(found.class_total) == labelled
    assert sum(found.range_right) == sum(found.class_right) <= labelled
    both = Breakdown()
    both.add(found)
    both.add(found)
    assert both.class_total == [2 * c for c in found.class_total]


def test_ranges_and_classes_have_names() -> None:
    assert range_names() == ("0-15", "16-63", "64-255", "256-1023", "1024+")
    assert len(range_names()) == len(RANGES) + 1
    assert tuple(CLASS_MEANINGS) == CLASSES
