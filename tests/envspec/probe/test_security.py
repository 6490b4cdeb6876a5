"""Nothing of the environment runs, secrets stay there, a section that hangs costs only itself."""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from pathlib import Path

import pytest

from envspec import probe
from envspec.hosts import CaptureOptions, open_host, parse_host
from envspec.snapshot import Snapshot
from tests.envspec.build import bare_venv, install


def capture(python: Path | str, **options: object) -> Snapshot:
    return open_host(parse_host(f"local:{python}")).snapshot(CaptureOptions(**options))  # type: ignore[arg-type]


def test_nothing_of_the_environment_is_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    marker = tmp_path / "ran"
    evil = f"open({str(marker)!r}, 'w').close()\n"
    site = bare_venv(tmp_path / "env")
    shadow = tmp_path / "shadow"
    shadow.mkdir()
    for folder in (site, shadow):
        for name in ("json", "re", "os", "ctypes", "sitecustomize", "usercustomize", "base64", "zlib", "threading", "torch"):
            (folder / f"{name}.py").write_text(evil)
    (site / "evil.pth").write_text(f"import os; exec({evil!r})\n")
    (site / "__editable___evil_finder.py").write_text(f"{evil}MAPPING = {{'x': __import__('os').getcwd()}}\n")
    (site / "__editable__.evil.pth").write_text("import __editable___evil_finder; __editable___evil_finder.install()\n")
    install(site, "evil", "$(touch ran)", {"evil/__init__.py": evil.encode()})
    monkeypatch.setenv("PYTHONPATH", str(shadow))
    monkeypatch.setenv("PYTHONSTARTUP", str(shadow / "os.py"))
    monkeypatch.chdir(shadow)
    snapshot = capture(tmp_path / "env", deep=("*",))
    assert not marker.exists()
    assert [dist.name for dist in snapshot.distributions] == ["evil"]
    assert {hook.kind for hook in snapshot.hooks} == {"pth", "sitecustomize", "usercustomize"}
    assert not list(tmp_path.rglob("__pycache__"))
    assert {entry.path: entry.loose for entry in snapshot.path}[str(shadow)][0] == "base64"


def test_secrets_never_leave_the_host(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    secret = "hunter2-secret"
    for name in ("HF_TOKEN", "VLLM_API_KEY", "NCCL_PASSWORD", "UV_INDEX_INTERNAL_PASSWORD", "HF_AUTH_COOKIE", "PYTHON_CREDENTIALS"):
        monkeypatch.setenv(name, secret)
    monkeypatch.setenv("PIP_INDEX_URL", f"https://user:{secret}@pkg.example/simple?token={secret}&x=1")
    monkeypatch.setenv("UNRELATED", secret)
    monkeypatch.setenv("NCCL_ALGO", "Ring")
    config = tmp_path / "pip.conf"
    config.write_text(f"[global]\nindex-url = https://u:{secret}@pkg.example/simple\nextra-index-url =\n    https://x:{secret}@a.example\n    https://b.example\n")
    monkeypatch.setenv("PIP_CONFIG_FILE", str(config))
    first, second = capture(sys.executable, salt="one"), capture(sys.executable, salt="one")
    text = json.dumps(first.to_dict())
    assert secret not in text
    assert "UNRELATED" not in text
    token = first.environment["HF_TOKEN"]
    assert (token.value, token.redacted) == (None, True)
    assert token.hash == second.environment["HF_TOKEN"].hash
    assert token.hash != capture(sys.executable, salt="two").environment["HF_TOKEN"].hash
    assert capture(sys.executable, salt=None).environment["HF_TOKEN"].hash is None
    assert token.hash != first.environment["VLLM_API_KEY"].hash
    assert first.environment["PIP_INDEX_URL"].value == "https://pkg.example/simple?token=***&x=1"
    assert first.environment["NCCL_ALGO"].value == "Ring"
    assert {item.key: item.value for item in first.configuration}["global.extra-index-url"] == "https://a.example https://b.example"
    assert first.digest == capture(sys.executable, salt="two").digest


def test_further_variables_by_name_and_prefix(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("MYAPP_MODE", "OTHER_ONE", "OTHER_TWO"):
        monkeypatch.setenv(name, "v")
    snapshot = capture(sys.executable, variables=("OTHER_*", "MYAPP_MODE"))
    assert {name for name in snapshot.environment if name.startswith(("MYAPP", "OTHER"))} == {"MYAPP_MODE", "OTHER_ONE", "OTHER_TWO"}


def test_a_location_that_hangs_costs_only_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    good, bad = tmp_path / "good", tmp_path / "bad"
    for folder in (good, bad):
        folder.mkdir()
        install(folder, folder.name, "1.0", {f"{folder.name}.py": b""})
    release = threading.Event()
    real = probe.Location.scan

    def scan(self: probe.Location, names: list[str], reasons: list[str], helpers: probe.Helpers) -> None:
        if self.path == str(bad):
            release.wait(30)
        real(self, names, reasons, helpers)

    monkeypatch.setattr(probe.Location, "scan", scan)
    sections = probe.Sections(0.2)
    path = probe.SearchPath()
    for folder in (bad, good):
        path.add_site(str(folder), "site", [])
    found = probe.Distributions(path, None, sections)
    sections.run("distributions", found.read, 5.0)
    release.set()
    assert [dist["name"] for dist in sections.found["distributions"]] == ["good"]
    assert sections.status["distributions"] == {"status": "partial", "reason": f"reading {bad} did not finish within 0.2 s"}


def test_a_section_that_hangs_or_raises_is_unknown_with_a_reason() -> None:
    sections = probe.Sections(0.1)
    stop = threading.Event()
    sections.run("hangs", lambda out, reasons: stop.wait(30) and None)
    stop.set()

    def fails(out: dict[str, object], reasons: list[str]) -> None:
        raise RuntimeError("boom")

    sections.run("fails", fails)
    assert sections.status["hangs"] == {"status": "unknown", "reason": "did not finish within 0.1 s"}
    assert sections.status["fails"] == {"status": "unknown", "reason": "RuntimeError: boom"}


def fake_tools(folder: Path, text: str, status: int = 0) -> None:
    folder.mkdir()
    (folder / "nvidia-smi").write_text(f"#!/bin/sh\ncat <<'END'\n{text}\nEND\nexit {status}\n")
    (folder / "nvidia-smi").chmod(0o755)


def test_gpus_by_nvidia_smi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_tools(
        tmp_path / "bin",
        "0, NVIDIA H200, GPU-1, 9.0, 143771, 570.124.06, 96.00, Disabled, Enabled, Enabled, 700.00\n"
        "1, Tesla T4, GPU-2, 7.5, 15360, 570.124.06, 90.04, [N/A], [N/A], Disabled, [N/A]",
    )
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:{os.environ['PATH']}")
    snapshot = capture(sys.executable)
    first, second = snapshot.gpus
    assert (first.name, first.compute_capability, first.memory_mib, first.power_limit_w, first.mig) == ("NVIDIA H200", "9.0", 143771, 700.0, "Disabled")
    assert (second.name, second.mig, second.power_limit_w) == ("Tesla T4", None, None)
    assert snapshot.driver is not None
    assert snapshot.driver.version is not None
    assert snapshot.section("gpus").status == "ok"


def test_an_old_nvidia_smi_is_asked_again_without_the_field(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_tools(tmp_path / "bin", "")
    (tmp_path / "bin/nvidia-smi").write_text(
        '#!/bin/sh\ncase "$1" in *compute_cap*) echo \'Field "compute_cap" is not a valid field to query.\'; exit 2;; esac\n'
        "echo '0, Tesla V100, GPU-1, 32510, 450.80.02, 88.00, [N/A], Enabled, Enabled, 300.00'\n"
    )
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:{os.environ['PATH']}")
    (gpu,) = capture(sys.executable).gpus
    assert (gpu.name, gpu.compute_capability, gpu.memory_mib) == ("Tesla V100", None, 32510)


def test_a_driver_that_does_not_answer_is_unknown_and_not_no_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_tools(tmp_path / "bin", "Failed to initialize NVML: Driver/library version mismatch", 18)
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:{os.environ['PATH']}")
    section = capture(sys.executable).section("gpus")
    assert section.status in ("unknown", "partial")
    assert "Driver/library version mismatch" in str(section.reason)


def test_a_hanging_nvidia_smi_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_tools(tmp_path / "bin", "")
    (tmp_path / "bin/nvidia-smi").write_text("#!/bin/sh\nsleep 60\n")
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:{os.environ['PATH']}")
    monkeypatch.setattr(probe, "NVIDIA_SMI_SECONDS", 0.3)
    out: dict[str, object] = {}
    reasons: list[str] = []
    probe.read_gpus(out, reasons)
    assert reasons == ["nvidia-smi did not answer within 0.3 s"]


@pytest.mark.parametrize(
    ("component", "value", "text"),
    [("cudart", 12080, "12.8"), ("cuda", 13000, "13.0"), ("nccl", 22705, "2.27.5"), ("nccl", 2708, "2.7.8"), ("cudnn", 91002, "9.10.2"),
     ("cudnn", 8907, "8.9.7"), ("cublas", [12, 8, 4], "12.8.4"), ("cudart", 0, None), ("cudart", None, None)],
)  # fmt: skip
def test_version_numbers_of_libraries(component: str, value: object, text: str | None) -> None:
    assert probe.version_of(component, value) == text


def test_a_library_that_kills_its_process_hides_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    answers = [({}, "ended with status -11"), ({("nccl", "/b/libnccl.so.2"): {"value": 22705}}, "")]
    monkeypatch.setattr(probe, "ask_libraries", lambda wanted, seconds: answers.pop(0))
    folder = tmp_path / "libs"
    folder.mkdir()
    for name in ("libcudart.so.12", "libnccl.so.2"):
        (folder / name).write_bytes(b"")
    answers[1] = ({("nccl", str(folder / "libnccl.so.2")): {"value": 22705}}, "")
    monkeypatch.setenv("LD_LIBRARY_PATH", str(folder))
    out: dict[str, list[dict[str, object]]] = {}
    ready = threading.Event()
    ready.set()
    found = probe.Distributions(probe.SearchPath(), None, probe.Sections(1))  # type: ignore[arg-type]
    probe.read_libraries(found, ready, 8.0, out, [])
    assert [(item["component"], item.get("version"), item.get("note")) for item in out["libraries"]] == [
        ("cudart", None, "ended with status -11"),
        ("nccl", "2.27.5", None),
    ]


def test_a_file_that_is_no_library_is_told_by_its_child(tmp_path: Path) -> None:
    path = tmp_path / "libcudart.so.12"
    path.write_bytes(b"no library")
    answers, why = probe.ask_libraries([("cudart", str(path))], 20)
    assert why == ""
    assert "error" in answers[("cudart", str(path))]


def test_capture_time_does_not_enter_the_digest() -> None:
    first = capture(sys.executable)
    time.sleep(0.01)
    assert first.digest == capture(sys.executable).digest
