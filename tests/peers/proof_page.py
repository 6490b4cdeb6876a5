"""The results of `prove_diagnosis` as the last section of a page, and the counts that the requirements are about."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from eagle3_diag.catalogue import AS_TRAINED
from tests.peers.faults import FAULTS, Fault
from tests.peers.judge import accuses, chance_of_no_difference, cleared, differs, named

HEADING = "## Results"

Results = Mapping[str, Mapping[str, Mapping[str, Any]]]


def short(found: Mapping[str, Any]) -> dict[str, Any]:
    """One server's results without the replies, for a log."""
    if "failed" in found:
        return dict(found)
    probe = {k: v for k, v in found["probe"].items() if k not in ("replies", "group")}
    return {"probe": probe, **{k: {i: v for i, v in said.items() if i != "headline"} for k, said in found["diagnose"].items()}, "seconds": found["seconds"]}


def write(page: Path, results: Results) -> None:
    """Write the results' section of the page anew."""
    replace(page, HEADING, section(results))


def replace(page: Path, heading: str, lines: Iterable[str]) -> None:
    """Replace a page's section, from its heading to the next one of the same rank."""
    before, _, rest = page.read_text("utf-8").partition(heading + "\n")
    _, mark, after = rest.partition("\n## ")
    page.write_text(before + heading + "\n\n" + "\n".join(lines) + "\n" + mark + after, "utf-8")


def section(results: Results) -> Iterator[str]:
    """Lines of the section: the sums, then a table for every pair."""
    yield from sums(results)
    for pair, by_fault in results.items():
        yield from ("", f"### Pair `{pair}`", "")
        yield "| served | probe: named | agreeing | same requests: named | other requests: named | drafts | length | p |"
        yield "|---|---|---|---|---|---|---|---|"
        for fault in FAULTS:
            if fault.name in by_fault:
                yield _line(fault, by_fault[fault.name], by_fault["right"])


def sums(results: Results) -> Iterator[str]:
    """How often each command named what was done, over the catalogue's single faults; and over the rest."""
    cases = [(f, found, by["right"]) for by in results.values() for f in FAULTS if (found := by.get(f.name)) is not None and "failed" not in found]
    failed = [f"{pair}: {name}" for pair, by in results.items() for name, found in by.items() if "failed" in found]
    versions = sorted({found["vllm"] for _, found, _ in cases})
    yield f"{len(results)} pairs, {len(cases)} servers, vLLM {', '.join(versions)} on a CPU."
    if failed:
        yield f"Did not serve: {', '.join(failed)}."
    yield ""
    yield "| | probe, 64 rows | `diagnose --same-requests` | `diagnose`, other requests |"
    yield "|---|---|---|---|"
    faults = [case for case in cases if case[0].listed and case[0].ids != (AS_TRAINED,)]
    rights = [case for case in cases if case[0].ids == (AS_TRAINED,)]
    beyond = [case for case in faults if differs(case[1]["others"], case[2]["others"])]
    others = [case for case in cases if not case[0].listed and case[0].ids != (AS_TRAINED,)]

    def of(which: list[tuple[Fault, Mapping[str, Any], Mapping[str, Any]]], name: str) -> str:
        hits = [named(_said(found, name), f.ids) for f, found, _ in which]
        return f"{sum(hits)} of {len(hits)}"

    yield f"| a fault of the catalogue: named first, alone or in its group | {of(faults, 'probe')} | {of(faults, 'same')} | {of(faults, 'others')} |"
    yield f"| of these, counters that differ from right wiring's by more than sampling error | | | {of(beyond, 'others')} |"
    yield (
        f"| right wiring: cleared | {of(rights, 'probe')} | {sum(cleared(_said(c[1], 'same')) for c in rights)} of {len(rights)} | "
        f"{sum(cleared(_said(c[1], 'others')) for c in rights)} of {len(rights)} |"
    )
    yield f"| right wiring: accused | | {sum(accuses(_said(c[1], 'same')) for c in rights)} | {sum(accuses(_said(c[1], 'others')) for c in rights)} |"
    yield f"| two faults, a fault in no catalogue, a server in bfloat16: named | {of(others, 'probe')} | {of(others, 'same')} | {of(others, 'others')} |"


def _said(found: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    said: Mapping[str, Any] = found["probe"] if name == "probe" else found["diagnose"][name]
    return said


def _line(fault: Fault, found: Mapping[str, Any], right: Mapping[str, Any]) -> str:
    if "failed" in found:
        return f"| {fault.name} | did not serve: {found['failed']} | | | | | | |"
    cells = [fault.name]
    for name in ("probe", "same", "others"):
        said = _said(found, name)
        mark = "" if named(said, fault.ids) else " (wrong)"
        alike = len(said["group"]) - 1
        group = f" and {alike} alike" if alike > 0 and said["named"] != "unknown" else ""
        cells.append(f"`{said['named']}`{group}, {said['probability']:.0%}{mark}")
        if name == "probe":
            cells.append(f"{said['agreeing']} of {said['answered']}")
    chance = chance_of_no_difference(found["others"], right["others"])
    cells += [str(found["others"]["drafts"]), f"{_said(found, 'others')['length']:.2f}", "" if fault.name == "right" else f"{chance:.2g}"]
    return "| " + " | ".join(cells) + " |"
