"""Which file of a folder the plan is read from."""

from pathlib import Path

from mixbit.checkpoint import read_config
from mixbit.errors import MixbitError
from mixbit.plan.readers.mlx_config import mlx_block
from mixbit.plan.readers.request import block_in


def file_to_read(folder: Path) -> Path:
    """The folder itself where MLX weights or none at all decide; else the file that does.

    A packed MLX checkpoint and an unquantised one are read from their tensors. Of a model packed in
    another format, of a folder without weights and of a GGUF download, a file is read.

    Raises:
        MixbitError: it is a JANG checkpoint of version 1.
    """
    if next(folder.glob("*.jang"), None) is not None:
        raise MixbitError(
            f"{folder} is JANG of version 1, whose .jang files mixbit does not read; version 2 is "
            "read."
        )
    if not (folder / "config.json").exists():
        return next(iter(sorted(folder.glob("*.gguf"))), folder)
    config = read_config(folder)
    is_kquant = block_in(config, "quantization").get("mode") == "kquant"
    if is_kquant or next(folder.glob("*.safetensors"), None) is None:
        return folder / "config.json"
    if mlx_block(config, folder / "config.json") is not None:
        return folder
    if block_in(config, "quantization_config"):
        return folder / "config.json"
    return folder / "hf_quant_config.json" if (folder / "hf_quant_config.json").exists() else folder
