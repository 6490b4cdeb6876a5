"""Preflight against reality: the static verdict on every module of an environment beside what `import` does.

    python tests/envspec/reality.py PYTHON [--remove N] [--together] [--every K] [--only PACKAGE ...] [--out DIR]

PYTHON is an interpreter of a virtual environment with many distributions (it is only read; removals are made in
hard-linked copies). For the whole environment, and with N distributions removed one at a time or together, every
importable module file (or every K-th) is (a) judged by `envspec.probe_imports` without executing it and (b) imported in a process of its own. Printed:
precision and recall of "fails on NAME", and each disagreement. With a removed distribution only modules whose real
import asked for one of its names are imported again: the others cannot see the difference.

"Fails on NAME": an exception ends the import and it, or the nearest exception it was raised from, is an ImportError
that carries a name. An import that did not end in time says nothing and is left out.
"""

from __future__ import annotations

import argparse
import collections
import csv
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
PROBE = HERE.parents[1] / "envspec" / "probe_imports.py"
MEMORY_KIB = 4 * 1024 * 1024

JUDGE = """
import gc, json, resource, sys, time
gc.disable()
sys.path[:] = [p for p in sys.path if p]
sys.setrecursionlimit(20000)
import threading
threading.stack_size(512 * 1024 * 1024)
space = {"__name__": "probe_imports"}
exec(compile(open(sys.argv[1]).read(), "probe_imports", "exec"), space)
def main():
    machine = space["Machine"](space["Finder"](json.loads(sys.argv[4])))
    out = open(sys.argv[3], "a")
    for name in json.load(open(sys.argv[2])):
        machine.fresh()
        start = time.perf_counter()
        entry = {"module": name, "ok": True, "name": None, "kind": None, "error": None, "chain": []}
        try:
            machine.load(name)
        except space["Failed"] as failure:
            entry.update(ok=False, name=failure.missing, kind=failure.kind, chain=failure.chain,
                         error=getattr(failure.error, "__name__", str(failure.error)))
        except Exception as error:
            entry.update(ok=False, kind="walker", error=repr(error))
        entry["s"] = time.perf_counter() - start
        out.write(json.dumps(entry) + "\\n")
        with open("/proc/self/statm") as sizes:  # ru_maxrss would begin with what its parent had at most
            if int(sizes.read().split()[1]) * resource.getpagesize() > int(sys.argv[5]) * 1024:
                break
    out.close()
thread = threading.Thread(target=main)
thread.start()
thread.join()
"""


def site_of(python: Path) -> Path:
    text = subprocess.run(
        [python, "-c", "import sysconfig; print(sysconfig.get_paths()['purelib'])"],
        check=True, capture_output=True, text=True,
    ).stdout  # fmt: skip
    return Path(text.strip())


def module_names(site: Path) -> list[str]:
    """Every importable module file below a site directory, as a dotted name."""
    names = set()
    for path in site.rglob("*"):
        if path.suffix not in (".py", ".so") or "__pycache__" in path.parts:
            continue
        parts = list(path.relative_to(site).parts)
        parts[-1] = parts[-1].split(".")[0]
        if parts[-1] == "__init__":
            parts.pop()
        if parts and all(part.isidentifier() for part in parts):
            names.add(".".join(parts))
    return sorted(names)


def distributions(site: Path) -> dict[str, list[str]]:
    """Installed files of each distribution, relative to the site directory."""
    result = {}
    for record in sorted(site.glob("*.dist-info/RECORD")):
        name = re.sub(r"[-_.]+", "-", record.parent.name.split("-")[0]).lower()
        with record.open(newline="", encoding="utf-8") as file:
            result[name] = [row[0] for row in csv.reader(file) if row and not row[0].startswith("..")]
    return result


def modules_of(files: list[str]) -> set[str]:
    names = set()
    for file in files:
        if file.endswith((".py", ".so")):
            parts = file.split("/")
            parts[-1] = parts[-1].split(".")[0]
            if parts[-1] == "__init__":
                parts.pop()
            for i in range(1, len(parts) + 1):
                names.add(".".join(parts[:i]))
    return names


def copy_of(python: Path, site: Path, directory: Path, without: list[str]) -> Path:
    """A hard-linked copy of the environment that lacks some files; returns its interpreter."""
    root = python.parent.parent
    shutil.copytree(root, directory, symlinks=True, copy_function=os.link)
    home = directory / site.relative_to(root)
    for file in without:
        (home / file).unlink(missing_ok=True)
        folder = (home / file).parent
        cache = folder / "__pycache__"
        for stale in cache.glob(Path(file).stem + ".*"):
            stale.unlink()
        while folder != home:
            leftover = list(folder.iterdir()) if folder.is_dir() else []
            if leftover and [item.name for item in leftover] != ["__pycache__"]:
                break
            shutil.rmtree(folder, ignore_errors=True)
            folder = folder.parent
    return directory / "bin" / python.name


def environment(directory: Path) -> dict[str, str]:
    keep = {key: os.environ[key] for key in ("PATH", "LANG", "LC_ALL") if key in os.environ}
    return {**keep, "HOME": str(directory), "PYTHONDONTWRITEBYTECODE": "1", "OMP_NUM_THREADS": "1", "MPLBACKEND": "agg"}


def really(
    python: Path, names: list[str], seconds: int = 30, path: list[str] | None = None
) -> dict[str, dict[str, Any]]:
    """The outcome of importing each module in a process of its own; with `path`, without site packages but these."""
    with tempfile.TemporaryDirectory() as text:
        directory = Path(text)
        (directory / "names.json").write_text(json.dumps(names))
        flags = ["-B"] if path is None else ["-B", "-S", "-s"]
        command = [str(python), *flags, str(HERE / "reality_worker.py"), "names.json", "results.jsonl", str(seconds)]
        if shutil.which("unshare") and subprocess.run(["unshare", "-n", "true"], capture_output=True).returncode == 0:
            command = ["unshare", "-n", *command]  # nothing may go out
        extra = {} if path is None else {"PYTHONPATH": os.pathsep.join(path)}
        subprocess.run(command, cwd=directory, env={**environment(directory), **extra}, check=True)
        lines = (directory / "results.jsonl").read_text().splitlines()
    return {entry["module"]: entry for entry in map(json.loads, lines)}


def judged(python: Path, names: list[str], path: list[str] | None = None) -> dict[str, dict[str, Any]]:
    """The static verdict on each module; `path` replaces the interpreter's search path.

    A walker keeps all it has read, which for a whole environment is more than a machine's memory: it is started anew
    for the modules that are left when it has grown to MEMORY_KIB.
    """
    verdicts: dict[str, dict[str, Any]] = {}
    with tempfile.TemporaryDirectory() as text:
        directory = Path(text)
        (directory / "judge.py").write_text(JUDGE)
        command = [str(python), "-B", "judge.py", str(PROBE), "names.json", "results.jsonl", json.dumps(path), str(MEMORY_KIB)]
        while left := [name for name in names if name not in verdicts]:
            (directory / "names.json").write_text(json.dumps(left))
            subprocess.run(command, cwd=directory, env=environment(directory), check=True)
            lines = (directory / "results.jsonl").read_text().splitlines()
            verdicts = {entry["module"]: entry for entry in map(json.loads, lines)}
    return verdicts


class Tally:
    """Counts of agreement on "fails on NAME"."""

    def __init__(self) -> None:
        self.modules = self.right = self.said = self.real = 0
        self.wrong: list[dict[str, Any]] = []

    def add(self, where: str, static: dict[str, dict[str, Any]], real: dict[str, dict[str, Any]]) -> None:
        for module, truth in sorted(real.items()):
            if (truth["error"] or "").startswith("signal"):
                continue
            verdict = static[module]
            self.modules += 1
            said = verdict["name"] if not verdict["ok"] else None
            name = truth["name"] if not truth["ok"] else None
            self.said += said is not None
            self.real += name is not None
            if said is not None and said == name:
                self.right += 1
            elif said is not None or name is not None:
                self.wrong.append({
                    "where": where, "module": module, "static": said, "real": name, "error": truth["error"],
                    "message": truth["message"], "chain": verdict["chain"], "kind": verdict["kind"],
                })  # fmt: skip

    def __str__(self) -> str:
        precision = self.right / self.said if self.said else 1.0
        recall = self.right / self.real if self.real else 1.0
        before = sum(item["static"] is not None and item["real"] is None and item["error"] is not None for item in self.wrong)
        return (
            f"{self.modules} verdicts, {self.real} really fail on a name, {self.said} said to, {self.right} agree: "
            f"precision {precision:.4f}, recall {recall:.4f}; {before} of the {len(self.wrong)} others fail before, on an error without a name"
        )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("python", type=Path)
    parser.add_argument("--remove", type=int, default=20, metavar="N", help="distributions to remove, one at a time")
    parser.add_argument("--together", action="store_true", help="remove them all at once")
    parser.add_argument("--every", type=int, default=1, metavar="K", help="look at every K-th module only")
    parser.add_argument("--without", action="append", default=[], metavar="NAME", help="remove these instead")
    parser.add_argument("--only", action="append", default=[], metavar="PACKAGE", help="top-level packages to look at")
    parser.add_argument("--out", type=Path, help="directory for verdicts and disagreements as JSON")
    parser.add_argument("--show", type=int, default=40, metavar="N", help="causes of disagreement to print")
    options = parser.parse_args()
    site = site_of(options.python)
    names = [n for n in module_names(site) if not options.only or n.split(".")[0] in options.only][:: options.every]
    owned = distributions(site)
    print(f"{len(owned)} distributions, {len(names)} modules", flush=True)
    start = time.perf_counter()
    cached = options.out / "real.json" if options.out else None
    if cached is not None and cached.exists():
        known = json.loads(cached.read_text())  # of an earlier run, perhaps of more modules
        real = {name: known[name] for name in names}
    else:
        real = really(options.python, names)
        if cached is not None:
            cached.parent.mkdir(parents=True, exist_ok=True)
            cached.write_text(json.dumps(real))
    middle = time.perf_counter()
    static = judged(options.python, names)
    print(f"imported in {middle - start:.0f} s, judged in {time.perf_counter() - middle:.0f} s", flush=True)
    whole, removed = Tally(), Tally()
    whole.add("whole", static, real)
    print("whole:", whole, flush=True)
    asked = {module: set(entry["asked"]) for module, entry in real.items()}
    depends: collections.Counter[str] = collections.Counter()
    reach: dict[str, list[str]] = {}
    for name, files in owned.items():
        mine = modules_of(files) | {f"dist:{name}"}
        users = [m for m, wanted in asked.items() if (mine & wanted or "*" in wanted) and m not in mine]
        reach[name] = sorted(users)
        depends[name] = len(users)
    chosen = options.without or [name for name, _ in depends.most_common(options.remove)]
    for together in [chosen] if options.together and chosen else [[name] for name in chosen]:
        name = " ".join(together)
        with tempfile.TemporaryDirectory(dir=options.python.parents[2]) as text:
            copy = copy_of(options.python, site, Path(text) / "env", [file for each in together for file in owned[each]])
            own = {module for each in together for module in modules_of(owned[each])}
            gone = sorted({module for each in together for module in reach[each]} - own)
            entry = Tally()
            before = time.perf_counter()
            facts, verdicts = really(copy, gone), judged(copy, gone)
            entry.add(f"without {name}", verdicts, facts)
            removed.add(f"without {name}", verdicts, facts)
            print(f"without {name} ({time.perf_counter() - before:.0f} s): {entry}", flush=True)
    print("removed:", removed)
    if options.out:
        options.out.mkdir(parents=True, exist_ok=True)
        (options.out / "disagreements.json").write_text(json.dumps(whole.wrong + removed.wrong, indent=1))
    grouped: dict[tuple[Any, ...], list[str]] = {}
    for item in whole.wrong + removed.wrong:
        last = item["chain"][-1] if item["chain"] else ("", "", 0)
        key = (item["where"], item["static"], item["real"], item["kind"], f"{last[0]}:{last[2]}")
        if item["static"] is None:
            key = (*key, item["error"], item["message"])
        grouped.setdefault(key, []).append(item["module"])
    print(f"{len(grouped)} causes of disagreement")
    for key, modules in sorted(grouped.items(), key=lambda pair: -len(pair[1]))[: options.show]:
        print(len(modules), *key, modules[:2])
    return 0


if __name__ == "__main__":
    sys.exit(main())
