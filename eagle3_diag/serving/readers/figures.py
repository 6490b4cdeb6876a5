"""Figures that somebody typed: ``accept-length=1.8,steps=5`` or ``rates=0.71,0.22,0.05``, with ``drafts=N`` where it is known."""

from __future__ import annotations

import re

from eagle3_diag.errors import InputError
from eagle3_diag.observed import Observed, observed

_KEYS = ("accept-length", "steps", "rates", "drafts")
EXAMPLE = "write figures as accept-length=1.8,steps=5 or rates=0.71,0.22,0.05 (share of drafts accepted at least to each position), with drafts=N where it is known"


def is_figures(text: str) -> bool:
    """Whether a source's name is figures rather than a file."""
    return re.match(rf"\s*({'|'.join(_KEYS)})\s*=", text) is not None


def read(text: str, steps: int | None, per_request: bool) -> Observed:
    """Raises InputError that shows how figures are written."""
    found: dict[str, list[float]] = {}
    key = ""
    for part in text.split(","):
        name, equals, value = part.rpartition("=")
        if equals:
            key = name.strip()
            if key not in _KEYS or key in found:
                raise InputError(f"--served {text!r}: {key!r} is {'given twice' if key in found else 'not known'}; {EXAMPLE}")
            found[key] = []
        try:
            found[key].append(float(value))
        except ValueError:
            raise InputError(f"--served {text!r}: {value.strip()!r} is no number; {EXAMPLE}") from None
    for name in ("accept-length", "steps", "drafts"):
        if len(found.get(name, [0.0])) != 1:
            raise InputError(f"--served {text!r}: {name} takes one number; {EXAMPLE}")
    rates = found.get("rates")
    said = [round(v) for v in found.get("steps", [])] + ([len(rates)] if rates else []) + ([steps] if steps is not None else [])
    if not said:
        raise InputError(f"--served {text!r}: how many tokens were drafted per step is not said; {EXAMPLE}")
    if len(set(said)) > 1:
        raise InputError(f"--served {text!r}: gives {' and '.join(map(str, dict.fromkeys(said)))} as the number of drafted tokens per step; give one")
    drafts = round(found["drafts"][0]) if "drafts" in found else None
    accepted = None if rates is None else tuple(rate * (drafts or 1) for rate in rates)
    length = found["accept-length"][0] if "accept-length" in found else None
    return observed(
        steps=said[0], drafts=drafts, accepted_per_position=accepted, acceptance_length=length, per="request" if per_request else "step",
        source=f"--served {text}", rounding=_rounding(text),
    )  # fmt: skip


def _rounding(text: str) -> float:
    """Half a unit of the last digit that the acceptance length was written with."""
    match = re.search(r"accept-length\s*=\s*\d*(?:\.(\d*))?", text)
    return 0.5 * 10.0 ** -len(match.group(1) or "") if match else 0.0
