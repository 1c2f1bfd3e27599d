"""Models whose layers are shared out among the ranks of a ring."""

from pathlib import Path

import mlx.core as mx
import mlx.nn as nn
import numpy as np

import mixbit
from kld_runs import run_ranks
from models import build

TOKENS = [7, 3, 250, 11, 3, 3, 90, 41, 0, 200, 17, 5]
# Dims that two ranks can halve, heads and groups of 32 weights included.
SIZES = {"hidden_size": 64, "linear_key_head_dim": 32, "linear_value_head_dim": 32}

SHARDED = """
sys.path.insert(0, sys.argv[1])
import mixbit
import numpy as np
from mlx_lm.models.cache import make_prompt_cache
from test_sharding import TOKENS, model_of
for name in sys.argv[3:]:
    model = model_of(name)
    mixbit.accelerate(model)
    model.shard(mx.distributed.init())
    mixbit.accelerate(model)  # changes nothing
    mx.eval(model.parameters())
    cache = make_prompt_cache(model)
    parts = [model(mx.array([part]), cache) for part in (TOKENS[:7], TOKENS[7:8], TOKENS[8:])]
    logits = np.array(mx.concatenate(parts, axis=1))
    assert type(model.layers[0].linear_attn) is mixbit.nn.GatedDeltaNet
    np.save(Path(sys.argv[2]) / f"{name}-{os.environ['MLX_RANK']}.npy", logits)
"""


def model_of(name: str) -> nn.Module:
    """``qwen3_5`` or ``qwen3_5_moe``, ``-packed`` for quantised."""
    model_type, _, packed = name.partition("-")
    model = build(model_type, **SIZES)
    if packed:
        nn.quantize(model, group_size=32, bits=6)
    return model.eval()


def test_two_ranks_compute_what_one_does(tmp_path: Path) -> None:
    names = ("qwen3_5", "qwen3_5-packed", "qwen3_5_moe", "qwen3_5_moe-packed")
    for rank in run_ranks(2, SHARDED, tmp_path, Path(__file__).parent, tmp_path, *names):
        assert rank.returncode == 0, rank.stderr
    for name in names:
        model = model_of(name)
        mixbit.accelerate(model)
        want = np.array(model(mx.array([TOKENS])))
        for rank in range(2):
            found = np.load(tmp_path / f"{name}-{rank}.npy")
            assert np.abs(found - want).max() < 1e-5
