"""Quantising a model to a checkpoint, tensor by tensor."""

import hashlib
import importlib.metadata
import json
import shutil
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import mlx.core as mx

from mixbit.calibration import Calibration, layer_and_role, readers_of_norms
from mixbit.checkpoint import (
    Checkpoint,
    ModelStructure,
    build_model,
    copy_tensors,
    model_weights,
    open_checkpoint,
    settle,
    settled_config,
    side_part,
    structure_of,
    write_json,
)
from mixbit.checkpoint.weights import HYBRIDS
from mixbit.errors import MixbitError
from mixbit.plan import Plan, QuantSpec, check
from mixbit.quantization.fold import Fold, folds_of
from mixbit.quantization.journal import Done
from mixbit.quantization.methods import Choice
from mixbit.quantization.pack import Unit, make_unit
from mixbit.quantization.quantiser import Quantiser
from mixbit.quantization.report import QuantizeReport
from mixbit.quantization.shards import ShardFile, group_by_size, shard_name
from mixbit.quantization.source import refuse_quantised
from mixbit.quantization.staging import refuse_existing, staged

CHECKPOINT_SCHEMA = "mixbit.checkpoint/1"
_DTYPES = {"float16": mx.float16, "bfloat16": mx.bfloat16, "float32": mx.float32}
_COPIED = (
    "tokenizer*", "special_tokens_map.json", "added_tokens.json", "vocab.json", "merges.txt",
    "*.tiktoken", "chat_template*", "generation_config.json", "*preprocessor_config.json",
    "vision.safetensors", "mtp.safetensors",
)  # fmt: skip

_CACHE_BYTES = 64 << 20

Progress = Callable[[int, int, str], None]


def quantize(
    source: Path | str,
    out_dir: Path | str,
    *,
    plan: Plan | Path | str,
    method: str | None = None,
    calibration: Path | str | None = None,
    dtype: str | None = None,
    max_shard_bytes: int = 5 << 30,
    progress: Progress | None = None,
) -> QuantizeReport:
    """Quantise a model by a plan to a checkpoint that stock mlx-lm loads.

    By rounding to nearest the packed tensors are bit for bit those of ``mlx_lm.convert`` at the
    same bits; the other methods choose better scales and codes of the same size. Tensors are read,
    packed, written and released one by one, large matrices some rows at a time. The checkpoint is
    written beside ``out_dir`` and renamed to it when it is complete; a run that was interrupted
    goes on, when called again alike, from the last layer that was finished. The
    vision tower and MTP layers are carried through untouched, in files of their own
    (``vision.safetensors``, ``mtp.safetensors``) that no loader of text models takes for weights.

    Args:
        source: folder of a bf16, f16 or f32 model, in Hugging Face's layout or in MLX's.
        out_dir: folder to write, which must not exist.
        plan: a plan, or what :meth:`mixbit.Plan.load` makes one of.
        method: ``"rtn"``, ``"search"``, ``"awq"`` and ``"gptq"``, or several of the last three
            joined by ``+``; docs/quantize.md tells what they do. It serves the modules for which
            the plan names none of their own; None for what the plan names for the rest, else
            ``"rtn"``. fp modes are rounded to nearest whatever the method.
        calibration: what ``mixbit calibrate`` made of the model, or an imatrix. awq and gptq need
            one; without one search counts all channels alike.
        dtype: ``"float16"``, ``"bfloat16"`` or ``"float32"``: what floating-point tensors are cast
            to before packing, ``A_log`` excepted. Without it the config's ``torch_dtype``, else its
            ``text_config.dtype``, else no cast, as in ``mlx_lm.convert``.
        max_shard_bytes: size at which a new weight file is begun.
        progress: called as ``progress(done, total, name)`` after each parameter of the model.

    Raises:
        MixbitError: the input is unusable or the output cannot be written; nothing is left behind.
    """
    begun = time.monotonic()
    source, out_dir = Path(source), Path(out_dir)
    if out_dir.exists() and source.exists() and out_dir.samefile(source):
        raise MixbitError(f"{out_dir} is the source itself; name another folder to write to.")
    refuse_existing(out_dir)
    if max_shard_bytes < 1:
        raise MixbitError(f"max_shard_bytes is {max_shard_bytes}, but must be at least 1.")
    if dtype is not None and dtype not in _DTYPES:
        raise MixbitError(f"dtype {dtype!r} is not one of {', '.join(_DTYPES)}.")
    checkpoint = open_checkpoint(source)
    refuse_quantised(checkpoint)
    statistics = None if calibration is None else Calibration.load(calibration, checkpoint.config)
    model_type, model = checkpoint.config.get("model_type"), build_model(checkpoint.config)
    structure = structure_of(model, str(model_type))
    if not isinstance(plan, Plan):
        plan = Plan.load(plan, model=structure)
    check(plan, structure)
    whole = {shape.path: plan.modules.get(shape.path) for shape in structure.modules}
    plan = replace(plan, modules=whole, structure=structure)
    default = Choice.of(method or plan.method or "rtn").name
    choices = {
        path: Choice.of(plan.methods.get(path, default))
        for path, spec in whole.items()
        if spec is not None
    }
    if calibration is None:
        _refuse_uncalibrated(choices, plan, method)

    is_hybrid = structure.model_type in HYBRIDS
    readers = readers_of_norms(whole) if is_hybrid else {}
    folding = [path for path, choice in choices.items() if choice.fold]
    folds = _folds(structure, checkpoint.config, folding, whole) if folding else {}
    no_scale = MixbitError(
        f"awq found no scale that helps: nothing that it is to pack in {source} reads what "
        f"{calibration} knows; choose another method."
    )
    if folding and not any(folds.values()):
        raise no_scale
    loaded = model_weights(checkpoint, model, structure.model_type)
    weights = settle(loaded.weights, model, source, structure.model_type)
    left_out, stored = loaded.left_out, loaded.stored
    del model, loaded  # they hold every array, and each must go as soon as it is written
    carried = {name: f"{part}.safetensors" for name in left_out if (part := side_part(name))}
    target = _DTYPES.get(dtype or _declared_dtype(checkpoint.config))
    units = [
        make_unit(name, value, target, plan.modules.get(name.removesuffix(".weight")))
        for name, value in weights.items()
    ]
    nbytes = sum(unit.nbytes for unit in units)
    methods = dict(Counter(choice.name for choice in choices.values()))
    job = {
        "source": _identity([checkpoint.folder / "config.json", *checkpoint.files]),
        "plan": plan.to_json(),
        "dtype": dtype,
        "max_shard_bytes": max_shard_bytes,
        "method": default,
        "calibration": None if calibration is None else _identity([Path(calibration)]),
        "versions": _versions(),
    }
    with staged(out_dir, job) as staging, _little_cache():
        runs = _shards(units, max_shard_bytes)
        _clear(staging, runs)
        journal = staging.parent / "done.json"
        done = Done.load(journal)
        quantiser = Quantiser(
            checkpoint, weights, stored, choices, statistics, folds, readers, units, done
        )
        side_bytes = sum(checkpoint.tensors[name].nbytes for name in carried)
        _refuse_full_disk(out_dir, nbytes + side_bytes, staging)
        weight_map = _write_weights(runs, staging, quantiser, done, journal, progress)
        if folding and not done.changed:
            raise no_scale
        metadata = {"total_size": nbytes, "total_parameters": structure.params}
        write_json(
            staging / "model.safetensors.index.json",
            {"metadata": metadata, "weight_map": dict(sorted(weight_map.items()))},
        )
        _write_config(checkpoint.config, plan, dtype, staging)
        for file_name in sorted(set(carried.values())):
            members = [name for name, its_file in carried.items() if its_file == file_name]
            copy_tensors(checkpoint.tensors, members, staging / file_name, {"format": "pt"})
        _copy_side_files(checkpoint.folder, staging)
        write_json(
            staging / "mixbit.json",
            _sidecar(checkpoint, replace(plan, method=default), methods, statistics, done.changed),
        )
        open_checkpoint(staging)  # a disk that lost bytes is noticed here
    return QuantizeReport(
        out_dir=out_dir,
        bytes=nbytes,
        bpw=8 * nbytes / structure.params,
        params=structure.params,
        dense=_dense(plan),
        carried=carried,
        dropped={name: why for name, why in left_out.items() if name not in carried},
        methods=methods,
        changed=done.changed,
        fallbacks=done.fallbacks,
        notes=_notes(plan, method, methods),
        seconds=time.monotonic() - begun,
    )


def _refuse_uncalibrated(choices: Mapping[str, Choice], plan: Plan, method: str | None) -> None:
    for path, choice in choices.items():
        if choice.calibrated:
            is_plans = path in plan.methods or method is None
            whose = f", which plan {plan.name} names for {path}," if is_plans else ""
            raise MixbitError(
                f"Method {choice.name}{whose} needs a calibration; make one with mixbit calibrate."
            )


def _folds(
    structure: ModelStructure,
    config: Mapping[str, Any],
    folding: Iterable[str],
    specs: Mapping[str, QuantSpec | None],
) -> dict[str, list[Fold]]:
    """By layer, the folds that one at least of the readers asks for."""
    asking = {p for p in folding if (spec := specs[p]) is not None and spec.mode == "affine"}
    return {
        layer: [fold for fold in folds if asking.intersection(fold.readers)]
        for layer, folds in folds_of(structure, config).items()
    }


def _notes(plan: Plan, method: str | None, used: Mapping[str, int]) -> list[str]:
    """What a method that was asked for besides the plan's comes to."""
    if method is None:
        return []
    if method not in used:
        return [f"method {method} took no part: plan {plan.name} names one for every module"]
    if plan.method not in (None, method):
        return [f"plan {plan.name} names {plan.method}, in whose place {method} was taken"]
    return []


def _shards(units: list[Unit], limit: int) -> dict[str, list[Unit]]:
    """File name to what goes into it, in the model's order."""
    runs = group_by_size([unit.nbytes for unit in units], limit)
    return {shard_name(index, len(runs)): [units[i] for i in run] for index, run in enumerate(runs)}


def _clear(folder: Path, runs: Mapping[str, list[Unit]]) -> None:
    """Leave of an earlier run only the weight files that it finished."""
    for file in folder.iterdir():
        if file.name not in runs:
            file.unlink()


def _write_weights(
    runs: Mapping[str, list[Unit]],
    folder: Path,
    quantiser: Quantiser,
    done: Done,
    journal: Path,
    progress: Progress | None,
) -> dict[str, str]:
    """Pack and write what is not there yet, a layer after the other; returns each tensor's file."""
    layers = [layer_and_role(unit.name)[0] for units in runs.values() for unit in units]
    taken_up, first = done.units, 0
    weight_map: dict[str, str] = {}
    for name, units in runs.items():
        layouts = {key: layout for unit in units for key, layout in unit.layouts.items()}
        weight_map |= dict.fromkeys(layouts, name)
        begin = min(max(taken_up - first, 0), len(units))
        for unit in units[:begin]:
            quantiser.skip(unit)
        first += len(units)
        if begin == len(units):
            continue
        with ShardFile(folder / name, layouts) as file:
            for count, unit in enumerate(units[begin:], first - len(units) + begin + 1):
                for stored in quantiser.pieces(unit):
                    for key, rows in stored.items():
                        file.append(key, rows)
                if count == len(layers) or layers[count] != layers[count - 1]:
                    file.flush()
                    done.units = count
                    done.save(journal)
                if progress is not None:
                    progress(count, len(layers), unit.name)
            file.flush()
    return weight_map


@contextmanager
def _little_cache() -> Iterator[None]:
    """Keep MLX from holding on to much of what it has freed."""
    previous = mx.set_cache_limit(_CACHE_BYTES)
    try:
        yield
    finally:
        mx.set_cache_limit(previous)


def _write_config(config: dict[str, Any], plan: Plan, dtype: str | None, folder: Path) -> None:
    config = settled_config(config)
    # As mlx-lm leaves them out: the text model has no vision tower.
    config.pop("_name_or_path", None)
    config.pop("vision_config", None)
    if dtype is not None:
        text = config.get("text_config")
        for place in (config, text if isinstance(text, dict) else {}):
            place.update(dict.fromkeys({"dtype", "torch_dtype"} & place.keys(), dtype))
    block = plan.to_mlx_config()
    if block:
        config |= {"quantization": block, "quantization_config": block}
    write_json(folder / "config.json", dict(sorted(config.items())))


def _copy_side_files(source: Path, folder: Path) -> None:
    files = {file for pattern in _COPIED for file in source.glob(pattern) if file.is_file()}
    for file in files:
        if not (folder / file.name).exists():
            shutil.copyfile(file, folder / file.name)


def _sidecar(
    checkpoint: Checkpoint,
    plan: Plan,
    methods: Mapping[str, int],
    calibration: Calibration | None,
    changed: int,
) -> dict[str, Any]:
    config = json.dumps(checkpoint.config, sort_keys=True).encode()
    return {
        "schema": CHECKPOINT_SCHEMA,
        "plan": plan.to_json(),
        "provenance": {
            "recipe": plan.provenance.get("recipe"),
            "methods": methods,
            "changed": changed,
            "calibration": None if calibration is None else calibration.provenance,
            "source_config_sha256": hashlib.sha256(config).hexdigest(),
            **_versions(),
        },
    }


def _dense(plan: Plan) -> dict[str, str]:
    by_width = plan.provenance.get("dense_by_width", {})
    return {
        path: f"its rows of {by_width[path]} weights do not split into groups"
        if path in by_width
        else f"plan {plan.name} leaves it as it is"
        for path, spec in plan.modules.items()
        if spec is None
    }


def _declared_dtype(config: dict[str, Any]) -> str:
    text = config.get("text_config")
    nested = text.get("dtype") if isinstance(text, dict) else None
    return str(config.get("torch_dtype") or nested)


def _refuse_full_disk(out_dir: Path, nbytes: int, staging: Path) -> None:
    there = sum(file.stat().st_size for file in staging.iterdir())
    free = shutil.disk_usage(staging).free
    if free < nbytes - there:
        raise MixbitError(
            f"The checkpoint takes {nbytes / 1e9:.1f} GB, but only {free / 1e9:.1f} GB are free "
            f"at {out_dir.parent}."
        )


def _identity(files: Iterable[Path]) -> list[tuple[str, int, int]]:
    """What tells whether files are still the same, without reading them."""
    return [(file.name, (stat := file.stat()).st_size, stat.st_mtime_ns) for file in files]


def _versions() -> dict[str, str]:
    names = {"mixbit": "mixbit", "mlx": "mlx", "mlx_lm": "mlx-lm"}
    return {key: importlib.metadata.version(name) for key, name in names.items()}
