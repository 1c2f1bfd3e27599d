"""Compare mlx-lm with transformers on the exported folder, in fp32 and in bf16.

Needs torch and mlx-lm in one environment:

    python compare_mlx.py --model MODEL --data DATA
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import torch
from codec import Codec, load_jsonl
from fake_quantise import fake_quantise
from mlx.utils import tree_map
from mlx_lm import load
from scoring import divergence
from transformers import AutoModelForCausalLM


def to_float32(array: mx.array) -> mx.array:
    """The array in float32 if it holds floating-point values, else as it is."""
    return array.astype(mx.float32) if mx.issubdtype(array.dtype, mx.floating) else array


def compare_logits(ids: list[int], wanted: torch.Tensor, model: Any) -> dict[str, Any]:
    """Distances between ``wanted`` (``[T, vocabulary]``) and the logits of an mlx-lm model."""
    logits = torch.from_numpy(np.array(model(mx.array(ids)[None])[0].astype(mx.float32)))
    return {
        "tokens": len(ids),
        "max_abs_difference": (logits - wanted).abs().max().item(),
        "max_abs_logit": wanted.abs().max().item(),
        **divergence(wanted.log_softmax(-1), logits.log_softmax(-1)),
    }


def compare_quantise(weight: torch.Tensor, bits: int) -> float:
    """Largest difference between ``fake_quantise`` and MLX's own quantise and dequantise."""
    stored = mx.array(weight.numpy()).astype(mx.bfloat16)
    packed = mx.quantize(stored, group_size=64, bits=bits)
    restored = mx.dequantize(*packed, group_size=64, bits=bits).astype(mx.float32)
    return float(np.abs(np.array(restored) - fake_quantise(weight, bits).numpy()).max())


@torch.no_grad()
def main() -> None:
    """Command line entry."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--documents", type=int, default=6)
    args = parser.parse_args()

    torch.set_num_threads(1)
    mx.set_default_device(mx.cpu)
    reference = AutoModelForCausalLM.from_pretrained(args.model, dtype=torch.float32).eval()
    model, _ = load(str(args.model))
    stored = model.parameters()
    codec = Codec(args.model)
    texts = [codec.text(d) for d in load_jsonl(args.data / "kld_eval.jsonl")[: args.documents]]
    for ids in (codec.tokenizer.encode(text).ids for text in texts):
        wanted = reference(torch.tensor([ids]), use_cache=False).logits[0]
        for label, weights in (("float32", tree_map(to_float32, stored)), ("bfloat16", stored)):
            model.update(weights)
            print(json.dumps({"weights": label, **compare_logits(ids, wanted, model)}), flush=True)
    weight = reference.model.layers[0].linear_attn.out_proj.weight
    for bits in (2, 3, 4, 5, 6, 8):
        print(json.dumps({"bits": bits, "max_abs_difference": compare_quantise(weight, bits)}))


if __name__ == "__main__":
    main()
