"""Keys that the flat formats (EAGLE, SpecForge, Model-Optimizer, vLLM) share: at top level or under "
"``eagle_config``."""

from __future__ import annotations

from dataclasses import dataclass

from eagle3_diag.checkpoint.fields import Fields
from eagle3_diag.checkpoint.layout import ARCHITECTURES
from eagle3_diag.errors import InputError


@dataclass(frozen=True, kw_only=True)
class FlatKeys:
    """EAGLE-3's own keys of a flat configuration; None where absent."""

    architecture: str
    layer_ids: tuple[int, ...] | None
    num_aux: int | None
    norm_before_residual: bool
    norm_before_fc: bool
    fc_norm: bool
    norm_output: bool | None


def read_flat(config: Fields) -> FlatKeys:
    """EAGLE-3's keys, top level before ``eagle_config`` (vLLM's order for the layer ids).

    ``use_aux_norm`` is the older name of ``fc_norm``.

    Raises:
        InputError: a value of the wrong kind, an architecture that is no EAGLE-3 drafter's, or aux states switched off.
    """
    nested = config.table("eagle_config")
    if nested.boolean("use_aux_hidden_state", True) is False:
        raise InputError(
            f"{config.path}: eagle_config.use_aux_hidden_state is false, so the drafter takes the last state alone as EAGLE-1 does, expected an "
            "EAGLE-3 drafter; give one trained with aux hidden states."
        )

    def flag(*names: str) -> bool | None:
        values = [table.boolean(name, None) for name in names for table in (nested, config)]
        return next((v for v in values if v is not None), None)

    ids = config.integers("eagle_aux_hidden_state_layer_ids") or nested.integers("eagle_aux_hidden_state_layer_ids")
    return FlatKeys(
        architecture=read_architecture(config),
        layer_ids=ids or nested.integers("layer_ids"),
        num_aux=config.integer("num_aux_hidden_states", None) or nested.integer("num_aux_hidden_states", None),
        norm_before_residual=bool(flag("norm_before_residual")),
        norm_before_fc=bool(flag("norm_before_fc")),
        fc_norm=bool(flag("fc_norm", "use_aux_norm")),
        norm_output=flag("norm_output"),
    )


def read_architecture(config: Fields) -> str:
    """The first of ``architectures`` that is an EAGLE-3 drafter's; empty when the file names none.

    Raises:
        InputError: it names others only.
    """
    named = config.texts("architectures")
    known = next((a for a in named if a in ARCHITECTURES), None)
    if named and known is None:
        raise InputError(
            f"{config.path}: architectures names {', '.join(named[:3])}, expected an EAGLE-3 drafter ({', '.join(ARCHITECTURES[:2])}, ...); give a "
            "drafter's directory, or correct the name."
        )
    return known or ""
