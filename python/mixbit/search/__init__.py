"""Finding a plan: how much each part of a model minds fewer bits, and the best use of a budget."""

from mixbit.search.find import search
from mixbit.search.result import SearchResult
from mixbit.search.sweep import sensitivity
from mixbit.search.table import Sensitivity

__all__ = ["SearchResult", "Sensitivity", "search", "sensitivity"]
