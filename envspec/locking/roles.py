"""How the locks of a stack's roles differ: what ``stack.yaml`` declares, in packages."""

from __future__ import annotations

from collections.abc import Mapping

from envspec.locking.files import read_metadata
from envspec.locking.model import StackLock
from envspec.spec import Declared
from envspec.stacks import ROLES, Stack

__all__ = ["declared", "declared_words"]


def _locks(stack: Stack) -> Mapping[str, StackLock]:
    return {role: read_metadata(stack.metadata(role))[0] for role in ROLES}


def declared(stack: Stack) -> tuple[Declared, ...]:
    """A declaration for each package in which the roles' locks differ, as a comparison of the two images takes it.

    Raises:
        UsageError: a lock's metadata cannot be read.
    """
    if not stack.roles:
        return ()
    reason = "; ".join(stack.roles[role] for role in sorted(stack.roles))
    return tuple(Declared(kind="package", pattern=name, roles=frozenset(ROLES), reason=reason) for name, _ in _differing(stack))


def declared_words(stack: Stack) -> list[str]:
    """The same for a reader: ``transformers: train 5.9.0, infer 4.57.1``, the reasons first."""
    if not stack.roles:
        return []
    head = [f"{role} differs as declared: {reason}" for role, reason in sorted(stack.roles.items())]
    for name, each in _differing(stack):
        head.append(f"  {name}: " + ", ".join(f"{role} {versions or 'without it'}" for role, versions in each.items()))
    return head


def _differing(stack: Stack) -> list[tuple[str, dict[str, str]]]:
    texts: dict[str, dict[str, list[str]]] = {}
    for role, lock in _locks(stack).items():
        for entry in lock.entries:
            texts.setdefault(entry.name, {}).setdefault(role, []).append(entry.requirement.removeprefix(f"{entry.name}=="))
    versions = {name: {role: " and ".join(each.get(role, [])) for role in ROLES} for name, each in sorted(texts.items())}
    return [(name, each) for name, each in versions.items() if len(set(each.values())) > 1]
