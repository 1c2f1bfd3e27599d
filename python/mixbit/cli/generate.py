"""``mixbit generate``: mlx-lm's generation on a model with mixbit's layers.

Flags, defaults and printed lines are those of ``mlx_lm.generate``; ``--tools``,
``--activation-bits`` and ``--json`` are added.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from mixbit.cli.options import add_activation_bits_option
from mixbit.cli.output import Output, add_json_option
from mixbit.errors import MixbitError

SCHEMA = "mixbit.generate/1"


def register(commands: Any) -> None:
    """Add the command."""
    parser = commands.add_parser("generate", help="generate text, with mlx-lm's flags")
    parser.add_argument("--model", required=True, help="model folder or hub id")
    parser.add_argument("--prompt", "-p", required=True, help="the prompt; '-' reads stdin")
    parser.add_argument("--system-prompt", help="system message for the chat template")
    parser.add_argument("--tools", metavar="FILE", help="JSON list of tools for the chat template")
    parser.add_argument("--prefill-response", help="beginning of the answer")
    parser.add_argument("--max-tokens", "-m", type=int, default=100, help="default: 100")
    _add_sampling_options(parser)
    parser.add_argument(
        "--ignore-chat-template", action="store_true", help="use the prompt as it stands"
    )
    parser.add_argument(
        "--chat-template-config",
        metavar="JSON",
        help="further arguments of the chat template, such as '{\"enable_thinking\": false}'",
    )
    parser.add_argument(
        "--verbose",
        type=lambda text: text.lower() not in ("false", "f"),
        default=True,
        metavar="BOOL",
        help="print speeds and memory too (default: True)",
    )
    parser.add_argument("--extra-eos-token", nargs="+", default=(), help="more stop tokens")
    parser.add_argument("--adapter-path", help="LoRA adapter folder")
    parser.add_argument("--max-kv-size", type=int, help="limit of the key-value cache")
    parser.add_argument("--prefill-step-size", type=int, default=2048, help="default: 2048")
    parser.add_argument(
        "--prompt-cache-file", metavar="FILE", help="go on from a prompt of mlx_lm.cache_prompt"
    )
    parser.add_argument("--kv-bits", type=int, help="quantise the key-value cache")
    parser.add_argument("--kv-group-size", type=int, default=64, help="default: 64")
    parser.add_argument("--quantized-kv-start", type=int, default=5000, help="default: 5000")
    parser.add_argument("--draft-model", help="a small model that guesses tokens ahead")
    parser.add_argument("--num-draft-tokens", type=int, default=3, help="at a time; default: 3")
    add_activation_bits_option(parser)
    parser.add_argument("--trust-remote-code", action="store_true", help="as in mlx-lm")
    add_json_option(parser)
    parser.set_defaults(run=run)


def _add_sampling_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--temp", type=float, default=0.0, help="default: 0, the likeliest token")
    parser.add_argument("--top-p", type=float, default=1.0, help="default: 1")
    parser.add_argument("--min-p", type=float, default=0.0, help="default: 0")
    parser.add_argument("--top-k", type=int, default=0, help="default: 0, no limit")
    parser.add_argument("--min-tokens-to-keep", type=int, default=1, help="for --min-p; default: 1")
    parser.add_argument("--xtc-probability", type=float, default=0.0, help="default: 0")
    parser.add_argument("--xtc-threshold", type=float, default=0.1, help="default: 0.1")
    parser.add_argument("--seed", type=int, help="of the sampler")


def run(args: argparse.Namespace) -> None:
    """Generate, streaming the text as it comes."""
    output = Output(args.json)
    _check_prompt_cache_options(args)
    tools = _json_option("--tools", args.tools and _read_file(args.tools), list)
    template = _json_option("--chat-template-config", args.chat_template_config, dict) or {}
    for option in ("max_tokens", "num_draft_tokens"):
        if getattr(args, option) < 1:
            name = f"--{option.replace('_', '-')}"
            raise MixbitError(f"{name} must be at least 1, not {getattr(args, option)}.")
    streamed = args.json != "-"
    with output.captured():
        import mlx.core as mx
        from mlx_lm import stream_generate
        from mlx_lm.sample_utils import make_sampler

        from mixbit.integration import load, read_prompt_cache

        cached = args.prompt_cache_file and read_prompt_cache(args.prompt_cache_file)
        if cached and cached.model != args.model:
            raise MixbitError(
                f"{args.prompt_cache_file} was made with --model {cached.model}, not {args.model}."
            )
        if args.seed is not None:
            mx.random.seed(args.seed)
        model, tokenizer = load(
            args.model,
            adapter_path=args.adapter_path,
            tokenizer_config={
                **(cached.tokenizer_config if cached else {}),
                "trust_remote_code": args.trust_remote_code,
            },
            trust_remote_code=args.trust_remote_code,
            activation_bits=args.activation_bits,
        )
        for token in args.extra_eos_token:
            tokenizer.add_eos_token(token)
        prompt, prompt_ids = _prompt(args, tokenizer, tools, template)
        if not prompt_ids:
            raise MixbitError("The prompt is empty.")
        draft_model, prompt_cache = None, None
        if args.draft_model is not None:
            draft_model, prompt_cache = _drafting(args, model, tokenizer)
        elif cached:
            cached.check(model)
            prompt_cache = cached.layers
        sampler = make_sampler(
            args.temp,
            args.top_p,
            args.min_p,
            args.min_tokens_to_keep,
            top_k=args.top_k,
            xtc_probability=args.xtc_probability,
            xtc_threshold=args.xtc_threshold,
            xtc_special_tokens=tokenizer.encode("\n") + list(tokenizer.eos_token_ids),
        )
        if streamed and args.verbose:
            print("=" * 10)
        text, guessed = "", 0
        last: Any = None  # always set: the generator ends with a response of its own
        for last in stream_generate(
            model,
            tokenizer,
            prompt_ids,
            max_tokens=args.max_tokens,
            sampler=sampler,
            max_kv_size=args.max_kv_size,
            prefill_step_size=args.prefill_step_size,
            kv_bits=args.kv_bits,
            kv_group_size=args.kv_group_size,
            quantized_kv_start=args.quantized_kv_start,
            draft_model=draft_model,
            num_draft_tokens=args.num_draft_tokens,
            prompt_cache=prompt_cache,
        ):
            text += last.text
            guessed += last.from_draft
            if streamed:
                print(last.text, end="", flush=True)
    if streamed:
        print()
        if args.verbose:
            _print_figures(last)
    output.write(
        {
            "schema": SCHEMA,
            "model": args.model,
            "prompt": prompt,
            "text": text,
            "finish_reason": last.finish_reason,
            "prompt_tokens": last.prompt_tokens,
            "prompt_tokens_per_second": last.prompt_tps,
            "generation_tokens": last.generation_tokens,
            "generation_tokens_per_second": last.generation_tps,
            "tokens_from_draft": guessed,
            "peak_memory_bytes": round(last.peak_memory * 1e9),
        }
    )


def _check_prompt_cache_options(args: argparse.Namespace) -> None:
    """What a prompt cache holds already, or cannot go with."""
    for option in ("system_prompt", "tools", "prefill_response", "draft_model"):
        if args.prompt_cache_file is not None and getattr(args, option) is not None:
            name = f"--{option.replace('_', '-')}"
            raise MixbitError(f"{name} cannot be given with --prompt-cache-file.")


def _drafting(args: argparse.Namespace, model: Any, tokenizer: Any) -> tuple[Any, list[Any]]:
    """The draft model and the caches of both."""
    from mixbit.integration import load
    from mixbit.nn import speculative_cache

    draft_model, draft_tokenizer = load(
        args.draft_model,
        trust_remote_code=args.trust_remote_code,
        activation_bits=args.activation_bits,
    )
    if draft_tokenizer.vocab_size != tokenizer.vocab_size:
        raise MixbitError(
            f"The tokenizer of {args.draft_model} has {draft_tokenizer.vocab_size} tokens, that of "
            f"{args.model} {tokenizer.vocab_size}; a draft model must share the model's tokenizer."
        )
    return draft_model, speculative_cache(model, draft_model, args.num_draft_tokens)


def _prompt(
    args: argparse.Namespace, tokenizer: Any, tools: Any, template: dict[str, Any]
) -> tuple[str, list[int]]:
    """The prompt as the model sees it, as text and as token ids.

    After a prompt cache that is what follows in the user's message, as in mlx-lm.
    """
    text = args.prompt.replace("\\n", "\n").replace("\\t", "\t")
    if text == "-":
        text = sys.stdin.read()
    if args.ignore_chat_template or not tokenizer.has_chat_template:
        if tools is not None:
            raise MixbitError("--tools needs a model with a chat template, and its use.")
        return text, tokenizer.encode(text)
    messages = [{"role": "user", "content": text}]
    if args.system_prompt is not None:
        messages.insert(0, {"role": "system", "content": args.system_prompt})
    prefilled = args.prefill_response is not None
    if prefilled:
        messages.append({"role": "assistant", "content": args.prefill_response})

    def rendered() -> str:
        try:
            return tokenizer.apply_chat_template(
                messages,
                tools=tools,
                tokenize=False,
                continue_final_message=prefilled,
                add_generation_prompt=not prefilled,
                **template,
            )
        except Exception as error:  # templates raise whatever they like
            raise MixbitError(f"The chat template refuses the prompt: {error}") from error

    text = rendered()
    if args.prompt_cache_file is not None:
        messages[-1]["content"] = "<query>"
        text = text[rendered().index("<query>") :]
    return text, tokenizer.encode(text, add_special_tokens=False)


def _print_figures(last: Any) -> None:
    print("=" * 10)
    print(f"Prompt: {last.prompt_tokens} tokens, {last.prompt_tps:.3f} tokens-per-sec")
    print(f"Generation: {last.generation_tokens} tokens, {last.generation_tps:.3f} tokens-per-sec")
    print(f"Peak memory: {last.peak_memory:.3f} GB")


def _read_file(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise MixbitError(f"Cannot read {path}: {error}.") from error


def _json_option(option: str, text: str | None, kind: type) -> Any:
    if text is None:
        return None
    try:
        value = json.loads(text)
    except ValueError as error:
        raise MixbitError(f"{option} is not valid JSON: {error}.") from error
    if not isinstance(value, kind):
        raise MixbitError(f"{option} must hold a JSON {'list' if kind is list else 'object'}.")
    return value
