"""The build's last step, inside the image: what is installed is held against the lock and the stack."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from envspec.compare import LabelledSnapshot, compare
from envspec.findings import Finding, Report
from envspec.images.unread import unread
from envspec.locks import Lock, RoleLock
from envspec.policy import apply
from envspec.rules import finding
from envspec.snapshot import Snapshot
from envspec.spec import Spec
from envspec.stacks import Stack

__all__ = ["self_check"]

_OF_THE_BUILDER: Final = frozenset({"EP301", "EP302", "EP303", "EP308", "EP309", "EP409", "EP902"})
"""About the machine's driver and GPUs, of which a build says nothing: they are judged where the image runs; and of what could not be
read, which :func:`unread` tells for the parts that count."""


def self_check(snapshot: Snapshot, lock: Lock, stack: Stack, label: str, spec: Spec | None = None) -> Report:
    """Everything in which an environment is not what its lock and stack say: packages, builds, files against RECORD, unsatisfied
    requirements, extensions against torch, CUDA libraries, and torch's CUDA and GPU architectures against ``stack.yaml``.

    ``spec`` holds the findings that the stack accepts.
    """
    report = compare([LabelledSnapshot(label=label, snapshot=snapshot, target=label)], [RoleLock(role=None, lock=lock)], spec)
    # An image holds what its lock says and nothing else; on a host an extra package is noise.
    kept = [item.replace(severity="results") if item.code == "EP212" else item for item in report.findings if item.code not in _OF_THE_BUILDER]
    return replace(report, findings=()).with_findings(apply([*kept, *unread(snapshot, label), *_torch(snapshot, stack, label)], spec))


def _torch(snapshot: Snapshot, stack: Stack, label: str) -> list[Finding]:
    found: list[Finding] = []
    torch = snapshot.torch
    if stack.cuda is not None and (torch is None or torch.cuda != stack.cuda):
        has = "there is no torch" if torch is None else f"torch {torch.version or ''} is built for CUDA {torch.cuda or 'none'}"
        found.append(
            finding(
                "EP311",
                "torch",
                [label],
                f"{has}, stack.yaml says CUDA {stack.cuda}",
                fix="Lock a torch of this CUDA, or correct 'cuda' in stack.yaml.",
                evidence={"expected": stack.cuda, "found": torch.cuda if torch else None},
            )
        )
    missing = [arch for arch in stack.archs if torch is None or arch not in torch.archs]
    if missing:
        has = " ".join(torch.archs) if torch else ""
        found.append(
            finding(
                "EP302",
                "torch",
                [label],
                f"torch holds no code for {', '.join(missing)}, which stack.yaml asks for; it has {has or 'none'}",
                fix="Lock a torch build that covers them, or correct 'archs' in stack.yaml.",
                evidence={"expected": list(stack.archs), "found": list(torch.archs) if torch else []},
            )
        )
    return found
