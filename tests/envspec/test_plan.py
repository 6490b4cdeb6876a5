"""The plan: what it lists on real environments, that running it satisfies the lock, and that it cannot be broken out of."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import uv

from envspec.errors import CaptureError
from envspec.hosts.interface import CaptureOptions
from envspec.hosts.local import LocalHost
from envspec.imports import parse_script
from envspec.locks import Lock, LockedPackage, load_lock
from envspec.locks.model import Direct
from envspec.plan import Plan, plan, script_needs
from envspec.preflight import resolve
from envspec.snapshot import Section, Snapshot
from tests.envspec.build import elf, make_wheel, python_env
from tests.envspec.worlds import install, lock_text, make_venv, modules, site_packages


def snapshot_of(python: Path) -> Snapshot:
    return LocalHost("local", python=str(python), label="gpu").snapshot(CaptureOptions())


def lock_in(path: Path, text: str) -> Lock:
    path.write_text(text)
    return load_lock(path)


@pytest.fixture
def world(tmp_path: Path) -> tuple[Path, Path]:
    """A venv with alpha 1.0 and gamma 3.0, and a folder of wheels of more versions."""
    wheels = tmp_path / "wheels"
    modules(wheels, alpha="1.0", beta="2.0", gamma="3.0")
    modules(wheels, alpha="1.5", gamma="2.0")
    make_wheel(wheels, "needy", "1.0", {"needy.py": b"import beta\n"}, requires=["beta>=2", "alpha<1.2"])
    python = make_venv(tmp_path / "env")
    install(python, wheels, "alpha==1.0", "gamma==3.0")
    return python, wheels


def run(made: Plan, wheels: Path) -> None:
    """Paste the plan's commands into a shell, with the wheels folder for an index."""
    found = {**python_env(), "UV_FIND_LINKS": str(wheels), "UV_NO_INDEX": "1", "UV_NO_CACHE": "1", "PIP_FIND_LINKS": str(wheels)}
    found["PATH"] = f"{Path(uv.find_uv_bin()).parent}{os.pathsep}{found.get('PATH', '')}"
    for command in made.commands():
        subprocess.run(["sh", "-c", command], check=True, env=found, capture_output=True, timeout=120)


def test_only_what_differs(world: tuple[Path, Path], tmp_path: Path) -> None:
    python, wheels = world
    lock = lock_in(tmp_path / "requirements.lock", lock_text(wheels, "alpha==1.5", "beta==2.0", "gamma==3.0"))
    made = plan(snapshot_of(python), lock, tool="uv")
    assert [str(step) for step in made.steps] == ["~ alpha 1.0 -> 1.5 (upgrade)", "+ beta 2.0"]
    (command,) = made.commands()
    assert "--no-deps --require-hashes" in command
    assert command.count("--hash=sha256:") == 2
    assert "gamma" not in made.to_text()


def test_running_it_satisfies_the_lock(world: tuple[Path, Path], tmp_path: Path) -> None:
    python, wheels = world
    lock = lock_in(tmp_path / "requirements.lock", lock_text(wheels, "alpha==1.5", "beta==2.0", "gamma==2.0"))
    run(plan(snapshot_of(python), lock, tool="uv"), wheels)
    after = snapshot_of(python)
    assert {n: d.version for n, d in after.installed().items()} == {"alpha": "1.5", "beta": "2.0", "gamma": "2.0"}
    again = plan(after, lock, tool="uv")
    assert again.empty
    assert again.commands() == ()
    assert "nothing to install" in again.to_text()


def test_what_lost_a_compiled_module_is_installed_again(world: tuple[Path, Path], tmp_path: Path) -> None:
    python, wheels = world
    make_wheel(wheels, "fast", "1.0", {"fast/__init__.py": b"", "fast/_core.abi3.so": elf()})
    install(python, wheels, "fast==1.0")
    lock = lock_in(tmp_path / "requirements.lock", lock_text(wheels, "alpha==1.0", "fast==1.0"))
    assert plan(snapshot_of(python), lock, tool="uv").empty
    module = site_packages(python) / "fast" / "_core.abi3.so"
    module.unlink()
    made = plan(snapshot_of(python), lock, tool="uv")
    assert [str(step) for step in made.steps] == ["~ fast 1.0, files missing (reinstall)"]
    run(made, wheels)
    assert module.read_bytes() == elf()
    assert plan(snapshot_of(python), lock, tool="uv").empty


def test_pip_reads_the_same_plan(world: tuple[Path, Path], tmp_path: Path) -> None:
    """pip is told by its own resolver, without installing, that each line is well formed and hashed."""
    python, wheels = world
    lock = lock_in(tmp_path / "requirements.lock", lock_text(wheels, "alpha==1.5", "beta==2.0"))
    made = plan(snapshot_of(python), lock, tool="pip")
    (command,) = made.commands()
    assert command.startswith(f"{shlex.quote(made.python)} -m pip install --no-deps --require-hashes -r /dev/stdin <<'EOF'\n")
    if subprocess.run([sys.executable, "-m", "pip", "--version"], capture_output=True).returncode == 0:
        dry = command.replace(shlex.quote(made.python), shlex.quote(sys.executable), 1).replace(
            "install", "install --dry-run --ignore-installed -q", 1
        )
        done = subprocess.run(["sh", "-c", dry], env={**python_env(), "PIP_FIND_LINKS": str(wheels)}, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr


def test_for_a_script(world: tuple[Path, Path], tmp_path: Path) -> None:
    python, wheels = world
    lock = lock_in(tmp_path / "requirements.lock", lock_text(wheels, "alpha==1.5", "beta==2.0", "gamma==2.0", "needy==1.0"))
    (tmp_path / "main.py").write_text("import beta\nimport sys, gone\ntry:\n    import gamma\nexcept ImportError:\n    pass\n")
    script = parse_script(tmp_path / "main.py", base=tmp_path)
    facts = resolve(LocalHost("local", python=str(python)), [script])
    needs, remarks = script_needs(script, facts, lock)
    assert needs == {"beta": "main.py:1 imports beta"}
    assert [r for r in remarks if "gone" in r]
    made = plan(snapshot_of(python), lock, needs=needs, notes=remarks)
    assert [step.name for step in made.steps] == ["beta"]
    assert any("not known" in note for note in made.notes)


def test_requirements_follow_what_the_host_knows(world: tuple[Path, Path], tmp_path: Path) -> None:
    python, wheels = world
    install(python, wheels, "needy==1.0")
    lock = lock_in(tmp_path / "requirements.lock", lock_text(wheels, "alpha==1.0", "beta==2.0", "gamma==2.0", "needy==1.0"))
    made = plan(snapshot_of(python), lock, needs={"needy": "main.py:1"})
    assert {step.name: step.why for step in made.steps} == {"beta": "needy requires it"}


def test_what_the_change_upsets(world: tuple[Path, Path], tmp_path: Path) -> None:
    python, wheels = world
    install(python, wheels, "needy==1.0", "beta==2.0")
    lock = lock_in(tmp_path / "requirements.lock", lock_text(wheels, "alpha==1.5"))
    made = plan(snapshot_of(python), lock)
    assert made.notes == ("needy 1.0 requires alpha<1.2: 1.5 would not satisfy it.",)


def test_an_editable_install_is_replaced(world: tuple[Path, Path], tmp_path: Path) -> None:
    python, wheels = world
    snapshot = snapshot_of(python)
    lock = lock_in(tmp_path / "requirements.lock", lock_text(wheels, "alpha==1.0"))
    dists = tuple(
        replace(d, origin=replace(d.origin, kind="editable", url="file:///src/alpha")) if d.name == "alpha" else d
        for d in snapshot.distributions
    )
    made = plan(replace(snapshot, distributions=dists), lock, tool="uv")
    assert [str(step) for step in made.steps] == ["~ alpha 1.0 (editable) -> 1.0 (replace)"]
    assert "--reinstall-package alpha" in made.commands()[0]


def test_packages_without_hashes_go_apart(world: tuple[Path, Path]) -> None:
    snapshot = snapshot_of(world[0])
    commit = "a" * 40
    packages = (
        LockedPackage(name="tool", direct=Direct(kind="vcs", url="ssh://example/tool", commit=commit)),
        LockedPackage(name="beta", version="2.0", hashes=frozenset({"sha256:" + "0" * 64})),
    )
    hashed, plain = plan(snapshot, Lock(path="x.lock", kind="pylock", packages=packages), tool="uv").commands()
    assert "beta==2.0" in hashed
    assert plain.endswith(f"'tool @ git+ssh://example/tool@{commit}'")
    assert "--require-hashes" not in plain


def test_an_odd_index_is_named(world: tuple[Path, Path]) -> None:
    packages = tuple(
        LockedPackage(name=name, version="1", index=index, hashes=frozenset({"sha256:" + "0" * 64}))
        for name, index in [("a", "https://one.example/simple"), ("b", "https://one.example/simple"), ("c", "https://two.example/cu128")]
    )
    lock = Lock(path="x.lock", kind="uv", packages=packages)
    made = plan(snapshot_of(world[0]), lock, tool="pip")
    assert "--extra-index-url https://two.example/cu128" in made.commands()[0]
    assert "one.example" not in made.to_text()


@pytest.mark.parametrize("evil", ["x\nEOF\ntouch HACKED\n", "$(touch HACKED)", "'; touch HACKED; '", "`touch HACKED`"])
def test_a_lock_cannot_run_anything(world: tuple[Path, Path], tmp_path: Path, evil: str) -> None:
    hashes = frozenset({"sha256:" + "0" * 64, evil})
    packages = (
        LockedPackage(name="a", version="1", hashes=hashes, index=evil),
        LockedPackage(name="b", direct=Direct(kind="archive", url=f"https://x.example/{evil}", hashes=hashes)),
        LockedPackage(name="c", direct=Direct(kind="vcs", url=f"https://x.example/{evil}", commit=evil)),
        LockedPackage(name="d", version=evil),
    )
    made = plan(snapshot_of(world[0]), Lock(path="x.lock", kind="pylock", packages=packages))
    harmless = made.to_text().replace(f"{shlex.quote(made.python)} -m pip", "cat").replace("uv pip", "cat")
    subprocess.run(["sh", "-c", harmless], cwd=tmp_path, capture_output=True, timeout=20)
    assert not (tmp_path / "HACKED").exists()


def test_a_lock_cannot_add_an_option(world: tuple[Path, Path]) -> None:
    place = Direct(kind="archive", url="https://x.example/a-1.tar.gz --index-url=https://other.example", hashes=frozenset({"sha256:" + "0" * 64}))
    made = plan(snapshot_of(world[0]), Lock(path="x.lock", kind="uv", packages=(LockedPackage(name="a", direct=place),)))
    assert made.requirements(hashed=True).split(" \\\n")[0] == "a @ https://x.example/a-1.tar.gz%20--index-url=https://other.example"


def test_a_version_longer_than_python_reads_is_replaced(world: tuple[Path, Path], tmp_path: Path) -> None:
    snapshot = snapshot_of(world[0])
    dists = tuple(replace(dist, version="9" * 5000) if dist.name == "alpha" else dist for dist in snapshot.distributions)
    made = plan(replace(snapshot, distributions=dists), lock_in(tmp_path / "requirements.lock", "alpha==1.0\n"))
    assert [step.action for step in made.steps] == ["replace"]


def test_what_was_not_read_is_not_planned_for(world: tuple[Path, Path], tmp_path: Path) -> None:
    snapshot = snapshot_of(world[0])
    sections = {**snapshot.sections, "distributions": Section(status="unknown", reason="time ran out")}
    lock = lock_in(tmp_path / "requirements.lock", "alpha==1.0\n")
    with pytest.raises(CaptureError, match="time ran out"):
        plan(replace(snapshot, sections=sections), lock)


def test_json(world: tuple[Path, Path], tmp_path: Path) -> None:
    python, wheels = world
    lock = lock_in(tmp_path / "requirements.lock", lock_text(wheels, "beta==2.0"))
    data = plan(snapshot_of(python), lock).to_dict()
    assert data["schema"] == "envspec/plan/1"
    steps = data["steps"]
    assert isinstance(steps, list)
    assert len(steps) == 1
