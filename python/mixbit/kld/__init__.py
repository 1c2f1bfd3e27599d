"""Exact full-vocabulary KL divergence between candidates and their reference model."""

from mixbit.kld.measure import measure, measure_many
from mixbit.kld.reference import make_reference
from mixbit.kld.result import KLDResult

__all__ = ["KLDResult", "make_reference", "measure", "measure_many"]
