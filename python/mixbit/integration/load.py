"""mlx-lm's ``load`` with mixbit's layers."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

from mixbit.backend import MixbitWarning
from mixbit.checkpoint import read_config
from mixbit.errors import MixbitError
from mixbit.integration.accelerate import accelerate
from mixbit.integration.activation_bits import check_activation_bits, set_activation_bits
from mixbit.integration.checkpoint import is_mlx, load_model

__all__ = ["load", "resolve"]


def resolve(path_or_hub_id: str | Path, revision: str | None = None) -> Path:
    """The local folder of a model: a folder as it is, a hub id downloaded.

    Raises:
        MixbitError: if it is neither.
    """
    folder = Path(path_or_hub_id)
    if folder.is_dir():
        return folder
    name = str(path_or_hub_id)
    if folder.exists():
        raise MixbitError(f"{name} is a file, not a model folder; name the folder that holds it.")
    if folder.is_absolute() or name.count("/") != 1 or name.startswith((".", "~", "/")):
        raise MixbitError(f"There is no model folder {name}; check the path.")
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError
    from mlx_lm.utils import _download

    try:
        return Path(_download(name, revision=revision))
    except (OSError, HfHubHTTPError, HFValidationError) as error:
        raise MixbitError(
            f"{name} is no folder here and could not be downloaded from the hub "
            f"({type(error).__name__}); check the name and the network."
        ) from error


def load(
    path_or_hub_id: str | Path,
    tokenizer_config: dict[str, Any] | None = None,
    model_config: dict[str, Any] | None = None,
    adapter_path: str | None = None,
    lazy: bool = False,
    return_config: bool = False,
    revision: str | None = None,
    trust_remote_code: bool = False,
    activation_bits: int = 16,
) -> Any:
    """``mlx_lm.load`` with fast layers installed; the same arguments and results.

    ``activation_bits`` is for generation on a CPU and takes effect where :class:`mixbit.ops.Weight`
    says: with 8 the packed products of a step round activations to 8 bits, as llama.cpp does.

    Every MLX checkpoint is loaded by what its tensors are. Each thing that its ``config.json``
    says otherwise is told in a :class:`MixbitWarning`, and the config that ``return_config`` asks
    for says what is true.

    Returns:
        (model, tokenizer), and the config as a third with ``return_config``.

    Raises:
        MixbitError: if there is no such model, or it cannot be loaded, or for other
            ``activation_bits`` than 8 and 16.
    """
    check_activation_bits(activation_bits)
    folder = resolve(path_or_hub_id, revision)
    config = read_config(folder) | (model_config or {})
    lines: list[str] = []
    loaded: Any
    try:
        if is_mlx(folder, config):
            loaded, lines = _load_mlx(folder, tokenizer_config, model_config, adapter_path, lazy)
        else:
            import mlx_lm

            loaded = mlx_lm.load(
                str(folder),
                tokenizer_config=tokenizer_config,
                model_config=model_config,
                adapter_path=adapter_path,
                lazy=lazy,
                return_config=True,
                trust_remote_code=trust_remote_code,
            )
    except (OSError, ValueError, KeyError, RuntimeError, TypeError) as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise MixbitError(f"{path_or_hub_id} could not be loaded: {reason}") from error
    for line in lines:
        warnings.warn(f"{path_or_hub_id}: {line}.", MixbitWarning, stacklevel=2)
    accelerate(loaded[0])
    set_activation_bits(loaded[0], activation_bits)
    return loaded if return_config else loaded[:2]


def _load_mlx(
    folder: Path,
    tokenizer_config: dict[str, Any] | None,
    model_config: dict[str, Any] | None,
    adapter_path: str | None,
    lazy: bool,
) -> tuple[tuple[Any, Any, dict[str, Any]], list[str]]:
    from mlx_lm.utils import load_adapters, load_config, load_tokenizer

    config = load_config(folder) | (model_config or {})
    model, config, lines = load_model(folder, config, lazy=lazy)
    if adapter_path is not None:
        model = load_adapters(model, adapter_path).eval()
    tokenizer = load_tokenizer(
        folder, tokenizer_config, eos_token_ids=config.get("eos_token_id", None)
    )
    return (model, tokenizer, config), lines
