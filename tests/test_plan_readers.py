"""Each format of others' that mixbit reads, by an example composed for it, and its refusals."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf import GGMLQuantizationType, GGUFWriter

from mixbit.errors import MixbitError
from mixbit.plan import Plan, QuantSpec
from mixbit.plan.names import PathTable
from plan_examples import (
    A4,
    A4_128,
    A5,
    A6,
    A8,
    CONFIG,
    DENSE,
    EMBED,
    EXAMPLES,
    HEAD,
    L0,
    MOE,
    MXFP4,
    NEXT,
    NVFP4,
    OUT,
    QKV,
    foreign,
)


def loaded(tmp_path: Path, content: Any, structure: Any = DENSE, **options: Any) -> Plan:
    """The plan in a file of that content, whose name says nothing."""
    file = tmp_path / "file"
    if not isinstance(content, bytes):
        text = content if isinstance(content, str) else json.dumps(content)
        content = text.encode()
    file.write_bytes(content)
    return Plan.load(file, model=structure, **options)


@pytest.mark.parametrize("name", EXAMPLES)
def test_examples(tmp_path: Path, name: str) -> None:
    content, format_name, expected = EXAMPLES[name]
    plan = loaded(tmp_path, content)
    assert plan.provenance["format"] == format_name
    assert {path: plan.modules[path] for path in expected} == expected
    assert plan.modules.keys() == {shape.path for shape in DENSE.modules}
    if isinstance(content, dict) and "model_type" in content:
        assert loaded(tmp_path, content, None).modules == plan.modules


def test_key_order_and_spelling_change_nothing(tmp_path: Path) -> None:
    for name in ("mlx-vlm, one key in each namespace", "mlx-lm", "JANG manifest", "AutoRound"):
        content = EXAMPLES[name][0]
        plan = loaded(tmp_path, content)
        assert loaded(tmp_path, _reversed(content)).modules == plan.modules


def _reversed(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    return {key: _reversed(item) for key, item in reversed(value.items())}


def test_inexact_types_are_named(tmp_path: Path) -> None:
    plan = loaded(tmp_path, EXAMPLES["tensor types"][0])
    assert plan.provenance["notes"][0] == "only near in MLX, not the same values: q5_k, q6_k"
    assert "no pattern matches" in plan.provenance["notes"][1]
    assert loaded(tmp_path, "ffn_up=q8_0 ffn_up=q4_1").provenance["notes"] == [
        f"{len(DENSE.modules) - 4} modules that no pattern matches are left as they are"
    ]


def test_lists_whose_values_fit_both_kinds_go_by_their_patterns(tmp_path: Path) -> None:
    assert loaded(tmp_path, "ssm_out=mxfp4").provenance["format"] == "tensor-types"
    assert loaded(tmp_path, "linear_attn\\.out_proj=mxfp4").provenance["format"] == "overrides"


def test_patterns_of_checkpoints_that_decide_nothing_are_told(tmp_path: Path) -> None:
    assert loaded(tmp_path, EXAMPLES["GPTQModel"][0]).provenance.keys() == {"format"}
    for name, change in {
        "GPTQModel": {"dynamic": {"-:.*no_such.*": {}}},
        "AutoRound": {"extra_config": {".*no_such.*": {"bits": 8}}},
        "compressed-tensors": {"ignore": ["re:.*no_such.*"]},
    }.items():
        content = EXAMPLES[name][0]
        block = content["quantization_config"] | change
        plan = loaded(tmp_path, content | {"quantization_config": block})
        (note,) = plan.provenance["notes"]
        assert note.startswith("the pattern '.*no_such.*'")
        assert note.endswith("decides nothing in this model")


def test_an_fp_mode_needs_no_group_size_on_experts_either(tmp_path: Path) -> None:
    switch = f"{L0}mlp.switch_mlp.up_proj"
    for value, spec in (({"bits": 4, "mode": "mxfp4"}, MXFP4), ({"mode": "nvfp4"}, NVFP4)):
        block = {"bits": 4, "group_size": 64, switch: value}
        assert loaded(tmp_path, {"quantization": block}, MOE).modules[switch] == spec


# --- rankings ---------------------------------------------------------------------------------


def test_a_ranking_becomes_a_plan_of_the_size_asked_for(tmp_path: Path) -> None:
    # Twelve modules of equal size: what is raised must be the top of the ranking.
    paths = [shape.path for shape in DENSE.modules if ".mlp." in shape.path]
    ranking = [[path, -0.02 + 0.01 * (7 * i % 12)] for i, path in enumerate(paths)]
    low, high = (
        Plan(dict.fromkeys(paths, spec), structure=DENSE).report()["bpw"] for spec in (A4, A5)
    )
    plan = loaded(tmp_path, ranking, target_bpw=low + (high - low) * 5.5 / 12)
    order = [path for path, _ in sorted(ranking, key=lambda pair: -pair[1])]
    assert [path for path in order if plan.modules[path] == A5] == order[:5]
    assert {plan.modules[path] for path in order[5:]} == {A4}
    assert {spec for path, spec in plan.modules.items() if path not in paths} == {None}
    target = plan.provenance["target_bpw"]
    assert loaded(tmp_path, dict(ranking), target_bpw=target).modules == plan.modules
    assert {loaded(tmp_path, ranking, target_bpw=high).modules[path] for path in paths} == {A5}


def test_optiq_sensitivities_become_a_plan(tmp_path: Path) -> None:
    layers = [
        {"layer_name": shape.path, "param_count": shape.params,
         "sensitivities": {"4": 1.0 if shape.path == OUT else 0.01, "8": 0.001}}
        for shape in DENSE.modules
    ]  # fmt: skip
    document = {"base_model": "any", "candidate_bits": [4, 8], "group_size": 64,
                "metric": "kl_divergence_vs_reference", "layers": layers}  # fmt: skip
    low = Plan(dict.fromkeys(PathTable(DENSE).paths, A4), structure=DENSE).report()["bpw"]
    plan = loaded(tmp_path, document, target_bpw=low + 0.5)
    assert plan.modules[OUT] == A8
    assert set(plan.modules.values()) == {A4, A8}
    assert plan.report()["bpw"] <= low + 0.5


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, r"ranking without bits; give the size .*target_bpw, --target-bpw"),
        ({"target_bpw": 2.0}, r"2\.0 bits per weight cannot be met; the lowest widths take"),
    ],
)
def test_a_ranking_needs_a_size_that_can_be_met(
    tmp_path: Path, options: dict[str, float], message: str
) -> None:
    ranking = [[shape.path, 0.5] for shape in DENSE.modules]
    with pytest.raises(MixbitError, match=message):
        loaded(tmp_path, ranking, **options)


# --- GGUF -------------------------------------------------------------------------------------

Types = GGMLQuantizationType


def gguf_file(path: Path, tensors: dict[str, Types], **fields: Any) -> Path:
    """A GGUF file of small tensors that have these types."""
    writer = GGUFWriter(path, fields.pop("arch", "qwen35"))
    for key, value in fields.items():
        if isinstance(value, int):
            writer.add_uint16(key.replace("_", "."), value)
        else:
            writer.add_string(key.replace("_", "."), value)
    for name, kind in tensors.items():
        data = np.zeros((1, 64 if kind == Types.F32 else 1024), np.float32)
        if kind != Types.F32:
            data = np.zeros((1, 1024), np.uint8)
            block = {Types.Q8_0: 34, Types.MXFP4: 17, Types.Q6_K: 210, Types.IQ2_XXS: 66}
            data = data[:, : block[kind]]
        writer.add_tensor(name, data, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def test_gguf(tmp_path: Path) -> None:
    file = gguf_file(
        tmp_path / "model",
        {
            "token_embd.weight": Types.Q6_K, "output.weight": Types.Q8_0,
            "blk.0.ssm_out.weight": Types.F32, "blk.0.attn_qkv.weight": Types.IQ2_XXS,
            "blk.0.ffn_up.weight": Types.MXFP4, "blk.0.attn_norm.weight": Types.F32,
            "blk.0.ssm_conv1d.weight": Types.F32, "blk.0.ssm_a": Types.F32,
            "blk.4.nextn.eh_proj.weight": Types.Q8_0, "blk.4.attn_q.weight": Types.Q8_0,
        },
    )  # fmt: skip
    plan = Plan.load(file, model=DENSE)
    expected = {EMBED: QuantSpec(6, 32), HEAD: QuantSpec(8, 32), OUT: None, QKV: QuantSpec(2, 32)}
    expected[f"{L0}mlp.up_proj"] = MXFP4
    assert {path: spec for path, spec in plan.modules.items() if path in expected} == expected
    assert plan.provenance["format"] == "gguf"
    assert "iq2_xxs, q6_k" in plan.provenance["notes"][0]
    (tmp_path / "download").mkdir()
    file.rename(tmp_path / "download" / "model.gguf")
    assert Plan.load(tmp_path / "download", model=DENSE).modules == plan.modules


def test_a_split_gguf_is_read_whole(tmp_path: Path) -> None:
    names = ["blk.0.ssm_out.weight", "blk.0.attn_qkv.weight"]
    for index, name in enumerate(names):
        gguf_file(tmp_path / f"m-{index + 1:05d}-of-00002.gguf", {name: Types.Q8_0}, split_count=2)
    for index in (1, 2):
        plan = Plan.load(tmp_path / f"m-{index:05d}-of-00002.gguf", model=DENSE)
        assert plan.modules[OUT] == plan.modules[QKV] == QuantSpec(8, 32)
    (tmp_path / "m-00002-of-00002.gguf").unlink()
    with pytest.raises(MixbitError, match=r"one of 2 files, of which m-00002-of-00002\.gguf is"):
        Plan.load(tmp_path / "m-00001-of-00002.gguf", model=DENSE)


def test_fused_and_split_projections_meet(tmp_path: Path) -> None:
    both = {"blk.0.attn_qkv.weight": Types.Q8_0, "blk.0.attn_gate.weight": Types.Q6_K}
    file = gguf_file(tmp_path / "model", both, arch="qwen3next")
    with pytest.raises(MixbitError, match=r"in_proj_qkvz that differ \(affine 8/32, affine 6/32"):
        Plan.load(file, model=NEXT)
    plan = Plan.load(file, model=NEXT, on_conflict="highest")
    assert plan.modules["model.layers.0.linear_attn.in_proj_qkvz"] == QuantSpec(8, 32)


def test_damaged_gguf_is_told(tmp_path: Path) -> None:
    whole = gguf_file(tmp_path / "model", {"output.weight": Types.Q8_0}).read_bytes()
    for content in (whole[:4], whole[:40], whole[:-32], whole[:8] + b"\xff" * 16 + whole[24:]):
        with pytest.raises(MixbitError, match="truncated or not a sound GGUF"):
            loaded(tmp_path, content)
    imatrix = gguf_file(tmp_path / "imatrix", {}, general_type="imatrix")
    with pytest.raises(MixbitError, match="importance matrix, which holds no types"):
        Plan.load(imatrix, model=DENSE)


# --- mixture of experts -----------------------------------------------------------------------


def test_patterns_reach_experts_by_their_own_names(tmp_path: Path) -> None:
    block = {"quant_method": "gptq", "bits": 4, "group_size": 128,
             "dynamic": {r".*experts\.\d+\.down_proj": {"bits": 8, "group_size": 64}}}  # fmt: skip
    plan = loaded(tmp_path, {"quantization_config": block}, NEXT)
    layer = "model.layers.0.mlp"
    assert plan.modules[f"{layer}.switch_mlp.down_proj"] == A8
    assert plan.modules[f"{layer}.switch_mlp.up_proj"] == A4_128
    assert plan.modules[f"{layer}.shared_expert.down_proj"] == A4_128
    assert plan.modules[f"{layer}.gate"] is plan.modules[f"{layer}.shared_expert_gate"] is None
    one = block | {"dynamic": {r".*experts\.3\.down_proj": {"bits": 8, "group_size": 64}}}
    with pytest.raises(MixbitError, match=r"entries for .*layers\.0.*down_proj that differ"):
        loaded(tmp_path, {"quantization_config": one}, NEXT)
    plan = loaded(tmp_path, {"quantization_config": one}, NEXT, on_conflict="highest")
    assert plan.modules[f"{layer}.switch_mlp.down_proj"] == A8


def test_fused_expert_keys_mean_both(tmp_path: Path) -> None:
    layer = "model.language_model.layers.0.mlp.experts"
    plan = loaded(tmp_path, {f"{layer}.gate_up_proj": 4, f"{layer}.down_proj": 6}, MOE)
    switch = f"{L0}mlp.switch_mlp"
    assert plan.modules[f"{switch}.gate_proj"] == plan.modules[f"{switch}.up_proj"] == A4
    assert plan.modules[f"{switch}.down_proj"] == A6


# --- refusals ---------------------------------------------------------------------------------

LAYER_ENTRY = {"bits": 8, "group_size": 64}


def entry(**values: Any) -> dict[str, Any]:
    return {"quantization": {"bits": 4, "group_size": 64, QKV: values}}


def group(**weights: Any) -> dict[str, Any]:
    return foreign({"quant_method": "compressed-tensors", "config_groups": {
        "group_0": {"targets": ["Linear"], "weights": weights}}})  # fmt: skip


def gptq(**values: Any) -> dict[str, Any]:
    return foreign({"quant_method": "gptq", "bits": 4, "group_size": 128} | values)


REFUSALS: list[tuple[Any, str]] = [
    (entry(mode="sym8", bits=8), f"{QKV} is packed as sym8, a format of mlx-node's own"),
    (entry(mode="fp8_e4m3", bits=8), f"{QKV} is packed as fp8_e4m3, a format of mlx-node's own"),
    (entry(mode="q4k", bits=4), f"{QKV} is packed as q4k, a format of mlx-node's"),
    (entry(mode="q5k", bits=5), f"{QKV} is packed as q5k, a format of mlx-node's"),
    (entry(mode="q6k", bits=6), f"{QKV} is packed as q6k, a format of mlx-node's"),
    (entry(bits=4, symmetric_zero_point=True), f"{QKV} has symmetric_zero_point"),
    (entry(bits=7), f"{QKV}: mode affine takes 2, 3, 4, 5, 6 or 8 bits, not 7"),
    (entry(bits=4, group_size=16), f"{QKV}: mode affine takes groups of 32, 64 or 128, not 16"),
    (entry(mode="mxfp8", bits=4), f"{QKV}: mode mxfp8 takes 8 bits, not 4"),
    (CONFIG | {"weight_format": "mxtq", "quantization": {"bits": 4, "group_size": 64}},
     "is packed as mxtq, a format of JANG's own"),
    ({"format": "jang", "format_version": "1.1"}, r"is JANG of version 1\.1, whose \.jang files"),
    ({"format": "jang"}, "is JANG of version unknown"),
    ({"format": "jangtq", "format_version": "2.0"}, "is packed as mxtq"),
    ({"format": "jang", "format_version": "2.0", "quantization": {"method": "affine+mxtq"}},
     "is packed as mxtq"),
    ({"format": "jang", "format_version": "2.0"}, "has no tensor_quantization_manifest"),
    ({"base_bits": 4, "modules": [{"bits": 4}]}, "each of modules needs a path"),
    ({"base_bits": "x", "modules": [{"path": QKV}]}, f"{QKV} has bits None"),
    ({"quantization": {"mode": "kquant"}}, "a kquant block needs an object per_tensor"),
    ({"quantization": {"mode": "kquant", "per_tensor": {QKV: "q9_k"}}},
     "'q9_k' is not a tensor type of llama.cpp's"),
    (group(num_bits=8, type="int", strategy="channel"), "group_0 has weights of type int by strat"),
    (group(num_bits=8, type="float", strategy="block"), "group_0 has weights of type float"),
    (group(num_bits=4, type="int", strategy="group", group_size=16), "groups of 32, 64 or 128"),
    (group(num_bits=7, type="int", strategy="group", group_size=64), "bits, not 7"),
    (foreign({"quant_method": "compressed-tensors"}), "config_groups must be an object"),
    (foreign({"config_groups": {"group_0": 4}}), "group_0 has no list of targets"),
    (foreign({"config_groups": {"g": {"targets": ["re:("]}}}), "is not a regular expression"),
    (gptq(group_size=-1), r"quantises whole rows \(group_size -1\)"),
    (gptq(bits="four"), "bits is 'four', not a whole number"),
    (gptq(bits=7), "mode affine takes .* bits, not 7"),
    (gptq(dynamic=[1]), "dynamic must be an object"),
    (gptq(dynamic={"a": 4}), "dynamic gives 'a' no object"),
    (gptq(dynamic={"-:*": {}}), r"'\*' is not a regular expression"),
    (gptq(dynamic={".*out_proj": {"bits": 9}}), "out_proj.*: mode affine takes"),
    (foreign({"quant_method": "auto-round", "bits": 4, "group_size": 128,
              "extra_config": {"model.layers.0.mlp.up_prj": {"bits": 8}}}), "up_prj, which is no"),
    (foreign({"quant_method": "auto-round", "bits": 4, "group_size": 128, "extra_config": 1}),
     "extra_config must be an object"),
    (foreign({"quant_method": "auto-round", "bits": 4, "group_size": 128,
              "extra_config": {QKV: 1}}), "gives .* no object"),
    (foreign({"quant_method": "modelopt", "quant_algo": "FP8"}), "quantised by FP8, which MLX has"),
    (foreign({"quant_algo": "NVFP4", "group_size": 32}), "mode nvfp4 takes groups of 16, not 32"),
    (foreign({"quant_algo": "NVFP4", "ignore": 1}), "ignore must be a list"),
    (foreign({"quant_algo": "MIXED_PRECISION"}), "needs quantized_layers"),
    (foreign({"quant_method": "fp8"}), "quantised as fp8, which mixbit does not read"),
    (foreign({"quant_method": "bitnet"}), "quantised as bitnet, which mixbit does not read"),
    (foreign({"quant_method": "awq", "bits": 4, "group_size": 128, "modules_to_not_convert": 1}),
     "modules_to_not_convert must be a list"),
    ({"method": "optiq_mixed_precision"}, "holds no per_layer table"),
    ({"method": "optiq_mixed_precision", "per_layer": {QKV: {}}}, f"{QKV} has no bits"),
    ({"candidate_bits": [4], "layers": [{"layer_name": QKV}]}, "needs layer_name and sensitiv"),
    ({"mixed_quant": {}}, "mixed_quant needs a list of layers"),
    ({"mixed_quant": {"layers": [{"layer_index": 9, "bits": 4}]}}, "layer_index 9 with bits 4 is"),
    ("blk\\.9\\.ssm_out=q6_k", "matches nothing in this model"),
    ("ssm_out(=q6_k", r"'ssm_out\(' is not a regular expression"),
    ("no_such_module=4", "matches nothing in this model"),
    ("out_proj=7", "mode affine takes .* bits, not 7"),
    ({QKV: 7}, "mode affine takes .* bits, not 7"),
    ({"model.layers.0.mlp.up_prj": 4}, "up_prj, which is no module .*; the nearest are"),
    (f"{QKV},four", "has bits 'four'"),
    (f"{QKV},4,64,affine,more", "has more than path,bits"),
    (f"{QKV},4,64,sym8", "is packed as sym8"),
    (f"{QKV},4,64,other", "mode 'other'"),
    ("[[", "is not valid JSON"),
    ("{", "is not valid JSON"),
    ("[1, 2]", "is no plan in any format"),
    ("", "is no plan in any format"),
    ("words without sense", "is no plan in any format"),
    (b"\x89PNG\xff\x00", "is no plan in any format"),
    ([["model.layers.0.x", 0.5]], "ranks model.layers.0.x, which is no module"),
    ('[["lm_head", NaN]]', "value of lm_head is not finite"),
]  # fmt: skip


@pytest.mark.parametrize(("content", "message"), REFUSALS)
def test_refusals_name_what_is_wrong(tmp_path: Path, content: Any, message: str) -> None:
    with pytest.raises(MixbitError, match=message) as caught:
        loaded(tmp_path, content, target_bpw=6.0)
    assert "\n" not in str(caught.value)


def test_names_that_cannot_be_printed_are_escaped(tmp_path: Path) -> None:
    with pytest.raises(MixbitError, match=r"names head\\n\\x1b\[2J\\ud800, which is no module"):
        loaded(tmp_path, {"head\n\x1b[2J\ud800": 4})
    plan = loaded(tmp_path, {"mtp.\n\ud800": 4})
    assert plan.provenance["notes"] == ["passed over mtp.\\n\\ud800: no part of the text model"]


def test_patterns_with_odd_brackets_are_taken_quietly(tmp_path: Path) -> None:
    assert loaded(tmp_path, "[[]|ffn_up=q4_0").modules[f"{L0}mlp.up_proj"] == QuantSpec(4, 32)


def test_jang_of_version_1_is_refused_as_a_folder(tmp_path: Path) -> None:
    (tmp_path / "model-00001.jang").write_bytes(b"")
    with pytest.raises(MixbitError, match=r"is JANG of version 1, whose \.jang files"):
        Plan.load(tmp_path, model=DENSE)


@pytest.mark.parametrize("content", ["ssm_out=q6_k", f"{QKV},4", [[QKV, 0.5]], {QKV: 4}])
def test_what_names_no_model_needs_one(tmp_path: Path, content: Any) -> None:
    with pytest.raises(MixbitError, match="does not say which model it is for"):
        loaded(tmp_path, content, None)


def test_a_folder_without_weights_is_its_config(tmp_path: Path) -> None:
    content, _, expected = EXAMPLES["GPTQModel"]
    (tmp_path / "config.json").write_text(json.dumps(content))
    plan = Plan.load(tmp_path)
    assert {path: plan.modules[path] for path in expected} == expected
    (tmp_path / "model.safetensors").write_bytes(b"packed as GPTQ does")
    assert Plan.load(tmp_path).modules == plan.modules


def test_modelopts_own_file_counts_where_the_config_is_silent(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    (tmp_path / "model.safetensors").write_bytes(b"packed as ModelOpt does")
    (tmp_path / "hf_quant_config.json").write_text(json.dumps(EXAMPLES["ModelOpt"][0]))
    assert Plan.load(tmp_path, model=DENSE).modules[QKV] == NVFP4
