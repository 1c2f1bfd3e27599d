"""``mixbit calibrate``: statistics of a model's inputs over text."""

from __future__ import annotations

import argparse
from typing import Any

from mixbit.cli.output import Output, add_json_option, named_progress_bar, plain_table
from mixbit.cli.protocol import DATA


def register(commands: Any) -> None:
    """Add the command."""
    parser = commands.add_parser(
        "calibrate",
        help="measure what a model's layers read, for quantize --calibration",
        description="Runs the model over text, one layer after the other, and keeps the mean "
        "square and mean absolute value of every channel that a linear layer reads, for each "
        "expert apart. If the run ends early the same command goes on from the layers that were "
        "finished, which lie in OUT.part until the end.",
    )
    parser.add_argument("--model", required=True, help="model folder or hub id")
    parser.add_argument(
        "--data",
        help=f"{DATA} (default: 430 documents that mixbit ships: chats, 15 languages, code, tool "
        "calls, structured output, maths and long texts; half a million characters)",
    )
    parser.add_argument("--out", required=True, metavar="FILE", help=".safetensors file to write")
    parser.add_argument("--num-samples", type=int, help="use only the first so many documents")
    parser.add_argument(
        "--window",
        type=int,
        default=2048,
        metavar="TOKENS",
        help="cut documents into windows of so many tokens (default: 2048)",
    )
    parser.add_argument(
        "--batch-size", type=int, default=1, help="windows of equal length run together at most"
    )
    parser.add_argument(
        "--hessian",
        nargs="?",
        const="",
        metavar="REGEX",
        help="keep the Hessian too, which gptq needs, of the modules whose path matches (default: "
        "all); 4 bytes times the square of the input's width each, of experts' down_proj one each",
    )
    add_json_option(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> None:
    """Calibrate, then print what was read."""
    output = Output(args.json)
    with output.captured(), named_progress_bar() as progress:
        from mixbit.calibration.run import calibrate
        from mixbit.data import calibration_data

        report = calibrate(
            args.model,
            args.data or calibration_data(),
            args.out,
            num_samples=args.num_samples,
            window=args.window,
            batch_size=args.batch_size,
            hessian=args.hessian,
            progress=progress,
        )
    result = report.to_json()
    rows = [
        ("written to", str(report.out)),
        ("bytes", f"{report.bytes:,}"),
        ("documents", f"{report.documents:,}"),
        ("tokens", f"{report.tokens:,}"),
        ("inputs measured", str(report.inputs)),
        ("experts without a token", str(report.idle_experts)),
        ("seconds", f"{report.seconds:.1f}"),
    ]
    output.show(plain_table(("calibrated", ""), rows, text_columns=2))
    output.write(result)
