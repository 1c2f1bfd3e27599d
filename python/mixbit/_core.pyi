"""
Native primitives of mixbit on mx.array; mixbit.ops is their public face.
"""

from collections.abc import Sequence

import mlx.core


class Weight:
    """
    A weight matrix [N, K] or a stack of them, packed or (without scales) dense, with its bias [N], the dtype of its product, and the bits that a 16-bit x is rounded to on a CPU.
    """

    def __init__(self, w: mlx.core.array, scales: mlx.core.array | None = None, biases: mlx.core.array | None = None, *, bias: mlx.core.array | None = None, group_size: int = 64, bits: int = 4, mode: str = 'affine', dtype: mlx.core.Dtype | None = None, activation_bits: int = 16) -> None: ...

class Norm:
    """An RMSNorm of x [..., K] that is part of a product."""

    def __init__(self, weight: mlx.core.array, eps: float) -> None: ...

def matmul(x: mlx.core.array, weights: Sequence[Weight], *, norm: Norm | None = None, residual: mlx.core.array | None = None, stream: mlx.core.Stream | mlx.core.ThreadLocalStream | mlx.core.Device | mlx.core.DeviceType | None = None) -> list[mlx.core.array]:
    """
    x [..., K] times the transpose of each weight, plus its bias: a list of [..., N].
    """

def swiglu(x: mlx.core.array, gate: Weight, up: Weight, *, norm: Norm | None = None, stream: mlx.core.Stream | mlx.core.ThreadLocalStream | mlx.core.Device | mlx.core.DeviceType | None = None) -> mlx.core.array:
    """SiLU(x gateᵀ) (x upᵀ): [..., N] in x's dtype."""

def gather_matmul(x: mlx.core.array, weight: Weight, indices: mlx.core.array, *, scores: mlx.core.array | None = None, stream: mlx.core.Stream | mlx.core.ThreadLocalStream | mlx.core.Device | mlx.core.DeviceType | None = None) -> mlx.core.array:
    """
    x [..., M, K] times the transposes of weight[indices], weight [E, N, K]: [indices..., M, N], or with scores summed over the last of the indices' dimensions.
    """

def gather_swiglu(x: mlx.core.array, gate: Weight, up: Weight, indices: mlx.core.array, *, stream: mlx.core.Stream | mlx.core.ThreadLocalStream | mlx.core.Device | mlx.core.DeviceType | None = None) -> mlx.core.array:
    """
    SiLU(x gate[indices]ᵀ) (x up[indices]ᵀ), stacks [E, N, K]: [indices..., M, N].
    """

def route(logits: mlx.core.array, slots: int, *, normalise: bool, stream: mlx.core.Stream | mlx.core.ThreadLocalStream | mlx.core.Device | mlx.core.DeviceType | None = None) -> tuple[mlx.core.array, mlx.core.array]:
    """
    The largest of a router's logits [..., E] and their softmax: (uint32, float32) [..., slots].
    """

def gated_delta(q: mlx.core.array, k: mlx.core.array, v: mlx.core.array, g: mlx.core.array, beta: mlx.core.array, state: mlx.core.array | None = None, mask: mlx.core.array | None = None, *, stream: mlx.core.Stream | mlx.core.ThreadLocalStream | mlx.core.Device | mlx.core.DeviceType | None = None) -> tuple[mlx.core.array, mlx.core.array]:
    """
    The gated delta rule over T steps: (y [B, T, Hv, Dv], state [B, Hv, Dv, Dk]).
    """

def delta_net(qkv: mlx.core.array, z: mlx.core.array | None, a: mlx.core.array, b: mlx.core.array | None, conv_weight: mlx.core.array, A_log: mlx.core.array, dt_bias: mlx.core.array, norm_weight: mlx.core.array, conv_state: mlx.core.array | None = None, state: mlx.core.array | None = None, mask: mlx.core.array | None = None, lengths: mlx.core.array | None = None, *, num_k_heads: int, eps: float, keep_steps: bool = False, stream: mlx.core.Stream | mlx.core.ThreadLocalStream | mlx.core.Device | mlx.core.DeviceType | None = None) -> tuple[mlx.core.array, mlx.core.array, mlx.core.array]:
    """
    GatedDeltaNet between its projections: (y [B, T, Hv Dv], convolution's state, state), with keep_steps the states after all steps.
    """

def attention(q: mlx.core.array, k: mlx.core.array, v: mlx.core.array, *, scale: float, causal: bool = False, mask: mlx.core.array | None = None, gate: mlx.core.array | None = None, stream: mlx.core.Stream | mlx.core.ThreadLocalStream | mlx.core.Device | mlx.core.DeviceType | None = None) -> mlx.core.array:
    """
    softmax(scale q kᵀ + mask) v, times sigmoid(gate): q [B, H, T, D], k and v [B, Hk, S, D], gate [B, T, H, D] -> [B, T, H, D].
    """

def norm_rope(x: mlx.core.array, norm: Norm, *, dims: int, base: float, scale: float, offset: int | mlx.core.array, stream: mlx.core.Stream | mlx.core.ThreadLocalStream | mlx.core.Device | mlx.core.DeviceType | None = None) -> mlx.core.array:
    """
    RMSNorm of heads and the rotation of their first dims values: x [B, T, H, D] -> [B, H, T, D].
    """

def kl_divergence(p_hidden: mlx.core.array, p_head: Weight, q_hidden: mlx.core.array, q_head: Weight | None, targets: mlx.core.array, *, vocabulary: int, stream: mlx.core.Stream | mlx.core.ThreadLocalStream | mlx.core.Device | mlx.core.DeviceType | None = None) -> mlx.core.array:
    """
    Softmax statistics of two models' logits, tile by tile: float64 [T, tiles, fields], float32 on a GPU.
    """

def quantize_search(w: mlx.core.array, importance: mlx.core.array | None = None, *, group_size: int, bits: int, dtype: mlx.core.Dtype, stream: mlx.core.Stream | mlx.core.ThreadLocalStream | mlx.core.Device | mlx.core.DeviceType | None = None) -> tuple[mlx.core.array, mlx.core.array, mlx.core.array]:
    """
    Affine codes, scales and biases of w [..., N, K] with the least squared error, weighted by the importance [..., K] of the input channels.
    """

class NoKernel(RuntimeError):
    pass

def metal_source(folder: str, launch: Launch) -> str:
    """
    What a device compiles for the launch, out of the files of metal/ in the folder.
    """

class Launch:
    """One launch of a Metal kernel: csrc/gpu/launch_plan.h."""

    @property
    def family(self) -> str:
        """File in metal/, without suffix."""

    @property
    def kernel(self) -> str: ...

    @property
    def instantiation(self) -> str:
        """MSL that makes the kernel."""

    @property
    def threadgroups(self) -> list[int]: ...

    @property
    def threads(self) -> list[int]:
        """Of one threadgroup."""

    @property
    def buffers(self) -> list[tuple[int, tuple[str, int]]]:
        """(buffer, (role, index)): role is 'input', 'output' or 'temporary'."""

    @property
    def params(self) -> bytes:
        """Bytes for buffer PARAMS_BUFFER."""

PARAMS_BUFFER: int = 0

class LaunchPlan:
    @property
    def launches(self) -> list[Launch]: ...

    @property
    def temporaries(self) -> list[int]:
        """Bytes of each."""

class MatmulPart:
    """A weight [N, K] without its arrays; bits 0 is a dense one."""

    def __init__(self, *, N: int, bits: int = 4, group_size: int = 64, mode: str = 'affine', dtype: mlx.core.Dtype, bias: mlx.core.Dtype | None = None, out: mlx.core.Dtype) -> None: ...

def launch_plan_matmul(*, M: int, K: int, x: mlx.core.Dtype, parts: Sequence[MatmulPart], swiglu: bool = False, norm: mlx.core.Dtype | None = None, eps: float = 0.0, residual: mlx.core.Dtype | None = None, generation: int = 15, size: str = 's') -> LaunchPlan:
    """
    Launches of matmul and swiglu for x [M, K] of dtype `x`; `norm` and `residual` are dtypes.
    """

def launch_plan_gather(*, tokens: int, slots: int, M: int = 1, K: int, experts: int, x: mlx.core.Dtype, parts: Sequence[MatmulPart], shared_x: bool = False, mix: bool = False, generation: int = 15, size: str = 's') -> LaunchPlan:
    """
    Launches of gather_matmul, of gather_swiglu for two parts; `mix`: with scores.
    """

def launch_plan_route(*, tokens: int, experts: int, slots: int, logits: mlx.core.Dtype, normalise: bool, generation: int = 15, size: str = 's') -> LaunchPlan:
    """Launches of route."""

def launch_plan_delta_net(*, B: int, T: int, Hk: int, Hv: int, Dk: int, Dv: int, taps: int = 4, x: mlx.core.Dtype, weights: Sequence[mlx.core.Dtype], present: Sequence[bool], interleaved: bool = False, keep_steps: bool = False, eps: float = 9.999999974752427e-07, generation: int = 15, size: str = 's') -> LaunchPlan:
    """
    Launches of delta_net; `weights`: dtypes of conv_weight, A_log, dt_bias and norm_weight; `present`: whether there are conv_state, state, mask and lengths.
    """

def launches_of(y: mlx.core.array, *, generation: int = 15, size: str = 's') -> tuple[LaunchPlan, list[mlx.core.array]]:
    """
    What a GPU would launch for an array that an operation is yet to compute, and the arrays it binds as inputs.
    """

def try_kernels(y: mlx.core.array, *, generation: int = 15, size: str = 's', stream: mlx.core.Stream | mlx.core.ThreadLocalStream | mlx.core.Device | mlx.core.DeviceType | None = None) -> str:
    """
    What is wrong with the stream's kernels for such an array, in a small case that the CPU computes as well; an empty text if nothing.
    """

def difference(got: Sequence[mlx.core.array], expected: Sequence[mlx.core.array]) -> str:
    """What is wrong with arrays that a kernel made, or an empty text."""

def isa() -> str:
    """Name of the instruction set whose kernels run."""

def isas() -> list[str]:
    """Instruction sets whose kernels this processor can run, best first."""

def num_threads() -> int:
    """Threads that one operation may use."""

mlx_version: str = '0.32.4'
