"""Ask a running server what it drafts from one row: send a stored prefix greedily, learn how many drafts were accepted.

A prefix x[0..t] as token ids makes the server write the target's choice at t, then draft once, from row t, and verify. How the accepted
run comes back:

``vllm``    two new tokens, and the difference of the counters of ``/metrics``. Exact, also for drafts past the second token.
            Other traffic shows as more drafts than the one; the row is asked again.
``sglang``  two new tokens through ``/generate``; the answer's ``meta_info`` counts its one verification.
``openai``  K + 2 new tokens as a stream: the first chunk is the prefill's token, every further chunk one verification, so its tokens
            less one are an accepted run. Needs no rights on the server and does not mind other traffic. A reader that falls behind gets
            two steps in one chunk, which makes a run look longer, never shorter: :attr:`Asker.certain` is false.

Requests go out one at a time. Nothing else is sent.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

from eagle3_diag.errors import InputError
from eagle3_diag.serving.http import HttpStatus, base_url, get_json, post_events, post_json
from eagle3_diag.serving.readers import sglang, vllm

KINDS = ("vllm", "sglang", "openai")
#: Seconds in which a server's counters must show a request that it has answered, and how often they are looked at.
_SETTLE, _LOOK = 3.0, 0.02
_TRIES = 4


@dataclass(frozen=True, kw_only=True)
class Request:
    """One row to ask for: the stored prefix up to and with it."""

    id: str
    prompt_token_ids: tuple[int, ...]
    max_tokens: int


@dataclass(frozen=True, kw_only=True)
class Answer:
    """``first_token``: the target's choice at the row (None where the server tells no ids); ``accepted``: the run of drafts accepted."""

    id: str
    first_token: int | None
    accepted: int


class Asker(Protocol):
    """A server that can be asked for rows."""

    @property
    def steps(self) -> int:
        """Drafted tokens per verification."""

    @property
    def certain(self) -> bool:
        """Whether an answer is a count, not something read off the stream's timing."""

    @property
    def notes(self) -> list[str]:
        """What was noticed while asking."""

    def ask(self, request: Request) -> Answer:
        """Raises InputError where the server cannot be asked."""


@dataclass
class Pace:
    """At most ``rate`` requests a second (None: as fast as they are answered)."""

    rate: float | None = None
    _last: float | None = field(default=None, repr=False)

    def wait(self) -> None:
        """Return when the next request is due."""
        if self.rate is not None and self._last is not None:
            time.sleep(max(0.0, self._last + 1 / self.rate - time.monotonic()))
        self._last = time.monotonic()


def max_tokens(kind: str, steps: int) -> int:
    """New tokens to ask for so that the first verification is seen whole."""
    return steps + 2 if kind == "openai" else 2


def address(text: str) -> tuple[str, str]:
    """(kind, URL) of ``--server KIND:URL``. Raises InputError."""
    kind, colon, url = text.partition(":")
    if not colon or kind not in KINDS or url.startswith("//"):
        raise InputError(f"--server {text!r}: write vllm:URL, sglang:URL, or openai:URL for any other server, as in vllm:http://localhost:8000")
    return kind, base_url(url)


def body(kind: str, request: Request, model: str) -> tuple[str, dict[str, Any]]:
    """(path, JSON body) of the request that asks for a row."""
    tokens = list(request.prompt_token_ids)
    if kind == "sglang":
        return "/generate", {"input_ids": tokens, "sampling_params": {"temperature": 0, "max_new_tokens": request.max_tokens, "ignore_eos": True}}
    asked: dict[str, Any] = {"model": model, "prompt": tokens, "max_tokens": request.max_tokens, "temperature": 0, "ignore_eos": True}
    asked["return_token_ids"] = True
    if kind == "openai":
        asked |= {"stream": True, "stream_options": {"include_usage": True, "continuous_usage_stats": True}}
    return "/v1/completions", asked


def dry(text: str, request: Request) -> str:
    """The request as one line, without sending it."""
    kind, url = address(text)
    path, asked = body(kind, request, "(the first that GET /v1/models names)")
    return f"POST {url}{path} {json.dumps(asked)}"


def connect(text: str, *, steps: int | None, model: str | None = None, timeout: float = 120.0) -> Asker:
    """The server of ``--server``, after a look at how it speculates.

    Raises InputError: not reachable, no speculation, ``steps`` that disagree, a tree of drafts.
    """
    kind, url = address(text)
    if kind == "sglang":
        return Sglang(url, sglang.agreed_steps(sglang.server(url), steps, text), timeout)
    if kind == "vllm":
        found = vllm.reading(url)
        if steps is not None and found.steps != steps:
            raise InputError(f"{text}: drafts {found.steps} tokens per step, but --steps says {steps}; leave --steps out")
        return Vllm(url, model or first_model(url), found.steps, timeout)
    if steps is None:
        raise InputError(f"{text}: a stream does not say how many tokens are drafted per step; give --steps K")
    return Openai(url, model or first_model(url), steps, timeout)


def first_model(url: str) -> str:
    """The name of the model served."""
    data = get_json(f"{url}/v1/models").get("data")
    names = [each.get("id") for each in data if isinstance(each, dict)] if isinstance(data, list) else []
    if not names or not isinstance(names[0], str):
        raise InputError(f"{url}/v1/models names no model; give --model NAME")
    return names[0]


def _refused(url: str, error: HttpStatus) -> InputError:
    return InputError(f"{error}; the server does not take a prompt of token ids as it was sent, see {url}'s log" if error.status in (400, 422) else str(error))


def _first_token(choice: Any) -> int | None:
    ids = choice.get("token_ids") if isinstance(choice, dict) else None
    return int(ids[0]) if isinstance(ids, list) and ids and isinstance(ids[0], int) else None


def _choice(answer: dict[str, Any], url: str) -> dict[str, Any]:
    choices = answer.get("choices")
    if not isinstance(choices, list) or not choices or not isinstance(choices[0], dict):
        raise InputError(f"{url}/v1/completions answered without choices ({json.dumps(answer)[:200]}); is it an OpenAI-compatible server?")
    return choices[0]


class Vllm:
    """vLLM, by its counters."""

    certain = True

    def __init__(self, url: str, model: str, steps: int, timeout: float) -> None:
        self.url, self.model, self.steps, self.timeout = url, model, steps, timeout
        self.notes: list[str] = []

    def ask(self, request: Request) -> Answer:
        path, asked = body("vllm", request, self.model)
        for _ in range(_TRIES):
            before = self._quiet()
            try:
                choice = _choice(post_json(self.url + path, asked, timeout=self.timeout), self.url)
            except HttpStatus as error:
                raise _refused(self.url, error) from None
            moved = self._settled(before)
            if moved.drafts == 1:
                return Answer(id=request.id, first_token=_first_token(choice), accepted=sum(moved.accepted))
            if moved.drafts == 0:
                raise InputError(
                    f"{self.url}: answered row {request.id} without counting a draft; speculation is off for it (the prompt may be too near the longest length), "
                    "or counters are switched off"
                )
            self.notes.append(f"{request.id}: {moved.drafts} drafts were counted instead of one: others use the server; asked again")
        raise InputError(
            f"{self.url}: others use this server (at row {request.id} its counters moved by more than our one draft {_TRIES} times); ask when it is idle, or use "
            f"openai:{self.url}, which does not mind other traffic"
        )

    def _quiet(self) -> vllm.Counters:
        """The counters, once they stand still."""
        earlier = vllm.reading(self.url)
        for _ in range(round(_SETTLE / _LOOK)):
            later = vllm.reading(self.url)
            if later == earlier:
                return later
            earlier = later
            time.sleep(_LOOK)
        raise InputError(f"{self.url}: others use this server (its counters do not stand still); ask when it is idle, or use openai:{self.url}")

    def _settled(self, before: vllm.Counters) -> vllm.Counters:
        """What was counted since, once the answered request shows: counters are written a moment after the answer."""
        end = time.monotonic() + _SETTLE
        while True:
            moved = vllm.reading(self.url).since(before, self.url)
            if moved.drafts > 0 or time.monotonic() > end:
                return moved
            time.sleep(_LOOK)


class Sglang:
    """SGLang, by the request's own ``meta_info``."""

    certain = True

    def __init__(self, url: str, steps: int, timeout: float) -> None:
        self.url, self.steps, self.timeout = url, steps, timeout
        self.notes: list[str] = []

    def ask(self, request: Request) -> Answer:
        path, asked = body("sglang", request, "")
        try:
            answer = post_json(self.url + path, asked, timeout=self.timeout)
        except HttpStatus as error:
            raise _refused(self.url, error) from None
        meta, ids = answer.get("meta_info"), answer.get("output_ids")
        first = int(ids[0]) if isinstance(ids, list) and ids and isinstance(ids[0], int) else None
        accepted = self._accepted(meta) if isinstance(meta, dict) else None
        if accepted is None:
            raise InputError(
                f"{self.url}: its answer to row {request.id} does not count one verification (meta_info: {json.dumps(meta)[:200]}); this version reports no "
                f"acceptance per request, so use openai:{self.url} --steps {self.steps}"
            )
        if accepted > self.steps:
            raise InputError(f"{self.url}: accepted {accepted} drafts at row {request.id}, more than the {self.steps} it says it drafts; give the right --steps")
        return Answer(id=request.id, first_token=first, accepted=accepted)

    def _accepted(self, meta: dict[str, Any]) -> int | None:
        counts = sglang.histogram(meta, self.url)
        if counts is not None and sum(counts) == 1:
            return counts.index(1)
        for name in ("spec_num_correct_drafts", "spec_accept_token_num"):
            if meta.get("spec_verify_ct") == 1 and isinstance(meta.get(name), int):
                return int(meta[name])
        return None


class Openai:
    """Any OpenAI-compatible server, by the sizes of a stream's chunks."""

    certain = False

    def __init__(self, url: str, model: str, steps: int, timeout: float) -> None:
        self.url, self.model, self.steps, self.timeout = url, model, steps, timeout
        self.notes: list[str] = []
        self._variants: list[Callable[[dict[str, Any]], dict[str, Any]]] = [
            lambda asked: asked,
            lambda asked: {k: v for k, v in asked.items() if k not in ("return_token_ids", "ignore_eos")},
            lambda asked: {k: v for k, v in asked.items() if k not in ("return_token_ids", "ignore_eos", "stream_options")} | {"logprobs": 1},
        ]

    def ask(self, request: Request) -> Answer:
        path, asked = body("openai", request, self.model)
        for _ in range(_TRIES):
            sizes, first = self._sizes(self.url + path, asked)
            if len(sizes) >= 2 and sizes[0] == 1 and sizes[1] <= self.steps + 1:
                return Answer(id=request.id, first_token=first, accepted=sizes[1] - 1)
            self.notes.append(f"{request.id}: came in chunks of {sizes} tokens, two steps in one; asked again")
        most = max(sizes, default=0)
        if most > self.steps + 1 and sizes[0] == 1:
            raise InputError(f"{self.url}: sends {most} tokens in one chunk, more than {self.steps} drafts and one; give the right --steps, or a nearer server")
        raise InputError(
            f"{self.url}: gathers tokens before it sends them (chunks of {sizes} tokens at row {request.id}); ask it directly instead of through a proxy, and with "
            "its stream interval at 1"
        )

    def _sizes(self, url: str, asked: dict[str, Any]) -> tuple[list[int], int | None]:
        """(tokens of each chunk, the first token's id where it is told). Fields that the server refuses or ignores are left out for good."""
        while True:
            try:
                found = _chunk_sizes(url, self._variants[0](asked), self.timeout)
            except HttpStatus as error:
                if error.status not in (400, 422) or len(self._variants) == 1:
                    raise _refused(self.url, error) from None
                found = None
            if found is not None:
                return found
            if len(self._variants) == 1:
                raise InputError(f"{self.url}: its stream tells neither token ids nor usage nor logprobs, so the tokens of a chunk cannot be counted")
            self._variants.pop(0)


def _chunk_sizes(url: str, asked: dict[str, Any], timeout: float) -> tuple[list[int], int | None] | None:
    """Tokens of each chunk by ids, else by the running usage, else by logprobs; None where the stream tells none of them."""
    sizes: list[int] = []
    first: int | None = None
    total, told = 0, False
    for event in post_events(url, asked, timeout=timeout):
        if "error" in event and not event.get("choices"):
            raise InputError(f"{url}: the stream broke off with an error ({json.dumps(event['error'])[:200]})")
        choices = event.get("choices")
        choice = choices[0] if isinstance(choices, list) and choices and isinstance(choices[0], dict) else {}
        usage = event.get("usage")
        ids, logprobs = choice.get("token_ids"), choice.get("logprobs")
        count = 0
        if isinstance(ids, list):
            count, told = len(ids), True
            if first is None and ids:
                first = _first_token(choice)
        elif choice and isinstance(usage, dict) and isinstance(usage.get("completion_tokens"), int):
            count, told = usage["completion_tokens"] - total, True
        elif isinstance(logprobs, dict) and isinstance(logprobs.get("tokens"), list):
            count, told = len(logprobs["tokens"]), True
        if count > 0:
            sizes.append(count)
            total += count
    return (sizes, first) if told else None
