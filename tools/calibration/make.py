"""Write the default calibration documents, the same ones each time.

python tools/calibration/make.py --out python/mixbit/data/calibration
"""

from __future__ import annotations

import argparse
import json
import random
from collections import Counter
from pathlib import Path

from calls import calls
from longer import longer
from records import structured
from sums import sums
from texts import Document, languages, programs, talks

SEED = 20261130


def documents() -> list[Document]:
    """All of them, mixed, none twice."""
    rng = random.Random(SEED)
    found = [
        *talks(),
        *languages(rng, translations=60),
        *programs(rng, ports=40),
        *calls(rng, 70),
        *structured(rng, 60),
        *sums(rng, 48),
        *longer(rng),
    ]
    rng.shuffle(found)
    return list({json.dumps(one["messages"]): one for one in found}.values())


def main() -> None:
    """Write ``documents.jsonl`` and say what is in it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    out: Path = parser.parse_args().out
    found = documents()
    lines = [json.dumps(document, ensure_ascii=False) for document in found]
    out.mkdir(exist_ok=True)
    (out / "documents.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    for kind, count in sorted(Counter(document["kind"] for document in found).items()):
        print(f"{kind}: {count}")


if __name__ == "__main__":
    main()
