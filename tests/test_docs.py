"""The documentation is executed: its commands run, its tables name what exists, its links lead somewhere."""

from __future__ import annotations

import itertools
import json
import re
import shlex
from pathlib import Path

import pytest
import torch

from eagle3_diag import demo
from eagle3_diag.catalogue import catalogue
from eagle3_diag.checkpoint import read_drafter
from eagle3_diag.cli import main, parser
from eagle3_diag.commands import COMMANDS
from eagle3_diag.predict import Predictor
from eagle3_diag.report.document import schema
from eagle3_diag.samples import iter_samples
from eagle3_diag.target import read_target
from tests.eagle3_diag.capture.test_replay import captured

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs" / "eagle3_diag"
PAGES = [ROOT / "README.md", *sorted(DOCS.glob("*.md"))]


def commands(page: Path) -> list[str]:
    """Lines of ``sh`` blocks that call eagle3-diag."""
    blocks = re.findall(r"```sh\n(.*?)```", page.read_text("utf-8"), re.S)
    return [line for block in blocks for line in block.splitlines() if line.startswith(("eagle3-diag ", "python -m eagle3_diag "))]


def answers_as_trained(folder: Path) -> list[dict[str, object]]:
    """What a server that wires the demo right answers to a probe of its rows."""
    checkpoint, target = read_drafter(folder / "my-drafter"), read_target(folder / "my-target")
    predictor = Predictor(checkpoint, target, steps=5, device=torch.device("cpu"), dtype=torch.float32)
    right = catalogue(checkpoint, target, None).explanations[0]
    found: list[dict[str, object]] = []
    for sample in iter_samples([folder / "my-samples"], max_samples=4, check=predictor.check):
        runs = predictor.runs(predictor.load(sample), right)
        rows = zip(runs.rows_R.tolist(), runs.accepted_R.tolist(), strict=True)
        found += [{"id": f"{sample.name}:{t}", "first_token": int(sample.tokens_N[t + 1]), "accepted": run} for t, run in rows]
    return found


@pytest.fixture(scope="module")
def workplace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which my-drafter, my-target and my-samples, as the pages call them, are the shipped demo, my-captured what a server made of it."""
    folder = tmp_path_factory.mktemp("docs")
    for name, path in demo.paths()._asdict().items():
        (folder / f"my-{name}").symlink_to(path)
    captured(folder / "my-captured")
    (folder / "my-prompts.txt").write_text("ka me ri ro\nko ke ro ri ra ma\n")
    (folder / "my-answers.json").write_text(json.dumps(answers_as_trained(folder)))
    return folder


@pytest.mark.parametrize(("page", "command"), [pytest.param(page, line, id=f"{page.stem}: {line}") for page in PAGES for line in commands(page)])
def test_every_command_runs(page: Path, command: str, workplace: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(workplace)
    words = shlex.split(command, comments=True)
    arguments = words[1:] if words[0] == "eagle3-diag" else words[3:]
    if arguments[0] == "record":
        pytest.importorskip("transformers", reason="recording runs the target with Transformers; nox -s peers has it")
    said = re.search(r"# exit code (\d)", command)
    assert main(arguments) == (int(said[1]) if said else 0), capsys.readouterr().err
    for option, value in itertools.pairwise(arguments):
        if option in ("--json", "--html", "--markdown", "--speculation-profile") and value != "-":
            assert (workplace / value).stat().st_size > 0


def test_pages_about_the_command_line_have_commands() -> None:
    assert [page.name for page in PAGES if page.stem in ("README", "check", "compare-hidden", "convert", "evaluate", "record", "report") and not commands(page)] == []


@pytest.mark.parametrize("name", ["check", "compare-hidden", "convert", "diagnose", "evaluate", "probe", "record"])
def test_the_table_of_options_is_the_parsers(name: str) -> None:
    """Each option with its help text, none missing, none too many."""
    text = (DOCS / f"{name}.md").read_text("utf-8")
    rows = dict(re.findall(r"^\| `(--[a-z-]+)` \| (.*?) \|$", text, re.M))
    sub = next(action for action in parser()._actions if action.dest == "command").choices[name]  # type: ignore[index,union-attr,call-overload]
    real = {action.option_strings[-1]: action.help for action in sub._actions if action.option_strings and action.dest != "help"}
    assert rows == real


def test_the_catalogue_page_is_the_catalogue() -> None:
    from eagle3_diag.catalogue import page

    assert (DOCS / "catalogue.md").read_text("utf-8") == page.render(), "run: python -m eagle3_diag.catalogue.page > docs/eagle3_diag/catalogue.md"


def test_the_report_page_names_every_field() -> None:
    text = (DOCS / "report.md").read_text("utf-8")
    rows = re.findall(r"^\| `([a-z]+)` \|", text, re.M)
    assert rows == list(schema()["properties"])
    codes = schema()["properties"]["verdict"]["properties"]["code"]["enum"]
    assert [code for code in codes if f"`{code}`" not in text] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_to_files(page: Path) -> None:
    targets = re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text("utf-8"))
    assert [target for target in targets if not (page.parent / target).exists()] == []


def test_the_readme_starts_with_the_two_commands() -> None:
    text = (ROOT / "README.md").read_text("utf-8")
    first = re.search(r"```sh\n(.*?)```", text, re.S)
    assert first is not None
    assert [line.split("#")[0].strip() for line in first.group(1).splitlines()] == ["./noxw -s standalone-test", "./noxw -s tests"]
    assert text.index(first.group(0)) < 1200
    noxfile = (ROOT / "noxfile.py").read_text("utf-8")
    for session in re.findall(r"(?:noxw|nox) -s ([a-z-]+)", text):
        assert re.search(rf'name="{session}"|^def {session}\(', noxfile, re.M), session


def test_the_readme_lists_every_command() -> None:
    text = (ROOT / "README.md").read_text("utf-8")
    assert [command.name for command in COMMANDS if f"eagle3-diag {command.name}" not in text] == []


def test_the_readme_shows_what_the_demo_prints(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Word for word, but for the time it took."""
    shown = re.search(r"```console\n\$ eagle3-diag (evaluate [^\n]*)\n(.*?)```", (ROOT / "README.md").read_text("utf-8"), re.S)
    assert shown is not None
    monkeypatch.chdir(ROOT)
    monkeypatch.setenv("COLUMNS", "100")
    assert main([*shlex.split(shown.group(1)), "--device", "cpu"]) == 0
    timing = re.compile(r"^Timing .*$", re.M)
    assert timing.sub("", shown.group(2)).strip() == timing.sub("", capsys.readouterr().out).strip()
