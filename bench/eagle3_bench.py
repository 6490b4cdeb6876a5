"""Speed and memory of the evaluation against speculators' own forward and against bare matrix products, in one run.

    python bench/eagle3_bench.py [--dtype float32|bfloat16 ...] [--shape llama8b|small|kimi ...] [--only-catalogue] [--threads N]

Runs in an interpreter that has torch, safetensors and speculators (`nox -s bench` makes one); without speculators the peer's
lines are left out. Each part runs in a process of its own, so that peak memory is that part's.

Weights are random, but arranged so that 75 % of the rows survive each step (random ones would drop out at once and flatter us): o_proj
and down_proj are zero, so a row drafts the token its features stand for at every step, and the text repeats its last token with
probability 0.75. Every product is computed in full all the same.
"""

from __future__ import annotations

import argparse
import functools
import json
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from eagle3_diag.acceptance import StepCounts  # noqa: E402
from eagle3_diag.catalogue import catalogue  # noqa: E402
from eagle3_diag.checkpoint import read_drafter  # noqa: E402
from eagle3_diag.checkpoint.interface import DrafterCheckpoint  # noqa: E402
from eagle3_diag.drafter import Drafter, Weights  # noqa: E402
from eagle3_diag.evaluate import Evaluation, Options, evaluate  # noqa: E402
from eagle3_diag.observed import observed  # noqa: E402
from eagle3_diag.predict import Predictor, Walked  # noqa: E402
from eagle3_diag.samples.interface import Sample  # noqa: E402
from eagle3_diag.survey import survey  # noqa: E402
from eagle3_diag.target import Target, read_target  # noqa: E402

SHAPES: dict[str, dict[str, int]] = {
    "llama8b": {"hidden": 4096, "heads": 32, "kv": 8, "head_dim": 128, "intermediate": 14336, "vocab": 128256, "draft_vocab": 32000, "tokens": 513, "steps": 6},
    "kimi": {"hidden": 7168, "heads": 64, "kv": 64, "head_dim": 112, "intermediate": 18432, "vocab": 163840, "draft_vocab": 163840, "tokens": 129, "steps": 3},
    "small": {"hidden": 512, "heads": 8, "kv": 4, "head_dim": 64, "intermediate": 1024, "vocab": 4096, "draft_vocab": 2048, "tokens": 257, "steps": 6},
}
SURVIVAL = 0.75
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
SAMPLES_IN_WALK, TOKENS_IN_WALK = 64, 257
SAMPLES_IN_CATALOGUE = 40
CLOCKS: dict[str, Callable[[], float]] = {"wall": time.perf_counter, "cpu": time.process_time}
clock = time.perf_counter


def _random(shape: tuple[int, ...], scale: float, seed: int, dtype: torch.dtype) -> torch.Tensor:
    """Random normal numbers; large matrices repeat one block (what is in them does not matter to a product's time)."""
    generator = torch.Generator().manual_seed(seed)
    count, block = 1, (1 << 24) - 61  # no multiple of any width, so that no two rows are the same
    for n in shape:
        count *= n
    base = torch.randn(min(count, block), generator=generator).mul_(scale).to(dtype)
    return base.repeat(-(-count // base.numel()))[:count].view(shape).contiguous()


def make_pair(directory: Path, shape: dict[str, int], dtype: torch.dtype) -> None:
    """A drafter in speculators' format and a Llama target, random but arranged as the module says."""
    h, v, d = shape["hidden"], shape["vocab"], shape["draft_vocab"]
    q, kv, inter = shape["heads"] * shape["head_dim"], shape["kv"] * shape["head_dim"], shape["intermediate"]
    layer = {
        "hidden_size": h, "intermediate_size": inter, "num_attention_heads": shape["heads"], "num_key_value_heads": shape["kv"],
        "head_dim": shape["head_dim"], "num_hidden_layers": 1, "vocab_size": v, "rms_norm_eps": 1e-5, "model_type": "llama",
        "hidden_act": "silu", "max_position_embeddings": 8192, "rope_parameters": {"rope_type": "default", "rope_theta": 500000.0},
        "attention_bias": False, "mlp_bias": False, "tie_word_embeddings": False,
    }  # fmt: skip
    config = {
        "architectures": ["Eagle3DraftModel"], "speculators_model_type": "eagle3", "speculators_version": "0.6.0.2",
        "draft_vocab_size": d, "norm_before_residual": False, "norm_before_fc": False, "embed_requires_grad": False,
        "eagle_aux_hidden_state_layer_ids": [2, 16, 29], "target_hidden_size": None, "tie_word_embeddings": False,
        "speculators_config": {"algorithm": "eagle3", "default_proposal_method": "greedy",
                               "proposal_methods": [{"proposal_type": "greedy", "speculative_tokens": 3, "verifier_accept_k": 1, "accept_tolerance": 0.0}],
                               "verifier": {"name_or_path": str(directory / "target"), "architectures": ["LlamaForCausalLM"]}},
        "transformer_layer_config": layer,
    }  # fmt: skip
    ids = torch.arange(d)  # the most frequent tokens have the lowest ids in a BPE vocabulary
    t2d = torch.zeros(v, dtype=torch.bool)
    t2d[ids] = True
    zero_o, zero_down = torch.zeros(h, q, dtype=dtype), torch.zeros(h, inter, dtype=dtype)
    embedding = _random((v, h), 0.02, 1, dtype)
    drafter = {
        "fc.weight": _random((h, 3 * h), (3 * h) ** -0.5, 2, dtype),
        "layers.0.input_layernorm.weight": torch.ones(h, dtype=dtype),
        "layers.0.hidden_norm.weight": torch.ones(h, dtype=dtype),
        "layers.0.post_attention_layernorm.weight": torch.ones(h, dtype=dtype),
        "norm.weight": torch.ones(h, dtype=dtype),
        "layers.0.self_attn.q_proj.weight": _random((q, 2 * h), 0.02, 3, dtype),
        "layers.0.self_attn.k_proj.weight": _random((kv, 2 * h), 0.02, 4, dtype),
        "layers.0.self_attn.v_proj.weight": _random((kv, 2 * h), 0.02, 5, dtype),
        "layers.0.self_attn.o_proj.weight": zero_o,
        "layers.0.mlp.gate_proj.weight": _random((inter, h), 0.02, 6, dtype),
        "layers.0.mlp.up_proj.weight": _random((inter, h), 0.02, 7, dtype),
        "layers.0.mlp.down_proj.weight": zero_down,
        "lm_head.weight": _random((d, h), 0.02, 8, dtype),
    }
    if d != v:
        drafter |= {"d2t": ids - torch.arange(d), "t2d": t2d}
    target = {"model.embed_tokens.weight": embedding, "model.norm.weight": torch.ones(h, dtype=dtype), "lm_head.weight": _random((v, h), 0.02, 9, dtype)}
    target_config = {**layer, "architectures": ["LlamaForCausalLM"], "num_hidden_layers": 32}
    for name, cfg, tensors in (("drafter", config, drafter), ("target", target_config, target)):
        (directory / name).mkdir(parents=True)
        (directory / name / "config.json").write_text(json.dumps(cfg))
        save_file(tensors, directory / name / "model.safetensors", metadata={"format": "pt"})


def make_samples(directory: Path, shape: dict[str, int], dtype: torch.dtype, count: int) -> list[Sample]:
    """Samples whose text repeats its last token with probability SURVIVAL, and whose features stand for that token."""
    drafter = Drafter(Weights(read_drafter(directory / "drafter"), read_target(directory / "target"), torch.device("cpu"), dtype))
    head_VH = drafter.weights.target.head()
    generator = torch.Generator().manual_seed(99)
    n, h, prototypes = shape["tokens"], shape["hidden"], 16
    features_M = torch.randn((prototypes, 3 * h), generator=generator).to(dtype)
    with torch.inference_mode():
        token_M = drafter.argmax(drafter.project([s.contiguous() for s in features_M.split(h, dim=-1)]))
    samples = []
    for i in range(count):
        stay = torch.rand(n + 1, generator=generator) < SURVIVAL
        jump = torch.randint(1, prototypes, (n + 1,), generator=generator)
        at, state = [], 0
        for p in range(n + 1):
            state = state if p and bool(stay[p]) else (state + int(jump[p])) % prototypes
            at.append(state)
        label = torch.tensor(at)  # label of position p is what the text says at p+1
        tokens_N = torch.cat((token_M[label[:1]], token_M[label[: n - 1]]))
        states = features_M[label[:n]]  # features at t stand for the label at t, which is the next one's with probability SURVIVAL
        final_NH = head_VH[token_M[label[:n]]] * 100
        mask_N = torch.ones(n, dtype=torch.bool)
        mask_N[0] = False
        aux = tuple(s.contiguous() for s in states.split(h, dim=-1))
        samples.append(
            Sample(name=f"bench_{i}", format="bench", tokens_N=tokens_N, mask_N=mask_N, aux_ANH=aux, final_NH=final_NH, final_normed=False)
        )
    return samples


def _timed(what: Callable[[], Any], repeats: int) -> tuple[float, Any]:
    times, result = [], None
    for _ in range(repeats):
        started = clock()
        result = what()
        times.append(clock() - started)
    return statistics.median(times), result


@functools.cache
def _open(pair: Path) -> tuple[DrafterCheckpoint, Target]:
    """Opened once a process: the peer's weights are in memory before its clock starts, ours are mapped and touched by a first run."""
    return read_drafter(pair / "drafter"), read_target(pair / "target")


def _ours(pair: Path, shape: dict[str, int], dtype: torch.dtype, samples: list[Sample], **options: Any) -> tuple[float, Evaluation]:
    checkpoint, target = _open(pair)
    started = clock()
    result = evaluate(checkpoint, target, samples, Options(steps=shape["steps"], **options), device=torch.device("cpu"), dtype=dtype)
    return clock() - started, result


def part_full(pair: Path, shape: dict[str, int], dtype: torch.dtype, repeats: int) -> dict[str, Any]:
    """The full table: accuracies over the draft vocabulary (the peer's work) and the served acceptance."""
    samples = make_samples(pair, shape, dtype, 1)
    runs = [_ours(pair, shape, dtype, samples, labels="draft-vocab", serving_mode="sampled-argmax") for _ in range(repeats + 1)][1:]
    accuracy = runs[-1][1].accuracy
    assert accuracy is not None
    return {"seconds": statistics.median(s for s, _ in runs), "rows": runs[-1][1].rows, "correct": accuracy.correct, "at_risk": accuracy.at_risk}


def part_memory(pair: Path, shape: dict[str, int], dtype: torch.dtype, repeats: int) -> dict[str, Any]:
    """Peak resident memory of one full evaluation, less what an interpreter with torch takes before it reads anything."""
    samples = make_samples(pair, shape, dtype, 1)
    held = sum(s.numel() * s.element_size() for s in (*samples[0].aux_ANH, samples[0].final_NH) if s is not None)
    Path("/proc/self/clear_refs").write_text("5")  # forget the peak of making the samples
    before = _peak()
    _ours(pair, shape, dtype, samples, labels="draft-vocab", serving_mode="sampled-argmax")
    return {"peak": _peak(), "before": before, "sample": held}


def _peak() -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def part_serving(pair: Path, shape: dict[str, int], dtype: torch.dtype, repeats: int) -> dict[str, Any]:
    """`--only serving`: the walk alone, many samples side by side; counts equal to the full mode's on the first two."""
    samples = make_samples(pair, {**shape, "tokens": min(shape["tokens"], TOKENS_IN_WALK)}, dtype, SAMPLES_IN_WALK)
    full = _ours(pair, shape, dtype, samples[:2], labels="draft-vocab", serving_mode="sampled-argmax")[1]
    first = _ours(pair, shape, dtype, samples[:2], only_serving=True, serving_mode="sampled-argmax")[1]
    seconds, run = _ours(pair, shape, dtype, samples, only_serving=True, serving_mode="sampled-argmax")
    greedy, run_greedy = _ours(pair, shape, dtype, samples, only_serving=True, serving_mode="greedy")
    same = (full.serving.drafts, full.serving.accepted_per_position) == (first.serving.drafts, first.serving.accepted_per_position)
    return {
        "seconds": seconds, "rows": run.rows, "greedy_seconds": greedy, "greedy_rows": run_greedy.rows, "equal_to_full": same, "length": run.serving.acceptance_length,
        "greedy_length": run_greedy.serving.acceptance_length,
    }  # fmt: skip


def part_bare(pair: Path, shape: dict[str, int], dtype: torch.dtype, repeats: int) -> dict[str, Any]:
    """Nothing but the matrix products: of the rows that must be computed, and of all rows at every step."""
    samples = make_samples(pair, shape, dtype, 1)
    weights = Weights(read_drafter(pair / "drafter"), read_target(pair / "target"), torch.device("cpu"), dtype)
    result = _ours(pair, shape, dtype, samples, labels="draft-vocab", serving_mode="sampled-argmax")[1]
    accuracy: StepCounts | None = result.accuracy
    assert accuracy is not None
    names = ["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj", "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"]
    matrices = [weights.get(f"layers.0.{n}.weight") for n in names] + [weights.get("lm_head.weight")]
    fc, label_head = weights.get("fc.weight"), weights.get("lm_head.weight")

    def products(rows_K: list[int]) -> None:
        for k, rows in enumerate(rows_K):
            for matrix in [*([fc, label_head] if k == 0 else []), *matrices]:
                torch.nn.functional.linear(inputs[matrix.shape[1]][:rows], matrix)

    rows = result.rows
    inputs = {m.shape[1]: torch.randn(rows, m.shape[1]).to(dtype) for m in [fc, *matrices]}
    needed = [rows, *accuracy.correct[: shape["steps"] - 1]]
    with torch.inference_mode():
        products([rows])
        return {"needed": _timed(lambda: products(needed), repeats)[0], "all": _timed(lambda: products([rows] * shape["steps"]), repeats)[0], "rows": needed}


def part_peer(pair: Path, shape: dict[str, int], dtype: torch.dtype, repeats: int) -> dict[str, Any]:
    """speculators' own forward with its metrics, on the same weights and rows."""
    from speculators.models.eagle3 import Eagle3DraftModel

    samples = make_samples(pair, shape, dtype, 1)
    model = Eagle3DraftModel.from_pretrained(str(pair / "drafter"), dtype=dtype).eval()
    target = read_target(pair / "target")
    ids = torch.arange(shape["vocab"]) if model.t2d is None else torch.nonzero(model.t2d)[:, 0]
    model.embed_tokens.weight.data = target.embedding().to(dtype)
    model.verifier_lm_head.weight.data = target.head()[ids].to(dtype)
    model.verifier_norm.weight.data = torch.ones(shape["hidden"], dtype=dtype)
    forward = type(model).forward
    forward = getattr(forward, "__wrapped__", getattr(forward, "_torchdynamo_orig_callable", forward))
    s = samples[0]
    assert s.final_NH is not None
    features = torch.cat(list(s.aux_ANH), dim=-1)
    arguments = {
        "hidden_states": features[:-1][None], "input_ids": s.tokens_N[1:][None], "verifier_last_hidden_states": s.final_NH[1:][None],
        "loss_mask": s.mask_N[1:][None], "position_ids": torch.arange(1, s.length)[None], "lengths": torch.tensor([s.length - 1]),
        "ttt_steps": shape["steps"],
    }  # fmt: skip
    with torch.no_grad():
        seconds, out = _timed(lambda: forward(model, **arguments), repeats)
    metrics = out[2]
    correct = [int(metrics[f"full_acc_{k}_sum"]) for k in range(shape["steps"])]
    return {"seconds": seconds, "rows": s.length - 1, "correct": correct}


def part_run(pair: Path, shape: dict[str, int], dtype: torch.dtype, repeats: int) -> dict[str, Any]:
    """That a drafter of this size runs at all, and in how much memory."""
    samples = make_samples(pair, shape, dtype, 1)
    seconds, result = _ours(pair, shape, dtype, samples)
    return {"seconds": seconds, "rows": result.rows, "peak": _peak(), "length": result.serving.acceptance_length}


def part_catalogue(pair: Path, shape: dict[str, int], dtype: torch.dtype, repeats: int) -> dict[str, Any]:
    """`diagnose`: every mis-wiring of the catalogue on as many samples as one evaluation, which is timed beside it."""
    generator = torch.Generator().manual_seed(5)
    samples = []
    for sample in make_samples(pair, shape, dtype, SAMPLES_IN_CATALOGUE):
        ids = [i + off for off in (0, 1, -1) for i in (2, 16, 29)]
        aux = [sample.aux_ANH[i % 3] for i in range(len(ids))]
        aux = [state if i < 3 else state[torch.randperm(state.shape[0], generator=generator)] for i, state in enumerate(aux)]
        samples.append(replace(sample, aux_ANH=tuple(aux), layer_ids=tuple(ids)))
    checkpoint, target = _open(pair)
    plain = [replace(s, aux_ANH=tuple(s.aux_ANH)[:3], layer_ids=(s.layer_ids or ())[:3]) for s in samples]
    _ours(pair, shape, dtype, plain[:2])
    one, _ = _ours(pair, shape, dtype, plain)
    predictor = Predictor(checkpoint, target, steps=shape["steps"], device=torch.device("cpu"), dtype=dtype)
    listed = catalogue(checkpoint, target, samples[0].layer_ids)
    found = {}
    for name in ("as-trained", "layers-plus-1", "residual-flipped"):
        total = Walked.zero(shape["steps"])
        for sample in samples:
            total.add(predictor.walk(predictor.load(sample), listed.get(name)))
        seen = observed(steps=shape["steps"], drafts=total.drafts, accepted_per_position=total.low)
        started = clock()
        loaded = [predictor.load(sample) for sample in samples]
        survey(predictor, loaded, listed, seen)
        found[name] = clock() - started
    return {"evaluate": one, "surveys": found, "explanations": len(listed.explanations), "samples": len(samples)}


PARTS = {"catalogue": part_catalogue, "full": part_full, "memory": part_memory, "serving": part_serving, "bare": part_bare, "peer": part_peer, "run": part_run}


def _child(part: str, pair: Path, shape: str, dtype: str, repeats: int, threads: int, clock_name: str) -> dict[str, Any] | None:
    command = [sys.executable, __file__, "--child", part, str(pair), shape, dtype, str(repeats), str(threads), clock_name]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        lines = (done.stderr.strip() or "no message").splitlines()
        print(f"  {part}: left out ({lines[-1][:200]})")
        return None
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def _line(what: str, value: float, limit: str, unit: str = "×") -> None:
    print(f"  {what:<78} {value:6.2f}{unit}   ({limit})")


def _bench(shape_name: str, dtype_name: str, repeats: int, threads: int, scratch: Path, clock_name: str) -> None:
    shape, dtype = SHAPES[shape_name], DTYPES[dtype_name]
    element = torch.tensor([], dtype=dtype).element_size()
    with tempfile.TemporaryDirectory(dir=scratch) as folder:
        pair = Path(folder)
        make_pair(pair, shape, dtype)
        run = lambda part: _child(part, pair, shape_name, dtype_name, repeats, threads, clock_name)  # noqa: E731
        print(f"{shape_name}, {dtype_name}, {threads} threads, rows x steps = {shape['tokens'] - 1} x {shape['steps']}, torch {torch.__version__}, "
              f"{clock_name} time", flush=True)
        if shape_name == "kimi":
            if (done := run("run")) is not None:
                print(f"  runs: {done['rows'] / done['seconds']:.1f} rows/s, peak {done['peak'] / 2**30:.1f} GiB")
            return
        full, bare, peer, serving, memory = run("full"), run("bare"), run("peer"), run("serving"), run("memory")
    if full and peer:
        same = "equal counts" if full["correct"] == peer["correct"] else f"COUNTS DIFFER: {full['correct']} / {peer['correct']}"
        print(f"  full table {full['rows'] / full['seconds']:.1f} rows/s, speculators {peer['rows'] / peer['seconds']:.1f} rows/s, {same}: {full['correct']}")
        _line("(a) full table against speculators' forward", (full["rows"] / full["seconds"]) / (peer["rows"] / peer["seconds"]), "at least 1.85")
    if full and bare:
        print(f"  bare products of the needed rows {bare['needed']:.2f} s, of all rows {bare['all']:.2f} s; full table {full['seconds']:.2f} s")
        _line("(b) full table against bare products of the needed rows", full["seconds"] / bare["needed"], "at most 1.25")
    if serving and peer:
        rate = peer["rows"] / peer["seconds"]
        print(f"  only serving: {serving['rows'] / serving['seconds']:.1f} rows/s, counts equal to the full mode's: {serving['equal_to_full']}")
        _line("(c) --only serving (sampled-argmax) against speculators' forward", serving["rows"] / serving["seconds"] / rate, "at least 4")
        _line(f"    the same, greedy (the target's whole head of {shape['vocab']} tokens on top)", serving["greedy_rows"] / serving["greedy_seconds"] / rate, "")
    if memory:
        h, d = shape["hidden"], shape["draft_vocab"]
        q, kv = shape["heads"] * shape["head_dim"], shape["kv"] * shape["head_dim"]
        layer = 2 * h * (q + 2 * kv) + h * q + 3 * h * shape["intermediate"] + 3 * h * h
        touched = (layer + 2 * d * h) * element
        _line("(d) peak memory against weights touched + one sample", (memory["peak"] - memory["before"] + memory["sample"]) / (touched + memory["sample"]), "at most 1.3")


def _bench_catalogue(threads: int, scratch: Path, clock_name: str) -> None:
    """A whole diagnosis against one evaluation, in a shape whose weights are quickly made; both are mostly matrix products there too."""
    with tempfile.TemporaryDirectory(dir=scratch) as folder:
        make_pair(Path(folder), SHAPES["small"], torch.float32)
        done = _child("catalogue", Path(folder), "small", "float32", 1, threads, clock_name)
    if done is not None:
        print(f"small, float32: a catalogue of {done['explanations']} explanations on {done['samples']} samples; one evaluation {done['evaluate']:.2f} s")
        for name, seconds in done["surveys"].items():
            _line(f"(e) whole catalogue against one evaluation, served {name}", seconds / done["evaluate"], "at most 8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--dtype", nargs="+", default=["float32", "bfloat16"], choices=sorted(DTYPES))
    parser.add_argument("--shape", nargs="+", default=["llama8b", "kimi"], choices=sorted(SHAPES))
    parser.add_argument("--only-catalogue", action="store_true", help="only the cost of a diagnosis against one evaluation")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--clock", choices=sorted(CLOCKS), default="wall", help="cpu: processor time, for a busy machine (give --threads 1)")
    parser.add_argument("--scratch", type=Path, default=Path(tempfile.gettempdir()), help="folder for the weights (up to 7 GB)")
    parser.add_argument("--child", nargs=7, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        part, pair, shape, dtype, repeats, threads, clock_name = arguments.child
        global clock
        clock = CLOCKS[clock_name]
        torch.set_num_threads(int(threads))
        print(json.dumps(PARTS[part](Path(pair), SHAPES[shape], DTYPES[dtype], int(repeats))))
        return
    for shape in [] if arguments.only_catalogue else arguments.shape:
        for dtype in arguments.dtype if shape != "kimi" else ["bfloat16"]:
            slow = shape == "llama8b" and dtype == "bfloat16" and not torch.ops.mkldnn._is_mkldnn_bf16_supported()
            if slow:
                print("llama8b, bfloat16: this CPU has no bfloat16 instructions, which makes products several times slower than in float32; the small shape instead")
            _bench("small" if slow else shape, dtype, arguments.repeats, arguments.threads, arguments.scratch, arguments.clock)
    _bench_catalogue(arguments.threads, arguments.scratch, arguments.clock)


if __name__ == "__main__":
    main()
