"""Write a checkpoint of random weights with the text dimensions of a published model.

Speed and size depend on shapes and not on values, so this is what whole-model timings use:

    python bench/make_model.py 0.8b work/0.8b
    mixbit quantize --model work/0.8b --recipe unsloth-2026-03 --q-bits 3 --mlx-path work/0.8b-3
    mixbit bench --model work/0.8b-3 -p 8 -g 4
"""

from __future__ import annotations

import argparse
import json
import shutil
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
from mlx.utils import tree_flatten

from mixbit.checkpoint import build_model
from mixbit.data import tiny_model
from mixbit.quantization.shards import group_by_size, shard_name

SIZES: dict[str, dict[str, Any]] = {
    "0.8b": {
        "hidden_size": 1024,
        "intermediate_size": 3584,
        "num_hidden_layers": 24,
        "num_attention_heads": 8,
        "linear_num_value_heads": 16,
        "tie_word_embeddings": True,
    },
    "1b": {
        "hidden_size": 1024,
        "intermediate_size": 3584,
        "num_hidden_layers": 36,
        "num_attention_heads": 8,
        "linear_num_value_heads": 16,
        "tie_word_embeddings": True,
    },
    "4b": {
        "hidden_size": 2560,
        "intermediate_size": 9216,
        "num_hidden_layers": 32,
        "num_attention_heads": 16,
        "num_key_value_heads": 4,
        "linear_num_value_heads": 32,
        "tie_word_embeddings": True,
    },
}


def settings(size: str, vocab_size: int) -> dict[str, Any]:
    """``config.json`` of the model."""
    text: dict[str, Any] = {
        "model_type": "qwen3_5_text",
        "vocab_size": vocab_size,
        "num_key_value_heads": 2,
        "head_dim": 256,
        "full_attention_interval": 4,
        "linear_num_key_heads": 16,
        "linear_key_head_dim": 128,
        "linear_value_head_dim": 128,
        "linear_conv_kernel_dim": 4,
        "max_position_embeddings": 32768,
        "rms_norm_eps": 1e-6,
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": 1e7,
            "partial_rotary_factor": 0.25,
        },
        **SIZES[size],
    }
    return {
        "model_type": "qwen3_5",
        "dtype": "bfloat16",
        "tie_word_embeddings": text["tie_word_embeddings"],
        "text_config": text,
    }


def random_weight(rng: np.random.Generator, name: str, shape: tuple[int, ...]) -> mx.array:
    """Values that keep activations of about one, in bf16.

    By numpy, which takes half as long for a normal distribution as MLX on the CPU.
    """
    if name.endswith("norm.weight"):
        return mx.ones(shape, mx.bfloat16)
    scale = 1.0 if len(shape) == 1 else shape[-1] ** -0.5
    return (scale * mx.array(rng.standard_normal(shape, np.float32))).astype(mx.bfloat16)


def main() -> None:
    """Command line entry."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("size", choices=sorted(SIZES))
    parser.add_argument("folder", type=Path, help="folder to write; must not exist")
    parser.add_argument("--shard-bytes", type=int, help="begin a new file at this size")
    parser.add_argument("--vocab", type=int, default=248320, help="rows of the output head")
    args = parser.parse_args()
    args.folder.mkdir(parents=True)
    config = settings(args.size, args.vocab)
    text = json.dumps(config, indent=2) + "\n"
    (args.folder / "config.json").write_text(text, encoding="utf-8")
    weights = {}
    rng = np.random.default_rng(0)
    for name, value in tree_flatten(build_model(config).parameters()):
        weights[name] = random_weight(rng, name, value.shape)
        mx.eval(weights[name])
    save(weights, args.shard_bytes, args.folder)
    for name in ("tokenizer_config.json", "chat_template.jinja"):
        shutil.copyfile(tiny_model() / name, args.folder / name)
    tokenizer = json.dumps(whole_tokenizer(config["text_config"]["vocab_size"]))
    (args.folder / "tokenizer.json").write_text(tokenizer, encoding="utf-8")


def save(weights: dict[str, mx.array], shard_bytes: int | None, folder: Path) -> None:
    """Weight files, and their index if there are several."""
    sizes = [value.nbytes for value in weights.values()]
    runs = group_by_size(sizes, shard_bytes or sum(sizes))
    names, placement = list(weights), {}
    for index, run in enumerate(runs):
        file = shard_name(index, len(runs))
        mx.save_safetensors(
            str(folder / file), {names[i]: weights[names[i]] for i in run}, {"format": "mlx"}
        )
        placement |= dict.fromkeys((names[i] for i in run), file)
    if len(runs) > 1:
        index_file = folder / "model.safetensors.index.json"
        index_file.write_text(json.dumps({"weight_map": placement}) + "\n", encoding="utf-8")


def whole_tokenizer(size: int) -> dict[str, Any]:
    """The tiny model's tokenizer, filled up to ``size`` tokens by ones that no text has.

    A divergence is measured over the tokens that the tokenizer knows.
    """
    tokenizer: dict[str, Any] = json.loads((tiny_model() / "tokenizer.json").read_text("utf-8"))
    vocabulary = tokenizer["model"]["vocab"]
    taken = {*vocabulary.values(), *(token["id"] for token in tokenizer["added_tokens"])}
    vocabulary.update({f"<filler {index}>": index for index in range(size) if index not in taken})
    return tokenizer


if __name__ == "__main__":
    main()
