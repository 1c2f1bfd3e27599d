"""What the inputs of a model's linear layers are like over calibration text."""

from mixbit.calibration.inputs import (
    hessian_place_of,
    layer_and_role,
    place_of,
    readers_of_norms,
)
from mixbit.calibration.saved import Calibration
from mixbit.calibration.statistics import InputStatistics

__all__ = [
    "Calibration",
    "InputStatistics",
    "hessian_place_of",
    "layer_and_role",
    "place_of",
    "readers_of_norms",
]
