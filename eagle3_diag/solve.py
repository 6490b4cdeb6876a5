"""The whole wiring solved for: predictions of every explanation for single rows, and a search over combinations of knobs.

Single faults come from the catalogue. Where none of them fits a server's answers, the product of the wiring's knobs is searched: every
pair of faults, each aux state taken from a layer of its own, and a further fault on top of the nearest of those. A candidate is dropped at
the answers that contradict it, so that most cost the rows of one sample.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

import torch

from eagle3_diag.catalogue import Catalogue, Explanation, combine
from eagle3_diag.predict import Loaded, Predictor
from eagle3_diag.probe import Evidence, Row, Table, like_instances, one_hot
from eagle3_diag.samples.interface import Sample

#: Simulated instances of an explanation whose content nobody knows: they differ in kind as well as in content, each kind more than once.
INSTANCES = 8
#: Rows of one sample that are looked at, from its first response on: later ones have longer prompts and tell no more.
ROWS_PER_SAMPLE = 512
#: Nearest candidates that a further fault is tried on top of.
_BEAM = 8
#: How far from its own layer each aux state is looked for by itself.
_REACH = 2


@dataclass
class Rows:
    """Stored rows and the samples that they are of, ready for predictions."""

    predictor: Predictor
    loaded: dict[str, Loaded] = field(default_factory=dict)
    rows_R: dict[str, torch.Tensor] = field(default_factory=dict)
    rows: list[Row] = field(default_factory=list)
    unusable: int = 0

    def add(self, sample: Sample, limit: int) -> None:
        """Take in at most ``limit`` usable rows of a checked sample."""
        loaded = self.predictor.load(sample)
        rows_R = loaded.rows_R[:ROWS_PER_SAMPLE]
        runs = self.predictor.runs(loaded, _NOTHING, rows_R)
        usable_R = runs.known_R > 0
        kept_R = rows_R[usable_R.to(rows_R.device)][:limit]
        self.unusable += int((~usable_R).sum())
        if kept_R.numel() == 0:
            return
        self.loaded[sample.name], self.rows_R[sample.name] = loaded, kept_R
        known = dict(zip(runs.rows_R.tolist(), runs.known_R.tolist(), strict=True))
        for t in kept_R.tolist():
            self.rows.append(Row(sample=sample.name, row=t, label=int(loaded.labels_N[t]), known=known[t]))

    def prompt(self, row: Row) -> tuple[int, ...]:
        """The stored prefix up to and with a row."""
        return tuple(self.loaded[row.sample].tokens_N[: row.row + 1].tolist())

    def accepted(self, explanation: Explanation, name: str, rows_R: torch.Tensor | None = None) -> torch.Tensor:
        """Predicted runs of one sample's rows (default: all usable ones), clipped to what is known, int8 [R]."""
        return self.predictor.runs(self.loaded[name], explanation, self.rows_R[name] if rows_R is None else rows_R).accepted_R

    def chances(self, explanation: Explanation) -> torch.Tensor:
        """Chances of each run of every row under each simulated instance, [I, R, A]; one instance, one-hot, for an exact explanation."""
        steps = self.predictor.steps
        if explanation.exact:
            return one_hot(torch.cat([self.accepted(explanation, name) for name in self.loaded]), steps)[None]
        every_IRA = torch.stack(
            [
                one_hot(torch.cat([self.accepted(explanation.instance(number), name) for name in self.loaded]), steps)
                for number in range(INSTANCES)
            ]
        )
        return like_instances(every_IRA, torch.tensor([row.known for row in self.rows]))

    def table(self, explanations: Iterable[Explanation], progress: Callable[[], None] = lambda: None) -> Table:
        """Predictions of these explanations for all rows. ``progress`` is called after each."""
        listed, chances = list(explanations), []
        for explanation in listed:
            chances.append(self.chances(explanation))
            progress()
        return Table(self.predictor.steps, self.rows, listed, chances, self.unusable)


_NOTHING = Explanation(id="as-trained", title="", family="weights")


def extend(rows: Rows, table: Table, explanations: Sequence[Explanation]) -> Table:
    """The table with further explanations."""
    return table.extended(explanations, [rows.chances(each) for each in explanations])


# ---- combinations ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Fit:
    """A candidate with the number of answers that contradict it, of those that were looked at."""

    explanation: Explanation
    contradicted: int
    looked_at: int


def own_layers(catalogue: Catalogue, held: Iterable[int]) -> Iterator[Explanation]:
    """Each aux state taken from a layer input of its own, near the one it was trained on, of those that the samples hold."""
    inputs = catalogue.right.aux_layer_inputs or ()
    if not inputs or min(inputs) < 0:
        return
    held = set(held)
    known = {each.wiring(catalogue.right).aux_layer_inputs for each in catalogue}
    near = [[i for i in range(layer - _REACH, layer + _REACH + 1) if i in held and i > 0] for layer in inputs]
    for chosen in itertools.product(*near):
        if chosen not in known:
            moved = sum(abs(a - b) for a, b in zip(chosen, inputs, strict=True))
            yield Explanation(
                id="layers-" + "-".join(map(str, chosen)), title=f"Features are captured at the inputs of layers {list(chosen)}, not {list(inputs)}",
                family="features", changes={"aux_layer_inputs": chosen}, prior=0.05 / (1 + moved) ** 2,
                mend=next((each.mend for each in catalogue if each.id.startswith("layers-")), ""),
                check="Compare the ids in config.json with what the server logs as captured layers.",
            )  # fmt: skip


def search(
    rows: Rows, catalogue: Catalogue, found: Evidence, held: Iterable[int], *, allowed: int, progress: Callable[[], None] = lambda: None
) -> list[Fit]:
    """Combinations that at most ``allowed`` answers contradict, best first; with none, further faults on top of the nearest are tried."""
    judge = _Judge(rows, found)
    singles = [each for each in catalogue if each.exact and each.served and not each.is_right and not each.path_dependent]
    layers = list(own_layers(catalogue, held))
    pairs = [both for a, b in itertools.combinations(singles, 2) if (both := combine(a, b)) is not None]
    fits = []
    for candidate in [*layers, *sorted(pairs, key=lambda each: -each.prior)]:
        fits.append(judge.fit(candidate, allowed))
        progress()
    good = [fit for fit in fits if fit.contradicted <= allowed]
    if not good:
        nearest = sorted(fits, key=lambda fit: (fit.contradicted - fit.looked_at * 0.25, -fit.explanation.prior))[:_BEAM]
        for fit in nearest:
            for single in singles:
                wider = combine(fit.explanation, single)
                if wider is not None:
                    good.append(judge.fit(replace(wider, prior=wider.prior), allowed))
                    progress()
        good = [fit for fit in good if fit.contradicted <= allowed]
    return sorted(good, key=lambda fit: (fit.contradicted, -fit.explanation.prior))


class _Judge:
    """Counts contradictions, sample by sample, the one with most answers first."""

    def __init__(self, rows: Rows, found: Evidence) -> None:
        self.rows = rows
        by_sample: dict[str, list[tuple[int, int]]] = {}
        for at, run in zip(found.at, found.runs, strict=True):
            row = rows.rows[at]
            by_sample.setdefault(row.sample, []).append((row.row, run))
        self.order = sorted(((name, sorted(each)) for name, each in by_sample.items()), key=lambda pair: -len(pair[1]))

    def fit(self, candidate: Explanation, allowed: int) -> Fit:
        """Stops at the first sample after which more than ``allowed`` answers contradict."""
        contradicted = looked_at = 0
        for name, answers in self.order:
            device = self.rows.loaded[name].tokens_N.device
            accepted_R = self.rows.accepted(candidate, name, torch.tensor([t for t, _ in answers], device=device))
            contradicted += sum(int(a) != run for a, (_, run) in zip(accepted_R.tolist(), answers, strict=True))
            looked_at += len(answers)
            if contradicted > allowed:
                break
        return Fit(explanation=candidate, contradicted=contradicted, looked_at=looked_at)
