"""Turn pytest-benchmark's JSON into the table of RESULTS.md.

pytest bench -o addopts= --benchmark-json=ops.json && python bench/table.py ops.json
"""

import argparse
import json
from collections import defaultdict
from pathlib import Path
from typing import Any


def table(document: dict[str, Any]) -> str:
    """One row a group: the median time of each engine and how much longer stock takes."""
    groups: dict[str, dict[str, float]] = defaultdict(dict)
    for entry in document["benchmarks"]:
        groups[entry["group"]][entry["params"]["engine"]] = entry["stats"]["median"]
    lines = ["| operation | mixbit, ms | stock, ms | ratio |", "| --- | ---: | ---: | ---: |"]
    for name, medians in groups.items():
        ours, stock = 1e3 * medians["mixbit"], 1e3 * medians["stock"]
        lines.append(f"| {name} | {ours:.2f} | {stock:.2f} | {stock / ours:.1f} |")
    return "\n".join(lines)


def main() -> None:
    """Command line entry."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("json", type=Path, help="written by --benchmark-json")
    print(table(json.loads(parser.parse_args().json.read_text(encoding="utf-8"))))


if __name__ == "__main__":
    main()
