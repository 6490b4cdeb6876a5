"""JUnit XML, for CI systems that show tests."""

from __future__ import annotations

import xml.etree.ElementTree as ET

from envspec.findings import Finding, HostStatus, Report
from envspec.report.escape import plain, xml_text
from envspec.report.interface import View, title

__all__ = ["JUnit"]


class JUnit:
    """``--format junit``: a suite for each host and a case for each of its findings.

    A finding that fails the run is a failure; one below the failing severity passes and says so in ``system-out``;
    a declared or ignored one is skipped. A host that could not be captured is an error. A host without findings has
    one passing case. Findings that concern no host stand in a suite named ``envspec``.
    """

    name = "junit"

    def render(self, report: Report, view: View) -> str:
        failing = {id(finding) for finding in report.failing(view.fail_on)}
        suites = [_suite(host.label, host, _of(report, host.label), failing) for host in report.hosts]
        known = {host.label for host in report.hosts}
        general = [finding for finding in report.findings if not known.intersection(finding.hosts)]
        if general or not suites:
            suites.append(_suite("envspec", None, general, failing))
        root = ET.Element("testsuites", name=f"envspec {report.command}")
        for key in ("tests", "failures", "errors", "skipped"):
            root.set(key, str(sum(int(suite.get(key, "0")) for suite in suites)))
        root.extend(suites)
        ET.indent(root, " ")
        text = ET.tostring(root, encoding="unicode")
        # Neither of these starts markup, so they stand only in text that came from a host.
        text = text.replace("::", "&#58;:").replace("##[", "&#35;#[")
        return f'<?xml version="1.0" encoding="UTF-8"?>\n{text}\n'


def _of(report: Report, label: str) -> list[Finding]:
    return [finding for finding in report.findings if label in finding.hosts]


def _suite(name: str, host: HostStatus | None, findings: list[Finding], failing: set[int]) -> ET.Element:
    suite = ET.Element("testsuite", name=xml_text(plain(name)) or "?")
    label = suite.get("name", "?")
    if host and host.role:
        properties = ET.SubElement(suite, "properties")
        ET.SubElement(properties, "property", name="role", value=xml_text(host.role))
    if host and host.status == "failed":
        case = ET.SubElement(suite, "testcase", name="capture", classname=label)
        error = ET.SubElement(case, "error", type="capture", message=xml_text(plain(host.reason or "no reason given")))
        error.text = xml_text(f"{host.target or host.label} could not be captured: {host.reason or 'no reason given'}")
    for finding in findings:
        suite.append(_case(finding, label, id(finding) in failing))
    if not findings and (host is None or host.status != "failed"):
        ET.SubElement(suite, "testcase", name="parity", classname=label)
    cases = suite.findall("testcase")
    suite.set("tests", str(len(cases)))
    for key, tag in (("failures", "failure"), ("errors", "error"), ("skipped", "skipped")):
        suite.set(key, str(sum(case.find(tag) is not None for case in cases)))
    return suite


def _case(finding: Finding, host: str, fails: bool) -> ET.Element:
    case = ET.Element("testcase", name=xml_text(plain(f"{finding.code} {finding.subject}")), classname=host)
    if finding.location:
        if finding.location.file:
            case.set("file", xml_text(plain(finding.location.file)))
        if finding.location.line and finding.location.line > 0:
            case.set("line", str(finding.location.line))
    lines = [title(finding), finding.what, f"Why: {finding.why}", f"Fix: {finding.fix}", *([f"At: {finding.location}"] if finding.location else [])]
    story = "\n".join(xml_text(plain(line)) for line in lines)
    if not finding.counts:
        ET.SubElement(case, "skipped", message="declared difference" if finding.declared else "ignored or in the baseline")
    elif fails:
        failure = ET.SubElement(case, "failure", type=finding.severity, message=xml_text(plain(finding.what)))
        failure.text = story
    if not fails:
        ET.SubElement(case, "system-out").text = f"{finding.severity}: {story}"
    return case
