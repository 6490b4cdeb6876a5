"""What the noxfile decides itself: which arguments are paths for an image."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def noxfile() -> ModuleType:
    pytest.importorskip("nox")
    spec = importlib.util.spec_from_file_location("the_noxfile", ROOT / "noxfile.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_values_and_absolute_paths_of_options(noxfile: ModuleType, tmp_path: Path) -> None:
    arguments = ["--drafter", "d", "--samples", "a", "b/c", "--steps=5", "--samples=/e", "--json=-", "--html", "out/r.html", "--seed", "3"]
    assert noxfile._values(arguments, "samples", "drafter") == ["d", "a", "b/c", "/e"]
    assert noxfile._values(arguments, "json", "html") == ["-", "out/r.html"]
    assert noxfile._values(arguments, "target") == []
    here = str(tmp_path)
    assert noxfile._absolute(arguments, tmp_path, "drafter", "samples", "json", "html") == [
        "--drafter", f"{here}/d", "--samples", f"{here}/a", f"{here}/b/c", "--steps=5", "--samples=/e", "--json=-",
        "--html", f"{here}/out/r.html", "--seed", "3",
    ]  # fmt: skip


def test_this_is_no_image(noxfile: ModuleType) -> None:
    assert noxfile.IN_IMAGE is False
