"""Train the tiny model on the generated documents (CPU, fp32, AdamW, cosine schedule).

The schedule is over ``--steps``; with ``--minutes`` it is over wall-clock time instead, whichever
share is larger at a step, so that a run on a busy machine still ends with a fully decayed
learning rate. Checkpoints (fp32) and the loss log go to ``--work``; SIGTERM saves and ends.

    python train.py --train work/train.jsonl --tokenizer model --data data --work work --minutes 50
"""

from __future__ import annotations

import argparse
import json
import math
import signal
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from codec import Codec, load_jsonl, pack
from fast_forward import fast_hidden
from model import SIZES, build_config, build_model
from scoring import document_loss, exact_match
from torch.nn import functional


def weighted_loss(
    model: torch.nn.Module, ids: torch.Tensor, weights: torch.Tensor, sampled: float = 0.3
) -> torch.Tensor:
    """Mean weighted cross entropy of the next token.

    Positions of less than full weight are sampled with probability ``sampled`` and
    re-weighted, which leaves the expectation alone and saves output-layer work.
    """
    hidden = fast_hidden(model, ids)[:, :-1]
    targets, flat = ids[:, 1:].reshape(-1), weights[:, 1:].reshape(-1)
    light = (flat > 0) & (flat < 1)
    drawn = torch.rand_like(flat) < sampled
    chosen = torch.nonzero((flat >= 1) | (light & drawn)).squeeze(1)
    scale = torch.where(light, flat / sampled, flat)[chosen]
    losses = functional.cross_entropy(
        model.lm_head(hidden.reshape(-1, hidden.shape[-1])[chosen]),
        targets[chosen],
        reduction="none",
    )
    return (losses * scale).sum() / flat.sum()


class ThreadChooser:
    """Keep the faster of one and ``limit`` threads; looks at the other one now and then."""

    def __init__(self, limit: int, every: int = 20) -> None:
        self.limit, self.every = limit, every
        self.current, self.step = limit, 0
        self.seconds: dict[int, float] = {}
        torch.set_num_threads(limit)

    def update(self, seconds: float) -> None:
        """Record the time of one step and choose the count for the next."""
        self.step += 1
        threads = torch.get_num_threads()
        old = self.seconds.get(threads, seconds)
        self.seconds[threads] = 0.5 * old + 0.5 * seconds
        if self.limit == 1:
            return
        if self.step % self.every < 2:  # try the other count for two steps
            torch.set_num_threads(1 if self.current > 1 else self.limit)
        else:
            self.current = min(self.seconds, key=lambda count: self.seconds[count])
            torch.set_num_threads(self.current)


class Run:
    """One training run: the rows, the model and where it has got to."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.args = args
        self.codec = Codec(args.tokenizer, args.other_weight, args.plain_weight)
        self.ids, self.weights = self._rows()
        self.held_ids, self.held_weights = pack(
            self.codec.encode(load_jsonl(args.data / "kld_eval.jsonl")), 512, self.codec.end_of_text
        )
        self.prompts = load_jsonl(args.data / "tool_eval.jsonl")
        self.order = np.random.default_rng(args.seed).permutation(len(self.ids))
        size = SIZES[args.size]
        config = build_config(
            size, eos_token_id=self.codec.end, pad_token_id=self.codec.end_of_text
        )
        self.model = build_model(size, config, args.seed)
        self.optimiser = self._optimiser()
        self.step, self.seen = 0, 0
        self.smooth: float | None = None
        spent = self._resume(args.resume) if args.resume else 0.0
        self.started = time.time() - spent
        self.chooser = ThreadChooser(args.threads)

    def _rows(self) -> tuple[np.ndarray, np.ndarray]:
        cache = self.args.work / "packed.npz"
        if self.args.reuse_packed and cache.exists():
            with np.load(cache) as packed:
                return packed["ids"], packed["weights"].astype(np.float32)
        rows = self.codec.encode(load_jsonl(self.args.train))
        ids, weights = pack(rows, self.args.length, self.codec.end_of_text)
        np.savez(cache, ids=ids, weights=weights.astype(np.float16))
        return ids, weights

    def _optimiser(self) -> torch.optim.Optimizer:
        parameters = list(self.model.parameters())
        decayed = [p for p in parameters if p.ndim == 2]
        plain = [p for p in parameters if p.ndim != 2]
        return torch.optim.AdamW(
            [{"params": decayed, "weight_decay": 0.1}, {"params": plain, "weight_decay": 0.0}],
            lr=self.args.rate,
            betas=(0.9, 0.98),
            eps=1e-8,
            fused=True,
        )

    def _resume(self, checkpoint: Path) -> float:
        """Take over weights, optimiser and counts; returns the seconds already spent."""
        state = torch.load(checkpoint, weights_only=True)
        self.model.load_state_dict(state["model"])
        self.optimiser.load_state_dict(state["optimiser"])
        self.step, self.seen = state["step"], state["tokens"]
        return state["seconds"]

    @property
    def seconds(self) -> float:
        """Training time so far, with that of the runs before."""
        return time.time() - self.started

    @property
    def done(self) -> float:
        """How far the schedule has got, from 0 to 1."""
        share = self.step / self.args.steps
        if not self.args.minutes:
            return share
        return max(share, self.seconds / 60 / self.args.minutes)

    def train_step(self) -> dict[str, Any]:
        """One optimiser step; returns its log record."""
        args = self.args
        warm = min(1.0, (self.step + 1) / args.warmup)
        rate = args.rate * (warm * (0.02 + 0.98 * 0.5 * (1 + math.cos(math.pi * self.done))))
        for group in self.optimiser.param_groups:
            group["lr"] = rate
        turn = np.arange(self.step * args.batch, (self.step + 1) * args.batch)
        chosen = self.order[turn % len(self.order)]
        ids = torch.from_numpy(self.ids[chosen].astype(np.int64))
        weights = torch.from_numpy(self.weights[chosen])
        tick = time.time()
        loss = weighted_loss(self.model, ids, weights)
        self.optimiser.zero_grad(set_to_none=True)
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0).item()
        self.optimiser.step()
        seconds = time.time() - tick
        threads = torch.get_num_threads()
        self.chooser.update(seconds)
        self.step += 1
        self.seen += int((weights > 0).sum())
        value = loss.item()
        self.smooth = value if self.smooth is None else 0.96 * self.smooth + 0.04 * value
        return {
            "step": self.step,
            "tokens": self.seen,
            "loss": round(value, 4),
            "smooth": round(self.smooth, 4),
            "norm": round(norm, 3),
            "rate": round(rate, 6),
            "seconds": round(self.seconds, 1),
            "tokens_per_second": int(ids.numel() / seconds),
            "threads": threads,
        }

    def evaluate(self, prompts: int) -> dict[str, float]:
        """Held-out loss, and exact tool calls over the first ``prompts`` prompts."""
        match, call_loss = exact_match(self.model, self.codec, self.prompts[:prompts])
        loss = document_loss(self.model, self.held_ids, self.held_weights)
        return {
            "held_out_loss": round(loss, 4),
            "exact_match": match,
            "call_loss": round(call_loss, 4),
        }

    def save(self) -> None:
        """Write the checkpoint beside the old one, then put it in its place."""
        state = {
            "size": self.args.size,
            "model": self.model.state_dict(),
            "optimiser": self.optimiser.state_dict(),
            "step": self.step,
            "tokens": self.seen,
            "seconds": self.seconds,
        }
        temporary = self.args.work / "checkpoint.tmp"
        torch.save(state, temporary)
        temporary.rename(self.args.work / "checkpoint.pt")


def train(run: Run) -> None:
    """Train to the end of the schedule, to ``--stop-at`` or to SIGTERM."""
    args = run.args
    stop: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: stop.append(number))
    with (args.work / "log.jsonl").open("a", encoding="utf-8") as log:
        while run.done < 1 and not stop and run.step != args.stop_at:
            record = run.train_step()
            evaluated = run.step % args.evaluate_every == 0
            if evaluated:
                record |= run.evaluate(args.evaluate_prompts)
                run.save()
            if run.step % 10 == 0 or evaluated:
                log.write(json.dumps(record) + "\n")
                log.flush()
            if run.step % 20 == 0 or evaluated:
                print(json.dumps(record), flush=True)
        run.save()
        if stop or run.step == args.stop_at:
            return
        record = {
            "step": run.step,
            "tokens": run.seen,
            "smooth": round(run.smooth or 0.0, 4),
            "seconds": round(run.seconds, 1),
            "final": True,
        } | run.evaluate(len(run.prompts))
        log.write(json.dumps(record) + "\n")
    print(json.dumps(record), flush=True)


def arguments() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--train", type=Path, required=True)
    add("--tokenizer", type=Path, required=True, help="folder with tokenizer and chat template")
    add("--data", type=Path, required=True, help="folder with the held-out splits")
    add("--work", type=Path, required=True, help="folder for checkpoints and the log")
    add("--size", choices=SIZES, default="qwen3_5", help="which of the tiny models")
    add("--steps", type=int, default=6000)
    add("--stop-at", type=int, default=-1, help="save and end at this step, to --resume later")
    add("--minutes", type=float, default=0.0, help="time limit that drives the schedule (0: none)")
    add("--length", type=int, default=384)
    add("--batch", type=int, default=3, help="rows per step")
    add("--rate", type=float, default=1.5e-3)
    add("--warmup", type=int, default=60)
    add("--other-weight", type=float, default=0.2, help="loss weight outside assistant turns")
    add("--plain-weight", type=float, default=0.25, help="loss weight in plain-text documents")
    add("--threads", type=int, default=2)
    add("--evaluate-every", type=int, default=250)
    add("--evaluate-prompts", type=int, default=60, help="prompts while training (all at the end)")
    add("--seed", type=int, default=0)
    add("--reuse-packed", action="store_true", help="use the rows that a run left in --work")
    add("--resume", type=Path, help="start from this checkpoint's weights and optimiser")
    return parser.parse_args()


def main() -> None:
    """Command line entry."""
    args = arguments()
    args.work.mkdir(parents=True, exist_ok=True)
    run = Run(args)
    filled = float((run.weights > 0).mean())
    shape = {"rows": len(run.ids), "tokens": int(run.ids.size), "filled": filled}
    print(json.dumps(shape), flush=True)
    train(run)


if __name__ == "__main__":
    main()
