"""What a reader is asked for: a source, and how to read it."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from mixbit.checkpoint import ModelStructure, describe, read_json
from mixbit.errors import MixbitError
from mixbit.plan.entries import Entries, OnConflict


@dataclass(frozen=True)
class Request:
    """A file or folder to read a plan from; its content is read once, when wanted.

    Attributes:
        path: the file or folder.
        structure: the model that the plan is for, where the caller knows it.
        on_conflict: what to do when entries for one module differ.
        target_bpw: the size, in bits per weight, of a plan made from a ranking of modules.
    """

    path: Path
    structure: ModelStructure | None = None
    on_conflict: OnConflict = "refuse"
    target_bpw: float | None = None

    @cached_property
    def magic(self) -> bytes:
        """The first four bytes of the file; empty for a folder or an unreadable file."""
        try:
            with self.path.open("rb") as file:
                return file.read(4)
        except OSError:
            return b""

    @cached_property
    def text(self) -> str:
        """The file as text; empty where it is not UTF-8 text."""
        try:
            return self.path.read_text(encoding="utf-8-sig")
        except ValueError:
            return ""
        except OSError as error:
            raise MixbitError(f"{self.path} cannot be read: {error.strerror}.") from None

    @cached_property
    def json(self) -> Any:
        """The JSON value in the file, None where it does not look like JSON.

        Raises:
            MixbitError: it looks like JSON but is not.
        """
        start = self.text.lstrip()[:1]
        if start == "{":
            return read_json(self.path)
        try:
            return json.loads(self.text) if start == "[" else None
        except (ValueError, RecursionError) as error:
            if "=" in self.text:  # a pattern may begin with a bracket too
                return None
            raise MixbitError(f"{self.path} is not valid JSON: {error}.") from None

    @property
    def document(self) -> dict[str, Any]:
        """The JSON object in the file; empty where it holds something else."""
        return self.json if isinstance(self.json, dict) else {}

    def model(self, config: Mapping[str, Any] | None = None) -> ModelStructure:
        """The model given, else the one that a config describes.

        Raises:
            MixbitError: neither is there.
        """
        if self.structure is not None:
            return self.structure
        if config is None or "model_type" not in config:
            raise MixbitError(
                f"{self.path} does not say which model it is for; name the model too."
            )
        return describe(config)

    def entries(self, structure: ModelStructure) -> Entries:
        """An empty collection of entries for a model."""
        return Entries(structure, self.path, self.on_conflict)


def block_in(document: Mapping[str, Any], name: str) -> dict[str, Any]:
    """An object at the top of a config or in its ``text_config``; empty where there is none."""
    text = document.get("text_config")
    for place in (document, text if isinstance(text, dict) else {}):
        block = place.get(name)
        if isinstance(block, dict):
            return block
    return {}


def whole_number(value: object) -> int | None:
    """The value if it is a whole number (true and false are not), else None."""
    return value if type(value) is int else None
