"""Reading model folders: what lies in them, and what model they describe."""

from mixbit.checkpoint.carry import copy_tensors
from mixbit.checkpoint.files import (
    Checkpoint,
    TensorInfo,
    open_checkpoint,
    read_config,
    read_header,
    read_json,
)
from mixbit.checkpoint.model import (
    build_model,
    describe,
    parameter_shapes,
    settled_config,
    structure_of,
)
from mixbit.checkpoint.names import PREFIXES, side_part, stem_of
from mixbit.checkpoint.structure import ModelStructure, ModuleShape
from mixbit.checkpoint.tensors import DTYPE_NAMES, Layout, file_header, gather_rows, read_rows
from mixbit.checkpoint.weights import (
    TIED_BUT_OTHER,
    ModelWeights,
    load_file,
    model_weights,
    settle,
)
from mixbit.checkpoint.wording import and_more
from mixbit.checkpoint.write import write_bytes, write_json

__all__ = [
    "DTYPE_NAMES",
    "PREFIXES",
    "TIED_BUT_OTHER",
    "Checkpoint",
    "Layout",
    "ModelStructure",
    "ModelWeights",
    "ModuleShape",
    "TensorInfo",
    "and_more",
    "build_model",
    "copy_tensors",
    "describe",
    "file_header",
    "gather_rows",
    "load_file",
    "model_weights",
    "open_checkpoint",
    "parameter_shapes",
    "read_config",
    "read_header",
    "read_json",
    "read_rows",
    "settle",
    "settled_config",
    "side_part",
    "stem_of",
    "structure_of",
    "write_bytes",
    "write_json",
]
