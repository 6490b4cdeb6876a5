"""Capture inside SGLang: what it feeds its EAGLE-3 drafter, by its own ``--forward-hooks``. Off unless asked; see docs/eagle3_diag/capture.md.

    --forward-hooks '[{"name": "eagle3-diag", "target_modules": ["model", "model.fc"],
                       "hook_factory": "eagle3_diag.serving.sglang:hook", "config": {"folder": "/tmp/capture"}}]'

Read from SGLang 0.5.9 and 0.5.23: ``model_executor/hook_manager.py`` (a factory is called with ``config``; what it returns is registered as a forward hook, once on the
target and once on the drafter), ``models/llama_eagle3.py`` and ``models/kimi_k25_eagle3.py`` (``model(input_ids, positions, forward_batch, ...)`` returns the normed state
and, in a list, the one fed back; the features are ``forward_batch.spec_info.hidden_states``), and ``speculative/eagle_worker*.py`` (an extend over new rows,
then one decode per further draft step). Hooks run in eager mode only: start the server with ``--disable-cuda-graph``.
"""

from __future__ import annotations

import atexit
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch

from eagle3_diag.serving.capture_store import MAX_BYTES, MAX_REQUESTS, Call, Guard, Step, Store

Hook = Callable[[Any, tuple[Any, ...], Any], None]
_log = logging.getLogger("eagle3_diag.capture")
# Draft calls after which a request that takes part in none is taken for ended.
_ABSENT = 32


def hook(config: Mapping[str, Any] | None) -> Hook | None:
    """The factory that SGLang calls. ``config``: ``folder``, and if wanted ``requests`` (beginnings of request ids), ``max_requests``, ``max_bytes``.

    None (SGLang then registers nothing) where no folder is named, on every rank but the first, and where anything goes wrong.
    """
    try:
        settings = dict(config or {})
        if not settings.get("folder"):
            _log.warning("eagle3-diag captures nothing: the hook's config names no folder")
            return None
        if torch.distributed.is_available() and torch.distributed.is_initialized() and torch.distributed.get_rank() != 0:
            return None
        return Tap(settings)
    except Exception as error:  # the server must not notice
        _log.warning("eagle3-diag cannot capture here (%s: %s)", type(error).__name__, error)
        return None


@dataclass
class _Open:
    """A request's draft under way: the rows of its extend, then one step per decode."""

    rows: Call
    outputs_RH: torch.Tensor
    normed_RH: torch.Tensor
    steps: list[Step] = field(default_factory=list)


class Tap:
    """The hook itself: one object for ``model`` and ``model.fc`` of one model. On the target it does nothing."""

    def __init__(self, settings: Mapping[str, Any]) -> None:
        self._settings = settings
        self._store: Store | None = None
        self.guard = Guard(_log.warning)
        self._projected: torch.Tensor | None = None
        self._open: dict[str, _Open] = {}
        self._slots: dict[int, tuple[str, int]] = {}
        self._absent: dict[str, int] = {}
        self._names = 0

    def __call__(self, module: Any, inputs: tuple[Any, ...], output: Any) -> None:
        if self.guard.problem is None:
            self.guard(lambda: self._see(module, inputs, output))

    def _see(self, module: Any, inputs: tuple[Any, ...], output: Any) -> None:
        if not hasattr(module, "fc"):
            if len(inputs) == 1:  # fc itself, just before the model that it belongs to
                projected = output[0] if isinstance(output, tuple) else output
                self._projected = projected
            return
        projected, self._projected = self._projected, None
        if len(inputs) < 3:
            return
        ids, positions, batch = inputs[:3]
        info = getattr(batch, "spec_info", None)
        states = getattr(info, "hidden_states", None)
        if states is None or not states.shape[0] or not isinstance(output, tuple):
            return
        normed_RH, fed_RH = output[0], output[1][0] if isinstance(output[1], (list, tuple)) else output[1]
        positions = positions[0] if positions.dim() == 2 else positions
        lengths = getattr(batch, "extend_seq_lens", None)
        mode = batch.forward_mode
        if mode.is_decode():
            self._step(batch, ids, positions, states, normed_RH, fed_RH)
        elif lengths is not None:
            self._extend(batch, [int(n) for n in lengths.tolist()], ids, positions, states, projected, normed_RH, fed_RH)

    def _requests(self, batch: Any, first_positions: list[int]) -> list[str]:
        """A name per batch entry: SGLang's request id, or in versions whose batches lack it the slot, told apart when one begins anew."""
        ids = getattr(batch, "rids", None)
        if ids:
            return [str(each) for each in ids]
        names = []
        for slot, position in zip(batch.req_pool_indices.tolist(), first_positions, strict=True):
            name, last = self._slots.get(slot, ("", 1 << 62))
            if position < last:
                name = f"request-{self._names}"
                self._names += 1
            self._slots[slot] = (name, position)
            names.append(name)
        return names

    def _extend(
        self, batch: Any, lengths: list[int], ids: torch.Tensor, positions: torch.Tensor, states: torch.Tensor, projected: torch.Tensor | None,
        normed_RH: torch.Tensor, fed_RH: torch.Tensor,
    ) -> None:  # fmt: skip
        starts = [sum(lengths[:b]) for b in range(len(lengths))]
        names = self._requests(batch, [int(positions[start]) for start in starts])
        store = self._the_store()
        self._still_there(set(names))
        for name, start, length in zip(names, starts, lengths, strict=True):
            if not length or not store.takes(name):
                continue
            rows = slice(start, start + length)
            new = _Open(
                rows=Call(
                    positions_R=_copy(positions[rows]), tokens_R=_copy(ids[rows]), features_RF=None if projected is None else _copy(states[rows]),
                    inputs_RH=_copy((states if projected is None else projected)[rows]),
                ),
                outputs_RH=_copy(fed_RH[rows]),
                normed_RH=_copy(normed_RH[rows]),
            )  # fmt: skip
            before = self._open.get(name)
            if before is not None and not before.steps and int(before.rows.positions_R[-1]) + 1 == int(new.rows.positions_R[0]):
                new = _joined(before, new)  # a prompt in chunks
            else:
                self._finish(name)
            self._open[name] = new

    def _step(self, batch: Any, ids: torch.Tensor, positions: torch.Tensor, states: torch.Tensor, normed_RH: torch.Tensor, fed_RH: torch.Tensor) -> None:
        size = int(batch.req_pool_indices.shape[0])
        if ids.shape[0] != size:
            raise ValueError(f"{ids.shape[0] // max(size, 1)} branches are drafted per request; capture needs --speculative-eagle-topk 1")
        names = self._requests_running(batch)
        for b, name in enumerate(names):
            now = self._open.get(name)
            if now is not None:
                now.steps.append(
                    Step(position=int(positions[b]), token=int(ids[b]), state_H=_copy(states[b]), output_H=_copy(fed_RH[b]), normed_H=_copy(normed_RH[b]))
                )

    def _requests_running(self, batch: Any) -> list[str]:
        ids = getattr(batch, "rids", None)
        if ids:
            return [str(each) for each in ids]
        return [self._slots.get(slot, ("", 0))[0] for slot in batch.req_pool_indices.tolist()]

    def _finish(self, name: str) -> None:
        """The request's draft is whole: the row it began from is the one before its first decode; rows behind it are stale.

        An extend without a decode behind it (the request ended) is left out: nothing tells which of its rows are valid.
        """
        now = self._open.pop(name, None)
        store = self._the_store()
        if now is None:
            return
        rows = now.rows
        if not now.steps:
            return
        found = torch.nonzero(rows.positions_R == now.steps[0].position - 1)
        last = int(found[-1]) if found.numel() else int(rows.positions_R.shape[0]) - 1
        keep = slice(0, last + 1)
        first = Step(
            position=int(rows.positions_R[last]), token=int(rows.tokens_R[last]), state_H=None if rows.inputs_RH is None else rows.inputs_RH[last],
            output_H=now.outputs_RH[last], normed_H=now.normed_RH[last],
        )  # fmt: skip
        call = Call(
            positions_R=rows.positions_R[keep], tokens_R=rows.tokens_R[keep],
            features_RF=None if rows.features_RF is None else rows.features_RF[keep], inputs_RH=None if rows.inputs_RH is None else rows.inputs_RH[keep],
            drafts=[step.token for step in now.steps], steps=[first, *now.steps],
        )  # fmt: skip
        store.add(name, call)

    def _still_there(self, names: set[str]) -> None:
        """Write requests that have been away for long."""
        for name in list(self._absent):
            self._absent[name] += 1
        for name in names:
            self._absent[name] = 0
        gone = {name for name, count in self._absent.items() if count >= _ABSENT}
        for name in gone:
            self._finish(name)
            del self._absent[name]
        if gone:
            self._the_store().close_all_but(set(self._absent))

    def close(self) -> None:
        """Write everything."""
        for name in list(self._open):
            self.guard(partial(self._finish, name))
        if self._store is not None:
            self.guard(self._store.close)

    def _the_store(self) -> Store:
        """Made at the first draft: the target's copy of this hook, which never drafts, makes no folder."""
        if self._store is None:
            s = self._settings
            self._store = Store(
                s["folder"], _about(), wanted=tuple(s.get("requests") or ()), max_requests=int(s.get("max_requests", MAX_REQUESTS)),
                max_bytes=int(s.get("max_bytes", MAX_BYTES)),
            )  # fmt: skip
            atexit.register(self.close)
        return self._store


def _joined(a: _Open, b: _Open) -> _Open:
    """Two chunks of one prompt as one extend."""

    def cat(x: torch.Tensor | None, y: torch.Tensor | None) -> torch.Tensor | None:
        return None if x is None or y is None else torch.cat([x, y])

    rows = Call(
        positions_R=torch.cat([a.rows.positions_R, b.rows.positions_R]), tokens_R=torch.cat([a.rows.tokens_R, b.rows.tokens_R]),
        features_RF=cat(a.rows.features_RF, b.rows.features_RF), inputs_RH=cat(a.rows.inputs_RH, b.rows.inputs_RH),
    )  # fmt: skip
    return _Open(rows=rows, outputs_RH=torch.cat([a.outputs_RH, b.outputs_RH]), normed_RH=torch.cat([a.normed_RH, b.normed_RH]))


def _copy(x: torch.Tensor) -> torch.Tensor:
    """On the CPU, in memory of its own."""
    return x.detach().to("cpu", copy=True)


def _about() -> dict[str, Any]:
    try:
        from importlib.metadata import version

        return {"engine": "sglang", "version": version("sglang")}
    except Exception:  # not installed as a distribution
        return {"engine": "sglang", "version": "unknown"}
