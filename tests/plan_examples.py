"""One example of each plan format, composed for the tests, on models of 256 columns."""

from typing import Any

from mixbit.checkpoint import describe
from mixbit.plan import QuantSpec
from models import config

DIMS = {"hidden_size": 256, "intermediate_size": 256, "moe_intermediate_size": 256}
DIMS |= {"shared_expert_intermediate_size": 256}
WIDE = {
    name: config(name, **(DIMS if name != "qwen3_5" else dict(list(DIMS.items())[:2])))
    for name in ("qwen3_5", "qwen3_5_moe", "qwen3_next")
}
CONFIG = WIDE["qwen3_5"]
STRUCTURES = {name: describe(settings) for name, settings in WIDE.items()}
DENSE, MOE, NEXT = STRUCTURES.values()
L0, L3 = "language_model.model.layers.0.", "language_model.model.layers.3."
HEAD, EMBED = "language_model.lm_head", "language_model.model.embed_tokens"
OUT, QKV = f"{L0}linear_attn.out_proj", f"{L0}linear_attn.in_proj_qkv"
A4, A5, A6, A8 = (QuantSpec(bits, 64) for bits in (4, 5, 6, 8))
A4_128 = QuantSpec(4, 128)
MXFP4, NVFP4, MXFP8 = (
    QuantSpec(4, 32, "mxfp4"),
    QuantSpec(4, 16, "nvfp4"),
    QuantSpec(8, 32, "mxfp8"),
)
TORCH = "model.language_model.layers.0."


def foreign(block: dict[str, Any]) -> dict[str, Any]:
    return CONFIG | {"quantization_config": block}


# Each: content of the file, what some modules become, and None or what all others become.
Expected = dict[str, QuantSpec | None]
EXAMPLES: dict[str, tuple[Any, str, Expected]] = {
    "mlx-lm": (
        CONFIG
        | {"quantization": {
            "group_size": 64, "bits": 4, "mode": "affine",
            EMBED: {"group_size": 64, "bits": 6, "mode": "affine"},
            f"{L0}mlp.gate_proj": {"group_size": 32, "bits": 4, "mode": "mxfp4"},
            OUT: False}},
        "mlx", {EMBED: A6, f"{L0}mlp.gate_proj": MXFP4, OUT: None, HEAD: A4, QKV: A4},
    ),
    "mlx-lm, quantization_config alone": (
        foreign({"group_size": 32, "bits": 5, OUT: False}),
        "mlx", {OUT: None, QKV: QuantSpec(5, 32)},
    ),
    "mlx-lm, under text_config": (
        CONFIG | {"text_config": CONFIG["text_config"]
                  | {"quantization": {"group_size": 64, "bits": 4, "layers.0.mlp.up_proj": False}}},
        "mlx", {f"{L0}mlp.up_proj": None, QKV: A4},
    ),
    "mlx-vlm, one key in each namespace": (
        {"quantization": {
            "group_size": 64, "bits": 4, "model.visual.merger.linear_fc1": False,
            "vision_tower.blocks.0.attn.qkv": {"group_size": 64, "bits": 8},
            "model.language_model.embed_tokens": {"group_size": 64, "bits": 8},
            "model.layers.0.linear_attn.out_proj": {"group_size": 64, "bits": 8},
            "lm_head": {"group_size": 64, "bits": 6}}},
        "mlx", {EMBED: A8, OUT: A8, HEAD: A6, QKV: A4},
    ),
    "mlx-swift, with its extra keys": (
        {"quantization": {
            "group_size": 64, "bits": 4, "quant_method": "mlx", "linear_class": "any",
            "quantization_mode": "affine", OUT: {"group_size": 64, "bits": 8}}},
        "mlx", {OUT: A8, QKV: A4},
    ),
    "AutoRound for MLX": (
        CONFIG
        | {"quantization": {
            "group_size": 128, "bits": 4, "lm_head": False,
            f"{TORCH}linear_attn.in_proj_qkv": {"group_size": 128, "bits": 6}},
           "quantization_config": {
            "quant_method": "auto-round", "packing_format": "mlx", "bits": 4, "group_size": 128}},
        "mlx", {HEAD: None, QKV: QuantSpec(6, 128), EMBED: A4_128},
    ),
    "mlx-node, with a norm named": (
        {"quantization": {
            "group_size": 64, "bits": 3, "language_model.model.lm_head": {"bits": 6},
            f"{L0}input_layernorm": False}},
        "mlx", {HEAD: A6, QKV: QuantSpec(3, 64)},
    ),
    "oMLX oQ, an mxfp8 path": (
        {"quantization": {
            "group_size": 64, "bits": 4, "oq_level": 4, "oq": {"level": 4},
            OUT: {"mode": "mxfp8", "group_size": 32, "bits": 8}}},
        "mlx", {OUT: MXFP8, QKV: A4},
    ),
    "JANG 2 overrides with storage_bits": (
        {"quantization": {"group_size": 64, "bits": 4, OUT: {"bits": 8, "storage_bits": 8}}},
        "mlx", {OUT: A8, QKV: A4},
    ),
    "bits alone": ({"quantization": {"group_size": 32, "bits": 4, OUT: {"bits": 8}}},
                   "mlx", {OUT: A8, QKV: QuantSpec(4, 32)}),
    "mlx-optiq": (
        {"method": "optiq_mixed_precision", "base_model": "Qwen/Qwen3.5-4B", "target_bpw": 5.0,
         "per_layer": {f"{L3}self_attn.v_proj": {"bits": 8, "group_size": 64},
                       OUT: {"bits": 16, "group_size": 64}, QKV: {"bits": 4}}},
        "optiq", {f"{L3}self_attn.v_proj": A8, OUT: None, QKV: A4, EMBED: None},
    ),
    "mlx-optiq, nested": (
        {"method": "static_mixed_precision", "optimization": {"per_layer": {QKV: {"bits": 4}}}},
        "optiq", {QKV: A4, OUT: None},
    ),
    "JANG manifest": (
        {"format": "jang", "format_version": "2.0", "quantization": {
            "method": "jang-importance", "block_size": 64, "bit_widths_used": [4, 8],
            "tensor_quantization_manifest": {
                "model.layers.0.linear_attn.out_proj": {"bits": 8, "group_size": 64},
                "model.layers.0.linear_attn.in_proj_qkv": {"bits": 4}}}},
        "jang", {OUT: A8, QKV: A4, HEAD: None},
    ),
    "JANG measured plan": (
        {"group_size": 128, "base_bits": 4, "modules": [
            {"path": "model.layers.0.linear_attn.out_proj", "bits": 6, "reason": "measured"},
            {"path": "model.layers.0.linear_attn.in_proj_qkv"}]},
        "jang", {OUT: QuantSpec(6, 128), QKV: A4_128},
    ),
    "mlx-kquant": (
        CONFIG | {"quantization": {"mode": "kquant", "per_tensor": {
            "model.layers.0.mlp.down_proj": "q6_k", "model.layers.0.mlp.up_proj": "mxfp4",
            "lm_head": "q8_0"}}},
        "kquant", {f"{L0}mlp.down_proj": QuantSpec(6, 32), f"{L0}mlp.up_proj": MXFP4,
                   HEAD: QuantSpec(8, 32), QKV: None},
    ),
    "compressed-tensors": (
        foreign({"quant_method": "compressed-tensors", "format": "mixed-precision",
                 "config_groups": {
                     "group_0": {"targets": ["re:.*mlp.*_proj$"], "format": "pack-quantized",
                                 "weights": {"num_bits": 4, "type": "int", "symmetric": True,
                                             "strategy": "group", "group_size": 128}},
                     "group_1": {"targets": ["re:.*self_attn.*", "model.layers.0.mlp.up_proj"],
                                 "weights": {"num_bits": 8, "type": "int", "group_size": 64}},
                     "group_2": {"targets": ["Linear"], "format": "nvfp4-pack-quantized",
                                 "weights": {"num_bits": 4, "type": "float",
                                             "strategy": "tensor_group", "group_size": 16}}},
                 "ignore": ["lm_head", "re:.*linear_attn.in_proj_[ab]$"]}),
        "compressed-tensors",
        {f"{L0}mlp.up_proj": A4_128, f"{L3}self_attn.o_proj": A8, HEAD: None,
         f"{L0}linear_attn.in_proj_a": None, QKV: NVFP4, OUT: NVFP4, EMBED: None},
    ),
    "compressed-tensors, mxfp4": (
        foreign({"quant_method": "compressed-tensors", "format": "mxfp4-pack-quantized",
                 "config_groups": {"group_0": {"targets": ["Linear"], "weights": {
                     "num_bits": 4, "type": "float", "strategy": "group", "group_size": 32}}}}),
        "compressed-tensors", {QKV: MXFP4, HEAD: MXFP4, EMBED: None},
    ),
    "GPTQModel": (
        foreign({"quant_method": "gptq", "bits": 4, "group_size": 128, "sym": True,
                 "desc_act": False, "dynamic": {
                     "-:.*linear_attn\\.in_proj_[ab]$": {},
                     "+:.*\\.in_proj_.*$": {"bits": 6},
                     ".*\\.down_proj$": {"bits": 8, "group_size": 64}}}),
        "gptq",
        {f"{L0}mlp.down_proj": A8, f"{L0}linear_attn.in_proj_a": None, QKV: QuantSpec(6, 128),
         f"{L0}mlp.up_proj": A4_128, HEAD: None, EMBED: None},
    ),
    "AutoRound": (
        foreign({"quant_method": "auto-round", "bits": 4, "group_size": 128, "sym": True,
                 "data_type": "int", "packing_format": "auto_round:auto_gptq",
                 "block_name_to_quantize": "model.language_model.layers",
                 "extra_config": {
                     f"{TORCH}linear_attn.in_proj_a": {"bits": 16, "data_type": "fp"},
                     ".*self_attn.*": {"bits": 8, "group_size": 64},
                     "lm_head": {"bits": 8}}}),
        "auto-round",
        {f"{L0}linear_attn.in_proj_a": None, f"{L3}self_attn.k_proj": A8,
         HEAD: QuantSpec(8, 128), QKV: A4_128, EMBED: None},
    ),
    "ModelOpt": (
        {"producer": {"name": "modelopt"}, "quantization": {
            "quant_algo": "NVFP4", "group_size": 16,
            "exclude_modules": ["lm_head", "*linear_attn.conv1d*", "*.out_proj"]}},
        "modelopt", {QKV: NVFP4, HEAD: None, OUT: None, EMBED: None},
    ),
    "ModelOpt, flat": (
        foreign({"quant_method": "modelopt", "quant_algo": "W4A16_AWQ", "group_size": 128,
                 "ignore": ["model.language_model.layers.0.*"]}),
        "modelopt", {QKV: None, f"{L3}mlp.up_proj": A4_128, HEAD: A4_128},
    ),
    "ModelOpt, mixed": (
        foreign({"quant_method": "modelopt", "quant_algo": "MIXED_PRECISION", "quantized_layers": {
            f"{TORCH}linear_attn.out_proj": {"quant_algo": "NVFP4"}}}),
        "modelopt", {OUT: NVFP4, QKV: None},
    ),
    "AWQ": (
        foreign({"quant_method": "awq", "bits": 4, "group_size": 128,
                 "modules_to_not_convert": ["linear_attn", "mlp.gate"]}),
        "awq", {QKV: None, f"{L0}mlp.gate_proj": A4_128, HEAD: None},
    ),
    "mxfp4": (foreign({"quant_method": "mxfp4"}), "mxfp4", {QKV: MXFP4, HEAD: None}),
    "fp8 that is mxfp8": (
        foreign({"quant_method": "fp8", "scale_fmt": "ue8m0", "weight_block_size": [32, 32]}),
        "fp8", {QKV: MXFP8, EMBED: None},
    ),
    "Atlas": (
        {"mixed_quant": {"avg_bits": 4.5, "layers": [
            {"layer_index": 0, "bits": 4}, {"layer_index": 3, "bits": 8}]}},
        "atlas", {QKV: A4, f"{L3}self_attn.q_proj": A8, f"{L3}mlp.up_proj": A8, HEAD: None},
    ),
    "tensor types": (
        "blk\\.\\d+\\.ssm_out=q6_k\nblk\\.(0|1)\\.ffn_down=Q5_K\nattn_(qkv|gate)=q5_k\n"
        "token_embd=bf16  OUTPUT\\.weight=mxfp4\nssm_conv1d=f32 blk\\.4\\.nextn=q8_0",
        "tensor-types",
        {OUT: QuantSpec(6, 32), f"{L0}mlp.down_proj": QuantSpec(5, 32), f"{L3}mlp.down_proj": None,
         QKV: QuantSpec(5, 32), EMBED: None, HEAD: MXFP4, f"{L0}mlp.up_proj": None},
    ),
    "overrides": (
        "layers\\.0\\.linear_attn\\.out_proj=bfloat16\nout_proj=6/32\nlm_head=nvfp4\n\nmlp=4\n",
        "overrides",
        {OUT: None, "language_model.model.layers.1.linear_attn.out_proj": QuantSpec(6, 32),
         HEAD: NVFP4, f"{L3}mlp.up_proj": A4, QKV: None},
    ),
    "CSV": (
        f"path,bits,group_size,mode\n{QKV},4\nblk.0.ssm_out.weight, 6, 32\n"
        f"lm_head,bf16\n{EMBED},4,,mxfp4\n",
        "table", {QKV: A4, OUT: QuantSpec(6, 32), HEAD: None, EMBED: MXFP4},
    ),
    "CSV without a heading": (f"{QKV},4\n{OUT},16\n", "table", {QKV: A4, OUT: None}),
    "JSON table": ({QKV: 4, OUT: "bf16", HEAD: {"bits": 6, "group_size": 32}},
                   "table", {QKV: A4, OUT: None, HEAD: QuantSpec(6, 32)}),
    "JSON list": ([[QKV, 4], [OUT, 16]], "table", {QKV: A4, OUT: None}),
    "JSON rows": ([{"path": QKV, "bits": 4, "mode": "nvfp4"}], "table", {QKV: NVFP4, OUT: None}),
}  # fmt: skip
