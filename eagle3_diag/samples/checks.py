"""What a sample must satisfy before it is evaluated: pure functions that return it or raise one sentence."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace

import torch

from eagle3_diag.errors import InputError
from eagle3_diag.samples import fields
from eagle3_diag.samples.interface import Sample

_CHUNK_ELEMENTS = 1 << 24
# RMSNorm sums squares in float32, whose largest number is 3.4e38: width 10^5 times (10^16)^2 still fits.
_MOST = 1e16


def with_prompt_length(sample: Sample, prompt_length: int) -> Sample:
    """The sample with tokens from ``prompt_length`` on as its response, whatever mask was stored (0 = every token)."""
    if prompt_length < 0:
        raise InputError(f"--prompt-length is {prompt_length}, expected 0 or more.")
    if prompt_length >= sample.length:
        raise InputError(
            f"{sample.name}: the response is empty (the sample has {sample.length} tokens, --prompt-length is {prompt_length}); "
            "give a smaller one, or leave it out where a loss mask is stored."
        )
    mask_N = torch.arange(sample.length) >= prompt_length
    return replace(sample, mask_N=mask_N, notes=tuple(note for note in sample.notes if note != fields.NO_MASK))


def check_response(sample: Sample) -> Sample:
    """At least one response token that a row can predict: token 0 is no row's label."""
    if not bool(sample.mask_N[1:].any()):
        raise InputError(
            f"{sample.name}: the response is empty (none of its {sample.length} tokens behind the first is marked by the loss "
            "mask); check how the mask was made, or give --prompt-length."
        )
    return sample


def check_finite(sample: Sample) -> Sample:
    """No NaN and no Inf in any state. Reads every stored state once, a bounded piece at a time."""
    found = [f"{what}: {count}" for what, state in _named_states(sample) if (count := _non_finite(state))]
    if found:
        raise InputError(
            f"{sample.name}: hidden states hold NaN or Inf ({', '.join(found)} of {sample.length} rows' values); make "
            "this sample again, and look at the precision it was recorded in."
        )
    return sample


def check_range(sample: Sample, dtype: torch.dtype) -> Sample:
    """Every state's values such that ``dtype`` holds them and RMSNorm can square them in float32.

    A residual stream may pass float16's 65504; cut to infinity it would give figures that look like those of bad weights.
    """
    most = min(torch.finfo(dtype).max, _MOST)
    for what, state in _named_states(sample):
        if state.element_size() == 1:  # eight-bit floats are small, and have no comparisons
            continue
        least, largest = (float(end) for end in torch.aminmax(state))
        size = max(-least, largest)
        if most < size < math.inf:  # NaN and Inf are check_finite's
            mend = "use --dtype bfloat16 or float32" if size <= _MOST else "no hidden state is that large: make this sample again"
            name = str(dtype).removeprefix("torch.")
            raise InputError(f"{sample.name}: {what} holds values of up to {size:.3g}, beyond {most:.3g}, the most {name} computes with; {mend}.")
    return sample


def check_tokens(sample: Sample, vocab_size: int) -> Sample:
    """Every token id inside the target's vocabulary."""
    outside_N = (sample.tokens_N < 0) | (sample.tokens_N >= vocab_size)
    if bool(outside_N.any()):
        position = int(outside_N.nonzero()[0])
        raise InputError(
            f"{sample.name}: {int(outside_N.sum())} of {sample.length} token ids lie outside the target's vocabulary "
            f"of {vocab_size} (first: {int(sample.tokens_N[position])} at position {position}); the sample was made "
            "with another tokenizer or target."
        )
    return sample


def fit_states(sample: Sample, *, num_aux: int, hidden_size: int, layer_inputs: Sequence[int] | None = None) -> Sample:
    """The sample with exactly the ``num_aux`` aux states of width ``hidden_size`` that the drafter takes.

    A state stored as one wide block is cut to pieces of ``hidden_size`` (a view). Where the sample says which states it
    holds (``layer_ids``) and the drafter which it takes (``layer_inputs``, in the order of fc's blocks), those are
    picked. Raises InputError when the widths do not fit, saying which number of states would.
    """
    aux = tuple(sample.aux_ANH)
    if len(aux) == 1 and aux[0].shape[1] != hidden_size:
        aux = tuple(fields.split(aux[0], hidden_size))
    layer_ids = sample.layer_ids
    if layer_inputs is not None and layer_ids is not None and tuple(layer_inputs) != layer_ids:
        missing = [i for i in layer_inputs if i not in layer_ids]
        if missing:
            raise InputError(
                f"{sample.name}: holds the inputs of layers {list(layer_ids)}, the drafter takes {list(layer_inputs)}; "
                f"record the samples again with layers {missing} among them."
            )
        aux = tuple(aux[layer_ids.index(i)] for i in layer_inputs)
        layer_ids = tuple(layer_inputs)
    width = sum(int(state.shape[1]) for state in aux)
    if len(aux) != num_aux or any(int(state.shape[1]) != hidden_size for state in aux):
        count, rest = divmod(width, hidden_size)
        fits = f"it would fit {count} aux states" if count and not rest else f"it is no multiple of {hidden_size}"
        raise InputError(
            f"{sample.name}: its aux states are {width} wide, the drafter takes {num_aux} states of {hidden_size} = "
            f"{num_aux * hidden_size}; {fits}, so these samples belong to another drafter or target."
        )
    if sample.final_NH is not None and int(sample.final_NH.shape[1]) != hidden_size:
        raise InputError(
            f"{sample.name}: its final hidden state is {int(sample.final_NH.shape[1])} wide, the target's width is "
            f"{hidden_size}; these samples belong to another target."
        )
    return replace(sample, aux_ANH=aux, layer_ids=layer_ids)


def _named_states(sample: Sample) -> Iterator[tuple[str, torch.Tensor]]:
    for i, state in enumerate(sample.aux_ANH):
        yield f"aux state {i}", state
    if sample.final_NH is not None and sample.final_NH is not sample.aux_ANH[-1]:
        yield "final state", sample.final_NH


def _non_finite(state_NH: torch.Tensor) -> int:
    rows = max(1, _CHUNK_ELEMENTS // max(1, int(state_NH.shape[1])))
    count = 0
    for start in range(0, int(state_NH.shape[0]), rows):
        piece = state_NH[start : start + rows]
        if piece.element_size() == 1:  # eight-bit floats have no comparisons
            piece = piece.to(torch.float32)
        # The sum is one pass without a temporary; it can overflow, so only a suspicious piece is counted.
        if not bool(torch.isfinite(piece.sum(dtype=torch.float32))):
            count += int((~torch.isfinite(piece)).sum())
    return count
