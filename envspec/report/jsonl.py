"""The report as JSON Lines, for ``jq`` and for logs."""

from __future__ import annotations

from collections.abc import Mapping

from envspec.findings import Json, Report
from envspec.report.escape import ascii_json
from envspec.report.interface import View

__all__ = ["JsonLines"]


class JsonLines:
    """``--format jsonl``: one object a line, each with ``record``: ``host``, ``finding`` or, last, ``counts``.

    The other keys are those of the JSON document.
    """

    name = "jsonl"

    def render(self, report: Report, view: View) -> str:
        records: list[Mapping[str, Json]] = [
            *({"record": "host", **host.to_dict()} for host in report.hosts),
            *({"record": "finding", **finding.to_dict()} for finding in report.findings),
            {"record": "counts", **report.counts.to_dict()},
        ]
        return "".join(ascii_json(record) + "\n" for record in records)
