"""Options that say over what text a model is measured, and how."""

from __future__ import annotations

import argparse

DATA = (
    'JSONL file of {"messages": [...]}, {"text": ...} or {"tokens": [...]} lines, text file (.txt, '
    ".raw) or token file (.npy)"
)
"""What a data file may be."""


def add_protocol_options(parser: argparse.ArgumentParser) -> None:
    """Add those of documents, windows and scored positions."""
    parser.add_argument("--num-samples", type=int, help="use only the first so many documents")
    parser.add_argument(
        "--window",
        type=int,
        default=512,
        metavar="TOKENS",
        help="cut documents into windows of so many tokens, each from an empty context; 0 takes "
        "them whole (default: 512)",
    )
    parser.add_argument(
        "--score",
        choices=("half", "all"),
        default="half",
        help="score the predictions in the second half of each window, or all (default: half)",
    )
    parser.add_argument(
        "--batch-size", type=int, default=8, help="windows run together (default: 8)"
    )
