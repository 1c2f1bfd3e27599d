"""The report: an HTML page that needs nothing else, its figures as JSON, a model card block."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from jinja2 import Environment
from mlx_lm.tokenizer_utils import load as load_tokenizer

from mixbit.checkpoint import write_bytes, write_json
from mixbit.errors import MixbitError
from mixbit.kld import plots
from mixbit.kld.compare import Candidate, compare
from mixbit.kld.stream import Protocol
from mixbit.kld.tables import by_context, by_document, by_kind, number, summary_rows, worst_tokens
from mixbit.plan import Plan

SCHEMA = "mixbit.kld-report/1"
WORST = 20


def write_report(candidates: Sequence[Candidate], folder: Path) -> None:
    """Write ``report.html``, ``report.json`` and ``report.md`` to a folder.

    Raises:
        MixbitError: a file cannot be written, or the candidates do not belong together.
    """
    figures = report_figures(candidates)
    write_json(folder / "report.json", figures)
    write_bytes(folder / "report.md", markdown(figures).encode())
    write_bytes(folder / "report.html", html(candidates, figures).encode())


def report_figures(candidates: Sequence[Candidate]) -> dict[str, Any]:
    """All figures of the report, JSON-ready."""
    return {
        "schema": SCHEMA,
        "mixbit": importlib.metadata.version("mixbit"),
        "stream": candidates[0].result.stream.describe(),
        "candidates": [
            {
                "name": candidate.name,
                "bytes": candidate.nbytes,
                **candidate.result.summary(),
                "by_kind": by_kind(candidate.result),
                "by_context": by_context(candidate.result),
                "by_document": by_document(candidate.result),
                "worst": _worst(candidate),
            }
            for candidate in candidates
        ],
        "comparison": compare(candidates) if len(candidates) > 1 else None,
    }


def markdown(figures: dict[str, Any]) -> str:
    """A block for a model card."""
    rows, stream = figures["candidates"], figures["stream"]
    lines = [
        "## KL divergence from the reference model",
        "",
        "| model | GB | mean KLD ± SE | median | 99 % | 99.9 % | top-1 | ppl ratio |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
        *(
            f"| {_cell(row['name'])} | {row['bytes'] / 1e9:.4g} "
            f"| {number(row['mean'], '.4g')} ± {number(row['se'], '.2g')} "
            f"| {number(row['p50'], '.4g')} | {number(row['p99'], '.4g')} "
            f"| {number(row['p999'], '.4g')} | {number(row['top1'], '.2%')} "
            f"| {number(row['ppl_ratio'], '.5g')} |"
            for row in rows
        ),
        "",
        f"Nats, full vocabulary ({rows[0]['vocab_size']}), {stream['scored']} predictions in "
        f"{rows[0]['documents']} documents. {_protocol(Protocol(**stream['protocol']))} Standard "
        f"error by document. Data sha256 {stream['sha256'][:16]}, mixbit {figures['mixbit']}.",
    ]
    return "\n".join(lines) + "\n"


def html(candidates: Sequence[Candidate], figures: dict[str, Any]) -> str:
    """The page."""
    first, comparison = candidates[0].result, figures["comparison"]
    names = [candidate.name for candidate in candidates]
    template = Path(__file__).with_name("report.html.jinja").read_text(encoding="utf-8")
    page = Environment(autoescape=True, trim_blocks=True).from_string(template)
    return page.render(
        title=f"KL divergence of {', '.join(names)}",
        version=figures["mixbit"],
        vocab_size=first.vocab_size,
        tokens=len(first.kld),
        documents=figures["candidates"][0]["documents"],
        protocol=_protocol(first.stream.protocol),
        names=names,
        summary=[_sizes(figures["candidates"]), *summary_rows(figures["candidates"])],
        pairs=[] if comparison is None else list(map(_pair, comparison["pairs"])),
        plots=_plots(candidates, comparison),
        tables=_tables(figures["candidates"]),
        plans=_plans(candidates),
        worst=[
            {"name": row["name"], "rows": [_worst_row(token) for token in row["worst"]]}
            for row in figures["candidates"]
            if row["worst"]
        ],
    )


def _protocol(protocol: Protocol) -> str:
    cut = "Whole documents" if protocol.window is None else f"Windows of {protocol.window} tokens"
    scored = "the second half of each" if protocol.score == "half" else "every prediction"
    return f"{cut}, {scored} scored."


def _sizes(rows: Sequence[dict[str, Any]]) -> tuple[str, ...]:
    return "size, GB", *(f"{row['bytes'] / 1e9:.4g}" for row in rows)


def _pair(pair: dict[str, Any]) -> tuple[str, ...]:
    return (
        pair["first"],
        pair["second"],
        f"{pair['difference']:.3g}",
        f"{pair['low']:.3g} to {pair['high']:.3g}",
        "yes" if pair["significant"] else "no",
    )


def _plots(
    candidates: Sequence[Candidate], comparison: dict[str, Any] | None
) -> list[dict[str, str]]:
    finite = [c for c in candidates if c.result.summary()["mean"] is not None]
    if not finite:
        return []
    found = [
        {
            "caption": "Tokens by KLD, those above zero",
            "svg": plots.histogram(finite),
        },
        {"caption": "Share of tokens above a KLD", "svg": plots.tail(finite)},
        {"caption": "KLD by tokens of context", "svg": plots.by_position(finite)},
    ]
    if comparison is not None and len(finite) == len(candidates):
        caption = "KLD against size; the dashed line joins what nothing else beats in both"
        found.append({"caption": caption, "svg": plots.pareto(candidates, comparison)})
    return found


def _tables(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    return [
        {"title": f"{title} of {row['name']}", "key": key, "rows": list(map(_group, groups))}
        for row in rows
        for title, key, groups in (
            ("Kinds of data", "kind", row["by_kind"]),
            ("Context", "tokens of context", row["by_context"]),
            ("Worst documents", "document", _worst_documents(row["by_document"])),
        )
    ]


def _worst_documents(groups: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The ``WORST`` ones by mean KLD; ``report.json`` has all."""
    known = [group for group in groups if group["mean"] is not None]
    return sorted(known, key=lambda group: -group["mean"])[:WORST]


def _group(row: dict[str, Any]) -> tuple[str, ...]:
    return (
        row["name"],
        str(row["tokens"]),
        *(number(row[key], ".4g") for key in ("mean", "se", "p50", "p99", "max")),
        number(row["top1"], ".2%"),
    )


def _plans(candidates: Sequence[Candidate]) -> list[dict[str, str]]:
    found = []
    for index, candidate in enumerate(candidates):
        if candidate.folder is None:
            continue
        try:
            plan = Plan.load(candidate.folder)
        except MixbitError:  # an unquantised model has none
            continue
        if any(spec is not None for spec in plan.modules.values()):
            found.append({"name": candidate.name, "svg": plots.plan_map(plan, index)})
    return found


def _worst(candidate: Candidate) -> list[dict[str, Any]]:
    if candidate.folder is None:
        return []
    return worst_tokens(candidate.result, load_tokenizer(candidate.folder), WORST)


def _worst_row(row: dict[str, Any]) -> dict[str, Any]:
    shown = {key: number(row[key], ".4g") for key in ("kld", "p_reference", "p_candidate")}
    return {**row, **shown}


def _cell(text: str) -> str:
    return text.replace("|", r"\|")
