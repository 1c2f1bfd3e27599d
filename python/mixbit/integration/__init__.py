"""How mixbit's layers enter an mlx-lm model."""

from mixbit.integration.accelerate import AccelerateReport, accelerate
from mixbit.integration.heads import body_and_head, head_weight
from mixbit.integration.load import load, resolve

__all__ = ["AccelerateReport", "accelerate", "body_and_head", "head_weight", "load", "resolve"]
