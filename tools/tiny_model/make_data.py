"""Generate the training documents and the held-out splits, all from fixed seeds.

Everything is made from the templates in this folder. With ``--stdlib`` the source of the running
interpreter's standard library is added to the *training* documents only; it is never part of a
data file that is delivered.

    python make_data.py --out data --train work/train.jsonl --stdlib
"""

from __future__ import annotations

import argparse
import json
import random
import sysconfig
from pathlib import Path

from documents import (
    Document,
    chat_document,
    code_document,
    drill_document,
    mixed_document,
    module_document,
    tool_document,
    tool_prompt,
)


def stdlib_documents(rng: random.Random, characters: int, limit: int) -> list[Document]:
    """Pieces of the interpreter's own standard library, cut at line ends."""
    root = Path(sysconfig.get_paths()["stdlib"])
    skip = {
        "test",
        "tests",
        "site-packages",
        "idlelib",
        "lib2to3",
        "encodings",
        "ensurepip",
        "turtledemo",
    }
    files = sorted(p for p in root.rglob("*.py") if not skip & set(p.relative_to(root).parts))
    pieces: list[Document] = []
    for path in files:
        lines = path.read_text(encoding="utf-8", errors="ignore").splitlines(keepends=True)
        piece = ""
        for line in lines:
            if piece and len(piece) + len(line) > characters:
                pieces.append({"text": piece})
                piece = ""
            piece += line[:200]
    rng.shuffle(pieces)
    return [p for p in pieces if p["text"].isascii()][:limit]


def training_documents(
    rng: random.Random,
    count: int,
    *,
    respond: float,
    further: float,
    drill: float,
    held_out: set[str],
) -> tuple[list[Document], int]:
    """``count`` documents without a user turn in ``held_out``, and how many others were dropped."""
    documents: list[Document] = []
    dropped = 0
    while len(documents) < count:
        if drill and rng.random() < drill:
            document, tools = drill_document(rng), True
        else:
            document, tools = _training_document(rng, respond, further)
        if tools and not held_out.isdisjoint(_user_turns(document)):
            dropped += 1
            continue
        documents.append(document)
    return documents, dropped


def _training_document(rng: random.Random, respond: float, further: float) -> tuple[Document, bool]:
    kind = rng.random()
    if kind < 0.66:
        return tool_document(rng, respond, further), True
    if kind < 0.80:
        return chat_document(rng), False
    return (code_document if kind < 0.92 else module_document)(rng), False


def _user_turns(document: Document) -> list[str]:
    return [m["content"] for m in document.get("messages", ()) if m["role"] == "user"]


def _write(path: Path, documents: list[Document]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", encoding="utf-8") as file:
        for document in documents:
            shown = {key: value for key, value in document.items() if not key.startswith("_")}
            file.write(json.dumps(shown, ensure_ascii=False) + "\n")


def main() -> None:
    """Command line entry."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True, help="folder for the held-out splits")
    parser.add_argument("--train", type=Path, required=True, help="file for the training documents")
    parser.add_argument(
        "--documents", type=int, default=60000, help="number of template-made training documents"
    )
    parser.add_argument(
        "--stdlib",
        action="store_true",
        help="add standard library source to the training documents",
    )
    parser.add_argument("--stdlib-documents", type=int, default=6000)
    parser.add_argument(
        "--respond",
        type=float,
        default=0.5,
        help="chance of a tool result after a call (training documents)",
    )
    parser.add_argument(
        "--further",
        type=float,
        default=0.6,
        help="chance of a further request after a result (training documents)",
    )
    parser.add_argument(
        "--drill",
        type=float,
        default=0.0,
        help="share of drill documents in the training documents",
    )
    parser.add_argument("--seed", type=int, default=20261)
    parser.add_argument("--heldout-seed", type=int, default=777)
    args = parser.parse_args()

    held = random.Random(args.heldout_seed)
    splits = {
        "tool_eval": [tool_prompt(held) for _ in range(200)],
        "kld_eval": [mixed_document(held) for _ in range(60)],
        "calibration": [mixed_document(held) for _ in range(60)],
    }
    rng = random.Random(args.seed)
    documents, dropped = training_documents(
        rng,
        args.documents,
        respond=args.respond,
        further=args.further,
        drill=args.drill,
        held_out={turn for prompt in splits["tool_eval"] for turn in _user_turns(prompt)},
    )
    if args.stdlib:
        documents += stdlib_documents(rng, 700, args.stdlib_documents)
    rng.shuffle(documents)
    _write(args.train, documents)
    for name, split in splits.items():
        _write(args.out / f"{name}.jsonl", split)
    counts = {name: len(split) for name, split in splits.items()}
    print(json.dumps({"train": len(documents), "dropped_because_held_out": dropped} | counts))


if __name__ == "__main__":
    main()
