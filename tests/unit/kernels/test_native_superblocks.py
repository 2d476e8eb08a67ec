"""Structs of ggml in C++: the bytes of NumPy's codec with every instruction set, with importance and without."""

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from pipeline.errors import ConfigError, StageError, ValueRangeError
from pipeline.ops import Kernel
from pipeline.tensors.scheme import INSIDE, STRUCTS, Scheme
from pipeline.tensors.spec import TensorSpec
from pipeline.testing.memory import same
from plugins.quant.structs import Structs
from tests.cases.native import needs_compiler

BF16 = ml_dtypes.bfloat16
ROWS = 7  # blocks of 32 and of 256 fill no tile

pytestmark = [needs_compiler, pytest.mark.usefixtures("isa")]


def scheme(kind: str) -> Scheme:
    return Scheme(kind, STRUCTS[kind][0], INSIDE)


def made(backend: str, x: Any, kind: str, **options: Any) -> Any:
    return Kernel("quantize", (backend,))(x, scheme(kind), **options)


def arrays() -> dict[str, Any]:
    rng = np.random.default_rng(0)
    normal = rng.standard_normal((ROWS, 768))
    sizes = {"of every size": rng.uniform(-45, 4, (ROWS, 1)), "of many sizes": rng.uniform(-9, 2, normal.shape)}
    found = {name: (normal * 10.0**size).astype(np.float32) for name, size in sizes.items()}
    return found | {
        "bf16": (normal * 0.02).astype(BF16),
        "f16": (rng.standard_t(2, normal.shape) * 0.02).astype(np.float16),
        "no sign": np.abs(normal).astype(np.float32),
        "sparse": (normal * (rng.random(normal.shape) < 0.05)).astype(np.float32),
        "whole": rng.integers(-2, 3, normal.shape).astype(np.float32),  # of equals the first counts, and ties are many
        "zeros": np.where(normal < 0, -0.0, 0.0).astype(np.float32),
        "turned": np.asfortranarray(normal.astype(np.float32)),
        "experts": normal.astype(np.float32).reshape(ROWS, 3, 256)[:, ::-1],
    }


@pytest.mark.parametrize("kind", STRUCTS)
def test_bytes_are_those_of_numpy(kind: str) -> None:
    rng = np.random.default_rng(1)
    for name, x in arrays().items():
        shape = (*x.shape[:-2], x.shape[-1])
        zero_for_some = np.where(rng.random(shape) < 0.3, 0, rng.random(shape) ** 4 * 1e3).astype(np.float32)
        for importance in (None, zero_for_some):
            theirs, ours = (made(b, x, kind, importance=importance) for b in ("numpy", "native"))
            assert same(theirs, ours), (name, importance is None)


@pytest.mark.parametrize("kind", STRUCTS)
def test_what_cannot_be_stored_is_said_alike(kind: str) -> None:
    x = np.random.default_rng(0).standard_normal((3, 5, 512)).astype(BF16)
    broken, far, later = x.copy(), x.copy(), x.copy()
    broken[2, 3, 9] = -np.inf
    far[1, 2, 300:] *= 1e9
    later[1, 2, 300:] = np.abs(later[1, 2, 300:]) + 1e9  # of kinds with minima the scale fits, and the rest is below
    later[1, 2, 299] = -1e9
    for bad in (broken, far, later):
        said = []
        for backend in ("numpy", "native"):
            with pytest.raises(ValueRangeError) as why:
                made(backend, bad, kind)
            said.append(str(why.value))
        assert said[0] == said[1]


@pytest.mark.parametrize("kind", ["q2_k", "q6_k", "iq4_nl"])
def test_measures_are_those_of_numpy(kind: str) -> None:
    (a, theirs), (b, ours) = (made(n, arrays()["bf16"], kind, measure=True) for n in ("numpy", "native"))
    assert same(a, b)
    assert theirs == ours
    assert ours.count == ROWS * 768
    assert 0 < ours.to_json()[2] < 0.1 * ours.to_json()[3]


def test_the_method_takes_what_is_chosen() -> None:
    x = arrays()["bf16"]
    chosen = Structs("q4_k", quantize=Kernel("quantize", ("native", "numpy")))
    assert same(chosen.encode(x), Structs("q4_k").encode(x))
    (call,) = chosen.calls("w", TensorSpec(x.shape, "BF16"))
    assert call.kernel.choose(call.given).backend == "native"


def test_options_and_backends_that_are_not_for_structs_are_refused() -> None:
    x = arrays()["bf16"]
    with pytest.raises(ConfigError, match="ties=zero: a struct of ggml as q4_k is made in one way"):
        made("native", x, "q4_k", ties="zero")
    with pytest.raises(ConfigError, match=r"importance: of shape \[3\], where columns have \[768\]"):
        made("native", x, "q4_k", importance=np.ones(3, np.float32))
    with pytest.raises(StageError, match="xla makes no structs of ggml, as q4_k is"):
        made("xla", x, "q4_k")
