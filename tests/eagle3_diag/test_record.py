"""Recording: which states, which files, what is taken up again, what is refused. The runner here answers from the demo's stored samples;
``tests/peers/test_record.py`` holds the one through Transformers to them."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from eagle3_diag import demo
from eagle3_diag.cli import main
from eagle3_diag.errors import InputError
from eagle3_diag.prompts import read_prompts
from eagle3_diag.record import MANIFEST, Job, Recorded, Settings, around, check_layer_inputs, record, save_whole, usual_layer_inputs
from eagle3_diag.rollout import target_argmax, target_states
from eagle3_diag.samples import Sample, iter_samples, read_sample
from eagle3_diag.target import read_target

DEMO = demo.paths()
TARGET = read_target(DEMO.target)
SAMPLES: list[Sample] = list(iter_samples([DEMO.samples], max_samples=4))
ALL = tuple(range(1, 9))


class Stored:
    """A target that knows the demo's texts by heart."""

    num_layers = 8

    def __init__(self, limit: int | None = 1024) -> None:
        self.limit = limit
        self.asked = 0

    def _sample(self, tokens: Sequence[int]) -> Sample:
        return next(each for each in SAMPLES if each.tokens_N[: len(tokens)].tolist() == list(tokens))

    def answer(self, prompt: Sequence[int], *, max_new_tokens: int, temperature: float, seed: int, ignore_end: bool = False) -> list[int]:
        self.asked += 1
        return self._sample(prompt).tokens_N[len(prompt) : len(prompt) + max_new_tokens].tolist()

    def states(self, tokens: Sequence[int], layer_inputs: Sequence[int]) -> torch.Tensor:
        sample = self._sample(tokens)
        assert sample.final_NH is not None
        states = [*sample.aux_ANH, sample.final_NH]
        return torch.stack([states[i - 1][: len(tokens)] for i in layer_inputs], dim=1)

    def choices(self, tokens: Sequence[int]) -> torch.Tensor:
        final_NH = self._sample(tokens).final_NH
        assert final_NH is not None
        state_NH = target_states(TARGET, final_NH[: len(tokens)], False, device=torch.device("cpu"), dtype=torch.float32)
        return target_argmax(TARGET.head(), state_NH)


def jobs(count: int = 3) -> list[Job]:
    return [Job(tokens=tuple(s.tokens_N[~s.mask_N].tolist()), where=s.name) for s in SAMPLES[:count]]


def make(out: Path, runner: Stored | None = None, what: list[Job] | None = None, source: str = "prompts", **changes: object) -> Recorded:
    settings = Settings(**{"layer_inputs": ALL, "max_new_tokens": 100, **changes})  # type: ignore[arg-type]
    return record(runner or Stored(), TARGET, what or jobs(), settings, out, source=source)


def test_a_recorded_file_has_the_fixed_layout(tmp_path: Path) -> None:
    done = make(tmp_path / "out", layer_inputs=(2, 3, 8))
    assert (done.written, done.present) == (3, 0)
    for i, sample in enumerate(SAMPLES[:3]):
        found = load_file(tmp_path / "out" / f"hs_{i}.safetensors")
        assert sorted(found) == ["hidden_states", "layer_ids", "loss_mask", "token_ids"]
        assert found["layer_ids"].tolist() == [2, 3, 8]
        assert torch.equal(found["token_ids"], sample.tokens_N)
        assert torch.equal(found["loss_mask"].bool(), sample.mask_N)
        assert sample.final_NH is not None
        assert torch.equal(found["hidden_states"], torch.stack([sample.aux_ANH[1], sample.aux_ANH[2], sample.final_NH], dim=1))


def test_nothing_but_samples_and_the_manifest_is_seen_in_the_folder(tmp_path: Path) -> None:
    make(tmp_path)
    assert sorted(p.name for p in tmp_path.iterdir() if not p.name.startswith(".")) == ["hs_0.safetensors", "hs_1.safetensors", "hs_2.safetensors", MANIFEST]
    assert [s.name for s in iter_samples([tmp_path])] == ["hs_0.safetensors", "hs_1.safetensors", "hs_2.safetensors"]


def test_evaluate_takes_the_drafters_states_by_their_ids(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Recorded with seven layers, with the three it takes, with others in between: the same figures."""
    reports = []
    for name, layers in {"all": ALL, "own": (2, 4, 6, 8), "some": (1, 2, 4, 5, 6, 8)}.items():
        make(tmp_path / name, layer_inputs=layers)
        assert main(["evaluate", "--drafter", str(DEMO.drafter), "--target", str(DEMO.target), "--samples", str(tmp_path / name), "--json", "-"]) == 0
        report = json.loads(capsys.readouterr().out)
        reports.append((report["serving"], report["accuracy"]))
    assert reports[0] == reports[1] == reports[2]
    make(tmp_path / "lacking", layer_inputs=(1, 2, 4, 8))
    assert main(["evaluate", "--drafter", str(DEMO.drafter), "--target", str(DEMO.target), "--samples", str(tmp_path / "lacking")]) == 2
    assert "record the samples again with layers [6]" in capsys.readouterr().err


def test_an_interrupted_recording_goes_on_where_it_was(tmp_path: Path) -> None:
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    make(whole)
    make(parts, what=jobs(1))
    (parts / ".hs_1.safetensors.abc.part").write_bytes(b"half")
    runner = Stored()
    done = make(parts, runner)
    assert (done.written, done.present, runner.asked) == (2, 1, 2)
    assert not list(parts.glob("*.part"))
    assert not list(parts.glob(".*.part"))
    for i in range(3):
        assert (whole / f"hs_{i}.safetensors").read_bytes() == (parts / f"hs_{i}.safetensors").read_bytes()
    again = Stored()
    assert make(parts, again).present == 3
    assert again.asked == 0


@pytest.mark.parametrize(
    ("changes", "words"),
    [({"layer_inputs": (2, 4, 8)}, "layer inputs"), ({"temperature": 0.5}, "temperature 0.0, now it is 0.5"), ({"source": "other prompts"}, "source prompts")],
)
def test_another_recording_is_not_mixed_in(tmp_path: Path, changes: dict[str, object], words: str) -> None:
    make(tmp_path)
    with pytest.raises(InputError, match=words):
        make(tmp_path, **changes)  # type: ignore[arg-type]


def test_samples_of_other_origin_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / "hs_0.safetensors").write_bytes(b"mine")
    with pytest.raises(InputError, match=r"holds hs_0\.safetensors of another recording"):
        make(tmp_path)
    assert (tmp_path / "hs_0.safetensors").read_bytes() == b"mine"


def test_a_changed_sample_is_not_taken_for_one_that_is_done(tmp_path: Path) -> None:
    make(tmp_path)
    (tmp_path / "hs_1.safetensors").unlink()
    (tmp_path / "hs_0.safetensors").rename(tmp_path / "hs_1.safetensors")
    with pytest.raises(InputError, match=r"hs_1\.safetensors: was recorded from another text"):
        make(tmp_path, what=[jobs()[1], jobs()[1]])


def test_two_recordings_do_not_write_into_one_folder(tmp_path: Path) -> None:
    class Second(Stored):
        def answer(self, *arguments: object, **options: object) -> list[int]:  # type: ignore[override]
            with pytest.raises(InputError, match="another process is recording"):
                make(tmp_path)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        make(tmp_path, Second())
    assert not list(tmp_path.glob("hs_*"))
    assert make(tmp_path).written == 3


def test_stored_text_is_run_again_with_its_mask(tmp_path: Path) -> None:
    what = [Job(tokens=tuple(s.tokens_N.tolist()), mask=tuple(s.mask_N.tolist()), where=s.name) for s in SAMPLES]
    runner = Stored()
    make(tmp_path, runner, what)
    assert runner.asked == 0
    for i, sample in enumerate(SAMPLES):
        again = read_sample(tmp_path / f"hs_{i}.safetensors")
        assert torch.equal(again.mask_N, sample.mask_N)
        assert torch.equal(torch.as_tensor(again.aux_ANH), torch.as_tensor(sample.aux_ANH))


def test_a_prompt_that_does_not_fit_is_left_out_and_named(tmp_path: Path) -> None:
    done = make(tmp_path, Stored(limit=11))
    assert done.written == 1
    assert len(done.skipped) == 2
    assert done.skipped[0].startswith("hs_1.safetensors: 11 tokens are more than")
    with pytest.raises(InputError, match="10 tokens are more than"):
        make(tmp_path / "none", Stored(limit=5))


def test_a_final_state_that_does_not_name_the_targets_choice_is_refused(tmp_path: Path) -> None:
    class Normed(Stored):
        def states(self, tokens: Sequence[int], layer_inputs: Sequence[int]) -> torch.Tensor:
            return super().states(tokens, layer_inputs).flip(1)

    with pytest.raises(InputError, match=r"at [0-9]+ of 64 positions only"):
        make(tmp_path, Normed())
    assert not list(tmp_path.glob("hs_*"))


@pytest.mark.parametrize("bad", [float("nan"), 1e6])
def test_states_that_the_stored_precision_cannot_hold_are_refused(tmp_path: Path, bad: float) -> None:
    class Broken(Stored):
        def states(self, tokens: Sequence[int], layer_inputs: Sequence[int]) -> torch.Tensor:
            states = super().states(tokens, layer_inputs).float()
            states[5, 0, 7] = bad
            return states

    with pytest.raises(InputError, match="NaN or Inf" if bad != bad else "do not fit into float16"):
        make(tmp_path, Broken(), store=torch.float16)
    assert not list(tmp_path.glob("hs_*"))


def test_which_layers() -> None:
    assert usual_layer_inputs(32) == (1, 2, 3, 15, 16, 17, 28, 29, 30, 32)
    assert usual_layer_inputs(8) == (1, 2, 3, 4, 5, 6, 8)
    assert around((0, 5, 8), 8) == (1, 4, 5, 6, 7, 8)
    assert check_layer_inputs([6, 0, 2, 2], 8) == (0, 2, 6, 8)
    for bad in ([-1], [9], [8]):
        with pytest.raises(InputError, match="--layers"):
            check_layer_inputs(bad, 8)


def test_a_file_that_cannot_be_written_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "x.safetensors").mkdir()
    (tmp_path / "x.safetensors" / "full").touch()
    with pytest.raises(InputError, match="could not be written"):
        save_whole({"a": torch.zeros(2)}, tmp_path / "x.safetensors")
    assert [p.name for p in tmp_path.iterdir()] == ["x.safetensors"]


# ---- prompts -----------------------------------------------------------------------------------------------------------


def test_prompts_of_each_kind(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("first\n\n{not json} \n")
    assert [(p.text, p.where) for p in read_prompts(tmp_path / "a.txt")] == [("first", f"{tmp_path}/a.txt, line 1"), ("{not json} ", f"{tmp_path}/a.txt, line 3")]
    lines = [{"prompt": "x"}, {"prompt_token_ids": [0, 5]}, {"messages": [{"role": "user", "content": "hi"}], "id": 3}]
    (tmp_path / "b.jsonl").write_text("\n".join(json.dumps(line) for line in lines))
    text, ids, chat = read_prompts(tmp_path / "b.jsonl")
    assert (text.text, ids.token_ids, chat.messages) == ("x", (0, 5), ({"role": "user", "content": "hi"},))


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("{", "is no JSON"),
        ("[1]", "is no object"),
        ('{"text": "x"}', "has none of them"),
        ('{"prompt": "x", "prompt_token_ids": [1]}', "has prompt and prompt_token_ids"),
        ('{"prompt": ""}', "prompt is no text"),
        ('{"prompt_token_ids": [1, true]}', "no list of token ids"),
        ('{"prompt_token_ids": [-1]}', "no list of token ids"),
        ('{"messages": "hi"}', "no list of messages"),
        ('{"messages": [{"role": "assistant", "content": "x"}]}', "the last message is the assistant's"),
    ],
)
def test_a_line_that_is_no_prompt_is_named(tmp_path: Path, line: str, words: str) -> None:
    (tmp_path / "p.jsonl").write_text('{"prompt": "good"}\n' + line)
    with pytest.raises(InputError, match=rf"p\.jsonl, line 2: .*{words}"):
        read_prompts(tmp_path / "p.jsonl")


@pytest.mark.parametrize(("content", "words"), [(b"\n \n", "holds no prompt"), (b"\xff\xfe", "not UTF-8")])
def test_a_file_without_prompts_is_named(tmp_path: Path, content: bytes, words: str) -> None:
    (tmp_path / "p.txt").write_bytes(content)
    with pytest.raises(InputError, match=words):
        read_prompts(tmp_path / "p.txt")
    with pytest.raises(InputError, match="cannot be read"):
        read_prompts(tmp_path / "absent.txt")


# ---- the command -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--samples", "s", "--temperature", "1"], "--temperature is about answers"),
        (["--prompts", "p", "--seed", "3"], "--seed has no meaning"),
        (["--prompts", "p", "--layers", "2,x"], "is no list of numbers"),
        (["--prompts", "p", "--layers", "2", "--drafter", "d"], "--drafter chooses the layers"),
        (["--prompts", "p", "--samples", "s"], "not allowed with"),
        ([], "required"),
    ],
)
def test_wrong_use_is_one_sentence(arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["record", "--target", str(DEMO.target), "--out", "o", *arguments]) == 2
    err = capsys.readouterr().err
    assert words in err
    assert err.count("\n") == 1


@pytest.mark.skipif(importlib.util.find_spec("transformers") is not None, reason="says what is missing only where it is")
def test_a_python_without_transformers_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "p.txt").write_text("ka me\n")
    assert main(["record", "--target", str(DEMO.target), "--prompts", str(tmp_path / "p.txt"), "--out", str(tmp_path / "out")]) == 2
    assert "has no transformers, which runs the target" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
