"""compressed-tensors: groups of modules with one scheme each, and a list of what to leave out."""

import re
from collections.abc import Iterable, Mapping
from typing import Any

from mixbit.errors import MixbitError
from mixbit.plan.model import Plan
from mixbit.plan.patterns import compiled
from mixbit.plan.readers.hf import Hit, Rules, block_of, finished, gather
from mixbit.plan.readers.request import Request, whole_number
from mixbit.plan.spec import QuantSpec

_CLASSES = ("Linear", "Embedding")
_FLOAT_FORMATS = {
    "mxfp4-pack-quantized": QuantSpec(4, 32, "mxfp4"),
    "nvfp4-pack-quantized": QuantSpec(4, 16, "nvfp4"),
    "mxfp8-quantized": QuantSpec(8, 32, "mxfp8"),
}


def accepts(request: Request) -> bool:
    """Whether the block has ``config_groups``, or says that it is of this format."""
    block = block_of(request)
    return "config_groups" in block or block.get("quant_method") == "compressed-tensors"


def read(request: Request) -> Plan:
    """Read the groups in order; what none targets, or ``ignore`` names, is left as it is."""
    structure = request.model(request.document)
    block = block_of(request)
    groups, ignore = block.get("config_groups"), block.get("ignore") or []
    if not isinstance(groups, dict) or not isinstance(ignore, list):
        raise MixbitError(f"{request.path}: config_groups must be an object and ignore a list.")
    schemes = {
        name: (_targets(group, name, request.path), Hit(_scheme(group, block, name, request.path)))
        for name, group in groups.items()
    }
    patterns = [(_matcher(target, request.path), Hit(None)) for target in ignore]
    for targets, hit in schemes.values():
        patterns += [(_matcher(t, request.path), hit) for t in targets if t not in _CLASSES]
    rules = Rules(patterns)
    entries = request.entries(structure)
    gather(entries, rules)
    by_class = _by_class(schemes.values())
    named = entries.named()
    for shape in structure.modules:
        kind = "Embedding" if shape.kind == "embedding" else "Linear"
        of_class = by_class.get(kind)
        if of_class is not None and shape.path not in named:
            entries.put(shape.path, "", of_class.spec)
    return finished(
        request, structure, entries, None, lambda _: False,
        format_name="compressed-tensors", notes=rules.notes(),
    )  # fmt: skip


def _targets(group: object, name: str, origin: object) -> list[object]:
    targets = group.get("targets") if isinstance(group, dict) else None
    if not isinstance(targets, list):
        raise MixbitError(f"{origin}: {name} has no list of targets.")
    return targets


def _by_class(schemes: Iterable[tuple[list[object], Hit]]) -> dict[object, Hit]:
    """What the groups say of whole classes of modules; the first that names one counts."""
    found: dict[object, Hit] = {}
    for targets, hit in schemes:
        for target in targets:
            if target in _CLASSES:
                found.setdefault(target, hit)
    return found


def _matcher(target: object, origin: object) -> re.Pattern[str]:
    if isinstance(target, str) and target.startswith("re:"):
        return compiled(target.removeprefix("re:"), origin)
    return re.compile(re.escape(str(target)) + r"\Z")


def _scheme(
    group: Mapping[str, Any], block: Mapping[str, Any], name: str, origin: object
) -> QuantSpec | None:
    """The packing of one group, None where only activations are quantised.

    Raises:
        MixbitError: MLX has nothing like it.
    """
    where, weights = f"{origin}: {name}", group.get("weights")
    if weights is None:
        return None
    if not isinstance(weights, dict):
        raise MixbitError(f"{where}: weights must be an object.")
    packing = group.get("format") or block.get("format")
    if isinstance(packing, str) and packing in _FLOAT_FORMATS:
        return _FLOAT_FORMATS[packing]
    strategy, kind = weights.get("strategy"), weights.get("type", "int")
    bits, group_size = (
        whole_number(weights.get("num_bits")),
        whole_number(weights.get("group_size")),
    )
    if strategy == "tensor_group" and (kind, bits) == ("float", 4):
        return _FLOAT_FORMATS["nvfp4-pack-quantized"]
    if kind != "int" or bits is None or group_size is None or strategy not in (None, "group"):
        raise MixbitError(
            f"{where} has weights of type {kind} by strategy {strategy}, which MLX cannot pack; "
            "requantise in groups of 32, 64 or 128."
        )
    spec = QuantSpec(bits, group_size)
    if fault := spec.violation():
        raise MixbitError(f"{where}: {fault}.")
    return spec
