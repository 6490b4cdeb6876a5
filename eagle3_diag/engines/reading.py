"""A checkpoint and its target read for the presets: the two config.json, the drafter's tensor headers, its vocabulary map."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from eagle3_diag.checkpoint import read_drafter
from eagle3_diag.checkpoint.fields import parse_json, read_bytes, read_config
from eagle3_diag.checkpoint.interface import DrafterCheckpoint
from eagle3_diag.engines import ENGINES
from eagle3_diag.engines.interface import Subject
from eagle3_diag.engines.trained import Trained, trained
from eagle3_diag.engines.trained.interface import Convention
from eagle3_diag.engines.versions import Version, parse
from eagle3_diag.errors import InputError
from eagle3_diag.target import TargetOutline, read_outline


def read_subject(
    drafter: Path, target: Path, *, trained_by: tuple[str, Version | None] | None = None, ids: Convention | None = None
) -> tuple[Subject, Trained]:
    """The checkpoint as every preset sees it, and how it was trained. No weight is read but ``d2t`` and ``t2d``.

    Raises:
        InputError: either directory is not what it should be, or the two do not belong together.
    """
    outline = read_outline(target)
    checkpoint, raw, found = read_trained(drafter, outline, trained_by=trained_by, ids=ids)
    config = checkpoint.config
    if config.target_hidden_size != outline.hidden_size:
        raise InputError(
            f"{drafter} takes states of width {config.target_hidden_size}, {target} has hidden_size {outline.hidden_size}, expected the same; give the "
            "target that the drafter was trained for."
        )
    highest = max(config.aux_layer_ids or (0,))
    if highest > outline.num_layers:
        raise InputError(
            f"{drafter / 'config.json'}: layer id {highest} lies beyond the target's {outline.num_layers} layers, expected at most that; give the target that the "
            "drafter was trained for."
        )
    stored = frozenset(checkpoint.source.names())
    return Subject(checkpoint=checkpoint, raw=raw, stored=stored, target=outline, trained=found.wiring), found


def read_trained(
    drafter: Path, target: TargetOutline | None, *, trained_by: tuple[str, Version | None] | None = None, ids: Convention | None = None
) -> tuple[DrafterCheckpoint, Mapping[str, Any], Trained]:
    """The checkpoint, its config.json and how it was trained; without a target, default layers stay unknown.

    Raises:
        InputError: the directory is not an EAGLE-3 drafter's.
    """
    fields, _ = read_config(drafter, "drafter")
    raw = fields.data
    checkpoint = read_drafter(drafter, instead=_with_aux_states(raw))
    stored = frozenset(checkpoint.source.names())
    return checkpoint, raw, trained(checkpoint, raw, stored, target, trained_by=trained_by, ids=ids)


def _with_aux_states(raw: Mapping[str, Any]) -> Mapping[str, Any]:
    """The configuration with aux states switched on: what a server makes of the switch is for its preset to say."""
    nested = raw.get("eagle_config")
    if isinstance(nested, dict) and nested.get("use_aux_hidden_state") is False:
        return {**raw, "eagle_config": {**nested, "use_aux_hidden_state": True}}
    return raw


def engine_spec(text: str) -> tuple[str, Version | None]:
    """``vllm==0.19.1`` or ``vllm`` as an engine's name and version.

    Raises:
        InputError: the engine or the version is not known.
    """
    name, separator, written = text.partition("==")
    name = name.strip().lower().replace("_", "-")
    aliases = {package: engine.name for engine in ENGINES.values() for package in engine.packages}
    name = aliases.get(name, name)
    if name not in ENGINES:
        raise InputError(f"{text}: no engine that is known, expected one of {', '.join(ENGINES)}, as in vllm==0.19.1")
    if not separator:
        return name, None
    return name, engine_version(name, written)


def engine_version(name: str, text: str) -> Version | None:
    """A version of an engine; ``main`` where the engine is known by it alone."""
    if text.strip() == ENGINES[name].newest:
        return None if text.strip() == "main" else parse(text)
    try:
        return parse(text)
    except ValueError as error:
        raise InputError(f"{name}=={text}: {error}") from None


def engines_in_snapshot(path: Path) -> list[tuple[str, Version | None]]:
    """The engines that an envspec snapshot lists, with their versions.

    Raises:
        InputError: it is no snapshot, or lists no engine.
    """
    data = parse_json(path, read_bytes(path))
    schema, distributions = data.get("schema"), data.get("distributions")
    if not isinstance(schema, str) or not schema.startswith("envspec/snapshot/") or not isinstance(distributions, list):
        raise InputError(f"{path} is no snapshot (schema {json.dumps(schema)}), expected one of `envspec capture`; capture the server's environment first.")
    by_package = {package.replace("_", "-"): engine.name for engine in ENGINES.values() for package in engine.packages}
    found: dict[str, Version | None] = {}
    for each in distributions:
        name = each.get("name") if isinstance(each, dict) else None
        version = each.get("version") if isinstance(each, dict) else None
        engine = by_package.get(name.lower().replace("_", "-")) if isinstance(name, str) else None
        if engine is not None and isinstance(version, str):
            found[engine] = engine_version(engine, version)
    if not found:
        raise InputError(f"{path} lists no {', '.join(by_package)}, expected a serving environment; name the engine with --engine and --engine-version.")
    return list(found.items())
