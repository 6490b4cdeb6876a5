"""What a server feeds its drafter, kept per request and written as safetensors: bounded, and never the server's problem.

Used inside the server's own processes, so it needs nothing but torch and safetensors. :mod:`eagle3_diag.captures` reads the files.

Dimension suffixes: R rows of one draft call, M rows of a request, C draft calls, K draft steps, F width of all aux states, H drafter width.
"""

from __future__ import annotations

import json
import os
import re
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

SCHEMA = "eagle3-diag/capture/1"
#: Everything that a process keeps and writes, unless told otherwise.
MAX_REQUESTS, MAX_BYTES = 8, 256 << 20


@dataclass
class Step:
    """One draft step of one request: what went in and what came out, one row each."""

    position: int
    token: int
    state_H: torch.Tensor | None = None
    output_H: torch.Tensor | None = None
    normed_H: torch.Tensor | None = None


@dataclass
class Call:
    """One draft of one request: the rows whose keys the drafter computed, and its draft steps.

    ``positions_R`` as given to the drafter, ``tokens_R`` the tokens it embedded, ``target_tokens_R`` the target's tokens at the rows where the engine
    says them, ``features_RF`` before fc, ``inputs_RH`` after it; ``drafts`` the proposed tokens.
    """

    positions_R: torch.Tensor
    tokens_R: torch.Tensor
    target_tokens_R: torch.Tensor | None = None
    features_RF: torch.Tensor | None = None
    inputs_RH: torch.Tensor | None = None
    drafts: list[int] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)

    def bytes(self) -> int:
        """Memory held, about."""
        rows = (self.positions_R, self.tokens_R, self.target_tokens_R, self.features_RF, self.inputs_RH)
        each = (t for s in self.steps for t in (s.state_H, s.output_H, s.normed_H))
        return sum(t.numel() * t.element_size() for t in (*rows, *each) if t is not None)


class Store:
    """The captured requests of one process.

    ``wanted`` are beginnings of request names; empty takes the first ``max_requests`` that come. What would pass ``max_bytes`` is not kept, and the
    request is marked as cut off.
    """

    def __init__(
        self, folder: str | os.PathLike[str], about: Mapping[str, Any], *, wanted: tuple[str, ...] = (), max_requests: int = MAX_REQUESTS, max_bytes: int = MAX_BYTES
    ) -> None:
        self.folder, self.about = Path(folder), dict(about)
        self.wanted, self.max_requests, self.max_bytes = wanted, max_requests, max_bytes
        self._open: dict[str, list[Call]] = {}
        self._paths: dict[str, Path] = {}
        self._cut: set[str] = set()
        self._seen: list[str] = []
        self._bytes = 0
        self.folder.mkdir(parents=True, exist_ok=True)

    def takes(self, request: str) -> bool:
        """Whether this request is one to capture."""
        if request in self._seen:
            return True
        if len(self._seen) >= self.max_requests or (self.wanted and not request.startswith(self.wanted)):
            return False
        self._seen.append(request)
        return True

    def add(self, request: str, call: Call) -> None:
        """Keep a draft call of a request that :meth:`takes` took."""
        size = call.bytes()
        if request in self._cut or self._bytes + size > self.max_bytes:
            self._cut.add(request)  # a request with a hole in it cannot be replayed: the rest of it is dropped as well
            return
        self._bytes += size
        calls = self._open.setdefault(request, [])
        calls.append(call)
        if len(calls) & (len(calls) - 1) == 0:  # servers are killed without a word: what was captured up to 1, 2, 4, 8, ... drafts is on disk
            self._write(request)

    @property
    def done(self) -> bool:
        """Whether no further request would be taken and none is open."""
        return len(self._seen) >= self.max_requests and not self._open

    def close_all_but(self, running: set[str]) -> None:
        """Write the requests that are no longer running, whole, and let go of them."""
        for request in [each for each in self._open if each not in running]:
            self._write(request)
            del self._open[request]

    def close(self) -> None:
        """Write everything that is left."""
        self.close_all_but(set())

    def _write(self, request: str) -> None:
        about = {"schema": SCHEMA, **self.about, "request": request, "cut_off": request in self._cut}
        if request not in self._paths:
            safe = re.sub(r"[^A-Za-z0-9._-]", "_", request)[:100]
            self._paths[request] = self.folder / f"capture_{len(self._paths)}_{safe}.safetensors"
        _save(self._paths[request], tensors(self._open[request]), about)

    @property
    def files(self) -> list[str]:
        """What was written."""
        return [str(path) for path in self._paths.values()]


def tensors(calls: list[Call]) -> dict[str, torch.Tensor]:
    """A request's calls as named tensors; what a server did not show is left out, what a call lacks is -1 or NaN."""
    out = {
        "row_positions": torch.cat([c.positions_R.to(torch.int64) for c in calls]),
        "row_tokens": torch.cat([c.tokens_R.to(torch.int64) for c in calls]),
        "row_calls": torch.cat([torch.full((c.positions_R.shape[0],), i, dtype=torch.int64) for i, c in enumerate(calls)]),
    }
    for name in ("target_tokens_R", "features_RF", "inputs_RH"):
        parts = [getattr(c, name) for c in calls]
        if all(part is not None for part in parts):
            out["row_" + name.rsplit("_", 1)[0]] = torch.cat(parts)
    count = max((max(len(c.drafts), len(c.steps)) for c in calls), default=0)
    out["draft_tokens"] = torch.tensor([c.drafts + [-1] * (count - len(c.drafts)) for c in calls], dtype=torch.int64).reshape(len(calls), count)
    for name in ("position", "token"):
        rows = [[getattr(s, name) for s in c.steps] + [-1] * (count - len(c.steps)) for c in calls]
        out[f"step_{name}s"] = torch.tensor(rows, dtype=torch.int64).reshape(len(calls), count)
    for name, key in (("state_H", "step_states"), ("output_H", "step_outputs"), ("normed_H", "step_normed")):
        known = [getattr(s, name) for c in calls for s in c.steps if getattr(s, name) is not None]
        if known:
            nothing = torch.full_like(known[0], float("nan"))
            rows_CK = [[_or(c.steps, k, name, nothing) for k in range(count)] for c in calls]
            out[key] = torch.stack([torch.stack(row) for row in rows_CK])
    return {name: tensor.contiguous() for name, tensor in out.items()}


def _or(steps: list[Step], k: int, name: str, nothing: torch.Tensor) -> torch.Tensor:
    found = getattr(steps[k], name) if k < len(steps) else None
    return nothing if found is None else found


def _save(path: Path, named: Mapping[str, torch.Tensor], about: Mapping[str, Any]) -> None:
    from safetensors.torch import save_file

    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".part", dir=path.parent)
    os.close(handle)
    try:
        save_file(dict(named), name, metadata={"eagle3_diag": json.dumps(about)})
        Path(name).chmod(0o644)
        Path(name).replace(path)
    finally:
        Path(name).unlink(missing_ok=True)


class Guard:
    """Runs the capture's own code so that nothing it does reaches the server: the first error ends the capture and is kept in ``problem``."""

    def __init__(self, warn: Callable[[str], None]) -> None:
        self.problem: str | None = None
        self._warn = warn

    def __call__(self, work: Callable[[], Any]) -> Any:
        """The work's result; None once something has gone wrong."""
        if self.problem is not None:
            return None
        try:
            with torch.inference_mode():
                return work()
        except Exception as error:  # whatever it is, the server goes on
            self.problem = f"{type(error).__name__}: {error}"
            self._warn(f"eagle3-diag stopped capturing ({self.problem}); the server goes on unchanged")
            return None
