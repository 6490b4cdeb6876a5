"""``*.safetensors`` with ``hidden_states`` [N, L, H] and ``token_ids`` [N]: vLLM's connector, and what is built on it.

The first L-1 states are the aux states, the last is the last layer's output *before* the final norm. Written by vLLM's
``extract_hidden_states`` method (``kv_connector/v1/example_hidden_states_connector.py``, any file name), kept by
speculators 0.5 and newer as ``hs_{i}.safetensors`` (``train/data.py``, ``ArrowDataset``; row i of the Arrow dataset
beside it holds the loss mask), and by this project's recorder with two more entries: ``loss_mask`` [N] and
``layer_ids`` [L] (indices of layer inputs, the last one the number of layers).

A ``.lock`` beside the file means that its writer has not finished (both vLLM and speculators hold a lock on it while
they write); that check is for every format and sits in :func:`eagle3_diag.samples.read_sample`.
"""

from __future__ import annotations

import re

import torch

from eagle3_diag.errors import InputError
from eagle3_diag.samples import arrow, fields
from eagle3_diag.samples.containers import Record
from eagle3_diag.samples.interface import Sample


class HiddenStatesFormat:
    """See the module's docstring.

    Samples are named ``recorded`` when the file names its layers, ``speculators-arrow`` when the mask came from a dataset's
    row, else ``vllm``.
    """

    name = "vllm"

    def matches(self, record: Record) -> bool:
        return fields.present(record, "hidden_states", "token_ids")

    def parse(self, record: Record) -> Sample:
        tokens_N = fields.tokens(record, "token_ids")
        length = int(tokens_N.shape[0])
        states_NLH = record.data["hidden_states"]
        if (
            not isinstance(states_NLH, torch.Tensor)
            or states_NLH.dim() != 3
            or states_NLH.shape[0] != length
            or states_NLH.shape[1] < 2
            or states_NLH.shape[2] == 0
            or not states_NLH.is_floating_point()
        ):
            raise InputError(
                f"{record.path}: 'hidden_states' is {fields.describe(states_NLH)}, expected floating-point [{length}, "
                "states, width] with at least two states, one row per token; make this sample again or leave it out."
            )
        layer_ids = _layer_ids(record, int(states_NLH.shape[1]))
        format_name = self.name if layer_ids is None else "recorded"
        notes: tuple[str, ...] = ()
        if fields.present(record, "loss_mask"):
            mask_N = fields.mask(record, "loss_mask", length)
        elif (found := _dataset_mask(record, tokens_N)) is not None:
            format_name, mask_N = "speculators-arrow", found
        else:
            mask_N, notes = fields.all_tokens(length), (fields.NO_MASK,)
        return Sample(
            name=record.path.name,
            format=format_name,
            tokens_N=tokens_N,
            mask_N=mask_N,
            aux_ANH=states_NLH[:, :-1].transpose(0, 1),
            final_NH=states_NLH[:, -1],
            final_normed=False,
            layer_ids=layer_ids,
            notes=notes,
        )


def _layer_ids(record: Record, count: int) -> tuple[int, ...] | None:
    """The aux states' ids; the last stored id is the final state's and says nothing new."""
    if not fields.present(record, "layer_ids"):
        return None
    ids = record.data["layer_ids"]
    if not isinstance(ids, torch.Tensor) or ids.dim() != 1 or ids.shape[0] != count or ids.is_floating_point():
        raise InputError(
            f"{record.path}: 'layer_ids' is {fields.describe(ids)}, expected {count} integers, one per state; make "
            "this sample again or leave it out."
        )
    return tuple(int(i) for i in ids.tolist())[:-1]


def _dataset_mask(record: Record, tokens_N: torch.Tensor) -> torch.Tensor | None:
    """The loss mask of row i, for ``hs_{i}.safetensors`` in or under a directory that holds a saved Arrow dataset."""
    number = re.fullmatch(r"hs_([0-9]{1,18})\.safetensors", record.path.name)
    if number is None:
        return None
    for directory in (record.path.parent, record.path.parent.parent):
        dataset = arrow.open_dataset(directory)
        if dataset is None:
            continue
        row = dataset.row(int(number[1]), ("input_ids", "loss_mask"))
        if row["input_ids"] != tokens_N.tolist():
            raise InputError(
                f"{record.path}: its tokens are not those of row {number[1]} of the dataset in {directory}; the two "
                "were made from different data, make the hidden states again."
            )
        if len(row["loss_mask"]) != tokens_N.shape[0]:
            raise InputError(
                f"{record.path}: row {number[1]} of the dataset in {directory} has a loss mask of "
                f"{len(row['loss_mask'])} entries for {tokens_N.shape[0]} tokens; prepare the dataset again."
            )
        return torch.tensor([bool(value) for value in row["loss_mask"]])
    return None
