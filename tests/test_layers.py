"""mixbit's layers inside mlx-lm models: same parameters, same results, nothing else disturbed."""

import copy
from itertools import accumulate, pairwise
from pathlib import Path

import mlx.core as mx
import mlx.nn as nn
import mlx_lm
import numpy as np
import pytest
from mlx.utils import tree_flatten, tree_map, tree_unflatten
from mlx_lm.models.cache import ArraysCache, BatchKVCache, make_prompt_cache
from mlx_lm.models.switch_layers import SwitchGLU, SwitchLinear
from mlx_lm.tokenizer_utils import TokenizerWrapper
from mlx_lm.tuner.utils import linear_to_lora_layers

import mixbit
from kernel_cases import double, relative_error
from mixbit import backend
from models import MODEL_TYPES, build

TOKENS = mx.array([[7, 3, 250, 11, 3, 3, 90, 41, 0, 200, 17, 5, 64, 32, 8, 1, 99, 120, 77]])


def quantised(model_type: str, dtype: mx.Dtype = mx.float32, **overrides) -> nn.Module:
    """A random model at mixed widths, experts, embedding and head included."""
    model = build(model_type, dtype=dtype, **overrides)
    widths = {"out_proj": 8, "embed_tokens": 6, "lm_head": 6, "down_proj": 5}

    def choose(path: str, module: nn.Module) -> bool | dict[str, object]:
        if not hasattr(module, "to_quantized") or path.endswith("in_proj_a"):
            return False
        return {"bits": widths.get(path.rsplit(".", 1)[-1], 3), "group_size": 32}

    nn.quantize(model, class_predicate=choose)
    return model.eval()


class ReferenceSwitch(nn.Module):
    """Experts by plain indexing: MLX's own gather product has no fp64."""

    def __call__(self, x: mx.array, indices: mx.array, **_: bool) -> mx.array:
        return x @ self.weight[indices].swapaxes(-1, -2)


def fp64_logits(model: nn.Module, tokens: mx.array) -> np.ndarray:
    """Logits of stock layers in fp64 on the dequantised weights of ``model``."""
    reference = copy.deepcopy(model)

    def dense(module: nn.Module) -> nn.Module:
        if not hasattr(module, "bits"):
            if type(module) is SwitchLinear:
                plain = ReferenceSwitch()
                plain.weight = module.weight
                return plain
            return module
        scales, biases = module.scales.astype(mx.float32), module.biases.astype(mx.float32)
        weight = mx.dequantize(module.weight, scales, biases, module.group_size, module.bits)
        if "Switch" in type(module).__name__:
            plain: nn.Module = ReferenceSwitch()
        elif "Embedding" in type(module).__name__:
            plain = nn.Embedding(1, 1)
        else:
            plain = nn.Linear(1, 1, bias=False)
        plain.weight = weight
        return plain

    leaves = tree_map(dense, reference.leaf_modules(), is_leaf=nn.Module.is_module)
    reference.update_modules(leaves)
    reference.update(tree_map(lambda a: a.astype(mx.float64), reference.parameters()))
    return np.array(reference(tokens)).astype(np.float64)


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("model_type", MODEL_TYPES)
def test_models_agree_with_fp64(model_type: str, packed: bool) -> None:
    model = quantised(model_type) if packed else build(model_type)
    want = fp64_logits(model, TOKENS)
    mixbit.accelerate(model)
    assert relative_error(model(TOKENS), want) < 1e-5


@pytest.mark.parametrize("model_type", ["qwen3_5", "qwen3_next"])
def test_in_bf16_mixbit_is_nearer_to_fp64_than_stock(model_type: str) -> None:
    model = quantised(model_type, mx.bfloat16)
    want = fp64_logits(model, TOKENS)
    stock = relative_error(model(TOKENS), want)
    mixbit.accelerate(model)
    ours = relative_error(model(TOKENS), want)
    assert ours < stock / 2  # what is left is the rounding of activations between layers


@pytest.mark.parametrize("dtype", [mx.float32, mx.bfloat16])
def test_every_layer_of_a_model_keeps_its_tolerance(dtype: mx.Dtype) -> None:
    model = quantised("qwen3_5", dtype)
    mixbit.accelerate(model)
    seen = 0
    for _, module in model.named_modules():
        if not isinstance(module, nn.QuantizedLinear):
            continue
        scales, biases = module.scales.astype(mx.float32), module.biases.astype(mx.float32)
        weight = mx.dequantize(module.weight, scales, biases, module.group_size, module.bits)
        x = mx.random.normal((5, weight.shape[1])).astype(dtype)
        error = relative_error(module(x), double(x) @ double(weight).T)
        assert error < (1e-5 if dtype == mx.float32 else 4e-3)
        seen += 1
    assert seen > 20


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory, tiny_folder: Path) -> Path:
    """The trained model by a recipe."""
    folder = tmp_path_factory.mktemp("quantised") / "unsloth-3"
    mixbit.quantize(tiny_folder, folder, plan="unsloth-2026-03@3")
    return folder


def test_stock_and_mixbit_give_the_same_logits_of_a_checkpoint(
    checkpoint: Path, tiny_tokenizer: TokenizerWrapper
) -> None:
    stock, _ = mlx_lm.load(str(checkpoint))
    ours, _ = mixbit.load(checkpoint)
    conversation = [{"role": "user", "content": "Please book a table for 4 at 19:30, thanks."}]
    tokens = mx.array([tiny_tokenizer.apply_chat_template(conversation)])
    want = fp64_logits(stock, tokens)
    # What is left in bf16 is the rounding of activations between layers, in stock its sums too.
    assert relative_error(ours(tokens), want) < 1e-2
    assert relative_error(ours(tokens), want) < relative_error(stock(tokens), want) / 2
    for model in (stock, ours):
        model.update(tree_map(_widened, model.parameters()))
    assert relative_error(ours(tokens), want) < 1e-5
    assert relative_error(stock(tokens), want) < 1e-5


def _widened(a: mx.array) -> mx.array:
    return a.astype(mx.float32) if mx.issubdtype(a.dtype, mx.floating) else a


# ---- the cache: chunks, tokens, padding ---------------------------------------------------------


def chunked(model: nn.Module, tokens: mx.array, splits: list[int]) -> mx.array:
    """Logits of a prefill in chunks of the given lengths."""
    cache = make_prompt_cache(model)
    edges = pairwise(accumulate(splits, initial=0))
    parts = [model(tokens[:, a:b], cache) for a, b in edges]
    return mx.concatenate(parts, axis=1)


@pytest.mark.parametrize("model_type", MODEL_TYPES)
@pytest.mark.parametrize("packed", [False, True])
def test_any_split_of_the_prompt_gives_the_same_logits(model_type: str, packed: bool) -> None:
    model = quantised(model_type) if packed else build(model_type)
    mixbit.accelerate(model)
    tokens = mx.random.randint(0, 256, (1, 70))
    whole = model(tokens)
    for splits in ([70], [35, 35], [64, 6], [69, 1], [63, 1, 6], [1] * 70):
        difference = mx.abs(chunked(model, tokens, splits) - whole).max().item()
        assert difference < 1e-5, splits


def test_the_trained_model_in_parts(tiny_folder: Path, tiny_tokenizer: TokenizerWrapper) -> None:
    model, _ = mixbit.load(tiny_folder)
    model.update(tree_map(_widened, model.parameters()))
    text = "A hybrid keeps a state that forgets slowly, and keys and values that it never forgets."
    tokens = mx.array([tiny_tokenizer.encode(text)])
    whole, T = model(tokens), tokens.size
    for splits in ([T // 2, T - T // 2], [3, T - 4, 1], [1] * T):
        difference = mx.abs(chunked(model, tokens, splits) - whole).max().item()
        assert difference < 1e-5 * mx.abs(whole).max().item(), splits
    pads = mx.zeros((1, 3), tokens.dtype)
    padded = model(mx.concatenate([pads, tokens], axis=1), _padded_cache(model, [3]))[:, 3:]
    assert mx.abs(padded - whole).max().item() < 1e-5 * mx.abs(whole).max().item()


def test_that_comparison_would_notice_a_lost_state() -> None:
    model = build("qwen3_5")
    mixbit.accelerate(model)
    tokens = mx.random.randint(0, 256, (1, 70))
    whole, cache = model(tokens), make_prompt_cache(model)
    model(tokens[:, :35], cache)
    for lost in (0, 1):  # convolution inputs, recurrent state
        spoilt = copy.deepcopy(cache)
        for layer_cache in spoilt:
            if hasattr(layer_cache, "cache"):
                layer_cache[lost] = mx.zeros_like(layer_cache[lost])
        error = mx.abs(model(tokens[:, 35:], spoilt) - whole[:, 35:]).max().item()
        assert error > 0.1


@pytest.mark.parametrize("model_type", MODEL_TYPES)
@pytest.mark.parametrize("pads", [1, 2, 3, 6])
def test_left_padding_changes_nothing(model_type: str, pads: int) -> None:
    model = build(model_type)
    mixbit.accelerate(model)
    rows = [TOKENS[0, pads:], TOKENS[0]]
    cache = _padded_cache(model, [pads, 0])
    batch = mx.stack([mx.concatenate([mx.zeros(pads, mx.int32), rows[0]]), rows[1]])
    logits = model(batch, cache)
    for index, row in enumerate(rows):
        alone = model(row[None])[0]
        assert mx.abs(logits[index, -len(row) :] - alone).max().item() < 1e-5
    following = model(mx.array([[9], [9]]), cache)
    for index, row in enumerate(rows):
        alone = model(mx.concatenate([row, mx.array([9])])[None])[0, -1]
        assert mx.abs(following[index, 0] - alone).max().item() < 1e-5


def _padded_cache(model: nn.Module, padding: list[int]) -> list[object]:
    return [
        ArraysCache(2, left_padding=padding)
        if isinstance(cache, ArraysCache)
        else BatchKVCache(padding)
        for cache in make_prompt_cache(model)
    ]


def test_rows_may_end_early() -> None:
    model = build("qwen3_5")
    mixbit.accelerate(model)
    layer = model.layers[0].linear_attn
    x = mx.random.normal((2, 9, 64))
    cache = ArraysCache(2)
    cache.prepare(lengths=[5, 9])
    layer(x, cache.make_mask(9), cache)
    cache.finalize()
    after = layer(x[:, :1], None, cache)
    for row, length in enumerate((5, 9)):
        alone = ArraysCache(2)
        layer(x[row : row + 1, :length], None, alone)
        want = layer(x[row : row + 1, :1], None, alone)
        assert mx.abs(after[row] - want[0]).max().item() < 1e-5


def test_the_state_in_the_cache_is_fp32() -> None:
    model = build("qwen3_5", dtype=mx.bfloat16)
    mixbit.accelerate(model)
    cache = make_prompt_cache(model)
    model(TOKENS, cache)
    assert cache[0][1].dtype == mx.float32
    assert cache[0][0].dtype == mx.bfloat16


# ---- everything around the layers ---------------------------------------------------------------


@pytest.mark.parametrize("model_type", MODEL_TYPES)
def test_accelerate_reports_and_changes_no_parameter(model_type: str) -> None:
    model = quantised(model_type)
    before = dict(tree_flatten(model.parameters()))
    report = mixbit.accelerate(model)
    after = dict(tree_flatten(model.parameters()))
    assert report.backend == "cpu"
    assert report.swapped["QuantizedLinear"] > 20
    assert report.swapped["QuantizedEmbedding"] == 1
    assert ("QuantizedSwitchLinear" in report.swapped) == (model_type != "qwen3_5")
    assert sum(count for name, count in report.swapped.items() if "Delta" in name) == 3
    assert list(before) == list(after)
    assert all(before[name] is after[name] for name in before)
    assert mixbit.accelerate(model).swapped == {}


def test_someone_elses_layers_are_left_alone_and_reported() -> None:
    class Theirs(nn.Linear):
        pass

    model = build("qwen3_5")
    model.language_model.lm_head.__class__ = Theirs
    report = mixbit.accelerate(model)
    assert type(model.language_model.lm_head) is Theirs
    assert any("Theirs" in name for name in report.kept)


def test_tied_heads_use_the_embedding_at_its_own_width() -> None:
    model = quantised("qwen3_5", tie_word_embeddings=True)
    want = fp64_logits(model, TOKENS)
    mixbit.accelerate(model)
    assert type(model.model.embed_tokens) is mixbit.nn.QuantizedEmbedding
    assert model.model.embed_tokens.bits == 6
    assert relative_error(model(TOKENS), want) < 1e-5


class Ramp(nn.Module):
    """Somebody's activation."""

    def __call__(self, x: mx.array, gate: mx.array) -> mx.array:
        return mx.maximum(gate, 0) * x


def test_experts_with_a_foreign_activation_keep_to_it() -> None:
    stock, ours = build("qwen3_5_moe"), build("qwen3_5_moe")
    for model in (stock, ours):
        for _, module in model.named_modules():
            if type(module) is SwitchGLU:
                module.activation = Ramp()
    mixbit.accelerate(ours)
    assert mx.allclose(ours(TOKENS), stock(TOKENS), rtol=1e-4, atol=1e-4)


def test_lora_trains_on_packed_weights() -> None:
    model = quantised("qwen3_5")
    mixbit.accelerate(model)
    model.freeze()
    linear_to_lora_layers(
        model,
        4,
        {
            "rank": 4,
            "scale": 2.0,
            "dropout": 0.0,
            "keys": ["mlp.down_proj", "linear_attn.in_proj_qkv", "self_attn.q_proj"],
        },
    )
    model.train()
    trained = dict(tree_flatten(model.trainable_parameters()))
    assert len(trained) == 2 * (4 + 3 + 1)

    def loss(model: nn.Module) -> mx.array:
        return nn.losses.cross_entropy(model(TOKENS[:, :-1]), TOKENS[:, 1:]).mean()

    value, gradients = nn.value_and_grad(model, loss)(model)
    before = value.item()
    model.update(tree_map(lambda p, g: p - 0.05 * g, model.trainable_parameters(), gradients))
    assert loss(model).item() < before
    assert all(mx.isfinite(g).all().item() for _, g in tree_flatten(gradients))


def test_layers_quantise_into_mixbit_layers() -> None:
    linear = mixbit.nn.Linear(64, 8, bias=False)
    packed = linear.to_quantized(group_size=32, bits=3)
    assert type(packed) is mixbit.nn.QuantizedLinear
    assert (packed.group_size, packed.bits) == (32, 3)
    assert type(mixbit.nn.Embedding(8, 64).to_quantized()) is mixbit.nn.QuantizedEmbedding
    switch = mixbit.nn.SwitchLinear(64, 8, 3, bias=True)
    x, chosen = mx.random.normal((2, 1, 1, 64)), mx.array([[0, 2], [1, 1]])
    packed_switch = switch.to_quantized(bits=8)
    assert type(packed_switch) is mixbit.nn.QuantizedSwitchLinear
    assert mx.allclose(packed_switch(x, chosen), switch(x, chosen), atol=2e-2)


def test_linear_with_a_bias() -> None:
    linear = mixbit.nn.Linear(64, 8)
    x = mx.random.normal((3, 64))
    want = double(x) @ double(linear.weight).T + double(linear.bias)
    assert relative_error(linear(x), want) < 1e-6
    packed = linear.to_quantized(bits=8)
    assert mx.allclose(packed(x), linear(x), atol=2e-2)


@pytest.mark.parametrize("model_type", ["qwen3_5", "qwen3_next"])
def test_layers_compile(model_type: str) -> None:
    model = quantised(model_type)
    mixbit.accelerate(model)
    layer = model.layers[0].linear_attn

    def step(x: mx.array, *state: mx.array) -> tuple[mx.array, ...]:
        cache = ArraysCache(2)
        for index, value in enumerate(state):
            cache[index] = value
        return layer(x, cache.make_mask(x.shape[1]), cache), *cache.cache

    compiled = mx.compile(step)
    ours: tuple[mx.array, ...] = ()
    theirs: tuple[mx.array, ...] = ()
    for steps in (5, 1, 1, 3):
        x = mx.random.normal((2, steps, 64))
        y, *ours = step(x, *ours)
        same, *theirs = compiled(x, *theirs)
        for a, b in zip((y, *ours), (same, *theirs), strict=True):
            assert mx.array_equal(a, b)


@pytest.mark.parametrize("model_type", ["qwen3_5", "qwen3_next"])
def test_gradients_in_training(model_type: str) -> None:
    stock, ours = (build(model_type).layers[0].linear_attn.train() for _ in range(2))
    mixbit.accelerate(model := nn.Sequential(ours))
    ours = model.layers[0]
    x, weights = mx.random.normal((2, 7, 64)), mx.random.normal((2, 7, 64))

    def gradients(layer: nn.Module) -> dict[str, mx.array]:
        def loss(parameters: dict[str, object], x: mx.array) -> mx.array:
            layer.update(parameters)
            return (layer(x) * weights).sum()

        found, of_x = mx.grad(loss, argnums=(0, 1))(layer.trainable_parameters(), x)
        return {"x": of_x} | dict(tree_flatten(found))

    found = gradients(ours)
    assert len(found) == 8 if model_type == "qwen3_next" else 10
    for name, want in gradients(stock).items():
        assert relative_error(found[name], double(want)) < 1e-5, name
    # Along a random direction the sum changes by as much; mlx-lm has parts of it in fp32 always.
    wide = tree_map(lambda a: a.astype(mx.float64), stock.parameters())
    values = {"x": x.astype(mx.float64)} | dict(tree_flatten(wide))
    directions = {name: mx.random.normal(a.shape).astype(mx.float64) for name, a in values.items()}

    def at(step: float) -> float:
        moved = {name: value + step * directions[name] for name, value in values.items()}
        x = moved.pop("x")
        stock.update(tree_unflatten(list(moved.items())))
        return (stock(x) * weights.astype(mx.float64)).sum().item()

    slope = (at(1e-3) - at(-1e-3)) / 2e-3
    along = sum((double(found[name]) * double(d)).sum() for name, d in directions.items())
    assert along == pytest.approx(slope, rel=1e-3)


def test_what_cannot_be_differentiated_says_so() -> None:
    model = build("qwen3_5")
    mixbit.accelerate(model)
    layer = model.layers[0].linear_attn
    with pytest.raises(ValueError, match="MixbitDeltaNet"):
        mx.grad(lambda x: layer(x).sum())(mx.random.normal((1, 3, 64)))


@pytest.mark.parametrize("model_type", MODEL_TYPES)
def test_the_stock_backend_runs_the_same_layers(
    model_type: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = quantised(model_type)
    mixbit.accelerate(model)
    native = model(TOKENS)
    mx.eval(native)
    monkeypatch.setattr(backend, "native", None)
    assert mx.allclose(model(TOKENS), native, atol=1e-3)
