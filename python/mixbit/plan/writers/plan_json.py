"""mixbit's own ``plan.json``."""

import json

from mixbit.plan.model import Plan


def render(plan: Plan, _nearest: bool) -> tuple[str, list[str]]:
    """The whole plan, with its provenance and its model."""
    return json.dumps(plan.to_json(), indent=2) + "\n", []
