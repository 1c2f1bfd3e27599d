"""The whole story on the shipped tiny model: quantise, load, generate, measure."""

from mixbit.demo.result import Answer, DemoResult, DemoRow
from mixbit.demo.run import run

__all__ = ["Answer", "DemoResult", "DemoRow", "run"]
