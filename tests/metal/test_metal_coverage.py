"""Line coverage of kernels: what ran, what did not, and what no instantiation contains."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from metal_runner import Library, lines

KERNEL = """#include <metal_stdlib>
using namespace metal;
template <bool Twice>
inline float shaped(float x) {
  if constexpr (Twice) {
    x *= 2;
  } else {
    x *= 3;
  }
  return x;
}
inline float never(float x) {
  return x + 1;
}
template <bool Twice>
kernel void scale(device float* y [[buffer(0)]], uint i [[thread_position_in_grid]]) {
  float x = y[i];
  if (x < 0) {
    x = never(-x);
  }
  for (uint j = 0; j < 2; j++)
    x +=
        1;
  y[i] = shaped<Twice>(x);
}
"""


def instantiation(twice: str) -> str:
    return (
        f'template [[host_name("scale_{twice}")]] [[kernel]]'
        f" decltype(scale<{twice}>) scale<{twice}>;"
    )


def test_missed_statements(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lines, "METAL", tmp_path)
    monkeypatch.setattr(lines, "_watched", [])
    file = tmp_path / "scale.metal"
    file.write_text(KERNEL)
    library = Library.from_file(file, instantiate=map(instantiation, ("true", "false")))

    def run(name: str, value: float) -> list[tuple[int, int]]:
        y = np.full(4, value, np.float32)
        library.kernel(name).run([y], grid=[4], threads=[4], mode="checked")
        return lines.collected().missed(str(file))

    assert run("scale_true", 1) == [(8, 8), (13, 13), (19, 19)]
    assert run("scale_false", 1) == [(13, 13), (19, 19)]
    assert run("scale_true", -1) == []
    assert lines.collected().share() == 1
    assert len(lines.collected().known[str(file)]) == 8
