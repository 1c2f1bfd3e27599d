"""Reading model folders: what lies in them, and what model they describe."""

from mixbit.checkpoint.files import Checkpoint, TensorInfo, open_checkpoint, read_config, read_json
from mixbit.checkpoint.names import side_part
from mixbit.checkpoint.structure import (
    ModelStructure,
    ModuleShape,
    build_model,
    describe,
    parameter_shapes,
)
from mixbit.checkpoint.wording import and_more
from mixbit.checkpoint.write import write_json

__all__ = [
    "Checkpoint",
    "ModelStructure",
    "ModuleShape",
    "TensorInfo",
    "and_more",
    "build_model",
    "describe",
    "open_checkpoint",
    "parameter_shapes",
    "read_config",
    "read_json",
    "side_part",
    "write_json",
]
