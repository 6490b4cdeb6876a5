"""What each trainer's logged per-step accuracy is, and the same figure from stored samples.

A number from a training log says little without its definition: which tokens were fed, which vocabulary labels come from, whether a row
must have been right so far, which rows count. One module per trainer; each was read in that trainer's source and is checked against the
package itself (``tests/peers``).
"""

from __future__ import annotations

from eagle3_diag.checkpoint.interface import DrafterCheckpoint
from eagle3_diag.errors import InputError
from eagle3_diag.trainers import eagle, model_optimizer, specforge, speculators
from eagle3_diag.trainers.interface import Definition, Trainer

__all__ = ["TRAINERS", "Definition", "Trainer", "get"]

TRAINERS: dict[str, Trainer] = {t.definition.name: t for t in (speculators.TRAINER, specforge.TRAINER, eagle.TRAINER, model_optimizer.TRAINER)}


def get(name: str, checkpoint: DrafterCheckpoint | None = None) -> Trainer:
    """The trainer of that name, of the version that wrote ``checkpoint`` where that matters and is written down.

    Raises InputError for a name that is not known.
    """
    if name not in TRAINERS:
        raise InputError(f"--trainer {name}: not a known trainer; known are {', '.join(TRAINERS)}")
    return speculators.of(checkpoint) if name == "speculators" and checkpoint is not None else TRAINERS[name]
