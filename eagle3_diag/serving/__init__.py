"""Running servers: what they counted (:func:`read_served`) and what they say when asked (:mod:`eagle3_diag.serving.ask`).

Only the standard library's HTTP client is used; a server is never changed.
"""

from __future__ import annotations

from eagle3_diag.serving.sources import Mean, read_served
from eagle3_diag.serving.waiting import Between

__all__ = ["Between", "Mean", "read_served"]
