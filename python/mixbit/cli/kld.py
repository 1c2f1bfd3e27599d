"""``mixbit kld``: exact KL divergence."""

from __future__ import annotations

import argparse
from typing import Any

from mixbit.cli.output import Output, add_json_option, plain_table, progress_bar


def register(commands: Any) -> None:
    """Add the command and its verbs."""
    parser = commands.add_parser("kld", help="measure exact KL divergence against a reference")
    verbs = parser.add_subparsers(title="verbs", metavar="VERB", required=True)
    measure = verbs.add_parser(
        "measure",
        help="one candidate against its reference over held-out text",
        description="Exact KL(reference || candidate) in nats over the full vocabulary: fp32 "
        "logits, fp64 sums, tokens of one document clustered in the standard error.",
    )
    measure.add_argument("candidate", metavar="CANDIDATE", help="model folder or hub id")
    measure.add_argument("--reference", required=True, help="model folder or hub id")
    measure.add_argument(
        "--data", required=True, help='JSONL file of {"messages": [...]} or {"text": ...} lines'
    )
    measure.add_argument("--num-samples", type=int, help="use only the first so many documents")
    measure.add_argument(
        "--batch-size", type=int, default=8, help="documents run together (default: 8)"
    )
    add_json_option(measure)
    measure.set_defaults(run=run_measure)


def run_measure(args: argparse.Namespace) -> None:
    """Measure, then print the summary."""
    output = Output(args.json)
    with output.captured(), progress_bar("tokens") as progress:
        from mixbit.kld import measure

        result = measure(
            args.candidate,
            args.reference,
            args.data,
            num_samples=args.num_samples,
            batch_size=args.batch_size,
            progress=progress,
        )
    summary = result.summary()
    output.show(_table(summary))
    output.write(
        {**summary, "candidate": args.candidate, "reference": args.reference, "data": args.data}
    )


def _table(summary: dict[str, Any]) -> Any:
    def number(key: str, form: str) -> str:
        value = summary[key]
        return "-" if value is None else format(value, form)

    rows = [
        ("tokens", f"{summary['tokens']} in {summary['documents']} documents"),
        ("mean KLD, nats", number("mean", ".6g")),
        ("standard error", number("se", ".2g")),
        ("median", number("p50", ".6g")),
        ("90 %", number("p90", ".6g")),
        ("95 %", number("p95", ".6g")),
        ("99 %", number("p99", ".6g")),
        ("99.9 %", number("p999", ".6g")),
        ("max", number("max", ".6g")),
        ("min", number("min", ".6g")),
        ("top-1 agreement", number("top1", ".3%")),
        ("perplexity, reference", number("ppl_reference", ".6g")),
        ("perplexity, candidate", number("ppl_candidate", ".6g")),
        ("tokens without a finite KLD", str(summary["nonfinite"])),
    ]
    return plain_table(("KL(reference || candidate)", ""), rows, text_columns=2)
