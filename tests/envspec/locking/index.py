"""A folder of small wheels that uv resolves from, and stacks over it."""

from __future__ import annotations

import hashlib
import io
import zipfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from envspec.stacks import Stack, load_stack

STACK = 'version: 1\npython: ["3.12", "3.11"]\nglibc: "2.36"\n'
LINUX = "manylinux_2_28_x86_64"


def wheel_bytes(name: str, version: str, requires: Iterable[str] = (), *, tag: str = "py3-none-any", python: str | None = None, content: str = "") -> bytes:
    """A wheel; ``content`` makes another file of the same name."""
    module = name.replace("-", "_")
    info = f"{module}-{version}.dist-info"
    metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n" + "".join(f"Requires-Dist: {item}\n" for item in requires)
    extras = sorted({item.split("extra ==")[1].strip().strip("\"'") for item in requires if "extra ==" in item})
    metadata += "".join(f"Provides-Extra: {extra}\n" for extra in extras) + (f"Requires-Python: {python}\n" if python else "")
    files = {
        f"{module}/__init__.py": f"# {content}\n",
        f"{info}/METADATA": metadata,
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\n" + "".join(f"Tag: {one}\n" for one in [tag]),
        f"{info}/RECORD": "",
    }
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        for path, text in files.items():
            archive.writestr(zipfile.ZipInfo(path), text)
    return out.getvalue()


@dataclass(frozen=True)
class Index:
    """The folder of wheels, and where stacks are made."""

    wheels: Path
    stacks: Path

    def add(self, name: str, version: str, requires: Iterable[str] = (), *, tag: str = "py3-none-any", python: str | None = None, content: str = "") -> Path:
        """Put a wheel into the folder."""
        path = self.wheels / f"{name.replace('-', '_')}-{version}-{tag}.whl"
        path.write_bytes(wheel_bytes(name, version, list(requires), tag=tag, python=python, content=content))
        return path

    def stack(self, inputs: str, *, name: str = "small", settings: str = "", **roles: str) -> Stack:
        """Write a stack's folder; keywords are the inputs of roles."""
        folder = self.stacks / name
        folder.mkdir(exist_ok=True)
        text = STACK + settings + ("roles:\n" + "".join(f"  {role}: the {role}er differs\n" for role in roles) if roles else "")
        (folder / "stack.yaml").write_text(text)
        (folder / "requirements.in").write_text(inputs)
        for role, lines in roles.items():
            (folder / f"requirements.{role}.in").write_text(lines)
        return load_stack(folder)


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
