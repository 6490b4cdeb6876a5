"""``rows_{a}-{b}/data_{i}.ckpt`` (or ``.ckpt.gz``) of SpecForge's offline training: one dict per file.

``input_ids`` [N], ``loss_mask`` [N], ``aux_hidden_state`` [1, N, A*H] in the order of fc's blocks, ``hidden_state`` [1,
N, H] *after* the final norm: the trainer applies the head to it as it is. Source: SpecForge
``scripts/prepare_hidden_states.py`` (``DataPoint``) and ``specforge/data/preprocessing.py`` (``OfflineEagle3Dataset``).
"""

from __future__ import annotations

from eagle3_diag.samples import fields
from eagle3_diag.samples.containers import Record
from eagle3_diag.samples.interface import Sample


class SpecForgeFormat:
    """See the module's docstring."""

    name = "specforge"

    def matches(self, record: Record) -> bool:
        return fields.present(record, "input_ids", "aux_hidden_state")

    def parse(self, record: Record) -> Sample:
        tokens_N = fields.tokens(record, "input_ids")
        length = int(tokens_N.shape[0])
        aux_NW = fields.states(record, "aux_hidden_state", length)
        final_NH = fields.states(record, "hidden_state", length) if fields.present(record, "hidden_state") else None
        masked = fields.present(record, "loss_mask")
        return Sample(
            name=record.path.name,
            format=self.name,
            tokens_N=tokens_N,
            mask_N=fields.mask(record, "loss_mask", length) if masked else fields.all_tokens(length),
            aux_ANH=fields.split(aux_NW, int(aux_NW.shape[1] if final_NH is None else final_NH.shape[1])),
            final_NH=final_NH,
            final_normed=True,
            notes=() if masked else (fields.NO_MASK,),
        )
