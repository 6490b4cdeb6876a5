from __future__ import annotations

from typing import Any

import pytest

from eagle3_diag.errors import InputError
from eagle3_diag.observed import observed


def test_a_profile_gives_rates_and_length() -> None:
    seen = observed(steps=None, drafts=200, accepted_per_position=[100, 50, 10])
    assert (seen.steps, seen.rates, seen.length) == (3, (0.5, 0.25, 0.05), 1.8)
    assert seen.acceptance_length == 1.8


def test_shares_need_no_count() -> None:
    seen = observed(steps=2, accepted_per_position=[0.7, 0.2])
    assert (seen.drafts, seen.rates) == (None, (0.7, 0.2))
    assert seen.length == pytest.approx(1.9)


def test_a_mean_alone_will_do() -> None:
    seen = observed(steps=5, acceptance_length=1.8, per="request", rounding=0.05)
    assert (seen.rates, seen.length, seen.per) == (None, 1.8, "request")


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"steps": 3, "drafts": 10, "accepted_per_position": [5, 6, 1]}, "position 1 has more accepted drafts .6. than position 0"),
        ({"steps": 2, "drafts": 10, "accepted_per_position": [5, 4, 1]}, "3 positions, but the server is said to draft 2"),
        ({"steps": 2, "drafts": 10, "accepted_per_position": [11, 4]}, "more accepted drafts .11. than there were drafts .10."),
        ({"steps": 2, "accepted_per_position": [1.2, 0.4]}, "a share above 1"),
        ({"steps": 2, "drafts": 10, "accepted_per_position": [-1, -1]}, "expected 0 or more"),
        ({"steps": 2, "drafts": 0, "accepted_per_position": [0, 0]}, "no draft was counted"),
        ({"steps": 2, "drafts": -3, "accepted_per_position": [0, 0]}, "cannot be negative"),
        ({"steps": 2, "drafts": 10, "accepted_per_position": []}, "profile is empty"),
        ({"steps": None, "acceptance_length": 1.8}, "give --steps K"),
        ({"steps": 0, "acceptance_length": 1.0}, "expected 1 to 64"),
        ({"steps": 5, "acceptance_length": 0.8}, "it is 1 or more"),
        ({"steps": 5, "acceptance_length": float("nan")}, "it is 1 or more"),
        ({"steps": 5, "acceptance_length": 6.5}, "it can be at most 6"),
        ({"steps": 5}, "neither a profile nor an acceptance length"),
        ({"steps": 2, "accepted_per_position": [0.5, 0.2], "acceptance_length": 2.4}, "does not fit the profile, which gives 1.700"),
    ],
)  # fmt: skip
def test_figures_that_no_server_can_have_are_refused(given: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError, match=said):
        observed(**given)
