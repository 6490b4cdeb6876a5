"""Stored training samples of every format, streamed one at a time."""

from __future__ import annotations

import fcntl
import hashlib
import os
from array import array
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from eagle3_diag.errors import InputError
from eagle3_diag.samples.checks import check_finite, check_response, with_prompt_length
from eagle3_diag.samples.containers import read_record
from eagle3_diag.samples.discover import SUFFIXES, Unlisted, find_files, printable
from eagle3_diag.samples.eagle import EagleFormat
from eagle3_diag.samples.hidden_states import HiddenStatesFormat
from eagle3_diag.samples.interface import Sample, SampleFormat
from eagle3_diag.samples.model_optimizer import ModelOptimizerFormat
from eagle3_diag.samples.specforge import SpecForgeFormat
from eagle3_diag.samples.speculators import SpeculatorsFormat

__all__ = ["FORMATS", "REPEATED", "Sample", "SampleStream", "Skipped", "iter_samples", "read_sample"]

#: Every known layout; a file's entries match at most one.
FORMATS: tuple[SampleFormat, ...] = (
    ModelOptimizerFormat(),
    SpeculatorsFormat(),
    HiddenStatesFormat(),
    SpecForgeFormat(),
    EagleFormat(),
)

#: When this many files from the start are all bad, the rest will be too: reading stops with the first one's reason.
GIVE_UP_AFTER = 100

REPEATED = "a copy of an earlier sample is counted again, and confidence intervals come out too narrow; leave copies out"

#: Reasons kept; beyond them files are only counted.
MAX_REASONS = 1000


@dataclass(frozen=True, kw_only=True)
class Skipped:
    """A file that was left out, and the sentence that says why."""

    path: Path
    reason: str


def read_sample(path: Path) -> Sample:
    """Read one file of any format, named after the file.

    Raises InputError with one sentence for anything that is not a whole sample: being written, truncated, corrupt, a
    pickle of other things than tensors (refused, never run), entries missing or of the wrong shape. Values are not
    looked at; see :mod:`eagle3_diag.samples.checks`.
    """
    try:
        return _read(path)
    except InputError as error:
        if str(path).isprintable():
            raise
        raise type(error)(str(error).replace(str(path), printable(str(path)))) from None


def _read(path: Path) -> Sample:
    try:
        os.fspath(path).encode()
    except UnicodeEncodeError:
        raise InputError(f"{path}: the file's name is not UTF-8; rename it.") from None
    _refuse_locked(path)
    record = read_record(path)
    for sample_format in FORMATS:
        if sample_format.matches(record):
            sample = sample_format.parse(record)
            return replace(sample, name=printable(sample.name))
    keys = ", ".join(printable(key) for key in sorted(record.data)[:12]) or "nothing"
    raise InputError(
        f"{path}: this is no sample of a known format (it holds: {keys}); expected token ids and hidden states as "
        "speculators, vLLM, SpecForge, Model-Optimizer or EAGLE store them."
    )


class SampleStream(Iterator[Sample]):
    """Iterator over samples that keeps count of what it passed over.

    Attributes (final once the stream has ended):
        read: samples given out.
        skipped: the first 1000 files left out, with the reason of each; ``skipped_count`` counts all.
        notes: what was assumed while reading, sentence by sentence, with the number of samples it holds for.
    """

    def __init__(
        self,
        paths: Iterable[Path | str],
        *,
        max_samples: int | None,
        strict: bool,
        prompt_length: int | None,
        check: Callable[[Sample], Sample] | None,
    ) -> None:
        if max_samples is not None and max_samples < 1:
            raise InputError(f"--max-samples is {max_samples}, expected 1 or more.")
        if prompt_length is not None and prompt_length < 0:
            raise InputError(f"--prompt-length is {prompt_length}, expected 0 or more.")
        self._paths = [Path(path) for path in paths]
        if not self._paths:
            raise InputError("no samples were given; name a directory or files.")
        self.read = 0
        self.skipped: list[Skipped] = []
        self.skipped_count = 0
        self.notes: dict[str, int] = {}
        self._max_samples = max_samples
        self._strict = strict
        self._prompt_length = prompt_length
        self._check = check
        self._names: set[str] = set()
        self._copies: set[bytes] = set()
        self._files = find_files(self._paths)
        self._samples = self._stream()

    def __iter__(self) -> SampleStream:
        return self

    def __next__(self) -> Sample:
        return next(self._samples)

    def _stream(self) -> Iterator[Sample]:
        while self._max_samples is None or self.read < self._max_samples:
            file = next(self._files, None)
            if file is None:
                break
            try:
                if isinstance(file, Unlisted):
                    raise InputError(file.reason)
                sample = self._prepare(file)
            except InputError as error:
                if self._strict:
                    raise
                self._skip(file, str(error))
                continue
            self.read += 1
            for note in sample.notes:
                self.notes[note] = self.notes.get(note, 0) + 1
            yield sample
        if self.read == 0:
            raise self._nothing()

    def _prepare(self, path: Path) -> Sample:
        sample = read_sample(path)
        if self._prompt_length is not None:
            sample = with_prompt_length(sample, self._prompt_length)
        sample = check_response(replace(sample, name=self._unique(path, sample.name)))
        if self._check is not None:
            sample = self._check(sample)
        sample = check_finite(sample)
        self._names.add(sample.name)
        return self._noting_repeats(sample)

    def _noting_repeats(self, sample: Sample) -> Sample:
        """A copy counts twice and narrows the confidence interval without telling anything new: say so."""
        copy = hashlib.blake2b(array("q", sample.tokens_N.tolist()), digest_size=16)
        copy.update(array("d", sample.aux_ANH[0][-1].tolist()))
        if copy.digest() in self._copies:
            sample = replace(sample, notes=(*sample.notes, REPEATED))
        self._copies.add(copy.digest())
        return sample

    def _unique(self, path: Path, name: str) -> str:
        """The file's name, with as many of its directories in front as make it new."""
        for parent in path.absolute().parents:
            if name not in self._names:
                break
            name = f"{printable(parent.name)}/{name}"
        return name

    def _skip(self, file: Path | Unlisted, reason: str) -> None:
        self.skipped_count += 1
        if len(self.skipped) < MAX_REASONS:
            path = file.path if isinstance(file, Unlisted) else file
            self.skipped.append(Skipped(path=path, reason=reason))
        if self.read == 0 and self.skipped_count >= GIVE_UP_AFTER:
            raise self._nothing()

    def _nothing(self) -> InputError:
        where = ", ".join(str(path) for path in self._paths[:3]) + (", ..." if len(self._paths) > 3 else "")
        if not self.skipped_count:
            endings = ", ".join(f"*{suffix}" for suffix in SUFFIXES)
            return InputError(f"{where}: no samples here; looked for {endings} in it and below.")
        if self.skipped_count == 1:
            return InputError(self.skipped[0].reason)
        return InputError(
            f"{where}: none of the first {self.skipped_count} files is a usable sample; the first: "
            f"{self.skipped[0].reason}"
        )


def iter_samples(
    paths: Iterable[Path | str],
    *,
    max_samples: int | None = None,
    strict: bool = False,
    prompt_length: int | None = None,
    check: Callable[[Sample], Sample] | None = None,
) -> SampleStream:
    """Samples of files and directories, one at a time, in natural order, whatever the order of ``paths``.

    A file that cannot be used is skipped, counted and named in the stream's ``skipped`` (``strict``: raised). Each
    sample has a response and finite states; ``prompt_length`` replaces stored masks; ``check`` may refuse a sample
    (InputError, same treatment) or return another, and runs before the states are read.

    Raises InputError at once for a path that does not exist, while iterating for a directory that cannot be listed, and
    at the end when there was no sample at all.
    """
    return SampleStream(paths, max_samples=max_samples, strict=strict, prompt_length=prompt_length, check=check)


def _refuse_locked(path: Path) -> None:
    lock = path.with_name(path.name + ".lock")
    try:
        with lock.open("rb") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
                holder = "no process on this machine holds the lock: if its writer has ended, delete the lock"
            except OSError:
                holder = "wait until its writer has finished"
    except FileNotFoundError:
        return
    except OSError:
        holder = "wait until its writer has finished"
    raise InputError(f"{path}: the sample is being written ({lock.name} lies beside it); {holder}.")
