"""What the inputs of a model's linear layers are like over calibration text."""

from mixbit.calibration.statistics import InputStatistics

__all__ = ["InputStatistics"]
