"""How TensorRT-LLM (PyTorch flow, main of autumn 2026) wires an EAGLE-3 checkpoint.

Read in NVIDIA/TensorRT-LLM (paths below ``tensorrt_llm``): ``_torch/speculative/eagle3.py`` (which layers are captured, as outputs, sorted),
``_torch/speculative/utils.py`` (the ids come from the serving configuration alone), ``_torch/models/modeling_speculative.py`` (the drafter).
Its releases cannot be installed without a GPU stack, so no version's behaviour is told apart.
"""

from __future__ import annotations

from dataclasses import replace

from eagle3_diag.engines.interface import Reason, Remark, Subject, Wired, rope_reason, truthy
from eagle3_diag.engines.versions import Version
from eagle3_diag.wiring import Wiring

name = "tensorrt-llm"
title = "TensorRT-LLM"
oldest = newest = "main"
packages = ("tensorrt-llm", "tensorrt_llm")
_MODEL = "_torch/models/modeling_speculative.py"
_CAPTURE = "_torch/speculative/eagle3.py"


def default_outputs(num_layers: int) -> tuple[int, ...]:
    """Layer outputs that are captured when the serving configuration names none."""
    return (1, num_layers // 2 - 1, num_layers - 4)


def wire(subject: Subject, version: Version | None) -> list[Wired]:
    """See :class:`~eagle3_diag.engines.interface.Engine`."""
    s, raw, config = subject, subject.raw, subject.checkpoint.config
    reasons: dict[str, Reason] = {}
    remarks: list[Remark] = []

    def because(field: str, code: str, text: str, mend: str, where: str = _MODEL) -> None:
        reasons[field] = Reason(code=code, text=text, mend=mend, source=f"TensorRT-LLM main {where}")

    def refuse(code: str, text: str, mend: str, where: str = _MODEL) -> None:
        remarks.append(Remark(code=code, text=text, mend=mend, source=f"TensorRT-LLM main {where}"))

    wanted = s.trained.aux_layer_inputs or ()
    flag = f"eagle3_layers_to_capture: {sorted({i - 1 for i in wanted})} in the speculative configuration"
    if s.is_speculators:
        refuse("format-not-read", "TensorRT-LLM does not read speculators' config.json.", "eagle3-diag convert DRAFTER OUT --to specforge")
    elif s.target.num_layers <= 5:
        refuse("target-not-supported", "TensorRT-LLM has no default layers for a target of 5 layers or fewer.", flag, _CAPTURE)
    if "target_hidden_size" in raw and raw["target_hidden_size"] is None and not s.is_speculators:
        refuse("null-target-hidden-size", "target_hidden_size is null; TensorRT-LLM multiplies it.",
               f'config.json: "target_hidden_size": {config.target_hidden_size}, or leave the key out')  # fmt: skip
    inputs = tuple(i + 1 for i in default_outputs(s.target.num_layers))
    if not remarks and config.num_aux != len(inputs):
        refuse("captured-states", f"TensorRT-LLM captures {len(inputs)} states by default where fc takes {config.num_aux}.", flag, _CAPTURE)
    because("aux_layer_inputs", "layer-ids-ignored", "layer ids of config.json are not read, only those of the serving configuration; without them the outputs "
            f"of layers {s.inputs_text(default_outputs(s.target.num_layers))} are captured.", flag, _CAPTURE)  # fmt: skip
    if not remarks and inputs == wanted:
        remarks.append(Remark(**vars(reasons["aux_layer_inputs"]) | {"severity": "warning", "text": reasons["aux_layer_inputs"].text + " They are those of training."}))
    never = "no key mends it; serve with vLLM, or train without"
    because("residual", "norm-before-residual-ignored", "norm_before_residual is ignored: the residual is always taken before hidden_norm.", never)
    because("output_norm", "output-norm-always", "the final norm is always applied before lm_head.", "no key mends it; train with the final norm")
    because("hidden_norm", "hidden-norm-once", "training normed the state twice, hidden_norm(input_layernorm(state)); TensorRT-LLM applies hidden_norm alone.",
            "no server does it; train with a release that norms once, and take the loss as given until then")  # fmt: skip
    because("norm_before_fc", "norm-before-fc-place", "norm_before_fc is read in eagle_config alone, and left out when fc_norm is set.",
            f'config.json, eagle_config: "norm_before_fc": {str(s.trained.norm_before_fc).lower()}')  # fmt: skip
    because("fc_norm", "fc-norm-place", "fc_norm is read at top level.", f'config.json, at top level: "fc_norm": {str(s.trained.fc_norm).lower()}')
    post = str(s.trained.feedback == "post-norm").lower()
    because("feedback", "feedback-norm", "the state after the final norm is fed back when eagle_config.return_hidden_post_norm or norm_output is true.",
            f'config.json: "norm_output": {post}')  # fmt: skip
    because("embedding", "embedding-replaced", "the drafter's own embedding is used only where target_hidden_size differs from hidden_size.", never)
    because("qk_norm", "qk-norm-dropped", "TensorRT-LLM's drafter has no q and k norm.", never)
    because("further_norm", "further-layers-norm", "layers after the first are normed by hidden_norm, not by their input_layernorm.",
            "name the norms layers.i.hidden_norm for i > 0, or use vLLM")  # fmt: skip
    reasons["rope"] = rope_reason(s, "TensorRT-LLM main _torch/models/modeling_speculative.py")
    wiring: Wiring | None = None
    if not any(r.severity == "error" for r in remarks):
        fc_norm = truthy(raw.get("fc_norm", False))
        own = config.hidden_size != config.target_hidden_size and "embed_tokens.weight" in s.checkpoint.tensors
        wiring = replace(
            s.trained,
            aux_layer_inputs=inputs,
            fc="applied",
            norm_before_fc=truthy(s.nested.get("norm_before_fc", False)) and not fc_norm,
            fc_norm=fc_norm,
            embedding_norm="own",
            hidden_norm="own",
            output_norm="own",
            residual="before-norm",
            attention_bias=True,
            qk_norm=not config.qk_norm,
            further_norm="hidden_norm" if config.num_layers > 1 else "input_layernorm",
            feedback="post-norm" if truthy(s.nested.get("return_hidden_post_norm", False)) or truthy(raw.get("norm_output", False)) else "pre-norm",
            rope=config.rope,
            position_offset=0,
            vocabulary="offset",
            embedding="drafter" if own else "target",
            head="drafter" if "lm_head.weight" in s.checkpoint.tensors else "target",
        )
    notes: tuple[str, ...] = ("assumes a serving configuration without eagle3_layers_to_capture",)
    if s.is_mla:
        notes = (*notes, "which class main gives a drafter with latent attention was not read")
    if version is not None and str(version) != newest:
        notes = (*notes, f"releases are not told apart: {version} is taken to do as main does")
    return [Wired(engine=name, version=str(version or newest), runner=None, wiring=wiring, preset="main", reasons=reasons, remarks=tuple(remarks), notes=notes)]
