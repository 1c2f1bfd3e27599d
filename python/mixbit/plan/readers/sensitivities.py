"""mlx-lm's ``dynamic_quant`` sensitivities: pairs of path and number, a ranking without bits."""

from mixbit.plan.model import Plan
from mixbit.plan.ranking import ranked_plan
from mixbit.plan.readers.request import Request

LOW, HIGH = 4, 5
"""The two widths between which mlx-lm's own tool chooses."""


def accepts(request: Request) -> bool:
    """Whether it is a list of [path, number], or an object of paths to numbers, with fractions."""
    return bool(_pairs(request.json))


def read(request: Request) -> Plan:
    """Make a plan of the size that the request gives: the most sensitive modules get 5 bits."""
    structure = request.model()
    # The value is what a million weights gain by the higher width, so equal steps in size compare.
    sizes = {shape.path: shape.params for shape in structure.modules}
    table = request.entries(structure).table
    ranking = []
    for path, value in _pairs(request.json):
        meaning = table.find(path)
        paths = meaning.paths if meaning else ()
        params = sum(sizes[p] for p in paths)
        ranking.append((path, {LOW: value * params, HIGH: 0.0}))
    return ranked_plan(ranking, structure, request, "dynamic_quant")


def _pairs(value: object) -> list[tuple[str, float]]:
    rows = list(value.items()) if isinstance(value, dict) else value
    if not isinstance(rows, list):
        return []
    pairs = [
        (row[0], float(row[1]))
        for row in rows
        if isinstance(row, (list, tuple)) and len(row) == 2
        and isinstance(row[0], str) and type(row[1]) is float
    ]  # fmt: skip
    return pairs if len(pairs) == len(rows) else []
