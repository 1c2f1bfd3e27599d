"""Quantised checkpoints against mlx-lm's own conversion, and what stock mlx-lm makes of them."""

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx_lm
import numpy as np
import pytest

from mixbit.plan import Plan, QuantSpec
from mixbit.quantization import quantize
from models import MODEL_TYPES, build, save_checkpoint, save_raw

RECIPES = ("uniform-3", "unsloth-2026-03@2", "unsloth-2026-06@5")
TOKENS = mx.array([[1, 5, 9, 200, 3, 77]])


def tensors(folder: Path) -> dict[str, mx.array]:
    """All tensors of a checkpoint."""
    return {
        name: value
        for file in sorted(folder.glob("model*.safetensors"))
        for name, value in mx.load(str(file)).items()
    }


def assert_same_tensors(ours: dict[str, mx.array], theirs: dict[str, mx.array]) -> None:
    assert ours.keys() == theirs.keys()
    for name, value in ours.items():
        assert value.dtype == theirs[name].dtype, name
        assert mx.array_equal(value, theirs[name]), name


def as_predicate(plan: Plan) -> Callable[[str, Any], dict[str, Any] | bool]:
    """The plan in the form in which mlx-lm's conversion takes one."""

    def predicate(path: str, _: Any) -> dict[str, Any] | bool:
        spec = plan.modules[path]
        return False if spec is None else spec.to_json()

    return predicate


@pytest.mark.parametrize("model_type", MODEL_TYPES)
@pytest.mark.parametrize("recipe", RECIPES)
def test_packs_bit_for_bit_as_mlx_lm_converts(tmp_path: Path, model_type: str, recipe: str) -> None:
    source = save_raw(model_type, tmp_path / "source", dtype=mx.bfloat16)
    plan = Plan.load(recipe, model=source)
    quantize(source, tmp_path / "ours", plan=plan, max_shard_bytes=50_000)
    mlx_lm.convert(
        str(source), str(tmp_path / "theirs"), quantize=True, quant_predicate=as_predicate(plan)
    )
    assert len(list((tmp_path / "ours").glob("model-*-of-*.safetensors"))) > 2
    assert_same_tensors(tensors(tmp_path / "ours"), tensors(tmp_path / "theirs"))


def test_uniform_is_mlx_lms_default_conversion(tmp_path: Path, tiny_folder: Path) -> None:
    quantize(tiny_folder, tmp_path / "ours", plan="uniform-4")
    mlx_lm.convert(str(tiny_folder), str(tmp_path / "theirs"), quantize=True, q_bits=4)
    assert_same_tensors(tensors(tmp_path / "ours"), tensors(tmp_path / "theirs"))
    assert Plan.load(tmp_path / "theirs").modules == Plan.load(tmp_path / "ours").modules
    by_config = Plan.load(tmp_path / "theirs" / "config.json")
    assert by_config.modules == Plan.load(tmp_path / "ours").modules


@pytest.mark.parametrize("model_type", MODEL_TYPES)
@pytest.mark.parametrize("tied", [False, True])
def test_raw_and_converted_sources_give_the_same(
    tmp_path: Path, model_type: str, tied: bool
) -> None:
    raw = save_raw(model_type, tmp_path / "raw", tie_word_embeddings=tied)
    model = build(model_type, tie_word_embeddings=tied)
    converted = save_checkpoint(model, tmp_path / "converted")
    for source in (raw, converted):
        quantize(source, tmp_path / f"{source.name}-q", plan="unsloth@3")
    assert_same_tensors(tensors(tmp_path / "raw-q"), tensors(tmp_path / "converted-q"))


@pytest.mark.parametrize("model_type", MODEL_TYPES)
@pytest.mark.parametrize("tied", [False, True])
def test_stock_mlx_lm_loads_it_and_computes_what_the_packed_weights_say(
    tmp_path: Path, model_type: str, tied: bool
) -> None:
    source = save_raw(model_type, tmp_path / "source", tie_word_embeddings=tied)
    plan = Plan.load("unsloth-2026-03@3", model=source)
    quantize(source, tmp_path / "out", plan=plan, max_shard_bytes=150_000)
    loaded, tokenizer = mlx_lm.load(str(tmp_path / "out"))

    reference = build(model_type, tie_word_embeddings=tied)
    for path, spec in plan.modules.items():
        module = reference
        for part in path.split("."):
            module = module[int(part)] if part.isdigit() else module[part]
        if spec is not None:
            packed = mx.quantize(module.weight, spec.group_size, spec.bits)
            module.weight = mx.dequantize(*packed, group_size=spec.group_size, bits=spec.bits)
    # The reference multiplies in another order, hence not equal to the bit.
    np.testing.assert_allclose(
        np.array(loaded(TOKENS)), np.array(reference(TOKENS)), atol=2e-4, rtol=1e-4
    )
    assert tokenizer.decode(tokenizer.encode("a tool call")) == "a tool call"


@pytest.mark.parametrize("model_type", MODEL_TYPES)
def test_a_checkpoint_tells_its_plan(tmp_path: Path, model_type: str) -> None:
    source = save_raw(model_type, tmp_path / "source")
    plan = Plan.load("unsloth-2026-03@3", model=source)
    quantize(source, tmp_path / "out", plan=plan)
    made = replace(plan, method="rtn")
    assert Plan.load(tmp_path / "out") == made
    assert Plan.load(tmp_path / "out" / "config.json").modules == plan.modules
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert config["quantization"] == config["quantization_config"] == plan.to_mlx_config()
    sidecar = json.loads((tmp_path / "out" / "mixbit.json").read_text())
    assert sidecar["schema"] == "mixbit.checkpoint/1"
    assert sidecar["plan"] == made.to_json()
    assert sidecar["provenance"]["recipe"] == "unsloth-2026-03@3"
    assert sidecar["provenance"]["methods"].keys() == {"rtn"}
    assert sidecar["provenance"]["calibration"] is None
    assert sidecar["provenance"].keys() == {
        "recipe", "methods", "changed", "calibration", "source_config_sha256",
        "mixbit", "mlx", "mlx_lm",
    }  # fmt: skip


def test_the_plan_of_one_checkpoint_applies_to_another(tmp_path: Path) -> None:
    first, second = (save_raw("qwen3_5", tmp_path / f"s{n}", seed=n) for n in (1, 2))
    quantize(first, tmp_path / "q1", plan="unsloth@3")
    quantize(second, tmp_path / "q2", plan=tmp_path / "q1")
    assert Plan.load(tmp_path / "q2") == Plan.load(tmp_path / "q1")


def test_a_config_changed_by_hand_wins_over_the_recorded_plan(tmp_path: Path) -> None:
    source = save_raw("qwen3_5", tmp_path / "source")
    quantize(source, tmp_path / "out", plan="uniform-4")
    sidecar = json.loads((tmp_path / "out" / "mixbit.json").read_text())
    sidecar["plan"]["modules"]["language_model.lm_head"]["bits"] = 8
    (tmp_path / "out" / "mixbit.json").write_text(json.dumps(sidecar))
    plan = Plan.load(tmp_path / "out")
    assert plan.modules["language_model.lm_head"] == QuantSpec(4, 64)
    assert (plan.name, plan.provenance) == ("out", {"format": "mlx"})


@pytest.mark.parametrize(
    ("mode", "bits", "group_size"), [("mxfp4", 4, 32), ("mxfp8", 8, 32), ("nvfp4", 4, 16)]
)
def test_fp_modes_load_in_stock_mlx_lm(
    tmp_path: Path, mode: str, bits: int, group_size: int
) -> None:
    source = save_raw("qwen3_5_moe", tmp_path / "source")
    structure = Plan.load(source).structure
    assert structure is not None
    plan = Plan({s.path: QuantSpec(bits, group_size, mode) for s in structure.modules}, mode)
    quantize(source, tmp_path / "out", plan=plan)
    model, _ = mlx_lm.load(str(tmp_path / "out"))
    assert mx.isfinite(model(TOKENS)).all()
    assert Plan.load(tmp_path / "out").modules == plan.modules


def test_sensitive_tensors_are_never_packed_and_decay_is_never_cast(tmp_path: Path) -> None:
    source = save_raw("qwen3_next", tmp_path / "source", torch_dtype="bfloat16")
    quantize(source, tmp_path / "out", plan="uniform-2")
    prefix = "model.layers.0"
    layer = {
        name.removeprefix(f"{prefix}."): value.dtype
        for name, value in tensors(tmp_path / "out").items()
        if name.startswith(f"{prefix}.") and ".mlp." not in name
    }
    packed = {
        f"linear_attn.{name}.{part}": mx.uint32 if part == "weight" else mx.bfloat16
        for name in ("in_proj_qkvz", "in_proj_ba", "out_proj")
        for part in ("weight", "scales", "biases")
    }
    assert layer == packed | {
        "linear_attn.A_log": mx.float32,
        "linear_attn.dt_bias": mx.bfloat16,
        "linear_attn.conv1d.weight": mx.bfloat16,
        "linear_attn.norm.weight": mx.bfloat16,
        "input_layernorm.weight": mx.bfloat16,
        "post_attention_layernorm.weight": mx.bfloat16,
    }
    source_log = mx.load(str(source / "model.safetensors"))[f"{prefix}.linear_attn.A_log"]
    assert mx.array_equal(tensors(tmp_path / "out")[f"{prefix}.linear_attn.A_log"], source_log)


def test_dtype_overrides_what_the_config_says(tmp_path: Path) -> None:
    source = save_raw("qwen3_5", tmp_path / "source", dtype=mx.bfloat16)
    quantize(source, tmp_path / "out", plan="uniform-4", dtype="float16")
    stored = tensors(tmp_path / "out")
    assert stored["language_model.lm_head.scales"].dtype == mx.float16
    assert stored["language_model.model.norm.weight"].dtype == mx.float16
    assert json.loads((tmp_path / "out" / "config.json").read_text())["dtype"] == "float16"


@pytest.mark.parametrize("layout", ["raw", "converted"])
@pytest.mark.parametrize("extra", [False, True])
def test_norms_are_shifted_once_whatever_lies_beside(
    tmp_path: Path, layout: str, extra: bool
) -> None:
    source = tmp_path / "source"
    if layout == "raw":
        save_raw("qwen3_5", source)
    else:
        save_checkpoint(build("qwen3_5"), source)
    stored = dict(mx.load(str(source / "model.safetensors")))
    norm = next(name for name in stored if name.endswith("layers.0.input_layernorm.weight"))
    conv = next(name for name in stored if name.endswith("layers.0.linear_attn.conv1d.weight"))
    gated = next(name for name in stored if name.endswith("layers.0.linear_attn.norm.weight"))
    stored[norm] = mx.zeros(64)
    if extra:
        stored["mtp.fc.weight"] = mx.zeros((64, 128))
    mx.eval(stored)
    mx.save_safetensors(str(source / "model.safetensors"), stored)

    quantize(source, tmp_path / "out", plan="uniform-4")
    out, layer = tensors(tmp_path / "out"), "language_model.model.layers.0"
    expected = mx.ones(64) if layout == "raw" else mx.zeros(64)
    assert mx.array_equal(out[f"{layer}.input_layernorm.weight"], expected)
    kernel = stored[conv].moveaxis(2, 1) if layout == "raw" else stored[conv]
    assert mx.array_equal(out[f"{layer}.linear_attn.conv1d.weight"], kernel)
    assert mx.array_equal(out[f"{layer}.linear_attn.norm.weight"], stored[gated])


@pytest.mark.parametrize("fused", [True, False])
def test_experts_keep_their_order(tmp_path: Path, fused: bool) -> None:
    """Eleven experts: sorted by name, number 10 would come second."""
    model_type = "qwen3_5_moe" if fused else "qwen3_next"
    source = save_raw(model_type, tmp_path / "source", num_experts=11)
    quantize(source, tmp_path / "out", plan=Plan({}))
    raw, out = mx.load(str(source / "model.safetensors")), tensors(tmp_path / "out")
    if fused:
        gate_up = raw["model.language_model.layers.0.mlp.experts.gate_up_proj"]
        expected = gate_up[10, :64], gate_up[10, 64:]
    else:
        prefix = "model.layers.0.mlp.experts.10"
        expected = raw[f"{prefix}.gate_proj.weight"], raw[f"{prefix}.up_proj.weight"]
    prefix = "language_model.model" if fused else "model"
    for name, value in zip(("gate_proj", "up_proj"), expected, strict=True):
        assert mx.array_equal(out[f"{prefix}.layers.0.mlp.switch_mlp.{name}.weight"][10], value)


def test_widths_that_fit_no_group_stay_dense_and_are_reported(tmp_path: Path) -> None:
    source = save_raw("qwen3_5", tmp_path / "source", hidden_size=96, intermediate_size=80)
    report = quantize(source, tmp_path / "out", plan="uniform-4")
    down = {f"language_model.model.layers.{n}.mlp.down_proj" for n in range(4)}
    assert report.dense == dict.fromkeys(down, "its rows of 80 weights do not split into groups")
    out = tensors(tmp_path / "out")
    gate = "language_model.model.layers.0.mlp.gate_proj"
    assert (out[f"{gate}.weight"].shape, out[f"{gate}.scales"].shape) == ((80, 12), (80, 3))
    model, _ = mlx_lm.load(str(tmp_path / "out"))
    assert mx.isfinite(model(TOKENS)).all()


@pytest.mark.parametrize("model_type", MODEL_TYPES)
def test_parts_outside_the_text_model_are_carried_through(tmp_path: Path, model_type: str) -> None:
    source = save_raw(model_type, tmp_path / "source")
    extra = {
        "model.visual.blocks.0.attn.qkv.weight": mx.arange(16).reshape(4, 4),
        "visual.patch_embed.weight": mx.ones((4, 4), dtype=mx.bfloat16),
        "mtp.layers.0.input_layernorm.weight": mx.full((4,), float("nan")),
    }
    mx.save_safetensors(str(source / "model-extra.safetensors"), extra)
    report = quantize(source, tmp_path / "out", plan="uniform-4")
    assert report.dropped == {}
    assert report.carried == dict(
        zip(extra, ("vision.safetensors",) * 2 + ("mtp.safetensors",), strict=True)
    )
    for name, file in report.carried.items():
        carried = mx.load(str(tmp_path / "out" / file))[name]
        assert carried.dtype == extra[name].dtype
        assert mx.array_equal(carried, extra[name], equal_nan=True)
    assert report.bytes == sum(value.nbytes for value in tensors(tmp_path / "out").values())
    mlx_lm.load(str(tmp_path / "out"))
    # Sidecars of a source are taken along as they are.
    shutil.copyfile(tmp_path / "out" / "mtp.safetensors", source / "mtp.safetensors")
    (source / "model-extra.safetensors").unlink()
    report = quantize(source, tmp_path / "again", plan="uniform-4")
    assert report.carried == {}
    copied = (tmp_path / "again" / "mtp.safetensors").read_bytes()
    assert copied == (source / "mtp.safetensors").read_bytes()


def test_converted_qwen3_next_may_still_hold_mtp(tmp_path: Path) -> None:
    source = save_checkpoint(build("qwen3_next"), tmp_path / "source")
    mx.save_safetensors(str(source / "model-mtp.safetensors"), {"mtp.fc.weight": mx.ones((4, 4))})
    report = quantize(source, tmp_path / "out", plan="uniform-4")
    assert report.carried == {"mtp.fc.weight": "mtp.safetensors"}
    mlx_lm.load(str(tmp_path / "out"))


@pytest.mark.parametrize("differs", [False, True])
def test_a_tied_model_loses_its_spare_head(tmp_path: Path, differs: bool) -> None:
    source = save_raw("qwen3_5", tmp_path / "source", tie_word_embeddings=True)
    stored = mx.load(str(source / "model.safetensors"))
    head = stored["model.language_model.embed_tokens.weight"] + (1.0 if differs else 0.0)
    mx.save_safetensors(str(source / "model-head.safetensors"), {"lm_head.weight": head})
    report = quantize(source, tmp_path / "out", plan="unsloth@3")
    assert report.dropped.keys() == {"lm_head.weight"}
    assert ("differs" in report.dropped["lm_head.weight"]) == differs
    mlx_lm.load(str(tmp_path / "out"))


@pytest.mark.parametrize("recipe", ["uniform-4", "unsloth@3"])
def test_the_report_agrees_with_the_files_and_with_the_plan(
    tmp_path: Path, tiny_folder: Path, recipe: str
) -> None:
    report = quantize(tiny_folder, tmp_path / "out", plan=recipe, max_shard_bytes=1 << 20)
    stored = tensors(tmp_path / "out")
    assert report.bytes == sum(value.nbytes for value in stored.values())
    plan = Plan.load(tmp_path / "out")
    assert report.bytes == plan.report()["bytes"]
    assert report.bpw == plan.report()["bpw"]
    assert report.params == 4_748_208
    assert report.dense.keys() == {path for path, spec in plan.modules.items() if spec is None}
    index = json.loads((tmp_path / "out" / "model.safetensors.index.json").read_text())
    assert index["metadata"] == {"total_size": report.bytes, "total_parameters": report.params}
    assert index["weight_map"].keys() == stored.keys()
    document = json.loads(json.dumps(report.to_json()))
    assert document["schema"] == "mixbit.quantize/1"
    assert document["out_dir"] == str(tmp_path / "out")


def test_shards_keep_to_the_limit(tmp_path: Path, tiny_folder: Path) -> None:
    quantize(tiny_folder, tmp_path / "out", plan="uniform-4", max_shard_bytes=300_000)
    files = sorted((tmp_path / "out").glob("*.safetensors"))
    assert [file.name for file in files] == [
        f"model-{n:05d}-of-{len(files):05d}.safetensors" for n in range(1, len(files) + 1)
    ]
    sizes = [sum(value.nbytes for value in mx.load(str(file)).values()) for file in files]
    assert len(sizes) > 8
    assert all(size <= 300_000 for size in sizes)


def test_copies_tokenizer_template_and_generation_config(tmp_path: Path, tiny_folder: Path) -> None:
    quantize(tiny_folder, tmp_path / "out", plan="uniform-4")
    for name in (
        "tokenizer.json",
        "tokenizer_config.json",
        "chat_template.jinja",
        "generation_config.json",
    ):
        assert (tmp_path / "out" / name).read_bytes() == (tiny_folder / name).read_bytes()


def test_tells_its_progress(tmp_path: Path) -> None:
    source = save_raw("qwen3_5", tmp_path / "source")
    seen: list[tuple[int, int, str]] = []
    quantize(source, tmp_path / "out", plan="uniform-4", progress=lambda *step: seen.append(step))
    names = list(mx.load(str(source / "model.safetensors")))
    assert [done for done, _, _ in seen] == list(range(1, len(names) + 1))
    assert {total for _, total, _ in seen} == {len(names)}
    assert "language_model.model.layers.3.self_attn.q_norm.weight" in {name for *_, name in seen}


@pytest.mark.parametrize("model_type", MODEL_TYPES)
def test_memory_does_not_grow_with_depth(tmp_path: Path, model_type: str) -> None:
    peaks = []
    for layers in (4, 16):
        source = save_raw(model_type, tmp_path / f"source{layers}", num_hidden_layers=layers)
        before = mx.get_active_memory()
        mx.reset_peak_memory()
        quantize(source, tmp_path / f"out{layers}", plan="uniform-4", max_shard_bytes=100_000)
        peaks.append(mx.get_peak_memory() - before)
        assert mx.get_active_memory() == before
    # Four times the layers; the allowance is for work that MLX has in flight on a busy machine.
    assert peaks[1] < 1.5 * peaks[0]
    assert peaks[1] < 0.25 * (tmp_path / "source16" / "model.safetensors").stat().st_size
