"""How often `diagnose` names the fault, how sure it is, and how often it is sure and wrong: by simulation.

    python -m tests.eagle3_diag.simulate [--pair DRAFTER TARGET SAMPLES]... [--drafts 50 200 1000 5000] [--repeats 3] [--mean-only]

Every second sample is the tool's, the others are traffic: a served count is made by drawing whole requests from them, with repetition,
until so many verifications are counted. Faults are those of the catalogue (contents that nobody knows are drawn anew), two at once, and some
that no catalogue holds. Without ``--pair`` the shipped demo is taken; ``eagle3_diag/demo/train.py`` trains pairs and, with ``--more-samples``, makes more
samples of them.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import torch

from eagle3_diag import demo
from eagle3_diag.catalogue import AS_TRAINED, UNKNOWN, Explanation, catalogue, combine
from eagle3_diag.checkpoint import read_drafter
from eagle3_diag.diagnose import diagnose
from eagle3_diag.drafter import Drafter, Weights
from eagle3_diag.evidence import UNKNOWN_SHARE
from eagle3_diag.observed import Observed, observed
from eagle3_diag.predict import Predictor, Walked
from eagle3_diag.samples import iter_samples
from eagle3_diag.survey import survey
from eagle3_diag.target import read_target
from tests.eagle3_diag.remembering import Remembering

STEPS = 5
FAULTS = (
    "as-trained", "layers-plus-1", "layers-minus-1", "aux-order-reversed", "aux-order-rotated", "aux-capture-off", "features-late", "tokens-not-shifted",
    "residual-flipped", "norms-swapped", "hidden-norm-missing", "post-norm-fed-back", "feedback-stale", "prefix-unseen", "positions-stuck",
    "rope-base-500000", "d2t-missing", "drafter-quantised-fp8", "drafter-quantised-int4", "accepted-keys-own", "embedding-foreign", "features-rotated",
    "layers-plus-1+residual-flipped", "post-norm-fed-back+steps-unseen",
)  # fmt: skip
#: Faults that no catalogue holds: standard deviation of noise on every matrix, as a share of its own, or another drafter's layer.
OUTSIDE = {"noise-20": 0.2, "noise-50": 0.5, "noise-100": 1.0, "other-layer": 0.0}


class Spoilt(Weights):
    """Weights with noise on every matrix, or (noise 0) with its rows in another order: a drafter that is not the one on disk."""

    def __init__(self, right: Weights, noise: float, seed: int) -> None:
        super().__init__(right.checkpoint, right.target, right.device, right.dtype)
        self.noise, self.seed = noise, seed

    def find(self, name: str) -> torch.Tensor | None:
        new = name not in self._cache
        found = super().find(name)
        if not new or found is None or found.dim() < 2:
            return found
        generator = torch.Generator().manual_seed(self.seed + len(name))
        if self.noise:
            found = found + self.noise * found.std() * torch.randn(found.shape, generator=generator)
        elif ".mlp." in name:
            found = found[torch.randperm(found.shape[0], generator=generator)]
        self._cache[name] = found
        return found


@dataclass(frozen=True)
class Outcome:
    """One simulated case: what was the case, what was said first and how surely, and whether the truth is in its group.

    ``weight``: the prior of the truth. Every fault is simulated equally often, but stated probabilities are of a world in which right wiring is
    common and rare faults are rare, so they are held against cases in that proportion.
    """

    truth: str
    drafts: int
    first: str
    probability: float
    grouped: bool
    verdict: str
    differs: bool
    weight: float = 1.0

    @property
    def right(self) -> bool:
        return self.first == self.truth or (self.first == UNKNOWN and self.truth in OUTSIDE)

    @property
    def misleading(self) -> bool:
        """Sure of something that is not the case: neither the truth, nor one of its two faults, nor listed as not to be told from it."""
        return self.probability >= 0.95 and not (self.right or self.grouped or self.first in self.truth.split("+"))


class Pair:
    """A drafter, its target, and samples divided between tool and traffic."""

    def __init__(self, drafter: Path, target: Path, samples: Path, most: int) -> None:
        checkpoint, opened = read_drafter(drafter), read_target(target)
        predictor = Predictor(checkpoint, opened, steps=STEPS, device=torch.device("cpu"), dtype=torch.float32)
        read = list(iter_samples([samples], max_samples=most, check=predictor.check))
        # Text that was sampled is walked as if the target had chosen it: what matters here are runs, not where they come from.
        self.loaded = [predictor.load(s, greedy=True) for s in read]
        self.listed = catalogue(checkpoint, opened, predictor.held_layers(read[0]), final_normed=self.loaded[0].normed)
        self.predictor, self.remembering = predictor, Remembering(predictor)
        self.tool, self.traffic = self.loaded[::2], self.loaded[1::2]

    def faults(self) -> Iterator[tuple[str, list[Walked]]]:
        """Name and, per request of the traffic, what a server so wired counts."""
        known = {e.id: e for e in self.listed}
        for name in FAULTS:
            parts = [known[n] for n in name.split("+") if n in known]
            if len(parts) < len(name.split("+")):
                continue
            entry: Explanation | None = parts[0] if len(parts) == 1 else combine(parts[0], parts[1])
            assert entry is not None
            yield name, [self.predictor.walk(one, entry if entry.exact else entry.instance(101)) for one in self.traffic]
        for name, noise in OUTSIDE.items():
            spoilt = Predictor(self.predictor.checkpoint, self.predictor.target, steps=STEPS, device=torch.device("cpu"), dtype=torch.float32)
            spoilt.drafter = spoilt._last = Drafter(Spoilt(self.predictor.drafter.weights, noise, 5), self.predictor.right)
            yield name, [spoilt.walk(replace(one, begun={}, matched=None), self.listed.explanations[0]) for one in self.traffic]


def serve(requests: Sequence[Walked], drafts: int, chance: random.Random) -> Observed:
    """Counters after whole requests, drawn with repetition, until ``drafts`` verifications are counted."""
    total = Walked.zero(STEPS)
    while total.drafts < drafts:
        total.add(chance.choice(requests))
    return observed(steps=STEPS, drafts=total.drafts, accepted_per_position=total.low)


def as_mean(seen: Observed) -> Observed:
    """The same traffic as most reports give it: a mean with two digits, and no word of how much is behind it."""
    return observed(steps=STEPS, acceptance_length=round(seen.length, 2), rounding=0.005)


def simulate(pair: Pair, amounts: Sequence[int], repeats: int, seed: int, *, mean_only: bool = False) -> Iterator[Outcome]:
    """Every fault, every amount of evidence, some repeats."""
    chance = random.Random(seed)
    right = {}
    weights = {e.id: e.prior for e in pair.listed}
    known = {e.id: e for e in pair.listed}
    for name in FAULTS:
        if "+" in name and all(n in known for n in name.split("+")):
            both = combine(*(known[n] for n in name.split("+")))
            weights[name] = 0.0 if both is None else both.prior
    for name, requests in pair.faults():
        whole = Walked.zero(STEPS)
        for request in requests:
            whole.add(request)
        if whole.drafts == 0:
            continue
        length = 1 + sum(whole.low) / whole.drafts
        right.setdefault(AS_TRAINED, length)
        for drafts in amounts:
            for _ in range(repeats):
                counted = serve(requests, drafts, chance)
                seen = as_mean(counted) if mean_only else counted
                found = survey(pair.remembering, pair.tool, pair.listed, seen)
                limits = pair.predictor.limits([], found.predictions[0].rates)
                result = diagnose(seen, found, pair.listed, limits)
                first = result.explanations[0]
                # By more than sampling error: two standard errors of a mean over so many verifications.
                differs = abs(length - right[AS_TRAINED]) > 2 * (found.get(AS_TRAINED).run_variance * 1.5 / drafts) ** 0.5
                yield Outcome(
                    truth=name, drafts=drafts, first=first.id, probability=first.probability, grouped=name in (first.id, *first.indistinguishable),
                    verdict=result.verdict, differs=differs, weight=weights.get(name, sum(weights.values()) * UNKNOWN_SHARE / len(OUTSIDE)),
                )  # fmt: skip


def table(outcomes: Sequence[Outcome]) -> str:
    """Markdown: per amount of evidence, over all faults and pairs."""
    lines = [
        "| drafts | cases | first is right | right, or in the group that looks alike | of those that differ from right wiring | sure (>= 95 %) | sure and wrong | right one accused |",
        "|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for drafts in [*sorted({o.drafts for o in outcomes}), 0]:
        some = [o for o in outcomes if drafts in (0, o.drafts)]
        inside = [o for o in some if o.truth not in OUTSIDE]
        differ = [o for o in inside if o.differs]
        sure = [o for o in some if o.probability >= 0.95]
        wrong = [o for o in some if o.misleading]
        accused = [o for o in some if o.truth == AS_TRAINED and o.verdict == "wiring"]
        lines.append(
            f"| {drafts or 'all'} | {len(some)} | {_share([o.right for o in some])} | {_share([o.grouped for o in inside])} | {_share([o.grouped for o in differ])} "
            f"| {len(sure) / len(some):.0%} | {len(wrong) / len(some):.1%} | {len(accused)} |"
        )
    return "\n".join(lines)


def calibration(outcomes: Sequence[Outcome]) -> str:
    """Markdown: stated probability of the first explanation against how often it was right, cases weighted by the prior of their truth."""
    lines = ["| stated | cases | right |", "|---|---:|---:|"]
    for low, high in ((0.0, 0.3), (0.3, 0.5), (0.5, 0.7), (0.7, 0.9), (0.9, 0.95), (0.95, 1.01)):
        some = [o for o in outcomes if low <= o.probability < high]
        if some:
            weight = sum(o.weight for o in some)
            mean, right = (sum(o.weight * value for o, value in zip(some, values, strict=True)) / weight for values in ([o.probability for o in some], [o.right for o in some]))
            lines.append(f"| {low:.0%} to {min(high, 1.0):.0%} (mean {mean:.0%}) | {len(some)} | {right:.0%} |")
    return "\n".join(lines)


def outside(outcomes: Sequence[Outcome]) -> str:
    """Markdown: what is said of faults that no catalogue holds."""
    lines = ["| fault outside the catalogue | cases | none of these | a name, surely | right wiring |", "|---|---:|---:|---:|---:|"]
    for name in OUTSIDE:
        some = [o for o in outcomes if o.truth == name]
        if some:
            named = [o.first not in (UNKNOWN, AS_TRAINED) and o.probability >= 0.95 for o in some]
            lines.append(f"| {name} | {len(some)} | {_share([o.first == UNKNOWN for o in some])} | {_share(named)} | {_share([o.first == AS_TRAINED for o in some])} |")
    return "\n".join(lines)


def _share(hits: Sequence[bool]) -> str:
    return f"{sum(hits) / len(hits):.0%}" if hits else "-"


def main() -> int:
    """Simulate and print the three tables."""
    parser = argparse.ArgumentParser(description="Accuracy and calibration of eagle3-diag diagnose, by simulation.")
    parser.add_argument("--pair", nargs=3, type=Path, action="append", metavar=("DRAFTER", "TARGET", "SAMPLES"))
    parser.add_argument("--drafts", type=int, nargs="+", default=[50, 200, 1000, 5000])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--max-samples", type=int, default=64)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--list-wrong", action="store_true")
    parser.add_argument("--save", type=Path, metavar="FILE", help="also write every case, a line of JSON each, as soon as it is known")
    parser.add_argument("--mean-only", action="store_true", help="give the tool a mean with two digits instead of counts")
    parser.add_argument("--merge", type=Path, nargs="+", metavar="FILE", help="print the tables of saved cases instead of simulating")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    paths = demo.paths()
    outcomes = [Outcome(**json.loads(line)) for file in arguments.merge or () for line in file.read_text("utf-8").splitlines()]
    pairs = [] if arguments.merge else arguments.pair or [(paths.drafter, paths.target, paths.samples)]
    with nullcontext() if arguments.save is None else arguments.save.open("w", encoding="utf-8") as saved:
        for drafter, target, samples in pairs:
            pair = Pair(drafter, target, samples, arguments.max_samples)
            for outcome in simulate(pair, arguments.drafts, arguments.repeats, arguments.seed, mean_only=arguments.mean_only):
                outcomes.append(outcome)
                if saved is not None:
                    saved.write(json.dumps(asdict(outcome)) + "\n")
                    saved.flush()
                if arguments.list_wrong and not outcome.right and (outcome.probability >= 0.95 or (outcome.differs and not outcome.grouped)):
                    print(f"{'sure and ' if outcome.misleading else ''}wrong: {outcome}", file=sys.stderr, flush=True)
    print("\n\n".join((table(outcomes), calibration(outcomes), outside(outcomes))))
    return 0


if __name__ == "__main__":
    sys.exit(main())
