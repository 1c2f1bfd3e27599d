"""What a model scores on the held-out data: exact tool calls, token loss, KL divergence."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from codec import Codec
from fast_forward import CHUNK, fast_hidden
from jinja_env import render
from torch.nn import functional


@torch.no_grad()
def exact_match(
    model: torch.nn.Module, codec: Codec, prompts: list[dict[str, Any]], batch: int = 16
) -> tuple[float, float]:
    """Share of prompts whose greedy answer is the expected call, and the call's mean token loss.

    Greedy decoding yields the expected text exactly if the expected token is the
    arg max at every position of the answer, which one forward pass shows.
    """
    hits, total_loss, tokens = 0, 0.0, 0
    for begin in range(0, len(prompts), batch):
        rows: list[tuple[list[int], int]] = []
        for prompt in prompts[begin : begin + batch]:
            call = {"type": "function", "function": prompt["expected"]}
            full = [*prompt["messages"], {"role": "assistant", "content": "", "tool_calls": [call]}]
            head = render(
                codec.template,
                prompt["messages"],
                prompt["tools"],
                add_generation_prompt=True,
                enable_thinking=False,
            )
            ids = codec.tokenizer.encode(
                render(codec.template, full, prompt["tools"]).removesuffix("\n")
            ).ids
            rows.append((ids, len(codec.tokenizer.encode(head).ids)))
        length = -(-max(len(ids) for ids, _ in rows) // CHUNK) * CHUNK
        padded = torch.full((len(rows), length), codec.end_of_text)
        for index, (ids, _) in enumerate(rows):
            padded[index, : len(ids)] = torch.tensor(ids)
        logits = model.lm_head(fast_hidden(model, padded))
        for index, (ids, start) in enumerate(rows):
            target = torch.tensor(ids[start:])
            scores = logits[index, start - 1 : len(ids) - 1]
            hits += bool((scores.argmax(-1) == target).all())
            total_loss += functional.cross_entropy(scores, target, reduction="sum").item()
            tokens += len(target)
    return hits / len(prompts), total_loss / tokens


@torch.no_grad()
def document_loss(
    model: torch.nn.Module, ids: np.ndarray, weights: np.ndarray, batch: int = 8
) -> float:
    """Unweighted mean token loss over packed held-out documents."""
    total, count = 0.0, 0
    for begin in range(0, len(ids), batch):
        part = torch.from_numpy(ids[begin : begin + batch].astype(np.int64))
        keep = torch.from_numpy(weights[begin : begin + batch] > 0)[:, 1:].reshape(-1)
        logits = model.lm_head(fast_hidden(model, part))[:, :-1]
        losses = functional.cross_entropy(
            logits.reshape(-1, logits.shape[-1]), part[:, 1:].reshape(-1), reduction="none"
        )
        total += losses[keep].sum().item()
        count += int(keep.sum())
    return total / count


@torch.no_grad()
def log_probabilities(model: torch.nn.Module, ids: np.ndarray, keep: np.ndarray) -> torch.Tensor:
    """Log-softmax at all positions that predict a real token."""
    parts = []
    for begin in range(0, len(ids), 4):
        part = torch.from_numpy(ids[begin : begin + 4].astype(np.int64))
        logits = model.lm_head(fast_hidden(model, part))[:, :-1]
        parts.append(
            functional.log_softmax(logits, dim=-1)[torch.from_numpy(keep[begin : begin + 4, 1:])]
        )
    return torch.cat(parts)


def divergence(reference: torch.Tensor, other: torch.Tensor) -> dict[str, float]:
    """Mean, median and 99th percentile of KL(reference || other) in nats; top-1 agreement."""
    values = (reference.exp() * (reference - other)).sum(-1)
    return {
        "mean_kld": values.mean().item(),
        "median_kld": values.median().item(),
        "p99_kld": values.quantile(0.99).item(),
        "top1_agreement": (reference.argmax(-1) == other.argmax(-1)).float().mean().item(),
    }
