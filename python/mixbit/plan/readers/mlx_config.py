"""The ``quantization`` block of an mlx-lm ``config.json``."""

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from mixbit.checkpoint import ModelStructure, describe, side_part
from mixbit.errors import MixbitError
from mixbit.plan.check import check, nearest
from mixbit.plan.model import Plan
from mixbit.plan.spec import QuantSpec, default_spec

if TYPE_CHECKING:
    from mixbit.plan.readers import Source

_KEYS = {"bits", "group_size", "mode"}

# How published files spell the part of a path before ``layers.N``, longest first.
_PREFIXES = ("language_model.model.", "model.language_model.", "language_model.", "model.")


def accepts(source: "Source") -> bool:
    """Whether the file is a model's config, or a bare block."""
    document = source.document
    return (
        "model_type" in document
        or "quantization" in document
        or _KEYS - {"mode"} <= (document.keys())
    )


def read(source: "Source", structure: ModelStructure | None) -> Plan:
    """Read a config or a bare block, which needs the model to be given."""
    document = source.document
    if structure is None and "model_type" not in document:
        raise MixbitError(f"{source.path} does not say which model it is for; name the model too.")
    structure = structure or describe(document)
    block = document if _KEYS - {"mode"} <= document.keys() else block_of(document, source.path)
    if block is None:
        raise MixbitError(f"{source.path} has no quantization block; the model is not quantised.")
    return plan_of_block(block, structure, name=str(source.path))


def block_of(config: Mapping[str, Any], origin: object) -> Mapping[str, Any] | None:
    """The block of a config, or None for a model that is not quantised.

    Raises:
        MixbitError: the model is quantised in a format that is not mlx-lm's.
    """
    block = config.get("quantization")
    if block is None and (foreign := foreign_format(config)):
        raise MixbitError(f"{origin} is quantised as {foreign}, which mixbit does not read.")
    if block is not None and not isinstance(block, dict):
        raise MixbitError(f"{origin}: quantization must be an object.")
    return block


def foreign_format(config: Mapping[str, Any]) -> str | None:
    """What the config says the weights are quantised as, if not in mlx-lm's ``quantization``."""
    text = config.get("text_config")
    for place in (config, text if isinstance(text, dict) else {}):
        block = place.get("quantization_config")
        if block:
            return str(block.get("quant_method", "?")) if isinstance(block, dict) else "?"
    return None


def plan_of_block(block: Mapping[str, Any], structure: ModelStructure, *, name: str) -> Plan:
    """Do what :meth:`mixbit.plan.Plan.from_mlx_config` describes."""
    if not block:
        return Plan(dict.fromkeys(module_paths(structure)), name, {"format": "mlx"}, structure)
    top = top_level(block, name)
    named = named_entries(block, structure, name)
    modules = {
        shape.path: named[shape.path]
        if shape.path in named
        else (top if top.violation(shape.in_dims) is None else None)
        for shape in structure.modules
    }
    plan = Plan(modules, name, {"format": "mlx"}, structure)
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


def named_entries(
    block: Mapping[str, Any], structure: ModelStructure, origin: str
) -> dict[str, QuantSpec | None]:
    """What the block says of single modules, by their real paths.

    Entries for the vision tower and for MTP layers are passed over: those parts are not in
    mlx-lm's model.

    Raises:
        MixbitError: an entry names no module, is malformed, or contradicts another one.
    """
    top = top_level(block, origin)
    entries: dict[str, QuantSpec | None] = {}
    resolve = PathResolver(module_paths(structure))
    for key, value in block.items():
        if not isinstance(value, dict | bool) or side_part(key):
            continue
        path = resolve(key)
        if path is None:
            raise MixbitError(
                f"{origin}: quantization names {key}, which is no module of this "
                f"{structure.model_type} model that can be quantised{nearest(key, resolve.paths)}."
            )
        spec = _entry(value, top, key, origin)
        if entries.setdefault(path, spec) != spec:
            raise MixbitError(f"{origin}: quantization has two entries for {path} that differ.")
    return entries


def module_paths(structure: ModelStructure) -> tuple[str, ...]:
    """The paths of all modules that can be quantised."""
    return tuple(shape.path for shape in structure.modules)


class PathResolver:
    """Finds the module that a key means, whichever prefix its author has used."""

    def __init__(self, paths: Iterable[str]) -> None:
        self.paths = frozenset(paths)
        self._by_stem = {_stem(path): path for path in self.paths}

    def __call__(self, key: str) -> str | None:
        """The real path, or None if there is no such module."""
        return key if key in self.paths else self._by_stem.get(_stem(key))


def _stem(path: str) -> str:
    prefix = next((prefix for prefix in _PREFIXES if path.startswith(prefix)), "")
    return path.removeprefix(prefix)


def _entry(value: dict[str, Any] | bool, top: QuantSpec, key: str, origin: str) -> QuantSpec | None:
    if isinstance(value, bool):
        return top if value else None
    unknown = value.keys() - _KEYS
    if unknown:
        raise MixbitError(
            f"{origin}: quantization gives {key} the key {min(unknown)!r}, which mlx-lm refuses."
        )
    return _spec(value, key, origin)


def _spec(value: Mapping[str, Any], key: str, origin: str) -> QuantSpec:
    # As mlx-lm has it: a mode that is not given is affine, whatever the top level says, and a
    # number that is missing or null is the mode's default.
    mode = value.get("mode", "affine")
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
