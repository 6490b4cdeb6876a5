"""How a source runs on a host and its answer comes back whole through whatever the host's login prints.

The program goes in over stdin and is 2.7 syntax on the outside, so that an old interpreter says that it is old
instead of failing on the body. The answer is framed: a record separator, a token drawn for this run, length and
checksum, then base64 of compressed ASCII JSON, then an end mark. Everything outside the frame is noise, and the mark
never appears in what was sent, so a shell that echoes its input cannot forge one.
"""

from __future__ import annotations

import base64
import contextlib
import functools
import importlib.util
import json
import marshal
import re
import secrets
import sys
import zlib
from dataclasses import dataclass

__all__ = ["FLAGS", "MAX_ANSWER", "Frame", "FrameError", "clean", "encode", "find_frame", "new_token", "read_answer"]

FLAGS: tuple[str, ...] = ("-E", "-s", "-S", "-B")
"""Interpreter flags, valid from Python 2.7 on, which ``-I`` is not.

No PYTHON* variables, no user site, no ``site`` module (so no ``.pth`` line and no sitecustomize runs), no bytecode
written. The envelope drops the working directory from ``sys.path``.
"""

MAX_ANSWER = 256 << 20

_ENVELOPE = """\
import sys
sys.path[:] = [_ for _ in sys.path if _]
mark = "\\036" + "envspec:" + "@TOKEN@"
if sys.version_info < (3, 8):
    sys.stdout.write(mark + ":too old: Python " + sys.version.split()[0] + " here, 3.8 or newer is needed\\n")
    sys.stdout.flush()
    sys.exit(0)
def answer():
    import base64, gc, json, os, zlib
    gc.disable()
    sink = sys.stdout
    sys.stdout = sys.stderr
    space = {"__name__": "envspec_remote"}
    try:
        external = sys.modules.get("_frozen_importlib_external")
        magic = base64.b64encode(getattr(external, "MAGIC_NUMBER", b"")).decode("ascii")
        if magic == "@MAGIC@" and sys.implementation.name == "cpython":
            import marshal
            code = marshal.loads(zlib.decompress(base64.b64decode("@CODE@")))
        else:
            code = compile(zlib.decompress(base64.b64decode("@SOURCE@")), "<envspec>", "exec", 0, True)
        exec(code, space)
        request = json.loads(zlib.decompress(base64.b64decode("@REQUEST@")).decode("ascii"))
        text = json.dumps({"answer": space["main"](request)})
    except BaseException as error:
        text = json.dumps({"error": type(error).__name__ + ": " + str(error)[:500]})
    body = base64.b64encode(zlib.compress(text.encode("ascii"), 1))
    head = mark + ":%d:%08x\\n" % (len(body), zlib.crc32(body) & 0xffffffff)
    whole = head.encode("ascii") + body + b"\\n" + (mark + ":end\\n").encode("ascii")
    sink.flush()
    while whole:
        whole = whole[os.write(1, whole[:65536]):]
    os._exit(0)
answer()
"""


@dataclass(frozen=True, kw_only=True)
class Frame:
    """A found frame: its body, or the sentence of an interpreter that is too old; ``noise`` is what came before it."""

    body: bytes | None
    too_old: str | None
    noise: bytes


class FrameError(Exception):
    """The frame is damaged or says that the source failed; the message is a sentence without the host's name."""


def new_token() -> str:
    """128 random bits as text."""
    return secrets.token_hex(16)


def encode(source: str, request: object, token: str) -> bytes:
    """The program to feed to ``python … -``, ASCII only.

    It runs ``source`` and frames what its ``main(request)`` returns.
    """
    text = _with_source(source).replace("@TOKEN@", token)
    return text.replace("@REQUEST@", _pack(json.dumps(request).encode("ascii"))).encode("ascii")


@functools.lru_cache(maxsize=8)
def _with_source(source: str) -> str:
    """The envelope around a source, and around its bytecode for a host whose interpreter reads the bytecode of this one.

    Compiling the probe is a fifth of a capture; where both sides are of one Python version it is done once, here.
    """
    text = _ENVELOPE.replace("@SOURCE@", _pack(source.encode("utf-8")))
    magic, code = "", b""
    if sys.implementation.name == "cpython":
        with contextlib.suppress(SyntaxError, ValueError):  # the host says what is wrong with it
            code = marshal.dumps(compile(source, "<envspec>", "exec", 0, True))
            magic = base64.b64encode(importlib.util.MAGIC_NUMBER).decode("ascii")
    return text.replace("@MAGIC@", magic or "none").replace("@CODE@", _pack(code))


def _pack(data: bytes) -> str:
    return base64.b64encode(zlib.compress(data, 9)).decode("ascii")


def find_frame(received: bytes, token: str) -> Frame | None:
    """The frame in what was received so far; None while it is not complete."""
    mark = b"\x1eenvspec:" + token.encode("ascii")
    at = received.find(mark)
    if at < 0:
        return None
    line_end = received.find(b"\n", at)
    if line_end < 0:
        return None
    head = received[at + len(mark) : line_end]
    if head.startswith(b":too old:"):
        return Frame(body=None, too_old=clean(head[1:].decode("ascii", "replace")), noise=received[:at])
    match = re.fullmatch(rb":(\d{1,12}):([0-9a-f]{8})\r?", head)
    if match is None:
        return Frame(body=b"", too_old=None, noise=received[:at])
    size = int(match.group(1))
    # A terminal in between may turn line ends into CRLF; the body itself holds none.
    body = received[line_end + 1 : line_end + 1 + size]
    if received.find(mark + b":end", line_end) < 0:
        return None
    if len(body) != size or zlib.crc32(body) & 0xFFFFFFFF != int(match.group(2), 16):
        body = b""
    return Frame(body=body, too_old=None, noise=received[:at])


def read_answer(frame: Frame) -> object:
    """The object in a frame.

    Raises:
        FrameError: the interpreter is too old, the body is damaged, or the source raised on the host.
    """
    if frame.too_old is not None:
        raise FrameError(f"its interpreter is {frame.too_old}")
    try:
        decompressor = zlib.decompressobj()
        text = decompressor.decompress(base64.b64decode(frame.body or b"", validate=True), MAX_ANSWER)
        if not decompressor.eof:
            raise ValueError("too long or cut off")
        document = json.loads(text)
    except (ValueError, zlib.error, RecursionError) as error:
        raise FrameError(f"its answer arrived damaged ({error})") from error
    if b"\\ud" in text or b"\\uD" in text:
        document = _without_surrogates(document)
    if not isinstance(document, dict) or ("answer" not in document and "error" not in document):
        raise FrameError("its answer is not what was asked for")
    if "error" in document:
        raise FrameError(f"the probe failed there ({clean(str(document['error']))})")
    answer: object = document["answer"]
    return answer


_SURROGATE = re.compile("[\ud800-\udfff]")


def _without_surrogates(value: object) -> object:
    """File names that are not UTF-8 travel as lone surrogates; they must not reach a terminal or a file."""
    if isinstance(value, str):
        return _SURROGATE.sub("\ufffd", value)
    if isinstance(value, list):
        return [_without_surrogates(item) for item in value]
    if isinstance(value, dict):
        return {_without_surrogates(key): _without_surrogates(item) for key, item in value.items()}
    return value


_ESCAPES = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[@-Z\\^_])")


def clean(text: str, limit: int = 300) -> str:
    """One line of foreign text that is safe to show.

    No control characters, no terminal escapes, not longer than ``limit``.
    """
    text = _ESCAPES.sub("", text)
    text = " ".join("".join(char if char.isprintable() else " " for char in text).split())
    return text if len(text) <= limit else text[: limit - 1] + "…"
