"""Which logits are compared with transformers, and how transformers computes them.

``tools/make_goldens.py`` writes the files under ``tests/data``; ``test_goldens.py`` reads them.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from mixbit.data import tiny_data, tiny_model
from models import config, save_raw

if TYPE_CHECKING:
    from mlx_lm.tokenizer_utils import TokenizerWrapper
    from transformers import PreTrainedTokenizerBase

FOLDER = Path(__file__).parent / "data"
DOCUMENTS = 3
TOLERANCE = 1e-4


@dataclass(frozen=True)
class RandomCase:
    """A random model; its golden file holds ``tokens`` ``[70]`` and ``logits`` ``[70, vocab]``."""

    name: str
    model_type: str
    overrides: dict[str, Any] = field(default_factory=dict)

    @property
    def file(self) -> Path:
        """The golden file."""
        return FOLDER / f"{self.name}.npz"

    def save(self, folder: Path) -> Path:
        """Write the model in raw Hugging Face layout, float32."""
        return save_raw(self.model_type, folder, seed=1, **self.overrides)

    def tokens(self) -> np.ndarray:
        """70 token ids: more than one of transformers' chunks of 64."""
        settings = config(self.model_type, **self.overrides)
        vocab = settings.get("text_config", settings)["vocab_size"]
        return np.random.RandomState(2).randint(0, vocab, 70).astype(np.int32)


# Key and value head dims apart, an odd number of value heads per key head, and a tied head.
_UNEVEN = {
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 6,
    "linear_key_head_dim": 48,
    "linear_value_head_dim": 32,
    "tie_word_embeddings": True,
}

RANDOM_CASES = (
    RandomCase("qwen3_5", "qwen3_5"),
    RandomCase("qwen3_5_uneven", "qwen3_5", _UNEVEN),
    RandomCase("qwen3_5_moe", "qwen3_5_moe"),
    RandomCase("qwen3_next", "qwen3_next"),
    RandomCase("qwen3_next_uneven", "qwen3_next", _UNEVEN),
)


# Correlation of the keys, beta and the logarithm of the gate: from easy to what breaks an inverse.
REGIMES = {
    "random": (0.0, 0.5, -0.05),
    "slow": (0.0, 0.95, -1e-3),
    "correlated": (0.6, 0.95, -1e-3),
    "alike": (0.9, 0.99, -1e-4),
    "identical": (1.0, 0.999, -1e-6),
}
RULE_FILE = FOLDER / "gated_delta_rule.npz"


def rule_inputs(regime: str, seed: int = 0) -> list[np.ndarray]:
    """q, k ``[1, 70, 2, 24]``, v ``[1, 70, 4, 8]``, g and beta ``[1, 70, 4]``, float32.

    q is divided by the root of its dimension, as the rule's callers do.
    """
    correlation, beta, decay = REGIMES[regime]
    rng = np.random.RandomState(seed)
    q, k = rng.normal(size=(2, 1, 70, 2, 24))
    k = np.sqrt(correlation) * rng.normal(size=(1, 1, 2, 24)) + np.sqrt(1 - correlation) * k
    q, k = (x / np.linalg.norm(x, axis=-1, keepdims=True) for x in (q, k))
    v = rng.normal(size=(1, 70, 4, 8))
    g = np.exp(decay * 2 * rng.uniform(size=(1, 70, 4)))
    betas = 1 - (1 - beta) * 2 * rng.uniform(size=(1, 70, 4))
    return [x.astype(np.float32) for x in (q / np.sqrt(24), k, v, g, betas)]


def transformers_rule(inputs: list[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """The rule's y ``[1, 70, 4, 8]`` and state ``[1, 4, 8, 24]`` of transformers, step by step."""
    import torch
    from transformers.models.qwen3_next import modeling_qwen3_next

    q, k, v, g, beta = (torch.from_numpy(x) for x in inputs)
    y, state = modeling_qwen3_next.torch_recurrent_gated_delta_rule(
        q * q.shape[-1] ** 0.5, k, v, g.log(), beta, output_final_state=True
    )
    return y.numpy(), state.transpose(-1, -2).contiguous().numpy()


def tiny_file(index: int) -> Path:
    """Golden file of the trained model on one held-out document.

    It holds ``tokens`` ``[T]``, ``positions`` ``[P]`` and the ``logits`` there, ``[P, 2048]``.
    """
    return FOLDER / f"tiny_document{index}.npz"


def tiny_tokens(index: int, tokenizer: TokenizerWrapper | PreTrainedTokenizerBase) -> np.ndarray:
    """Token ids of one document of ``kld_eval.jsonl``."""
    line = tiny_data("kld_eval").read_text(encoding="utf-8").splitlines()[index]
    document = json.loads(line)
    text = tokenizer.apply_chat_template(
        document["messages"], tools=document.get("tools"), tokenize=False
    )
    return np.array(tokenizer.encode(text, add_special_tokens=False), dtype=np.int32)


def tiny_positions(length: int) -> np.ndarray:
    """Which positions' logits are kept: 24, spread evenly, with the first and the last."""
    return np.linspace(0, length - 1, 24).round().astype(np.int32)


def transformers_logits(folder: Path, tokens: np.ndarray) -> np.ndarray:
    """Float32 logits ``[T, vocab]`` of transformers on the CPU."""
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    with torch.no_grad():
        logits = model(torch.from_numpy(tokens.astype(np.int64))[None], use_cache=False).logits
    return logits[0].numpy()


def tiny_reference(index: int, tokenizer: PreTrainedTokenizerBase) -> dict[str, np.ndarray]:
    """What ``tiny_file(index)`` holds."""
    tokens = tiny_tokens(index, tokenizer)
    positions = tiny_positions(len(tokens))
    logits = transformers_logits(tiny_model(), tokens)[positions]
    return {"tokens": tokens, "positions": positions, "logits": logits}
