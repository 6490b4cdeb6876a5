"""What happens between two readings of a server's counters."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from eagle3_diag.errors import InputError


def _silent(_: str) -> None:
    """Where nobody watches."""


@dataclass(frozen=True, kw_only=True)
class Between:
    """How the earlier of two readings is had.

    ``interval``: seconds to wait between two readings. ``since``: a saved reading (the text of ``/metrics``), or the word ``start``:
    everything since the server started. With neither, the person at the terminal says when by pressing Enter. ``say`` tells that person
    what is waited for.
    """

    interval: float | None = None
    since: str | None = None
    say: Callable[[str], None] = _silent

    @property
    def from_start(self) -> bool:
        return self.since == "start"

    def saved(self) -> str | None:
        """The saved reading's text. Raises InputError where it cannot be read."""
        if self.since is None or self.from_start:
            return None
        try:
            return Path(self.since).read_text("utf-8", "replace")
        except OSError as error:
            raise InputError(f"--since {self.since}: cannot be read ({error.strerror}); save the server's /metrics there first, or write start") from None

    def wait(self, what: str) -> None:
        """Return when the second reading is due. Raises InputError where nobody can say when."""
        if self.interval is not None:
            self.say(f"First reading of {what} taken; the second follows in {self.interval:g} s.")
            time.sleep(self.interval)
            return
        if not (sys.stdin is not None and sys.stdin.isatty()):
            raise InputError(
                f"two readings of {what} are needed and no terminal is here to say when; give --interval SECONDS, --since FILE (an earlier /metrics), or "
                "--since start for everything since the server started"
            )
        self.say(f"First reading of {what} taken. Send your requests, then press Enter for the second.")
        try:
            input()
        except EOFError:
            raise InputError(f"the input ended before the second reading of {what}; give --interval SECONDS or --since FILE") from None
