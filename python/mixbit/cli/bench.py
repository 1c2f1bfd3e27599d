"""``mixbit bench``: tokens per second against stock mlx-lm."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from mixbit.cli.options import add_activation_bits_option
from mixbit.cli.output import Output, add_json_option, plain_table, progress_bar

if TYPE_CHECKING:
    from mixbit.bench import BenchResult


def register(commands: Any) -> None:
    """Add the command."""
    parser = commands.add_parser(
        "bench",
        help="tokens per second of mixbit and of stock mlx-lm in one run",
        description="Loads the model twice, with mixbit and with stock mlx-lm, and times both "
        "alternately on the same random prompt. Medians over the trials.",
    )
    parser.add_argument("--model", help="model folder or hub id (default: the shipped tiny model)")
    parser.add_argument(
        "--prompt-tokens", "-p", type=int, default=128, help="prompt length (default: 128)"
    )
    parser.add_argument(
        "--generation-tokens", "-g", type=int, default=32, help="tokens to generate (default: 32)"
    )
    parser.add_argument(
        "--num-trials", "-n", type=int, default=3, help="timed runs of each (default: 3)"
    )
    parser.add_argument(
        "--prefill-step-size",
        type=int,
        default=2048,
        help="prompt tokens at a time (default: 2048)",
    )
    parser.add_argument(
        "--stock-float32",
        action="store_true",
        help="stock mlx-lm computes in float32, which on a CPU is faster for packed weights",
    )
    add_activation_bits_option(parser)
    parser.add_argument("--trust-remote-code", action="store_true", help="as in mlx-lm")
    add_json_option(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> None:
    """Measure, then print the medians."""
    output = Output(args.json)
    with output.captured(), progress_bar("timed runs") as progress:
        from mixbit.bench import compare
        from mixbit.data import tiny_model

        result = compare(
            args.model or tiny_model(),
            prompt_tokens=args.prompt_tokens,
            generation_tokens=args.generation_tokens,
            num_trials=args.num_trials,
            prefill_step_size=args.prefill_step_size,
            stock_float32=args.stock_float32,
            activation_bits=args.activation_bits,
            trust_remote_code=args.trust_remote_code,
            progress=progress,
        )
    output.show(_table(result))
    output.write(result.to_json())


def _table(result: BenchResult) -> Any:
    phases = (
        (f"prefill, {result.prompt_tokens} tokens", result.mixbit.prefill, result.stock.prefill),
        (f"decode, {result.generation_tokens} tokens", result.mixbit.decode, result.stock.decode),
    )
    stock = "stock mlx-lm" + (f", {result.stock_dtype}" if result.stock_dtype else "")
    ours = "mixbit" + (", 8-bit activations" if result.activation_bits == 8 else "")
    return plain_table(
        ("tokens/s", ours, stock, "ratio"),
        [(name, f"{fast:.1f}", f"{slow:.1f}", f"{fast / slow:.1f}") for name, fast, slow in phases],
    )
