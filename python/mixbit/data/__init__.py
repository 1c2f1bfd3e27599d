"""Calibration documents, and the trained tiny model with its data, shipped with the package.

``calibration/README.md`` tells what the documents are. ``tools/tiny_model/README.md`` tells how the
model was made, what it scores and where it is weak.
"""

from importlib.resources import files
from pathlib import Path

from mixbit.errors import MixbitError

_DATA = ("calibration", "kld_eval", "tool_eval")


def _folder(name: str) -> Path:
    found = files(__name__) / name
    if not (isinstance(found, Path) and found.is_dir()):
        raise MixbitError(f"{name} is missing from this installation ({found}): reinstall mixbit.")
    return found


def calibration_data() -> Path:
    """JSONL file of the calibration documents for models of any size.

    Raises:
        MixbitError: if the package is not installed as plain files.
    """
    return _folder("calibration") / "documents.jsonl"


def tiny_model() -> Path:
    """Folder of the tiny Qwen3.5 model: bf16, Hugging Face layout, tokenizer and chat template.

    Raises:
        MixbitError: if the package is not installed as plain files.
    """
    return _folder("tiny-qwen3_5")


def tiny_data(name: str) -> Path:
    """JSONL file of the tiny model's held-out data.

    Args:
        name: ``"tool_eval"`` (200 prompts, each with the expected call), ``"kld_eval"`` or
            ``"calibration"`` (60 conversations each).

    Raises:
        MixbitError: if there is no data set of that name, or the package is not installed as
            plain files.
    """
    if name not in _DATA:
        known = ", ".join(_DATA)
        raise MixbitError(f"There is no tiny data set named {name!r}; choose one of {known}.")
    return _folder("tiny-qwen3_5-data") / f"{name}.jsonl"
