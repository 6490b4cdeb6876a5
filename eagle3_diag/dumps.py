"""Stored hidden states as dumps to compare: samples of every format and captures, files or folders, and which of two folders' files hold the same tokens."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from eagle3_diag.captures import is_capture, read_capture
from eagle3_diag.errors import InputError
from eagle3_diag.hidden import Dump, State
from eagle3_diag.samples import Sample, read_sample
from eagle3_diag.samples.discover import Unlisted, find_files

#: Tokens at the start by which files of different names are taken for the same text.
_HEAD = 16


def sample_dump(sample: Sample, hidden_size: int | None = None) -> Dump:
    """A sample's states in stored order. ``hidden_size`` cuts one wide state into several where the format stores them joined."""
    states: list[State] = []
    for i, x_NH in enumerate(sample.aux_ANH):
        layer = None if sample.layer_ids is None else sample.layer_ids[i]
        pieces = [x_NH]
        if layer is None and hidden_size and x_NH.shape[1] != hidden_size and x_NH.shape[1] % hidden_size == 0:
            pieces = list(x_NH.split(hidden_size, dim=1))
        for piece in pieces:
            states.append(State(name=f"state {len(states)}" if layer is None else f"layer {layer}", x_NH=piece, layer=layer))
    if sample.final_NH is not None:
        states.append(State(name="final state", x_NH=sample.final_NH, final=True, normed=sample.final_normed))
    return Dump(name=sample.name, states=tuple(states), tokens_N=sample.tokens_N)


def read_dump(path: Path, hidden_size: int | None = None) -> Dump:
    """One file's dump. Raises InputError for a file that holds no hidden states over tokens."""
    if is_capture(path):
        captured = read_capture(path)
        layers = captured.about.get("layer_inputs")
        width = 0 if captured.features_MF is None else int(captured.features_MF.shape[1])
        return captured.dump(hidden_size or (width // len(layers) if layers else width))
    return sample_dump(read_sample(path), hidden_size)


@dataclass(frozen=True, kw_only=True)
class Pairs:
    """Files that belong together, and those of either side that found no partner."""

    pairs: tuple[tuple[Path, Path], ...]
    only_a: tuple[Path, ...]
    only_b: tuple[Path, ...]


def pair_files(a: Path, b: Path) -> Pairs:
    """Two files are a pair; of folders those of one name are, then those whose texts begin alike.

    Raises InputError for paths without files, and where nothing belongs together.
    """
    files_a, files_b = _files(a), _files(b)
    if not a.is_dir() and not b.is_dir():
        return Pairs(pairs=((a, b),), only_a=(), only_b=())
    names_b = {_below(path, b): path for path in files_b}
    pairs: list[tuple[Path, Path]] = []
    for path in files_a:
        other = names_b.get(_below(path, a))
        if other is not None and _same_text(_head(path), _head(other)):
            pairs.append((path, other))
    left_a = [path for path in files_a if path not in {x for x, _ in pairs}]
    left_b = [path for path in files_b if path not in {y for _, y in pairs}]
    heads = {_head(path): path for path in left_b} if left_a else {}
    for path in list(left_a) if heads else ():
        head = _head(path)
        other = None if head is None else heads.pop(head, None)
        if other is not None:
            pairs.append((path, other))
            left_a.remove(path)
            left_b.remove(other)
    if not pairs:
        raise InputError(f"{a} and {b}: no file of one has the name or the tokens of one of the other; give two dumps of the same texts")
    return Pairs(pairs=tuple(pairs), only_a=tuple(left_a), only_b=tuple(left_b))


def _below(path: Path, root: Path) -> str:
    return path.name if path == root else str(path.relative_to(root))


def _files(path: Path) -> list[Path]:
    found = []
    for each in find_files([path]):
        if isinstance(each, Unlisted):
            raise InputError(each.reason)
        found.append(each)
    if not found:
        raise InputError(f"{path}: holds no file with hidden states; give a sample, a capture or a folder of them")
    return found


def _head(path: Path) -> tuple[int, ...] | None:
    tokens_N = read_dump(path).tokens_N
    return None if tokens_N is None else tuple(tokens_N[1:_HEAD].tolist())  # the first one, a server's capture may lack


def _same_text(a: tuple[int, ...] | None, b: tuple[int, ...] | None) -> bool:
    """Whether two beginnings may be of one text: equal, or of at least half their tokens in the same order (a token more in front), or unknown."""
    if a is None or b is None or a == b:
        return True
    return any(a[cut : cut + 8] == b[:8] or b[cut : cut + 8] == a[:8] for cut in range(min(len(a), len(b), 9)))
