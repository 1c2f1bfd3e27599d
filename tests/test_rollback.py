"""Steps of a recurrent state taken back: as if they had never been, or a clear refusal."""

import copy
from itertools import takewhile
from pathlib import Path

import mlx.core as mx
import mlx.nn as nn
import pytest
from mlx.utils import tree_map
from mlx_lm.generate import generate_step, speculative_generate_step
from mlx_lm.models import cache as stock
from mlx_lm.models.cache import LRUPromptCache, make_prompt_cache, trim_prompt_cache

import mixbit
from mixbit import ops
from mixbit.errors import MixbitError
from models import MODEL_TYPES, build

PROMPT = [7, 3, 250, 11, 3, 3, 90, 41, 0, 200, 17, 5, 64, 32, 8, 1, 99, 120, 77, 12, 44]


def accelerated(model_type: str = "qwen3_5", **settings) -> nn.Module:
    model = build(model_type, **settings)
    mixbit.accelerate(model)
    return model


def guesser(model: nn.Module, noise: float) -> nn.Module:
    """A model that often agrees with ``model``."""
    draft = copy.deepcopy(model)
    draft.update(tree_map(lambda p: p + noise * mx.random.normal(p.shape), draft.parameters()))
    return draft


def linear_caches(caches: list) -> list[mixbit.nn.ArraysCache]:
    return [cache for cache in caches if isinstance(cache, stock.ArraysCache)]


def same_state(a: list, b: list) -> bool:
    return all(
        mx.array_equal(x, y).item()
        for one, other in zip(linear_caches(a), linear_caches(b), strict=True)
        for x, y in zip(one.cache, other.cache, strict=True)
    )


@pytest.mark.parametrize("dtype", [mx.float32, mx.bfloat16])
@pytest.mark.parametrize("model_type", MODEL_TYPES)
def test_rejected_drafts_were_never_drafted(model_type: str, dtype: mx.Dtype) -> None:
    model = accelerated(model_type, dtype=dtype)
    drafted, plain = make_prompt_cache(model), make_prompt_cache(model)
    assert stock.can_trim_prompt_cache(drafted)
    # Of each round's drafts so many are right: none, all, some, and more than a state has taps.
    rounds = [(4, 0), (3, 3), (5, 2), (1, 0), (1, 1), (12, 5), (15, 1), (4, 4), (15, 0)]
    model(mx.array([PROMPT]), drafted)
    logits = model(mx.array([PROMPT]), plain)
    for count, right in rounds:
        following = []
        for _ in range(right + 1):
            following.append(mx.argmax(logits[0, -1]).item())
            logits = model(mx.array([following[-1:]]), plain)
        wrong = [(following[0] + 1 + i) % 256 for i in range(count - right)]
        verified = model(mx.array([following + wrong]), drafted)
        assert trim_prompt_cache(drafted, count - right) == count - right
        assert mx.array_equal(verified[0, right], logits[0, -1])
        assert same_state(drafted, plain)


def test_the_same_when_the_prompt_is_all_there_was() -> None:
    model = accelerated()
    for prompt in ([5], [5, 9], [5, 9, 250, 3]):
        drafted, plain = make_prompt_cache(model), make_prompt_cache(model)
        assert stock.can_trim_prompt_cache(drafted)
        model(mx.array([[*prompt, 1, 2]]), drafted)
        trim_prompt_cache(drafted, 2)
        model(mx.array([prompt]), plain)
        assert same_state(drafted, plain)


@pytest.mark.parametrize("count", [1, 2, 3])
def test_steps_of_several_forwards_are_taken_back_together(count: int) -> None:
    model = accelerated()
    caches = [make_prompt_cache(model) for _ in range(2)]
    for cache in linear_caches(caches[0]):
        cache.rollback = 4
    for cache in caches:
        model(mx.array([PROMPT]), cache)
    for step in ([8], [1, 2], [3]):
        model(mx.array([step]), caches[0])
    model(mx.array([[8, 1, 2, 3][: 4 - count]]), caches[1])
    assert trim_prompt_cache(caches[0], count) == count
    assert same_state(*caches)
    for _ in range(9):  # only the last five states are held
        model(mx.array([[6]]), caches[0])
    assert sum(forward.states.shape[1] for forward in caches[0][0]._kept) == 5


# ---- mlx-lm's speculative decoding ---------------------------------------------------------------


@pytest.mark.parametrize(
    ("noise", "least", "most"),
    [(0.0, 13, 13), (0.02, 1, 12), (1.0, 0, 2)],
    ids=["all", "some", "none"],
)
@pytest.mark.parametrize("model_type", MODEL_TYPES)
def test_speculation_says_what_the_model_says_alone(
    model_type: str, noise: float, least: int, most: int
) -> None:
    model = accelerated(model_type)
    draft, drafts, length = guesser(model, noise), 4, 16
    alone = list(generate_step(mx.array(PROMPT), model, max_tokens=length))
    for caches in (None, mixbit.nn.speculative_cache(model, draft, drafts)):
        found = list(
            speculative_generate_step(
                mx.array(PROMPT),
                model,
                draft,
                num_draft_tokens=drafts,
                max_tokens=length,
                prompt_cache=caches,
            )
        )
        assert [token for token, _, _ in found] == [token for token, _ in alone]
        for (_, ours, _), (_, theirs) in zip(found, alone, strict=True):
            assert mx.array_equal(ours, theirs)
        assert least <= sum(drafted for _, _, drafted in found) <= most


def test_a_hybrid_draft_model_is_taken_back_too() -> None:
    model = accelerated()
    draft, drafts = guesser(model, 0.03), 4
    whole = [
        *PROMPT,
        *(token for token, _ in generate_step(mx.array(PROMPT), model, max_tokens=40)),
    ]
    # What the draft model says to every beginning of the text, and to its own guesses.
    right, at = 0, len(PROMPT)
    while at < len(whole):
        guesses: list[int] = []
        for _ in range(min(drafts, len(whole) - at)):
            logits = draft(mx.array([whole[:at] + guesses]))
            guesses.append(mx.argmax(logits[0, -1]).item())
        pairs = zip(guesses, whole[at:], strict=False)
        agreed = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
        right, at = right + agreed, at + agreed + 1
    found = speculative_generate_step(
        mx.array(PROMPT),
        model,
        draft,
        num_draft_tokens=drafts,
        max_tokens=40,
        prompt_cache=mixbit.nn.speculative_cache(model, draft, drafts),
    )
    assert 5 < right < 35
    assert sum(drafted for _, _, drafted in found) == right


def test_models_that_keep_no_steps_are_refused() -> None:
    ours, stocks = accelerated(), build("qwen3_5")
    for models, name in (((stocks, ours), "model"), ((ours, stocks), "draft model")):
        with pytest.raises(MixbitError, match=f"The {name} cannot take part"):
            mixbit.nn.speculative_cache(*models)
    theirs = accelerated()
    theirs.layers[1].linear_attn.__class__ = type("Theirs", (mixbit.nn.GatedDeltaNet,), {})
    with pytest.raises(MixbitError, match="keeps no earlier steps"):
        mixbit.nn.speculative_cache(theirs, ours)


# ---- never silently wrong ------------------------------------------------------------------------


def test_what_is_not_kept_is_not_given_back() -> None:
    model = accelerated()
    caches = mixbit.nn.speculative_cache(model, model, 3)[: len(model.layers)]
    model(mx.array([PROMPT]), caches)
    assert trim_prompt_cache(caches, 0) == 0
    assert not stock.can_trim_prompt_cache(caches)  # once after each forward
    model(mx.array([[1, 2, 3, 4]]), caches)
    with pytest.raises(MixbitError, match="4 steps of a recurrent state cannot be taken back"):
        trim_prompt_cache(caches, 4)
    model(mx.array([[1, 2, 3, 4, 5]]), caches)  # more than it keeps
    with pytest.raises(MixbitError, match=r"at most 3 are kept.*set the caches' rollback to 1"):
        trim_prompt_cache(caches, 1)
    model.train()  # mlx-lm's own layer, which tells nobody of its steps
    model(mx.array([[1, 2]]), caches)
    with pytest.raises(MixbitError, match="cannot be taken back"):
        trim_prompt_cache(caches, 1)


@pytest.mark.parametrize(
    "change",
    [
        lambda cache: cache.__setitem__(1, cache[1] * 1),
        lambda cache: setattr(cache, "state", (cache.cache, None, None)),
        lambda cache: cache.filter(mx.array([0])),
        lambda cache: cache.extend(copy.deepcopy(cache)),
    ],
)
def test_a_cache_changed_by_others_keeps_nothing(change) -> None:
    model = accelerated()
    caches = mixbit.nn.speculative_cache(model, model, 3)[: len(model.layers)]
    model(mx.array([[1, 2, 3]]), caches)
    change(caches[0])
    with pytest.raises(MixbitError, match="cannot be taken back"):
        trim_prompt_cache(caches, 1)


def test_without_speculation_nothing_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    kept = []
    whole = ops.delta_net

    def watched(*args, keep_steps: bool, **others):
        kept.append(keep_steps)
        return whole(*args, keep_steps=keep_steps, **others)

    monkeypatch.setattr(ops, "delta_net", watched)
    model = accelerated()
    caches = make_prompt_cache(model)
    for chunk in (PROMPT, PROMPT[:4], PROMPT[:1]):
        model(mx.array([chunk]), caches)
    assert len(kept) == 9
    assert not any(kept)
    assert not stock.can_trim_prompt_cache(caches)
    assert trim_prompt_cache(caches, 1) == 0


def test_a_padded_forward_is_not_kept() -> None:
    model = accelerated()
    cache = mixbit.nn.ArraysCache(2, left_padding=[1, 0])
    cache.rollback = 3
    x = mx.random.normal((2, 3, 64))
    model.layers[0].linear_attn(x, cache.make_mask(3), cache)
    assert cache._kept == ()
    with pytest.raises(MixbitError, match="cannot be taken back"):
        cache.trim(1)


def test_a_servers_store_of_prompts_hands_out_what_was_stored() -> None:
    model = accelerated()
    text = [*PROMPT, 1, 2, 3]
    store = LRUPromptCache()
    key = ("model", None, None)

    def run(tokens: list[int], caches: list | None = None) -> list:
        caches = mixbit.nn.speculative_cache(model, model)[:4] if caches is None else caches
        model(mx.array([tokens]), caches)
        trim_prompt_cache(caches, 0)  # the end of a speculative generation
        return caches

    store.insert_cache(key, PROMPT[:10], run(PROMPT[:10]))
    store.insert_cache(key, text, run(text))
    # Another continuation must start from the shorter prefix, since the longer cannot be cut.
    found, rest = store.fetch_nearest_cache(key, [*PROMPT, 9, 9])
    assert rest == [*PROMPT[10:], 9, 9]
    assert same_state(found, run(PROMPT[:10]))
    found, rest = store.fetch_nearest_cache(key, [*text, 6])
    assert rest == [6]
    caches = [*found, *mixbit.nn.speculative_cache(model, model)[4:]]
    drafted = speculative_generate_step(
        mx.array(rest), model, guesser(model, 1), max_tokens=5, prompt_cache=caches
    )
    alone = generate_step(mx.array([*text, 6]), model, max_tokens=5)
    assert [token for token, *_ in drafted] == [token for token, _ in alone]


# ---- what mlx-lm does with caches ----------------------------------------------------------------


@pytest.mark.parametrize("model_type", MODEL_TYPES)
def test_prompt_cache_files_go_both_ways(model_type: str, tmp_path: Path) -> None:
    model = accelerated(model_type)
    caches = make_prompt_cache(model)
    model(mx.array([PROMPT]), caches)
    file = str(tmp_path / "prompt.safetensors")
    stock.save_prompt_cache(file, caches, {"model": "here"})
    loaded, metadata = stock.load_prompt_cache(file, return_metadata=True)
    assert metadata == {"model": "here"}
    assert type(loaded[0]) is stock.ArraysCache
    assert loaded[0][1].dtype == mx.float32
    following = mx.array([[9, 8]])
    want = model(following, caches)
    assert mx.array_equal(model(following, loaded), want)
    # mlx-lm's own layers go on from there too.
    again = stock.load_prompt_cache(file)
    assert mx.allclose(build(model_type)(following, again), want, atol=1e-4)


def test_merged_and_split_rows_are_those_that_went_in() -> None:
    model = accelerated()
    rows = [make_prompt_cache(model) for _ in range(2)]
    for tokens, caches in zip((PROMPT, PROMPT[4:15]), rows, strict=True):
        model(mx.array([tokens]), caches)
    merged = [pair[0].merge(pair) for pair in zip(*rows, strict=True)]
    assert type(merged[0]) is mixbit.nn.ArraysCache
    for index, caches in enumerate(rows):
        split = [cache.extract(index) for cache in merged]
        assert same_state(split, caches)
        want = model(mx.array([[5]]), caches)
        assert mx.array_equal(model(mx.array([[5]]), split), want)
