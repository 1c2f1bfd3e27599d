"""What a search finds, judged over text that it never saw.

    python bench/search_plans.py MODEL --choose DATA --judge DATA --work DIR \
        [--against PLAN ...] [--method rtn] [--calibration FILE]

Measures sensitivities by tensor and searches at the sizes of the plans to compare with, both over
``--choose``; then measures all plans over ``--judge``. Prints a table and, for each plan found, the
ratio of its KLD to that of the plan whose size it keeps, with a 95 % interval from a bootstrap over
documents. A run that ended early goes on from what lies in ``--work``.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import mlx.core as mx
import numpy as np

from mixbit.cli.search import packing
from mixbit.kld.stream import Protocol
from mixbit.search import SearchResult, search, sensitivity
from mixbit.search.result import Tried
from mixbit.search.score import Counts, Score
from mixbit.search.workplace import Workplace

PROTOCOL = {"window": None, "score": "all"}
RESAMPLES = 4000


def main() -> None:
    """Sweep, search, judge and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model")
    parser.add_argument("--choose", type=Path, required=True)
    parser.add_argument("--judge", type=Path, required=True)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument(
        "--against", nargs="+", default=["unsloth-2026-03@3", "unsloth-2026-03@4"], metavar="PLAN"
    )
    parser.add_argument("--num-samples", type=int, help="documents to measure whole plans over")
    parser.add_argument("--method", default="rtn")
    parser.add_argument("--calibration")
    args = parser.parse_args()
    mx.set_default_device(mx.cpu)
    args.work.mkdir(exist_ok=True)
    how = packing(args)
    table = sensitivity(args.model, args.choose, args.work / "sensitivity", packing=how, **PROTOCOL)
    result = search(
        args.model, table, args.choose, args.work / "search", against=args.against, packing=how,
        num_samples=args.num_samples,
        **PROTOCOL,
    )  # fmt: skip
    print(
        f"{len(table.cells)} configurations over {table.tokens} tokens of {table.documents} "
        f"documents in {table.seconds:.0f} s; order settled to {table.settled:.4f}; prefix "
        f"sharing saved {table.saved:.2f} times the work. Proxies: "
        + ", ".join(f"{name} {value:.3f}" for name, value in table.correlations().items())
        + f".\nSearch: {result.measured} measurements over {result.tokens} tokens in "
        f"{result.seconds:.0f} s.\n"
    )
    place = Workplace.open(args.model, args.judge, None, Protocol(None, "all"), how, 8)
    trials = place.trials(place.stream)
    rows = plans_of(result)
    scores = trials.measure_all([dict(one.plan.modules) for _, one, _ in rows])
    print_table(rows, scores, trials.counts)


def plans_of(result: SearchResult) -> list[tuple[str, Tried, int]]:
    """Plans to judge: a name, the plan, and the row of the given plan that it is held against."""
    rows = [(given.plan.name, given, at) for at, given in enumerate(result.inputs)]
    for at, (given, smaller) in enumerate(zip(result.inputs, result.smaller, strict=True)):
        found = next(found for found in result.found if found.limit == given.nbytes)
        rows.append((f"found at the size of {given.plan.name}", found.best, at))
        rows.append((f"smallest as good as {given.plan.name}", smaller, at))
    return rows


def print_table(rows: list[tuple[str, Tried, int]], scores: list[Score], counts: Counts) -> None:
    """Sizes, KLD where the plan was chosen and where it is judged, and ratios."""
    print("| plan | bytes | bits per weight | KLD, chosen over | KLD, judged over | ratio |")
    print("| --- | ---: | ---: | ---: | ---: | ---: |")
    documents = len(counts.documents)
    draws = np.random.default_rng(0).multinomial(
        documents, np.full(documents, 1 / documents), size=RESAMPLES
    )
    for (name, one, at), score in zip(rows, scores, strict=True):
        base = scores[at]
        ratio = score.documents.sum() / base.documents.sum()
        drawn = (draws @ score.documents) / (draws @ base.documents)
        low, high = np.quantile(drawn, [0.025, 0.975])
        told = "" if score is base else f"{ratio:.3f} ({low:.3f} to {high:.3f})"
        print(
            f"| {name} | {one.nbytes:,} | {one.bpw:.3f} | {one.mean:.5f} | "
            f"{score.mean(counts):.5f} ± {score.error(counts):.5f} | {told} |"
        )


if __name__ == "__main__":
    main()
