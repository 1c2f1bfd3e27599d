"""Which predictions are scored, in which order, and how they are packed into batches."""

import numpy as np
import pytest

from mixbit.errors import MixbitError
from mixbit.kld.documents import Document
from mixbit.kld.stream import Protocol, Stream
from mixbit.kld.windows import chunks_of


def stream(lengths: list[int], **protocol: object) -> Stream:
    """Documents whose tokens count up through all of them."""
    starts = np.cumsum([0, *lengths])
    documents = [Document(list(range(s, s + n))) for s, n in zip(starts, lengths, strict=False)]
    return Stream.of(documents, Protocol(**protocol))


def test_windows_of_llama_cpp() -> None:
    # 512 tokens, of which 256 to 510 predict: 255 a window.
    found = stream([1024], window=512)
    assert found.scored == 2 * 255
    assert found.at.tolist() == [*range(256, 511), *range(768, 1023)]
    assert found.context.tolist() == 2 * list(range(257, 512))


def test_the_rest_of_a_document_is_a_window_unless_only_full_ones_count() -> None:
    assert stream([520], window=512).at.tolist() == [*range(256, 511), *range(516, 519)]
    assert stream([520, 30], window=512, full_windows=True).at.tolist() == list(range(256, 511))


def test_every_prediction_of_whole_documents() -> None:
    # Documents of 3 and 5 tokens make 2 + 4 predictions, however they are batched.
    found = stream([3, 5, 1, 0], window=None, score="all")
    assert found.at.tolist() == [0, 1, 3, 4, 5, 6]
    assert found.document.tolist() == [0, 0, 1, 1, 1, 1]


def test_an_answer_is_what_counts_of_a_tool_call_prompt() -> None:
    prompt = Document(list(range(700)), "tool calls", answer=690)
    found = Stream.of([prompt, Document([1, 2, 3, 4])], Protocol(window=512))
    assert found.windows[0].tolist() == [0, 0, 689, 700]
    assert found.at.tolist() == [*range(689, 699), 702]
    assert found.kind_names == ("tokens", "tool calls")


@pytest.mark.parametrize("batch_size", [1, 2, 8])
@pytest.mark.parametrize("chunk_size", [1, 3, 64])
def test_chunks_cover_each_scored_token_once(batch_size: int, chunk_size: int) -> None:
    found = stream([3, 50, 2, 17, 40, 9], window=16)
    seen = []
    for unit in found.units:
        for chunk in chunks_of(found, unit, batch_size, chunk_size):
            assert chunk.tokens.shape[0] <= batch_size
            assert chunk.tokens.shape[1] <= chunk_size
            # Tokens count up, so each says where it stands.
            at = chunk.tokens.reshape(-1)[chunk.flat]
            np.testing.assert_array_equal(at, found.at[chunk.rows])
            np.testing.assert_array_equal(chunk.targets, at + 1)
            seen += chunk.rows.tolist()
    assert sorted(seen) == list(range(found.scored))


def test_windows_of_a_batch_are_of_similar_length() -> None:
    found = stream([50, 9, 40, 10, 37, 36], window=None)
    shapes = [c.tokens.shape for unit in found.units for c in chunks_of(found, unit, 8, 64)]
    assert shapes == [(2, 49), (2, 36), (2, 9)]


def test_units_do_not_depend_on_anything_else() -> None:
    found = stream([512] * 50)
    assert [unit.stop - unit.start for unit in found.units] == [17, 17, 16]
    assert found.unit_rows(found.units[1]) == slice(17 * 255, 34 * 255)


def test_description_tells_streams_apart() -> None:
    one = stream([40, 30])
    assert one.describe() == stream([40, 30]).describe()
    for other in (stream([30, 40]), stream([40, 30], window=64), stream([40, 31])):
        assert one.describe() != other.describe()


@pytest.mark.parametrize(
    ("protocol", "said"),
    [
        ({"window": 1}, "window"),
        ({"score": "none"}, "score"),
        ({"window": None, "full_windows": True}, "full"),
    ],
)
def test_protocols_that_cannot_be(protocol: dict[str, object], said: str) -> None:
    with pytest.raises(MixbitError, match=said):
        stream([10], **protocol)
