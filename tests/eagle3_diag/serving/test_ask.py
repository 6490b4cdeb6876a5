"""Asking servers for one row: all three ways give the run that the server's drafter had."""

from __future__ import annotations

import random
import time
from collections.abc import Sequence

import pytest

from eagle3_diag.errors import InputError
from eagle3_diag.serving import ask
from tests.eagle3_diag.serving.stand_in import StandIn, serving

STEPS = 5


def draft(prompt: Sequence[int]) -> tuple[list[int], int]:
    """Any run from 0 to K, by the prompt."""
    drawn = random.Random(str(list(prompt)))
    return [drawn.randrange(100) for _ in range(STEPS + 3)], drawn.randrange(STEPS + 1)


def request(kind: str, prompt: Sequence[int]) -> ask.Request:
    return ask.Request(id=f"sample:{len(prompt) - 1}", prompt_token_ids=tuple(prompt), max_tokens=ask.max_tokens(kind, STEPS))


PROMPTS = [list(range(n)) for n in range(3, 40)]


@pytest.mark.parametrize(("kind", "version"), [("vllm", "0.32.0"), ("openai", "0.32.0"), ("sglang", "0.5.9"), ("sglang", "0.5.23")])
def test_every_way_of_asking_gives_the_run(kind: str, version: str) -> None:
    with serving(StandIn(draft, STEPS, kind="sglang" if kind == "sglang" else "vllm", version=version)) as server:
        asker = ask.connect(f"{kind}:{server.url}", steps=STEPS if kind == "openai" else None)
        assert asker.steps == STEPS
        for prompt in PROMPTS:
            continuation, run = draft(prompt)
            answer = asker.ask(request(kind, prompt))
            assert (answer.id, answer.first_token, answer.accepted) == (f"sample:{len(prompt) - 1}", continuation[0], run)
        assert server.served == PROMPTS
        assert asker.notes == []


@pytest.mark.parametrize(("ids", "usage"), [(False, True), (False, False)])
def test_streams_without_token_ids_are_counted_by_usage_or_logprobs(ids: bool, usage: bool) -> None:
    with serving(StandIn(draft, STEPS, knows_token_ids=ids, knows_usage=usage)) as server:
        asker = ask.connect(f"openai:{server.url}", steps=STEPS)
        for prompt in PROMPTS[:8]:
            answer = asker.ask(request("openai", prompt))
            assert (answer.first_token, answer.accepted) == (None, draft(prompt)[1])


def test_two_steps_in_one_chunk_are_asked_again() -> None:
    with serving(StandIn(draft, STEPS, merge_first=2)) as server:
        asker = ask.connect(f"openai:{server.url}", steps=STEPS)
        assert asker.ask(request("openai", PROMPTS[0])).accepted == draft(PROMPTS[0])[1]
        assert len(asker.notes) == 2
        server.merge_first = 99
        with pytest.raises(InputError, match="gathers tokens before it sends them"):
            asker.ask(request("openai", PROMPTS[1]))


def test_traffic_of_others_is_noticed() -> None:
    def once(state: StandIn) -> None:
        """A request of somebody else after our second look at the counters, which found them still: just before our own request."""
        looks.append(1)
        if len(looks) == 2:
            state.count(1)

    looks: list[int] = []
    with serving(StandIn(draft, STEPS)) as server:
        asker = ask.connect(f"vllm:{server.url}", steps=None)
        server.others = once
        assert asker.ask(request("vllm", PROMPTS[0])).accepted == draft(PROMPTS[0])[1]
        assert len(asker.notes) == 1
        assert "asked again" in asker.notes[0]
        server.others = lambda state: state.count(1)
        with pytest.raises(InputError, match=r"others use this server.*openai:"):
            asker.ask(request("vllm", PROMPTS[1]))


def test_requests_keep_their_distance() -> None:
    pace = ask.Pace(50.0)
    begun = time.monotonic()
    for _ in range(4):
        pace.wait()
    assert time.monotonic() - begun >= 3 / 50


def test_a_dry_request_says_all_that_would_be_sent() -> None:
    line = ask.dry("sglang:localhost:30000", request("sglang", [1, 2, 3]))
    assert line == 'POST http://localhost:30000/generate {"input_ids": [1, 2, 3], "sampling_params": {"temperature": 0, "max_new_tokens": 2, "ignore_eos": true}}'
    assert '"stream": true' in ask.dry("openai:http://host:1/v1", request("openai", [1]))


def test_servers_that_cannot_be_asked() -> None:
    for text in ("http://host", "ollama:http://host", "vllm"):
        with pytest.raises(InputError, match="write vllm:URL, sglang:URL, or openai:URL"):
            ask.connect(text, steps=None)
    with serving(StandIn(draft, STEPS)) as server:
        with pytest.raises(InputError, match="does not say how many tokens are drafted"):
            ask.connect(f"openai:{server.url}", steps=None)
        with pytest.raises(InputError, match="drafts 5 tokens per step, but --steps says 4"):
            ask.connect(f"vllm:{server.url}", steps=4)
        asker = ask.connect(f"openai:{server.url}", steps=2)
        longest = next(prompt for prompt in PROMPTS if draft(prompt)[1] == STEPS)
        with pytest.raises(InputError, match="more than 2 drafts and one; give the right --steps"):
            asker.ask(ask.Request(id="s:1", prompt_token_ids=tuple(longest), max_tokens=12))
    with serving(StandIn(draft, STEPS, kind="sglang", server_info={"speculative_eagle_topk": 8})) as server, pytest.raises(InputError, match="drafts a tree"):
        ask.connect(f"sglang:{server.url}", steps=None)
    with serving(StandIn(draft, STEPS, missing=("/v1/completions",))) as server:
        asker = ask.connect(f"vllm:{server.url}", steps=None)
        with pytest.raises(InputError, match="answered 404"):
            asker.ask(request("vllm", PROMPTS[0]))
