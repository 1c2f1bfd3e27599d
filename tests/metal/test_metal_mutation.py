"""Faults planted one by one in a kernel with every kind of cooperation are all noticed."""

from __future__ import annotations

import numpy as np
import pytest
from metal_runner import Library, dropped_barriers, mutate, off_by_one, survivors, wrong_lanes

# Column sums of x [rows, columns], rescaled by their largest: lanes stride over rows in steps of
# 32, two simdgroups share a tile in threadgroup memory.
KERNEL = """#include <metal_stdlib>
using namespace metal;
// a < b in a comment, threadgroup_barrier(mem_flags::mem_threadgroup) too
kernel void column_sums(device const float* x [[buffer(0)]], device float* y [[buffer(1)]],
                        constant uint& rows [[buffer(2)]], constant uint& columns [[buffer(3)]],
                        uint group [[threadgroup_position_in_grid]],
                        uint lane [[thread_index_in_simdgroup]],
                        uint simdgroup [[simdgroup_index_in_threadgroup]]) {
  threadgroup float tile[2];
  for (uint column = 2 * group + simdgroup; column < columns; column += columns) {
    float sum = 0;
    for (uint row = lane; row < rows; row += 32) {
      sum += x[row * columns + column];
    }
    for (ushort distance = 1; distance <= 16; distance *= 2) {
      sum += simd_shuffle_xor(sum, distance);
    }
    sum = simd_broadcast(sum + lane, ushort(6)) - 6;
    if (lane < 1) {
      tile[simdgroup] = sum;
    }
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  uint column = 2 * group + lane;
  float other = tile[(simdgroup + 1) % 2];
  simdgroup_barrier(mem_flags::mem_threadgroup);
  threadgroup_barrier(mem_flags::mem_threadgroup);
  if (lane == 0) {
    tile[simdgroup] = max(tile[simdgroup], other);
  }
  simdgroup_barrier(mem_flags::mem_threadgroup);
  if (simdgroup == 0 && lane < 2) {
    y[column] = tile[0] * (lane + 1);
  }
}
"""
X = np.random.default_rng(0).integers(-9, 9, (67, 4)).astype(np.float32)


def trial(text: str) -> None:
    kernel = Library.from_source(text).kernel("column_sums")
    y = np.full(4, np.nan, np.float32)
    report = kernel.run([X, y, 67, 4], threadgroups=[2], threads=[64], mode="checked")
    largest = X.sum(0).reshape(2, 2).max(1)
    np.testing.assert_array_equal(report["y"], np.outer(largest, [1, 2]).reshape(-1))
    assert report.notes == ()


def test_sound_kernel_passes() -> None:
    trial(KERNEL)


def test_every_fault_is_noticed() -> None:
    barriers, bounds = list(dropped_barriers(KERNEL)), list(off_by_one(KERNEL))
    lanes = list(wrong_lanes(KERNEL))
    assert [len(barriers), len(bounds), len(lanes)] == [4, 5, 2]
    # The first simdgroup barrier stands right before a threadgroup barrier and adds nothing to it.
    assert survivors([*barriers, *bounds, *lanes], trial) == ["line 26: without simdgroup_barrier"]


def test_survivors_names_what_a_weak_trial_overlooks() -> None:
    def weak(text: str) -> None:
        Library.from_source(text).kernel("column_sums")

    assert survivors(wrong_lanes(KERNEL), weak) == [
        "line 16: simd_shuffle_xor from lane (distance) ^ 1",
        "line 18: simd_broadcast from lane (ushort(6)) ^ 1",
    ]


def test_mutate_wants_one_place() -> None:
    assert mutate("a b a", "b", "c") == "a c a"
    with pytest.raises(ValueError, match="'a' stands 2 times"):
        mutate("a b a", "a", "c")
