"""A wheel's core metadata without its download, as installers get it: the file that the index serves beside the wheel (PEP 658), else the
wheel's own directory, read by HTTP ranges.
"""

from __future__ import annotations

import base64
import functools
import hashlib
import io
import netrc
import ssl
import urllib.error
import urllib.request
import zipfile
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from email.errors import MessageError
from http.client import HTTPException
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlsplit, urlunsplit

from packaging.metadata import parse_email
from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from envspec.locking.errors import LockRefused, ResolutionError
from envspec.locking.inputs import canonical

__all__ = ["CoreMetadata", "file_digest", "local_path", "read_many", "read_one"]

_AT_ONCE: Final = 16
_TIMEOUT: Final = 60.0
_TRIES: Final = 3


@dataclass(frozen=True, kw_only=True, slots=True)
class CoreMetadata:
    """What a lock needs of it. ``requires`` are in one spelling and order."""

    name: str
    version: str
    requires: tuple[str, ...] = ()
    requires_python: str | None = None


def read_many(places: Iterable[str]) -> Mapping[str, CoreMetadata]:
    """The metadata of wheels by their address.

    Raises:
        ResolutionError: one cannot be read.
        LockRefused: one holds a requirement that is none.
    """
    urls = list(dict.fromkeys(places))
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        return dict(zip(urls, pool.map(read_one, urls), strict=True))


def read_one(url: str) -> CoreMetadata:
    """The metadata of the wheel at a ``file:``, ``http:`` or ``https:`` address."""
    name = unquote(urlsplit(url).path).rsplit("/", 1)[-1]
    try:
        path = local_path(url)
        data = _from_wheel(path, name) if path is not None else _remote(url, name)
    except (OSError, HTTPException, zipfile.BadZipFile, KeyError, EOFError) as error:
        reason = error if isinstance(error, urllib.error.HTTPError) else getattr(error, "reason", None) or error
        raise ResolutionError(f"the metadata of {name} cannot be read: {reason}") from error
    return _parse(data, name)


def _parse(data: bytes, file: str) -> CoreMetadata:
    try:
        raw, _ = parse_email(data)
    except (MessageError, ValueError) as error:
        raise ResolutionError(f"the metadata of {file} cannot be read: {error}") from error
    requires = []
    for text in raw.get("requires_dist", []):
        try:
            requires.append(canonical(Requirement(text)))
        except InvalidRequirement as error:
            raise LockRefused(f"{file} requires {text[:80]!r}, which is no requirement, so nothing can prove the lock complete; take another version of it") from error
    return CoreMetadata(
        name=canonicalize_name(raw.get("name", "")),
        version=raw.get("version", ""),
        requires=tuple(sorted(set(requires))),
        requires_python=raw.get("requires_python") or None,
    )


def local_path(url: str) -> Path | None:
    """The path of a ``file:`` address, None for another."""
    parts = urlsplit(url)
    return Path(urllib.request.url2pathname(parts.path)) if parts.scheme == "file" else None


def file_digest(path: Path) -> str:
    """sha256 of a file, in hex."""
    with path.open("rb") as file:
        digest = hashlib.sha256()
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def _from_wheel(source: Path | io.RawIOBase, name: str) -> bytes:
    """``METADATA`` of the one ``.dist-info`` that is named like the wheel."""
    with zipfile.ZipFile(source if isinstance(source, Path) else io.BufferedReader(source, 1 << 16)) as archive:
        wanted = canonicalize_name(name.split("-")[0])
        for member in archive.namelist():
            folder, _, file = member.partition("/")
            if file == "METADATA" and folder.endswith(".dist-info") and canonicalize_name(folder.split("-")[0]) == wanted:
                return archive.read(member)
    raise KeyError(f"{name} holds no METADATA")


def _remote(url: str, name: str) -> bytes:
    parts = urlsplit(url)
    beside = urlunsplit((parts.scheme, parts.netloc, parts.path + ".metadata", parts.query, ""))
    try:
        with _open(beside) as answer:
            data: bytes = answer.read()
            return data
    except urllib.error.HTTPError as error:
        if error.code not in (400, 403, 404, 405, 410, 501):
            raise
    return _from_wheel(_Ranges(url), name)


def _open(url: str, **headers: str) -> io.BufferedIOBase:
    """A GET with the address's own login or the one in ``~/.netrc``, repeated where the server or the connection falters."""
    parts = urlsplit(url)
    host = parts.hostname or ""
    login = (unquote(parts.username), unquote(parts.password or "")) if parts.username else _netrc(host)
    place = urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, parts.query, ""))
    request = urllib.request.Request(place, headers={"User-Agent": "envspec", "Accept-Encoding": "identity", **headers})
    if login:
        # Unredirected: another host gets no login.
        request.add_unredirected_header("Authorization", "Basic " + base64.b64encode(":".join(login).encode()).decode())
    for attempt in range(1, _TRIES + 1):
        try:
            answer: io.BufferedIOBase = urllib.request.urlopen(request, timeout=_TIMEOUT, context=_tls())
            return answer
        except urllib.error.HTTPError as error:
            error.close()
            if error.code < 500 or error.code == 501 or attempt == _TRIES:
                raise
        except OSError:
            if attempt == _TRIES:
                raise
    raise AssertionError("unreachable")


@functools.lru_cache(maxsize=1)
def _tls() -> ssl.SSLContext:
    # Loading the certificates takes tens of milliseconds.
    return ssl.create_default_context()


def _netrc(host: str) -> tuple[str, str] | None:
    try:
        found = netrc.netrc().authenticators(host)
    except (OSError, netrc.NetrcParseError):
        return None
    return (found[0] or "", found[2] or "") if found else None


class _Ranges(io.RawIOBase):
    """A remote file that is read by ranges, so that of a wheel only its directory and one member travel."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._at = 0
        with _open(url, Range="bytes=0-0") as answer:
            total = str(answer.headers.get("Content-Range", "")).rpartition("/")[2]  # type: ignore[attr-defined]
        if not total.isdigit():
            raise OSError("the index serves neither a .metadata file beside the wheel (PEP 658) nor ranges of it")
        self._size = int(total)

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._at = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        return self._at

    def tell(self) -> int:
        return self._at

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        last = min(self._at + len(buffer), self._size) - 1
        if last < self._at:
            return 0
        with _open(self._url, Range=f"bytes={self._at}-{last}") as answer:
            data = answer.read(last - self._at + 1)
        buffer[: len(data)] = data
        self._at += len(data)
        return len(data)
