"""Every spelling of a path leads to the one module that it means."""

import pytest

from mixbit.checkpoint import describe
from mixbit.errors import MixbitError
from mixbit.plan.entries import Entries
from mixbit.plan.names import PathTable, spellings
from mixbit.plan.spec import QuantSpec
from models import MODEL_TYPES, config

STRUCTURES = {model_type: describe(config(model_type)) for model_type in MODEL_TYPES}
SPEC, OTHER = QuantSpec(6, 64), QuantSpec(4, 64)


@pytest.mark.parametrize("model_type", MODEL_TYPES)
@pytest.mark.parametrize("suffix", ["", ".weight"])
def test_every_spelling_leads_back(model_type: str, suffix: str) -> None:
    structure = STRUCTURES[model_type]
    table = PathTable(structure)
    seen = 0
    for path in table.paths:
        for keys in spellings(table, path):
            entries = Entries(structure, "a plan")
            for key in keys:
                name = key.removesuffix(".weight") + suffix
                meaning = table.find(name)
                assert meaning is not None, name
                assert path in meaning.paths, name
                entries.add(name, SPEC)
            assert entries.named()[path] == SPEC, keys
            seen += 1
    assert seen > 8 * len(table.paths)


Q, MOE, NEXT = MODEL_TYPES
L = "language_model.model.layers.2."
N = "model.layers.2."


@pytest.mark.parametrize(
    ("model_type", "key", "kind", "paths", "part"),
    [
        (Q, "layers.2.mlp.up_proj", "module", [f"{L}mlp.up_proj"], ""),
        (Q, "language_model.layers.2.mlp.up_proj.weight", "module", [f"{L}mlp.up_proj"], ""),
        (Q, "blk.2.attn_qkv.weight", "module", [f"{L}linear_attn.in_proj_qkv"], ""),
        (Q, "blk.2.attn_gate", "module", [f"{L}linear_attn.in_proj_z"], ""),
        (Q, "blk.2.ssm_alpha.weight", "module", [f"{L}linear_attn.in_proj_a"], ""),
        (Q, "blk.2.ssm_beta.weight", "module", [f"{L}linear_attn.in_proj_b"], ""),
        (NEXT, "blk.3.attn_q.weight", "module", ["model.layers.3.self_attn.q_proj"], ""),
        (Q, "token_embd.weight", "module", ["language_model.model.embed_tokens"], ""),
        (Q, "output.weight", "module", ["language_model.lm_head"], ""),
        (
            Q, "model.layers.2.linear_attn.in_proj_qkvz", "module",
            [f"{L}linear_attn.in_proj_qkv", f"{L}linear_attn.in_proj_z"], "",
        ),
        (
            Q, "blk.2.ssm_ba.weight", "module",
            [f"{L}linear_attn.in_proj_b", f"{L}linear_attn.in_proj_a"], "",
        ),
        (
            NEXT, "model.language_model.layers.2.linear_attn.in_proj_z", "module",
            [f"{N}linear_attn.in_proj_qkvz"], "linear_attn.in_proj_z",
        ),
        (NEXT, "blk.2.ssm_in.weight", "module", [f"{N}linear_attn.in_proj_qkvz"], ""),
        (NEXT, "layers.2.mlp.experts.5.up_proj", "module", [f"{N}mlp.switch_mlp.up_proj"], "5"),
        (NEXT, "blk.2.ffn_down_exps.weight", "module", [f"{N}mlp.switch_mlp.down_proj"], ""),
        (
            MOE, "model.language_model.layers.2.mlp.experts.gate_up_proj", "module",
            [f"{L}mlp.switch_mlp.gate_proj", f"{L}mlp.switch_mlp.up_proj"], "",
        ),
        (MOE, "blk.2.ffn_gate_inp_shexp.weight", "module", [f"{L}mlp.shared_expert_gate"], ""),
        (MOE, "blk.2.ffn_gate_inp.weight", "module", [f"{L}mlp.gate"], ""),
        (Q, "blk.2.ssm_a", "fixed", [], ""),
        (Q, "blk.2.ssm_dt.bias", "fixed", [], ""),
        (Q, "blk.2.ssm_conv1d.weight", "fixed", [], ""),
        (Q, "output_norm.weight", "fixed", [], ""),
        (Q, "model.layers.2.linear_attn.norm.weight", "fixed", [], ""),
        (Q, "mtp.layers.0.mlp.up_proj", "side", [], ""),
        (Q, "blk.4.nextn.eh_proj.weight", "side", [], ""),
        (Q, "v.blk.0.attn_q.weight", "side", [], ""),
        (Q, "model.visual.blocks.0.attn.qkv", "side", [], ""),
    ],
)  # fmt: skip
def test_what_a_key_means(
    model_type: str, key: str, kind: str, paths: list[str], part: str
) -> None:
    meaning = PathTable(STRUCTURES[model_type]).find(key)
    assert meaning is not None
    assert (meaning.kind, list(meaning.paths), meaning.part) == (kind, paths, part)


@pytest.mark.parametrize(
    ("model_type", "key"),
    [
        (Q, "layers.2.mlp.up_prj"),
        (Q, "layers.99.mlp.up_proj"),
        (Q, "layers.99.input_layernorm"),
        (Q, "layers.3.linear_attn.in_proj_qkv"),
        (Q, "layers.2.mlp.experts.0.up_proj"),
        (Q, "layers.2.mlp.experts.gate_up_proj"),
        (Q, "blk.2.ffn_up_exps.weight"),
        (Q, "blk.2.attn_unknown.weight"),
        (NEXT, "layers.2.mlp.experts.6.up_proj"),
        (NEXT, "layers.3.linear_attn.in_proj_qkv"),
        (Q, "head"),
        (Q, ""),
        (Q, ".weight"),
    ],
)
def test_keys_that_mean_nothing(model_type: str, key: str) -> None:
    assert PathTable(STRUCTURES[model_type]).find(key) is None


def test_the_head_of_a_tied_model_is_passed_over() -> None:
    structure = describe(config("qwen3_5", tie_word_embeddings=True))
    entries = Entries(structure, "a plan")
    entries.add("lm_head", SPEC)
    assert entries.named() == {}
    assert entries.notes() == ["passed over lm_head: no part of the text model"]


def test_parts_that_agree_make_the_whole() -> None:
    for model_type, keys, path in (
        (NEXT, ["linear_attn.in_proj_qkv", "linear_attn.in_proj_z"], "linear_attn.in_proj_qkvz"),
        (NEXT, [f"mlp.experts.{i}.up_proj" for i in range(6)], "mlp.switch_mlp.up_proj"),
    ):
        entries = Entries(STRUCTURES[model_type], "a plan")
        for key in keys:
            entries.add(f"layers.2.{key}", SPEC)
        assert entries.named() == {N + path: SPEC}


@pytest.mark.parametrize(
    ("values", "default", "highest"),
    [
        ({"in_proj_qkv": SPEC, "in_proj_z": OTHER}, None, SPEC),
        ({"in_proj_qkv": OTHER, "in_proj_z": QuantSpec(4, 32)}, None, QuantSpec(4, 32)),
        ({"in_proj_qkv": SPEC, "in_proj_z": None}, OTHER, None),
        ({"in_proj_z": SPEC}, None, None),
        ({"in_proj_z": SPEC}, OTHER, SPEC),
        ({"in_proj_qkvz": OTHER, "in_proj_z": SPEC}, None, SPEC),
    ],
)
def test_parts_that_disagree_are_refused_or_the_highest_stands(
    values: dict[str, QuantSpec | None], default: QuantSpec | None, highest: QuantSpec | None
) -> None:
    structure = STRUCTURES[NEXT]
    path = f"{N}linear_attn.in_proj_qkvz"
    refusing, taking = Entries(structure, "a plan"), Entries(structure, "a plan", "highest")
    for name, spec in values.items():
        refusing.add(f"layers.2.linear_attn.{name}", spec)
        taking.add(f"layers.2.linear_attn.{name}", spec)
    with pytest.raises(MixbitError, match=rf"a plan has entries for {path} that differ \("):
        refusing.settled(default)
    assert taking.settled(default)[path] == highest


def test_one_expert_alone_is_not_all_of_them() -> None:
    entries = Entries(STRUCTURES[NEXT], "a plan")
    entries.add("layers.2.mlp.experts.0.up_proj", SPEC)
    with pytest.raises(
        MixbitError, match=r"affine 6/64, not quantised\)|not quantised, affine 6/64\)"
    ):
        entries.named()


def test_two_spellings_of_one_module_that_differ_are_refused() -> None:
    entries = Entries(STRUCTURES[Q], "a plan")
    entries.add("layers.2.mlp.up_proj", SPEC)
    entries.add("model.layers.2.mlp.up_proj", SPEC)
    with pytest.raises(MixbitError, match=r"entries for .*up_proj that differ"):
        entries.add("blk.2.ffn_up.weight", OTHER)


def test_what_is_never_quantised_may_be_named_as_such_only() -> None:
    entries = Entries(STRUCTURES[Q], "a plan")
    for key in ("model.layers.2.input_layernorm", "blk.2.ssm_conv1d.weight"):
        entries.add(key, None)
        with pytest.raises(MixbitError, match=f"a plan names {key}, which is no module"):
            entries.add(key, SPEC)
    assert entries.named() == {}


def test_an_unknown_key_is_told_with_its_neighbours() -> None:
    entries = Entries(STRUCTURES[Q], "a plan")
    with pytest.raises(MixbitError, match=rf"names {L}mlp\.up_prj, .* the nearest are .*up_proj"):
        entries.add(f"{L}mlp.up_prj", SPEC)
