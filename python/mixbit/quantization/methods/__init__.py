"""Ways to choose the codes, scales and biases of a weight, each a function of one signature."""

from mixbit.quantization.methods.packed import Method, Packed
from mixbit.quantization.methods.rtn import rtn
from mixbit.quantization.methods.search import search

__all__ = ["Method", "Packed", "rtn", "search"]
