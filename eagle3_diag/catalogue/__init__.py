"""Every known way to wire a drafter wrong, as data: an :class:`Explanation` names the fields of the right wiring that it changes.

One module per family lists its explanations for the drafter and target at hand; what changes nothing for them is not listed. Priors are
relative weights: right wiring has about as much as all faults together (whoever asks has reason to), usual faults several times that of
rare ones, by how many of the public incidents (``Explanation.incidents``) and of the engines' known differences are of that kind.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from eagle3_diag.catalogue import features, norms, positions, steps, tokens, vocabulary, weights
from eagle3_diag.catalogue.context import Context, right_wiring
from eagle3_diag.catalogue.explanation import AS_TRAINED, UNKNOWN, Explanation, combine
from eagle3_diag.checkpoint.interface import DrafterCheckpoint
from eagle3_diag.target import Target
from eagle3_diag.wiring import Wiring

__all__ = ["AS_TRAINED", "UNKNOWN", "Catalogue", "Explanation", "catalogue", "combine", "right_wiring"]

FAMILIES = (features, tokens, norms, steps, positions, vocabulary, weights)
#: About the sum over the faults of a common drafter.
_RIGHT = 60.0


@dataclass(frozen=True, kw_only=True)
class Untestable:
    """An explanation whose states the samples do not hold: why, and the command that records them."""

    explanation: Explanation
    reason: str
    command: str


@dataclass(frozen=True, kw_only=True)
class Catalogue:
    """``explanations`` that can be predicted, right wiring first; ``untestable`` those that cannot from these samples."""

    right: Wiring
    explanations: tuple[Explanation, ...]
    untestable: tuple[Untestable, ...]

    def __iter__(self) -> Iterator[Explanation]:
        return iter(self.explanations)

    def get(self, name: str) -> Explanation:
        """The explanation of that id; KeyError where there is none."""
        return {each.id: each for each in self.explanations}[name]


def as_trained() -> Explanation:
    """Right wiring."""
    return Explanation(
        id=AS_TRAINED, title="Wired as trained", family="weights", prior=_RIGHT, mend="Nothing to mend in the wiring.",
        check="eagle3-diag probe asks the server for single rows.",
    )  # fmt: skip


def catalogue(
    checkpoint: DrafterCheckpoint, target: Target, held_layers: Sequence[int] | None, *, final_state: bool = True, final_normed: bool = False
) -> Catalogue:
    """What may be wrong with this drafter on this target.

    ``held_layers``: layer inputs whose states the samples hold (None: only those that the drafter takes). The embedding (layer input 0)
    is always at hand; ``final_state`` says whether the final state is stored, ``final_normed`` that it is after the target's norm, so
    that the last layer's output itself is not at hand.
    """
    context = Context(checkpoint, target)
    right = context.right
    layers = target.config.num_layers
    held = set(context.inputs if held_layers is None else held_layers) | {0}
    if final_state and not final_normed:
        held.add(layers)
    found, untestable, seen = [as_trained()], [], [right]
    for module in FAMILIES:
        for explanation in module.explanations(context):
            wiring = explanation.wiring(right)
            if wiring in seen:  # changes nothing here, or is one already listed by another name
                continue
            inputs = wiring.aux_layer_inputs or ()
            if explanation.path_dependent and context.checkpoint.config.num_layers > 1:
                continue  # the walk that such faults need is there for drafters of one layer
            if any(i > layers for i in inputs) or (min(inputs) < 0 and min(context.inputs) >= 0):
                continue  # the target has no such layer
            seen.append(wiring)
            missing = [] if wiring.features == "final" else sorted(set(inputs) - held)
            if missing:
                wanted = sorted({*context.inputs, *inputs})
                untestable.append(
                    Untestable(
                        explanation=explanation,
                        reason=f"the samples do not hold the inputs of layers {missing}",
                        command=f"eagle3-diag record --target {target.path} --samples PATH --out DIR --layers {','.join(map(str, wanted))}",
                    )
                )
            elif wiring.features == "final" and not final_state:
                untestable.append(
                    Untestable(
                        explanation=explanation,
                        reason="the samples do not hold the target's final state",
                        command=f"eagle3-diag record --target {target.path} --samples PATH --out DIR",
                    )
                )
            else:
                found.append(explanation)
    return Catalogue(right=right, explanations=tuple(found), untestable=tuple(untestable))
