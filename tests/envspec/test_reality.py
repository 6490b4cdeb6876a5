"""A fixed sample of preflight against reality: real packages of this environment, whole and with one removed.

`tests/envspec/reality.py` does the same for a whole environment and prints the figures.
"""

from __future__ import annotations

import compileall
import importlib.metadata
import shutil
import sys
import sysconfig
from pathlib import Path

import pytest

from tests.envspec import reality

SAMPLE = {
    # distribution -> its top-level packages; pure Python, with optional, gated and lazy imports of every kind
    "markdown-it-py": ("markdown_it",),
    "mdurl": ("mdurl",),
    "packaging": ("packaging",),
    "pygments": ("pygments",),
    "rich": ("rich",),
}
REMOVED = ("mdurl", "pygments")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The sample's packages alone in a site directory."""
    directory = tmp_path_factory.mktemp("site")
    for name, packages in SAMPLE.items():
        try:
            files = importlib.metadata.distribution(name)
        except importlib.metadata.PackageNotFoundError:
            continue
        for package in packages:
            for path in (Path(str(files.locate_file(package))), Path(str(files.locate_file(f"{package}.py")))):
                if path.is_dir():
                    shutil.copytree(path, directory / package, ignore=shutil.ignore_patterns("__pycache__"))
                elif path.is_file():
                    shutil.copy(path, directory)
    compileall.compile_dir(directory, quiet=2)
    return directory


@pytest.mark.parametrize("removed", [None, *REMOVED])
def test_verdicts_agree_with_real_imports(site: Path, tmp_path: Path, removed: str | None) -> None:
    home = tmp_path / "site"
    gone = {removed}
    shutil.copytree(site, home, ignore=lambda folder, names: [n for n in names if Path(folder) == site and n in gone])
    names = reality.module_names(home)
    assert len(names) > 150
    path = [str(home), *(sysconfig.get_paths()[key] for key in ("stdlib",)), str(Path(sysconfig.get_paths()["stdlib"]) / "lib-dynload")]
    python = Path(sys.executable)
    real = reality.really(python, names, path=[str(home)])
    static = reality.judged(python, names, path=path)
    assert set(real) == set(static) == set(names)
    tally = reality.Tally()
    tally.add(removed or "whole", static, real)
    assert tally.wrong == []
    if removed is not None:
        assert tally.real > 0
        assert any(entry["name"] == removed for entry in real.values())
