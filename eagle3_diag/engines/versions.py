"""Versions of engines and trainers: enough of PEP 440 to order releases. Standard library only."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import total_ordering

_PATTERN = re.compile(
    r"v?(?P<release>\d+(?:\.\d+)*)(?:[._-]?(?P<pre>a|b|c|rc|alpha|beta|pre|preview)[._-]?(?P<pre_n>\d*))?"
    r"(?:[._-]?post[._-]?(?P<post>\d*))?(?:[._-]?dev[._-]?(?P<dev>\d*))?(?:\+[a-z0-9]+(?:[._-][a-z0-9]+)*)?",
    re.IGNORECASE,
)
_PRE = {"a": 0, "alpha": 0, "b": 1, "beta": 1}


@total_ordering
@dataclass(frozen=True, eq=False)
class Version:
    """A release. Equal and ordered as PEP 440 says, a local part (``+cu128``) left aside; ``text`` is as it was written."""

    text: str
    key: tuple[tuple[int, ...], tuple[int, ...], int, float]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Version) and self.key == other.key

    def __hash__(self) -> int:
        return hash(self.key)

    def __lt__(self, other: Version) -> bool:
        return self.key < other.key

    def __str__(self) -> str:
        return self.text


def parse(text: str) -> Version:
    """The version that ``text`` writes.

    Raises:
        ValueError: it writes none.
    """
    match = _PATTERN.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"{text!r} is no version such as 0.5.12 or 0.19.1")
    release = tuple(int(part) for part in match["release"].split("."))
    while len(release) > 1 and release[-1] == 0:
        release = release[:-1]
    dev = float("inf") if match["dev"] is None else float(match["dev"] or 0)
    post = -1 if match["post"] is None else int(match["post"] or 0)
    if match["pre"] is not None:
        pre = (_PRE.get(match["pre"].lower(), 2), int(match["pre_n"] or 0))
    elif match["dev"] is not None and match["post"] is None:
        pre = (-1, 0)  # 1.0.dev1 stands before 1.0a1
    else:
        pre = (9, 0)
    return Version(text.strip(), (release, pre, post, dev))
