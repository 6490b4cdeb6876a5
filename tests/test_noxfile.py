"""What the noxfile decides itself: which arguments are paths for an image, and what stops a session before anything is read."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
import sysconfig
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import pytest

from tests.envspec.build import bare_venv, install

ROOT = Path(__file__).parents[1]

IMPORTED = "the evaluation has begun"
# Has every name, as far as anybody can see without running it, and ends what runs it.
TORCH = f"""\
import os
print({IMPORTED!r}, flush=True)
os._exit(0)
def __getattr__(name): ...
"""
SAFETENSORS = {"safetensors/__init__.py": b"def __getattr__(name): ...\n"}
SPECULATORS = {"speculators/__init__.py": b"", "speculators/models/__init__.py": b"class Eagle3: ...\n"}


@pytest.fixture(scope="module")
def noxfile() -> ModuleType:
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


# The standalone test's preflight, by a real nox.


@dataclass
class Project:
    """This project's files with an envspec.yaml of their own, and an interpreter that has just what an evaluation imports."""

    root: Path
    site: Path
    environments: Path

    @property
    def python(self) -> Path:
        return self.site.parents[2] / "bin" / "python"

    def remove(self, name: str) -> None:
        for path in [self.site / name, *self.site.glob(f"{name}-*.dist-info")]:
            shutil.rmtree(path)

    def spec(self, text: str, lock: str) -> None:
        (self.root / "envspec.yaml").write_text(f"version: 1\n{text}\n")
        (self.root / "requirements.lock").write_text(lock)

    def session(self, *arguments: str) -> tuple[int, str]:
        """The exit code and the output of ``nox -s standalone-test``, which installs nothing."""
        return nox(self.environments, self.root, "standalone-test", "--python", str(self.python), *arguments)


def nox(environments: Path, root: Path, session: str, *arguments: str) -> tuple[int, str]:
    """The exit code and the output of a session, which installs nothing."""
    command = [sys.executable, "-m", "nox", "-R", "--envdir", environments, "-s", session, "--", *arguments]
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("NOX", "ENVSPEC", "PYTHON"))}
    done = subprocess.run(command, cwd=root, env={**kept, "COLUMNS": "200"}, capture_output=True, text=True, timeout=120, check=False)
    return done.returncode, done.stdout + done.stderr


@pytest.fixture(scope="module")
def environments(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where nox finds the sessions' environments made: what it would install is this interpreter's."""
    folder = tmp_path_factory.mktemp("nox")
    for name in ("standalone-test", "diff-env"):
        subprocess.run([sys.executable, "-m", "virtualenv", "-q", "--no-download", "--no-pip", folder / name], check=True, capture_output=True, timeout=120)
        (site,) = (folder / name).glob("lib/python3*/site-packages")
        (site / "ours.pth").write_text(sysconfig.get_path("purelib") + "\n" + sysconfig.get_path("platlib") + "\n")
    return folder


@pytest.fixture
def project(tmp_path: Path, environments: Path) -> Project:
    root = tmp_path / "project"
    root.mkdir()
    for name in ("envspec", "eagle3_diag"):
        (root / name).symlink_to(ROOT / name)
    shutil.copy(ROOT / "noxfile.py", root)
    site = bare_venv(tmp_path / "serving")
    empty = b"def __getattr__(name): ...\n"
    install(site, "torch", "2.9.1", {"torch/__init__.py": TORCH.encode(), "torch/nn/__init__.py": empty, "torch/nn/functional.py": empty})
    install(site, "safetensors", "0.7.0", SAFETENSORS)
    return Project(root, site, environments)


def test_the_session_stops_at_what_the_interpreter_lacks(project: Project, tmp_path: Path) -> None:
    install(project.site, "speculators", "0.9.0", SPECULATORS)
    script = tmp_path / "serve.py"
    script.write_text("def main():\n    from speculators.models import Eagle3\n    return Eagle3\n\n\nmain()\n")
    code, told = project.session("--script", str(script))
    assert (code, IMPORTED in told) == (0, True), told
    project.remove("safetensors")
    code, told = project.session("--script", str(script))
    assert (code, IMPORTED in told) == (1, False), told
    assert "EP114" in told  # in a module of the evaluation's, which itself is there
    assert "there is no module safetensors on the host" in " ".join(told.split())
    install(project.site, "safetensors", "0.7.0", SAFETENSORS)
    project.remove("speculators")
    code, told = project.session("--script", str(script))
    assert (code, IMPORTED in told) == (1, False), told
    assert "serve.py:2 imports speculators.models: there is no module speculators on the host" in " ".join(told.split())
    assert "safetensors" not in told


ROLE = "hosts: {here: {target: local, role: infer}}\nroles: {infer: {lock: requirements.lock}}"


def test_the_session_stops_where_the_interpreter_is_not_what_its_lock_says(project: Project) -> None:
    project.spec(ROLE, "torch==2.9.1\nsafetensors==0.7.0\nspeculators==0.9.0\n")
    code, told = project.session()
    assert (code, IMPORTED in told) == (1, False), told
    assert "EP201" in told
    assert "speculators 0.9.0 is in the lock, not installed" in told
    code, told = project.session("--no-preflight")
    assert (code, IMPORTED in told) == (0, True), told
    # Another version may change results only; the spec says from when on that counts.
    project.spec(f"{ROLE}\nfail-on: results", "torch==2.8.0\nsafetensors==0.7.0\n")
    code, told = project.session()
    assert (code, IMPORTED in told) == (1, False), told
    assert "torch is 2.9.1, the lock has 2.8.0" in told


def test_a_lock_named_for_the_session(project: Project) -> None:
    (project.root / "other.lock").write_text("torch==2.9.1\nsafetensors==0.7.0\n")
    code, told = project.session("--lock", "other.lock")
    assert (code, IMPORTED in told) == (0, True), told
    assert "compared with lock" in told


EXAMPLE = ROOT / "docs" / "envspec" / "example"


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("--no-spec", "--fail-on", "never", "trainer.json", "gpu-03.json"), 0),
        (("--no-spec", "--fail-on", "any", "--lock", "requirements.lock", "gpu-03.json"), 1),
        (("--no-spec", "--no-such-option"), 2),
        (("--no-spec", "trainer.json", "local:/no/such/python"), 3),
    ],
)
def test_diff_env_ends_as_envspec_does(environments: Path, tmp_path: Path, arguments: tuple[str, ...], expected: int) -> None:
    shutil.copytree(EXAMPLE, tmp_path, dirs_exist_ok=True)
    (tmp_path / "envspec").symlink_to(ROOT / "envspec")
    shutil.copy(ROOT / "noxfile.py", tmp_path)
    code, told = nox(environments, tmp_path, "diff-env", *arguments)
    assert code == expected, told
    assert "Traceback" not in told
