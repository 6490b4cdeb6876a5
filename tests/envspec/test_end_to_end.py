"""The commands as a user runs them: real environments, real locks, a real sshd on loopback."""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import shlex
import signal
import subprocess
import time
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from envspec.cli import main
from envspec.commands.inputs import host_names
from envspec.findings import Report
from envspec.output import Sink
from envspec.snapshot import load
from envspec.spec import load_spec
from tests.envspec.build import python_env
from tests.envspec.conftest import SshServer
from tests.envspec.report import schemas
from tests.envspec.worlds import ENVSPEC, install, lock_text, make_venv, modules, site_packages

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "docs" / "envspec" / "example" / "launch.py"


@dataclass(frozen=True)
class World:
    """A folder with wheels, a lock and three environments: ``same`` and ``twin`` follow the lock, ``other`` does not."""

    folder: Path

    def envspec(self, *arguments: str, ssh: SshServer | None = None, **environment: str) -> subprocess.CompletedProcess[str]:
        """One command, in this process for speed; the environment variables and the folder are the command's own."""
        stdout, stderr = (io.TextIOWrapper(io.BytesIO(), "utf-8", write_through=True) for _ in range(2))
        env = {**python_env(), **({"ENVSPEC_SSH": ssh.command} if ssh else {}), **environment}
        for name in {"GITHUB_ACTIONS", "GITHUB_STEP_SUMMARY", "COLUMNS"} - environment.keys():
            env.pop(name, None)
        with pytest.MonkeyPatch.context() as patch:
            patch.chdir(self.folder)
            for name in os.environ.keys() - env.keys():
                patch.delenv(name)
            for name, value in env.items():
                patch.setenv(name, value)
            try:
                with contextlib.redirect_stdout(stdout), contextlib.redirect_stderr(stderr):
                    code = main(arguments, Sink(stdout=stdout, stderr=stderr, environment=os.environ))
            except SystemExit as left:
                code = left.code if isinstance(left.code, int) else 1
        printed = [stream.buffer.getvalue().decode() for stream in (stdout, stderr)]  # type: ignore[attr-defined]
        return subprocess.CompletedProcess(arguments, code, *printed)

    def process(self, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        """The same in a process of its own."""
        env = {**python_env(), **environment}
        return subprocess.run([*ENVSPEC, *arguments], cwd=self.folder, env=env, capture_output=True, text=True, check=False)

    def report(self, *arguments: str, ssh: SshServer | None = None, code: int) -> Report:
        """The JSON report of a command that must end with this exit code."""
        result = self.envspec(*arguments, "--format", "json", ssh=ssh)
        assert result.returncode == code, result.stdout + result.stderr
        document = json.loads(result.stdout)
        schemas.check_findings(document)
        return Report.from_dict(document)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    folder = tmp_path_factory.mktemp("world")
    wheels = folder / "wheels"
    modules(wheels, alpha="1.0", beta="2.0")
    modules(wheels, beta="2.1", speculators="0.3.0")
    for name in ("same", "twin"):
        install(make_venv(folder / name), wheels, "alpha==1.0", "beta==2.0", "speculators==0.3.0")
    install(make_venv(folder / "other"), wheels, "alpha==1.0", "beta==2.1")
    (folder / "requirements.lock").write_text(lock_text(wheels, "alpha==1.0", "beta==2.0", "speculators==0.3.0"))
    (folder / "uses.py").write_text("def go():\n    import speculators\n\n\ngo()\n")
    return World(folder)


@pytest.fixture
def hang_is_ended() -> Iterator[None]:
    yield
    # Nothing may be left behind by a host that was given up.
    left = subprocess.run(["pgrep", "-P", str(os.getpid()), "-f", "ssh .*hang"], capture_output=True, text=True, check=False)
    assert left.stdout == ""


def codes(report: Report) -> list[tuple[str, str, tuple[str, ...]]]:
    return [(finding.code, finding.subject, finding.hosts) for finding in report.findings if finding.counts]


# capture


def test_capture_one_host_to_standard_output(world: World) -> None:
    result = world.envspec("capture", "local:same")
    assert (result.returncode, result.stderr) == (0, "")
    names = {dist["name"] for dist in json.loads(result.stdout)["distributions"]}
    assert names == {"alpha", "beta", "speculators"}


def test_capture_many_hosts_into_a_directory_reports_those_that_fail(world: World, ssh_server: SshServer) -> None:
    result = world.envspec("capture", "local:same", "gpu-a:~/env one", "refused:", "-o", "snapshots/", ssh=ssh_server)
    assert result.returncode == 3
    assert [line.split(":")[0] for line in result.stdout.splitlines()] == ["snapshots/local_same.json", "snapshots/gpu-a_env_one.json"]
    assert re.fullmatch(r"envspec: refused:: ssh could not connect: .*refused.*\n", result.stderr)
    remote = load(world.folder / "snapshots" / "gpu-a_env_one.json")
    assert {"alpha", "beta-kit"} <= set(remote.installed())
    assert remote.capture.transport == "ssh"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("capture", "local", "local:same"), "2 hosts were named; give a directory for their snapshots with -o DIR"),
        (("capture", "lock:requirements.lock"), "'lock:requirements.lock' is a lock, which is no host to capture"),
        (("capture", "--no-spec"), "no host was named and there is no envspec.yaml here; name hosts, such as `local`, or write a spec with `envspec init`"),
        (("capture", "local", "--timeout", "0"), "--timeout 0: give a number of seconds above 0 and at most 604,800 (a week)"),
        (("capture", "local", "--jobs", "0"), "--jobs 0: give a number of at least 1"),
        (("diff", "local:same"), "only local:same was named; name another host, or a lock with --lock FILE"),
        (("diff", "lock:requirements.lock"), "only locks were named; name a host to compare them with"),
        (("diff", "local:same", "local:same"), "the host 'local:same' is named 2 times; give each a role of its own, such as train=local:same"),
        (("diff", "local:same", "local:twin", "--reference", "local:other"), "--reference 'local:other' is not one of the hosts compared: local:same, local:twin"),
        (("diff", "local:same", "--lock", "missing.lock"), None),
        (("diff", "local:same", "local:twin", "--output", "json=nowhere/a.json"), "cannot write nowhere/a.json: there is no directory nowhere"),
        (("diff", "local:same", "local:twin", "--output", "yaml=a"), None),
        (("diff", "local:same", "local:twin", "--spec", "missing.yaml"), None),
        (("diff", "local:same", "local:twin", "--spec", "a", "--no-spec"), "--spec and --no-spec exclude each other"),
        (("diff", "local:same", "local:twin", "--baseline", "missing.json"), None),
        (("diff", "-oProxyCommand=id", "local:same"), None),
        (("preflight", "uses.py", "--on", "-oProxyCommand=id"), None),
        (("preflight", "missing.py", "--on", "local:same"), "There is no script missing.py: check the path."),
        (("preflight", "--on", "local:same"), "no script was named and the spec names none for these hosts; write `envspec preflight SCRIPT --on HOST`"),
        (("plan", "local:same"), "no lock was named and the spec names none for this host; give one with --lock FILE"),
        (("plan", "lock:requirements.lock", "--lock", "requirements.lock"), "'lock:requirements.lock' is a lock, which is no host to plan for"),
    ],
)  # fmt: skip
def test_a_mistake_is_one_sentence_and_exit_code_2(world: World, arguments: tuple[str, ...], message: str | None) -> None:
    result = world.envspec(*arguments)
    assert (result.returncode, result.stdout) == (2, ""), result.stdout + result.stderr
    last = result.stderr.splitlines()[-1]
    if message is not None:
        assert result.stderr == f"envspec: {message}\n"
    else:
        assert last.startswith("envspec")
    assert not (world.folder / "nowhere").exists()


# preflight


def test_preflight_finds_the_missing_package_and_says_where_it_is(world: World) -> None:
    report = world.report("preflight", "uses.py", "--on", "local:same", "local:other", "--lock", "requirements.lock", code=1)
    assert codes(report) == [("EP101", "speculators", ("local:other",))]
    (finding,) = report.findings
    assert finding.severity == "breaks"
    assert finding.location is not None
    assert (finding.location.file, finding.location.line) == ("uses.py", 2)
    assert "0.3.0" in finding.what
    assert "requirements.lock" in finding.what.lower()
    words = shlex.split(finding.fix)
    assert words[:3] == ["uv", "pip", "install"]
    assert words[-1] == "speculators==0.3.0"


def test_the_mend_mends(world: World) -> None:
    fresh = make_venv(world.folder / "mended")
    install(fresh, world.folder / "wheels", "alpha==1.0")
    (finding,) = world.report("preflight", "uses.py", "--on", "local:mended", "--lock", "requirements.lock", code=1).findings
    words = shlex.split(finding.fix)
    import uv

    offline = ["--offline", "--no-index", "--no-cache", "--find-links", str(world.folder / "wheels")]
    subprocess.run([uv.find_uv_bin(), *words[1:3], "-q", *offline, *words[3:]], check=True, cwd=world.folder, capture_output=True)
    assert world.report("preflight", "uses.py", "--on", "local:mended", code=0).findings == ()


def test_preflight_over_ssh_while_one_host_hangs_and_one_refuses(world: World, ssh_server: SshServer, hang_is_ended: None) -> None:
    on = ["gpu-a:~/env one", "hang:~/env one", "refused:", "local:same"]
    report = world.report("preflight", "uses.py", "--on", *on, "--timeout", "3", ssh=ssh_server, code=3)
    assert [(host.label, host.status) for host in report.hosts] == [
        ("gpu-a:~/env one", "ok"),
        ("hang:~/env one", "failed"),
        ("refused:", "failed"),
        ("local:same", "ok"),
    ]
    assert report.hosts[1].reason == "no answer within 3 s"
    assert ("EP101", "speculators", ("gpu-a:~/env one",)) in codes(report)


def test_preflight_runs_nothing_of_the_script_or_the_packages(world: World) -> None:
    touched = world.folder / "touched"
    (world.folder / "loud.py").write_text(f"open({str(touched)!r}, 'w')\nimport trap\nimport trap.inner\n")
    trapped = make_venv(world.folder / "trapped")
    package = site_packages(trapped) / "trap"
    package.mkdir()
    (package / "__init__.py").write_text(f"open({str(touched)!r}, 'w')\n")
    (package / "inner.py").write_text(f"open({str(touched)!r}, 'w')\n")
    report = world.report("preflight", "loud.py", "--on", "local:trapped", code=0)
    assert report.findings == ()
    assert not touched.exists()


def test_preflight_of_a_saved_snapshot(world: World) -> None:
    assert world.envspec("capture", "local:other", "-o", "other.json").returncode == 0
    report = world.report("preflight", "uses.py", "--on", "other.json", code=1)
    assert codes(report) == [("EP101", "speculators", ("other.json",))]


# plan


def test_plan_prints_the_smallest_install_and_runs_nothing(world: World) -> None:
    before = sorted(path.name for path in site_packages(world.folder / "other" / "bin" / "python").iterdir())
    result = world.envspec("plan", "local:other", "--lock", "requirements.lock")
    assert result.returncode == 0
    assert "#   ~ beta 2.1 -> 2.0 (downgrade)" in result.stdout
    assert "#   + speculators 0.3.0" in result.stdout
    assert "alpha" not in result.stdout
    for_script = json.loads(world.envspec("plan", "local:other", "--lock", "requirements.lock", "--for", "uses.py", "--format", "json").stdout)
    assert [step["name"] for step in for_script["steps"]] == ["speculators"]
    assert sorted(path.name for path in site_packages(world.folder / "other" / "bin" / "python").iterdir()) == before


def test_plan_of_a_host_at_the_lock_is_empty(world: World) -> None:
    result = world.envspec("plan", "local:same", "--lock", "requirements.lock")
    assert (result.returncode, result.stdout) == (0, "# local:same has what requirements.lock asks for: nothing to install.\n")


# diff


def test_two_identical_environments_have_no_finding(world: World) -> None:
    report = world.report("diff", "train=local:same", "infer=local:twin", "--lock", "requirements.lock", "--deep", code=0)
    assert report.findings == ()
    assert report.rows == ()
    assert report.hosts[0].digest == report.hosts[1].digest
    assert (report.counts.packages, report.counts.matched, report.counts.differed) == (3, 3, 0)


def test_a_lock_is_the_reference_and_each_difference_one_finding(world: World) -> None:
    report = world.report("diff", "local:same", "local:other", "--lock", "requirements.lock", code=1)
    assert codes(report) == [("EP201", "speculators", ("local:other",)), ("EP202", "beta", ("local:other",))]
    assert sorted(row.key for row in report.rows) == ["beta", "speculators"]


def test_fail_on_decides_the_exit_code(world: World) -> None:
    modules(world.folder / "wheels", gamma="1.0")
    only_results = world.folder / "results"
    install(make_venv(only_results), world.folder / "wheels", "alpha==1.0", "beta==2.1", "speculators==0.3.0")
    for fail_on, code in (("breaks", 0), ("results", 1), ("any", 1), ("never", 0)):
        report = world.report("diff", "local:results", "--lock", "requirements.lock", "--fail-on", fail_on, code=code)
        assert codes(report) == [("EP202", "beta", ("local:results",))]


def test_a_hot_patched_file_is_named_with_deep(world: World) -> None:
    patched = make_venv(world.folder / "patched")
    install(patched, world.folder / "wheels", "alpha==1.0", "beta==2.0", "speculators==0.3.0")
    file = site_packages(patched) / "speculators" / "__init__.py"
    file.unlink()  # uv links files out of its cache; the patch must not reach the other environments
    file.write_text("__version__ = '0.3.0'\nPATCHED = True\n")
    assert world.report("diff", "local:patched", "local:same", code=0).findings == ()
    for deep in ("--deep", "--deep=speculators"):
        report = world.report("diff", "local:patched", "local:same", deep, "--fail-on", "results", code=1)
        assert codes(report) == [("EP208", "speculators", ("local:patched",))]
        assert "speculators/__init__.py" in report.findings[0].what
    assert world.report("diff", "local:patched", "local:same", "--deep=alpha", code=0).findings == ()


def test_what_deep_asks_for_and_nobody_verified_is_told(world: World) -> None:
    assert world.envspec("capture", "local:twin", "-o", "bare.json").returncode == 0
    assert world.envspec("capture", "local:twin", "--deep=alpha", "-o", "alpha.json").returncode == 0
    for deep, hosts, expected in (
        ("--deep=nosuchpkg", ("local:same", "local:twin"), {"not all that --deep asks for was verified: nosuchpkg is not installed": ("local:same", "local:twin")}),
        ("--deep", ("local:same", "bare.json"), {"nothing was verified: it was captured without --deep": ("bare.json",)}),
        ("--deep=Alpha", ("local:same", "alpha.json"), {}),
        ("--deep=beta", ("local:same", "alpha.json"), {"not all that --deep asks for was verified: beta was left out when it was captured": ("alpha.json",)}),
    ):
        report = world.report("diff", *hosts, deep, code=0)
        assert {item.what: item.hosts for item in report.findings} == expected
        assert {item.code for item in report.findings} <= {"EP902"}
        concerned = {host for names in expected.values() for host in names}
        assert {host.label for host in report.hosts if host.status == "partial"} == concerned
    assert world.report("diff", "bare.json", "local:same", code=0).findings == ()


def test_a_host_that_hangs_does_not_hold_up_the_others(world: World, ssh_server: SshServer, hang_is_ended: None) -> None:
    report = world.report("diff", "local:same", "local:other", "hang:~/env one", "--timeout", "3", ssh=ssh_server, code=3)
    assert {host.label: host.status for host in report.hosts} == {"local:same": "ok", "local:other": "ok", "hang:~/env one": "failed"}
    found = codes(report)
    assert ("EP901", "hang:~/env one", ("hang:~/env one",)) in found
    assert any(subject == "beta" for _, subject, _ in found)
    text = world.envspec("diff", "local:same", "local:other", "hang:~/env one", "--timeout", "3", ssh=ssh_server)
    assert text.returncode == 3
    assert "no answer within 3 s" in text.stdout
    assert "beta" in text.stdout


def test_every_output_at_once_and_github_by_itself(world: World) -> None:
    out = world.folder / "out"
    out.mkdir()
    formats = {"json": "a.json", "jsonl": "a.jsonl", "markdown": "a.md", "sarif": "a.sarif", "junit": "a.xml", "github": "a.log", "text": "a.txt"}
    options = [word for name, file in formats.items() for word in ("--output", f"{name}={out / file}")]
    summary = out / "summary.md"
    result = world.process(
        "diff", "local:same", "local:other", "--lock", "requirements.lock", *options, GITHUB_ACTIONS="true", GITHUB_STEP_SUMMARY=str(summary)
    )
    assert result.returncode == 1
    assert sorted(path.name for path in out.iterdir()) == sorted([*formats.values(), "summary.md"])
    schemas.check_findings(json.loads((out / "a.json").read_text()))
    sarif: dict[str, Any] = json.loads((out / "a.sarif").read_text())
    schemas.check_sarif(sarif)
    artifact = sarif["runs"][0]["results"][0]["locations"][0]["physicalLocation"]["artifactLocation"]
    assert artifact["uri"] == "requirements.lock"
    schemas.check_junit((out / "a.xml").read_text())
    assert ET.fromstring((out / "a.xml").read_text().encode()).get("failures") == "1"
    assert (out / "a.txt").read_text() == result.stdout
    assert result.stderr == (out / "a.log").read_text()
    assert result.stderr.startswith("::error file=requirements.lock")
    assert summary.read_text() == (out / "a.md").read_text()


def test_a_baseline_lets_a_fleet_adopt_the_gate(world: World) -> None:
    hosts = ["local:same", "local:other", "--lock", "requirements.lock"]
    report = world.report("diff", *hosts, "--write-baseline", "baseline.json", code=0)
    assert all(finding.ignored for finding in report.findings)
    assert world.report("diff", *hosts, "--baseline", "baseline.json", "--fail-on", "any", code=0).counts.ignored == 2
    worse = make_venv(world.folder / "worse")
    install(worse, world.folder / "wheels", "alpha==1.0")
    after = world.report("diff", "local:same", "local:worse", "--lock", "requirements.lock", "--baseline", "baseline.json", code=1)
    assert ("EP201", "beta", ("local:worse",)) in codes(after)


def test_a_hostile_environment_prints_no_escape_and_no_command(world: World) -> None:
    hostile = make_venv(world.folder / "hostile")
    site = site_packages(hostile)
    for number, (name, version) in enumerate(
        [("evil\x1b[2J", "1.0"), ("evil", "1\n::error::forged"), ("ev|il`", "1"), ("::error::x", "2"), ("$(touch pwned)", "1;touch pwned")]
    ):
        info = site / f"evil{number}-1.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n\n")
    (site / "evil.pth").write_text(f"import os; os.system('touch {world.folder}/pwned')\n")
    for name in ("text", "json", "markdown", "sarif", "junit", "jsonl"):
        result = world.envspec("diff", "local:same", "local:hostile", "--lock", "requirements.lock", "--format", name, "--verbose")
        assert result.returncode == 1
        assert not [char for char in result.stdout if not char.isprintable() and char != "\n"]
        assert not re.search(r"(?m)^\s*::|##\[", result.stdout)
    assert not (world.folder / "pwned").exists()


# the spec


def test_the_spec_names_hosts_roles_locks_and_scripts(world: World) -> None:
    folder = world.folder / "project"
    folder.mkdir()
    (folder / "envspec.yaml").write_text(
        "hosts:\n  box: {target: ../same, role: train}\n  gpu: {target: 'local:../other', role: infer}\n"
        "roles:\n  train: {lock: ../requirements.lock}\n  infer: {scripts: [../uses.py]}\n".replace("../same", "local:../same")
    )
    inside = World(folder)
    report = inside.report("diff", code=1)
    assert [(host.label, host.role) for host in report.hosts] == [("box", "train"), ("gpu", "infer")]
    assert ("EP101", "speculators", ("gpu",)) in codes(report)
    without = inside.report(
        "diff", "--no-preflight", code=1 if any(code != "EP101" and severity == "breaks" for code, severity in _severities(report)) else 0
    )
    assert not any(code.startswith("EP1") for code, _, _ in codes(without))
    alone = inside.report("preflight", code=1)
    assert codes(alone) == [("EP101", "speculators", ("gpu",))]
    elsewhere = World(world.folder).report("diff", "--spec", "project/envspec.yaml", code=1)
    assert codes(elsewhere) == codes(report)


def _severities(report: Report) -> list[tuple[str, str]]:
    return [(finding.code, finding.severity) for finding in report.findings if finding.counts]


def test_init_writes_a_spec_that_loads_and_works(world: World) -> None:
    folder = world.folder / "started"
    folder.mkdir()
    (folder / "requirements.lock").write_bytes((world.folder / "requirements.lock").read_bytes())
    (folder / "scripts").mkdir()
    (folder / "scripts" / "train_draft.py").write_text("import alpha\n\nif __name__ == '__main__':\n    pass\n")
    inside = World(folder)
    first = inside.envspec("init", "train=local:../same", "infer=local:../twin")
    assert (first.returncode, first.stderr) == (0, "")
    text = (folder / "envspec.yaml").read_text()
    assert "scripts/train_draft.py" in text
    assert "requirements.lock" in text
    assert inside.report("diff", code=0).findings == ()
    second = inside.envspec("init", "local")
    assert (second.returncode, second.stderr) == (2, "envspec: envspec.yaml exists already; --force overwrites it\n")
    assert (folder / "envspec.yaml").read_text() == text


def test_init_writes_paths_as_the_directory_of_the_spec_sees_them(world: World) -> None:
    folder = world.folder / "begun"
    (folder / "ci").mkdir(parents=True)
    (folder / "requirements.lock").write_bytes((world.folder / "requirements.lock").read_bytes())
    (folder / "train.py").write_text("import alpha\n\nif __name__ == '__main__':\n    pass\n")
    inside = World(folder)
    first = inside.envspec("init", "train=local:../same", "infer=local:../twin", "--spec", "ci/spec.yaml")
    assert (first.returncode, first.stderr) == (0, "")
    assert "../train.py" in (folder / "ci" / "spec.yaml").read_text()
    (folder / "bare").symlink_to(world.folder / "same")
    assert inside.envspec("init", "local:bare", "--spec", "bare.yaml").returncode == 0
    assert "local:./bare" in (folder / "bare.yaml").read_text()
    assert load_spec(folder / "bare.yaml").hosts.keys() == {"bare"}
    assert load_spec(folder / "ci" / "spec.yaml").hosts.keys() == {"same", "twin"}
    named = ("local", "local:../same/bin/python3", "local:~/ml/.venv", "user@gpu-01.example:env")
    assert inside.envspec("init", *named, "--spec", "named.yaml").returncode == 0
    assert load_spec(folder / "named.yaml").hosts.keys() == {"local", "same", "venv", "gpu-01.example"}
    report = inside.report("diff", "--spec", "ci/spec.yaml", code=0)
    assert report.findings == ()
    assert len(report.hosts) == 2


def test_a_mistake_in_the_spec_names_line_and_key(world: World) -> None:
    (world.folder / "bad.yaml").write_text("version: 1\nhosts:\n  a: local\nroles:\n  infer:\n    script: [a.py]\n")
    result = world.envspec("diff", "--spec", "bad.yaml")
    assert result.returncode == 2
    assert result.stderr.startswith("envspec: bad.yaml:6: roles.infer.script: there is no such key; did you mean 'scripts'?")


def test_one_host_without_a_lock_is_held_against_the_spec(world: World) -> None:
    folder = world.folder / "alone"
    folder.mkdir()
    (folder / "envspec.yaml").write_text("hosts: {box: {target: 'local:../same', role: infer}}\nroles: {infer: {requires: [alpha, gamma]}}\n")
    report = World(folder).report("diff", code=1)
    assert [(code, subject) for code, subject, _ in codes(report)] == [("EP219", "gamma")]


def test_the_project_s_own_spec_loads_and_so_does_all_that_it_shows_in_comments(tmp_path: Path) -> None:
    text = (ROOT / "envspec.yaml").read_text(encoding="utf-8")
    spec = load_spec(ROOT / "envspec.yaml")
    assert set(spec.roles) == {"train", "infer"}
    for name in spec.hosts:
        host_names([name], spec)
    for role in spec.roles.values():
        for script in role.scripts:
            assert script.startswith("-m ") or (ROOT / script).exists()
    shown = re.sub(r"(?m)^#  ", "  ", text)
    shown = re.sub(r"(?m)^(\s*)# (lock|baseline): ", r"\1\2: ", shown)
    shown = re.sub(r"(?m)^(declared|ignore|severity): [\[{][\]}]$", r"\1:", shown)
    (tmp_path / "envspec.yaml").write_text(shown, encoding="utf-8")
    full = load_spec(tmp_path / "envspec.yaml")
    assert set(full.hosts) == {"here", "trainer", "gpu-01"}
    assert (len(full.declared), len(full.ignores), len(full.severity)) == (1, 1, 1)
    assert full.roles["train"].lock
    assert full.roles["train"].baseline
    assert full.lock
    assert [name.kind for name in host_names(list(full.hosts), full)] == ["local", "ssh", "ssh"]


# a person at a terminal


def at_a_terminal(world: World, *arguments: str, **environment: str) -> tuple[int, str]:
    """Both streams of a command on one terminal of 100 columns."""
    import fcntl
    import pty
    import struct
    import termios

    leader, follower = pty.openpty()
    fcntl.ioctl(follower, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 100, 0, 0))
    env = {**python_env(), "TERM": "xterm", **environment}
    for name in {"NO_COLOR", "CLICOLOR_FORCE", "CLICOLOR", "COLUMNS", "GITHUB_ACTIONS"} - environment.keys():
        env.pop(name, None)
    process = subprocess.Popen([*ENVSPEC, *arguments], cwd=world.folder, env=env, stdout=follower, stderr=follower, stdin=follower)
    os.close(follower)
    shown = b""
    with contextlib.suppress(OSError):  # the other end is closed when the command has ended
        while part := os.read(leader, 65536):
            shown += part
    os.close(leader)
    return process.wait(60), shown.decode()


def test_a_terminal_gets_colour_its_width_and_a_sign_of_life(world: World) -> None:
    code, shown = at_a_terminal(world, "diff", "local:same", "local:other", "--lock", "requirements.lock")
    assert code == 1
    assert "\x1b[1;31mBreaks (1)" in shown
    assert "waiting for local:same, local:other" in shown
    assert any(80 < len(re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", line)) <= 100 for line in shown.splitlines())
    code, shown = at_a_terminal(world, "diff", "local:same", "local:other", "--lock", "requirements.lock", NO_COLOR="1")
    assert code == 1
    assert not re.search(r"\x1b\[[0-9;]*m", shown)


def test_an_interrupt_ends_the_command_at_once_and_leaves_nothing_behind(world: World, ssh_server: SshServer) -> None:
    env = {**python_env(), "ENVSPEC_SSH": ssh_server.command}
    command = [*ENVSPEC, "diff", "local:same", "hang:~/env one", "--timeout", "90"]
    # A shell's background job ignores interrupts and hands that on; the command under test must not inherit it.
    listening = lambda: signal.signal(signal.SIGINT, signal.SIG_DFL)  # noqa: E731
    process = subprocess.Popen(
        command, cwd=world.folder, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, preexec_fn=listening
    )
    config = shlex.split(ssh_server.command)[-1]

    def waiting() -> list[str]:
        listed = subprocess.run(["pgrep", "-f", f"{config}.* hang "], capture_output=True, text=True, check=False)
        return listed.stdout.split()

    for _ in range(300):
        if waiting():
            break
        time.sleep(0.1)
    else:
        pytest.fail("the ssh to the host that hangs was never started")
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=30)
    assert (process.returncode, out, err) == (130, "", "envspec: interrupted\n")
    for _ in range(100):
        if not waiting():
            return
        time.sleep(0.1)
    pytest.fail("an ssh was left behind")


def test_a_role_can_follow_a_kept_snapshot(world: World) -> None:
    folder = world.folder / "kept"
    folder.mkdir()
    assert world.envspec("capture", "local:same", "-o", "kept/gold.json").returncode == 0
    (folder / "envspec.yaml").write_text("hosts: {box: {target: 'local:../other', role: infer}}\nroles: {infer: {baseline: gold.json}}\n")
    report = World(folder).report("diff", "--fail-on", "results", code=1)
    assert report.reference == "baseline gold.json"
    assert {subject for _, subject, _ in codes(report)} == {"beta", "speculators"}
    assert {host for _, _, hosts in codes(report) for host in hosts} <= {"box", "gold.json"}
    assert World(world.folder).report("diff", "--spec", "kept/envspec.yaml", "--fail-on", "results", code=1).rows == report.rows


def test_when_no_host_can_be_captured_that_is_still_a_report(world: World) -> None:
    report = world.report("diff", "local:/nowhere/a", "local:/nowhere/b", "--lock", "requirements.lock", code=3)
    assert [host.status for host in report.hosts] == ["failed", "failed"]
    assert [(code, subject) for code, subject, _ in codes(report)] == [("EP901", "local:/nowhere/a"), ("EP901", "local:/nowhere/b")]
    assert world.envspec("diff", "local:/nowhere/a", "local:/nowhere/b", "--fail-on", "never").returncode == 3
