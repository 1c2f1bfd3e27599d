"""mlx-lm's ``quantization`` block, as it stands in a ``config.json``."""

import json

from mixbit.plan.model import Plan


def render(plan: Plan, _nearest: bool) -> tuple[str, list[str]]:
    """An object that holds nothing but the block."""
    return json.dumps({"quantization": plan.to_mlx_config()}, indent=2) + "\n", []
