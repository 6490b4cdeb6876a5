"""The probe in real environments of every maker, against pip and uv in the same run."""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from packaging.markers import default_environment

from envspec import probe
from envspec.hosts import CaptureOptions, open_host, parse_host
from envspec.snapshot import Snapshot
from tests.envspec.build import bare_venv, check_call, install, make_wheel, python_env
from tests.envspec.peers import of_pip, of_uv, ours, uv

WHEELS = {
    "alpha": ("1.0", {"alpha/__init__.py": b"", "alpha/part/__init__.py": b"", "alpha/loose.py": b""}, []),
    "Beta.Kit": ("2.0.1", {"beta_kit.py": b"x = 1\n"}, ["alpha>=1; python_version >= '3.8'"]),
    "gamma-data": ("0.1+cu128", {"gamma/data.bin": b"\0", "gamma/__init__.py": b""}, []),
}
TOOLS = ["venv-pip", "virtualenv-pip", "uv", "conda-layout", "debian"]


def wheels(folder: Path) -> list[Path]:
    return [make_wheel(folder, name, version, files, requires=requires) for name, (version, files, requires) in WHEELS.items()]


def make(tool: str, folder: Path) -> Path:
    """An environment made by a tool, with the three wheels; its interpreter."""
    built = wheels(folder)
    environment = folder / "env"
    python = environment / "bin" / "python"
    if tool == "uv":
        check_call(uv(), "venv", "--python", sys.executable, environment)
        check_call(uv(), "pip", "install", "--no-index", "--no-deps", "--python", python, *built)
    elif tool == "virtualenv-pip":
        pytest.importorskip("virtualenv")
        check_call(sys.executable, "-m", "virtualenv", "--no-download", environment)
        check_call(python, "-m", "pip", "install", "-q", "--no-index", "--no-deps", *built)
    elif tool == "conda-layout":
        site = bare_venv(environment)
        for name, (version, files, requires) in WHEELS.items():
            info = install(site, name.lower().replace(".", "-"), version, files, installer="conda", requires=requires)
            (info / "RECORD").unlink()
    elif tool == "debian":
        python = Path("/usr/bin/python3")
        if not Path("/usr/lib/python3/dist-packages").is_dir():
            pytest.skip("not a Debian machine")
    else:
        check_call(sys.executable, "-m", "venv", environment)
        check_call(python, "-m", "pip", "install", "-q", "--no-index", "--no-deps", *built)
    return python


@pytest.fixture(scope="module")
def environments(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The interpreter of the environment a tool made; each is made once."""
    return functools.cache(lambda tool: make(tool, tmp_path_factory.mktemp(tool)))


def capture(python: Path, **options: object) -> Snapshot:
    return open_host(parse_host(f"local:{python}")).snapshot(CaptureOptions(**options))  # type: ignore[arg-type]


@pytest.mark.parametrize("tool", TOOLS)
def test_the_list_is_that_of_pip_and_uv(tool: str, environments: Callable[[str], Path]) -> None:
    python = environments(tool)
    snapshot = capture(python)
    pip = subprocess.run(
        [sys.executable, "-m", "pip", "--python", str(python), "inspect"], capture_output=True, text=True, env=python_env(), check=False
    )
    if pip.returncode == 0:
        assert (ours(snapshot), dict(snapshot.markers)) == of_pip(pip.stdout)
    theirs = of_uv(check_call(uv(), "pip", "list", "--format", "json", "--python", python))
    # uv looks at one directory only, which on Debian is not the one that dpkg fills.
    assert theirs <= ours(snapshot) if tool == "debian" else theirs == ours(snapshot)
    assert snapshot.section("distributions").status == "ok"


@pytest.mark.parametrize("tool", TOOLS)
def test_the_search_path_is_the_interpreters_own(tool: str, environments: Callable[[str], Path]) -> None:
    python = environments(tool)
    said = subprocess.run(
        [str(python), "-c", "import json, sys; print(json.dumps(sys.path[1:]))"], capture_output=True, text=True, check=True, env=python_env()
    )
    snapshot = capture(python)
    assert [entry.path for entry in snapshot.path] == json.loads(said.stdout)


@pytest.mark.parametrize("version", ["3.8", "3.9", "3.12", "3.13", "3.14"])
def test_the_search_path_on_other_pythons(version: str, tmp_path: Path) -> None:
    found = sorted(Path.home().glob(f".pyenv/versions/{version}.*/bin/python"))
    if not found:
        pytest.skip(f"no Python {version} below ~/.pyenv")
    site = bare_venv(tmp_path / "env", str(found[0]))
    install(site, "alpha", "1.0", {"alpha/__init__.py": b""})
    (tmp_path / "src").mkdir()
    (site / "z.pth").write_text(f"# comment\n\n{tmp_path}/src\n{tmp_path}/absent\nimport sys\n")
    environment = {**python_env(), "PYTHONPATH": f"{tmp_path}/pp:{tmp_path}/src2"}
    python = tmp_path / "env/bin/python"
    said = subprocess.run(
        [str(python), "-c", "import json, sys; print(json.dumps(sys.path[1:]))"], capture_output=True, text=True, check=True, env=environment
    )
    old = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = environment["PYTHONPATH"]
    try:
        snapshot = capture(python)
    finally:
        os.environ.pop("PYTHONPATH") if old is None else os.environ.__setitem__("PYTHONPATH", old)
    assert [entry.path for entry in snapshot.path] == json.loads(said.stdout)
    assert {entry.path: entry.origin for entry in snapshot.path}[f"{tmp_path}/src"] == "pth"
    assert snapshot.path[0].by == "PYTHONPATH"
    assert snapshot.path[0].kind == "missing"
    assert [hook.line for hook in snapshot.hooks] == ["import sys"]
    assert [(dist.name, dist.version) for dist in snapshot.distributions] == [("alpha", "1.0")]
    assert snapshot.interpreter is not None
    assert snapshot.interpreter.venv
    assert snapshot.interpreter.prefix == str(tmp_path / "env")
    assert snapshot.interpreter.soabi is not None
    assert snapshot.interpreter.soabi.startswith("cpython-" + version.replace(".", ""))


@pytest.mark.parametrize("system_site", [False, True])
def test_system_and_user_site_of_a_venv(system_site: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONUSERBASE", str(tmp_path / "user"))
    user = tmp_path / f"user/lib/python3.{sys.version_info[1]}/site-packages"
    user.mkdir(parents=True)
    install(user, "alpha", "0.9", {"alpha/__init__.py": b""})
    check_call(sys.executable, "-m", "venv", "--without-pip", *(["--system-site-packages"] if system_site else []), tmp_path / "env")
    (site,) = (tmp_path / "env").glob("lib/python3*/site-packages")
    install(site, "alpha", "1.0", {"alpha/__init__.py": b""})
    python = tmp_path / "env/bin/python"
    said = subprocess.run([str(python), "-c", "import json, sys; print(json.dumps(sys.path[1:]))"], capture_output=True, text=True, check=True)
    snapshot = capture(python)
    assert [entry.path for entry in snapshot.path] == json.loads(said.stdout)
    copies = [dist for dist in snapshot.distributions if dist.name == "alpha"]
    if system_site:
        assert [(dist.version, dist.shadowed_by) for dist in copies] == [("1.0", None), ("0.9", str(site))]
        assert snapshot.installed()["alpha"].version == "1.0"
    else:
        assert [dist.version for dist in copies] == ["1.0"]


def test_equal_environments_of_different_makers_have_equal_content(environments: Callable[[str], Path]) -> None:
    snapshots = [capture(environments(tool)) for tool in ("venv-pip", "uv")]
    contents = [{dist.name: (dist.content, dist.metadata, dist.tags, dist.modules) for dist in snap.distributions} for snap in snapshots]
    for name in ("alpha", "beta-kit", "gamma-data"):
        assert contents[0][name] == contents[1][name]
        assert contents[0][name][0] is not None


def test_the_same_environment_twice_has_one_digest(tmp_path: Path) -> None:
    digests = set()
    for number in (1, 2):
        (tmp_path / str(number)).mkdir()
        digests.add(capture(make("uv", tmp_path / str(number))).digest)
    assert len(digests) == 1


def test_the_probe_runs_by_itself_where_it_lies(environments: Callable[[str], Path]) -> None:
    python = environments("venv-pip")
    run = subprocess.run([python, "-E", "-s", "-S", "-B", probe.__file__], capture_output=True, text=True, check=True, timeout=60)
    assert [item["name"] for item in json.loads(run.stdout)["distributions"]] == [dist.name for dist in capture(python).distributions]


def test_what_a_distribution_tells(environments: Callable[[str], Path]) -> None:
    snapshot = capture(environments("uv"))
    by_name = snapshot.installed()
    alpha, beta, gamma = by_name["alpha"], by_name["beta-kit"], by_name["gamma-data"]
    assert alpha.modules == ("alpha", "alpha.loose", "alpha.part")
    assert (alpha.installer, alpha.record, alpha.tags) == ("uv", "ok", ("py3-none-any",))
    assert alpha.requested
    assert (beta.raw_name, beta.version) == ("Beta.Kit", "2.0.1")
    assert [item.replace('"', "'") for item in beta.requires] == ["alpha>=1; python_version >= '3.8'"]
    assert gamma.build_variant == "cu128"
    assert alpha.origin.kind == "archive"  # a local wheel's path is a direct URL (PEP 610)


def test_conda_names_its_package(tmp_path: Path) -> None:
    """A whole conda prefix cannot be made here; the reader is given its layout."""
    from envspec.probe import read_conda

    (tmp_path / "conda-meta").mkdir()
    (tmp_path / "conda-meta/pytorch-2.5.1-py3.12_cuda12.4_0.json").write_text(
        json.dumps(
            {
                "build": "py3.12_cuda12.4_0",
                "channel": "https://user:secret@conda.example/pytorch",
                "files": ["lib/python3.12/site-packages/torch-2.5.1.dist-info/METADATA"],
                "name": "pytorch",
                "version": "2.5.1",
            },
            indent=2,
        )
    )
    (tmp_path / "conda-meta/broken-1-0.json").write_bytes(b'\xff{"site-packages/x-1.dist-info/": ')
    found = read_conda(str(tmp_path))
    assert found["torch-2.5.1.dist-info"] == {
        "name": "pytorch",
        "version": "2.5.1",
        "build": "py3.12_cuda12.4_0",
        "channel": "https://conda.example/pytorch",
    }
    assert found["x-1.dist-info"]["name"] == "broken"


def test_markers_are_packagings() -> None:
    snapshot = capture(Path(sys.executable))
    assert dict(snapshot.markers) == dict(default_environment())
