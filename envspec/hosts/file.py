"""What was written down before: a snapshot, the output of ``pip inspect``, the output of ``pip freeze``."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from envspec.errors import UsageError
from envspec.hosts.interface import CaptureOptions, Host
from envspec.json import read_json
from envspec.snapshot import (
    SCHEMA,
    SECTIONS,
    Capture,
    Distribution,
    Interpreter,
    Origin,
    Section,
    Snapshot,
    SnapshotError,
    Status,
    loads,
)

__all__ = ["FileHost", "from_pip_freeze", "from_pip_inspect"]

_FORMS = "a snapshot of `envspec capture`, the JSON of `pip inspect` or the text of `pip freeze`"


class FileHost(Host):
    """A file in one of the three forms, told apart by its content."""

    transport = "file"

    def __init__(self, target: str, path: Path, label: str | None = None) -> None:
        super().__init__(target, label)
        self.path = path
        self._loaded: Snapshot | None = None

    def run_python(self, source: str, stdin_json: object, timeout: float) -> object:
        """Always fails: a file can answer only what it holds."""
        raise self.failure("it is a file, so nothing can be looked up there; name the host itself")

    def snapshot(self, options: CaptureOptions) -> Snapshot:
        """The snapshot in the file; ``options`` cannot matter any more.

        Raises:
            UsageError: the file cannot be read or is in none of the three forms.
        """
        return self.load()

    def load(self) -> Snapshot:
        """What the file holds, read once.

        Raises:
            UsageError: the file cannot be read or is in none of the three forms.
        """
        if self._loaded is None:
            try:
                data = self.path.read_bytes()
            except OSError as error:
                raise UsageError(f"cannot read {self.path}: {error.strerror or error}") from error
            snapshot = self._read(data)
            self._loaded = replace(snapshot, capture=replace(snapshot.capture, label=self.label, target=self.target))
        return self._loaded

    def _read(self, data: bytes) -> Snapshot:
        name = str(self.path)
        try:
            # what PowerShell's ">" writes begins with UTF-16's byte-order mark
            text = data.decode("utf-16" if data[:2] in (b"\xff\xfe", b"\xfe\xff") else "utf-8-sig")
        except UnicodeDecodeError as error:
            raise UsageError(f"{name} is not UTF-8 text; expected {_FORMS}") from error
        if not text.lstrip().startswith(("{", "[")):
            return from_pip_freeze(text, name)
        try:
            document = read_json(text)
        except (ValueError, RecursionError) as error:
            raise SnapshotError(f"{name} is not valid JSON ({error}); expected {_FORMS}") from error
        if isinstance(document, dict) and "schema" not in document and "installed" in document:
            return from_pip_inspect(document, name)
        return loads(document, name)


def _nothing(name: str) -> str:
    """Why a list of no package is refused: held against anything, it would pass, since what it lacks is not known."""
    return f"{name} lists no package; expected {_FORMS}"


def _sections(status: Status, reason: str) -> dict[str, Section]:
    """Every section ``unknown``, but the distributions, which are as the file tells them."""
    unknown = Section(status="unknown", reason=reason)
    return {name: Section(status=status, reason=reason) if name == "distributions" else unknown for name in SECTIONS}


def from_pip_inspect(document: Mapping[str, Any], name: str) -> Snapshot:
    """The report of ``pip inspect`` (its version 1).

    Raises:
        SnapshotError: another version, no package at all, or a value of the wrong kind; the message says where.
    """
    if document.get("version") != "1":
        raise SnapshotError(
            f"{name}: a pip inspect report of version {document.get('version')!r}; this reads version '1'"
        )
    installed = document.get("installed")
    if not isinstance(installed, list):
        raise SnapshotError(f"{name}: installed: expected a list")
    if not installed:
        raise SnapshotError(_nothing(name))
    distributions = []
    for index, item in enumerate(installed):
        where = f"{name}: installed[{index}]"
        metadata = item.get("metadata") if isinstance(item, dict) else None
        if not isinstance(metadata, dict) or not isinstance(metadata.get("name"), str):
            raise SnapshotError(f"{where}: expected an object with metadata.name")
        distributions.append(_inspected(item, metadata, where))
    environment = document.get("environment")
    markers = {key: str(value) for key, value in environment.items()} if isinstance(environment, dict) else {}
    interpreter = None
    if "python_full_version" in markers:
        interpreter = Interpreter(
            implementation=markers.get("implementation_name", "cpython"),
            version=markers["python_full_version"],
            executable="",
            prefix="",
            base_prefix="",
        )
    reason = "a pip inspect report does not hold it"
    sections = _sections("ok", "")
    sections = {key: Section(status="unknown", reason=reason) for key in sections}
    sections["distributions"] = Section(
        status="partial", reason="a pip inspect report holds no file digests and no shadowed copies"
    )
    if interpreter is not None:
        sections["interpreter"] = Section(status="partial", reason="a pip inspect report holds only the markers")
    return Snapshot(
        schema=SCHEMA,
        capture=Capture(label=name, target=name, transport="file", notes=("from pip inspect",)),
        sections=sections,
        interpreter=interpreter,
        markers=markers,
        distributions=tuple(sorted(distributions, key=lambda dist: dist.name)),
    )


def _inspected(item: Mapping[str, Any], metadata: Mapping[str, Any], where: str) -> Distribution:
    def strings(key: str) -> tuple[str, ...]:
        value = metadata.get(key) or []
        if not isinstance(value, list) or not all(isinstance(entry, str) for entry in value):
            raise SnapshotError(f"{where}.metadata.{key}: expected a list of strings")
        return tuple(value)

    location = str(item.get("metadata_location") or "")
    version = metadata.get("version")
    text = version if isinstance(version, str) else None
    origin = Origin(kind="index")
    direct = item.get("direct_url")
    if isinstance(direct, dict):
        origin = _direct_origin(direct)
    requires_python = metadata.get("requires_python")
    return Distribution(
        name=canonicalize_name(metadata["name"]),
        raw_name=metadata["name"],
        version=text,
        location=location.rpartition("/")[0],
        metadata_path=location,
        build_variant=text.partition("+")[2] or None if text else None,
        installer=item.get("installer") if isinstance(item.get("installer"), str) else None,
        requested=item.get("requested") is True,
        origin=origin,
        requires=strings("requires_dist"),
        requires_python=requires_python if isinstance(requires_python, str) else None,
        extras=strings("provides_extra"),
    )


def _direct_origin(direct: Mapping[str, Any]) -> Origin:
    url = _without_credentials(str(direct.get("url", "")))
    vcs, folder = direct.get("vcs_info"), direct.get("dir_info")
    if isinstance(vcs, dict):
        return Origin(kind="vcs", url=url, vcs=str(vcs.get("vcs")), commit=str(vcs.get("commit_id")))
    if isinstance(folder, dict):
        return Origin(kind="editable" if folder.get("editable") is True else "directory", url=url)
    return Origin(kind="archive", url=url)


def _without_credentials(url: str) -> str:
    return re.sub(r"(?<=://)[^/@\s]*@", "", url)


_EGG = re.compile(r"[#&]egg=([A-Za-z0-9._-]+)")
_EDITABLE_NOTE = re.compile(r"^# Editable\b.*\(([A-Za-z0-9._-]+)==([^()\s]+)\)")
_OPTIONS = ("-i ", "-f ", "--")
_COMMIT = re.compile(r"@([0-9a-f]{40})(?=[#&]|$)")


def from_pip_freeze(text: str, name: str) -> Snapshot:
    """The lines of ``pip freeze``: ``name==version``, ``name @ url``, ``-e url#egg=name`` and ``-e path``.

    pip writes the name and version of an editable install without a remote into a comment above its line; uv writes none,
    so there the directory's name stands for it. Options (``-i``, ``--find-links``), which ``pip freeze -r`` repeats, say
    nothing of what is installed.

    Raises:
        UsageError: a line is none of these (the message has its number), or no line names a package.
    """
    distributions: dict[str, Distribution] = {}
    note: tuple[str, str] | None = None
    guessed: list[str] = []
    for number, raw in enumerate(text.splitlines(), 1):
        line = raw.strip()
        if line.startswith("#"):
            told = _EDITABLE_NOTE.match(line)
            note = (told[1], told[2]) if told else note
            continue
        if not line or (line.startswith(_OPTIONS) and not line.startswith("--editable")):
            continue
        dist = _frozen(line, f"{name}:{number}", note)
        if dist.origin.kind == "editable" and note is None and not _EGG.search(line):
            guessed.append(dist.raw_name)
        distributions[dist.name] = dist
        note = None
    if not distributions:
        raise UsageError(_nothing(name))
    reason = "pip freeze tells names and versions only"
    if guessed:
        reason += f"; {', '.join(guessed)} is named after its directory, because an editable install's line has no name"
    sections = _sections("partial", reason)
    sections = {
        key: value if key == "distributions" else Section(status="unknown", reason="pip freeze does not tell it")
        for key, value in sections.items()
    }
    return Snapshot(
        capture=Capture(label=name, target=name, transport="file", notes=("from pip freeze",)),
        sections=sections,
        distributions=tuple(distributions[key] for key in sorted(distributions)),
    )


def _frozen(line: str, where: str, note: tuple[str, str] | None = None) -> Distribution:
    editable = line.startswith(("-e ", "--editable"))
    if editable:
        url = re.split(r"[ =]", line, maxsplit=1)[-1].strip()
        egg = _EGG.search(url)
        if note is not None:
            return _named(note[0], note[1], Origin(kind="editable", url=_without_credentials(url), commit=_commit(url)))
        label = egg.group(1) if egg else _last_part(url)
        if not label:
            raise UsageError(f"{where}: an editable line without a name: {line[:80]!r}")
        return _named(label, None, Origin(kind="editable", url=_without_credentials(url), commit=_commit(url)))
    try:
        requirement = Requirement(line)
    except InvalidRequirement as error:
        raise UsageError(f"{where}: {line[:80]!r} is not a line of pip freeze; expected {_FORMS}") from error
    if requirement.url:
        kind = "vcs" if requirement.url.startswith(("git+", "hg+", "svn+", "bzr+")) else "archive"
        origin = Origin(kind="vcs", url=_without_credentials(requirement.url), commit=_commit(requirement.url))
        return _named(requirement.name, None, origin if kind == "vcs" else replace(origin, kind="archive"))
    pins = [pin for pin in requirement.specifier if pin.operator in ("==", "===") and not pin.version.endswith(".*")]
    if len(pins) != 1 or len(list(requirement.specifier)) != 1:
        raise UsageError(f"{where}: {line[:80]!r} does not pin one version; expected {_FORMS}")
    return _named(requirement.name, pins[0].version, Origin(kind="unknown"))


def _last_part(url: str) -> str:
    """The last part of a URL's path; empty for what is no URL."""
    try:
        return Path(urlsplit(url).path).name
    except ValueError:
        return ""


def _commit(url: str) -> str | None:
    match = _COMMIT.search(url)
    return match.group(1) if match else None


def _named(label: str, version: str | None, origin: Origin) -> Distribution:
    return Distribution(
        name=canonicalize_name(label),
        raw_name=label,
        version=version,
        location="",
        metadata_path="",
        build_variant=version.partition("+")[2] or None if version else None,
        origin=origin,
    )
