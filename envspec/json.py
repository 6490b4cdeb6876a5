"""Reading JSON that says each thing once."""

from __future__ import annotations

import json
from collections import Counter

__all__ = ["read_json"]


def read_json(text: str | bytes) -> object:
    """Parse JSON in which no object has a key twice: of two values it cannot be told which is meant.

    Raises:
        ValueError: it is not JSON, or a key stands twice.
        RecursionError: it is nested too deep.
    """

    def once(pairs: list[tuple[str, object]]) -> dict[str, object]:
        made = dict(pairs)
        if len(made) != len(pairs):
            ((twice, _),) = Counter(key for key, _ in pairs).most_common(1)
            raise ValueError(f"the key {twice!r} stands twice")
        return made

    return json.loads(text, object_pairs_hook=once)
