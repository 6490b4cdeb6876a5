"""The stream over files and directories: order, names, what is skipped and what is refused."""

from __future__ import annotations

import fcntl
import os
import pickle
import random
import shutil
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import eagle3_diag.samples as samples
from eagle3_diag.errors import InputError
from eagle3_diag.samples import REPEATED, Sample, fields, iter_samples, read_sample
from eagle3_diag.samples.discover import find_files, natural_key, printable
from tests.eagle3_diag.samples import builders


def fill(directory: Path, count: int) -> Path:
    for i in range(count):
        builders.write(directory / f"data_{i}.pt", builders.speculators(hidden_states=builders.states(i)))
    return directory


def test_natural_order_then_subdirectories(tmp_path: Path) -> None:
    fill(tmp_path, 12)
    builders.write(tmp_path / "rows_2000-4000" / "data_2000.ckpt", builders.specforge(input_ids=builders.tokens().roll(1)))
    builders.write(tmp_path / "rows_0-2000" / "data_1.ckpt", builders.specforge(input_ids=builders.tokens().flip(0)))
    stream = iter_samples([tmp_path])
    assert [sample.name for sample in stream] == [*(f"data_{i}.pt" for i in range(12)), "data_1.ckpt", "data_2000.ckpt"]
    assert (stream.read, stream.skipped_count, stream.notes) == (14, 0, {})


def test_same_samples_whatever_the_order_of_the_paths(tmp_path: Path) -> None:
    paths = [fill(tmp_path / "a", 2), fill(tmp_path / "b", 2), builders.write(tmp_path / "c.pt", builders.speculators())]
    names = [sample.name for sample in iter_samples(paths)]
    assert sorted(names) == ["b/data_0.pt", "b/data_1.pt", "c.pt", "data_0.pt", "data_1.pt"]
    for seed in range(4):
        random.Random(seed).shuffle(paths)
        assert [sample.name for sample in iter_samples(paths)] == names


def test_each_file_once(tmp_path: Path) -> None:
    fill(tmp_path / "a", 2)
    (tmp_path / "a" / "again").symlink_to(tmp_path / "a")
    (tmp_path / "link").symlink_to(tmp_path / "a")
    paths = [tmp_path / "a", tmp_path / "a" / "data_1.pt", tmp_path / "link", str(tmp_path / "a" / ".." / "a")]
    assert len(list(iter_samples(paths))) == 2


def test_a_copy_is_told(tmp_path: Path) -> None:
    fill(tmp_path, 2)
    shutil.copy(tmp_path / "data_0.pt", tmp_path / "data_2.pt")
    stream = iter_samples([tmp_path])
    assert [REPEATED in sample.notes for sample in stream] == [False, False, True]


def test_links_to_themselves_and_pipes_are_skipped_not_waited_for(tmp_path: Path) -> None:
    fill(tmp_path, 1)
    (tmp_path / "data_1.pt").symlink_to("data_1.pt")
    (tmp_path / "data_2.safetensors").symlink_to("nowhere")
    os.mkfifo(tmp_path / "data_3.pt")
    stream = iter_samples([tmp_path])
    assert [sample.name for sample in stream] == ["data_0.pt"]
    assert [(each.path.name, word in each.reason) for each, word in zip(stream.skipped, ("cannot be read", "cannot be read", "pipe"), strict=True)] == [
        ("data_1.pt", True),
        ("data_2.safetensors", True),
        ("data_3.pt", True),
    ]


def test_a_directory_is_listed_once_and_files_are_opened_one_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(tmp_path, 6)
    listed, opened = [], []
    scandir, read_record = os.scandir, samples.read_record
    monkeypatch.setattr(os, "scandir", lambda path: listed.append(path) or scandir(path))
    monkeypatch.setattr(samples, "read_record", lambda path: opened.append(path.name) or read_record(path))
    stream = iter_samples([tmp_path], max_samples=3)
    next(stream)
    assert opened == ["data_0.pt"]
    assert len(list(stream)) == 2
    assert opened == ["data_0.pt", "data_1.pt", "data_2.pt"]
    assert listed == [tmp_path]


def test_other_files_are_passed_over(tmp_path: Path) -> None:
    fill(tmp_path, 1)
    for name in ("sample_lengths.json", "data-00000-of-00001.arrow", "._data_0.pt", "data_1.pt.tmp", "d2t.npy"):
        (tmp_path / name).write_bytes(b"x")
    stream = iter_samples([tmp_path])
    assert len(list(stream)) == 1
    assert stream.skipped_count == 0


def test_one_bad_file_among_many_is_skipped_counted_and_named(tmp_path: Path) -> None:
    fill(tmp_path, 4)
    (tmp_path / "data_1.pt").write_bytes((tmp_path / "data_1.pt").read_bytes()[:-200])
    stream = iter_samples([tmp_path])
    assert [sample.name for sample in stream] == ["data_0.pt", "data_2.pt", "data_3.pt"]
    assert (stream.read, stream.skipped_count) == (3, 1)
    assert stream.skipped[0].path == tmp_path / "data_1.pt"
    assert "truncated or corrupt" in stream.skipped[0].reason
    with pytest.raises(InputError, match=r"data_1\.pt: the file is truncated or corrupt"):
        list(iter_samples([tmp_path], strict=True))


def test_max_samples_counts_what_was_read(tmp_path: Path) -> None:
    fill(tmp_path, 4)
    (tmp_path / "data_0.pt").write_bytes(b"junk")
    assert [sample.name for sample in iter_samples([tmp_path], max_samples=2)] == ["data_1.pt", "data_2.pt"]


def test_notes_are_counted(tmp_path: Path) -> None:
    for i in range(3):
        builders.write(tmp_path / f"{i}.pt", builders.model_optimizer(input_ids=builders.tokens().roll(i), loss_mask=builders.mask() if i else None))
    stream = iter_samples([tmp_path])
    list(stream)
    assert stream.notes == {fields.NO_MASK: 1}
    stream = iter_samples([tmp_path], prompt_length=5)
    assert all(sample.mask_N.tolist() == [False] * 5 + [True] * 7 for sample in stream)
    assert stream.notes == {}


def test_check_may_refuse_or_replace(tmp_path: Path) -> None:
    fill(tmp_path, 3)

    def check(sample: Sample) -> Sample:
        if sample.name == "data_1.pt":
            raise InputError("data_1.pt: not this one.")
        return sample

    stream = iter_samples([tmp_path], check=check)
    assert len(list(stream)) == 2
    assert [skipped.reason for skipped in stream.skipped] == ["data_1.pt: not this one."]


def test_empty_response(tmp_path: Path) -> None:
    path = builders.write(tmp_path / "data_0.pt", builders.speculators(loss_mask=builders.mask() * 0))
    with pytest.raises(InputError, match=r"data_0\.pt: the response is empty"):
        list(iter_samples([path]))
    with pytest.raises(InputError, match=r"the sample has 12 tokens, --prompt-length is 99\); give a smaller one"):
        list(iter_samples([path], prompt_length=99))
    labels = builders.write(tmp_path / "data_1.pt", builders.speculators(loss_mask=torch.where(builders.mask() > 0, builders.tokens(), -100)))
    with pytest.raises(InputError, match=r"'loss_mask' is 4 times below zero, expected zeros and ones"):
        list(iter_samples([labels]))
    assert len(list(iter_samples([path], prompt_length=3))) == 1


def test_nan_and_inf_are_named_and_counted(tmp_path: Path) -> None:
    stored = builders.states()
    stored[1][3, 2] = torch.nan
    stored[1][4, 2] = torch.inf
    stored[3][0, 0] = -torch.inf
    path = builders.write(tmp_path / "data_0.pt", builders.speculators(hidden_states=stored))
    with pytest.raises(InputError, match=r"NaN or Inf \(aux state 1: 2, final state: 1"):
        list(iter_samples([path]))


def test_missing_path_is_told_at_once(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"nowhere: no samples can be read here \(No such file or directory\)"):
        iter_samples([tmp_path / "nowhere"])


@pytest.mark.parametrize("paths", [[], ["."]])
def test_wrong_use(paths: list[str]) -> None:
    with pytest.raises(InputError):
        iter_samples(paths, max_samples=0)


def test_no_path_given() -> None:
    with pytest.raises(InputError, match="no samples were given"):
        iter_samples([])


def test_empty_directory(tmp_path: Path) -> None:
    (tmp_path / "readme.txt").write_text("x")
    with pytest.raises(InputError, match=r"no samples here; looked for \*\.pt"):
        list(iter_samples([tmp_path]))


def test_nothing_usable_stops_early_with_the_first_reason(tmp_path: Path) -> None:
    for i in range(150):
        (tmp_path / f"data_{i}.pt").write_bytes(b"junk")
    stream = iter_samples([tmp_path])
    with pytest.raises(InputError, match=r"none of the first 100 files is a usable sample; the first: .*data_0\.pt"):
        next(stream)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may list everything")
def test_directory_that_may_not_be_listed(tmp_path: Path) -> None:
    fill(tmp_path, 1)
    (tmp_path / "closed").mkdir(mode=0)
    stream = iter_samples([tmp_path])
    assert len(list(stream)) == 1
    assert "cannot be listed (Permission denied)" in stream.skipped[0].reason


@pytest.mark.parametrize("name", ["hs_0.safetensors", "data_0.pt"])
def test_sample_being_written(tmp_path: Path, name: str) -> None:
    stored = builders.hidden_states() if name.endswith("safetensors") else builders.speculators()
    path = builders.write(tmp_path / name, stored)
    lock = tmp_path / f"{name}.lock"
    lock.touch()
    with pytest.raises(InputError, match=r"is being written \(.*\.lock lies beside it\); no process on this machine holds"):
        read_sample(path)
    with lock.open() as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        with pytest.raises(InputError, match=r"is being written .*wait until its writer has finished"):
            read_sample(path)
    lock.unlink()
    assert read_sample(path).name == name


class Payload:
    """Pickles to a call that would leave a file behind."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, ...]:
        return (Path.touch, (self.path,))


@pytest.mark.parametrize("zipped", [True, False, None])
def test_a_pickle_is_refused_and_never_run(tmp_path: Path, zipped: bool | None) -> None:
    path, trap = tmp_path / "data_0.pt", tmp_path / "trap"
    data = builders.speculators(extra=Payload(trap))
    if zipped is None:
        path.write_bytes(pickle.dumps(data))
    else:
        torch.save(data, path, _use_new_zipfile_serialization=zipped)
    with pytest.raises(InputError, match=r"holds Python objects, not only tensors \(.*\); it was refused and nothing in it was run"):
        read_sample(path)
    assert not trap.exists()


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "the file is empty"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n", "Git LFS pointer"),
        (b"\x1f\x8b\x08\x00broken", "truncated or corrupt"),
        (b"<html>404</html>", "truncated or corrupt"),
    ],
)
@pytest.mark.parametrize("name", ["data_0.pt", "data_0.ckpt.gz", "hs_0.safetensors"])
def test_files_that_are_something_else(tmp_path: Path, name: str, content: bytes, says: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(InputError, match=says) as error:
        read_sample(tmp_path / name)
    assert "\n" not in str(error.value)


def test_file_that_is_no_dict(tmp_path: Path) -> None:
    torch.save([torch.ones(3)], tmp_path / "data_0.pt")
    with pytest.raises(InputError, match="holds a list, where a sample is a dict of named tensors"):
        read_sample(tmp_path / "data_0.pt")


def test_gzip_bomb(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("eagle3_diag.samples.containers.MAX_UNPACKED_BYTES", 1 << 20)
    path = builders.write(tmp_path / "data_0.ckpt.gz", builders.specforge(padding=torch.zeros(1 << 20)))
    with pytest.raises(InputError, match="unpacks to more than"):
        read_sample(path)


def test_names_that_a_terminal_would_choke_on(tmp_path: Path) -> None:
    path = builders.write(tmp_path / "a\n\x1b[31m.pt", builders.speculators())
    assert next(iter_samples([tmp_path])).name == "a\\n\\x1b[31m.pt"
    path.write_bytes(b"junk")
    with pytest.raises(InputError, match=r"a\\n\\x1b\[31m\.pt: the file is truncated or corrupt"):
        read_sample(path)


def test_names_that_are_not_text(tmp_path: Path) -> None:
    path = Path(os.fsdecode(os.fsencode(tmp_path) + b"/a\xff.pt"))
    builders.write(path, builders.speculators())
    with pytest.raises(InputError, match=r"a\\udcff\.pt: the file's name is not UTF-8; rename it"):
        next(iter_samples([tmp_path]))


@given(st.lists(st.text(st.characters(codec="utf-8", exclude_characters="/\0"), min_size=1), max_size=6, unique=True))
def test_natural_order_is_total(names: list[str]) -> None:
    assert sorted(sorted(names), key=natural_key) == sorted(names, key=lambda name: (natural_key(name), name))
    assert all(printable(name).isprintable() for name in names)


def test_numbers_compare_as_numbers() -> None:
    names = ["data_10.pt", "data_9.pt", "data_09.pt", "data_100.pt", "data_.pt", "rows_2000-4000", "rows_0-2000"]
    assert sorted(names, key=natural_key) == [
        "data_09.pt", "data_9.pt", "data_10.pt", "data_100.pt", "data_.pt", "rows_0-2000", "rows_2000-4000",
    ]  # fmt: skip


def test_discovery_reads_no_file(tmp_path: Path) -> None:
    fill(tmp_path, 2)
    files = find_files([tmp_path])
    shutil.rmtree(tmp_path)
    with pytest.raises(InputError, match="cannot be listed"):
        list(files)
