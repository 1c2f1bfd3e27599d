"""``mixbit plan``: what a plan says, and making one."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from mixbit.cli.output import Output, add_json_option, plain_table
from mixbit.cli.recipes import add_plan_options, chosen_plan


def register(commands: Any) -> None:
    """Add the command and its verbs."""
    parser = commands.add_parser("plan", help="show or make a plan: bits per tensor")
    verbs = parser.add_subparsers(title="verbs", metavar="VERB", required=True)

    show = verbs.add_parser("show", help="bits, bytes and bits per weight, class by class")
    show.add_argument(
        "plan", metavar="PLAN", help="plan.json, config.json, checkpoint folder or recipe@bits"
    )
    show.add_argument(
        "--model", metavar="DIR", help="the model that the plan is for, where the plan does not say"
    )
    add_json_option(show)
    show.set_defaults(run=run_show)

    make = verbs.add_parser("make", help="write the plan of a recipe for a model")
    make.add_argument(
        "--model", required=True, metavar="DIR_OR_CONFIG", help="folder or config.json"
    )
    add_plan_options(make, plan_file=False)
    make.add_argument("--out", required=True, metavar="FILE", help="plan.json to write")
    add_json_option(make)
    make.set_defaults(run=run_make)


def run_show(args: argparse.Namespace) -> None:
    """Read a plan and print it by class."""
    output = Output(args.json)
    with output.captured():
        from mixbit.plan import Plan

        result = Plan.load(args.plan, model=args.model).report()
    output.show(_table(result))
    output.write(result)


def run_make(args: argparse.Namespace) -> None:
    """Write a recipe's plan and print it by class."""
    output = Output(args.json)
    with output.captured():
        plan = chosen_plan(args, Path(args.model))
        result = plan.report()
        plan.save(Path(args.out))
    output.show(_table(result), f"written to {args.out}")
    output.write(result)


def _table(result: dict[str, Any]) -> Any:
    total = {
        "class": "total",
        "modules": len(result["modules"]),
        "params": result["params"],
        "bytes": result["bytes"],
        "bpw": result["bpw"],
    }
    return plain_table(
        ("class", "modules", "weights", "bits", "bytes", "bpw"),
        [_row(row) for row in (*result["classes"], total)],
    )


def _row(row: dict[str, Any]) -> tuple[str, ...]:
    bits = row.get("bits", "")
    return (
        row["class"],
        str(row["modules"]),
        f"{row['params']:,}",
        "16" if bits is None else str(bits),
        f"{row['bytes']:,}",
        f"{row['bpw']:.3f}",
    )
