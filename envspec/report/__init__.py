"""One renderer for each output format, behind one interface."""

from __future__ import annotations

from collections.abc import Mapping

from envspec.findings import Report
from envspec.report import github, json, jsonl, junit, markdown, sarif, text
from envspec.report.interface import Renderer, View, view_of

__all__ = ["RENDERERS", "Renderer", "View", "render", "view_of"]

RENDERERS: Mapping[str, Renderer] = {
    renderer.name: renderer
    for renderer in (
        text.Text(),
        json.Json(),
        jsonl.JsonLines(),
        markdown.Markdown(),
        sarif.Sarif(),
        junit.JUnit(),
        github.GitHub(),
    )
}


def render(name: str, report: Report, view: View) -> str:
    """The report in the format of that name, a key of :data:`RENDERERS`."""
    return RENDERERS[name].render(report, view)
