"""Recording with the real Transformers: the demo's prompts give the demo's samples, bit for bit where text is run again."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from eagle3_diag import demo
from eagle3_diag.cli import main
from eagle3_diag.samples import iter_samples

pytestmark = pytest.mark.peers
pytest.importorskip("transformers")

DEMO = demo.paths()


def record(*arguments: str, target: Path = DEMO.target) -> int:
    return main(["record", "--target", str(target), *arguments])


def prompts(path: Path, count: int) -> None:
    entries = [{"prompt_token_ids": s.tokens_N[~s.mask_N].tolist()} for s in iter_samples([DEMO.samples], max_samples=count)]
    path.write_text("".join(json.dumps(each) + "\n" for each in entries))


def test_the_demos_text_gives_the_demos_samples(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert record("--samples", str(DEMO.samples), "--out", str(tmp_path), "--all-layers", "--store-dtype", "float16") == 0
    assert capsys.readouterr().out.startswith("Recorded 16 samples, 1,292 tokens, 2.5 MiB, in ")
    for i in range(16):
        stored, mine = load_file(DEMO.samples / f"hs_{i}.safetensors"), load_file(tmp_path / f"hs_{i}.safetensors")
        assert sorted(stored) == sorted(mine)
        for key, tensor in stored.items():
            if key == "hidden_states":  # other libraries and core counts may sum in another order
                assert torch.allclose(mine[key].float(), tensor.float(), rtol=2e-3, atol=2e-3)
            else:
                assert torch.equal(mine[key], tensor), key


def test_the_demos_prompts_give_the_demos_answers(tmp_path: Path) -> None:
    prompts(tmp_path / "p.jsonl", 3)
    arguments = ["--prompts", str(tmp_path / "p.jsonl"), "--drafter", str(DEMO.drafter), "--max-new-tokens", "40"]
    assert record(*arguments, "--out", str(tmp_path / "out")) == 0
    for i in range(3):
        stored, mine = load_file(DEMO.samples / f"hs_{i}.safetensors"), load_file(tmp_path / "out" / f"hs_{i}.safetensors")
        length = int((stored["loss_mask"] == 0).sum()) + 40
        assert mine["layer_ids"].tolist() == list(range(1, 9))
        assert torch.equal(mine["token_ids"], stored["token_ids"][:length])
        assert torch.equal(mine["loss_mask"], stored["loss_mask"][:length])
        assert torch.allclose(mine["hidden_states"], stored["hidden_states"][:length].float(), rtol=2e-3, atol=2e-3)


def test_the_final_state_is_the_one_before_the_norm(tmp_path: Path) -> None:
    import transformers

    assert record("--samples", str(DEMO.samples / "hs_0.safetensors"), "--out", str(tmp_path), "--layers", "0,3") == 0
    mine = load_file(tmp_path / "hs_0.safetensors")
    model = transformers.AutoModelForCausalLM.from_pretrained(DEMO.target, dtype=torch.float32).eval()
    with torch.no_grad():
        theirs = model(input_ids=mine["token_ids"][None], output_hidden_states=True).hidden_states
        assert mine["layer_ids"].tolist() == [0, 3, 8]
        assert torch.equal(mine["hidden_states"][:, 0], theirs[0][0])
        assert torch.equal(mine["hidden_states"][:, 1], theirs[3][0])
        assert torch.equal(model.model.norm(mine["hidden_states"][:, 2]), theirs[8][0])


def test_sampling_depends_on_the_seed_alone(tmp_path: Path) -> None:
    prompts(tmp_path / "p.jsonl", 2)
    for name, seed in (("a", "1"), ("b", "1"), ("c", "2")):
        options = ["--temperature", "2.5", "--seed", seed, "--max-new-tokens", "20", "--ignore-end"]
        assert record("--prompts", str(tmp_path / "p.jsonl"), "--out", str(tmp_path / name), *options) == 0
    a, b, c = (load_file(tmp_path / name / "hs_1.safetensors")["token_ids"].tolist() for name in "abc")
    assert a == b
    assert a != c
    assert len(a) == 11 + 20


def test_text_and_chat_prompts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "p.jsonl").write_text('{"messages": [{"role": "user", "content": "ka me ri"}]}\n{"prompt": "ka me ri ro"}\n')
    assert record("--prompts", str(tmp_path / "p.jsonl"), "--out", str(tmp_path / "none")) == 2
    assert "has no chat template for messages" in capsys.readouterr().err
    target = tmp_path / "target"
    shutil.copytree(DEMO.target, target)
    config = json.loads((target / "tokenizer_config.json").read_text())
    config["chat_template"] = "{% for m in messages %}ba {{ m['content'] }} {% endfor %}{% if add_generation_prompt %}be{% endif %}"
    (target / "tokenizer_config.json").write_text(json.dumps(config))
    assert record("--prompts", str(tmp_path / "p.jsonl"), "--out", str(tmp_path / "out"), "--max-new-tokens", "5", target=target) == 0
    names = json.loads((target / "tokenizer.json").read_text())["model"]["vocab"]
    chat, text = (load_file(tmp_path / "out" / f"hs_{i}.safetensors") for i in range(2))
    assert chat["token_ids"][:5].tolist() == [names[word] for word in ["ba", "ka", "me", "ri", "be"]]
    assert text["token_ids"][:4].tolist() == [names[word] for word in ["ka", "me", "ri", "ro"]]
    assert chat["loss_mask"].tolist() == [0] * 5 + [1] * 5


@pytest.mark.parametrize("damage", ["truncated", "foreign head", "outside"])
def test_bad_targets_and_prompts_are_one_sentence(damage: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = tmp_path / "target"
    shutil.copytree(DEMO.target, target)
    prompts(tmp_path / "p.jsonl", 1)
    if damage == "truncated":
        (target / "model.safetensors").write_bytes((DEMO.target / "model.safetensors").read_bytes()[:1000])
    elif damage == "foreign head":  # config.json says tied, yet Transformers takes the head that is stored
        config = json.loads((target / "config.json").read_text()) | {"tie_word_embeddings": True}
        (target / "config.json").write_text(json.dumps(config))
        tensors = load_file(target / "model.safetensors")
        tensors["lm_head.weight"] = tensors["lm_head.weight"].flip(0)
        save_file(tensors, target / "model.safetensors", metadata={"format": "pt"})
    else:
        (tmp_path / "p.jsonl").write_text('{"prompt_token_ids": [5, 96]}\n')
    code = record("--prompts", str(tmp_path / "p.jsonl"), "--out", str(tmp_path / "out"), "--max-new-tokens", "40", target=target)
    err = capsys.readouterr().err
    assert code == 2
    assert err.count("\n") == 1
    words = {"truncated": "is cut short", "outside": "lies outside the target's vocabulary", "foreign head": "of 50 positions only"}
    assert words[damage] in err
    assert not list((tmp_path / "out").glob("hs_*"))
