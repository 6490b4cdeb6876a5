"""The HTML report in a real browser: nothing fails, nothing is fetched, nothing sticks out, the plots are drawn."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from eagle3_diag.report import html
from eagle3_diag.report.diagnosis import html as diagnosis_html
from tests.eagle3_diag.diagnosis.test_documents import cases
from tests.eagle3_diag.report import chromium
from tests.eagle3_diag.report.documents import hostile, make_document

pytestmark = [pytest.mark.browser, pytest.mark.skipif(chromium.program() is None, reason="no Chromium on PATH; install it with: apt-get install chromium")]

DOCUMENTS = {
    "greedy": lambda: make_document(),
    "sampled": lambda: make_document(mode="sampled"),
    "only serving": lambda: make_document(only_serving=True),
    "many samples": lambda: make_document(samples=300),
    "nothing known": lambda: make_document(drafts=False),
    "trainer": lambda: make_document(trainer=True),
    "hostile": hostile,
}


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[chromium.Page]:
    with chromium.open_browser(tmp_path_factory.mktemp("profile")) as opened:
        yield opened


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [360, 1280])
@pytest.mark.parametrize("name", DOCUMENTS)
def test_page_is_whole_at_every_size(page: chromium.Page, tmp_path: Path, name: str, width: int, dark: bool) -> None:
    report = DOCUMENTS[name]()
    drawn = look(page, tmp_path, html.render(report), width, dark)
    assert len(drawn) == plots_expected(report)
    assert all(n > 0 for n in drawn) or name == "nothing known"


@pytest.fixture(scope="module")
def diagnoses() -> dict[str, Any]:
    return cases()


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [360, 1280])
@pytest.mark.parametrize("name", ["quality", "wiring", "mean", "few layers", "hostile"])
def test_page_of_a_diagnosis_is_whole_at_every_size(
    page: chromium.Page, tmp_path: Path, diagnoses: dict[str, Any], name: str, width: int, dark: bool
) -> None:
    drawn = look(page, tmp_path, diagnosis_html.render(diagnoses[name]), width, dark)
    assert len(drawn) == 4
    assert all(n > 0 for n in drawn)


def look(page: chromium.Page, folder: Path, rendered: str, width: int, dark: bool) -> list[int]:
    """Open a page, hold it to all that holds for each, and say how many marks each plot has."""
    file = folder / "report.html"
    file.write_text(rendered, "utf-8")
    page.problems.clear()
    page.requests.clear()
    page.open(file, width=width, dark=dark)
    page.evaluate("for (const d of document.querySelectorAll('details')) d.open = true")
    assert page.problems == []
    assert page.requests == [file.as_uri()]
    assert page.evaluate("window.hacked") is None
    overflow = page.evaluate("[document.documentElement.scrollWidth, window.innerWidth]")
    assert overflow[0] <= width, overflow
    assert overflow[1] == width
    # Nothing but what scrolls by itself may reach past the screen's edge.
    outside = page.evaluate(
        "[...document.querySelectorAll('main *')].filter(e => !e.closest('.wide, pre, svg') && e.getBoundingClientRect().right > innerWidth + 1).length"
    )
    assert outside == 0
    sizes: list[Any] = page.evaluate("[...document.querySelectorAll('svg')].map(s => { const r = s.getBoundingClientRect(); return [r.width, r.height]; })")
    assert all(w >= 250 and h >= 150 for w, h in sizes), sizes
    drawn: list[int] = page.evaluate("[...document.querySelectorAll('svg')].map(s => s.querySelectorAll('rect.c1, circle.c1, rect.band').length)")
    # Text stands out against the paper: 4.5 is what WCAG AA asks for.
    assert page.evaluate(CONTRAST) >= 4.5
    return drawn


def plots_expected(report: dict[str, Any]) -> int:
    return 1 + (report["accuracy"] is not None) + 2 * (report["breakdown"] is not None) + (report["serving"]["acceptance_length"] is not None)


@pytest.mark.parametrize("width", [360, 1280])
def test_text_in_plots_is_large_enough_to_read(page: chromium.Page, tmp_path: Path, width: int) -> None:
    file = tmp_path / "report.html"
    file.write_text(html.render(make_document()), "utf-8")
    page.open(file, width=width)
    heights = page.evaluate("[...document.querySelectorAll('svg text')].filter(t => !t.getAttribute('transform')).map(t => t.getBoundingClientRect().height)")
    assert min(heights) >= 9


CONTRAST = """
(() => {
  const light = c => { const [r, g, b] = c.match(/[\\d.]+/g).map(Number).map(v => v / 255).map(v => v <= .03928 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4);
    return .2126 * r + .7152 * g + .0722 * b; };
  const paper = light(getComputedStyle(document.body).backgroundColor);
  const ratio = e => { const ink = light(getComputedStyle(e)[e.closest('svg') ? 'fill' : 'color']);
    return (Math.max(ink, paper) + .05) / (Math.min(ink, paper) + .05); };
  return Math.min(...[...document.querySelectorAll('h1, h2, p, td, th, dd, dt, figcaption, svg text')].map(ratio));
})()
"""
