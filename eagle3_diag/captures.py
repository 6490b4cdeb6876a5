"""Captures of what a server fed its drafter, read back: ``capture_*.safetensors`` as :mod:`eagle3_diag.serving.capture_store` writes them.

Dimension suffixes: M rows of a request in the order they were computed, C draft calls, K draft steps, F width of all aux states, H drafter width.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from eagle3_diag.errors import InputError
from eagle3_diag.hidden import Dump, State

SCHEMA = "eagle3-diag/capture/1"


@dataclass(frozen=True, kw_only=True)
class Captured:
    """One request. ``about`` is what the server said of itself; tensors that the server did not show are None.

    ``positions_M``, ``tokens_M`` (embedded), ``target_tokens_M``, ``features_MF`` (before fc), ``inputs_MH`` (after it), ``calls_M``;
    ``drafts_CK`` proposed tokens (-1: none); per draft step ``step_positions_CK``, ``step_tokens_CK``, ``step_states_CKH`` (what went in), ``step_outputs_CKH`` (what
    would be fed back) and ``step_normed_CKH`` (what the head saw).
    """

    path: Path
    about: Mapping[str, Any]
    positions_M: torch.Tensor
    tokens_M: torch.Tensor
    calls_M: torch.Tensor
    drafts_CK: torch.Tensor
    step_positions_CK: torch.Tensor
    step_tokens_CK: torch.Tensor
    target_tokens_M: torch.Tensor | None = None
    features_MF: torch.Tensor | None = None
    inputs_MH: torch.Tensor | None = None
    step_states_CKH: torch.Tensor | None = None
    step_outputs_CKH: torch.Tensor | None = None
    step_normed_CKH: torch.Tensor | None = None

    @property
    def name(self) -> str:
        return self.path.name

    @property
    def last_rows_C(self) -> torch.Tensor:
        """The row that each draft started from: the last one of its call."""
        calls = int(self.drafts_CK.shape[0])
        return torch.tensor([int(torch.nonzero(self.calls_M == c)[-1]) for c in range(calls)], dtype=torch.int64)

    @property
    def prompt_rows(self) -> int:
        """Rows of the first call: those of the prompt."""
        return int((self.calls_M == 0).sum())

    def sequence(self) -> torch.Tensor:
        """The request's tokens, int64 [M + 1]; the first is -1 where no target tokens were captured."""
        first = torch.tensor([-1]) if self.target_tokens_M is None else self.target_tokens_M[:1]
        rest = self.tokens_M if self.target_tokens_M is None else torch.cat([self.target_tokens_M[1:], self.tokens_M[-1:]])
        return torch.cat([first, rest])

    def dump(self, hidden_size: int) -> Dump:
        """The features as states of the target, in the order they were joined."""
        if self.features_MF is None:
            raise InputError(f"{self.path}: holds no features; capture with a server that shows them")
        states = self.features_MF.split(hidden_size, dim=1)  # type: ignore[no-untyped-call]
        return Dump(name=self.name, states=tuple(State(name=f"state {i}", x_NH=x) for i, x in enumerate(states)), tokens_N=self.sequence()[:-1])


_NEEDED = ("row_positions", "row_tokens", "row_calls", "draft_tokens", "step_positions", "step_tokens")


def is_capture(path: Path) -> bool:
    """Whether a file says of itself that it is a capture."""
    if path.suffix != ".safetensors":
        return False
    try:
        with safe_open(path, framework="pt") as file:
            return "row_positions" in file.keys()  # noqa: SIM118 (not a mapping)
    except (SafetensorError, OSError):
        return False


def read_capture(path: Path) -> Captured:
    """One file. Raises InputError for a file that is no whole capture."""
    try:
        with safe_open(path, framework="pt") as file:
            about = json.loads((file.metadata() or {}).get("eagle3_diag", "null"))
            found = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a mapping)
    except (SafetensorError, OSError, ValueError) as error:
        raise InputError(f"{path}: the capture is truncated or corrupt ({' '.join(str(error).split())[:160]}); capture again") from None
    missing = [name for name in _NEEDED if name not in found]
    if missing or not isinstance(about, dict) or about.get("schema") != SCHEMA:
        raise InputError(f"{path}: is no capture ({missing[0] + ' is missing' if missing else 'its description is missing or of another version'})")
    rows, calls = found["row_positions"].shape[0], found["draft_tokens"].shape[0]
    for name, tensor in found.items():
        if tensor.shape[0] != (rows if name.startswith("row_") else calls):
            raise InputError(f"{path}: {name} has {tensor.shape[0]} rows, expected {rows if name.startswith('row_') else calls}; capture again")
    if not rows or not calls or sorted(set(found["row_calls"].tolist())) != list(range(calls)):
        raise InputError(f"{path}: holds no draft, or drafts without rows; capture again")
    return Captured(
        path=path, about=about, positions_M=found["row_positions"], tokens_M=found["row_tokens"], calls_M=found["row_calls"],
        drafts_CK=found["draft_tokens"], step_positions_CK=found["step_positions"], step_tokens_CK=found["step_tokens"],
        target_tokens_M=found.get("row_target_tokens"), features_MF=found.get("row_features"), inputs_MH=found.get("row_inputs"),
        step_states_CKH=found.get("step_states"), step_outputs_CKH=found.get("step_outputs"), step_normed_CKH=found.get("step_normed"),
    )  # fmt: skip


def read_captures(path: Path) -> list[Captured]:
    """Every capture of a folder, or the one file. Raises InputError where there is none."""
    if path.is_file():
        return [read_capture(path)]
    found = sorted(path.glob("capture_*.safetensors")) if path.is_dir() else []
    if not found:
        raise InputError(f"{path}: holds no capture_*.safetensors; docs/eagle3_diag/capture.md says how a server writes them")
    return [read_capture(each) for each in found]
