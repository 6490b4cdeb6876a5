"""The drafter's two vocabularies: their sizes, the embedding and LM head over them, and the map between them."""

from __future__ import annotations

from pathlib import Path

import torch

from eagle3_diag.checkpoint.fields import Fields
from eagle3_diag.checkpoint.names import StoredTensors, short_dtype
from eagle3_diag.checkpoint.tensors import missing_tensor
from eagle3_diag.errors import InputError


def take_vocabulary(
    path: Path, config: Fields, outer: Fields, tensors: StoredTensors, hidden: int, target_hidden: int, notes: list[str]
) -> tuple[int, int, bool]:
    """V, D and whether the drafter has its own LM head; takes embedding and head."""
    sizes = [tensors.shape(name) for name in ("t2d", "embed_tokens.weight")]
    vocab = config.integer("vocab_size", None) or next((s[0] for s in sizes if s), None)
    head_shape = tensors.shape("lm_head.weight")
    d2t_shape = tensors.shape("d2t")
    draft_vocab = outer.integer("draft_vocab_size", None) or config.integer("draft_vocab_size", None)
    if draft_vocab is None:
        # Every engine takes the whole vocabulary then, unless the tensors say otherwise.
        draft_vocab = next((s[0] for s in (d2t_shape, head_shape) if s), vocab)
    if vocab is None or draft_vocab is None:
        raise config.error("vocab_size", "the target's vocabulary size")
    if draft_vocab > vocab:
        raise InputError(
            f"{path}: the draft vocabulary has {draft_vocab} tokens, expected at most the target's {vocab}; correct draft_vocab_size or vocab_size "
            "in config.json."
        )
    if tensors.has("embed_tokens.weight"):
        tensors.take("embed_tokens.weight", (vocab, hidden), "[vocab_size, hidden_size]")
    elif target_hidden != hidden:
        # The target's rows do not fit a drafter of another width.
        raise missing_tensor(path, ("embed_tokens.weight",), tensors.stored.values())
    tied = config.boolean("tie_word_embeddings", None)
    if tied is None:
        tied = outer.boolean("tie_word_embeddings", False)
    if head_shape is not None:
        tensors.take("lm_head.weight", (draft_vocab, hidden), "[draft_vocab_size, hidden_size]")
        return vocab, draft_vocab, True
    if draft_vocab != vocab or (target_hidden != hidden and not tied):
        raise missing_tensor(path, ("lm_head.weight",), tensors.stored.values())
    if tied and "embed_tokens.weight" in tensors.taken:
        tensors.taken["lm_head.weight"] = tensors.taken["embed_tokens.weight"]
        notes.append("the LM head is tied to the drafter's own embedding.")
        return vocab, draft_vocab, True
    notes.append(
        "the checkpoint has no LM head; the target's serves"
        + (" (config.json ties it to the embedding, which is the target's too: the same if the target's head is tied)." if tied else ".")
    )
    return vocab, draft_vocab, False


def check_vocabulary_map(path: Path, tensors: StoredTensors, vocab: int, draft_vocab: int, notes: list[str]) -> None:
    """``d2t`` and ``t2d`` against each other and the vocabulary sizes; takes ``d2t`` where it is needed.

    ``d2t`` int [D]: target id = i + d2t[i]. ``t2d`` bool [V]: which target ids the drafter can express.
    """
    if not tensors.has("d2t"):
        if draft_vocab != vocab:
            raise missing_tensor(path, ("d2t",), tensors.stored.values())
        return
    d2t_name = tensors.stored["d2t"]
    for name, shape in (("d2t", (draft_vocab,)), ("t2d", (vocab,))):
        found = tensors.shape(name)
        if found is not None and found != shape:
            size = "draft_vocab_size" if name == "d2t" else "vocab_size"
            raise InputError(
                f"{path}: {tensors.stored[name]} has shape {list(found)}, expected {list(shape)} ({size}); config.json and weights do not belong "
                "together."
            )
    d2t_D = tensors.source.get(d2t_name)
    if d2t_D.is_floating_point() or d2t_D.dtype is torch.bool or d2t_D.is_complex():
        raise InputError(f"{path}: {d2t_name} is stored as {short_dtype(d2t_D.dtype)}, expected int64 offsets; write it again.")
    d2t_D = d2t_D.long()
    t2d_V: torch.Tensor | None = None
    if tensors.has("t2d"):
        t2d_V = tensors.source.get(tensors.stored["t2d"])
        if t2d_V.is_floating_point() or t2d_V.is_complex():
            raise InputError(f"{path}: {tensors.stored['t2d']} is stored as {short_dtype(t2d_V.dtype)}, expected bool; write it again.")
        t2d_V = t2d_V.bool()
        count = int(t2d_V.sum())
        if count != draft_vocab:
            raise InputError(
                f"{path}: t2d marks {count} target tokens, expected draft_vocab_size = {draft_vocab}; d2t and t2d were not made together: take "
                "both from the training run."
            )
    ids_D = d2t_D + torch.arange(draft_vocab)
    wrong = _wrong_ids(ids_D, vocab, t2d_V)
    if wrong:
        if not _wrong_ids(d2t_D, vocab, t2d_V):
            raise InputError(
                f"{path}: {d2t_name} holds target ids, expected offsets (target id = i + d2t[i]; {wrong}); store d2t - arange(len(d2t)) instead."
            )
        raise InputError(f"{path}: {d2t_name} is wrong: {wrong}; take d2t and t2d from the training run.")
    increasing = draft_vocab >= 64 and bool((d2t_D[1:] > d2t_D[:-1]).all())
    if increasing and t2d_V is None:
        notes.append("d2t rises at every entry, as target ids do and offsets seldom: it may have been stored absolute.")
    if draft_vocab != vocab or bool(d2t_D.any()):
        tensors.taken["d2t"] = d2t_name


def _wrong_ids(ids_D: torch.Tensor, vocab: int, t2d_V: torch.Tensor | None) -> str:
    """What is wrong with the target ids of the draft vocabulary; empty when nothing is."""
    outside = (ids_D < 0) | (ids_D >= vocab)
    if bool(outside.any()):
        i = int(outside.nonzero()[0])
        return f"{int(outside.sum())} of {ids_D.numel()} ids lie outside the vocabulary of {vocab}, the first is {int(ids_D[i])} at {i}"
    repeated = ids_D.numel() - int(torch.unique(ids_D).numel())
    if repeated:
        return f"{repeated} of {ids_D.numel()} ids occur twice"
    if t2d_V is not None:
        unmarked = ~t2d_V[ids_D]
        if bool(unmarked.any()):
            i = int(unmarked.nonzero()[0])
            return f"{int(unmarked.sum())} of {ids_D.numel()} ids are not marked in t2d, the first is {int(ids_D[i])} at {i}"
    return ""
