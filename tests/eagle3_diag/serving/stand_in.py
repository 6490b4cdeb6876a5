"""HTTP servers that answer as vLLM and SGLang do, around a function that drafts.

Field names and their meaning are read from vllm 0.32.0 (``entrypoints/openai/completion``, ``v1/spec_decode/metrics.py``) and from
sglang 0.5.9 and 0.5.23 (``managers/tokenizer_manager.py``, ``entrypoints/http_server.py``); what a chunk or a counter says was seen
at the real vLLM (``tests/peers``).
"""

from __future__ import annotations

import itertools
import json
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

#: (the target's greedy continuation, how many drafts made from the prompt's last row are accepted)
Draft = Callable[[Sequence[int]], tuple[list[int], int]]


@dataclass
class StandIn:
    """A server's state: how it drafts and what it has counted."""

    draft: Draft
    steps: int
    kind: str = "vllm"
    version: str = "0.32.0"
    accepted: list[int] = field(init=False)
    drafts: int = 0
    served: list[list[int]] = field(default_factory=list)
    others: Callable[[StandIn], None] | None = None
    merge_first: int = 0
    knows_token_ids: bool = True
    knows_usage: bool = True
    api_key: str | None = None
    server_info: dict[str, Any] = field(default_factory=dict)
    missing: tuple[str, ...] = ()
    url: str = ""

    def __post_init__(self) -> None:
        self.accepted = [0] * self.steps

    def count(self, run: int) -> None:
        """One verification with ``run`` drafts accepted."""
        self.drafts += 1
        for k in range(run):
            self.accepted[k] += 1

    def metrics(self) -> str:
        lines = []
        if self.kind == "vllm":
            for name, value in (("drafts", self.drafts), ("draft_tokens", self.drafts * self.steps), ("accepted_tokens", sum(self.accepted))):
                full = f"vllm:spec_decode_num_{name}"
                lines += [f"# TYPE {full}_total counter", f'{full}_total{{engine="0",model_name="target"}} {float(value)}']
            full = "vllm:spec_decode_num_accepted_tokens_per_pos"
            lines.append(f"# TYPE {full}_total counter")
            lines += [f'{full}_total{{engine="0",model_name="target",position="{k}"}} {float(n)}' for k, n in enumerate(self.accepted)]
        else:
            tokens = sum(self.accepted) + self.drafts
            lines = ["# TYPE sglang:spec_accept_length gauge", f'sglang:spec_accept_length{{model_name="target"}} {tokens / max(1, self.drafts)}']
            if self.version == "0.5.23":
                requests = len(self.served)
                for name, value in (("spec_verify_calls", self.drafts), ("generation_tokens", tokens + requests), ("num_requests", requests)):
                    lines += [f"# TYPE sglang:{name}_total counter", f'sglang:{name}_total{{model_name="target"}} {float(value)}']
        return "\n".join(lines) + "\n"

    def info(self) -> dict[str, Any]:
        state: dict[str, Any] = {"last_gen_throughput": 1.0}
        if self.drafts:
            state["avg_spec_accept_length"] = 1 + sum(self.accepted) / self.drafts
        plain = {
            "speculative_algorithm": "EAGLE3", "speculative_num_steps": self.steps, "speculative_eagle_topk": 1,
            "speculative_num_draft_tokens": self.steps + 1, "version": self.version, "internal_states": [state],
        }  # fmt: skip
        return plain | self.server_info

    def decode(self, prompt: list[int], count: int) -> Iterator[list[int]]:
        """The tokens of the prefill, then of each verification, ``count`` in all."""
        prefix, given = list(prompt), 1
        continuation, run = self.draft(prefix)
        yield continuation[:1]
        while given < count:
            self.count(run)
            tokens = continuation[1 : run + 2][: count - given]
            yield tokens
            given += len(tokens)
            if given < count:
                prefix += continuation[: run + 1]  # up to the token before the bonus: the row that drafts next
                continuation, run = self.draft(prefix)


class _Handler(BaseHTTPRequestHandler):
    server: _Server

    def log_message(self, *_: Any) -> None:
        pass

    def _send(self, content: str, kind: str = "application/json", status: int = 200) -> None:
        body = content.encode()
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _refused(self) -> bool:
        state = self.server.state
        if state.api_key is not None and self.headers.get("Authorization") != f"Bearer {state.api_key}":
            self._send('{"error": "Unauthorized"}', status=401)
            return True
        if self.path in state.missing:
            self._send('{"detail": "Not Found"}', status=404)
            return True
        return False

    def do_GET(self) -> None:
        state = self.server.state
        if self._refused():
            return
        if self.path == "/metrics":
            self._send(state.metrics(), "text/plain; version=0.0.4")
            if state.others is not None:
                state.others(state)
        elif self.path == "/v1/models":
            self._send(json.dumps({"object": "list", "data": [{"id": "target", "object": "model"}]}))
        elif state.kind == "sglang" and self.path in ("/server_info", "/get_server_info"):
            self._send(json.dumps(state.info()))
        else:
            self._send('{"detail": "Not Found"}', status=404)

    def do_POST(self) -> None:
        state = self.server.state
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self._refused():
            return
        if self.path == "/generate" and state.kind == "sglang":
            self._generate(body)
        elif self.path == "/v1/completions":
            self._complete(body)
        else:
            self._send('{"detail": "Not Found"}', status=404)

    def _generate(self, body: dict[str, Any]) -> None:
        state, prompt = self.server.state, body["input_ids"]
        assert body["sampling_params"]["temperature"] == 0
        before, counted = list(state.accepted), state.drafts
        chunks = list(state.decode(prompt, body["sampling_params"]["max_new_tokens"]))
        state.served.append(prompt)
        ids = [token for chunk in chunks for token in chunk]
        accepted, drafts = sum(state.accepted) - sum(before), state.drafts - counted
        survivors = [drafts, *(a - b for a, b in zip(state.accepted, before, strict=True)), 0]
        histogram = [a - b for a, b in itertools.pairwise(survivors)]
        while histogram and histogram[-1] == 0:
            histogram.pop()
        newer = state.version == "0.5.23"
        meta = {
            "id": "0", "finish_reason": {"type": "length"}, "prompt_tokens": len(prompt), "completion_tokens": len(ids), "spec_verify_ct": drafts,
            "spec_accept_length": len(ids) / drafts, "spec_accept_rate": accepted / (drafts * state.steps),
            "spec_num_correct_drafts" if newer else "spec_accept_token_num": accepted,
            "spec_num_proposed_drafts" if newer else "spec_draft_token_num": drafts * state.steps,
            "spec_correct_drafts_histogram" if newer else "spec_accept_histogram": histogram,
        }  # fmt: skip
        self._send(json.dumps({"text": "", "output_ids": ids, "meta_info": meta}))

    def _complete(self, body: dict[str, Any]) -> None:
        state, prompt = self.server.state, body["prompt"]
        assert body["temperature"] == 0
        if "return_token_ids" in body and not state.knows_token_ids:
            self._send('{"error": {"message": "unknown field return_token_ids"}}', status=400)
            return
        chunks = list(state.decode(prompt, body["max_tokens"]))
        state.served.append(prompt)
        if not body.get("stream"):
            ids = [token for chunk in chunks for token in chunk]
            self._send(json.dumps({"choices": [{"index": 0, "text": "", "token_ids": ids if body.get("return_token_ids") else None}]}))
            return
        if state.merge_first > 0:
            state.merge_first -= 1
            chunks = [chunks[0] + chunks[1], *chunks[2:]]
        events, total = [], 0
        for chunk in chunks:
            total += len(chunk)
            choice: dict[str, Any] = {"index": 0, "text": " x" * len(chunk)}
            if body.get("return_token_ids"):
                choice["token_ids"] = chunk
            if body.get("logprobs"):
                choice["logprobs"] = {"tokens": [f"t{token}" for token in chunk]}
            event: dict[str, Any] = {"object": "text_completion", "choices": [choice]}
            if state.knows_usage and (body.get("stream_options") or {}).get("continuous_usage_stats"):
                event["usage"] = {"prompt_tokens": len(prompt), "completion_tokens": total}
            events.append(f"data: {json.dumps(event)}\n\n")
        self._send("".join([*events, "data: [DONE]\n\n"]), "text/event-stream; charset=utf-8")


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    state: StandIn


@contextmanager
def serving(state: StandIn) -> Iterator[StandIn]:
    """The stand-in behind a free port of this machine; ``state.url`` says where."""
    with _Server(("127.0.0.1", 0), _Handler) as http:
        http.state = state
        state.url = f"http://127.0.0.1:{http.server_port}"
        thread = threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        thread.start()
        try:
            yield state
        finally:
            http.shutdown()
            thread.join()
