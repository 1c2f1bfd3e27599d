"""metal/delta_net.metal and delta_net_chunks.metal: GatedDeltaNet, against fp64."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from delta_net_cases import (
    EVERYTHING,
    EXACT,
    MIXED,
    NETS,
    NOTHING,
    REGIMES,
    Net,
    Operands,
    errors,
    wide,
)
from metal_runner import family_library

HEADS = ((16, 16), (16, 32), (16, 48), (16, 64), (2, 4), (1, 3))
DIMS = (32, 48, 64, 128)
LENGTHS = (1, 2, 7, 15, 16, 17, 63, 64, 65, 200)


def sweep(long: bool) -> list[Net]:
    """Every number of heads, dimension and length; with ``long`` all of them together."""
    types = ("float32", "bfloat16", "float16")
    present = (EVERYTHING, NOTHING, (True, True, False, False), (False, True, True, False))
    grid = [(heads, D, T) for heads in HEADS for D in DIMS for T in LENGTHS]
    if not long:
        few = ((1, 3), (2, 4))
        grid = [(few[i % 2], D, T) for i, T in enumerate(LENGTHS) for D in (DIMS[i % 4],)]
        grid += [(heads, DIMS[i % 2], (1, 7, 17, 33)[i]) for i, heads in enumerate(HEADS[:4])]
    return [
        Net(
            T, *heads, D, DIMS[(i + T) % 4] if i % 3 == 2 else D, B=(1, 3)[i % 2 and T < 64],
            x=types[i % 3], weights=MIXED if i % 2 else ("float32",) * 4, present=present[i % 4],
        )
        for i, (heads, D, T) in enumerate(grid)
    ]  # fmt: skip


def test_any_shape(long_grid: bool) -> None:
    nets = [*sweep(long_grid), Net(9, 1, 1, 256, 200), Net(17, 1, 2, 136, 32)]
    for net in nets:
        net.check(together=[net.plan for net in nets])


@pytest.mark.parametrize("regime", REGIMES)
def test_correlated_keys_and_long_memories(regime: str, long_grid: bool) -> None:
    for T in (16, 512) if long_grid else (16, 200):
        Net(T, 1, 2, 128, 128, present=NOTHING, regime=regime).check()


def test_a_state_that_hardly_decays() -> None:
    """1 - g is 1e-4; rounding g would be off by 3e-8 at every step."""
    Net(16, 1, 2, 128, 128, regime="more correlated").check()
    Net(200, 1, 2, 128, 128, regime="long memory").check()


@pytest.mark.parametrize("name", NETS)
def test_sound(name: str) -> None:
    report = NETS[name].check(mode="checked")
    assert [launch.findings for launch in report.launches] == [()] * len(report.launches)


@pytest.mark.parametrize("name", NETS)
def test_order_of_threads_does_not_matter(name: str) -> None:
    operands = NETS[name].operands()
    first, *others = (
        operands.run(order=order, seed=seed).outputs
        for order, seed in (("forward", 0), ("backward", 0), ("shuffled", 1))
    )
    for other in others:
        for a, b in zip(first, other, strict=True):
            np.testing.assert_array_equal(a, b)


def test_interleaved_inputs_give_the_same_bits() -> None:
    nets = [
        Net(T, *heads, Dk, Dv, B=2, x=x, present=present)
        for T, heads, Dk, Dv, x, present in (
            (1, (16, 32), 32, 16, "bfloat16", (True, True, False, False)),
            (1, (1, 3), 50, 33, "float16", EVERYTHING),
            (7, (2, 4), 32, 16, "float32", EVERYTHING),
            (7, (1, 3), 30, 17, "bfloat16", NOTHING),
            (20, (16, 32), 16, 8, "bfloat16", EVERYTHING),
            (20, (2, 4), 32, 16, "float32", NOTHING),
            (20, (1, 3), 30, 17, "float32", EVERYTHING),
        )
    ]
    together = [net.plan for net in nets]
    for net in nets:
        plain = net.operands()
        fused = Operands(replace(net, interleaved=True), plain.arrays)
        for a, b in zip(
            fused.run(together=together).outputs, plain.run(together=together).outputs, strict=True
        ):
            np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("T", [5, 19])
def test_a_mask_at_any_step(T: int) -> None:
    """Row i misses step i; the last row misses all."""
    net = Net(T, 1, 2, 32, 32, B=T + 1, present=(True, True, True, False))
    mask = np.concatenate([~np.eye(T, dtype=bool), np.zeros((1, T), bool)])
    report = net.operands().changed(mask=mask).check()
    assert not report.outputs[0][-1].any()


@pytest.mark.parametrize("T", [5, 19])
def test_nothing_of_a_masked_step_is_seen(T: int) -> None:
    net = Net(T, 1, 2, 32, 32, B=2, present=(True, True, True, False))
    clean = net.operands()
    hidden = ~clean.arrays["mask"]
    dirty = {name: clean.arrays[name].copy() for name in ("qkv", "a", "b")}
    for a in dirty.values():
        a[hidden] = np.nan
    for a, b in zip(clean.run().outputs, clean.changed(**dirty).run().outputs, strict=True):
        np.testing.assert_array_equal(a, b)


def test_lengths_beyond_the_row_end_at_its_ends() -> None:
    net = Net(4, 1, 1, 32, 32, B=2, present=EVERYTHING)
    outside, inside = (
        net.operands().changed(lengths=np.array(ends, np.int32)).run().outputs[1]
        for ends in ([-2, 9], [0, 4])
    )
    np.testing.assert_array_equal(outside, inside)


@pytest.mark.parametrize(("T", "cut"), [(12, 5), (70, 33), (70, 1)])
def test_two_parts_are_the_whole(T: int, cut: int) -> None:
    operands = Net(T, 1, 2, 64, 64).operands()
    whole = operands.run().outputs
    first = part(operands, slice(0, cut)).run().outputs
    rest = part(operands, slice(cut, T), conv_state=first[1], state=first[2]).run().outputs
    joined = (np.concatenate([first[0], rest[0]], axis=1), *rest[1:])
    assert max(errors(joined, tuple(wide(a) for a in whole))) <= EXACT


def part(operands: Operands, steps: slice, **state: np.ndarray) -> Operands:
    """The same on some of the steps."""
    cut = {name: operands.arrays[name][:, steps] for name in ("qkv", "z", "a", "b")}
    net = replace(operands.net, T=cut["z"].shape[1])
    return Operands(net, operands.arrays | cut | state)


@pytest.mark.parametrize("T", [3, 40])
def test_without_beta_the_state_decays(T: int) -> None:
    operands = Net(T, 1, 2, 32, 64).operands()
    operands = operands.changed(b=np.full_like(operands.arrays["b"], -1e3))
    values = operands.values()
    log_decay = -np.exp(values["A_log"]) * np.logaddexp(0, values["a"] + values["dt_bias"])
    want = values["state"] * np.exp(log_decay.sum(1))[..., None, None]
    assert errors(operands.run().outputs[2:], (want,))[0] <= EXACT


@pytest.mark.parametrize("T", [2, 40])
def test_heads_do_not_know_their_number(T: int) -> None:
    """Key heads change places, and value heads with them and within them."""
    net = Net(T, 2, 4, 32, 48, weights=MIXED)
    operands = net.operands()
    keys, values = np.array([1, 0]), np.array([3, 2, 0, 1])
    channel = np.arange(net.channels)
    q, k, v = np.split(channel, [2 * 32, 4 * 32])
    order = np.concatenate([t.reshape(-1, D)[heads].ravel() for t, D, heads in (
        (q, 32, keys), (k, 32, keys), (v, 48, values))])  # fmt: skip
    outputs = order[4 * 32 :] - 4 * 32
    a = operands.arrays
    moved = operands.changed(
        qkv=a["qkv"][..., order], conv_weight=a["conv_weight"][order],
        conv_state=a["conv_state"][..., order], state=a["state"][:, values],
        z=a["z"][..., outputs], **{name: a[name][..., values] for name in ("a", "b")},
        **{name: a[name][values] for name in ("A_log", "dt_bias")},
    )  # fmt: skip
    y, conv_state, state = operands.run().outputs
    moved_y, moved_conv_state, moved_state = moved.run().outputs
    np.testing.assert_array_equal(moved_y, y[..., outputs])
    np.testing.assert_array_equal(moved_conv_state, conv_state[..., order])
    np.testing.assert_array_equal(moved_state, state[:, values])


@pytest.mark.parametrize("T", [4, 40])
def test_a_row_does_not_depend_on_the_others(T: int) -> None:
    net = Net(T, 1, 2, 64, 32, B=3, present=EVERYTHING)
    operands = net.operands()
    weights = ("conv_weight", "A_log", "dt_bias", "norm_weight")
    alone = {n: a if n in weights else a[1:2] for n, a in operands.arrays.items()}
    for got, a in zip(
        Operands(replace(net, B=1), alone).run().outputs, operands.run().outputs, strict=True
    ):
        np.testing.assert_array_equal(got, a[1:2])


@pytest.mark.parametrize("T", [1, 5, 20])
def test_every_step_is_kept(T: int) -> None:
    operands = Net(T, 1, 2, 64, 32, keep_steps=True).operands()
    states = operands.run().outputs[2]
    for t in range(T):
        done = part(operands, slice(0, t + 1)).run().outputs[2]
        np.testing.assert_array_equal(states[:, : t + 1], done)
    last = Operands(replace(operands.net, keep_steps=False), operands.arrays).run().outputs[2]
    assert errors((states[:, -1],), (wide(last),))[0] <= EXACT


@pytest.mark.parametrize("T", [1, 32])
def test_the_state_is_read_and_written_once(T: int) -> None:
    launch = Net(T, 1, 3, 128, 128, x="bfloat16").check(mode="counted").launches[-1]
    counted = launch.counters.buffers
    assert counted["state"].bytes_loaded == counted["state"].bytes
    assert counted["state_out"].bytes_stored == counted["state_out"].bytes
    # Of the products, 6 Dk Dv a step are what the state asks for; the rest is within chunks.
    assert launch.counters.count("simd.mma") / (32 * 3 * T) <= (103 if T > 1 else 0)


def test_address_spaces() -> None:
    lines: dict[str, set[str]] = {}
    for launch in [launch for net in NETS.values() for launch in net.plan.launches]:
        lines.setdefault(launch.family, set()).add(launch.instantiation)
    for family, instantiations in lines.items():
        library = family_library(family, tuple(sorted(instantiations)))
        assert library.address_space_errors() == []
