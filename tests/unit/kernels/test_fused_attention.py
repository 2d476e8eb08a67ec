"""Attention by programs of others: what they are given and what is made of it, held to the corpus with XLA in their
place; what they decline; and that cuDNN's call is what a program for GPUs has."""

from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from importlib.util import find_spec
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax._src.cudnn import fused_attention_stablehlo

from pipeline import backends
from pipeline.errors import StageError, Unsupported
from pipeline.ops import Kernel
from pipeline.tensors.qtensor import QTensor
from pipeline.tensors.scheme import Scheme
from pipeline.tensors.spec import TensorSpec
from pipeline.testing.kernel import Case
from pipeline.testing.model_op import ModelOpContract
from plugins.kernels.attention import cudnn
from plugins.kernels.cases import BF16, normal, rng_of
from tests.cases.model_runs import quick_compilation

TOKAMAX = find_spec("tokamax") is not None


def sixteen(value: Any) -> Any:
    return value.astype(BF16) if isinstance(value, np.ndarray) and value.dtype == np.float32 else value


class _Fused(ModelOpContract):
    """The corpus in bfloat16, and prompts from their beginning, which need no mask."""

    op = "attention"

    @pytest.fixture(autouse=True)
    def _quick(self) -> Iterator[None]:
        with quick_compilation():
            yield

    def cases(self) -> Iterable[Case]:
        for case in super().cases():
            yield Case(case.name, tuple(map(sixteen, case.args)), {k: sixteen(v) for k, v in case.options.items()})
        rng = rng_of("in order")
        q, k, v = (sixteen(normal(rng, 2, *s)) for s in ((5, 6, 8), (9, 3, 8), (9, 3, 8)))
        at, slot = (np.tile(np.arange(n, dtype=np.int32), (2, 1)) for n in (5, 9))
        not_yet = np.where(slot < 5, slot, -1)
        for name, of, options in (
            ("in order", slot, {}), ("in order, a window", slot, {"window": 2}),
            ("in order, not yet full", not_yet, {}),
            ("one of two in order", np.stack([slot[0], np.roll(slot[1], 1)]), {"window": 3}),
        ):  # fmt: skip
            yield Case(name, (q, k, v, at, of), {"scale": 0.4, **options})


# Gradients are XLA's of what a program is given and gives: of both ways through it, of rows that see nothing, of heads
# that share keys.
PULLED = ("causal", "in order, a window", "one of two in order", "nothing to see")


def few(call: Mapping[str, Any]) -> tuple[str, str]:
    """Every value; of gradients those."""
    name = next((call[kind].name for kind in ("case", "differentiable") if kind in call), "")
    return call["backend"], name if "case" in call or name in PULLED else ""


@pytest.mark.brief(each=few)
class TestAsCuDNN(_Fused):
    backends = ("tests.cases.attention_by_xla", "cudnn")


@pytest.mark.brief(each=few)
@pytest.mark.oracle
@pytest.mark.skipif(not TOKAMAX, reason="tokamax is not installed")
class TestAsTokamax(_Fused):
    backends = ("tests.cases.attention_by_tokamax", "tokamax")


def test_positions_in_order_take_the_way_without_a_mask(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both ways are in the program; positions say which one runs."""
    asked: list[Mapping[str, Any]] = []

    def program(q: Any, k: Any, v: Any, **options: Any) -> Any:
        asked.append(options)
        return jnp.full(q.shape, 2.0 if options["is_causal"] else 1.0, q.dtype)

    monkeypatch.setattr(jax.nn, "dot_product_attention", program)
    q, k = (np.zeros((1, n, 2, 8), BF16) for n in (4, 6))
    at = np.arange(4, dtype=np.int32)[None]
    call = jax.jit(partial(cudnn.attention, scale=1.0, window=3))
    for slot, way in (
        ([0, 1, 2, 3, 4, 5], 2), ([0, 1, 2, 3, -1, -1], 2), ([0, 1, 2, 3, -1, 2], 1), ([1, 0, 2, 3, 4, 5], 1)
    ):  # fmt: skip
        found = call(q, k, k, at, np.array([slot], np.int32))
        assert (np.asarray(found).astype(np.float32) == way).all(), slot
    assert (np.asarray(call(q, k, k, at + 1, np.arange(6, dtype=np.int32)[None])).astype(np.float32) == 1).all()
    assert [(o["is_causal"], o["local_window_size"], o["implementation"]) for o in asked] == [
        (True, (2, 0), "cudnn"), (False, None, "cudnn")
    ]  # fmt: skip


def spec(*shape: int, dtype: str = "BF16", scheme: Scheme | None = None) -> TensorSpec:
    return TensorSpec(shape, dtype, scheme)


Q, K = spec(1, 4, 8, 64), spec(1, 16, 2, 64)
INT8 = spec(1, 16, 2, 64, scheme=Scheme("int8", 0, "f32"))
REFUSED: list[tuple[str, dict[str, Any], str]] = [
    ("both", {"sinks": spec(8)}, "has no sinks"),
    ("cudnn", {"softcap": 30.0}, "cuDNN has no soft cap"),
    ("cudnn", {"q": spec(1, 4, 8, 64, dtype="F32")}, "F32 queries; cuDNN takes BF16, F16"),
    ("tokamax", {"q": spec(1, 4, 8, 64, dtype="F64")}, "F64 queries; tokamax takes F32, BF16, F16"),
    ("both", {"k": INT8, "v": INT8}, "int8/row/f32 keys or values; "),
    ("both", {"v": spec(1, 16, 2, 64, dtype="F8_E4M3")}, "F8_E4M3 keys or values; "),
    ("both", {"v": spec(1, 16, 2, 320)}, "heads of 320 dims; "),
    ("both", {"q": spec(4, 4096, 8, 64), "k": spec(4, 8192, 2, 64)}, "4096 × 8192 of them take 256 MiB; at most 64"),
]


@pytest.mark.parametrize(("backend", "given", "said"), REFUSED, ids=[said for *_, said in REFUSED])
def test_what_it_lacks_is_said_before_anything_runs(backend: str, given: dict[str, Any], said: str) -> None:
    for name in ("cudnn", "tokamax") if backend == "both" else (backend,):
        reasons = Kernel("attention", (name,), "gpu").choose({"q": Q, "k": K, "v": K, **given}).reasons
        assert reasons.startswith(f"{name}: ")
        assert said in reasons


def test_what_it_has_is_not_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    there = {"q": Q, "k": K, "v": K, "window": 3, "sinks": None, "softcap": None}
    assert Kernel("attention", ("cudnn",), "gpu").choose(there).backend == "cudnn"
    assert Kernel("attention", ("cudnn", "xla"), "gpu").choose({**there, "sinks": spec(8)}).backend == "xla"
    monkeypatch.setattr(backends, "_exists", lambda module: True)
    soft = {**there, "softcap": 30.0, "q": spec(1, 4, 8, 64, dtype="F32")}
    assert Kernel("attention", ("tokamax",), "gpu").choose(soft).backend == "tokamax"


def test_a_package_that_is_not_there_says_how_it_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    real = backends._exists
    monkeypatch.setattr(backends, "_exists", lambda module: module != "tokamax" and real(module))
    reasons = Kernel("attention", ("tokamax",), "gpu").choose({"q": Q, "k": K, "v": K}).reasons
    assert reasons == "tokamax: tokamax is not installed: pip install 'weightmill[tokamax]'"


@pytest.mark.parametrize("name", ["cudnn", "tokamax"])
def test_they_are_for_gpus(name: str) -> None:
    x = np.zeros((1, 2, 2, 8), BF16)
    at = np.zeros((1, 2), np.int32)
    with pytest.raises(StageError, match=f"{name}: runs on gpu, not on cpu"):
        Kernel("attention", (name,))(x, x, x, at, at, scale=1.0)


def test_sinks_are_never_left_out_in_silence() -> None:
    x, at = np.zeros((1, 2, 2, 8), BF16), np.zeros((1, 2), np.int32)
    for name in ("cudnn", "tokamax"):
        with pytest.raises(Unsupported, match="has no sinks"):
            backends.load("attention", name)(x, x, x, at, at, scale=1.0, sinks=np.zeros(2, np.float32))
    with pytest.raises(Unsupported, match="has no soft cap"):
        cudnn.attention(x, x, x, at, at, scale=1.0, softcap=2.0)


@pytest.mark.parametrize(("queries", "slots"), [(1, 300), (7, 7), (64, 301)])
@pytest.mark.parametrize("dims", [(64, 64), (60, 20), (128, 256)])
@pytest.mark.brief(each=("queries",))
def test_programs_for_gpus_call_cudnn(
    queries: int, slots: int, dims: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both ways where there are two, and back: JAX checks what cuDNN takes of shapes."""
    monkeypatch.setattr(fused_attention_stablehlo, "check_cudnn_version", lambda: 91000)
    monkeypatch.setattr(fused_attention_stablehlo, "check_compute_capability", lambda least: True)
    monkeypatch.setattr(fused_attention_stablehlo, "is_cuda_compute_capability_equal", lambda which: False)
    shapes = (2, queries, 8, dims[0]), (2, slots, 2, dims[0]), (2, slots, 2, dims[1])
    floats = [jax.ShapeDtypeStruct(shape, jnp.bfloat16) for shape in shapes]
    at, slot = (jax.ShapeDtypeStruct((2, n), jnp.int32) for n in (queries, slots))

    def loss(q: Any, k: Any, v: Any, at: Any, slot: Any) -> Any:
        return cudnn.attention(q, k, v, at, slot, scale=0.1, window=9).astype(jnp.float32).sum()

    ways = 1 if queries == 1 else 2
    for f, back in ((loss, False), (jax.grad(loss, (0, 1, 2)), True)):
        text = jax.jit(f).trace(*floats, at, slot).lower(lowering_platforms=("cuda",)).as_text()
        assert text.count("@__cudnn$fmhaScaleBiasSoftmax(") == 1
        assert text.count("@__cudnn$fmhaSoftmax(") == ways - 1
        assert text.count("@__cudnn$fmhaScaleBiasSoftmaxBackward(") == back
        assert text.count("@__cudnn$fmhaSoftmaxBackward(") == (ways - 1) * back


def test_packed_keys_are_no_arrays() -> None:
    codes = QTensor(
        np.zeros((1, 2, 2, 8), np.int8).view(np.uint8), np.ones((1, 2, 2, 1), np.float32), Scheme("int8", 0, "f32")
    )
    x, at = np.zeros((1, 2, 2, 8), BF16), np.zeros((1, 2), np.int32)
    assert (
        "keys or values" in Kernel("attention", ("cudnn",), "gpu").resolve(x, codes, codes, at, at, scale=1.0).reasons
    )
