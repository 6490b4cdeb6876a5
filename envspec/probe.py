"""Reads this host's Python environment and answers with one JSON document (schema ``envspec/snapshot/1``).

One file, standard library only, Python 3.8 or newer. It is sent to other hosts over stdin
(:mod:`envspec.hosts.wire`), leaves nothing behind, needs neither pip nor root, and **imports and runs nothing of the
environment it reads**: the interpreter is started with ``-E -s -S``, so no ``.pth`` line, no ``sitecustomize`` and no
module from ``PYTHONPATH`` runs; what the ``site`` module would have done is worked out from the same files instead.

Every section runs in a thread of its own with a time bound. What could not be read has status ``partial`` or
``unknown`` with a
reason, and is never reported as absent. ``main(request)`` is the entry; all keys of the request are optional:

==============  ======================================================================================================
``salt``        text that salts the hashes of redacted values; without it there are no hashes
``deep``        canonical names whose files are verified against RECORD, ``["*"]`` for all
``variables``   further environment variables to record, by name or ``PREFIX_*``
``timeout``     seconds for one section (10); ``deep_timeout`` for the verification (600)
``alone``       whether this process does nothing else, so that it may fork to do the longest sections on several processors
``root``        read an unpacked file system at this directory instead of the running interpreter
==============  ======================================================================================================

Run by itself, ``python3 probe.py`` prints the snapshot of the interpreter that runs it.
"""

from __future__ import annotations

import os
import sys

if __name__ == "__main__" and sys.path and sys.path[0] == os.path.dirname(os.path.abspath(__file__)):
    del sys.path[0]  # where this file lies is no part of the environment, and what lies beside it is not the standard library

import binascii
import bisect
import functools
import hashlib
import itertools
import json
import re
import stat
import struct
import threading
import time

TYPE_CHECKING = False
if TYPE_CHECKING:  # typing costs milliseconds at run time
    from collections.abc import Callable, Iterable, Iterator
    from typing import Any

SCHEMA = "envspec/snapshot/1"
SECTION_SECONDS = 10.0
DEEP_SECONDS = 600.0
MAX_FILE = 64 << 20
NVIDIA_SMI_SECONDS = 15.0
HELPERS = 3


# Files. Everything is read through these: regular files only, so that a FIFO or a device in a metadata directory
# cannot hang us.


class UnreadableError(Exception):
    """A file is there and cannot be read; the message is one sentence."""


def read_bytes(path: str, limit: int = MAX_FILE, head: int | None = None) -> bytes | None:
    """The file's bytes (its first ``head`` if given), or None where there is no such file.

    Raises:
        UnreadableError: it exists and cannot be read, is no regular file, or is larger than ``limit``.
    """
    try:
        handle = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError) as error:
        raise UnreadableError("cannot read %s: %s" % (path, getattr(error, "strerror", None) or error)) from error
    try:
        info = os.fstat(handle)
        if not stat.S_ISREG(info.st_mode):
            raise UnreadableError("%s is not a regular file" % path)
        if head is None and info.st_size > limit:
            raise UnreadableError("%s is larger than %d bytes" % (path, limit))
        left = limit if head is None else head
        size = min(left, info.st_size)
        if size:
            data = os.read(handle, size)
            if len(data) == size:  # files of /proc say 0, and a file may be growing or shrinking
                return data
            chunks = [data]
            left -= len(data)
        else:
            chunks = []
        while left > 0:
            chunk = os.read(handle, min(left, 1 << 16))
            if not chunk:
                break
            chunks.append(chunk)
            left -= len(chunk)
        return b"".join(chunks)
    except OSError as error:
        raise UnreadableError("cannot read %s: %s" % (path, error.strerror or error)) from error
    finally:
        os.close(handle)


def text_or_none(path: str, head: int = 65536) -> str | None:
    """A small text file, stripped; None where it is absent or cannot be read."""
    try:
        data = read_bytes(path, head=head)
    except UnreadableError:
        return None
    return None if data is None else data.decode("utf-8", "replace").strip()


def listing(path: str) -> list[str]:
    """The names in a directory; empty where there is none.

    Raises:
        UnreadableError: it is there and cannot be listed.
    """
    try:
        return os.listdir(path)
    except (FileNotFoundError, NotADirectoryError):
        return []
    except (OSError, ValueError) as error:
        raise UnreadableError("cannot list %s: %s" % (path, getattr(error, "strerror", None) or error)) from error


def canonical(name: str) -> str:
    """PEP 503's normal form of a distribution name."""
    return re.sub(r"[-_.]+", "-", name).lower()


# Redaction, at the source: what is secret never leaves the host.

SECRET_NAME = re.compile(
    r"token|secret|passw|passphrase|pwd|api_?key|credential|auth|cookie|access|private|signature|bearer", re.I
)
URL_USER = re.compile(r"(?P<scheme>[a-zA-Z][\w+.-]*://)[^/@\s'\"]*@")
URL_QUERY = re.compile(
    r"(?P<key>[?&;](?:[\w-]*(?:token|key|secret|passw\w*|sig|signature|auth|credential)[\w-]*)=)[^&;\s'\"]+", re.I
)


def redact_urls(text: str) -> str:
    """The text without user names, passwords and secret query values in its URLs."""
    if "://" in text:
        text = URL_USER.sub(r"\g<scheme>", text)
        text = URL_QUERY.sub(r"\g<key>***", text)
    return text


def salted(salt: str | None, name: str, value: str) -> str | None:
    """64 bits that tell whether two hosts hold the same secret, useless without the salt."""
    if not salt:
        return None
    text = "\0".join((salt, name, value)).encode("utf-8", "surrogateescape")
    return hashlib.sha256(text).hexdigest()[:16]


# Sections


def begin(work: Callable[[], None]) -> Callable[[float], bool]:
    """Start the work in a thread of its own; the function returned waits so many seconds and says whether it has ended.

    On a host that allows no further thread it is done, without that bound, when it is waited for.
    """
    thread = threading.Thread(target=work, daemon=True)
    try:
        thread.start()
    except RuntimeError:

        def do(seconds: float) -> bool:
            work()
            return True

        return do

    def wait(seconds: float) -> bool:
        thread.join(seconds)
        return not thread.is_alive()

    return wait


class Sections:
    """Runs the readers, each in its own thread under a time bound, and keeps what they found and how it went."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.status: dict[str, dict[str, str]] = {}
        self.found: dict[str, Any] = {}

    def start(self, name: str, read: Callable[[dict[str, Any], list[str]], None]) -> Callable[[float | None], None]:
        """Start a reader; the function returned waits for it and keeps its result.

        ``read(out, reasons)`` puts finished values into ``out`` and a sentence into ``reasons`` for what it
        could not read.
        """
        out: dict[str, Any] = {}
        reasons: list[str] = []
        failed: list[str] = []

        def body() -> None:
            try:
                read(out, reasons)
            except UnreadableError as error:
                failed.append(str(error))
            except Exception as error:  # the status is how a reader's failure is told
                failed.append("%s: %s" % (type(error).__name__, error))

        wait = begin(body)

        def finish(seconds: float | None = None) -> None:
            seconds = self.seconds if seconds is None else seconds
            ended = wait(seconds)
            why = list(reasons) + list(failed)
            if not ended:
                why.append("did not finish within %g s" % seconds)
            # Copies: a reader that hangs may come back and write while the answer is being sent.
            kept = {key: list(value) if isinstance(value, list) else value for key, value in list(out.items())}
            self.found.update(kept)
            if not why:
                self.status[name] = {"status": "ok"}
            else:
                known = "partial" if reasons and not failed and ended else "unknown"
                if known == "unknown" and any(kept.values()):
                    known = "partial"
                self.status[name] = {"status": known, "reason": "; ".join(why[:5])[:600]}

        return finish

    def run(self, name: str, read: Callable[[dict[str, Any], list[str]], None], seconds: float | None = None) -> None:
        """Run one reader to its end or its time bound."""
        self.start(name, read)(seconds)

    def mark(self, name: str, status: str, reason: str) -> None:
        """Give a section a status without running anything."""
        self.status[name] = {"status": status, "reason": reason}


# What is done for each of many items is done on several processors, by processes of our own


class Helper:
    """One forked process, which answers requests over a pair of pipes until ours is closed."""

    def __init__(self, blocks: Blocks, others: list[Helper]) -> None:
        """Fork; ``others`` are those forked before, whose pipes the new process must not hold.

        Raises:
            OSError: this host allows no further process or pipe.
        """
        theirs_in, self.requests = os.pipe()
        try:
            self.answers, theirs_out = os.pipe()
        except OSError:
            os.close(theirs_in)
            os.close(self.requests)
            raise
        try:
            self.pid = os.fork()
        except OSError:
            for handle in (theirs_in, theirs_out):
                os.close(handle)
            self.close()
            raise
        if not self.pid:
            try:
                # Whoever waits for this host's output must not wait for a helper that hangs on a dead file system.
                nowhere = os.open(os.devnull, os.O_RDWR)
                for handle in (0, 1, 2):
                    os.dup2(nowhere, handle)
                for helper in [self] + others:
                    helper.close()
                while True:
                    request = receive(theirs_in)
                    if request is None:
                        break
                    send(theirs_out, blocks.work(*request))
            finally:
                os._exit(0)
        os.close(theirs_in)
        os.close(theirs_out)

    def close(self) -> None:
        """Let it end: nobody can ask it any more."""
        os.close(self.requests)
        os.close(self.answers)


def send(handle: int, value: Any) -> None:
    """One value through a pipe."""
    import marshal

    data = marshal.dumps(value)
    view = memoryview(struct.pack("<Q", len(data)) + data)
    while view:
        view = view[os.write(handle, view) :]


def receive(handle: int) -> Any:
    """One value from a pipe, None where its other end was closed before it was whole."""
    import marshal

    head = exactly(handle, 8)
    body = exactly(handle, struct.unpack("<Q", head)[0]) if head is not None else None
    return None if body is None else marshal.loads(body)


def exactly(handle: int, size: int) -> bytes | None:
    """So many bytes of a pipe, None where it ends before."""
    parts = []
    while size:
        part = os.read(handle, min(size, 1 << 20))
        if not part:
            return None
        parts.append(part)
        size -= len(part)
    return b"".join(parts)


class Blocks:
    """The numbers of the blocks of items that nobody has begun, a byte each in a pipe that every process takes the next one from."""

    def __init__(self) -> None:
        self.next, self.offered = os.pipe()
        os.set_blocking(self.next, False)

    def work(self, name: str, where: str, items: list[str], count: int) -> dict[int, list[Any]]:
        """``SHARED[name](where, items)`` for one block of the items after another, until there is none left."""
        done: dict[int, list[Any]] = {}
        while True:
            try:
                number = os.read(self.next, 1)[0]
            except (BlockingIOError, IndexError):
                return done
            done[number] = SHARED[name](where, items[number::count])

    def close(self) -> None:
        """Give the pipe back."""
        os.close(self.next)
        os.close(self.offered)


class Helpers:
    """A few helpers; with none of them, or none left, the work is done here and takes longer.

    They are forked before the first thread of this process starts.
    """

    def __init__(self, most: int) -> None:
        """As many as there are other processors, and not more than ``most``."""
        self.every: list[Helper] = []
        self.blocks: Blocks | None = None
        processors = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        count = min(most, processors - 1) if hasattr(os, "fork") else 0
        try:
            blocks = self.blocks = Blocks() if count > 0 else None
            while blocks is not None and len(self.every) < count:
                self.every.append(Helper(blocks, self.every))
        except OSError:
            pass  # this host allows no more
        self.idle = list(self.every)

    def share(self, name: str, where: str, items: list[str]) -> list[Any]:
        """``SHARED[name](where, items)``, done by all who have nothing else to do."""
        count = min(len(items) // BLOCK, 256)
        if self.blocks is None or not self.idle or count < 2:
            return SHARED[name](where, items)
        os.write(self.blocks.offered, bytes(range(count)))
        request = (name, where, items, count)
        asked = []
        while self.idle:
            helper = self.idle.pop()  # it is back once it has answered: one that hangs is asked nothing more
            try:
                send(helper.requests, request)
            except OSError:
                continue
            asked.append(helper)
        done = self.blocks.work(*request)
        for helper in asked:
            answer = receive(helper.answers)
            if answer is not None:
                done.update(answer)
                self.idle.append(helper)
        out: list[Any] = [None] * len(items)
        for number in range(count):
            # A helper that was killed has taken its block with it.
            out[number::count] = done[number] if number in done else SHARED[name](where, items[number::count])
        return out

    def close(self) -> None:
        """End them all; one that hangs is killed and not waited for."""
        for helper in self.every:
            helper.close()
            try:
                if helper not in self.idle:
                    os.kill(helper.pid, 9)
                os.waitpid(helper.pid, 0 if helper in self.idle else os.WNOHANG)
            except OSError:
                pass
        if self.blocks is not None:
            self.blocks.close()
        self.every, self.idle, self.blocks = [], [], None


# Interpreter


class Python:
    """Where the interpreter's files are, with what the ``site`` module would have made of it."""

    def __init__(self) -> None:
        self.executable = sys.executable or ""
        self.base_prefix = sys.base_prefix
        self.prefix = sys.prefix
        self.config: dict[str, str] | None = None
        here = os.path.dirname(os.path.abspath(self.executable)) if self.executable else ""
        for folder in (here, os.path.dirname(here)):
            text = text_or_none(os.path.join(folder, "pyvenv.cfg")) if folder else None
            if text is not None:
                pairs = [line.partition("=") for line in text.splitlines() if "=" in line]
                self.config = {key.strip().lower(): value.strip() for key, _, value in pairs}
                self.prefix = os.path.dirname(here)
                break
        self.venv = self.config is not None
        self.system_site = (
            not self.venv or (self.config or {}).get("include-system-site-packages", "").lower() == "true"
        )

    def read(self, out: dict[str, Any], reasons: list[str]) -> None:
        """The sections ``interpreter`` and ``markers``."""
        version = sys.version_info
        label = {"alpha": "a", "beta": "b", "candidate": "rc"}.get(version.releaselevel)
        full = "%d.%d.%d" % version[:3] + ("%s%d" % (label, version.serial) if label else "")
        creator = None
        if self.config is not None:
            creator = "uv" if "uv" in self.config else "virtualenv" if "virtualenv" in self.config else "venv"
        marker = os.path.join(os.path.dirname(os.path.abspath(os.__file__)), "EXTERNALLY-MANAGED")
        gil = getattr(sys, "_is_gil_enabled", None)
        suffix = extension_suffixes()[0] if extension_suffixes() else ""
        out["interpreter"] = {
            "implementation": sys.implementation.name,
            "version": full,
            "executable": self.executable,
            "real_executable": os.path.realpath(self.executable) if self.executable else None,
            "prefix": self.prefix,
            "base_prefix": self.base_prefix,
            "venv": self.venv,
            "system_site": self.system_site,
            "conda": os.path.isdir(os.path.join(self.base_prefix, "conda-meta")),
            "venv_creator": creator,
            "soabi": suffix.split(".")[1] if suffix.count(".") == 2 else None,
            "platform": platform_name(),
            "pointer_bits": struct.calcsize("P") * 8,
            "byteorder": sys.byteorder,
            "debug": hasattr(sys, "gettotalrefcount"),
            "free_threaded": bool(gil) and "t" in getattr(sys, "abiflags", ""),
            "externally_managed": os.path.exists(marker) and not self.venv,
            "build": " ".join(sys.version.split()),
        }
        out["markers"] = markers(full)


def extension_suffixes() -> list[str]:
    """The suffixes under which this interpreter finds compiled modules."""
    import _imp

    return list(_imp.extension_suffixes())


def platform_name() -> str:
    """``sysconfig.get_platform()``, without loading it where its answer is known: that takes milliseconds."""
    if sys.platform.startswith("linux"):
        return ("linux-%s" % os.uname().machine).replace(" ", "_").replace("/", "-")
    else:
        import sysconfig

        return sysconfig.get_platform()


def markers(full: str) -> dict[str, str]:
    """PEP 508's environment markers, as ``packaging`` computes them."""
    version = sys.implementation.version
    implementation_version = "%d.%d.%d" % version[:3]
    if version.releaselevel != "final":
        implementation_version += version.releaselevel[0] + str(version.serial)
    if hasattr(os, "uname") and sys.implementation.name == "cpython":
        system, _, release, kernel, machine = os.uname()
        implementation = "CPython"
    else:
        import platform

        system, _, release, kernel, machine, _ = platform.uname()
        implementation = platform.python_implementation()
    return {
        "implementation_name": sys.implementation.name,
        "implementation_version": implementation_version,
        "os_name": os.name,
        "platform_machine": machine,
        "platform_python_implementation": implementation,
        "platform_release": release,
        "platform_system": system,
        "platform_version": kernel,
        "python_full_version": full,
        "python_version": "%d.%d" % sys.version_info[:2],
        "sys_platform": sys.platform,
    }


def read_system(out: dict[str, Any], reasons: list[str]) -> None:
    """C library, operating system and processor."""
    try:
        name = os.confstr("CS_GNU_LIBC_VERSION")
    except (AttributeError, ValueError, OSError):
        name = None
    if name:
        family, _, version = name.partition(" ")
        out["libc"] = {"family": family, "version": version or None}
    else:
        musl = sorted(entry for entry in listing("/lib") if entry.startswith("ld-musl-"))
        if musl:
            data = read_bytes("/lib/" + musl[0], head=4 << 20) or b""
            match = re.search(rb"\0(1\.\d+\.\d+)\0", data)
            out["libc"] = {"family": "musl", "version": match.group(1).decode("ascii") if match else None}
    fields = {}
    for line in (text_or_none("/etc/os-release") or "").splitlines():
        key, _, value = line.partition("=")
        fields[key] = value.strip().strip("'\"")
    out["os"] = {
        "id": fields.get("ID"),
        "version": fields.get("VERSION_ID"),
        "name": fields.get("PRETTY_NAME"),
        "kernel": os.uname().release if hasattr(os, "uname") else None,
    }
    info = text_or_none("/proc/cpuinfo", 16384) or ""
    model = re.search(r"^(?:model name|Model|cpu)\s*:\s*(.+)$", info, re.M)
    flags = re.search(r"^(?:flags|Features)\s*:\s*(.+)$", info, re.M)
    wanted = re.compile(r"^(avx|fma$|f16c$|amx|vnni|bf16|sse4|sve|asimd|i8mm|dotprod)")
    out["cpu"] = {
        "model": model.group(1).strip() if model else None,
        "architecture": os.uname().machine if hasattr(os, "uname") else None,
        "flags": sorted({flag for flag in flags.group(1).split() if wanted.match(flag)}) if flags else [],
    }


# sys.path, as the site module would build it


class SearchPath:
    """``sys.path`` of a script run by this interpreter, without the script's own directory, and what put each
    entry there."""

    def __init__(self) -> None:
        self.entries: list[dict[str, Any]] = []
        self.hooks: list[dict[str, Any]] = []
        self.known: set[str] = set()
        self.listings: dict[str, list[str]] = {}

    def add(self, path: str, origin: str, by: str | None = None, must_exist: bool = False) -> bool:
        """Append an entry unless it is there already; whether it was appended."""
        path = os.path.abspath(path)
        key = os.path.normcase(path)
        if key in self.known:
            return False
        try:
            mode = os.stat(path).st_mode
            kind = "directory" if stat.S_ISDIR(mode) else "archive"
        except (FileNotFoundError, NotADirectoryError):
            kind = "missing"
        except (OSError, ValueError):
            kind = "unknown"
        if must_exist and kind == "missing":
            return False
        self.known.add(key)
        entry: dict[str, Any] = {"path": path, "origin": origin, "kind": kind}
        if by:
            entry["by"] = by
        self.entries.append(entry)
        return True

    def add_site(self, folder: str, origin: str, reasons: list[str]) -> None:
        """A site directory: the entry itself, then the path lines of its ``.pth`` files; import lines are
        only noted."""
        before = os.path.normcase(os.path.abspath(folder)) in self.known
        if not before and not os.path.isdir(folder):
            return
        self.add(folder, origin)
        try:
            names = listing(folder)
        except UnreadableError as error:
            reasons.append(str(error))
            return
        self.listings[os.path.abspath(folder)] = names
        for name in sorted(names):
            if name.endswith(".pth") and not name.startswith("."):
                self.read_pth(os.path.join(folder, name), folder, reasons)
            elif name.endswith(".start") and sys.version_info >= (3, 15):
                self.hooks.append({"kind": "start", "path": os.path.join(folder, name)})
            elif name in ("sitecustomize.py", "usercustomize.py"):
                self.hooks.append({"kind": name[:-3], "path": os.path.join(folder, name)})

    def read_pth(self, path: str, folder: str, reasons: list[str]) -> None:
        """One ``.pth`` file, as ``site.addpackage`` reads it."""
        try:
            data = read_bytes(path, limit=4 << 20)
        except UnreadableError as error:
            reasons.append(str(error))
            return
        text = (data or b"").decode("utf-8-sig", "replace")
        for line in text.splitlines():
            line = line.rstrip()
            if not line.strip() or line.startswith("#"):
                continue
            if line.startswith(("import ", "import\t")):
                hook: dict[str, Any] = {"kind": "pth", "path": path, "line": line[:400]}
                finder = re.match(r"import\s+(__editable__\w+_finder)\b", line)
                mapping = editable_mapping(os.path.join(folder, finder.group(1) + ".py")) if finder else None
                if mapping is not None:
                    hook["kind"], hook["mapping"] = "editable", mapping
                self.hooks.append(hook)
            elif "\0" not in line:
                self.add(os.path.join(folder, line), "pth", path, must_exist=True)

    def build(self, python: Python, reasons: list[str]) -> None:
        """Fill the entries for the running interpreter."""
        for item in os.environ.get("PYTHONPATH", "").split(os.pathsep) if os.environ.get("PYTHONPATH") else ():
            self.add(item or os.getcwd(), "pythonpath", "PYTHONPATH")
            for name in ("sitecustomize.py", "usercustomize.py"):
                if os.path.exists(os.path.join(item, name)):
                    self.hooks.append({"kind": name[:-3], "path": os.path.join(item, name)})
        for item in sys.path:
            self.add(item, "stdlib")
        import site  # under -S importing it runs nothing

        prefixes = [sys.prefix, sys.exec_prefix]
        if python.venv:
            saved = sys.prefix, sys.exec_prefix
            # Debian's getsitepackages tells a venv by these.
            sys.prefix = sys.exec_prefix = python.prefix
            try:
                folders = site.getsitepackages([python.prefix])
            finally:
                sys.prefix, sys.exec_prefix = saved
            for folder in folders:
                self.add_site(folder, "venv", reasons)
            prefixes = [python.base_prefix, sys.base_exec_prefix] if python.system_site else []
        if python.system_site and user_site_enabled():
            self.add_site(user_site(site), "user", reasons)
        if prefixes:
            for folder in site.getsitepackages(prefixes):
                self.add_site(folder, "site", reasons)
        for name in ("sitecustomize.py", "usercustomize.py"):
            for entry in self.entries:
                if entry["origin"] == "stdlib" and entry["kind"] == "directory":
                    path = os.path.join(entry["path"], name)
                    if os.path.exists(path):
                        self.hooks.append({"kind": name[:-3], "path": path})

    def read(self, python: Python, out: dict[str, Any], reasons: list[str]) -> None:
        """The section ``path``."""
        out["path"] = self.entries
        out["hooks"] = self.hooks
        self.build(python, reasons)


def user_site_enabled() -> bool:
    """What ``site.check_enableusersite`` says without our own ``-s``."""
    if os.environ.get("PYTHONNOUSERSITE"):
        return False
    if hasattr(os, "getuid") and (os.geteuid() != os.getuid() or os.getegid() != os.getgid()):
        return False
    return True


def user_site(site: Any) -> str:
    """The user site directory; ``PYTHONUSERBASE`` counts although the interpreter runs with ``-E``."""
    site.USER_BASE = site.USER_SITE = None
    return str(site.getusersitepackages())


def editable_mapping(path: str) -> dict[str, str] | None:
    """The ``MAPPING`` of a setuptools editable finder, read without running it; None where there is none to read."""
    try:
        data = read_bytes(path, limit=4 << 20)
    except UnreadableError:
        return None
    match = re.search(rb"^MAPPING\b[^=\n]*=\s*(\{.*?\})\s*$", data or b"", re.M | re.S)
    if not match:
        return None
    import ast

    try:
        table = ast.literal_eval(match.group(1).decode("utf-8"))
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return None
    return {str(name): str(where) for name, where in table.items()} if isinstance(table, dict) else None


# Distributions

HEADERS = {
    name: name.decode("ascii")
    for name in (
        b"name",
        b"version",
        b"requires-dist",
        b"requires-python",
        b"provides-extra",
        b"import-name",
        b"import-namespace",
    )
}
SHARED_PATHS_KEPT = 20


SEVERAL = -1
"""Stands for the index of a distribution where a folder has files of several."""


class Location:
    """One directory of ``sys.path``: its distributions, and which file belongs to which."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.distributions: list[dict[str, Any]] = []
        self.leftovers: list[dict[str, str]] = []
        self.tops: dict[int, list[bytes]] = {}  # index of the distribution -> first components of what RECORD lists
        self.owned: set[str] = set()  # top-level names some distribution owns
        self.names: list[str] = []
        self.natives: list[tuple[int, str]] = []  # (index of the distribution, path relative to the location)
        self.shared: list[dict[str, Any]] = []
        self._owners: dict[bytes, int] | None = None

    def scan(self, names: list[str], reasons: list[str], helpers: Helpers) -> None:
        """Read every distribution among the directory's names."""
        self.names = names
        usual = [name for name in names if name.endswith(".dist-info") and not name.startswith("~")]
        infos = dict(zip(usual, helpers.share("dist_infos", self.path, usual)))  # noqa: B905 (strict= is 3.10)
        for name in sorted(names):
            if name.startswith("~"):
                self.leftovers.append({"path": os.path.join(self.path, name), "name": name})
            elif name in infos:
                self.take(infos[name], reasons)
            elif name.endswith(".egg-info"):
                self.egg_info(name, reasons)
            elif name.endswith(".egg-link"):
                self.egg_link(name, reasons)
        self.find_shared()

    # One metadata directory

    def take(self, info: dict[str, Any], reasons: list[str]) -> None:
        """Keep what `dist_info` found."""
        reasons.extend(info["reasons"])
        if "dist" not in info:
            return
        index = len(self.distributions)
        self.distributions.append(info["dist"])
        if info["tops"]:
            self.tops[index] = info["tops"]
        self.natives.extend([(index, where) for where in info["natives"]])
        self.finish(info["dist"], info["modules"], info["problems"])

    def dist_info(self, name: str) -> dict[str, Any]:
        """A ``*.dist-info`` directory: ``dist`` unless it is none, ``modules``, ``problems``, RECORD's ``tops`` and ``natives``, and
        the ``reasons`` why something could not be read."""
        folder = os.path.join(self.path, name)
        problems: list[dict[str, str]] = []
        reasons: list[str] = []
        try:
            files = set(os.listdir(folder))
        except NotADirectoryError:
            return {"reasons": reasons}
        except OSError as error:
            reasons.append("cannot list %s: %s" % (folder, error.strerror or error))
            problems.append(problem("unreadable", "its metadata directory cannot be listed", folder))
            files = set()
        dist = self.described(name[: -len(".dist-info")], folder, "METADATA" if "METADATA" in files else None, problems)
        dist["format"] = "dist-info"
        if "WHEEL" in files:
            read_wheel(os.path.join(folder, "WHEEL"), dist, problems)
        if "INSTALLER" in files:
            dist["installer"] = (text_or_none(os.path.join(folder, "INSTALLER"), 200) or "").split("\n")[0] or None
        if "REQUESTED" in files:
            dist["requested"] = True
        if "variant.json" in files:
            dist["variant_label"] = variant_label(os.path.join(folder, "variant.json"))
        if "direct_url.json" in files:
            dist["origin"] = read_direct_url(os.path.join(folder, "direct_url.json"), problems)
        elif dist.get("installer") == "conda":
            dist["origin"] = {"kind": "conda"}
        elif self.path.endswith("dist-packages") and self.path.startswith("/usr/lib/"):
            dist["origin"] = {"kind": "system"}
        elif "RECORD" in files:
            dist["origin"] = {"kind": "index"}
        modules: list[str] = []
        tops: list[bytes] = []
        natives: list[str] = []
        if "RECORD" in files:
            modules, tops, natives = self.record(dist, folder, name, problems)
        elif dist.get("origin", {}).get("kind") not in ("system", "conda") and files:
            problems.append(problem("no-record", "it has no RECORD, so its files cannot be told or verified", folder))
        if not modules and "top_level.txt" in files:
            modules = self.top_level(os.path.join(folder, "top_level.txt"))
        return {"dist": dist, "modules": modules, "problems": problems, "tops": tops, "natives": natives, "reasons": reasons}

    def egg_info(self, name: str, reasons: list[str]) -> None:
        """A ``*.egg-info`` directory or file (distutils, setuptools develop, Debian)."""
        folder = os.path.join(self.path, name)
        problems: list[dict[str, str]] = []
        single = os.path.isfile(folder)
        try:
            files = set() if single else set(os.listdir(folder))
        except OSError as error:
            reasons.append("cannot list %s: %s" % (folder, error.strerror or error))
            problems.append(problem("unreadable", "its metadata directory cannot be listed", folder))
            files = set()
        if not single and not files:
            # An empty directory is what a build leaves beside a source tree: no distribution for pip either, unless
            # damaged.
            if not problems:
                return
        metadata = "" if single else "PKG-INFO" if "PKG-INFO" in files else None
        dist = self.described(name[: -len(".egg-info")], folder, metadata, problems, egg=True)
        dist["format"] = "egg-info"
        if self.path.startswith("/usr/lib/") and self.path.endswith("dist-packages"):
            dist["origin"] = {"kind": "system"}
        if "requires.txt" in files and not dist.get("requires"):
            dist["requires"] = requires_txt(os.path.join(folder, "requires.txt"))
        modules = self.top_level(os.path.join(folder, "top_level.txt")) if "top_level.txt" in files else []
        self.distributions.append(dist)
        self.finish(dist, modules, problems)

    def egg_link(self, name: str, reasons: list[str]) -> None:
        """An ``.egg-link``: setuptools' old develop install; the metadata is in the directory it names."""
        path = os.path.join(self.path, name)
        text = text_or_none(path) or ""
        target = text.split("\n")[0].strip()
        if not target:
            reasons.append("%s names no directory" % path)
            return
        stem = canonical(name[: -len(".egg-link")])
        source = Location(os.path.join(self.path, target))
        try:
            found = [item for item in listing(source.path) if item.endswith(".egg-info")]
        except UnreadableError as error:
            reasons.append(str(error))
            return
        for item in found:
            if canonical(item[: -len(".egg-info")].split("-")[0]) == stem:
                source.egg_info(item, reasons)
        for dist in source.distributions:
            dist["format"] = "egg-link"
            dist["location"] = self.path
            dist["origin"] = {"kind": "editable", "url": "file://" + source.path}
            self.distributions.append(dist)

    def described(
        self, stem: str, folder: str, metadata: str | None, problems: list[dict[str, str]], egg: bool = False
    ) -> dict[str, Any]:
        """A distribution with what its METADATA says; name and version fall back to the directory's name."""
        # egg-info: name-version-pyX.Y[-platform]; dist-info: name-version. Names hold no dash when written by a tool.
        parts = stem.split("-")
        folder_name, folder_version = parts[0], parts[1] if len(parts) > 1 else None
        if egg and folder_version and re.match(r"py\d", folder_version):
            folder_version = None
        dist: dict[str, Any] = {"location": self.path, "metadata_path": folder}
        fields: dict[str, list[str]] = {}
        if metadata is None:
            problems.append(problem("no-metadata", "it has no METADATA; name and version are the directory's", folder))
        else:
            path = os.path.join(folder, metadata) if metadata else folder
            try:
                fields = read_headers(path, problems)
            except UnreadableError as error:
                problems.append(problem("unreadable", str(error), path))
            else:
                if not fields.get("name"):
                    problems.append(problem("no-name", "its METADATA has no Name; the directory's is used", path))
                if not fields.get("version"):
                    problems.append(problem("no-version", "its METADATA has no Version; the directory's is used", path))
        name = (fields.get("name") or [folder_name])[0]
        version = fields["version"][0] if fields.get("version") else folder_version
        dist["name"], dist["raw_name"], dist["version"] = canonical(name), name, version
        if not egg and folder_version is not None:
            if fields.get("name") and canonical(folder_name) != canonical(name):
                detail = "METADATA says %s, its directory %s" % (name, folder_name)
                problems.append(problem("name-mismatch", detail, folder))
            if fields.get("version") and loose_version(folder_version) != loose_version(version or ""):
                detail = "METADATA says %s, its directory %s" % (version, folder_version)
                problems.append(problem("version-mismatch", detail, folder))
        for key, field in (
            ("requires-dist", "requires"),
            ("provides-extra", "extras"),
            ("import-name", "import_names"),
            ("import-namespace", "import_namespaces"),
        ):
            if fields.get(key):
                dist[field] = [redact_urls(item) for item in fields[key]]
        if fields.get("requires-python"):
            dist["requires_python"] = fields["requires-python"][0]
        return dist

    def finish(self, dist: dict[str, Any], modules: list[str], problems: list[dict[str, str]]) -> None:
        """Put in what every kind of distribution has."""
        if modules:  # what lies below a top-level name is never listed without it
            self.owned.update([module for module in modules if "." not in module])
            dist["modules"] = modules
        if problems:
            dist["problems"] = problems

    def top_level(self, path: str) -> list[str]:
        """Modules from ``top_level.txt``, with the second level listed from the directories."""
        out: set[str] = set()
        for name in (text_or_none(path) or "").split():
            name = name.replace("/", ".").partition(".")[0]
            if not name.isidentifier():
                continue
            out.add(name)
            try:
                inside = listing(os.path.join(self.path, name))
            except UnreadableError:
                continue
            out.update("%s.%s" % (name, item) for item in importable(inside) if item != "__init__")
        return sorted(out)

    # RECORD

    def record(
        self, dist: dict[str, Any], folder: str, name: str, problems: list[dict[str, str]]
    ) -> tuple[list[str], list[bytes], list[str]]:
        """Modules, first components and native files from RECORD, and in ``dist`` the content digest and scripts."""
        path = os.path.join(folder, "RECORD")
        try:
            data = read_bytes(path) or b""
        except UnreadableError as error:
            problems.append(problem("unreadable", str(error), path))
            dist["record"] = "damaged"
            return [], [], []
        lines, bad = record_lines(data)
        if bad:
            detail = "%d of its RECORD's lines cannot be read" % bad
            problems.append(problem("record-damaged", detail, path))
        if not lines:
            dist["record"] = "damaged" if bad else "empty"
            return [], [], []
        dist["record"] = "damaged" if bad else "ok"
        prefix = name.encode("utf-8", "surrogateescape") + b"/"
        # An environment has 50 to 100 thousand lines. What is common to a block of the sorted list is asked once a block.
        content = list(lines)
        if dist.get("origin", {}).get("kind") == "editable":
            # What points to the source holds its path; it says nothing of the content.
            content = [line for line in content if b"/" in line.partition(b",")[0] or b".pth," not in line]
        odd: list[bytes] = []
        for start in (prefix, b"../", b"/", b"__editable__"):
            first, last = block(content, start)
            odd += content[first:last]
            del content[first:last]
        modules = module_names(code_pairs(content))
        if odd:
            content.extend(self.odd_lines(dist, odd, prefix))
            content.sort()
        blob = b"\n".join(content)
        dist["content"] = "sha256:" + hashlib.sha256(blob).hexdigest()
        dist["files"] = len(lines)
        natives = []
        at = blob.find(b".so")
        while at >= 0:
            end = blob.find(b"\n", at)
            where = blob[blob.rfind(b"\n", 0, at) + 1 : len(blob) if end < 0 else end].partition(b",")[0]
            if where.endswith(b".so") or b".so." in where:
                natives.append(where.decode("utf-8", "surrogateescape"))
            at = blob.find(b".so", end) if end >= 0 else -1
        return modules, list(first_components(lines)), natives

    def odd_lines(self, dist: dict[str, Any], lines: list[bytes], prefix: bytes) -> Iterator[bytes]:
        """What the lines inside the metadata directory and outside the location add to the content."""
        scripts = []
        for line in lines:
            if line.startswith(prefix):
                where, digest, _ = line.split(b",")
                if where == prefix + b"entry_points.txt":
                    yield b"entry_points.txt," + digest
                elif where == prefix + b"METADATA" and digest:
                    dist["metadata"] = digest.decode("ascii", "replace").replace("=", ":", 1)
            elif line.startswith((b"../", b"/")):
                where = line.partition(b",")[0]
                head, _, tail = where.rpartition(b"/")
                if head.endswith((b"/bin", b"/Scripts")):
                    # An installer writes a launcher with its own interpreter's path; the name is what is common.
                    scripts.append(tail.decode("utf-8", "replace"))
                    yield b"bin/" + tail
                elif line.startswith(b"../"):
                    yield line
        if scripts:
            dist["scripts"] = sorted(scripts)

    def find_shared(self) -> None:
        """Files that two distributions both own."""
        tops: dict[bytes, list[int]] = {}
        for index, components in self.tops.items():
            for top in components:
                tops.setdefault(top, []).append(index)
        sharing = sorted({index for owners in tops.values() if len(owners) > 1 for index in owners})
        files = {index: {where for where, _, _ in self.rows(index)} for index in sharing}
        seen: set[bytes] = set()
        twice: set[bytes] = set()
        for here in files.values():
            twice |= seen & here
            seen |= here
        if not twice:
            return
        groups: dict[tuple[int, ...], list[bytes]] = {}
        for where in sorted(twice):
            owners = tuple(index for index in sharing if where in files[index])
            groups.setdefault(owners, []).append(where)
        for owners, paths in groups.items():
            hashes = [self.hashes(index, paths) for index in owners]
            self.shared.append(
                {
                    "owners": [self.distributions[index]["name"] for index in owners],
                    "paths": [where.decode("utf-8", "replace") for where in paths[:SHARED_PATHS_KEPT]],
                    "count": len(paths),
                    "same": all(other == hashes[0] for other in hashes[1:]) and b"" not in hashes[0],
                }
            )

    def rows(self, index: int) -> Iterator[tuple[bytes, bytes, bytes]]:
        """RECORD of one distribution, read again: few are needed twice, and all of them together are megabytes."""
        try:
            data = read_bytes(os.path.join(self.distributions[index]["metadata_path"], "RECORD")) or b""
        except UnreadableError:
            data = b""
        return record_rows(data)

    def of_others(self, path: str, index: int) -> bool:
        """Whether another distribution's RECORD lists this file, or files in this folder."""
        if self._owners is None:  # of little use and not cheap where no file was added
            self._owners = {}
            for owner in self.tops:
                for where, _, _ in self.rows(owner):
                    while where and self._owners.get(where) not in (owner, SEVERAL):
                        self._owners[where] = owner if where not in self._owners else SEVERAL
                        where = where.rpartition(b"/")[0]
        return self._owners.get(path.replace(",", "%2C").encode("utf-8", "surrogateescape"), index) != index

    def hashes(self, index: int, paths: list[bytes]) -> list[bytes]:
        """The recorded hashes of some files of one distribution; empty where there is none."""
        table = {where: digest for where, digest, _ in self.rows(index)}
        return [table.get(where, b"") for where in paths]


def read_dist_infos(path: str, names: list[str]) -> list[dict[str, Any]]:
    """`Location.dist_info` of several names of one directory."""
    location = Location(path)
    return [location.dist_info(name) for name in names]


def block(lines: list[bytes], start: bytes) -> tuple[int, int]:
    """The range of a sorted list whose items begin with ``start``."""
    return bisect.bisect_left(lines, start), bisect.bisect_left(lines, start[:-1] + bytes((start[-1] + 1,)))


def code_pairs(lines: list[bytes]) -> set[bytes]:
    """``first/second`` of the sorted RECORD lines that are code, with a ``/`` at the end where second is a directory."""
    pairs = set()
    at = 0
    while at < len(lines):
        first, slash, rest = lines[at].partition(b"/")
        second, deeper, _ = rest.partition(b"/")
        if slash and deeper:
            start = first + b"/" + second + b"/"
            end = block(lines, start)[1]
            # Most directories with code say so by one name; others, such as thousands of static files, are searched at once.
            known = bisect.bisect_left(lines, start + b"__init__.py,", at, end)
            if known < end and lines[known].startswith(start + b"__init__.py,"):
                pairs.add(start)
            else:
                inside = b"\n".join(lines[at:end])
                if b".py," in inside or b".so," in inside or b".pyd," in inside:
                    pairs.add(start)
            at = end
            continue
        where = lines[at].partition(b",")[0]
        if where.endswith((b".py", b".so", b".pyd")):
            pairs.add(where)
        at += 1
    return pairs


def first_components(lines: list[bytes]) -> Iterator[bytes]:
    """The first path components of sorted RECORD lines, each once; those outside the location are left out."""
    at = 0
    while at < len(lines):
        top, slash, _ = lines[at].partition(b"/")
        if not slash:
            yield top.partition(b",")[0]
            at += 1
            continue
        if top not in (b"..", b""):
            yield top
        at = block(lines, top + b"/")[1]


def problem(kind: str, detail: str, path: str) -> dict[str, str]:
    """A problem of a distribution's metadata; the kinds are listed at ``envspec.snapshot.Problem``."""
    return {"kind": kind, "detail": detail[:400], "path": path}


def loose_version(text: str) -> str:
    """A version spelling in which only real differences remain: a directory name escapes ``-`` and ``+``, and
    drops zeros."""
    text = re.sub(r"[-_.+!]+", ".", text.lower().lstrip("v"))
    return re.sub(r"(?:\.0)+$", "", text)


def read_headers(path: str, problems: list[dict[str, str]]) -> dict[str, list[str]]:
    """The core metadata's header fields that matter, keys in lower case; the description is not read.

    Raises:
        UnreadableError: the file cannot be read.
    """
    data = read_bytes(path, head=16384) or b""
    if len(data) == 16384 and b"\n\n" not in data and b"\n\r\n" not in data:
        data = read_bytes(path, limit=4 << 20) or b""
    data, fields = parse_headers(data)
    try:
        data.decode("utf-8")
    except UnicodeDecodeError:
        problems.append(problem("not-utf8", "its METADATA is not UTF-8; importlib.metadata fails on it", path))
    return fields


def parse_headers(data: bytes) -> tuple[bytes, dict[str, list[str]]]:
    """The header block of core metadata, and the fields of it that matter."""
    if b"\r" in data:
        data = data.replace(b"\r\n", b"\n")
    data = data.partition(b"\n\n")[0]
    found: list[tuple[str, bytes]] = []
    key = None
    for line in data.split(b"\n"):
        if line[:1] in (b" ", b"\t"):  # the field above goes on
            if key is not None:
                found[-1] = (key, found[-1][1] + line)
            continue
        name, colon, value = line.partition(b":")
        key = HEADERS.get(name.strip().lower()) if colon else None
        if key is not None:
            found.append((key, value))
    fields: dict[str, list[str]] = {}
    for key, value in found:
        text = " ".join(value.decode("utf-8", "replace").split())
        if text:
            fields.setdefault(key, []).append(text)
    return data, fields


def read_wheel(path: str, dist: dict[str, Any], problems: list[dict[str, str]]) -> None:
    """Tags and build number from WHEEL."""
    try:
        text = (read_bytes(path, limit=1 << 20) or b"").decode("utf-8", "replace")
    except UnreadableError as error:
        problems.append(problem("wheel-damaged", str(error), path))
        return
    tags = re.findall(r"^Tag:[ \t]*(\S+)", text, re.M)
    if tags:
        dist["tags"] = sorted(tags)
    build = re.search(r"^Build:[ \t]*(\S+)", text, re.M)
    if build:
        dist["build"] = build.group(1)
    if not tags and "Wheel-Version" not in text:
        problems.append(problem("wheel-damaged", "its WHEEL file has no Wheel-Version and no Tag", path))


def variant_label(path: str) -> str | None:
    """The label of a PEP 825 variant wheel, where there is exactly one."""
    try:
        data = json.loads((read_bytes(path, limit=1 << 20) or b"").decode("utf-8"))
        (label,) = data["variants"]
    except (UnreadableError, ValueError, KeyError, TypeError):
        return None
    return str(label)


def requires_txt(path: str) -> list[str]:
    """``requires.txt`` of an egg-info, as Requires-Dist lines."""
    out = []
    condition = ""
    for line in (text_or_none(path, 1 << 20) or "").splitlines():
        line = line.strip()
        if line.startswith("[") and line.endswith("]"):
            extra, _, marker = line[1:-1].partition(":")
            terms = (["(%s)" % marker] if marker else []) + (['extra == "%s"' % extra] if extra else [])
            condition = "; " + " and ".join(terms) if terms else ""
        elif line and not line.startswith("#"):
            out.append(redact_urls(line + condition))
    return out


def read_direct_url(path: str, problems: list[dict[str, str]]) -> dict[str, Any]:
    """PEP 610's ``direct_url.json``, with git's word on a local directory."""
    try:
        data = json.loads((read_bytes(path, limit=1 << 20) or b"").decode("utf-8"))
    except (UnreadableError, ValueError, RecursionError) as error:
        problems.append(problem("direct-url-damaged", "its direct_url.json cannot be read: %s" % error, path))
        return {"kind": "unknown", "note": "direct_url.json cannot be read"}
    url = data.get("url") if isinstance(data, dict) else None
    infos = [key for key in ("vcs_info", "archive_info", "dir_info") if isinstance(data, dict) and key in data]
    if not isinstance(url, str) or len(infos) != 1 or not isinstance(data[infos[0]], dict):
        detail = "its direct_url.json has no url with exactly one of vcs_info, archive_info, dir_info"
        problems.append(problem("direct-url-damaged", detail, path))
        return {"kind": "unknown", "note": "direct_url.json is damaged"}
    info = data[infos[0]]
    origin: dict[str, Any] = {"url": redact_urls(url)[:2000]}
    if isinstance(data.get("subdirectory"), str):
        origin["subdirectory"] = data["subdirectory"]
    if infos[0] == "vcs_info":
        origin["kind"] = "vcs"
        for key, field in (("vcs", "vcs"), ("commit_id", "commit"), ("requested_revision", "requested_revision")):
            if isinstance(info.get(key), str):
                origin[field] = info[key]
    elif infos[0] == "archive_info":
        origin["kind"] = "archive"
        hashes = info.get("hashes")
        if isinstance(hashes, dict):
            origin["hashes"] = {str(key): str(value) for key, value in hashes.items()}
        elif isinstance(info.get("hash"), str) and "=" in info["hash"]:
            origin["hashes"] = dict([info["hash"].split("=", 1)])
    else:
        origin["kind"] = "editable" if info.get("editable") is True else "directory"
    return origin


def record_lines(data: bytes) -> tuple[list[bytes], int]:
    """RECORD's rows as ``path,hash,size``, sorted, without quoting and bytecode; and how many rows could not be read."""
    # The csv module ends its lines with \r\n; to replace these takes three times as long, and only a quoted field can hold others.
    lines = data.replace(b"\r\n", b"\n").split(b"\n") if b'"' in data else data.splitlines()
    while lines and not lines[-1]:
        lines.pop()
    bytecode = data.count(b".pyc,")
    if bytecode:  # an installer's own
        every = lines
        lines = [line for line in every if line[-6:] != b".pyc,,"]  # a quarter of the time of `in`
        if bytecode != len(every) - len(lines):
            lines = [line for line in lines if b".pyc," not in line]
    lines.sort()
    first, last = block(lines, b",")
    broken = first != last or b"\0" in data or b'"' in data
    if not broken and set(map(bytes.count, lines, itertools.repeat(b","))) == {2}:
        return lines, 0
    good, bad = [], 0
    for line in lines:
        if b'"' in line:
            line = unquoted(line)
        if line.count(b",") == 2 and line[0] != 44 and b"\0" not in line:
            good.append(line)
        elif line.strip():
            bad += 1
    good.sort()
    return good, bad


def unquoted(line: bytes) -> bytes:
    """A row with quoting, without it; a comma inside the path is escaped, so that rows stay three fields."""
    import csv

    try:
        row = next(csv.reader([line.decode("utf-8", "surrogateescape")], strict=True))
    except (csv.Error, StopIteration):
        return b"?"
    return ",".join([field.replace(",", "%2C") for field in row]).encode("utf-8", "surrogateescape")


def record_rows(data: bytes) -> Iterator[tuple[bytes, bytes, bytes]]:
    """RECORD's rows as (path, hash, size)."""
    for line in record_lines(data)[0]:
        where, digest, size = line.split(b",")
        yield where, digest, size


def importable(names: Iterable[str]) -> set[str]:
    """The module names among a directory's names: packages, ``.py`` files, extensions of this interpreter."""
    suffixes = tuple(extension_suffixes()) + (".py",)
    out = set()
    for name in names:
        stem, dot, _ = name.partition(".")
        if stem.isidentifier() and stem != "__pycache__" and (not dot or name[len(stem) :] in suffixes):
            out.add(stem)
    return out


def module_names(pairs: set[bytes]) -> list[str]:
    """Dotted names, two levels, from ``first/second`` pairs; a trailing ``/`` on the second marks a directory."""
    suffixes = tuple(extension_suffixes()) + (".py",)
    out: set[str] = set()
    for pair in pairs:
        first, _, second = pair.decode("utf-8", "replace").partition("/")
        if not second:
            stem, _, rest = first.partition(".")
            if stem.isidentifier() and "." + rest in suffixes:
                out.add(stem)
            continue
        if not first.isidentifier():
            continue
        out.add(first)
        if second.endswith("/"):
            if second[:-1].isidentifier() and second != "__pycache__/":
                out.add(first + "." + second[:-1])
        else:
            stem, _, rest = second.partition(".")
            if stem.isidentifier() and stem != "__init__" and "." + rest in suffixes:
                out.add(first + "." + stem)
    return sorted(out)


class Distributions:
    """All locations of the search path, and what only shows when they are seen together."""

    def __init__(self, path: SearchPath, python: Python | None, sections: Sections, helpers: Helpers | None = None) -> None:
        self.path = path
        self.python = python
        self.sections = sections
        self.helpers = helpers or Helpers(0)
        self.locations: list[Location] = []

    def read(self, out: dict[str, Any], reasons: list[str]) -> None:
        """The section ``distributions``. Each location has a thread and a time bound of its own."""
        for key in ("distributions", "leftovers", "shared_files"):
            out[key] = []
        for entry in self.path.entries:
            if entry["kind"] == "missing" or (entry["origin"] == "stdlib" and not self.may_hold(entry)):
                continue
            if entry["kind"] == "unknown":
                reasons.append("%s cannot be looked at" % entry["path"])
                continue
            location = Location(entry["path"])
            trouble: list[str] = []
            wait = begin(functools.partial(self.guarded, location, entry, trouble))
            if not wait(self.sections.seconds):
                reasons.append("reading %s did not finish within %g s" % (entry["path"], self.sections.seconds))
                continue
            reasons.extend(trouble)
            self.locations.append(location)
        self.join(out)

    def may_hold(self, entry: dict[str, Any]) -> bool:
        """A standard library directory is looked at only when it holds distributions (Debian's, frozen builds)."""
        if entry["kind"] != "directory" or entry["path"].endswith("lib-dynload"):
            return False
        try:
            names = listing(entry["path"])
        except UnreadableError:
            return True
        self.path.listings[entry["path"]] = names
        return any(name.endswith((".dist-info", ".egg-info")) for name in names)

    def guarded(self, location: Location, entry: dict[str, Any], trouble: list[str]) -> None:
        """Scan a location; a failure becomes a sentence."""
        try:
            if entry["kind"] == "archive":
                scan_archive(location, trouble)
                return
            names = self.path.listings.get(location.path)
            location.scan(listing(location.path) if names is None else names, trouble, self.helpers)
            if entry["origin"] != "stdlib":
                loose = importable(location.names) - location.owned
                loose.discard("bin")
                if loose:
                    entry["loose"] = sorted(loose)[:500]
        except UnreadableError as error:
            trouble.append(str(error))
        except Exception as error:  # one bad location must not hide the others
            trouble.append("reading %s failed: %s: %s" % (location.path, type(error).__name__, error))

    def join(self, out: dict[str, Any]) -> None:
        """Shadowing, duplicates, conda's word, build variants, editables' modules."""
        conda = read_conda(self.python.base_prefix) if self.python else {}
        first: dict[str, dict[str, Any]] = {}
        sources = []
        for location in self.locations:
            for dist in location.distributions:
                self.editable(dist)
                if dist.get("origin", {}).get("kind") in ("editable", "directory"):
                    sources.append(dist)
                stem = os.path.basename(dist["metadata_path"])
                if stem in conda:
                    dist["conda"] = conda[stem]
                    if dist.get("origin", {}).get("kind") in (None, "index", "unknown"):
                        dist["origin"] = {"kind": "conda"}
                dist.setdefault("origin", {"kind": "unknown"})
        self.portions()
        for location in self.locations:
            here: dict[str, list[dict[str, Any]]] = {}
            kept = []
            for dist in location.distributions:
                winner = first.get(dist["name"])
                if winner is not None and self.same_install(winner, dist):
                    continue
                kept.append(dist)
                if winner is not None and winner["location"] != location.path:
                    dist["shadowed_by"] = winner["location"]
                here.setdefault(dist["name"], []).append(dist)
            for name, copies in here.items():
                first.setdefault(name, copies[0])
                if len(copies) > 1:
                    settle_duplicates(location, copies)
            out["distributions"].extend(sorted(kept, key=lambda dist: (dist["name"], dist["metadata_path"])))
            out["leftovers"].extend(location.leftovers)
            out["shared_files"].extend(location.shared)
        for dist in out["distributions"]:
            variant = local_label(dist["version"])
            if variant:
                dist["build_variant"] = variant
        for dist in sources:
            git_state(dist["origin"])

    def portions(self) -> None:
        """A directory without ``__init__`` is only a namespace portion: a module of its name elsewhere is imported, so
        it is not told among the loose ones where there is such a module."""
        entries = {entry["path"]: entry for entry in self.path.entries}
        standard = [entry["path"] for entry in self.path.entries if entry["origin"] == "stdlib"]
        owned: set[str] = set(sys.builtin_module_names)
        for location in self.locations:
            owned |= location.owned
        suffixes = tuple(extension_suffixes()) + (".py", ".pyc")
        for location in self.locations:
            entry = entries[location.path]
            kept = []
            for name in entry.get("loose", ()):
                folder = os.path.join(location.path, name)
                elsewhere = name in owned or any(
                    os.path.exists(os.path.join(place, name + suffix)) for place in standard for suffix in ("", ".py")
                )
                if elsewhere and os.path.isdir(folder) and not any(name + suffix in location.names for suffix in suffixes):
                    if not any(os.path.exists(os.path.join(folder, "__init__" + suffix)) for suffix in suffixes):
                        continue
                kept.append(name)
            if kept:
                entry["loose"] = kept
            else:
                entry.pop("loose", None)

    def editable(self, dist: dict[str, Any]) -> None:
        """An editable install's modules are in the directory or the finder that its own ``.pth`` names."""
        if dist.get("origin", {}).get("kind") != "editable":
            return
        modules = set(dist.get("modules", ()))
        for hook in self.path.hooks:
            if hook["kind"] == "editable" and canonical(dist["name"]).replace("-", "_") in canonical(
                os.path.basename(hook["path"])
            ).replace("-", "_"):
                modules.update(name for name in hook["mapping"] if name.count(".") < 2)
        for entry in self.path.entries:
            if entry["origin"] == "pth" and entry.get("loose"):
                source = url_path(dist["origin"].get("url"))
                if source and (entry["path"] == source or entry["path"].startswith(source + os.sep)):
                    modules.update(entry["loose"])
        if modules:
            dist["modules"] = sorted(modules)

    def same_install(self, winner: dict[str, Any], dist: dict[str, Any]) -> bool:
        """Whether ``dist`` is only the egg-info that lies in the source tree of an editable install."""
        if dist["format"] != "egg-info" or winner["location"] == dist["location"]:
            return False
        if winner["format"] == "egg-link":
            return bool(winner["metadata_path"] == dist["metadata_path"])
        source = url_path(winner["origin"].get("url"))
        inside = source is not None and (dist["location"] + os.sep).startswith(source + os.sep)
        return winner["origin"]["kind"] == "editable" and inside


def url_path(url: str | None) -> str | None:
    """The path of a ``file:`` URL."""
    if not url or not url.startswith("file://"):
        return None
    from urllib.parse import unquote

    return os.path.normpath(unquote(url[len("file://") :]))


def local_label(version: str | None) -> str | None:
    """The part of a version after ``+``."""
    return version.partition("+")[2] or None if version else None


def settle_duplicates(location: Location, copies: list[dict[str, Any]]) -> None:
    """Two metadata directories for one name in one place: which one do the files on disk belong to, by size."""
    for dist in copies:
        detail = "%d metadata directories for this name in %s" % (len(copies), location.path)
        dist.setdefault("problems", []).append(problem("duplicate", detail, dist["metadata_path"]))
        checked, right = 0, 0
        try:
            data = read_bytes(os.path.join(dist["metadata_path"], "RECORD")) or b""
        except UnreadableError:
            continue
        prefix = os.path.basename(dist["metadata_path"]).encode("utf-8", "surrogateescape") + b"/"
        for where, digest, size in record_rows(data):
            if where.endswith(b".pyc") or where.startswith((prefix, b"..")) or not digest or not size.isdigit():
                continue
            checked += 1
            try:
                path = os.path.join(location.path, where.decode("utf-8", "surrogateescape"))
                right += os.stat(path).st_size == int(size)
            except (OSError, ValueError):
                pass
            if checked >= 200:
                break
        if checked:
            dist["current"] = right == checked


def scan_archive(location: Location, trouble: list[str]) -> None:
    """Distributions inside a zip on the path (``.egg``, ``.pyz``, a zip of site-packages)."""
    import zipfile

    try:
        with zipfile.ZipFile(location.path) as archive:
            names = archive.namelist()
            for name in names:
                match = re.match(r"^(?:([^/]+)\.dist-info/METADATA|(?:[^/]+\.egg-info|EGG-INFO)/PKG-INFO)$", name)
                if not match:
                    continue
                problems: list[dict[str, str]] = []
                with archive.open(name) as file:
                    fields = parse_headers(file.read(1 << 20))[1]
                stem = (match.group(1) or os.path.basename(location.path)).split("-")
                raw = fields.get("name", stem)[0]
                dist: dict[str, Any] = {
                    "name": canonical(raw),
                    "raw_name": raw,
                    "version": fields.get("version", stem[1:2] or [None])[0],
                    "location": location.path,
                    "metadata_path": location.path + "/" + name.rpartition("/")[0],
                    "format": "archive",
                }
                location.distributions.append(dist)
                location.finish(dist, [], problems)
    except (OSError, zipfile.BadZipFile, NotImplementedError, RuntimeError, ValueError) as error:
        trouble.append("cannot read %s as an archive: %s" % (location.path, error))


def read_conda(prefix: str) -> dict[str, dict[str, Any]]:
    """Metadata directory name to the conda package that owns it, from ``conda-meta``."""
    folder = os.path.join(prefix, "conda-meta")
    out: dict[str, dict[str, Any]] = {}
    try:
        names = [name for name in listing(folder) if name.endswith(".json")]
    except UnreadableError:
        return out
    for name in names:
        try:
            data = read_bytes(os.path.join(folder, name)) or b""
        except UnreadableError:
            continue
        owned = set(re.findall(rb'site-packages/([^"/]+\.(?:dist|egg)-info)[/"]', data))
        if not owned:
            continue
        fields = {}
        for key in (b"name", b"version", b"build", b"channel"):
            match = re.search(rb'^\s*"' + key + rb'"\s*:\s*"([^"]*)"', data, re.M)
            fields[key.decode("ascii")] = redact_urls(match.group(1).decode("utf-8", "replace")) if match else None
        package, version, build = (name[:-5].rsplit("-", 2) + ["", ""])[:3]
        conda = {
            "name": fields["name"] or package,
            "version": fields["version"] or version,
            "build": fields["build"] or build or None,
            "channel": fields["channel"],
        }
        for item in owned:
            out[item.decode("utf-8", "replace")] = conda
    return out


# git: what a source directory is at. Its configuration must not get to run a program.

GIT_PROGRAMS = re.compile(
    r"^\s*\[\s*(?:filter|include|includeif|diff|merge|alias|core\.|credential)\b"
    r"|^\s*(?:fsmonitor|hookspath|sshcommand|worktree|textconv|external|clean|smudge|process|attributesfile)\b",
    re.I | re.M,
)


def git_state(origin: dict[str, Any]) -> None:
    """Put commit and dirty state of the directory an install points to into its origin."""
    folder = url_path(origin.get("url"))
    top = folder
    while top and not os.path.exists(os.path.join(top, ".git")):
        parent = os.path.dirname(top)
        top = None if parent == top else parent
    if folder is None or top is None:
        return
    git = os.path.join(top, ".git")
    if os.path.isfile(git):
        pointer = text_or_none(git) or ""
        git = os.path.normpath(os.path.join(top, pointer.partition("gitdir:")[2].strip()))
    common = os.path.normpath(os.path.join(git, text_or_none(os.path.join(git, "commondir")) or "."))
    head = text_or_none(os.path.join(git, "HEAD"))
    if not head:
        origin["note"] = "the git directory cannot be read"
        return
    origin["vcs"] = "git"
    if head.startswith("ref:"):
        ref = head[4:].strip()
        commit = text_or_none(os.path.join(git, ref)) or text_or_none(os.path.join(common, ref))
        if commit is None:
            packed = re.search(r"^([0-9a-f]{40,64}) %s$" % re.escape(ref), packed_refs(common), re.M)
            commit = packed.group(1) if packed else None
    else:
        commit = head
    if commit and re.match(r"^[0-9a-f]{40,64}$", commit):
        origin["commit"] = commit
    configured = "\n".join(
        text_or_none(path) or "" for path in (os.path.join(common, "config"), os.path.join(git, "config.worktree"))
    )
    if GIT_PROGRAMS.search(configured):
        origin["note"] = "its git configuration names programs, so git was not asked whether files are changed"
        return
    environment = {key: value for key, value in os.environ.items() if not key.startswith("GIT_")}
    environment.update(
        GIT_CONFIG_NOSYSTEM="1",
        GIT_CONFIG_GLOBAL=os.devnull,
        GIT_OPTIONAL_LOCKS="0",
        GIT_TERMINAL_PROMPT="0",
        LC_ALL="C",
    )
    command = ["git", "-c", "core.fsmonitor=false", "-c", "core.hooksPath=" + os.devnull, "-C", folder]
    command += ["status", "--porcelain", "--ignore-submodules=dirty", "-z", "--", "."]
    code, output, error = run(command, 8.0, environment)
    if code != 0:
        origin["note"] = (
            "git would not say whether files are changed: " + (error.strip().splitlines() or ["no git"])[0][:200]
        )
        return
    changed = [item[3:] for item in output.split("\0") if len(item) > 3 and item[2] == " "]
    changed = [item for item in changed if ".egg-info/" not in item and "__pycache__" not in item]
    origin["dirty"] = bool(changed)
    if changed:
        origin["changed"] = sorted(changed)[:20]


def packed_refs(common: str) -> str:
    """git's packed references."""
    try:
        return (read_bytes(os.path.join(common, "packed-refs")) or b"").decode("utf-8", "replace")
    except UnreadableError:
        return ""


def run(
    command: list[str], seconds: float, environment: dict[str, str] | None = None, feed: str = ""
) -> tuple[int | None, str, str]:
    """Exit status, stdout and stderr of a program; status None when it is not there or did not end in time."""
    import subprocess

    try:
        process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environment,
            start_new_session=os.name == "posix",
        )
    except (OSError, ValueError) as error:
        return None, "", str(error)
    try:
        output, error_output = process.communicate(feed.encode("utf-8"), timeout=seconds)
    except subprocess.TimeoutExpired:
        try:
            os.killpg(process.pid, 9)
        except OSError:
            process.kill()
        try:
            process.communicate(timeout=1.0)
        except (subprocess.TimeoutExpired, OSError, ValueError):
            pass  # it cannot even be killed; it is left behind rather than waited for
        return None, "", "did not answer within %g s" % seconds
    except OSError as error:
        return None, "", str(error)
    return process.returncode, output.decode("utf-8", "replace"), error_output.decode("utf-8", "replace")


# ELF

TORCH_NAME = re.compile(
    rb"(?:_ZN?[VKrRO]*(?:2at|3c10|5torch|5caffe2)|_ZT[VISTtCh]\w*?N(?:2at|3c10|5torch)|_ZGV\w*?N(?:2at|3c10|5torch)"
    rb"|(?:aoti_)?torch_[a-z]|aoti_|THP[A-Z]|_Z\d+THP)"
)
TORCH_PARTS = (b"torch", b"3c10", b"2at", b"THP", b"aoti_", b"5caffe2")  # every name that TORCH_NAME takes holds one of these
POWERS = [1]
while len(POWERS) < 1024:
    POWERS.append(POWERS[-1] * 33 & 0xFFFFFFFF)
POWERS.reverse()


VERSIONS: dict[str, tuple[str, tuple[int, ...]] | None] = {}  # a few dozen names that hundreds of files ask for


class BadElfError(Exception):
    """Not an ELF file we can read; the message says why."""


class Elf:
    """The dynamic section of a 64-bit little-endian ELF file (System V ABI, gABI chapter 5, and GNU's hash table)."""

    def __init__(self, path: str) -> None:
        import mmap

        self.path = path
        try:
            handle = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))
        except (OSError, ValueError) as error:
            raise BadElfError(getattr(error, "strerror", None) or str(error)) from error
        try:
            info = os.fstat(handle)
            if not stat.S_ISREG(info.st_mode):
                raise BadElfError("not a regular file")
            if info.st_size < 64:
                raise BadElfError("it is empty" if not info.st_size else "shorter than an ELF header")
            try:
                self.data = mmap.mmap(handle, 0, access=mmap.ACCESS_READ)
            except (OSError, ValueError) as error:
                raise BadElfError(str(error)) from error
        finally:
            os.close(handle)
        try:
            self.parse()
        except (struct.error, IndexError, ValueError, OverflowError) as error:
            self.data.close()
            raise BadElfError("truncated or damaged") from error
        except BadElfError:
            self.data.close()
            raise

    def close(self) -> None:
        """Give the mapping back."""
        self.data.close()

    def parse(self) -> None:
        """Program headers, then the dynamic entries."""
        data = self.data
        if data[:4] != b"\x7fELF":
            raise BadElfError("not an ELF file")
        if data[4] != 2 or data[5] != 1:
            raise BadElfError("not a 64-bit little-endian ELF file")
        self.machine = struct.unpack_from("<H", data, 0x12)[0]
        phoff, self.shoff = struct.unpack_from("<QQ", data, 0x20)
        phentsize, phnum, self.shentsize, self.shnum = struct.unpack_from("<HHHH", data, 0x36)
        self.loads: list[tuple[int, int, int]] = []
        dynamic = None
        for index in range(phnum):
            kind, _, offset, address, _, size = struct.unpack_from("<IIQQQQ", data, phoff + index * phentsize)
            if kind == 1:
                self.loads.append((address, size, offset))
            elif kind == 2:
                dynamic = (offset, size)
        if dynamic is None:
            raise BadElfError("it has no dynamic section")
        if dynamic[0] + dynamic[1] > len(data):
            raise BadElfError("truncated or damaged")
        self.tags: dict[int, int] = {}
        needed = []
        for tag, value in struct.iter_unpack("<qQ", data[dynamic[0] : dynamic[0] + dynamic[1] // 16 * 16]):
            if tag == 0:
                break
            if tag == 1:
                needed.append(value)
            else:
                self.tags[tag] = value
        self.strings = self.offset(self.tags[5]) if 5 in self.tags else 0
        self.strings_size = self.tags.get(10, 0)
        if self.strings + self.strings_size > len(data):
            raise BadElfError("truncated or damaged")
        self.needed = [self.string(value) for value in needed]
        self.rpath = self.string(self.tags[15]) if 15 in self.tags else ""
        self.runpath = self.string(self.tags[29]) if 29 in self.tags else ""

    def offset(self, address: int) -> int:
        """File offset of a virtual address."""
        for start, size, offset in self.loads:
            if start <= address < start + size:
                return address - start + offset
        raise BadElfError("truncated or damaged")

    def string(self, at: int) -> str:
        """A string of the dynamic string table."""
        start = self.strings + at
        end = self.data.find(b"\0", start)
        if at >= self.strings_size or end < 0:
            raise BadElfError("truncated or damaged")
        return self.data[start:end].decode("utf-8", "replace")

    def versions_needed(self) -> dict[str, str]:
        """The highest version asked for of ``GLIBC``, ``GLIBCXX`` and ``CXXABI`` (SHT_GNU_verneed)."""
        best: dict[str, tuple[int, ...]] = {}
        if 0x6FFFFFFE not in self.tags:
            return {}
        at = self.offset(self.tags[0x6FFFFFFE])
        for _ in range(min(self.tags.get(0x6FFFFFFF, 0), 4096)):
            _, count, _, auxiliary, following = struct.unpack_from("<HHIII", self.data, at)
            item = at + auxiliary
            for _ in range(count):
                _, _, _, name_at, step = struct.unpack_from("<IHHII", self.data, item)
                name = self.string(name_at)
                if name not in VERSIONS:
                    match = re.match(r"^(GLIBC|GLIBCXX|CXXABI)_(\d+(?:\.\d+)*)$", name)
                    VERSIONS[name] = (match.group(1), tuple(map(int, match.group(2).split(".")))) if match else None
                known = VERSIONS[name]
                if known is not None and known[1] > best.get(known[0], ()):
                    best[known[0]] = known[1]
                if not step:
                    break
                item += step
            if not following:
                break
            at += following
        return {key: ".".join(map(str, version)) for key, version in best.items()}

    def versions_defined(self) -> dict[str, str]:
        """The highest version provided of ``GLIBCXX`` and ``CXXABI`` (SHT_GNU_verdef)."""
        best: dict[str, tuple[int, ...]] = {}
        at = self.offset(self.tags[0x6FFFFFFC]) if 0x6FFFFFFC in self.tags else 0
        for _ in range(min(self.tags.get(0x6FFFFFFD, 0), 4096)):
            auxiliary, following = struct.unpack_from("<II", self.data, at + 12)
            name = self.string(struct.unpack_from("<I", self.data, at + auxiliary)[0])
            match = re.match(r"^(GLIBCXX|CXXABI)_(\d+(?:\.\d+)*)$", name)
            if match:
                best[match.group(1)] = max(best.get(match.group(1), ()), tuple(map(int, match.group(2).split("."))))
            if not following:
                break
            at += following
        return {key: ".".join(map(str, version)) for key, version in best.items()}

    def undefined(self) -> list[bytes]:
        """Names of undefined, non-weak torch symbols."""
        if 6 not in self.tags or 5 not in self.tags:
            return []
        start = self.offset(self.tags[6])
        count = self.symbol_count(start)
        if 0x6FFFFEF5 in self.tags:
            # GNU's hash table covers the defined symbols from its first one on; the undefined ones come before it.
            buckets, first = struct.unpack_from("<II", self.data, self.offset(self.tags[0x6FFFFEF5]))
            if first > 1 and buckets > 1:
                count = min(count, first)
        if start + count * 24 > len(self.data):
            raise BadElfError("truncated or damaged")
        data, strings, torch_like = self.data, self.strings, TORCH_NAME.match
        if self.strings_size < 64 * count:  # a library with long tables of its own costs more to search than to walk
            names = data[strings : strings + self.strings_size]  # bytes: searching the mapping itself is ten times as slow
            if not any(part in names for part in TORCH_PARTS):
                return []  # most modules do not know torch; one search of their names says so
        out = []
        for name_at, info, _, section, _, _ in struct.iter_unpack("<IBBHQQ", data[start : start + count * 24]):
            if section == 0 and name_at and info >> 4 != 2 and torch_like(data, strings + name_at):
                at = strings + name_at
                out.append(data[at : data.find(b"\0", at)])
        return out

    def symbol_count(self, start: int) -> int:
        """How many dynamic symbols: by the section header, else DT_HASH, else the first symbol GNU's hash
        table covers."""
        for index in range(self.shnum):
            at = self.shoff + index * self.shentsize
            if at + 64 > len(self.data):
                break
            _, kind, _, _, offset, size = struct.unpack_from("<IIQQQQ", self.data, at)
            if kind == 11 and offset == start:
                return int(size // 24)
        if 4 in self.tags:
            return int(struct.unpack_from("<II", self.data, self.offset(self.tags[4]))[1])
        if 0x6FFFFEF5 in self.tags:
            return int(struct.unpack_from("<II", self.data, self.offset(self.tags[0x6FFFFEF5]))[1])
        return 0

    def open_exports(self) -> None:
        """Prepare :meth:`exports`."""
        if 0x6FFFFEF5 not in self.tags or 6 not in self.tags:
            raise BadElfError("it has no GNU hash table")
        at = self.offset(self.tags[0x6FFFFEF5])
        self.buckets, self.first, self.bloom, self.shift = struct.unpack_from("<IIII", self.data, at)
        if not self.buckets or not self.bloom:
            raise BadElfError("truncated or damaged")
        self.bloom_at = at + 16
        self.buckets_at = self.bloom_at + 8 * self.bloom
        self.chains_at = self.buckets_at + 4 * self.buckets
        self.symbols_at = self.offset(self.tags[6])

    def exports(self, name: bytes, value: int) -> bool:
        """Whether the symbol is defined here; ``value`` is its GNU hash."""
        data = self.data
        (word,) = struct.unpack_from("<Q", data, self.bloom_at + 8 * ((value >> 6) % self.bloom))
        if not (word >> (value & 63)) & (word >> ((value >> self.shift) & 63)) & 1:
            return False
        (index,) = struct.unpack_from("<I", data, self.buckets_at + 4 * (value % self.buckets))
        if index < self.first:
            return False
        while True:
            (chain,) = struct.unpack_from("<I", data, self.chains_at + 4 * (index - self.first))
            if chain | 1 == value | 1:
                (at,) = struct.unpack_from("<I", data, self.symbols_at + 24 * index)
                at += self.strings
                if data[at : at + len(name) + 1] == name + b"\0":
                    return True
            if chain & 1:
                return False
            index += 1


def gnu_hash(name: bytes) -> int:
    """Bernstein's hash as GNU's dynamic linker uses it: h = h * 33 + byte from 5381, modulo 2**32."""
    length = len(name)
    if length >= len(POWERS):
        value = 5381
        for byte in name:
            value = (value * 33 + byte) & 0xFFFFFFFF
        return value
    powers = POWERS[len(POWERS) - length :]
    start = 5381 * POWERS[len(POWERS) - length - 1]
    return (start + sum([byte * power for byte, power in zip(name, powers)])) & 0xFFFFFFFF  # noqa: B905 (strict= is 3.10)


# torch, without importing it


def torch_folder(found: Distributions) -> str | None:
    """The directory of the torch that an import would find."""
    for entry in found.path.entries:
        candidate = os.path.join(entry["path"], "torch")
        if entry["kind"] == "directory" and os.path.isfile(os.path.join(candidate, "__init__.py")):
            return candidate
    return None


def read_torch(found: Distributions, out: dict[str, Any], reasons: list[str]) -> None:
    """The section ``torch``: the copy an import would find, from ``version.py`` and its libraries."""
    folder = torch_folder(found)
    if folder is None:
        return
    version_py = read_bytes(os.path.join(folder, "version.py"), limit=1 << 20)
    values: dict[str, str | None] = {}
    for match in re.finditer(
        r"^(__version__|debug|cuda|git_version|hip)\b[^=\n]*=\s*(?:'([^'\n]*)'|\"([^\"\n]*)\"|(\w+))",
        (version_py or b"").decode("utf-8", "replace"),
        re.M,
    ):
        text = match.group(2) or match.group(3) or match.group(4)
        values[match.group(1)] = None if text in (None, "None", "") else text
    if version_py is None:
        reasons.append("torch has no version.py")
    torch: dict[str, Any] = {
        "location": folder,
        "version": values.get("__version__"),
        "cuda": values.get("cuda"),
        "hip": values.get("hip"),
        "git_version": values.get("git_version"),
        "debug": values.get("debug") == "True",
    }
    label = local_label(torch["version"])
    if torch["cuda"]:
        torch["variant"] = "cu" + "".join(torch["cuda"].split(".")[:2])
    elif torch["hip"]:
        torch["variant"] = "rocm" + ".".join(torch["hip"].split("-")[0].split(".")[:2])
    elif version_py is not None and torch["version"]:
        torch["variant"] = label if label and not label.startswith(("cu", "rocm")) else "cpu"
    for dist in out_distributions(found):
        if dist["name"] == "torch" and os.path.dirname(folder) == dist["location"] and torch.get("variant"):
            dist["build_variant"] = torch["variant"]
    library = os.path.join(folder, "lib")
    try:
        elf = Elf(os.path.join(library, "libc10.so"))
    except BadElfError as error:
        if os.path.exists(os.path.join(library, "libc10.so")):
            reasons.append("libc10.so: %s" % error)
    else:
        torch["cxx11_abi"] = b"__cxx11" in elf.data[elf.strings : elf.strings + elf.strings_size]
        elf.close()
    if torch["cuda"]:
        archs = torch_archs(os.path.join(library, "libtorch_python.so"), reasons)
        torch["archs"] = archs
    out["torch"] = torch


def out_distributions(found: Distributions) -> Iterator[dict[str, Any]]:
    """Every distribution read so far."""
    for location in found.locations:
        for dist in location.distributions:
            yield dist


def torch_archs(path: str, reasons: list[str]) -> list[str]:
    """The GPU architectures torch was built for: the longest ``sm_…`` list among libtorch_python's constants."""
    try:
        elf = Elf(path)
    except BadElfError as error:
        reasons.append("libtorch_python.so: %s" % error)
        return []
    best = b""
    pattern = re.compile(rb"(?:(?:sm|compute)_\d+[af]?[ ;,]?)+")
    # Only constants are searched, not the code between them.
    for offset, size in constant_sections(elf) or [(0, len(elf.data))]:
        data = elf.data[offset : offset + size]
        at = data.find(b"sm_")
        while at >= 0:
            match = pattern.match(data, at)
            if match and len(match.group()) > len(best):
                best = match.group()
            at = data.find(b"sm_", (match.end() if match else at) + 1)
    elf.close()
    if not best:
        reasons.append("no architecture list in libtorch_python.so")
    return re.split(r"[ ;,]+", best.decode("ascii").strip(" ;,")) if best else []


def constant_sections(elf: Elf) -> list[tuple[int, int]]:
    """(offset, size) of the sections that hold data and no code: PROGBITS, allocated, neither writable nor
    executable."""
    out = []
    for index in range(elf.shnum):
        at = elf.shoff + index * elf.shentsize
        if at + 64 > len(elf.data):
            return []
        _, kind, flags, _, offset, size = struct.unpack_from("<IIQQQQ", elf.data, at)
        if kind == 1 and flags & 7 == 2:
            out.append((offset, size))
    return out


# Compiled modules and what they need

C_RUNTIME = re.compile(
    r"^(?:lib(?:c|m|dl|rt|util|pthread|resolv|gcc_s|stdc\+\+|crypt|anl)\.so|ld-linux|ld64|linux-vdso|libc\.musl)"
)
CXX_LIBRARY = "libstdc++.so.6"
TORCH_LIBRARIES = ("c10", "torch_cpu", "torch_python", "torch", "c10_cuda", "torch_cuda", "c10_hip", "torch_hip")
MACHINES = {3: "i386", 40: "arm", 62: "x86_64", 183: "aarch64", 21: "ppc64le", 22: "s390x", 243: "riscv64"}


LOADERS = ("load_library", "LoadLibrary", "CDLL", "PyDLL")
LOAD_ERRORS = ("OSError", "Exception", "BaseException")
IMPORT_ERRORS = ("ImportError", "Exception", "BaseException")


class Loader:
    """Where the dynamic loader looks: LD_LIBRARY_PATH, the cache, the default directories."""

    def __init__(self, prefix: str | None, torch: str | None, found: Distributions) -> None:
        self.environment = [item for item in re.split("[:;]", os.environ.get("LD_LIBRARY_PATH", "")) if item]
        self.cache = loader_cache()
        machine = os.uname().machine if hasattr(os, "uname") else ""
        self.defaults = ["/lib64", "/usr/lib64", "/lib", "/usr/lib"]
        self.defaults += ["%s/%s-linux-gnu" % (base, machine) for base in ("/lib", "/usr/lib")]
        self.interpreter = [os.path.join(prefix, "lib")] if prefix else []
        self.names: dict[str, frozenset[str]] = {}
        self.owned: dict[str, str] = {}
        for location in found.locations:
            for _, where in location.natives:
                self.owned.setdefault(where.rpartition("/")[2], os.path.normpath(os.path.join(location.path, where)))
        if torch:
            for name in self.inside(os.path.join(torch, "lib")):
                if ".so" in name:
                    self.owned.setdefault(name, os.path.join(torch, "lib", name))

    def inside(self, folder: str) -> frozenset[str]:
        """The names in a directory, read once."""
        names = self.names.get(folder)
        if names is None:
            try:
                names = frozenset(os.listdir(folder))
            except (OSError, ValueError):
                names = frozenset()
            self.names[folder] = names
        return names

    def find(self, soname: str, needs: dict[str, Any]) -> dict[str, Any]:
        """Who would satisfy one NEEDED entry (ld.so(8): RPATH unless there is a RUNPATH, LD_LIBRARY_PATH,
        RUNPATH, cache)."""
        origin = os.path.dirname(needs["path"])

        def expand(text: str) -> list[str]:
            items = [item.replace("${ORIGIN}", origin).replace("$ORIGIN", origin) for item in text.split(":") if item]
            return [os.path.normpath(item) for item in items]

        before = [] if needs["runpath"] else expand(needs["rpath"]) + self.interpreter
        return self.seek(soname, before, expand(needs["runpath"]))

    def seek(self, soname: str, before: list[str], after: list[str]) -> dict[str, Any]:
        """`find` for a file with these run paths: what comes before LD_LIBRARY_PATH, and what after."""
        steps = [("rpath", before), ("LD_LIBRARY_PATH", self.environment), ("runpath", after)]
        for by, folders in steps:
            for folder in folders:
                if soname in self.inside(folder):
                    return {"soname": soname, "by": by, "path": os.path.join(folder, soname)}
        if soname in self.cache:
            return {"soname": soname, "by": "system", "path": self.cache[soname]}
        for folder in self.defaults:
            if soname in self.inside(folder):
                return {"soname": soname, "by": "system", "path": os.path.join(folder, soname)}
        if soname in self.owned:
            return {"soname": soname, "by": "environment", "path": self.owned[soname]}
        return {"soname": soname, "by": "nothing"}


def loader_cache() -> dict[str, str]:
    """``/etc/ld.so.cache`` (glibc's new format): soname to path."""
    try:
        data = read_bytes("/etc/ld.so.cache") or b""
    except UnreadableError:
        return {}
    start = data.find(b"glibc-ld.so.cache1.1")
    out: dict[str, str] = {}
    if start < 0:
        return out
    try:
        (count,) = struct.unpack_from("<I", data, start + 20)
        for index in range(min(count, 200000)):
            _, key, value = struct.unpack_from("<iII", data, start + 48 + 24 * index)
            name = data[start + key : data.index(b"\0", start + key)].decode("utf-8", "replace")
            path = data[start + value : data.index(b"\0", start + value)].decode("utf-8", "replace")
            out.setdefault(name, path)
    except (struct.error, ValueError):
        pass
    return out


def read_needs(folder: str, paths: list[str]) -> list[dict[str, Any]]:
    """What each of several ELF files of a folder asks for: ``needed``, ``rpath``, ``runpath``, ``versions``, ``machine`` and torch's
    ``symbols``; or its ``fault``."""
    out: list[dict[str, Any]] = []
    for where in paths:
        path = os.path.join(folder, where)
        try:
            elf = Elf(path)
        except BadElfError as error:
            out.append({"fault": str(error) if os.path.exists(path) else "missing"})
            continue
        try:
            out.append(
                {
                    "path": path,
                    "needed": elf.needed,
                    "rpath": elf.rpath,
                    "runpath": elf.runpath,
                    "versions": elf.versions_needed(),
                    "machine": elf.machine,
                    "symbols": elf.undefined(),
                }
            )
        except (struct.error, IndexError, ValueError, BadElfError):
            out.append({"fault": "truncated or damaged"})
        finally:
            elf.close()
    return out


SHARED: dict[str, Callable[[str, list[str]], list[Any]]] = {"dist_infos": read_dist_infos, "needs": read_needs}
BLOCK = 4  # items that are asked for at once


class TorchExports:
    """The symbols torch's libraries export, by their GNU hash tables."""

    def __init__(self, folder: str | None, reasons: list[str]) -> None:
        self.libraries: list[Elf] = []
        self.checked = False
        self.answers: dict[bytes, bool] = {}
        if folder is None:
            return
        library = os.path.join(folder, "lib")
        try:
            names = listing(library)
        except UnreadableError as error:
            reasons.append(str(error))
            return
        wanted = ["lib%s.so" % name for name in TORCH_LIBRARIES]
        wanted += sorted(name for name in names if name.endswith(".so") and name not in wanted and "torch" in name)
        complete = True
        for name in wanted:
            if name not in names:
                continue
            try:
                elf = Elf(os.path.join(library, name))
                elf.open_exports()
            except BadElfError as error:
                if name[3:-3] in TORCH_LIBRARIES:
                    complete = False
                    reasons.append("%s: %s, so torch symbols were not checked" % (name, error))
                continue
            self.libraries.append(elf)
        self.checked = complete and "libc10.so" in names

    def has(self, name: bytes) -> bool:
        """Whether any of them exports the symbol."""
        answer = self.answers.get(name)
        if answer is None:
            value = gnu_hash(name)
            try:
                answer = any(elf.exports(name, value) for elf in self.libraries)
            except (struct.error, IndexError):
                self.checked = False
                answer = True  # a damaged table must not make a symbol absent
            self.answers[name] = answer
        return answer


def read_extensions(
    found: Distributions, python: Python | None, torch: str | None, out: dict[str, Any], reasons: list[str]
) -> None:
    """The section ``extensions``: every compiled file outside torch's and NVIDIA's own."""
    out["extensions"] = []
    conda = python is not None and os.path.isdir(os.path.join(python.base_prefix, "conda-meta"))
    loader = Loader(python.base_prefix if python and conda else None, torch, found)
    exports = TorchExports(torch, reasons)
    cxx = out["cxx"] = cxx_library(loader)
    for location in found.locations:
        own = []
        for index, where in location.natives:
            owner = location.distributions[index]["name"]
            if not where.startswith(("nvidia/", "torch/lib/", "triton/backends/", "../")) and not owner.startswith("nvidia-"):
                own.append((owner, where))
        every = found.helpers.share("needs", location.path, [where for _, where in own])
        for (owner, where), needs in zip(own, every):  # noqa: B905 (strict= is 3.10)
            extension: dict[str, Any] = {"path": where, "owner": owner}
            if "fault" in needs:
                extension["fault"] = needs["fault"]
            else:
                describe_extension(needs, extension, loader, exports, cxx)
                if "missing" in extension or any(need["by"] == "nothing" for need in extension.get("needed", ())):
                    extension["optional"] = is_optional(needs["path"])
            out["extensions"].append(extension)
    for library in exports.libraries:
        library.close()


def cxx_library(loader: Loader) -> dict[str, Any] | None:
    """The C++ library of a module that says no place of its own, None where there is none."""
    path = loader.seek(CXX_LIBRARY, loader.interpreter, []).get("path")
    if path is None:
        return None
    try:
        elf = Elf(path)
    except BadElfError:
        return {"path": path}
    try:
        return dict({key.lower(): version for key, version in elf.versions_defined().items()}, path=path)
    except (struct.error, IndexError, ValueError, BadElfError):
        return {"path": path}
    finally:
        elf.close()


def describe_extension(
    needs: dict[str, Any], extension: dict[str, Any], loader: Loader, exports: TorchExports, cxx: dict[str, Any] | None
) -> None:
    """Put into one file's record who satisfies what it asks for (`read_needs`)."""
    needed = [loader.find(soname, needs) for soname in needs["needed"] if not C_RUNTIME.match(soname)]
    if CXX_LIBRARY in needs["needed"]:
        own = loader.find(CXX_LIBRARY, needs)
        if own["by"] == "nothing" or cxx is None or own["path"] != cxx["path"]:
            needed.append(own)  # not the one that the snapshot tells the versions of
    if needed:
        extension["needed"] = needed
    for key, version in needs["versions"].items():
        extension[key.lower()] = version
    extension["machine"] = MACHINES.get(needs["machine"], str(needs["machine"]))
    symbols = needs["symbols"]
    if symbols:
        extension["torch_symbols"] = len(symbols)
        missing = [name for name in symbols if not exports.has(name)]
        if missing:
            missing = not_exported_by(missing, needed)
        extension["torch_checked"] = exports.checked
        if exports.checked and missing:
            extension["missing"] = sorted(name.decode("ascii", "replace") for name in missing)


def is_optional(path: str) -> bool:
    """Whether the code beside a module goes on where loading it fails: its ``__init__.py`` loads it by its file name in a
    ``try``, or every import of it in its directory stands in one."""
    import ast
    import fnmatch

    folder, name = os.path.split(path)
    initial = parsed(os.path.join(folder, "__init__.py"))
    if initial is not None:
        for inside in guarded(initial, LOAD_ERRORS):
            calls = (node.func for node in inside if isinstance(node, ast.Call))
            loads = any((func.attr if isinstance(func, ast.Attribute) else getattr(func, "id", None)) in LOADERS for func in calls)
            texts = (node.value for node in inside if isinstance(node, ast.Constant) and isinstance(node.value, str))
            if loads and any(fnmatch.fnmatchcase(name, text) for text in texts if text.strip("*?")):
                return True
    stem = name.partition(".")[0]
    met = False
    try:
        files = sorted(item for item in listing(folder) if item.endswith(".py"))[:500]
    except UnreadableError:
        return False
    for file in files:
        tree = parsed(os.path.join(folder, file), mentions=stem.encode())
        if tree is None:
            continue
        safe = {id(node) for inside in guarded(tree, IMPORT_ERRORS) for node in inside}
        for node in ast.walk(tree):
            if isinstance(node, (ast.Import, ast.ImportFrom)) and imports(node, stem):
                met = True
                if id(node) not in safe:
                    return False
    return met


def parsed(path: str, mentions: bytes = b"") -> Any:
    """The syntax tree of a source file; None where there is none to read, or it does not mention a name."""
    import ast
    import warnings

    try:
        text = read_bytes(path, limit=1 << 20) or b""
        if mentions not in text:
            return None
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the parser's opinion of somebody's escapes
            return ast.parse(text)
    except (UnreadableError, SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def guarded(tree: Any, errors: tuple[str, ...]) -> Iterator[list[Any]]:
    """The nodes inside each ``try`` that one of these errors does not get out of."""
    import ast

    for block in ast.walk(tree):
        if not isinstance(block, ast.Try) or any(isinstance(node, ast.Raise) for handler in block.handlers for node in ast.walk(handler)):
            continue
        caught = [handler.type for handler in block.handlers]
        names = [item for kind in caught for item in (kind.elts if isinstance(kind, ast.Tuple) else [kind])]
        if any(item is None or (isinstance(item, ast.Name) and item.id in errors) for item in names):
            yield [node for statement in block.body for node in ast.walk(statement)]


def imports(node: Any, stem: str) -> bool:
    """Whether an import statement may be one of a module with this last name."""
    module = (getattr(node, "module", None) or "").rpartition(".")[2]
    return module == stem or any(alias.name.rpartition(".")[2] == stem for alias in node.names)


def not_exported_by(names: list[bytes], needed: list[dict[str, Any]]) -> list[bytes]:
    """The torch-like symbols that none of the libraries an extension links itself defines."""
    for need in needed:
        if "path" not in need or not names:
            continue
        try:
            elf = Elf(need["path"])
        except BadElfError:
            continue
        try:
            elf.open_exports()
            names = [name for name in names if not elf.exports(name, gnu_hash(name))]
        except (BadElfError, struct.error, IndexError):
            pass
        finally:
            elf.close()
    return names


# Native libraries that tell their own version, and the driver: loaded in a child process, never in this one

GPU_LIBRARY = re.compile(
    r"^lib(cudart|nccl|cudnn|cublas|nvrtc|nvJitLink|cufft|curand|cusolver|cusparse)(?:-[0-9a-f]{6,})?\.so(?:\.\d+)*$"
)
LOADER_LIBRARY = re.compile(
    r"^lib(?:cuda|cudart|nccl|cudnn\w*|cublas\w*|nvrtc|nvJitLink|cufft|curand|cusolver|cusparse\w*|stdc\+\+|gomp|iomp5|mkl_rt|"
    r"openblas|c10|torch)\b[^/]*\.so"
)
CHILD = r"""
import ctypes, json, sys
def number(value):
    return value.value
def ask(component, library):
    one, two = ctypes.c_int(0), ctypes.c_int(0)
    if component == "cuda":
        return number(one) if library.cuDriverGetVersion(ctypes.byref(one)) == 0 else None
    if component == "cudart":
        return number(one) if library.cudaRuntimeGetVersion(ctypes.byref(one)) == 0 else None
    if component == "nccl":
        return number(one) if library.ncclGetVersion(ctypes.byref(one)) == 0 else None
    if component == "cudnn":
        library.cudnnGetVersion.restype = ctypes.c_size_t
        return library.cudnnGetVersion()
    if component == "nvrtc":
        return [number(one), number(two)] if library.nvrtcVersion(ctypes.byref(one), ctypes.byref(two)) == 0 else None
    if component == "nvJitLink":
        return [number(one), number(two)] if library.nvJitLinkVersion(ctypes.byref(one), ctypes.byref(two)) == 0 else None
    ask_property = getattr(library, component + "GetProperty")
    parts = []
    for which in (0, 1, 2):
        if ask_property(which, ctypes.byref(one)) != 0:
            return None
        parts.append(number(one))
    return parts
for component, path in json.loads(sys.stdin.read()):
    try:
        answer = {"value": ask(component, ctypes.CDLL(path))}
    except Exception as error:
        answer = {"error": str(error)[:300]}
    sys.stdout.write(json.dumps([component, path, answer]) + "\n")
    sys.stdout.flush()
"""


def ask_libraries(wanted: list[tuple[str, str]], seconds: float) -> tuple[dict[tuple[str, str], dict[str, Any]], str]:
    """What each library says in a child process; and why the child stopped early, if it did."""
    code, output, error = run([sys.executable, "-E", "-s", "-S", "-B", "-c", CHILD], seconds, None, json.dumps(wanted))
    answers = {}
    for line in output.splitlines():
        try:
            component, path, answer = json.loads(line)
        except ValueError:
            continue
        answers[(component, path)] = answer
    if code == 0:
        return answers, ""
    return answers, error.strip()[-200:] or "the process that loaded it ended with status %s" % code


def version_of(component: str, value: Any) -> str | None:
    """A library's own version number as people write it: 12080 is 12.8, NCCL's 22705 is 2.27.5, cuDNN's 91002 is
    9.10.2."""
    if isinstance(value, list):
        return ".".join(map(str, value))
    if not isinstance(value, int) or value <= 0:
        return None
    if component in ("cudart", "cuda"):
        return "%d.%d" % (value // 1000, value % 1000 // 10)
    if component == "nccl":
        if value < 10000:  # before 2.9 the minor had one digit less
            return "%d.%d.%d" % (value // 1000, value % 1000 // 100, value % 100)
        return "%d.%d.%d" % (value // 10000, value % 10000 // 100, value % 100)
    if value >= 90000:
        return "%d.%d.%d" % (value // 10000, value % 10000 // 100, value % 100)
    return "%d.%d.%d" % (value // 1000, value % 1000 // 100, value % 100)


def libraries_by_place(entries: list[dict[str, Any]]) -> set[tuple[str, str]]:
    """(component, path) of what lies where NVIDIA's wheels put their libraries, found without any RECORD."""
    out = set()
    for entry in entries:
        if entry["kind"] != "directory" or entry["origin"] == "stdlib":
            continue
        vendor = os.path.join(entry["path"], "nvidia")
        try:
            folders = [os.path.join(vendor, name, "lib") for name in listing(vendor)]
            found = [(folder, name) for folder in folders for name in listing(folder)]
        except UnreadableError:
            continue  # RECORD tells of them later
        for folder, name in found:
            match = GPU_LIBRARY.match(name)
            if match:
                out.add((match.group(1), os.path.join(folder, name)))
    return out


def ask_in_rounds(wanted: Iterable[tuple[str, str]], seconds: float) -> dict[tuple[str, str], dict[str, Any]]:
    """What each library says, as ``version`` or ``note``; those of the ninth copy of a component and on are left out."""
    # A process holds one library per soname, so a second copy of a component needs a second process.
    rounds: list[list[tuple[str, str]]] = []
    for component, path in sorted(wanted):
        for batch in rounds:
            if all(component != other for other, _ in batch):
                batch.append((component, path))
                break
        else:
            rounds.append([(component, path)])
    out: dict[tuple[str, str], dict[str, Any]] = {}
    for batch in rounds[:8]:
        left = batch
        while left:
            answers, why = ask_libraries(left, seconds)
            for key, answer in answers.items():
                out[key] = {"version": version_of(key[0], answer.get("value"))}
                if out[key]["version"] is None:
                    out[key]["note"] = answer.get("error", "it did not tell its version")
            unanswered = [key for key in left if key not in answers]
            if unanswered:
                out[unanswered[0]] = {"note": why or "it did not tell its version"}
            left = unanswered[1:]  # a library that kills the process does not hide those after it
    return out


def read_libraries(
    found: Distributions, ready: threading.Event, seconds: float, out: dict[str, Any], reasons: list[str]
) -> None:
    """The section ``libraries``: the GPU libraries of the environment and of LD_LIBRARY_PATH, by their own word.

    cuBLAS alone takes a tenth of a second to load, so those at their usual place are asked while the distributions are
    still being read; ``ready`` is set when these are known, and with them who owns what and what lies elsewhere.
    ``seconds`` bounds each process that loads some.
    """
    out["libraries"] = []
    answers = ask_in_rounds(libraries_by_place(found.path.entries), seconds)
    ready.wait()
    records: dict[tuple[str, str], dict[str, Any]] = {}
    for location in found.locations:
        for index, where in location.natives:
            match = GPU_LIBRARY.match(where.rpartition("/")[2])
            if match:
                dist = location.distributions[index]
                key = (match.group(1), os.path.join(location.path, where))
                owners = [dist["name"]] if key not in records else [records[key]["owner"], dist["name"]]
                records[key] = {"owner": " + ".join(owners), "declared": dist["version"]}
    folders = [item for item in os.environ.get("LD_LIBRARY_PATH", "").split(":") if item]
    torch = torch_folder(found)
    folders += [os.path.join(torch, "lib")] if torch else []
    for folder in folders:
        try:
            names = listing(folder)
        except UnreadableError:
            continue
        for name in sorted(names):
            match = GPU_LIBRARY.match(name)
            path = os.path.join(folder, name)
            if match and not os.path.islink(path):
                records.setdefault((match.group(1), path), {})
    answers.update(ask_in_rounds([key for key in records if key not in answers], seconds))
    for (component, path), record in sorted(records.items()):
        out["libraries"].append(dict(record, component=component, path=path, **answers.get((component, path), {})))


def read_loader(out: dict[str, Any], reasons: list[str]) -> None:
    """The section ``loader``: directories searched before or beside the packages' own, with the libraries that
    matter."""
    out["loader"] = []

    def note(folder: str, source: str, always: bool) -> None:
        try:
            names = os.listdir(folder)
        except (FileNotFoundError, NotADirectoryError):
            if always:
                out["loader"].append({"directory": folder, "source": source, "exists": False})
            return
        except OSError as error:
            reasons.append("cannot list %s: %s" % (folder, error.strerror or error))
            return
        libraries = sorted(name for name in names if LOADER_LIBRARY.match(name))
        if always or libraries:
            out["loader"].append({"directory": folder, "source": source, "libraries": libraries})

    for folder in os.environ.get("LD_LIBRARY_PATH", "").split(":"):
        if folder:
            note(folder, "LD_LIBRARY_PATH", True)
    for path in re.split(r"[:\s]+", os.environ.get("LD_PRELOAD", "")):
        if path:
            out["loader"].append(
                {
                    "directory": os.path.dirname(path),
                    "source": "LD_PRELOAD",
                    "libraries": [os.path.basename(path)],
                    "exists": os.path.exists(path) or "/" not in path,
                }
            )
    for name in sorted(listing("/etc/ld.so.conf.d")):
        for line in (text_or_none(os.path.join("/etc/ld.so.conf.d", name)) or "").splitlines():
            if line.startswith("/"):
                note(line.strip(), "ld.so.conf", False)


# Driver, GPUs, toolkit

SMI_FIELDS = "index,name,uuid,compute_cap,memory.total,driver_version,vbios_version,mig.mode.current,ecc.mode.current"
SMI_FIELDS += ",persistence_mode,power.limit"


def nvidia_smi() -> str | None:
    """The path of nvidia-smi."""
    folders = os.environ.get("PATH", "").split(os.pathsep) + ["/usr/bin", "/usr/local/bin", "/usr/lib/wsl/lib"]
    for folder in folders:
        path = os.path.join(folder, "nvidia-smi")
        if folder and os.access(path, os.X_OK) and os.path.isfile(path):
            return path
    return None


def read_gpus(out: dict[str, Any], reasons: list[str]) -> None:
    """The section ``gpus``, by nvidia-smi's query; without it by ``/proc``; a driver that does not answer is not
    "no GPU"."""
    out["gpus"] = []
    smi = nvidia_smi()
    folder = "/proc/driver/nvidia/gpus"
    slots = listing(folder)
    if smi is not None:
        fields = SMI_FIELDS.split(",")
        while True:
            command = [smi, "--query-gpu=" + ",".join(fields), "--format=csv,noheader,nounits"]
            code, output, error = run(command, NVIDIA_SMI_SECONDS)
            unknown = re.search(r'Field "([\w.]+)" is not a valid field', output + error)
            if code and unknown and unknown.group(1) in fields and len(fields) > 2:
                fields.remove(unknown.group(1))  # an older nvidia-smi does not know it
                continue
            break
        if code == 0:
            for line in output.splitlines():
                values = [value.strip() for value in line.split(",")]
                if len(values) == len(fields):
                    out["gpus"].append(gpu_record(dict(zip(fields, values))))  # noqa: B905 (strict= is 3.10)
            out["smi_driver"] = [gpu.pop("driver", None) for gpu in out["gpus"]]
            return
        said = (output + error).strip().splitlines()
        if "No devices were found" in output + error and not slots:
            return
        reasons.append("nvidia-smi %s" % (said[0][:200] if said else "ended with status %s" % code))
    for index, slot in enumerate(sorted(slots)):
        text = text_or_none(os.path.join(folder, slot, "information")) or ""
        pairs = [line.partition(":") for line in text.splitlines()]
        about = {key.strip(): value.strip() for key, _, value in pairs}
        out["gpus"].append({"index": index, "name": about.get("Model", "unknown"), "uuid": about.get("GPU UUID")})
    if slots and smi is None:
        reasons.append("nvidia-smi is not there, so compute capability and memory are not known")
    if not slots and smi is None:
        for slot in listing("/sys/bus/pci/devices"):
            device = "/sys/bus/pci/devices/" + slot
            if text_or_none(device + "/vendor", 20) == "0x10de" and (
                text_or_none(device + "/class", 20) or ""
            ).startswith("0x03"):
                reasons.append("an NVIDIA GPU is on the PCI bus and no driver answers for it")
                break


def gpu_record(values: dict[str, str]) -> dict[str, Any]:
    """One row of nvidia-smi's answer; ``[N/A]`` and the like become None."""

    def value(key: str) -> str | None:
        text = values.get(key)
        return None if text is None or text.startswith("[") or text == "N/A" else text

    def integer(key: str) -> int | None:
        text = value(key)
        return int(text) if text and text.isdigit() else None

    try:
        power: float | None = float(value("power.limit") or "")
    except ValueError:
        power = None
    return {
        "index": integer("index") or 0,
        "name": value("name") or "unknown",
        "uuid": value("uuid"),
        "compute_capability": value("compute_cap"),
        "memory_mib": integer("memory.total"),
        "vbios": value("vbios_version"),
        "mig": value("mig.mode.current"),
        "ecc": value("ecc.mode.current"),
        "persistence": value("persistence_mode"),
        "power_limit_w": power,
        "driver": value("driver_version"),
    }


def read_driver(out: dict[str, Any], reasons: list[str]) -> None:
    """The section ``driver``: the kernel module's version and the newest CUDA it supports."""
    driver: dict[str, Any] = {}
    module = text_or_none("/sys/module/nvidia/version", 100)
    proc = text_or_none("/proc/driver/nvidia/version", 1000)
    if module:
        driver.update(version=module, source="/sys/module/nvidia/version")
    if proc:
        driver["open_kernel"] = "Open Kernel Module" in proc
        match = re.search(r"\s(\d{3}\.\d+(?:\.\d+)?)\s", proc.splitlines()[0])
        if match and "version" not in driver:
            driver.update(version=match.group(1), source="/proc/driver/nvidia/version")
    smi = nvidia_smi()
    if not driver and smi is None and not os.path.exists("/dev/nvidiactl"):
        return
    answers, why = ask_libraries([("cuda", "libcuda.so.1")], 8.0)
    answer = answers.get(("cuda", "libcuda.so.1"), {"error": why})
    driver["cuda"] = version_of("cuda", answer.get("value"))
    if driver["cuda"] is None:
        reasons.append("libcuda.so.1 would not tell the driver's CUDA: %s" % (answer.get("error") or "no answer"))
    out["driver"] = driver


def read_toolkits(out: dict[str, Any], reasons: list[str]) -> None:
    """The section ``toolkit``: CUDA toolkits a run-time compilation would use, in the order they are looked for."""
    out["toolkits"] = []
    seen = set()
    candidates = [(os.environ.get(name), name) for name in ("CUDA_HOME", "CUDA_PATH")]
    for folder in os.environ.get("PATH", "").split(os.pathsep):
        if folder and os.path.isfile(os.path.join(folder, "nvcc")):
            candidates.append(
                (os.path.dirname(os.path.realpath(os.path.join(folder, "nvcc"))).rpartition("/")[0], "PATH")
            )
            break
    candidates.append(("/usr/local/cuda", "/usr/local/cuda"))
    for path, source in candidates:
        if not path or not os.path.isdir(path) or os.path.realpath(path) in seen:
            continue
        seen.add(os.path.realpath(path))
        version = None
        try:
            version = json.loads(text_or_none(os.path.join(path, "version.json"), 1 << 16) or "{}")["cuda"]["version"]
        except (ValueError, KeyError, TypeError):
            header = text_or_none(os.path.join(path, "include", "cuda.h"), 1 << 16) or ""
            match = re.search(r"#define\s+CUDA_VERSION\s+(\d+)", header)
            version = version_of("cuda", int(match.group(1))) if match else None
        nvcc = os.path.isfile(os.path.join(path, "bin", "nvcc"))
        if nvcc or version:
            out["toolkits"].append({"path": path, "version": version, "nvcc": nvcc, "source": source})


# Environment variables, limits, container, configuration

VARIABLES = re.compile(
    r"^(?:PYTHON|TORCH|PYTORCH_|NCCL_|CUDA_|CUDNN_|CUBLAS|NVIDIA_|OMP_|MKL_|KMP_|OPENBLAS_|GOMP_|VLLM_|SGLANG_|SGL_|TRITON_|"
    r"XFORMERS_|FLASH|FLASHINFER_|HF_|HUGGINGFACE_|TRANSFORMERS_|SAFETENSORS_|TOKENIZERS_|ACCELERATE_|DEEPSPEED_|ROCM_|HIP_|"
    r"HSA_|MIOPEN_|UV_|PIP_|LD_|MALLOC_|TCMALLOC|GLIBC_TUNABLES$|LC_|CONDA_PREFIX$|CONDA_DEFAULT_ENV$|VIRTUAL_ENV$|PATH$|LANG$|"
    r"LANGUAGE$|TZ$|NUMEXPR_|NUMBA_|CUPY_|XLA_|JAX_|TF_|GLOO_|UCX_|SPECULATORS_|MAX_JOBS$|TMPDIR$|SLURM_JOB_GPUS$)"
)


def read_environment(salt: str | None, extra: list[str], out: dict[str, Any], reasons: list[str]) -> None:
    """The section ``environment``: the variables that change what runs; secrets are taken out here, before
    anything is sent."""
    names = {item for item in extra if not item.endswith("*")}
    prefixes = tuple(item[:-1] for item in extra if item.endswith("*"))
    found: dict[str, dict[str, Any]] = {}
    for name, value in os.environ.items():
        if not (VARIABLES.match(name) or name in names or (prefixes and name.startswith(prefixes))):
            continue
        if SECRET_NAME.search(name):
            found[name] = {"redacted": True, "hash": salted(salt, name, value)}
            continue
        clean = redact_urls(value)
        if clean != value:
            found[name] = {"value": clean[:8192], "redacted": True, "hash": salted(salt, name, value)}
        else:
            found[name] = {"value": value[:8192]}
    out["environment"] = found


def read_limits(out: dict[str, Any], reasons: list[str]) -> None:
    """The section ``limits``."""
    limits: dict[str, Any] = {}
    try:
        import resource
    except ImportError:
        reasons.append("this platform has no resource limits")
    else:
        for key, which in (("nofile", "RLIMIT_NOFILE"), ("memlock", "RLIMIT_MEMLOCK"), ("stack", "RLIMIT_STACK")):
            if hasattr(resource, which):
                soft, hard = resource.getrlimit(getattr(resource, which))
                limits[key + "_soft"] = None if soft == resource.RLIM_INFINITY else soft
                if key != "stack":
                    limits[key + "_hard"] = None if hard == resource.RLIM_INFINITY else hard
    if os.path.isdir("/dev/shm"):
        info = os.statvfs("/dev/shm")
        limits["shm_bytes"] = info.f_frsize * info.f_blocks
    match = re.search(r"^MemTotal:\s*(\d+) kB", text_or_none("/proc/meminfo", 4096) or "", re.M)
    limits["memory_bytes"] = int(match.group(1)) * 1024 if match else None
    memory = text_or_none("/sys/fs/cgroup/memory.max", 100) or text_or_none(
        "/sys/fs/cgroup/memory/memory.limit_in_bytes", 100
    )
    if memory and memory.isdigit() and int(memory) < 1 << 60:
        limits["cgroup_memory_bytes"] = int(memory)
    quota = (text_or_none("/sys/fs/cgroup/cpu.max", 100) or "").split()
    if len(quota) != 2:
        quota = [text_or_none("/sys/fs/cgroup/cpu/cpu.cfs_%s_us" % item, 100) or "" for item in ("quota", "period")]
    if all(item.isdigit() for item in quota) and int(quota[1]):
        limits["cgroup_cpus"] = int(quota[0]) / int(quota[1])
    limits["cpus"] = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    out["limits"] = limits


def read_container(out: dict[str, Any], reasons: list[str]) -> None:
    """The section ``container``: the marks that engines leave."""
    kind = None
    name = None
    if os.path.exists("/run/.containerenv"):
        kind = "podman"
    elif os.path.exists("/.dockerenv"):
        kind = "docker"
    for variable in ("APPTAINER_NAME", "SINGULARITY_NAME"):
        if os.environ.get(variable):
            kind, name = "apptainer", os.path.basename(os.environ[variable])
    if os.environ.get("KUBERNETES_SERVICE_HOST"):
        kind = "kubernetes"
    if kind is None:
        text = (text_or_none("/proc/1/cgroup") or "") + (text_or_none("/proc/self/cgroup") or "")
        match = re.search(r"kubepods|docker|libpod|lxc", text)
        words = {"kubepods": "kubernetes", "libpod": "podman"}
        kind = words.get(match.group(), match.group()) if match else None
    out["container"] = {"kind": kind, "name": name}


CONFIG_NOT_RESOLUTION = frozenset(
    ("cache-dir", "timeout", "retries", "disable-pip-version-check", "progress-bar", "quiet")
)


def read_configuration(python: Python | None, out: dict[str, Any], reasons: list[str]) -> None:
    """The section ``configuration``: what pip and uv are told by files, and the constraints they point to."""
    out["configuration"] = []
    home = os.path.expanduser("~")
    config_home = os.environ.get("XDG_CONFIG_HOME") or os.path.join(home, ".config")
    system = [folder for folder in (os.environ.get("XDG_CONFIG_DIRS") or "/etc/xdg").split(":") if folder]
    pip = [os.path.join(folder, "pip", "pip.conf") for folder in system] + ["/etc/pip.conf"]
    pip += [os.path.join(home, ".pip", "pip.conf"), os.path.join(config_home, "pip", "pip.conf")]
    pip += [os.path.join(python.prefix, "pip.conf")] if python else []
    chosen = os.environ.get("PIP_CONFIG_FILE")
    if chosen == os.devnull:
        pip = []
    elif chosen:
        pip.append(chosen)
    uv = [os.path.join(folder, "uv", "uv.toml") for folder in system] + ["/etc/uv/uv.toml"]
    uv += [os.path.join(config_home, "uv", "uv.toml")]
    if os.environ.get("UV_CONFIG_FILE"):
        uv = [os.environ["UV_CONFIG_FILE"]]
    for tool, paths in (("pip", pip), ("uv", uv)):
        for path in dict.fromkeys(paths):
            try:
                data = read_bytes(path, limit=1 << 20)
            except UnreadableError as error:
                reasons.append(str(error))
                continue
            if data is not None:
                out["configuration"].extend(config_values(tool, path, data.decode("utf-8", "replace")))
    constraints = {
        (item, name)
        for name in ("PIP_CONSTRAINT", "UV_CONSTRAINT", "UV_OVERRIDE", "PIP_BUILD_CONSTRAINT", "UV_BUILD_CONSTRAINT")
        for item in os.environ.get(name, "").split()
    }
    constraints.update(
        (word, entry["key"])
        for entry in list(out["configuration"])
        if entry["key"].rpartition(".")[2] in ("constraint", "build-constraint")
        for word in entry["value"].split()
    )
    for path, key in sorted(constraints):
        try:
            data = None if "://" in path else read_bytes(path, limit=4 << 20)
        except UnreadableError as error:
            reasons.append(str(error))
            continue
        tool = "uv" if key.startswith("UV_") else "pip"
        value = "absent" if data is None else "sha256:" + hashlib.sha256(data).hexdigest()
        out["configuration"].append(
            {"tool": tool, "key": "contents of " + key, "value": value, "source": redact_urls(path)}
        )


def config_values(tool: str, path: str, text: str) -> Iterator[dict[str, str]]:
    """``key = value`` lines of pip's ini or uv's toml, as ``section.key``; continuation lines belong to the key
    above."""
    section = ""
    key = ""
    values: dict[str, str] = {}
    for line in text.splitlines():
        stripped = line.strip()
        if not stripped or stripped.startswith(("#", ";")):
            continue
        if stripped.startswith("["):
            header = re.match(r"^\[+\s*([^\]]+?)\s*\]+", stripped)
            if header and "=" not in stripped.partition("]")[0]:
                section, key = header.group(1), ""
                continue
        name, equals, value = line.partition("=")
        if equals and not line[0].isspace():
            key = (section + "." if section else "") + name.strip()
            values[key] = (values[key] + " " if key in values else "") + value.strip()
        elif key:
            values[key] = (values[key] + " " + stripped).strip()
    for key, value in values.items():
        if key.rpartition(".")[2] in CONFIG_NOT_RESOLUTION:
            continue
        clean = "<redacted>" if SECRET_NAME.search(key) else redact_urls(value)
        yield {"tool": tool, "key": key, "value": clean[:2000], "source": path}


# --deep: the files themselves against RECORD

DEEP_FAULTS_KEPT = 500
NOT_DEEP = "files were not verified; --deep does"


def verify(found: Distributions, wanted: list[str], seconds: float, out: dict[str, Any], reasons: list[str]) -> None:
    """The section ``deep``: hash every file RECORD has a hash for; name what is changed, gone or added.

    What was asked for and could not be verified is told in ``reasons``, each kind in one sentence.
    """
    every = "*" in wanted
    names = {canonical(name) for name in wanted if name != "*"}
    deadline = time.monotonic() + seconds
    known: set[str] = set()
    verified: set[str] = set()
    unrecorded: set[str] = set()
    unfinished: set[str] = set()
    unread: list[str] = []
    for location in found.locations:
        for index, dist in enumerate(location.distributions):
            name = dist["name"]
            known.add(name)
            if not every and name not in names:
                continue
            result = verify_one(location, index, dist, deadline)
            if result is None:
                # A copy behind a verified one is not what is imported. Where all are asked for, those of the system and of
                # conda are other tools' to verify.
                if name not in verified and (name in names or dist["origin"]["kind"] not in ("system", "conda")):
                    unrecorded.add(name)
                continue
            verified.add(name)
            dist["verification"] = result
            if not result["complete"]:
                unfinished.add(name)
            unread += [fault["path"] for fault in result.get("faults", ()) if fault["fault"] == "unreadable"]
    if every and known and not verified:
        reasons.append("no distribution has a RECORD to verify against")
    elif unrecorded:
        reasons.append("%s %s no RECORD to verify against" % (some(unrecorded), "has" if len(unrecorded) == 1 else "have"))
    if unfinished:
        reasons.append("%s %s not verified to the end within %g s" % (some(unfinished), "was" if len(unfinished) == 1 else "were", seconds))
    if unread:
        reasons.append("%s could not be read" % some(unread))
    absent = names - known
    if absent:
        reasons.append("%s %s not installed" % (some(absent), "is" if len(absent) == 1 else "are"))


def verify_one(location: Location, index: int, dist: dict[str, Any], deadline: float) -> dict[str, Any] | None:
    """One distribution's verification; None where it has no RECORD to verify against."""
    origin = dist.get("origin", {})
    try:
        data = read_bytes(os.path.join(dist["metadata_path"], "RECORD"))
    except UnreadableError:
        return None
    if data is None:
        return None
    faults: list[dict[str, Any]] = []
    checked, complete = 0, True
    suffixes = code_suffixes()
    folders = set()
    owned = set()
    for where, recorded, _ in record_rows(data):
        text = where.decode("utf-8", "surrogateescape").replace("%2C", ",")
        owned.add(text)
        if text.endswith(suffixes) and "/" in text and not text.startswith(("../", "/")):
            folders.add(text.rpartition("/")[0])
        algorithm, _, expected = recorded.decode("ascii", "replace").partition("=")
        if not expected or text.endswith((".pyc", "/RECORD")):
            continue
        if time.monotonic() > deadline:
            complete = False
            break
        checked += 1
        fault = check_file(os.path.join(location.path, text), algorithm, expected)
        if fault is not None:
            fault["path"] = printable(text)
            faults.append(fault)
    if complete:
        complete = look_for_added(location, index, folders, owned, deadline, faults)
    out: dict[str, Any] = {"checked": checked, "complete": complete}
    if faults:
        out["faults"] = sorted(faults, key=lambda fault: fault["path"])[:DEEP_FAULTS_KEPT]
    source = url_path(origin.get("url")) if origin.get("kind") == "editable" else None
    if source:
        out["source_digest"] = tree_digest(source, deadline)
    return out


def look_for_added(
    location: Location, index: int, folders: set[str], owned: set[str], deadline: float, faults: list[dict[str, Any]]
) -> bool:
    """Put code that no RECORD lists, in the package's folders and in folders below them, into ``faults``.

    ``folders`` are those in which RECORD lists code. A folder below that another distribution has files in is that one's
    own. False when time ran out.
    """
    suffixes = code_suffixes()
    waiting = sorted(folders, reverse=True)
    while waiting:
        if time.monotonic() > deadline:
            return False
        folder = waiting.pop()
        try:
            with os.scandir(os.path.join(location.path, folder)) as entries:
                inside = sorted((entry.name, entry.is_dir(follow_symlinks=False)) for entry in entries)
        except (FileNotFoundError, NotADirectoryError):
            continue  # its files are missing, which has been told
        except OSError:
            faults.append({"path": printable(folder), "fault": "unreadable"})
            continue
        for name, is_folder in inside:
            path = folder + "/" + name
            if is_folder:
                if name != "__pycache__" and path not in folders and not location.of_others(path, index):
                    waiting.append(path)
            elif name.endswith(suffixes) and path not in owned and not location.of_others(path, index):
                faults.append({"path": printable(path), "fault": "added"})
    return True


def code_suffixes() -> tuple[str, ...]:
    """The endings of files that an import or a loader takes code from."""
    return (*extension_suffixes(), ".so", ".py")


def printable(path: str) -> str:
    """A path that JSON can carry."""
    return path.encode("utf-8", "replace").decode("utf-8")


def some(names: Iterable[str]) -> str:
    """The first few names and how many more there are."""
    ordered = sorted(names)
    more = " and %d more" % (len(ordered) - 4) if len(ordered) > 4 else ""
    return ", ".join(ordered[:4]) + more


def check_file(path: str, algorithm: str, expected: str) -> dict[str, Any] | None:
    """None when the file's hash is the recorded one."""
    try:
        digest = hashlib.new(algorithm)
    except ValueError:
        return None  # an algorithm this Python lacks says nothing about the file
    try:
        handle = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))
    except (FileNotFoundError, NotADirectoryError):
        return {"fault": "missing"}
    except (OSError, ValueError):
        return {"fault": "unreadable"}
    try:
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            return {"fault": "modified"}  # a directory, say, in the place of the file
        while True:
            chunk = os.read(handle, 1 << 20)
            if not chunk:
                break
            digest.update(chunk)
    except OSError:
        return {"fault": "unreadable"}
    finally:
        os.close(handle)
    found = (
        binascii.b2a_base64(digest.digest(), newline=False).decode("ascii").translate({43: "-", 47: "_"}).rstrip("=")
    )
    if found == expected.rstrip("="):
        return None
    return {"fault": "modified", "expected": "%s=%s" % (algorithm, expected), "found": "%s=%s" % (algorithm, found)}


def tree_digest(folder: str, deadline: float) -> str | None:
    """A digest of the Python files of a source tree, names and contents; None when time ran out."""
    digest = hashlib.sha256()
    for root, folders, names in os.walk(folder):
        folders[:] = sorted(
            name for name in folders if not name.startswith(".") and name not in ("__pycache__", "build")
        )
        for name in sorted(names):
            if name.endswith(".py"):
                if time.monotonic() > deadline:
                    return None
                try:
                    data = read_bytes(os.path.join(root, name))
                except UnreadableError:
                    return None
                digest.update(
                    os.path.relpath(os.path.join(root, name), folder).encode("utf-8", "surrogateescape") + b"\0"
                )
                digest.update(hashlib.sha256(data or b"").digest())
    return "sha256:" + digest.hexdigest()


# The whole


def main(request: dict[str, Any] | None = None) -> dict[str, Any]:
    """The snapshot document. Never raises: what fails becomes the status of its section."""
    request = request or {}
    started = time.monotonic()
    seconds = float(request.get("timeout") or SECTION_SECONDS)
    salt = request.get("salt")
    deep = [str(name) for name in request.get("deep") or ()]
    sections = Sections(seconds)
    if request.get("root"):
        return read_root(str(request["root"]), request, sections, started)
    helpers = Helpers(HELPERS if request.get("alone") else 0)
    finish_gpus = sections.start("gpus", read_gpus)  # the slowest by far where there are GPUs
    finish_driver = sections.start("driver", read_driver)
    python = Python()
    sections.run("interpreter", python.read)
    sections.run("system", read_system)
    path = SearchPath()
    sections.run("path", lambda out, reasons: path.read(python, out, reasons))
    found = Distributions(path, python, sections, helpers)
    ready = threading.Event()
    finish_libraries = sections.start("libraries", lambda out, reasons: read_libraries(found, ready, 0.8 * seconds, out, reasons))
    bound = seconds * (len(path.entries) + 2)
    sections.run("distributions", found.read, bound)
    ready.set()
    sections.run("torch", lambda out, reasons: read_torch(found, out, reasons))
    torch = sections.found.get("torch", {}).get("location")
    sections.run("extensions", lambda out, reasons: read_extensions(found, python, torch, out, reasons))
    sections.run("loader", read_loader)
    sections.run("toolkit", read_toolkits)
    variables = [str(name) for name in request.get("variables") or ()]
    sections.run("environment", lambda out, reasons: read_environment(salt, variables, out, reasons))
    sections.run("limits", read_limits)
    sections.run("container", read_container)
    sections.run("configuration", lambda out, reasons: read_configuration(python, out, reasons))
    if deep:
        limit = float(request.get("deep_timeout") or DEEP_SECONDS)
        sections.run("deep", lambda out, reasons: verify(found, deep, limit, out, reasons), limit + seconds)
    else:
        sections.mark("deep", "unknown", NOT_DEEP)
    finish_libraries(max(seconds, 30.0))
    finish_driver(max(seconds, NVIDIA_SMI_SECONDS))
    finish_gpus(max(seconds, NVIDIA_SMI_SECONDS + 5.0))
    helpers.close()
    return answer(request, sections, started)


def answer(request: dict[str, Any], sections: Sections, started: float) -> dict[str, Any]:
    """The document from what the sections found."""
    found = sections.found
    smi_driver = [version for version in found.pop("smi_driver", ()) if version]
    if smi_driver and not (found.get("driver") or {}).get("version"):
        found["driver"] = dict(found.get("driver") or {}, version=smi_driver[0], source="nvidia-smi")
    system = sections.status.pop("system", None)
    if system and system["status"] != "ok" and sections.status["interpreter"]["status"] == "ok":
        sections.status["interpreter"] = {"status": "partial", "reason": system.get("reason", "")}
    salt = request.get("salt")
    capture = {
        "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "elapsed_s": round(time.monotonic() - started, 4),
        "hostname": os.uname().nodename if hasattr(os, "uname") else None,
        "user": user_name(),
        "cwd": working_directory(),
        "salt_id": hashlib.sha256(salt.encode("utf-8")).hexdigest()[:12] if salt else None,
        "deep": list(request.get("deep") or ()),
        "variables": list(request.get("variables") or ()),
    }
    document: dict[str, Any] = {"schema": SCHEMA, "capture": capture, "sections": sections.status}
    document.update(found)
    return document


def working_directory() -> str | None:
    """The working directory, None where it is gone."""
    try:
        return os.getcwd()
    except OSError:
        return None


def user_name() -> str | None:
    """The account the probe runs as."""
    try:
        import pwd

        return pwd.getpwuid(os.geteuid()).pw_name
    except (ImportError, KeyError, OSError):
        return os.environ.get("USER")


def read_root(root: str, request: dict[str, Any], sections: Sections, started: float) -> dict[str, Any]:
    """The snapshot of an unpacked file system: what can be told from its files.

    ``request["path"]`` lists the directories to read as sys.path, relative to ``root`` and with a leading ``/``.
    """
    root = root.rstrip("/")
    path = SearchPath()
    for folder in request.get("path") or ():
        path.add(root + folder, "site")
        path.listings[root + folder] = listing(root + folder)
    found = Distributions(path, None, sections)
    sections.found["path"] = path.entries
    sections.run("distributions", found.read, sections.seconds * (len(path.entries) + 2))
    sections.run("torch", lambda out, reasons: read_torch(found, out, reasons))
    sections.mark("deep", "unknown", "the files of an unpacked file system are not verified" if request.get("deep") else NOT_DEEP)
    text = json.dumps(sections.found)
    sections.found = json.loads(text.replace(json.dumps(root + "/")[1:-1], "/"))
    return answer(request, sections, started)


if __name__ == "__main__":
    sys.stdout.write(json.dumps(main({"alone": True}), indent=1, sort_keys=True) + "\n")
    sys.stdout.flush()
    os._exit(0)
