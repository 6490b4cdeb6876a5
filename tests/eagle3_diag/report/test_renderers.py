"""Terminal, Markdown and HTML: what they say, and that foreign text stays text."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from typing import Any

import pytest

from eagle3_diag.report import html, markdown, text
from eagle3_diag.report.escape import markdown as escape_markdown
from eagle3_diag.report.escape import plain
from tests.eagle3_diag.report.documents import hostile, make_document
from tests.eagle3_diag.report.test_document import VARIANTS

GOOD: dict[str, Any] = {"accepted": [8, 6, 5, 4, 3], "at_risk": [10, 8, 6, 5, 4]}
EXPECTED = """\
Drafter     models/drafter (speculators, 1 layer, width 32, bfloat16, aux layers 2, 4, 5)
Target      models/target (LlamaForCausalLM, width 32, vocabulary 64)
Samples     3 (speculators): 180 tokens, 120 draft rows
Run         K = 5, greedy target, labels full, cpu in float32

step  rows  accuracy  conditional  accepted  at risk   rate  survival  length
----  ----  --------  -----------  --------  -------  -----  --------  ------
   0   120     75.0%        75.0%        24       30  80.0%     80.0%    1.80
   1   120     50.0%        66.7%        18       24  75.0%     60.0%    2.40
   2   120     25.0%        50.0%        15       18  83.3%     50.0%    2.90
   3   120     12.5%        50.0%        12       15  80.0%     40.0%    3.30
   4   120      2.5%        20.0%         9       12  75.0%     30.0%    3.60

Length      3.60 tokens per verification step, bonus included (95 % interval 3.60 to 3.60); mean
            over requests 3.60; 30 verification steps, 6 runs censored, 3 ended with their response
Vocabulary  48 of 64 tokens, which cover 95.0% of the target's choices here; a perfect drafter with
            it would reach 5.50
Speed       A speculative step yields 3.60 tokens, so speculation pays as long as that step costs
            less than 3.60 plain decoding steps (the break-even cost). Speed-up by step cost: 3.00x
            at 1.2, 2.40x at 1.5, 1.80x at 2, 1.20x at 3.
Timing      load 0.5 s, evaluate 2.0 s (60 rows/s), peak memory 300 MiB

Verdict     The weights are good for an acceptance length of 3.60.
            A right server would accept about 2.60 of 5 drafted tokens per verification step:
            acceptance length 3.60 (95 % interval 3.60 to 3.60), the bonus token included. If yours,
            with K = 5 on prompts like these and decoding greedily (temperature 0), shows clearly
            less than 3.60, the wiring or the environment is at fault, not the weights.

Note        config.json has no norm_before_residual.
"""


def test_terminal_text_in_full() -> None:
    assert text.render(make_document(**GOOD)) == EXPECTED


def test_colour_changes_nothing_but_colour() -> None:
    coloured = text.render(make_document(**GOOD, warnings=("look",)), colour=True)
    assert "\x1b[1mVerdict\x1b[0m" in coloured
    assert "\x1b[1;31mWarning\x1b[0m" in coloured
    assert re.sub(r"\x1b\[[0-9;]*m", "", coloured) == text.render(make_document(**GOOD, warnings=("look",)))


@pytest.mark.parametrize("name", VARIANTS)
@pytest.mark.parametrize("width", [20, 80, 120])
def test_terminal_text_keeps_its_width(name: str, width: int) -> None:
    rendered = text.render(make_document(**VARIANTS[name]), width=width)
    assert rendered.isascii()
    prose = [line for line in rendered.splitlines() if not re.match(r"[ \d-]{4} ", line) and not line.startswith("step")]
    assert max(map(len, prose)) <= max(60, width)


def test_trainer_column_and_skipped_files_are_shown() -> None:
    rendered = text.render(make_document(trainer=True, inputs=VARIANTS["skipped"]["inputs"]))
    header = next(line for line in rendered.splitlines() if line.startswith("step"))
    assert "specforge" in header
    assert "1 unusable files skipped" in rendered
    assert "Skipped     x.pt: cut short." in rendered


def test_hostile_text_cannot_leave_the_terminal_or_the_markup() -> None:
    report = hostile()
    assert "\x1b" not in text.render(report)
    assert "\u202e" not in text.render(report)
    shown = markdown.render(report)
    assert "\x1b" not in shown
    assert re.search(r"(?<!\\)<(?!/?details>|/?summary>)", shown) is None
    assert re.search(r"@(?!&#8203;)", shown) is None
    assert len({line.count(" | ") for line in shown.splitlines() if line.startswith("| ")}) == 1


def test_escapes() -> None:
    assert plain("a\x1b[0m\u202eb\udcff") == r"a\x1b[0m\u202eb\udcff"
    assert plain("größe 模型") == "größe 模型"
    assert escape_markdown("a|b<c>[d](e)_f_") == r"a\|b\<c\>\[d\](e)\_f\_"


class _Checker(HTMLParser):
    """Collects tags, and checks that every element opened is closed in order."""

    VOID = frozenset({"meta", "img", "br", "line", "circle", "rect", "polyline"})

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.stack: list[str] = []
        self.tags: set[str] = set()
        self.attributes: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes |= {name for name, _ in attrs}
        if tag != "meta":
            self.stack.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes |= {name for name, _ in attrs}

    def handle_endtag(self, tag: str) -> None:
        assert self.stack.pop() == tag


@pytest.mark.parametrize("report", [*(make_document(**v) for v in VARIANTS.values()), make_document(samples=200), hostile()])
def test_html_is_well_formed_self_contained_and_without_script(report: dict[str, Any]) -> None:
    page = html.render(report)
    checker = _Checker()
    checker.feed(page)
    checker.close()
    assert checker.stack == []
    assert checker.tags.isdisjoint({"script", "img", "link", "iframe", "object", "embed", "base", "form"})
    assert {a for a in checker.attributes if a.startswith("on") or a in ("src", "href")} == set()
    assert "default-src 'none'" in page
    assert "url(" not in page
    assert "http://" not in page
    assert "https://" not in page


def test_html_draws_one_mark_per_figure() -> None:
    page = html.render(make_document(trainer=True))
    plots = re.findall(r"<svg.*?</svg>", page, re.S)
    assert len(plots) == 5
    assert plots[0].count("<rect class=\"c1\"") == 5
    assert [plots[1].count(f'<circle class="c{i}"') for i in (1, 2, 3)] == [5, 5, 5]
    assert [plots[i].count('<rect class="c1"') for i in (2, 3)] == [2, 4]  # ranges without a row are left out
    assert "0-15: 9 of 30, 30.0%" in plots[2]
    assert "outside: 0 of 6, 0.0%" in plots[3]
    assert plots[4].count("<circle") == 3
    assert "step 0: 24 accepted, 80.0%" in plots[0]


def test_many_samples_become_a_histogram() -> None:
    histogram = re.findall(r"<svg.*?</svg>", html.render(make_document(samples=200)), re.S)[4]
    assert histogram.count('<rect class="c1"') == 24
    assert sum(int(n) for n in re.findall(r": (\d+) samples<", histogram)) == 200


def test_markdown_table_has_every_step() -> None:
    rows = [line for line in markdown.render(make_document()).splitlines() if line.startswith("| ")]
    assert len(rows) == 1 + 1 + 5  # heading, rule, steps
