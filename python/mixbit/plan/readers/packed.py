"""What the tensors of a packed checkpoint are, whatever its config says of them.

Packed words and scale columns alone do not tell bits and group size apart (4/128 and 8/64 look the
same), but with the true width of the module from the model's own config they do. So the tensors
decide, and the config is only compared with them.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from mixbit.checkpoint import ModelStructure, ModuleShape, and_more
from mixbit.errors import MixbitError
from mixbit.plan.entries import Entries
from mixbit.plan.foreign import PRIVATE_SUFFIXES, refuse_private
from mixbit.plan.readers.mlx_config import entry_spec, mlx_block, module_entries, top_level
from mixbit.plan.spec import QuantSpec

_FLOATS = ("F16", "BF16", "F32")
_FP_MODES = {(4, 32): "mxfp4", (8, 32): "mxfp8", (4, 16): "nvfp4"}


@dataclass(frozen=True)
class Stored:
    """Element type, as safetensors names it, and shape of a tensor."""

    dtype: str
    shape: tuple[int, ...]

    def __str__(self) -> str:
        return f"{self.dtype} {list(self.shape)}"


def packed_specs(
    tensors: Mapping[str, Stored], structure: ModelStructure, origin: str
) -> dict[str, QuantSpec]:
    """How the modules of a checkpoint are packed, by what their tensors look like.

    Args:
        tensors: every tensor under its canonical name.
        structure: the model.
        origin: the checkpoint, for messages.

    Raises:
        MixbitError: tensors that do not belong together, to the model, or to any of MLX's modes.
    """
    for name in tensors:
        suffix = "." + name.rpartition(".")[2]
        refuse_private(PRIVATE_SUFFIXES.get(suffix), f"{origin}: {name.removesuffix(suffix)}")
    return {
        shape.path: _spec_of(shape, tensors, origin)
        for shape in structure.modules
        if f"{shape.path}.scales" in tensors
    }


def contradictions(
    config: Mapping[str, Any],
    packed: Mapping[str, QuantSpec],
    structure: ModelStructure,
    origin: str,
) -> list[str]:
    """One line for each thing that a config says otherwise than the tensors are, empty if none.

    Modules that the config does not name are held against its top-level values.
    """
    block = mlx_block(config, origin)
    if block is None:
        count = len(packed)
        return [f"config.json has no quantization block, but {count} modules are packed"] * (
            count > 0
        )
    lines: list[str] = []
    declared, top = _declared(block, structure, lines)
    left_to_top: list[str] = []
    for shape in structure.modules:
        found = packed.get(shape.path)
        if shape.path in declared and found != declared[shape.path]:
            lines.append(
                f"config.json says {declared[shape.path] or 'not quantised'} for {shape.path}, but "
                f"its tensors are {found or 'not quantised'}"
            )
        # Without scales, a module that is not named is what every reader takes it for: dense.
        elif shape.path not in declared and found not in (None, top):
            left_to_top.append(shape.path)
    if left_to_top:
        first = left_to_top[0]
        lines.append(
            f"config.json does not name {first}{and_more(len(left_to_top) - 1)}, whose tensors are "
            f"{packed[first]} and not, as its top level has it, {top or 'unknown'}"
        )
    return lines


def _declared(
    block: Mapping[str, Any], structure: ModelStructure, lines: list[str]
) -> tuple[dict[str, QuantSpec | None], QuantSpec | None]:
    """The entries and the top level as far as they make sense; what does not goes to ``lines``."""
    entries = Entries(structure, "config.json: quantization", "highest")
    top: QuantSpec | None = None
    try:
        top = top_level(block, "config.json") if block else None
    except MixbitError as error:
        lines.append(str(error).rstrip("."))
    for key, value in module_entries(block):
        try:
            spec = entry_spec(value, top or QuantSpec(0, 0), key, "config.json")
            entries.add(key, spec)
        except MixbitError as error:
            lines.append(str(error).rstrip("."))
    return entries.named(top), top


def _spec_of(shape: ModuleShape, tensors: Mapping[str, Stored], origin: str) -> QuantSpec:
    weight, scales, biases = (
        tensors.get(f"{shape.path}.{part}") for part in ("weight", "scales", "biases")
    )
    if weight is None or scales is None:
        raise MixbitError(f"{origin} holds {shape.path}.scales without {shape.path}.weight.")
    lead = (shape.experts, shape.out_dims) if shape.kind == "switch" else (shape.out_dims,)
    words, groups = weight.shape[-1:], scales.shape[-1:]
    fits = (
        weight.dtype == "U32"
        and (weight.shape, scales.shape) == (lead + words, lead + groups)
        and groups[0] > 0
        and shape.in_dims % groups[0] == 0
    )
    # Multiplied first: 3, 5 and 6 bits do not fit a whole number of times into a word.
    bits, rest = divmod(words[0] * 32, shape.in_dims) if fits else (0, 1)
    group_size = shape.in_dims // groups[0] if fits else 0
    spec = QuantSpec(bits, group_size, _mode(scales.dtype, bits, group_size))
    if rest or spec.violation(shape.in_dims):
        raise MixbitError(
            f"{origin}: {shape.path} is {' x '.join(map(str, (*lead, shape.in_dims)))}, to which "
            f"a packed weight of {weight} with scales of {scales} does not belong in any mode of "
            "MLX; start from the unquantised model."
        )
    _check_biases(spec, scales, biases, f"{origin}: {shape.path}")
    return spec


def _check_biases(spec: QuantSpec, scales: Stored, biases: Stored | None, where: str) -> None:
    if spec.mode == "affine" and biases is None:
        raise MixbitError(
            f"{where} is packed as {spec} without biases (symmetric zero point), which MLX needs; "
            "start from the unquantised model."
        )
    if biases is not None and (spec.mode != "affine" or biases.shape != scales.shape):
        raise MixbitError(
            f"{where} has scales of {scales} and biases of {biases}, which no mode of MLX has; "
            "start from the unquantised model."
        )


def _mode(scales_dtype: str, bits: int, group_size: int) -> str:
    if scales_dtype in _FLOATS:
        return "affine"
    return _FP_MODES.get((bits, group_size), "unknown") if scales_dtype == "U8" else "unknown"
