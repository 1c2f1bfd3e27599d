"""Exact full-vocabulary KL divergence between a candidate and its reference model."""

from mixbit.kld.measure import measure, measure_many
from mixbit.kld.result import KLDResult

__all__ = ["KLDResult", "measure", "measure_many"]
