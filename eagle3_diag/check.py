"""How engines would wire a checkpoint against how it was trained: decides; reads nothing, shows nothing.

Two wirings are compared field by field. What cannot matter is left out: the position of row 0 under a RoPE whose frequencies do not
depend on it, and a stored copy of the target's embedding against the embedding itself.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from eagle3_diag.engines import ENGINES, Engine
from eagle3_diag.engines.interface import Reason, Severity, Subject, Wired, same_for_attention
from eagle3_diag.engines.trained import Trained
from eagle3_diag.engines.versions import Version, parse
from eagle3_diag.wiring import Wiring

# What each choice does to the drafts when it is not that of training.
EFFECTS: Mapping[str, str] = {
    "aux_layer_inputs": "fc gets states of other layers than it was trained on: one layer off costs some percent of acceptance, distant layers most of it",
    "features": "the drafter sees the last state, after the final norm, in place of the layers' states",
    "fc": "the drafter sees one state instead of fc's projection: acceptance length close to 1",
    "norm_before_fc": "fc gets states of another scale: acceptance drops at every position",
    "fc_norm": "fc gets states of another scale: acceptance drops at every position",
    "embedding_norm": "the embedding enters attention at another scale",
    "hidden_norm": "the state enters attention at another scale, unless the weights of input_layernorm are nearly alike",
    "output_norm": "logits come from a state of another scale",
    "residual": "the residual stream starts at another scale: acceptance drops at every position",
    "attention_bias": "attention turns to other tokens",
    "qk_norm": "attention turns to other tokens",
    "further_norm": "layers after the first get a state under another norm's weight",
    "feedback": "the first drafted token is right, later ones are worse",
    "rope": "positions turn by other angles: worse with distance, later drafts first",
    "position_offset": "positions count from elsewhere, which this RoPE notices",
    "vocabulary": "drafts are mapped to other tokens",
    "embedding": "tokens enter as other vectors than those of training",
    "head": "logits come from another head",
    "layers": "fewer layers run than were trained",
}

CAPTURE_ORDER = (
    "sglang srt/models (membership, layer by layer); vllm model_executor/models/interfaces.py (sorted set); "
    "TensorRT-LLM _torch/speculative/eagle3.py (sorted)"
)


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One thing to know about one engine. ``field`` is the wiring's, with what stands there in training and when served; None where
    no field tells it. Severity ``error``: served otherwise than trained, or not at all."""

    code: str
    severity: Severity
    field: str | None
    trained: Any
    served: Any
    text: str
    effect: str
    mend: str
    source: str


@dataclass(frozen=True, kw_only=True)
class Answer:
    """One engine and runner: its wiring (None when it does not start) and its findings."""

    engine: str
    title: str
    version: str
    runner: str | None
    target_architecture: str
    wiring: Wiring | None
    findings: tuple[Finding, ...]
    notes: tuple[str, ...]

    @property
    def as_trained(self) -> bool:
        return not any(f.severity == "error" for f in self.findings)

    @property
    def label(self) -> str:
        return f"{self.title} {self.version}" + (f" {self.runner}" if self.runner else "")


@dataclass(frozen=True, kw_only=True)
class Change:
    """A field that two engines set differently; None stands for an engine that does not start."""

    before: str
    after: str
    field: str
    old: Any
    new: Any


@dataclass(frozen=True, kw_only=True)
class Check:
    """The whole answer. ``changes`` only where engines were compared."""

    subject: Subject
    trained: Trained
    answers: tuple[Answer, ...]
    changes: tuple[Change, ...]
    notes: tuple[str, ...]

    @property
    def as_trained(self) -> bool:
        return all(answer.as_trained for answer in self.answers)


def check(subject: Subject, trained: Trained, asked: Sequence[tuple[str, Version | None]], *, compare: bool = False) -> Check:
    """Ask every engine named, in that order; a version None means the newest that was read."""
    answers: list[Answer] = []
    groups: list[list[Answer]] = []
    for name, version in asked:
        engine = ENGINES[name]
        group = [_answer(subject, trained, engine, version, wired) for wired in engine.wire(subject, version)]
        answers += group
        groups.append(group)
    changes: list[Change] = []
    if compare:
        for before, after in itertools.pairwise(groups):
            changes += _changes(before, after)
    return Check(subject=subject, trained=trained, answers=tuple(answers), changes=tuple(changes), notes=subject.checkpoint.notes)


def _answer(subject: Subject, trained: Trained, engine: Engine, version: Version | None, wired: Wired) -> Answer:
    findings = [*_order(subject, engine.title), *_differences(trained, wired)]
    findings += [
        Finding(code=r.code, severity=r.severity, field=None, trained=None, served=None, text=r.text, effect=_does_not_start(wired, r.severity), mend=r.mend, source=r.source)
        for r in wired.remarks
    ]
    return Answer(
        engine=engine.name,
        title=engine.title,
        version=wired.version,
        runner=wired.runner,
        target_architecture=subject.target.architecture,
        wiring=wired.wiring,
        findings=tuple(findings),
        notes=(*wired.notes, *_version_notes(engine, version)),
    )


def _does_not_start(wired: Wired, severity: Severity) -> str:
    if severity == "warning":
        return "it fits by chance: another target or another version may part"
    return "the server does not start with this checkpoint" if wired.wiring is None else "the drafter does not run as trained"


def _version_notes(engine: Engine, version: Version | None) -> Iterable[str]:
    if version is None or engine.oldest == engine.newest:
        return
    if version > parse(engine.newest):
        yield f"{engine.title} {version} is newer than the newest that was read ({engine.newest}), whose rules are applied"
    elif version < parse(engine.oldest):
        yield f"{engine.title} {version} is older than the oldest that was read ({engine.oldest}), whose rules are applied"


def _order(subject: Subject, title: str) -> Iterable[Finding]:
    """Ids that no engine can serve: every one captures in depth order, each layer once."""
    inputs = subject.trained.aux_layer_inputs or ()
    common = {"severity": "error", "field": "aux_layer_inputs", "trained": list(inputs), "served": sorted(set(inputs)), "effect": EFFECTS["aux_layer_inputs"]}
    if len(set(inputs)) != len(inputs):
        yield Finding(
            code="layer-ids-repeated",
            text=f"the states of layers {subject.inputs_text(inputs)} repeat one; {title} captures each layer once.",
            mend="no ids mend it: train with distinct layers, or fold the repeated columns of fc into one block and write its id once",
            source=CAPTURE_ORDER,
            **common,  # type: ignore[arg-type]
        )
    elif tuple(sorted(inputs)) != inputs:
        yield Finding(
            code="layer-ids-out-of-order",
            text=f"fc was trained on the states of layers {subject.inputs_text(inputs)} in this order; {title} hands them on in depth order.",
            mend="no ids mend it: reorder fc's blocks of columns to depth order and write the ids so",
            source=CAPTURE_ORDER,
            **common,  # type: ignore[arg-type]
        )


def _differences(trained: Trained, wired: Wired) -> Iterable[Finding]:
    if wired.wiring is None:
        return
    for name, (mine, theirs) in trained.wiring.differences(wired.wiring).items():
        severity: Severity = "error"
        if name == "position_offset" and same_for_attention(trained.wiring, wired.wiring):
            continue
        if name == "aux_layer_inputs":
            if mine is None:
                severity = "warning"
            elif sorted(set(mine)) == list(theirs):
                continue  # the order alone: said by _order
        if name == "embedding" and {mine, theirs} == {"drafter", "target"}:
            if trained.frozen_embedding:
                continue
            severity = "error" if trained.frozen_embedding is False else "warning"
        reason = wired.reasons.get(name) or Reason(
            code=f"{name.replace('_', '-')}-differs", text="the engine makes this choice on its own.", mend="no key is known", source=wired.preset
        )
        yield Finding(
            code=reason.code,
            severity=severity,
            field=name,
            trained=plain(mine),
            served=plain(theirs),
            text=reason.text,
            effect=EFFECTS.get(name, "the drafter runs otherwise than trained"),
            mend=reason.mend,
            source=reason.source,
        )


def _changes(before: Sequence[Answer], after: Sequence[Answer]) -> Iterable[Change]:
    """What changes from each runner of one version to the same runner (else the last) of the next."""
    for new in after:
        old = next((a for a in before if a.runner == new.runner), before[-1])
        if old.wiring is None or new.wiring is None:
            if (old.wiring is None) != (new.wiring is None):
                yield Change(before=old.label, after=new.label, field="starts", old=old.wiring is not None, new=new.wiring is not None)
            continue
        for name, (mine, theirs) in old.wiring.differences(new.wiring).items():
            yield Change(before=old.label, after=new.label, field=name, old=plain(mine), new=plain(theirs))


def plain(value: Any) -> Any:
    """A wiring's value as JSON has it."""
    return Wiring.to_plain(value)
