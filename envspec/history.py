"""In which versions modules came and went, where a version explains a failed import. Read from the releases' own files."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from packaging.version import InvalidVersion, Version

__all__ = ["DISTRIBUTION_NAMES", "STDLIB_ADDED", "STDLIB_REMOVED", "Layout", "has_module", "layout_of", "stdlib_change"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Layout:
    """From which version a distribution has a module, whose parent was a single file before: `before` says which.

    `distribution` is a canonical name.
    """

    module: str
    distribution: str
    since: str
    before: str

    @property
    def parent(self) -> str:
        """What is a module before `since` and a package from then on."""
        return self.module.rpartition(".")[0]

    def has(self, version: str | None) -> bool | None:
        """Whether a version of the distribution has the module; None where there is none or it is no PEP 440 version."""
        try:
            return None if version is None else Version(version) >= Version(self.since)
        except InvalidVersion:
            return None


_LAYOUTS: Final = (
    # speculators 0.1.0 and 0.2.0 ship models/eagle3.py; 0.3.0 made it the package models/eagle3/.
    Layout(
        module="speculators.models.eagle3.config",
        distribution="speculators",
        since="0.3.0",
        before="models/eagle3.py is a plain module",
    ),
    Layout(
        module="speculators.models.eagle3.core",
        distribution="speculators",
        since="0.3.0",
        before="models/eagle3.py is a plain module",
    ),
)

STDLIB_ADDED: Final = {
    "zoneinfo": (3, 9),
    "graphlib": (3, 9),
    "tomllib": (3, 11),
    "wsgiref.types": (3, 11),
    "importlib.resources.abc": (3, 11),
    "annotationlib": (3, 14),
    "compression": (3, 14),
    "concurrent.interpreters": (3, 14),
    "string.templatelib": (3, 14),
}

STDLIB_REMOVED: Final = {
    "parser": (3, 10),
    "formatter": (3, 10),
    "symbol": (3, 10),
    "macpath": (3, 8),
    "binhex": (3, 11),
    "asynchat": (3, 12),
    "asyncore": (3, 12),
    "distutils": (3, 12),
    "imp": (3, 12),
    "smtpd": (3, 12),
    "aifc": (3, 13),
    "audioop": (3, 13),
    "cgi": (3, 13),
    "cgitb": (3, 13),
    "chunk": (3, 13),
    "crypt": (3, 13),
    "imghdr": (3, 13),
    "lib2to3": (3, 13),
    "mailcap": (3, 13),
    "msilib": (3, 13),
    "nis": (3, 13),
    "nntplib": (3, 13),
    "ossaudiodev": (3, 13),
    "pipes": (3, 13),
    "sndhdr": (3, 13),
    "spwd": (3, 13),
    "sunau": (3, 13),
    "telnetlib": (3, 13),
    "uu": (3, 13),
    "xdrlib": (3, 13),
}

DISTRIBUTION_NAMES: Final[dict[str, tuple[str, ...]]] = {
    "Crypto": ("pycryptodome",),
    "OpenSSL": ("pyopenssl",),
    "PIL": ("pillow",),
    "attr": ("attrs",),
    "bs4": ("beautifulsoup4",),
    "cuda": ("cuda-python", "cuda-bindings"),
    "cv2": ("opencv-python", "opencv-python-headless", "opencv-contrib-python"),
    "dateutil": ("python-dateutil",),
    "dotenv": ("python-dotenv",),
    "faiss": ("faiss-cpu", "faiss-gpu"),
    "fitz": ("pymupdf",),
    "flash_attn": ("flash-attn",),
    "flashinfer": ("flashinfer-python",),
    "git": ("gitpython",),
    "google.protobuf": ("protobuf",),
    "hydra": ("hydra-core",),
    "jose": ("python-jose",),
    "jwt": ("pyjwt",),
    "magic": ("python-magic",),
    "multipart": ("python-multipart",),
    "pkg_resources": ("setuptools",),
    "pynvml": ("nvidia-ml-py",),
    "pythoncom": ("pywin32",),
    "serial": ("pyserial",),
    "sgl_kernel": ("sgl-kernel", "sglang-kernel"),
    "skimage": ("scikit-image",),
    "sklearn": ("scikit-learn",),
    "usb": ("pyusb",),
    "yaml": ("pyyaml",),
    "zmq": ("pyzmq",),
}
"""Distributions whose import name is not theirs: the last resort before a guess, after what other hosts show."""


def layout_of(module: str) -> Layout | None:
    """What is known of the versions that have a module."""
    return next((layout for layout in _LAYOUTS if module == layout.module or module.startswith(layout.module + ".")), None)


def has_module(module: str, distribution: str, version: str) -> bool | None:
    """Whether a version of a distribution (a canonical name) has a module, None where the layouts do not tell."""
    for layout in _LAYOUTS:
        if layout.distribution != distribution or layout.has(version) is None:
            continue
        if layout.module.startswith(module + "."):
            return True  # a file before, a package since
        if module == layout.module or module.startswith(layout.module + "."):
            return False if not layout.has(version) else (module == layout.module or None)
    return None


def stdlib_change(module: str, python: tuple[int, int]) -> str | None:
    """Why a standard-library module is not in a Python version; None for other modules."""
    parts = module.split(".")
    for i in range(len(parts), 0, -1):
        name = ".".join(parts[:i])
        added, removed = STDLIB_ADDED.get(name), STDLIB_REMOVED.get(name)
        if added is not None and python < added:
            return f"it came with Python {added[0]}.{added[1]}"
        if removed is not None and python >= removed:
            return f"Python {removed[0]}.{removed[1]} removed it"
    return None
