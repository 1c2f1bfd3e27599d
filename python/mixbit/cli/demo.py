"""``mixbit demo``: the main job on the shipped tiny model."""

from __future__ import annotations

import argparse
import json
from typing import TYPE_CHECKING, Any

from mixbit.cli.output import Output, add_json_option, named_progress_bar, plain_table

if TYPE_CHECKING:
    from mixbit.demo import Answer, DemoResult, DemoRow


def register(commands: Any) -> None:
    """Add the command."""
    parser = commands.add_parser(
        "demo",
        help="quantise the shipped tiny model, run it and measure it, in under a minute",
        description="Quantises the shipped tiny model (bf16) uniformly and by a recipe, loads "
        "each checkpoint with mixbit and with stock mlx-lm, and measures size, exact KL "
        "divergence, tool calls and speed.",
    )
    parser.add_argument("--mlx-path", metavar="DIR", help="keep the checkpoints in this new folder")
    add_json_option(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> None:
    """Run, then print the table and the generated answer."""
    output = Output(args.json)
    with output.captured(), named_progress_bar() as progress:
        from mixbit import demo

        result = demo.run(args.mlx_path, progress=progress)
    output.show(_table(result), "", _notes(result), "", _answer(result.answer))
    if args.mlx_path is not None:
        output.show("", f"The checkpoints are in {args.mlx_path}.")
    output.write(result.to_json())


def _table(result: DemoResult) -> Any:
    header = ("plan", "bpw", "MB", "mean KLD", "99.9 %", "top-1", "calls", "tok/s", "stock")
    return plain_table(header, [_row(row) for row in result.rows])


def _row(row: DemoRow) -> tuple[str, ...]:
    return (
        row.name,
        f"{row.bpw:.2f}",
        f"{row.bytes / 1e6:.2f}",
        _nats(row.kld_mean),
        _nats(row.kld_p999),
        "-" if row.top1 is None else f"{100 * row.top1:.2f}",
        f"{row.tool_calls_right}/{row.tool_calls_total}",
        f"{row.tokens_per_second:.0f}",
        f"{row.stock_tokens_per_second:.0f}",
    )


def _nats(value: float | None) -> str:
    return "-" if value is None else f"{value:.5f}"


def _notes(result: DemoResult) -> str:
    prompts = result.rows[0].tool_calls_total
    # Each line fits 80 columns.
    return (
        f"KLD (nats) and top-1 agreement (%) with bf16 over {result.kld_tokens} tokens of "
        f"{result.kld_documents} texts.\n"
        f"calls: greedy answers exactly as expected, of {prompts} prompts.\n"
        f"tok/s: decoding {result.generated_tokens} tokens with mixbit and stock mlx-lm in turns; "
        f"median of {result.timed_runs}.\n"
        f"Measured in {result.seconds:.0f} s."
    )


def _answer(answer: Answer) -> str:
    verdict = "as expected" if answer.right else f"expected {json.dumps(answer.expected)}"
    return f"{answer.model} answers {answer.request!r} ({verdict}):\n{answer.text}"
