"""GPTQModel's ``dynamic``: a base, and regular expressions that lift modules or leave them out."""

import re
from collections.abc import Mapping
from typing import Any

from mixbit.errors import MixbitError
from mixbit.plan.model import Plan
from mixbit.plan.patterns import compiled
from mixbit.plan.readers.hf import (
    Hit,
    Rules,
    base_spec,
    block_of,
    finished,
    gather,
    has_method,
    in_layers,
    is_router,
    number,
)
from mixbit.plan.readers.request import Request
from mixbit.plan.spec import QuantSpec


def accepts(request: Request) -> bool:
    """Whether the config says that GPTQ made it."""
    return has_method(request, "gptq", "gptqmodel")


def read(request: Request) -> Plan:
    """Read the base and the rules; the head only counts where ``lm_head`` is true."""
    structure = request.model(request.document)
    block = block_of(request)
    base = base_spec(block, request.path)
    rules = Rules(dynamic_rules(block, base, request.path))
    entries = request.entries(structure)
    gather(entries, rules)
    with_head = block.get("lm_head") is True
    return finished(
        request, structure, entries, base,
        lambda shape: not is_router(shape)
        and (in_layers(shape) or (with_head and shape.path.endswith("lm_head"))),
        format_name="gptq", notes=rules.notes(),
    )  # fmt: skip


def dynamic_rules(
    block: Mapping[str, Any], base: QuantSpec, origin: object
) -> list[tuple[re.Pattern[str], Hit]]:
    """The rules of ``dynamic`` in order: ``-:`` leaves out, ``+:`` or nothing changes the base.

    Raises:
        MixbitError: a rule is malformed.
    """
    dynamic = block.get("dynamic") or {}
    if not isinstance(dynamic, dict):
        raise MixbitError(f"{origin}: dynamic must be an object.")
    rules = []
    for key, change in dynamic.items():
        pattern = compiled(key.removeprefix("+:").removeprefix("-:"), origin)
        if key.startswith("-:"):
            rules.append((pattern, Hit(None)))
        elif isinstance(change, dict):
            bits = number(change, "bits", origin, base.bits)
            group_size = number(change, "group_size", origin, base.group_size)
            rules.append((pattern, Hit(QuantSpec(bits, group_size))))
        else:
            raise MixbitError(f"{origin}: dynamic gives {key!r} no object.")
    return rules
