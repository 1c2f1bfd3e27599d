"""Plans and methods together: uniform plans and those found at their size, packed in several ways.

    python bench/search_methods.py MODEL --sensitivity DIR [DIR ...] --calibration FILE --judge DATA

The plan at a size is the one of least sum of sensitivities, in groups of 64 and for each of the
tables, which may be those of different methods; nothing is refined by measurement here.
"""

from __future__ import annotations

import argparse
from dataclasses import replace

import mlx.core as mx

from mixbit.calibration import Calibration
from mixbit.checkpoint import read_config
from mixbit.kld.stream import Protocol
from mixbit.plan import Plan
from mixbit.quantization.methods import Choice
from mixbit.search import Sensitivity
from mixbit.search.choices import ROUTER_FLOOR, Choices
from mixbit.search.swap import Packing
from mixbit.search.workplace import Workplace

METHODS = ("rtn", "search", "gptq+search")


def main() -> None:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model")
    parser.add_argument("--sensitivity", nargs="+", required=True)
    parser.add_argument("--calibration", required=True)
    parser.add_argument("--judge", required=True)
    args = parser.parse_args()
    mx.set_default_device(mx.cpu)
    calibration = Calibration.load(args.calibration, read_config(args.model))
    tables = list(map(Sensitivity.load, args.sensitivity))
    print("| method | plan | bytes | mean KLD |\n| --- | --- | ---: | ---: |")
    for method in METHODS:
        packing = Packing(Choice.of(method), calibration)
        place = Workplace.open(args.model, args.judge, None, Protocol(None, "all"), packing, 8)
        trials = place.trials(place.stream)
        for recipe in ("uniform-3", "uniform-4"):
            uniform = Plan.load(recipe, model=place.structure)
            plans = [uniform, *(best_at(uniform.report()["bytes"], table) for table in tables)]
            for plan in plans:
                (score,) = trials.measure_all([dict(plan.modules)])
                mean = score.mean(trials.counts)
                nbytes = plan.report()["bytes"]
                print(f"| {method} | {plan.name} | {nbytes:,} | {mean:.5f} |", flush=True)


def best_at(nbytes: int, table: Sensitivity) -> Plan:
    """The plan of least sum of sensitivities, groups of 64, that takes so many bytes at most."""
    cells = tuple(cell for cell in table.cells if cell.spec.group_size == 64)
    choices = Choices(replace(table, cells=cells), table.by, ROUTER_FLOOR)
    best = choices.knapsack({}).best(nbytes - choices.fixed)
    assert best is not None
    return choices.plan(best, f"found by sensitivities of {table.identity['method']['name']}", {})


if __name__ == "__main__":
    main()
