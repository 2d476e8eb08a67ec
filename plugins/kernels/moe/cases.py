"""Named calls of moe, and its formula as JAX differentiates it in float64: what backends are held to."""

from collections.abc import Iterator
from itertools import product
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from pipeline.testing.kernel import Case
from pipeline.testing.memory import quantized
from plugins.kernels.cases import BF16, BY_STRUCTS, NOT_FINITE, SCHEMES, normal, not_finite, rng_of


def glu(gate: Any, up: Any) -> Any:
    """Qwen3-MoE's shape of activation, in NumPy and in JAX alike."""
    return gate * up


def interleaved(both: Any) -> Any:
    """gpt-oss's: gate and up take turns."""
    return both[..., ::2] * (both[..., 1::2] + 1)


def cases() -> Iterator[Case]:
    """E 5 experts, D_in 64, F 32 (64 interleaved), D_out 9; tokens and choices vary."""
    experts, d_in, f, d_out = 5, 64, 32, 9
    for tokens, k in ((1, 2), (1, 4), (7, 3), (23, 2), (300, 1)):
        rng = rng_of(f"moe {tokens} {k}")
        x = normal(rng, tokens, d_in)
        chosen = np.stack([rng.permutation(experts)[:k] for _ in range(tokens)]).astype(np.int32)
        weights = rng.uniform(0.1, 1, (tokens, k)).astype(np.float32)
        two = tuple(normal(rng, experts, f, d_in) for _ in range(2))
        w_out, b_out = normal(rng, experts, d_out, f), normal(rng, experts, d_out)
        case: tuple[Any, ...] = (x, chosen, weights, two, (None, None), w_out, None)
        yield Case(f"{tokens} tokens, {k} choices, gate and up", case, {"activation": glu})
        fused, b_in = normal(rng, experts, 2 * f, d_in), normal(rng, experts, 2 * f)
        case = (x, chosen, weights, (fused,), (b_in,), w_out, b_out)
        yield Case(f"{tokens} tokens, {k} choices, interleaved", case, {"activation": interleaved})
    rng = rng_of("moe padding")
    x, chosen = normal(rng, 6, d_in), rng.integers(0, experts, (6, 2)).astype(np.int32)
    weights = rng.uniform(0.1, 1, (6, 2)).astype(np.float32)
    weights[[1, 4]] = 0
    weights[2, 1] = 0
    x[4] = np.nan
    yield Case("padding", (x, chosen, weights, (fused,), (b_in,), w_out, b_out), {"activation": interleaved})
    weights[:] = 0
    yield Case(
        "nothing but padding", (x, chosen, weights, (fused,), (b_in,), w_out, b_out), {"activation": interleaved}
    )
    same = np.full((6, 1), 3, np.int32)
    yield Case(
        "all tokens choose one expert",
        (normal(rng, 6, d_in), same, np.ones((6, 1), np.float32), (fused,), (b_in,), w_out, b_out),
        {"activation": interleaved},
    )
    for name, dtype in product(("mxfp4", "nf4 twice", "nvfp4", "q4_1", "fp8 in tiles", "e3m2"), (np.float32, BF16)):
        fused, w_out = quantized(SCHEMES[name], (experts, 128, 192)), quantized(SCHEMES[name], (experts, 9, 64), seed=1)
        rng = rng_of(f"moe {name}")
        x, chosen = (normal(rng, 4, 192) / 16).astype(dtype), rng.integers(0, experts, (4, 2)).astype(np.int32)
        weights = rng.uniform(0.1, 1, (4, 2)).astype(np.float32)
        case = (x, chosen, weights, (fused,), (None,), w_out, b_out)
        yield Case(f"{name} {np.dtype(dtype).name}", case, {"activation": interleaved})
    for name, other in (("q4_k", "q6_k"), ("q5_0", "iq4_nl")):
        fused, w_out = quantized(BY_STRUCTS[name], (experts, 512, 256)), quantized(BY_STRUCTS[other], (experts, 9, 256))
        rng = rng_of(f"moe {name}")
        x, chosen = normal(rng, 4, 256) / 16, rng.integers(0, experts, (4, 2)).astype(np.int32)
        weights = rng.uniform(0.1, 1, (4, 2)).astype(np.float32)
        case = (x, chosen, weights, (fused,), (None,), w_out, b_out)
        yield Case(f"{name}, then {other}", case, {"activation": interleaved})
    yield Case("partial sums", *_partial_sums(experts, d_in, f, d_out))
    x, fused = not_finite(NOT_FINITE["int8"], 3, (experts, 6))
    every = np.stack([rng.permutation(experts) for _ in x]).astype(np.int32)  # what the formula multiplies by 0 is NaN
    weights = rng.uniform(0.1, 1, every.shape).astype(np.float32)
    args = (x, every, weights, (fused,), (None,), normal(rng, experts, d_out, 3), None)
    yield Case("not finite", args, {"activation": interleaved})


def _partial_sums(experts: int, d_in: int, f: int, d_out: int) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """bfloat16 in, float32 out; what is rounded on the way in are small integers, which are exact."""
    rng = rng_of("moe partial sums")
    x = np.where(rng.random((6, d_in)) < 0.1, rng.choice((-1, 1), (6, d_in)), 0).astype(BF16)
    w_in = rng.choice((-1, 0, 1), (experts, 2 * f, d_in)).astype(BF16)
    chosen, weights = rng.integers(0, experts, (6, 2)).astype(np.int32), rng.uniform(0.1, 1, (6, 2)).astype(np.float32)
    w_out, b_out = normal(rng, experts, d_out, f).astype(BF16), normal(rng, experts, d_out)
    args = (x, chosen, weights, (w_in,), (None,), w_out, b_out)
    return args, {"activation": interleaved, "out_dtype": np.float32}


def in_float64(
    x: Any, chosen: Any, weights: Any, w_in: Any, b_in: Any, w_out: Any, b_out: Any, *, activation: Any,
    out_dtype: Any = None,
) -> Any:  # fmt: skip
    """Every token through every expert, and a one-hot choice afterwards. A weight of 0 is no choice, and stays none."""
    weights = jnp.where(weights == 0, 0, weights)
    x = jnp.where((weights != 0).any(axis=1)[:, None], x, 0)  # padding may be NaN
    hidden = []
    for w, b in zip(w_in, b_in, strict=True):
        h = jnp.einsum("ni,efi->enf", x, w)
        hidden.append(h if b is None else h + b[:, None])
    y = jnp.einsum("enf,eof->eno", activation(*hidden), w_out)
    y = y if b_out is None else y + b_out[:, None]
    share = jnp.einsum("nke,nk->en", jax.nn.one_hot(chosen, w_out.shape[0], dtype=y.dtype), weights)
    return jnp.einsum("eno,en->no", y, share)
