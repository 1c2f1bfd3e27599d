"""The sweep: true KLD of every group of modules at every width, all others as they are."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from itertools import accumulate
from pathlib import Path

import numpy as np

from mixbit.checkpoint import ModelStructure
from mixbit.errors import MixbitError
from mixbit.kld.ranks import ranks
from mixbit.kld.reference import Data
from mixbit.kld.stream import Protocol, Stream
from mixbit.plan import QuantSpec
from mixbit.search.groups import Group, groups_of
from mixbit.search.journal import Journal
from mixbit.search.proxies import PROXIES, Errors, stage_errors
from mixbit.search.score import Counts, Score, stability
from mixbit.search.swap import Packing
from mixbit.search.table import Cell, Sensitivity
from mixbit.search.trials import Trials
from mixbit.search.workplace import Workplace

WIDTHS = (2, 3, 4, 5, 6, 8)
JOB_SCHEMA = "mixbit.sensitivity-job/1"

Progress = Callable[[int, int, str], None]


def sensitivity(
    model: str | Path,
    data: Data,
    out: str | Path,
    *,
    by: str = "tensor",
    widths: Sequence[int] = WIDTHS,
    group_sizes: Sequence[int] = (64,),
    packing: Packing | None = None,
    num_samples: int | None = None,
    window: int | None = 512,
    score: str = "half",
    batch_size: int = 8,
    settle: float = 0.99,
    round_documents: int = 8,
    progress: Progress | None = None,
) -> Sensitivity:
    """Measure KL(model || model with one group packed) for every group and width.

    Documents are taken in rounds, in an order drawn once: ``round_documents`` of them, as many
    again, then twice as many each time. The sweep stops when documents drawn anew would hardly
    change the order of the measurements (see :func:`mixbit.search.score.stability`), or when there
    are no more. Within a round it goes through the model once: what goes into a stage is computed
    once for all groups that begin there, and only the stages from there on run again.

    If the run ends early, however it does, the same call goes on from the measurements that were
    finished and comes to the same result. Under ``mlx.launch`` several ranks share the work.

    Args:
        model: folder or hub id of a model that is not quantised.
        data: as for :func:`mixbit.kld.measure`.
        out: folder to make: ``sensitivity.json`` and what a later call goes on from.
        by: ``"tensor"``, ``"layer-class"`` or ``"class"``; see
            :func:`mixbit.search.groups.groups_of`.
        widths: bits to try.
        group_sizes: group sizes to try; where none divides the rows, 32.
        packing: how weights are packed; round to nearest if None.
        num_samples: use only the first so many documents.
        window, score: as for :func:`mixbit.kld.measure`.
        batch_size: windows run together.
        settle: mean rank correlation at which the sweep stops; above 1 it takes all documents.
        round_documents: documents of the first round.
        progress: called with (measurements of this round so far, all of them, what is measured).

    Raises:
        MixbitError: the model, the data or the folder cannot be used.
    """
    begun = time.monotonic()
    out = Path(out)
    if round_documents < 1:
        raise MixbitError(f"round_documents must be at least 1, not {round_documents}.")
    place = Workplace.open(
        model, data, num_samples, Protocol(window, score), packing or Packing(), batch_size
    )
    choices = _choices(place.structure, by, widths, group_sizes)
    job = {
        "schema": JOB_SCHEMA,
        **place.identity(),
        "by": by,
        "specs": {group.name: list(map(str, specs)) for group, specs in choices.items()},
        "round_documents": round_documents,
    }
    journal = Journal(out, job)
    run = _Sweep(place, choices, journal, progress)
    for index, documents in enumerate(_rounds(place.stream, round_documents)):
        run.round(index, place.stream.only(documents))
        if run.settled() >= settle:
            break
    result = run.result(by, time.monotonic() - begun)
    if ranks().index == 0:
        result.save(out)
    return result


class _Sweep:
    """What has been measured up to now."""

    def __init__(
        self,
        place: Workplace,
        choices: dict[Group, list[QuantSpec]],
        journal: Journal,
        progress: Progress | None,
    ) -> None:
        self._place, self._choices, self._journal = place, choices, journal
        self._progress = progress
        self._scores: dict[tuple[Group, QuantSpec], Score] = {}
        self._counts: Counts | None = None
        self._errors: dict[tuple[str, QuantSpec], Errors] = {}

    def round(self, index: int, stream: Stream) -> None:
        """Measure every cell over some more documents."""
        place, stages = self._place, self._place.stages
        cells = self._in_order()
        trials = place.trials(stream)
        finished = 0
        for stage in range(stages.head + 1):
            here = [cell for cell in cells if self._begins(cell[0]) == stage]
            trials.advance(stage)
            if index == 0:
                self._errors |= stage_errors(
                    place.model, stages, stage, trials.states, self._tried_at(stage), place.packing
                )
            for begin in range(0, len(here), ranks().count):
                some = here[begin : begin + ranks().count]
                self._measure(index, some, trials)
                finished += len(some)
                if self._progress is not None:
                    group, spec = some[-1]
                    self._progress(finished, len(cells), f"{group.name} {spec}, round {index + 1}")
        self._counts = trials.counts if self._counts is None else self._counts + trials.counts

    def settled(self) -> float:
        """How surely the order is known."""
        assert self._counts is not None
        sums = np.stack([score.documents for score in self._scores.values()])
        return stability(sums, self._counts.documents)

    def result(self, by: str, seconds: float) -> Sensitivity:
        """The table."""
        assert self._counts is not None
        cells = [
            Cell.of(*cell, self._scores[cell], self._counts, self._proxies(*cell))
            for cell in self._in_order()
        ]
        return Sensitivity(
            identity=self._place.identity(),
            structure=self._place.structure,
            by=by,
            cells=tuple(cells),
            documents=int(np.count_nonzero(self._counts.documents)),
            tokens=int(self._counts.documents.sum()),
            contexts=tuple(self._counts.contexts.tolist()),
            settled=self.settled(),
            saved=self._saved(),
            seconds=seconds,
        )

    def _saved(self) -> float:
        work = self._place.stages.work[:-1]
        begins = [self._begins(group) for group, _ in self._in_order()]
        # The unchanged model runs twice: for its last states, and for those on the way.
        shared = 2 * sum(work) + sum(sum(work[begin:]) for begin in begins)
        return len(begins) * sum(work) / shared

    def _measure(
        self, index: int, cells: Sequence[tuple[Group, QuantSpec]], trials: Trials
    ) -> None:
        """Take cells from the journal, or measure them and put them there."""
        keys = [f"{index} {group.name} {spec}" for group, spec in cells]
        wanted = [at for at, key in enumerate(keys) if self._journal.get(key) is None]
        changes = [dict.fromkeys(cells[at][0].paths, cells[at][1]) for at in wanted]
        if wanted:
            scores = trials.measure_all(changes)
            self._journal.put({keys[at]: s for at, s in zip(wanted, scores, strict=True)})
        for cell, key in zip(cells, keys, strict=True):
            score = self._journal.get(key)
            assert score is not None
            known = self._scores.get(cell)
            self._scores[cell] = score if known is None else known + score

    def _in_order(self) -> list[tuple[Group, QuantSpec]]:
        return [(group, spec) for group, specs in self._choices.items() for spec in specs]

    def _begins(self, group: Group) -> int:
        return min(map(self._place.stages.stage_of, group.paths))

    def _tried_at(self, stage: int) -> dict[str, list[QuantSpec]]:
        """Modules of a stage, with the widths that their group is tried at."""
        return {
            path: specs
            for group, specs in self._choices.items()
            for path in group.paths
            if self._place.stages.stage_of(path) == stage
        }

    def _proxies(self, group: Group, spec: QuantSpec) -> Errors:
        """The proxies of a group: the sums over its modules."""
        own = [self._errors[path, spec] for path in group.paths]
        return {name: sum(errors[name] for errors in own) for name in PROXIES}


def _choices(
    structure: ModelStructure, by: str, widths: Sequence[int], group_sizes: Sequence[int]
) -> dict[Group, list[QuantSpec]]:
    for bits in widths:
        for size in group_sizes:
            fault = QuantSpec(bits, size).violation()
            if fault is not None:
                raise MixbitError(f"Such a width cannot be tried: {fault}.")
    found = {group: group.specs(widths, group_sizes) for group in groups_of(structure, by)}
    tried = {group: specs for group, specs in found.items() if specs}
    if not tried:
        raise MixbitError("The model has no module that can be packed at these widths.")
    return tried


def _rounds(stream: Stream, first: int) -> list[list[int]]:
    """Documents with something to score, in rounds, in an order drawn once."""
    scored: list[int] = np.unique(stream.document).tolist()
    drawn = [scored[at] for at in np.random.default_rng(0).permutation(len(scored))]
    sizes = [first]
    while sum(sizes) < len(drawn):
        sizes.append(sum(sizes))
    ends = list(accumulate(sizes))
    return [drawn[end - size : end] for end, size in zip(ends, sizes, strict=True)]
