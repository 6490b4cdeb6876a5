"""Reports that the renderer tests share: an ordinary one, an empty one, and one written by an attacker."""

from __future__ import annotations

import dataclasses

from envspec.findings import Cell, Counts, Finding, Group, HostStatus, Location, Report, Row, count

EMPTY = Report(
    hosts=(
        HostStatus(label="trainer", role="train", group="A", summary="Python 3.12.3, torch 2.9.1+cu128"),
        HostStatus(label="server", role="infer", group="A", summary="Python 3.12.3, torch 2.9.1+cu128"),
    ),
    groups=(Group(name="A", hosts=("server", "trainer"), reference=True),),
    counts=Counts(packages=190, matched=190, hosts=2),
    reference="majority: A",
)

_FINDINGS = (
    Finding(
        code="EP101",
        severity="breaks",
        subject="speculators",
        hosts=("gpu-01", "gpu-02", "gpu-03"),
        what="no module named speculators; the lock has speculators 0.3.0",
        why="The script stops at this import.",
        fix="uv pip install --no-deps speculators==0.3.0",
        location=Location(file="scripts/launch.py", line=32, column=5),
        evidence={"expected": "0.3.0", "found": None},
    ),
    Finding(
        code="EP201",
        severity="breaks",
        subject="torch",
        hosts=("trainer",),
        what="torch is 2.10.0, the lock says 2.9.1",
        why="Another version can behave differently.",
        fix="pip install --no-deps torch==2.9.1",
        evidence={"expected": "2.9.1", "found": "2.10.0"},
    ),
    Finding(
        code="EP701",
        severity="results",
        subject="NVIDIA_TF32_OVERRIDE",
        hosts=("gpu-01",),
        what="is 0 on gpu-01 and unset elsewhere",
        why="It changes the arithmetic of matrix products.",
        fix="unset NVIDIA_TF32_OVERRIDE",
    ),
    Finding(
        code="EP801",
        severity="noise",
        subject="kernel",
        hosts=("gpu-02",),
        what="is 6.8.0 on gpu-02 and 6.1.0 elsewhere",
        why="It rarely matters.",
        fix="nothing to do",
    ),
    Finding(
        code="EP201",
        severity="results",
        subject="transformers",
        hosts=("trainer",),
        what="transformers is 4.57.1 for train and 4.56.0 for infer",
        why="Another version can behave differently.",
        fix="nothing to do",
        declared=True,
    ),
    Finding(
        code="EP602",
        severity="results",
        subject="~orch",
        hosts=("trainer",),
        what="an interrupted uninstall left ~orch",
        why="It wastes space.",
        fix="rm -r ~orch",
        ignored=True,
    ),
)

_BASE = Counts(packages=412, matched=405, differed=6, unread=1, hosts=5, failed=1)

FULL = Report(
    findings=_FINDINGS,
    hosts=(
        HostStatus(
            label="gpu-01", role="infer", group="A", target="ssh://gpu-01", digest="sha256:aa", summary="Python 3.12.3, torch 2.9.1+cu128, 8 x H100"
        ),
        HostStatus(
            label="gpu-02", role="infer", group="A", target="ssh://gpu-02", digest="sha256:aa", summary="Python 3.12.3, torch 2.9.1+cu128, 8 x H100"
        ),
        HostStatus(label="gpu-03", role="infer", group="A", target="ssh://gpu-03", status="partial", reason="libraries: no answer within 20 s"),
        HostStatus(label="trainer", role="train", group="B", target="ssh://trainer", digest="sha256:bb", summary="Python 3.12.3, torch 2.10.0+cu128"),
        HostStatus(
            label="gpu-09", role="infer", target="ssh://gpu-09", status="failed", reason="ssh: connect to host gpu-09 port 22: Connection timed out"
        ),
    ),
    groups=(
        Group(name="lock", hosts=("requirements.lock",), kind="lock", reference=True),
        Group(name="A", hosts=("gpu-01", "gpu-02", "gpu-03"), role="infer"),
        Group(name="B", hosts=("trainer",), role="train"),
    ),
    rows=(
        Row(
            kind="package",
            key="torch",
            severity="breaks",
            cells=(Cell(state="same", text="2.9.1"), Cell(state="same", text="2.9.1"), Cell(state="different", text="2.10.0")),
        ),
        Row(
            kind="component",
            key="NCCL",
            severity="results",
            names=("nvidia-nccl-cu12", "nvidia-nccl-cu13"),
            cells=(Cell(state="unlisted"), Cell(state="unknown"), Cell(state="different", text="2.28.9")),
        ),
        Row(kind="package", key="speculators", severity="breaks", cells=(Cell(state="same", text="0.3.0"), Cell(state="absent"), Cell(state="same"))),
        Row(
            kind="package",
            key="transformers",
            severity="results",
            declared=True,
            cells=(Cell(state="unlisted"), Cell(state="same", text="4.56.0"), Cell(state="different", text="4.57.1")),
        ),
    ),
    counts=count(_FINDINGS, _BASE),
    reference="lock requirements.lock",
    notes=("the ignore of EP602 ends in 3 days",),
)


def hostile(text: str) -> Report:
    """The full report with every string that a host, a file or a spec could bring replaced."""
    finding = dataclasses.replace(
        FULL.findings[0], subject=text, hosts=(text, "gpu-01"), what=text, why=text, fix=text, location=Location(file=text, line=3)
    )
    other = dataclasses.replace(finding, severity="noise", code="EP801", location=None)
    findings = (finding, other)
    return Report(
        findings=findings,
        hosts=(
            HostStatus(label=text, role=text, group=text, target=text, summary=text),
            HostStatus(label="gpu-01", status="partial", reason=text, group="A"),
            HostStatus(label=text + "2", status="failed", reason=text, target=text),
        ),
        groups=(Group(name=text, hosts=(text,), reference=True), Group(name="A", hosts=("gpu-01",))),
        rows=(
            Row(
                kind="package",
                key=text,
                severity="breaks",
                names=(text, text),
                cells=(Cell(state="same", text=text), Cell(state="different", text=text)),
            ),
        ),
        counts=count(findings, Counts(packages=1, differed=1, hosts=3, failed=1)),
        reference=text,
        notes=(text,),
    )


ATTACKS = (
    "x\n::error file=a.py,line=1::forged",
    "::set-output name=token::stolen",
    "##[error]forged",
    "\x1b[2J\x1b]0;owned\x07",
    "\x9b31m",
    "a|b | c",
    "\\|x",
    "`code` ``more``",
    "</details><script>alert(1)</script>",
    "<!-- hidden",
    "[click](http://a.example)",
    "![x](http://a.example/x.png)",
    "@octocat",
    "a,line=9::b",
    "100%0A::error::x",
    "\u202eevil",
    "]]><failure/>",
    "&lt;&#0;\x00\x0b",
    "\udc80\ud800",
    "$(id) `id` ; id",
    "[bold red]markup[/bold red]",
    "word " * 30 + "::error::wrapped",
    "",
)
