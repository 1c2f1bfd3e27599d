"""What every test shares: the CPU device, a fixed seed and the trained tiny model's folder."""

import signal
from collections.abc import Iterator
from pathlib import Path

import mlx.core as mx
import pytest
from mlx_lm.tokenizer_utils import TokenizerWrapper
from mlx_lm.tokenizer_utils import load as load_tokenizer

from mixbit.data import tiny_model

pytest_plugins = ["metal_runner.pytest_plugin"]

mx.set_default_device(mx.cpu)

# A shell starts background jobs deaf to Ctrl-C, and children would inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_addoption(parser: pytest.Parser) -> None:
    """``--long``: the full grids of sweeps that otherwise run reduced."""
    parser.addoption("--long", action="store_true", help="run sweeps on their full grids")


@pytest.fixture(scope="session")
def long_grid(request: pytest.FixtureRequest) -> bool:
    """Whether sweeps shall run on their full grids."""
    return bool(request.config.getoption("--long"))


@pytest.fixture(autouse=True)
def _seeded() -> Iterator[None]:
    mx.random.seed(0)
    yield


@pytest.fixture(scope="session")
def tiny_folder() -> Path:
    """Folder of the trained tiny model (bf16, Hugging Face layout); never written to."""
    return tiny_model()


@pytest.fixture(scope="session")
def tiny_tokenizer(tiny_folder: Path) -> TokenizerWrapper:
    """Tokenizer of the trained tiny model."""
    return load_tokenizer(tiny_folder)
