"""A converted drafter on disk: written beside its place, read back, compared, then moved there whole."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

import torch
from safetensors.torch import save_file

from eagle3_diag.checkpoint.interface import DrafterCheckpoint
from eagle3_diag.convert import Plan
from eagle3_diag.errors import InputError

_WEIGHTS = (".safetensors", ".bin", ".pt", ".pth", ".ckpt", ".gguf", ".py", ".lock", ".part")


def check_place(out: Path, drafter: Path) -> None:
    """Raise InputError where the drafter cannot be written: something is there, or it would lie in the input."""
    where, source = out.resolve(), drafter.resolve()
    if where == source or where.is_relative_to(source) or source.is_relative_to(where):
        raise InputError(f"{out}: is the drafter's own directory, in it or around it; name another, the input is never written to")
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise InputError(f"{out}: is there already, expected a new directory or an empty one; name another")
    if not where.parent.is_dir():
        raise InputError(f"{out}: there is no folder {where.parent}; make it, or name another")
    if not os.access(where.parent, os.W_OK):
        raise InputError(f"{out}: its folder {where.parent} cannot be written to; name a directory elsewhere")


def tensors(checkpoint: DrafterCheckpoint, plan: Plan) -> Mapping[str, torch.Tensor]:
    """The tensors to write, dtype and bytes as stored; the vocabulary map made from the internal one, which is the same numbers."""
    out = {new: checkpoint.get(old).contiguous() for new, old in plan.tensors.items()}
    if plan.d2t:
        size, vocab = checkpoint.config.draft_vocab_size, checkpoint.config.vocab_size
        stored = checkpoint.get("d2t") if checkpoint.has("d2t") else torch.zeros(size, dtype=torch.int64)
        out["d2t"] = stored.contiguous()
        if plan.t2d:
            out["t2d"] = torch.zeros(vocab, dtype=torch.bool).index_fill_(0, torch.arange(size) + stored.long(), True)
    return out


def write(checkpoint: DrafterCheckpoint, plan: Plan, out: Path, verify: Callable[[Path], None]) -> None:
    """Write ``out`` whole or not at all; ``verify`` looks at the finished directory before it is moved into place.

    Raises:
        InputError: it cannot be written (disk full, folder gone), or ``verify`` raises it.
    """
    place = out.resolve()
    staged = Path(tempfile.mkdtemp(prefix=f".{place.name[:100]}.", suffix=".part", dir=place.parent))
    try:
        _fill(checkpoint, plan, staged)
        _settle(plan, staged, verify)
        mask = os.umask(0)
        os.umask(mask)
        staged.chmod(0o777 & ~mask)
        if place.is_dir():
            place.rmdir()
        staged.rename(place)
    except OSError as error:
        raise InputError(f"{out}: could not be written ({(error.strerror or str(error)).lower()}); free space or name another directory") from None
    finally:
        with suppress(OSError):
            shutil.rmtree(staged)


def _settle(plan: Plan, staged: Path, verify: Callable[[Path], None]) -> None:
    """Write config.json: as it once was in this format if that still says the same, else made anew."""
    for config in (plan.restored, plan.config):
        if config is None:
            continue
        with (staged / "config.json").open("w", encoding="utf-8") as file:
            file.write(json.dumps(config, indent=2) + "\n")
            file.flush()
            os.fsync(file.fileno())
        try:
            verify(staged)
        except InputError:
            if config is plan.config:
                raise
        else:
            return


def _fill(checkpoint: DrafterCheckpoint, plan: Plan, staged: Path) -> None:
    save_file(dict(tensors(checkpoint, plan)), staged / "model.safetensors", metadata={"format": "pt"})
    for each in sorted(checkpoint.path.iterdir()):  # a tokenizer, a licence, a model card
        known = each.name == "config.json" or each.name.endswith((*_WEIGHTS, ".index.json"))
        if each.is_file() and not each.is_symlink() and not known and not each.name.startswith("."):
            shutil.copyfile(each, staged / each.name)
    for each in staged.iterdir():
        with each.open("rb") as file:
            os.fsync(file.fileno())
