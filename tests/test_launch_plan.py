"""Launch plans: which kernel, which grid, what goes where. tests/metal runs them."""

from __future__ import annotations

import struct
from typing import Any

import mlx.core as mx
import pytest

from mixbit._core import (
    PARAMS_BUFFER,
    Launch,
    MatmulPart,
    launch_plan_delta_net,
    launch_plan_gather,
    launch_plan_matmul,
    launch_plan_route,
)


def part(N: int, bits: int = 4, group: int = 64, mode: str = "affine") -> MatmulPart:
    return MatmulPart(
        N=N, bits=bits, group_size=group, mode=mode, dtype=mx.float16, out=mx.bfloat16
    )


def launch_of(parts: list[MatmulPart], M: int = 1, K: int = 512, **more: Any) -> Launch:
    plan = launch_plan_matmul(M=M, K=K, x=mx.bfloat16, parts=parts, **more)
    assert plan.temporaries == []
    (launch,) = plan.launches
    return launch


def first_threadgroups(launch: Launch, parts: int) -> list[tuple[int, int]]:
    """(N, first threadgroup) of each part, in the order of the slots: see metal/params.h."""
    words = struct.unpack("=4If25I", launch.params)
    return [(words[5 + 5 * i], words[6 + 5 * i]) for i in range(parts)]


def test_one_weight() -> None:
    launch = launch_of([part(33)])
    assert launch.kernel == "matvec_bfloat_1_Absent_false_Affine_4_64_half"
    assert launch.instantiation == (
        f'template [[host_name("{launch.kernel}")]] [[kernel]] '
        "decltype(matvec<bfloat, 1, Absent, false, Affine<4, 64, half>>) "
        "matvec<bfloat, 1, Absent, false, Affine<4, 64, half>>;"
    )
    assert (launch.threadgroups, launch.threads) == ([3, 1, 1], [32, 2, 1])
    assert launch.buffers == [
        (1, ("input", 0)), (4, ("input", 1)), (5, ("input", 2)), (6, ("input", 3)),
        (8, ("output", 0)),
    ]  # fmt: skip
    assert PARAMS_BUFFER not in dict(launch.buffers)


@pytest.mark.parametrize(
    ("M", "tiles", "rows"), [(1, 1, 1), (2, 1, 2), (8, 1, 8), (9, 2, 5), (17, 3, 6), (32, 4, 8)]
)
def test_rows_of_x_in_tiles_alike(M: int, tiles: int, rows: int) -> None:
    launch = launch_of([part(40)], M)
    assert launch.kernel.startswith(f"matvec_bfloat_{rows}_")
    assert launch.threadgroups == [3 if M == 1 else 2, tiles, 1]


def test_wide_weights_first_and_each_format_once() -> None:
    parts = [part(40), part(7, 8, 32), part(50), part(9, 0)]
    launch = launch_of(parts)
    assert launch.kernel.endswith("_Dense_half_Affine_8_32_half_Affine_4_64_half")
    assert first_threadgroups(launch, 4) == [(9, 0), (7, 1), (40, 2), (50, 5)]
    assert launch.threadgroups == [9, 1, 1]
    outputs = {buffer: index for buffer, (role, index) in launch.buffers if role == "output"}
    assert outputs == {8: 3, 13: 1, 18: 0, 23: 2}


def test_swiglu_keeps_gate_before_up() -> None:
    launch = launch_of([part(20, 2), part(20, 8)], swiglu=True)
    assert launch.kernel == "matvec_swiglu_bfloat_1_Absent_false_Affine_2_64_half_Affine_8_64_half"
    assert launch.threadgroups == [3, 1, 1]
    assert [target for _, target in launch.buffers if target[0] == "output"] == [("output", 0)]


def test_norm_and_residual_come_last_among_the_inputs() -> None:
    launch = launch_of([part(20, 4, 32, "mxfp4")], norm=mx.float32, residual=mx.float16, eps=1e-6)
    assert launch.kernel == "matvec_bfloat_1_float_false_Mxfp4"
    assert dict(launch.buffers)[2] == ("input", 3)
    assert dict(launch.buffers)[3] == ("input", 4)
    assert struct.unpack_from("=If", launch.params, 12) == (2, pytest.approx(1e-6))


def test_rows_that_end_within_a_block() -> None:
    assert "_true_" in launch_of([part(5, 0)], K=523).kernel


def test_formats_that_mlx_lacks() -> None:
    with pytest.raises(ValueError, match="bits 2, 3, 4, 5, 6 or 8"):
        part(8, 7)


@pytest.mark.parametrize(("M", "tiles"), [(33, 1), (64, 1), (65, 2)])
def test_many_rows_in_tiles_of_the_matrix_units(M: int, tiles: int) -> None:
    launch = launch_of([part(65, 3), part(5)], M)
    assert launch.kernel == "qmm_bfloat_Absent_true_Affine_3_64_half_Affine_4_64_half"
    assert (launch.threadgroups, launch.threads) == ([tiles, 3, 1], [128, 1, 1])
    assert first_threadgroups(launch, 2) == [(65, 0), (5, 2)]
    assert launch_of([part(33), part(33)], M, swiglu=True).threadgroups == [tiles, 2, 1]


def experts(tokens: int, mix: bool = False, shared_x: bool = False, **more: Any) -> Any:
    return launch_plan_gather(
        tokens=tokens, slots=4, K=512, experts=8, x=mx.bfloat16, parts=[part(40)],
        mix=mix, shared_x=shared_x, **more,
    )  # fmt: skip


def test_experts_of_few_tokens() -> None:
    (launch,) = experts(32).launches
    assert launch.kernel == "gather_matvec_bfloat_false_Affine_4_64_half"
    assert launch.threadgroups == [3, 128, 1]
    (launch,) = experts(32, mix=True).launches
    assert launch.kernel == "gather_matvec_mix_bfloat_false_Affine_4_64_half"
    assert launch.threadgroups == [3, 32, 1]


def test_experts_of_many_tokens_are_sorted_first() -> None:
    plan = experts(100, mix=True, shared_x=True)
    assert [launch.kernel for launch in plan.launches] == [
        "sort_rows", "gather_qmm_bfloat_true_Affine_4_64_half", "mix",
    ]  # fmt: skip
    # 400 rows fill six tiles; each of eight experts, and the unknown, may have one more.
    assert plan.launches[1].threadgroups == [15, 1, 1]
    assert plan.temporaries == [400 * 4, 15 * 12, 4, 400 * 40 * 4]
    assert struct.unpack("=7I", plan.launches[1].params) == (40, 512, 8, 4, 1, 4, 1)


def test_choice_of_experts() -> None:
    plan = launch_plan_route(tokens=3, experts=70, slots=8, logits=mx.float16, normalise=True)
    (launch,) = plan.launches
    assert launch.kernel == "route_half_3"
    assert launch.threadgroups == [3, 1, 1]


def delta_net(T: int, present: tuple[bool, ...] = (True,) * 4, **more: Any) -> Any:
    shape: dict[str, Any] = {"B": 3, "Hk": 2, "Hv": 6, "Dk": 128, "Dv": 128}
    return launch_plan_delta_net(
        T=T, x=mx.bfloat16, weights=[mx.bfloat16, mx.float32, mx.float16, mx.float32],
        present=present, **shape | more,
    )  # fmt: skip


@pytest.mark.parametrize(("T", "tile"), [(1, 1), (2, 8), (16, 8)])
def test_few_steps_of_delta_net_are_one_launch(T: int, tile: int) -> None:
    plan = delta_net(T, present=(False, True, False, True))
    (launch,) = plan.launches
    assert launch.kernel == f"delta_net_bfloat_bfloat_4_4_4_true_{tile}_false_false"
    assert (launch.threadgroups, launch.threads) == ([3, 2, 3], [1024, 1, 1])
    assert plan.temporaries == []
    buffers = dict(launch.buffers)
    assert (buffers[10], buffers[12]) == (("input", 8), ("input", 9))
    assert 9 not in buffers and 11 not in buffers
    assert struct.unpack_from("=7I", launch.params) == (T, 2, 6, 128, 128, 3, 2 | 8)


def layout(**more: Any) -> tuple[int, ...]:
    """Steps of qkv, z and gates; where q, k, v, z, a and b begin, and on to the next key head."""
    (launch,) = delta_net(1, Dk=64, **more).launches
    return struct.unpack_from("=15I", launch.params, 11 * 4)


def test_the_layout_of_delta_net_inputs() -> None:
    values = 3 * 128
    assert layout() == (
        256 + 2 * values, 2 * values, 6,
        0, 64, 128, 64, 256, values, 0, values, 0, 3, 0, 3,
    )  # fmt: skip
    head = 2 * (64 + values)
    assert layout(interleaved=True) == (
        2 * head, 2 * head, 12,
        0, head, 64, head, 128, head, 128 + values, head, 3, 6, 0, 6,
    )  # fmt: skip


def test_many_steps_of_delta_net_are_three() -> None:
    plan = delta_net(100)
    assert [launch.kernel for launch in plan.launches] == [
        "delta_net_keys_bfloat_bfloat_4_4", "delta_net_factors_16",
        "delta_net_chunks_bfloat_bfloat_4_16_16",
    ]  # fmt: skip
    assert [launch.threadgroups for launch in plan.launches] == [[7, 4, 3], [7, 2, 3], [3, 2, 3]]
    assert plan.launches[2].threads == [512, 1, 1]
    # q and k in fp32, and the factors of seven chunks of each value head.
    assert plan.temporaries == [4 * 3 * 100 * 2 * 2 * 128, 3 * 6 * 7 * 4 * (6 * 64 + 36)]


@pytest.mark.parametrize("more", [{"Dk": 130}, {"Dv": 136}, {"Dv": 100}, {"keep_steps": True}])
def test_what_the_matrix_units_do_not_take_goes_step_by_step(more: dict[str, Any]) -> None:
    plan = delta_net(17, **more)
    assert len(plan.launches) == 2
    assert plan.launches[1].kernel.startswith("delta_net_bfloat_")
    assert plan.launches[1].kernel.endswith("_true")
    assert len(plan.temporaries) == 1


def test_heads_too_large_for_registers_are_left_to_stock() -> None:
    assert delta_net(1, Dk=257).launches == delta_net(100, Dv=260).launches == []
