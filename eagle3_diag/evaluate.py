"""A drafter against its target on stored samples: reads, rolls out, counts. Returns data; shows nothing.

The three serving modes (docs/eagle3_diag/serving-modes.md derives them):

``greedy``          the target decodes greedily: a draft is accepted when it is the target's argmax.
``sampled-argmax``  the target samples, drafts are argmaxes accepted with the target's probability (vLLM at temperature > 0): along text
                    that the target sampled, a draft is accepted exactly when it is the stored token.
``sampled``         rejection sampling with the drafter's own distribution q against the target's p: the chance that steps 0..k are all
                    accepted is the mean over rows of prod min(1, q/p) along the stored tokens.
"""

from __future__ import annotations

import math
import resource
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Literal

import torch

from eagle3_diag import heads, trainers
from eagle3_diag.acceptance import (
    NO_TOKEN,
    AcceptanceTable,
    SampleResult,
    Serving,
    StepCounts,
    Walk,
    WalkCounts,
    segments,
    step_counts,
    walk_drafts,
)
from eagle3_diag.breakdown import break_down
from eagle3_diag.checkpoint.interface import DrafterCheckpoint
from eagle3_diag.drafter import Drafter, Weights
from eagle3_diag.errors import InputError, OutOfMemory
from eagle3_diag.final_state import FinalState, Normalisation, check_final_state, summarise
from eagle3_diag.rollout import WalkPool, draft_log_probabilities, reach, rollout, target_labels, target_states
from eagle3_diag.samples.checks import check_range, check_tokens, fit_states
from eagle3_diag.samples.interface import Sample
from eagle3_diag.target import Target
from eagle3_diag.wiring import Wiring

ServingMode = Literal["greedy", "sampled-argmax", "sampled"]
Labels = Literal["full", "draft-vocab"]


@dataclass(frozen=True, kw_only=True)
class Options:
    """What to evaluate and how; defaults are the command line's."""

    steps: int = 6
    only_serving: bool = False
    labels: Labels = "full"
    serving_mode: ServingMode = "greedy"
    temperature: float = 1.0
    max_rows: int | None = None
    trainer: str | None = None
    seed: int = 0
    pool: int = 64


@dataclass(frozen=True, kw_only=True)
class Vocabulary:
    """``covered`` of ``labelled`` target tokens can be drafted at all; ``ceiling`` is the acceptance length of a drafter that is always
    right where it can be (None in sampled mode)."""

    covered: int
    labelled: int
    ceiling: float | None

    @property
    def coverage(self) -> float | None:
        return self.covered / self.labelled if self.labelled else None


@dataclass(frozen=True, kw_only=True)
class Timing:
    """Seconds, and bytes of the process's peak resident memory (of the device's on CUDA)."""

    load: float
    evaluate: float
    rows: int
    peak_memory: int

    @property
    def rows_per_second(self) -> float:
        return self.rows / self.evaluate if self.evaluate > 0 else 0.0


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """Everything that a report shows. ``accuracy`` is None with ``only_serving``."""

    options: Options
    wiring: Wiring
    table: AcceptanceTable
    serving: Serving
    accuracy: StepCounts | None
    trainer: StepCounts | None
    trainer_definition: str | None
    vocabulary: Vocabulary
    sample_formats: tuple[str, ...]
    samples: int
    tokens: int
    rows: int
    normalisation: Normalisation
    warnings: tuple[str, ...]
    timing: Timing
    device: str
    dtype: str


@dataclass
class _Run:
    drafter: Drafter
    target: Target
    options: Options
    table: AcceptanceTable
    known_V: torch.Tensor
    rows: int = 0
    tokens: int = 0
    formats: set[str] = field(default_factory=set)


@dataclass(frozen=True)
class _Loaded:
    """A sample on the device: int64 tokens, bool mask, aux states, and what the target's head is applied to."""

    name: str
    tokens_N: torch.Tensor
    mask_N: torch.Tensor
    stored_mask_N: torch.Tensor
    aux: list[torch.Tensor]
    state_NH: torch.Tensor | None
    responses: list[tuple[int, int]]

    @property
    def rows_R(self) -> torch.Tensor:
        """Rows whose next token is of a response."""
        return torch.nonzero(self.mask_N[1:], as_tuple=True)[0]


def resolve_device(name: str) -> torch.device:
    """``auto`` takes CUDA where there is one. Raises InputError for a device that is not here, or of a kind that nothing here is tested on."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    device: torch.device | None
    try:
        device = torch.device(name)
    except RuntimeError:
        device = None
    if device is None or device.type not in ("cpu", "cuda") or (device.type == "cpu" and device.index):
        raise InputError(f"--device {name}: not a device that can be used here; use auto, cpu, cuda or cuda:N")
    if device.type == "cuda" and (not torch.cuda.is_available() or (device.index or 0) >= torch.cuda.device_count()):
        raise InputError(f"--device {name}: torch sees {torch.cuda.device_count()} CUDA devices here; use --device cpu or auto")
    return device


def resolve_dtype(name: str, device: torch.device) -> torch.dtype:
    """``auto`` is float32 on a CPU (exact, and what the figures of the peers are in) and bfloat16 on a GPU (what servers run)."""
    if name == "auto":
        return torch.bfloat16 if device.type == "cuda" else torch.float32
    return {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}[name]


def evaluate(
    checkpoint: DrafterCheckpoint,
    target: Target,
    samples: Iterable[Sample],
    options: Options,
    *,
    device: torch.device,
    dtype: torch.dtype,
    wiring: Wiring | None = None,
    progress: Callable[[int], None] | None = None,
) -> Evaluation:
    """Evaluate a drafter on samples, one at a time.

    ``progress`` is called with the number of rows done after each sample. Raises InputError for inputs that do not fit together and
    OutOfMemory when the machine is too small.
    """
    with memory_in_words(device), torch.inference_mode():
        return _evaluate(checkpoint, target, samples, options, device, dtype, wiring, progress)


@contextmanager
def memory_in_words(device: torch.device) -> Iterator[None]:
    """Turn torch's and Python's errors for too little memory into :class:`OutOfMemory`."""
    try:
        yield
    except (torch.OutOfMemoryError, MemoryError):
        raise OutOfMemory(_memory_sentence(device)) from None
    except RuntimeError as error:
        if "can't allocate memory" in str(error):
            raise OutOfMemory(_memory_sentence(device)) from None
        raise


def _memory_sentence(device: torch.device) -> str:
    return f"out of memory on {device}: use shorter samples, --dtype bfloat16, or a machine with more memory (only one sample and the drafter are held at a time)"


def _evaluate(
    checkpoint: DrafterCheckpoint,
    target: Target,
    samples: Iterable[Sample],
    options: Options,
    device: torch.device,
    dtype: torch.dtype,
    wiring: Wiring | None,
    progress: Callable[[int], None] | None,
) -> Evaluation:
    started = time.perf_counter()
    drafter = Drafter(Weights(checkpoint, target, device, dtype), wiring)
    _check_pair(checkpoint, target)
    table = AcceptanceTable(options.steps, options.serving_mode)
    run = _Run(drafter, target, options, table, _known(drafter))
    loaded = time.perf_counter()
    trainer = None if options.trainer is None else trainers.get(options.trainer, checkpoint)
    pool = WalkPool(drafter, options.pool) if _pooled(run) else None
    waiting: list[tuple[_Loaded, Walk, WalkCounts, tuple[int, int]]] = []
    checks: list[FinalState] = []
    for sample in samples:
        limit = None if options.max_rows is None else options.max_rows - run.rows
        if limit is not None and limit <= 0:
            break
        one = _load(run, sample, limit, checks)
        run.rows += int(one.rows_R.numel())
        run.tokens += sample.length
        run.formats.add(sample.format)
        if pool is not None:
            waiting.append(_enter(run, pool, one))
            while pool.full:
                pool.tick()
        else:
            table.add(_one(run, one, trainer))
        if progress is not None:
            progress(run.rows)
    if pool is not None:
        while len(pool):
            pool.tick()
        for one, walk, ceiling, (covered, labelled) in waiting:
            table.add(
                SampleResult(
                    name=one.name, tokens=int(one.tokens_N.shape[0]), rows=int(one.rows_R.numel()), accuracy=None, walk=walk.counts,
                    ceiling=ceiling, covered=covered, labelled=labelled,
                )
            )  # fmt: skip
    if not table.samples:
        raise InputError("no sample could be read; check --samples")
    serving = table.serving(seed=options.seed)
    normalisation = summarise(checks)
    finished = time.perf_counter()
    return Evaluation(
        options=options,
        wiring=drafter.wiring,
        table=table,
        serving=serving,
        accuracy=None if options.only_serving else table.accuracy(),
        trainer=table.trainer() if trainer else None,
        trainer_definition=None if trainer is None else trainer.definition.text(),
        vocabulary=Vocabulary(
            covered=sum(s.covered for s in table.samples), labelled=sum(s.labelled for s in table.samples), ceiling=serving.ceiling
        ),
        sample_formats=tuple(sorted(run.formats)),
        samples=len(table.samples),
        tokens=run.tokens,
        rows=run.rows,
        normalisation=normalisation,
        warnings=normalisation.warnings,
        timing=Timing(load=loaded - started, evaluate=finished - loaded, rows=run.rows, peak_memory=_peak_memory(device)),
        device=str(device),
        dtype=str(dtype).removeprefix("torch."),
    )


def _known(drafter: Drafter) -> torch.Tensor:
    """Which tokens of the target the drafter can express, bool [V] on the CPU."""
    known_V = torch.full((drafter.config.vocab_size,), drafter.ids_D is None)
    if drafter.ids_D is not None:
        known_V[drafter.ids_D.cpu()] = True
    return known_V


def _peak_memory(device: torch.device) -> int:
    if device.type == "cuda":
        return int(torch.cuda.max_memory_allocated(device))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def _check_pair(checkpoint: DrafterCheckpoint, target: Target) -> None:
    """A drafter and a target must agree on the vocabulary and, where the drafter uses the target's weights, on the width."""
    drafter_V, target_V = checkpoint.config.vocab_size, target.config.vocab_size
    if drafter_V != target_V:
        raise InputError(
            f"the drafter at {checkpoint.path} was made for a vocabulary of {drafter_V} tokens, but the target at {target.path} has {target_V}; "
            "give the target that the drafter was trained for"
        )
    width = checkpoint.config.target_hidden_size
    if width != target.config.hidden_size:
        raise InputError(
            f"the drafter at {checkpoint.path} takes features of width {width}, but the target at {target.path} has hidden size "
            f"{target.config.hidden_size}; give the target that the drafter was trained for"
        )


def _pooled(run: _Run) -> bool:
    """Whether only the walk's rows are computed: needs a one-layer drafter and labels that say which rows those are."""
    return run.options.only_serving and run.options.serving_mode != "sampled" and run.drafter.num_layers == 1


def fits(checkpoint: DrafterCheckpoint, target: Target, wiring: Wiring | None = None) -> Callable[[Sample], Sample]:
    """A check for :func:`~eagle3_diag.samples.iter_samples`: the sample with the states the drafter takes, or InputError."""
    config = checkpoint.config
    inputs = (wiring or checkpoint.wiring).aux_layer_inputs

    def check(sample: Sample) -> Sample:
        sample = fit_states(sample, num_aux=config.num_aux, hidden_size=config.target_hidden_size, layer_inputs=inputs)
        return check_range(check_tokens(sample, target.config.vocab_size), torch.float32)

    return check


def _load(run: _Run, sample: Sample, limit: int | None, checks: list[FinalState]) -> _Loaded:
    """Move a sample to the device, verify its final state, cut it to ``limit`` rows."""
    device, dtype = run.drafter.weights.device, run.drafter.weights.dtype
    if dtype == torch.float16:  # the run ends here: it is the option that does not fit, not this sample
        check_range(sample, dtype)
    mask_N = sample.mask_N.clone()
    mask_N[0] = False  # nothing predicts the first token
    if limit is not None and int(mask_N.sum()) > limit:
        mask_N[torch.nonzero(mask_N, as_tuple=True)[0][limit:]] = False
    found = check_final_state(sample, run.target)
    normed = sample.final_normed
    if found is not None:
        normed = found.normed
        checks.append(found)
    state_NH = None
    if sample.final_NH is not None:
        state_NH = target_states(run.target, sample.final_NH, normed, device=device, dtype=dtype)
    elif run.options.serving_mode == "greedy" or not run.options.only_serving:
        raise InputError(
            f"{sample.name}: holds no final hidden state, so the target's own choice is unknown; use --only serving --serving-mode sampled-argmax, "
            "or samples that store it"
        )
    return _Loaded(
        name=sample.name,
        tokens_N=sample.tokens_N.to(device),
        mask_N=mask_N.to(device),
        stored_mask_N=sample.mask_N.to(device),
        aux=[state.to(device) for state in sample.aux_ANH],
        state_NH=state_NH,
        responses=segments(mask_N.tolist()),
    )


def _labels(run: _Run, one: _Loaded, ids_V: torch.Tensor | None, steps: int) -> torch.Tensor:
    """The target's argmax at the positions that can verify ``steps`` drafts, -1 elsewhere: int64 [n]."""
    assert one.state_NH is not None
    return target_labels(run.drafter, one.state_NH, reach(one.mask_N, steps), ids_V)


def _stored_labels(one: _Loaded) -> torch.Tensor:
    """Labels of ``sampled-argmax``: the stored next token inside a response, -1 elsewhere."""
    labels_N = torch.full_like(one.tokens_N, -1)
    for a, b in one.responses:
        labels_N[a - 1 : b - 1] = one.tokens_N[a:b]
    return labels_N


def _walk(run: _Run, one: _Loaded, labels_N: torch.Tensor) -> Walk:
    return Walk(one.tokens_N.tolist(), labels_N.tolist(), one.responses, run.options.steps)


def _vocabulary(run: _Run, one: _Loaded, labels_N: torch.Tensor) -> tuple[WalkCounts, tuple[int, int]]:
    """The walk of a drafter that is right wherever its vocabulary lets it be, and (covered, labelled) response tokens."""
    walk = _walk(run, one, labels_N)
    while not walk.done:
        walk.offer(walk.label if run.known_V[walk.label] else NO_TOKEN)
    inside = labels_N[one.mask_N & (labels_N >= 0)].cpu()
    return walk.counts, (int(run.known_V[inside].sum()), int(inside.numel()))


def _enter(run: _Run, pool: WalkPool, one: _Loaded) -> tuple[_Loaded, Walk, WalkCounts, tuple[int, int]]:
    labels_N = _labels(run, one, None, 1) if run.options.serving_mode == "greedy" else _stored_labels(one)
    walk = _walk(run, one, labels_N)
    ceiling, coverage = _vocabulary(run, one, labels_N)
    pool.add(walk, one.tokens_N, one.aux)
    light = replace(one, aux=[], state_NH=None)  # the features may go
    return light, walk, ceiling, coverage


def _one(run: _Run, one: _Loaded, trainer: trainers.Trainer | None) -> SampleResult:
    """All figures of one sample."""
    options, rows_R, steps = run.options, one.rows_R, run.options.steps
    sampled = options.serving_mode == "sampled"
    accuracy_N = None if options.only_serving else _labels(run, one, run.drafter.ids_D if options.labels == "draft-vocab" else None, steps)
    serving_N: torch.Tensor | None = None
    if options.serving_mode == "greedy":
        same = accuracy_N is not None and options.labels == "full"
        serving_N = accuracy_N if same else _labels(run, one, None, 1)
    elif options.serving_mode == "sampled-argmax":
        serving_N = _stored_labels(one)
    sets = [labels for labels in (accuracy_N, serving_N) if labels is not None]
    walk = ceiling = None
    accuracy = breakdown = None
    covered = labelled = 0
    if sets:
        distinct = sets[:1] if len(sets) == 2 and sets[0] is sets[1] else sets
        drafted = rollout(run.drafter, one.tokens_N, one.aux, steps=steps, rows_R=rows_R, labels_LN=torch.stack(distinct))
        if accuracy_N is not None:
            first_R = drafted.drafts_RK[:, 0] == accuracy_N[(rows_R + 1).clamp(max=int(accuracy_N.shape[0]) - 1)]
            breakdown = break_down(
                one.tokens_N.tolist(), accuracy_N.tolist(), rows_R.tolist(), first_R.tolist(), segments(one.mask_N.tolist()), run.known_V.tolist()
            )
            accuracy = step_counts(drafted.drafts_RK, rows_R, accuracy_N, one.mask_N)
        if serving_N is not None:
            table = dict(zip(rows_R.tolist(), drafted.drafts_RK.tolist(), strict=True))
            walk = walk_drafts(_walk(run, one, serving_N), table)
            ceiling, (covered, labelled) = _vocabulary(run, one, serving_N)
    chances, chance_rows = _chances(run, one) if sampled else (None, None)
    if sampled:
        _, (covered, labelled) = _vocabulary(run, one, _stored_labels(one))
    theirs = None
    if trainer is not None and one.state_NH is not None:
        theirs = trainer.count(run.drafter, one.tokens_N, one.aux, one.state_NH, one.stored_mask_N, steps)
    return SampleResult(
        name=one.name,
        tokens=int(one.tokens_N.shape[0]),
        rows=int(rows_R.numel()),
        accuracy=accuracy,
        walk=walk,
        ceiling=ceiling,
        covered=covered,
        labelled=labelled,
        chances=chances,
        chance_rows=chance_rows,
        trainer=theirs,
        breakdown=breakdown,
    )


def _chances(run: _Run, one: _Loaded) -> tuple[tuple[float, ...], tuple[int, ...]]:
    """Sums over rows of prod over steps 0..k of min(1, q/p) along the stored tokens, and the rows that have k+1 tokens left."""
    if one.state_NH is None:
        raise InputError(f"{one.name}: holds no final hidden state, which --serving-mode sampled needs for the target's probabilities")
    steps, temperature, config = run.options.steps, run.options.temperature, run.target.config
    rows_R = one.rows_R
    q_RK = draft_log_probabilities(run.drafter, one.tokens_N, one.aux, steps=steps, rows_R=rows_R, temperature=temperature)
    # log p of token q+1 at position q, for every position of a response
    at = torch.nonzero(_stored_labels(one) >= 0, as_tuple=True)[0]
    p_N = torch.zeros(one.tokens_N.shape[0], dtype=torch.float64, device=at.device)
    p_N[at] = heads.log_probability(
        one.state_NH[at], run.drafter.weights.target_head, one.tokens_N[at + 1], temperature=temperature, scale=config.logit_scale, softcap=config.logit_softcap
    )
    end_N = torch.zeros(one.tokens_N.shape[0], dtype=torch.int64, device=at.device)
    for a, b in one.responses:
        end_N[a - 1 : b] = b
    sums, counts = [], []
    log_R = torch.zeros(rows_R.shape[0], dtype=torch.float64, device=at.device)
    for k in range(steps):
        inside_R = rows_R + 2 + k < end_N[rows_R + 1]
        label_R = (rows_R + 1 + k).clamp(max=int(p_N.shape[0]) - 1)
        log_R = log_R + (q_RK[:, k] - p_N[label_R]).clamp(max=0.0)
        sums.append(math.fsum(log_R[inside_R].exp().tolist()))
        counts.append(int(inside_R.sum()))
    return tuple(sums), tuple(counts)
