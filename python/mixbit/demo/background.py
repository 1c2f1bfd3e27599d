"""A second piece of work beside the main one.

MLX runs each operation of its CPU backend on the one thread of a stream, so that two independent
measurements keep two cores busy only from two threads. Arrays that are shared must be evaluated.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError, ThreadPoolExecutor
from contextlib import contextmanager
from typing import TypeVar

import mlx.core as mx

Result = TypeVar("Result")


@contextmanager
def in_background(
    work: Callable[[Callable[[int, int], None]], Result],
) -> Iterator[Callable[[], Result]]:
    """Run ``work`` in a thread while the block runs; yields what waits for its result.

    ``work`` gets a progress callback, (done, total), that it must call every now and then: when the
    block is left early, by an error or an interrupt, the callback raises and so ends the work.
    """
    left = threading.Event()

    def leave_when_told(_done: int, _total: int) -> None:
        if left.is_set():
            raise CancelledError

    def target() -> Result:
        try:
            return work(leave_when_told)
        finally:
            # MLX aborts the process at its end if a finished thread still has streams.
            mx.clear_streams()

    with ThreadPoolExecutor(max_workers=1) as pool:
        future = pool.submit(target)
        try:
            yield future.result
        finally:
            left.set()
