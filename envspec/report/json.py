"""The whole report as one JSON document, schema ``envspec/findings/1``."""

from __future__ import annotations

from envspec.findings import Report
from envspec.report.escape import ascii_json
from envspec.report.interface import View

__all__ = ["Json"]


class Json:
    """``--format json``: ASCII, stable order, unknown values as null."""

    name = "json"

    def render(self, report: Report, view: View) -> str:
        return ascii_json(report.to_dict(), indent=1) + "\n"
