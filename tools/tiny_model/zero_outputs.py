"""What each mixer and MLP of a model does: mean KLD of zeroing its output projection.

    python zero_outputs.py --model MODEL --data DATA

Runs in mixbit's own environment.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import mlx.core as mx

import mixbit
from mixbit.kld import measure


def main() -> None:
    """Print a row for each layer."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--data", type=Path, required=True)
    args = parser.parse_args()

    mx.set_default_device(mx.cpu)
    reference, tokenizer = mixbit.load(args.model)
    model, _ = mixbit.load(args.model)
    print("| layer | mixer | its KLD | MLP's KLD |\n| --- | --- | ---: | ---: |")
    for index, layer in enumerate(model.language_model.model.layers):
        mixer = layer.linear_attn.out_proj if layer.is_linear else layer.self_attn.o_proj
        figures = []
        for projection in (mixer, layer.mlp.down_proj):
            own = projection.weight
            projection.weight = mx.zeros_like(own)
            result = measure(
                model, reference, args.data / "kld_eval.jsonl", tokenizer=tokenizer, window=None,
                score="all",
            )  # fmt: skip
            projection.weight = own
            figures.append(f"{result.summary()['mean']:.4f}")
        kind = "linear attention" if layer.is_linear else "full attention"
        print(f"| {index} | {kind} | {' | '.join(figures)} |", flush=True)


if __name__ == "__main__":
    main()
