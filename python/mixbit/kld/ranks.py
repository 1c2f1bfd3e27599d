"""Several processes at one measurement, under ``mlx.launch``."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cache
from typing import Any

import mlx.core as mx
import numpy as np
import numpy.typing as npt

from mixbit.errors import MixbitError

_END = object()


class Ranks:
    """All processes of a run, of which this is one; the only one unless launched with others."""

    def __init__(self) -> None:
        """Find the others."""
        self._group = mx.distributed.init()
        self.index = self._group.rank()
        self.count = self._group.size()

    def mine(self, items: Sequence[Any], work: Callable[[int, Any], Iterator[None]]) -> None:
        """Work off every ``count``-th item, step by step together with the others.

        Args:
            items: the same ones on every rank.
            work: called with an item's index and the item; yields after each step, so that the loss
                of another rank is noticed after a step and not after an item.

        Raises:
            MixbitError: a rank is gone.
        """
        for begin in range(0, len(items), self.count):
            index = begin + self.index
            steps = work(index, items[index]) if index < len(items) else iter(())
            busy = np.zeros(self.count, np.uint32)
            busy[self.index] = 1
            while self.add(busy).any():
                busy[self.index] = next(steps, _END) is not _END

    def wait(self) -> None:
        """Wait until every rank is here.

        Raises:
            MixbitError: one of them is gone.
        """
        self.add(np.zeros(1))

    def add(self, array: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """An array whose every element at most one rank has filled, others leaving it 0, whole.

        Bits are added, not numbers, so that the result is the same on any number of ranks.
        """
        if self.count == 1:
            return array
        words = np.ascontiguousarray(array).view(np.uint32)
        try:
            total = mx.distributed.all_sum(mx.array(words), stream=mx.cpu)
            mx.eval(total)
        except RuntimeError as error:
            raise MixbitError(
                f"Rank {self.index} of {self.count} lost another one ({error}); what is finished "
                "and kept stays, and the same command goes on from there."
            ) from None
        return np.asarray(total).view(array.dtype).reshape(array.shape)


@cache
def ranks() -> Ranks:
    """The ranks of this run."""
    return Ranks()
