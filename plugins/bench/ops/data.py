"""What cases are made of: values of any size, number formats by name, and pieces of packed tensors."""

from math import prod
from typing import Any, Final, Literal

import ml_dtypes
import numpy as np

from pipeline.errors import ConfigError, did_you_mean
from pipeline.tensors.qtensor import QTensor
from pipeline.tensors.scheme import MXFP4, Scheme
from pipeline.testing.memory import cut, quantized

SOME: Final = 65_537  # values at random, again and again: a prime, so that no two rows are alike
_GGML: Final = {"codes_from": "unrounded", "quotient": "reciprocal"}
Plain = Literal["bf16", "f32"]
_AMAX: Final = {"scale_rule": "amax"}
PLAIN: Final = {"bf16": np.dtype(ml_dtypes.bfloat16), "f32": np.dtype(np.float32)}
# How codes are made of values stands beside what they mean.
FORMATS: Final[dict[str, tuple[Scheme, dict[str, Any]]]] = {
    "mxfp4": (MXFP4, {}),
    **{f"mx_{e}": (Scheme(e, 32, "e8m0"), {}) for e in ("e2m3", "e3m2", "e4m3", "e5m2", "mxint8")},
    "nvfp4": (Scheme("e2m1", 16, "e4m3", second="f32"), _AMAX),
    "nf4": (Scheme("nf4", 64, "f32"), {**_AMAX, "ties": "down"}),
    "nf4_twice": (Scheme("nf4", 64, "dynamic8", second="dynamic8"), {**_AMAX, "ties": "down", **_GGML}),
    "int8": (Scheme("int8", 0, "f32"), _AMAX),
    **{f"int{n}": (Scheme(f"int{n}", 32, "f32"), _AMAX) for n in (4, 3, 2)},
    **{f"int4_{n}": (Scheme("int4", n, "bf16"), _AMAX) for n in (64, 128)},
    "uint4": (Scheme("uint4", 32, "f32", zero="int"), {"scale_rule": "minmax"}),
    "fp8": (Scheme("e4m3", 0, "f32"), _AMAX),
    "fp8_tensor": (Scheme("e4m3", 0, "f32", block_rows=0), _AMAX),
    "fp8_tiles": (Scheme("e4m3", 128, "f32", block_rows=128), _AMAX),
    "q8_0": (Scheme("int8", 32, "f16"), {**_AMAX, "ties": "away", **_GGML}),
    "q4_0": (Scheme("int4", 32, "f16"), {"scale_rule": "signed", "ties": "up", **_GGML}),
    "q4_1": (Scheme("uint4", 32, "f16", zero="min_f16"), {"scale_rule": "minmax", "ties": "up", **_GGML}),
}


def check(key: str, formats: tuple[str, ...], plain: bool = True) -> None:
    """
    Raises:
        ConfigError: a format that there is not, or none.
    """
    known = [*(PLAIN if plain else ()), *FORMATS]
    if not formats:
        raise ConfigError(f"{key}=[]: at least one is needed{did_you_mean('', known)}")
    for name in formats:
        if name not in known:
            raise ConfigError(f"{key}: there is no format {name!r}{did_you_mean(name, known)}")


def sizes(key: str, given: tuple[int, ...], many: int | None = None) -> None:
    """
    Raises:
        ConfigError: not `many` numbers, or one that is less than 1.
    """
    if not given or any(n < 1 for n in given) or len(given) != (many or len(given)):
        raise ConfigError(f"{key}={list(given)}: {f'{many} numbers' if many else 'numbers'}, 1 or more each")


def values(shape: tuple[int, ...], dtype: Any = np.float32, seed: int = 0) -> Any:
    """From N(0, 1)."""
    some = np.random.default_rng(seed).standard_normal(SOME, np.float32).astype(dtype)
    found = np.empty(prod(shape), dtype)  # `np.resize` writes it three times
    whole = len(found) // SOME * SOME
    found[:whole].reshape(-1, SOME)[:] = some
    found[whole:] = some[: len(found) - whole]
    return found.reshape(shape)


def activations(weights: str, asked: Plain | None) -> Any:
    """The dtype of what is multiplied by weights of a format: as asked for, or bfloat16 with such weights, else
    float32."""
    return PLAIN[asked or ("bf16" if weights == "bf16" else "f32")]


def said(asked: Plain | None) -> str:
    """In names of cases."""
    return "" if asked is None else f" of {asked}"


def weights(name: str, shape: tuple[int, ...], seed: int = 0) -> Any:
    """An array or a QTensor of a format."""
    return values(shape, PLAIN[name], seed) if name in PLAIN else quantized(FORMATS[name][0], shape, seed)


def ends(w: Any, least: int = 2) -> list[tuple[slice, Any]]:
    """The first and the last rows of `[…, out, in]`: which they are, and a copy of them."""
    out = w.shape[-2]
    step = (w.scheme.block_rows or out) if isinstance(w, QTensor) else 1
    many = min(out, -(-least // step) * step)
    here = [slice(0, many), *([slice(out - many, out)] if out > many else [])]
    lead = (slice(None),) * (len(w.shape) - 2)
    return [(rows, cut(w, (*lead, rows))) for rows in here]
