"""Samples made with a running target: ``hs_{i}.safetensors``, one at a time, each whole or not there.

A file holds ``hidden_states`` [n, L, H], ``token_ids`` [n], ``loss_mask`` [n] (1 = written by the target) and ``layer_ids`` [L]: indices of layer
inputs (0 = embedding), the last of them the number of layers, whose state is the last layer's output *before* the final norm.
:mod:`eagle3_diag.samples.hidden_states` reads it. ``recording.json`` beside them says how they were made, so that an interrupted recording
goes on where it was and never with other settings.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import torch
from safetensors.torch import save_file

from eagle3_diag.checkpoint import default_aux_layer_inputs
from eagle3_diag.errors import InputError
from eagle3_diag.rollout import target_argmax, target_states
from eagle3_diag.samples import read_sample
from eagle3_diag.target import Target

SCHEMA = "eagle3-diag/recording/1"
MANIFEST = "recording.json"
# Positions on which the recorded final state is held against the target's own choice, and the share that must agree.
_CHECKED = 64
_AGREE = 0.9


@dataclass(frozen=True, kw_only=True)
class Settings:
    """How to record. ``layer_inputs`` ascending, the last the number of layers; ``store`` None keeps the compute dtype."""

    layer_inputs: tuple[int, ...]
    max_new_tokens: int = 256
    temperature: float = 0.0
    seed: int = 0
    ignore_end: bool = False
    store: torch.dtype | None = None


@dataclass(frozen=True, kw_only=True)
class Job:
    """One sample to make: a prompt to continue, or (``mask`` given) a stored sequence to run again as it is."""

    tokens: tuple[int, ...]
    mask: tuple[bool, ...] | None = None
    where: str = ""


class Runner(Protocol):
    """What :class:`eagle3_diag.running_target.RunningTarget` offers."""

    num_layers: int
    limit: int | None

    def answer(self, prompt: Sequence[int], *, max_new_tokens: int, temperature: float, seed: int, ignore_end: bool = False) -> list[int]: ...

    def states(self, tokens: Sequence[int], layer_inputs: Sequence[int]) -> torch.Tensor: ...

    def choices(self, tokens: Sequence[int]) -> torch.Tensor: ...


@dataclass
class Recorded:
    """What a recording did: samples written now, samples that were there, tokens in both; ``skipped`` sentences about jobs left out."""

    written: int = 0
    present: int = 0
    tokens: int = 0
    bytes: int = 0
    skipped: list[str] = field(default_factory=list)


def usual_layer_inputs(num_layers: int) -> tuple[int, ...]:
    """The states that trainers capture when nobody says otherwise, each with its neighbours, and the final one."""
    return around(default_aux_layer_inputs("speculators", num_layers), num_layers)


def around(layer_inputs: Sequence[int], num_layers: int) -> tuple[int, ...]:
    """These layer inputs, one before and one after each (so that a server one layer off can be told), and the final state."""
    near = {i + step for i in layer_inputs for step in (-1, 0, 1)}
    return tuple(sorted({i for i in near if 1 <= i <= num_layers} | {num_layers}))


def check_layer_inputs(layer_inputs: Sequence[int], num_layers: int) -> tuple[int, ...]:
    """Ascending, without repeats, the final state added. Raises InputError for a layer that the target has not."""
    outside = [i for i in layer_inputs if not 0 <= i <= num_layers]
    if outside:
        raise InputError(
            f"--layers {outside[0]}: the target has {num_layers} layers, so layer inputs are 0 (the embedding) to {num_layers} (the final state); "
            "an id that means the output of layer i is the input of layer i + 1"
        )
    chosen = tuple(sorted({*layer_inputs, num_layers}))
    if len(chosen) < 2:
        raise InputError(f"--layers {num_layers}: is the final state alone, which every sample holds anyway; name at least one layer input below it")
    return chosen


def record(
    runner: Runner, target: Target, jobs: Iterable[Job], settings: Settings, out: Path, *, source: str, progress: Callable[[int], None] | None = None
) -> Recorded:
    """Make every sample that is not there yet. ``source`` says what the jobs come from; it must be the same when a recording is taken up again.

    Raises InputError when ``out`` holds another recording, is being written by another process or cannot be written, and when the target's norm
    and head do not turn the recorded final state into the target's own choice.
    """
    done, checked = Recorded(), False
    with _only_one(out):
        _take_up(out, _manifest(target, settings, source))
        for i, job in enumerate(jobs):
            path = out / f"hs_{i}.safetensors"
            if (count := _present(path, job, settings)) is not None:
                done.present += 1
                done.tokens += count
            elif (reason := _too_long(runner, job)) is not None:
                done.skipped.append(reason)
            else:
                tokens, mask = _sequence(runner, job, settings, i)
                if len(tokens) < 2:
                    done.skipped.append(f"{job.where}: prompt and answer are {len(tokens)} token, a drafter needs 2; it was left out")
                    continue
                states_NLH = runner.states(tokens, settings.layer_inputs)
                if not checked:
                    _check(runner, target, tokens, states_NLH[:, -1])
                    checked = True
                _write(path, tokens, mask, states_NLH, settings)
                done.written += 1
                done.tokens += len(tokens)
            done.bytes += path.stat().st_size if path.exists() else 0
            if progress is not None:
                progress(done.tokens)
    if not done.written and not done.present:
        raise InputError(done.skipped[0] if done.skipped else f"{source}: there is nothing to record")
    return done


def _too_long(runner: Runner, job: Job) -> str | None:
    room = 0 if job.mask is not None else 1
    if runner.limit is None or len(job.tokens) + room <= runner.limit:
        return None
    return f"{job.where}: {len(job.tokens)} tokens are more than the target's {runner.limit} positions hold; it was left out"


def _sequence(runner: Runner, job: Job, settings: Settings, index: int) -> tuple[list[int], list[bool]]:
    tokens = list(job.tokens)
    if job.mask is not None:
        return tokens, list(job.mask)
    seed = int.from_bytes(hashlib.sha256(f"{settings.seed}:{index}".encode()).digest()[:7], "big")  # the same whether taken up again or not
    answer = runner.answer(
        tokens, max_new_tokens=settings.max_new_tokens, temperature=settings.temperature, seed=seed, ignore_end=settings.ignore_end
    )
    return tokens + answer, [False] * len(tokens) + [True] * len(answer)


def _check(runner: Runner, target: Target, tokens: Sequence[int], final_NH: torch.Tensor) -> None:
    """The recorded final state, through the norm and head that the other commands read, must name the target's own next tokens."""
    part = list(tokens[:_CHECKED])
    state_NH = target_states(target, final_NH[: len(part)], False, device=torch.device("cpu"), dtype=torch.float32)
    same = int((target_argmax(target.head(), state_NH) == runner.choices(part)).sum())
    if same < _AGREE * len(part):
        raise InputError(
            f"{target.path}: the target chooses the token that its norm and LM head give for the recorded final state at {same} of {len(part)} positions "
            "only; it normalises or scales in a way that is not known here, so samples of it would mean nothing"
        )


def _present(path: Path, job: Job, settings: Settings) -> int | None:
    """How many tokens a sample that is there already holds; None where it has to be made. Raises InputError where it is another job's."""
    if not path.exists():
        return None
    sample = read_sample(path)
    tokens = tuple(sample.tokens_N.tolist())
    fits = tokens == job.tokens if job.mask is not None else tokens[: len(job.tokens)] == job.tokens
    if not fits or sample.layer_ids != settings.layer_inputs[:-1]:
        raise InputError(f"{path}: was recorded from another text; give an empty folder, or delete this one's recording")
    return len(tokens)


def _write(path: Path, tokens: Sequence[int], mask: Sequence[bool], states_NLH: torch.Tensor, settings: Settings) -> None:
    stored = states_NLH if settings.store is None else states_NLH.to(settings.store)
    if not bool(torch.isfinite(stored.sum(dtype=torch.float32))) and not bool(torch.isfinite(stored).all()):
        what = "the target computes NaN or Inf" if not bool(torch.isfinite(states_NLH).all()) else f"states do not fit into {_name(stored.dtype)}"
        raise InputError(f"{path}: {what}; use --dtype float32 or bfloat16, and --store-dtype bfloat16 or float32")
    tensors = {
        "hidden_states": stored.contiguous(),
        "token_ids": torch.tensor(tokens, dtype=torch.int64),
        "loss_mask": torch.tensor(mask, dtype=torch.int64),
        "layer_ids": torch.tensor(settings.layer_inputs, dtype=torch.int64),
    }
    save_whole(tensors, path)


def save_whole(tensors: Mapping[str, torch.Tensor], path: Path, metadata: Mapping[str, str] | None = None) -> None:
    """A safetensors file that is whole or not there: written under a hidden name, then moved into place.

    The same tensors give the same bytes as long as ``metadata`` has one entry (safetensors writes several in any order). Raises InputError where it cannot be written.
    """
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".part", dir=path.parent)
    os.close(handle)
    temporary = Path(name)
    try:
        save_file(dict(tensors), temporary, metadata=dict(metadata or {"format": "pt"}))
        mask = os.umask(0)
        os.umask(mask)
        temporary.chmod(0o666 & ~mask)
        temporary.replace(path)
    except Exception as error:  # safetensors raises its own error for a full disk
        reason = getattr(error, "strerror", None) or " ".join(str(error).split())[:200]
        raise InputError(f"{path}: could not be written ({reason}); free space or name another folder") from None
    finally:
        with suppress(OSError):
            temporary.unlink()


def _name(dtype: torch.dtype | None) -> str | None:
    return None if dtype is None else str(dtype).removeprefix("torch.")


def _manifest(target: Target, settings: Settings, source: str) -> dict[str, Any]:
    return {
        "schema": SCHEMA,
        "target_config_sha256": target.config_sha256,
        "source": source,
        "layer_inputs": list(settings.layer_inputs),
        "max_new_tokens": settings.max_new_tokens,
        "temperature": settings.temperature,
        "seed": settings.seed,
        "ignore_end": settings.ignore_end,
        "store": _name(settings.store),
    }


def _take_up(out: Path, manifest: dict[str, Any]) -> None:
    """Write the manifest, or see that the recording in ``out`` was begun with the same one."""
    path = out / MANIFEST
    if not path.exists():
        found = sorted(each.name for each in out.glob("hs_*.safetensors"))
        if found:
            raise InputError(f"{out}: holds {found[0]} of another recording; give a folder of its own")
        path.write_text(json.dumps(manifest, indent=2) + "\n", "utf-8")
        return
    try:
        begun = json.loads(path.read_text("utf-8"))
    except ValueError:
        begun = None
    if not isinstance(begun, dict):
        raise InputError(f"{path}: is no recording's description; give a folder of its own")
    different = [key for key in manifest if begun.get(key) != manifest[key]]
    if different:
        key = different[0]
        raise InputError(
            f"{out}: holds a recording made with {key.replace('_', ' ')} {begun.get(key)}, now it is {manifest[key]}; give a folder of its own, or the "
            "same options to go on with it"
        )
    for leftover in out.glob(".hs_*.part"):
        with suppress(OSError):
            leftover.unlink()


@contextmanager
def _only_one(out: Path) -> Iterator[None]:
    """Hold the folder against a second recording; made where it is missing."""
    try:
        out.mkdir(parents=True, exist_ok=True)
        lock = (out / ".recording.lock").open("w")
    except OSError as error:
        raise InputError(f"--out {out}: cannot be written to ({error.strerror}); name another folder") from None
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise InputError(f"--out {out}: another process is recording into it; wait for it, or give another folder") from None
        yield
