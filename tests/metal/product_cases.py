"""Products of x with one or several weights: operands, launch plan, and what comes out in fp64."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from metal_runner import run_plan
from operands import FLOATS, Operand, assert_close, empty, floats, part, silu, weight

from mixbit._core import LaunchPlan, launch_plan_matmul

Form = tuple[str, int, int]  # mode, bits, group size
DENSE: Form = ("dense", 0, 0)
EPS = 1e-6


@dataclass(frozen=True)
class Case:
    """One product of x [M, K]; a part is (format, its dtype, N, output's dtype, bias' dtype)."""

    M: int
    K: int
    x: str
    parts: tuple[tuple[Form, str, int, str, str | None], ...]
    swiglu: bool = False
    norm: str | None = None
    residual: str | None = None
    seed: int = 0

    @property
    def plan(self) -> LaunchPlan:
        """What the GPU would launch."""
        return self.plan_of(self.M)

    def plan_of(self, rows: int) -> LaunchPlan:
        """The plan for the first ``rows`` rows of x."""
        parts = [
            part(form, dtype, N, out=out, **({"bias": bias} if bias else {}))
            for form, dtype, N, out, bias in self.parts
        ]
        optional = {"norm": self.norm, "residual": self.residual}
        return launch_plan_matmul(
            M=rows, K=self.K, x=FLOATS[self.x], parts=parts, swiglu=self.swiglu, eps=EPS,
            **{name: FLOATS[dtype] for name, dtype in optional.items() if dtype},
        )  # fmt: skip

    def operands(self) -> tuple[list[np.ndarray], list[np.ndarray]]:
        """Buffers in the order of the primitive's inputs, and the outputs wanted."""
        rng = np.random.default_rng([self.seed, self.M, self.K])
        x = floats(rng, self.x, self.M, self.K)
        buffers = [*x.buffers]
        products: list[Operand] = []
        weights: list[np.ndarray] = []
        for form, dtype, N, _out, bias in self.parts:
            w = weight(rng, form, dtype, N, self.K)
            b = floats(rng, bias, N) if bias else Operand([], np.zeros(N))
            buffers += [*w.buffers, *b.buffers]
            weights.append(w.values)
            products.append(b)
        values = x.values
        if self.norm:
            scale = floats(rng, self.norm, self.K)
            buffers += scale.buffers
            rms = np.sqrt((values**2).mean(1, keepdims=True) + EPS)
            values = values / rms * scale.values
        want = [values @ w.T + b.values for w, b in zip(weights, products, strict=True)]
        if self.swiglu:
            want = [silu(want[0]) * want[1]]
        if self.residual:
            extra = floats(rng, self.residual, self.M, self.parts[0][2])
            buffers += extra.buffers
            want = [want[0] + extra.values]
        return buffers, want

    def outputs(self, rows: int | None = None) -> list[np.ndarray]:
        """Arrays for the results, all NaN."""
        parts = self.parts[:1] if self.swiglu else self.parts
        return [empty(out, rows or self.M, N) for _, _, N, out, _ in parts]

    def check(self, **how: Any) -> Any:
        """Run it and compare; the report of the run."""
        buffers, want = self.operands()
        report = run_plan(self.plan, buffers, self.outputs(), **how)
        # SwiGLU multiplies two sums, each with its own error; the matrix units sum in one chain.
        slack = 4 if self.swiglu else 1.5 if self.M <= 32 else max(1.5, self.K**0.5 / 12)
        for got, expected in zip(report.outputs, want, strict=True):
            assert_close(got, expected, slack=slack, size=0.5 * self.K**0.5)
        return report


def single(form: Form, dtype: str, M: int, K: int, N: int) -> Case:
    """One weight, everything of one type."""
    return Case(M, K, dtype, ((form, dtype, N, dtype, None),))
