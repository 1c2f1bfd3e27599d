"""The reference cache: a reference model's last hidden states, which are its logits exactly.

A folder of safetensors files:

- ``stream.safetensors``: the tokens and what the protocol says of them;
- ``head.safetensors``: the output head, once;
- ``hidden-00000.safetensors``, ...: ``hidden [tokens, size]``, a unit of the stream in each, in the
  model's own dtype, of the scored tokens only;
- ``manifest.json``: what all this is of, and the checksum of every file. It is written last.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import mlx.core as mx

from mixbit.checkpoint import read_json, write_json
from mixbit.errors import MixbitError
from mixbit.kld.files import JOB, begin, save, see_together, sha256
from mixbit.kld.identity import tokenizer_hash, versions
from mixbit.kld.ranks import ranks
from mixbit.kld.scorer import Head
from mixbit.kld.stream import Stream
from mixbit.kld.stream_file import STREAM, read_stream, write_stream
from mixbit.kld.windows import Chunk
from mixbit.ops import Weight

SCHEMA = "mixbit.kld-reference/1"
MANIFEST = "manifest.json"
_HEAD = "head.safetensors"
_HEAD_ARRAYS = ("w", "scales", "biases", "bias")


def is_cache(path: Path | str) -> bool:
    """Whether a folder is a reference cache, finished or not."""
    folder = Path(path)
    return any((folder / name).is_file() for name in (MANIFEST, JOB))


def refuse_finished(folder: Path) -> None:
    """Refuse to make a cache where one is."""
    if (folder / MANIFEST).exists():
        raise MixbitError(f"{folder} holds a finished reference; name a new folder.")


def shard_name(unit: int) -> str:
    """Name of the file of a unit's hidden states."""
    return f"hidden-{unit:05d}.safetensors"


class CacheWriter:
    """Fills a cache folder; units that are there already need not be made again."""

    def __init__(
        self,
        folder: Path,
        stream: Stream,
        head: Weight,
        hidden: mx.array,
        description: dict[str, Any],
    ) -> None:
        """Begin or take up again; ``hidden`` has the dtype and width of all hidden states."""
        self.folder, self._stream, self._head = folder, stream, head
        self._width, self._itemsize = hidden.shape[-1], hidden.itemsize
        self._job = {
            "schema": SCHEMA,
            **description,
            "stream": stream.describe(),
            "kinds": list(stream.kind_names),
            "hidden": {"dtype": str(hidden.dtype).removeprefix("mlx.core."), "size": self._width},
            "head": {"bits": head.bits, "group_size": head.group_size, "mode": head.mode},
            "versions": versions(),
        }

    @property
    def nbytes(self) -> int:
        """Bytes that the finished cache takes, give or take some headers."""
        head = sum(array.nbytes for array in self._head_arrays().values())
        return (
            self._hidden_bytes(range(len(self._stream.units))) + head + self._stream.tokens.nbytes
        )

    def begin(self) -> None:
        """See that the disk has room, make the folder, and write the small files."""
        if ranks().index == 0:
            self._refuse_full_disk()
            begin(self.folder, self._job)
            write_stream(self.folder, self._stream)
            arrays = self._head_arrays()
            save(self.folder / _HEAD, lambda path: mx.save_safetensors(str(path), arrays))
        see_together(self.folder)

    def has(self, unit: int) -> bool:
        """Whether a unit is finished."""
        return (self.folder / shard_name(unit)).exists()

    def put(self, unit: int, hidden: mx.array) -> None:
        """Write a unit's hidden states ``[tokens, size]``."""
        path = self.folder / shard_name(unit)
        save(path, lambda beside: mx.save_safetensors(str(beside), {"hidden": hidden}))

    def finish(self) -> None:
        """Write the manifest."""
        ranks().wait()
        if ranks().index == 0:
            names = [_HEAD, STREAM, *map(shard_name, range(len(self._stream.units)))]
            files = {
                name: {
                    "sha256": sha256(self.folder / name),
                    "bytes": (self.folder / name).stat().st_size,
                }
                for name in names
            }
            write_json(self.folder / MANIFEST, {**self._job, "files": files})
            (self.folder / JOB).unlink()
        ranks().wait()

    def _head_arrays(self) -> dict[str, mx.array]:
        arrays = {name: getattr(self._head, name) for name in _HEAD_ARRAYS}
        return {name: array for name, array in arrays.items() if array is not None}

    def _hidden_bytes(self, units: Sequence[int]) -> int:
        rows = (self._stream.unit_rows(self._stream.units[unit]) for unit in units)
        return sum(slice_.stop - slice_.start for slice_ in rows) * self._width * self._itemsize

    def _refuse_full_disk(self) -> None:
        done = [unit for unit in range(len(self._stream.units)) if self.has(unit)]
        needed = self.nbytes - self._hidden_bytes(done)
        place = self.folder if self.folder.exists() else self.folder.absolute().parent
        try:
            free = shutil.disk_usage(place).free
        except OSError as error:
            raise MixbitError(f"{self.folder} cannot be made: {error.strerror}.") from None
        if free < needed:
            raise MixbitError(
                f"The reference takes {needed / 1e6:,.1f} MB, but only {free / 1e6:,.1f} MB are "
                f"free at {self.folder}."
            )


class ReferenceCache:
    """A finished cache, opened; every file is checked when it is read."""

    def __init__(self, folder: Path) -> None:
        """Read the manifest, the stream and the head.

        Raises:
            MixbitError: the cache is unfinished, damaged or of another version.
        """
        self.folder = folder
        if not (folder / MANIFEST).exists():
            raise MixbitError(
                f"The reference in {folder} is unfinished; run the command that makes it again."
            )
        self.manifest = read_json(folder / MANIFEST)
        if self.manifest.get("schema") != SCHEMA:
            raise MixbitError(
                f"{folder / MANIFEST} has the schema {self.manifest.get('schema')!r}, not "
                f"{SCHEMA}; make the reference again."
            )
        try:
            self.stream = self._read_stream()
            self.head = Head.of_weight(self._read_head())
            self.vocab_size = int(self.manifest["vocab_size"])
            self.tokenizer_sha256 = self.manifest["tokenizer_sha256"]
        except (KeyError, TypeError, ValueError) as error:
            raise MixbitError(
                f"{folder} is not a whole reference ({error!r}); make it again."
            ) from None
        self._first, self._hidden = 0, mx.zeros((0, 0))

    def check_tokenizers(self, tokenizers: Sequence[Any]) -> None:
        """Refuse candidates that speak another vocabulary."""
        for tokenizer in tokenizers:
            if None not in (tokenizer, self.tokenizer_sha256) and (
                tokenizer_hash(tokenizer) != self.tokenizer_sha256
            ):
                raise MixbitError(
                    "The models have different tokenizers; a divergence needs one vocabulary."
                )

    def open_unit(self, unit: int) -> None:
        """Read a unit's hidden states."""
        rows = self.stream.unit_rows(self.stream.units[unit])
        hidden = self._read(shard_name(unit))["hidden"]
        if hidden.shape != (rows.stop - rows.start, self.manifest["hidden"]["size"]):
            raise MixbitError(f"{self.folder / shard_name(unit)} has a wrong shape; make it again.")
        self._first, self._hidden = rows.start, hidden

    def hidden(self, chunk: Chunk) -> mx.array:
        """Hidden states ``[N, size]`` of a chunk of the open unit."""
        return self._hidden[mx.array(chunk.rows - self._first)]

    def _read(self, name: str) -> dict[str, mx.array]:
        self._check(name)
        arrays: Any = mx.load(str(self.folder / name))
        mx.eval(arrays)
        return arrays

    def _check(self, name: str) -> None:
        if sha256(self.folder / name) != self.manifest["files"][name]["sha256"]:
            raise MixbitError(f"{self.folder / name} is damaged; make the reference again.")

    def _read_stream(self) -> Stream:
        self._check(STREAM)
        stream = read_stream(self.folder, self.manifest)
        if stream.describe() != self.manifest["stream"]:
            raise MixbitError(f"{self.folder / STREAM} is not what its manifest says.")
        return stream

    def _read_head(self) -> Weight:
        arrays, form = self._read(_HEAD), self.manifest["head"]
        return Weight(
            arrays["w"],
            arrays.get("scales"),
            arrays.get("biases"),
            arrays.get("bias"),
            bits=int(form["bits"]),
            group_size=int(form["group_size"]),
            mode=str(form["mode"]),
        )
