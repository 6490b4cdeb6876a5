"""The environment digest: the same for the same tree, another for any change of it, by both ways of reading."""

from __future__ import annotations

import hashlib
import io
import os
import stat
import tarfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envspec.images.digest import Entry, below, entries_of_tar, environment_digest, walk


def chunks(data: bytes, size: int = 700) -> Iterator[bytes]:
    return (data[at : at + size] for at in range(0, len(data), size))


def tree(root: Path) -> Path:
    """One of everything that an environment holds, a name that is not UTF-8 among it."""
    (root / "lib/site").mkdir(parents=True)
    (root / "bin").mkdir()
    (root / "lib/site/a.py").write_bytes(b"x = 1\n" * 500_000)
    (root / "lib/site/empty").touch()
    (root / "bin/python").symlink_to("../../usr/bin/python3")
    (root / "bin/tool").write_text("#!/bin/sh\n")
    (root / "bin/tool").chmod(0o755)
    os.link(root / "bin/tool", root / "bin/tool2")
    Path(os.fsdecode(os.fsencode(root) + b"/lib/caf\xe9")).write_bytes(b"latin")
    os.mkfifo(root / "pipe")
    return root


def as_tar(root: Path, *, format: int = tarfile.PAX_FORMAT) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=format) as archive:
        archive.add(root, "opt/env")
        archive.addfile(tarfile.TarInfo("opt/envy"))
    return buffer.getvalue()


def test_a_directory_and_its_tar_give_one_digest_that_times_and_owners_do_not_change(tmp_path: Path) -> None:
    root = tree(tmp_path / "env")
    whole = environment_digest(walk(root))
    assert whole.startswith("sha256:")
    assert len(whole) == 71
    for format in (tarfile.PAX_FORMAT, tarfile.GNU_FORMAT):
        assert environment_digest(below(entries_of_tar(chunks(as_tar(root, format=format))), "/opt/env")) == whole
    os.utime(root / "lib/site/a.py", (1, 1))
    assert environment_digest(walk(root)) == whole
    if os.geteuid() == 0:
        os.chown(root / "lib/site/a.py", 12, 34)
        assert environment_digest(walk(root)) == whole
        assert environment_digest(below(entries_of_tar(chunks(as_tar(root))), "opt/env")) == whole


def _flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def _relink(path: Path) -> None:
    path.unlink()
    path.symlink_to("/usr/bin/python3")


CHANGES: dict[str, Callable[[Path], object]] = {
    "one bit of a file": lambda root: _flip(root / "lib/site/a.py"),
    "a file's mode": lambda root: (root / "bin/tool").chmod(0o750),
    "setuid": lambda root: (root / "bin/tool").chmod(0o755 | stat.S_ISUID),
    "a directory's mode": lambda root: (root / "lib").chmod(0o700),
    "a link's target": lambda root: _relink(root / "bin/python"),
    "a file's name": lambda root: (root / "lib/site/empty").rename(root / "lib/site/void"),
    "a file that is gone": lambda root: (root / "lib/site/empty").unlink(),
    "one more file": lambda root: (root / "lib/new").touch(),
    "one more directory": lambda root: (root / "lib/new").mkdir(),
    "a file in a directory's place": lambda root: ((root / "lib/site/empty").unlink(), (root / "lib/site/empty").mkdir()),
    "a pipe in a file's place": lambda root: ((root / "lib/site/empty").unlink(), os.mkfifo(root / "lib/site/empty")),
}


@pytest.mark.parametrize("change", CHANGES)
def test_every_change_changes_it(tmp_path: Path, change: str) -> None:
    root = tree(tmp_path / "env")
    before = environment_digest(walk(root))
    CHANGES[change](root)
    after = environment_digest(walk(root))
    assert after != before
    assert environment_digest(below(entries_of_tar(chunks(as_tar(root))), "opt/env")) == after


def test_the_format_is_as_documented() -> None:
    entries = [Entry(path="b", kind="link", content="a"), Entry(path="a", kind="file", mode=0o644, content="ff")]
    text = b"envspec/environment/1\0" + b"file\x00644\0ff\0a\0" + b"link\x000\0a\0b\0"
    assert environment_digest(entries) == f"sha256:{hashlib.sha256(text).hexdigest()}"


def test_a_hard_link_has_its_targets_content(tmp_path: Path) -> None:
    found = {entry.path: entry for entry in entries_of_tar(chunks(as_tar(tree(tmp_path / "env"))))}
    assert found["opt/env/bin/tool"].essence == found["opt/env/bin/tool2"].essence
    assert found["opt/env/bin/tool2"].content == hashlib.sha256(b"#!/bin/sh\n").hexdigest()


def test_a_hard_link_to_nothing_and_a_stream_that_ends_early_are_errors(tmp_path: Path) -> None:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        link = tarfile.TarInfo("a")
        link.type, link.linkname = tarfile.LNKTYPE, "elsewhere"
        archive.addfile(link)
    with pytest.raises(tarfile.ReadError, match="a is a hard link to elsewhere"):
        list(entries_of_tar(chunks(buffer.getvalue())))
    with pytest.raises(tarfile.TarError):
        list(entries_of_tar(chunks(as_tar(tree(tmp_path / "env"))[:20_000])))


def test_two_entries_of_one_path_are_refused() -> None:
    with pytest.raises(ValueError, match="a stands twice"):
        environment_digest([Entry(path="a", kind="file"), Entry(path="a", kind="directory")])


_NAMES = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), min_size=1, max_size=6)
_ENTRIES = st.lists(
    st.builds(
        Entry,
        path=_NAMES,
        kind=st.sampled_from(["file", "directory", "link"]),
        mode=st.integers(0, 0o7777),
        content=st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=6),
    ),
    unique_by=lambda entry: entry.path,
    max_size=6,
)


@given(_ENTRIES, _ENTRIES)
def test_it_is_equal_exactly_when_the_entries_are(left: list[Entry], right: list[Entry]) -> None:
    same = {(entry.path, entry.essence) for entry in left} == {(entry.path, entry.essence) for entry in right}
    assert (environment_digest(left) == environment_digest(right)) == same
    assert environment_digest(reversed(left)) == environment_digest(replace(entry, size=7) for entry in left)
