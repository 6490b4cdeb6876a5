"""Each fault gives one sentence: what, where, what was expected, what to do."""

from __future__ import annotations

import json
import os
import pickle
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from eagle3_diag.checkpoint import count_nonfinite, read_drafter, require_finite
from eagle3_diag.errors import InputError
from tests.eagle3_diag.checkpoint import builders
from tests.eagle3_diag.checkpoint.builders import Files, Model

LFS = b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12345\n"


def refusal(path: Path) -> str:
    """The sentence that reading ``path`` ends with; one line, naming the place, saying what to do."""
    with pytest.raises(InputError) as caught:
        read_drafter(path)
    text = str(caught.value)
    assert "\n" not in text
    assert str(path) in text
    assert text.endswith(".")
    assert ";" in text or ":" in text, text
    return text


@pytest.fixture
def good(tmp_path: Path) -> Path:
    return builders.speculators(Model()).write(tmp_path / "drafter")


def test_missing_directory(tmp_path: Path) -> None:
    assert "no such directory" in refusal(tmp_path / "none")


def test_a_file_for_a_directory(good: Path) -> None:
    assert "is a file, expected the drafter's directory" in refusal(good / "config.json")


def test_empty_directory(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    assert "is empty, expected the drafter's config.json and weights" in refusal(tmp_path / "empty")


def test_no_config(good: Path) -> None:
    (good / "config.json").unlink()
    assert "has no config.json" in refusal(good)


def test_no_config_but_one_below(tmp_path: Path) -> None:
    builders.speculators(Model()).write(tmp_path / "run" / "checkpoint_best")
    assert "did you mean its folder checkpoint_best?" in refusal_without_end(tmp_path / "run")


def refusal_without_end(path: Path) -> str:
    with pytest.raises(InputError) as caught:
        read_drafter(path)
    return str(caught.value)


@pytest.mark.parametrize("content", [b"", b"{", b'{"a": }', b"\xff\xfe{}", b"[" * 100_000, b'{"hidden_size": ' + b"9" * 5000 + b"}"])
def test_bad_json(good: Path, content: bytes) -> None:
    (good / "config.json").write_bytes(content)
    assert "config.json is not valid JSON" in refusal(good)


def test_json_of_another_kind(good: Path) -> None:
    (good / "config.json").write_text("[1, 2]")
    assert "holds a JSON list, expected an object" in refusal(good)


def test_config_is_an_lfs_pointer(good: Path) -> None:
    (good / "config.json").write_bytes(LFS)
    assert "Git LFS pointer" in refusal(good)


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything")
def test_config_without_permission(good: Path) -> None:
    (good / "config.json").chmod(0)
    assert "permission denied" in refusal(good)


def test_no_weights(good: Path) -> None:
    (good / "model.safetensors").rename(good / "notes.txt")
    text = refusal(good)
    assert "has no weights" in text
    assert "notes.txt" in text


def test_a_directory_in_place_of_weights(good: Path) -> None:
    (good / "model.safetensors").unlink()
    (good / "model.safetensors").mkdir()
    assert "cannot be read (is a directory)" in refusal(good)


def test_missing_torch_shard(tmp_path: Path) -> None:
    path = builders.eagle(Model()).write(tmp_path / "drafter", shards=2, torch_files=True)
    (path / "pytorch_model-00001-of-00002.bin").unlink()
    assert "pytorch_model-00001-of-00002.bin is missing" in refusal(path)


def test_weights_of_zero_bytes(good: Path) -> None:
    (good / "model.safetensors").write_bytes(b"")
    assert "is empty, expected weights" in refusal(good)


@pytest.mark.parametrize("suffix", ["safetensors", "bin"])
def test_weights_are_an_lfs_pointer(tmp_path: Path, suffix: str) -> None:
    path = builders.eagle(Model()).write(tmp_path / "drafter", torch_files=suffix == "bin")
    next(path.glob(f"*.{suffix}")).write_bytes(LFS)
    assert "Git LFS pointer" in refusal(path)


def test_truncated_safetensors_names_both_sizes(good: Path) -> None:
    file = good / "model.safetensors"
    size = file.stat().st_size
    os.truncate(file, size - 100)
    text = refusal(good)
    assert f"has {size - 100} bytes, its header promises {size}" in text
    os.truncate(file, 20)
    assert "is cut short: it has 20 bytes" in refusal(good)


@pytest.mark.parametrize(("at", "byte"), [(0, 255), (7, 1), (8, 0), (30, 0)])
def test_damaged_safetensors_header(good: Path, at: int, byte: int) -> None:
    file = good / "model.safetensors"
    content = bytearray(file.read_bytes())
    content[at] = byte
    file.write_bytes(content)
    assert "model.safetensors is " in refusal(good)


def test_missing_shard(tmp_path: Path) -> None:
    path = builders.speculators(Model()).write(tmp_path / "drafter", shards=3)
    (path / "model-00002-of-00003.safetensors").unlink()
    assert "model-00002-of-00003.safetensors is missing, expected by the checkpoint's index; download it" in refusal(path)


@pytest.mark.parametrize(("stem", "suffix"), [("model", "safetensors"), ("pytorch_model", "bin")])
def test_shard_without_its_tensor(tmp_path: Path, stem: str, suffix: str) -> None:
    path = builders.speculators(Model()).write(tmp_path / "drafter", shards=2, torch_files=suffix == "bin")
    index = path / f"{stem}.{suffix}.index.json"
    data = json.loads(index.read_text())
    data["weight_map"]["fc.weight"] = f"{stem}-00002-of-00002.{suffix}"
    index.write_text(json.dumps(data))
    assert "does not hold fc.weight" in refusal(path)


@pytest.mark.parametrize("file", ["../other/model.safetensors", "/etc/passwd", "", 7, "a\0b", ".."])
def test_index_pointing_elsewhere(tmp_path: Path, file: object) -> None:
    path = builders.speculators(Model()).write(tmp_path / "drafter", shards=2)
    index = path / "model.safetensors.index.json"
    data = json.loads(index.read_text())
    data["weight_map"]["fc.weight"] = file
    index.write_text(json.dumps(data))
    assert "expected a file name beside it" in refusal(path)


@pytest.mark.parametrize("weight_map", [None, {}, [], "x"])
def test_index_without_a_map(tmp_path: Path, weight_map: object) -> None:
    path = builders.speculators(Model()).write(tmp_path / "drafter", shards=2)
    (path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    assert "weight_map" in refusal(path)


def test_one_tensor_in_two_files(tmp_path: Path) -> None:
    path = builders.speculators(Model()).write(tmp_path / "drafter")
    content = (path / "model.safetensors").read_bytes()
    (path / "model.safetensors").rename(path / "a.safetensors")
    (path / "b.safetensors").write_bytes(content)
    assert "is in both a.safetensors and b.safetensors" in refusal(path)


def write(files: Files, tmp_path: Path) -> Path:
    return files.write(tmp_path / "drafter")


def test_unknown_architecture(tmp_path: Path) -> None:
    text = refusal(write(builders.vllm(Model(), architectures=["MedusaModel"]), tmp_path))
    assert "architectures names MedusaModel, expected an EAGLE-3 drafter (LlamaForCausalLMEagle3" in text


def test_names_cannot_write_to_the_terminal(tmp_path: Path) -> None:
    text = refusal(write(builders.vllm(Model(), architectures=["Fine\x1b[2J\nLast"]), tmp_path))
    assert r"Fine\x1b[2J\nLast" in text
    text = refusal(write(builders.vllm(Model()).put("odd\r\x07", torch.zeros(1)), tmp_path))
    assert r"odd\r\x07" in text


@pytest.mark.parametrize("kind", ["eagle", "peagle", "dflash"])
def test_other_speculators(tmp_path: Path, kind: str) -> None:
    assert "expected 'eagle3'" in refusal(write(builders.speculators(Model(), speculators_model_type=kind), tmp_path))


def test_unknown_layer_of_speculators(tmp_path: Path) -> None:
    files = builders.speculators(Model())
    files.config["transformer_layer_config"]["model_type"] = "mamba"
    assert 'transformer_layer_config.model_type is "mamba", expected one of llama, qwen3' in refusal(write(files, tmp_path))


def test_a_target_given_as_the_drafter(tmp_path: Path) -> None:
    tensors = {f"model.layers.{i}.mlp.up_proj.weight": torch.zeros(2, 2) for i in range(12)}
    files = Files(config=builders.llama_keys(Model()) | {"architectures": ["LlamaForCausalLM"]}, tensors=tensors)
    text = refusal(write(files, tmp_path))
    assert "a whole model of 12 layers without fc.weight" in text
    assert "is this the target's?" in text


def test_an_eagle_1_drafter(tmp_path: Path) -> None:
    files = builders.vllm(Model()).without("layers.0.hidden_norm.weight").put("fc.weight", torch.zeros(32, 64))
    files = files.put("layers.0.self_attn.q_proj.weight", torch.zeros(32, 32))
    assert "as EAGLE-1 and EAGLE-2 drafters do" in refusal(write(files, tmp_path))


def test_aux_states_switched_off(tmp_path: Path) -> None:
    files = builders.specforge(Model(), eagle_config={"use_aux_hidden_state": False})
    assert "use_aux_hidden_state is false" in refusal(write(files, tmp_path))


@pytest.mark.parametrize(
    "name", ["fc.weight", "norm.weight", "layers.0.self_attn.k_proj.weight", "layers.0.hidden_norm.weight", "lm_head.weight", "d2t"]
)
def test_missing_tensor(tmp_path: Path, name: str) -> None:
    text = refusal(write(builders.speculators(Model()).without(name), tmp_path))
    assert f"has no tensor {name}; it holds " in text


def test_drafter_of_another_width_needs_its_own_embedding(tmp_path: Path) -> None:
    files = builders.specforge(Model(target_hidden=48)).without("embed_tokens.weight")
    assert "has no tensor embed_tokens.weight" in refusal(write(files, tmp_path))


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("layers.0.extra.weight", "num_hidden_layers"),
        ("layers.1.input_layernorm.weight", "num_hidden_layers"),
        ("input_norm.weight", "norm_before_fc"),
        ("fc_norm.0.weight", "fc_norm"),
        ("layers.0.self_attn.q_proj.bias", "attention_bias"),
        ("layers.0.self_attn.q_norm.weight", "model_type qwen3"),
        ("unheard.of", "num_hidden_layers"),
    ],
)
def test_extra_tensor(tmp_path: Path, name: str, hint: str) -> None:
    text = refusal(write(builders.speculators(Model()).put(name, torch.zeros(3)), tmp_path))
    assert f"holds {name}, expected no such tensor" in text
    assert hint in text


def test_the_same_tensor_twice(tmp_path: Path) -> None:
    files = builders.vllm(Model()).put("midlayer.hidden_norm.weight", torch.zeros(32))
    text = refusal(write(files, tmp_path))
    assert "one and the same tensor" in text


@pytest.mark.parametrize(
    ("name", "shape", "expected"),
    [
        ("layers.0.self_attn.q_proj.weight", (32, 32), "[32, 64]"),
        ("layers.0.self_attn.k_proj.weight", (32, 64), "[16, 64]"),
        ("layers.0.mlp.down_proj.weight", (48, 32), "[32, 48]"),
        ("norm.weight", (31,), "[32]"),
        ("lm_head.weight", (41, 32), "[40, 32]"),
        ("embed_tokens.weight", (96, 31), "[96, 32]"),
        ("fc.weight", (31, 96), "[32, 96]"),
        ("d2t", (41,), "[40]"),
        ("t2d", (97,), "[96]"),
    ],
)
def test_wrong_shape(tmp_path: Path, name: str, shape: tuple[int, ...], expected: str) -> None:
    dtype = {"d2t": torch.int64, "t2d": torch.bool}.get(name, torch.float32)
    text = refusal(write(builders.speculators(Model()).put(name, torch.zeros(shape, dtype=dtype)), tmp_path))
    assert f"{name} has shape {list(shape)}, expected {expected}" in text


def test_fc_of_a_width_that_fits_nothing(tmp_path: Path) -> None:
    files = builders.eagle(Model()).put("fc.weight", torch.zeros(32, 100))
    assert "fc.weight takes 100 numbers, expected a multiple of hidden_size (32)" in refusal(write(files, tmp_path))


def test_target_width_that_fc_does_not_fit(tmp_path: Path) -> None:
    text = refusal(write(builders.eagle(Model(), target_hidden_size=36), tmp_path))
    assert "fc.weight takes 96 numbers, expected a multiple of target_hidden_size (36)" in text


def test_draft_vocabulary_larger_than_the_targets(tmp_path: Path) -> None:
    text = refusal(write(builders.vllm(Model(), draft_vocab_size=97), tmp_path))
    assert "the draft vocabulary has 97 tokens, expected at most the target's 96" in text


def test_no_vocabulary_size_at_all(tmp_path: Path) -> None:
    files = builders.vllm(Model()).without("t2d", "embed_tokens.weight").silent("vocab_size")
    assert "lacks vocab_size, expected the target's vocabulary size" in refusal(write(files, tmp_path))


def test_t2d_of_floats(tmp_path: Path) -> None:
    files = builders.eagle(Model())
    assert "t2d is stored as float32, expected bool" in refusal(write(files.put("t2d", files.tensors["t2d"].float()), tmp_path))


def test_fc_against_the_number_of_ids(tmp_path: Path) -> None:
    files = builders.vllm(Model(), eagle_aux_hidden_state_layer_ids=[2, 4])
    files = files.saying(target_hidden_size=32)
    assert "= 3 aux states of 32, expected 2 by config.json's list of layer ids" in refusal(write(files, tmp_path))


@pytest.mark.parametrize(
    ("key", "value", "expected"),
    [
        ("hidden_size", None, "lacks transformer_layer_config.hidden_size, expected a whole number of at least 1"),
        ("hidden_size", "4096", 'hidden_size is "4096", expected a whole number'),
        ("hidden_size", 0, "hidden_size is 0, expected a whole number of at least 1"),
        ("hidden_size", True, "hidden_size is true"),
        ("num_attention_heads", -4, "num_attention_heads is -4"),
        ("num_key_value_heads", 3, "expected a divisor of num_attention_heads (4)"),
        ("rms_norm_eps", float("inf"), "rms_norm_eps is Infinity"),
        ("rms_norm_eps", 0, "rms_norm_eps is 0, expected a positive number"),
        ("rms_norm_eps", 10**400, "expected a positive number"),
        ("head_dim", 7, "head dimension is 7, expected an even number"),
        ("attention_bias", "no", "expected true or false"),
        ("hidden_act", 3, "expected a text"),
        ("rope_parameters", [1], "expected an object"),
        ("rope_parameters", {"rope_type": "spiral"}, "expected one of default, linear, dynamic, yarn, llama3, longrope"),
        ("rope_parameters", {"rope_type": "yarn"}, "lacks transformer_layer_config.rope_parameters.factor"),
        ("rope_parameters", {"rope_type": "llama3", "factor": 8}, "lacks transformer_layer_config.rope_parameters.low_freq_factor"),
        ("rope_parameters", {"rope_type": "longrope", "short_factor": [1, 1, 1, 1]}, "long_factor, expected a list of 4 positive"),
        ("rope_parameters", {"rope_theta": -1}, "expected a positive number"),
        ("partial_rotary_factor", 1.5, "expected at most 1"),
    ],
)
def test_bad_value(tmp_path: Path, key: str, value: object, expected: str) -> None:
    files = builders.speculators(Model())
    files.config["transformer_layer_config"][key] = value
    assert expected in refusal(write(files, tmp_path))


@pytest.mark.parametrize("ids", [3, ["a"], [-1, 2, 3], [1.5], [True, True, True], "2,4,5"])
def test_bad_layer_ids(tmp_path: Path, ids: object) -> None:
    text = refusal(write(builders.vllm(Model(), eagle_aux_hidden_state_layer_ids=ids), tmp_path))
    assert "eagle_aux_hidden_state_layer_ids" in text


def test_quantised_drafter(tmp_path: Path) -> None:
    files = builders.vllm(Model()).put("layers.0.mlp.up_proj.weight_scale", torch.zeros(1))
    assert "is quantised (it holds layers.0.mlp.up_proj.weight_scale)" in refusal(write(files, tmp_path))
    files = builders.vllm(Model()).put("fc.weight", torch.zeros(32, 96).to(torch.float8_e4m3fn))
    assert "fc.weight is stored as float8_e4m3fn, expected float32, bfloat16 or float16" in refusal(write(files, tmp_path))


def absolute(tensors: builders.Tensors) -> torch.Tensor:
    return tensors["d2t"] + torch.arange(len(tensors["d2t"]))


def test_absolute_d2t(tmp_path: Path) -> None:
    files = builders.eagle(Model())
    text = refusal(write(files.put("d2t", absolute(files.tensors)), tmp_path))
    assert "d2t holds target ids, expected offsets (target id = i + d2t[i]" in text
    assert "store d2t - arange(len(d2t)) instead" in text


def test_absolute_d2t_without_t2d(tmp_path: Path) -> None:
    files = builders.model_optimizer(Model(draft_vocab=80))
    assert "d2t holds target ids" in refusal(write(files.put("d2t", absolute(files.tensors)), tmp_path))


def test_d2t_against_t2d(tmp_path: Path) -> None:
    files = builders.eagle(Model())
    t2d = files.tensors["t2d"].clone()
    marked, unmarked = t2d.nonzero()[3], (~t2d).nonzero()[0]
    t2d[marked], t2d[unmarked] = False, True
    text = refusal(write(files.put("t2d", t2d), tmp_path))
    assert f"1 of 40 ids are not marked in t2d, the first is {int(marked)}" in text
    text = refusal(write(files.put("t2d", torch.ones(96, dtype=torch.bool)), tmp_path))
    assert "t2d marks 96 target tokens, expected draft_vocab_size = 40" in text


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda d: d.index_fill(0, torch.tensor([3, 4]), 1000), "2 of 40 ids lie outside the vocabulary of 96"),
        (lambda d: d.index_fill(0, torch.tensor([0]), -1), "the first is -1 at 0"),
        (lambda d: torch.cat((d[:1], d[:-1] - 1)), "ids occur twice"),
        (lambda d: d.float(), "d2t is stored as float32, expected int64 offsets"),
        (lambda d: d.bool(), "d2t is stored as bool"),
    ],
)
def test_wrong_d2t(tmp_path: Path, change: Callable[[torch.Tensor], torch.Tensor], expected: str) -> None:
    files = builders.model_optimizer(Model())
    changed = change(files.tensors["d2t"])
    assert expected in refusal(write(files.put("d2t", changed), tmp_path))


class Bomb:
    """What a malicious pickle does: calls something while it is read."""

    def __init__(self, witness: Path) -> None:
        self.witness = witness

    def __reduce__(self) -> tuple[Callable[..., object], tuple[object, ...]]:
        return os.mkdir, (str(self.witness),)


@pytest.mark.parametrize("zipped", [True, False])
def test_a_pickle_is_refused_and_never_executed(tmp_path: Path, zipped: bool) -> None:
    path = builders.eagle(Model()).write(tmp_path / "drafter", torch_files=True)
    witness = tmp_path / "executed"
    payload = {"fc.weight": Bomb(witness)}
    if zipped:
        torch.save(payload, path / "pytorch_model.bin")
    else:
        (path / "pytorch_model.bin").write_bytes(pickle.dumps(payload, protocol=2))
    text = refusal(path)
    assert "it was refused and nothing in it was executed" in text
    assert f"needs {os.mkdir.__module__}.mkdir, expected only tensors" in text
    assert not witness.exists()


@pytest.mark.parametrize(
    ("payload", "expected"),
    [
        ([1, 2], "holds a list, expected a dict of tensors"),
        ({}, "holds a dict, expected a dict of tensors"),
        ({"fc.weight": 3}, "entry 'fc.weight' is a int, expected only named tensors"),
        ({4: torch.zeros(1)}, "entry 4 is a Tensor, expected only named tensors"),
        ({"fc.weight": torch.zeros(2, 2).to_sparse()}, "fc.weight is a torch.sparse_coo tensor"),
    ],
)
def test_torch_files_of_something_else(tmp_path: Path, payload: object, expected: str) -> None:
    path = builders.eagle(Model()).write(tmp_path / "drafter", torch_files=True)
    torch.save(payload, path / "pytorch_model.bin")
    assert expected in refusal(path)


def test_a_pickle_of_a_later_protocol(tmp_path: Path) -> None:
    path = builders.eagle(Model()).write(tmp_path / "drafter", torch_files=True)
    witness = tmp_path / "executed"
    (path / "pytorch_model.bin").write_bytes(pickle.dumps({"fc.weight": Bomb(witness)}, protocol=4))
    assert "nothing in it was executed" in refusal(path)
    assert not witness.exists()


def test_torchscript_is_refused(tmp_path: Path) -> None:
    path = builders.eagle(Model()).write(tmp_path / "drafter", torch_files=True)
    with zipfile.ZipFile(path / "pytorch_model.bin", "w") as archive:
        for name in ("data.pkl", "constants.pkl", "version", "code/x.py"):
            archive.writestr(f"archive/{name}", b"3\n")
    assert "pytorch_model.bin is " in refusal(path)


def test_state_dict_inside_a_torch_file(tmp_path: Path) -> None:
    files = builders.eagle(Model())
    path = files.write(tmp_path / "drafter", torch_files=True)
    torch.save({"epoch": 3, "state_dict": files.tensors}, path / "pytorch_model.bin")
    assert read_drafter(path).has("fc.weight")


def test_legacy_torch_file(tmp_path: Path) -> None:
    files = builders.eagle(Model())
    path = files.write(tmp_path / "drafter", torch_files=True)
    torch.save(files.tensors, path / "pytorch_model.bin", _use_new_zipfile_serialization=False)
    assert torch.equal(read_drafter(path).get("fc.weight"), files.tensors["fc.weight"])


def test_truncated_torch_file(tmp_path: Path) -> None:
    path = builders.eagle(Model()).write(tmp_path / "drafter", torch_files=True)
    file = path / "pytorch_model.bin"
    os.truncate(file, file.stat().st_size // 2)
    assert "is damaged or not a weights file" in refusal(path)


def test_a_zip_that_is_no_torch_file(tmp_path: Path) -> None:
    path = builders.eagle(Model()).write(tmp_path / "drafter", torch_files=True)
    with zipfile.ZipFile(path / "pytorch_model.bin", "w") as archive:
        archive.writestr("readme.txt", "hello")
    assert "is damaged or not a weights file" in refusal(path)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float8_e4m3fn])
def test_nonfinite_values_are_counted(dtype: torch.dtype) -> None:
    values = torch.zeros(4, 5)
    values[1, 2] = values[3, 4] = float("nan")
    infinite = 0
    if dtype is not torch.float8_e4m3fn:  # it has no infinity
        values[0, 0] = float("-inf")
        infinite = 1
    assert count_nonfinite(values.to(dtype)) == (2, infinite)
    with pytest.raises(InputError, match=rf"drafter: fc.weight holds 2 NaN and {infinite} infinite of 20 values"):
        require_finite(values.to(dtype), "fc.weight", Path("drafter"))


def test_finite_values_pass() -> None:
    tensor = torch.full((3,), torch.finfo(torch.float16).max, dtype=torch.float16)
    assert require_finite(tensor, "x", Path()) is tensor
    assert count_nonfinite(torch.tensor([], dtype=torch.float32)) == (0, 0)
    assert count_nonfinite(torch.tensor([1])) == (0, 0)


def test_nonfinite_values_are_counted_across_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("eagle3_diag.checkpoint.tensors.CHUNK_BYTES", 16)
    values = torch.zeros(31)
    values[::3] = float("inf")
    assert count_nonfinite(values) == (0, 11)
