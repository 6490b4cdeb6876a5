from __future__ import annotations

import dataclasses
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from eagle3_diag.checkpoint import read_drafter
from eagle3_diag.errors import InputError
from eagle3_diag.evaluate import Evaluation, Options, evaluate, fits, resolve_device, resolve_dtype
from eagle3_diag.samples import iter_samples
from eagle3_diag.target import read_target
from tests.eagle3_diag.pairs import Pair, make_pair

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    return make_pair(tmp_path_factory.mktemp("pair"), samples=5, length=60)


@pytest.fixture(scope="module")
def sampled_pair(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    return make_pair(tmp_path_factory.mktemp("sampled"), samples=5, length=60, deviations=0.3, draft_vocab=40, seed=4)


def run(pair: Pair, paths: list[Path] | None = None, dtype: torch.dtype = torch.float32, **options: Any) -> Evaluation:
    checkpoint, target = read_drafter(pair.drafter), read_target(pair.target)
    samples = iter_samples(paths or [pair.samples], check=fits(checkpoint, target))
    return evaluate(checkpoint, target, samples, Options(**options), device=CPU, dtype=dtype)


def comparable(result: Evaluation) -> dict[str, Any]:
    fields = {f.name: getattr(result, f.name) for f in dataclasses.fields(result) if f.name not in ("timing", "table", "options")}
    return {**fields, "samples": result.table.ordered()}


def test_counts_are_those_the_samples_were_written_with(pair: Pair) -> None:
    result = run(pair)
    assert result.serving.drafts == pair.drafts
    assert list(result.serving.accepted_per_position) == pair.accepted
    assert list(result.serving.at_risk) == pair.at_risk
    assert result.serving.censored == 0
    assert result.serving.ci95 is not None
    assert result.serving.acceptance_length is not None
    assert result.serving.ci95[0] <= result.serving.acceptance_length <= result.serving.ci95[1]


@pytest.mark.parametrize("mode", ["greedy", "sampled-argmax", "sampled"])
def test_only_serving_gives_the_same_serving_figures(sampled_pair: Pair, mode: str) -> None:
    full, only = run(sampled_pair, serving_mode=mode), run(sampled_pair, serving_mode=mode, only_serving=True)
    assert full.serving == only.serving
    assert full.vocabulary == only.vocabulary
    assert only.accuracy is None


@pytest.mark.parametrize("pool", [1, 2, 32])
def test_how_many_walks_run_side_by_side_changes_no_count(sampled_pair: Pair, pool: int) -> None:
    only = run(sampled_pair, only_serving=True, pool=pool)
    assert only.serving == run(sampled_pair).serving


def test_same_inputs_give_the_same_figures_whatever_the_order(pair: Pair) -> None:
    first = run(pair, labels="draft-vocab")
    assert comparable(run(pair, labels="draft-vocab")) == comparable(first)
    backwards = run(pair, paths=pair.sample_files[::-1], labels="draft-vocab")
    assert comparable(backwards) == comparable(first)


def test_labels_of_the_draft_vocabulary_count_tokens_it_cannot_express(sampled_pair: Pair) -> None:
    full, draft = run(sampled_pair), run(sampled_pair, labels="draft-vocab")
    assert full.accuracy is not None
    assert draft.accuracy is not None
    assert full.accuracy.total == draft.accuracy.total
    # every row right against the whole vocabulary is right against a part of it that holds its token
    assert all(f <= d for f, d in zip(full.accuracy.correct, draft.accuracy.correct, strict=True))
    assert full.serving == draft.serving  # a server verifies against the whole vocabulary, whatever the accuracy's labels
    assert full.vocabulary.coverage is not None
    assert full.vocabulary.coverage < 1
    assert full.vocabulary.ceiling is not None
    assert full.vocabulary.ceiling < 7


def test_sampled_chances_by_brute_force(sampled_pair: Pair) -> None:
    from eagle3_diag.drafter import Drafter, Weights
    from eagle3_diag.rollout import target_states

    steps, temperature = 3, 0.8
    result = run(sampled_pair, serving_mode="sampled", temperature=temperature, steps=steps)
    checkpoint, target = read_drafter(sampled_pair.drafter), read_target(sampled_pair.target)
    drafter = Drafter(Weights(checkpoint, target, CPU, torch.float32))
    sums, rows = [0.0] * steps, [0] * steps
    with torch.inference_mode():
        for sample in iter_samples([sampled_pair.samples]):
            assert sample.final_NH is not None
            p_NV = torch.softmax(
                target_states(target, sample.final_NH, False, device=CPU, dtype=torch.float32) @ target.head().T / temperature, dim=-1
            ).double()
            for t in range(sample.length - 1):
                if not sample.mask_N[t + 1]:
                    continue
                prefix, drafts = drafter.begin(sample.tokens_N, list(sample.aux_ANH), torch.tensor([t]))
                assert drafts is not None
                chance = 1.0
                for k in range(steps):
                    at = t + 2 + k
                    if at >= sample.length:
                        break
                    token = int(sample.tokens_N[at])
                    q_D = torch.softmax(drafter.normed(drafts.state_RH) @ drafter.head_VH.T / temperature, dim=-1)[0].double()
                    assert drafter.ids_D is not None
                    where = torch.nonzero(drafter.ids_D == token)
                    q = float(q_D[where[0, 0]]) if where.numel() else 0.0
                    chance *= min(1.0, q / float(p_NV[at - 1, token]))
                    sums[k] += chance
                    rows[k] += 1
                    drafts = drafter.next(prefix, drafts, torch.tensor([token]))
    assert result.serving.at_risk == tuple(rows)
    assert result.serving.accepted_per_position == pytest.approx(sums, rel=1e-5)


def test_max_rows_cuts_the_last_sample(pair: Pair) -> None:
    whole = run(pair)
    cut = run(pair, max_rows=70)
    assert cut.rows == 70
    assert cut.samples == 2
    assert whole.rows > 70


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_lower_precision_stays_close(pair: Pair, dtype: torch.dtype) -> None:
    exact, rough = run(pair), run(pair, dtype=dtype)
    assert rough.serving.acceptance_length == pytest.approx(exact.serving.acceptance_length, rel=0.25)
    assert rough.dtype == str(dtype).removeprefix("torch.")


def test_samples_without_a_final_state(pair: Pair) -> None:
    checkpoint, target = read_drafter(pair.drafter), read_target(pair.target)

    def without(**options: Any) -> Evaluation:
        samples = (dataclasses.replace(s, final_NH=None) for s in iter_samples([pair.samples], check=fits(checkpoint, target)))
        return evaluate(checkpoint, target, samples, Options(**options), device=CPU, dtype=torch.float32)

    with pytest.raises(InputError, match="no final hidden state"):
        without()
    with pytest.raises(InputError, match="no final hidden state"):
        without(only_serving=True, serving_mode="sampled")
    assert without(only_serving=True, serving_mode="sampled-argmax").serving == run(pair, serving_mode="sampled-argmax").serving


def test_a_drafter_of_another_target_is_refused(pair: Pair, tmp_path: Path) -> None:
    other = make_pair(tmp_path, vocab=80, samples=1)
    checkpoint, target = read_drafter(pair.drafter), read_target(other.target)
    with pytest.raises(InputError, match=r"vocabulary of 64 tokens, but the target at .* has 80"):
        evaluate(checkpoint, target, [], Options(), device=CPU, dtype=torch.float32)


def test_two_layers_fall_back_to_all_rows(tmp_path: Path) -> None:
    pair = make_pair(tmp_path, num_layers=2, samples=3)
    assert run(pair, only_serving=True).serving == run(pair).serving
    assert run(pair).serving.drafts == pair.drafts


def test_trainer_figures_come_with_their_definition(pair: Pair) -> None:
    result = run(pair, trainer="speculators", labels="draft-vocab")
    assert result.trainer is not None
    assert result.accuracy is not None
    assert result.trainer.correct == result.accuracy.correct
    assert result.trainer_definition is not None
    assert "speculators" in result.trainer_definition


def test_devices_and_dtypes() -> None:
    assert resolve_dtype("auto", CPU) is torch.float32
    assert resolve_dtype("auto", torch.device("cuda")) is torch.bfloat16
    assert resolve_device("cpu") == CPU
    for name in ("tpu9x", "meta", "mps", "xla", "", "CPU", "cpu:5"):
        with pytest.raises(InputError, match="not a device"):
            resolve_device(name)
    if not torch.cuda.is_available():
        with pytest.raises(InputError, match="0 CUDA devices"):
            resolve_device("cuda:3")


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here")
def test_cuda_counts_equal_cpu_counts(pair: Pair) -> None:
    checkpoint, target = read_drafter(pair.drafter), read_target(pair.target)
    samples = iter_samples([pair.samples], check=fits(checkpoint, target))
    on_gpu = evaluate(checkpoint, target, samples, Options(), device=torch.device("cuda"), dtype=torch.float32)
    assert on_gpu.serving.accepted_per_position == run(pair).serving.accepted_per_position


def test_library_needs_torch_and_safetensors_only() -> None:
    """Every module of the library imports while anything else from site-packages is refused."""
    code = """
import sys, importlib, pkgutil
import torch, safetensors.torch
allowed = {n.split('.')[0] for n in sys.modules} | set(sys.stdlib_module_names) | {'eagle3_diag'}
class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.split('.')[0] not in allowed:
            raise ImportError('refused: ' + name)
sys.meta_path.insert(0, Refuse())
for heavy in ('rich', 'yaml', 'packaging', 'jsonschema'):
    for name in [m for m in sys.modules if m.split('.')[0] == heavy]:
        del sys.modules[name]
    allowed.discard(heavy)
import eagle3_diag
for module in pkgutil.walk_packages(eagle3_diag.__path__, 'eagle3_diag.'):
    if not module.name.startswith(('eagle3_diag.demo.train', 'eagle3_diag.__main__')):
        importlib.import_module(module.name)
print('ok')
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "ok", done.stderr
