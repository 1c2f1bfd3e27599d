"""What quantising did."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

REPORT_SCHEMA = "mixbit.quantize/1"


@dataclass(frozen=True)
class QuantizeReport:
    """What :func:`mixbit.quantize` did.

    Attributes:
        out_dir: the checkpoint it wrote.
        bytes: bytes of all tensors in it, scales included.
        bpw: bits of those per parameter.
        params: parameters of the model.
        dense: modules that could be quantised but were not, each with the reason.
        carried: tensors of parts outside the text model, each with the file that holds it now.
        dropped: tensors of the source that the checkpoint does not hold, each with the reason.
        methods: how scales and codes were chosen, and of how many modules each.
        changed: tensors on which awq put scales.
        fallbacks: modules that were quantised by less than that, each with the reason.
        notes: remarks, such as on a method that was asked for and took no part.
        seconds: time it took.
    """

    out_dir: Path
    bytes: int
    bpw: float
    params: int
    dense: Mapping[str, str]
    carried: Mapping[str, str]
    dropped: Mapping[str, str]
    methods: Mapping[str, int]
    changed: int
    fallbacks: Mapping[str, str]
    notes: Sequence[str]
    seconds: float

    def to_json(self) -> dict[str, Any]:
        """The report as a JSON object."""
        return {"schema": REPORT_SCHEMA} | asdict(self) | {"out_dir": str(self.out_dir)}
