"""``data_{i}.ckpt`` of EAGLE-1 and EAGLE-2 (``ge_data``): one feature per token, which is also the final state.

``input_ids`` [N], ``hidden_state`` [N, H], ``loss_mask`` [N]. The feature is Transformers' last ``hidden_states``
entry, so it lies *after* the final norm. An EAGLE-3 drafter with more than one aux state cannot be run on it; the width
check says so. Source: EAGLE ``eagle/ge_data/ge_data_all_*.py``.
"""

from __future__ import annotations

from eagle3_diag.samples import fields
from eagle3_diag.samples.containers import Record
from eagle3_diag.samples.interface import Sample


class EagleFormat:
    """See the module's docstring."""

    name = "eagle"

    def matches(self, record: Record) -> bool:
        return fields.present(record, "input_ids", "hidden_state") and not fields.present(record, "aux_hidden_state")

    def parse(self, record: Record) -> Sample:
        tokens_N = fields.tokens(record, "input_ids")
        length = int(tokens_N.shape[0])
        state_NH = fields.states(record, "hidden_state", length)
        masked = fields.present(record, "loss_mask")
        return Sample(
            name=record.path.name,
            format=self.name,
            tokens_N=tokens_N,
            mask_N=fields.mask(record, "loss_mask", length) if masked else fields.all_tokens(length),
            aux_ANH=(state_NH,),
            final_NH=state_NH,
            final_normed=True,
            notes=() if masked else (fields.NO_MASK,),
        )
