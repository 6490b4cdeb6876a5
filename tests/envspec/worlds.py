"""Real environments made by the tests: wheels written here, installed by uv into real venvs, without an index."""

from __future__ import annotations

import base64
import hashlib
import subprocess
import sys
import venv
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import uv

__all__ = ["install", "lock_text", "make_venv", "make_wheel", "site_packages"]


def make_wheel(
    directory: Path,
    name: str,
    version: str,
    files: Mapping[str, str] | None = None,
    requires: Sequence[str] = (),
) -> Path:
    """A pure wheel with these files (by default one module of the name). The same arguments give the same bytes."""
    stem = name.replace("-", "_")
    public = version.partition("+")[0]
    info = f"{stem}-{version}.dist-info"
    content = {
        **(files if files is not None else {f"{stem}/__init__.py": f'__version__ = "{public}"\n'}),
        f"{info}/METADATA": "\n".join(
            ["Metadata-Version: 2.1", f"Name: {name}", f"Version: {version}", *(f"Requires-Dist: {text}" for text in requires), "", ""]
        ),
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    rows = [f"{path},sha256={_digest(text)},{len(text.encode())}" for path, text in content.items()]
    content[f"{info}/RECORD"] = "\n".join([*rows, f"{info}/RECORD,,", ""])
    directory.mkdir(parents=True, exist_ok=True)
    wheel = directory / f"{stem}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for path, text in content.items():
            archive.writestr(zipfile.ZipInfo(path, date_time=(2026, 1, 1, 0, 0, 0)), text)
    return wheel


def _digest(text: str) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=").decode()


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
