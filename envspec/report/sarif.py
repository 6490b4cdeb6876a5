"""SARIF 2.1.0 (OASIS standard, 27 March 2020), for code scanning and editors."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import PurePath
from typing import Any
from urllib.parse import quote

from envspec import __version__
from envspec.findings import Finding, Location, Report
from envspec.report.escape import ascii_json, plain
from envspec.report.interface import View, after_subject
from envspec.rules import RULES

__all__ = ["Sarif"]

SCHEMA = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"
_LEVEL = {"breaks": "error", "results": "warning", "noise": "note"}


class Sarif:
    """``--format sarif``: a result for each finding.

    A finding without a file of its own stands at the view's anchor (the lock or spec it was judged by), without one where
    the spec would be, because code scanning refuses a result that has no file. The hosts are logical locations. Declared and ignored findings are
    results with a suppression; a host that could not be captured is a tool execution notification.
    """

    name = "sarif"

    def render(self, report: Report, view: View) -> str:
        codes = sorted({finding.code for finding in report.findings})
        index = {code: number for number, code in enumerate(codes)}
        failed = [host for host in report.hosts if host.status == "failed"]
        run = {
            "tool": {
                "driver": {
                    "name": "envspec",
                    "semanticVersion": __version__,
                    "rules": [_rule(code) for code in codes],
                }
            },
            "automationDetails": {"id": f"envspec/{report.command}/"},
            "columnKind": "unicodeCodePoints",
            "invocations": [
                {
                    "executionSuccessful": not failed,
                    "toolExecutionNotifications": [
                        {
                            "level": "error",
                            "message": {"text": plain(f"{host.label} could not be captured: {host.reason or 'no reason given'}")},
                        }
                        for host in failed
                    ],
                }
            ],
            "results": [_result(finding, index[finding.code], view) for finding in report.findings],
        }
        return ascii_json({"$schema": SCHEMA, "version": "2.1.0", "runs": [run]}, indent=1) + "\n"


def _rule(code: str) -> dict[str, Any]:
    rule = RULES.get(code)
    if rule is None:
        return {"id": code}
    return {
        "id": code,
        "shortDescription": {"text": rule.title},
        "fullDescription": {"text": rule.why},
        "help": {"text": rule.mend},
        "defaultConfiguration": {"level": _LEVEL[rule.severity]},
    }


def _result(finding: Finding, index: int, view: View) -> dict[str, Any]:
    place = finding.location or Location(file=view.anchor or "envspec.yaml")
    location: dict[str, Any] = {
        "physicalLocation": _physical(place),
        "logicalLocations": [{"name": name, "kind": "resource"} for name in dict.fromkeys(map(plain, finding.hosts))],
    }
    what = finding.what if after_subject(finding) is not None else f"{finding.subject}: {finding.what}"
    end = "" if what.endswith((".", "!", "?")) else "."
    hosts = f" On {', '.join(finding.hosts)}." if finding.hosts else ""
    result: dict[str, Any] = {
        "ruleId": finding.code,
        "ruleIndex": index,
        "level": _LEVEL[finding.severity],
        "message": {"text": plain(f"{what}{end}{hosts} {finding.fix}")},
        "locations": [location],
        "partialFingerprints": {"envspec/v1": finding.fingerprint},
    }
    if not finding.counts:
        reason = "Declared in the spec as a difference between roles" if finding.declared else "Accepted by an ignore or the baseline"
        result["suppressions"] = [{"kind": "external", "status": "accepted", "justification": reason}]
    return result


def _physical(place: Location) -> Mapping[str, Any]:
    path = PurePath(place.file)
    artifact = {"uri": _uri(path)} if path.is_absolute() else {"uri": _uri(path), "uriBaseId": "%SRCROOT%"}
    if place.line is None or place.line < 1:
        return {"artifactLocation": artifact}
    region = {"startLine": place.line}
    if place.column is not None and place.column >= 1:
        region["startColumn"] = place.column
    return {"artifactLocation": artifact, "region": region}


def _uri(path: PurePath) -> str:
    # "surrogateescape" is how a file name that is not UTF-8 arrives; a surrogate from elsewhere is replaced.
    raw = path.as_posix().encode("utf-8", "surrogateescape" if _from_file_system(str(path)) else "replace")
    quoted = quote(raw, safe="/")
    return f"file://{quoted}" if path.is_absolute() else quoted


def _from_file_system(text: str) -> bool:
    return all(not 0xD800 <= ord(char) <= 0xDFFF or 0xDC80 <= ord(char) <= 0xDCFF for char in text)
