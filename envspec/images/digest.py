"""The environment digest: one sha256 over what an environment's files are, so that two builds can be called the same.

It covers each entry's path (below the environment's root), kind, permission bits and content, sorted by path; times and
owners stand aside, since they differ from build to build and change nothing that runs. Entries come from a directory
(:func:`walk`) or from a tar stream such as an exported container (:func:`entries_of_tar`); the same tree gives the same
digest both ways.
"""

from __future__ import annotations

import hashlib
import os
import posixpath
import stat
import tarfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import BinaryIO, Final, Literal

from envspec.chunks import ChunkFile

__all__ = ["Entry", "below", "entries_of_tar", "environment_digest", "walk"]

Kind = Literal["file", "directory", "link", "special"]

_FORMAT: Final = b"envspec/environment/1\0"
_BLOCK: Final = 1 << 20
_BUFFER: Final = 1 << 16
"""Of tarfile, which copies what is left of it at each header."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Entry:
    """One file, directory or link. ``path`` is relative, with ``/`` and without a leading one; names that are not UTF-8
    carry surrogate escapes.

    ``content`` is a file's sha256 in hex, a symbolic link's target, a special file's device numbers, else empty. ``mode``
    is the permission bits (12 bits), 0 for a link, whose mode means nothing on Linux. ``size`` is in bytes.
    """

    path: str
    kind: Kind
    mode: int = 0
    content: str = ""
    size: int = 0

    @property
    def essence(self) -> tuple[Kind, int, str]:
        """What two entries of one path are compared by."""
        return self.kind, self.mode, self.content


def environment_digest(entries: Iterable[Entry]) -> str:
    """``sha256:<hex>`` over the entries in the order of their paths' bytes.

    Each entry adds ``kind NUL octal mode NUL content NUL path NUL``. No field can hold a NUL, so two different trees never give the same
    text.

    Raises:
        ValueError: two entries have one path.
    """
    state = hashlib.sha256(_FORMAT)
    last: bytes | None = None
    for path, entry in sorted(((os.fsencode(entry.path), entry) for entry in entries), key=lambda pair: pair[0]):
        if path == last:
            raise ValueError(f"{entry.path} stands twice among the entries")
        last = path
        state.update(b"\0".join((entry.kind.encode(), b"%o" % entry.mode, os.fsencode(entry.content), path, b"")))
    return f"sha256:{state.hexdigest()}"


def below(entries: Iterable[Entry], root: str) -> Iterator[Entry]:
    """The entries inside a directory, their paths relative to it. The directory itself is left out, and so is its mode."""
    prefix = root.strip("/") + "/"
    for entry in entries:
        if entry.path.startswith(prefix):
            yield replace(entry, path=entry.path[len(prefix) :])


def walk(root: Path) -> Iterator[Entry]:
    """The entries inside a directory of this machine; links are not followed.

    Raises:
        OSError: a file cannot be read.
    """
    pending = [""]
    while pending:
        folder = pending.pop()
        with os.scandir(root / folder) as found:
            for each in found:
                path = posixpath.join(folder, each.name)
                about = each.stat(follow_symlinks=False)
                mode = stat.S_IMODE(about.st_mode)
                if stat.S_ISLNK(about.st_mode):
                    yield Entry(path=path, kind="link", content=os.readlink(each.path))  # noqa: PTH115 (a Path rewrites the target)
                elif stat.S_ISDIR(about.st_mode):
                    yield Entry(path=path, kind="directory", mode=mode)
                    pending.append(path)
                elif stat.S_ISREG(about.st_mode):
                    with (root / path).open("rb", buffering=0) as file:
                        yield Entry(path=path, kind="file", mode=mode, content=_sha256(file), size=about.st_size)
                else:
                    yield Entry(path=path, kind="special", mode=mode, content=_device(about.st_mode, about.st_rdev))


def entries_of_tar(chunks: Iterable[bytes]) -> Iterator[Entry]:
    """The entries of a tar archive that comes as a stream of bytes, read once and never held as a whole. A hard link is a file
    with its target's content.

    Raises:
        tarfile.TarError: the stream is no tar archive, ends early, or links to a file that it does not hold.
    """
    files: dict[str, Entry] = {}
    # Not UTF-8 names: tarfile's own surrogate escapes are the ones of os.fsencode.
    with tarfile.open(fileobj=ChunkFile(chunks), mode="r|", encoding="utf-8", errors="surrogateescape", bufsize=_BUFFER) as archive:  # type: ignore[call-overload]
        for member in archive:
            path = _relative(member.name)
            if not path:
                continue
            mode = member.mode & 0o7777
            if member.islnk():
                target = files.get(_relative(member.linkname))
                if target is None:
                    raise tarfile.ReadError(f"{member.name} is a hard link to {member.linkname}, which the archive does not hold before it")
                yield replace(target, path=path)
            elif member.issym():
                files[path] = Entry(path=path, kind="link", content=member.linkname)
                yield files[path]
            elif member.isdir():
                yield Entry(path=path, kind="directory", mode=mode)
            elif member.isreg():
                source = archive.extractfile(member)
                assert source is not None  # of a regular member
                files[path] = Entry(path=path, kind="file", mode=mode, content=_sha256(source), size=member.size)
                yield files[path]
            else:
                kind = stat.S_IFCHR if member.ischr() else stat.S_IFBLK if member.isblk() else stat.S_IFIFO
                yield Entry(path=path, kind="special", mode=mode, content=_device(kind, os.makedev(member.devmajor, member.devminor)))
            archive.members.clear()  # a stream of 100,000 members needs no list of them


def _relative(name: str) -> str:
    path = posixpath.normpath(name).lstrip("/")
    return "" if path == "." else path


def _sha256(file: BinaryIO) -> str:
    state = hashlib.sha256()
    while block := file.read(_BLOCK):
        state.update(block)
    return state.hexdigest()


def _device(mode: int, number: int) -> str:
    """What a special file is: ``c 1:3`` for ``/dev/null``; a pipe or socket has no numbers."""
    if stat.S_ISCHR(mode) or stat.S_ISBLK(mode):
        return f"{'c' if stat.S_ISCHR(mode) else 'b'} {os.major(number)}:{os.minor(number)}"
    return "s" if stat.S_ISSOCK(mode) else "p"
