"""``data_{i}.pt`` of speculators up to 0.6: one dict per file.

``input_ids`` [N], ``loss_mask`` [N], ``hidden_states``: a list of [N, H]; all but the last are the aux states in the
order of fc's blocks, the last is the last layer's output *before* the final norm. Source: speculators 0.6.0.2
``train/data.py`` (``standardize_data_v1``).
"""

from __future__ import annotations

from eagle3_diag.errors import InputError
from eagle3_diag.samples import fields
from eagle3_diag.samples.containers import Record
from eagle3_diag.samples.interface import Sample


class SpeculatorsFormat:
    """See the module's docstring."""

    name = "speculators"

    def matches(self, record: Record) -> bool:
        return fields.present(record, "input_ids", "hidden_states") and isinstance(
            record.data["hidden_states"], (list, tuple)
        )

    def parse(self, record: Record) -> Sample:
        tokens_N = fields.tokens(record, "input_ids")
        length = int(tokens_N.shape[0])
        stored = record.data["hidden_states"]
        if len(stored) < 2:
            raise InputError(
                f"{record.path}: 'hidden_states' holds {len(stored)} states, expected the aux states and the final "
                "one; make this sample again or leave it out."
            )
        states = tuple(fields.states_of(record, f"hidden_states[{i}]", state, length) for i, state in enumerate(stored))
        masked = fields.present(record, "loss_mask")
        return Sample(
            name=record.path.name,
            format=self.name,
            tokens_N=tokens_N,
            mask_N=fields.mask(record, "loss_mask", length) if masked else fields.all_tokens(length),
            aux_ANH=states[:-1],
            final_NH=states[-1],
            final_normed=False,
            notes=() if masked else (fields.NO_MASK,),
        )
