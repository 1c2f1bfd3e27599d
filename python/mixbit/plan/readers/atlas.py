"""Atlas' ``metadata.json``: bits per decoder layer."""

from mixbit.checkpoint import stem_of
from mixbit.errors import MixbitError
from mixbit.plan.model import Plan
from mixbit.plan.readers.request import Request, whole_number
from mixbit.plan.spec import QuantSpec

_GROUP_SIZE = 64  # the file holds none


def accepts(request: Request) -> bool:
    """Whether it holds ``mixed_quant``."""
    return isinstance(request.document.get("mixed_quant"), dict)


def read(request: Request) -> Plan:
    """Give every module of a layer the layer's bits; embedding and head are left as they are."""
    structure = request.model(request.document)
    layers = request.document["mixed_quant"].get("layers")
    if not isinstance(layers, list) or not all(isinstance(layer, dict) for layer in layers):
        raise MixbitError(f"{request.path}: mixed_quant needs a list of layers.")
    entries = request.entries(structure)
    for layer in layers:
        index, bits = whole_number(layer.get("layer_index")), whole_number(layer.get("bits"))
        members = [
            shape.path
            for shape in structure.modules
            if stem_of(shape.path).startswith(f"layers.{index}.")
        ]
        if bits is None or not members:
            raise MixbitError(
                f"{request.path}: layer_index {layer.get('layer_index')!r} with bits "
                f"{layer.get('bits')!r} is nothing of this {structure.model_type} model."
            )
        for path in members:
            entries.put(path, "", QuantSpec(bits, _GROUP_SIZE) if bits < 16 else None)
    provenance = {"format": "atlas", "notes": [f"groups of {_GROUP_SIZE}: the file names none"]}
    return Plan(entries.settled(), str(request.path), provenance, structure)
