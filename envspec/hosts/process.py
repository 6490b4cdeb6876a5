"""Feeds a program to a command's stdin and waits for its framed answer, for a bounded time."""

from __future__ import annotations

import atexit
import contextlib
import os
import selectors
import signal
import subprocess
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass

from envspec.hosts import wire

__all__ = ["Exchange", "exchange"]

_STDERR_KEPT = 64 << 10


@dataclass(frozen=True, kw_only=True)
class Exchange:
    """What came back. ``frame`` is None when the command ended, or the time was up, without an answer."""

    frame: wire.Frame | None
    stdout: bytes
    stderr: str
    status: int | None
    timed_out: bool = False
    too_long: bool = False


_LIVE: set[subprocess.Popen[bytes]] = set()
_STARTING = threading.Lock()
_ending = threading.Event()


@atexit.register
def _end_all() -> None:
    """An interrupted run exits while hosts are still awaited; what was started for them must not stay behind."""
    with _STARTING:  # a thread whose command is ended here goes on to the next host
        _ending.set()
    for process in list(_LIVE):
        with contextlib.suppress(OSError):
            os.killpg(process.pid, signal.SIGKILL)


def exchange(command: Sequence[str], payload: bytes, token: str, timeout: float) -> Exchange:
    """Run a command and read until the frame is complete, the command ends, or ``timeout`` seconds have passed.

    The command gets a session of its own: it has no terminal to prompt on, and is killed with all it started.

    Raises:
        OSError: the command cannot be started.
    """
    with _STARTING:
        if _ending.is_set():
            raise InterruptedError("the run is ending")
        process = subprocess.Popen(
            list(command),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        _LIVE.add(process)
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stderr is not None
    os.set_blocking(process.stdin.fileno(), False)
    unsent = memoryview(payload)
    deadline = time.monotonic() + timeout
    received, errors = bytearray(), bytearray()
    frame: wire.Frame | None = None
    timed_out = too_long = False
    with selectors.DefaultSelector() as selector:
        selector.register(process.stdout, selectors.EVENT_READ, received)
        selector.register(process.stderr, selectors.EVENT_READ, errors)
        selector.register(process.stdin, selectors.EVENT_WRITE)
        # A connection kept open by ssh's ControlPersist holds stderr, so only stdout's end counts.
        while frame is None and process.stdout in {key.fileobj for key in selector.get_map().values()}:
            left = deadline - time.monotonic()
            if left <= 0:
                timed_out = True
                break
            for key, _ in selector.select(left):
                if key.fileobj is process.stdin:
                    unsent = _feed(process, unsent)
                    if not unsent:
                        selector.unregister(key.fileobj)
                        process.stdin.close()
                    continue
                chunk = os.read(key.fd, 1 << 18)
                if not chunk:
                    selector.unregister(key.fileobj)
                    continue
                key.data.extend(chunk)
                if key.data is errors:
                    del errors[:-_STDERR_KEPT]
                elif b"\x1e" in received and b":" in chunk:
                    frame = wire.find_frame(bytes(received), token)
            if len(received) > wire.MAX_ANSWER:
                too_long = True
                break
    process.stdin.close()
    status = _end(process, 1.0 if not (timed_out or too_long) else 0.0)
    _LIVE.discard(process)
    _drain(process, errors)
    for stream in (process.stdout, process.stderr):
        with contextlib.suppress(OSError):
            stream.close()
    return Exchange(
        frame=frame,
        stdout=bytes(received),
        stderr=errors.decode("utf-8", "replace"),
        status=status,
        timed_out=timed_out,
        too_long=too_long,
    )


def _feed(process: subprocess.Popen[bytes], unsent: memoryview) -> memoryview:
    """Write what the command takes of the program; what is left, which is nothing for one that ended early."""
    assert process.stdin is not None
    try:
        return unsent[os.write(process.stdin.fileno(), unsent) :]
    except BlockingIOError:
        return unsent
    except OSError:
        return unsent[:0]


def _end(process: subprocess.Popen[bytes], grace: float) -> int | None:
    """Let the command end by itself for ``grace`` seconds, then kill its session.

    Its exit status if it ended by itself.
    """
    with contextlib.suppress(subprocess.TimeoutExpired):
        return process.wait(grace)
    with contextlib.suppress(OSError):
        os.killpg(process.pid, signal.SIGKILL)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(5.0)
    return None


def _drain(process: subprocess.Popen[bytes], errors: bytearray) -> None:
    """What is already in the stderr pipe."""
    assert process.stderr is not None
    with contextlib.suppress(OSError, ValueError):
        os.set_blocking(process.stderr.fileno(), False)
        while chunk := os.read(process.stderr.fileno(), 1 << 16):
            errors.extend(chunk)
    del errors[:-_STDERR_KEPT]
