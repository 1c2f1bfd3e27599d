"""llama.cpp's tensor types, and the nearest thing that MLX can pack.

The k- and i-quants have scales of their own kind, or tables of values, so that MLX's affine mode
comes near them at the same bits but is not the same; which ones are exact is said here.
"""

from mixbit.errors import MixbitError
from mixbit.plan.spec import QuantSpec

_DENSE = ("f64", "f32", "f16", "bf16")

# Groups of 32 throughout: the finest that MLX has, and these types have blocks of 16 or 32.
_BITS = {
    8: ("q8_0", "q8_1", "q8_k"),
    6: ("q6_k",),
    5: ("q5_k", "q5_0", "q5_1"),
    4: ("q4_k", "q4_0", "q4_1", "iq4_xs", "iq4_nl"),
    3: ("q3_k", "iq3_s", "iq3_xxs"),
    2: ("q2_k", "iq2_xxs", "iq2_xs", "iq2_s", "iq1_s", "iq1_m", "tq1_0", "tq2_0", "q1_0"),
}

_TYPES: dict[str, QuantSpec | None] = {
    **dict.fromkeys(_DENSE),
    **{name: QuantSpec(bits, 32) for bits, names in _BITS.items() for name in names},
    "mxfp4": QuantSpec(4, 32, "mxfp4"),
    "nvfp4": QuantSpec(4, 16, "nvfp4"),
}

_EXACT = {*_DENSE, "q8_0", "q5_0", "q5_1", "q4_0", "q4_1", "mxfp4", "nvfp4"}

_WRITTEN = {8: "q8_0", 6: "q6_k", 5: "q5_k", 4: "q4_k", 3: "q3_k", 2: "q2_k"}


def is_type(name: str) -> bool:
    """Whether llama.cpp has a tensor type of that name, in either case."""
    return name.lower() in _TYPES


def spec_of(name: str, origin: object) -> QuantSpec | None:
    """The nearest packing of MLX's for a tensor type, None for a floating-point type.

    Raises:
        MixbitError: llama.cpp has no such type, or it is not one for weights.
    """
    if not is_type(name):
        raise MixbitError(
            f"{origin}: {name!r} is not a tensor type of llama.cpp's that mixbit knows; the types "
            f"are {', '.join(_TYPES)}."
        )
    return _TYPES[name.lower()]


def inexact(names: set[str]) -> list[str]:
    """A note that names those of the types that MLX does not reproduce exactly; none if none."""
    near = sorted({name.lower() for name in names} - _EXACT)
    return [f"only near in MLX, not the same values: {', '.join(near)}"] if near else []


def type_for(spec: QuantSpec | None) -> tuple[str, bool]:
    """The tensor type nearest to a packing, and whether reading it back gives the same packing."""
    if spec is None:
        return "bf16", True
    name = spec.mode if spec.mode in _TYPES else _WRITTEN[spec.bits]
    return name, _TYPES[name] == spec
