"""Small images made through the engine's API, in about a second each: an environment of hand-made wheels on a base with a Python."""

from __future__ import annotations

import contextlib
import io
import json
import posixpath
import re
import tarfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest

from envspec.chunks import ChunkFile
from envspec.hosts import CaptureOptions
from envspec.images import labels
from envspec.images.digest import below, entries_of_tar, environment_digest
from envspec.images.inspect import stopped
from envspec.images.read import image_host
from tests.envspec.build import wheel_files
from tests.envspec.engine import BASE, PREFIX, running_engine

HASH = "sha256:" + "0" * 64
ENVIRONMENT = ("PATH=/opt/env/bin:/usr/bin:/bin", "VIRTUAL_ENV=/opt/env", "PYTHONNOUSERSITE=1", "OMP_NUM_THREADS=1")
SPECULATORS = {"speculators/__init__.py": b"VERSION = '0.7.0'\n", "speculators/models/__init__.py": b"", "speculators/models/eagle3.py": b"CONFIG = 1\n"}
PACKAGES: Mapping[str, tuple[str, Mapping[str, bytes]]] = {
    "alpha": ("1.0", {"alpha/__init__.py": b"A = 1\n", "alpha/core.py": b"def value():\n    return 1\n"}),
    "speculators": ("0.7.0", SPECULATORS),
}
STACK = b"""version: 1
python: ["3.11"]
glibc: "2.36"
smoke:
  - alpha.core
  - speculators.models.eagle3
  - {import: needs_gpu, needs: driver}
"""


def lock_text(packages: Mapping[str, tuple[str, Mapping[str, bytes]]] = PACKAGES) -> bytes:
    return "".join(f"{name}=={version} \\\n    --hash={HASH}\n" for name, (version, _) in sorted(packages.items())).encode()


def archive(files: Mapping[str, bytes | str | None]) -> bytes:
    """A tar of files, of links (text) and directories (None), with every directory above them."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        done: set[str] = set()

        def directory(path: str) -> None:
            if path and path not in done:
                directory(posixpath.dirname(path))
                done.add(path)
                info = tarfile.TarInfo(path)
                info.type, info.mode = tarfile.DIRTYPE, 0o755
                tar.addfile(info)

        for path, data in files.items():
            directory(posixpath.dirname(path) if data is not None else path)
            if data is None:
                continue
            info = tarfile.TarInfo(path)
            if isinstance(data, str):
                info.type, info.linkname = tarfile.SYMTYPE, data
                tar.addfile(info)
            else:
                info.size = len(data)
                tar.addfile(info, io.BytesIO(data))
    return buffer.getvalue()


@dataclass
class Workshop:
    """Makes images and removes them again."""

    client: Any
    base: str
    python: str
    made: list[str] = field(default_factory=list)

    @property
    def site(self) -> str:
        return f"opt/env/lib/python{self.python}/site-packages"

    def commit(self, base: str, files: Mapping[str, bytes | str | None], name: str, *, config: Mapping[str, Any] | None = None, script: str | None = None) -> str:
        """A new image: ``base`` with files, after a shell script run as root, with parts of the configuration set. The engine keeps the
        variables and labels that ``config`` does not name."""
        about = self.client.images.get(base).attrs["Config"] or {}
        kept = {key: about.get(key) for key in ("Env", "User", "WorkingDir", "Labels", "Entrypoint", "Cmd")}
        command = {"entrypoint": ["/bin/sh", "-c"], "command": [script], "user": "0"} if script else {}
        with stopped(self.client, base, **command) as container:
            if files:
                assert container.put_archive("/", archive(files))
            if script:
                container.start()
                assert container.wait()["StatusCode"] == 0, container.logs()
            # `Entrypoint: []` and not None: the container's own one, made for reading, must not be kept.
            container.commit(repository=name, tag="latest", conf={**kept, "Entrypoint": kept["Entrypoint"] or [], "Cmd": kept["Cmd"] or [], **(config or {})})
        self.made += [f"{name}:latest", self.client.images.get(name).id]
        return name

    def environment(self, packages: Mapping[str, tuple[str, Mapping[str, bytes]]]) -> dict[str, bytes | str | None]:
        files: dict[str, bytes | str | None] = {
            "opt/env/bin/python3": "/usr/bin/python3",
            "opt/env/bin/python": "python3",
            "opt/env/pyvenv.cfg": b"home = /usr/bin\ninclude-system-site-packages = false\n",
        }
        for name, (version, contents) in packages.items():
            files.update({f"{self.site}/{path}": data for path, data in wheel_files(name, version, contents).items()})
        return files

    def build(
        self,
        name: str,
        *,
        role: str = "train",
        base: str | None = None,
        packages: Mapping[str, tuple[str, Mapping[str, bytes]]] = PACKAGES,
        lock: bytes | None = None,
        stack: bytes = STACK,
        base_digest: str | None = None,
        config: Mapping[str, Any] | None = None,
        more: Mapping[str, bytes] | None = None,
    ) -> str:
        """An image as the project's build leaves it: environment, records, snapshot, labels."""
        lock = lock_text(packages) if lock is None else lock
        base = base or self.base
        files = {**self.environment(packages), "home/app/.keep": b"", labels.LOCK[1:]: lock, labels.STACK_FILE[1:]: stack, **(more or {})}
        self.commit(base, files, f"{name}-unlabelled", config={"Env": list(ENVIRONMENT), "User": "1000", "WorkingDir": "/home/app", **(config or {})})
        host = image_host(f"{name}-unlabelled")
        baked = json.dumps(host.snapshot(CaptureOptions(deep=("*",))).to_dict()).encode()
        with stopped(self.client, f"{name}-unlabelled") as container:
            digest = environment_digest(below(entries_of_tar(container.get_archive("/opt/env")[0]), "env"))
        said = {
            labels.STACK: "small",
            labels.ROLE: role,
            labels.LOCK_DIGEST: labels.sha256_of(lock),
            labels.SNAPSHOT_DIGEST: labels.sha256_of(baked),
            labels.BASE_DIGEST: base_digest or self.client.images.get(base).id,
            labels.ENVIRONMENT_DIGEST: digest,
        }
        return self.commit(f"{name}-unlabelled", {labels.SNAPSHOT[1:]: baked}, name, config={"Labels": said, "Cmd": [role]})

    def relabel(self, image: str, name: str, **labels_: str) -> str:
        """The same layers and another label."""
        old = self.client.images.get(image).attrs["Config"]["Labels"]
        return self.commit(image, {}, name, config={"Labels": {**old, **labels_}})

    def clean(self) -> None:
        for name in reversed(self.made):
            with contextlib.suppress(Exception):
                self.client.images.remove(name, force=True)


@pytest.fixture(scope="session")
def workshop() -> Iterator[Workshop]:
    """A running engine with the base image; skips with the reason."""
    with running_engine() as client:
        slim = f"{PREFIX}-slim"
        with stopped(client, BASE) as container:
            client.api.import_image_from_data(_without_ballast(container.export()), repository=slim)
        ask = "import sys; print('%d.%d' % sys.version_info[:2])"
        told = client.containers.run(slim, ["-c", ask], entrypoint=["/usr/bin/python3"], remove=True, network_mode="none")
        shop = Workshop(client, slim, told.decode().strip(), [slim])
        try:
            yield shop
        finally:
            shop.clean()


_BALLAST = re.compile(r"(var/(lib/apt|cache)|usr/share/(locale|doc|man|perl|python-wheels|zoneinfo)|usr/bin/perl|dev|proc|sys)(/|$)|usr/bin/perl|.*/__pycache__/")


def _without_ballast(chunks: Iterator[bytes]) -> bytes:
    """A file system without what no Python needs, so that reading an image takes a second less."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=ChunkFile(chunks), mode="r|") as old, tarfile.open(fileobj=buffer, mode="w") as new:  # type: ignore[call-overload]
        for member in old:
            if not _BALLAST.match(member.name.removeprefix("./")):
                new.addfile(member, old.extractfile(member) if member.isreg() else None)
    return buffer.getvalue()


@dataclass(frozen=True, kw_only=True)
class Pair:
    """Two images of one build: the same layers but for what is started and the labels."""

    train: str
    infer: str


@pytest.fixture(scope="session")
def pair(workshop: Workshop) -> Pair:
    train = workshop.build(f"{PREFIX}-train")
    infer = workshop.relabel(train, f"{PREFIX}-infer", **{labels.ROLE: "infer"})
    return Pair(train=train, infer=infer)


Tamper = Callable[[Workshop, Pair], str]
