"""moe: that work, reads and memory go with the tokens; values on named cases are the contract's."""

import subprocess
import sys
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import pipeline.tensors.pytree  # noqa: F401
from pipeline.ops import Kernel
from pipeline.tensors.qtensor import QTensor
from pipeline.tensors.scheme import MXFP4
from plugins.kernels.cases import normal
from plugins.kernels.moe.cases import interleaved
from plugins.kernels.moe.schedule import tile_rows
from tests.cases.quantized import quantized
from tests.unit.kernels.test_matmul import shaped

EXPERTS, D_IN, F, D_OUT = 7, 96, 64, 10


def layer() -> tuple[QTensor, QTensor]:
    return quantized(MXFP4, (EXPERTS, 2 * F, D_IN)), quantized(MXFP4, (EXPERTS, D_OUT, F), seed=1)


def run(x: Any, chosen: Any, weights: Any, w_in: Any, w_out: Any, activation: Any = interleaved) -> Any:
    call = jax.jit(partial(Kernel("moe", ("xla",)), activation=activation))
    return np.asarray(call(x, chosen, weights, (w_in,), (None,), w_out, None))


@pytest.mark.parametrize(("tokens", "k"), [(1, 1), (1, 4), (3, 2), (40, 2)])
@pytest.mark.usefixtures("quick")
def test_experts_nobody_chose_are_not_decoded(tokens: int, k: int) -> None:
    """Their scales are NaN, and no result is."""
    rng = np.random.default_rng(tokens)
    live = np.array([0, 2, 3, 5])
    chosen = np.stack([rng.permutation(live)[:k] for _ in range(tokens)]).astype(np.int32)
    w_in, w_out = layer()
    for q in (w_in, w_out):
        q.scales[np.setdiff1d(np.arange(EXPERTS), chosen)] = 0xFF
    x, weights = normal(rng, tokens, D_IN), np.ones((tokens, k), np.float32)
    assert np.isfinite(run(x, chosen, weights, w_in, w_out)).all()
    w_in.scales[chosen[0, 0]] = 0xFF
    assert np.isnan(run(x, chosen, weights, w_in, w_out)[0]).all()


def test_padding_reads_no_expert_and_disturbs_no_token() -> None:
    rng = np.random.default_rng(0)
    x, weights = normal(rng, 5, D_IN), np.ones((5, 2), np.float32)
    chosen = np.array([[0, 1], [2, 3], [0, 1], [4, 5], [1, 0]], np.int32)
    w_in, w_out = layer()
    expected = run(x, chosen, weights, w_in, w_out)
    w_in.scales[[2, 3, 4, 5]] = 0xFF
    x[[1, 3]], weights[[1, 3]] = np.nan, 0
    found = run(x, chosen, weights, w_in, w_out)
    np.testing.assert_array_equal(found[[1, 3]], 0)
    np.testing.assert_allclose(found[[0, 2, 4]], expected[[0, 2, 4]], rtol=1e-6)


@pytest.mark.parametrize(
    ("tokens", "k", "experts"), [(1, 4, EXPERTS), (1, 1, EXPERTS), (64, 2, EXPERTS), (5, 2, EXPERTS), (64, 2, 1)]
)
@pytest.mark.usefixtures("quick")
def test_tiles_go_with_the_assignments(tokens: int, k: int, experts: int) -> None:
    """No more rows are multiplied than there are assignments, and a part of a tile for each expert chosen."""
    rng = np.random.default_rng(0)
    seen: list[int] = []

    def counting(both: Any) -> Any:
        jax.debug.callback(lambda rows=both.shape[0]: seen.append(rows))
        return interleaved(both)

    chosen = rng.integers(0, experts, (tokens, k)).astype(np.int32)
    run(normal(rng, tokens, D_IN), chosen, np.ones((tokens, k), np.float32), *layer(), counting)
    jax.effects_barrier()
    rows = tile_rows(tokens * k, EXPERTS)
    counts = np.bincount(chosen.reshape(-1))
    assert seen == [rows] * sum(-(-int(c) // rows) for c in counts)
    assert sum(seen) <= tokens * k + len(np.unique(chosen)) * (rows - 1)


def test_tile_rows() -> None:
    assert tile_rows(4, 32) == 1  # gpt-oss-20b, decoding one token: 4 experts, a row each
    assert tile_rows(4 * 512, 32) == 64
    assert tile_rows(4 * 100_000, 32) == 128


def test_no_tensor_grows_with_the_experts() -> None:
    """What XLA sets aside is the same for 8 and for 128 experts, but for a few numbers each."""

    def temporary(experts: int, tokens: int) -> int:
        d_in, f = 512, 768
        w_in, w_out = shaped(MXFP4, (experts, 2 * f, d_in)), shaped(MXFP4, (experts, d_in, f))
        args = ((tokens, d_in), jnp.float32), ((tokens, 4), jnp.int32), ((tokens, 4), jnp.float32)
        x, chosen, weights = (jax.ShapeDtypeStruct(s, d) for s, d in args)
        call = jax.jit(partial(Kernel("moe", ("xla",)), activation=interleaved))
        sizes = call.lower(x, chosen, weights, (w_in,), (None,), w_out, None).compile().memory_analysis()
        return int(sizes.temp_size_in_bytes)

    assert abs(temporary(128, 1) - temporary(8, 1)) < 1 << 16
    assert temporary(128, 33) < temporary(8, 33) + (1 << 20)


@pytest.mark.parametrize("tokens", [1, 16])
def test_plain_experts_are_sliced_as_they_are(tokens: int) -> None:
    """Nothing of the size of a stack of bfloat16 experts is set aside: XLA's CPU backend likes to widen them all."""
    w_in, w_out = (jax.ShapeDtypeStruct(s, jnp.bfloat16) for s in ((16, 1536, 512), (16, 512, 768)))
    args = ((tokens, 512), jnp.bfloat16), ((tokens, 4), jnp.int32), ((tokens, 4), jnp.float32)
    x, chosen, weights = (jax.ShapeDtypeStruct(s, d) for s, d in args)
    call = jax.jit(partial(Kernel("moe", ("xla",)), activation=interleaved))
    sizes = call.lower(x, chosen, weights, (w_in,), (None,), w_out, None).compile().memory_analysis()
    assert sizes.temp_size_in_bytes < 4 << 20  # the stacks have 24 and 12 MiB


LAYER = """
from functools import partial
import sys
import jax, jax.numpy as jnp, numpy as np
import pipeline.tensors.pytree
from pipeline.tensors.qtensor import QTensor
from pipeline.tensors.scheme import MXFP4
from pipeline.ops import Kernel
from plugins.kernels.moe.cases import interleaved

def packed(*shape):  # one gpt-oss-20b layer, as wide as the published one
    shapes = MXFP4.components(shape)
    codes = np.resize(np.random.default_rng(0).integers(0, 256, 1 << 20, dtype=np.uint8), shapes["codes"])
    return jax.device_put(QTensor(codes, np.full(shapes["scales"], 118, np.uint8), MXFP4))

w_in, w_out = packed(32, 5760, 2880), packed(32, 2880, 2880)
call = jax.jit(partial(Kernel("moe", ("xla",)), activation=interleaved))
for tokens in map(int, sys.argv[1:]):
    x = jnp.ones((tokens, 2880), jnp.bfloat16) / 2880
    chosen = (jnp.arange(tokens * 4, dtype=jnp.int32) * 5 % 32).reshape(tokens, 4)
    weights = jnp.full((tokens, 4), 0.25)
    y = call(x, chosen, weights, (w_in,), (jnp.zeros((32, 5760)),), w_out, jnp.zeros((32, 2880)))
    assert bool(jnp.isfinite(y).all()) and y.shape == (tokens, 2880)
# Not getrusage: its maximum includes what the process was before exec, a worker of pytest.
print(next(1024 * int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmHWM")))
"""


def test_a_layer_of_gpt_oss_20b_runs_in_less_than_2_gib(thorough: bool) -> None:
    """In a process of its own: 0.4 GB of packed experts, 3.2 GB decoded; one token, then 48 that choose all experts."""
    many = ["1", "48"] if thorough else ["48"]  # one takes a part of what 48 do
    done = subprocess.run([sys.executable, "-c", LAYER, *many], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < 2 << 30
