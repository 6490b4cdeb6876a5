"""Every place that acceptance can be read from, and every way it can be wrong."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eagle3_diag.errors import InputError
from eagle3_diag.serving import Between, read_served
from eagle3_diag.serving.readers import log
from tests.eagle3_diag.serving.stand_in import StandIn, serving

DATA = Path(__file__).parent / "data"
BEFORE, AFTER, LOG = DATA / "vllm-0.32.0-metrics-0.txt", DATA / "vllm-0.32.0-metrics-1.txt", DATA / "vllm-0.32.0.log"
START = Between(since="start")


def nothing(prompt: object) -> tuple[list[int], int]:
    return [1] * 9, 0


def write(folder: Path, content: object) -> str:
    path = folder / "file"
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return str(path)


def test_saved_metrics_of_the_real_server() -> None:
    seen = read_served(str(AFTER))
    assert (seen.steps, seen.drafts, seen.accepted_per_position) == (5, 7, (7, 7, 7, 7, 5))
    assert read_served(str(AFTER), between=Between(since=str(BEFORE))) == seen
    with pytest.raises(InputError, match=r"went backwards .7 drafts, then 0.*restarted"):
        read_served(str(BEFORE), between=Between(since=str(AFTER)))
    with pytest.raises(InputError, match="no draft was counted"):
        read_served(str(BEFORE))


def test_log_of_the_real_server() -> None:
    seen = read_served(str(LOG))
    assert (seen.steps, seen.drafts, seen.accepted_per_position) == (5, 28, (28, 28, 28, 28, 22))
    with pytest.raises(InputError, match="of 5 drafted tokens per step, but --steps says 6"):
        read_served(str(LOG), steps=6)


@given(st.lists(st.lists(st.integers(0, 5), min_size=1, max_size=490), min_size=1, max_size=4))
def test_vllm_log_lines_give_back_the_counts(rounds: list[list[int]]) -> None:
    lines, total = [], [0] * 5
    for runs in rounds:
        counts = [sum(run > k for run in runs) for k in range(5)]
        total = [a + b for a, b in zip(total, counts, strict=True)]
        rates = ", ".join(f"{n / len(runs):.3f}" for n in counts)
        lines.append(
            f"INFO SpecDecoding metrics: Mean acceptance length: {1 + sum(counts) / len(runs):.2f}, Accepted throughput: 1.00 tokens/s, Drafted throughput: "
            f"2.00 tokens/s, Accepted: {sum(counts)} tokens, Drafted: {5 * len(runs)} tokens, Per-position acceptance rate: {rates}, Avg Draft acceptance rate: 1.0%"
        )
    seen = log.read("\n".join(lines), None, "a log")
    assert (seen.drafts, seen.accepted_per_position) == (sum(map(len, rounds)), tuple(total))


SGLANG_OLD = "[2025-01-01 10:00:00 TP0] Decode batch, #running-req: {n}, #token: 108, token usage: 0.00, accept len: {length:.2f}, accept rate: {rate:.2f}, cuda graph: True, gen throughput (token/s): 90.39, #queue-req: 0"


@pytest.mark.parametrize("older", [True, False])
def test_sglang_log(tmp_path: Path, older: bool) -> None:
    means = [1.83, 1.61, 2.34, 3.05]
    lines = [SGLANG_OLD.format(n=n, length=m, rate=m / 6 if older else (m - 1) / 5) for n, m in zip((1, 1, 2, 4), means, strict=True)]
    seen = read_served(write(tmp_path, "\n".join(lines)))
    assert seen.steps == 5
    assert seen.acceptance_length == pytest.approx((1.83 + 1.61 + 2 * 2.34 + 4 * 3.05) / 8)
    with pytest.raises(InputError, match="fit 5 drafted tokens per step, not 3"):
        read_served(write(tmp_path, "\n".join(lines)), steps=3)
    arguments = "server_args=ServerArgs(speculative_num_steps=5, speculative_eagle_topk={k}, )\n"
    assert read_served(write(tmp_path, arguments.format(k=1) + "\n".join(lines))).steps == 5
    with pytest.raises(InputError, match="drafts a tree"):
        read_served(write(tmp_path, arguments.format(k=4) + "\n".join(lines)))


def test_json_counters(tmp_path: Path) -> None:
    counters = {"num_drafts": 404, "num_draft_tokens": 2020, "num_accepted_tokens": 393, "num_accepted_tokens_per_pos": [276, 88, 28, 1, 0]}
    seen = read_served(write(tmp_path, counters))
    assert (seen.drafts, seen.accepted_per_position) == (404, (276, 88, 28, 1, 0))
    assert seen.length == pytest.approx(1 + 393 / 404)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"num_accepted_tokens_per_pos": [276, 288, 28, 1, 0], "num_accepted_tokens": None}, "position 1 has more accepted drafts .288"),
        ({"num_accepted_tokens_per_pos": [-1, 88], "num_accepted_tokens": None}, r"num_accepted_tokens_per_pos.0. is -1"),
        ({"num_accepted_tokens": 9}, "the positions add up to 393"),
        ({"num_drafts": 10}, "than there were drafts"),
        ({"num_drafts": None, "num_draft_tokens": None}, "holds no num_drafts"),
        ({"num_accepted_tokens_per_pos": "many"}, "expected a list of counts"),
        ({"num_drafts": float("nan")}, "num_drafts is nan"),
        ({"num_drafts": True}, "num_drafts is True"),
    ],
)
def test_json_counters_that_cannot_be(tmp_path: Path, change: dict[str, object], message: str) -> None:
    counters = {"num_drafts": 404, "num_draft_tokens": 2020, "num_accepted_tokens": 393, "num_accepted_tokens_per_pos": [276, 88, 28, 1, 0]}
    with pytest.raises(InputError, match=message):
        read_served(write(tmp_path, counters | change))


def test_speculation_profile(tmp_path: Path) -> None:
    profile = {"measured": True, "num_speculative_tokens": 3, "marginal_accept_rates": [0.6, 0.3, 0.15], "mean_accept_length": 2.05}
    seen = read_served(write(tmp_path, profile))
    assert (seen.drafts, seen.rates) == (None, (0.6, 0.3, 0.15))
    counted = profile | {"acceptance_length_histogram": {"1": 40, "2": 30, "3": 15, "4": 15}}
    assert read_served(write(tmp_path, counted)).drafts == 100
    conditional = {"measured": True, "num_speculative_tokens": 3, "conditional_accept_rates": [0.6, 0.5, 0.5]}
    assert read_served(write(tmp_path, conditional)).rates == pytest.approx((0.6, 0.3, 0.15))
    for change, message in (
        ({"marginal_accept_rates": [0.6, 0.7, 0.15]}, "position 1 has more accepted"),
        ({"measured": False}, "was not measured"),
        ({"num_speculative_tokens": 4}, "holds 3 rates"),
        ({"mean_accept_length": 3.0}, "does not fit the profile"),
    ):
        with pytest.raises(InputError, match=message):
            read_served(write(tmp_path, profile | change))
    with pytest.raises(InputError, match="--steps says 5"):
        read_served(write(tmp_path, profile), steps=5)


def test_meta_info_of_sglang(tmp_path: Path) -> None:
    answers = [
        {"meta_info": {"spec_accept_histogram": [3, 2, 1], "spec_verify_ct": 6, "spec_draft_token_num": 30}},
        {"meta_info": {"spec_correct_drafts_histogram": [1, 0, 0, 0, 0, 4], "spec_verify_ct": 5, "spec_num_proposed_drafts": 25}},
    ]
    seen = read_served(write(tmp_path, "\n".join(map(json.dumps, answers))))
    assert (seen.steps, seen.drafts, seen.accepted_per_position) == (5, 11, (7, 5, 4, 4, 4))
    means = [{"meta_info": {"spec_accept_length": m, "spec_verify_ct": 9}} for m in (2.0, 3.0)]
    mean = read_served(write(tmp_path, means), steps=5)
    assert (mean.per, mean.acceptance_length) == ("request", 2.5)
    with pytest.raises(InputError, match="give --steps K"):
        read_served(write(tmp_path, means))


def test_figures() -> None:
    assert read_served("accept-length=1.8,steps=5").rounding == pytest.approx(0.05)
    assert read_served("accept-length=1.8", steps=5).acceptance_length == 1.8
    assert read_served("accept-length=1.8,steps=5", mean="per-request").per == "request"
    rates = read_served("rates=0.71,0.22,0.05")
    assert (rates.steps, rates.rates, rates.drafts) == (3, (0.71, 0.22, 0.05), None)
    assert read_served("rates=0.5,0.25,drafts=200").accepted_per_position == (100, 50)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("accept-length=1.8", "how many tokens were drafted per step is not said"),
        ("accept-length=9,steps=5", "at most 6"),
        ("accept-length=0.3,steps=5", "is 1 or more"),
        ("rates=0.2,0.7", "position 1 has more accepted"),
        ("rates=71,22", "share above 1"),
        ("rates=0.7,0.2,steps=5", "gives 5 and 2"),
        ("accept-length=1.8,tokens=5", "'tokens' is not known"),
        ("accept-length=x,steps=5", "'x' is no number"),
        ("steps=5", "neither a profile nor an acceptance length"),
        ("rates=0.7,nan", "position 1 has nan"),
        ("accept-length=1.8,2.0,steps=5", "takes one number"),
    ],
)
def test_figures_that_cannot_be(text: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        read_served(text)


@given(st.text(max_size=60))
def test_any_text_is_read_or_refused_in_one_sentence(text: str) -> None:
    try:
        seen = read_served(text)
    except InputError as refused:
        sentence = str(refused)
    else:
        assert math.isfinite(seen.length)
        sentence = seen.source
    assert len(sentence.splitlines()) <= 1


def test_files_that_tell_nothing(tmp_path: Path) -> None:
    for content, message in (("nothing here", "nothing in it tells acceptance"), ({"a": 1}, "of no kind known here"), ("[1, 2]", "of no kind known here")):
        with pytest.raises(InputError, match=message):
            read_served(write(tmp_path, content))
    with pytest.raises(InputError, match="no such file"):
        read_served(str(tmp_path / "absent"))
    with pytest.raises(InputError, match="is a directory"):
        read_served(str(tmp_path))


def test_running_vllm_between_two_readings() -> None:
    with serving(StandIn(nothing, 5)) as server:
        server.count(2)
        between = Between(interval=0.01, say=lambda _: [server.count(run) for run in (3, 0, 5)] and None)
        seen = read_served(f"vllm:{server.url}/v1", between=between)
        assert (seen.drafts, seen.accepted_per_position) == (3, (2, 2, 2, 1, 1))
        assert read_served(f"vllm:{server.url}", between=START).drafts == 4
        with pytest.raises(InputError, match="--steps says 3"):
            read_served(f"vllm:{server.url}", steps=3, between=START)
        with pytest.raises(InputError, match="no terminal is here"):
            read_served(f"vllm:{server.url}")


def test_a_restart_between_two_readings() -> None:
    with serving(StandIn(nothing, 5)) as server:
        for _ in range(3):
            server.count(2)

        def restart(_: str) -> None:
            server.drafts, server.accepted = 1, [1, 0, 0, 0, 0]

        with pytest.raises(InputError, match=r"went backwards .3 drafts, then 1"):
            read_served(f"vllm:{server.url}", between=Between(interval=0.01, say=restart))


def test_servers_that_cannot_be_read(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InputError, match="cannot be reached"):
        read_served("vllm:http://127.0.0.1:9", between=START)
    for text in ("vllm:", "vllm:ftp://host", "sglang:http://host:99999", "vllm:http://h?x=1"):
        with pytest.raises(InputError, match="is not a server's address"):
            read_served(text, between=START)
    with pytest.raises(InputError, match="holds a password"):
        read_served("vllm:http://me:secret@host", between=START)
    with serving(StandIn(nothing, 5, kind="sglang")) as server, pytest.raises(InputError, match=r"no counters of speculative decoding.*--speculative-config"):
        read_served(f"vllm:{server.url}", between=START)
    with serving(StandIn(nothing, 5, missing=("/metrics",))) as server, pytest.raises(InputError, match="has no /metrics; start vLLM with"):
        read_served(f"vllm:{server.url}", between=START)
    with serving(StandIn(nothing, 5, api_key="secret")) as server:
        server.count(1)
        with pytest.raises(InputError, match=r"401.*put the server's key into EAGLE3_DIAG_API_KEY"):
            read_served(f"vllm:{server.url}", between=START)
        monkeypatch.setenv("EAGLE3_DIAG_API_KEY", "secret")
        assert read_served(f"vllm:{server.url}", between=START).drafts == 1


def test_running_sglang() -> None:
    def traffic(_: str) -> None:
        for run in (3, 0, 5):
            server.count(run)
        server.served.append([1])

    with serving(StandIn(nothing, 5, kind="sglang", version="0.5.23")) as server:
        server.count(2)
        assert read_served(f"sglang:{server.url}", between=START).acceptance_length == 3.0
        seen = read_served(f"sglang:{server.url}", between=Between(interval=0.01, say=traffic))
        assert (seen.drafts, seen.acceptance_length, seen.rounding) == (3, pytest.approx(11 / 3), pytest.approx(1 / 3))
        with pytest.raises(InputError, match="drafts 5 tokens per step, but --steps says 4"):
            read_served(f"sglang:{server.url}", steps=4, between=START)
    with serving(StandIn(nothing, 5, kind="sglang", version="0.5.9", missing=("/server_info",))) as server:
        with pytest.raises(InputError, match="has verified no draft"):
            read_served(f"sglang:{server.url}", between=START)
        with pytest.raises(InputError, match="counts no verifications"):
            read_served(f"sglang:{server.url}", between=Between(interval=0.01))
        server.server_info = {"speculative_eagle_topk": 4}
        with pytest.raises(InputError, match="drafts a tree"):
            read_served(f"sglang:{server.url}", between=START)
        server.server_info = {"speculative_algorithm": None}
        with pytest.raises(InputError, match=r"does not speculate.*--speculative-algorithm EAGLE3"):
            read_served(f"sglang:{server.url}", between=START)
