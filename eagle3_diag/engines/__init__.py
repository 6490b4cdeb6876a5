"""Presets: how each serving engine would wire a checkpoint, by version and target, and how each trainer trained it.

One module per engine, a module per trainer in :mod:`eagle3_diag.engines.trained`. Every rule names the file that it was read from.
"""

from __future__ import annotations

from eagle3_diag.engines import sglang, tensorrt_llm, vllm
from eagle3_diag.engines.interface import Engine, Reason, Remark, Subject, Wired
from eagle3_diag.engines.versions import Version, parse

__all__ = ["ENGINES", "Engine", "Reason", "Remark", "Subject", "Version", "Wired", "parse"]

ENGINES: dict[str, Engine] = {engine.name: engine for engine in (sglang, vllm, tensorrt_llm)}
