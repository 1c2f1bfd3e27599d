"""A folder that appears whole or not at all."""

import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from mixbit.errors import MixbitError
from mixbit.quantization.shards import flush


@contextmanager
def staged(out_dir: Path) -> Iterator[Path]:
    """Give a hidden folder beside ``out_dir`` to write to, and rename it to that on success.

    Whatever ends the block early, Ctrl-C included, removes the folder and the parents that were
    made for it.

    Raises:
        MixbitError: ``out_dir`` exists, at the start or at the end, or cannot be written.
    """
    refuse_existing(out_dir)
    staging = out_dir.with_name(f".{out_dir.name}.{secrets.token_hex(4)}")
    new_parents = [parent for parent in staging.parents if not parent.exists()]
    try:
        staging.mkdir(parents=True)
        yield staging
        flush([*staging.iterdir(), staging])
        refuse_existing(out_dir)
        staging.rename(out_dir)
        flush([out_dir.parent])
    except BaseException as error:
        shutil.rmtree(staging, ignore_errors=True)
        for parent in new_parents:
            with suppress(OSError):
                parent.rmdir()
        if isinstance(error, OSError):
            raise MixbitError(f"{out_dir} cannot be written: {error.strerror}.") from None
        raise


def refuse_existing(out_dir: Path) -> None:
    """Raise MixbitError if there is anything at ``out_dir``."""
    if out_dir.exists() or out_dir.is_symlink():
        raise MixbitError(f"{out_dir} exists already; remove it or name another folder.")
