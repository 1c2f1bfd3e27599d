"""Many sequences at once: mlx-lm's continuous batching, its server, and threads."""

import copy
import json
import socket
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import mlx_lm
import numpy as np
import pytest
from mlx_lm.generate import BatchGenerator, generate_step
from mlx_lm.models.cache import make_prompt_cache

import mixbit
from models import MODEL_TYPES, build

RNG = np.random.default_rng(6)
PROMPTS = [RNG.integers(256, size=length).tolist() for length in (1, 19, 3, 41, 2, 20, 8, 33)]
LENGTHS = [3, 9, 6, 4, 11, 2, 7, 5]


def accelerated(model_type: str, **settings: Any) -> nn.Module:
    model = build(model_type, **settings)
    mixbit.accelerate(model)
    return model


def alone(model: nn.Module, prompt: list[int], tokens: int) -> list[tuple[int, mx.array]]:
    return list(generate_step(mx.array(prompt), model, max_tokens=tokens))


def differs(found: list[tuple[int, mx.array]], want: list[tuple[int, mx.array]]) -> float:
    """How far log-probabilities are apart; infinitely if the tokens differ."""
    if [token for token, _ in found] != [token for token, _ in want]:
        return float("inf")
    pairs = zip(found, want, strict=True)
    return max(mx.abs(a - b).max().item() for (_, a), (_, b) in pairs)


@pytest.mark.parametrize("step", [4, 2048])
@pytest.mark.parametrize("model_type", MODEL_TYPES)
def test_continuous_batching_is_one_at_a_time(model_type: str, step: int) -> None:
    model = accelerated(model_type)
    batch = BatchGenerator(
        model, prefill_batch_size=3, completion_batch_size=4, prefill_step_size=step
    )
    found: dict[int, list[tuple[int, mx.array]]] = {}
    rest: dict[int, Any] = {}

    def run(rounds: int) -> None:
        for _ in range(rounds):
            _, responses = batch.next()
            for each in responses:
                found.setdefault(each.uid, []).append((each.token, each.logprobs))
                if each.finish_reason is not None:
                    rest[each.uid] = each.prompt_cache

    uids = batch.insert(PROMPTS[:5], LENGTHS[:5])
    run(4)  # some are done, some are in their prompts: more join
    uids += batch.insert(PROMPTS[5:], LENGTHS[5:])
    while len(rest) < len(PROMPTS):
        run(1)
    for uid, prompt, tokens in zip(uids, PROMPTS, LENGTHS, strict=True):
        assert differs(found[uid], alone(model, prompt, tokens)) < 1e-5
    # A cache that came out of the batch goes on, in a batch and by itself.
    again = batch.insert([[9], [5, 9]], [4, 4], [copy.deepcopy(rest[uid]) for uid in uids[2:4]])
    want = {}
    for uid, before, said in zip(again, uids[2:4], ([9], [5, 9]), strict=True):
        tokens = [token for token, _ in found[before]]
        want[uid] = alone(model, PROMPTS[uids.index(before)] + tokens + said, 4)
        mine = generate_step(mx.array(said), model, max_tokens=4, prompt_cache=rest[before])
        assert differs(list(mine), want[uid]) < 1e-5
    run(16)
    for uid in again:
        assert differs(found[uid], want[uid]) < 1e-5


@pytest.mark.parametrize("model_type", MODEL_TYPES)
def test_rows_padded_on_the_right(model_type: str) -> None:
    model = accelerated(model_type)
    rows = [PROMPTS[index] for index in (1, 3, 2)]
    longest = max(map(len, rows))
    padding = [longest - len(row) for row in rows]
    batch = mx.array([row + [0] * pads for row, pads in zip(rows, padding, strict=True)])
    caches = [cache.merge([cache] * 3) for cache in make_prompt_cache(model)]
    for cache in caches:
        cache.prepare(lengths=[len(row) for row in rows], right_padding=padding)
    logits = [
        model(batch[:, :7], caches),
        model(batch[:, 7:8], caches),
        model(batch[:, 8:], caches),
    ]
    for cache in caches:
        cache.finalize()
    whole, following = mx.concatenate(logits, axis=1), model(mx.array([[9, 4]] * 3), caches)
    for index, row in enumerate(rows):
        want = model(mx.array([[*row, 9, 4]]))[0]
        assert mx.abs(whole[index, : len(row)] - want[:-2]).max().item() < 1e-5
        assert mx.abs(following[index] - want[-2:]).max().item() < 1e-5


def test_threads_share_a_model() -> None:
    model = accelerated("qwen3_5_moe")
    want = [alone(model, prompt, 6) for prompt in PROMPTS]
    mx.eval(want)
    together = threading.Barrier(len(PROMPTS))

    def serve(prompt: list[int]) -> list[tuple[int, np.ndarray]]:
        try:
            together.wait()
            return [(token, np.array(logprobs)) for token, logprobs in alone(model, prompt, 6)]
        finally:
            mx.clear_streams()

    with ThreadPoolExecutor(len(PROMPTS)) as pool:
        for found, expected in zip(pool.map(serve, PROMPTS), want, strict=True):
            assert [token for token, _ in found] == [token for token, _ in expected]
            for (_, a), (_, b) in zip(found, expected, strict=True):
                assert np.array_equal(a, np.array(b))


# ---- mlx_lm.server -------------------------------------------------------------------------------

NO_THINKING = {"chat_template_kwargs": {"enable_thinking": False}}
QUESTIONS = [
    "What is the largest planet?",
    "Please book a table for 4 at 19:30, thanks.",
    "What is 12 plus 7?",
    "Hello",
    "Name a colour.",
    "What is the capital of France?",
    "Set a timer for ten minutes.",
    "What is seven times eight?",
]


SERVER = """
import mlx.core as mx
import mlx_lm.server
import mixbit
mx.set_default_device(mx.cpu)
mlx_lm.server.load = mixbit.load
mlx_lm.server.main()
"""


@contextmanager
def server(*options: str) -> Iterator[Callable[[list[dict[str, str]]], str]]:
    """mlx-lm's server in a process of its own; gives what answers a conversation."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-c", SERVER, "--port", str(port), *options]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert process.stdout is not None

    def ask(messages: list[dict[str, str]]) -> str:
        body = {"messages": messages, "max_tokens": 16, "temperature": 0, **NO_THINKING}
        request = urllib.request.Request(
            f"http://127.0.0.1:{port}/v1/chat/completions",
            json.dumps(body).encode(),
            {"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=60) as reply:
            return json.load(reply)["choices"][0]["message"]["content"]

    try:
        for line in process.stdout:
            if "Starting httpd" in line:
                break
        yield ask
    finally:
        process.terminate()
        process.communicate(timeout=60)


def conversation(*texts: str) -> list[dict[str, str]]:
    return [
        {"role": ("user", "assistant")[turn % 2], "content": text}
        for turn, text in enumerate(texts)
    ]


@pytest.fixture(scope="module")
def answers(tiny_folder: Path) -> dict[str, str]:
    """What the model says to each question alone."""
    model, tokenizer = mixbit.load(tiny_folder)
    prompts = {
        question: tokenizer.apply_chat_template(
            conversation(question), add_generation_prompt=True, enable_thinking=False
        )
        for question in QUESTIONS
    }
    return {
        question: mlx_lm.generate(model, tokenizer, prompt, max_tokens=16)
        for question, prompt in prompts.items()
    }


def test_eight_clients_of_a_server_at_once(tiny_folder: Path, answers: dict[str, str]) -> None:
    options = ("--model", str(tiny_folder), "--prompt-concurrency", "3")
    with server(*options) as ask, ThreadPoolExecutor(8) as clients:
        found = clients.map(lambda question: ask(conversation(question)), QUESTIONS)
        assert dict(zip(QUESTIONS, found, strict=True)) == answers


def test_a_server_that_drafts(tiny_folder: Path, answers: dict[str, str]) -> None:
    with server("--model", str(tiny_folder), "--draft-model", str(tiny_folder)) as ask:
        for question in QUESTIONS[:3]:
            assert ask(conversation(question)) == answers[question]
        # The same again, and a conversation that goes on, both from the cached prompt.
        first = QUESTIONS[0]
        assert ask(conversation(first)) == answers[first]
        assert ask(conversation(first, answers[first], QUESTIONS[3]))
