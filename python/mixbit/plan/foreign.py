"""Ways of packing weights that other tools have and MLX has not."""

from mixbit.errors import MixbitError

_MODES = {
    "sym8": "mlx-node",
    "fp8_e4m3": "mlx-node",
    "q4k": "mlx-node",
    "q5k": "mlx-node",
    "q6k": "mlx-node",
    "kquant": "mlx-kquant",
    "iqk": "mlx-iqk",
    "mxtq": "JANG",
    "tq": "JANG",
}

PRIVATE_SUFFIXES = {
    ".tq_packed": "mxtq",
    ".tq_norms": "mxtq",
    ".tq_bits": "mxtq",
}
"""Last components of tensor names that give a packing away."""


def refuse_private(mode: object, where: str) -> None:
    """Raise if ``mode`` is the name of a packing that only its own tool can run.

    Raises:
        MixbitError: it is.
    """
    author = _MODES.get(mode) if isinstance(mode, str) else None
    if author is not None:
        raise MixbitError(
            f"{where} is packed as {mode}, a format of {author}'s own that MLX cannot run; start "
            "from the unquantised model."
        )
