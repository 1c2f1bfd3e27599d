"""How mixbit's layers enter an mlx-lm model."""

from mixbit.integration.accelerate import AccelerateReport, accelerate
from mixbit.integration.activation_bits import rounds_activations
from mixbit.integration.heads import body_and_head, head_weight
from mixbit.integration.load import load, resolve
from mixbit.integration.prompt_cache import PromptCache, read_prompt_cache

__all__ = [
    "AccelerateReport",
    "PromptCache",
    "accelerate",
    "body_and_head",
    "head_weight",
    "load",
    "read_prompt_cache",
    "resolve",
    "rounds_activations",
]
