"""What engines make of checkpoints, by version and target: the cases that cost people their acceptance length."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from eagle3_diag.engines.reading import engine_spec
from eagle3_diag.engines.versions import parse
from eagle3_diag.errors import InputError
from tests.eagle3_diag.checkpoint.builders import Files, Model, eagle, model_optimizer, rename, specforge, speculators, vllm, weights
from tests.eagle3_diag.engines.subjects import ask, codes, inputs, kimi, one, target

STORY = [2, 30, 58]


def nested(ids: Any, **more: Any) -> dict[str, Any]:
    return {"eagle_config": {"eagle_aux_hidden_state_layer_ids": ids, "use_aux_hidden_state": True} | more}


def story(**how: Any) -> Files:
    return specforge(Model(), **(nested(STORY) | how))


@pytest.mark.parametrize("version", ["0.5.10", "0.5.11", "0.5.12"])
def test_ids_of_inputs_are_one_late_for_kimi_up_to_0_5_12(version: str, tmp_path: Path) -> None:
    answer = one(story(), kimi(tmp_path / "t"), f"sglang=={version}", ids="inputs")
    assert inputs(answer) == (3, 31, 59)
    assert codes(answer) == ["layer-ids-convention"]
    found = answer.findings[0]
    assert (found.trained, found.served) == (STORY, [3, 31, 59])
    assert found.mend == 'config.json, eagle_config: "eagle_aux_hidden_state_layer_ids": [1, 29, 57]'


@pytest.mark.parametrize("version", ["0.5.13", "0.5.16", "0.5.23"])
def test_ids_of_inputs_are_right_for_kimi_since_0_5_13(version: str, tmp_path: Path) -> None:
    answer = one(story(), kimi(tmp_path / "t"), f"sglang=={version}", ids="inputs")
    assert inputs(answer) == (2, 30, 58)
    assert answer.as_trained


@pytest.mark.parametrize("version", ["0.5.6", "0.5.12", "0.5.13", "0.5.23"])
def test_ids_of_inputs_are_one_late_for_llama_in_all(version: str, tmp_path: Path) -> None:
    answer = one(story(), target(tmp_path / "t"), f"sglang=={version}", ids="inputs")
    assert inputs(answer) == (3, 31, 59)
    assert codes(answer) == ["layer-ids-convention"]


def test_ids_of_outputs_are_right_until_the_first_id_rule(tmp_path: Path) -> None:
    """The same file trained by SpecForge itself: right up to 0.5.12, and since 0.5.13 with a first id of 1 alone."""
    late = story()
    assert one(late, kimi(tmp_path / "t"), "sglang==0.5.12").as_trained
    answer = one(late, kimi(tmp_path / "t"), "sglang==0.5.13")
    assert inputs(answer) == (2, 30, 58)
    assert "[3, 31, 59]" in answer.findings[0].mend
    for version in ("0.5.12", "0.5.13"):
        assert one(specforge(Model(), **nested([1, 29, 57])), kimi(tmp_path / "t"), f"sglang=={version}").as_trained


def test_the_edit_that_is_named_mends_it(tmp_path: Path) -> None:
    for version, ids in (("0.5.12", [1, 29, 57]), ("0.5.13", [1, 29, 57])):
        files = specforge(Model(), **nested(ids))
        answer = one(files, kimi(tmp_path / "t"), f"sglang=={version}")
        assert inputs(answer) == tuple(STORY)


def test_top_level_ids_make_sglang_take_its_defaults_without_a_word(tmp_path: Path) -> None:
    files = specforge(Model(), eagle_config=None, eagle_aux_hidden_state_layer_ids=[3, 31, 59], target_model_type="llama")
    answer = one(files, target(tmp_path / "t"), "sglang==0.5.23", ids="inputs")
    assert inputs(answer) == (2, 30, 58)
    assert codes(answer) == ["layer-ids-ignored"]
    assert "at top level are not read" in answer.findings[0].text
    lucky = specforge(Model(), eagle_config=None, eagle_aux_hidden_state_layer_ids=STORY, target_model_type="llama")
    answer = one(lucky, target(tmp_path / "t"), "sglang==0.5.23", ids="inputs")
    assert answer.as_trained
    assert codes(answer, "warning") == ["layer-ids-ignored"]


def test_norm_before_residual_is_ignored_by_sglang(tmp_path: Path) -> None:
    files = vllm(Model(), norm_before_residual=True, architectures=["LlamaForCausalLMEagle3"], **nested([1, 3, 4]))
    sglang, v1, _, trt = ask(files, target(tmp_path / "t", layers=8), "sglang", "vllm", "tensorrt-llm").answers
    assert "norm-before-residual-ignored" in codes(sglang)
    assert "norm-before-residual-ignored" in codes(trt)
    assert v1.as_trained


def test_a_model_optimizer_export_is_one_early_in_the_older_runner_and_on_defaults_in_the_newer(tmp_path: Path) -> None:
    files = model_optimizer(Model(), **nested([1, 14, 27], use_last_layernorm=True))
    v1, v2 = ask(files, target(tmp_path / "t", layers=31), "vllm", trained_by=("model-optimizer", parse("0.40"))).answers
    assert (v1.runner, v2.runner) == ("V1", "V2")
    assert inputs(v1) == (1, 14, 27)
    assert codes(v1) == ["layer-ids-convention"]
    assert v1.findings[0].mend == 'config.json, at top level: "eagle_aux_hidden_state_layer_ids": [2, 15, 28]'
    assert inputs(v2) == (2, 15, 28)  # its defaults, which are those of training here
    assert codes(v2) == []
    assert codes(v2, "warning") == ["layer-ids-ignored"]
    other = model_optimizer(Model(), **nested([3, 14, 27], use_last_layernorm=True))
    v1, v2 = ask(other, target(tmp_path / "t", layers=31), "vllm", trained_by=("model-optimizer", parse("0.40"))).answers
    assert inputs(v2) == (2, 15, 28)
    assert codes(v2) == ["layer-ids-ignored"]


def test_the_newer_runner_reads_layer_ids_of_eagle_config_since_0_27(tmp_path: Path) -> None:
    files = vllm(Model()).silent("eagle_aux_hidden_state_layer_ids").saying(eagle_config={"layer_ids": [3, 4, 5]})
    assert inputs(ask(files, target(tmp_path / "t", layers=8), "vllm==0.32.0").answers[1]) == (3, 4, 5)
    assert inputs(ask(files, target(tmp_path / "t", layers=8), "vllm==0.26.0").answers[1]) == (2, 4, 5)


def test_two_norms_of_a_newer_model_optimizer_are_one_everywhere(tmp_path: Path) -> None:
    files = model_optimizer(Model())
    for answer in ask(files, target(tmp_path / "t", layers=8), "sglang", "vllm", "tensorrt-llm").answers:
        assert "hidden-norm-once" in codes(answer), answer.label
    for answer in ask(files, target(tmp_path / "t", layers=8), "sglang", "tensorrt-llm", trained_by=("model-optimizer", parse("0.40"))).answers:
        assert answer.as_trained, answer.findings


@pytest.mark.parametrize(("ids", "code"), [([30, 2, 58], "layer-ids-out-of-order"), ([2, 2, 58], "layer-ids-repeated")])
@pytest.mark.parametrize("engine", ["sglang", "vllm", "tensorrt-llm"])
def test_ids_that_no_engine_can_serve(ids: list[int], code: str, engine: str, tmp_path: Path) -> None:
    answer = one(vllm(Model(), eagle_aux_hidden_state_layer_ids=ids), target(tmp_path / "t"), engine)
    assert code in codes(answer)
    assert "no ids mend it" in next(f.mend for f in answer.findings if f.code == code)


def test_vllm_0_11_takes_its_defaults_and_the_targets_embedding(tmp_path: Path) -> None:
    files = vllm(Model(), eagle_aux_hidden_state_layer_ids=[3, 4, 6])
    old = one(files, target(tmp_path / "t", layers=8), "vllm==0.11.0")
    assert inputs(old) == (2, 4, 5)
    assert codes(old) == ["layer-ids-ignored"]
    assert codes(old, "warning") == ["embedding-replaced"]
    assert [a.label for a in ask(files, target(tmp_path / "t", layers=8), "vllm==0.12.0").answers] == ["vLLM 0.12.0 V1"]
    assert one(files, target(tmp_path / "t", layers=8), "vllm==0.12.0").as_trained


def test_a_speculators_config_without_the_key_is_read_as_true(tmp_path: Path) -> None:
    files = speculators(Model(), eagle_aux_hidden_state_layer_ids=[2, 4, 5]).silent("norm_before_residual")
    answer = one(files, target(tmp_path / "t", layers=8), "vllm")
    assert codes(answer) == ["norm-before-residual-assumed"]
    assert answer.findings[0].mend == 'config.json: "norm_before_residual": false'
    assert one(speculators(Model()), target(tmp_path / "t", layers=8), "vllm").as_trained


def test_what_is_passed_on_from_speculators_by_version(tmp_path: Path) -> None:
    files = speculators(Model(fc_norm=True), norm_output=True)
    where = target(tmp_path / "t", layers=8)
    assert codes(one(files, where, "vllm==0.24.0")) == ["tensor-not-known"]
    assert one(files, where, "vllm==0.25.0").as_trained
    before_fc = speculators(Model(norm_before_fc=True))
    assert codes(one(before_fc, where, "vllm==0.17.0")) == ["tensor-not-known"]
    assert codes(one(before_fc, where, "vllm==0.18.0")) == ["norm-before-fc-ignored"]
    assert one(before_fc, where, "vllm==0.19.0").as_trained
    post = speculators(Model(), norm_output=True)
    assert codes(one(post, where, "vllm==0.24.0")) == ["feedback-norm"]


def test_eagle_3_1_by_version_of_sglang(tmp_path: Path) -> None:
    files = vllm(Model(fc_norm=True), norm_output=True, architectures=["LlamaForCausalLMEagle3"], **nested([1, 3, 4]))
    files = Files(config=files.config, tensors=rename(files.tensors, "layers.0.", "midlayer.")).silent("eagle_aux_hidden_state_layer_ids")
    where, by = target(tmp_path / "t", layers=8), ("specforge", parse("0.3.0"))
    assert codes(one(files, where, "sglang==0.5.11", trained_by=by)) == ["fc-norm-ignored", "feedback-norm"]
    assert one(files, where, "sglang==0.5.12", trained_by=by).as_trained


def test_norm_output_of_an_older_specforge_means_the_head(tmp_path: Path) -> None:
    files = specforge(Model(), norm_output=True)
    where = target(tmp_path / "t", layers=8)
    checked = ask(files, where, "sglang", trained_by=("specforge", parse("0.2.0")))
    assert codes(checked.answers[0]) == ["feedback-norm"]
    assert ask(files, where, "sglang", trained_by=("specforge", parse("0.3.0"))).answers[0].as_trained
    assert any("norm_output" in text and "--trained-by" in text for text in ask(files, where, "sglang").trained.assumptions)


def test_norm_before_fc_by_version_of_sglang(tmp_path: Path) -> None:
    files = vllm(Model(norm_before_fc=True), architectures=["LlamaForCausalLMEagle3"], **nested([1, 3, 4])).silent("eagle_aux_hidden_state_layer_ids")
    where = target(tmp_path / "t", layers=8)
    assert codes(one(files, where, "sglang==0.5.16", ids="outputs")) == ["norm-before-fc-ignored"]
    assert one(files, where, "sglang==0.5.17", ids="outputs").as_trained


def test_gpt_oss_targets_since_0_5_17(tmp_path: Path) -> None:
    files = specforge(Model(), **nested([2, 6, 12]))
    where = target(tmp_path / "t", "GptOssForCausalLM", model_type="gpt_oss", layers=12)
    old = one(files, where, "sglang==0.5.16", ids="inputs")
    assert old.wiring is None  # the output of the last layer, plus one, is never captured
    assert codes(old) == ["captured-states"]
    assert inputs(one(files, where, "sglang==0.5.17", ids="inputs")) == (2, 6, 12)


def test_layers_named_as_numbers_are_skipped_before_0_5_12(tmp_path: Path) -> None:
    files = vllm(Model(), architectures=["LlamaForCausalLMEagle3"], **nested([1, 3, 4])).silent("eagle_aux_hidden_state_layer_ids")
    where = target(tmp_path / "t", layers=8)
    assert codes(one(files, where, "sglang==0.5.11", ids="outputs")) == ["layer-weights-unread"]
    assert one(files, where, "sglang==0.5.12", ids="outputs").as_trained


def test_rope_parameters_are_not_read_by_transformers_4(tmp_path: Path) -> None:
    files = specforge(Model(), rope_parameters={"rope_type": "default", "rope_theta": 500000.0}).silent("rope_theta", "rope_scaling")
    where = target(tmp_path / "t", layers=8)
    old = one(files, where, "sglang==0.5.9")
    assert codes(old) == ["rope-parameters-ignored"]
    assert old.wiring is not None
    assert old.wiring.rope is not None
    assert old.wiring.rope.theta == 10000.0
    assert one(files, where, "sglang==0.5.10").as_trained
    assert codes(one(files, where, "vllm==0.11.0")) == ["layer-ids-ignored", "rope-parameters-ignored"][1:]


def test_a_rope_put_there_at_export(tmp_path: Path) -> None:
    scaling = {"rope_type": "yarn", "factor": 32.0, "original_max_position_embeddings": 4096}
    files = model_optimizer(Model(), rope_scaling=scaling, transformers_version="5.1.0")
    answer = one(files, target(tmp_path / "t", layers=8), "sglang", trained_by=("model-optimizer", parse("0.40")))
    assert codes(answer) == ["rope-differs"]


def test_positions_matter_only_to_a_rope_that_depends_on_them(tmp_path: Path) -> None:
    where = target(tmp_path / "t", layers=8)
    assert one(speculators(Model()), where, "vllm").as_trained
    files = speculators(Model())
    layer = files.config["transformer_layer_config"] | {"rope_parameters": {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 2.0}}
    assert codes(one(files.saying(transformer_layer_config=layer), where, "vllm")) == ["position-offset-differs"]


def test_aux_states_switched_off_skip_fc(tmp_path: Path) -> None:
    files = specforge(Model(), eagle_config={"eagle_aux_hidden_state_layer_ids": [1, 3, 4], "use_aux_hidden_state": False})
    answer = one(files, target(tmp_path / "t", layers=8), "sglang")
    assert answer.wiring is not None
    assert answer.wiring.fc == "skipped"
    assert "fc-skipped" in codes(answer)
    assert one(files, target(tmp_path / "t", layers=8), "sglang==0.5.7").as_trained  # the switch came with 0.5.8


def test_four_states(tmp_path: Path) -> None:
    ids = [1, 3, 4, 5]
    files = specforge(Model(num_aux=4), **nested(ids))
    where = target(tmp_path / "t", layers=8)
    assert codes(one(files, where, "sglang==0.5.11")) == ["fc-width"]
    assert one(files, where, "sglang==0.5.12").as_trained
    top = vllm(Model(num_aux=4), eagle_aux_hidden_state_layer_ids=ids)
    assert codes(one(top, where, "vllm")) == ["fc-width"]
    assert one(top.saying(num_aux_hidden_states=4), where, "vllm").as_trained


def test_attention_bias_and_several_layers_in_sglang(tmp_path: Path) -> None:
    files = specforge(Model(attention_bias=True, layers=2), **nested([1, 3, 4]))
    where = target(tmp_path / "t", layers=8)
    assert codes(one(files, where, "sglang==0.5.11")) == ["layers-not-supported"]
    assert codes(one(files, where, "sglang==0.5.12")) == ["attention-bias-dropped", "further-layers-norm"]


def test_latent_attention(tmp_path: Path) -> None:
    files = model_optimizer(Model(family="mla"), **nested([1, 29, 57], use_last_layernorm=True))
    by = ("model-optimizer", parse("0.40"))
    assert codes(one(files, kimi(tmp_path / "t"), "sglang==0.5.11", trained_by=by)) == ["drafter-not-supported"]
    assert one(files, kimi(tmp_path / "t"), "sglang==0.5.12", trained_by=by).as_trained
    assert codes(one(files, kimi(tmp_path / "t"), "vllm==0.17.0", trained_by=by))[-1] == "drafter-not-supported"


def test_a_target_that_cannot_be_captured(tmp_path: Path) -> None:
    where = target(tmp_path / "t", "FalconForCausalLM", model_type="falcon", layers=8)
    assert codes(one(specforge(Model()), where, "sglang")) == ["target-not-supported"]
    assert "target-not-supported" in codes(one(specforge(Model()), where, "vllm==0.19.1"))


def test_a_model_whose_defaults_are_shifted(tmp_path: Path) -> None:
    where = target(tmp_path / "t", "MiniMaxM3SparseForConditionalGeneration", model_type="minimax_m3", layers=61)
    files = specforge(Model()).silent("eagle_config").saying(target_model_type="minimax")
    assert inputs(one(files, where, "sglang==0.5.23")) == (3, 31, 59)


def test_an_own_embedding_is_replaced_by_sglang(tmp_path: Path) -> None:
    """Known to be a copy: nothing to say. Trained along: an error. Unknown: a warning."""
    embedding = weights(Model())["embed_tokens.weight"]
    where = target(tmp_path / "t", layers=8)
    assert codes(one(specforge(Model()).put("embed_tokens.weight", embedding), where, "sglang"), "warning") == []
    unknown = vllm(Model(), architectures=["LlamaForCausalLMEagle3"], **nested([1, 3, 4]))
    assert "embedding-replaced" in codes(one(unknown, where, "sglang"), "warning")
    trained = speculators(Model(), embed_requires_grad=True)
    assert codes(one(trained, where, "vllm==0.11.0")) == ["embedding-replaced"]


def test_a_map_where_none_is_needed_stops_vllm(tmp_path: Path) -> None:
    files = specforge(Model(draft_vocab=96))
    assert codes(one(files, target(tmp_path / "t", layers=8), "vllm", ids="inputs"))[0] == "tensor-not-known"
    assert one(files, target(tmp_path / "t", layers=8), "sglang").as_trained


@pytest.mark.parametrize(
    ("change", "code"),
    [({"target_hidden_size": None}, "null-target-hidden-size"), ({"architectures": ["Eagle3LlamaForCausalLM"]}, "architecture-not-read")],
)
def test_what_stops_sglang(change: dict[str, Any], code: str, tmp_path: Path) -> None:
    assert codes(one(specforge(Model()).saying(**change), target(tmp_path / "t", layers=8), "sglang")) == [code]


def test_eagles_own_trainer_turns_with_its_own_base(tmp_path: Path) -> None:
    files = eagle(Model(), rope_theta=500000.0)
    where = target(tmp_path / "t", layers=8)
    assert codes(one(files, where, "sglang")) == []
    assert codes(one(files, where, "sglang", trained_by=("eagle", None))) == ["rope-differs"]


def test_versions_outside_what_was_read_are_said(tmp_path: Path) -> None:
    where = target(tmp_path / "t", layers=8)
    newer, older = ask(specforge(Model()), where, "sglang==9.0", "sglang==0.4.0").answers
    assert any("newer than the newest that was read (0.5.23)" in note for note in newer.notes)
    assert any("older than the oldest that was read (0.5.6)" in note for note in older.notes)


def test_every_finding_names_its_source_and_a_mend(tmp_path: Path) -> None:
    files = model_optimizer(Model(attention_bias=True, layers=2), norm_before_residual=True)
    for answer in ask(files, target(tmp_path / "t", layers=8), "sglang", "vllm", "vllm==0.19.1", "vllm==0.11.0", "tensorrt-llm").answers:
        for found in answer.findings:
            assert found.mend
            assert found.effect
            assert ("/" in found.source and ".py" in found.source) or found.source.startswith("TensorRT-LLM main"), found


@pytest.mark.parametrize("text", ["sglang==", "sglang==newest", "llama.cpp", "vllm=0.11"])
def test_engines_that_are_none(text: str) -> None:
    with pytest.raises(InputError):
        engine_spec(text)


def test_a_target_of_another_width_or_depth_is_bad_input(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="hidden_size 64, expected the same"):
        one(specforge(Model()), target(tmp_path / "t", hidden=64, layers=8), "sglang")
    with pytest.raises(InputError, match="lies beyond the target's 8 layers"):
        one(story(), target(tmp_path / "t", layers=8), "sglang")


