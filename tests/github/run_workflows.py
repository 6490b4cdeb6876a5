"""`nox -s workflows`: every job of every workflow, executed for real on this machine, and runs that must turn red.

Each scenario says which jobs must succeed, or which step must fail with which annotation. A green run of a scenario that must be
red is a failure, and the other way round. Without a container engine, or without what the base is made with, the scenarios that
build images are left out, with the reason.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from tests.github.act import ROOT, Annotation, Outcome, Workspace, find_act

__all__ = ["SCENARIOS", "Expected", "Scenario", "judge", "main"]

BASE = "eagle3-parity-base"
"""The base that `nox -s bootstrap-base` imports."""

SMALL = "docker/stacks/small"
SMALL_FILES: Mapping[str, str] = {
    "stack.yaml": """\
        version: 1
        description: a stack that builds in seconds
        python: ["3.11"]
        glibc: "2.36"
        smoke: [packaging, yaml, numpy, safetensors]
        """,
    "requirements.in": "packaging==26.4\npyyaml==6.0.3\nsafetensors==0.7.0\nnumpy==2.3.5\n",
}


@dataclass(frozen=True, kw_only=True)
class Expected:
    """How a run ends: all ``jobs`` with success, or ``failed`` (job, part of the step's name) with an error that fits."""

    jobs: tuple[str, ...] = ()
    failed: tuple[str, str] | None = None
    annotation: str | None = None
    file: str | None = None
    summary: str | None = None
    artifacts: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Scenario:
    """A run of one workflow in a prepared checkout. ``prepare`` gives further arguments of :meth:`Workspace.run`."""

    name: str
    workflow: str
    job: str | None = None
    prepare: Callable[[Workspace], Mapping[str, object]] = lambda workspace: {}
    expected: Expected
    settings: Mapping[str, object] = field(default_factory=dict)
    engine: bool = False
    after: Callable[[Workspace, Outcome], str | None] = lambda workspace, outcome: None


def judge(outcome: Outcome, expected: Expected, artifacts: Path) -> list[str]:
    """What is not as expected, in sentences; empty when all is."""
    wrong = []
    if expected.failed is None:
        wrong += [f"job {job} ended with {outcome.jobs.get(job, 'no result')}" for job in expected.jobs if outcome.jobs.get(job) != "success"]
        if outcome.exit_code:
            wrong.append(f"act ended with {outcome.exit_code}")
        wrong += [f"unexpected annotation: {each}" for each in outcome.annotations if each.level == "error"]
    else:
        job, step = expected.failed
        if not outcome.exit_code or outcome.jobs.get(job) != "failure":
            wrong.append(f"job {job} should have failed; it ended with {outcome.jobs.get(job, 'no result')}")
        if not any(where == job and step in name for where, name in outcome.failed_steps):
            wrong.append(f"the step {step!r} of {job} should have failed; failed were {[name for _, name in outcome.failed_steps]}")
    if expected.annotation:
        fits = [each for each in outcome.annotations if _fits(each, expected)]
        if not fits:
            wrong.append(f"no error fits {expected.annotation!r}{f' in {expected.file}' if expected.file else ''}; there were: "
                         + ("; ".join(map(str, outcome.annotations)) or "none"))  # fmt: skip
    if expected.summary and not re.search(expected.summary, outcome.summary):
        wrong.append(f"the step summary does not hold {expected.summary!r}")
    wrong += [f"artifact {name} is missing" for name in expected.artifacts if not list(artifacts.glob(name))]
    return wrong


def _fits(annotation: Annotation, expected: Expected) -> bool:
    place = expected.file is None or annotation.file == expected.file
    return annotation.level == "error" and place and re.search(expected.annotation or "", f"{annotation.title} {annotation.message}") is not None


# --- ci.yml ---------------------------------------------------------------------------------------------------------------


def _lint_fault(workspace: Workspace) -> Mapping[str, object]:
    workspace.write("envspec/broken.py", "import os\n")
    return {}


def _type_fault(workspace: Workspace) -> Mapping[str, object]:
    workspace.write("envspec/broken.py", 'number: int = "three"\n')
    return {}


def _test_fault(workspace: Workspace) -> Mapping[str, object]:
    workspace.write("tests/test_broken.py", "def test_broken() -> None:\n    assert 1 + 1 == 3\n")
    return {"environment": {"PYTEST_ADDOPTS": "-k test_broken"}, "matrix": {"python": "3.14"}}


# --- gpu.yml --------------------------------------------------------------------------------------------------------------


def _hosts(workspace: Workspace, *, broken: bool) -> Mapping[str, object]:
    """A trainer and a server, each an environment of its own; the broken server lacks speculators (here a package of that name
    that needs nothing, so that two alike hosts give no finding).
    """
    hosts = workspace.folder / "hosts"
    package = workspace.folder / "speculators"
    (package / "speculators" / "models" / "eagle3").mkdir(parents=True, exist_ok=True)
    (package / "pyproject.toml").write_text('[project]\nname = "speculators"\nversion = "0.6.0.2"\n[tool.setuptools.packages.find]\n')
    for folder in ("", "models", "models/eagle3"):
        (package / "speculators" / folder / "__init__.py").touch()
    (package / "speculators" / "models" / "eagle3" / "config.py").write_text("class Eagle3SpeculatorConfig: ...\n")
    wheels = workspace.folder / "wheels"
    _call(sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", str(wheels), str(package))
    for name in ("trainer", "server"):
        _call(sys.executable, "-m", "venv", str(hosts / name))
        if not (broken and name == "server"):
            _call(str(hosts / name / "bin" / "python"), "-m", "pip", "install", "-q", "--no-index", "--find-links", str(wheels), "speculators")
    workspace.write("launch.py", "from speculators.models.eagle3.config import Eagle3SpeculatorConfig\n\nprint(Eagle3SpeculatorConfig)\n")
    workspace.write(
        "envspec.yaml",
        textwrap.dedent(f"""\
            version: 1
            hosts:
              trainer: {{target: "local:{hosts / "trainer"}", role: train}}
              server: {{target: "local:{hosts / "server"}", role: infer}}
            roles:
              train: {{requires: [speculators]}}
              infer: {{scripts: [launch.py]}}
            """),
    )
    return {}


def _images(workspace: Workspace, *, tamper: bool) -> Mapping[str, object]:
    """Images built beforehand, as a run by hand names them; hosts that are alike."""
    _small(workspace)
    _call("./noxw", "-s", "build", "--", SMALL, "--role", "both", "--base", BASE, "--tag", "workflows/small", "--network", "host", cwd=workspace.repository)
    train, infer = "workflows/small-train", "workflows/small-infer"
    if tamper:
        container = _call("docker", "create", infer).strip()
        with tempfile.TemporaryDirectory() as folder:
            inside = "/opt/env/lib/python3.11/site-packages/packaging/version.py"
            _call("docker", "cp", f"{container}:{inside}", folder)
            file = Path(folder) / "version.py"
            file.write_text(file.read_text("utf-8") + "# edited in place\n", "utf-8")
            _call("docker", "cp", str(file), f"{container}:{inside}")
        infer = "workflows/small-tampered"
        _call("docker", "commit", container, infer)
        _call("docker", "rm", container)
    return {**_hosts(workspace, broken=False), "inputs": {"train-image": train, "infer-image": infer, "stack": SMALL}}


def _real(workspace: Workspace) -> Mapping[str, object]:
    """The shipped stack's images. Where this machine has no driver, no server is started in them: SGLang's kernels need one."""
    variables = {} if Path("/proc/driver/nvidia/version").exists() else {"variables": {"SERVE_CHECK": "off"}}
    return {**_hosts(workspace, broken=False), "inputs": {f"{role}-image": f"sglang-{role}" for role in ("train", "infer")}, **variables}


# --- images.yml -----------------------------------------------------------------------------------------------------------


def _small(workspace: Workspace) -> None:
    for name, text in SMALL_FILES.items():
        workspace.write(f"{SMALL}/{name}", textwrap.dedent(text))
    _call("./noxw", "-s", "lock", "--", SMALL, cwd=workspace.repository)
    workspace.commit("Lock the small stack")
    workspace.git("push", "-q", "origin", "main")


def _pushed(workspace: Workspace) -> Mapping[str, object]:
    _small(workspace)
    variables = {"IMAGE_REPOSITORY": f"localhost:{REGISTRY_PORT}/demo/images", "BUILD_ARGUMENTS": "--network host"}
    return {"inputs": {"stack": SMALL, "base": BASE}, "variables": variables}


def _pushed_as_said(workspace: Workspace, outcome: Outcome) -> str | None:
    """The digests of the summary are those that the registry serves."""
    references = re.findall(r"`(localhost:\S+?@sha256:[0-9a-f]{64})`", outcome.summary)
    if len(references) != 2:
        return f"the summary names {len(references)} images instead of 2"
    for reference in references:
        _call("docker", "pull", "-q", reference)
    signed = [json.loads(path.read_text("utf-8")) for path in (workspace.artifacts / "attest").glob("*.json")]
    if {f"{each['name']}@{each['digest']}" for each in signed} != set(references):
        return "what was signed is not what was pushed"
    return None


def _old_lock(workspace: Workspace) -> Mapping[str, object]:
    """A lock that its inputs, loosened since, can leave behind."""
    workspace.write(f"{SMALL}/stack.yaml", textwrap.dedent(SMALL_FILES["stack.yaml"]))
    workspace.write(f"{SMALL}/requirements.in", "packaging==26.0\n")
    _call("./noxw", "-s", "lock", "--", SMALL, cwd=workspace.repository)
    workspace.write(f"{SMALL}/requirements.in", "packaging>=26.0\n")
    workspace.git("push", "-q", "origin", "main")
    return {"inputs": {"stack": SMALL, "refresh": "true"}}


def _pull_request(workspace: Workspace, outcome: Outcome) -> str | None:
    calls = (workspace.artifacts / "gh" / "calls").read_text("utf-8")
    if "pr create" not in calls:
        return f"no pull request was opened: {calls}"
    body = (workspace.artifacts / "gh" / "body.md").read_text("utf-8")
    if not re.search(r"packaging.*26\.0", body):
        return f"the pull request does not say what changed: {body}"
    changed = workspace.git("--git-dir", str(workspace.origin), "diff", "--name-only", "main", "refresh-locks").split()
    return None if f"{SMALL}/requirements.lock" in changed else f"the branch changes {changed}"


REGISTRY_PORT = 5107

SCENARIOS = (
    Scenario(name="ci-lint", workflow="ci.yml", job="lint", expected=Expected(jobs=("lint",))),
    Scenario(name="ci-types", workflow="ci.yml", job="types", expected=Expected(jobs=("types",))),
    Scenario(name="ci-docs", workflow="ci.yml", job="docs", expected=Expected(jobs=("docs",))),
    # The whole suite is `nox -s tests`; here a part of it shows that the job works, with both sets of dependencies.
    Scenario(
        name="ci-tests", workflow="ci.yml", job="tests", settings={"environment": {"PYTEST_ADDOPTS": "-k 'test_snapshot or test_wiring'"}},
        expected=Expected(jobs=("tests",)),
    ),
    Scenario(
        name="ci-images", workflow="ci.yml", job="images", settings={"environment": {"PYTEST_ADDOPTS": "-k tamper"}}, engine=True,
        expected=Expected(jobs=("images",)),
    ),
    Scenario(
        name="red-lint", workflow="ci.yml", job="lint", prepare=_lint_fault,
        expected=Expected(failed=("lint", "Code"), annotation="F401|unused", file="envspec/broken.py"),
    ),
    Scenario(
        name="red-types", workflow="ci.yml", job="types", prepare=_type_fault,
        expected=Expected(failed=("types", "Check the types"), annotation="assignment .*Incompatible types", file="envspec/broken.py"),
    ),
    Scenario(
        name="red-tests", workflow="ci.yml", job="tests", prepare=_test_fault,
        expected=Expected(failed=("tests", "Run the tests"), annotation="test_broken|AssertionError", file="tests/test_broken.py"),
    ),
    Scenario(
        name="gpu-hosts", workflow="gpu.yml", job="hosts", prepare=lambda workspace: _hosts(workspace, broken=False),
        expected=Expected(jobs=("hosts",), summary="server", artifacts=("diff-env/envspec.json", "diff-env/envspec.sarif", "diff-env/envspec.junit")),
    ),
    Scenario(
        name="red-speculators", workflow="gpu.yml", prepare=lambda workspace: _hosts(workspace, broken=True),
        expected=Expected(
            failed=("hosts", "Compare the declared hosts"), annotation=r"EP101 .*speculators", file="launch.py", summary="speculators",
            artifacts=("diff-env/envspec.json",),
        ),
    ),
    Scenario(
        name="red-tampered", workflow="gpu.yml", prepare=lambda workspace: _images(workspace, tamper=True), engine=True,
        expected=Expected(failed=("images", "Both images hold one environment"), annotation=r"EP208 packaging .*changed after installation"),
    ),
    Scenario(
        # The small stack has no torch: verified and smoke-tested, it stops at the preflight of the evaluation, before any weight is read.
        name="red-no-torch", workflow="gpu.yml", prepare=lambda workspace: _images(workspace, tamper=False), engine=True,
        expected=Expected(failed=("images", "Evaluate the drafter in the image"), annotation="torch|standalone-test"),
    ),
    Scenario(name="images-build", workflow="images.yml", job="build", prepare=_pushed, engine=True, after=_pushed_as_said,
             expected=Expected(jobs=("build",), artifacts=("statements-small/statements/train.json", "statements-small/statements/infer.json"))),
    Scenario(name="images-refresh", workflow="images.yml", job="refresh", prepare=_old_lock, after=_pull_request, expected=Expected(jobs=("refresh",))),
    Scenario(
        name="gpu-real", workflow="gpu.yml", prepare=_real, engine=True,
        expected=Expected(jobs=("hosts", "images"), summary="cceptance length", artifacts=("standalone-test/report.json", "standalone-test/report.html")),
    ),
)  # fmt: skip


def _call(*command: str, cwd: Path | None = None) -> str:
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)} ended with {done.returncode}: {(done.stderr or done.stdout).strip()[-2000:]}")
    return done.stdout


def _missing(scenario: Scenario) -> str | None:
    """Why a scenario cannot run on this machine."""
    if not scenario.engine:
        return None
    if shutil.which("docker") is None or subprocess.run(["docker", "version"], capture_output=True, check=False).returncode:
        return "no container engine answers"
    if scenario.name == "gpu-real":
        found = subprocess.run(["docker", "image", "inspect", "sglang-infer"], capture_output=True, check=False)
        return "the sglang images are not built; `nox -s build` builds them" if found.returncode else None
    if scenario.name == "images-build" and shutil.which("docker-registry") is None:
        return "there is no docker-registry to push to (Debian: apt-get install docker-registry)"
    if scenario.name != "ci-images" and subprocess.run(["docker", "image", "inspect", BASE], capture_output=True, check=False).returncode:
        return f"there is no base {BASE}; `nox -s bootstrap-base` makes it"
    return None


@contextmanager
def _registry(folder: Path) -> Iterator[None]:
    """A registry of this machine, for as long as the run takes."""
    program = shutil.which("docker-registry")
    if program is None:
        yield
        return
    settings = folder / "registry.yml"
    settings.write_text(
        f"version: 0.1\nlog: {{level: error, accesslog: {{disabled: true}}}}\nstorage: {{filesystem: {{rootdirectory: {folder / 'registry'}}}}}\n"
        f"http: {{addr: '127.0.0.1:{REGISTRY_PORT}'}}\n"
    )
    process = subprocess.Popen([program, "serve", str(settings)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        for _ in range(50):
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", REGISTRY_PORT)) == 0:
                    break
            time.sleep(0.1)
        yield
    finally:
        process.terminate()
        process.wait()


def run(scenario: Scenario, folder: Path, *, show: bool) -> list[str]:
    """Run one scenario and say what is not as expected."""
    workspace = Workspace(folder)
    settings = dict(scenario.settings)
    for name, value in scenario.prepare(workspace).items():
        settings[name] = {**settings.get(name, {}), **value} if isinstance(value, Mapping) else value  # type: ignore[dict-item]
    with _registry(folder):
        outcome = workspace.run(scenario.workflow, job=scenario.job, show=show, **settings)  # type: ignore[arg-type]
        wrong = judge(outcome, scenario.expected, workspace.artifacts)
        if not wrong and (complaint := scenario.after(workspace, outcome)):
            wrong = [complaint]
    for each in outcome.annotations:
        print(f"      {each}")
    if wrong and not show:
        print(textwrap.indent("".join(outcome.log.splitlines(keepends=True)[-60:]), "    | "))
    return wrong


def main(argv: list[str] | None = None) -> int:
    """Exit code 0 when every scenario ended as it must, 1 when one did not, 2 for wrong use."""
    parser = argparse.ArgumentParser(prog="nox -s workflows -- run", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("scenarios", nargs="*", metavar="SCENARIO", help="which (default: all)")
    parser.add_argument("--list", action="store_true", help="list them and stop")
    parser.add_argument("--show", action="store_true", help="show the jobs' output")
    parser.add_argument("--keep", metavar="DIR", help="keep checkouts, logs and artifacts there")
    arguments = parser.parse_args(argv)
    known = {scenario.name: scenario for scenario in SCENARIOS}
    if arguments.list:
        print("\n".join(known))
        return 0
    if unknown := [name for name in arguments.scenarios if name not in known]:
        parser.error(f"there is no scenario {unknown[0]!r}; they are {', '.join(known)}")
    if find_act() is None:
        parser.error("act is not installed; `nox -s workflows` brings it")
    os.chdir(ROOT)
    failed, skipped = [], []
    for scenario in [known[name] for name in arguments.scenarios] or list(SCENARIOS):
        if reason := _missing(scenario):
            skipped.append(scenario.name)
            print(f"skip  {scenario.name}: {reason}", flush=True)
            continue
        print(f"run   {scenario.name} ({scenario.workflow})", flush=True)
        started = time.monotonic()
        folder = Path(arguments.keep or tempfile.mkdtemp(prefix="workflows.")) / scenario.name
        try:
            shutil.rmtree(folder, ignore_errors=True)
            wrong = run(scenario, folder, show=arguments.show)
        except RuntimeError as error:
            wrong = [f"could not be prepared: {error}"]
        if not arguments.keep:
            shutil.rmtree(folder.parent, ignore_errors=True)
        print(f"{'FAIL' if wrong else 'ok  '}  {scenario.name}: {time.monotonic() - started:.0f} s", flush=True)
        for sentence in wrong:
            print(f"      {sentence}", flush=True)
        failed += [scenario.name] if wrong else []
    print(f"{'failed: ' + ', '.join(failed) if failed else 'every run ended as it must'}{'; left out: ' + ', '.join(skipped) if skipped else ''}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
