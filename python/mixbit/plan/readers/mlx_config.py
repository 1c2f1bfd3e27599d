"""The ``quantization`` block of an MLX model's ``config.json``, whoever wrote it.

mlx-lm, mlx-vlm, mlx-swift, AutoRound, mlx-node, mlx-optiq, JANG 2 and oMLX all write this block;
they differ in how they spell paths, in what they leave out and in what they add.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from mixbit.checkpoint import ModelStructure, and_more
from mixbit.errors import MixbitError, printable
from mixbit.plan.check import check
from mixbit.plan.entries import Entries, OnConflict
from mixbit.plan.foreign import refuse_private
from mixbit.plan.model import Plan
from mixbit.plan.readers.request import Request, block_in
from mixbit.plan.spec import QuantSpec, default_spec

_KEYS = {"bits", "group_size", "mode"}

# Switches that some writers put beside the entries; they say nothing about a module.
_FLAGS = {"sym", "symmetric", "desc_act", "static_groups", "true_sequential", "global_scale"}


def accepts(request: Request) -> bool:
    """Whether the file is a model's config, or a bare block."""
    document = request.document
    names = document.keys()
    return "model_type" in names or "quantization" in names or _KEYS - {"mode"} <= names


def read(request: Request) -> Plan:
    """Read a config or a bare block, which needs the model to be given."""
    document = request.document
    structure = request.model(document)
    block = document if _KEYS - {"mode"} <= document.keys() else mlx_block(document, request.path)
    if block is None:
        raise MixbitError(f"{request.path} has no quantization block; the model is not quantised.")
    return plan_of_block(block, structure, name=str(request.path), on_conflict=request.on_conflict)


def mlx_block(config: Mapping[str, Any], origin: object) -> Mapping[str, Any] | None:
    """The MLX block of a config, or None where it has none.

    ``quantization`` counts before ``quantization_config``, and the top of the config before its
    ``text_config``.

    Raises:
        MixbitError: the block is not an object, or describes a packing that MLX lacks.
    """
    if not isinstance(config.get("quantization", {}), dict | None):
        raise MixbitError(f"{origin}: quantization must be an object.")
    block: Mapping[str, Any] | None = config.get("quantization")
    if block is None:
        block = block_in(config, "quantization") or None
    if block is None:
        other = block_in(config, "quantization_config")
        block = other if _is_mlx(other) else None
    if block is not None:
        refuse_private(config.get("weight_format"), str(origin))
        refuse_private(block.get("mode"), str(origin))
    return block


def plan_of_block(
    block: Mapping[str, Any],
    structure: ModelStructure,
    *,
    name: str,
    on_conflict: OnConflict = "refuse",
) -> Plan:
    """Do what :meth:`mixbit.plan.Plan.from_mlx_config` describes."""
    entries = Entries(structure, f"{name}: quantization", on_conflict)
    if not block:
        return Plan(entries.settled(), name, {"format": "mlx"}, structure)
    top = top_level(block, name)
    for key, value in module_entries(block):
        entries.add(key, entry_spec(value, top, key, name))
    provenance: dict[str, Any] = {"format": "mlx"}
    if notes := [*entries.notes(), *_extra_notes(block)]:
        provenance["notes"] = notes
    plan = Plan(entries.settled(top), name, provenance, structure)
    check(plan, structure)
    return plan


def top_level(block: Mapping[str, Any], origin: str) -> QuantSpec:
    """The block's values for modules that it does not name.

    Raises:
        MixbitError: they are incomplete or nothing that MLX can pack.
    """
    missing = {"bits", "group_size"} - block.keys()
    if missing:
        raise MixbitError(
            f"{origin}: the quantization block lacks {' and '.join(sorted(missing))}."
        )
    spec = _spec({key: block[key] for key in _KEYS & block.keys()}, "the block itself", origin)
    if fault := spec.violation():
        raise MixbitError(f"{origin}: in the quantization block {fault}.")
    return spec


def module_entries(block: Mapping[str, Any]) -> Iterator[tuple[str, dict[str, Any] | bool]]:
    """The entries of a block that are about modules, not about the block."""
    for key, value in block.items():
        is_switch = isinstance(value, bool) and key not in _FLAGS
        is_entry = isinstance(value, dict) and (_KEYS & value.keys() or "." in key)
        if is_switch or is_entry:
            yield key, value


def entry_spec(
    value: Mapping[str, Any] | bool, top: QuantSpec, key: str, origin: str
) -> QuantSpec | None:
    """What one entry means, None for not quantised; values that MLX does not know are passed over.

    Raises:
        MixbitError: the entry is malformed, or describes a packing that MLX lacks.
    """
    if isinstance(value, bool):
        return top if value else None
    if value.get("symmetric_zero_point"):
        raise MixbitError(
            f"{origin}: {key} has symmetric_zero_point, so its biases are not stored, which MLX "
            "needs; start from the unquantised model."
        )
    return _spec(value, key, origin)


def _spec(value: Mapping[str, Any], key: str, origin: str) -> QuantSpec:
    # As mlx-lm has it: a mode that is not given is affine, whatever the top level says, and a
    # number that is missing or null is the mode's default.
    mode = value.get("mode", "affine")
    refuse_private(mode, f"{origin}: {key}")
    default = default_spec(mode) if isinstance(mode, str) else None
    if default is None:
        raise MixbitError(f"{origin}: quantization gives {key} the unknown mode {mode!r}.")
    bits, group_size = value.get("bits"), value.get("group_size")
    numbers = [number for number in (bits, group_size) if number is not None]
    if any(type(number) is not int for number in numbers):
        raise MixbitError(f"{origin}: quantization gives {key} {numbers}, not whole numbers.")
    return QuantSpec(
        default.bits if bits is None else bits,
        default.group_size if group_size is None else group_size,
        mode,
    )


def _is_mlx(block: Mapping[str, Any]) -> bool:
    """Whether a ``quantization_config`` is MLX's block and not another tool's."""
    return "quant_method" not in block and {"bits", "group_size"} <= block.keys()


def _extra_notes(block: Mapping[str, Any]) -> list[str]:
    extra = sorted(
        {name for _, value in module_entries(block) if isinstance(value, dict) for name in value}
        - _KEYS
    )
    if not extra:
        return []
    told = f"{printable(extra[0])}{and_more(len(extra) - 1)}"
    return [f"entries hold {told}, which stock mlx-lm refuses"]
