"""Options that several commands share."""

from __future__ import annotations

import argparse

__all__ = ["add_activation_bits_option"]


def add_activation_bits_option(parser: argparse.ArgumentParser) -> None:
    """``--activation-bits 8|16``, for what generates."""
    parser.add_argument(
        "--activation-bits",
        type=int,
        choices=(8, 16),
        default=16,
        help="round the activations of up to 20 tokens at once to 8 bits on a CPU, beside weights "
        "of at most 6: faster, and some 0.7%% off; longer prompts keep 16 (default: 16)",
    )
