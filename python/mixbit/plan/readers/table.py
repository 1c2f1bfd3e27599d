"""Plain tables of paths and bits, as CSV or as JSON.

CSV: ``path,bits[,group_size[,mode]]`` with or without a heading. JSON: an object of paths to bits
or to objects, a list of ``[path, bits]``, or a list of objects with ``path`` and ``bits``. Bits of
16 or more, ``false``, ``bf16`` and the like stand for not quantised; groups are of 64 unless given.
mlx-optiq's ``per_layer`` and JANG's measured plans and manifests are such tables in larger files.
"""

import csv
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from mixbit.errors import MixbitError
from mixbit.plan.foreign import refuse_private
from mixbit.plan.model import Plan
from mixbit.plan.readers.request import Request, whole_number
from mixbit.plan.spec import QuantSpec, default_spec

_DENSE_WORDS = ("false", "none", "dense", "f16", "f32", "bf16", "float16", "float32", "bfloat16")
_HEADINGS = ("path", "name", "module", "tensor", "layer")

Row = tuple[str, Any, Any, Any]
"""Path, bits, group size and mode, the last two None where they are not given."""


def accepts(request: Request) -> bool:
    """Whether it is a table that holds nothing but paths and bits."""
    if request.json is not None:
        return _is_table(request.json)
    lines = [line for line in request.text.splitlines() if line.strip()]
    return bool(lines) and all("," in line for line in lines)


def read(request: Request) -> Plan:
    """Read the table, for a model that must be given; modules that it leaves out are dense."""
    if request.json is None:
        return plan_of_rows(_csv_rows(request.text, request.path), request, "table")
    return plan_of_rows(_json_rows(request.json, request.path), request, "table")


def plan_of_rows(
    rows: Iterable[Row], request: Request, format_name: str, *, group_size: int = 64
) -> Plan:
    """The plan of a table's rows.

    Raises:
        MixbitError: a row names no module, or holds no sensible bits.
    """
    structure = request.model(request.document)
    entries = request.entries(structure)
    for path, bits, group, mode in rows:
        entries.add(path, _spec(bits, group, mode, group_size, f"{request.path}: {path}"))
    provenance: dict[str, Any] = {"format": format_name}
    if notes := entries.notes():
        provenance["notes"] = notes
    return Plan(entries.settled(), str(request.path), provenance, structure)


def object_rows(table: Mapping[str, Any], origin: object) -> Iterator[Row]:
    """The rows of an object that leads from paths to bits, or to objects with ``bits``.

    Raises:
        MixbitError: an entry holds no bits.
    """
    for path, value in table.items():
        if isinstance(value, dict):
            if "bits" not in value:
                raise MixbitError(f"{origin}: {path} has no bits.")
            yield path, value["bits"], value.get("group_size"), value.get("mode")
        else:
            yield path, value, None, None


def _is_table(value: object) -> bool:
    if isinstance(value, dict):
        return bool(value) and all(_is_bits(v) or _has_bits(v) for v in value.values())
    if not isinstance(value, list) or not value:
        return False
    return all(
        (_has_bits(row) and "path" in row)
        or (isinstance(row, list) and len(row) == 2 and _is_bits(row[1]))
        for row in value
    )


def _has_bits(value: object) -> bool:
    return isinstance(value, dict) and "bits" in value


def _is_bits(value: object) -> bool:
    return value is False or type(value) is int or (isinstance(value, str) and _word(value))


def _word(value: str) -> bool:
    return value.isdecimal() or value.lower() in _DENSE_WORDS


def _json_rows(value: Any, origin: object) -> Iterator[Row]:
    if isinstance(value, dict):
        yield from object_rows(value, origin)
        return
    for row in value:
        path, bits = (row["path"], row["bits"]) if isinstance(row, dict) else row
        more = row if isinstance(row, dict) else {}
        if not isinstance(path, str):
            raise MixbitError(f"{origin}: {path!r} is not the path of a module.")
        yield path, bits, more.get("group_size"), more.get("mode")


def _csv_rows(text: str, origin: object) -> Iterator[Row]:
    try:
        rows = [row for row in csv.reader(text.splitlines(), skipinitialspace=True) if row]
    except csv.Error as error:
        raise MixbitError(f"{origin} is not a table of path,bits: {error}.") from None
    if rows and rows[0][0].strip().lower() in _HEADINGS:
        rows = rows[1:]
    for row in rows:
        path, bits, group_size, mode, *rest = [*(cell.strip() for cell in row), "", "", ""]
        if any(rest):
            raise MixbitError(f"{origin}: the row of {path} has more than path,bits,group,mode.")
        yield path, bits, group_size or None, mode or None


def _spec(bits: Any, group_size: Any, mode: Any, usual: int, where: str) -> QuantSpec | None:
    if bits is False or (isinstance(bits, str) and bits.lower() in _DENSE_WORDS):
        return None
    mode = "affine" if mode is None else mode
    refuse_private(mode, where)
    default = default_spec(mode) if isinstance(mode, str) else None
    width, group = _number(bits), _number(group_size)
    if default is None or width is None or (group_size is not None and group is None):
        raise MixbitError(f"{where} has bits {bits!r}, group size {group_size!r}, mode {mode!r}.")
    if width >= 16:
        return None
    return QuantSpec(width, group or (usual if mode == "affine" else default.group_size), mode)


def _number(value: Any) -> int | None:
    if isinstance(value, str) and value.isascii() and value.isdecimal() and len(value) < 6:
        return int(value)
    return whole_number(value)
