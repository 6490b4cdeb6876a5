"""Captures many hosts at once; one that hangs, refuses or fails costs only its own answer."""

from __future__ import annotations

import os
import queue
import secrets
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from envspec.errors import CaptureError, EnvspecError
from envspec.hosts.interface import CaptureOptions, Host
from envspec.snapshot import Snapshot

__all__ = ["AT_ONCE", "Captured", "at_the_same_time", "capture_all", "capture_each"]

AT_ONCE = 32
"""Hosts captured at the same time. Each is one ssh process, which waits more than it works."""


@dataclass(frozen=True, kw_only=True)
class Captured:
    """One host's outcome: a snapshot, or the error that tells in one sentence why there is none."""

    host: Host
    snapshot: Snapshot | None = None
    error: EnvspecError | None = None


def with_salt(options: CaptureOptions) -> CaptureOptions:
    """The options with a salt.

    That of ``ENVSPEC_SALT``, which makes captures of different runs comparable, else a new one.
    """
    return options if options.salt else replace(options, salt=os.environ.get("ENVSPEC_SALT") or secrets.token_hex(16))


def capture_each(
    hosts: Sequence[Host], options: CaptureOptions | None = None, *, at_once: int = AT_ONCE
) -> Iterator[tuple[int, Captured]]:
    """Capture hosts concurrently; pairs of (index, outcome) in the order in which they finish. All share one salt."""
    salted = with_salt(options or CaptureOptions())
    waiting = queue.SimpleQueue[int]()
    done = queue.SimpleQueue[tuple[int, Captured]]()
    for index in range(len(hosts)):
        waiting.put(index)

    def work() -> None:
        while True:
            try:
                index = waiting.get_nowait()
            except queue.Empty:
                return
            done.put((index, _capture_one(hosts[index], salted)))

    at_the_same_time(work, min(at_once, len(hosts)))
    for _ in hosts:
        yield done.get()


def at_the_same_time(work: Callable[[], None], most: int) -> None:
    """Start ``work`` in so many threads, or as many as this machine allows; where it allows none, it is done on return.

    The threads are daemons, so that an interrupt does not wait for a host that hangs; children end with their pipes.
    """
    for started in range(most):
        try:
            threading.Thread(target=work, daemon=True).start()
        except RuntimeError:
            if not started:
                work()
            return


def capture_all(
    hosts: Sequence[Host],
    options: CaptureOptions | None = None,
    *,
    at_once: int = AT_ONCE,
    progress: Callable[[Captured], None] | None = None,
) -> list[Captured]:
    """Capture hosts concurrently; outcomes in the order of ``hosts``. ``progress`` is called as each finishes."""
    outcomes: dict[int, Captured] = {}
    for index, outcome in capture_each(hosts, options, at_once=at_once):
        outcomes[index] = outcome
        if progress is not None:
            progress(outcome)
    return [outcomes[index] for index in range(len(hosts))]


def _capture_one(host: Host, options: CaptureOptions) -> Captured:
    try:
        return Captured(host=host, snapshot=host.snapshot(options))
    except EnvspecError as error:
        return Captured(host=host, error=error)
    except Exception as error:  # one host's surprise must not lose the others' answers
        return Captured(host=host, error=CaptureError(f"{host.label}: {type(error).__name__}: {error}"))
