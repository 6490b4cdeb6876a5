"""envspec's speed against its peers, in one run: each line has our figure, the peer's and the ratio.

    python -m bench.envspec_bench [--python PATH] [--parts capture diff ssh] [--rounds N] [--json FILE]

capture  PATH's environment (best one of about 190 distributions) against `pip inspect` and `uv pip list`; both are checked to
         list the same packages. Ours reads far more than either: files' digests, ELF sections, driver, libraries, variables.
diff     100 snapshots of 250 packages in 10 groups, against one `diff` of two sorted package lists for each snapshot.
ssh      64 hosts over an sshd that the benchmark starts on loopback, against as many as there are cores.

Times are medians of N rounds, taken in turn so that a slow moment hits both sides. On a busy machine trust processor time.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import resource
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from packaging.utils import canonicalize_name

from envspec.capture import capture_all
from envspec.compare import LabelledSnapshot, compare
from envspec.hosts import CaptureOptions, Host, open_host, parse_host
from envspec.snapshot import Distribution, Snapshot

PACKAGES, SNAPSHOTS, GROUPS = 250, 100, 10
SSH_HOSTS = 64


@dataclass(frozen=True)
class Times:
    """Median seconds of the wall clock, and of processor time in this process and its ended children."""

    wall: float
    cpu: float


def in_turn(rounds: int, **contestants: Callable[[], object]) -> dict[str, Times]:
    """The times of each contestant; one untimed round first, to warm the file cache."""
    walls: dict[str, list[float]] = {name: [] for name in contestants}
    cpus: dict[str, list[float]] = {name: [] for name in contestants}
    for number in range(rounds + 1):
        for name, work in contestants.items():
            start, busy = time.perf_counter(), _cpu()
            work()
            if number:
                walls[name].append(time.perf_counter() - start)
                cpus[name].append(_cpu() - busy)
    return {name: Times(statistics.median(walls[name]), statistics.median(cpus[name])) for name in contestants}


def _cpu() -> float:
    used = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(each.ru_utime + each.ru_stime for each in used)


def run(*command: str, environment: Mapping[str, str] | None = None) -> str:
    """The standard output of a command that must succeed."""
    env = {**os.environ, **(environment or {})}
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=300, env=env).stdout


class Figures:
    """Prints each figure as it is known and keeps them all."""

    def __init__(self) -> None:
        self.all: list[dict[str, object]] = []

    def add(self, what: str, ours: Times, peer: str, theirs: Times, *, cpu: bool = True) -> None:
        """One line; ``cpu`` is False where the work is done by processes that are not our children."""
        line = f"{what:<40} {ours.wall:7.3f} s   {peer:<22} {theirs.wall:7.3f} s   ratio {theirs.wall / ours.wall:6.2f}"
        record: dict[str, object] = {"what": what, "ours_s": ours.wall, "peer": peer, "peer_s": theirs.wall, "ratio": theirs.wall / ours.wall}
        if cpu:
            line += f"   processor time {ours.cpu:.3f} s, {theirs.cpu:.3f} s, ratio {theirs.cpu / ours.cpu:.2f}"
            record |= {"ours_cpu_s": ours.cpu, "peer_cpu_s": theirs.cpu, "cpu_ratio": theirs.cpu / ours.cpu}
        print(line, flush=True)
        self.all.append(record)

    def say(self, text: str) -> None:
        print(text, flush=True)
        self.all.append({"note": text})


def bench_capture(python: str, rounds: int, figures: Figures) -> None:
    """One environment, read by us, by `pip inspect` (the environment's own pip, else this one's) and by `uv pip list`."""
    host = open_host(parse_host(f"local:{python}"))
    snapshot = host.snapshot(CaptureOptions())
    inspect = [python, "-m", "pip", "inspect"] if _has_pip(python) else [sys.executable, "-m", "pip", "--python", python, "inspect"]
    uv = shutil.which("uv", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}")
    quiet = {"PIP_DISABLE_PIP_VERSION_CHECK": "1", "PYTHONWARNINGS": "ignore"}
    contestants: dict[str, Callable[[], object]] = {
        "ours": lambda: host.snapshot(CaptureOptions()),
        "start": lambda: run(python, "-I", "-S", "-c", "pass"),
        "pip": lambda: run(*inspect, environment=quiet),
    }
    ours = {dist.name for dist in snapshot.distributions}
    listed = {"pip inspect": {canonicalize_name(item["metadata"]["name"]) for item in json.loads(run(*inspect, environment=quiet))["installed"]}}
    if uv:
        command = [uv, "pip", "list", "--format", "json", "--python", python]
        contestants["uv"] = lambda: run(*command)
        listed["uv pip list"] = {canonicalize_name(item["name"]) for item in json.loads(run(*command))}
    for peer, names in listed.items():
        different = sorted(ours ^ names)
        figures.say(
            f"packages: ours {len(ours)}, {peer} {len(names)}: " + ("the same" if not different else f"different in {', '.join(different[:10])}")
        )
    times = in_turn(rounds, **contestants)
    what = f"capture of {len(ours)} distributions"
    figures.add(what, times["ours"], "pip inspect", times["pip"])
    if uv:
        figures.add(what, times["ours"], "uv pip list", times["uv"])
    ours_t, start = times["ours"], times["start"]
    figures.say(
        f"capture beyond the interpreter's start ({start.wall:.3f} s): {ours_t.wall - start.wall:.3f} s, "
        f"{ours_t.cpu - start.cpu:.3f} s of processor time; extension modules with something to tell: {len(snapshot.extensions)}"
    )


def _has_pip(python: str) -> bool:
    return subprocess.run([python, "-c", "import pip"], capture_output=True, check=False, timeout=60).returncode == 0


def fleet(base: Snapshot, seed: int = 1) -> list[LabelledSnapshot]:
    """SNAPSHOTS hosts in GROUPS groups, each group with a few packages of its own versions."""
    random_source = random.Random(seed)
    pool = [
        Distribution(
            name=f"package-{number:03}",
            raw_name=f"package-{number:03}",
            version=f"1.{number}.0",
            location="/opt/env/lib/python3.12/site-packages",
            metadata_path=f"/opt/env/lib/python3.12/site-packages/package_{number:03}-1.{number}.0.dist-info",
            installer="uv",
            tags=("py3-none-any",),
            record="ok",
            files=40,
            content=f"sha256:{number:064x}",
            modules=(f"package_{number:03}",),
            requires=tuple(f"package-{other:03}>=1" for other in random_source.sample(range(PACKAGES), 4)),
        )
        for number in range(PACKAGES)
    ]
    variants = []
    for group in range(GROUPS):
        chosen = set(random_source.sample(range(PACKAGES), 3)) if group else set()
        dists = tuple(
            replace(dist, version=f"2.{group}", content=f"sha256:{group:064x}") if number in chosen else dist for number, dist in enumerate(pool)
        )
        variants.append(replace(base, distributions=dists))
    out = []
    for number in range(SNAPSHOTS):
        variant = variants[number % GROUPS]
        label = f"gpu-{number:03}"
        out.append(
            LabelledSnapshot(
                label=label, role="train" if number % 2 else "infer", snapshot=replace(variant, capture=replace(variant.capture, label=label))
            )
        )
    return out


def bench_diff(rounds: int, figures: Figures) -> None:
    """Comparison alone, from snapshots in memory to the finished report."""
    base = open_host(parse_host("local")).snapshot(CaptureOptions())
    hosts = fleet(replace(base, extensions=(), libraries=(), torch=None, shared_files=(), leftovers=()))
    report = compare(hosts)
    figures.say(f"diff: {len(report.hosts)} hosts, {len(report.groups)} groups, {len(report.rows)} rows, {len(report.findings)} findings")
    with tempfile.TemporaryDirectory() as folder:
        lists = []
        for host in hosts:
            path = Path(folder) / f"{host.label}.txt"
            assert host.snapshot is not None
            path.write_text("".join(f"{dist.name}=={dist.version}\n" for dist in host.snapshot.distributions))
            lists.append(str(path))

        def peer() -> None:
            for path in lists:
                subprocess.run(["diff", lists[0], path], stdout=subprocess.DEVNULL, check=False)

        times = in_turn(rounds, ours=lambda: compare(hosts), peer=peer)
    figures.add(f"diff of {SNAPSHOTS} snapshots x {PACKAGES} packages", times["ours"], f"{SNAPSHOTS} x diff", times["peer"])


@contextlib.contextmanager
def sshd() -> Iterator[tuple[int, str]]:
    """A server on loopback for the current user; yields its port and the ssh command that reaches it."""
    server = next((path for path in ("/usr/sbin/sshd", "/usr/local/sbin/sshd") if Path(path).exists()), None)
    if server is None:
        raise FileNotFoundError("there is no sshd here")
    with tempfile.TemporaryDirectory(prefix="envspec-sshd-") as folder:
        place = Path(folder)
        for key in ("host", "user"):
            run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(place / key))
        shutil.copy(place / "user.pub", place / "authorized_keys")
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = int(probe.getsockname()[1])
        (place / "sshd_config").write_text(
            f"ListenAddress 127.0.0.1\nPort {port}\nHostKey {place}/host\nAuthorizedKeysFile {place}/authorized_keys\nPidFile none\n"
            "StrictModes no\nUsePAM no\nPasswordAuthentication no\nPermitRootLogin prohibit-password\nMaxStartups 200\nPrintMotd no\n"
        )
        if os.geteuid() == 0:
            Path("/run/sshd").mkdir(exist_ok=True)
        process = subprocess.Popen([server, "-D", "-f", str(place / "sshd_config")], stderr=subprocess.DEVNULL)
        ssh = f"ssh -F none -i {place}/user -o IdentitiesOnly=yes -o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null -o LogLevel=ERROR"
        try:
            for _ in range(100):
                with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
                    break
                time.sleep(0.05)
            yield port, ssh
        finally:
            process.terminate()
            process.wait(10)


def bench_ssh(python: str, rounds: int, figures: Figures) -> None:
    """All hosts in one concurrent capture. Here every host runs on the cores of this machine, so the floor is the work itself."""
    cores = os.cpu_count() or 1
    with sshd() as (port, ssh):
        os.environ["ENVSPEC_SSH"] = ssh
        try:
            hosts: list[Host] = [open_host(parse_host(f"ssh://127.0.0.1:{port}{python}")) for _ in range(SSH_HOSTS)]

            def capture(number: int) -> None:
                for outcome in capture_all(hosts[:number], CaptureOptions()):
                    if outcome.error:
                        raise outcome.error

            def in_batches() -> None:
                for _ in range(SSH_HOSTS // cores):
                    capture(cores)

            times = in_turn(rounds, many=lambda: capture(SSH_HOSTS), few=lambda: capture(cores), batches=in_batches)
        finally:
            del os.environ["ENVSPEC_SSH"]
    figures.add(f"ssh capture of {SSH_HOSTS} hosts at once", times["many"], f"{cores} hosts (one a core)", times["few"], cpu=False)
    figures.say(
        f"{SSH_HOSTS} at once take {times['many'].wall / times['few'].wall:.1f} x the time of {cores}; {times['many'].wall / SSH_HOSTS * 1000:.0f} ms a host"
    )
    figures.add(f"ssh capture of {SSH_HOSTS} hosts at once", times["many"], f"{cores} at a time", times["batches"], cpu=False)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--python", default=sys.executable, help="the environment to capture (default: this one)")
    parser.add_argument("--parts", nargs="+", choices=("capture", "diff", "ssh"), default=["capture", "diff", "ssh"])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path, help="also write the figures here")
    arguments = parser.parse_args()
    # Not resolved: a venv's interpreter is a link to the one it was made from.
    python = str(Path(arguments.python).absolute())
    figures = Figures()
    if "capture" in arguments.parts:
        bench_capture(python, arguments.rounds, figures)
    if "diff" in arguments.parts:
        bench_diff(arguments.rounds, figures)
    if "ssh" in arguments.parts:
        try:
            bench_ssh(python, arguments.rounds, figures)
        except FileNotFoundError as error:
            figures.say(f"ssh: left out ({error})")
    if arguments.json:
        arguments.json.write_text(json.dumps(figures.all, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
