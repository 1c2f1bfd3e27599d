"""The small trained model in which full attention carries weight."""

from pathlib import Path

import mlx.core as mx
import pytest

import mixbit
from mixbit.checkpoint import describe
from mixbit.data import tiny_data
from mixbit.kld import measure

FOLDER = Path(__file__).parent / "data" / "tiny-attention"


def test_its_sizes_are_unlike_the_shipped_models() -> None:
    shapes = {shape.path.partition("model.")[2]: shape for shape in describe(FOLDER).modules}
    out = shapes["model.layers.0.linear_attn.out_proj"]
    assert (out.out_dims, out.in_dims) == (192, 4 * 48)
    qkv = shapes["model.layers.0.linear_attn.in_proj_qkv"]
    assert (qkv.out_dims, qkv.in_dims) == (2 * 2 * 32 + 4 * 48, 192)
    o = shapes["model.layers.1.self_attn.o_proj"]
    assert (o.out_dims, o.in_dims) == (192, 4 * 64)
    assert sum(file.stat().st_size for file in FOLDER.iterdir()) < 6e6


@pytest.mark.parametrize(("layer", "least"), [(1, 0.02), (3, 0.02), (5, 0.02)])
def test_attention_carries_weight(layer: int, least: float) -> None:
    """Zeroing an output projection costs far more than 0.002 nats, as in the shipped model."""
    reference, tokenizer = mixbit.load(FOLDER)
    model, _ = mixbit.load(FOLDER)
    projection = model.language_model.model.layers[layer].self_attn.o_proj
    projection.weight = mx.zeros_like(projection.weight)
    result = measure(
        model, reference, tiny_data("kld_eval"), tokenizer=tokenizer, num_samples=6, window=None,
        score="all",
    )  # fmt: skip
    mean = result.summary()["mean"]
    assert mean is not None and mean > least
