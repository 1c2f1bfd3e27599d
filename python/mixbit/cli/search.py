"""``mixbit sensitivity`` and ``mixbit search``: what each part minds, and the best plan."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mixbit.cli.output import Output, add_json_option, named_progress_bar, plain_table
from mixbit.cli.protocol import DATA, add_protocol_options
from mixbit.errors import MixbitError

if TYPE_CHECKING:
    from mixbit.search.swap import Packing

_GRAINS = ("tensor", "layer-class", "class")
_SHOWN = 20


def register(commands: Any) -> None:
    """Add both commands."""
    _register_sensitivity(commands)
    _register_search(commands)


def _register_sensitivity(commands: Any) -> None:
    parser = commands.add_parser(
        "sensitivity",
        help="measure what each part of a model minds fewer bits",
        description="Exact KL(model || model with one part packed) in nats, for every part and "
        "width. Parts of a later layer begin from what the earlier ones gave. If the run ends "
        "early the same command goes on from there.",
    )
    parser.add_argument("--model", required=True, help="unquantised model folder or hub id")
    parser.add_argument("--data", required=True, help=f"{DATA}; not what plans are judged by later")
    parser.add_argument("--out", required=True, metavar="DIR", help="folder to make")
    parser.add_argument(
        "--by",
        choices=_GRAINS,
        default="tensor",
        help="what is packed at a time: a tensor, those of a layer that recipes give equal bits, "
        "or a class over all layers (default: tensor)",
    )
    parser.add_argument(
        "--widths",
        type=int,
        nargs="+",
        default=[2, 3, 4, 5, 6, 8],
        metavar="BITS",
        help="bits to try (default: 2 3 4 5 6 8)",
    )
    parser.add_argument(
        "--q-group-size",
        type=int,
        nargs="+",
        default=[64],
        metavar="SIZE",
        help="group sizes to try (default: 64)",
    )
    parser.add_argument(
        "--settle",
        type=float,
        default=0.99,
        metavar="R",
        help="stop when documents drawn anew would give the same order but for a rank correlation "
        "of R; above 1 takes all documents (default: 0.99)",
    )
    parser.add_argument(
        "--round-documents",
        type=int,
        default=8,
        metavar="N",
        help="documents of the first round; each further one doubles them (default: 8)",
    )
    _add_protocol(parser)
    add_json_option(parser)
    parser.set_defaults(run=run_sensitivity)


def _register_search(commands: Any) -> None:
    parser = commands.add_parser(
        "search",
        help="find the best plan under a budget",
        description="The least sum of measured sensitivities under each budget, refined by "
        "measuring whole plans and pairs of parts. Writes plan-N.json for each budget, search.json "
        "and report.html. If the run ends early the same command goes on from there.",
    )
    parser.add_argument("--model", required=True, help="unquantised model folder or hub id")
    parser.add_argument(
        "--sensitivity", required=True, metavar="DIR", help="what mixbit sensitivity made"
    )
    parser.add_argument("--data", required=True, help=f"{DATA}, to measure whole plans over")
    parser.add_argument("--out", required=True, metavar="DIR", help="folder to make")
    parser.add_argument(
        "--bpw",
        type=float,
        nargs="+",
        default=[],
        metavar="N",
        help="budgets in bits per weight, all parameters and scales included",
    )
    parser.add_argument(
        "--bytes", type=int, nargs="+", default=[], metavar="N", help="budgets in bytes"
    )
    parser.add_argument(
        "--against",
        nargs="+",
        default=[],
        metavar="PLAN",
        help="plans or recipe@bits to do better than; without another budget their sizes are the "
        "budgets",
    )
    parser.add_argument(
        "--tie",
        choices=_GRAINS,
        help="what gets equal bits, at least as coarse as the sensitivities (default: as they are)",
    )
    parser.add_argument(
        "--floor",
        action="append",
        default=[],
        metavar="PATTERN=BITS",
        help="least bits of the modules that a regular expression finds (routers: 8)",
    )
    parser.add_argument(
        "--candidates",
        type=int,
        default=6,
        metavar="N",
        help="whole plans to measure for each budget (default: 6)",
    )
    parser.add_argument(
        "--pairs",
        type=int,
        default=6,
        metavar="N",
        help="parts to measure two by two for each budget, those that cost most (default: 6)",
    )
    _add_protocol(parser)
    add_json_option(parser)
    parser.set_defaults(run=run_search)


def _add_protocol(parser: argparse.ArgumentParser) -> None:
    add_protocol_options(parser)
    parser.add_argument(
        "--method",
        default="rtn",
        help="how weights are packed, as for mixbit quantize: rtn, search, gptq or gptq+search "
        "(default: rtn)",
    )
    parser.add_argument(
        "--calibration",
        metavar="FILE",
        help="what mixbit calibrate or llama.cpp's imatrix measured, for the method",
    )


def run_sensitivity(args: argparse.Namespace) -> None:
    """Measure, then print the table by class and the most sensitive parts."""
    output = Output(args.json)
    with output.captured(), named_progress_bar() as progress:
        from mixbit.search import sensitivity

        table = sensitivity(
            args.model,
            args.data,
            args.out,
            by=args.by,
            widths=args.widths,
            group_sizes=args.q_group_size,
            num_samples=args.num_samples,
            window=args.window or None,
            score=args.score,
            batch_size=args.batch_size,
            settle=args.settle,
            round_documents=args.round_documents,
            packing=packing(args),
            progress=progress,
        )
    if not _speaks():
        return
    from mixbit.search import tables

    header, rows = tables.by_cell(table)
    proxies = ", ".join(f"{name} {value:.3f}" for name, value in table.correlations().items())
    output.show(
        plain_table(*tables.by_class(table)),
        "",
        plain_table(*tables.by_context(table)),
        "",
        plain_table(header, rows[:_SHOWN]),
        "",
        f"{len(rows)} measurements over {table.tokens} tokens of {table.documents} documents in "
        f"{table.seconds:.0f} seconds; the order is settled to {table.settled:.4f}.",
        f"Prefix sharing saved {table.saved:.2f} times the forward work.",
        f"Rank correlation of the proxies with the KLD: {proxies}.",
        f"Written to {Path(args.out) / 'sensitivity.json'}.",
    )
    output.write(table.to_json())


def run_search(args: argparse.Namespace) -> None:
    """Search, then print what was given and what was found."""
    output = Output(args.json)
    if not (args.bpw or args.bytes or args.against):
        raise MixbitError("A search needs a budget: give --bpw, --bytes or --against.")
    with output.captured(), named_progress_bar() as progress:
        from mixbit.search import search
        from mixbit.search.choices import ROUTER_FLOOR

        result = search(
            args.model,
            args.sensitivity,
            args.data,
            args.out,
            bpw=args.bpw,
            nbytes=args.bytes,
            against=args.against,
            tie=args.tie,
            floors={**ROUTER_FLOOR, **dict(map(_floor, args.floor))},
            candidates=args.candidates,
            pairs=args.pairs,
            packing=packing(args),
            num_samples=args.num_samples,
            window=args.window or None,
            score=args.score,
            batch_size=args.batch_size,
            progress=lambda done, name: progress(done, done, name),
        )
    if not _speaks():
        return
    from mixbit.search import tables

    first = Path(args.out) / next(iter(result.files))
    given = "" if args.calibration is None else f" --calibration {args.calibration}"
    output.show(
        plain_table(*tables.plans(result)),
        "",
        f"{result.measured} measurements over {result.tokens} tokens of {result.documents} "
        f"documents in {result.seconds:.0f} seconds.",
        f"Written to {args.out}: {', '.join(result.files)}, search.json, report.html.",
        f"Next: mixbit quantize --model {args.model} --plan {first}{given} --mlx-path NEW",
    )
    output.write(result.to_json())


def packing(args: argparse.Namespace) -> Packing:
    """What the options say of how weights are packed."""
    from mixbit.calibration import Calibration
    from mixbit.checkpoint import read_config
    from mixbit.integration import resolve
    from mixbit.quantization.methods import Choice
    from mixbit.search.swap import Packing

    calibration = None
    if args.calibration is not None:
        calibration = Calibration.load(args.calibration, read_config(resolve(args.model)))
    return Packing(Choice.of(args.method), calibration)


def _floor(text: str) -> tuple[str, int]:
    pattern, _, bits = text.rpartition("=")
    if not pattern or not bits.isdigit():
        raise MixbitError(f"--floor {text!r} is not PATTERN=BITS.")
    return pattern, int(bits)


def _speaks() -> bool:
    """Whether this process is the one of its ranks that tells the results."""
    from mixbit.kld.ranks import ranks

    return ranks().index == 0
