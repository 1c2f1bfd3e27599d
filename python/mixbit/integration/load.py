"""mlx-lm's ``load`` with mixbit's layers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from mixbit.errors import MixbitError
from mixbit.integration.accelerate import accelerate

__all__ = ["load", "resolve"]


def resolve(path_or_hub_id: str | Path) -> Path:
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
        return Path(_download(name))
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
) -> Any:
    """``mlx_lm.load`` with fast layers installed; the same arguments and results.

    Returns:
        (model, tokenizer), and the config as a third with ``return_config``.

    Raises:
        MixbitError: if there is no such model, or mlx-lm cannot load it.
    """
    import mlx_lm

    try:
        loaded = mlx_lm.load(
            str(path_or_hub_id) if revision is not None else str(resolve(path_or_hub_id)),
            tokenizer_config=tokenizer_config,
            model_config=model_config,
            adapter_path=adapter_path,
            lazy=lazy,
            return_config=return_config,
            revision=revision,
            trust_remote_code=trust_remote_code,
        )
    except (OSError, ValueError, KeyError, RuntimeError, TypeError) as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise MixbitError(f"{path_or_hub_id} could not be loaded: {reason}") from error
    accelerate(loaded[0])
    return loaded
