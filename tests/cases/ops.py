"""Named calls of the model ops: one corpus for every backend. Every dimension differs from the others."""

from collections.abc import Iterator
from itertools import product
from typing import Any

import ml_dtypes
import numpy as np

from pipeline.tensors.scheme import MXFP4, Scheme
from pipeline.testing.kernel import Case
from tests.cases.quantized import quantized

BF16 = ml_dtypes.bfloat16
SCHEMES = {
    "mxfp4": MXFP4,
    "mxfp8": Scheme("e4m3", 32, "e8m0"),
    "nvfp4": Scheme("e2m1", 16, "e4m3", second="f32"),
    "nvfp4, inverse": Scheme("e2m1", 16, "e4m3", second="inverse_f32"),
    "nf4": Scheme("nf4", 64, "f32"),
    "nf4 twice": Scheme("nf4", 64, "dynamic8", second="dynamic8"),
    "int8 a row": Scheme("int8", 0, "f32"),
    "int8 a matrix": Scheme("int8", 0, "f32", block_rows=0),
    "int4 a group": Scheme("int4", 32, "bf16"),
    "uint4 with zero": Scheme("uint4", 32, "f32", zero="int"),
    "q4_1": Scheme("uint4", 32, "f16", zero="min_f16"),
    "int3": Scheme("int3", 64, "f32"),
    "e3m2": Scheme("e3m2", 32, "e8m0"),
    "fp8 in tiles": Scheme("e4m3", 64, "f32", block_rows=3),
}


def rng_of(name: str) -> np.random.Generator:
    return np.random.default_rng([ord(c) for c in name])


def normal(rng: np.random.Generator, *shape: int, dtype: Any = np.float32) -> Any:
    return rng.standard_normal(shape).astype(dtype)


def matmuls() -> Iterator[Case]:
    for dtype in (np.float32, BF16):
        name = np.dtype(dtype).name
        for lead in ((), (1,), (3,), (2, 5)):
            rng = rng_of(f"{name} {lead}")
            x, w = normal(rng, *lead, 64, dtype=dtype), normal(rng, 7, 64, dtype=dtype)
            yield Case(f"plain {name} {lead}", (x, w))
        yield Case(f"plain {name}, bias", (x, w, normal(rng, 7, dtype=dtype)))
        yield Case(f"plain {name}, wider out", (x, w), {"out_dtype": np.float32})
        yield Case(f"float32 weights under {name}", (x, normal(rng, 7, 64)))
        for scheme_name, scheme in SCHEMES.items():
            rng = rng_of(f"{name} {scheme_name}")
            for rows in (1, 3):
                w = quantized(scheme, (8, 128), seed=rows)
                case = f"{scheme_name} {name} {rows}"
                yield Case(case, (normal(rng, rows, 128, dtype=dtype), w, normal(rng, 8)))


def embeds() -> Iterator[Case]:
    rng = rng_of("embed")
    ids = rng.integers(0, 11, (2, 5)).astype(np.int32)
    for dtype in (np.float32, BF16):
        yield Case(f"plain {np.dtype(dtype).name}", (ids, normal(rng, 11, 6)), {"dtype": dtype})
        for name, scheme in SCHEMES.items():
            yield Case(f"{name} {np.dtype(dtype).name}", (ids, quantized(scheme, (11, 128))), {"dtype": dtype})


def glu(gate: Any, up: Any) -> Any:
    """Qwen3-MoE's shape of activation, in NumPy and in JAX alike."""
    return gate * up


def interleaved(both: Any) -> Any:
    """gpt-oss's: gate and up take turns."""
    return both[..., ::2] * (both[..., 1::2] + 1)


def moes() -> Iterator[Case]:
    """E 5 experts, D_in 64, F 32 (64 interleaved), D_out 9; tokens and choices vary."""
    experts, d_in, f, d_out = 5, 64, 32, 9
    for tokens, k in ((1, 2), (1, 4), (7, 3), (23, 2), (300, 1)):
        rng = rng_of(f"moe {tokens} {k}")
        x = normal(rng, tokens, d_in)
        chosen = np.stack([rng.permutation(experts)[:k] for _ in range(tokens)]).astype(np.int32)
        weights = rng.uniform(0.1, 1, (tokens, k)).astype(np.float32)
        two = tuple(normal(rng, experts, f, d_in) for _ in range(2))
        w_out, b_out = normal(rng, experts, d_out, f), normal(rng, experts, d_out)
        case = (x, chosen, weights, two, (None, None), w_out, None)
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


def attentions() -> Iterator[Case]:
    """B 2, T 5, S 11, H 6, K 3, D 8, Dv 4."""
    batch, queries, slots, heads, key_heads, d, dv = 2, 5, 11, 6, 3, 8, 4
    rng = rng_of("attention")
    q, k, v = (
        normal(rng, *s)
        for s in ((batch, queries, heads, d), (batch, slots, key_heads, d), (batch, slots, key_heads, dv))
    )
    at = np.array([[6, 7, 8, 9, 10], [-1, -1, 2, 3, 4]], np.int32)
    slot = np.array([[0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10], [2, 3, 4, -1, -1, -1, -1, -1, -1, 0, 1]], np.int32)
    sinks = normal(rng, heads)
    base = (q, k, v, at, slot)
    for name, options in {
        "causal": {},
        "not causal": {"causal": False},
        "window": {"window": 3},
        "window of one": {"window": 1},
        "window, not causal": {"window": 2, "causal": False},
        "sinks": {"sinks": sinks},
        "large sinks": {"sinks": sinks + 40},
        "sinks and window": {"sinks": sinks, "window": 4},
        "softcap": {"softcap": 0.7},
        "softcap and sinks": {"softcap": 1.5, "sinks": sinks},
    }.items():
        yield Case(name, base, {"scale": 0.4} | options)
    yield Case("large logits", (q * 40, k * 40, v, at, slot), {"scale": 0.4, "sinks": sinks})
    yield Case("bf16", (*(a.astype(BF16) for a in (q, k, v)), at, slot), {"scale": 0.4, "sinks": sinks})
    empty = np.full_like(slot, -1)
    yield Case("nothing to see", (q, k, v, at, empty), {"scale": 0.4})
    yield Case("nothing but sinks", (q, k, v, at, empty), {"scale": 0.4, "sinks": sinks})
    one = (q[:, :1], k, v, np.array([[10], [4]], np.int32), slot)
    yield Case("decode", one, {"scale": 0.4, "sinks": sinks, "window": 4})
    yield Case("decode, bf16", (*(a.astype(BF16) for a in one[:3]), *one[3:]), {"scale": 0.4})


def softmaxes() -> Iterator[Case]:
    rng = rng_of("softmax")
    x = normal(rng, 2, 3, 5) * 4
    seen = rng.random((2, 3, 5)) < 0.5
    seen[1, 2] = False
    yield Case("last axis", (x,))
    yield Case("middle axis", (x,), {"axis": 1})
    yield Case("bf16", (x.astype(BF16),))
    yield Case("large", (x * 1e4,))
    yield Case("where", (x,), {"where": seen})
    yield Case("sinks", (x,), {"sinks": normal(rng, 1, 3, 1)})
    yield Case("sinks of the first axis", (x,), {"sinks": normal(rng, 1, 1, 5) * 30, "axis": 0})
    yield Case("sinks and where", (x,), {"sinks": normal(rng, 1, 3, 1), "where": seen})
    yield Case("minus infinity", (np.where(seen, x, -np.inf).astype(np.float32),), {"where": seen})


def norms() -> Iterator[Case]:
    rng = rng_of("rms_norm")
    x, weight = normal(rng, 2, 3, 20), normal(rng, 20)
    yield Case("plain", (x, weight), {"eps": 1e-5})
    yield Case("plus one", (x, weight), {"eps": 1e-5, "plus_one": True})
    yield Case("large eps", (x, weight), {"eps": 2.0})
    yield Case("zeros", (np.zeros_like(x), weight), {"eps": 1e-6})
    yield Case("large", (x * 1e15, weight), {"eps": 1e-6})
    yield Case("bf16", (x.astype(BF16), weight.astype(BF16)), {"eps": 1e-5})
    yield Case("vector", (x[0, 0], weight), {"eps": 1e-5})


def ropes() -> Iterator[Case]:
    rng = rng_of("rope")
    x = normal(rng, 2, 3, 5, 8)
    at = np.array([[0, 1, 2], [7, 1000, 131071]], np.int32)
    inv_freq = (150000.0 ** (-np.arange(4) / 4)).astype(np.float32)
    yield Case("split half", (x, at, inv_freq))
    yield Case("interleaved", (x, at, inv_freq), {"interleaved": True})
    yield Case("concentration", (x, at, inv_freq), {"concentration": 1.3466})
    yield Case("a part", (x, at, inv_freq[:3]))
    yield Case("a part, interleaved", (x, at, inv_freq[:3]), {"interleaved": True})
    yield Case("bf16", (x.astype(BF16), at, inv_freq))
