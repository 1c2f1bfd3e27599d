"""``mixbit quantize``: a plan and a model become an mlx-lm checkpoint."""

from __future__ import annotations

import argparse
from typing import Any

from mixbit.cli.output import Output, add_json_option, named_progress_bar, plain_table
from mixbit.cli.recipes import add_method_option, add_plan_options, chosen_plan


def register(commands: Any) -> None:
    """Add the command."""
    parser = commands.add_parser(
        "quantize",
        help="quantise a model by a plan or a recipe",
        description="Writes a checkpoint that mixbit and stock mlx-lm both load. "
        "Refuses an output folder that exists. A run that was interrupted goes on "
        "from the last layer that was finished, given again alike.",
    )
    parser.add_argument("--model", required=True, help="unquantised model folder or hub id")
    parser.add_argument("--mlx-path", required=True, metavar="OUT", help="folder to write")
    add_plan_options(parser, plan_file=True)
    add_method_option(parser)
    parser.add_argument(
        "--calibration",
        metavar="FILE",
        help="what mixbit calibrate made of the model, or an imatrix (.gguf or .dat)",
    )
    add_json_option(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> None:
    """Quantise, then print what was written."""
    output = Output(args.json)
    with output.captured(), named_progress_bar() as progress:
        from pathlib import Path

        from mixbit.integration import resolve
        from mixbit.plan import with_methods
        from mixbit.quantization import quantize

        source = resolve(args.model)
        of_all = [text for text in args.method if "=" not in text]
        of_some = [text for text in args.method if "=" in text]
        report = quantize(
            source,
            Path(args.mlx_path),
            plan=with_methods(chosen_plan(args, source), of_some),
            method=of_all[-1] if of_all else None,
            calibration=args.calibration,
            progress=progress,
        )
    result = report.to_json()
    output.show(_table(result), *(f"note: {note}" for note in result["notes"]))
    output.write(result)


def _table(result: dict[str, Any]) -> Any:
    rows = [
        ("written to", str(result["out_dir"])),
        ("bits per weight", f"{result['bpw']:.3f}"),
        ("bytes", f"{result['bytes']:,}"),
        ("seconds", f"{result['seconds']:.1f}"),
        ("method", _methods(result["methods"])),
        ("tensors scaled by awq", str(result["changed"])),
        ("modules by a simpler method", str(len(result["fallbacks"]))),
        ("modules left dense", str(len(result["dense"]))),
        ("tensors carried", str(len(result["carried"]))),
        ("tensors dropped", str(len(result["dropped"]))),
    ]
    return plain_table(("quantised", ""), rows, text_columns=2)


def _methods(modules: dict[str, int]) -> str:
    """The method, or each with the number of its modules."""
    if len(modules) < 2:
        return next(iter(modules), "none")
    return ", ".join(f"{method} ({count} modules)" for method, count in modules.items())
