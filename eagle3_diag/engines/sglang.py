"""How SGLang wires an EAGLE-3 checkpoint, from 0.5.6 to 0.5.23.

Read in the wheels 0.5.6 to 0.5.23, each of them (paths below ``sglang/srt``):

- ``models/llama_eagle3.py``, ``models/kimi_k25_eagle3.py``: the drafters.
- ``model_executor/model_runner.py`` up to 0.5.15, ``model_executor/model_runner_components/spec_aux_hidden_state.py`` since 0.5.16: where
  the layer ids are read, ``eagle_config`` alone; any exception means "no ids".
- ``models/*.py``, ``set_eagle3_layers_to_capture``: what a target makes of the ids.
- ``models/llama.py``: ``set_embed``, and the RoPE that a config gives (Transformers 4.57 up to 0.5.9, 5.x since 0.5.10).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from eagle3_diag.checkpoint.fields import Fields
from eagle3_diag.checkpoint.rotary import read_rope
from eagle3_diag.config import RopeConfig
from eagle3_diag.engines.interface import Reason, Remark, Subject, Wired, ids_list, rope_reason, truthy
from eagle3_diag.engines.versions import Version, parse
from eagle3_diag.wiring import Wiring

name = "sglang"
title = "SGLang"
oldest = "0.5.6"
newest = "0.5.23"
packages = ("sglang",)

LLAMA = "LlamaForCausalLMEagle3"
MLA = "Eagle3DeepseekV2ForCausalLM"
_LLAMA_FILE = "models/llama_eagle3.py"
_MLA_FILE = "models/kimi_k25_eagle3.py"

Rule = Callable[[Sequence[int], int], tuple[int, ...]]


def outputs(ids: Sequence[int], num_layers: int) -> tuple[int, ...]:
    """Id i is the output of layer i."""
    return tuple(i + 1 for i in ids)


def first_id(ids: Sequence[int], num_layers: int) -> tuple[int, ...]:
    """Outputs if the first id is 1, else inputs."""
    return outputs(ids, num_layers) if ids and ids[0] == 1 else tuple(ids)


def last_id(ids: Sequence[int], num_layers: int) -> tuple[int, ...]:
    """Inputs if the largest id is the number of layers, else outputs."""
    return tuple(ids) if ids and max(ids) == num_layers else outputs(ids, num_layers)


def default_inputs(num_layers: int) -> tuple[int, ...]:
    return (2, num_layers // 2, num_layers - 3)


@dataclass(frozen=True, kw_only=True)
class Capture:
    """A target file's rule since a version. ``default_shift`` is added to the defaults too; ``last`` says that the output of the last
    layer can be captured."""

    since: str
    rule: Rule
    file: str
    default_shift: int = 0
    last: bool = False


def _since(version: str, file: str, rule: Rule = outputs, **more: Any) -> Capture:
    return Capture(since=version, rule=rule, file=f"models/{file}.py", **more)


_DEEPSEEK = (_since("0.5.6", "deepseek_v2"), _since("0.5.13", "deepseek_v2", first_id))
_LLAMA = (_since("0.5.6", "llama"),)
_QWEN3_VL = (_since("0.5.11", "qwen3_vl"),)
# Every architecture whose class has the method, its own or inherited, by the version that it came with.
CAPTURES: Mapping[str, tuple[Capture, ...]] = {
    "LlamaForCausalLM": _LLAMA,
    "Llama4ForCausalLM": _LLAMA,
    "MistralForCausalLM": _LLAMA,
    "Phi3ForCausalLM": _LLAMA,
    "InternLM3ForCausalLM": _LLAMA,
    "TeleFLMForCausalLM": _LLAMA,
    "Ministral3ForCausalLM": (_since("0.5.7", "llama"),),
    "IQuestCoderForCausalLM": (_since("0.5.8", "llama"),),
    "Llama4ForConditionalGeneration": (_since("0.5.6", "mllama4"),),
    "ApertusForCausalLM": (_since("0.5.6", "apertus"),),
    "Qwen2ForCausalLM": (_since("0.5.6", "qwen2"),),
    "Qwen3ForCausalLM": (_since("0.5.6", "qwen3"),),
    "Qwen2MoeForCausalLM": (_since("0.5.6", "qwen2_moe"),),
    "Qwen3MoeForCausalLM": (_since("0.5.6", "qwen3_moe"),),
    "MellumForCausalLM": (_since("0.5.16", "qwen3_moe"),),
    "Qwen3NextForCausalLM": (_since("0.5.9", "qwen3_next"),),
    "Qwen2_5_VLForConditionalGeneration": (_since("0.5.6", "qwen2_5_vl"),),
    "Qwen3VLForConditionalGeneration": _QWEN3_VL,
    "Qwen3VLMoeForConditionalGeneration": _QWEN3_VL,
    "Qwen3_5ForConditionalGeneration": _QWEN3_VL,
    "Qwen3_5MoeForConditionalGeneration": _QWEN3_VL,
    "InternS1ProForConditionalGeneration": _QWEN3_VL,
    "InternS2PreviewForConditionalGeneration": (_since("0.5.12", "qwen3_vl"),),
    "InternS2MobiusForConditionalGeneration": (_since("0.5.18", "qwen3_vl"),),
    "Cosmos3ForConditionalGeneration": (_since("0.5.20", "qwen3_vl"),),
    "Qwen4ExpForConditionalGeneration": (_since("0.5.20", "qwen3_vl"),),
    "Qwen3_5ForCausalLM": (_since("0.5.22", "qwen3_5_text"),),
    "Qwen3_5MoeForCausalLM": (_since("0.5.22", "qwen3_5_text"),),
    "DeepseekV2ForCausalLM": _DEEPSEEK,
    "DeepseekV3ForCausalLM": _DEEPSEEK,
    "DeepseekV32ForCausalLM": _DEEPSEEK,
    "MistralLarge3ForCausalLM": (_since("0.5.7", "deepseek_v2"), _since("0.5.13", "deepseek_v2", first_id)),
    "GlmMoeDsaForCausalLM": (_since("0.5.9", "deepseek_v2"), _since("0.5.13", "deepseek_v2", first_id)),
    "KimiK25ForConditionalGeneration": (_since("0.5.10", "deepseek_v2"), _since("0.5.13", "deepseek_v2", first_id)),
    "Glm4MoeLiteForCausalLM": (_since("0.5.8", "deepseek_v2"), _since("0.5.13", "glm4_moe_lite", first_id)),
    "Glm4MoeForCausalLM": (_since("0.5.6", "glm4_moe"),),
    "Glm5NextForConditionalGeneration": (_since("0.5.20", "glm5_next"),),
    "GptOssForCausalLM": (_since("0.5.6", "gpt_oss"), _since("0.5.17", "gpt_oss", last_id, last=True)),
    "LongcatFlashForCausalLM": (_since("0.5.6", "longcat_flash"),),
    "MiniMaxM2ForCausalLM": (_since("0.5.6", "minimax_m2"),),
    "MiniMaxM3SparseForCausalLM": (_since("0.5.16", "minimax_m3"),),
    "MiniMaxM3SparseForConditionalGeneration": (_since("0.5.18", "minimax_m3_vl", default_shift=1),),
    "BailingMoEForCausalLM": (_since("0.5.9", "bailing_moe"),),
    "BailingMoeForCausalLM": (_since("0.5.9", "bailing_moe"),),
    "BailingMoeV2ForCausalLM": (_since("0.5.9", "bailing_moe"),),
    "SarvamMoEForCausalLM": (_since("0.5.10", "bailing_moe"),),
    "ExaoneMoEForCausalLM": (_since("0.5.9", "exaone_moe"),),
    "ExaoneMoeForCausalLM": (_since("0.5.22", "exaone_moe"),),
    "Gemma3ForCausalLM": (_since("0.5.12", "gemma3_causal", last=True),),
    "Gemma3ForConditionalGeneration": (_since("0.5.12", "gemma3_causal", last=True),),
    "Gemma4ForCausalLM": (_since("0.5.12", "gemma4_causal", last=True),),
    "Gemma4ForConditionalGeneration": (_since("0.5.12", "gemma4_mm", last=True),),
    "Gemma4UnifiedForConditionalGeneration": (_since("0.5.13", "gemma4_mm", last=True),),
    "MindSporeForCausalLM": (_since("0.5.10", "mindspore"),),
}


def capture_of(architecture: str, version: Version) -> Capture | None:
    """The rule for a target of that architecture in that version; None when its class cannot capture."""
    return next((c for c in reversed(CAPTURES.get(architecture, ())) if version >= parse(c.since)), None)


def captured(capture: Capture, ids: Sequence[int] | None, num_layers: int) -> tuple[int, ...]:
    """Layer inputs that are handed to the drafter, in depth order (membership is tested layer by layer)."""
    wanted = tuple(i + capture.default_shift for i in default_inputs(num_layers)) if ids is None else capture.rule(ids, num_layers)
    return tuple(sorted({i for i in wanted if 0 <= i < num_layers + capture.last}))


def wire(subject: Subject, version: Version | None) -> list[Wired]:
    """See :class:`~eagle3_diag.engines.interface.Engine`."""
    asked = version or parse(newest)
    return [_Preset(subject, asked).wired()]


class _Preset:
    def __init__(self, subject: Subject, version: Version) -> None:
        self.subject = subject
        self.version = version
        self.reasons: dict[str, Reason] = {}
        self.remarks: list[Remark] = []

    def since(self, text: str) -> bool:
        return self.version >= parse(text)

    def source(self, file: str) -> str:
        read = min(max(self.version, parse(oldest)), parse(newest))
        return f"sglang {read} srt/{file}"

    def refuse(self, code: str, text: str, mend: str, file: str) -> None:
        self.remarks.append(Remark(code=code, text=text, mend=mend, source=self.source(file)))

    def wired(self) -> Wired:
        wiring = self._wiring() if self._starts() else None
        return Wired(
            engine=name,
            version=str(self.version),
            runner=None,
            wiring=wiring,
            preset="0.5.6 to 0.5.23",
            reasons=self.reasons,
            remarks=tuple(self.remarks),
            notes=("tells what --speculative-algorithm EAGLE3 does; with EAGLE the aux states are never captured and fc is skipped without a word",),
        )

    def _starts(self) -> bool:
        """Whether the server comes up with this checkpoint; remarks where it does not."""
        s, raw = self.subject, self.subject.raw
        if s.is_speculators:
            self.refuse(
                "format-not-read",
                "SGLang does not read speculators' config.json (no model_type, the layer's numbers are under transformer_layer_config).",
                "eagle3-diag convert DRAFTER OUT --to specforge",
                _LLAMA_FILE,
            )
            return False
        named = raw.get("architectures") or []
        first = named[0] if named else ""
        known = [LLAMA, *([MLA] if self.since("0.5.12") else [])]
        fitting = MLA if s.is_mla else LLAMA
        if fitting not in known:
            self.refuse("drafter-not-supported", "SGLang has a drafter with latent attention since 0.5.12.", "use SGLang 0.5.12 or later", _MLA_FILE)
            return False
        if first != fitting:
            self.refuse(
                "architecture-not-read",
                f"architectures names {first or 'nothing'}; SGLang's class for this drafter is {fitting}.",
                f'config.json: "architectures": ["{fitting}"]',
                _MLA_FILE if s.is_mla else _LLAMA_FILE,
            )
        if s.checkpoint.config.num_layers != 1 and (s.is_mla or not self.since("0.5.12")):
            self.refuse(
                "layers-not-supported",
                f"the drafter has {s.checkpoint.config.num_layers} layers; SGLang {self.version} takes exactly one.",
                "use an engine that runs several layers (vLLM 0.12 or later" + ("" if s.is_mla else ", SGLang 0.5.12 or later") + ")",
                _MLA_FILE if s.is_mla else _LLAMA_FILE,
            )
        if not s.is_mla and "draft_vocab_size" not in raw:
            self.refuse(
                "draft-vocab-size-missing",
                "config.json has no draft_vocab_size, which SGLang reads without a default.",
                f'config.json: "draft_vocab_size": {s.checkpoint.config.draft_vocab_size}',
                _LLAMA_FILE,
            )
        if not s.is_mla and "target_hidden_size" in raw and raw["target_hidden_size"] is None:
            self.refuse(
                "null-target-hidden-size",
                "target_hidden_size is null; SGLang multiplies it.",
                f'config.json: "target_hidden_size": {s.checkpoint.config.target_hidden_size}, or leave the key out',
                _LLAMA_FILE,
            )
        if capture_of(s.target.architecture, self.version) is None:
            later = CAPTURES.get(s.target.architecture)
            self.refuse(
                "target-not-supported",
                f"SGLang {self.version} cannot capture aux states of {s.target.architecture or 'a target without architectures'}.",
                f"use SGLang {later[0].since} or later" if later else "use an engine that captures this target's states",
                later[0].file if later else "models",
            )
        return not self.remarks

    def _wiring(self) -> Wiring | None:
        s, raw, config = self.subject, self.subject.raw, self.subject.checkpoint.config
        file = _MLA_FILE if s.is_mla else _LLAMA_FILE
        ids = self._ids()
        capture = capture_of(s.target.architecture, self.version)
        assert capture is not None
        inputs = captured(capture, ids, s.target.num_layers)
        self._explain_ids(capture, ids, inputs)
        skipped = self.since("0.5.8") and not truthy(s.nested.get("use_aux_hidden_state", True))
        if skipped:
            inputs = (s.target.num_layers,)
            self.reasons["fc"] = self.reasons["features"] = self.reasons["aux_layer_inputs"] = Reason(
                code="fc-skipped",
                text="eagle_config.use_aux_hidden_state is false: nothing is captured, the last state (after the final norm) is as wide as the "
                "embedding, and SGLang then leaves fc out without a word.",
                mend='config.json, eagle_config: "use_aux_hidden_state": true',
                source=self.source(file),
            )
        elif not self._fc_fits(inputs, file):
            return None
        fc_norm = self._fc_norm(file)
        norm_before_fc = self._norm_before_fc(file)
        feedback = self._feedback(file)
        self._explain_the_rest(file)
        own_embedding = config.hidden_size != config.target_hidden_size and "embed_tokens.weight" in s.checkpoint.tensors
        return replace(
            s.trained,
            aux_layer_inputs=inputs,
            features="final" if skipped else "aux",
            fc="skipped" if skipped else "applied",
            norm_before_fc=norm_before_fc,
            fc_norm=fc_norm,
            embedding_norm="own",
            hidden_norm="own",
            output_norm="own",
            residual="before-norm",
            attention_bias=not config.attention_bias,
            qk_norm=not config.qk_norm,
            further_norm="hidden_norm" if config.num_layers > 1 else "input_layernorm",
            feedback="post-norm" if feedback else "pre-norm",
            rope=self._rope(),
            position_offset=0,
            vocabulary="offset",
            embedding="drafter" if own_embedding else "target",
            head="target" if raw.get("draft_vocab_size") is None or "lm_head.weight" not in s.checkpoint.tensors else "drafter",
        )

    def _ids(self) -> tuple[int, ...] | None:
        return ids_list(self.subject.nested.get("eagle_aux_hidden_state_layer_ids"))

    def _explain_ids(self, capture: Capture, ids: tuple[int, ...] | None, inputs: tuple[int, ...]) -> None:
        s = self.subject
        wanted = s.trained.aux_layer_inputs or ()
        good = next((c for c in ([i - 1 for i in wanted], list(wanted)) if min(c, default=0) >= 0 and captured(capture, c, s.target.num_layers) == wanted), None)
        if good is None:
            mend = f"no ids make SGLang {self.version} capture the inputs of layers {s.inputs_text(wanted)}"
        else:
            mend = f'config.json, eagle_config: "eagle_aux_hidden_state_layer_ids": {good}'
        reader = "model_executor/model_runner_components/spec_aux_hidden_state.py" if self.since("0.5.16") else "model_executor/model_runner.py"
        got = s.inputs_text(inputs)
        if ids is None:
            top = ids_list(s.raw.get("eagle_aux_hidden_state_layer_ids"))
            text = f"SGLang takes its defaults, the inputs of layers {got}"
            if top:
                code, text = "layer-ids-ignored", f"layer ids at top level are not read (only those in eagle_config): {text}."
            else:
                code, text = "layer-ids-missing", f"config.json gives no layer ids: {text}."
            reason = Reason(code=code, text=text, mend=mend, source=f"{self.source(reader)}; {capture.file}")
            if inputs == wanted:
                self.remarks.append(Remark(**vars(reason) | {"severity": "warning", "text": f"{text} They are those of training."}))
        else:
            explained: dict[Rule, str] = {
                outputs: f"for {s.target.architecture} an id means the output of a layer",
                first_id: f"for {s.target.architecture} ids mean outputs of layers if the first is 1, else inputs",
                last_id: f"for {s.target.architecture} ids mean inputs of layers if the largest is the number of layers, else outputs",
            }
            text = f"{explained[capture.rule]}: ids {list(ids)} capture the inputs of layers {got}."
            reason = Reason(code="layer-ids-convention", text=text, mend=mend, source=f"{self.source(capture.file)}")
        self.reasons["aux_layer_inputs"] = reason

    def _fc_fits(self, inputs: tuple[int, ...], file: str) -> bool:
        """Whether fc is as wide as the states captured: at load, and at the first request."""
        s, fc = self.subject, self.subject.checkpoint.config.num_aux
        number = s.raw.get("num_aux_hidden_states") if self.since("0.5.12") and not s.is_mla else None
        if number is None:
            ids = s.nested.get("eagle_aux_hidden_state_layer_ids")
            if ids is None and s.is_mla:
                ids = s.raw.get("eagle_aux_hidden_state_layer_ids")
            number = len(ids) if ids and (s.is_mla or self.since("0.5.12")) else 3
        if number != fc:
            edit = "num_aux_hidden_states" if self.since("0.5.12") and not s.is_mla else "the list of layer ids in eagle_config"
            self.refuse("fc-width", f"SGLang builds fc for {number} states, the checkpoint's takes {fc}.", f"config.json: {edit} for {fc} states", file)
            return False
        if len(inputs) != fc:
            self.refuse(
                "captured-states",
                f"SGLang captures {len(inputs)} states (inputs of layers {s.inputs_text(inputs)}) where fc takes {fc}: the first request fails.",
                self.reasons["aux_layer_inputs"].mend,
                self.reasons["aux_layer_inputs"].source.split("srt/")[-1],
            )
            return False
        return True

    def _fc_norm(self, file: str) -> bool:
        s = self.subject
        asked = truthy(s.raw.get("fc_norm")) or truthy(s.raw.get("use_aux_norm"))
        known = self.since("0.5.13" if s.is_mla else "0.5.12")
        self.reasons["fc_norm"] = Reason(
            code="fc-norm-ignored",
            text=f"fc_norm is not known to SGLang before {'0.5.13' if s.is_mla else '0.5.12'}: fc gets states without a norm."
            if not known
            else "fc_norm is read at top level only: fc gets states without a norm.",
            mend="use SGLang 0.5.13 or later" if not known else 'config.json, at top level: "fc_norm": true',
            source=self.source(file),
        )
        return known and asked

    def _norm_before_fc(self, file: str) -> bool:
        s = self.subject
        known = self.since("0.5.17") and not s.is_mla
        self.reasons["norm_before_fc"] = Reason(
            code="norm-before-fc-ignored",
            text="norm_before_fc is not known to SGLang's drafter with latent attention: input_norm is not applied."
            if s.is_mla
            else "norm_before_fc is not known to SGLang before 0.5.17: input_norm is not applied.",
            mend="no key mends it; use vLLM" if s.is_mla else "use SGLang 0.5.17 or later",
            source=self.source(file),
        )
        return known and truthy(s.nested.get("norm_before_fc", s.raw.get("norm_before_fc", False)))

    def _feedback(self, file: str) -> bool:
        """Whether the state after the output norm is fed back."""
        s = self.subject
        known = self.since("0.5.13" if s.is_mla else "0.5.12")
        served = known and truthy(s.raw.get("norm_output", False))
        if served:
            text, mend = "norm_output is true: SGLang feeds the state after the final norm back to the next draft step.", 'config.json: "norm_output": false'
        elif known:
            text, mend = "norm_output is not true at top level: SGLang feeds the state before the final norm back.", 'config.json, at top level: "norm_output": true'
        else:
            text, mend = "norm_output is not known to this SGLang: it feeds the state before the final norm back.", "use SGLang 0.5.13 or later"
        self.reasons["feedback"] = Reason(code="feedback-norm", text=text, mend=mend, source=self.source(file))
        return served

    def _explain_the_rest(self, file: str) -> None:
        s = self.subject

        def because(field: str, code: str, text: str, mend: str, where: str = file) -> None:
            self.reasons[field] = Reason(code=code, text=text, mend=mend, source=self.source(where))

        never = "no key mends it; serve with vLLM, or train without"
        because("residual", "norm-before-residual-ignored", "norm_before_residual is ignored: the residual is always taken before hidden_norm.", never)
        because("output_norm", "output-norm-always", "SGLang always applies the final norm before lm_head.", "no key mends it; train with the final norm")
        because("hidden_norm", "hidden-norm-once", "training normed the state twice, hidden_norm(input_layernorm(state)); SGLang applies hidden_norm alone.",
                "no server does it; train with a release that norms once, and take the loss as given until then")  # fmt: skip
        because("attention_bias", "attention-bias-dropped", "SGLang's drafter has no q, k, v bias: the stored ones are left out without a word.", never)
        because("qk_norm", "qk-norm-dropped", "SGLang's drafter has no q and k norm: the stored ones are left out without a word.", never)
        because("further_norm", "further-layers-norm", "layers after the first are normed by a hidden_norm that the checkpoint does not hold (its weight "
                "stays at one), not by their input_layernorm.", "rename layers.i.input_layernorm to layers.i.hidden_norm for i > 0, or use vLLM")  # fmt: skip
        because("embedding", "embedding-replaced", "SGLang replaces the drafter's own embedding by the target's unless target_hidden_size differs from "
                "hidden_size.", "no key mends it; use an engine that keeps the drafter's embedding (vLLM 0.12 or later)", "models/llama.py")  # fmt: skip
        because("head", "head-replaced", "draft_vocab_size is null: SGLang takes the target's lm_head instead of the drafter's.",
                f'config.json: "draft_vocab_size": {s.checkpoint.config.draft_vocab_size}')  # fmt: skip
        if not self.since("0.5.12") and any(n.removeprefix("model.").startswith("layers.0.") for n in s.stored):
            self.refuse(
                "layer-weights-unread",
                f"SGLang {self.version} calls the layer midlayer: the tensors named layers.0.* are skipped without a word, and the layer runs on memory "
                "that nothing was written to.",
                "use SGLang 0.5.12 or later, or eagle3-diag convert DRAFTER OUT --to specforge",
                file,
            )

    def _rope(self) -> RopeConfig:
        s, config = self.subject, self.subject.checkpoint.config
        served = config.rope
        old = not self.since("0.5.10") and s.raw.get("rope_parameters") is not None
        if old:
            plain = {k: v for k, v in s.raw.items() if k != "rope_parameters"}
            served = read_rope(Fields(plain, s.checkpoint.path / "config.json"), config.mla.qk_rope_head_dim if config.mla else config.head_dim)
            self.reasons["rope"] = Reason(
                code="rope-parameters-ignored",
                text="rope_parameters is how Transformers 5 writes RoPE; SGLang before 0.5.10 (Transformers 4) reads rope_theta and rope_scaling alone.",
                mend=f'config.json: "rope_theta": {config.rope.theta:g} (and rope_scaling), or use SGLang 0.5.10 or later',
                source=self.source("models/llama.py"),
            )
        else:
            self.reasons["rope"] = rope_reason(s, self.source("models/llama.py"))
        return served
