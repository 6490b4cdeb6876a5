"""``speculation_profile.json``: the identities that its readers rely on."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eagle3_diag.report.speculation_profile import profile
from tests.eagle3_diag.report.documents import make_document

# The fields of schema 1.0, in the order Model-Optimizer's specdec_bench writes them.
FIELDS = ["schema_version", "measured", "method", "draft_checkpoint", "target_model", "num_speculative_tokens", "block_size", "max_supported_k", "verification_method", "conditional_accept_rates", "marginal_accept_rates", "mean_accept_length", "mean_accept_length_per_request", "accept_length_model", "accept_length_by_k", "acceptance_length_histogram", "per_category", "measurement_conditions", "validation"]


def check(found: dict[str, Any], steps: int) -> None:
    """What Dynamo (rates in [0, 1], K of them), vLLM (marginals never rise) and the schema's own validation ask for."""
    assert list(found) == FIELDS
    conditional, marginal = found["conditional_accept_rates"], found["marginal_accept_rates"]
    assert len(conditional) == len(marginal) == found["num_speculative_tokens"] == steps
    assert all(0 <= rate <= 1 for rate in [*conditional, *marginal])
    assert all(a >= b for a, b in itertools.pairwise(marginal))
    if found["measured"]:
        histogram = found["acceptance_length_histogram"]
        drafts = sum(histogram.values())
        mean = sum(int(length) * n for length, n in histogram.items()) / drafts
        assert drafts == pytest.approx(found["measurement_conditions"]["drafts"], abs=1e-4)
        assert mean == pytest.approx(1 + sum(marginal), abs=1e-4)


def test_a_greedy_report() -> None:
    found = profile(make_document())
    check(found, 5)
    assert found["schema_version"] == "1.0"
    assert found["marginal_accept_rates"] == [0.8, 0.6, 0.3, 0.3, 0.033333]
    assert found["mean_accept_length"] == pytest.approx(3.033333)
    assert found["acceptance_length_histogram"] == pytest.approx({"1": 6, "2": 6, "3": 9, "5": 8, "6": 1}, abs=1e-5)
    assert found["validation"]["mean_consistency"]["passed"]
    conditions = found["measurement_conditions"]
    assert conditions["kind"] == "offline replay"
    assert "no server was run" in conditions["description"]
    assert conditions["temperature"] == 0.0


def test_names_no_folders_of_this_machine() -> None:
    found = profile(make_document(path="/secret/cluster/users/me/models/org/drafter"))
    assert found["draft_checkpoint"]["id"] == "org/drafter"
    assert "secret" not in str(found)


def test_without_any_draft_it_says_unmeasured() -> None:
    found = profile(make_document(drafts=False))
    check(found, 5)
    assert (found["measured"], found["mean_accept_length"], found["validation"]) == (False, None, None)


@given(st.lists(st.one_of(st.none(), st.floats(0, 1.2)), min_size=1, max_size=8), st.sampled_from(["greedy", "sampled-argmax", "sampled"]))
def test_any_rates_make_a_valid_profile(rates: list[float | None], mode: str) -> None:
    """Also those that noise pushed over 1 and steps that no run reached."""
    report = make_document(mode=mode)
    marginal, chance = [], 1.0
    for rate in rates:
        chance *= rate or 0.0
        marginal.append(None if rate is None else min(1.0, chance))
    report["steps"] = len(rates)
    report["serving"].update(conditional_rates=rates, marginal_rates=marginal, drafts=1000, acceptance_length=1 + sum(m or 0.0 for m in marginal))
    check(profile(report), len(rates))
