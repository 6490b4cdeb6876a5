"""Which lock an interpreter belongs to, by the spec."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from envspec.interpreter import lock_here, lock_of
from envspec.spec import load_spec

SPEC = """\
version: 1
hosts:
  here: {{target: local, role: infer}}
  own: {{target: "local:envs/train", role: train}}
  far: {{target: "user@gpu.example:~/env/bin/python3", role: far}}
roles:
  train: {{lock: train.lock}}
  infer: {infer}
  far: {{lock: far.lock}}
{more}
"""


@pytest.fixture
def environments(tmp_path: Path) -> Path:
    for name in ("train", "other"):
        folder = tmp_path / "envs" / name / "bin"
        folder.mkdir(parents=True)
        for link in ("python3", "python"):
            (folder / link).symlink_to(sys.executable)
    return tmp_path


def belongs(root: Path, python: Path, *, infer: str = "{}", more: str = "") -> tuple[str, str] | None:
    (root / "envspec.yaml").write_text(SPEC.format(infer=infer, more=more))
    found = lock_of(load_spec(root / "envspec.yaml"), str(python))
    return None if found is None else found.arguments


def test_a_host_of_its_path_gives_the_role(environments: Path) -> None:
    for name in ("python", "python3"):
        python = environments / "envs/train/bin" / name
        assert belongs(environments, python) == (f"train={environments}/train.lock", f"train=local:{python}")


def test_another_environment_of_one_base_is_the_interpreter_in_use(environments: Path) -> None:
    other = environments / "envs/other/bin/python"
    assert belongs(environments, other) is None
    assert belongs(environments, other, infer="{lock: infer.lock}") == (f"infer={environments}/infer.lock", f"infer=local:{other}")
    assert belongs(environments, other, more="lock: all.lock") == (f"infer={environments}/all.lock", f"infer=local:{other}")


def test_without_a_host_on_this_machine_only_the_lock_of_all_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert lock_here(sys.executable) is None
    (tmp_path / "envspec.yaml").write_text("version: 1\nroles: {infer: {lock: infer.lock}}\n")
    assert lock_of(load_spec(tmp_path / "envspec.yaml"), sys.executable) is None
    (tmp_path / "envspec.yaml").write_text("version: 1\nlock: all.lock\n")
    found = lock_here(sys.executable)
    assert found is not None
    assert found.arguments == ("all.lock", f"local:{sys.executable}")
    assert lock_of(None, sys.executable) is None
