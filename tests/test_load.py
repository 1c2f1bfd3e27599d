"""``mixbit.load`` on checkpoints whose config, names or norms are not what they should be."""

import json
import random
import shutil
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx_lm
import numpy as np
import pytest
from mlx.utils import tree_flatten
from mlx_lm.tuner.utils import linear_to_lora_layers

import mixbit
from mixbit.backend import MixbitWarning
from mixbit.checkpoint import describe
from mixbit.errors import MixbitError
from mixbit.integration.checkpoint import is_mlx, load_model
from mixbit.plan import Plan, QuantSpec
from mixbit.quantization import quantize
from models import MODEL_TYPES, build, config, save_checkpoint, save_raw
from mutations import mutated

TOKENS = mx.array([[1, 5, 9, 200, 3, 77]])
LAYER = "language_model.model.layers.0"
QKV, GATE = f"{LAYER}.linear_attn.in_proj_qkv", f"{LAYER}.mlp.gate_proj"
OUT, HEAD = f"{LAYER}.linear_attn.out_proj", "language_model.lm_head"
EMBED = "language_model.model.embed_tokens"

Tensors = dict[str, mx.array]
Config = dict[str, Any]


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A qwen3_5 checkpoint of several widths."""
    folder = tmp_path_factory.mktemp("load")
    source = save_raw("qwen3_5", folder / "source")
    plan = dict(Plan.load("uniform-4", model=source).modules)
    plan |= {QKV: QuantSpec(6, 64), GATE: QuantSpec(4, 32, "mxfp4"), OUT: None}
    plan |= {EMBED: QuantSpec(8, 32)}
    quantize(source, folder / "packed", plan=Plan(plan))
    (folder / "packed" / "mixbit.json").unlink()
    return folder / "packed"


def changed(
    source: Path,
    target: Path,
    edit_config: Callable[[Config], None] = lambda _: None,
    edit_tensors: Callable[[Tensors], Tensors] = lambda tensors: tensors,
) -> Path:
    """A copy of a checkpoint with another config and other tensors, in one file."""
    shutil.copytree(source, target)
    document = json.loads((target / "config.json").read_text())
    edit_config(document)
    (target / "config.json").write_text(json.dumps(document))
    tensors = edit_tensors(dict(mx.load(str(source / "model.safetensors"))))
    mx.eval(tensors)
    mx.save_safetensors(str(target / "model.safetensors"), tensors, {"format": "mlx"})
    (target / "model.safetensors.index.json").unlink(missing_ok=True)
    return target


def described(model: Any) -> dict[str, Any]:
    """What a model consists of: parameters, and how modules are packed."""
    widths = {
        path: (module.bits, module.group_size, module.mode)
        for path, module in model.named_modules()
        if hasattr(module, "bits")
    }
    return {"widths": widths, **dict(tree_flatten(model.parameters()))}


def assert_same_model(ours: Any, theirs: Any) -> None:
    left, right = described(ours), described(theirs)
    assert left.keys() == right.keys()
    assert left.pop("widths") == right.pop("widths")
    for name, value in left.items():
        assert value.dtype == right[name].dtype, name
        assert mx.array_equal(value, right[name]), name


def loaded(folder: Path) -> tuple[Any, list[str]]:
    """The model, and the warnings without the name of the folder before and the remark behind."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", MixbitWarning)
        model, _ = mixbit.load(folder)
    texts = [str(w.message) for w in caught if issubclass(w.category, MixbitWarning)]
    assert all(text.startswith(f"{folder}: ") and "\n" not in text for text in texts)
    return model, [text.removeprefix(f"{folder}: ") for text in texts]


def test_a_sound_checkpoint_is_what_stock_mlx_lm_loads(packed: Path) -> None:
    model, lines = loaded(packed)
    assert lines == []
    assert_same_model(model, mlx_lm.load(str(packed))[0])
    *_, settings = mixbit.load(packed, return_config=True, lazy=True)
    assert settings["quantization"][QKV] == {"group_size": 64, "bits": 6, "mode": "affine"}


# --- the config -------------------------------------------------------------------------------


def block(**changes: Any) -> Callable[[Config], None]:
    """Change entries of the quantization block; None takes one away."""

    def edit(document: Config) -> None:
        merged = document["quantization"] | changes
        kept = {key: value for key, value in merged.items() if value is not None}
        document["quantization"] = document["quantization_config"] = kept

    return edit


def respelled(prefix: str, suffix: str = "") -> Callable[[Config], None]:
    """Spell all keys of the block with another prefix."""

    def edit(document: Config) -> None:
        document["quantization"] = {
            key if "." not in key else prefix + _stem(key) + suffix: value
            for key, value in document["quantization"].items()
        }

    return edit


def _stem(key: str) -> str:
    return key.removeprefix("language_model.").removeprefix("model.")


def no_block(document: Config) -> None:
    del document["quantization"], document["quantization_config"]


def only_in_text_config(document: Config) -> None:
    document["text_config"]["quantization"] = document.pop("quantization")
    del document["quantization_config"]


def only_the_other_block(document: Config) -> None:
    del document["quantization"]


def only_the_top(document: Config) -> None:
    document["quantization"] = {"group_size": 64, "bits": 4}


HARMLESS: dict[str, Callable[[Config], None]] = {
    "keys model.language_model.*": respelled("model.language_model."),
    "keys model.layers.*": respelled("model."),
    "keys layers.*": respelled(""),
    "keys *.weight": respelled("language_model.model.", ".weight"),
    "override without mode": block(**{QKV: {"group_size": 64, "bits": 6}}),
    "override with group_size null": block(**{QKV: {"group_size": None, "bits": 6}}),
    "override with an extra key": block(**{QKV: {"bits": 6, "storage_bits": 8}}),
    "fp mode without group_size": block(**{GATE: {"bits": 4, "mode": "mxfp4"}}),
    "fp mode alone": block(**{GATE: {"mode": "mxfp4"}}),
    "quantization_config alone": only_the_other_block,
    "under text_config alone": only_in_text_config,
}


@pytest.mark.parametrize("name", HARMLESS)
def test_configs_that_say_the_same_another_way(tmp_path: Path, packed: Path, name: str) -> None:
    model, lines = loaded(changed(packed, tmp_path / "model", HARMLESS[name]))
    assert lines == []
    assert_same_model(model, mlx_lm.load(str(packed))[0])


CONTRADICTING: dict[str, tuple[Callable[[Config], None], list[str]]] = {
    "a path that does not exist": (
        block(**{f"{LAYER}.mlp.gate_prj": {"bits": 4}}),
        ["config.json: quantization names language_model.model.layers.0.mlp.gate_prj, which is no "
         "module of this qwen3_5 model that can be quantised; the nearest are "],
    ),
    "false on a packed tensor": (
        block(**{QKV: False}),
        [f"config.json says not quantised for {QKV}, but its tensors are affine 6/64"],
    ),
    "a dict on a dense tensor": (
        block(**{OUT: {"bits": 4, "group_size": 64}}),
        [f"config.json says affine 4/64 for {OUT}, but its tensors are not quantised"],
    ),
    "true on a dense tensor": (
        block(**{OUT: True}),
        [f"config.json says affine 4/64 for {OUT}, but its tensors are not quantised"],
    ),
    "a dict on a norm": (
        block(**{f"{LAYER}.input_layernorm": {"bits": 4}}),
        [f"config.json: quantization names {LAYER}.input_layernorm, which is no module"],
    ),
    "wrong bits": (
        block(**{QKV: {"bits": 4, "group_size": 64}}),
        [f"config.json says affine 4/64 for {QKV}, but its tensors are affine 6/64"],
    ),
    "wrong group size": (
        block(**{QKV: {"bits": 6, "group_size": 32}}),
        [f"config.json says affine 6/32 for {QKV}, but its tensors are affine 6/64"],
    ),
    "mode missing on mxfp4": (
        block(**{GATE: {"bits": 4, "group_size": 32}}),
        [f"config.json says affine 4/32 for {GATE}, but its tensors are mxfp4 4/32"],
    ),
    "seven bits": (
        block(**{QKV: {"bits": 7, "group_size": 64}}),
        [f"config.json says affine 7/64 for {QKV}, but its tensors are affine 6/64"],
    ),
    "top level without bits": (
        block(bits=None), ["config.json: the quantization block lacks bits"],
    ),
    "overrides lost": (
        only_the_top,
        ["config.json does not name language_model.model.embed_tokens (and 2 more), whose tensors "
         "are affine 8/32 and not, as its top level has it, affine 4/64"],
    ),
    "no block": (no_block, ["config.json has no quantization block, but 3"]),
}  # fmt: skip


@pytest.mark.parametrize("name", CONTRADICTING)
def test_configs_that_contradict_the_tensors_load_and_are_told(
    tmp_path: Path, packed: Path, name: str
) -> None:
    edit, expected = CONTRADICTING[name]
    model, lines = loaded(changed(packed, tmp_path / "model", edit))
    assert len(lines) == len(expected)
    for line, start in zip(lines, expected, strict=True):
        assert line.startswith(start)
        assert line.endswith(".")
    assert_same_model(model, mlx_lm.load(str(packed))[0])


def test_alike_shapes_are_told_apart_whatever_the_config_says(tmp_path: Path) -> None:
    """2/128, 4/64 and 8/32 have the same product, and only the true width tells them apart."""
    sizes = {"hidden_size": 128, "intermediate_size": 128}
    source = save_raw("qwen3_5", tmp_path / "source", **sizes)
    for spec in (QuantSpec(2, 128), QuantSpec(4, 64), QuantSpec(8, 32)):
        plan = dict.fromkeys(Plan.load("uniform-4", model=source).modules, spec)
        quantize(source, tmp_path / str(spec.bits), plan=Plan(plan))
        for said in (2, 4, 8):
            top = {"bits": said, "group_size": 256 // said}
            target = tmp_path / f"{spec.bits}-{said}"
            folder = changed(
                tmp_path / str(spec.bits), target, lambda doc, top=top: doc.update(quantization=top)
            )
            model, lines = loaded(folder)
            assert set(described(model)["widths"].values()) == {(*_pair(spec), "affine")}
            assert len(lines) == (said != spec.bits)


def _pair(spec: QuantSpec) -> tuple[int, int]:
    return spec.bits, spec.group_size


def test_no_quantization_block_makes_a_wrong_model(packed: Path, long_grid: bool) -> None:
    """However a block is damaged, the model is the one that the tensors make up, or is refused."""
    sound = json.loads((packed / "config.json").read_text())
    expected = described(mixbit.load(packed)[0])["widths"]
    rng, refused = random.Random(0), 0
    count = 100_000 if long_grid else 60
    for _ in range(count):
        damaged = sound["quantization"]
        for _ in range(rng.randrange(1, 4)):
            damaged = mutated(damaged, rng)
        document = {key: value for key, value in sound.items() if "quantization" not in key}
        document[rng.choice(["quantization", "quantization_config"])] = damaged
        try:
            if not is_mlx(packed, document):
                continue
            model, settled, lines = load_model(packed, document, lazy=True)
        except MixbitError as error:
            assert "\n" not in str(error)
            refused += 1
            continue
        assert described(model)["widths"] == expected
        assert settled["quantization"][QKV] == {"bits": 6, "group_size": 64, "mode": "affine"}
        assert not any("\n" in line for line in lines)
    assert refused < count / 2


# --- names and side parts ---------------------------------------------------------------------


def renamed(prefix: str) -> Callable[[Tensors], Tensors]:
    return lambda tensors: {prefix + _stem(name): value for name, value in tensors.items()}


def with_extra(*names: str) -> Callable[[Tensors], Tensors]:
    return lambda tensors: tensors | {name: mx.ones((4, 4)) for name in names}


SIDE = ("vision_tower.patch_embed.weight", "model.visual.blocks.0.attn.qkv.weight",
        "visual.merger.norm.weight", "model.vision_tower.patch_embed.weight",
        "language_model.vision_tower.patch_embed.weight", "mtp.fc.weight",
        "language_model.mtp.layers.0.self_attn.q_proj.weight",
        "mtp.layers.0.self_attn.q_proj.scales")  # fmt: skip
NAMES: dict[str, Callable[[Tensors], Tensors]] = {
    f"prefix {prefix!r}": renamed(prefix)
    for prefix in (
        "language_model.model.",
        "model.language_model.",
        "model.",
        "language_model.",
        "",
    )
} | {f"extra {name}": with_extra(name) for name in SIDE}


@pytest.mark.parametrize("name", NAMES)
def test_names_of_every_kind_load(tmp_path: Path, packed: Path, name: str) -> None:
    model, lines = loaded(changed(packed, tmp_path / "model", edit_tensors=NAMES[name]))
    assert lines == []
    assert_same_model(model, mlx_lm.load(str(packed))[0])
    assert Plan.load(tmp_path / "model").modules == Plan.load(packed).modules


def test_mtp_in_a_converted_qwen3_next(tmp_path: Path) -> None:
    model = build("qwen3_next")
    folder = save_checkpoint(model, tmp_path / "model")
    mx.save_safetensors(str(folder / "model-mtp.safetensors"), {"mtp.fc.weight": mx.ones((4, 4))})
    assert_same_model(loaded(folder)[0], model)


def test_shards_may_split_a_module_and_sidecars_are_not_read(tmp_path: Path, packed: Path) -> None:
    folder = changed(packed, tmp_path / "model")
    stored = dict(mx.load(str(folder / "model.safetensors")))
    mx.eval(stored)
    (folder / "model.safetensors").unlink()
    placement = {name: f"part-{name.rpartition('.')[2]}.safetensors" for name in stored}
    for file in set(placement.values()):
        members = {name: value for name, value in stored.items() if placement[name] == file}
        mx.save_safetensors(str(folder / file), members)
    index = {"weight_map": dict(reversed(placement.items()))}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    spoiled = {name: mx.zeros_like(value) for name, value in stored.items()}
    (folder / "optiq").mkdir()
    for file in ("mtp.safetensors", "model-other.safetensors", "optiq/model.safetensors"):
        mx.save_safetensors(str(folder / file), spoiled)
    model, lines = loaded(folder)
    assert lines == []
    assert_same_model(model, mlx_lm.load(str(packed))[0])


@pytest.mark.parametrize("head", ["twin", "other", "packed"])
def test_a_tied_model_may_still_hold_a_head(tmp_path: Path, head: str) -> None:
    source = save_raw("qwen3_5", tmp_path / "source", tie_word_embeddings=True)
    quantize(source, tmp_path / "packed", plan="unsloth@4")
    parts = ("weight", "scales", "biases")

    def with_head(tensors: Tensors) -> Tensors:
        if head == "other":
            return tensors | {"lm_head.weight": mx.ones((256, 64))}
        values = mx.quantize(mx.ones((256, 64)), 64, 4)
        if head == "twin":
            values = [tensors[f"{EMBED}.{part}"] for part in parts]
        names = [f"language_model.lm_head.{part}" for part in parts]
        return tensors | dict(zip(names, values, strict=True))

    folder = changed(tmp_path / "packed", tmp_path / "model", edit_tensors=with_head)
    model, lines = loaded(folder)
    assert len(lines) == (head != "twin")
    assert all("lm_head" in line and "differs from the embedding" in line for line in lines)
    assert_same_model(model, mlx_lm.load(str(tmp_path / "packed"))[0])
    assert Plan.load(folder).modules == Plan.load(tmp_path / "packed").modules


def test_tied_at_the_top_of_the_config_only(tmp_path: Path) -> None:
    source = save_raw("qwen3_5", tmp_path / "source", tie_word_embeddings=True)
    document = json.loads((source / "config.json").read_text())
    del document["text_config"]["tie_word_embeddings"]
    assert document["tie_word_embeddings"] is True
    (source / "config.json").write_text(json.dumps(document))
    assert HEAD not in [shape.path for shape in describe(source).modules]
    assert_same_model(loaded(source)[0], build("qwen3_5", tie_word_embeddings=True))
    quantize(source, tmp_path / "out", plan="uniform-4")
    assert_same_model(loaded(tmp_path / "out")[0], mlx_lm.load(str(tmp_path / "out"))[0])


# --- norms ------------------------------------------------------------------------------------

SHIFTED = (".input_layernorm.weight", ".post_attention_layernorm.weight", "model.norm.weight",
           ".q_norm.weight", ".k_norm.weight")  # fmt: skip


def shift(by: float) -> Callable[[Tensors], Tensors]:
    return lambda tensors: {
        name: value + by if name.endswith(SHIFTED) else value for name, value in tensors.items()
    }


@pytest.mark.parametrize("model_type", MODEL_TYPES)
@pytest.mark.parametrize("mtp", [False, True])
def test_raw_and_converted_norms_are_told_apart(tmp_path: Path, model_type: str, mtp: bool) -> None:
    extra = with_extra("mtp.fc.weight") if mtp else with_extra()
    model = build(model_type)
    raw = changed(save_raw(model_type, tmp_path / "a"), tmp_path / "raw", edit_tensors=extra)
    converted = save_checkpoint(model, tmp_path / "b")
    converted = changed(converted, tmp_path / "converted", edit_tensors=extra)
    for folder in (raw, converted):
        assert_same_model(loaded(folder)[0], model)


@pytest.mark.parametrize("model_type", MODEL_TYPES)
@pytest.mark.parametrize(
    ("form", "by", "message"),
    [
        (
            "converted",
            -1.0,
            r"in MLX's layout, but the norms are not shifted by one \(mean gain -?0",
        ),
        ("converted", 1.0, r"the norms are shifted by one twice \(mean gain [12]"),
        ("raw", 1.0, "in Hugging Face's layout, but the norms are shifted by one already"),
    ],
)
def test_norms_in_another_form_than_the_convolutions_are_refused(
    tmp_path: Path, model_type: str, form: str, by: float, message: str
) -> None:
    source = tmp_path / "source"
    if form == "raw":
        save_raw(model_type, source)
    else:
        save_checkpoint(build(model_type), source)
    folder = changed(source, tmp_path / "model", edit_tensors=shift(by))
    with pytest.raises(MixbitError, match=message):
        mixbit.load(folder)
    with pytest.raises(MixbitError, match="fetch or convert the model again"):
        quantize(folder, tmp_path / "out", plan="uniform-4")
    assert not (tmp_path / "out").exists()


def test_convolutions_in_both_layouts_are_refused(tmp_path: Path) -> None:
    source = save_raw("qwen3_5", tmp_path / "source")
    name = "model.language_model.layers.1.linear_attn.conv1d.weight"
    folder = changed(
        source, tmp_path / "model",
        edit_tensors=lambda tensors: tensors | {name: tensors[name].moveaxis(2, 1)},
    )  # fmt: skip
    with pytest.raises(MixbitError, match=r"in Hugging Face's layout and .*layers\.1.* in MLX's"):
        mixbit.load(folder)


def test_trained_norms_are_accepted(tiny_folder: Path) -> None:
    model, lines = loaded(tiny_folder)
    assert lines == []
    assert_same_model(model, mlx_lm.load(str(tiny_folder))[0])


# --- what is refused --------------------------------------------------------------------------


def without(name: str) -> Callable[[Tensors], Tensors]:
    return lambda tensors: {key: value for key, value in tensors.items() if key != name}


def replaced(**values: mx.array) -> Callable[[Tensors], Tensors]:
    return lambda tensors: (
        without(f"{QKV}.biases")(tensors)
        | {f"{QKV}.{name}": value for name, value in values.items()}
    )


U32, U8, I8 = mx.uint32, mx.uint8, mx.int8
REFUSED: dict[str, tuple[Callable[[Config], None], Callable[[Tensors], Tensors], str]] = {
    "affine without biases": (
        block(**{QKV: {"bits": 6, "symmetric_zero_point": True}}), without(f"{QKV}.biases"),
        f"{QKV} is packed as affine 6/64 without biases \\(symmetric zero point",
    ),
    "sym8": (
        block(**{QKV: {"mode": "sym8", "bits": 8}}),
        replaced(weight=mx.zeros((256, 64), I8), scales=mx.ones((256,))),
        f"{QKV} is 256 x 64, to which a packed weight of I8",
    ),
    "fp8_e4m3": (
        block(**{QKV: {"mode": "fp8_e4m3", "bits": 8}}),
        replaced(weight=mx.zeros((256, 64), U8), scales=mx.ones((256, 1), mx.bfloat16)),
        f"{QKV} is 256 x 64, to which a packed weight of U8",
    ),
    "q4k": (
        block(**{QKV: {"mode": "q4k", "bits": 4}}),
        replaced(weight=mx.zeros((256, 8), U32), scales=mx.zeros((256, 4), U8),
                 biases=mx.zeros((256, 1), mx.float16)),
        rf"{QKV} has scales of U8 \[256, 4\] and biases of F16 \[256, 1\]|in any mode of MLX",
    ),
    "kquant": (
        lambda document: document.update(quantization={"mode": "kquant", "per_tensor": {}}),
        lambda tensors: tensors, "is packed as kquant, a format of mlx-kquant's own",
    ),
    "mxtq": (
        lambda document: document.update(weight_format="mxtq"),
        lambda tensors: tensors, "is packed as mxtq, a format of JANG's own",
    ),
    "mxtq tensors": (
        lambda _: None, with_extra(f"{QKV}.tq_packed"),
        f"{QKV} is packed as mxtq, a format of JANG's own",
    ),
    "seven bits": (
        lambda _: None, replaced(weight=mx.zeros((256, 14), U32), scales=mx.ones((256, 1)),
                                 biases=mx.ones((256, 1))),
        f"{QKV} is 256 x 64, to which",
    ),
    "scales of no module": (
        lambda _: None, with_extra("language_model.model.layers.9.mlp.up_proj.scales"),
        r"layers\.9\.mlp\.up_proj\.scales, which is no part of a qwen3_5 model",
    ),
    "an unknown tensor": (
        lambda _: None, with_extra("language_model.model.layers.0.mlp.more.weight"),
        r"mlp\.more\.weight, which is no part of a qwen3_5 model of this config",
    ),
    "a missing tensor": (
        lambda _: None, without(f"{OUT}.weight"), rf"lacks tensor {OUT}\.weight",
    ),
    "scales without weight": (
        lambda _: None, without(f"{QKV}.weight"), rf"holds {QKV}\.scales without {QKV}\.weight",
    ),
    "the same under two prefixes": (
        lambda _: None, with_extra("model.layers.0.linear_attn.out_proj.weight"),
        rf"holds {OUT}\.weight twice",
    ),
    "dense of another shape": (
        lambda _: None, lambda tensors: tensors | {f"{OUT}.weight": mx.ones((4, 4))},
        rf"{OUT}\.weight has shape \(4, 4\), but the config asks for \(64, 128\)",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_refusals_name_the_tensor(tmp_path: Path, packed: Path, name: str) -> None:
    edit_config, edit_tensors, message = REFUSED[name]
    folder = changed(packed, tmp_path / "model", edit_config, edit_tensors)
    with pytest.raises(MixbitError, match=message) as caught:
        mixbit.load(folder)
    assert "\n" not in str(caught.value)


# --- a mixed checkpoint against numpy ---------------------------------------------------------

E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6], np.float64)


def unpacked(tensors: Tensors, path: str, spec: QuantSpec) -> np.ndarray:
    """Dequantise by hand: each row is one little-endian stream of codes."""
    words, scales = (np.array(tensors[f"{path}.{part}"]) for part in ("weight", "scales"))
    stream = np.unpackbits(words.view(np.uint8), axis=-1, bitorder="little")
    codes = stream.reshape(*words.shape[:-1], -1, spec.bits).astype(np.int64)
    codes = (codes << np.arange(spec.bits)).sum(-1)
    grouped = codes.reshape(*scales.shape, spec.group_size)
    if spec.mode == "mxfp4":
        signed = np.where(grouped & 8, -1, 1) * E2M1[grouped & 7]
        values = signed * 2.0 ** (scales.astype(np.float64) - 127)[..., None]
    else:
        biases = np.array(tensors[f"{path}.biases"], np.float64)
        values = grouped * scales.astype(np.float64)[..., None] + biases[..., None]
    return values.reshape(codes.shape)


@pytest.mark.parametrize("model_type", MODEL_TYPES)
def test_a_mixed_checkpoint_computes_what_its_numbers_say(tmp_path: Path, model_type: str) -> None:
    sizes: dict[str, int] = {"hidden_size": 128, "intermediate_size": 128}
    if model_type != "qwen3_5":
        sizes |= {"moe_intermediate_size": 128, "shared_expert_intermediate_size": 128}
    source = save_raw(model_type, tmp_path / "source", **sizes)
    structure = describe(config(model_type, **sizes))
    specs: list[QuantSpec | None] = [
        QuantSpec(bits, group) for bits in (8, 6, 5, 4, 3, 2) for group in (32, 64, 128)
    ]
    specs[4:4] = [None, QuantSpec(4, 32, "mxfp4")]
    plan = {shape.path: specs[index % len(specs)] for index, shape in enumerate(structure.modules)}
    quantize(source, tmp_path / "packed", plan=Plan(plan), max_shard_bytes=200_000)
    stored: Tensors = {}
    for file in (tmp_path / "packed").glob("model*.safetensors"):
        stored |= dict(mx.load(str(file)))
    dense = dict(stored)
    for path, spec in plan.items():
        if spec is not None:
            for part in ("scales", "biases"):
                dense.pop(f"{path}.{part}", None)
            dense[f"{path}.weight"] = mx.array(unpacked(stored, path, spec).astype(np.float32))
    by_hand = build(model_type, **sizes)
    by_hand.load_weights(list(dense.items()))

    model, lines = loaded(tmp_path / "packed")
    assert lines == []
    widths = described(model)["widths"]
    assert widths == {path: (s.bits, s.group_size, s.mode) for path, s in plan.items() if s}
    expected = np.array(by_hand(TOKENS), np.float64)
    difference = np.abs(np.array(model(TOKENS), np.float64) - expected).max()
    assert difference < 1e-4 * np.abs(expected).max()


# --- mlx_lm.load's own arguments --------------------------------------------------------------


def test_what_another_tool_packed_goes_through_mlx_lms_own_conversion(tmp_path: Path) -> None:
    source = save_raw("qwen3_5", tmp_path / "source")
    modules = dict.fromkeys(Plan.load("uniform-4", model=source).modules, QuantSpec(4, 32, "mxfp4"))
    quantize(source, tmp_path / "packed", plan=Plan(modules))

    def by_method(document: Config) -> None:
        del document["quantization"]
        document["quantization_config"] = {"quant_method": "mxfp4"}

    folder = changed(tmp_path / "packed", tmp_path / "model", by_method)
    model, lines = loaded(folder)
    assert lines == []
    assert_same_model(model, mlx_lm.load(str(folder))[0])
    *_, settings = mixbit.load(folder, return_config=True)
    assert settings["quantization"] == {"group_size": 32, "bits": 4, "mode": "mxfp4"}


def test_adapters_and_changed_configs_as_in_mlx_lm(tmp_path: Path, packed: Path) -> None:
    settings = {"rank": 4, "scale": 10.0, "dropout": 0.0, "keys": ["linear_attn.in_proj_qkv"]}
    adapter = {"fine_tune_type": "lora", "num_layers": 4, "lora_parameters": settings}
    (tmp_path / "adapter_config.json").write_text(json.dumps(adapter))
    stock, _ = mlx_lm.load(str(packed))
    linear_to_lora_layers(stock, 4, settings)
    weights = {
        name: mx.random.normal(value.shape) * 0.1
        for name, value in tree_flatten(stock.parameters())
        if "lora" in name
    }
    assert len(weights) == 6
    mx.save_safetensors(str(tmp_path / "adapters.safetensors"), weights)
    arguments: dict[str, Any] = {
        "adapter_path": str(tmp_path),
        "model_config": {"eos_token_id": 7},
        "tokenizer_config": {"trust_remote_code": False},
        "return_config": True,
    }
    ours, theirs = mixbit.load(packed, **arguments), mlx_lm.load(str(packed), **arguments)
    assert_same_model(ours[0], theirs[0])
    assert ours[1].eos_token_ids == theirs[1].eos_token_ids
    assert 7 in ours[1].eos_token_ids
    assert ours[2]["eos_token_id"] == 7
    difference = mx.abs(ours[0](TOKENS) - theirs[0](TOKENS)).max().item()
    assert difference < 1e-2 * mx.abs(theirs[0](TOKENS)).max().item()
