"""Measurements of whole plans and of parts of them, kept in a journal and shared by ranks."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence

from mixbit.kld.ranks import ranks
from mixbit.search.journal import Journal
from mixbit.search.score import Counts, Score
from mixbit.search.swap import Change
from mixbit.search.trials import Trials
from mixbit.search.workplace import Workplace

Progress = Callable[[int, str], None]


class Measurements:
    """Whole plans and parts of them, measured over one stream."""

    def __init__(self, place: Workplace, journal: Journal, progress: Progress | None) -> None:
        self._place, self._journal, self._progress = place, journal, progress
        self._trials: Trials | None = None
        self.counts = Counts.of(place.stream)
        self.done = 0
        """Measurements that were asked for, those of an earlier run included."""

    def measure(self, changes: Sequence[Change], name: str) -> list[Score]:
        """The score of each change."""
        keys = list(map(_key, changes))
        wanted = {k: c for k, c in zip(keys, changes, strict=True) if self._journal.get(k) is None}
        for stage, some in self._order(wanted):
            scores = self._at(stage).measure_all([wanted[key] for key in some])
            self._journal.put(dict(zip(some, scores, strict=True)))
            self._tell(len(some), name)
        self.done += len(keys) - len(wanted)
        return [self._known(key) for key in keys]

    def _order(self, wanted: Mapping[str, Change]) -> list[tuple[int, list[str]]]:
        """Changes by the stage that they begin at, as many together as there are ranks."""
        stages = self._place.stages
        by_stage: dict[int, list[str]] = {}
        for key, change in wanted.items():
            begins = [stages.stage_of(path) for path, spec in change.items() if spec is not None]
            by_stage.setdefault(min(begins, default=stages.head), []).append(key)
        step = ranks().count
        return [
            (stage, keys[at : at + step])
            for stage, keys in sorted(by_stage.items())
            for at in range(0, len(keys), step)
        ]

    def _at(self, stage: int) -> Trials:
        """Trials whose present stage is the given one."""
        if self._trials is None:
            self._trials = self._place.trials(self._place.stream)
        self._trials.advance(stage)
        return self._trials

    def _known(self, key: str) -> Score:
        score = self._journal.get(key)
        assert score is not None
        return score

    def _tell(self, count: int, name: str) -> None:
        self.done += count
        if self._progress is not None:
            self._progress(self.done, name)


def _key(change: Change) -> str:
    packed = {path: str(spec) for path, spec in change.items() if spec is not None}
    return hashlib.sha256(json.dumps(packed, sort_keys=True).encode()).hexdigest()
