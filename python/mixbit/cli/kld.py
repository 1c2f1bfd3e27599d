"""``mixbit kld``: exact KL divergence."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mixbit.cli.output import Output, add_json_option, plain_table, progress_bar
from mixbit.cli.protocol import DATA, add_protocol_options
from mixbit.errors import MixbitError

if TYPE_CHECKING:
    from mixbit.kld import KLDResult
    from mixbit.kld.compare import Candidate


def register(commands: Any) -> None:
    """Add the command and its verbs."""
    parser = commands.add_parser("kld", help="measure exact KL divergence against a reference")
    verbs = parser.add_subparsers(title="verbs", metavar="VERB", required=True)
    _register_reference(verbs)
    _register_measure(verbs)
    _register_compare(verbs)


def _register_reference(verbs: Any) -> None:
    parser = verbs.add_parser(
        "reference",
        help="run the reference model once and keep what makes its logits",
        description="Keeps the reference's last hidden states (2 bytes times the hidden size for "
        "each scored token, for a 16-bit model) and its output head, from which its logits come "
        "exactly. If the run ends early the same command goes on from there.",
    )
    parser.add_argument("model", metavar="MODEL", help="model folder or hub id")
    parser.add_argument("--data", required=True, help=DATA)
    parser.add_argument("--out", required=True, metavar="DIR", help="folder to make")
    _add_protocol(parser)
    add_json_option(parser)
    parser.set_defaults(run=run_reference)


def _register_measure(verbs: Any) -> None:
    parser = verbs.add_parser(
        "measure",
        help="one candidate against its reference over held-out text",
        description="Exact KL(reference || candidate) in nats over the full vocabulary: logits "
        "from fp32 sums, everything after them in fp64, tokens of one document clustered in the "
        "standard error.",
    )
    parser.add_argument("candidate", metavar="CANDIDATE", help="model folder or hub id")
    _add_measuring(parser, reference_required=True)
    add_json_option(parser)
    parser.set_defaults(run=run_measure)


def _register_compare(verbs: Any) -> None:
    parser = verbs.add_parser(
        "compare",
        help="several candidates: paired differences, Pareto front of size and KLD",
        description="One table of all candidates, and for each pair the difference of mean KLD "
        "with a 95 % interval from a bootstrap over documents (the same tokens for both).",
    )
    parser.add_argument(
        "candidates",
        metavar="CANDIDATE",
        nargs="+",
        help="model folder or hub id, or a folder that kld measure --out made",
    )
    _add_measuring(parser, reference_required=False)
    add_json_option(parser)
    parser.set_defaults(run=run_compare)


def _add_measuring(parser: argparse.ArgumentParser, *, reference_required: bool) -> None:
    parser.add_argument(
        "--reference",
        required=reference_required,
        help="folder of a reference cache, model folder or hub id",
    )
    parser.add_argument("--data", help=f"{DATA}; not with a reference cache, which has its own")
    parser.add_argument(
        "--out",
        metavar="DIR",
        help="keep the results there, with report.html, report.md and report.json; if the run ends "
        "early the same command goes on from there",
    )
    parser.add_argument("--memory", type=float, metavar="GB", help="memory that the run may take")
    _add_protocol(parser)


def _add_protocol(parser: argparse.ArgumentParser) -> None:
    add_protocol_options(parser)
    parser.add_argument(
        "--llama-cpp",
        action="store_true",
        help="full windows only, and llama.cpp's numbers, storage in 16 bits included",
    )


def run_reference(args: argparse.Namespace) -> None:
    """Make a cache, telling first what it will take."""
    output = Output(args.json)
    with output.captured(), progress_bar("tokens") as progress:
        from mixbit.kld import make_reference

        def announce(nbytes: int, folder: Path) -> None:
            if _speaks():
                output.show(f"{folder} will take {nbytes / 1e6:,.1f} MB.")

        cache = make_reference(
            args.model,
            args.data,
            args.out,
            num_samples=args.num_samples,
            window=_window(args),
            score=args.score,
            full_windows=args.llama_cpp,
            batch_size=args.batch_size,
            announce=announce,
            progress=progress,
        )
    if not _speaks():
        return
    stream = cache.manifest["stream"]
    nbytes = sum(entry["bytes"] for entry in cache.manifest["files"].values())
    output.show(f"{args.out}: {stream['scored']} scored tokens of {stream['documents']} documents.")
    output.write({**cache.manifest, "bytes": nbytes, "out": args.out})


def run_measure(args: argparse.Namespace) -> None:
    """Measure, then print the summary."""
    output = Output(args.json)
    folder = _out(args)
    with output.captured(), progress_bar("tokens") as progress:
        result = _measure(args, args.candidate, folder, progress)
    if not _speaks():
        return
    summary = result.summary()
    if args.llama_cpp:
        from mixbit.kld.llama_cpp import llama_cpp_summary

        summary["llama_cpp"] = llama_cpp_summary(result)
    output.show(_table(summary), *_kinds(result), *_llama_cpp(summary))
    if folder is not None:
        with output.captured():
            _write_report([_candidate(args.candidate, result)], folder)
        output.show("", f"The report is {folder / 'report.html'}.")
    output.write(
        {**summary, "candidate": args.candidate, "reference": args.reference, "data": args.data}
    )


def run_compare(args: argparse.Namespace) -> None:
    """Measure what is not measured yet, then print the tables."""
    output = Output(args.json)
    folder = _out(args)
    with output.captured():
        from mixbit.kld.compare import compare

        candidates = [
            found
            for index, name in enumerate(args.candidates)
            for found in _candidates(args, name, folder, index)
        ]
        comparison = compare(candidates)
    if not _speaks():
        return
    output.show(_comparison(comparison), "", _pairs(comparison))
    if folder is not None:
        with output.captured():
            _write_report(candidates, folder)
        output.show("", f"The report is {folder / 'report.html'}.")
    output.write({**comparison, "reference": args.reference, "data": args.data})


def _measure(
    args: argparse.Namespace, candidate: str, folder: Path | None, progress: Any
) -> KLDResult:
    from mixbit.kld import measure
    from mixbit.kld.cache import is_cache

    if args.reference is None:
        raise MixbitError(
            f"{candidate} holds no results yet; name what to hold it against by --reference."
        )
    cached = is_cache(args.reference)
    if not cached and args.data is None:
        raise MixbitError(
            f"{args.reference} is no reference cache; name what to run it over by --data."
        )
    return measure(
        candidate,
        args.reference,
        args.data,
        num_samples=args.num_samples,
        window=_window(args),
        score=args.score,
        batch_size=args.batch_size,
        memory=args.memory,
        llama_cpp=args.llama_cpp,
        keep=None if folder is None else folder / "scores",
        progress=progress,
    )


def _candidates(
    args: argparse.Namespace, name: str, folder: Path | None, index: int
) -> list[Candidate]:
    """What a name on the command line stands for: results, or a model to be measured."""
    from mixbit.kld.compare import Candidate
    from mixbit.kld.saved import is_saved, load_saved

    if is_saved(Path(name) / "scores"):
        saved = load_saved(Path(name) / "scores")
        return [Candidate(entry.name, entry.nbytes, entry.result, entry.folder) for entry in saved]
    own = None if folder is None else _made(folder / f"candidate-{index}")
    with progress_bar(name) as progress:
        return [_candidate(name, _measure(args, name, own, progress))]


def _candidate(name: str, result: KLDResult) -> Candidate:
    from mixbit.integration import resolve
    from mixbit.kld.compare import Candidate
    from mixbit.kld.saved import model_bytes

    folder = resolve(name)
    return Candidate(folder.resolve().name, model_bytes(folder), result, folder)


def _write_report(candidates: list[Candidate], folder: Path) -> None:
    from mixbit.kld.report import write_report

    write_report(candidates, folder)


def _speaks() -> bool:
    """Whether this process is the one of its ranks that tells the results."""
    from mixbit.kld.ranks import ranks

    return ranks().index == 0


def _out(args: argparse.Namespace) -> Path | None:
    return None if args.out is None else _made(Path(args.out))


def _made(folder: Path) -> Path:
    try:
        folder.mkdir(parents=False, exist_ok=True)
    except OSError as error:
        raise MixbitError(f"{folder} cannot be made: {error.strerror}.") from None
    return folder


def _window(args: argparse.Namespace) -> int | None:
    return args.window or None


def _table(summary: dict[str, Any]) -> Any:
    from mixbit.kld.tables import summary_rows

    tokens = ("tokens", f"{summary['tokens']} in {summary['documents']} documents")
    rows = [tokens, *summary_rows([summary])]
    return plain_table(("KL(reference ‖ candidate)", ""), rows, text_columns=2)


def _kinds(result: KLDResult) -> list[Any]:
    """Figures of each kind of data, where there are several."""
    from mixbit.kld.tables import by_kind, number

    found = by_kind(result)
    if len(found) < 2:
        return []
    rows = [
        (
            row["name"],
            str(row["tokens"]),
            number(row["mean"], ".6g"),
            number(row["se"], ".2g"),
            number(row["p99"], ".6g"),
            number(row["top1"], ".3%"),
        )
        for row in found
    ]
    return ["", plain_table(("kind", "tokens", "mean KLD", "error", "99 %", "top-1"), rows)]


def _llama_cpp(summary: dict[str, Any]) -> list[Any]:
    from mixbit.kld.tables import number

    if "llama_cpp" not in summary:
        return []
    rows = [(key, number(value, ".6g")) for key, value in summary["llama_cpp"].items()]
    return ["", plain_table(("llama.cpp's figures", ""), rows, text_columns=2)]


def _comparison(comparison: dict[str, Any]) -> Any:
    from mixbit.kld.tables import number

    rows = [
        (
            row["name"],
            f"{row['bytes'] / 1e9:.4g}",
            number(row["mean"], ".6g"),
            number(row["se"], ".2g"),
            number(row["p99"], ".6g"),
            number(row["top1"], ".2%"),
            "yes" if row["pareto"] else "",
        )
        for row in comparison["rows"]
    ]
    return plain_table(("candidate", "GB", "mean KLD", "error", "99 %", "top-1", "front"), rows)


def _pairs(comparison: dict[str, Any]) -> Any:
    from mixbit.kld.tables import number

    rows = [
        (
            pair["first"],
            pair["second"],
            number(pair["difference"], ".3g"),
            f"{number(pair['low'], '.3g')} to {number(pair['high'], '.3g')}",
            "yes" if pair["significant"] else "no",
        )
        for pair in comparison["pairs"]
    ]
    header = ("first", "second", "difference", "95 % interval", "sure")
    return plain_table(header, rows, text_columns=2)
