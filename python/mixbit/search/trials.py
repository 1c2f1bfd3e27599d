"""A model with some modules packed, held against itself without."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import mlx.core as mx
import numpy as np

from mixbit.integration import head_weight
from mixbit.kld.ranks import ranks
from mixbit.kld.rows import RowScores
from mixbit.kld.scorer import Head, HeadPair
from mixbit.kld.sizes import Sizes
from mixbit.kld.stream import Stream
from mixbit.kld.windows import chunks_of
from mixbit.search.score import CONTEXTS, Counts, Score
from mixbit.search.stages import Stages, States
from mixbit.search.swap import Change, Packing, swapped


class Trials:
    """Changes to one model, tried over one stream, from whichever stage they begin to count.

    What the unchanged model gives is computed once: its last hidden states, and those that go into
    the present stage, which :meth:`advance` moves. Memory holds both, each the hidden size times
    the bytes of the dtype for every scored or every token of the stream.
    """

    def __init__(
        self,
        model: Any,
        stages: Stages,
        stream: Stream,
        vocab_size: int,
        packing: Packing,
        sizes: Sizes,
    ) -> None:
        """Run the unchanged model; the present stage is the first."""
        self._model, self._stages, self._stream = model, stages, stream
        self._vocab_size, self._packing, self._block = vocab_size, packing, sizes.block
        self.counts = Counts.of(stream)
        longest = int((stream.windows[:, 3] - stream.windows[:, 1]).max())
        self._chunks = [
            chunk
            for unit in stream.units
            for chunk in chunks_of(stream, unit, sizes.batch, longest)
        ]
        self._begin()
        weight = head_weight(model)
        assert weight is not None  # of these families every dense head is a matrix
        self._head = Head.of_weight(weight)
        self._pair = HeadPair(self._head, self._head, vocab_size)
        self._expected = [
            self._last(index, self._states[index]) for index in range(len(self._chunks))
        ]

    def _begin(self) -> None:
        self._states: list[States] = [(mx.array(chunk.tokens),) for chunk in self._chunks]
        self.stage = 0
        """The present stage."""

    def advance(self, stage: int) -> None:
        """Make ``stage`` the present one, from the tokens on if it lies behind."""
        if stage < self.stage:
            self._begin()
        for index, states in enumerate(self._states):
            self._states[index] = self._stages.run(states, self.stage, stage)
            mx.eval(*self._states[index])
        self.stage = stage

    @property
    def states(self) -> Sequence[States]:
        """What goes into the present stage, batch by batch."""
        return self._states

    def measure_all(self, changes: Sequence[Change]) -> list[Score]:
        """Scores of several changes, each of modules of the present stage or later ones.

        Several ranks share them.
        """
        size = len(self.counts.documents) + CONTEXTS + 2
        found = np.zeros((len(changes), size))
        for index in range(ranks().index, len(changes), ranks().count):
            found[index] = self._measure(changes[index]).packed()
        return [Score.unpacked(values) for values in ranks().add(found)]

    def _measure(self, change: Change) -> Score:
        rows = RowScores.empty(self._stream.scored)
        with swapped(self._model, change, self._packing):
            pair = self._pair
            if any(spec and self._stages.holds_head(path) for path, spec in change.items()):
                weight = head_weight(self._model)
                assert weight is not None
                pair = HeadPair(self._head, Head.of_weight(weight), self._vocab_size)
            for index, chunk in enumerate(self._chunks):
                hidden = self._last(index, self._states[index])
                for begin in range(0, len(chunk.rows), self._block):
                    part = slice(begin, begin + self._block)
                    scores = pair.score(
                        self._expected[index][part], hidden[part], chunk.targets[part]
                    )
                    rows.put(chunk.rows[part], scores)
        return Score.of(rows, self._stream)

    def _last(self, index: int, states: States) -> mx.array:
        """States after the final norm ``[N, hidden]`` of a batch's scored positions, evaluated."""
        (last,) = self._stages.run(states, self.stage, self._stages.head + 1)
        picked = last.reshape(-1, last.shape[-1])[mx.array(self._chunks[index].flat)]
        mx.eval(picked)
        return picked
