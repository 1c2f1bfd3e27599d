"""The cache of linear-attention layers, which can take back its last steps.

A recurrent state cannot be cut shorter as keys and values can, so mlx-lm's own cache refuses
``trim`` and with it speculative decoding. Here the states after the last few steps are kept for as
long as somebody may want them back.
"""

from __future__ import annotations

import copy
from typing import Any, NamedTuple

import mlx.core as mx
from mlx_lm.models import cache as stock

from mixbit.errors import MixbitError

__all__ = ["ArraysCache", "speculative_cache"]

_ROLLBACK = 15


class _Forward(NamedTuple):
    conv_input: mx.array  # [B, taps - 1 + T, channels]: the convolution's inputs, older ones first
    states: mx.array  # [B, T, Hv, Dv, Dk], after every step


class ArraysCache(stock.ArraysCache):
    """(Convolution inputs [B, taps - 1, channels], state [B, Hv, Dv, Dk] fp32) of a layer.

    It has mlx-lm's name because prompt cache files hold it; such a file loads in mlx-lm, and gives
    mlx-lm's class.

    Attributes:
        rollback: how many steps :meth:`trim` can take back at most; 0 at first, which costs
            nothing. Otherwise up to ``rollback + 1`` states are held, ``4 B Hv Dv Dk`` bytes each:
            151 MB a step over the layers of a 27B model, 19 MB for one of 0.8B. Steps are kept
            since the last :meth:`trim`, and none of a forward that has more steps than that (a
            prompt), or padding. The memory of the last forward's is free after the next one.
    """

    cache: list[Any]
    rollback: int = 0
    _kept: tuple[_Forward, ...] = ()
    _advanced: bool = False  # since the last trim

    def keeps(self, steps: int) -> bool:
        """Whether a forward of so many steps should be handed to :meth:`keep`."""
        unpadded = self.left_padding is None and self.lengths is None
        return unpadded and self.rollback > 0 and 0 < steps <= self.rollback + 1

    def keep(self, qkv: mx.array, conv_state: mx.array, states: mx.array) -> None:
        """Take the results of a forward, all of whose steps can be taken back.

        Args:
            qkv: [B, T, channels], inputs of the convolution.
            conv_state: [B, taps - 1, channels], the last of them.
            states: [B, T, Hv, Dv, Dk], after every step.
        """
        before = mx.zeros_like(conv_state) if self.empty() else self.cache[0]
        kept = [*self._kept, _Forward(mx.concatenate([before, qkv], axis=1), states)]
        steps = sum(forward.states.shape[1] for forward in kept)
        while steps - kept[0].states.shape[1] > self.rollback:
            steps -= kept.pop(0).states.shape[1]
        self.cache = [conv_state, states[:, -1]]
        self.advance(qkv.shape[1])
        self._kept = tuple(kept)

    def is_trimmable(self) -> bool:
        """Whether :meth:`trim` may follow: once after each forward, where ``rollback`` is set.

        Steps before the last forwards are gone, so a cache that rests, as in a server's store of
        prompts, is not trimmable. An empty one is. Being asked sets its ``rollback`` to 15: mlx-lm
        asks that of the cache with which it is about to speculate. Copies can be gone on from in
        that way too, so they say yes, though they keep none of the steps so far.
        """
        if self.empty():
            self.rollback = self.rollback or _ROLLBACK
            return True
        return self._advanced

    def trim(self, n: int) -> int:
        """Take back the last ``n`` steps, as if they had never been.

        Returns:
            ``n``, or 0 for an empty cache.

        Raises:
            MixbitError: if they are not kept. Other layers' caches may have been trimmed by then.
        """
        kept, self._kept, self._advanced = self._kept, (), False
        if n == 0 or self.empty():
            return 0
        back = n
        for conv_input, states in reversed(kept):
            stay = states.shape[1] - back
            if stay > 0:
                held = conv_input.shape[1] - states.shape[1]
                self.cache = [conv_input[:, stay : stay + held], states[:, stay - 1]]
                return n
            back = -stay
        raise MixbitError(
            f"{n} steps of a recurrent state cannot be taken back, of which at most "
            f"{self.rollback} are kept since the last trim; set the caches' rollback to {n}."
        )

    def __deepcopy__(self, memo: dict[int, Any]) -> ArraysCache:
        twin = type(self).from_state(copy.deepcopy(self.state, memo))
        twin.rollback = self.rollback
        twin._advanced = self.rollback > 0
        return twin

    def __setitem__(self, idx: int, value: mx.array) -> None:
        super().__setitem__(idx, value)
        self._kept = ()

    def advance(self, N: int) -> None:
        """Count steps that were taken."""
        super().advance(N)
        self._advanced = self.rollback > 0

    @property
    def state(self) -> Any:
        """What mlx-lm saves."""
        return self.cache, self.left_padding, self.lengths

    @state.setter
    def state(self, value: Any) -> None:
        self.cache, self.left_padding, self.lengths = value
        self._kept = ()

    def filter(self, batch_indices: mx.array) -> None:
        """Keep these rows of the batch, and no steps to take back."""
        super().filter(batch_indices)
        self._kept = ()

    def extend(self, other: stock.ArraysCache) -> None:
        """Append the rows of ``other``, and keep no steps to take back."""
        super().extend(other)
        self._kept = ()


def speculative_cache(model: Any, draft_model: Any, num_draft_tokens: int = 2) -> list[Any]:
    """The ``prompt_cache`` with which mlx-lm drafts ``num_draft_tokens`` tokens at a time.

    Without it the model's cache keeps 15 steps, and a hybrid draft model's keeps none: rejected
    tokens stay in its state and it guesses worse.

    Raises:
        MixbitError: if the cache of one of the models cannot be trimmed.
    """
    caches = [stock.make_prompt_cache(model), stock.make_prompt_cache(draft_model)]
    for name, layers in zip(("model", "draft model"), caches, strict=True):
        if not stock.can_trim_prompt_cache(layers):
            raise MixbitError(
                f"The {name} cannot take part in speculative decoding: the cache of some layer "
                "keeps no earlier steps. mixbit.load gives layers of qwen3_5, qwen3_5_moe and "
                "qwen3_next one that does."
            )
        for layer in layers:
            if isinstance(layer, ArraysCache):
                layer.rollback = num_draft_tokens
    return [layer for layers in caches for layer in layers]
