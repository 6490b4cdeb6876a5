"""Imports in an image what its stack lists, each in an interpreter of its own."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from envspec.findings import Counts, Finding, HostStatus, Report
from envspec.hosts import wire
from envspec.images.inspect import ImageFacts
from envspec.images.run import execute, sandbox
from envspec.rules import finding
from envspec.stacks import SmokeImport

__all__ = ["Imported", "SmokeRun", "smoke", "smoke_report"]

# SIGALRM ends an import that hangs, also one that hangs in native code.
_IMPORT: Final = "import importlib, math, signal, sys; signal.alarm(math.ceil(float(sys.argv[2]))); importlib.import_module(sys.argv[1])"
_DRIVER: Final = "import ctypes; ctypes.CDLL('libcuda.so.1')"
_ALARM: Final = (128 + 14, -14)


@dataclass(frozen=True, kw_only=True)
class Imported:
    """How one import went; ``reason`` says why it failed or was skipped. ``seconds`` is its duration."""

    module: str
    status: Literal["ok", "failed", "skipped"]
    reason: str = ""
    seconds: float = 0.0


@dataclass(frozen=True, kw_only=True)
class SmokeRun:
    """All imports of one image."""

    label: str
    facts: ImageFacts
    imports: tuple[Imported, ...]


def smoke(client: Any, facts: ImageFacts, label: str, imports: Sequence[SmokeImport], *, timeout: float, gpus: bool, tell: Callable[[str], None]) -> SmokeRun:
    """Import each module in the image, without network and on a read-only file system. ``timeout`` in seconds is each import's.

    What needs the driver is skipped where the container has no ``libcuda.so.1``.
    """
    done: list[Imported] = []
    with sandbox(client, facts.id, ["python3", "-c", "import time; time.sleep(1e9)"], gpus=gpus) as container:
        container.start()
        driver = _python(container, "-c", _DRIVER)[0] == 0
        for item in imports:
            tell(f"{label}: importing {item.module}")
            if item.needs == "driver" and not driver:
                done.append(Imported(module=item.module, status="skipped", reason="it needs the driver's libcuda.so.1, which the container does not have"))
                continue
            start = time.monotonic()
            code, said = _python(container, "-c", _IMPORT, item.module, f"{timeout:g}")
            reason = "" if code == 0 else f"no end within {timeout:g} s" if code in _ALARM else wire.clean(said, 300) or f"Python ended with exit code {code}"
            done.append(Imported(module=item.module, status="ok" if code == 0 else "failed", reason=reason, seconds=time.monotonic() - start))
    return SmokeRun(label=label, facts=facts, imports=tuple(done))


def _python(container: Any, *arguments: str) -> tuple[int, str]:
    """Exit code, and the last line on stderr that is not indented (of a traceback: the exception)."""
    code, stderr = execute(container, ["python3", *arguments])
    lines = [line for line in stderr.decode("utf-8", "replace").splitlines() if line.strip() and not line[0].isspace()]
    return code, lines[-1] if lines else ""


def smoke_report(runs: Sequence[SmokeRun]) -> Report:
    """A finding for each import that failed, a note for each that was skipped."""
    findings: list[Finding] = []
    notes: list[str] = []
    statuses = []
    for run in runs:
        by_status = {status: [item for item in run.imports if item.status == status] for status in ("ok", "failed", "skipped")}
        for item in by_status["failed"]:
            hint = "Say `needs: driver` of it in stack.yaml, or run where the driver is." if "libcuda.so.1" in item.reason else None
            what = f"{item.module} cannot be imported in {run.label}: {item.reason}"
            findings.append(finding("EP828", item.module, [run.label], what, fix=hint, evidence={"found": item.reason}))
        notes += [f"{run.label}: {item.module} was skipped: {item.reason}" for item in by_status["skipped"]]
        told = ", ".join(f"{len(items)} {word}" for word, items in (("imported", by_status["ok"]), ("failed", by_status["failed"]), ("skipped", by_status["skipped"])) if items)
        seconds = sum(item.seconds for item in run.imports)
        statuses.append(HostStatus(label=run.label, role=run.facts.role, target=f"image:{run.facts.name}", summary=f"{told or 'nothing listed'} in {seconds:.0f} s"))
    return Report(hosts=tuple(statuses), command="images smoke", counts=Counts(hosts=len(runs)), notes=tuple(notes)).with_findings(findings)
