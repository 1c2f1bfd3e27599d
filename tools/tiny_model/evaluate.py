"""Check the exported folder with transformers: accuracy, and sensitivity to quantisation.

    python evaluate.py --model MODEL --data DATA --generate 200 --sensitivity --report eval.json

``--generate`` greedily decodes that many held-out prompts with transformers (fp32 weights from the
bf16 file). ``--sensitivity`` quantises and dequantises tensor classes with MLX's affine scheme
(group 64) and reports the mean KL divergence to the unquantised model over ``kld_eval.jsonl`` and
the exact-match accuracy over ``tool_eval.jsonl``.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from codec import Codec, load_jsonl, pack
from fake_quantise import CLASSES, PLAN, quantised
from fast_forward import max_abs_difference
from scoring import divergence, exact_match, log_probabilities
from transformers import AutoModelForCausalLM, AutoTokenizer

from mixbit.demo.toolcalls import parse_call, same_call


@torch.no_grad()
def generate_accuracy(
    model: Any, tokenizer: Any, prompts: list[dict[str, Any]], *, thinking: bool
) -> float:
    """Greedy decoding with transformers' ``generate``, one prompt at a time; prints the misses."""
    hits = 0
    for prompt in prompts:
        text = tokenizer.apply_chat_template(
            prompt["messages"],
            tools=prompt["tools"],
            add_generation_prompt=True,
            tokenize=False,
            enable_thinking=thinking,
        )
        inputs = tokenizer(text, return_tensors="pt")
        output = model.generate(**inputs, max_new_tokens=220, do_sample=False)
        answer = tokenizer.decode(
            output[0, inputs["input_ids"].shape[1] :], skip_special_tokens=False
        )
        if same_call(parse_call(answer), prompt["expected"]):
            hits += 1
            continue
        asked = prompt["messages"][-1]["content"]
        miss = {"expected": prompt["expected"], "answer": answer, "user": asked}
        print(json.dumps(miss, ensure_ascii=False))
    return hits / len(prompts)


def trials() -> dict[str, dict[str, int]]:
    """What to quantise to how many bits, by the trial's name."""
    tried = {f"uniform {bits} bit": dict.fromkeys(CLASSES, bits) for bits in (8, 6, 5, 4, 3, 2)}
    tried["plan"] = PLAN
    low = {"linear_attn.out_proj": 3, "self_attn.o_proj": 3}
    tried["plan with out_proj and o_proj at 3 bit"] = PLAN | low
    for bits in (4, 3, 2):
        tried |= {f"{label} {bits} bit": {label: bits} for label in CLASSES}
    return tried


def sensitivity(
    model: Any, codec: Codec, data: Path, class_prompts: int
) -> Iterator[dict[str, Any]]:
    """One row a trial: bits a weight, divergence and exact match."""
    prompts = load_jsonl(data / "tool_eval.jsonl")
    documents = codec.encode(load_jsonl(data / "kld_eval.jsonl"))
    ids, weights = pack(documents, 512, codec.end_of_text)
    keep = weights > 0
    reference = log_probabilities(model, ids, keep)
    for label, plan in trials().items():
        tried = prompts if len(plan) > 1 else prompts[:class_prompts]
        with quantised(model, plan) as bits_per_weight:
            other = log_probabilities(model, ids, keep)
            match, call_loss = exact_match(model, codec, tried)
        yield {
            "trial": label,
            "bits_per_weight": round(bits_per_weight, 3),
            **divergence(reference, other),
            "prompts": len(tried),
            "exact_match": match,
            "call_loss": call_loss,
        }


def arguments() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--model", type=Path, required=True)
    add("--data", type=Path, required=True)
    add("--generate", type=int, default=0, help="prompts to decode with transformers")
    add("--thinking", type=int, default=0, help="prompts to decode in thinking mode")
    add("--sensitivity", action="store_true")
    add("--class-prompts", type=int, default=60, help="prompts for trials of one class only")
    add("--report", type=Path)
    add("--threads", type=int, default=2)
    return parser.parse_args()


def main() -> None:
    """Command line entry."""
    args = arguments()
    torch.set_num_threads(args.threads)
    model = AutoModelForCausalLM.from_pretrained(args.model, dtype=torch.float32).eval()
    tokenizer = AutoTokenizer.from_pretrained(args.model)
    codec = Codec(args.model)
    prompts = load_jsonl(args.data / "tool_eval.jsonl")
    sample = codec.text({"messages": prompts[0]["messages"], "tools": prompts[0]["tools"]})
    if tokenizer(sample)["input_ids"] != codec.tokenizer.encode(sample).ids:
        raise SystemExit("AutoTokenizer and tokenizer.json disagree")

    report: dict[str, Any] = {}

    def record(key: str, value: Any) -> None:
        report[key] = value
        print(json.dumps({key: value}), flush=True)

    record("parameters", sum(p.numel() for p in model.parameters()))
    record("fast_forward_max_abs_difference", max_abs_difference(model))
    match, call_loss = exact_match(model, codec, prompts)
    record("exact_match_one_pass", match)
    record("call_loss", call_loss)
    for key, count in (("generate", args.generate), ("thinking", args.thinking)):
        if count:
            share = generate_accuracy(model, tokenizer, prompts[:count], thinking=key == "thinking")
            record(f"exact_match_{key}", share)
    if args.sensitivity:
        report["sensitivity"] = rows = []
        for row in sensitivity(model, codec, args.data, args.class_prompts):
            rows.append(row)
            print(json.dumps(row), flush=True)
    if args.report:
        args.report.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
