"""Speed of whole models, always against stock mlx-lm in the same run."""

from mixbit.bench.throughput import BenchResult, Engine, Sample, alternate, compare

__all__ = ["BenchResult", "Engine", "Sample", "alternate", "compare"]
