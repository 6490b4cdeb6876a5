"""Model-Optimizer's training log: true tokens fed, labels over the draft vocabulary, unconditional, and one norm more than servers apply.

Two things read otherwise than they are. Its ``forward`` moves the fed-back state one row to the right instead of advancing positions:
its row r at step k is the draft begun at row r-k, and its attention mask (``get_ttt_msk_func``) shows that row exactly the keys of rows
<= r-k and of its own earlier steps, at position r. So it is the same computation as everybody's, numbered otherwise.

And since 0.41 (not up to 0.40, which put an identity there) its first layer is Transformers' own decoder layer, which applies
``input_layernorm`` to the state before attention, where a hook then applies ``hidden_norm`` to the result: training sees
hidden_norm(input_layernorm(h)), servers compute hidden_norm(h).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from eagle3_diag.acceptance import StepCounts
from eagle3_diag.drafter import Drafter
from eagle3_diag.rollout import target_labels
from eagle3_diag.trainers.counting import teacher_forced
from eagle3_diag.trainers.interface import Definition


class ModelOptimizer:
    """``train_acc[0][k]``."""

    definition = Definition(
        name="model-optimizer",
        metric="train_acc of step k",
        feed="true",
        labels="draft-vocab",
        requires_prefix=False,
        mask_offset=1,
        position_base=0,
        averaged="batches",
        source="nvidia-modelopt 0.47.0 torch/speculative/plugins/{hf_eagle,modeling_eagle}.py, torch/speculative/utils.py",
        notes=(
            "since 0.41 its first layer normalises the state with input_layernorm, then hidden_norm (servers: hidden_norm alone); so does this figure",
            "not with eagle_mix_hidden_states, which replaces states at random",
        ),
    )

    def count(
        self,
        drafter: Drafter,
        tokens_N: torch.Tensor,
        aux: Sequence[torch.Tensor],
        state_NH: torch.Tensor,
        mask_N: torch.Tensor,
        steps: int,
    ) -> StepCounts:
        labels_N = target_labels(drafter, state_NH, mask_N, drafter.ids_D)
        return teacher_forced(drafter.rewired(hidden_norm="both"), tokens_N, aux, labels_N, mask_N, offset=1, steps=steps)


TRAINER = ModelOptimizer()
