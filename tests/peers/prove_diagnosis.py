"""Proof: the real vLLM serves drafters wired wrong on purpose, and the tool names each fault from the untouched drafter and samples.

    python -m tests.peers.prove_diagnosis --vllm PYTHON --pair demo=DIR [--pair NAME=DIR ...] --results FILE [--table PAGE]

A pair's DIR holds ``target``, ``drafter`` and ``samples`` (greedy responses, with more layers than the drafter takes). For every pair
and fault a server is started; `probe` asks 64 rows; the samples' own requests are served between two readings of the counters, then as
many others, and `diagnose` reads both counters. Results go to FILE after every server, and those already there are not made again.
--table judges what was in FILE before anew and writes the last section of PAGE; with no --vllm nothing is served.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from eagle3_diag.catalogue import Catalogue, catalogue
from eagle3_diag.checkpoint import read_drafter
from eagle3_diag.inquiry import Inquiry, inquire
from eagle3_diag.predict import Predictor
from eagle3_diag.probe import Reply, Row, Table
from eagle3_diag.samples import iter_samples
from eagle3_diag.solve import Rows
from eagle3_diag.target import read_target
from tests.peers import proof_page
from tests.peers.faults import FAULTS, Fault, make
from tests.peers.judge import Judge

STEPS, REQUESTS = 5, 64
SERVER = Path(__file__).parent / "prove_server.py"


class Engine:
    """The vLLM process behind a pipe."""

    def __init__(self, python: str) -> None:
        self.process = subprocess.Popen([python, "-u", str(SERVER)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)

    def do(self, command: dict[str, Any]) -> dict[str, Any]:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps(command) + "\n")
        self.process.stdin.flush()
        while line := self.process.stdout.readline():
            if line.startswith("ANSWER "):
                answer: dict[str, Any] = json.loads(line.removeprefix("ANSWER "))
                if "failed" in answer:
                    raise RuntimeError(answer["failed"])
                return answer
        raise RuntimeError("the server ended")

    def end(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write('{"end": 1}\n')
        self.process.stdin.flush()

    def close(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait(timeout=120)


class Pair:
    """What the tool is given: the untouched drafter, the target's weights, samples."""

    def __init__(self, name: str, folder: Path) -> None:
        self.name, self.folder = name, folder
        checkpoint, target = read_drafter(folder / "drafter"), read_target(folder / "target")
        self.predictor = Predictor(checkpoint, target, steps=STEPS, device=torch.device("cpu"), dtype=torch.float32)
        self.rows = Rows(self.predictor)
        self.samples = list(iter_samples([folder / "samples"], check=self.predictor.check))
        for sample in self.samples:
            self.rows.add(sample, 1 << 20)
        self.held = self.predictor.held_layers(self.samples[0])
        self.catalogue: Catalogue = catalogue(checkpoint, target, self.held)

    @cached_property
    def table(self) -> Table:
        """What every explanation predicts for every row."""
        return self.rows.table(each for each in self.catalogue if each.served)

    @cached_property
    def judge(self) -> Judge:
        return Judge(self.predictor, self.samples, self.catalogue)

    def weigh(self, result: dict[str, Any]) -> None:
        """Weighs the rows' answers anew."""
        replies = {name: Reply(first_token=first, accepted=run) for name, (first, run) in result["probe"]["replies"].items()}
        result["probe"] = outcome(inquire(self.rows, self.table, self.catalogue, self.held, None, requests=0, replies=replies))

    def diagnose(self, result: dict[str, Any]) -> None:
        """Adds what `diagnose` says to both counters."""
        result["diagnose"] = {name: self.judge.diagnosis(result[name], dtype=result["dtype"], same_requests=name == "same") for name in ("same", "others")}

    def requests(self) -> tuple[list[list[int]], list[int]]:
        """The samples' own prompts, and how long their responses are."""
        starts = [int(torch.nonzero(s.mask_N, as_tuple=True)[0][0]) for s in self.samples]
        return [s.tokens_N[:a].tolist() for s, a in zip(self.samples, starts, strict=True)], [
            s.length - a for s, a in zip(self.samples, starts, strict=True)
        ]

    def others(self) -> tuple[list[list[int]], list[int]]:
        """As many other prompts: the tokens of the samples' prompts in an order of chance."""
        generator = torch.Generator().manual_seed(1)
        prompts, lengths = self.requests()
        return [[p[i] for i in torch.randperm(len(p), generator=generator).tolist()] for p in prompts], lengths


def outcome(state: Inquiry) -> dict[str, Any]:
    """What the probe's end says, and the answers it rests on."""
    order = state.belief.probability_E.argsort(descending=True).tolist()
    best = order[0]
    group = [state.table.explanations[i].id for i in state.group(best)]
    unknown = state.belief.unknown
    return {
        "named": "unknown" if unknown > state.share(best) else state.table.explanations[best].id, "group": group,
        "probability": max(state.share(best), unknown), "agreeing": state.belief.agreeing_E[best], "answered": len(state.evidence.at),
        "target_differs": len(state.evidence.differing), "combinations_searched": state.combinations,
        "next": {state.table.explanations[i].id: state.belief.agreeing_E[i] for i in order[1:3]},
        "replies": {name: [reply.first_token, reply.accepted] for name, reply in state.replies.items()},
    }  # fmt: skip


def prove(pair: Pair, fault: Fault, engine: Engine, folder: Path) -> dict[str, Any]:
    """One server: probed, then counted on the samples' own requests and on others."""
    drafter = make(fault, pair.folder / "drafter", folder)
    begun = time.monotonic()
    version = engine.do({"load": {"target": str(pair.folder / "target"), "drafter": str(drafter), "steps": STEPS, "dtype": fault.dtype}})["ready"]
    loaded = time.monotonic()

    def ask(row: Row) -> Reply:
        answer = engine.do({"row": list(pair.rows.prompt(row)), "max_tokens": 2})
        assert answer["drafts"] == 1, f"{answer['drafts']} drafts for one row"
        return Reply(first_token=answer["first_token"], accepted=answer["accepted"])

    state = inquire(pair.rows, pair.table, pair.catalogue, pair.held, ask, requests=REQUESTS)
    probed = time.monotonic()
    counted = {}
    for name, (prompts, lengths) in {"same": pair.requests(), "others": pair.others()}.items():
        answer = engine.do({"requests": prompts, "max_tokens": lengths})
        outputs = answer.pop("outputs")
        if name == "same":
            counted["texts_as_stored"] = sum(
                o == s.tokens_N[len(p) :].tolist() for o, p, s in zip(outputs, prompts, pair.samples, strict=True)
            )
        counted[name] = answer
    engine.end()
    return {
        "vllm": version, "dtype": fault.dtype, "expected": list(fault.ids), "listed": fault.listed,
        "probe": outcome(state),
        **counted,
        "seconds": {"load": round(loaded - begun, 1), "probe": round(probed - loaded, 1), "counters": round(time.monotonic() - probed, 1)},
    }  # fmt: skip


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--vllm", help="an interpreter that has vLLM for CPUs")
    parser.add_argument("--pair", action="append", required=True, metavar="NAME=DIR")
    parser.add_argument("--results", type=Path, required=True)
    parser.add_argument("--table", type=Path, metavar="PAGE", help="write the results into this page")
    parser.add_argument("--fault", action="append", help="only these faults")
    parser.add_argument("--listed", action="store_true", help="only single faults of the catalogue, served in float32")
    arguments = parser.parse_args(argv)
    results: dict[str, Any] = json.loads(arguments.results.read_text()) if arguments.results.exists() else {}
    pairs = {name: Pair(name, Path(folder)) for name, _, folder in (each.partition("=") for each in arguments.pair)}
    engine: Engine | None = None
    made: set[tuple[str, str]] = set()
    wanted = [f for f in FAULTS if (f.name in arguments.fault if arguments.fault else f.listed or not arguments.listed)]
    for name, pair in pairs.items() if arguments.vllm else ():
        todo = [f for f in wanted if "probe" not in results.get(name, {}).get(f.name, {})]
        for fault in todo:
            with tempfile.TemporaryDirectory() as scratch:
                try:
                    engine = engine or Engine(arguments.vllm)
                    found = prove(pair, fault, engine, Path(scratch) / "drafter")
                except RuntimeError as error:
                    found, engine = {"failed": str(error)}, None
                else:
                    pair.diagnose(found)
                    made.add((name, fault.name))
            results.setdefault(name, {})[fault.name] = found
            arguments.results.write_text(json.dumps(results, indent=1) + "\n")
            print(json.dumps({name: {fault.name: proof_page.short(found)}}), flush=True)
    if engine is not None:
        engine.close()
    if arguments.table is not None:
        if alone := [name for name, by_fault in results.items() if "probe" not in by_fault.get("right", {})]:
            sys.exit(f"{arguments.results}: holds no right server of {', '.join(alone)}, which the others are held against; serve it (--fault right)")
        for name, pair in pairs.items():
            for fault_name, found in results.get(name, {}).items():
                if "failed" not in found and (name, fault_name) not in made:
                    pair.weigh(found)
                    pair.diagnose(found)
        arguments.results.write_text(json.dumps(results, indent=1) + "\n")
        proof_page.write(arguments.table, results)
    return 0


if __name__ == "__main__":
    sys.exit(main())
