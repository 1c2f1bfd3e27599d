"""Making a quantised checkpoint from a model and a plan."""

from mixbit.quantization.report import QuantizeReport
from mixbit.quantization.run import quantize

__all__ = ["QuantizeReport", "quantize"]
