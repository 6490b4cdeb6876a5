"""How a checkpoint was trained: its format's reading, its trainer's rules, and what the user says about both."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from eagle3_diag.checkpoint.interface import DrafterCheckpoint
from eagle3_diag.engines.trained import eagle, model_optimizer, specforge, speculators
from eagle3_diag.engines.trained.interface import Convention, Facts, TrainerPreset
from eagle3_diag.engines.versions import Version
from eagle3_diag.target import TargetOutline
from eagle3_diag.wiring import Wiring

__all__ = ["TRAINERS", "Trained", "trained"]

TRAINERS: dict[str, TrainerPreset] = {t.name: t for t in (speculators, specforge, model_optimizer, eagle)}


@dataclass(frozen=True, kw_only=True)
class Trained:
    """The wiring that counts as right; ``trainer`` None when the format names none; ``frozen_embedding`` as the trainer's module says."""

    wiring: Wiring
    trainer: str | None
    version: str | None
    convention: Convention
    ids: tuple[int, ...] | None
    frozen_embedding: bool | None
    source: str
    assumptions: tuple[str, ...]


def trained(
    checkpoint: DrafterCheckpoint,
    raw: Mapping[str, Any],
    stored: frozenset[str],
    target: TargetOutline | None,
    *,
    trained_by: tuple[str, Version | None] | None = None,
    ids: Convention | None = None,
) -> Trained:
    """The wiring of training: layer inputs in the order in which the config writes the ids, RoPE and eps filled in.

    Args:
        checkpoint: the drafter.
        raw: its config.json.
        stored: its tensors' names as stored.
        target: the target's outline; its number of layers gives the default layers, which stay unknown without it.
        trained_by: trainer and version where the user says them; else the trainer whose format it is.
        ids: what the written ids mean where the user says it; else what the trainer means by them.
    """
    config = checkpoint.config
    name, version = trained_by if trained_by is not None else (config.format if config.format in TRAINERS else None, None)
    preset = TRAINERS[name] if name else None
    assumptions: list[str] = []
    changes: dict[str, Any] = {"rope": checkpoint.wiring.rope or config.rope, "eps": config.rms_norm_eps}
    if preset is not None:
        rules = preset.rules(Facts(checkpoint=checkpoint, raw=raw, stored=stored, told=trained_by is not None), version)
        changes |= rules.changes
        assumptions += rules.assumptions
        if trained_by is None:
            assumptions.insert(0, f"trained by {name}, whose format this is; if not, say --trained-by.")
    else:
        assumptions.append("no trainer's own format (read as vLLM reads it); say --trained-by TRAINER to apply a trainer's rules.")
    convention: Convention = ids or (preset.convention if preset else "inputs")
    written = tuple((config.aux_layer_ids or ())[: config.num_aux]) or None
    if name == "eagle" and trained_by is not None:
        written = None
    inputs: tuple[int, ...]
    if written is None:
        inputs = (preset or speculators).defaults(target.num_layers) if target is not None else ()
        if target is None:
            assumptions.append("config.json gives no layer ids: the trainer's defaults.")
        elif len(inputs) != config.num_aux:
            inputs = ()
            assumptions.append(f"config.json gives no layer ids, and the usual three do not fit an fc of {config.num_aux} states: unknown which were trained.")
        else:
            assumptions.append(f"config.json gives no layer ids: trained on the inputs of layers {', '.join(map(str, inputs))}, the trainer's defaults.")
    else:
        inputs = tuple(i + (convention == "outputs") for i in written)
        if ids is None:
            assumptions.append(f"layer ids {list(written)} mean {convention} of layers, as {name or 'vLLM'} means them; if not, say --ids.")
    return Trained(
        wiring=replace(checkpoint.wiring, **changes, aux_layer_inputs=inputs or None),
        trainer=name,
        version=str(version) if version is not None else None,
        convention=convention,
        ids=written,
        frozen_embedding=preset.frozen_embedding(raw) if preset else None,
        source=preset.source if preset else "",
        assumptions=tuple(assumptions),
    )
