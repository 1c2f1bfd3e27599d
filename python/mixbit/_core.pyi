"""
Native primitives of mixbit on mx.array; mixbit.ops is their public face.
"""

import mlx.core


def quantized_matmul(x: mlx.core.array, w: mlx.core.array, scales: mlx.core.array, biases: mlx.core.array | None = None, *, bias: mlx.core.array | None = None, group_size: int = 64, bits: int = 4, mode: str = 'affine', stream: mlx.core.Stream | mlx.core.ThreadLocalStream | mlx.core.Device | mlx.core.DeviceType | None = None) -> mlx.core.array:
    """
    x [..., K] times the transpose of a packed weight [N, K], plus bias [N]: [..., N] in x's dtype.
    """

def linear(x: mlx.core.array, w: mlx.core.array, *, bias: mlx.core.array | None = None, stream: mlx.core.Stream | mlx.core.ThreadLocalStream | mlx.core.Device | mlx.core.DeviceType | None = None) -> mlx.core.array:
    """
    x [..., K] times the transpose of a dense weight [N, K], plus bias [N]: [..., N] in x's dtype.
    """

def gather_quantized_matmul(x: mlx.core.array, w: mlx.core.array, scales: mlx.core.array, biases: mlx.core.array | None, indices: mlx.core.array, *, group_size: int = 64, bits: int = 4, mode: str = 'affine', stream: mlx.core.Stream | mlx.core.ThreadLocalStream | mlx.core.Device | mlx.core.DeviceType | None = None) -> mlx.core.array:
    """
    x [..., M, K] times the transposes of w[indices], w packed [E, N, K]: [indices..., M, N].
    """

def gather_linear(x: mlx.core.array, w: mlx.core.array, indices: mlx.core.array, *, stream: mlx.core.Stream | mlx.core.ThreadLocalStream | mlx.core.Device | mlx.core.DeviceType | None = None) -> mlx.core.array:
    """
    x [..., M, K] times the transposes of w[indices], w dense [E, N, K]: [indices..., M, N].
    """

def gated_delta(q: mlx.core.array, k: mlx.core.array, v: mlx.core.array, g: mlx.core.array, beta: mlx.core.array, state: mlx.core.array | None = None, mask: mlx.core.array | None = None, *, stream: mlx.core.Stream | mlx.core.ThreadLocalStream | mlx.core.Device | mlx.core.DeviceType | None = None) -> tuple[mlx.core.array, mlx.core.array]:
    """
    The gated delta rule over T steps: (y [B, T, Hv, Dv], state [B, Hv, Dv, Dk]).
    """

def attention(q: mlx.core.array, k: mlx.core.array, v: mlx.core.array, *, scale: float, causal: bool = False, mask: mlx.core.array | None = None, stream: mlx.core.Stream | mlx.core.ThreadLocalStream | mlx.core.Device | mlx.core.DeviceType | None = None) -> mlx.core.array:
    """
    softmax(scale q kᵀ + mask) v: q [B, H, T, D], k and v [B, Hk, S, D] -> [B, H, T, D].
    """

def isa() -> str:
    """Name of the instruction set whose kernels run."""

def num_threads() -> int:
    """Threads that one operation may use."""

mlx_version: str = '0.32.4'
