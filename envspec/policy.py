"""What a spec and a baseline do to findings: other severities, ignores with an end date, accepted fingerprints.

``apply`` is idempotent and may run over any list of findings; ``audit`` reports entries that have expired or match nothing,
and is told what was looked for, so that an ignore for preflight is not called unused by a diff.
"""

from __future__ import annotations

import fnmatch
import json
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path
from typing import Final

from envspec.errors import UsageError
from envspec.findings import Finding, Location, sort_findings
from envspec.json import read_json
from envspec.rules import finding
from envspec.spec import Ignore, Spec

__all__ = ["BASELINE_SCHEMA", "Baseline", "accepting", "apply", "audit", "load_baseline"]

BASELINE_SCHEMA: Final = "envspec/baseline/1"


@dataclass(frozen=True, kw_only=True, slots=True)
class Baseline:
    """Accepted findings: fingerprint to a line of text that says what it was."""

    path: str = ""
    accepted: Mapping[str, str] = field(default_factory=dict)

    def to_text(self) -> str:
        """The file, sorted."""
        return json.dumps({"schema": BASELINE_SCHEMA, "accepted": dict(self.accepted)}, indent=1, sort_keys=True) + "\n"


def load_baseline(path: str | Path) -> Baseline:
    """Read a baseline file.

    Raises:
        UsageError: it cannot be read or is not a baseline.
    """
    place = Path(path)
    try:
        data = read_json(place.read_bytes())
    except OSError as error:
        raise UsageError(f"cannot read the baseline {place}: {error.strerror or error}") from error
    except (ValueError, RecursionError) as error:
        raise UsageError(f"the baseline {place} is not valid JSON: {error}") from error
    if not isinstance(data, dict) or data.get("schema") != BASELINE_SCHEMA:
        raise UsageError(f"{place} is not a baseline: its 'schema' is not {BASELINE_SCHEMA!r}")
    accepted = data.get("accepted")
    if not isinstance(accepted, dict) or not all(isinstance(text, str) for text in accepted.values()):
        raise UsageError(f"the baseline {place}: accepted: expected a table of fingerprint to text")
    return Baseline(path=str(place), accepted=accepted)


def accepting(findings: Iterable[Finding], path: str | Path) -> Baseline:
    """A new baseline for a file, which is not written here: the findings that are not declared."""
    accepted = {
        item.fingerprint: f"{item.code} {item.subject} on {', '.join(item.hosts)}"
        for item in findings
        if not item.declared
    }
    return Baseline(path=str(path), accepted=accepted)


def apply(
    findings: Iterable[Finding],
    spec: Spec | None = None,
    baseline: Baseline | None = None,
    *,
    roles: Mapping[str, str | None] | None = None,
    today: date | None = None,
) -> tuple[Finding, ...]:
    """Findings with the spec's severities, and marked ``ignored`` where an ignore or the baseline accepts them.

    Args:
        roles: host label to role, for ignores that name roles.
        today: the day that end dates are compared with.
    """
    day = today or date.today()
    of = roles or {}
    out = []
    for item in findings:
        severity = item.severity
        for override in spec.severity if spec else ():
            if override.code == item.code:
                severity = override.severity
        accepted = baseline is not None and item.fingerprint in baseline.accepted
        for ignore in spec.ignores if spec else ():
            accepted = accepted or (_current(ignore, day) and _matches(ignore, item, of))
        out.append(item.replace(severity=severity, ignored=item.ignored or accepted))
    return sort_findings(out)


def audit(
    findings: Iterable[Finding],
    spec: Spec | None = None,
    baseline: Baseline | None = None,
    *,
    roles: Mapping[str, str | None] | None = None,
    today: date | None = None,
    looked: Callable[[str, str], bool] = lambda code, subject: True,
    differences: Collection[int] = (),
) -> tuple[Finding, ...]:
    """Findings about the spec and baseline themselves.

    Args:
        looked: whether findings of a code (or family, ``EP2``) about a subject, which may be a pattern, were looked for; entries
            for others are left alone.
        differences: indexes of ``spec.declared`` that covered a difference.
    """
    day = today or date.today()
    of = roles or {}
    known = tuple(findings)
    out: list[Finding] = []
    if spec is not None:
        for ignore in spec.ignores:
            if not looked(ignore.code, ignore.subject):
                continue
            place = Location(file=spec.path, line=ignore.line)
            used = [item for item in known if _matches(ignore, item, of)]
            if not _current(ignore, day):
                what = f"the ignore of {ignore} ended on {ignore.until}; {len(used)} findings count again"
                out.append(finding("EP905", str(ignore), (), what, location=place))
            elif not used:
                out.append(finding("EP906", str(ignore), (), f"the ignore of {ignore} matches nothing", location=place))
        if looked("EP2", "*"):
            for index, declared in enumerate(spec.declared):
                if index not in differences:
                    place = Location(file=spec.path, line=declared.line)
                    what = f"the declared difference in {declared} does not occur"
                    out.append(finding("EP906", str(declared), (), what, location=place))
    if baseline is not None:
        present = {item.fingerprint for item in known}
        gone = {key: text for key, text in baseline.accepted.items() if key not in present and looked(*_about(text))}
        if gone:
            first = sorted(gone.values())[0]
            more = f" and {len(gone) - 1} more" if len(gone) > 1 else ""
            what = f"{len(gone)} accepted findings no longer occur: {first}{more}"
            out.append(finding("EP907", Path(baseline.path).name, (), what, location=Location(file=baseline.path)))
    return tuple(out)


def _about(accepted: str) -> tuple[str, str]:
    """Code and subject of a baseline's line of text, as `accepting` writes it."""
    code, _, rest = accepted.partition(" ")
    return code, rest.partition(" on ")[0]


def _current(ignore: Ignore, day: date) -> bool:
    """An ignore holds through its last day."""
    return ignore.until is None or day <= ignore.until


def _matches(ignore: Ignore, item: Finding, roles: Mapping[str, str | None]) -> bool:
    if item.code != ignore.code and not (len(ignore.code) == 3 and item.code.startswith(ignore.code)):
        return False
    if not fnmatch.fnmatchcase(item.subject.lower(), ignore.subject.lower()):
        return False
    if ignore.hosts and not all(any(fnmatch.fnmatchcase(host, name) for name in ignore.hosts) for host in item.hosts):
        return False
    return not ignore.roles or all(roles.get(host) in ignore.roles for host in item.hosts)
