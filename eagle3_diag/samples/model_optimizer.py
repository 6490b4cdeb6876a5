"""``{conversation_id}.pt`` of NVIDIA Model-Optimizer's offline training: one dict per file.

``input_ids`` [N], ``aux_hidden_states`` [N, A*H], ``hidden_states`` [N, H], ``conversation_id``, and in newer dumps
``loss_mask`` [N] (absent: every token counts, as in the trainer) and ``hidden_states_prenorm``. Dumps made through
Transformers or TensorRT-LLM hold the final state *after* the norm; the script that went through vLLM wrote it *before*
the norm without saying so until the flag came. A file without the flag is therefore read as after the norm, as the
trainer reads it, and marked uncertain for the check against the tokens to settle. Source: Model-Optimizer
``examples/speculative_decoding/collect_hidden_states/`` and ``modelopt/torch/speculative/eagle/utils.py``.
"""

from __future__ import annotations

import torch

from eagle3_diag.errors import InputError
from eagle3_diag.samples import fields
from eagle3_diag.samples.containers import Record
from eagle3_diag.samples.interface import Sample


class ModelOptimizerFormat:
    """See the module's docstring."""

    name = "model-optimizer"

    def matches(self, record: Record) -> bool:
        return fields.present(record, "input_ids", "aux_hidden_states", "hidden_states")

    def parse(self, record: Record) -> Sample:
        tokens_N = fields.tokens(record, "input_ids")
        length = int(tokens_N.shape[0])
        final_NH = fields.states(record, "hidden_states", length)
        aux_NW = fields.states(record, "aux_hidden_states", length)
        flag = record.data.get("hidden_states_prenorm")
        if isinstance(flag, torch.Tensor) and flag.numel() == 1:
            flag = bool(flag)
        if flag is not None and not isinstance(flag, bool):
            raise InputError(
                f"{record.path}: 'hidden_states_prenorm' is {fields.describe(flag)}, expected true or false; make this "
                "sample again or leave it out."
            )
        masked = fields.present(record, "loss_mask")
        return Sample(
            name=record.path.name,
            format=self.name,
            tokens_N=tokens_N,
            mask_N=fields.mask(record, "loss_mask", length) if masked else fields.all_tokens(length),
            aux_ANH=fields.split(aux_NW, int(final_NH.shape[1])),
            final_NH=final_NH,
            final_normed=not flag,
            final_certain=flag is not None,
            notes=() if masked else (fields.NO_MASK,),
        )
