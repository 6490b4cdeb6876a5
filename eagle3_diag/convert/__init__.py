"""A drafter in another format, its wiring unchanged: decides what to write and under which names; writes nothing.

Formats differ in the names of tensors, in the place of keys, in what a layer id means and in which choices they can say at all. A choice
that the asked format cannot say is refused with the reason; nothing is changed to fit.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Protocol

from eagle3_diag.checkpoint.interface import DrafterCheckpoint
from eagle3_diag.config import DrafterConfig
from eagle3_diag.convert import eagle, model_optimizer, specforge, speculators, vllm
from eagle3_diag.convert.interface import ORIGIN, Config, Source
from eagle3_diag.engines.interface import STATIC_ROPE
from eagle3_diag.engines.trained import Trained
from eagle3_diag.errors import InputError
from eagle3_diag.wiring import Wiring

__all__ = ["FORMATS", "Plan", "TargetFormat", "differences", "plan"]


class TargetFormat(Protocol):
    """One format to write. Modules of this package each provide one."""

    @property
    def name(self) -> str: ...

    def refusals(self, source: Source) -> list[str]:
        """What the format cannot say about this drafter, each as the end of "cannot say ..."."""

    def config(self, source: Source) -> Config:
        """The config.json."""

    def rename(self, name: str, source: Source) -> str:
        """A tensor's name in this format, from its internal one."""


FORMATS: dict[str, TargetFormat] = {f.name: f for f in (speculators, specforge, eagle, vllm, model_optimizer)}


@dataclass(frozen=True, kw_only=True)
class Plan:
    """``config`` to write; ``restored``: the config.json that this very format had before it was converted, which goes first if it still
    says the same; ``tensors``: new name to the internal name it comes from; ``t2d``/``d2t``: whether a vocabulary map is written (made from
    the internal one); ``notes`` for the user."""

    config: Config
    restored: Config | None
    tensors: Mapping[str, str]
    d2t: bool
    t2d: bool
    notes: tuple[str, ...]


def plan(checkpoint: DrafterCheckpoint, raw: Mapping[str, Any], trained: Trained, to: str, num_layers: int | None = None) -> Plan:
    """What to write.

    Args:
        checkpoint: the drafter.
        raw: its config.json.
        trained: how it was trained.
        to: the format asked for.
        num_layers: of the target, where it is known.

    Raises:
        InputError: the format cannot say something about this drafter.
    """
    source = Source(checkpoint=checkpoint, raw=raw, trained=trained, num_layers=num_layers)
    chosen = FORMATS[to]
    refused = [*_common_refusals(source), *chosen.refusals(source)]
    if refused:
        raise InputError(f"{checkpoint.path}: the {to} format cannot say {'; nor '.join(refused)}.")
    config = chosen.config(source)
    notes = []
    saved, restored = raw.get(ORIGIN), None
    if isinstance(saved, dict) and saved.get("format") == to and isinstance(saved.get("config"), dict):
        restored = saved["config"]
    elif checkpoint.config.format != to:
        config[ORIGIN] = {"format": checkpoint.config.format, "config": {k: v for k, v in raw.items() if k != ORIGIN}}
        notes.append(f"the former config.json is kept under {ORIGIN!r}, which no engine reads")
    if checkpoint.wiring.rope is not None and checkpoint.wiring.rope != checkpoint.config.rope:
        notes.append("the RoPE of training is written, not the one that config.json was given at export")
    offsets = checkpoint.has("d2t")
    same_size = checkpoint.config.draft_vocab_size == checkpoint.config.vocab_size
    d2t = offsets or (to in ("specforge", "speculators") and not same_size) or (to == "specforge")
    tensors = {chosen.rename(name, source): name for name in checkpoint.tensors if name != "d2t" and not _tied(checkpoint, name)}
    return Plan(config=config, restored=restored, tensors=tensors, d2t=d2t, t2d=d2t and to != "model-optimizer", notes=tuple(notes))


def _tied(checkpoint: DrafterCheckpoint, name: str) -> bool:
    """Whether this is the head that is the embedding under another name."""
    return name == "lm_head.weight" and checkpoint.tensors.get("embed_tokens.weight") == checkpoint.tensors[name]


def _common_refusals(source: Source) -> list[str]:
    """What no format can say but the drafter's own."""
    w, config, out = source.trained.wiring, source.checkpoint.config, []
    inputs = w.aux_layer_inputs
    if inputs is not None and tuple(sorted(set(inputs))) != inputs:
        out.append(f"that fc's blocks take the states of layers {list(inputs)} in this order (every engine hands them on in depth order, each once)")
    if config.num_aux == 1:
        out.append("a single aux state (engines then leave fc out)")
    return out


def differences(before: tuple[DrafterConfig, Wiring], after: tuple[DrafterConfig, Wiring]) -> dict[str, tuple[Any, Any]]:
    """What differs and matters between two readings of one drafter: its dimensions, and its wiring as :mod:`eagle3_diag.check` compares it."""
    found = before[1].differences(after[1])
    if before[1].rope is None or before[1].rope.type in STATIC_ROPE:
        found.pop("position_offset", None)
    written = ("format", "architecture", "aux_layer_ids", "rope")
    pairs = ((f.name, getattr(before[0], f.name), getattr(after[0], f.name)) for f in fields(DrafterConfig) if f.name not in written)
    return found | {name: (mine, theirs) for name, mine, theirs in pairs if mine != theirs}
