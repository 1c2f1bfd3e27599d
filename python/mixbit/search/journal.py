"""Finished trials, a line each, so that a run that ended early goes on."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from mixbit.errors import MixbitError
from mixbit.kld.files import begin, see_together
from mixbit.kld.ranks import ranks
from mixbit.search.score import Score

_NAME = "trials.jsonl"


class Journal:
    """The trials of one job in a folder; rank 0 writes."""

    def __init__(self, folder: Path, job: dict[str, Any]) -> None:
        """Begin or take up again.

        Raises:
            MixbitError: the folder holds another job or something else, or cannot be used.
        """
        self._path = folder / _NAME
        if ranks().index == 0:
            begin(folder, job)
        see_together(folder)
        self._scores = self._read()
        ranks().wait()  # none may write before all have read

    def get(self, key: str) -> Score | None:
        """The score of a trial, if it is finished."""
        return self._scores.get(key)

    def put(self, scores: dict[str, Score]) -> None:
        """Keep the scores of trials."""
        self._scores |= scores
        if ranks().index:
            return
        lines = (json.dumps({"trial": key} | score.to_json()) for key, score in scores.items())
        try:
            with self._path.open("a", encoding="utf-8") as file:
                file.write("".join(f"{line}\n" for line in lines))
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise MixbitError(f"{self._path} cannot be written: {error.strerror}.") from None

    def _read(self) -> dict[str, Score]:
        try:
            text = self._path.read_bytes() if self._path.exists() else b""
            whole = text.rpartition(b"\n")[0]
            if ranks().index == 0 and len(text) > len(whole) + 1:  # a line that a kill cut short
                os.truncate(self._path, len(whole) + bool(whole))
            rows = [json.loads(line) for line in whole.splitlines()]
            return {row["trial"]: Score.from_json(row) for row in rows}
        except OSError as error:
            raise MixbitError(f"{self._path} cannot be read: {error.strerror}.") from None
        except (ValueError, KeyError, TypeError) as error:
            raise MixbitError(
                f"{self._path} is damaged ({type(error).__name__}: {error}); remove it to measure "
                "all of it again."
            ) from None
