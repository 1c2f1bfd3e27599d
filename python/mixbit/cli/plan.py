"""``mixbit plan``: what a plan says, making and converting one, and auditing a checkpoint."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mixbit.cli.output import Output, add_json_option, plain_table
from mixbit.cli.recipes import add_method_option, add_plan_options, chosen_plan
from mixbit.errors import MixbitError

if TYPE_CHECKING:
    from mixbit.plan import Plan

_SOURCE = "plan in any format: a file, a checkpoint folder, or recipe@bits"
_FORMATS = ("plan", "mlx", "tensor-types", "overrides")


def register(commands: Any) -> None:
    """Add the command and its verbs."""
    parser = commands.add_parser(
        "plan", help="show, make, convert or check a plan: bits per tensor"
    )
    verbs = parser.add_subparsers(title="verbs", metavar="VERB", required=True)

    show = verbs.add_parser("show", help="bits, bytes and bits per weight, class by class")
    show.add_argument("plan", metavar="PLAN", help=_SOURCE)
    _add_reading_options(show)
    show.add_argument("--image", metavar="FILE", help="draw layers by classes as PNG, SVG or PDF")
    add_json_option(show)
    show.set_defaults(run=run_show)

    make = verbs.add_parser("make", help="write the plan of a recipe for a model")
    make.add_argument(
        "--model", required=True, metavar="DIR_OR_CONFIG", help="folder or config.json"
    )
    add_plan_options(make, plan_file=True)
    make.add_argument(
        "--override",
        action="append",
        default=[],
        metavar="PATTERN=VALUE",
        help="change the modules that a regular expression finds, the first match counts; VALUE is "
        "bits, bits/group, a mode such as mxfp4, or bfloat16 for not quantised",
    )
    add_method_option(make)
    make.add_argument("--out", required=True, metavar="FILE", help="plan.json to write")
    add_json_option(make)
    make.set_defaults(run=run_make)

    convert = verbs.add_parser("convert", help="write a plan in another format")
    convert.add_argument("plan", metavar="PLAN", help=_SOURCE)
    _add_reading_options(convert)
    convert.add_argument("--to", required=True, choices=_FORMATS, help="format to write")
    convert.add_argument("--out", required=True, metavar="FILE", help="file to write")
    convert.add_argument(
        "--nearest", action="store_true", help="write the nearest where the format has no word"
    )
    add_json_option(convert)
    convert.set_defaults(run=run_convert)

    check = verbs.add_parser("check", help="audit a packed checkpoint, alone or against a plan")
    check.add_argument("checkpoint", metavar="CHECKPOINT", help="folder of a packed model")
    check.add_argument("--plan", metavar="PLAN", help=_SOURCE)
    check.add_argument(
        "--min-sensitive-bits",
        type=int,
        default=5,
        metavar="N",
        help="warn of sensitive projections with fewer bits (default: 5)",
    )
    add_json_option(check)
    check.set_defaults(run=run_check)

    diff = verbs.add_parser("diff", help="what differs between two plans or checkpoints")
    diff.add_argument("first", metavar="PLAN", help=_SOURCE)
    diff.add_argument("second", metavar="PLAN", help="the other")
    _add_reading_options(diff)
    add_json_option(diff)
    diff.set_defaults(run=run_diff)


def run_show(args: argparse.Namespace) -> None:
    """Read a plan and print it by class and by layer."""
    output = Output(args.json)
    with output.captured():
        from mixbit.plan import draw

        plan = _read(args, args.plan)
        result = plan.report()
        if args.image is not None:
            draw(plan, args.image)
    story = [*_one_method(result), *_story(result["provenance"])]
    output.show(_class_table(result), "", _layer_table(result), "", *story)
    output.write(result)


def run_make(args: argparse.Namespace) -> None:
    """Write a recipe's plan, with overrides and methods, and print it by class."""
    output = Output(args.json)
    with output.captured():
        from mixbit.plan import override, with_methods

        plan = chosen_plan(args, Path(args.model))
        if args.override:
            plan = override(plan, args.override)
        plan = with_methods(plan, args.method)
        result = plan.report()
        plan.save(Path(args.out))
    output.show(_class_table(result), *_one_method(result), f"written to {args.out}")
    output.write(result)


def run_convert(args: argparse.Namespace) -> None:
    """Write a plan in another format."""
    output = Output(args.json)
    with output.captured():
        from mixbit.plan import write

        plan = _read(args, args.plan)
        remarks = write(plan, args.out, args.to, nearest=args.nearest)
    told = [*plan.provenance.get("notes", []), *remarks]
    output.show(*(f"note: {remark}" for remark in told), f"written to {args.out}")
    output.write(
        {"schema": "mixbit.plan-convert/1", "format": args.to, "out": args.out, "notes": told}
    )


def run_check(args: argparse.Namespace) -> None:
    """Audit a checkpoint; errors among the findings make the command fail."""
    output = Output(args.json)
    with output.captured():
        from mixbit.checkpoint import describe
        from mixbit.plan import Plan, audit

        plan = None if args.plan is None else Plan.load(args.plan, model=describe(args.checkpoint))
        found = audit(args.checkpoint, plan, min_sensitive_bits=args.min_sensitive_bits)
    rows = [(finding.level, finding.kind, finding.text) for finding in found.findings]
    output.show(
        *([plain_table(("level", "about", "finding"), rows, text_columns=3)] if rows else []),
        f"{found.packed} modules packed, {found.bytes:,} bytes on disk, "
        f"{found.predicted_bytes:,} predicted",
    )
    output.write(found.to_json())
    if found.errors:
        raise MixbitError(
            f"{args.checkpoint} is not what it should be: {found.errors} "
            f"{'error' if found.errors == 1 else 'errors'}, the first: {_first(found.findings)}"
        )


def run_diff(args: argparse.Namespace) -> None:
    """Print the modules to which two plans give different values."""
    output = Output(args.json)
    with output.captured():
        from mixbit.plan import diff

        first = _read(args, args.first)
        result = diff(first, _read(args, args.second, first))
    rows = [
        (
            row["path"],
            _values(row["first"]),
            _values(row["second"]),
            "" if row["bytes"] is None else f"{row['bytes']:+,}",
        )
        for row in result["modules"]
    ]
    header = ("module", result["first"], result["second"], "bytes")
    total = "" if result["bytes"] is None else f", {result['bytes']:+,} bytes"
    methods = [method or "none" for method in result["method"].values()]
    output.show(
        *([plain_table(header, rows)] if rows else []),
        *([f"methods: {' and '.join(methods)}"] if methods[0] != methods[1] else []),
        f"{len(rows)} modules differ{total}",
    )
    output.write(result)


def _add_reading_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--model", metavar="DIR", help="the model that the plan is for, where the plan does not say"
    )
    parser.add_argument(
        "--on-conflict",
        choices=("refuse", "highest"),
        default="refuse",
        help="what to do where entries for one module differ (default: refuse)",
    )
    parser.add_argument(
        "--target-bpw",
        type=float,
        metavar="BPW",
        help="size of the plan that is made from a ranking of modules",
    )


def _read(args: argparse.Namespace, source: str, like: Plan | None = None) -> Plan:
    """Read a plan, for the model of ``like`` where neither the options nor the plan name one."""
    from mixbit.plan import Plan

    model = args.model
    if model is None and like is not None:
        model = like.structure
    return Plan.load(source, model=model, on_conflict=args.on_conflict, target_bpw=args.target_bpw)


def _class_table(result: Mapping[str, Any]) -> Any:
    total = {
        "class": "total",
        "modules": len(result["modules"]),
        "params": result["params"],
        "bytes": result["bytes"],
        "bpw": result["bpw"],
    }
    rows = [*result["classes"], total]
    last = ("method",) if len(_methods(result)) > 1 else ()
    return plain_table(
        ("class", "modules", "weights", "bits", "group", "mode", "bytes", "bpw", *last),
        [(*_class_row(row), *(row.get(key) or "" for key in last)) for row in rows],
    )


def _methods(result: Mapping[str, Any]) -> set[str | None]:
    """What a plan's packed modules are packed by, None for what the plan leaves open."""
    return {row["method"] for row in result["classes"] if row["bits"] is not None}


def _one_method(result: Mapping[str, Any]) -> list[str]:
    """A line on the method where it is the same for all."""
    methods = _methods(result)
    return [f"method: {method}" for method in methods if method and len(methods) == 1]


def _class_row(row: Mapping[str, Any]) -> tuple[str, ...]:
    bits = row.get("bits", "")
    return (
        row["class"],
        str(row["modules"]),
        f"{row['params']:,}",
        "16" if bits is None else str(bits),
        str(row.get("group_size") or ""),
        row.get("mode") or "",
        f"{row['bytes']:,}",
        f"{row['bpw']:.3f}",
    )


def _layer_table(result: Mapping[str, Any]) -> Any:
    rows = [
        (
            "outside" if row["layer"] is None else str(row["layer"]),
            str(row["modules"]),
            f"{row['params']:,}",
            f"{row['bytes']:,}",
            f"{row['bpw']:.3f}",
        )
        for row in result["layers"]
    ]
    return plain_table(("layer", "modules", "weights", "bytes", "bpw"), rows)


def _story(provenance: Mapping[str, Any]) -> list[str]:
    """Lines on where a plan comes from: one a key, and one for each remark of a list."""
    return [
        f"{key}: {item}"
        for key, value in provenance.items()
        for item in (value if isinstance(value, list) else [value])
    ]


def _values(spec: Mapping[str, Any] | None) -> str:
    if spec is None:
        return "16"
    return f"{spec['mode']} {spec['bits']}/{spec['group_size']} {spec.get('method') or ''}".rstrip()


def _first(findings: tuple[Any, ...]) -> str:
    text: str = findings[0].text
    return text if text.endswith(".") else f"{text}."
