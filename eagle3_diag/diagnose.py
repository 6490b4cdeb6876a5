"""Weights or wiring? From what was predicted and what was served to a verdict in words a person acts on. Pure: takes data, returns data.

The four verdicts: ``quality`` (served as well as the weights allow), ``wiring`` (a fault, or one of a group, or one that is in no catalogue),
``training-convention`` (the data were made differently from what the config says), ``insufficient`` (what to collect).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from eagle3_diag.catalogue import AS_TRAINED, UNKNOWN, Catalogue
from eagle3_diag.catalogue.explanation import Explanation
from eagle3_diag.claims import Claim
from eagle3_diag.evidence import ASSUMED_DRAFTS, TELLING, Prediction, differing_rows, discrimination, drafts_to_tell, exact_fit
from eagle3_diag.observed import Observed
from eagle3_diag.predict import Limits
from eagle3_diag.survey import Survey

Verdict = Literal["quality", "wiring", "training-convention", "insufficient"]

#: Right wiring and what cannot be told from it: at least this probable to clear a server, at most that to accuse it.
_CLEARED, _ACCUSED = 0.5, 0.05
#: Share of the accepted drafts that a fault may take and still leave a server "as good as right".
_HARMLESS = 0.03
#: Fewer counted drafts than these clear nobody.
_FEW = 20
#: "None of these" from this probability on.
_NONE = 0.5
#: Share of the expected accepted drafts that must be missing for "none of these" to be called a fault rather than other traffic.
_MISSING = 0.25
#: Explanations shown beside the likelier ones must be at least this probable.
SHOWN = 0.005
#: How much longer than right wiring's another wiring's predicted length must be to be worth a word.
_LONGER = 1.1

_COLLECT = "Collect the accepted drafts per position (vLLM: /metrics; SGLang: spec_accept_histogram), or ask the server for single rows: eagle3-diag probe."


@dataclass(frozen=True, kw_only=True)
class Speeds:
    """Tokens per second without speculation and with it as served."""

    baseline: float
    served: float


@dataclass(frozen=True, kw_only=True)
class SpeedModel:
    """A speculative step costs ``step_cost`` plain decoding steps, which is the break-even acceptance length; ``right`` is tok/s when wired right."""

    baseline: float
    served: float
    step_cost: float
    right: float


@dataclass(frozen=True, kw_only=True)
class Ranked:
    """One explanation, weighed. ``predicted`` shares of verifications whose steps 0..k are accepted (None for unknown)."""

    id: str
    title: str
    family: str | None
    probability: float
    log_ratio: float
    indistinguishable: tuple[str, ...]
    length: float | None
    marginal: tuple[float, ...] | None
    counted: tuple[int, ...] | None
    drafts: int | None
    samples: int
    mend: str
    check: str
    incidents: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Diagnosis:
    """Everything a report says. ``text`` are sentences: what, why, what to change, what to expect; ``tell`` the one check that would tell more."""

    verdict: Verdict
    headline: str
    text: tuple[str, ...]
    tell: str
    explanations: tuple[Ranked, ...]
    observed: Observed
    same_requests: bool
    right_length: float
    right_ci95: tuple[float, float]
    right_marginal: tuple[float, ...]
    limits: Limits
    speed: SpeedModel | None
    claim: Claim | None


def diagnose(
    observed: Observed,
    found: Survey,
    listed: Catalogue,
    limits: Limits,
    *,
    same_requests: bool = False,
    claim: Claim | None = None,
    speeds: Speeds | None = None,
) -> Diagnosis:
    """The verdict and what supports it."""
    case = _Case(observed, found, listed, same_requests)
    right = case.right
    error, _ = right.spread("step")
    speed = None if speeds is None else speed_model(observed.length, right.length, speeds)
    verdict, headline, sentences, tell = _decide(case, limits, claim)
    if speed is not None:
        sentences = [*sentences, _speed_sentence(speed, observed.length, right.length)]
    return Diagnosis(
        verdict=verdict, headline=headline, text=tuple(sentences), tell=tell, explanations=tuple(case.ranked()), observed=observed,
        same_requests=same_requests, right_length=right.length, right_ci95=(max(1.0, right.length - 1.96 * error), right.length + 1.96 * error),
        right_marginal=right.marginal, limits=limits, speed=speed, claim=claim,
    )  # fmt: skip


def speed_model(length: float, right: float, speeds: Speeds) -> SpeedModel:
    """tok/s = acceptance length / cost of a step; the cost, in plain decoding steps, is length x baseline / served."""
    cost = length * speeds.baseline / speeds.served
    return SpeedModel(baseline=speeds.baseline, served=speeds.served, step_cost=cost, right=right / cost * speeds.baseline)


class _Case:
    """The evidence, with the questions that verdicts ask of it."""

    def __init__(self, observed: Observed, found: Survey, listed: Catalogue, same_requests: bool) -> None:
        self.observed, self.found, self.listed, self.same = observed, found, listed, same_requests
        self.by_id = {p.explanation.id: p for p in found.predictions}
        self.right = self.by_id[AS_TRAINED]
        self.probability = found.weighing.probability
        self.order = found.weighing.ranked()
        self.named = [name for name in self.order if name != UNKNOWN]
        self._groups: dict[str, tuple[str, ...]] = {}

    def apart(self, a: str, b: str) -> bool:
        """Whether evidence of this kind and amount would tell the two."""
        ahead, behind = self.by_id[a], self.by_id[b]
        weighing = self.found.weighing
        both = (
            discrimination(ahead, behind, self.observed, weighing.dispersion, same_requests=self.same),
            discrimination(behind, ahead, self.observed, weighing.dispersion, same_requests=self.same),
        )
        return min(both) >= TELLING

    def group(self, name: str) -> tuple[str, ...]:
        """Ids that this evidence cannot tell from it, likelier ones first."""
        if name == UNKNOWN:
            return ()
        if name not in self._groups:
            logs = self.found.weighing.log_likelihood

            def alike(other: str) -> bool:
                """By what was seen, or (where that came out extreme by chance) by what such evidence can show."""
                ratio = abs(logs[other] - logs[name])
                return ratio < TELLING or (ratio < 2 * TELLING and not self.apart(name, other))

            # Of the very requests, what predicts the counts exactly is apart from all that could and does not, however near that comes.
            exactly = self.same and exact_fit(self.observed, self.by_id[name].totals[0])
            possible = [other for other in self.named if other != name and not (exactly and self._contradicted(other))]
            self._groups[name] = tuple(other for other in possible if alike(other))
        return self._groups[name]

    def _contradicted(self, name: str) -> bool:
        """Whether an explanation that predicts the very counts predicts others."""
        prediction = self.by_id[name]
        return prediction.explanation.exact and not exact_fit(self.observed, prediction.totals[0])

    def harmless(self, name: str) -> bool:
        """Whether it takes so little of the acceptance that nobody would look for it."""
        return self.by_id[name].length - 1 >= (1 - _HARMLESS) * (self.right.length - 1)

    @property
    def cleared(self) -> float:
        """Probability of right wiring and of what neither evidence nor a user can tell from it."""
        return self.probability[AS_TRAINED] + sum(self.probability[name] for name in self.group(AS_TRAINED) if self.harmless(name))

    def ranking(self) -> list[str]:
        """Ids as they are listed: most probable first, but "none of these" behind faults that cannot be told apart and that together are likelier."""
        if self.order[0] != UNKNOWN:
            return self.order
        ahead = (self.named[0], *self.group(self.named[0]))
        if math.fsum(self.probability[name] for name in ahead) <= self.probability[UNKNOWN]:
            return self.order
        last = max(self.named.index(name) for name in ahead)
        return [*self.named[: last + 1], UNKNOWN, *self.named[last + 1 :]]

    def ranked(self) -> list[Ranked]:
        top = max(self.found.weighing.log_likelihood.values())
        out = []
        for name in self.ranking():
            log_ratio = self.found.weighing.log_likelihood[name] - top
            if name == UNKNOWN:
                out.append(
                    Ranked(
                        id=UNKNOWN, title="None of these", family=None, probability=self.probability[name], log_ratio=log_ratio, indistinguishable=(),
                        length=None, marginal=None, counted=None, drafts=None, samples=0, mend="Ask the server for single rows: eagle3-diag probe.",
                        check="eagle3-diag probe shows the rows where the server departs from right wiring.", incidents=(),
                    )
                )  # fmt: skip
                continue
            prediction = self.by_id[name]
            explanation, total = prediction.explanation, prediction.totals[0]
            out.append(
                Ranked(
                    id=name, title=explanation.title, family=explanation.family, probability=self.probability[name], log_ratio=log_ratio,
                    indistinguishable=self.group(name), length=prediction.length, marginal=prediction.marginal,
                    counted=tuple(total.low) if self.same else None, drafts=total.drafts if self.same else None, samples=prediction.samples,
                    mend=explanation.mend, check=explanation.check, incidents=explanation.incidents,
                )
            )  # fmt: skip
        return out


def _decide(case: _Case, limits: Limits, claim: Claim | None) -> tuple[Verdict, str, list[str], str]:
    cleared, none = case.cleared, case.probability[UNKNOWN]
    if claim is not None and claim.explained:
        return _training(case, claim)
    claimed = [] if claim is None else [_claim_sentence(claim)]
    few = case.observed.drafts is not None and case.observed.drafts < _FEW
    if cleared >= _CLEARED and not few:
        longer = _longer(case)
        if longer is not None:
            return _convention(case, longer, claimed)
        return _quality(case, limits, claimed)
    if cleared <= _ACCUSED:
        return _none(case, claimed) if none >= _NONE else _wiring(case, claimed)
    return _insufficient(case, claimed)


# ---- the four verdicts -----------------------------------------------------------------------------------------------


def _quality(case: _Case, limits: Limits, claimed: list[str]) -> tuple[Verdict, str, list[str], str]:
    sentences = [_served(case), f"Wired as trained, these weights give {_predicted(case.right)} on the samples, so the server does what they allow."]
    if case.same and exact_fit(case.observed, case.right.totals[0]):
        sentences[-1] = f"Wired as trained, these very requests take {case.right.totals[0].drafts:,} verifications with exactly these accepted drafts."
    others = [name for name in case.group(AS_TRAINED) if case.probability[name] >= SHOWN and case.by_id[name].length < case.right.length - 0.005]
    if others:
        worst = min(case.by_id[name].length for name in others)
        sentences.append(
            f"Not excluded by this evidence, but hardly told from right wiring by it (predicted length {worst:.2f} or more): {_names(others)}."
        )
    sentences += claimed
    sentences += _limiting(limits)
    tell = _tell(case, AS_TRAINED, others)
    return "quality", f"Served as well as the weights allow: acceptance length {case.observed.length:.2f}", sentences, tell


def _limiting(limits: Limits) -> list[str]:
    """What would have to change for a longer acceptance."""
    out = []
    if limits.labelled and limits.covered < 0.97 * limits.labelled:
        out.append(f"The draft vocabulary holds {limits.covered / limits.labelled:.1%} of the target's tokens in these samples; rebuild it from data like them.")
    known = [(k, r) for k, r in enumerate(limits.rates) if r is not None]
    if len(known) > 1:
        k, worst = min(known[1:], key=lambda each: each[1])
        first = known[0][1]
        if worst < 0.8 * first:
            out.append(
                f"A draft is right {first:.0%} of the time at step 0, but {worst:.0%} at step {k} after right ones: train with more draft steps (on the drafter's own states), "
                f"or serve fewer than {len(limits.rates)}."
            )
        elif first < 0.7:
            out.append(f"The first draft is right {first:.0%} of the time only: more or closer training data is what helps.")
    out.append("If real traffic is slower than these samples predict, it differs from them: take samples from the traffic itself.")
    return out


def _wiring(case: _Case, claimed: list[str]) -> tuple[Verdict, str, list[str], str]:
    best = case.named[0]
    prediction, explanation = case.by_id[best], case.by_id[best].explanation
    group = [name for name in case.group(best) if case.probability[name] >= SHOWN]
    together = case.probability[best] + sum(case.probability[name] for name in group)
    if group:
        headline = f"Wiring, one of {len(group) + 1} that look alike: {_lower(explanation.title)} (all together {together:.0%})"
    else:
        headline = f"Wiring: {_lower(explanation.title)} ({case.probability[best]:.0%})"
    only_mean = case.observed.rates is None and bool(group)
    if only_mean:
        headline = f"Wiring, but a mean alone fits {len(group) + 1} faults (all together {together:.0%})"
    sentences = [_served(case)]
    if case.same and exact_fit(case.observed, prediction.totals[0]):
        sentences.append(f"Wired as trained, these very requests would take {case.right.totals[0].drafts} verifications, under {best} exactly the {prediction.totals[0].drafts} that were counted.")
    else:
        sentences.append(
            f"Wired as trained, these weights give {_predicted(case.right)}; under {best} they give {_predicted(prediction)}. "
            f"The evidence is {_odds(case, best)} against right wiring."
        )
    if only_mean:
        listed = ", ".join(f"{name} ({case.probability[name]:.0%})" for name in (best, *group)[:6])
        sentences.append(f"A mean alone cannot tell faults that cost equally much. It fits {listed}{f' and {len(group) - 5} more' if len(group) > 5 else ''}.")
        sentences.append(_COLLECT)
    elif group:
        sentences.append(f"This evidence cannot tell {best} from {_names(group)}.")
    others = [name for name in case.named if name not in (best, *group, AS_TRAINED) and case.probability[name] >= 0.02]
    if others:
        sentences.append("Less likely: " + ", ".join(f"{name} ({case.probability[name]:.0%})" for name in others[:4]) + ".")
    # Nobody should change a server for one of a dozen candidates that one number cannot tell apart.
    sentences.append(f"Once it is known which: {explanation.id} is mended so: {explanation.mend}" if only_mean else f"Change: {explanation.mend}")
    sentences.append(f"Expect after that about {case.right.length:.2f} tokens per verification instead of {case.observed.length:.2f}.")
    return "wiring", headline, [*sentences, *claimed], _tell(case, best, group or others[:1])


def _none(case: _Case, claimed: list[str]) -> tuple[Verdict, str, list[str], str]:
    right, seen = case.right.length - 1, case.observed.length - 1
    sentences = [_served(case), f"Wired as trained, these weights give {_predicted(case.right)}; neither that nor any fault in the catalogue, nor two at once, gives what was served."]
    best = case.named[0]
    sentences.append(f"The nearest is {best} with {_predicted(case.by_id[best])} ({case.probability[best]:.0%}).")
    if case.listed.untestable:
        sentences.append(f"{len(case.listed.untestable)} more could not be tested from these samples (first: {case.listed.untestable[0].explanation.id}).")
    tell = "eagle3-diag probe asks the server for single rows: it shows the first rows where it departs from right wiring, whatever the traffic."
    if case.same or seen < (1 - _MISSING) * right:
        sentences.append("So it is a fault that the catalogue does not know: other weights, another target, or a broken kernel.")
        return "wiring", "Wiring or environment at fault, but none of the known faults", [*sentences, *claimed], tell
    what = "more" if seen > right else "less"
    sentences.append(f"The server accepts {what} than the samples predict: either its traffic differs from them, or the fault is not a known one.")
    tell = "Take samples from the traffic itself, or send the samples' own prompts and give --same-requests; eagle3-diag probe needs neither."
    return "insufficient", "None of the known wirings gives this profile", [*sentences, *claimed], tell


def _insufficient(case: _Case, claimed: list[str]) -> tuple[Verdict, str, list[str], str]:
    top = [name for name in case.order[:5] if case.probability[name] >= 0.02]
    sentences = [
        _served(case),
        f"Wired as trained, these weights give {_predicted(case.right)}. That is neither confirmed nor excluded (probability {case.cleared:.0%} with what looks alike); "
        "possible are " + ", ".join(f"{name} ({case.probability[name]:.0%})" for name in top) + ".",
    ]
    if case.observed.rates is None:
        sentences += ["A mean alone cannot tell faults that cost equally much, nor a fault from harder traffic.", _COLLECT]
    if case.observed.drafts is None:
        sentences.append(f"How many verifications the figures rest on is not said; {ASSUMED_DRAFTS} were assumed.")
    rival = next((name for name in case.named if name != AS_TRAINED), AS_TRAINED)
    return "insufficient", "Not enough evidence to tell weights from wiring", [*sentences, *claimed], _tell(case, AS_TRAINED, [rival])


def _training(case: _Case, claim: Claim) -> tuple[Verdict, str, list[str], str]:
    best = claim.others[0]
    names = [r.explanation.id for r in claim.others]
    sentences = [
        (f"The claimed {claim.claimed:.1%} ({claim.trainer}, draft step 0) is not reached wired as the config says: {claim.right.accuracy:.1%} on these samples "
        f"(two standard errors {max(claim.right.error, 0.001):.1%})."),
        f"It is reached under {best.explanation.id} ({best.accuracy:.1%}): {_lower(best.explanation.title)}. So the training data were made that way, while the config says otherwise.",
    ]
    if len(names) > 1:
        sentences.append(f"Also reached under {_names(names[1:])}.")
    sentences += [_served(case), f"Wired as the config says, these weights give {_predicted(case.right)}."]
    length = _length_under(case, best.explanation)
    if length is not None:
        sentences.append(f"Served under that convention they would give {length:.2f} tokens per verification.")
    sentences.append("Change: make the config say how the data were made (ids of the captured layers, norms, order), or make the data again as the config says and train again.")
    return "training-convention", f"Training convention: the claimed accuracy is that of another wiring ({best.explanation.id})", sentences, best.explanation.check


def _convention(case: _Case, longer: Prediction, claimed: list[str]) -> tuple[Verdict, str, list[str], str]:
    explanation = longer.explanation
    sentences = [
        _served(case),
        f"That is what wiring as the config says gives ({_predicted(case.right)}), but {explanation.id} would give more: {_predicted(longer)}.",
        f"Weights serve best the way they were trained: {_lower(explanation.title)}, in the training data, while the config says otherwise.",
        "Change: make the config say how the data were made (ids of the captured layers, norms, order), or make the data again as the config says and train again.",
    ]
    return "training-convention", f"Training convention: the weights do better under {explanation.id}", [*sentences, *claimed], explanation.check


# ---- parts of sentences ----------------------------------------------------------------------------------------------


def _longer(case: _Case) -> Prediction | None:
    """The explanation under which the weights accept clearly more than wired as the config says."""
    found = []
    for prediction in case.found.predictions:
        mine, theirs = prediction.spread("step")[0], case.right.spread("step")[0]
        gain = prediction.length - case.right.length
        if prediction.explanation.exact and "+" not in prediction.explanation.id and prediction.length - 1 > _LONGER * (case.right.length - 1) and gain > 3 * math.hypot(mine, theirs):
            found.append(prediction)
    return max(found, key=lambda p: (p.length, p.explanation.id), default=None)


def _length_under(case: _Case, explanation: Explanation) -> float | None:
    prediction = case.by_id.get(explanation.id)
    return None if prediction is None or not explanation.served else prediction.length


def _served(case: _Case) -> str:
    observed = case.observed
    mean = "as a mean over requests" if observed.per == "request" else "per verification"
    counted = "" if observed.drafts is None else f" from {observed.drafts:,} drafts"
    profile = "" if observed.rates is None else f", accepted per position {_shares(observed.rates)}"
    return f"Served: {observed.length:.2f} tokens {mean} at K = {observed.steps}{counted}{profile}."


def _predicted(prediction: Prediction) -> str:
    return f"{prediction.length:.2f} ({_shares(prediction.marginal)})"


def _shares(shares: Sequence[float]) -> str:
    shown = ", ".join(f"{share:.2f}" if share >= 0.005 or share == 0 else f"{share:.3f}" for share in shares[:6])
    return shown + (", ..." if len(shares) > 6 else "")


def _odds(case: _Case, name: str) -> str:
    log = case.found.weighing.log_likelihood[name] - case.found.weighing.log_likelihood[AS_TRAINED]
    if log > math.log(1e6):
        return "more than a million to one"
    if log < math.log(1.5):
        return "even"
    return f"{_round(math.exp(log))} to one"


def _round(value: float) -> str:
    digits = max(0, math.floor(math.log10(value)) - 1)
    return f"{round(value / 10**digits) * 10**digits:,.0f}"


def _names(names: Sequence[str]) -> str:
    shown = ", ".join(names[:6])
    return shown + (f" and {len(names) - 6} more" if len(names) > 6 else "")


def _lower(title: str) -> str:
    return title if title[:2].isupper() or title.startswith("RoPE") else title[:1].lower() + title[1:]


def _claim_sentence(claim: Claim) -> str:
    if claim.holds:
        return f"The claimed {claim.claimed:.1%} ({claim.trainer}, draft step 0) holds on these samples: {claim.right.accuracy:.1%} wired as trained."
    if claim.claimed < claim.right.accuracy:
        return f"The samples show more than the claimed {claim.claimed:.1%} ({claim.trainer}, draft step 0): {claim.right.accuracy:.1%}."
    return (
        f"The claimed {claim.claimed:.1%} ({claim.trainer}, draft step 0) is reached under no known wiring; wired as trained it is {claim.right.accuracy:.1%}: "
        "the claim is of other data, another step or another definition."
    )


def _speed_sentence(speed: SpeedModel, length: float, right: float) -> str:
    gain = f"{speed.right / speed.baseline:.2f}x the {speed.baseline:g} tok/s without speculation"
    pays = "pays" if right > speed.step_cost else "does not pay"
    return (
        f"A speculative step costs {speed.step_cost:.2f} plain ones ({speed.served:g} tok/s at length {length:.2f}), which is the break-even acceptance length: "
        f"wired right, {right:.2f} would give about {speed.right:.1f} tok/s, {gain}, so speculation {pays}."
    )


def _tell(case: _Case, name: str, others: Sequence[str]) -> str:
    """The one check that would tell ``name`` from the others."""
    rivals = [other for other in others if other in case.by_id and other != name]
    if not rivals:
        return case.by_id[name].explanation.check
    rival = rivals[0]
    differ, rows = differing_rows(case.by_id[name], case.by_id[rival])
    if differ:
        advice = f"eagle3-diag probe: {name} and {rival} predict another run on {differ:,} of {rows:,} stored rows, so asking for some of them tells."
    else:
        advice = f"No single row tells {name} from {rival}. {case.by_id[rival].explanation.check}"
    if not case.same:
        needed = drafts_to_tell(case.by_id[name], case.by_id[rival], case.found.weighing.dispersion)
        if needed is not None and needed > (case.observed.drafts or 0):
            advice += f" Counters of about {needed:,} drafts would tell as well."
    return advice
