"""Mixtures of experts against fp64: metal/experts.metal, gather_matvec.metal, gather_qmm.metal."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from metal_runner import METAL, KernelError, changed_sources, family_library, mutate, run_plan
from operands import FLOATS, assert_close, empty, floats, part, silu, weight

from kernel_cases import FORMATS
from mixbit._core import launch_plan_gather, launch_plan_route

Form = tuple[str, int, int]
DENSE: Form = ("dense", 0, 0)


@dataclass(frozen=True)
class Case:
    """A gather product; few tokens go to gather_matvec, many to gather_qmm."""

    tokens: int
    slots: int
    K: int
    N: int
    experts: int
    x: str
    forms: tuple[Form, ...]
    shared_x: bool = False
    mix: bool = False
    M: int = 1

    @property
    def plan(self) -> Any:
        """What the GPU would launch."""
        return launch_plan_gather(
            tokens=self.tokens, slots=self.slots, M=self.M, K=self.K, experts=self.experts,
            x=FLOATS[self.x], parts=[part(form, self.x, self.N, out=self.x) for form in self.forms],
            shared_x=self.shared_x, mix=self.mix,
        )  # fmt: skip

    @property
    def shape(self) -> tuple[int, ...]:
        """Of the output."""
        return (self.tokens, *(() if self.mix else (self.slots,)), self.M, self.N)

    def operands(self) -> tuple[list[np.ndarray], np.ndarray]:
        """Buffers in the order of the primitive's inputs, and the output wanted."""
        rng = np.random.default_rng([self.tokens, self.K])
        x = floats(rng, self.x, self.tokens, 1 if self.shared_x else self.slots, self.M, self.K)
        # Expert 1 stands idle, expert 2 is in demand; one index is out of range.
        indices = rng.integers(0, self.experts, (self.tokens, self.slots), dtype=np.uint32)
        indices[indices == 1] = 2
        indices[-1, -1] = self.experts
        scores = rng.uniform(0, 1, indices.shape).astype(np.float32)
        weights = [weight(rng, form, self.x, self.experts, self.N, self.K) for form in self.forms]
        known = np.minimum(indices, self.experts - 1)
        rows = np.broadcast_to(x.values, (self.tokens, self.slots, self.M, self.K))
        sums = [rows @ w.values[known].swapaxes(-1, -2) for w in weights]
        want = silu(sums[0]) * sums[1] if len(sums) == 2 else sums[0]
        want[indices >= self.experts] = np.nan
        if self.mix:
            want = (want * scores[..., None, None]).sum(1)
        mixed = [scores] if self.mix else []
        arrays = [a for w in weights for a in w.buffers]
        return [*x.buffers, indices, *mixed, *arrays], want

    def check(self, **how: Any) -> Any:
        """Run it and compare; the report of the run."""
        buffers, want = self.operands()
        report = run_plan(self.plan, buffers, [empty(self.x, *self.shape)], **how)
        got = report.outputs[0]
        assert_close(got, want, slack=4 if len(self.forms) == 2 else 1.5)
        return report


AFFINE: Form = ("affine", 4, 64)
DECODE = {
    "down": Case(3, 2, 160, 21, 5, "float16", (("affine", 3, 32),)),
    "gate and up": Case(2, 3, 576, 19, 5, "bfloat16", (AFFINE, AFFINE), shared_x=True),
    "gate and up of two formats": Case(
        2, 2, 128, 9, 4, "float32", (("affine", 6, 32), ("mxfp4", 4, 32)), shared_x=True
    ),
    "mixed": Case(2, 4, 192, 18, 5, "bfloat16", (("affine", 5, 64),), mix=True),
    "blocks of rows": Case(2, 2, 45, 11, 4, "float16", (DENSE,), shared_x=True, M=3),
    "mixed blocks of rows": Case(2, 2, 64, 5, 3, "float32", (("mxfp8", 8, 32),), mix=True, M=2),
}
PREFILL = {
    "down": Case(40, 2, 160, 21, 5, "float16", (("affine", 3, 32),)),
    "gate and up": Case(101, 3, 192, 37, 3, "bfloat16", (AFFINE, AFFINE), shared_x=True),
    "gate and up of two formats": Case(
        35, 2, 128, 33, 4, "float32", (("affine", 6, 32), ("mxfp4", 4, 32)), shared_x=True
    ),
    "mixed": Case(40, 4, 192, 66, 7, "bfloat16", (("affine", 5, 64),), mix=True),
    "blocks of rows": Case(14, 2, 45, 11, 4, "float16", (DENSE,), shared_x=True, M=3),
    "mixed blocks of rows": Case(17, 2, 80, 9, 3, "float32", (("nvfp4", 4, 16),), mix=True, M=2),
}
ALL = {
    **{f"{name}, decode": case for name, case in DECODE.items()},
    **{f"{name}, prefill": case for name, case in PREFILL.items()},
}
PLANS = [case.plan for case in ALL.values()]


@pytest.mark.parametrize("case", DECODE.values(), ids=DECODE)
def test_few_tokens_take_one_launch(case: Case) -> None:
    assert [launch.family for launch in case.plan.launches] == ["gather_matvec"]


@pytest.mark.parametrize("case", PREFILL.values(), ids=PREFILL)
def test_many_tokens_are_sorted(case: Case) -> None:
    families = [launch.family for launch in case.plan.launches]
    assert families == ["experts", "gather_qmm", *(["experts"] if case.mix else [])]


@pytest.mark.parametrize("case", ALL.values(), ids=ALL)
def test_gather_products_are_right(case: Case) -> None:
    case.check(together=PLANS)


@pytest.mark.parametrize("case", ALL.values(), ids=ALL)
def test_nothing_but_right_accesses(case: Case) -> None:
    report = case.check(mode="checked", together=PLANS)
    assert [launch.findings for launch in report.launches] == [() for _ in case.plan.launches]


def test_every_format(long_grid: bool) -> None:
    """All formats in both kernels; by default the groups share the work."""
    chosen = [*FORMATS, DENSE] if long_grid else [*FORMATS[1::3], *FORMATS[-3:], DENSE]
    cases = [
        Case(tokens, 2, 256, 18, 4, "bfloat16", (form,)) for form in chosen for tokens in (1, 33)
    ]
    plans = [case.plan for case in cases]
    for case in cases:
        case.check(together=plans)


def test_a_row_does_not_depend_on_how_many_there_are() -> None:
    case = DECODE["mixed"]
    buffers, _ = case.operands()
    both = run_plan(case.plan, buffers, [empty(case.x, *case.shape)], together=PLANS)
    alone = Case(1, case.slots, case.K, case.N, case.experts, case.x, case.forms, mix=True)
    first = [*(a[:1] for a in buffers[:3]), *buffers[3:]]
    one = run_plan(alone.plan, first, [empty(case.x, *alone.shape)], together=PLANS)
    np.testing.assert_array_equal(both.outputs[0][:1], one.outputs[0])


def test_order_of_threads_does_not_matter() -> None:
    """Rows of an expert are sorted in any order, which must not show."""
    case = PREFILL["mixed"]
    buffers, _ = case.operands()
    first, *others = (
        run_plan(
            case.plan, buffers, [empty(case.x, *case.shape)], together=PLANS, order=order, seed=seed
        ).outputs[0]
        for order, seed in (("forward", 0), ("backward", 0), ("shuffled", 1))
    )
    for other in others:
        np.testing.assert_array_equal(first, other)


@pytest.mark.parametrize("mode", ["fast", "checked"])
@pytest.mark.parametrize("normalise", [True, False])
@pytest.mark.parametrize(
    ("tokens", "experts", "slots", "dtype"),
    [(3, 70, 8, "float16"), (2, 32, 32, "float32"), (1, 1, 1, "bfloat16"), (2, 512, 10, "float32")],
)
def test_route(
    tokens: int, experts: int, slots: int, dtype: str, normalise: bool, mode: Any
) -> None:
    rng = np.random.default_rng(experts)
    logits = floats(rng, dtype, tokens, experts, scale=3)
    plan = launch_plan_route(
        tokens=tokens, experts=experts, slots=slots, logits=FLOATS[dtype], normalise=normalise
    )
    outputs = [np.full((tokens, slots), 777, np.uint32), empty("float32", tokens, slots)]
    indices, scores = run_plan(plan, logits.buffers, outputs, mode=mode).outputs
    want = np.argsort(-logits.values, axis=1, kind="stable")[:, :slots]
    np.testing.assert_array_equal(indices, want)
    p = np.exp(logits.values - logits.values.max(1, keepdims=True))
    chosen = np.take_along_axis(p, want, 1)
    total = (chosen if normalise else p).sum(1, keepdims=True)
    np.testing.assert_allclose(scores, chosen / total, rtol=1e-6)


def test_route_passes_over_nan() -> None:
    logits = np.array([[np.nan, 1, 2, np.nan, 2], [np.nan] * 4 + [0]], np.float32)
    plan = launch_plan_route(tokens=2, experts=5, slots=2, logits=FLOATS["float32"], normalise=True)
    outputs = [np.zeros((2, 2), np.uint32), empty("float32", 2, 2)]
    indices, scores = run_plan(plan, [logits], outputs, mode="checked").outputs
    assert indices.tolist() == [[2, 4], [4, 0xFFFFFFFF]]
    np.testing.assert_array_equal(scores, [[0.5, 0.5], [1, 0]])


def test_address_spaces() -> None:
    for family in ("experts", "gather_matvec", "gather_qmm"):
        launches = [launch for plan in PLANS for launch in plan.launches]
        lines = {launch.instantiation for launch in launches if launch.family == family}
        assert family_library(family, tuple(sorted(lines))).address_space_errors() == []


BARRIER = "threadgroup_barrier(mem_flags::mem_threadgroup);"
TILE_CHECK_END = ") {\n    return;\n  }\n  const Matrix matrix"
MUTATIONS = {  # file, case, what is there and what takes its place
    "every row its own x": (
        ("gather_qmm.metal", "gate and up"),
        ("row / (M * share) * M", "row * M"),
    ),
    "the first expert's weights": (
        ("gather_qmm.metal", "down"),
        ("expert * N, K", "0 * expert * N, K"),
    ),
    "no NaN for an unknown expert": (
        ("gather_qmm.metal", "down"),
        ("tile.expert >= params.experts", "tile.expert > params.experts"),
    ),
    "no end of the tiles": (
        ("gather_qmm.metal", "down"),
        (f"*num_tiles{TILE_CHECK_END}", f"*num_tiles + 999{TILE_CHECK_END}"),
    ),
    "every expert's rows from the first place on": (
        ("experts.metal", "down"),
        ("store_explicit(&count[t], first", "store_explicit(&count[t], 0 * first"),
    ),
    "counts read too early": (
        ("experts.metal", "down"),
        (f"  {BARRIER}\n  const uint mine", "  const uint mine"),
    ),
    "a full tile too many": (
        ("experts.metal", "down"),
        ("(mine + kTileRows - 1)", "(mine + kTileRows)"),
    ),
    "the score of the slot before": (
        ("experts.metal", "mixed"),
        ("fma(scores[slot]", "fma(scores[max(slot, size_t(1)) - 1]"),
    ),
}


@pytest.mark.parametrize("name", MUTATIONS)
def test_faults_are_noticed(name: str) -> None:
    (file, case), change = MUTATIONS[name]
    folder = changed_sources({file: mutate((METAL / file).read_text(), *change)})
    with pytest.raises((AssertionError, KernelError)):
        PREFILL[case].check(mode="checked", folder=folder)
