"""Scales moved between layers, which changes no output but how well the weights can be packed."""

from mixbit.quantization.fold.apply import LayerScales
from mixbit.quantization.fold.folds import Fold, folds_of
from mixbit.quantization.fold.solve import solve

__all__ = ["Fold", "LayerScales", "folds_of", "solve"]
