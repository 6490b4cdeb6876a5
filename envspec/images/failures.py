"""What went wrong in a build, in one sentence: what, where, what to do."""

from __future__ import annotations

import re
from typing import Final

from envspec.errors import EnvspecError
from envspec.images.engine import EngineError, engine_words
from envspec.images.progress import Progress

__all__ = ["CheckFailed", "explain", "hash_mismatch", "lost"]


class CheckFailed(EnvspecError):
    """The built environment is not what the lock says: exit code 1. ``report`` is what the check inside the build printed."""

    exit_code = 1

    def __init__(self, report: str) -> None:
        super().__init__("the build failed its own check: the environment is not what the lock says; nothing was tagged")
        self.report = report


_NO_SPACE: Final = re.compile(r"no space left on device|\(os error 28\)|disk quota exceeded", re.IGNORECASE)
_UV_HASH: Final = re.compile(r"Hash mismatch for `([^`]+)`\s+Expected:\s+((?:\S+:[0-9a-f]+\s+)+)Computed:\s+(\S+:[0-9a-f]+)")
_PIP_HASH: Final = re.compile(r"^\s*(\S+)(?: \(?from .*?)?:\n\s*Expected (sha256 [0-9a-f]+)(?:\n\s*Expected or .*)*\n\s*Got\s+([0-9a-f]+)", re.MULTILINE)
_BASE: Final = re.compile(
    r"failed to resolve source metadata|pull access denied|manifest unknown|manifest for \S+ not found|no such image|failed to authorize|initializing source docker",
    re.IGNORECASE,
)
_NO_WHEEL: Final = re.compile(r"[^\n]*(?:has no usable wheels|no (?:usable )?wheels? (?:with|for) a matching|has no wheels|source distribution was? ?n.t|building source distributions is disabled)[^\n]*", re.IGNORECASE)
_LOST: Final = re.compile(r"no active session for|the client connection is closing|transport is closing|error reading from server: EOF|session healthcheck failed", re.IGNORECASE)
_STATUS: Final = re.compile(r"(?:exit code: |exit status |exited with code |did not complete successfully: exit code: )(\d+)", re.IGNORECASE)
_KILLED: Final = 128 + 9
_NETWORK: Final = re.compile(
    r"error sending request|failed to fetch|temporary failure (?:in name )?resol|could not resolve|connection (?:refused|timed out|reset)|network is unreachable|"
    r"invalid peer certificate|certificate verify failed|no route to host|read timed out",
    re.IGNORECASE,
)  # fmt: skip


def hash_mismatch(text: str) -> str | None:
    """What uv or pip said of a file that is not the locked one, in one sentence with both hashes; None where they said no such thing."""
    found = _UV_HASH.search(text)
    if found is not None:
        what, has, wanted = found[1], found[3], " or ".join(found[2].split())
    else:
        found = _PIP_HASH.search(text)
        if found is None:
            return None
        what, has, wanted = found[1], f"sha256:{found[3]}", found[2].replace(" ", ":")
    return f"hash mismatch: {what} from the index has {has}, the lock holds {wanted}; the file was changed after locking, or the index serves another one"


def lost(progress: Progress) -> bool:
    """Whether the builder and its client lost each other, as they do on a busy machine: that says nothing of what was built."""
    return _LOST.search(progress.text) is not None


def _status(text: str) -> int | None:
    """The exit code of the command that failed, where the builder tells it."""
    found = _STATUS.findall(text)
    return int(found[-1]) if found else None


def explain(progress: Progress, base: str, *, offline: bool) -> EnvspecError:
    """The error of a build that failed, from what its builder printed."""
    text, step = progress.text, progress.failed
    where = f" while making: {step.title}" if step is not None and step.title else ""
    if _NO_SPACE.search(text):
        return EngineError(f"the engine's disk is full{where}; free space there (`docker system df` shows what takes it, `docker builder prune` frees the build cache)")
    if lost(progress):
        return EngineError(f"the builder and its client lost each other{where}, and again when it was tried anew; is the machine too busy? Build again")
    own = re.search(r"envspec-build: (.*)", text)
    if own:
        return EngineError(own[1])
    if step is not None and "self-check" in step.command:
        said = [line for line in step.lines if not line.startswith("ERROR")]
        if (status := _status(text)) == 1:
            return CheckFailed("\n".join(said).strip("\n"))
        reason = next((line.removeprefix("envspec: ") for line in reversed(said) if line.strip()), "it said nothing")
        if status == _KILLED:
            reason = "it was killed; is there enough memory?"
        return EngineError(f"the check of what was built could not be done: {_plain(reason)}; nothing was tagged")
    mismatch = hash_mismatch(text)
    if mismatch is not None:
        return EngineError(mismatch)
    if _BASE.search(text) and where == "":
        return EngineError(f"the base image {base} cannot be had: {engine_words(text)}; name another with --base, or make one with `nox -s bootstrap-base`")
    missing = _NO_WHEEL.search(text)
    if missing:
        return EngineError(f"a package of the lock has no wheel for the base's Python or platform: {_plain(missing[0])}; lock again, or take another base")
    if _NETWORK.search(text) and not offline:
        line = next(line for line in text.splitlines() if _NETWORK.search(line))
        return EngineError(f"the network failed{where}: {_plain(line)}; a filtered network may need --network host, --ca FILE or --index URL")
    lines = [line for line in (step.lines if step is not None else progress.other) if line.strip() and not line.startswith("ERROR")]
    return EngineError(f"the build failed{where}: {_plain(' '.join(lines[-3:]) or engine_words(text))}")


def _plain(text: str) -> str:
    """Without uv's drawing and without logins in addresses."""
    text = re.sub(r"[×╰─▶│├┬]+", " ", text)
    return re.sub(r"\s+", " ", re.sub(r"(?<=://)[^/@\s]+@", "", text)).strip()[:400]
