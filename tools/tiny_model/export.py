"""Write a training checkpoint as a Hugging Face folder (bf16 safetensors, Qwen3.5 layout).

The layout is that of the published Qwen3.5 checkpoints: ``model_type`` qwen3_5 with a
``text_config``, weights under ``model.language_model.`` and ``lm_head.``, and norm
weights stored around zero. transformers' ``AutoModelForCausalLM`` and mlx-lm both load it.

    python export.py --checkpoint work/run/checkpoint.pt --tokenizer model --out model
"""

from __future__ import annotations

import argparse
import json
import shutil
from pathlib import Path
from typing import Any

import torch
from model import SIZES, Size, build_config, build_model
from safetensors.torch import save_file
from tokenizers import Tokenizer


def text_config(size: Size, eos: int, pad: int) -> dict[str, Any]:
    """The ``text_config`` section of config.json."""
    config = build_config(size, eos_token_id=eos, pad_token_id=pad)
    keep = (
        "attention_bias",
        "attention_dropout",
        "head_dim",
        "hidden_act",
        "hidden_size",
        "initializer_range",
        "intermediate_size",
        "layer_types",
        "linear_conv_kernel_dim",
        "linear_key_head_dim",
        "linear_num_key_heads",
        "linear_num_value_heads",
        "linear_value_head_dim",
        "max_position_embeddings",
        "num_attention_heads",
        "num_hidden_layers",
        "num_key_value_heads",
        "rms_norm_eps",
        "rope_parameters",
        "tie_word_embeddings",
        "use_cache",
        "vocab_size",
        "eos_token_id",
        "pad_token_id",
    )
    values = config.to_dict()
    section = {key: values[key] for key in keep}
    section |= {
        "model_type": "qwen3_5_text",
        "dtype": "bfloat16",
        "attn_output_gate": True,
        "full_attention_interval": size.interval,
        "partial_rotary_factor": config.rope_parameters["partial_rotary_factor"],
        "mamba_ssm_dtype": "float32",
    }
    return dict(sorted(section.items()))


def stored_name(name: str) -> str:
    """Parameter name in the checkpoint file."""
    return name.replace("model.", "model.language_model.", 1) if name.startswith("model.") else name


ZERO_CENTRED = (
    "input_layernorm.weight",
    "post_attention_layernorm.weight",
    "model.norm.weight",
    "q_norm.weight",
    "k_norm.weight",
)


def stored_value(name: str, value: torch.Tensor) -> torch.Tensor:
    """The bf16 value to store.

    mlx-lm adds 1 to the zero-centred norm weights in bf16, transformers in fp32. Weights
    are therefore snapped so that ``1 + weight`` is exact in bf16 and both agree.
    """
    value = value.detach().float()
    if name.endswith(ZERO_CENTRED):
        value = (1.0 + value).bfloat16().float() - 1.0
    return value.bfloat16().contiguous()


def main() -> None:
    """Command line entry."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--checkpoint", type=Path, required=True)
    parser.add_argument("--tokenizer", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()

    tokenizer = Tokenizer.from_file(str(args.tokenizer / "tokenizer.json"))
    end, text_end = tokenizer.token_to_id("<|im_end|>"), tokenizer.token_to_id("<|endoftext|>")
    state = torch.load(args.checkpoint, weights_only=True)
    size = SIZES[state["size"]]
    model = build_model(size, build_config(size, eos_token_id=end, pad_token_id=text_end))
    model.load_state_dict(state["model"])
    tensors = {
        stored_name(name): stored_value(name, value) for name, value in model.state_dict().items()
    }
    args.out.mkdir(parents=True, exist_ok=True)
    save_file(tensors, args.out / "model.safetensors", metadata={"format": "pt"})
    config = {
        "architectures": ["Qwen3_5ForCausalLM"],
        "model_type": "qwen3_5",
        "dtype": "bfloat16",
        "tie_word_embeddings": False,
        "eos_token_id": end,
        "pad_token_id": text_end,
        "text_config": text_config(size, end, text_end),
    }
    (args.out / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    generation = {
        "do_sample": False,
        "eos_token_id": [end, text_end],
        "pad_token_id": text_end,
        "max_new_tokens": 256,
    }
    (args.out / "generation_config.json").write_text(
        json.dumps(generation, indent=2) + "\n", encoding="utf-8"
    )
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        if (args.tokenizer / name).resolve() != (args.out / name).resolve():
            shutil.copyfile(args.tokenizer / name, args.out / name)
    print(
        json.dumps(
            {
                "parameters": sum(t.numel() for t in tensors.values()),
                "bytes": (args.out / "model.safetensors").stat().st_size,
                "steps": state["step"],
                "tokens": state["tokens"],
            }
        )
    )


if __name__ == "__main__":
    main()
