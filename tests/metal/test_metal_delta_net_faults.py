"""Faults planted in metal/delta_net*.metal and their header are all noticed."""

from __future__ import annotations

from pathlib import Path

import pytest
from delta_net_cases import NETS, Net
from metal_runner import METAL, KernelError, Mode, changed_sources, dropped_barriers, survivors

STEPS, CHUNKS, HEADER = "delta_net.metal", "delta_net_chunks.metal", "delta_net.h"
# What, in which file, the text and what takes its place, and the net that shows it.
FAULTS = [
    ("the neighbour's q", STEPS, "q[step * 32 + lane]", "q[step * 32]", "one step"),
    (
        "one key head for all",
        STEPS,
        "channel(params, hk, hv)",
        "channel(params, 0, hv)",
        "one step",
    ),
    (
        "key heads by remainder",
        STEPS,
        "channel(params, hk, hv)",
        "channel(params, hv % params.Hk, hv)",
        "one step",
    ),
    ("rows past the end", STEPS, "} else if (row + r < Dv) {", "} else {", "odd drafts"),
    (
        "columns past the end",
        STEPS,
        "if (column + c < Dk) {\n            to",
        "if (true) {\n            to",
        "odd drafts",
    ),
    ("a masked step counts", STEPS, "if (steps.seen(t)) {", "if (true) {", "drafts"),
    (
        "the state of the wrong step",
        STEPS,
        "((steps.first + t) * params.Hv + hv) * per_head",
        "((steps.first + t0) * params.Hv + hv) * per_head",
        "kept",
    ),
    ("k and q at right angles", STEPS, "delta[i], gates.kq,", "delta[i], 0.0f,", "one step"),
    ("g for g - 1", STEPS, "expm1_negative(weights", "exp(weights", "one step"),
    ("the wrong row's delta", STEPS, "Rows::lane(r)", "Rows::lane(rows - 1 - r)", "one step"),
    ("epsilon of the mean", HEADER, "kSquaresEps = 1e-6f", "kSquaresEps = 1e-2f", "one step"),
    (
        "the next step's input",
        HEADER,
        "input(int(t) + j - (taps - 1)",
        "input(int(t) + j - (taps - 2)",
        "odd drafts",
    ),
    ("a stale convolution", HEADER, "end - (taps - 1) + j", "int(T_) - (taps - 1) + j", "drafts"),
    ("masked inputs are seen", HEADER, "T_ && seen(step) ?", "T_ ?", "drafts"),
    (
        "a norm of the sum",
        HEADER,
        "simd_sum(squares) / float(count)",
        "simd_sum(squares)",
        "one step",
    ),
    ("a masked output", HEADER, "seen ? o[i]", "true ? o[i]", "drafts"),
    ("log1p by log", HEADER, "u == 1.0f ? e : e * (log(u) / (u - 1.0f))", "log(u)", "slow decay"),
    (
        "a chunk too few",
        CHUNKS,
        "chunks = (params.T + kChunk - 1) / kChunk",
        "chunks = params.T / kChunk",
        "chunks",
    ),
    (
        "steps past the end",
        CHUNKS,
        "t < count ? p[0] : 0.0f, t < count ? p[1] : 0.0f",
        "p[0], p[1]",
        "chunks",
    ),
    (
        "decays of one step more",
        CHUNKS,
        "if (i > j) {\n        since",
        "if (i >= j) {\n        since",
        "chunks",
    ),
    ("no decay between chunks", CHUNKS, "fma(f.decay, s, s)", "s", "chunks"),
    ("the decay of the chunk's start", CHUNKS, "lane == kChunk - 1", "lane == 0", "chunks"),
    ("P without its diagonal", CHUNKS, "i >= j ? decay", "i > j ? decay", "chunks"),
    (
        "a substitution too few",
        CHUNKS,
        "for (short m = 0; m < i;",
        "for (short m = 1; m < i;",
        "chunks",
    ),
    ("the block below the diagonal", CHUNKS, "-t10.thread", "t10.thread", "chunks"),
    ("beta of the wrong block", CHUNKS, "right = betas[8 +", "right = betas[", "chunks"),
    (
        "values of the neighbour",
        CHUNKS,
        "8 * simdgroup + at.column;\n    UNROLL",
        "8 * (simdgroup ^ 1) + at.column;\n    UNROLL",
        "chunks",
    ),
    ("masked steps have gates", CHUNKS, "mask[first + j]);", "true);", "chunks"),
    ("q by length", CHUNKS, "scale = is_q ?", "scale = true ?", "chunks"),
    ("keys of the first half", CHUNKS, "key_blocks; ++block", "key_blocks / 2; ++block", "chunks"),
    (
        "the keys made again",
        STEPS,
        "keys[first_k + i]",
        "keys[first_q + i]",
        "long and odd",
    ),
    ("the convolution's state of every head", STEPS, "!made && group.x == 0", "!made", "drafts"),
    ("z where it is not interleaved", STEPS, "+ z_place,", "+ hv * params.Dv,", "interleaved"),
    ("a and b change places", STEPS, "b[of_b]", "b[of_a]", "interleaved"),
    (
        "values where they are not interleaved",
        HEADER,
        "place_of(p.layout.v, hk, hv - hk * p.share, p.Dv)",
        "2 * p.Hk * p.Dk + hv * p.Dv",
        "interleaved",
    ),
    (
        "keys where they are not interleaved",
        HEADER,
        "place_of(p.layout.k, hk, 0, p.Dk)",
        "(p.Hk + hk) * p.Dk",
        "interleaved chunks",
    ),
    ("z of the first value head", CHUNKS, "hk, group.x, Dv)", "hk, 0, Dv)", "interleaved chunks"),
    (
        "a of the first value head",
        CHUNKS,
        "layout.a, group.y, own",
        "layout.a, group.y, 0",
        "chunks",
    ),
    ("the convolution's state from all tiles", CHUNKS, "if (group.x == 0)", "if (true)", "chunks"),
]
SLOW = Net(200, 1, 1, 32, 32, regime="identical", present=(False, True, False, False))


@pytest.mark.parametrize(("file", "net"), [(STEPS, "drafts"), (CHUNKS, "chunks")])
def test_every_barrier_is_needed(file: str, net: str, long_grid: bool) -> None:
    def trial(text: str) -> None:
        sound(net, changed_sources({file: text}), "checked")

    mutants = list(dropped_barriers((METAL / file).read_text()))
    assert survivors(mutants if long_grid else mutants[1::3], trial) == []


def sound(net: str, folder: Path, mode: Mode) -> None:
    """Right, and nothing found."""
    report = (NETS | {"slow decay": SLOW})[net].check(mode=mode, folder=folder)
    assert [launch.findings for launch in report.launches] == [()] * len(report.launches)


def test_faults_are_noticed(long_grid: bool) -> None:
    for name, file, old, _, _ in FAULTS:
        assert old in (METAL / file).read_text(), name
    for name, file, old, new, net in FAULTS[:: 1 if long_grid else 4]:
        text = (METAL / file).read_text()
        folder = changed_sources({file: text.replace(old, new, 1)})
        with pytest.raises((AssertionError, KernelError)):
            sound(net, folder, "checked" if "convolution's state" in name else "fast")
            pytest.fail(f"not noticed: {name}")
