"""The command that changes an environment, for the tool that owns it. Nothing is run: a person reads it and runs it.

Names, versions and paths come from hosts and are quoted for a POSIX shell, so that a pasted line does what it shows.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import Literal, TypeAlias

from envspec.snapshot import Distribution, Snapshot

__all__ = ["Tool", "install", "reinstall", "tool", "uninstall"]

Tool: TypeAlias = Literal["uv", "pip", "conda", "apt", "managed"]


def tool(snapshot: Snapshot | None, dist: Distribution | None = None) -> Tool:
    """Which tool owns the environment, or the given distribution in it.

    ``managed`` is a system Python that PEP 668 forbids to change; ``apt`` a distribution of the operating system.
    """
    if dist is not None:
        if dist.conda is not None or dist.origin.kind == "conda" or dist.installer == "conda":
            return "conda"
        if dist.origin.kind == "system":
            return "apt"
    if snapshot is None or snapshot.interpreter is None:
        return "pip"
    interpreter = snapshot.interpreter
    if interpreter.externally_managed and not interpreter.venv:
        return "managed"
    if interpreter.venv_creator == "uv" or (dist is not None and dist.installer == "uv"):
        return "uv"
    if snapshot.known("distributions") and not any(item.name == "pip" for item in snapshot.distributions):
        return "uv"
    return "pip"


def _python(snapshot: Snapshot | None) -> str:
    interpreter = snapshot.interpreter if snapshot is not None else None
    return shlex.quote(interpreter.executable) if interpreter is not None and interpreter.executable else "python3"


def install(
    snapshot: Snapshot | None,
    requirements: Sequence[str],
    *,
    dist: Distribution | None = None,
    options: Sequence[str] = (),
) -> str:
    """The command that installs these requirements (``name==version`` or ``name @ url``)."""
    owner = tool(snapshot, dist)
    if owner == "conda":
        prefix = snapshot.interpreter.prefix if snapshot is not None and snapshot.interpreter is not None else ""
        specs = [requirement.replace("==", "=") for requirement in requirements]
        return " ".join(["conda install", *(["-p", shlex.quote(prefix)] if prefix else []), *map(shlex.quote, specs)])
    if owner == "apt" and any("=" in requirement or "<" in requirement for requirement in requirements):
        # The distribution has one version of it; another one belongs in an environment of its own.
        owner = "managed"
    if owner == "apt":
        return "apt-get install " + " ".join(shlex.quote(f"python3-{name}") for name in requirements)
    words = " ".join([*options, *(shlex.quote(requirement) for requirement in requirements)])
    python = _python(snapshot)
    if owner == "uv":
        return f"uv pip install --python {python} {words}"
    if owner == "managed":
        return f"{python} -m venv ~/env && ~/env/bin/python -m pip install {words}"
    return f"{python} -m pip install {words}"


def reinstall(snapshot: Snapshot | None, requirement: str, *, dist: Distribution | None = None) -> str:
    """The command that installs a package again although it counts as installed, and nothing else."""
    owner = tool(snapshot, dist)
    if owner == "apt":
        return install(snapshot, [requirement.split("==")[0]], dist=dist).replace("install", "install --reinstall", 1)
    if owner == "conda":
        return install(snapshot, [requirement], dist=dist).replace("install", "install --force-reinstall", 1)
    options = ["--reinstall", "--no-deps"] if owner == "uv" else ["--force-reinstall", "--no-deps", "--no-cache-dir"]
    return install(snapshot, [requirement], dist=dist, options=options)


def uninstall(snapshot: Snapshot | None, names: Sequence[str], *, dist: Distribution | None = None) -> str:
    """The command that removes packages."""
    owner = tool(snapshot, dist)
    words = " ".join(map(shlex.quote, names))
    if owner == "uv":
        return f"uv pip uninstall --python {_python(snapshot)} {words}"
    if owner == "conda":
        return f"conda remove --force {words}"
    if owner == "apt":
        return "apt-get remove " + " ".join(shlex.quote(f"python3-{name}") for name in names)
    return f"{_python(snapshot)} -m pip uninstall {words}"
