"""Drafters wired wrong on purpose: the config or the weights changed such that a server which does everything right serves the fault."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from eagle3_diag.drafter import quantise

Tensors = dict[str, torch.Tensor]
Config = dict[str, Any]


@dataclass(frozen=True)
class Fault:
    """``apply`` changes config and tensors in place; ``ids`` are the explanations any of which names it. ``listed``: a single fault of the catalogue, in float32."""

    name: str
    ids: tuple[str, ...]
    apply: Callable[[Config, Tensors], None]
    listed: bool = True
    dtype: str = "float32"


def _layers(*by: int) -> Callable[[Config, Tensors], None]:
    def change(config: Config, _: Tensors) -> None:
        ids = config["eagle_aux_hidden_state_layer_ids"]
        moved = by * len(ids) if len(by) == 1 else by
        config["eagle_aux_hidden_state_layer_ids"] = [i + d for i, d in zip(ids, moved, strict=True)]

    return change


def _order(*order: int) -> Callable[[Config, Tensors], None]:
    """Block j of the trained fc meets state ``order[j]``: the column blocks change places."""

    def change(_: Config, tensors: Tensors) -> None:
        blocks = tensors["fc.weight"].chunk(len(order), dim=1)
        tensors["fc.weight"] = torch.cat([blocks[order.index(i)] for i in range(len(order))], dim=1)

    return change


def _residual(config: Config, _: Tensors) -> None:
    config["norm_before_residual"] = not config["norm_before_residual"]


def _norms(_: Config, tensors: Tensors) -> None:
    a, b = "layers.0.input_layernorm.weight", "layers.0.hidden_norm.weight"
    tensors[a], tensors[b] = tensors[b], tensors[a]


def _rope(config: Config, _: Tensors) -> None:
    config["transformer_layer_config"]["rope_parameters"]["rope_theta"] = 500000.0


def _d2t(_: Config, tensors: Tensors) -> None:
    tensors["d2t"] = torch.zeros_like(tensors["d2t"])


def _embedding(_: Config, tensors: Tensors) -> None:
    table = tensors["embed_tokens.weight"]
    tensors["embed_tokens.weight"] = table[torch.randperm(table.shape[0], generator=torch.Generator().manual_seed(4))]


def _quantised(_: Config, tensors: Tensors) -> None:
    for name, tensor in tensors.items():
        if tensor.dim() == 2 and not name.startswith("embed"):
            tensors[name] = quantise(tensor, "fp8")


def _noise(_: Config, tensors: Tensors) -> None:
    """Other weights than trained: what an interrupted upload or another training step leaves."""
    generator = torch.Generator().manual_seed(9)
    for name, tensor in tensors.items():
        if tensor.dim() == 2 and not name.startswith("embed"):
            tensors[name] = tensor + 0.5 * tensor.std() * torch.randn(tensor.shape, generator=generator)


def _both(*changes: Callable[[Config, Tensors], None]) -> Callable[[Config, Tensors], None]:
    def change(config: Config, tensors: Tensors) -> None:
        for each in changes:
            each(config, tensors)

    return change


FAULTS = (
    Fault("right", ("as-trained",), lambda config, tensors: None),
    Fault("layers +1", ("layers-plus-1",), _layers(1)),
    Fault("layers -1", ("layers-minus-1",), _layers(-1)),
    Fault("fc blocks reversed", ("aux-order-reversed",), _order(2, 1, 0)),
    Fault("fc blocks rotated", ("aux-order-rotated",), _order(1, 2, 0)),
    Fault("residual flipped", ("residual-flipped",), _residual),
    Fault("norms swapped", ("norms-swapped",), _norms),
    Fault("RoPE base", ("rope-base-500000",), _rope),
    Fault("d2t zero", ("d2t-missing",), _d2t),
    Fault("wrong embedding", ("embedding-foreign",), _embedding),
    Fault("fp8 weights", ("drafter-quantised-fp8",), _quantised),
    Fault("layers +1 and residual flipped", ("layers-plus-1+residual-flipped",), _both(_layers(1), _residual), listed=False),
    Fault("first state one layer late", ("layers-3-4-6",), _layers(1, 0, 0), listed=False),
    Fault("weights with noise", ("unknown",), _noise, listed=False),
    Fault("right, served in bfloat16", ("as-trained",), lambda config, tensors: None, listed=False, dtype="bfloat16"),
    Fault("layers +1, served in bfloat16", ("layers-plus-1",), _layers(1), listed=False, dtype="bfloat16"),
)


def make(fault: Fault, drafter: Path, out: Path) -> Path:
    """A copy of a speculators drafter with a fault, its floating-point tensors in float32; the folder it lies in."""
    config = json.loads((drafter / "config.json").read_text())
    tensors = {
        name: tensor.float() if tensor.is_floating_point() else tensor for name, tensor in load_file(drafter / "model.safetensors").items()
    }
    if "embed_tokens.weight" not in tensors:
        raise ValueError(f"{drafter}: stores no embedding, so that it cannot be replaced")
    fault.apply(config, tensors)
    config["dtype"] = config["transformer_layer_config"]["dtype"] = "float32"
    config.pop("auto_map", None)
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, out / "model.safetensors", metadata={"format": "pt"})
    (out / "config.json").write_text(json.dumps(config, indent=1) + "\n")
    return out
