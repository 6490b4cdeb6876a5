"""Runs a workflow's jobs for real with ``act``, on this machine, and tells what GitHub would have shown.

The checkout is copied (what git tracks and what it does not ignore) into a repository of its own with a bare ``origin``. Actions
of other repositories are replaced by the small ones in ``actions/``; problem matchers are applied as GitHub's runner does.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import yaml

__all__ = ["ROOT", "Annotation", "Outcome", "Workspace", "annotate", "find_act", "load_matchers"]

ROOT = Path(__file__).parents[2]
HERE = Path(__file__).parent
LABELS = ("self-hosted", "linux", "x64", "gpu", "ubuntu-latest")
_USES = re.compile(r"uses: (?P<action>[\w-]+/[\w.-]+)@(?P<commit>[0-9a-f]{40})")
_CONTROL = re.compile(r"^::(?P<level>error|warning|notice)(?: (?P<properties>.*?))?::(?P<message>.*)$")


@dataclass(frozen=True, kw_only=True)
class Annotation:
    """What GitHub would show at a file's line, or at the job where there is none."""

    level: str
    message: str
    title: str = ""
    file: str = ""
    line: int | None = None

    def __str__(self) -> str:
        place = f" {self.file}{f':{self.line}' if self.line else ''}" if self.file else ""
        return f"{self.level}{place}{f' [{self.title}]' if self.title else ''} {self.message}".replace("\n", " ")


@dataclass(kw_only=True)
class Outcome:
    """A run of ``act``. ``jobs`` and ``failed_steps`` are by job id; the summary is of all steps."""

    exit_code: int
    jobs: dict[str, str] = field(default_factory=dict)
    failed_steps: list[tuple[str, str]] = field(default_factory=list)
    steps: list[tuple[str, str, str]] = field(default_factory=list)
    annotations: list[Annotation] = field(default_factory=list)
    summary: str = ""
    log: str = ""


def find_act() -> str | None:
    """``act`` beside the running interpreter, else on the PATH."""
    beside = Path(sys.executable).parent / "act"
    return str(beside) if beside.exists() else shutil.which("act")


def _unescape(text: str) -> str:
    for code, plain in (("%0D", "\r"), ("%0A", "\n"), ("%3A", ":"), ("%2C", ","), ("%25", "%")):
        text = text.replace(code, plain)
    return text


def load_matchers(path: Path) -> list[dict[str, object]]:
    """The matchers of one file. Only those of a single pattern are used here.

    Raises:
        ValueError: a matcher has more than one pattern.
    """
    matchers: list[dict[str, object]] = json.loads(path.read_text("utf-8"))["problemMatcher"]
    if any(len(matcher["pattern"]) != 1 for matcher in matchers):  # type: ignore[arg-type]
        raise ValueError(f"{path}: a matcher of several lines")
    return matchers


def annotate(line: str, matchers: Sequence[Mapping[str, object]]) -> Annotation | None:
    """What the runner makes of a line of output: the first matcher that fits wins.

    Colours stay: the runner means to remove them, but its pattern (``\\x0033\\[``, in .NET a NUL and ``33[``) matches none.
    """
    text = line.rstrip("\r\n")
    for matcher in matchers:
        (pattern,) = matcher["pattern"]  # type: ignore[misc]
        found = re.search(pattern["regexp"], text)
        if not found:
            continue

        def group(name: str, found: re.Match[str] = found, pattern: Mapping[str, object] = pattern) -> str:
            number = pattern.get(name)
            return (found.group(number) or "") if isinstance(number, int) else ""

        return Annotation(
            level=group("severity") or str(matcher.get("severity", "error")),
            message=group("message"),
            title=group("code"),
            file=re.sub(r"^/.*/hostexecutor/", "", group("file")),
            line=int(group("line")) if group("line") else None,
        )
    return None


class Workspace:
    """A repository of its own in ``folder`` with a bare origin beside it, and a place for artifacts."""

    def __init__(self, folder: Path, source: Path = ROOT) -> None:
        self.folder, self.repository = folder, folder / "repository"
        self.artifacts, self.origin = folder / "artifacts", folder / "origin.git"
        self.repository.mkdir(parents=True)
        self.artifacts.mkdir()
        names = subprocess.run(["git", "ls-files", "-co", "--exclude-standard", "-z"], cwd=source, capture_output=True, check=True).stdout
        for name in names.decode().split("\0"):
            if name and (source / name).is_file():
                target = self.repository / name
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(source / name, target)
        self.git("init", "-q", "-b", "main")
        self.commit("Start")
        subprocess.run(["git", "init", "-q", "--bare", "-b", "main", str(self.origin)], check=True)
        self.git("remote", "add", "origin", str(self.origin))
        self.git("push", "-q", "origin", "main")

    def git(self, *arguments: str) -> str:
        done = subprocess.run(["git", *arguments], cwd=self.repository, capture_output=True, text=True, check=True)
        return done.stdout

    def commit(self, subject: str) -> None:
        self.git("add", "-A")
        self.git("-c", "user.name=demo", "-c", "user.email=demo@example", "commit", "-q", "--allow-empty", "-m", subject)

    def write(self, name: str, text: str) -> None:
        """Write a file of the repository and commit it."""
        path = self.repository / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, "utf-8")
        self.commit(f"Write {name}")

    def _stand_ins(self, workflow: Path) -> list[str]:
        files = [workflow, *(self.repository / ".github" / "actions").glob("*/action.yml")]
        out = []
        for action, commit in sorted({match.groups() for file in files for match in _USES.finditer(file.read_text("utf-8"))}):
            folder = HERE / "actions" / action.split("/")[1]
            if folder.is_dir():  # checkout is act's own doing
                out += ["--local-repository", f"https://github.com/{action}@{commit}={folder}"]
            elif action != "actions/checkout":
                raise ValueError(f"{workflow.name} uses {action}, for which there is no stand-in in tests/github/actions")
        return out

    def run(
        self,
        workflow: str,
        *,
        event: str = "workflow_dispatch",
        job: str | None = None,
        inputs: Mapping[str, str] | None = None,
        variables: Mapping[str, str] | None = None,
        environment: Mapping[str, str] | None = None,
        matrix: Mapping[str, str] | None = None,
        payload: Mapping[str, object] | None = None,
        show: bool = False,
        timeout: float = 3600,
    ) -> Outcome:
        """Run a workflow of the repository (``ci.yml``), or one job of it with those it needs.

        Raises:
            FileNotFoundError: ``act`` is not installed.
            ValueError: the workflow uses an action that has no stand-in.
        """
        act = find_act()
        if act is None:
            raise FileNotFoundError("act is not installed; `nox -s workflows` brings it")
        path = self.repository / ".github" / "workflows" / workflow
        event_file = self.folder / "event.json"
        given = {**yaml_defaults(path), **(inputs or {})} if event == "workflow_dispatch" else {}
        event_file.write_text(json.dumps({"repository": {"fork": False}, "inputs": given, **(payload or {})}), "utf-8")
        command = [act, event, "-W", str(path), "-C", str(self.repository), "-e", str(event_file), "--json", "--pull=false", "--no-cache-server"]
        command += ["--concurrent-jobs", "1", "--action-cache-path", str(self.folder / "act")]
        # Nothing of the person who runs this is read: no .env, no .secrets, no .vars of the working directory.
        for name in ("env-file", "secret-file", "var-file", "input-file"):
            command += [f"--{name}", os.devnull]
        command += ["--secret", "GITHUB_TOKEN=demo"]  # GitHub gives every job one; the registry of this machine takes any
        for label in LABELS:
            command += ["-P", f"{label}=-self-hosted"]
        for name, value in {"ARTIFACTS": str(self.artifacts), **(environment or {})}.items():
            command += ["--env", f"{name}={value}"]
        for name, value in (variables or {}).items():
            command += ["--var", f"{name}={value}"]
        for name, value in (matrix or {}).items():
            command += ["--matrix", f"{name}:{value}"]
        command += ["-j", job] if job else []
        command += self._stand_ins(path)
        return self._follow(command, show, timeout)

    def _follow(self, command: Sequence[str], show: bool, timeout: float) -> Outcome:
        environment = {**os.environ, "PATH": f"{HERE / 'bin'}{os.pathsep}{os.environ['PATH']}"}
        # The session's own environment must not reach the jobs: they make theirs.
        for name in ("VIRTUAL_ENV", "PYTHONPATH", "NOX_CURRENT_SESSION", "PYTEST_ADDOPTS", "GITHUB_STEP_SUMMARY", "GITHUB_ACTIONS"):
            environment.pop(name, None)
        log = self.folder / "log.jsonl"
        outcome = Outcome(exit_code=-1)
        matchers: dict[str, list[dict[str, object]]] = {}
        with log.open("w", encoding="utf-8") as file:
            process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment, stdin=subprocess.DEVNULL)
            assert process.stdout is not None
            try:
                for line in process.stdout:
                    file.write(line)
                    self._read(line, outcome, matchers, show)
                outcome.exit_code = process.wait(timeout)
            finally:
                if process.poll() is None:
                    process.terminate()
                    process.wait()
        return outcome

    def _read(self, line: str, outcome: Outcome, matchers: dict[str, list[dict[str, object]]], show: bool) -> None:
        try:
            record = json.loads(line)
        except ValueError:
            record = {"msg": line}
        message, job = str(record.get("msg", "")), str(record.get("jobID", ""))
        outcome.log += message if message.endswith("\n") else message + "\n"
        if show:
            sys.stdout.write("    " + message.rstrip("\n") + "\n")
            sys.stdout.flush()
        if "jobResult" in record:
            outcome.jobs[job] = record["jobResult"]
        # A composite action's own steps report before it does, with a longer id.
        if "stepResult" in record and record.get("stage") == "Main" and len(record.get("stepID", [])) == 1:
            outcome.steps.append((job, str(record["step"]), str(record["stepResult"])))
            if record["stepResult"] == "failure":
                outcome.failed_steps.append((job, str(record["step"])))
        if record.get("command") == "summary":
            outcome.summary += str(record.get("content", ""))
        raw = str(record.get("raw", ""))
        control = _CONTROL.match(raw.strip())
        if control:
            properties = dict(part.split("=", 1) for part in (control["properties"] or "").split(",") if "=" in part)
            outcome.annotations.append(
                Annotation(
                    level=control["level"],
                    message=_unescape(control["message"]),
                    title=_unescape(properties.get("title", "")),
                    # As the runner does: a path inside the checkout is shown from its root.
                    file=re.sub(r"^/.*/hostexecutor/", "", _unescape(properties.get("file", ""))),
                    line=int(properties["line"]) if properties.get("line", "").isdigit() else None,
                )
            )
            return
        added = re.search(r"::add-matcher::(\S+)", raw or message)
        if added:
            # From the copy, as the runner reads it from the checkout.
            matchers.setdefault(job, []).extend(load_matchers(self.repository / added[1]))
        elif record.get("raw_output") and (found := annotate(message, matchers.get(job, []))):
            outcome.annotations.append(found)


def yaml_defaults(workflow: Path) -> dict[str, str]:
    """The defaults of a workflow's inputs, which GitHub fills in for a run by hand. (YAML reads the key ``on`` as true.)"""
    document = yaml.safe_load(workflow.read_text("utf-8"))
    inputs = ((document[True] or {}).get("workflow_dispatch") or {}).get("inputs") or {}
    return {name: each["default"] for name, each in inputs.items() if "default" in each}
