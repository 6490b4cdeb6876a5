"""Examples for compose, Kubernetes, Slurm and Apptainer: valid, closed against the user's home, and without network where they say so."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.github.conftest import ROOT, Run

DOCKER = ROOT / "docker"
KUBERNETES = sorted((DOCKER / "examples" / "kubernetes").glob("*.yaml"))
SCRIPTS = [DOCKER / "examples" / "slurm" / "job.sbatch", DOCKER / "examples" / "apptainer" / "run.sh"]
CHECK = ["/opt/tools/bin/envspec", "diff", "--no-spec", "--lock", "/etc/envspec/requirements.lock", "local"]


def resources(path: Path) -> list[dict[str, Any]]:
    return [each for each in yaml.safe_load_all(path.read_text("utf-8")) if each]


@pytest.mark.parametrize("path", KUBERNETES, ids=lambda path: path.stem)
def test_kubernetes_accepts_them(path: Path, program: Run) -> None:
    done = program("kubernetes-validate", "--strict", path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert (done.stdout + done.stderr).count(" passed for resource ") == len(resources(path))


def test_kubernetes_would_refuse(tmp_path: Path, program: Run) -> None:
    broken = tmp_path / "job.yaml"
    broken.write_text(KUBERNETES[0].read_text("utf-8").replace("backoffLimit: 0", "backoffLimits: 0"), "utf-8")
    assert program("kubernetes-validate", "--strict", broken).returncode != 0


@pytest.mark.parametrize("path", KUBERNETES, ids=lambda path: path.stem)
def test_pods_may_do_nothing_they_need_not(path: Path) -> None:
    pods = [each["spec"]["template"]["spec"] for each in resources(path) if each["kind"] in ("Job", "Deployment")]
    assert pods
    for pod in pods:
        assert pod["automountServiceAccountToken"] is False
        assert pod["securityContext"]["runAsNonRoot"] is True
        (parity,) = pod["initContainers"]
        assert parity["command"] == CHECK
        volumes = {each["name"] for each in pod["volumes"]}
        for container in [parity, *pod["containers"]]:
            assert container["securityContext"] == {"allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True, "capabilities": {"drop": ["ALL"]}}
            assert re.fullmatch(r"registry\.example/[\w/-]+@sha256:[0-9a-f]{64}", container["image"])
            assert "memory" in container["resources"]["limits"]
            assert {each["name"] for each in container["volumeMounts"]} <= volumes
        assert {container["image"] for container in pod["containers"]} == {parity["image"]}


def test_compose_has_a_default_for_every_variable() -> None:
    text = (DOCKER / "compose.yaml").read_text("utf-8")
    assert re.findall(r"\$\{(\w+)(?!\w*:-)[^}]*\}", text) == []
    services = yaml.safe_load(text)["services"]
    assert {name: service.get("network_mode") for name, service in services.items()} == {"train": None, "infer": None, "check": "none", "test": "none"}
    assert services["check"]["command"] == CHECK
    for name, service in services.items():
        assert service["read_only"] is True, name
        assert all(volume.endswith((":ro", ":/workspace")) for volume in service.get("volumes", [])), name
    assert [port.split(":")[0] for port in services["infer"]["ports"]] == ["127.0.0.1"]


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.name)
def test_shell_is_sound(path: Path, program: Run) -> None:
    assert subprocess.run(["bash", "-n", str(path)], capture_output=True, check=False).returncode == 0
    done = program("shellcheck", path)
    assert done.returncode == 0, done.stdout


def stand_in(folder: Path, name: str) -> None:
    """A program that prints its arguments, one a line, and a blank line."""
    folder.mkdir(exist_ok=True)
    (folder / name).write_text('#!/bin/sh\nprintf "%s\\n" "$@"\necho\n')
    (folder / name).chmod(0o755)


def call(path: Path, *arguments: str, folder: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {"PATH": f"{folder / 'bin'}{os.pathsep}{os.environ['PATH']}", "HOME": str(folder), **variables}
    return subprocess.run([str(path), *arguments], cwd=folder, capture_output=True, text=True, env=environment, check=False)


def test_slurm_checks_first_and_mounts_no_home(tmp_path: Path) -> None:
    stand_in(tmp_path / "bin", "srun")
    done = call(SCRIPTS[0], "train", "python", "train.py", folder=tmp_path, IMAGE="/shared/a.sqsh", MODELS="/m", SLURM_JOB_ID="7")
    assert done.returncode == 0, done.stderr
    check, train = (block.splitlines() for block in done.stdout.strip().split("\n\n"))
    for words in (check, train):
        assert {"--no-container-mount-home", "--container-image=/shared/a.sqsh", "--export=NONE", f"--container-mounts={tmp_path}:/workspace,/m:/models:ro"} <= set(words)
    assert check[-len(CHECK) :] == CHECK
    assert train[-4:] == ["/opt/tools/bin/enter", "train", "python", "train.py"]


def test_slurm_trains_nothing_where_the_environment_is_another(tmp_path: Path) -> None:
    stand_in(tmp_path / "bin", "srun")
    (tmp_path / "bin" / "srun").write_text("#!/bin/sh\necho called\nexit 1\n")
    done = call(SCRIPTS[0], "infer", folder=tmp_path, IMAGE="/shared/a.sqsh", SLURM_JOB_ID="7")
    assert (done.returncode, done.stdout) == (1, "called\n")


def test_apptainer_is_closed_against_the_home(tmp_path: Path) -> None:
    stand_in(tmp_path / "bin", "apptainer")
    (tmp_path / "a.sif").touch()
    done = call(SCRIPTS[1], "a.sif", "infer", "--port", "1", folder=tmp_path, MODELS="/m")
    assert done.returncode == 0, done.stderr
    words = done.stdout.split()
    assert {"--containall", "--no-home", "--cleanenv", "/m:/models:ro"} <= set(words)
    assert words[words.index("--no-mount") + 1] == "home,cwd,bind-paths"
    assert words[-5:] == ["a.sif", "/opt/tools/bin/enter", "infer", "--port", "1"]


@pytest.mark.parametrize(
    ("script", "arguments", "sentence"),
    [
        (SCRIPTS[0], (), "job.sbatch: say train or infer"),
        (SCRIPTS[0], ("serve",), "job.sbatch: say train or infer"),
        (SCRIPTS[0], ("train",), "job.sbatch: IMAGE names no image"),
        (SCRIPTS[1], ("a.sif",), "run.sh: usage:"),
        (SCRIPTS[1], ("missing.sif", "check"), "run.sh: there is no image missing.sif"),
    ],
)
def test_wrong_use_is_one_sentence(script: Path, arguments: tuple[str, ...], sentence: str, tmp_path: Path) -> None:
    done = call(script, *arguments, folder=tmp_path)
    assert done.returncode != 0
    assert sentence in done.stderr
    assert len(done.stderr.splitlines()) == 1
