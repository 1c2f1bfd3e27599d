"""Train the byte-level BPE tokenizer and write it in Hugging Face layout.

python train_tokenizer.py --train work/train.jsonl --template chat_template.jinja --out model
"""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from jinja_env import document_text
from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    trainers,
)

# Qwen3.5's pre-tokenisation.
PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}"
    r"| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
# Merges are learned inside runs of letters only, so that a word has the same tokens after a
# space, an "=" or a line break. That lets a tiny model copy arguments token by token.
LETTERS = r"[\p{L}\p{M}]+"
SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
PLAIN_ADDED = (
    "<think>",
    "</think>",
    "<tool_call>",
    "</tool_call>",
    "<tool_response>",
    "</tool_response>",
)


def texts(path: Path, template: str, limit: int, seed: int) -> Iterator[str]:
    """Rendered documents in random order, without the added tokens' own text."""
    lines = path.read_text(encoding="utf-8").splitlines()
    random.Random(seed).shuffle(lines)
    for line in lines[:limit]:
        text = document_text(template, json.loads(line))
        for token in SPECIAL + PLAIN_ADDED:
            text = text.replace(token, "\n")
        yield text


def learn(corpus: Iterator[str], vocab_size: int) -> Tokenizer:
    """A tokenizer with Qwen3.5's pre-tokenisation, merges from ``corpus`` and the added tokens."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    split = pre_tokenizers.Split(Regex(PATTERN), behavior="isolated", invert=False)
    letters = pre_tokenizers.Split(Regex(LETTERS), behavior="isolated", invert=False)
    to_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, letters, to_bytes])
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size - len(SPECIAL + PLAIN_ADDED),
        special_tokens=[],
        show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )
    tokenizer.train_from_iterator(corpus, trainer)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, to_bytes])
    tokenizer.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in SPECIAL])
    tokenizer.add_tokens([AddedToken(t, special=False, normalized=False) for t in PLAIN_ADDED])
    return tokenizer


def tokenizer_config(ids: dict[str, int], template: str) -> dict[str, Any]:
    """``tokenizer_config.json``, given the ids of the added tokens."""
    decoder = {
        str(index): {
            "content": token,
            "lstrip": False,
            "normalized": False,
            "rstrip": False,
            "single_word": False,
            "special": token in SPECIAL,
        }
        for token, index in ids.items()
    }
    return {
        "add_bos_token": False,
        "add_prefix_space": False,
        "added_tokens_decoder": decoder,
        "bos_token": None,
        "clean_up_tokenization_spaces": False,
        "eos_token": "<|im_end|>",
        "errors": "replace",
        "model_max_length": 4096,
        "pad_token": "<|endoftext|>",
        "split_special_tokens": False,
        "tokenizer_class": "Qwen2Tokenizer",
        "unk_token": None,
        "chat_template": template,
    }


def main() -> None:
    """Command line entry."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--train", type=Path, required=True)
    add("--template", type=Path, required=True)
    add("--out", type=Path, required=True)
    add("--vocab-size", type=int, default=2048)
    add("--limit", type=int, default=12000, help="number of documents to learn merges from")
    add("--seed", type=int, default=5)
    args = parser.parse_args()

    template = args.template.read_text(encoding="utf-8")
    corpus = texts(args.train, template, args.limit, args.seed)
    tokenizer = learn(corpus, args.vocab_size)
    ids = {token: tokenizer.token_to_id(token) for token in SPECIAL + PLAIN_ADDED}
    config = json.dumps(tokenizer_config(ids, template), indent=2, ensure_ascii=False)
    args.out.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(args.out / "tokenizer.json"))
    (args.out / "tokenizer_config.json").write_text(config + "\n", encoding="utf-8")
    (args.out / "chat_template.jinja").write_text(template, encoding="utf-8")
    print(json.dumps({"vocab": tokenizer.get_vocab_size(), "ids": ids}))


if __name__ == "__main__":
    main()
