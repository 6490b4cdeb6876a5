"""A Debian base made with debootstrap, for where no registry is reachable."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from envspec.errors import UsageError
from envspec.images.engine import Engine, EngineError, engine_words

__all__ = ["bootstrap"]

_LEFT_OUT: Final = ("./var/cache/apt/*", "./var/lib/apt/lists/*", "./var/log/*", "./tmp/*", "./proc/*", "./sys/*", "./dev/*", "./var/cache/debconf/*-old", "./var/cache/ldconfig/aux-cache")


def bootstrap(engine: Engine, name: str, packages: Sequence[str], *, suite: str, mirror: str | None = None, tell: Callable[[str], None] = lambda text: None) -> str:
    """Make a base and import it under a name; its id. Nothing is imported where a step fails.

    Raises:
        UsageError: this is not root, or debootstrap is not there.
        EngineError: debootstrap, tar or the import fails.
    """
    command = shutil.which("debootstrap", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")
    if command is None:
        raise UsageError("there is no debootstrap here; install it (Debian, Ubuntu: apt-get install debootstrap)")
    if os.geteuid() != 0:
        raise UsageError("debootstrap makes device files and changes its root, so this needs root; run it with sudo")
    with tempfile.TemporaryDirectory(prefix="envspec-base-") as folder:
        root = Path(folder) / "root"
        tell(f"debootstrap {suite} with {', '.join(packages)}")
        done = subprocess.run(
            [command, "--variant=minbase", f"--include={','.join(packages)}", suite, str(root), *([mirror] if mirror else [])],
            capture_output=True, text=True, errors="replace", stdin=subprocess.DEVNULL, check=False,
        )  # fmt: skip
        if done.returncode != 0:
            log = root / "debootstrap" / "debootstrap.log"
            tail = log.read_text(encoding="utf-8", errors="replace") if log.is_file() else ""
            raise EngineError(f"debootstrap of {suite} failed: {engine_words(done.stdout + done.stderr or tail)}; name a mirror that can be reached with --mirror URL")
        tell(f"importing {name}")
        packed = ["tar", "-C", str(root), "--sort=name", "--mtime=@0", "--numeric-owner", *(f"--exclude={each}" for each in _LEFT_OUT), "-c", "."]
        with subprocess.Popen(packed, stdout=subprocess.PIPE, stdin=subprocess.DEVNULL) as tar:
            imported = subprocess.run(
                [engine.command, "import", "--message", f"debootstrap {suite}", "-", name], stdin=tar.stdout, capture_output=True, text=True, errors="replace", env=dict(engine.environment), check=False
            )
            if tar.stdout is not None:
                tar.stdout.close()
        if tar.returncode != 0 or imported.returncode != 0:
            raise EngineError(f"{engine.name} could not import the base: {engine_words(imported.stderr) if imported.returncode else 'tar failed'}")
    return imported.stdout.strip().splitlines()[-1]
