"""GatedDeltaNet between its projections: operands, launch plan, and what comes out in fp64."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import mlx.core as mx
import numpy as np
from metal_runner import from_bfloat, run_plan
from operands import FLOATS, empty

from delta_net_fp64 import delta_net, interleaved_order
from mixbit._core import LaunchPlan, launch_plan_delta_net

EPS = 1e-6
# Half a unit in the last place of y, beside what fp32 loses on the way.
ROUNDING = {"float32": 0.0, "float16": 2.0**-11, "bfloat16": 2.0**-8}
EXACT = 2e-6  # of the largest value: what fp32 may lose


@dataclass(frozen=True)
class Keys:
    """What long prompts are like: the correlation of two keys, beta, and the log of the decay.

    ``forgets``: at every fifth step hardly anything is left.
    """

    correlation: float
    beta: float
    log_decay: float
    forgets: bool = False


REGIMES = {
    "random": Keys(0.0, 0.5, -0.05),
    "long memory": Keys(0.0, 0.95, -1e-3),
    "correlated": Keys(0.6, 0.95, -1e-3),
    "more correlated": Keys(0.9, 0.99, -1e-4),
    "identical": Keys(1.0, 0.999, -1e-6),
    "forgetful": Keys(0.3, 0.5, -40.0),
    "forgets at times": Keys(0.3, 0.5, -1e-3, forgets=True),
}


@dataclass(frozen=True)
class Net:
    """One call; ``present``: which of conv_state, state, mask and lengths there are."""

    T: int
    Hk: int
    Hv: int
    Dk: int
    Dv: int
    B: int = 1
    taps: int = 4
    x: str = "float32"
    weights: tuple[str, str, str, str] = ("float32",) * 4
    present: tuple[bool, bool, bool, bool] = (True, True, False, False)
    keep_steps: bool = False
    interleaved: bool = False
    regime: str | None = None
    seed: int = 0

    @property
    def channels(self) -> int:
        """q, k and v."""
        return 2 * self.Hk * self.Dk + self.Hv * self.Dv

    @property
    def plan(self) -> LaunchPlan:
        """What the GPU would launch."""
        return launch_plan_delta_net(
            B=self.B, T=self.T, Hk=self.Hk, Hv=self.Hv, Dk=self.Dk, Dv=self.Dv, taps=self.taps,
            x=FLOATS[self.x], weights=[FLOATS[w] for w in self.weights], present=self.present,
            interleaved=self.interleaved, keep_steps=self.keep_steps, eps=EPS,
        )  # fmt: skip

    def operands(self) -> Operands:
        """Random, or of the regime."""
        rng = np.random.default_rng([self.seed, self.T, self.Hv, self.Dk])
        B, T, C, Hv = self.B, self.T, self.channels, self.Hv
        qkv, a, b, decay_rate = (
            (rng.standard_normal((B, T, C)), *rng.standard_normal((2, B, T, Hv)),
             rng.uniform(-4, 1, Hv))
            if self.regime is None
            else self._in_regime(rng, REGIMES[self.regime])
        )  # fmt: skip
        conv_weight = rng.standard_normal((C, self.taps, 1))
        if self.regime is not None:
            conv_weight = np.broadcast_to(np.eye(self.taps)[-1][:, None], (C, self.taps, 1))
        given = {
            "qkv": (self.x, qkv),
            "z": (self.x, rng.standard_normal((B, T, Hv * self.Dv))),
            "a": ("float32", a),
            "b": ("float32", b),
            "conv_weight": (self.weights[0], conv_weight),
            "A_log": (self.weights[1], decay_rate),
            "dt_bias": (self.weights[2], 0.3 * rng.standard_normal(Hv) * (self.regime is None)),
            "norm_weight": (self.weights[3], rng.uniform(0.5, 1.5, self.Dv)),
            "conv_state": (self.x, rng.standard_normal((B, self.taps - 1, C))),
            "state": ("float32", 0.3 * rng.standard_normal((B, Hv, self.Dv, self.Dk))),
        }
        arrays = {name: stored(dtype, values) for name, (dtype, values) in given.items()}
        arrays["mask"] = rng.random((B, T)) < 0.7
        arrays["lengths"] = rng.integers(0, T + 1, B).astype(np.int32)
        for name, there in zip(("conv_state", "state", "mask", "lengths"), self.present,
                               strict=True):  # fmt: skip
            if not there:
                del arrays[name]
        return Operands(self, arrays)

    def _in_regime(
        self, rng: np.random.Generator, keys: Keys
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        B, T, Hk, Dk = self.B, self.T, self.Hk, self.Dk
        common, own = rng.standard_normal((B, 1, Hk, Dk)), rng.standard_normal((B, T, Hk, Dk))
        k = np.sqrt(keys.correlation) * common + np.sqrt(1 - keys.correlation) * own
        q, v = (rng.standard_normal((B, T, n)) for n in (Hk * Dk, self.Hv * self.Dv))
        # SiLU stays clear of its minimum, -0.278, where it has no inverse.
        largest = max(np.abs(t).max() for t in (q, k, v))
        mixed = np.concatenate([q, k.reshape(B, T, -1), v], axis=-1) * (0.25 / largest)
        gates = np.ones((B, T, self.Hv))
        a = gates * (np.log(np.expm1(-keys.log_decay)) if keys.log_decay > -20 else -keys.log_decay)
        if keys.forgets:
            a[:, ::5] = 80
        b = np.log(keys.beta / (1 - keys.beta))
        return inverse_silu(mixed), a, b * gates, np.zeros(self.Hv)

    def outputs(self) -> list[np.ndarray]:
        """Arrays for the results, all NaN."""
        B, T, Hv = self.B, self.T, self.Hv
        steps = (T,) if self.keep_steps else ()
        return [
            empty(self.x, B, T, Hv * self.Dv),
            empty(self.x, B, self.taps - 1, self.channels),
            empty("float32", B, *steps, Hv, self.Dv, self.Dk),
        ]

    def check(self, **how: Any) -> Any:
        """Run it and compare; the report of the run."""
        return self.operands().check(**how)


@dataclass(frozen=True)
class Operands:
    """The arrays of a call, bfloat as its bits, by the names of ``ops.delta_net``.

    They are as if not interleaved; where the net is, they are put in its order on the way.
    """

    net: Net
    arrays: dict[str, np.ndarray]

    def changed(self, **more: np.ndarray) -> Operands:
        """With other arrays in place of those of these names."""
        return replace(self, arrays=self.arrays | more)

    def run(self, **how: Any) -> Any:
        """The report of a run."""
        return run_plan(self.net.plan, self._inputs(), self.net.outputs(), **how)

    def _inputs(self) -> list[np.ndarray]:
        qkv, z, a, b, *others = self.arrays.values()
        if not self.net.interleaved:
            return [qkv, z, a, b, *others]
        net = self.net
        channels, gates = interleaved_order(net.Hk, net.Hv, net.Dk, net.Dv)
        qkvz = np.concatenate([qkv, z], axis=-1)[..., channels]
        ba = np.concatenate([a, b], axis=-1)[..., gates]
        return [qkvz, qkvz, ba, ba, *others]

    def values(self) -> dict[str, np.ndarray]:
        """The arrays in fp64."""
        return {name: wide(a) for name, a in self.arrays.items()}

    def check(self, **how: Any) -> Any:
        """Run it and compare with fp64; the report of the run."""
        report = self.run(**how)
        want = delta_net(**self.values(), num_k_heads=self.net.Hk, keep_steps=self.net.keep_steps)
        for error, bound in zip(errors(report.outputs, want), self.bounds(), strict=True):
            assert error <= bound
        return report

    def bounds(self) -> tuple[float, float, float]:
        """Of the errors of y, the convolution's state and the state."""
        return (EXACT + ROUNDING[self.net.x], 0.0, EXACT)


def errors(got: tuple[np.ndarray, ...], want: tuple[np.ndarray, ...]) -> list[float]:
    """The largest error of each output, against its largest value."""
    return [
        float(np.abs(wide(g) - w).max(initial=0) / max(np.abs(w).max(initial=0), 1e-30))
        for g, w in zip(got, want, strict=True)
    ]


def stored(dtype: str, values: np.ndarray) -> np.ndarray:
    """As the runner takes it."""
    a = mx.array(values.astype(np.float32)).astype(FLOATS[dtype])
    return np.array(a.view(mx.uint16) if dtype == "bfloat16" else a)


def wide(a: np.ndarray) -> np.ndarray:
    """In fp64, unless it is no float."""
    if a.dtype == np.uint16:
        a = from_bfloat(a)
    return a.astype(np.float64) if a.dtype.kind == "f" else a


def inverse_silu(y: np.ndarray) -> np.ndarray:
    """The larger x with ``silu(x) = y``, by Newton's method; y > -0.278."""
    x = np.maximum(2 * y, -1.0)
    for _ in range(60):
        s = 1 / (1 + np.exp(-x))
        x = np.maximum(x - (x * s - y) / (s * (1 + x * (1 - s))), -1.2)
    return x


MIXED = ("bfloat16", "float32", "float16", "bfloat16")  # conv_weight, A_log, dt_bias, norm_weight
EVERYTHING = (True,) * 4
NOTHING = (False,) * 4
# What runs, by the kernels that it takes.
NETS = {
    "one step": Net(1, 2, 4, 64, 128, B=2, x="bfloat16", weights=MIXED),
    "drafts": Net(11, 1, 3, 128, 64, B=2, present=EVERYTHING),
    "odd drafts": Net(10, 2, 4, 50, 33, x="float16", taps=3, present=EVERYTHING),
    "chunks": Net(37, 1, 3, 48, 64, B=2, present=EVERYTHING),
    "chunks of halves": Net(18, 2, 4, 64, 16, x="float16", taps=2, weights=MIXED),
    "long and odd": Net(19, 1, 2, 50, 33, B=2, x="bfloat16", present=EVERYTHING),
    "kept": Net(9, 1, 2, 48, 30, B=2, x="bfloat16", present=EVERYTHING, keep_steps=True),
    "interleaved": Net(7, 2, 4, 32, 16, B=2, present=EVERYTHING, interleaved=True),
    "interleaved chunks": Net(20, 2, 6, 32, 16, B=2, present=EVERYTHING, interleaved=True),
}
