"""Real environments made by the tests: wheels written here, installed by uv into real venvs, without an index."""

from __future__ import annotations

import hashlib
import subprocess
import sys
import venv
from pathlib import Path

import uv

from tests.envspec.build import make_wheel

__all__ = ["ENVSPEC", "install", "lock_text", "make_venv", "modules", "site_packages"]

_ROOT = Path(__file__).parents[2]

ENVSPEC = (sys.executable, "-c", f"import sys; sys.path.insert(0, {str(_ROOT)!r}); from envspec.cli import main; sys.exit(main())")
"""The command line in a process of its own. Not by PYTHONPATH, which would also be that of the environments it reads."""


def modules(wheels: Path, **versions: str) -> None:
    """A wheel for each ``name=version``, with one module of the name that tells its version."""
    wheels.mkdir(parents=True, exist_ok=True)
    for name, version in versions.items():
        make_wheel(wheels, name, version, {f"{name}/__init__.py": f'__version__ = "{version}"\n'.encode()})


def make_venv(path: Path) -> Path:
    """A venv without pip; returns its interpreter."""
    venv.create(path, with_pip=False, symlinks=True)
    return path / "bin" / "python"


def install(python: Path, wheels: Path, *requirements: str) -> None:
    """``uv pip install`` from a folder of wheels, exactly what is named."""
    command = [uv.find_uv_bin(), "pip", "install", "-q", "--offline", "--no-index", "--no-deps", "--no-cache", "--find-links", str(wheels)]
    subprocess.run([*command, "--python", str(python), *requirements], check=True, capture_output=True, timeout=120)


def site_packages(python: Path) -> Path:
    return python.parent.parent / "lib" / f"python{sys.version_info.major}.{sys.version_info.minor}" / "site-packages"


def lock_text(wheels: Path, *pins: str) -> str:
    """A hashed requirements lock of these ``name==version`` pins, from the folder of wheels."""
    lines = []
    for pin in pins:
        name, version = pin.split("==")
        wheel = wheels / f"{name.replace('-', '_')}-{version}-py3-none-any.whl"
        lines.append(f"{pin} \\\n    --hash=sha256:{hashlib.sha256(wheel.read_bytes()).hexdigest()}")
    return "\n".join(lines) + "\n"
