"""Ways to choose the codes, scales and biases of a weight, each a function of one signature."""

from mixbit.quantization.methods.choice import Choice, Packer, StackPacker
from mixbit.quantization.methods.clip import clip
from mixbit.quantization.methods.gptq import Feedback, HessianError, gptq
from mixbit.quantization.methods.packed import Method, Packed
from mixbit.quantization.methods.rtn import rtn
from mixbit.quantization.methods.search import search

__all__ = [
    "Choice",
    "Feedback",
    "HessianError",
    "Method",
    "Packed",
    "Packer",
    "StackPacker",
    "clip",
    "gptq",
    "rtn",
    "search",
]
